"""Rehearses a visit to a GPU on the null CUDA; what is given is what `python -m benchmarks.gpu visit` takes.

    python -m tests.nullcuda.rehearse 1 --out runs/rehearsal --stretch 3
    python -m tests.nullcuda.rehearse 2 --out runs/rehearsal --stretch 3
    python -m tests.nullcuda.rehearse 1 --out runs/rehearsal --only F1 M1
    python -m tests.nullcuda.rehearse --mps 1 --out runs/rehearsal --only S1 main
    python -m benchmarks.gpu keep runs/rehearsal

With `--mps` there is a stand-in for MPS's control program, and an operation takes longer by a process's share. A pass
takes about as long as a captured one of an H200, at any width. Nothing is computed, so labels are wrong.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from hw.device_settings import CONTROL
from tests.nullcuda.build import missing
from tests.nullcuda.harness import ROOT, environment

OP_NS = 10_000  # 25 to 31 operations a segment
CAPTURE_NS = 1_000_000
ANSWERS = '#!/bin/sh\n[ "$1" = -d ] || echo 100.0\n'


if __name__ == "__main__":
    if problem := missing():
        sys.exit(problem)
    with tempfile.TemporaryDirectory() as counted:
        settings, words = environment(Path(counted), OP_NS, CAPTURE_NS), sys.argv[1:]
        if words[:1] == ["--mps"]:
            control = Path(counted, CONTROL)
            control.write_text(ANSWERS)
            control.chmod(0o755)
            settings["PATH"] = f"{counted}:{settings['PATH']}"
            words = words[1:]
        command = [sys.executable, "-m", "benchmarks.gpu", "visit", *words]
        sys.exit(subprocess.run(command, cwd=ROOT, env=settings, check=False).returncode)
