"""Queueing theory holds where its assumptions do: Erlang C, Pollaczek-Khinchine, SRPT, FB and PS, by simulation."""

from __future__ import annotations

from collections.abc import Callable
from math import factorial

import numpy as np
import pytest
from scipy import integrate, stats

from jobs.job_simulation import ClusterModel, JobRun, JobSimulation
from jobs.job_traces import JobTrace
from jobs.policies.job_cluster import NodeGroup
from jobs.policies.named_policies import PreemptionParams, policy_of

Draw = Callable[[np.random.Generator, int], np.ndarray]
LOAD = 0.7
SLICED = 0.5  # where jobs take turns: each is many decisions
WARM = 300  # jobs that are not counted


def exponential(rng: np.random.Generator, many: int) -> np.ndarray:
    return rng.exponential(1.0, many)


def uniform(rng: np.random.Generator, many: int) -> np.ndarray:
    """On [0, 2]: mean 1."""
    return rng.uniform(0.0, 2.0, many)


def hyperexponential(rng: np.random.Generator, many: int) -> np.ndarray:
    """Mean 1: nine of ten have mean 0.5, one has 5.5."""
    return rng.exponential(np.where(rng.random(many) < 0.9, 0.5, 5.5))


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


@pytest.mark.parametrize("servers", [1, 4, 16])
def test_m_m_k_waits_as_erlang_says(servers: int) -> None:
    offered = LOAD * servers
    queued = offered**servers / factorial(servers) / (1 - LOAD)
    waits = queued / (sum(offered**n / factorial(n) for n in range(servers)) + queued)
    assert_mean(means("fifo", exponential, servers=servers, runs=12), 1 + waits / (servers * (1 - LOAD)))


@pytest.mark.parametrize(
    "draw, second_moment, jobs", [(uniform, 4 / 3, 3000), (exponential, 2.0, 4000), (hyperexponential, 6.5, 10_000)]
)
def test_m_g_1_in_the_order_of_arrival_is_pollaczek_and_khinchines(draw: Draw, second_moment: float, jobs: int) -> None:
    assert_mean(means("fifo", draw, runs=8, jobs=jobs), 1 + LOAD * second_moment / (2 * (1 - LOAD)))


def _uniform_load(size: float) -> float:
    """Of jobs up to a size: lambda times the integral of t f(t), with f = 1/2 on [0, 2]."""
    return LOAD * size**2 / 4


def test_m_g_1_with_the_shortest_remaining_time_first_is_schrages() -> None:
    """Schrage and Miller 1966: residence, and the wait behind those that are shorter."""

    def sojourn(size: float) -> float:
        residence, _ = integrate.quad(lambda t: 1 / (1 - _uniform_load(t)), 0, size)
        work = LOAD / 2 * (size**3 / 6 + size**2 * (1 - size / 2))
        return float(residence + work / (1 - _uniform_load(size)) ** 2)

    theory, _ = integrate.quad(lambda size: sojourn(size) / 2, 0, 2)
    assert_mean(means("srtf-oracle", uniform, runs=12), theory)


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
def test_what_gittins_learns_is_worth_nearly_what_least_attained_service_is_where_that_is_best() -> None:
    """With the law itself it is worth the same; what is learned from a few thousand jobs falls short a little."""
    gittins, las = (means(name, lognormal, 0.8, round_s=0.05, runs=4, jobs=4000) for name in ("gittins", "las"))
    assert 0.98 < (gittins / las).mean() < 1.025
