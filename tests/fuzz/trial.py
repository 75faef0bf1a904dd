"""One call carried out in a process of its own, watched; and what came of it, in a word.

The process is forked from one that has imported everything, which takes some milliseconds.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import select
import signal
import sys
import time  # noqa: TID251 - a call may not take long
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from tests.fuzz.base import MAX_CHARACTERS

Kind = Literal["ok", "refused", "unclear", "traceback", "crash", "too slow", "too large", "misread", "foreign file"]
GOOD: Final[tuple[Kind, ...]] = ("ok", "refused")
BAD: Final[tuple[Kind, ...]] = (
    "unclear", "traceback", "crash", "too slow", "too large", "misread", "foreign file",
)  # fmt: skip

MAX_CPU_S: Final = 10.0
MAX_WALL_S: Final = 60.0  # beside others on a busy machine; what waits for ever uses no CPU
MAX_BYTES: Final = 2_000_000_000
LOOK_EVERY_S: Final = 0.05
ROOT: Final = Path(__file__).parents[2]
ENVIRONMENT: Final = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
_ESCAPED: Final = 99


@dataclass(frozen=True)
class Ended:
    """How a process ended.

    Attributes:
        code: its exit code; below 0 a signal's number.
        stopped: why it was ended from outside; empty where it ended by itself.
    """

    code: int
    out: str
    err: str
    cpu_s: float
    wall_s: float
    peak_bytes: int
    stopped: Literal["", "too slow", "too large"] = ""


@dataclass(frozen=True)
class Outcome:
    """What came of a call: the kind, and in words why it is of that kind."""

    kind: Kind
    note: str
    ended: Ended | None = None

    @property
    def signature(self) -> str:
        """The same for what is the same mistake, as far as words can tell."""
        words = re.sub(r"'[^']*'|\"[^\"]*\"|[0-9.e+-]*[0-9]", "_", self.note)
        return f"{self.kind}: {words[:120]}"


# ------------------------------------------------------------------------------------------------------------ watched


def watched(work: Callable[[], int], here: Path, said: Path, prepare: Callable[[], object] = lambda: None) -> Ended:
    """Some work in a forked process, ended if it takes too much.

    Args:
        here: the folder it works in.
        said: a folder for what it says.
        prepare: is called in the process before all else.
    """
    said.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    began_s, (_, inherited_bytes) = time.monotonic(), _used(os.getpid())
    process = os.fork()
    if process == 0:
        be_the_child(work, here, said, prepare)
    stopped = _watch(process, began_s, inherited_bytes)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process, signal.SIGKILL)  # nor may anything that it started live on
    _, status, used = os.wait4(process, 0)
    code = os.waitstatus_to_exitcode(status)
    out, err = (_text(said / name) for name in ("out", "err"))
    cpu_s, peak = used.ru_utime + used.ru_stime, max(0, used.ru_maxrss * 1024 - inherited_bytes)
    return Ended(code, out, err, cpu_s, time.monotonic() - began_s, peak, stopped)


def be_the_child(work: Callable[[], int], here: Path, said: Path, prepare: Callable[[], object]) -> None:
    """A forked process's whole attempt; it never returns."""
    code = _ESCAPED
    try:
        os.setsid()
        os.chdir(here)
        for number, path in ((0, os.devnull), (1, str(said / "out")), (2, str(said / "err"))):
            os.dup2(os.open(path, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)  # a test's may be none of a process's
        sys.stderr = os.fdopen(2, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if "torch" in sys.modules:  # the threads of OpenMP are the parent's: a fork would wait for them for ever
            sys.modules["torch"].set_num_threads(1)
        prepare()
        code = work()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _watch(process: int, began_s: float, inherited_bytes: int) -> Literal["", "too slow", "too large"]:
    """Until it ends, or has to be ended; a fork begins with the memory of its parent, which is not its own."""
    handle = os.pidfd_open(process)
    try:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        while not poll.poll(LOOK_EVERY_S * 1000):
            cpu_s, resident_bytes = _used(process)
            if cpu_s > MAX_CPU_S or time.monotonic() - began_s > MAX_WALL_S:
                return "too slow"
            if resident_bytes - inherited_bytes > MAX_BYTES:
                return "too large"
        return ""
    finally:
        os.close(handle)


def _used(process: int) -> tuple[float, int]:
    """CPU seconds so far, and bytes in memory now."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0, 0
    ticks = os.sysconf("SC_CLK_TCK")
    return (int(fields[11]) + int(fields[12])) / ticks, int(fields[21]) * resource.getpagesize()


def _text(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_bytes()[:2_000_000].decode("utf-8", "replace")
    return ""


# -------------------------------------------------------------------------------------------------------------- judged


def judge(ended: Ended, changes: list[str], argv: tuple[str, ...] = ()) -> Outcome:
    """What came of a process, the worst first."""
    if changes:
        return Outcome("foreign file", "; ".join(changes[:5]), ended)
    told = ended.err.strip()
    if ended.stopped == "too slow" or ended.cpu_s > MAX_CPU_S:
        return Outcome("too slow", f"{ended.cpu_s:.0f} s of CPU, {ended.wall_s:.0f} s", ended)
    if ended.stopped == "too large" or ended.peak_bytes > MAX_BYTES or "too large for this machine" in told:
        return Outcome("too large", f"{ended.peak_bytes / 1e9:.1f} GB {told[-200:]}", ended)
    if ended.code < 0:
        return Outcome("crash", signal.Signals(-ended.code).name, ended)
    if ended.code == _ESCAPED or "Traceback (most recent call last)" in told:
        return Outcome("traceback", _where(told), ended)
    if ended.code == 0 and told and "--quiet" in argv:
        return Outcome("unclear", f"words beside the result: {told[:300]}", ended)
    if ended.code == 0:
        return Outcome("ok", "", ended)
    return _judged_refusal(ended, told)


def _judged_refusal(ended: Ended, told: str) -> Outcome:
    """One line that shows what is wrong; who was quiet has no other."""
    lines = [line for line in told.split("\n") if not line.startswith("warning: ")]
    note = lines[-1][:300] if lines else ""
    if ended.code not in (1, 2):
        return Outcome("unclear", f"exit code {ended.code}: {note}", ended)
    if not told:
        done = ended.code == 1 and ended.out.strip()  # an answer, such as that a profile does not hold
        return Outcome("ok" if done else "unclear", "nothing is said", ended)
    if len(lines) > 1:
        return Outcome("unclear", f"{len(lines)} lines: {lines[0][:200]}", ended)
    if len(lines[0]) > MAX_CHARACTERS:
        return Outcome("unclear", f"a line of {len(lines[0])} characters: {note}", ended)
    if not lines[0].isprintable():
        return Outcome("unclear", f"not printable: {note!r}", ended)
    return Outcome("refused", note, ended)


def _where(told: str) -> str:
    """The last line of a traceback, and the innermost place in our own code."""
    lines = told.splitlines()
    places = re.findall(r'File "([^"]+)", line (\d+), in (\S+)', told)
    ours = [f"{Path(file).relative_to(ROOT)}:{name}" for file, _, name in places if file.startswith(str(ROOT))]
    error = next(
        (line for line in reversed(lines) if re.match(r"[A-Za-z_.]+(Error|Exception|Exit|Interrupt)", line)), lines[-1]
    )
    return f"{error[:200]} in {ours[-1] if ours else '?'}"
