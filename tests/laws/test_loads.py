"""When a server loads and evicts: laws of the rule "load for need, evict for need", under any drawn load."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from policies.greedy_scheduler import GreedyScheduler, InstanceState
from policies.vocabulary import Choice, LoadInstance, UnloadInstance, WorkKey
from sim.simulated_cluster import ClusterSpec, Simulation
from tests import tiny

NEVER_NS = 10**15
Kind = tuple[int, float]  # (segment, width)
TUPLES = st.tuples(*[st.sampled_from(tiny.WIDTHS)] * 4)


class OneOf:
    """Serves each micro-batch by one of these width tuples, drawn, on a drawn server."""

    def __init__(self, tuples: list[tuple[float, ...]], micro_batch_size: int) -> None:
        self.tuples, self.micro_batch_size = tuples, micro_batch_size

    def choose(self, view: Any, rng: np.random.Generator) -> Choice:
        valid = [index for index, server in enumerate(view.servers) if server.valid]
        widths = self.tuples[int(rng.integers(len(self.tuples)))]
        return Choice(int(rng.choice(valid)), widths[view.head.segment - 1], self.micro_batch_size)


def kinds_of(tuples: list[tuple[float, ...]]) -> set[Kind]:
    return {(segment, width) for widths in tuples for segment, width in enumerate(widths, 1)}


def bytes_of(kinds: set[Kind]) -> int:
    return 100_000_000 + sum(int(50_000_000 * segment * width) for segment, width in kinds)


def served(cap_bytes: int, rate_img_s: float, router: OneOf, seed: int, **greedy: Any) -> tuple[ClusterSpec, Any]:
    """A cluster of two servers with this memory each, and the record of 0.2 s."""
    settings = {"vram_cap_bytes": cap_bytes, "idle_unload_ns": None, "skip_limit_ns": NEVER_NS, **greedy}
    profiles = [tiny.profile("a"), tiny.profile("b", speed=0.5)]
    spec = tiny.cluster(profiles, greedy=settings, router={"outstanding_micro_batches": 6}, link="loopback")
    run = tiny.run(spec, tiny.poisson_s(rate_img_s, 0.2, seed), 0.2, keep_log=True)
    return spec, Simulation(spec, run).run(router, np.random.default_rng(seed))


def orders(record: Any, server: int) -> list[Any]:
    return [command for step in record.log if step.core == f"server:{server}" for command in step.commands]


@pytest.mark.parametrize("spare_bytes", [0, 120_000_000])
@settings(max_examples=10, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(TUPLES, min_size=1, max_size=3), st.sampled_from([300, 3000]), st.integers(0, 99))
def test_instances_that_fit_together_are_loaded_once_and_never_evicted(
    spare_bytes: int, tuples: list[tuple[float, ...]], rate_img_s: float, seed: int
) -> None:
    """At any rate there is at most one load per kind asked for, whether memory is exact or to spare."""
    kinds = kinds_of(tuples)
    _, record = served(bytes_of(kinds) + spare_bytes, rate_img_s, OneOf(tuples, 4), seed, scale_cap=0)
    for server in (0, 1):
        commands = orders(record, server)
        loads = [(command.segment, command.width) for command in commands if isinstance(command, LoadInstance)]
        assert len(set(loads)) == len(loads)
        assert set(loads) <= kinds
        assert not any(isinstance(command, UnloadInstance) for command in commands)


@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(TUPLES, min_size=1, max_size=6),
    st.sampled_from([350_000_000, 600_000_000, 4_000_000_000]),
    st.sampled_from([200, 2000]),
    st.sampled_from([NEVER_NS, 40_000_000]),
    st.sampled_from(["requested", "instance"]),
    st.integers(0, 99),
)
def test_each_load_and_each_eviction_has_its_need(
    tuples: list[tuple[float, ...]], cap_bytes: int, rate_img_s: float, skip_ns: int, served_width: str, seed: int
) -> None:
    """A load: no instance serves the key, or it is overdue, or its queue is long. An eviction: for a key of the first
    two, which memory that is being freed would not hold; never of an instance that could serve what waits."""
    spec, record = served(
        cap_bytes, rate_img_s, OneOf(tuples, 4), seed, skip_limit_ns=skip_ns, served_width=served_width
    )
    cores = [GreedyScheduler(each.params, index) for index, each in enumerate(spec.servers)]
    for step in record.log:
        if step.core == "router":
            continue
        core = cores[int(step.core.partition(":")[2])]
        before = {instance.id: (instance.spec, instance.state) for instance in core.instances}
        assert tuple(core.handle(step.event, step.now_ns)) == step.commands
        loads = [command for command in step.commands if isinstance(command, LoadInstance)]
        evicted = {command.instance for command in step.commands if isinstance(command, UnloadInstance)}
        alive = [spec for spec, state in before.values() if state is not InstanceState.UNLOADING]
        waiting = list(core._queue.by_age())
        needy = [key for key in waiting if is_overdue(core, key, step.now_ns) or not serving(alive, key)]
        for load in loads:
            keys = [key for key in waiting if (key.segment, key.width) == (load.segment, load.width)]
            long = any(core._queue.length(key) > core.params.scale_trigger for key in keys)
            own = served_width == "instance" and (load.segment, load.width) not in alive
            assert long or own or set(keys) & set(needy)
        if evicted:
            assert needy
            sizes, unloading = core.params.instance_bytes, InstanceState.UNLOADING
            leaving = [
                instance for instance in core.instances if instance.state is unloading and instance.id not in evicted
            ]
            freed_bytes = sum(sizes[each.spec] for each in leaving)
            largest_bytes = max(sizes[key.segment, key.width] for key in needy)
            assert core.memory.used_bytes - freed_bytes + largest_bytes > cap_bytes
            overdue = any(is_overdue(core, key, step.now_ns) for key in waiting)
            victims = [before[instance][0] for instance in evicted]
            assert overdue or not any(serving(victims, key) for key in waiting)


def is_overdue(core: GreedyScheduler, key: WorkKey, now_ns: int) -> bool:
    return now_ns - core._blocked_since_ns.get(key, now_ns) >= core.params.skip_limit_ns


def serving(instances: list[Kind], key: WorkKey) -> bool:
    return any(segment == key.segment and width >= key.width for segment, width in instances)
