"""Requests from clients, as the router's loop takes them, and a server's counts in constant memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from hw.clock import NEVER_NS, RunClock
from hw.frontend.connections import Journal
from hw.frontend.ingress import Ingress
from hw.frontend.log_segments import SegmentLog
from hw.frontend.router_link import (
    Alive,
    Answered,
    Cancel,
    Drain,
    Drained,
    Failed,
    ServerState,
    SlotImages,
    Status,
    Submit,
)
from hw.host_resources import CollectionMeter
from hw.router.router_loop import RunProgress
from hw.router.transfers import RequestImages
from hw.transport.worker_port import PortClosedError
from policies.interfaces import RouterConfig
from policies.run_records import BatchTold
from policies.vocabulary import (
    GoalSet,
    ModelChanged,
    RequestArrived,
    RequestCompleted,
    RequestFailed,
    RouterCommand,
    RouterEvent,
    ServerDown,
    ServerDraining,
    ServerUp,
    TelemetrySampled,
)

UNKNOWN = -1  # the prediction of an image whose prediction is not given


class Clients:
    """See `hw.router.run_requests.Traffic`.

    Args:
        ingress: the process with their connections.
        images: their slots.
        wants_stop: whether to accept no more requests, and to end when all accepted ones are answered.
        clock: the run's.
    """

    def __init__(self, ingress: Ingress, images: SlotImages, wants_stop: Callable[[], bool], clock: RunClock) -> None:
        self.images: RequestImages = images
        self.next_ns = self.horizon_ns = NEVER_NS
        self.has_ended = False
        self.descriptors: Sequence[int] = (ingress.port.fileno(),)
        self._request_in: dict[int, int] = {}  # by slot
        self._arrived_ns: dict[int, int] = {}  # likewise
        self._cancelled: list[int] = []
        self._slot_of = images.slot_of
        self._ingress = ingress
        self._clock = clock
        self._wants_stop = wants_stop
        self._arrivals: deque[tuple[RequestArrived, int]] = deque()
        self._answers: dict[int, tuple[int, bytes]] = {}
        self._requests = 0

    def take(self, now_ns: int) -> tuple[RequestArrived, int]:
        """See `Traffic`."""
        arrival = self._arrivals.popleft()
        if not self._arrivals:
            self.next_ns = NEVER_NS
        return arrival

    def judge(
        self, requests: tuple[int, ...], width: float, predictions: tuple[int, ...], scores: bytes
    ) -> tuple[bool, ...]:
        """See `Traffic`: the right predictions are unknown; a request's answer is kept until it ends."""
        size = len(scores) // len(requests)
        # none, of an emulated device
        for index, (request, prediction) in enumerate(zip(requests, predictions, strict=False)):
            if request in self._slot_of:
                self._answers[request] = prediction, scores[index * size : (index + 1) * size]
        return ()

    def end(self, command: RequestCompleted | RequestFailed) -> None:
        """See `Traffic`."""
        slot = self._slot_of.pop(command.request, None)
        if slot is None:  # its ingress is gone
            return
        del self._request_in[slot]
        arrived_ns = self._arrived_ns.pop(slot)
        prediction, scores = self._answers.pop(command.request, (UNKNOWN, b""))
        if isinstance(command, RequestFailed):
            self._ingress.port.post(Failed(slot, command.reason))
        else:
            took_ns = self._clock.now_ns() - arrived_ns
            self._ingress.port.post(Answered(slot, prediction, command.widths, scores, took_ns, command.version))

    def hear(self) -> None:
        """See `Traffic`; raises `WorkError` if the ingress dies repeatedly."""
        try:
            messages = self._ingress.port.receive()
        except PortClosedError:
            self._begin_anew()
            return
        for message in messages:
            match message:
                case Submit(slots, received_ns, deadline_ns, service_class, version):
                    arrived_ns = self.next_ns = self._clock.of(received_ns)
                    until_ns = self._clock.of(deadline_ns)
                    for slot in slots:
                        self._slot_of[self._requests], self._request_in[slot] = slot, self._requests
                        self._arrived_ns[slot] = arrived_ns
                        arrival = RequestArrived(self._requests, until_ns, service_class, version)
                        self._arrivals.append((arrival, arrived_ns))
                        self._requests += 1
                case Cancel(slots):
                    self._cancelled += [self._request_in[slot] for slot in slots if slot in self._request_in]
                case Alive(versions):
                    self._ingress.note_alive(versions)
                case Drained():
                    self.has_ended = True

    def take_cancelled(self) -> tuple[int, ...]:
        """See `Traffic`."""
        cancelled, self._cancelled = tuple(self._cancelled), []
        return cancelled

    def flush(self) -> bool:
        """See `Traffic`; raises `WorkError` if the ingress dies repeatedly."""
        if self.horizon_ns == NEVER_NS and self._clock.runs and self._wants_stop():
            self.horizon_ns = self._clock.now_ns()
            self._ingress.port.post(Drain())
        try:
            return self._ingress.port.flush()
        except PortClosedError:
            self._begin_anew()
            return True

    def _begin_anew(self) -> None:
        """Drop the requests of an ingress that has exited; the next one reuses their slots."""
        self._ingress.start_again()
        self.descriptors = (self._ingress.port.fileno(),)
        self._cancelled += self._slot_of
        for table in (self._slot_of, self._request_in, self._arrived_ns, self._answers):
            table.clear()
        if self.horizon_ns != NEVER_NS:
            self._ingress.port.post(Drain())


class ServingStats:
    """See `hw.router.run_meters.Watcher`.

    Args:
        names: of the servers.
        journal: logs when one of them is up, down, drained or returned.
        garbage: the cost of its collections.
        log: of the router's steps, if they are logged.
    """

    def __init__(
        self,
        names: Sequence[str],
        router: RouterConfig,
        journal: Journal,
        garbage: CollectionMeter,
        log: SegmentLog | None = None,
    ) -> None:
        self._journal = journal
        self._garbage = garbage
        self._log = log
        self._router = router
        self._accuracies = [self._by_tuple(router.accuracies)]  # by version
        self._completed, self._accuracy_sum = 0, 0.0
        self._goal = GoalSet()
        self._names = tuple(names)
        self._up = [False] * len(names)
        self._images = [0] * len(names)
        self._busy_ns = [0] * len(names)
        self._until_ns = [0] * len(names)

    def _by_tuple(self, accuracies: tuple[float, ...]) -> dict[tuple[float, ...], float]:
        return dict(zip(self._router.width_tuples(), accuracies, strict=True)) if accuracies else {}

    @property
    def is_ready(self) -> bool:
        """Whether every segment has a server that is up and can hold it."""
        up = [fits for fits, is_up in zip(self._router.fits, self._up, strict=True) if is_up]
        return bool(up) and all(any(map(any, masks)) for masks in zip(*up, strict=True))

    @property
    def servers(self) -> tuple[ServerState, ...]:
        """The totals of each server."""
        return tuple(map(ServerState, self._names, self._up, self._images, self._busy_ns))

    def status(self, progress: RunProgress) -> Status:
        """Return the report to the ingress."""
        return Status(
            self.is_ready, progress.queued, progress.busy_ns, self._completed, self._accuracy_sum,
            self._goal.floor, self._goal.limit_ns, self.servers, self._garbage.count, self._garbage.total_ns,
        )  # fmt: skip

    def observe_router(self, event: RouterEvent, commands: Sequence[RouterCommand], now_ns: int) -> None:
        """See `Watcher`."""
        if self._log is not None:
            self._log.append(now_ns, event, commands)
        for command in commands:
            if isinstance(command, RequestCompleted):
                self._completed += 1
                self._accuracy_sum += self._accuracies[command.version].get(command.widths, 0.0)
        match event:
            case ServerUp(server):
                self._up[server] = True
                self._journal.note("server_up", server=self._names[server])
            case ServerDown(server, _, reason):
                self._up[server] = False
                self._journal.note("server_down", server=self._names[server], reason=reason)
            case ServerDraining(server, is_draining):
                self._journal.note("server_drained" if is_draining else "server_returned", server=self._names[server])
            case GoalSet() if not self._router.classes:  # each class has its own, which the ingress has
                self._goal = event
            case ModelChanged(accuracies, _, canary_accuracies):
                self._accuracies = [self._by_tuple(accuracies), self._by_tuple(canary_accuracies)]

    def note_batch(self, server: int, note: BatchTold) -> None:
        """See `Watcher`; passes that run together are busy once."""
        self._images[server] += len(note.requests)
        self._busy_ns[server] += max(0, note.forward_ended_ns - max(note.started_ns, self._until_ns[server]))
        self._until_ns[server] = max(self._until_ns[server], note.forward_ended_ns)

    def note_arrivals(self, arrivals: Sequence[tuple[int, int]]) -> None:
        """See `Watcher`."""

    def note_reading(self, server: int, event: TelemetrySampled) -> None:
        """See `Watcher`."""

    def caught_up(self) -> None:
        """See `Watcher`."""
        if self._log is not None:
            self._log.caught_up()
