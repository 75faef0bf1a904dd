"""Small worlds for tests: whole seconds in, whole seconds out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jobs.job_records import NOT_YET, JobsRecord
from jobs.job_simulation import ClusterModel, JobRun, JobSimulation
from jobs.job_traces import JobTrace
from jobs.policies.job_cluster import NodeGroup
from jobs.policies.named_policies import JobPolicy, PreemptionParams, policy_of
from jobs.wait_bound import BoundProblem

S = 1_000_000_000
FREE = PreemptionParams(round_s=10, restart_s=0)


def jobs(*rows: tuple[float, float, int], **columns: Any) -> JobTrace:
    submit_s, run_s, gpus = zip(*rows, strict=True)
    return JobTrace.of(submit_s, run_s, gpus, **columns)


def run(
    policy: str | JobPolicy,
    these: JobTrace,
    nodes: Sequence[int] = (4,),
    params: PreemptionParams = FREE,
    run_options: dict[str, Any] | None = None,
    **cluster_model: Any,
) -> JobsRecord:
    """On nodes with so many GPUs each."""
    groups = cluster_model.pop("groups", tuple(NodeGroup(1, gpus) for gpus in nodes))
    chosen = policy_of(policy, params) if isinstance(policy, str) else policy
    record = JobSimulation(ClusterModel(groups, **cluster_model), JobRun(these, chosen, **(run_options or {}))).run()
    require_sane(record)
    return record


def one_pool(submit_s: Any, run_s: Any, gpus: Any, of: int) -> BoundProblem:
    columns = [np.asarray(column, float) for column in (submit_s, gpus, run_s)]
    return BoundProblem(columns[0], columns[1], columns[2][:, None], np.array([float(of)]))


def require_sane(record: JobsRecord) -> None:
    """What holds of every run (Little's law is proven by the run itself)."""
    done = record.is_done
    assert not (done & record.is_refused).any()
    assert (record.start_ns[done] >= record.jobs.submit_ns[done]).all()
    assert (record.start_ns[record.is_refused] == NOT_YET).all()
    ran_ns = record.held_ns - record.restart_ns
    assert (record.held_ns <= np.maximum(record.ended_ns - record.jobs.submit_ns, 0)).all()
    assert (ran_ns >= 0).all()
    assert int((record.held_ns * record.jobs.gpus_used).sum()) <= record.capacity_gpu_ns - record.down_gpu_ns


def seconds(times_ns: Any) -> list[float]:
    return [time_ns / S if time_ns >= 0 else -1.0 for time_ns in np.asarray(times_ns).tolist()]
