"""The run folder: everything of a run; which process writes into it, and which of its stages are done.

It knows which files there are, but neither their forms (`scenarios.runs.run_store`) nor the meaning of a metric
(`scenarios.metrics.run_result`). Files are written whole or not at all (`kit.files`), so a run that was killed at any
moment can resume.
"""

from __future__ import annotations

import fcntl
import os
import platform
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from itertools import combinations
from pathlib import Path
from typing import Any, Final

from hw.host_resources import core_count
from kit.documents import Memo, read_json, rows_in, with_remedy, write_json
from kit.errors import InputError
from kit.files import TEMPORARY, file_hash
from kit.plugins import code_here
from policies.router_kinds import CONTROLLED
from scenarios.files.bundled_files import KEEPING, MADE_KINDS, made_file, planned_file, score_file, training_file

OWN: Final = ".slimsched"  # the folder's mark: its scenario, and the process at work in it
CONTROL: Final = f"{OWN}/operator"  # while servers are up: see `scenarios.runs.operator_control`
STAGES: Final = ".stages"
SERVED: Final = "served"  # the log of what `slimsched serve` did
SCHEMA: Final = "slimsched.run-folder/2"
ENVIRONMENT_SCHEMA: Final = "slimsched.environment/2"
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
    "simulation": "compare",
    "executors": "validate",
    SERVED: "serve",
}
PRODUCT: Final = "slim-scheduler"
PACKAGES: Final = (
    PRODUCT, "torch", "numpy", "numba", "scipy", "scikit-learn", "simpy", "pydantic", "pyarrow", "safetensors",
)  # fmt: skip
_LONGEST_COMMAND: Final = 200  # characters of a command line


class RunFolder:
    """One run's folder; docs/run-folder.md lists its contents.

    Reading it makes and changes nothing. What writes does so within `opened`.

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
            raise InputError(str(self.path), "", "holds files and is not a run folder; name an empty or a new folder")
        (self.path / OWN).mkdir(parents=True, exist_ok=True)
        with self._locked():
            self._is_open = True
            try:
                self._remove_leftovers()
                if scenario is not None:
                    self._name_scenario(scenario)
                yield
            finally:
                self._is_open = False
                if [path.name for path in self.path.iterdir()] == [OWN]:
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
        try:
            with (self.path / OWN / "lock").open() as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the folder's lock, which ends with this process; its file names this process."""
        lock = self.path / OWN / "lock"
        if lock.is_symlink():  # it would be written through
            lock.unlink()
        with lock.open("a+", encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                problem = f"in use by {file.read()}; wait for it, end it, or name another folder with --out"
                raise InputError(str(self.path), "", problem) from None
            file.truncate(0)
            file.write(_this_process())
            file.flush()
            yield
            file.truncate(0)

    def _remove_leftovers(self) -> None:
        """Remove what killed commands have left; never a user's file."""
        below = (path for name in FOLDERS for path in (self.path / name).rglob(".*.tmp"))
        for path in (*self.path.glob(".*.tmp"), *below):
            if TEMPORARY.fullmatch(path.name):
                path.unlink()
        shutil.rmtree(self.path / CONTROL, ignore_errors=True)

    def _name_scenario(self, scenario: Path) -> None:
        """Name the scenario's file in the mark, from the folder; report if it is another one than before."""
        if (before := self._other_scenario(scenario)) is not None:
            self.say(f"{self.path}: of the scenario {before} so far, now of {scenario}")
        mark = {"schema": SCHEMA, "scenario": os.path.relpath(scenario.resolve(), self.path.resolve())}
        if _mapping(self.path / OWN / "run.json") != mark:
            write_json(self.path / OWN / "run.json", mark)

    @property
    def scenario(self) -> Path | None:
        """The file that the folder is of, from here; None if unknown."""
        name = _mapping(self.path / OWN / "run.json").get("scenario")
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
        command = FILES.get(name) or FOLDERS.get(name.split("/")[0], "run")
        of = [] if self.scenario is None else [str(self.scenario), "--out", str(self.path)]
        command_line = shlex.join(["slimsched", *command.split(), *of])
        return f"`{command_line}`, with the flags that it had, makes it again"

    # ----------------------------------------------------------------------------------------------------- stages

    def is_done(self, stage: str, fingerprint: str) -> bool:
        """Return whether a stage can be skipped: its outputs are as it left them, and its inputs are unchanged."""
        return not self._why_due(stage, fingerprint)

    def _why_due(self, stage: str, fingerprint: str) -> str:
        """Return why a stage has to run, in words for the user; empty if it is done."""
        mark = self.path / STAGES / f"{stage}.json"
        if not mark.exists():
            return "begins"
        if _mapping(mark).get("inputs") != fingerprint:
            return "its inputs have changed"
        for name, content in self.outputs(stage).items():
            if not (self.path / name).exists():
                return f"{name} is missing"
            if not self.is_whole({name: content}):
                return f"{name} was changed or damaged since"
        return ""

    def run_stage(
        self,
        stage: str,
        fingerprint: str,
        work: Callable[[], Sequence[Path]],
        made_with: Callable[[], Mapping[str, Any]] | None = None,
    ) -> bool:
        """Do a stage's work unless it is done, and report which; return whether it ran.

        Args:
            made_with: describes what the stage is made with (`environment`), for `environment.json`.
        """
        reason = self._why_due(stage, fingerprint)
        self.say(f"{stage}: {reason or 'skipped, done before'}")
        if not reason:
            return False
        facts = made_with and made_with()  # as the work begins
        outputs = work()
        if facts is not None:
            self.note_environment(stage, facts)
        self.finish(stage, fingerprint, outputs)
        return True

    def finish(self, stage: str, fingerprint: str, outputs: Iterable[Path]) -> None:
        """Mark a stage as done."""
        mark = {"inputs": fingerprint, "outputs": self.contents(outputs)}
        write_json(self.path / STAGES / f"{stage}.json", mark)

    def contents(self, files: Iterable[Path]) -> dict[str, str]:
        """Return the hash of each file's content, by its name in the folder."""
        return {path.relative_to(self.path).as_posix(): file_hash(path) for path in files}

    def is_whole(self, contents: Mapping[str, str]) -> bool:
        """Return whether files are as they were made."""
        paths = {self.path / name: content for name, content in contents.items()}
        return all(path.is_file() and file_hash(path) == content for path, content in paths.items())

    def outputs(self, stage: str) -> dict[str, str]:
        """Return what a stage has made, by its mark."""
        outputs = _mapping(self.path / STAGES / f"{stage}.json").get("outputs")
        return outputs if isinstance(outputs, dict) else {}

    def remove_outputs(self, stage: str) -> None:
        """Remove what a stage has made, and what its interrupted tries have kept."""
        tries = [*(self.path / STAGES).glob(f"{stage}-{'[0-9a-f]' * 12}.jsonl")]
        outputs = {name for memo in tries for row in rows_in(memo) for name in row.get("outputs", ())}
        for path in (self.path / name for name in outputs.union(self.outputs(stage))):
            path.unlink(missing_ok=True)
            with suppress(OSError):
                path.parent.rmdir()
        for path in (self.path / STAGES / f"{stage}.json", *tries):
            path.unlink(missing_ok=True)

    def memo(self, stage: str, fingerprint: str) -> Memo:
        """Return what an interrupted try of a stage has finished."""
        return Memo(self.path / STAGES / f"{stage}-{fingerprint[:12]}.jsonl", fingerprint)

    # -------------------------------------------------------------------------------------------- what made a stage

    @property
    def environments(self) -> dict[str, dict[str, Any]]:
        """By stage, what it was made with (`environment`)."""
        stages = _mapping(self.path / "environment.json").get("stages")
        stages = stages if isinstance(stages, dict) else {}
        return {stage: facts for stage, facts in stages.items() if isinstance(facts, dict)}

    def note_environment(self, stage: str, facts: Mapping[str, Any]) -> None:
        """Record what a stage was made with, instead of what it was made with before."""
        document = {"schema": ENVIRONMENT_SCHEMA, "stages": {**self.environments, stage: dict(facts)}}
        write_json(self.path / "environment.json", document)


def environment(devices: Sequence[Mapping[str, Any]], seeds: Mapping[str, Any]) -> dict[str, Any]:
    """Describe this machine's versions and devices, and the seeds; nothing that names a person or a place."""
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": core_count(),
        "packages": {name: version_of(name) for name in PACKAGES},
        "code": code_here(),
        "devices": [dict(device) for device in devices],
        "seeds": dict(seeds),
    }


def version_of(package: str) -> str | None:
    """Return the installed version; None if there is none."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def require_apart(written: Sequence[Path], read: Iterable[Path], folder: Path | None = None) -> None:
    """Check that the files that a command writes are none that it reads or that a run makes, and that they differ.

    Args:
        folder: the run folder that the command will make.

    Raises:
        InputError: a result would replace an input, another result, or a run folder or its file.
    """
    read = list(read)
    for target in written:
        if any(_is_same_file(target, path) for path in read):
            problem = "the command reads this file, and its result would replace it; name another"
            raise InputError(str(target), "", problem)
        real, root = target.parent.resolve() / target.name, None if folder is None else folder.resolve()
        if root is not None and (real == root or real in root.parents):
            raise InputError(str(target), "", f"the run folder {folder} is to be made there; name another")
        for above in real.parents:
            name = real.relative_to(above)
            if (above == root or RunFolder(above).is_flagged) and (str(name) in FILES or name.parts[0] in FOLDERS):
                owner = folder if above == root else above
                raise InputError(str(target), "", f"is a name of the run folder {owner}'s own files; name another")
    for first, second in combinations(written, 2):
        if first.absolute() == second.absolute() or (first.is_file() and _is_same_file(first, second)):
            raise InputError(str(first), "", "two results can't go into one file; name another for one of them")


def _is_same_file(target: Path, path: Path) -> bool:
    """Check for a regular file under two names; devices may be read and written."""
    try:
        return target.is_file() and target.samefile(path)
    except (OSError, ValueError):
        return False


def _mapping(path: Path) -> dict[str, Any]:
    """Return a JSON document of the folder's own; empty if it is missing or damaged."""
    try:
        document = read_json(path)
    except InputError:
        return {}
    return document if isinstance(document, dict) else {}


def _this_process() -> str:
    """Describe this process, for others that find the folder locked."""
    program = {"cli.py": "slimsched"}.get(Path(sys.argv[0]).name, Path(sys.argv[0]).name)
    command = shlex.join([program, *sys.argv[1:]])[:_LONGEST_COMMAND]
    return f"process {os.getpid()} (`{command}`, since {datetime.now():%Y-%m-%d %H:%M:%S})"
