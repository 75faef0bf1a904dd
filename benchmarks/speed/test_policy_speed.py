"""What the compiled policy costs: a decision, drawing for many, learning from them. Run with `make bench`."""

from __future__ import annotations

import os
import time  # noqa: TID251 - a benchmark measures CPU time
from typing import Any

import numpy as np
import pytest

from policies.ppo import PPOKnobs
from policies.ppo.compiled_update import CompiledLearner
from policies.ppo.layout import Layout
from policies.ppo.router import PPORouter
from tests.policies.cluster_views import server, view
from tests.policies.ppo.problems import act_on, experience_of, hidden_of, network_of, seen_by, spec_of, tensors_of

ROWS = 32_768


@pytest.mark.parametrize("greedy", [True, False], ids=["likeliest", "drawn"])
@pytest.mark.parametrize("servers", [3, 10, 64])
def test_choose(benchmark: Any, servers: int, greedy: bool) -> None:
    """One decision, of views in each of which one server has changed; the median is what to look at."""
    spec, rng = spec_of(servers), np.random.default_rng(0)
    router = PPORouter(spec, tensors_of(network_of(spec)), deterministic=greedy)
    states, views = [server(i, power_w=100.0, utilization=0.5) for i in range(servers)], []
    for turn in range(256):
        states[turn % servers] = server(turn, power_w=50.0, utilization=0.4)
        views.append(view(*states))
    turns = iter(range(1 << 62))
    router.compiled()
    benchmark(lambda: router.choose(views[next(turns) % 256], rng))


@pytest.mark.parametrize("servers", [3, 10, 64])
def test_act(benchmark: Any, servers: int) -> None:
    """Drawing for many decisions at once; `rows_per_cpu_s` is the best round's."""
    spec = spec_of(servers)
    network, seen = network_of(spec), seen_by(spec, ROWS, np.random.default_rng(0))
    act_on(network, spec, seen, 0.1)
    _measure(benchmark, ROWS, lambda: act_on(network, spec, seen, 0.1))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("servers", [3, 10, 64])
def test_update(benchmark: Any, servers: int, threads: int) -> None:
    """Three epochs over a batch in minibatches of an eighth; rows count once an epoch."""
    if threads > (os.cpu_count() or 1):
        pytest.skip("needs two cores")
    network, experience = experience_of(servers, ROWS)
    knobs = PPOKnobs(batch=ROWS, minibatch=ROWS // 8)
    learner = CompiledLearner(Layout.of(spec_of(servers), hidden_of(network)), knobs, tensors_of(network), threads)
    rng = np.random.default_rng(0)
    learner.update(experience, rng)
    _measure(benchmark, ROWS * knobs.epochs, lambda: learner.update(experience, rng))


def _measure(benchmark: Any, rows: int, work: Any) -> None:
    by_cpu, by_wall = [], []

    def once() -> None:
        wall, cpu = time.perf_counter(), time.process_time()
        work()
        by_cpu.append(rows / (time.process_time() - cpu))
        by_wall.append(rows / (time.perf_counter() - wall))

    benchmark.pedantic(once, rounds=5, iterations=1)
    benchmark.extra_info["rows_per_cpu_s"] = round(max(by_cpu))
    benchmark.extra_info["rows_per_s"] = round(max(by_wall))
