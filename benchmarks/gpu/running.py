"""A separate process for each check, with a deadline; its reports until the deadline count."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time  # noqa: TID251 - deadlines are real
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.gpu import MARK
from benchmarks.gpu.evidence import ROOT, Finding, Verdict

GRACE_S: Final = 5.0
_ONE_THREAD: Final = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # as in `make`; there are enough processes


def in_a_process(
    command: Sequence[str], name: str, deadline_s: float, log: Path, first: signal.Signals = signal.SIGKILL
) -> Finding:
    """Run a check's process and return its report; at the deadline it is killed with all its children, and its report
    until then counts. Its output is appended to `log`.

    Args:
        first: signal sent to it at the deadline; processes left `GRACE_S` later are killed.
    """
    began_s, code = time.monotonic(), None
    with log.open("a", encoding="utf-8") as file:
        print(f"==== {name}", file=file, flush=True)
        begin = file.tell()
        process = subprocess.Popen(
            command, cwd=ROOT, env=_ONE_THREAD | os.environ, stdout=file, stderr=file, process_group=0
        )
        try:
            code = process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            if first != signal.SIGKILL:
                os.killpg(process.pid, first)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(GRACE_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            if process.returncode is None:  # `wait` might never end: an interruption can leave its lock taken
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(process.pid, 0)
                process.returncode = -signal.SIGKILL
    verdict: Verdict = "failed"
    reason, last = "", "no word"
    numbers = dict[str, Any]()
    *lines, _ = log.read_bytes()[begin:].decode(errors="replace").split("\n")  # a kill may leave an incomplete line
    for line in lines:
        _, mark, text = line.partition(MARK)
        if mark:
            report = json.loads(text, parse_constant=str)  # evidence has no value for not-a-number
            numbers |= report.get("numbers", {})
            verdict, reason = report.get("verdict", verdict), report.get("reason", reason)
        else:
            last = line.strip() or last
    if code is None:
        verdict, reason = "failed", f"not done within {deadline_s:.0f} s"
    elif code:
        verdict, reason = "failed", f"its process ended with {code}: {last}"
    return Finding(name, verdict, reason, numbers, time.monotonic() - began_s)
