"""GPUs of one type that are not equally fast: a gang runs at its slowest, and who knows them chooses."""

from __future__ import annotations

import numpy as np
import pytest

from jobs.job_records import JobsRecord, NodeOutage, sampled_variability
from jobs.job_simulation import ClusterModel, JobRun, JobSimulation
from jobs.job_traces import JobTrace, read_trace
from jobs.policies.job_cluster import NodeGroup
from jobs.policies.named_policies import PreemptionParams, policy_of
from scenarios.files.bundled_files import SHIPPED
from tests.jobs.sim.cluster_models import S, require_sane, run
from tests.jobs.sim.test_laws import drawn


@pytest.mark.parametrize("name", ["fifo", "las", "srtf-oracle-variability-aware", "fifo-conservative-history", "gavel"])
@pytest.mark.parametrize("seed", range(3))
def test_variable_gpus_are_each_held_once_and_free_after_all_jobs_end(name: str, seed: int) -> None:
    groups = (NodeGroup(2, 4, "slow"), NodeGroup(1, 4, "fast"), NodeGroup(1, 2, "slow", "red"))
    variability = sampled_variability(groups, {"net": 0.2, "": 0.02}, seed)
    cluster_model = ClusterModel(
        groups, outages=(NodeOutage(50 * S, 300 * S, 1),), restart_ns=3 * S, variability=variability
    )
    simulation = JobSimulation(cluster_model, JobRun(drawn(seed), policy_of(name, PreemptionParams(round_s=20))))
    record = simulation.run()
    require_sane(record)
    assert (record.is_done | record.is_refused).all()
    slots = simulation.scheduler.slots
    assert slots is not None
    assert {node: len(free) for node, free in slots._free.items()} == {0: 4, 1: 4, 2: 4, 3: 2}
    assert (record.held_ns[record.is_done] >= record.jobs.work_ns[record.is_done]).all()


def on_the_shipped_trace(name: str, seed: int) -> JobsRecord:
    """On 64 GPUs; half of its jobs are sensitive. Prints what docs/jobs-simulation.md says of it (`pytest -s`)."""
    trace, groups = read_trace(SHIPPED / "jobtraces" / "drawn-64-gpus.jobtrace.parquet"), (NodeGroup(8, 8),)
    classes = np.random.default_rng(seed).choice(["compute", "memory"], len(trace))
    scene = JobTrace.of(trace.submit_s, trace.run_s, trace.gpus, job_class=classes)
    variability = sampled_variability(groups, {"compute": 0.1, "memory": 0.01}, seed)
    record = run(name, scene, groups=groups, params=PreemptionParams(round_s=300, restart_s=0), variability=variability)
    slowest, held_gpu_s = (
        min(map(min, variability.by_class["compute"])),
        (record.held_ns * record.jobs.gpus_used).sum() / S,
    )
    print(f"{name} {seed}: {record.jct_s.mean():.0f} s, slowest {slowest:.2f}, {held_gpu_s / scene.gpu_s.sum():.3f}")
    return record


@pytest.mark.parametrize("name", ["fifo-first-fit", "las", "srsf-oracle"])
def test_knowing_is_worth_something_where_jobs_are_gangs(name: str) -> None:
    pairs = [[on_the_shipped_trace(f"{name}{word}", seed) for word in ("", "-variability-aware")] for seed in range(3)]
    assert sum(aware.jct_s.mean() for _, aware in pairs) < 0.98 * sum(blind.jct_s.mean() for blind, _ in pairs)
    held = [[float((each.held_ns * each.jobs.gpus_used).sum()) for each in pair] for pair in pairs]
    assert all(aware < 0.985 * blind for blind, aware in held)


def test_drawn_factors_are_of_one_quality_by_gpu_and_of_the_named_stream() -> None:
    groups = (NodeGroup(50, 8), NodeGroup(3, 2))
    variability = sampled_variability(groups, {"net": 0.2, "memory": 0.01}, seed=3)
    assert variability == sampled_variability(groups, {"memory": 0.01, "net": 0.2}, seed=3)
    net, memory = (np.log(np.concatenate(variability.by_class[name])) for name in ("net", "memory"))
    assert net.max() == memory.max() == 0.0
    assert np.allclose(net, 20 * memory)
    assert 0.18 < net.std() < 0.22
    assert (variability.is_sensitive("net"), variability.is_sensitive("other")) == (True, False)
