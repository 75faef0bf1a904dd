"""Whether an agent is alive: its pending requests with their times, and pings in between. It has no clock."""

from __future__ import annotations

from collections.abc import Hashable

from policies.faults import Supervision

PINGS_IN_A_HANG = 6  # pings within the time after which silence means a hang
_AWAY_PERIODS = 3  # a poll that is later than this shows that the poller itself was away


class FailureDetector:
    """One agent, or one agent's lanes, from start to end.

    Args:
        rules: `hang_ns` for pings, `stuck_ns` for work.
        now_ns: when it began.
    """

    def __init__(self, rules: Supervision, now_ns: int) -> None:
        self._rules = rules
        self._asked_ns: dict[Hashable, int] = {}  # in order: the first is the oldest
        self._ping = 0
        self._pinged_ns: int | None = None  # of the ping that is not answered yet
        self._next_ping_ns = now_ns
        self._is_given_up = False

    @property
    def period_ns(self) -> int:
        """How often to poll."""
        return self._rules.hang_ns // PINGS_IN_A_HANG

    def was_away(self, due_ns: int, now_ns: int) -> bool:
        """Return whether the poller was away (a stopped process, a machine asleep): the agent is not to blame."""
        return now_ns - due_ns > _AWAY_PERIODS * self.period_ns

    def asked(self, what: Hashable, now_ns: int) -> None:
        """Note that some work was sent."""
        self._asked_ns[what] = now_ns

    def answered(self, what: Hashable) -> None:
        """Note that it was answered."""
        self._asked_ns.pop(what, None)

    def ping(self, now_ns: int) -> int | None:
        """Return the number of a ping to send now; None while one is in flight or none is due."""
        if self._pinged_ns is not None or now_ns < self._next_ping_ns:
            return None
        self._ping += 1
        self._pinged_ns = now_ns
        self._next_ping_ns = now_ns + self.period_ns
        return self._ping

    def ponged(self, number: int) -> None:
        """Note that a ping was answered."""
        if number == self._ping:
            self._pinged_ns = None

    def excuse(self, now_ns: int) -> None:
        """Restart every wait, as the poller was away."""
        if self._pinged_ns is not None:
            self._pinged_ns = now_ns
        self._asked_ns = dict.fromkeys(self._asked_ns, now_ns)

    def give_up(self) -> None:
        """Note the agent's own report that it cannot continue."""
        self._is_given_up = True

    def is_hung(self, now_ns: int) -> bool:
        """Return whether a ping or some work has waited for its answer for too long."""
        if self._is_given_up:
            return True
        if self._pinged_ns is not None and now_ns - self._pinged_ns >= self._rules.hang_ns:
            return True
        oldest_ns = next(iter(self._asked_ns.values()), now_ns)
        return now_ns - oldest_ns >= self._rules.stuck_ns
