"""Room for requests while they are read: it bounds their memory, and slow ones give way to waiting ones."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from hw.door.protocol import RequestError

SLOW_S: Final = 2.0  # after that a request that is still read gives way
SHARE: Final = 4  # a client may hold one part in this number


@dataclass(eq=False, slots=True)
class _Reader:
    """A request that is read, or waits to be."""

    client: Hashable
    size_bytes: int
    limit: asyncio.Timeout
    may_read: asyncio.Future[None]
    began_s: float = 0.0
    gives_way: bool = False


class ReadingRoom:
    """The room of one event loop.

    Args:
        most_bytes: for all requests that are being read.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._held_bytes: Counter[Hashable] = Counter()  # by client
        self._reading: dict[_Reader, None] = {}  # the oldest first, as in `_waiting`
        self._waiting: dict[_Reader, None] = {}
        self._look: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def place(self, client: Hashable, size_bytes: int, patience_s: float) -> AsyncIterator[None]:
        """Wait for room, and hold it within the context.

        Args:
            client: the one that holds most gives way first.
            size_bytes: the most that the request may have.
            patience_s: for waiting and reading together.

        Raises:
            RequestError: there was not enough room in time (429), or the request did not come in time: by its patience,
                or within `SLOW_S` if others wait (408).
        """
        reader: _Reader | None = None
        try:
            async with asyncio.timeout(patience_s) as limit:
                may_read = asyncio.get_running_loop().create_future()
                reader = _Reader(client, min(size_bytes, self._most_bytes), limit, may_read)
                self._waiting[reader] = None
                self._admit()
                await reader.may_read
                yield
        except TimeoutError:
            if reader is None or not reader.began_s:
                raise RequestError("full: others send at this moment", 429) from None
            text = f"{SLOW_S:g} s, and others wait" if reader.gives_way else f"{patience_s:g} s"
            raise RequestError(f"the request took more than {text}", 408) from None
        finally:
            if reader is not None:
                self._leave(reader)

    def _leave(self, reader: _Reader) -> None:
        self._waiting.pop(reader, None)
        if reader in self._reading:
            del self._reading[reader]
            self._held_bytes[reader.client] -= reader.size_bytes
            if not self._held_bytes[reader.client]:
                del self._held_bytes[reader.client]
        self._admit()

    def _admit(self) -> None:
        """Admit waiting requests, from the client that holds least first; slow ones in their way give way."""
        for reader in sorted(self._waiting, key=lambda each: self._held_bytes[each.client]):
            if reader.may_read.done() or not self._is_within_share(reader):
                continue
            if self._held_bytes.total() + reader.size_bytes <= self._most_bytes:
                del self._waiting[reader]
                self._reading[reader], reader.began_s = None, _now_s()
                self._held_bytes[reader.client] += reader.size_bytes
                reader.may_read.set_result(None)
        if self._look is not None:
            self._look.cancel()
            self._look = None
        waiting = next((reader for reader in self._waiting if not reader.may_read.done()), None)
        if waiting is not None:
            self._hurry(waiting)

    def _is_within_share(self, reader: _Reader) -> bool:
        most_bytes = max(self._most_bytes // SHARE, reader.size_bytes)
        return self._held_bytes[reader.client] + reader.size_bytes <= most_bytes

    def _hurry(self, waiting: _Reader) -> None:
        """End the oldest reading of the client that holds most, of those in the way; or check again when it is slow."""
        is_alone = not self._is_within_share(waiting)
        in_the_way = [reader for reader in self._reading if not is_alone or reader.client == waiting.client]
        most = max(self._held_bytes[reader.client] for reader in in_the_way)
        oldest = next(reader for reader in in_the_way if self._held_bytes[reader.client] == most)
        now_s = _now_s()
        slow_s = oldest.began_s + SLOW_S
        ends_s = oldest.limit.when()
        if now_s < slow_s:
            self._look = asyncio.get_running_loop().call_at(slow_s, self._admit)
        elif ends_s is None or ends_s > now_s:  # otherwise it is leaving
            oldest.gives_way = True
            oldest.limit.reschedule(now_s)


def _now_s() -> float:
    return asyncio.get_running_loop().time()
