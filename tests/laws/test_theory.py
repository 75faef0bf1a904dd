"""Queueing theory holds where its assumptions do: M/D/1 waits and M/M/1-PS sojourns, within confidence intervals.

On the compiled engine, which is several times as fast, and the same to the last bit (`tests/parity`).
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from policies.vocabulary import Choice, ClusterView
from sim.compiled.compiled_simulation import CompiledSimulation
from sim.device_profile import Link
from sim.host_and_network import PRESETS, Attachment
from sim.simulated_cluster import ClusterSpec
from tests import tiny

SERVICE_S = 1e-3
SEEDS, REQUESTS, WARMUP = 10, 2500, 300


class OnlyChoice:
    """One server, one width, one request a micro-batch."""

    def choose(self, view: ClusterView, rng: np.random.Generator) -> Choice:
        return Choice(0, 1.0, 1)


def one_server(monkeypatch: pytest.MonkeyPatch, instances: int, jitter: tuple[float, ...] = ()) -> ClusterSpec:
    """One segment, one width, batches of one, free links, `instances` preloaded in no time."""
    monkeypatch.setitem(PRESETS, "free", Link(latency_s=0.0, bandwidth_bytes_s=1e18))
    toy = tiny.profile(
        segments=1,
        widths=(1.0,),
        batches=(1,),
        base_s=SERVICE_S / 2,
        per_image_s=SERVICE_S / 2,
        jitter=jitter,
        load_s=0.0,
        sensor={"period_s": 10.0, "lag_s": 0.0, "power_window_s": 10.0, "utilization_window_s": 10.0},
    )
    return tiny.cluster(
        [toy],
        link="free",
        batch_limit=1,
        decision_ns=0,
        router={"outstanding_micro_batches": 10**9, "micro_batch_sizes": (1,)},
        greedy={
            "preload": ((1, 1.0),) * instances,
            "vram_cap_bytes": 100_000_000 + 50_000_000 * instances,
            "idle_unload_ns": None,
            "scale_cap": 0,
        },
    )


def sojourn_s(spec: ClusterSpec, load: float, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(SERVICE_S / load, REQUESTS))
    run = tiny.run(spec, arrivals, float(arrivals[-1]) + 1.0, seed=seed, detail=False)
    record = CompiledSimulation(spec, run).run(OnlyChoice(), rng)
    requests = sorted(record.requests, key=lambda r: r.request)
    return np.array([(r.finished_ns - r.arrived_ns) / 1e9 for r in requests])[WARMUP:]


def assert_mean(samples: list[float], theory: float) -> None:
    """The 99 % Student interval of independent runs covers the theory, and is narrow enough to mean something."""
    mean, half = np.mean(samples), stats.sem(samples) * stats.t.ppf(0.995, len(samples) - 1)
    assert abs(mean - theory) <= half, (mean, half, theory)
    assert half < 0.25 * theory


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_waits_agree_with_m_d_1(monkeypatch: pytest.MonkeyPatch, load: float) -> None:
    """Pollaczek-Khinchine with constant service: the mean wait is rho D / (2 (1 - rho))."""
    spec = one_server(monkeypatch, instances=1)
    waits = [float(np.mean(sojourn_s(spec, load, seed) - SERVICE_S)) for seed in range(SEEDS)]
    assert_mean(waits, load * SERVICE_S / (2 * (1 - load)))


@pytest.mark.parametrize("load", [0.5, 0.7])
def test_sojourn_times_agree_with_m_m_1_ps(monkeypatch: pytest.MonkeyPatch, load: float) -> None:
    """Processor sharing, d = 1, beta = 1, alpha = 0: the mean sojourn is E[S] / (1 - rho).

    The exponential is given as 33 equally likely values; PS is insensitive to all but their mean.
    """
    quantiles = stats.expon.ppf((np.arange(33) + 0.5) / 33)
    quantiles /= quantiles.mean()
    spec = one_server(monkeypatch, instances=60, jitter=tuple(quantiles))
    sojourns = [float(np.mean(sojourn_s(spec, load, seed))) for seed in range(SEEDS)]
    assert_mean(sojourns, SERVICE_S / (1 - load))


def test_attachment_of_the_theory_experiment_is_free() -> None:
    """A link without latency at endless bandwidth delays nothing (else the theory tests would test the link)."""
    from sim.host_and_network import Interconnect

    network = Interconnect((Attachment("m", Link(latency_s=0.0, bandwidth_bytes_s=1e18)),))
    assert network.transfer(-1, 0, 3072, 5) == (5, 6)  # a duration is rounded up to a whole nanosecond
