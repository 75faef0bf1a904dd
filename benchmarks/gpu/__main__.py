"""`make gpu`: every check in a process of its own, with a deadline; evidence is written anew after each.

    python -m benchmarks.gpu --seconds 530 --out runs/gpu       # on the GPU that is here
    python -m benchmarks.gpu --emulated                         # on the CPU, as far as that goes
    python -m benchmarks.gpu --only B1 B2                       # these alone
    python -m benchmarks.gpu --list                             # what each looks at, when it passes, and its deadline

Nothing is installed and no network is used. Exit code 1 where a check failed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time  # noqa: TID251 - deadlines are real
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.gpu import MARK
from benchmarks.gpu.checks import CHECKS, Check
from benchmarks.gpu.evidence import ROOT, Finding, stamps, write


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=530.0, help="of all checks together (530)")
    parser.add_argument("--out", type=Path, default=Path("runs/gpu"), help="for the evidence (runs/gpu)")
    parser.add_argument("--emulated", action="store_true", help="on the CPU, as far as that goes")
    parser.add_argument("--only", nargs="+", metavar="ID", help="these checks")
    parser.add_argument("--list", action="store_true", help="what each looks at; does nothing")
    parser.add_argument("--check", metavar="ID", help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    if given.list:
        for check in CHECKS:
            print(f"{check.id}  {check.what}; passes: {check.passes}; at most {check.deadline_s:.0f} s")
        return 0
    kind = "cpu" if given.emulated else "cuda"
    if given.check:
        check = next(each for each in CHECKS if each.id == given.check)
        print(MARK + json.dumps(asdict(_look(check, kind, given.out))), flush=True)
        return 0
    chosen = [
        each for each in CHECKS if (each.on_cpu or kind == "cuda" if given.only is None else each.id in given.only)
    ]
    command = " ".join(["python -m benchmarks.gpu", *(sys.argv[1:] if argv is None else argv)])
    return run(chosen, given.seconds, given.out, command, stamps(kind), ["--emulated"] if given.emulated else [])


def run(
    checks: Sequence[Check],
    seconds: float,
    out: Path,
    command: str,
    told: Mapping[str, str],
    more: Sequence[str] = (),
    module: str = "benchmarks.gpu",
) -> int:
    """Each check in turn; none begins that has less than half of its deadline left."""
    began_s, found = time.monotonic(), list[Finding]()
    whats = {check.id: check.what for check in checks}
    for name, deadline_s in ((check.id, check.deadline_s) for check in checks):
        left_s = seconds - (time.monotonic() - began_s)
        if left_s < deadline_s / 2:
            finding = Finding(name, "skipped", f"{left_s:.0f} s are left, it may take {deadline_s:.0f}")
        else:
            command_line = [sys.executable, "-m", module, "--check", name, "--out", str(out), *more]
            finding = in_a_process(command_line, name, min(deadline_s, left_s))
        found.append(finding)
        write(out, command, told, whats, found)
        print(f"{name} {finding.verdict} in {finding.took_s:.1f} s {finding.reason}", flush=True)
    print(f"evidence: {out / 'evidence.md'}")
    return int(any(each.verdict == "failed" for each in found))


def in_a_process(command: Sequence[str], name: str, deadline_s: float) -> Finding:
    """What a check's process says; it and all its children are killed at the deadline."""
    began_s = time.monotonic()
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        out, err = process.communicate(timeout=deadline_s)
    except subprocess.TimeoutExpired:
        reason = f"not done within {deadline_s:.0f} s"
        return Finding(name, "failed", reason, took_s=time.monotonic() - began_s)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    took_s = time.monotonic() - began_s
    lines = [line for line in out.splitlines() if line.startswith(MARK)]
    if process.returncode != 0 or not lines:
        last = (err.strip().splitlines() or ["no word"])[-1]
        return Finding(name, "failed", f"its process ended with {process.returncode}: {last}", took_s=took_s)
    return Finding(**{**json.loads(lines[-1].removeprefix(MARK)), "took_s": took_s})


def _look(check: Check, kind: str, out: Path) -> Finding:
    from benchmarks.gpu.stand import CantTellError, Stand

    try:
        wrong, numbers = check.look()(Stand(kind, out))
    except CantTellError as reason:
        return Finding(check.id, "skipped", str(reason))
    except Exception as error:
        traceback.print_exc()
        return Finding(check.id, "failed", f"{type(error).__name__}: {error}")
    return Finding(check.id, "failed" if wrong else "passed", wrong, numbers)


if __name__ == "__main__":
    sys.exit(main())
