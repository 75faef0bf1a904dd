"""The run folder: where everything of a run lies, written atomically, and which stages of it are done.

It knows which files there are, and neither their forms (`scenarios.runs.records`) nor what a metric says
(`scenarios.metrics.result`). A file is either whole or not there, so a run killed at any moment can go on. What was not
made in it by this program is neither replaced nor removed, and no link in it is followed.
"""

from __future__ import annotations

import os
import shlex
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Final

from kit.documents import read_checked, read_json, with_remedy, write_checked, write_json, write_text
from kit.errors import InputError, WorkError
from kit.files import file_hash, set_aside
from scenarios.runs import layout
from scenarios.runs.adoption import ELSEWHERE, contents_of, require_ours
from scenarios.runs.lock import locked
from scenarios.runs.manifest import Contents, Entry, Journal, read_manifest

_NOBODY: Final = "set aside"  # no stage's, so that none removes it


@dataclass(slots=True)
class Making:
    """A file that is being made; `steps` is for who writes an event log to say."""

    path: Path
    steps: int | None = None


@dataclass(frozen=True, slots=True)
class Stage:
    """Whether a stage has to run, and why, in words for the user."""

    name: str
    is_done: bool
    reason: str


class RunFolder:
    """One run's folder; docs/run-folder.md says what lies in it.

    Looking at it makes and changes nothing. Whatever writes does so between `opened` and its end, alone; what writes
    singly opens it for as long.

    Attributes:
        say: takes lines for the user.
    """

    def __init__(self, path: os.PathLike[str] | str, say: Callable[[str], None] = lambda _: None) -> None:
        self.path = Path(path)
        self.say = say
        self._journal: Journal | None = None
        self._identity = (0, 0)
        self._maker = "run"

    def __truediv__(self, name: str) -> Path:
        """A path in it."""
        return self.path / name

    def __fspath__(self) -> str:
        """It can stand wherever a path does."""
        return str(self.path)

    # ------------------------------------------------------------------------------------------------- opening it

    @contextmanager
    def opened(self, scenario: Path | None = None, *, maker: str | None = None) -> Iterator[None]:
        """Within it this process alone writes into the folder, which is made and marked as a run's.

        A folder without a mark is taken over where it is empty, or a run folder of a former version with nothing else
        in it. Where nothing is written, a new folder is gone again in the end.

        Args:
            scenario: its file, which the mark names.
            maker: who makes what no stage does.

        Raises:
            InputError: something else lies there, or a link or another file is in the way of what would be written; or
                another command is at work in it.
        """
        with self._made_by(maker or self._maker), ExitStack() as stack:
            if self._journal is None:
                stack.enter_context(self._session(scenario))
            yield

    @contextmanager
    def _session(self, scenario: Path | None) -> Iterator[None]:
        self._require_folder(self.path / layout.OWN)
        require_ours(self.path)  # before anything is made
        made = _make_folders(self.path / layout.OWN)
        try:
            with locked(self._lock, self.path, self.say):
                contents = contents_of(self.path)
                self._require_no_obstacle(contents)
                self._clean()
                self._identity = self._found_identity()
                journal = Journal(self._manifest, replace(contents, scenario=self._recorded(contents, scenario)))
                self._journal = journal
                try:
                    yield
                finally:
                    self._journal = None
                    journal.close()
                    if not journal.entries and self._found_identity() == self._identity:
                        shutil.rmtree(self.path / layout.OWN)
        finally:
            for folder in made:  # as far as nothing lies in them
                with suppress(OSError):
                    folder.rmdir()

    @contextmanager
    def _made_by(self, maker: str) -> Iterator[None]:
        before, self._maker = self._maker, maker
        try:
            yield
        finally:
            self._maker = before

    @property
    def _lock(self) -> Path:
        return self.path / layout.OWN / "lock"

    @property
    def _manifest(self) -> Path:
        return layout.manifest_of(self.path)

    def _require_no_obstacle(self, contents: Contents) -> None:
        """What would be in the way at the end is told in the beginning."""
        for name in layout.FOLDERS:
            path = self.path / name
            self._require_folder(path)
            if path.is_dir() and name != "profiles":  # users link profiles
                for below in path.iterdir():
                    if below.is_symlink():
                        raise _in_the_way(below)
        for name in layout.FILES:
            self._require_file(name, contents.entries)

    def _require_folder(self, path: Path) -> None:
        if os.path.lexists(path) and (path.is_symlink() or not path.is_dir()):
            raise _in_the_way(path)

    def _require_file(self, name: str, entries: Mapping[str, Entry]) -> None:
        path = self.path / name
        if not os.path.lexists(path):
            return
        is_known = any(each in entries for each in (name, *(str(above) for above in Path(name).parents)))
        if path.is_symlink() or not path.is_file() or not is_known:
            raise _in_the_way(path)

    def _clean(self) -> None:
        """What writes that were killed have left."""
        below = [layout.walk(self.path / name) for name in layout.FOLDERS if (self.path / name).is_dir()]
        for path in (*self.path.iterdir(), *chain.from_iterable(below)):
            if layout.is_temporary(self._name(path)) and path.is_file():
                path.unlink()
        shutil.rmtree(self.path / layout.DOOR, ignore_errors=True)

    def _recorded(self, contents: Contents, scenario: Path | None) -> str | None:
        """The scenario's file as the mark has it, from the folder; of another one than so far, a line is said."""
        if scenario is None:
            return contents.scenario
        if (before := self._other_scenario(contents, scenario)) is not None:
            self.say(f"{self.path}: of the scenario {before} so far, now of {scenario}")
        return os.path.relpath(scenario.resolve(), self.path.resolve())

    def _other_scenario(self, contents: Contents, scenario: Path) -> Path | None:
        """The file that the folder is of, where that is there, and another one than the user's."""
        if contents.scenario is None:
            return None
        before = self.path.resolve() / contents.scenario
        try:
            return None if before.samefile(scenario) else Path(os.path.relpath(before))
        except OSError:
            return None

    def require_scenario(self, scenario: Path) -> None:
        """Raises `InputError` where the folder is of another scenario's file: one that has the same name."""
        before = self._other_scenario(read_manifest(self._manifest) or Contents(), scenario)
        if before is not None:
            problem = f"is of {before}, a scenario of the same name; change `name:` in one, {ELSEWHERE}"
            raise InputError(str(self.path), "", problem)

    def _found_identity(self) -> tuple[int, int]:
        try:
            found = self._lock.stat()  # who removes a folder may not have come to its other files yet
        except OSError:
            return (0, 0)
        return found.st_dev, found.st_ino

    def require_there(self) -> None:
        """Raises `WorkError` where the folder that was opened, or its mark, has been removed or moved meanwhile."""
        if self._journal is not None and self._found_identity() != self._identity:
            problem = "was removed or moved while a command wrote into it; the same command begins anew"
            raise WorkError(f"{self.path} {problem}")

    # ---------------------------------------------------------------------------------------------------- writing

    @contextmanager
    def making(self, path: Path) -> Iterator[Making]:
        """Within it a file of the folder is made; what was there is replaced, or kept beside where it was changed.

        Raises:
            InputError: something that was not made here is in the way.
            WorkError: the folder is gone.
        """
        with self.opened():
            name = self._place(path)
            if path.exists() and not self.is_as_made(name):
                self._set_aside(path)
            journal = self._open_journal
            journal.put(name, Entry(self._maker))
            made = Making(path)
            yield made
            journal.put(name, Entry(self._maker, file_hash(path), made.steps))

    def working(self, path: Path) -> Path:
        """A path to a file or folder that is written again and again while work goes on, and never sealed.

        Raises:
            InputError: something that was not made here is in the way.
            WorkError: the folder is gone.
        """
        with self.opened():
            name = self._place(path, is_folder=path.is_dir())
            self._open_journal.put(name, Entry(self._maker))
        return path

    def write_text(self, path: Path, text: str) -> None:
        """A UTF-8 file of the folder."""
        with self.making(path):
            write_text(path, text)

    def write_json(self, path: Path, document: Any) -> None:
        """A JSON document of the folder."""
        with self.making(path):
            write_json(path, document)

    def partial(self, stage: str, fingerprint: str) -> Path:
        """Where a stage keeps what an interrupted try has finished."""
        return self.path / layout.STAGES / f"{stage}-{fingerprint[:12]}.json"

    def write_partial(self, path: Path, content: Any) -> None:
        """What an interrupted stage will go on from."""
        write_checked(self.working(path), content)

    def read_partial(self, path: Path) -> Any:
        """What `write_partial` wrote; None where there is nothing, or it is damaged, which is said."""
        self.drop_damaged(path, read_checked)
        return read_checked(path) if path.exists() else None

    def drop_damaged(self, path: Path, read: Callable[[Path], object]) -> bool:
        """Set a file aside that work would go on from, but that can't be read; says so, and returns whether it did."""
        if not path.exists():
            return False
        try:
            read(path)
        except InputError as error:
            with self.opened():
                self._set_aside(path, f"can't be read ({error.problem})", "; this begins anew")
            return True
        return False

    def remove_made_by(self, maker: str) -> None:
        """Remove what a stage made, and folders that are empty then; what was changed since is kept beside."""
        with self.opened():
            for name, _ in self._open_journal.made_by(maker):
                path = self.path / name
                with suppress(InputError):  # what is in the way of a file of ours is none of ours
                    self._place(path)
                    if path.exists() and not self.is_as_made(name):
                        self._set_aside(path)
                    path.unlink(missing_ok=True)
                    self._remove_empty(path.parent)
                self._open_journal.drop(name)

    def remove(self, path: Path) -> None:
        """Remove a file that was made in the folder, if it is there; what was changed since is kept beside."""
        with self.opened():
            name = self._place(path)
            if path.exists() and not self.is_as_made(name):
                self._set_aside(path)
            path.unlink(missing_ok=True)
            self._open_journal.drop(name)

    def require_free(self, path: Path) -> None:
        """Raises `InputError` where a file could not be made, because something is in the way."""
        with self.opened():
            self._place(path)

    def _remove_empty(self, folder: Path) -> None:
        while folder != self.path:
            try:
                folder.rmdir()
            except OSError:
                return
            folder = folder.parent

    def _set_aside(self, path: Path, problem: str = "was changed or damaged since it was made", then: str = "") -> None:
        aside = set_aside(path, layout.ENDING)
        self._open_journal.put(self._name(aside), Entry(_NOBODY))
        self.say(f"{path} {problem}: it is kept as {aside.name}{then}")

    @property
    def _open_journal(self) -> Journal:
        assert self._journal is not None, "whatever writes opens the folder"
        return self._journal

    def _name(self, path: Path) -> str:
        return path.relative_to(self.path).as_posix()

    def _place(self, path: Path, *, is_folder: bool = False) -> str:
        """A path's name in the folder, where it can be written; folders between are not made yet."""
        self.require_there()
        name = self._name(path)
        for above in reversed(Path(name).parents[:-1]):
            self._require_folder(self.path / above)
        if is_folder:
            self._require_folder(path)
        else:
            self._require_file(name, self._open_journal.entries)
        return name

    # ---------------------------------------------------------------------------------------------------- reading

    @property
    def entries(self) -> Mapping[str, Entry]:
        """What is known of the files in it, by their names."""
        if self._journal is not None:
            return self._journal.entries
        return (read_manifest(self._manifest) or Contents()).entries

    def is_as_made(self, name: str) -> bool:
        """Whether a file's content is what was written; of one that nobody wrote, or that was never whole, always."""
        entry = self.entries.get(name)
        return entry is None or entry.sha256 is None or _hash_of(self.path / name) == entry.sha256

    def made_by(self, maker: str) -> list[str]:
        """The files that a stage or command made, whole, by name."""
        return sorted(name for name, entry in self.entries.items() if entry.by == maker and entry.sha256 is not None)

    def has_whole(self, name: str) -> bool:
        """Whether files were made below a name, and all are as they were made."""
        made = [each for each, entry in self.entries.items() if each.startswith(f"{name}/")]
        return bool(made) and all((self.path / each).exists() and self.is_as_made(each) for each in made)

    def remedy(self, name: str) -> str:
        """What makes a file again; which flags the command had is not kept."""
        command = self.command(name)
        flags = "" if command.startswith("slimsched report ") else ", with the flags that it had,"
        return f"`{command}`{flags} makes it again"

    def command(self, name: str) -> str:
        """The command that makes a file again, but for flags."""
        entry = self.entries.get(name)
        command = layout.command_of(name, None if entry is None else entry.by)
        if command == "report":
            return shlex.join(["slimsched", "report", str(self.path)])
        scenario = (read_manifest(self._manifest) or Contents()).scenario
        if scenario is None:
            return f"slimsched {command}"
        path = os.path.relpath(self.path.resolve() / scenario)
        return shlex.join(["slimsched", *command.split(), path, "--out", str(self.path)])

    @contextmanager
    def mending(self, name: str) -> Iterator[None]:
        """What is wrong with a file of the folder is told with the command that makes it again."""
        with with_remedy(self.remedy(name)):
            yield

    def require_as_made(self, name: str) -> None:
        """Raises `InputError` where a file was changed since it was made."""
        with self.mending(name):
            if (self.path / name).exists() and not self.is_as_made(name):
                raise InputError(str(self.path / name), "", "was changed or damaged since it was made")

    def read_json(self, name: str) -> Any:
        """A JSON document of the folder; raises `InputError` where it is missing, changed or damaged."""
        self.require_as_made(name)
        with self.mending(name):
            return read_json(self.path / name)

    # ----------------------------------------------------------------------------------------------------- stages

    def stage(self, name: str, fingerprint: str) -> Stage:
        """Whether a stage can be skipped: its outputs are as it left them, and its inputs those that it ran with."""
        mark = self._mark(name)
        if not mark.exists():
            return Stage(name, False, "begins")
        try:
            found = read_json(mark)
            inputs, outputs = found["inputs"], found["outputs"]
            hashes = outputs if isinstance(outputs, dict) else dict.fromkeys(outputs)  # a former version had no hashes
            paths = {self.path / output: sha256 for output, sha256 in hashes.items()}
        except (InputError, AttributeError, KeyError, TypeError):
            return Stage(name, False, "its mark is damaged")
        if inputs != fingerprint:
            return Stage(name, False, "its inputs have changed")
        changed = [path for path, sha256 in paths.items() if sha256 is None or _hash_of(path) != sha256]
        missing = [path for path in changed if not path.exists()]
        damaged = [path for path in changed if path.exists() and paths[path] is not None]
        if missing:
            return Stage(name, False, f"{self._name(missing[0])} is missing")
        if damaged:
            return Stage(name, False, f"{self._name(damaged[0])} was changed or damaged since")
        return Stage(name, True, "done before")

    def finish(self, name: str, fingerprint: str, outputs: Sequence[Path]) -> None:
        """Mark a stage as done; raises `WorkError` where an output of it does not lie in the folder any more."""
        self.require_there()
        absent = [str(output) for output in outputs if not output.is_file()]
        if absent:
            raise WorkError(f"{absent[0]} was removed as soon as it was made; the same command makes it again")
        sealed = {output: self.entries.get(self._name(output)) for output in outputs}
        hashes = {
            self._name(output): entry.sha256 if entry is not None and entry.sha256 else file_hash(output)
            for output, entry in sealed.items()
        }
        self.write_json(self._mark(name), {"inputs": fingerprint, "outputs": hashes})

    def run_stage(
        self, name: str, fingerprint: str, work: Callable[[], Sequence[Path]], say: Callable[[str], None]
    ) -> bool:
        """Do a stage's work unless it is done; says which. Returns whether it ran."""
        stage = self.stage(name, fingerprint)
        say(f"{name}: {'skipped, ' if stage.is_done else ''}{stage.reason}")
        if not stage.is_done:
            with self.opened(maker=name):
                self._mark(name).unlink(missing_ok=True)
                self.finish(name, fingerprint, work())
        return not stage.is_done

    def _mark(self, name: str) -> Path:
        return self.path / layout.STAGES / f"{name}.json"


def _make_folders(path: Path) -> list[Path]:
    """Make a folder and those above it that are missing; those that were made, the deepest first."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    return missing


def _hash_of(path: Path) -> str | None:
    """Of a regular file's content; None where there is none that can be read."""
    try:
        return file_hash(path) if stat.S_ISREG(path.lstat().st_mode) else None
    except (OSError, ValueError):  # a name with a zero byte
        return None


def _in_the_way(path: Path) -> InputError:
    """What would have to be followed or replaced, although it was not made here."""
    if path.is_symlink():
        problem = "this is a link, and no link in a run folder is followed; remove it"
    elif path.is_dir():
        problem = "this folder is in the way of a file; move it elsewhere"
    else:
        problem = "this was not made by slimsched; move it elsewhere"
    return InputError(str(path), "", f"{problem}, {ELSEWHERE}")
