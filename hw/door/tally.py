"""What a server that goes on for days remembers of its steps: as much after a million requests as after one."""

from __future__ import annotations

from collections.abc import Sequence

from hw.door.segments import SegmentLog
from hw.door.words import ServerState
from policies.interfaces import RouterConfig
from policies.server_book import BatchTold
from policies.vocabulary import RouterCommand, RouterEvent, ServerDown, ServerUp, TelemetrySampled


class Tally:
    """See `hw.router.late_ledger.Watcher`.

    Args:
        names: of the servers.
        log: where the router's steps are written down, if anywhere.
    """

    def __init__(self, names: Sequence[str], router: RouterConfig, log: SegmentLog | None = None) -> None:
        self._log = log
        self._names = tuple(names)
        self._holds = router.holds
        self._up = [False] * len(names)
        self._images = [0] * len(names)
        self._busy_ns = [0] * len(names)
        self._until_ns = [0] * len(names)

    @property
    def is_ready(self) -> bool:
        """Whether every segment has a server that is up and can hold it."""
        up = [holds for holds, is_up in zip(self._holds, self._up, strict=True) if is_up]
        return bool(up) and all(any(map(any, masks)) for masks in zip(*up, strict=True))

    @property
    def servers(self) -> tuple[ServerState, ...]:
        """What each has done."""
        return tuple(map(ServerState, self._names, self._up, self._images, self._busy_ns))

    def observe_router(self, event: RouterEvent, commands: Sequence[RouterCommand], now_ns: int) -> None:
        """See `Watcher`."""
        if self._log is not None:
            self._log.append(now_ns, event, commands)
        if isinstance(event, ServerUp | ServerDown):
            self._up[event.server] = isinstance(event, ServerUp)

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
