"""How far another host's clock is ahead of the router's, and how wrong that may be."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Final


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
        offset = ClockOffset(agent_ns - (sent_ns + heard_ns) // 2, error_ns)
        if self._best is not None:
            grown_ns = self._best.error_ns + ceil(self.DRIFT * (heard_ns - self._at_ns))
            has_jumped = abs(offset.offset_ns - self._best.offset_ns) > offset.error_ns + grown_ns + _ROUNDING_NS
            if has_jumped:
                self.jumps += 1
            elif offset.error_ns > grown_ns:
                return ClockOffset(self._best.offset_ns, grown_ns)
        self._best, self._at_ns = offset, heard_ns
        return offset
