"""Rehearses a visit to a GPU on the null CUDA: `python -m tests.nullcuda.rehearse 1 [as of python -m benchmarks.gpu visit]`.

    python -m tests.nullcuda.rehearse 1 --out runs/rehearsal --stretch 3
    python -m tests.nullcuda.rehearse 2 --out runs/rehearsal --stretch 3
    python -m tests.nullcuda.rehearse 1 --out runs/rehearsal --only F1 M1
    python -m benchmarks.gpu keep runs/rehearsal

A pass takes about as long as a captured one of an H200, at any width. Nothing is computed, so labels are wrong.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.nullcuda.build import missing
from tests.nullcuda.harness import ROOT, environment

OP_NS = 10_000  # 25 to 31 operations a segment
CAPTURE_NS = 1_000_000


if __name__ == "__main__":
    if problem := missing():
        sys.exit(problem)
    with tempfile.TemporaryDirectory() as counted:
        settings = environment(Path(counted), OP_NS, CAPTURE_NS)
        command = [sys.executable, "-m", "benchmarks.gpu", "visit", *sys.argv[1:]]
        sys.exit(subprocess.run(command, cwd=ROOT, env=settings, check=False).returncode)
