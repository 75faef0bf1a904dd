"""Checks for `tests/test_gpu_checks.py`, each in its own process: one that is well, and several that are not.

It opens no torch, so that deadlines of seconds can be tried.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time  # noqa: TID251 - it hangs
from pathlib import Path

from benchmarks.gpu import MARK


def look(name: str, out: Path) -> None:
    """What the name says; something is told first."""
    print(MARK + json.dumps({"numbers": {"answer": 42, "none": math.nan}}), flush=True)
    print("its own words", file=sys.stderr, flush=True)
    if name == "hangs":
        print(MARK + '{"numbers": {"answ', end="", flush=True)  # a kill leaves half a line
        time.sleep(20)  # longer than it may; the runner may be killed, and then nobody ends it
    if name == "has a child":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        (out / "child").write_text(str(child.pid))
        time.sleep(600)
    if name == "saves":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(print(MARK + '{"numbers": {"saved": 1}}', flush=True)))
        time.sleep(20)
    if name == "crashes":
        raise ValueError("on purpose")
    if name == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    print(MARK + json.dumps({"verdict": "passed" if name == "passes" else "failed", "reason": ""}))


if __name__ == "__main__":
    look(sys.argv[sys.argv.index("--check") + 1], Path(sys.argv[sys.argv.index("--out") + 1]))
