"""`make gpu`: every check in a separate process, with a deadline; evidence is written again after each.

    python -m benchmarks.gpu --seconds 530 --out runs/gpu       # on the GPU that is here
    python -m benchmarks.gpu --emulated                         # on the CPU, as far as that goes
    python -m benchmarks.gpu --only B2 B1                       # these alone, in this order
    python -m benchmarks.gpu --list                             # what each looks at, when it passes, how long it takes
    python -m benchmarks.gpu visit 1                            # a visit to a lent GPU (benchmarks/gpu/visit.py)

Nothing is installed and no network is used. Exit code 1 if a check failed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time  # noqa: TID251 - deadlines are real
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.gpu import MARK
from benchmarks.gpu.checks import CHECKS, Check
from benchmarks.gpu.evidence import Finding, Verdict, stamps, write
from benchmarks.gpu.running import in_a_process
from benchmarks.gpu.stand import CantTellError, Stand
from benchmarks.gpu.visit import main as visit_main
from scenarios.terminal.screen import terminated_as_interrupted

CPU_TIMES = 3.0  # a check may take on a CPU this many times as long as on a GPU


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    arguments = sys.argv[1:] if argv is None else [*argv]
    if arguments[:1] in (["visit"], ["keep"]):
        return visit_main(arguments)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=530.0, help="of all checks together (530)")
    parser.add_argument("--out", type=Path, default=Path("runs/gpu"), help="for the evidence (runs/gpu)")
    parser.add_argument("--emulated", action="store_true", help="on the CPU, as far as that goes")
    by_id = {check.id: check for check in CHECKS}
    parser.add_argument("--only", nargs="+", choices=by_id, metavar="ID", help="these checks, in this order")
    parser.add_argument("--commit", default="", help="that is tried, where git can't say it")
    parser.add_argument("--list", action="store_true", help="what each looks at; does nothing")
    parser.add_argument("--check", metavar="ID", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    kind = "cpu" if options.emulated else "cuda"
    if options.emulated:
        by_id = {name: replace(check, deadline_s=CPU_TIMES * check.deadline_s) for name, check in by_id.items()}
    selected = [
        by_id[name] for name in options.only or [check.id for check in CHECKS if check.on_cpu or kind == "cuda"]
    ]
    if options.list:
        for check in selected:
            print(
                f"{check.id}  {check.what}; passes: {check.passes}; "
                f"about {check.expected_s:.0f} s, at most {check.deadline_s:.0f} s"
            )
        expected_s, most_s = sum(check.expected_s for check in selected), sum(check.deadline_s for check in selected)
        print(f"together {len(selected)} checks: about {expected_s:.0f} s, at most {most_s:.0f} s")
        return 0
    if options.check:
        verdict, reason = _look(by_id[options.check], kind, options.out)
        print(MARK + json.dumps({"verdict": verdict, "reason": reason}), flush=True)
        return 0
    command = " ".join(["python -m benchmarks.gpu", *arguments])
    stamp = stamps(kind, options.commit)
    return run(selected, options.seconds, options.out, command, stamp, ["--emulated"] if options.emulated else [])


@terminated_as_interrupted()  # so that the running check ends, too
def run(
    checks: Sequence[Check],
    seconds: float,
    out: Path,
    command: str,
    stamp: Mapping[str, str],
    more: Sequence[str] = (),
    module: str = "benchmarks.gpu",
) -> int:
    """Run each check in turn, if it can finish in the remaining time."""
    began_s, findings = time.monotonic(), list[Finding]()
    out = out.resolve()  # checks have another working folder
    whats = {check.id: check.what for check in checks}
    out.mkdir(parents=True, exist_ok=True)
    log = out / "evidence.log"
    log.unlink(missing_ok=True)
    for check in checks:
        left_s = seconds - (time.monotonic() - began_s)
        if left_s < check.expected_s:
            finding = Finding(check.id, "skipped", f"{left_s:.0f} s are left, it takes about {check.expected_s:.0f}")
        else:
            command_line = [sys.executable, "-m", module, "--check", check.id, "--out", str(out), *more]
            finding = in_a_process(command_line, check.id, min(check.deadline_s, left_s), log)
        findings.append(finding)
        write(out, command, stamp, whats, findings)
        print(f"{check.id} {finding.verdict} in {finding.took_s:.1f} s {finding.reason}", flush=True)
    print(f"evidence: {out / 'evidence.md'}")
    return int(any(finding.verdict == "failed" for finding in findings))


def _look(check: Check, kind: str, out: Path) -> tuple[Verdict, str]:
    """Run a check and return (verdict, why); measurements are reported meanwhile."""
    try:
        wrong = check.look()(Stand(kind, out))
    except CantTellError as reason:
        return "skipped", str(reason)
    except Exception as error:
        traceback.print_exc()
        return "failed", f"{type(error).__name__}: {error}"
    return "failed" if wrong else "passed", wrong


if __name__ == "__main__":
    sys.exit(main())
