"""How much a cluster can carry: the largest stable rate by simulation, and the fluid bound that no router can beat."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

from policies.chance import stream
from policies.errors import InputError, WorkError
from policies.routing import RoutingPolicy
from policies.vocabulary import IMAGE, NS_PER_S
from scenarios.compose import World
from scenarios.result import Simulator
from scenarios.spec import TraceWorkload
from sim.tables import DeviceTables

GROWTH_LIMIT = 0.03  # of the second half's arrivals: more backlog than that is growth, not noise
NOISE_IMAGES = 30


@dataclass(frozen=True)
class Capacity:
    """The largest stable rate lies between `stable_img_s` and `unstable_img_s`; `runs` simulations said so."""

    router: str
    stable_img_s: float
    unstable_img_s: float
    runs: int


def capacity(
    world: World,
    policy: Callable[[], RoutingPolicy],
    *,
    router: str,
    seed: int,
    duration_s: float = 20.0,
    precision: float = 0.05,
    on_progress: Callable[[float, bool], None] | None = None,
    engine: Simulator = "simpy",
) -> Capacity:
    """Bisect on stability (not on overload throughput, which falls as the rate rises).

    A rate is stable if, over the second half of a run, the backlog grows by no more than 3 % of what arrives.

    Raises:
        InputError: the workload is a trace, which has no rate.
        WorkError: even a thousandth of the estimated capacity is not stable.
    """
    if isinstance(world.scenario.workload, TraceWorkload):
        raise InputError(world.scenario.name, "workload.kind", "a trace has no rate to search; use poisson or mmpp")
    assert world.rate_img_s is not None, "only a trace has no rate"
    runs = 0

    def is_stable(rate_img_s: float) -> bool:
        nonlocal runs
        runs += 1
        scale = rate_img_s / (world.rate_img_s or 1.0)
        stable = _backlog_is_steady(world, policy(), scale, seed, duration_s, router, engine)
        if on_progress is not None:
            on_progress(rate_img_s, stable)
        return stable

    low, high = 0.0, world.capacity_img_s
    while is_stable(high):
        low, high = high, high * 2
    while high - low > precision * high:
        middle = (low + high) / 2
        low, high = (middle, high) if is_stable(middle) else (low, middle)
        if high < 1e-3 * world.capacity_img_s:
            raise WorkError(f"{router}: no stable rate above {high:.3g} images/s")
    return Capacity(router, low, high, runs)


def _backlog_is_steady(
    world: World, policy: RoutingPolicy, scale: float, seed: int, duration_s: float, router: str, engine: Simulator
) -> bool:
    run = world.run_spec(seed, duration_s=duration_s, scale=scale, detail=False, end="cut")
    record = world.simulation(run, engine).run(policy, stream(seed, f"router:{router}"))
    half_ns = run.horizon_ns // 2
    arrived = sum(r.arrived_ns > half_ns for r in record.requests)
    done = sum(r.status != "in_flight" and r.finished_ns > half_ns for r in record.requests)
    return arrived - done <= GROWTH_LIMIT * arrived + NOISE_IMAGES


@dataclass(frozen=True)
class Bound:
    """What the fluid model allows at a mean accuracy of at least `accuracy`; every real run is worse.

    Attributes:
        capacity_img_s: the largest rate; devices busy all the time at their best batch, transfers free.
        energy_per_image_j: the least dynamic energy an image at `rate_img_s`; None where the rate is beyond capacity.
        latency_s: the least mean latency of an image alone on the fastest servers.
    """

    accuracy: float
    rate_img_s: float | None
    capacity_img_s: float
    energy_per_image_j: float | None
    latency_s: float


class FluidModel:
    """Flows of images over (segment, width, previous width, device), each at its best batch, links free.

    Variables: z_t, images a second on width tuple t, and y_ie, images a second of edge e on device i, where an edge is
    a (segment, width, previous width). Each edge's images are spread over the devices; a device is busy at most all
    the time; the mean accuracy is at least the one asked for.
    """

    def __init__(self, world: World) -> None:
        config = world.cluster.router
        self.devices = world.cluster.devices
        self.tuples = list(product(config.widths, repeat=config.segments))
        previous = [(IMAGE,), *[config.widths] * (config.segments - 1)]
        self.edges = [(s, w, p) for s in range(1, config.segments + 1) for w in config.widths for p in previous[s - 1]]
        self.top1 = np.array([world.accuracy.prior(t) for t in self.tuples])
        self.seconds = np.array([[_best_image_s(tables, e) for e in self.edges] for tables in self.devices])
        self.joules = np.array([[_least_joules(tables, e) for e in self.edges] for tables in self.devices])
        self.alone_s = np.array([min(_alone_s(tables, e) for tables in self.devices) for e in self.edges])
        index = {edge: number for number, edge in enumerate(self.edges)}
        self.uses = np.zeros((len(self.edges), len(self.tuples)))
        for column, widths in enumerate(self.tuples):
            for segment, (before, width) in enumerate(zip((IMAGE, *widths[:-1]), widths, strict=True), start=1):
                self.uses[index[segment, width, before], column] = 1.0

    def capacity_img_s(self, accuracy: float) -> float:
        """The largest total flow."""
        cost = np.concatenate([-np.ones(len(self.tuples)), np.zeros(self.seconds.size)])
        return -self._solve(cost, accuracy, None)

    def energy_j(self, accuracy: float, rate_img_s: float) -> float:
        """The least dynamic energy an image at a given flow."""
        cost = np.concatenate([np.zeros(len(self.tuples)), self.joules.ravel()])
        return self._solve(cost, accuracy, rate_img_s) / rate_img_s

    def latency_s(self, accuracy: float) -> float:
        """The least mean time of an image that meets nobody, by mixing tuples."""
        cost = self.uses.T @ self.alone_s
        found = linprog(cost, A_ub=[-self.top1], b_ub=[-accuracy], A_eq=[np.ones(len(cost))], b_eq=[1.0])
        return float(found.fun)

    def _solve(self, cost: NDArray[np.float64], accuracy: float, rate_img_s: float | None) -> float:
        tuples, (devices, edges) = len(self.tuples), self.seconds.shape
        balance = np.hstack([self.uses, *[-np.eye(edges)] * devices])
        busy = np.zeros((devices, tuples + devices * edges))
        for device in range(devices):
            start = tuples + device * edges
            busy[device, start : start + edges] = self.seconds[device]
        wanted = np.concatenate([accuracy - self.top1, np.zeros(devices * edges)])
        equal, levels = balance, np.zeros(edges)
        if rate_img_s is not None:
            total = np.concatenate([np.ones(tuples), np.zeros(devices * edges)])
            equal, levels = np.vstack([balance, total]), np.append(levels, rate_img_s)
        upper = np.append(np.ones(devices), 0.0)
        found = linprog(cost, A_ub=np.vstack([busy, wanted]), b_ub=upper, A_eq=equal, b_eq=levels, method="highs")
        if not found.success:
            raise WorkError(f"the fluid model has no solution: {found.message}")
        return float(found.fun)


def bound(world: World, accuracy: float) -> Bound:
    """The fluid lower bound on energy and latency, and the upper bound on the rate, at a mean accuracy.

    Raises:
        InputError: no width tuple is so accurate.
    """
    model = FluidModel(world)
    if accuracy > model.top1.max():
        problem = f"{accuracy:g} is beyond the most accurate width tuple; allowed is up to {model.top1.max():.4f}"
        raise InputError("--accuracy", "", problem)
    capacity_img_s = model.capacity_img_s(accuracy)
    rate = world.rate_img_s
    feasible = rate is not None and rate <= capacity_img_s
    energy_j = model.energy_j(accuracy, rate) if rate is not None and feasible else None
    return Bound(accuracy, rate, capacity_img_s, energy_j, model.latency_s(accuracy))


def _best_image_s(tables: DeviceTables, edge: tuple[int, float, float]) -> float:
    latency_ns = tables.keys[edge].latency_ns
    return min(latency_ns[b] / b for b in range(1, tables.batch_limit + 1)) / NS_PER_S


def _least_joules(tables: DeviceTables, edge: tuple[int, float, float]) -> float:
    """Solo power over the best image rate: dynamic energy of an image, the least over batch sizes."""
    table = tables.keys[edge]
    return min(table.power_mw[b] / 1000 * table.latency_ns[b] / NS_PER_S / b for b in range(1, tables.batch_limit + 1))


def _alone_s(tables: DeviceTables, edge: tuple[int, float, float]) -> float:
    return (tables.dispatch_ns + tables.keys[edge].latency_ns[1]) / NS_PER_S
