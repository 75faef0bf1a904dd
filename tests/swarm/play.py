"""One seed: a cluster of the product's own parts in a virtual world, a run or two, and the laws."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from hw.router.interventions import DrainRequest, Operator, Order
from hw.router.router_loop import Parts, RouterLoop, Routing
from hw.router.run_requests import HardwareRun, ServedNetwork
from hw.router.server_port import HardwareServer
from hw.router.worker_handles import WorkerSlot, make_all_ready
from hw.worker.emulated_lanes import EmulatedDevice
from hw.worker.lanes import SchedulerSpec, WorkerSpec
from kit.random_streams import stream
from policies.greedy_scheduler import GreedyParams
from policies.interfaces import AccuracyPrior, RewardWeights
from policies.run_ledger import Ledger
from policies.run_records import RunRecord
from policies.vocabulary import NS_PER_S, BatchingDelay, BatchingDelayRule, Choice, ClusterView
from tests.swarm.laws import Laws
from tests.swarm.mix import ACTIVATION_BYTES, INPUT_BYTES, MICRO_BATCH_SIZES, MS, WIDTHS, Mix
from tests.swarm.wires import EventQueue
from tests.swarm.world import World, instance_bytes


class Drawer:
    """A router that decides anything that is allowed."""

    def __init__(self, mix: Mix) -> None:
        self._micro_batch_sizes = mix.router.micro_batch_sizes
        self._segments = mix.router.segments if mix.paths else 0
        if mix.batching_delays_rule:
            segments = mix.router.segments
            self.batching_delay = BatchingDelayRule((self._micro_batch_sizes[-1],) * segments, (5 * MS,) * segments)

    def choose(self, view: ClusterView, rng: np.random.Generator) -> Choice | BatchingDelay:
        if view.batching_delay_left_ns and view.candidates < self._micro_batch_sizes[-1] and rng.random() < 0.3:
            return BatchingDelay(self._micro_batch_sizes[-1], max(1, int(view.batching_delay_left_ns * rng.random())))
        valid = [index for index, server in enumerate(view.servers) if server.valid]
        server = valid[int(rng.random() * len(valid))]
        width = WIDTHS[int(rng.random() * len(WIDTHS))]
        size = self._micro_batch_sizes[int(rng.random() * len(self._micro_batch_sizes))]
        steps = int(rng.random() * (self._segments - view.head.segment + 1)) if self._segments else 0
        return Choice(server, width, size, tuple(WIDTHS[int(rng.random() * len(WIDTHS))] for _ in range(steps)))


class Beginning:
    """No load of others, as `hw.telemetry.ForeignWatch` would find it; and what happens when a run's clock starts."""

    def __init__(self, start: Callable[[], None]) -> None:
        self.start = start

    def look(self, now_ns: int) -> None:
        """Nothing."""

    def take(self) -> None:
        """None."""


class LinkQueue:
    """An emulated link: one transfer after another."""

    def __init__(self) -> None:
        self._free_ns = 0

    def transfer(self, source: int, destination: int, transfer_bytes: int, now_ns: int) -> tuple[int, int]:
        start_ns = max(now_ns, self._free_ns)
        self._free_ns = start_ns + 200 * transfer_bytes
        return start_ns, self._free_ns + MS


@dataclass(frozen=True)
class Played:
    """What came of a seed: its records, and how many steps its cores took."""

    records: tuple[RunRecord, ...]
    steps: int


def play(seed: int, say: Callable[[str], None] = lambda _: None) -> Played:
    """Raises what a law says, or whatever else goes wrong; the same for the same seed."""
    return play_mix(Mix.draw(seed), say)


Orders = Callable[[Mix, World, Sequence[WorkerSpec]], Callable[[], Iterable[Order]]]


def play_mix(mix: Mix, say: Callable[[str], None] = lambda _: None, orders: Orders = lambda *_: tuple) -> Played:
    """See `play`.

    Args:
        orders: what the operator changes in each run.
    """
    event_queue = EventQueue()
    laws = Laws(event_queue)
    world = World(mix, event_queue, laws)
    try:
        return Played(tuple(_cluster(mix, world, laws, say, orders)), laws.steps)
    finally:
        world.close()


def descriptors_left(seeds: range) -> int:
    """How many more this process has after it has played these than after the first of them."""
    counts = []
    for seed in (seeds[0], *seeds):
        play(seed)
        gc.collect()  # an arena's mapping has one
        counts.append(len(list(Path("/proc/self/fd").iterdir())))
    return counts[-1] - counts[0]


def _cluster(mix: Mix, world: World, laws: Laws, say: Callable[[str], None], orders: Orders) -> list[RunRecord]:
    segments, count = mix.router.segments, mix.router.servers
    sizes = {(segment, width): instance_bytes(segment, width) for segment in range(1, segments + 1) for width in WIDTHS}
    preload = tuple((segment, 1.0) for segment in range(1, segments + 1)) if mix.preloads else ()
    params = GreedyParams(
        WIDTHS, sizes, 0, MICRO_BATCH_SIZES[-1], max(mix.vram_bytes, 1000 * segments),
        idle_unload_ns=mix.idle_unload_ns, preload=preload, load_backoff_ns=MS,
    )  # fmt: skip
    device = EmulatedDevice("", b"", "toy")
    servers = [
        HardwareServer(
            f"server{index}",
            device if mix.shares_device else EmulatedDevice("", b"", "toy"),
            params, 1.0, 2.0, sensor_period_s=0.02, machine="" if mix.shares_device else f"host{index}",
        )
        for index in range(count)
    ]  # fmt: skip
    served = ServedNetwork.of_sizes(
        WIDTHS, INPUT_BYTES, [[int(ACTIVATION_BYTES * width) for width in WIDTHS]] * segments
    )
    arenas = world.open_arenas(mix.rooms * mix.router.micro_batch_sizes[-1] * INPUT_BYTES)
    service = SchedulerSpec(params, segments, mix.supervision)
    specs = [WorkerSpec(f"server{index}", world, service) for index in range(count)]  # type: ignore[arg-type]
    slots = [WorkerSlot(partial(world.start, index, spec), ()) for index, spec in enumerate(specs)]
    transfer_ids = itertools.count()
    records = []
    for _ in range(mix.runs):
        world.faults_end_ns = 0  # what is wrong before a run is for others to tell
        began_ns = world.event_queue.now_ns
        away = make_all_ready(slots, keep_log=True)
        if not any(process.is_halted for process in world.processes):
            laws.readied(world.event_queue.now_ns - began_ns)
        parts = Parts(
            servers, slots, arenas, served, mix.supervision, transfer_ids,
            Operator(_drain_request(mix, world), orders(mix, world, specs)), away, world.host,
            Beginning(lambda: world.trouble(mix.horizon_ns)), say,  # type: ignore[arg-type]
        )  # fmt: skip
        loop = _loop(mix, world, parts)
        loop.params = [params] * count  # type: ignore[attr-defined]
        laws.attach(loop, mix)
        record = loop.carry_out()
        laws.ended(loop, record, mix)
        records.append(record)
    return records


def _drain_request(mix: Mix, world: World) -> DrainRequest:
    """What the operator wants drained, from the start of the run on."""
    began_ns = world.event_queue.now_ns

    def wanted() -> frozenset[int]:
        at_ns = world.event_queue.now_ns - began_ns
        return frozenset(server for begin_ns, end_ns, server in mix.drains if begin_ns <= at_ns < end_ns)

    return wanted


def _loop(mix: Mix, world: World, parts: Parts) -> RouterLoop:
    run = HardwareRun(
        mix.arrivals_ns, np.zeros((4, INPUT_BYTES // 4), np.float32), np.zeros(4, np.int64), mix.horizon_ns,
        end=mix.ends, deadlines_ns=(mix.deadline_ns,), drain_limit_ns=500 * NS_PER_S, keep_log=True, faults=mix.faults,
        links=LinkQueue() if mix.has_links else None, is_correct=lambda request, widths: True,
    )  # fmt: skip
    weights, prior = RewardWeights(), AccuracyPrior({(1.0,) * mix.router.segments: 0.9})
    routing = Routing(Drawer(mix), stream(mix.seed, "swarm:router"), weights, prior)
    ledger = Ledger(mix.router.servers, mix.router.segments, weights, prior, keep_log=True)

    def hear(text: str) -> None:
        parts.say(text)
        if mix.leaves and "may be taken away" in text:  # the operator does
            name = text.partition(":")[0]
            slot = parts.slots[[server.name for server in parts.servers].index(name)]
            slot.worker.process.die()  # type: ignore[attr-defined]

    return RouterLoop(replace(parts, say=hear), run, mix.router, routing, ledger)
