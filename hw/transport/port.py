"""The port between the router's process and a server's agent: what either end may count on, whatever carries it.

An end posts messages and sends them together; it never waits for the other one. Arrived messages come in their order.
Nothing here assumes one clock, one memory or one host: whoever carries the messages also carries activations, and
says how far the agent's clock is from the router's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final, Generic, Protocol, TypeVar

import msgspec

from hw.transport.messages import FromAgent, ToAgent
from kit.errors import WorkError

FLUSH_NS: Final = 500_000  # after so long an end that had no room is tried again

Sent = TypeVar("Sent", contravariant=True)
Heard = TypeVar("Heard", covariant=True)
Word = TypeVar("Word")


class PortClosedError(WorkError):
    """The other end is gone: nothing will come, and nothing can be sent."""


class PortBrokenError(WorkError):
    """What came is no message: the other end is not what it should be."""


class Port(Protocol[Sent, Heard]):
    """One end."""

    def post(self, message: Sent) -> None:
        """Send this with the next `flush`."""
        ...

    def flush(self) -> bool:
        """Send what was posted, without ever waiting; returns whether all of it is on its way.

        Raises:
            PortClosedError: nobody is there.
        """
        ...

    def receive(self) -> Sequence[Heard]:
        """What has come, in its order, without waiting; empty where nothing has.

        Raises:
            PortClosedError: nothing will come any more (what came before the end has been given).
            PortBrokenError: what came is cut off, or no message.
        """
        ...

    def fileno(self) -> int:
        """For a selector: readable when something has come."""
        ...

    def close(self) -> None:
        """Let go of it. May be called twice."""
        ...


RouterEnd = Port[ToAgent, FromAgent]
AgentEnd = Port[FromAgent, ToAgent]


class Codec(Generic[Word]):
    """Messages that travel together, as bytes and back: msgpack, so that nothing that arrives can execute code."""

    def __init__(self, kind: object) -> None:
        self._decoder: msgspec.msgpack.Decoder[list[Word]] = msgspec.msgpack.Decoder(list[kind])  # type: ignore[valid-type]

    def decode(self, data: bytes | memoryview) -> list[Word]:
        """Raises `PortBrokenError` for anything else than what `encode` made of these words."""
        try:
            return self._decoder.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise PortBrokenError(f"{len(data)} bytes are no message ({error})") from None


_encoder = msgspec.msgpack.Encoder()


def encode(messages: Sequence[ToAgent] | Sequence[FromAgent]) -> bytes:
    """Some messages that travel together."""
    return _encoder.encode(messages)


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """How far an agent's clock is ahead of the router's, and how wrong that may be; both 0 on one host."""

    offset_ns: int = 0
    error_ns: int = 0

    def at_agent(self, router_ns: int) -> int:
        """A reading of the router's clock as the agent would read it."""
        return router_ns + self.offset_ns


_ROUNDING_NS: Final = 2


class OffsetEstimate:
    """The offset from pings, as NTP finds it: the quickest exchange says most.

    A clock's drift makes an old exchange worse by so much a second, so that later ones take its place in time. An
    offset is meant for the moment at which it is told, so an exchange's own drift counts, too. An exchange that can't
    be true beside what is known tells of a clock that has jumped (a machine that slept), and what was known is nothing.

    Attributes:
        jumps: how often that was so.
    """

    DRIFT = 100e-6  # of a computer's clock beside another: what is usual at worst

    def __init__(self) -> None:
        self._best: ClockOffset | None = None
        self._at_ns = 0
        self.jumps = 0

    @property
    def best(self) -> ClockOffset | None:
        """None before the first exchange."""
        return self._best

    def heard(self, sent_ns: int, agent_ns: int, heard_ns: int) -> ClockOffset:
        """An exchange: when the router asked and heard by its clock, what the agent's clock said in between."""
        lasted_ns = heard_ns - sent_ns
        error_ns = ceil((0.5 + self.DRIFT) * lasted_ns)
        found = ClockOffset(agent_ns - (sent_ns + heard_ns) // 2, error_ns)
        if self._best is not None:
            grown_ns = self._best.error_ns + ceil(self.DRIFT * (heard_ns - self._at_ns))
            has_jumped = abs(found.offset_ns - self._best.offset_ns) > found.error_ns + grown_ns + _ROUNDING_NS
            self.jumps += has_jumped
            if found.error_ns > grown_ns and not has_jumped:
                return ClockOffset(self._best.offset_ns, grown_ns)
        self._best, self._at_ns = found, heard_ns
        return found
