"""The offset of another host's clock from the router's, and its error bound."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Final


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """The offset of an agent's clock from the router's, and its error bound; both 0 on one host."""

    offset_ns: int = 0
    error_ns: int = 0

    def at_agent(self, router_ns: int) -> int:
        """Convert a reading of the router's clock to the agent's."""
        return router_ns + self.offset_ns


_ROUNDING_NS: Final = 2


class OffsetEstimate:
    """The offset from pings, as NTP estimates it: the fastest exchange is the most accurate.

    A clock's drift adds to an old exchange's error every second, so later exchanges replace it in time. An offset is
    meant for the moment at which it is reported, so an exchange's own drift counts, too. An exchange that contradicts
    the estimate shows that a clock has jumped (a machine that slept); the estimate is then discarded.

    Attributes:
        jumps: the number of such contradictions.
    """

    DRIFT = 100e-6  # of a computer's clock relative to another's: the usual worst case

    def __init__(self) -> None:
        self._best: ClockOffset | None = None
        self._at_ns = 0
        self.jumps = 0

    @property
    def best(self) -> ClockOffset | None:
        """The best offset; None before the first exchange."""
        return self._best

    def heard(self, sent_ns: int, agent_ns: int, heard_ns: int) -> ClockOffset:
        """Add an exchange: the router's clock at request and answer, and the agent's clock in between."""
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
