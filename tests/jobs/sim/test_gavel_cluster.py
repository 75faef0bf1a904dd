"""Gavel's own simulated cluster: 8 V100, 8 P100 and 8 K80, its throughputs of 26 job types, its law of durations.

Its simulator, at one job in 4,000 s, has mean completion times of 19.6 h first come first served, 12.6 h where that
knows the types, 18.9 h by least attained service, and 13.1 h where that does. Durations here are drawn again, and the
first and the last quarter of the jobs are left out. So it is the ratios that are held, not the hours.
"""

from __future__ import annotations

import gzip
import json
import os
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from jobs.job_simulation import ClusterModel, JobRun, JobSimulation
from jobs.job_traces import JobTrace
from jobs.policies.job_cluster import NodeGroup, Speeds
from jobs.policies.named_policies import PreemptionParams, policy_of

ROOT = Path(__file__).resolve().parents[3]
TYPES = ("v100", "p100", "k80")
S = 1_000_000_000


@cache
def speeds() -> Speeds:
    """Of all types that run on one GPU, relative to a V100."""
    folder = Path(os.environ.get("SLIMSCHED_DATA", ROOT.parent / "shared" / "data"))
    file = folder / "jobs" / "gavel_simulation_throughputs.json.gz"
    if not file.is_file():
        pytest.skip("needs jobs/gavel_simulation_throughputs.json.gz in the folder that SLIMSCHED_DATA names")
    with gzip.open(file, "rt", encoding="utf-8") as text:
        found = json.load(text)
    rows = {name: [found[kind][name]["null"] for kind in TYPES] for name in found["v100"] if name.endswith(", 1)")}
    return Speeds({name: {k: v / row[0] for k, v in zip(TYPES, row, strict=True)} for name, row in rows.items()})


def mean_jct_h(name: str, seed: int, many: int = 800) -> float:
    rng = np.random.default_rng(seed)
    exponent = np.where(rng.random(many) < 0.8, rng.uniform(1.5, 3, many), rng.uniform(3, 4, many))
    submit_s, classes = np.cumsum(rng.exponential(4000, many)), rng.choice(list(speeds().by_class), many)
    jobs = JobTrace.of(submit_s, 60 * 10**exponent, np.ones(many), job_class=classes)
    cluster_model = ClusterModel(tuple(NodeGroup(8, 1, kind) for kind in TYPES), speeds())
    params = PreemptionParams(round_s=360, restart_s=0)
    record = JobSimulation(cluster_model, JobRun(jobs, policy_of(name, params))).run()
    return float(record.jct_s[many // 4 : 3 * many // 4].mean()) / 3600


@pytest.mark.release
@pytest.mark.slow
@pytest.mark.parametrize(
    "aware, blind, theirs", [("gavel-fifo", "fifo", 12.6 / 19.6), ("gavel", "gavel-blind", 13.1 / 18.9)]
)
def test_gavel_gain_from_known_gpu_types_matches_its_paper(aware: str, blind: str, theirs: float) -> None:
    seeds = range(4)
    ratio = np.mean([mean_jct_h(aware, seed) for seed in seeds]) / np.mean([mean_jct_h(blind, seed) for seed in seeds])
    assert ratio == pytest.approx(theirs, rel=0.1)
