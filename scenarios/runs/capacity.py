"""How much a cluster can carry with a router: the largest stable rate, found by simulation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from policies.chance import stream
from policies.errors import InputError, WorkError
from policies.interfaces import RoutingPolicy
from policies.records import IN_FLIGHT
from scenarios.files.spec import PoissonWorkload
from scenarios.metrics.result import Simulator
from scenarios.world.world import World

GROWTH_LIMIT = 0.03  # of the second half's arrivals: more backlog than that is growth, not noise
NOISE_IMAGES = 30


@dataclass(frozen=True)
class Capacity:
    """The largest stable rate lies between `stable_img_s` and `unstable_img_s`; `runs` simulations said so.

    Attributes:
        workload: the kind of arrivals it was searched with.
    """

    router: str
    workload: str
    seeds: tuple[int, ...]
    stable_img_s: float
    unstable_img_s: float
    runs: int


@dataclass(frozen=True)
class Search:
    """How a largest stable rate is looked for.

    Attributes:
        seeds: of the runs at each rate; with more than half of them it must be stable.
        duration_s: of each run.
        precision: of the rate, as a share of it.
        own_workload: keep the scenario's arrivals and faults: then bursts of that length decide.
    """

    seeds: tuple[int, ...]
    duration_s: float = 20.0
    precision: float = 0.05
    own_workload: bool = False
    engine: Simulator = "simpy"


def capacity(
    world: World,
    policy: Callable[[], RoutingPolicy],
    router: str,
    search: Search,
    on_progress: Callable[[float, bool], None] | None = None,
) -> Capacity:
    """Bisect on stability (not on overload throughput, which falls as the rate rises).

    A rate is stable if, over the second half of a run, the backlog grows by no more than 3 % of what arrives, and that
    with more than half of the seeds: near its limit a router may fare well or badly by chance.

    A stable rate is one that can last, so it is searched with Poisson arrivals and no faults on the scenario's cluster,
    whatever moves there, unless its own workload is asked for.

    Args:
        policy: makes a fresh router.
        router: its name, and that of its random stream.

    Raises:
        InputError: the workload is a trace, which has no rate, and its own arrivals are asked for.
        WorkError: even a thousandth of the estimated capacity is not stable.
    """
    world, seeds = world if search.own_workload else steady(world), search.seeds
    if world.rate_img_s is None:
        problem = "a trace has no rate to search; take poisson, or name another workload"
        raise InputError(world.scenario.name, "workload.kind", problem)
    given_img_s, runs, needed = world.rate_img_s, 0, len(seeds) // 2 + 1

    def is_stable(rate_img_s: float) -> bool:
        nonlocal runs
        steady_runs = 0
        for tried, seed in enumerate(seeds, start=1):
            scale = rate_img_s / given_img_s
            steady_runs += _backlog_is_steady(world, policy(), scale, seed, router, search)
            runs += 1
            if steady_runs >= needed or steady_runs + len(seeds) - tried < needed:
                break  # the others can't change it
        if on_progress is not None:
            on_progress(rate_img_s, steady_runs >= needed)
        return steady_runs >= needed

    low, high = 0.0, world.capacity_img_s
    while is_stable(high):
        low, high = high, high * 2
    while high - low > search.precision * high:
        middle = (low + high) / 2
        low, high = (middle, high) if is_stable(middle) else (low, middle)
        if high < 1e-3 * world.capacity_img_s:
            raise WorkError(f"{router}: no stable rate above {high:.3g} images/s")
    return Capacity(router, world.scenario.workload.kind, seeds, low, high, runs)


def steady(world: World) -> World:
    """The same cluster under Poisson arrivals at its estimated capacity, and nothing goes wrong."""
    workload = PoissonWorkload(kind="poisson", rate_img_s=world.capacity_img_s)
    return replace(world, scenario=world.scenario.model_copy(update={"workload": workload, "faults": ()}))


def _backlog_is_steady(
    world: World, policy: RoutingPolicy, scale: float, seed: int, router: str, search: Search
) -> bool:
    run = world.run_spec(seed, duration_s=search.duration_s, scale=scale, detail=False, end="cut")
    simulation = world.simulation(run, search.engine)
    simulation.finish(policy, stream(seed, f"router:{router}"))
    requests = simulation.columns().requests
    half_ns = run.horizon_ns // 2
    arrived = int(np.count_nonzero(requests.arrived_ns > half_ns))
    done = int(np.count_nonzero((requests.status != IN_FLIGHT) & (requests.finished_ns > half_ns)))
    return arrived - done <= GROWTH_LIMIT * arrived + NOISE_IMAGES
