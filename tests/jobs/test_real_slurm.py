"""A real Slurm plays jobs, and its log is told and replayed; skips where none can be had. About four minutes a run."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from jobs.job_traces import read_trace
from jobs.logs.log_import import import_log
from jobs.policies.job_cluster import NodeGroup
from jobs.slurm_conf import read_slurm_conf
from jobs.what_if import site_of
from tests.jobs.real_slurm import real_slurm, why_not

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.release,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(why_not()), reason=f"no Slurm can be started here: {why_not()}"),
]
JOBS = 45  # of the hundred; submitted within two minutes and a half
QUICK = "SchedulerParameters=sched_interval=2,sched_min_interval=0,bf_interval=2,bf_resolution=1,bf_continue"


@pytest.mark.parametrize(
    "lines, policy",
    [
        (["SchedulerType=sched/builtin", "PriorityType=priority/basic"], "fifo"),
        ([QUICK, "PriorityType=priority/basic"], "fifo-requested-conservative"),
    ],
    ids=["builtin", "backfill"],
)
def test_real_slurm_log_is_recognized_and_replayed(lines: list[str], policy: str, tmp_path: Path) -> None:
    """Nodes and policy come from `slurm.conf`; replayed waits agree with the log."""
    with (Path(__file__).parent / "slurm_logs" / "submitted.csv").open() as file:
        rows = list(csv.DictReader(file))[:JOBS]
    with real_slurm(*lines) as slurm:
        slurm.play(rows)
        slurm.export(tmp_path / "own.log")
        conf = read_slurm_conf(slurm.conf)
    assert (conf.nodes, conf.policy) == ((NodeGroup(4, 8, "", ""),), policy)
    import_log(tmp_path / "own.log", tmp_path / "own.jobtrace.parquet", "auto", None)
    trace = read_trace(tmp_path / "own.jobtrace.parquet")
    assert trace.gpus.tolist() == [int(row["gpus"]) for row in rows]
    site = site_of(trace, tmp_path / "own.jobtrace.parquet", (NodeGroup(4, 8, "gpu"),), 1, conf)
    assert site.case == "near"
    assert site.errors[policy] <= min(site.errors.values()) + 0.1
