"""A server's counts of its steps, in constant memory: the same after a million requests as after one."""

from __future__ import annotations

from collections.abc import Sequence

from hw.door.journal import Journal
from hw.door.segments import SegmentLog
from hw.door.words import ServerState, Status
from hw.host.collections import CollectionMeter
from hw.router.loop import RunProgress
from policies.interfaces import RouterConfig
from policies.server_book import BatchTold
from policies.vocabulary import (
    GoalSet,
    ModelChanged,
    RequestCompleted,
    RouterCommand,
    RouterEvent,
    ServerDown,
    ServerDraining,
    ServerUp,
    TelemetrySampled,
)


class Tally:
    """See `hw.router.late_ledger.Watcher`.

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
        self._top1 = self._by_tuple(router.top1)
        self._completed, self._accuracy_sum = 0, 0.0
        self._goal = GoalSet()
        self._names = tuple(names)
        self._up = [False] * len(names)
        self._images = [0] * len(names)
        self._busy_ns = [0] * len(names)
        self._until_ns = [0] * len(names)

    def _by_tuple(self, top1: tuple[float, ...]) -> dict[tuple[float, ...], float]:
        return dict(zip(self._router.width_tuples(), top1, strict=True)) if top1 else {}

    @property
    def is_ready(self) -> bool:
        """Whether every segment has a server that is up and can hold it."""
        up = [holds for holds, is_up in zip(self._router.holds, self._up, strict=True) if is_up]
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
                self._accuracy_sum += self._top1.get(command.widths, 0.0)
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
            case ModelChanged(top1):
                self._top1 = self._by_tuple(top1)

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
