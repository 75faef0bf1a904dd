"""The log of the operator's tutorial: drawn jobs on 8 nodes of 8 GPUs, first come first served, as `sacct` has it.

`python -m tests.tutorial_log` writes docs/tutorials/jobs.log.gz again.
"""

from __future__ import annotations

import gzip
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from jobs.generated_traces import ARRIVALS, DURATIONS, SIZES, Drawing, draw, law
from jobs.policy_comparison import run_policy
from policies.vocabulary import NS_PER_S
from tests.jobs.experiments import case_of
from tests.jobs.logs import Jobs, sacct

FILE: Final = Path(__file__).parents[1] / "docs" / "tutorials" / "jobs.log.gz"


def tutorial_log(folder: Path) -> str:
    """The log's text; the folder is for a scenario."""
    trace = draw(
        Drawing(
            jobs=1500,
            gpus=64,
            load=0.75,
            durations=law("lognormal", DURATIONS, "durations"),
            arrivals=law("poisson", ARRIVALS, "arrivals"),
            sizes=SIZES,
            users=20,
            vcs=4,
            alike=0.5,
            seed=1,
        )
    )
    submit_s, run_s = np.round(trace.submit_s), np.maximum(np.round(trace.run_s), 1.0)
    trace = replace(trace, submit_s=submit_s, run_s=run_s)  # a log has whole seconds
    case = case_of(folder, trace, cluster={"nodes": [{"count": 8, "gpus": 8}]}, policies=["fifo"])
    record = run_policy(case, case.policies[0])
    jobs = Jobs(
        submit_s=submit_s.astype(np.int64),
        wait_s=record.start_ns // NS_PER_S - submit_s.astype(np.int64),
        run_s=run_s.astype(np.int64),
        gpus=trace.gpus.astype(np.int64),
        user=np.array([int(name[1:]) for name in trace.user]),
        kind=np.array([int(name[2:]) for name in trace.vc]),
        limit_min=(trace.requested_s // 60).astype(np.int64),
        has_failed=np.arange(len(trace)) % 23 == 0,
    )
    return "".join(f"{line}\n" for line in sacct(jobs))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        FILE.write_bytes(gzip.compress(tutorial_log(Path(made)).encode(), mtime=0))
