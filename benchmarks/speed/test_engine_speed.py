"""The compiled engine against the SimPy model: same runs, same choices; run with `make bench`. Trust the ratios."""

from __future__ import annotations

import os
import time  # noqa: TID251 - it measures
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from benchmarks.speed.conftest import Figures
from benchmarks.speed.driving import Clusters, compile_now, compiled, reference, scenario

TITLE = "compiled engine and reference"
HEAD = ("what", "servers", "decisions", "decisions/CPU-s", "ns a decision", "beside", "row, kB")
SCALE = float(os.environ.get("SLIMSCHED_BENCH_SCALE", "1"))  # below 1 to try it out
DURATIONS_S = {3: 600.0, 32: 100.0, 256: 15.0, 1024: 5.0}  # of the simulated runs; about a second each
ROUNDS = 3


@pytest.fixture(autouse=True, scope="module")
def _compile() -> None:
    compile_now()


def test_reference_and_compiled_in_turns(benchmark: Any, figures: Figures) -> None:
    """Measure at 3 servers, on one core: the SimPy model, then the compiled engine, and again."""
    short, long = scenario(3, 10.0 * SCALE), scenario(3, DURATIONS_S[3] * SCALE)
    assert compiled(*short).decisions == reference(*short).decisions
    slow, fast = [], []

    def turn() -> None:
        slow.append(reference(*short))
        fast.append(compiled(*long))

    benchmark.pedantic(turn, rounds=ROUNDS, iterations=1)
    ratios = sorted(after.rate / before.rate for before, after in zip(slow, fast, strict=True))
    best_slow, best_fast = max(slow, key=lambda each: each.rate), max(fast, key=lambda each: each.rate)
    figures.append(("reference", 3, best_slow.decisions, best_slow.rate, round(1e9 / best_slow.rate), "1x", "-"))
    beside = f"{ratios[len(ratios) // 2]:.0f}x the reference ({ratios[0]:.0f} to {ratios[-1]:.0f})"
    cells = best_fast.decisions, best_fast.rate, round(1e9 / best_fast.rate), beside, f"{best_fast.bytes / 1e3:.0f}"
    figures.append(("compiled, one thread", 3, *cells))


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two cores")
def test_two_threads(benchmark: Any, figures: Figures) -> None:
    """Measure two lists of clusters, consecutively and each in a separate thread (wall time)."""
    spec, _ = scenario(3, 1.0)
    runs = [scenario(3, DURATIONS_S[3] / 8 * SCALE, seed)[1] for seed in range(8)]
    one: list[float] = []
    two: list[float] = []

    def turn() -> None:
        for threads, rates in ((1, one), (2, two)):
            batches = [Clusters(spec, runs) for _ in range(2)]
            with ThreadPoolExecutor(threads) as pool:
                begun_s = time.perf_counter()
                decisions = sum(pool.map(Clusters.drive, batches))
                rates.append(decisions / (time.perf_counter() - begun_s))

    benchmark.pedantic(turn, rounds=ROUNDS, iterations=1)
    speedups = sorted(after / before for before, after in zip(one, two, strict=True))
    beside = f"{speedups[len(speedups) // 2]:.2f}x one thread ({speedups[0]:.2f} to {speedups[-1]:.2f})"
    figures.append(
        ("compiled, two threads, a wall-clock second", 3, "-", round(max(two)), round(1e9 / max(two)), beside, "-")
    )


@pytest.mark.parametrize("observes", [False, True], ids=["engine", "engine and observation"])
@pytest.mark.parametrize("servers", DURATIONS_S)
def test_cost_a_decision(benchmark: Any, figures: Figures, servers: int, observes: bool) -> None:
    """Measure each size of cluster, with and without observation, in turns with the engine alone at 3 servers."""
    large, small = scenario(servers, DURATIONS_S[servers] * SCALE), scenario(3, DURATIONS_S[3] / 3 * SCALE)
    costs, beside = [], []

    def turn() -> None:
        costs.append(compiled(*large, observes))
        beside.append(compiled(*small))

    benchmark.pedantic(turn, rounds=ROUNDS, iterations=1)
    best = max(costs, key=lambda each: each.rate)
    ratios = sorted(other.rate / cost.rate for cost, other in zip(costs, beside, strict=True))
    what = "compiled, observation written" if observes else "compiled"
    ratio = f"{ratios[len(ratios) // 2]:.2f}x the cost at 3 servers"
    figures.append((what, servers, best.decisions, best.rate, round(1e9 / best.rate), ratio, f"{best.bytes / 1e3:.0f}"))
