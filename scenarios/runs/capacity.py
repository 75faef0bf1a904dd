"""How much a cluster can carry with a router: the largest stable rate, found by simulation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from policies.chance import stream
from policies.errors import InputError, WorkError
from policies.faults import NO_LABEL
from policies.interfaces import RoutingPolicy
from policies.records import FAILED, IN_FLIGHT
from scenarios.files.spec import PoissonWorkload
from scenarios.metrics.result import Simulator
from scenarios.metrics.served import LIMIT
from scenarios.world.world import World

GROWTH_LIMIT = 0.03  # of the second half's arrivals: more backlog than that is growth, not noise
NOISE_IMAGES = 30
OF_FAULTS = (NO_LABEL, "server_down")  # reasons of failed requests that no load brings about


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
    """How a capacity is searched for.

    Attributes:
        router: its name, for random streams and the result.
        duration_s: of each run.
        precision: of the rate, as a share of it.
        own_workload: keep the scenario's arrivals and faults.
    """

    router: str
    seeds: tuple[int, ...]
    duration_s: float = 20.0
    precision: float = 0.05
    own_workload: bool = False
    engine: Simulator = "simpy"


def backlog_is_steady(world: World, policy: RoutingPolicy, scale: float, seed: int, search: Search) -> bool:
    """Whether a run at `scale` times the world's rate ends its second half with about the backlog it began with.

    A backlog that is kept small by giving images up is not: no more than `LIMIT` of what arrived then may fail (but for
    what only planned faults bring about).
    """
    run = world.run_spec(seed, duration_s=search.duration_s, scale=scale, detail=False, end="cut")
    simulation = world.simulation(run, search.engine)
    simulation.finish(policy, stream(seed, f"router:{search.router}"))
    requests = simulation.columns().requests
    half_ns = run.horizon_ns // 2
    arrived = int(np.count_nonzero(requests.arrived_ns > half_ns))
    done = int(np.count_nonzero((requests.status != IN_FLIGHT) & (requests.finished_ns > half_ns)))
    by_load = [reason not in OF_FAULTS for reason in requests.reasons]
    is_failed = (requests.status == FAILED) & np.array(by_load, np.bool_)[requests.reason]
    failed = int(np.count_nonzero(is_failed & (requests.arrived_ns > half_ns)))
    return arrived - done <= GROWTH_LIMIT * arrived + NOISE_IMAGES and failed <= LIMIT * arrived


def capacity(
    world: World,
    policy: Callable[[], RoutingPolicy],
    search: Search,
    *,
    is_steady: Callable[[World, RoutingPolicy, float, int, Search], bool] = backlog_is_steady,
    on_progress: Callable[[float, bool], None] | None = None,
) -> Capacity:
    """Bisect on stability (not on overload throughput, which falls as the rate rises).

    A rate is stable if, over the second half of a run, the backlog grows by no more than 3 % of what arrives, and that
    with more than half of the seeds: near its limit a router may fare well or badly by chance.

    A stable rate is one that can last, so it is searched with Poisson arrivals and no faults on the scenario's cluster,
    whatever moves there. `own_workload` keeps the scenario's arrivals and faults: then bursts of that length decide.

    Args:
        is_steady: what one run says, by world, router, scale of the rate, seed and search.

    Raises:
        InputError: the workload is a trace, which has no rate, and its own arrivals are asked for.
        WorkError: even a thousandth of the estimated capacity is not stable.
    """
    world = world if search.own_workload else under_poisson(world)
    if world.rate_img_s is None:
        problem = "a trace has no rate to search; take poisson, or name another workload"
        raise InputError(world.scenario.name, "workload.kind", problem)
    given_img_s, runs, needed = world.rate_img_s, 0, len(search.seeds) // 2 + 1

    def is_stable(rate_img_s: float) -> bool:
        nonlocal runs
        steady_runs = 0
        for tried, seed in enumerate(search.seeds, start=1):
            scale = rate_img_s / given_img_s
            steady_runs += is_steady(world, policy(), scale, seed, search)
            runs += 1
            if steady_runs >= needed or steady_runs + len(search.seeds) - tried < needed:
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
            raise WorkError(f"{search.router}: no stable rate above {high:.3g} images/s")
    return Capacity(search.router, world.scenario.workload.kind, search.seeds, low, high, runs)


def under_poisson(world: World) -> World:
    """The same cluster under Poisson arrivals at its estimated capacity, and nothing goes wrong."""
    workload = PoissonWorkload(kind="poisson", rate_img_s=world.capacity_img_s)
    return replace(world, scenario=world.scenario.model_copy(update={"workload": workload, "faults": ()}))
