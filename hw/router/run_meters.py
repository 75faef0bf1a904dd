"""Meters of a run in the router's process: costs by activity, CPU load, and a deferred ledger.

`CostMeter`: neither its costs nor its handovers include waiting. A thread's CPU time does not advance while it waits,
and a handover counts only if nothing else was in transit and its receiver was idle. So a simulation may add its own
waiting.

`cpu_use`: a router or an emulated device that waits for a core is late, and no simulation includes that delay. For a
real CPU device computation is its purpose: `cpu_use` leaves out its worker, and the cores that this worker is pinned
to.
"""

from __future__ import annotations

import time  # noqa: TID251 - CPU time is what is measured
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from msgspec.structs import replace

from policies.run_records import BatchTold, CpuUse, Handover, RouterCost
from policies.vocabulary import RouterCommand, RouterEvent, TelemetrySampled

if TYPE_CHECKING:
    from hw.device_settings import DeviceSpec
    from hw.worker.emulated_lanes import EmulatedDevice


class CostMeter:
    """Takes samples in a router's loop.

    CPU time that belongs to no decision and no message (arrivals, the ledger, the loop itself) goes to the decisions of
    the same turn; in a turn without any, to the messages that began it. A turn with neither (a look at the clock, a
    ping) is charged to neither.
    """

    def __init__(self) -> None:
        self.costs: list[RouterCost] = []
        self.handovers: list[Handover] = []
        self._at_ns = time.thread_time_ns()
        self._open: list[tuple[int, int, int, int]] = []  # (images, CPU time, until it was made, pause) of this turn
        self._pause_ns = 0
        self._made_ns = self._decoded_ns = 0
        self._rest_ns = 0
        self._has_heard = False
        self._handed_ns: dict[int, int] = {}

    def _lap_ns(self) -> int:
        now_ns = time.thread_time_ns()
        lap_ns, self._at_ns = now_ns - self._at_ns, now_ns
        return lap_ns

    def waited(self, looked_ns: int, pause_ns: int) -> None:
        """Note the end of a wait of `pause_ns`, and the CPU time of its polling, which does not count as work."""
        self._at_ns += looked_ns
        self._pause_ns += pause_ns

    def _take_pause_ns(self) -> int:
        """Return the last pause, once: the first activity after a wait bears the cold caches."""
        pause_ns, self._pause_ns = self._pause_ns, 0
        return pause_ns

    def decoded(self) -> None:
        """Note that messages are decoded; next the core receives them."""
        self._decoded_ns = max(0, self._lap_ns())

    def heard(self, messages: int, images: int) -> None:
        """Note how many messages with requests the core received since `decoded`; none: it was something else."""
        cpu_ns = self._decoded_ns + max(0, self._lap_ns())
        if messages:
            self._has_heard = True
            cost = RouterCost("returned", messages, images, cpu_ns, self._decoded_ns, self._take_pause_ns())
            self.costs.append(cost)
        else:
            self._rest_ns += cpu_ns

    def begin_decision(self) -> None:
        """Begin a decision, which lasts until `decided`."""
        self._rest_ns += self._lap_ns()
        self._made_ns = 0

    def made(self) -> None:
        """Note that the policy has answered: the micro-batch is ready to be sent."""
        self._made_ns = self._lap_ns()

    def decided(self, images: int) -> None:
        """Note that a micro-batch of this size was sent; of none: the decision had no effect."""
        cpu_ns = self._made_ns + self._lap_ns()
        if images:
            self._open.append((images, cpu_ns, self._made_ns, self._take_pause_ns()))
        else:
            self._rest_ns += cpu_ns

    def end_turn(self) -> None:
        """Distribute the turn's other CPU time."""
        self._rest_ns += self._lap_ns()
        if self._open:
            share_ns = self._rest_ns // len(self._open)
            self.costs += [
                RouterCost("decision", 1, images, cpu_ns + share_ns, made_ns, pause_ns)
                for images, cpu_ns, made_ns, pause_ns in self._open
            ]
            self._open.clear()
        elif self._has_heard:
            last = self.costs[-1]
            self.costs[-1] = replace(last, cpu_ns=last.cpu_ns + self._rest_ns)
        self._rest_ns = 0
        self._has_heard = False

    def handed(self, micro_batch: int, now_ns: int) -> None:
        """Note that a micro-batch was handed over to a worker."""
        self._handed_ns[micro_batch] = now_ns

    def arrived(self, server: int, micro_batch: int, arrived_ns: int) -> None:
        """Note that it has arrived there."""
        if (handed_ns := self._handed_ns.pop(micro_batch, None)) is not None:
            self.handovers.append(Handover(server, True, handed_ns, max(0, arrived_ns - handed_ns)))

    def came_back(self, server: int, returned_ns: int, heard_ns: int) -> None:
        """Note that a message found the router waiting for it."""
        self.handovers.append(Handover(server, False, returned_ns, max(0, heard_ns - returned_ns)))


class Watcher(Protocol):
    """An observer of a run's steps; see `policies.run_ledger.Ledger`, which keeps a record of all of them."""

    def observe_router(self, event: RouterEvent, commands: Sequence[RouterCommand], now_ns: int) -> None:
        """See `Ledger`."""
        ...

    def note_batch(self, server: int, note: BatchTold) -> None:
        """See `Ledger`."""
        ...

    def note_arrivals(self, arrivals: Sequence[tuple[int, int]]) -> None:
        """See `Ledger`."""
        ...

    def note_reading(self, server: int, event: TelemetrySampled) -> None:
        """See `Ledger`."""
        ...

    def caught_up(self) -> None:
        """Note that the cores have done exactly the steps that it received."""
        ...


Watching = TypeVar("Watching", bound=Watcher, covariant=True)


class LateLedger(Generic[Watching]):
    """Remembers steps for a ledger, in their order, until `catch_up`: no request waits for its own record."""

    def __init__(self, ledger: Watching) -> None:
        self.ledger = ledger
        self._observe_router = ledger.observe_router
        self._steps: list[tuple[Callable[..., None], tuple[Any, ...]]] = []

    def observe_router(self, event: RouterEvent, commands: Sequence[RouterCommand], now_ns: int) -> None:
        """See `Ledger`."""
        self._steps.append((self._observe_router, (event, commands, now_ns)))

    def note_batch(self, server: int, note: BatchTold) -> None:
        """See `Ledger`."""
        self._steps.append((self.ledger.note_batch, (server, note)))

    def note_arrivals(self, arrivals: Sequence[tuple[int, int]]) -> None:
        """See `Ledger`."""
        self._steps.append((self.ledger.note_arrivals, (arrivals,)))

    def note_reading(self, server: int, event: TelemetrySampled) -> None:
        """See `Ledger`."""
        self._steps.append((self.ledger.note_reading, (server, event)))

    def catch_up(self) -> None:
        """Pass all of them to the ledger."""
        for note, step in self._steps:
            note(*step)
        self._steps.clear()
        self.ledger.caught_up()


@dataclass(frozen=True, slots=True)
class Taker:
    """A process that takes CPU time.

    Attributes:
        busy_ns: in the run, without polling for messages.
        cores: that it may use.
    """

    busy_ns: int
    cores: frozenset[int]


def cpu_use(
    router: Taker, workers: Sequence[tuple[DeviceSpec | EmulatedDevice, int]], cores: Sequence[int], lasted_ns: int
) -> CpuUse:
    """Return shares of the cores' time over a run.

    An emulated device's worker is one thread, so it has one core at most. A GPU's worker has a thread for every
    instance,
    and one that waits for the device may spin: that alone does not mean it needs more.

    Args:
        router: which is one thread.
        workers: the device and the CPU time of each, in ns.
        cores: of the host.
    """
    lasted_ns = max(1, lasted_ns)
    computing = {core for device, _ in workers if device.physical[0] == "cpu" for core in device.cores}
    shared = frozenset(cores) - computing or frozenset(cores)
    takers = [router if router.cores else Taker(router.busy_ns, shared)]
    takers += [
        Taker(busy_ns, frozenset(device.cores) or shared) for device, busy_ns in workers if device.physical[0] != "cpu"
    ]
    emulated_ns = [busy_ns for device, busy_ns in workers if device.physical[0] == "emulated"]
    return CpuUse(
        router=router.busy_ns / lasted_ns,
        worker=max(emulated_ns, default=0) / lasted_ns,
        cores=_fullest(takers, lasted_ns),
    )


def _fullest(takers: Sequence[Taker], lasted_ns: int) -> float:
    """Return the highest load of any set of cores: all processes confined to it, or to a part of it, compete."""
    return max(
        sum(taker.busy_ns for taker in takers if taker.cores <= cores) / (lasted_ns * len(cores))
        for cores in {taker.cores for taker in takers}
    )
