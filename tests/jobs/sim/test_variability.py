"""GPUs of one type that are not equally fast: a gang runs at its slowest, and who knows them chooses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from jobs.job_records import JobsRecord, NodeOutage, sampled_variability
from jobs.job_simulation import ClusterModel, JobRun, JobSimulation
from jobs.job_traces import JobTrace, read_trace
from jobs.policies.job_cluster import NodeGroup, Variability
from jobs.policies.named_policies import PreemptionParams, policy_of
from scenarios.files.bundled_files import SHIPPED
from tests.jobs.sim.cluster_models import S, jobs, require_sane, run, seconds
from tests.jobs.sim.test_laws import drawn

PAIR = Variability({"net": ((0.5, 1.0), (0.8, 0.25)), "memory": ((0.98, 1.0), (1.0, 0.97))})


def columns(*classes: str) -> dict[str, Any]:
    return {"job_class": list(classes)}


def test_who_does_not_know_takes_the_first_gpu_and_a_gang_runs_at_its_slowest() -> None:
    scene = jobs((0, 10, 1), (0, 10, 1), (30, 10, 2), **columns("net", "net", "net"))
    record = run("fifo", scene, nodes=(2, 2), variability=PAIR)
    assert seconds(record.end_ns) == [20, 10, 50]
    assert record.wait_s.tolist() == [10, 0, 10]


def test_who_knows_takes_the_fastest_for_the_class_and_leaves_it_where_that_matters_little() -> None:
    """A sensitive job takes 1.0, the next 0.5 before it begins a node; one that waits for memory takes the slowest."""
    scene = jobs((0, 10, 1), (0, 10, 1), (0, 97, 1), (0, 4, 1), **columns("net", "net", "memory", "net"))
    record = run("fifo-variability-aware", scene, nodes=(2, 2), variability=PAIR)
    assert seconds(record.end_ns) == [10, 20, 100, 5]
    other = jobs((0, 98, 1), (0, 10, 1), **columns("", "net"))  # a class without factors takes 0.25
    assert seconds(run("fifo-variability-aware", other, nodes=(2, 2), variability=PAIR).end_ns) == [98, 12.5]


def test_a_gang_takes_the_nodes_whose_slowest_gpu_is_fastest() -> None:
    three = Variability({"net": ((0.5, 1.0), (0.8, 0.25), (0.7, 0.6))})
    for scene, ends in (
        (jobs((0, 6, 2), (0, 5, 2), **columns("net", "net")), [10, 10]),
        (jobs((0, 5, 4), **columns("net")), [10]),
        (jobs((0, 8, 3), **columns("net")), [80 / 6]),  # 0.7 and 0.6, and 1.0 of another node
    ):
        record = run("fifo-variability-aware", scene, nodes=(2, 2, 2), variability=three)
        assert seconds(record.end_ns) == pytest.approx(ends)


def test_the_scheduler_expects_what_it_knows_and_nothing_else() -> None:
    """Job 0 takes 200 s for 100 s. Who knows that promises job 1 the node at 200 s, and lets job 2 begin before."""
    scene = jobs((0, 100, 1), (1, 10, 2), (2, 150, 1), **columns("net", "net", "net"))
    slow = Variability({"net": ((0.5, 0.5),)})
    blind = run("fifo-easy-oracle", scene, nodes=(2,), variability=slow)
    aware = run("fifo-easy-oracle-variability-aware", scene, nodes=(2,), variability=slow)
    assert seconds(blind.start_ns) == [0, 200, 220]
    assert seconds(aware.start_ns) == [0, 302, 2]


@pytest.mark.parametrize("name", ["fifo", "las", "srtf-oracle-variability-aware", "fifo-conservative-history", "gavel"])
@pytest.mark.parametrize("seed", range(3))
def test_all_work_is_done_and_each_gpu_is_held_once(name: str, seed: int) -> None:
    """That no GPU is used twice is proven as each is taken."""
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
    """Three seeds: of the mean completion time in sum, and of the GPU time in each."""
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
