"""A deferred ledger: it takes a run's steps once the agents have their commands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from policies.server_book import BatchTold
from policies.vocabulary import RouterCommand, RouterEvent, TelemetrySampled


class Watcher(Protocol):
    """An observer of a run's steps; see `policies.ledger.Ledger`, which keeps a record of all of them."""

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
