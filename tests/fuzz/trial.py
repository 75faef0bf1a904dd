"""One call carried out in a process of its own, watched; and what came of it, in a word.

The process is forked from one that has imported everything, which takes some milliseconds. As a real command it is
begun anew by the interpreter, as a user begins it.
"""

from __future__ import annotations

import contextlib
import json
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

from tests.fuzz.cases import Box, Case
from tests.fuzz.readings import READINGS, Misread

Kind = Literal[
    "ok", "refused", "told before", "unclear", "traceback", "crash", "too slow", "too large", "misread", "foreign file"
]
GOOD: Final[tuple[Kind, ...]] = ("ok", "refused", "told before")
BAD: Final[tuple[Kind, ...]] = (
    "unclear", "traceback", "crash", "too slow", "too large", "misread", "foreign file",
)  # fmt: skip

MAX_CPU_S: Final = 10.0
MAX_WALL_S: Final = 60.0  # beside others on a busy machine; what waits for ever uses no CPU
MAX_BYTES: Final = 2_000_000_000
LONGEST_LINE: Final = 2100  # characters of a message, the paths in it included
LOOK_EVERY_S: Final = 0.05
ROOT: Final = Path(__file__).parents[2]
ENVIRONMENT: Final = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
_ONLY_READ: Final = 96
_MISREAD: Final = 97
_ESCAPED: Final = 99
# A long work is told with its time or its memory before it begins.
TOLD: Final = re.compile(r"\babout [^\n]*\d[^\n]* (s|min|h|hours|days|MB|GB|TB)\b")


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


def attempt(case: Case, root: Path, *, as_command: bool = False) -> Outcome:
    """Carry out a case in a fresh box below `root`, and judge it."""
    box = Box(root, case.files)
    try:
        work = None if as_command else lambda: _in_process(case, box.here)
        ended = watched(work, ("-m", "slimsched", *case.argv), box.here, root.with_name(f"{root.name}.said"))
        changes = box.changes(case.outputs)
        return judge(ended, changes, case.argv)
    finally:
        box.remove()


def _in_process(case: Case, here: Path) -> int:
    from scenarios.terminal.exits import exit_code
    from slimsched.cli import main

    affordable = True

    def read() -> int:
        nonlocal affordable
        affordable = READINGS[case.reading](here, case)
        return 0

    code = exit_code("slimsched", read) if case.reading else 0
    if code:
        return code
    return main(case.argv) if case.argv and affordable else _ONLY_READ


# ------------------------------------------------------------------------------------------------------------ watched


def watched(
    work: Callable[[], int] | None,
    command: tuple[str, ...],
    here: Path,
    said: Path,
    prepare: Callable[[], object] = lambda: None,
) -> Ended:
    """Some work in a forked process, or (None) a command of Python in one begun anew; ended if it takes too much.

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
        be_the_child(work, command, here, said, prepare)
    stopped = _watch(process, began_s, inherited_bytes)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process, signal.SIGKILL)  # nor may anything that it started live on
    _, status, used = os.wait4(process, 0)
    code = os.waitstatus_to_exitcode(status)
    out, err = (_text(said / name) for name in ("out", "err"))
    cpu_s, peak = used.ru_utime + used.ru_stime, max(0, used.ru_maxrss * 1024 - inherited_bytes)
    return Ended(code, out, err, cpu_s, time.monotonic() - began_s, peak, stopped)


def be_the_child(
    work: Callable[[], int] | None, command: tuple[str, ...], here: Path, said: Path, prepare: Callable[[], object]
) -> None:
    """A forked process's whole attempt: the work, or a command of Python instead; it never returns."""
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
        prepare()
        if work is None:
            os.execve(sys.executable, (sys.executable, *command), ENVIRONMENT)
        code = work()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except Misread as error:
        sys.stderr.write(f"misread: {error}\n")
        code = _MISREAD
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
    if ended.stopped and TOLD.search(told):
        return Outcome("told before", told.splitlines()[0][:300], ended)
    if ended.stopped == "too slow" or ended.cpu_s > MAX_CPU_S:
        return Outcome("too slow", f"{ended.cpu_s:.0f} s of CPU, {ended.wall_s:.0f} s", ended)
    if ended.stopped == "too large" or ended.peak_bytes > MAX_BYTES or "too large for this machine" in told:
        return Outcome("too large", f"{ended.peak_bytes / 1e9:.1f} GB {told[-200:]}", ended)
    if ended.code < 0:
        return Outcome("crash", signal.Signals(-ended.code).name, ended)
    if ended.code == _MISREAD:
        return Outcome("misread", told.splitlines()[-1], ended)
    if ended.code == _ESCAPED or "Traceback (most recent call last)" in told:
        return Outcome("traceback", _where(told), ended)
    if ended.code == _ONLY_READ:
        return Outcome("ok", "", ended)
    if ended.code == 0:
        return _judged_done(ended, told, argv)
    return _judged_refusal(ended, told)


def _judged_done(ended: Ended, told: str, argv: tuple[str, ...]) -> Outcome:
    if told and "--quiet" in argv:
        return Outcome("unclear", f"words beside the result: {told[:300]}", ended)
    if "--json" in argv and argv[argv.index("--json") + 1 :][:1] == ("-",) and "--help" not in argv:
        try:
            found = json.loads(ended.out)
        except ValueError as error:
            return Outcome("misread", f"what came out is no JSON: {error}", ended)
        if isinstance(images := found.get("images"), dict) and images["arrived"] != sum(images.values()) / 2:
            return Outcome("misread", f"requests were lost: {images}", ended)
    return Outcome("ok", "", ended)


def _judged_refusal(ended: Ended, told: str) -> Outcome:
    """One line that says what is wrong; who was quiet has no other."""
    lines = [line for line in told.split("\n") if not line.startswith("warning: ")]
    note = lines[-1][:300] if lines else ""
    if ended.code not in (1, 2):
        return Outcome("unclear", f"exit code {ended.code}: {note}", ended)
    if not told:
        done = ended.code == 1 and ended.out.strip()  # an answer, such as that a profile does not hold
        return Outcome("ok" if done else "unclear", "nothing is said", ended)
    if len(lines) > 1:
        return Outcome("unclear", f"{len(lines)} lines: {lines[0][:200]}", ended)
    if len(lines[0]) > LONGEST_LINE:
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
