"""What a router's own decisions take on this host, beyond those of `random`.

What the router's process does for a block is measured with the router `random` (`scenarios.executors.serving`), and a
learned router, or a rule that looks at every server, takes longer. So its policy is called here as the router calls it:
in one process, on the router's cores, over views of a simulation of the scenario, in turns with `random`. It is CPU
time, which does not count waiting.

Two decisions are apart by the gap between their views, waited for as the router waits. After a pause caches are cold: a
loop without pauses would find decisions several times as fast as they are while serving.
"""

from __future__ import annotations

import time  # noqa: TID251 - CPU time of a real decision
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from hw.router.loop import no_collections, on_cores, own_cores
from hw.telemetry import cpu_name
from kit.chance import derived_seed, stream
from policies.interfaces import RoutingPolicy
from policies.planned_router import by_plan
from policies.vocabulary import NS_PER_S, Choice, ClusterView, Hold
from scenarios.executors.run import hardware_servers
from scenarios.files.decision_times import SCHEMA, DecisionTime
from scenarios.world.world import World

VIEWS = 288
FIRST = 32  # of them that do not count: a plan is made, memory is touched for the first time
ROUNDS = 5  # of each decision the median counts: a host that stalls in one of them is left out

MAX_GAP_NS = NS_PER_S // 1000  # between two decisions; a longer one would make nothing colder

Clock = Callable[[], int]
Wait = Callable[[int], None]
Make = Callable[[], RoutingPolicy]


class _EnoughError(Exception):
    """Raised when there are enough views."""


class _Recorder:
    """A policy that keeps the views that it decides on."""

    def __init__(self, policy: RoutingPolicy) -> None:
        self.views: list[ClusterView] = []
        self._policy = policy

    def choose(self, view: ClusterView, rng: np.random.Generator) -> Choice | Hold:
        if len(self.views) == VIEWS:
            raise _EnoughError
        self.views.append(view)
        return self._policy.choose(view, rng)


def views_of(world: World, policy: RoutingPolicy, seed: int) -> list[ClusterView]:
    """Return the first views of a simulation with that policy: fewer if the run is short."""
    recorder = _Recorder(policy)
    with suppress(_EnoughError):
        world.simulation(world.run_spec(seed, detail=False)).finish(recorder, stream(seed, "deciding"))
    return recorder.views


def measure_decisions(world: World, router: str, make: Make, seed: int) -> DecisionTime:
    """Measure one router, which `make` makes again each time; the views are the same for the same seed.

    Raises:
        InputError: no image arrives.
    """
    seed = derived_seed(seed, "deciding")
    views = views_of(world, make(), seed)
    cores = own_cores(hardware_servers(world))
    with no_collections(), on_cores(cores):
        wait = _spin if cores else _sleep
        own_s, random_s = beside_random(
            views,
            lambda: by_plan(make(), world.cluster.router),
            lambda: by_plan(world.router("random"), world.cluster.router),
            seed,
            wait=wait,
        )
    return DecisionTime(
        schema=SCHEMA,
        router=router,
        provenance="measured",
        machine=cpu_name(),
        cores=cores,
        views=len(views),
        rounds=ROUNDS,
        own_s=own_s,
        random_s=random_s,
    )


def _sleep(gap_ns: int) -> None:
    time.sleep(gap_ns / NS_PER_S)


def _spin(gap_ns: int) -> None:
    """Wait as the router does on dedicated cores (`hw.router.loop`)."""
    until_ns = time.monotonic_ns() + gap_ns
    while time.monotonic_ns() < until_ns:
        pass


def beside_random(
    views: Sequence[ClusterView],
    make: Make,
    make_random: Make,
    seed: int,
    *,
    clock: Clock = time.thread_time_ns,
    wait: Wait = _sleep,
) -> tuple[float, float]:
    """Return mean seconds of a decision of either policy; of each view the median of its rounds counts.

    A policy may remember what it has decided: it sees the views in their order, and in each round it is a fresh one.
    """
    times_ns = [view.now_ns for view in views]
    gaps_ns = [min(MAX_GAP_NS, after - before) for before, after in pairwise([*times_ns[:1], *times_ns])]
    took_ns: NDArray[np.int64] = np.empty((2, ROUNDS, len(views)), np.int64)
    for number in range(ROUNDS):
        pair = [(each(), stream(seed, f"deciding:{name}")) for name, each in (("own", make), ("random", make_random))]
        for place, view in enumerate(views):
            for which, (policy, rng) in enumerate(pair):
                wait(gaps_ns[place])
                began_ns = clock()
                policy.choose(view, rng)
                took_ns[which, number, place] = clock() - began_ns
    counted = np.median(took_ns, axis=1)[:, min(FIRST, len(views) - 1) :]
    own_s, random_s = counted.mean(axis=1) / NS_PER_S
    return float(own_s), float(random_s)
