"""One measurement in a process of its own: `python -m benchmarks.speed.peers.child JOB.json OUT.json`."""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

DRIVERS = {"ours": "ours", "ray": "ray_serve", "litserve": "lit_serve"}


def main(source: Path, destination: Path) -> None:
    """Measure what the job says."""
    text = source.read_text(encoding="utf-8")
    given = json.loads(text)
    if hasattr(os, "sched_setaffinity"):  # before any import that starts threads
        os.sched_setaffinity(0, given["core"] if given["system"] == "bare" else given["other_cores"])
    from benchmarks.speed.peers.forwards import Job, measure_bare, true_labels

    job = Job.from_json(text)
    if job.system == "bare":
        found: dict[str, Any] = measure_bare(job)
    else:
        driver = importlib.import_module(f"benchmarks.speed.peers.{DRIVERS[job.system]}")
        found = driver.drive(job, true_labels(job.path))
    destination.write_text(json.dumps(found), encoding="utf-8")
    os._exit(0)  # what is frozen would be told about as leaked; everything that was started has ended


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
