"""The log of a calibration, one JSON line a finished step, so that a crash loses one point; and its specification.

A `Log` decides whether an existing file may be continued (same device, model and execution) and refuses it otherwise.
It does not interpret the steps.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal

import msgspec

from calibrate.measurement_bench import Result, from_jsonable, to_jsonable
from hw.device_settings import DeviceSpec
from hw.networks.network_files import ModelFile
from kit.errors import InputError, WorkError

SCHEMA: Final = "slimsched.calibration-log/2"
PADDED_SIZES: Final = "padded_sizes"  # key of a log's stamp


class Log:
    """An append-only file of finished steps; a context manager.

    Errors inside it are reported with the path of the log, which is kept.

    Args:
        path: read first if it exists; a last line that a crash truncated is dropped.
        stamp: validity of the measurements (device, model, execution); a log with another stamp is refused.

    Attributes:
        results: results of finished steps, by the step's id.
        spent_s: seconds that the finished steps took, over all sessions.

    Raises:
        InputError: the file cannot be opened, is not a calibration log, is damaged before its last line, has another
        stamp, or another process is writing to it.
        WorkError: it cannot be written to.
    """

    def __init__(self, path: Path, stamp: Mapping[str, str]) -> None:
        self.path = path
        self.results: dict[str, Result] = {}
        self.spent_s = 0.0
        if path.exists() and not path.is_file():
            raise InputError(str(path), "", "cannot be a log (no file); choose another path")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
            # unbuffered: otherwise a line that did not fit would be retried at each later write, and at the end
            self._file = path.open("r+b", buffering=0)
        except OSError as error:
            raise InputError(str(path), "", f"cannot be a log ({error.strerror}); choose another path") from None
        try:
            self._require_alone()
            self._continue(self._file.readall() or b"", stamp)
        except BaseException:
            self._file.close()
            raise

    def append(self, step: str, elapsed_s: float, result: Result) -> None:
        """Store a finished step; the operating system has it on return.

        Raises:
            WorkError: it cannot be written (disk full); the steps before are kept.
        """
        self._write({"step": step, "elapsed_s": elapsed_s, "result": to_jsonable(result)})
        self.results[step] = result
        self.spent_s += elapsed_s

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Log:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        if isinstance(error, WorkError) and not isinstance(error, _UnwritableError):
            raise WorkError(f"{error}; {self._kept()}") from error

    def _kept(self) -> str:
        return f"{len(self.results)} finished steps are kept in {self.path}: the same command resumes there"

    def _write(self, record: Mapping[str, Any]) -> None:
        line = json.dumps(record).encode() + b"\n"
        begin = self._file.tell()
        try:
            while line:
                line = line[self._file.write(line) :]
        except OSError as error:
            with contextlib.suppress(OSError):  # reading the log drops a truncated line, too
                self._file.truncate(begin)
            problem = f"{self.path} cannot be written ({error.strerror}); make room"
            raise _UnwritableError(f"{problem}: {self._kept()}") from None

    def _continue(self, text: bytes, stamp: Mapping[str, str]) -> None:
        """Read the existing log; only then drop the truncated rest, so that a refused file stays unchanged."""
        header = json.dumps({"schema": SCHEMA, "stamp": dict(stamp)}).encode()
        whole_bytes = text.rfind(b"\n") + 1
        lines = text[:whole_bytes].splitlines()
        if lines:
            self._require_stamp(_stamp(self.path, lines[0]), stamp)
            for record in _records(self.path, lines[1:]):
                self.results[record.step] = from_jsonable(record.result)
                self.spent_s += record.elapsed_s
        elif not header.startswith(text):  # otherwise a crash truncated the first line
            raise _no_log(self.path)
        self._file.truncate(whole_bytes)
        self._file.seek(whole_bytes)
        if not lines:
            self._write({"schema": SCHEMA, "stamp": dict(stamp)})

    def _require_alone(self) -> None:
        """Lock the file, for two writers would corrupt each other's lines; the lock ends with its process."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            problem = "another calibration is writing to this log; wait for it, end it, or choose another path"
            raise InputError(str(self.path), "", problem) from None

    def _require_stamp(self, logged: Mapping[str, str], stamp: Mapping[str, str]) -> None:
        for key in sorted({*logged, *stamp}):
            if logged.get(key) != stamp.get(key):
                problem = f"the log is of {_shown(logged, key)}, this calibration of {_shown(stamp, key)}"
                remedy = "choose another path, or remove the log to start afresh"
                raise InputError(str(self.path), f"stamp.{key}", f"{problem}; {remedy}")


class _Header(msgspec.Struct, frozen=True):
    schema: Literal["slimsched.calibration-log/2"]
    stamp: dict[str, str]


class _Record(msgspec.Struct, frozen=True):
    step: str
    elapsed_s: float
    result: dict[str, Any]


def _no_log(path: Path) -> InputError:
    return InputError(str(path), "schema", f"no calibration log ({SCHEMA}); remove it, or name another folder")


def _stamp(path: Path, line: bytes) -> dict[str, str]:
    try:
        return msgspec.convert(json.loads(line), _Header).stamp
    except (ValueError, msgspec.ValidationError):
        raise _no_log(path) from None


def _records(path: Path, lines: Sequence[bytes]) -> Iterator[_Record]:
    """Yield the finished steps with readable results."""
    for number, line in enumerate(lines, start=2):
        try:
            record = msgspec.convert(json.loads(line), _Record)
            from_jsonable(record.result)
        except (ValueError, KeyError, msgspec.ValidationError) as error:
            problem = f"damaged ({error}); remove the log to start afresh"
            raise InputError(str(path), f"line {number}", problem) from None
        yield record


def logged_stamp(path: Path) -> dict[str, str]:
    """Return the stamp of a log; empty if there is none yet, or it is unreadable."""
    try:
        with path.open("rb") as file:
            return _stamp(path, file.readline())
    except (OSError, InputError):
        return {}


class _UnwritableError(WorkError):
    """The log itself failed; its message reports what is kept."""


def _shown(stamp: Mapping[str, str], key: str) -> str:
    return repr(stamp[key]) if key in stamp else "an unknown one"


@dataclass(frozen=True, slots=True)
class CalibrationRequest:
    """A device to measure while it runs a model.

    Attributes:
        file: the slimmable network.
        budget_s: wall time, which decides on the number of rounds over all points.
        batch_limit: the largest batch measured; the simulator refuses larger ones.
        log_path: finished measurements, from which an interrupted calibration resumes.
        seed: seed of the order, and of the paths that are timed.
        peer: a second device of this host: moving activations to it gives `Profile.link`; None leaves it out.
        sensor_period_s: how often serving reads the device's sensor.
        name: the profile's name; derived from the device and the model by default.
        allow_busy: measure although other programs use the device.
        candidates: ways in which a GPU may compute, the device's own first: the fastest is used, and reported in the
            profile; none if all is given.

    Raises:
        InputError: the budget or the limit is invalid.
    """

    file: ModelFile
    device: DeviceSpec
    budget_s: float
    batch_limit: int
    log_path: Path
    seed: int = 0
    peer: DeviceSpec | None = None
    sensor_period_s: float = 0.1
    name: str = ""
    allow_busy: bool = False
    candidates: tuple[DeviceSpec, ...] = ()

    def __post_init__(self) -> None:
        if not self.budget_s > 0:
            problem = f"must be more than 0 s, found {self.budget_s:g}; 45s to 15m is usual"
            raise InputError("calibrate", "budget", problem)
        if self.batch_limit < 1:
            raise InputError("calibrate", "batch_limit", f"must be at least 1, found {self.batch_limit}")
