"""The simulation against models that share no line with it: of backfilling, of lists, and of queueing theory."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from jobs.job_simulation import ClusterModel, JobRun, JobSimulation
from jobs.job_traces import JobTrace
from jobs.policies.job_cluster import NodeGroup
from jobs.policies.named_policies import PreemptionParams, policy_of
from kit.random_streams import stream
from tests.jobs.sim import brute_force
from tests.jobs.sim.cluster_models import jobs, run, seconds
from tests.jobs.sim.quick_models import Jobs, ListModel, ends_on_one_node_s

Row = tuple[int, int, int, int, int]
ROWS = st.lists(
    st.tuples(
        st.integers(0, 12),  # submitted
        st.integers(1, 9),  # runs
        st.integers(1, 8),  # GPUs
        st.integers(1, 12),  # requested
        st.sampled_from([1, 1, 2, 3]),  # nodes
    ),
    min_size=1,
    max_size=9,
)
KEYS: dict[str, Callable[[brute_force.Job], tuple[float, int]]] = {
    "fifo": lambda job: (job.submit, job.number),
    "sjf": lambda job: (job.estimate, job.number),
    "saf": lambda job: (job.estimate * job.gpus, job.number),
}


def by_definition(
    rows: list[Row], nodes: int, size: int, rule: brute_force.Rule, order: str, is_oracle: bool
) -> list[brute_force.Job]:
    many = [
        brute_force.Job(number, submit, ran, gpus, ran if is_oracle else asked, apart)
        for number, (submit, ran, gpus, asked, apart) in enumerate(rows)
    ]
    return brute_force.simulate(many, nodes, size, rule, KEYS[order])


@pytest.mark.parametrize("queueing", ["easy", "conservative"])
@settings(max_examples=150)
@given(
    rows=ROWS,
    nodes=st.integers(1, 3),
    size=st.integers(1, 4),
    order=st.sampled_from(sorted(KEYS)),
    is_oracle=st.booleans(),
)
def test_starts_are_those_of_the_definition(
    queueing: str, rows: list[Row], nodes: int, size: int, order: str, is_oracle: bool
) -> None:
    fitting = [(submit, ran, min(gpus, nodes * size), asked, apart) for submit, ran, gpus, asked, apart in rows]
    rows = sorted((*row[:4], min(row[4], row[2], nodes)) for row in fitting)
    rule = {"easy": brute_force.easy, "conservative": brute_force.conservative}[queueing]
    expected = by_definition(rows, nodes, size, rule, order, is_oracle)
    columns = {"requested_s": [row[3] for row in rows], "nodes": [row[4] for row in rows]}
    these = jobs(*(row[:3] for row in rows), **columns)
    estimate = "oracle" if is_oracle else "requested"
    record = run(f"{order}-{queueing}-{estimate}", these, groups=(NodeGroup(nodes, size),))
    assert seconds(record.start_ns) == [job.start for job in expected]
    if is_oracle and order == "fifo":  # a promise that is made with true durations is kept
        assert all(job.promised is None or job.start <= job.promised for job in expected)


# what blocks: job 0 holds 3 of 4 GPUs for 10 s, job 1 wants all 4; jobs 2 and 3 come later and want one


def drawn(seed: int, many: int = 150) -> JobTrace:
    """On four nodes of eight: busy, with gangs of part of a node, of whole ones and of one and a half."""
    rng = stream(seed, "quick models")
    gpus = rng.choice([1, 2, 3, 4, 8, 12, 16], many, p=[0.4, 0.15, 0.1, 0.1, 0.15, 0.05, 0.05])
    return JobTrace.of(np.cumsum(rng.integers(0, 12, many)), rng.integers(1, 120, many), gpus)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("name", ["fifo", "fifo-first-fit", "smallest", "saf-oracle", "saf-oracle-strict"])
def test_lists_start_as_in_the_quick_model(name: str, seed: int) -> None:
    jobs = drawn(seed)
    plain = Jobs(jobs.submit_s.tolist(), jobs.run_s.tolist(), jobs.gpus.tolist())
    keys: dict[str, Callable[[int], float]] = {
        "fifo": plain.submit_s.__getitem__,
        "smallest": plain.gpus.__getitem__,
        "saf": plain.area,
    }
    queueing = "strict" if name in ("fifo", "saf-oracle-strict") else "first-fit"
    model = ListModel(plain, keys[name.partition("-")[0]], queueing, nodes=4)
    record = run(name, jobs, nodes=[8] * 4)
    assert record.wait_s.tolist() == model.waits_s().tolist()
    assert record.wait_s.max() > 0


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("name", ["srtf-oracle", "srsf-oracle"])
def test_preemptive_order_gives_gpus_to_the_first_jobs(name: str, seed: int) -> None:
    """GPUs left over when a job is stopped for an arriving one also go to the first waiting jobs."""
    jobs = drawn(seed)
    plain = Jobs(jobs.submit_s.tolist(), jobs.run_s.tolist(), jobs.gpus.tolist())
    ends_s = ends_on_one_node_s(plain, 32, lambda left_s, gpus: left_s * (gpus if name == "srsf-oracle" else 1))
    record = run(name, jobs, nodes=[32])
    assert seconds(record.end_ns) == ends_s
    assert record.preemptions.sum() > 0


Draw = Callable[[np.random.Generator, int], np.ndarray]
LOAD = 0.7
SLICED = 0.5  # where jobs take turns: each is many decisions
WARM = 300  # jobs that are not counted


def uniform(rng: np.random.Generator, many: int) -> np.ndarray:
    """On [0, 2]: mean 1."""
    return rng.uniform(0.0, 2.0, many)


def means(
    name: str, draw: Draw, load: float = LOAD, servers: int = 1, round_s: float = 0.1, runs: int = 8, jobs: int = 2000
) -> np.ndarray:
    """Mean sojourn times of independent runs; jobs of one GPU on one node."""
    params = PreemptionParams(round_s=round_s, restart_s=0)
    found = []
    for seed in range(runs):
        rng = np.random.default_rng(seed)
        submit_s = np.cumsum(rng.exponential(1 / (load * servers), jobs))
        trace = JobTrace.of(submit_s, np.maximum(draw(rng, jobs), 1e-6), np.ones(jobs, int))
        cluster_model = ClusterModel((NodeGroup(1, servers),))
        found.append(JobSimulation(cluster_model, JobRun(trace, policy_of(name, params))).run().jct_s[WARM:].mean())
    return np.array(found)


def assert_mean(samples: np.ndarray, theory: float, bias: float = 0.0) -> None:
    error = stats.sem(samples)
    assert abs(samples.mean() - theory) <= 3 * error + bias, (samples.mean(), error, theory)
    assert error < 0.1 * theory


def test_m_g_1_with_the_least_attained_service_first_is_foreground_background() -> None:
    """Kleinrock 1976: as if jobs longer than x were of size x. Rounds of 0.1 add about as much."""

    def sojourn(size: float) -> float:
        first = size - size**2 / 4  # E[min(S, x)] on [0, 2]
        second = size**2 - size**3 / 3  # E[min(S, x)^2]: x^3/6 + x^2 (1 - x/2)
        load = SLICED * first
        return float((SLICED * second / 2 / (1 - load) + size) / (1 - load))

    theory, _ = integrate.quad(lambda size: sojourn(size) / 2, 0, 2)
    assert_mean(means("las", uniform, SLICED, jobs=1000), theory, bias=0.1)


def test_m_g_1_in_short_rounds_is_processor_sharing() -> None:
    """E[S] / (1 - rho), whatever the sizes' distribution; a round is a tenth of the mean size."""
    assert_mean(means("round-robin", uniform, SLICED, jobs=1000), 1 / (1 - SLICED), bias=0.1)


def lognormal(rng: np.random.Generator, many: int) -> np.ndarray:
    """Mean 1, C^2 8.5. Whoever has had least is most likely to end soon, but for the very first moments."""
    return rng.lognormal(-(1.5**2) / 2, 1.5, many)


@pytest.mark.release
def test_gittins_with_learned_tables_is_within_3_percent_of_las_where_las_is_best() -> None:
    """With the true distribution Gittins equals LAS; with one learned from a few thousand jobs it is slightly worse."""
    gittins, las = (means(name, lognormal, 0.8, round_s=0.05, runs=4, jobs=4000) for name in ("gittins", "las"))
    assert 0.98 < (gittins / las).mean() < 1.025
