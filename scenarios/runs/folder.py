"""The run folder: everything of a run; which process writes into it, and which of its stages are done.

It knows which files there are, but neither their forms (`scenarios.runs.records`) nor the meaning of a metric
(`scenarios.metrics.result`). Files are written whole or not at all (`kit.files`), so a run that was killed at any
moment can resume.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from filelock import FileLock, Timeout

from kit.documents import read_json, with_remedy, write_json
from kit.errors import InputError, WorkError
from kit.files import TEMPORARY, file_hash
from kit.memo import Memo, rows_in
from policies.registry import CONTROLLED
from scenarios.files.made_routers import KEEPING, MADE_KINDS, made_file, planned_file, score_file, training_file

OWN: Final = ".slimsched"  # the folder's mark: its scenario, and the process at work in it
CONTROL: Final = f"{OWN}/operator"  # while servers are up: see `scenarios.runs.control`
STAGES: Final = ".stages"
SERVED: Final = "served"  # the log of what `slimsched serve` did
SCHEMA: Final = "slimsched.run-folder/2"
FILES: Final = {  # and the command that makes each
    "scenario.yaml": "compare",
    "environment.json": "compare",
    "model.safetensors": "model train",
    "accuracy.json": "model evaluate",
    **{name(kind): "train" for kind in MADE_KINDS for name in (made_file, score_file, training_file)},
    **{planned_file(f"{kind}{KEEPING}"): "plan" for kind in CONTROLLED},
    "results.json": "compare",
    "comparison.json": "compare",
    "cores.json": "validate",
    "validation.json": "validate",
    "report.html": "report",
}
FOLDERS: Final = {
    OWN: "run",
    STAGES: "run",
    "calibration": "run",
    "decisions": "run",
    "profiles": "run",
    "training": "train",
    "simulation": "simulate",
    "hardware": "validate",
    SERVED: "serve",
}
_COMMANDS: Final = {  # of a stage, if it is not its name
    "model": "model train",
    "accuracy": "model evaluate",
    "records": "compare",
    "compare": "compare",
    "validate": "validate",
    "train": "train",
    **{f"train-{kind}": "train" for kind in MADE_KINDS},
}
_LONGEST_COMMAND: Final = 200  # characters of a command line

Stamp = list[Any]
"""Of a file as it was made: its bytes, the time of its last change in nanoseconds, and its content's SHA-256."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Whether a stage has to run, and why, in words for the user."""

    name: str
    is_done: bool
    reason: str


class RunFolder:
    """One run's folder; docs/run-folder.md lists its contents.

    Looking at it makes and changes nothing. What writes does so within `opened`.

    Attributes:
        say: takes lines for the user.
    """

    def __init__(self, path: os.PathLike[str] | str, say: Callable[[str], None] = lambda _: None) -> None:
        self.path = Path(path)
        self.say = say
        self._is_open = False

    def __truediv__(self, name: str) -> Path:
        """Return a path in it."""
        return self.path / name

    def __fspath__(self) -> str:
        """Return its path, so that it can be used as a path."""
        return str(self.path)

    # ------------------------------------------------------------------------------------------------- opening it

    @contextmanager
    def opened(self, scenario: Path | None = None) -> Iterator[None]:
        """Make this process the only one that writes into the folder, which is made and marked as a run's.

        If nothing is written, a new folder is removed at the end.

        Args:
            scenario: its file, which the mark names.

        Raises:
            InputError: the folder holds files and is not a run folder, or another command is at work in it.
        """
        if self._is_open:
            yield
            return
        is_new = not self.path.exists()
        if not is_new and not self.is_flagged and any(self.path.iterdir()):
            raise InputError(str(self.path), "", "holds files and is no run folder; name an empty or a new folder")
        (self.path / OWN).mkdir(parents=True, exist_ok=True)
        try:
            with self._locked():
                self._clean()
                self._record(scenario)
                self._is_open = True
                yield
        finally:
            self._is_open = False
            if [path.name for path in self.path.iterdir()] == [OWN] and not self.is_in_use:
                shutil.rmtree(self.path / OWN)
                if is_new:
                    self.path.rmdir()

    @property
    def is_flagged(self) -> bool:
        """Whether this is a run folder."""
        return (self.path / OWN).is_dir()

    @property
    def is_in_use(self) -> bool:
        """Whether a command is at work in it."""
        if not self._holder.exists():
            return False
        try:
            with FileLock(self._lock, blocking=False):
                return False
        except Timeout:
            return True

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the folder's lock, which is gone with this process, however that ends."""
        try:
            with FileLock(self._lock, blocking=False):
                self._holder.write_text(_this_process(), encoding="utf-8")
                yield
                self._holder.unlink(missing_ok=True)
        except Timeout:
            try:
                holder = self._holder.read_text(encoding="utf-8")
            except OSError:
                holder = "another process"
            problem = f"in use by {holder}; wait for it, end it, or name another folder with --out"
            raise InputError(str(self.path), "", problem) from None

    @property
    def _lock(self) -> Path:
        return self.path / OWN / "lock"

    @property
    def _holder(self) -> Path:
        return self.path / OWN / "holder"

    def _clean(self) -> None:
        """Remove what commands that were killed have left."""
        below = (path for name in FOLDERS for path in (self.path / name).rglob(".*.tmp"))
        for path in (*self.path.glob(".*.tmp"), *below):
            if TEMPORARY.fullmatch(path.name):
                path.unlink()
        shutil.rmtree(self.path / CONTROL, ignore_errors=True)

    def _record(self, scenario: Path | None) -> None:
        """Name the scenario's file in the mark, from the folder; prints a line if it is another one than before."""
        if scenario is None:
            return
        if (before := self._other_scenario(scenario)) is not None:
            self.say(f"{self.path}: of the scenario {before} so far, now of {scenario}")
        mark = {"schema": SCHEMA, "scenario": os.path.relpath(scenario.resolve(), self.path.resolve())}
        if self._mark() != mark:
            write_json(self.path / OWN / "run.json", mark)

    def _mark(self) -> Mapping[str, Any]:
        return _mapping(self.path / OWN / "run.json")

    @property
    def scenario(self) -> Path | None:
        """The file that the folder is of, from here; None if unknown."""
        name = self._mark().get("scenario")
        return Path(os.path.relpath(self.path.resolve() / name)) if isinstance(name, str) else None

    def _other_scenario(self, scenario: Path) -> Path | None:
        """Return the folder's own scenario file, if it exists and differs from the user's."""
        before = self.scenario
        return before if before is not None and before.exists() and not before.samefile(scenario) else None

    def require_scenario(self, scenario: Path) -> None:
        """Raise `InputError` if the folder is of another scenario's file: one that has the same name."""
        if (before := self._other_scenario(scenario)) is not None:
            problem = f"is of {before}, a scenario of the same name; change `name:` in one"
            raise InputError(str(self.path), "", f"{problem}, or name another folder with --out")

    # ---------------------------------------------------------------------------------------------------- reading

    def read_json(self, name: str) -> Any:
        """Return a JSON document of the folder; raises `InputError` if it is missing or damaged."""
        with self.mending(name):
            return read_json(self.path / name)

    @contextmanager
    def mending(self, name: str) -> Iterator[None]:
        """Report what is wrong with a file of the folder together with the command that makes it again."""
        with with_remedy(self.remedy(name)):
            yield

    def remedy(self, name: str) -> str:
        """Describe what makes a file again; which flags the command had is not kept."""
        command = self.command(name)
        flags = "" if command.startswith("slimsched report ") else ", with the flags that it had,"
        return f"`{command}`{flags} makes it again"

    def command(self, name: str) -> str:
        """Return the command that makes a file again, but for flags."""
        makers = (mark.stem for mark in self._marks() if name in _outputs(mark))
        stage = next(makers, "")
        command = _COMMANDS.get(stage, "run") if stage else FILES.get(name) or FOLDERS.get(name.split("/")[0], "run")
        if command == "report":
            return shlex.join(["slimsched", "report", str(self.path)])
        if self.scenario is None:
            return f"slimsched {command}"
        return shlex.join(["slimsched", *command.split(), str(self.scenario), "--out", str(self.path)])

    # ----------------------------------------------------------------------------------------------------- stages

    def stage(self, name: str, fingerprint: str) -> Stage:
        """Return whether a stage can be skipped: its outputs are as it left them, and its inputs are unchanged."""
        mark = self._stage(name)
        if not mark.exists():
            return Stage(name, False, "begins")
        inputs, outputs = _mapping(mark).get("inputs"), _outputs(mark)
        if inputs is None:
            return Stage(name, False, "its mark is damaged")
        if inputs != fingerprint:
            return Stage(name, False, "its inputs have changed")
        for output, stamp in outputs.items():
            if not (self.path / output).exists():
                return Stage(name, False, f"{output} is missing")
            if not self.is_whole({output: stamp}):
                return Stage(name, False, f"{output} was changed or damaged since")
        return Stage(name, True, "done before")

    def run_stage(
        self, name: str, fingerprint: str, work: Callable[[], Sequence[Path]], say: Callable[[str], None]
    ) -> bool:
        """Do a stage's work unless it is done, and print which. Returns whether it ran."""
        stage = self.stage(name, fingerprint)
        say(f"{name}: {'skipped, ' if stage.is_done else ''}{stage.reason}")
        if not stage.is_done:
            self.finish(name, fingerprint, work())
        return not stage.is_done

    def finish(self, name: str, fingerprint: str, outputs: Iterable[Path]) -> None:
        """Mark a stage as done; raises `WorkError` if an output is not in the folder any more."""
        write_json(self._stage(name), {"inputs": fingerprint, "outputs": self.stamps(outputs)})

    def stamps(self, outputs: Iterable[Path]) -> dict[str, Stamp]:
        """Return what shows later whether files, by their names in the folder, are as they are now."""
        try:
            return {path.relative_to(self.path).as_posix(): [*_quick(path), file_hash(path)] for path in outputs}
        except FileNotFoundError as error:
            problem = "was removed as soon as it was made; the same command makes it again"
            raise WorkError(f"{error.filename} {problem}") from None

    def is_whole(self, stamps: Mapping[str, Stamp]) -> bool:
        """Check whether files are as they were made; content is read only if the time of the last change differs."""
        return all(_is_as_made(self.path / name, stamp) for name, stamp in stamps.items())

    def outputs(self, stage: str) -> dict[str, Stamp]:
        """Return what a stage has made, by its mark."""
        return _outputs(self._stage(stage))

    def recorded(self) -> set[str]:
        """Return what all stages have made."""
        return {name for mark in self._marks() for name in _outputs(mark)}

    def remove_outputs(self, stage: str) -> None:
        """Remove what a stage has made, and what its interrupted tries have kept."""
        tries = [*(self.path / STAGES).glob(f"{stage}-{'[0-9a-f]' * 12}.jsonl")]
        outputs = {name for memo in tries for row in rows_in(memo) for name in row.get("outputs", ())}
        for path in (self.path / name for name in outputs.union(self.outputs(stage))):
            path.unlink(missing_ok=True)
            with suppress(OSError):
                path.parent.rmdir()
        for path in (self._stage(stage), *tries):
            path.unlink(missing_ok=True)

    def _stage(self, name: str) -> Path:
        return self.path / STAGES / f"{name}.json"

    def _marks(self) -> Iterator[Path]:
        return (self.path / STAGES).glob("*.json")

    # ------------------------------------------------------------------------- what an interrupted stage goes on from

    def memo(self, stage: str, fingerprint: str) -> Memo:
        """Return what an interrupted try of a stage has finished."""
        return Memo(self.path / STAGES / f"{stage}-{fingerprint[:12]}.jsonl", fingerprint)

    def drop_damaged(self, path: Path, read: Callable[[Path], object]) -> bool:
        """Remove a damaged file that work would resume from, with a message; returns whether it did."""
        if not path.exists():
            return False
        try:
            read(path)
        except InputError as error:
            path.unlink()
            self.say(f"{path} can't be read ({error.problem}): this begins anew")
            return True
        return False


def _mapping(path: Path) -> dict[str, Any]:
    """Return a JSON document of the folder's own; empty if it is missing or damaged."""
    try:
        document = read_json(path)
    except InputError:
        return {}
    return document if isinstance(document, dict) else {}


def _outputs(mark: Path) -> dict[str, Stamp]:
    outputs = _mapping(mark).get("outputs")
    return outputs if isinstance(outputs, dict) else {}


def _quick(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]


def _is_as_made(path: Path, stamp: Stamp) -> bool:
    try:
        now = _quick(path)
        return now == stamp[:2] or (now[0] == stamp[0] and file_hash(path) == stamp[2])
    except OSError:
        return False


def _this_process() -> str:
    """Describe this process, for others that find the folder locked."""
    program = {"cli.py": "slimsched"}.get(Path(sys.argv[0]).name, Path(sys.argv[0]).name)
    command = shlex.join([program, *sys.argv[1:]])[:_LONGEST_COMMAND]
    return f"process {os.getpid()} (`{command}`, since {datetime.now():%Y-%m-%d %H:%M:%S})"
