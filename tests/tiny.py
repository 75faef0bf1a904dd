"""Tiny worlds for tests: profiles, clusters and runs of a line each."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from policies.greedy_scheduler import GreedyParams
from policies.interfaces import AccuracyPrior, RewardWeights, RouterConfig, accuracies_of
from policies.vocabulary import IMAGE, NS_PER_S, WorkKey
from sim.device_profile import Profile
from sim.device_tables import DeviceTables, compile_tables
from sim.host_and_network import PRESETS, Attachment
from sim.simulated_cluster import BernoulliCorrectness, ClusterSpec, RunSpec, Simulation
from sim.simulated_server import ServerSpec

WIDTHS = (0.25, 0.5, 0.75, 1.0)
BATCHES = (1, 4, 16, 32)


def profile(
    name: str = "toy",
    *,
    segments: int = 4,
    widths: tuple[float, ...] = WIDTHS,
    batches: tuple[int, ...] = BATCHES,
    speed: float = 1.0,
    base_s: float = 1e-3,
    per_image_s: float = 2e-4,
    alpha: float = 0.0,
    beta: float = 1.0,
    dispatch_s: float = 0.0,
    jitter: Sequence[float] = (),
    load_s: float = 0.05,
    host_share: float = 0.3,
    **changes: Any,
) -> Profile:
    """A profile with latency (base + per image) * (0.3 + 0.7 width) / speed and plausible everything else."""

    def latency(width: float, batch: int) -> float:
        return (base_s + per_image_s * batch) * (0.3 + 0.7 * width) / speed

    curves = [
        {
            "segment": s,
            "width": w,
            "previous_width": p,
            "batches": list(batches),
            "mean_s": [latency(w, b) for b in batches],
            "p50_s": [latency(w, b) for b in batches],
            "utilization": [min(1.0, 0.3 + 0.02 * b) for b in batches],
            "energy_j_per_image": [0.02 * w for _ in batches],
            "host_share": [host_share for _ in batches],
            "bandwidth_share": [0.1 for _ in batches],
            "jitter": [list(jitter) for _ in batches] if len(jitter) else [],
        }
        for s in range(1, segments + 1)
        for w in widths
        for p in ((IMAGE,) if s == 1 else widths)
    ]
    document: dict[str, Any] = {
        "schema": "slimsched.profile/2",
        "name": name,
        "provenance": "datasheet",
        "device": {"kind": "cpu", "name": "toy", "vram_bytes": 8_000_000_000},
        "model": {
            "name": "toy",
            "hash": "0",
            "segments": segments,
            "widths": list(widths),
            "input_bytes": 3072,
            "activation_bytes": [[int(65536 * w) // s for w in widths] for s in range(1, segments + 1)],
        },
        "dispatch_s": dispatch_s,
        "latency": curves,
        "memory": {
            "context_bytes": 100_000_000,
            "instances": [
                {
                    "segment": s,
                    "width": w,
                    "vram_bytes": int(50_000_000 * s * w),
                    "load_s": load_s,
                    "reload_s": load_s / 2,
                    "unload_s": load_s / 10,
                }
                for s in range(1, segments + 1)
                for w in widths
            ],
        },
        "concurrency": {"alpha": alpha, "beta": beta, "provenance": "datasheet"},
        "power": {"bare_idle_w": 10.0, "context_idle_w": 30.0, "cap_w": 250.0, "provenance": "datasheet"},
        "sensor": {"period_s": 0.05, "lag_s": 0.01, "power_window_s": 0.1, "utilization_window_s": 0.1},
    }
    document.update(changes)
    return Profile.model_validate_json(json.dumps(document))


def of_models(found: Profile, **models: int) -> Profile:
    """The same device with several models: each has so many of the widths, and no key mixes two."""
    counts = tuple(models.values())
    labels = [f"{name} {number}" for name, count in models.items() for number in range(count)]
    update = {"nests": counts, "models": tuple(models.items()), "labels": tuple(labels)}
    model = found.model.model_copy(update=update)
    legal = [
        curve for curve in found.latency if curve.previous_width in model.previous_widths(curve.segment, curve.width)
    ]
    return found.model_copy(update={"model": model, "latency": tuple(legal)})


def measured(name: str = "toy", **changes: Any) -> Profile:
    """A profile that states an error, as calibrated ones do."""
    error: dict[str, Any] = {"metric": "solo latency", "kind": "held out", "points": 12}
    error |= {"median_abs_pct": 0.9, "mean_abs_pct": 2.5, "max_abs_pct": 7.0, "p90_abs_pct": 5.0}
    return profile(name, provenance="measured", errors=[error], **changes)


def work_key(segment: int, width: float, previous_width: float) -> WorkKey:
    """A tables' key as routers say it."""
    return WorkKey(segment, width, previous_width)


def params(tables: DeviceTables, **changes: Any) -> GreedyParams:
    """Algorithm 1's defaults for a device."""
    return GreedyParams(
        **{
            "widths": tables.profile.model.widths,
            "instance_bytes": {spec: cost.vram_bytes for spec, cost in tables.instances.items()},
            "context_bytes": tables.profile.memory.context_bytes,
            "batch_limit": tables.batch_limit,
            "vram_cap_bytes": 4_000_000_000,
            **changes,
        }
    )


def preload_all(tables: DeviceTables) -> tuple[tuple[int, float], ...]:
    """Every instance once."""
    return tuple(sorted(tables.instances))


def prior(segments: int = 4, widths: tuple[float, ...] = WIDTHS) -> AccuracyPrior:
    """0.5 plus a tenth of every width."""
    return AccuracyPrior({t: 0.5 + 0.1 * sum(t) for t in product(widths, repeat=segments)})


def cluster(
    profiles: Sequence[Profile] = (),
    *,
    link: str = "10gbe",
    batch_limit: int = 32,
    decision_ns: int = 50_000,
    weights: RewardWeights | None = None,
    router: dict[str, Any] | None = None,
    greedy: dict[str, Any] | None = None,
    jitter: bool = True,
    shared_medium: bool = False,
) -> ClusterSpec:
    """Servers of these profiles (three unequal ones by default), each on a device of its own."""
    profiles = profiles or (profile("a", speed=1.0), profile("b", speed=0.7), profile("c", speed=0.4))
    devices = tuple(compile_tables(p, batch_limit, jitter=jitter) for p in profiles)
    model = profiles[0].model
    servers = tuple(
        ServerSpec(
            name=f"{tables.name}{index}",
            device=index,
            params=params(tables, **(greedy or {})),
            attachment=Attachment("air" if shared_medium else f"link{index}", PRESETS[link]),
        )
        for index, tables in enumerate(devices)
    )
    fits = tuple(
        tuple(tuple(server.params.can_hold((s, w)) for w in model.widths) for s in range(1, model.segments + 1))
        for server in servers
    )
    config = RouterConfig(segments=model.segments, widths=model.widths, fits=fits, **(router or {}))
    accuracy = prior(model.segments, model.widths)
    config = replace(config, accuracies=accuracies_of(config, accuracy))
    return ClusterSpec(devices, servers, config, decision_ns, weights or RewardWeights(), accuracy)


def run(spec: ClusterSpec, arrivals_s: Sequence[float] | np.ndarray, horizon_s: float, **changes: Any) -> RunSpec:
    """A run with these arrivals; labels are drawn from the accuracy table."""
    arrivals_ns = np.ceil(np.asarray(arrivals_s, dtype=float) * NS_PER_S).astype(np.int64)
    return RunSpec(
        **{
            "arrivals_ns": arrivals_ns,
            "horizon_ns": int(horizon_s * NS_PER_S),
            "correctness": BernoulliCorrectness(spec.prior, 1),
            **changes,
        }
    )


def poisson_s(rate_img_s: float, horizon_s: float, seed: int = 0) -> np.ndarray:
    """Poisson arrivals in seconds."""
    rng = np.random.default_rng(seed)
    times = np.cumsum(rng.exponential(1 / rate_img_s, int(rate_img_s * horizon_s * 1.2) + 50))
    return times[times < horizon_s]


class Uniform:
    """Uniform random choices over what is valid: the paper's baseline, for tests of everything but routers."""

    def __init__(
        self, widths: tuple[float, ...] = WIDTHS, micro_batch_sizes: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    ) -> None:
        self.widths, self.micro_batch_sizes = widths, micro_batch_sizes

    def choose(self, view: Any, rng: np.random.Generator) -> Any:
        """A valid server, a width it holds, any group."""
        from policies.vocabulary import Choice

        server = int(rng.choice([i for i, s in enumerate(view.servers) if s.valid]))
        held = [w for w, ok in zip(self.widths, view.servers[server].widths, strict=True) if ok]
        return Choice(server, float(rng.choice(held)), int(rng.choice(self.micro_batch_sizes)))


def simulate(spec: ClusterSpec, run_spec: RunSpec, seed: int = 0) -> tuple[Simulation, Any]:
    """Run with uniform random choices; the simulation and its record."""
    simulation = Simulation(spec, run_spec)
    policy = Uniform(spec.router.widths, spec.router.micro_batch_sizes)
    return simulation, simulation.run(policy, np.random.default_rng(seed))
