"""How long jobs ran that have ended: by user and size, by VC and size ..., and nothing of those that have not.

A job belongs to a chain of groups, from the narrowest to that of all jobs. What is foretold of it comes from the
narrowest that has seen enough.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from jobs.policies.vocabulary import JobArrived
from kit.units import NS_PER_S

ENOUGH: Final = 30
LONGEST_CHAIN: Final = 5  # of groups
_UNKNOWN_NS: Final = 3600 * NS_PER_S  # before anything has ended


def chain_of(job: JobArrived) -> tuple[Hashable, ...]:
    """Its groups, narrowest first; the user's only where there is a user, the request's where there is a request."""
    named: list[Hashable] = []
    if job.user:
        if job.requested_ns is not None:
            named.append(("user, size, request", job.user, job.gpus, job.requested_ns))
        named.append(("user, size", job.user, job.gpus))
    return (*named, ("vc, size", job.vc, job.gpus), ("size", job.gpus), ("all",))


class Group:
    """Durations of ended jobs, with their number and sum; `number` is its place among the groups."""

    __slots__ = ("_durations_ns", "many", "number", "total_ns")

    def __init__(self, number: int) -> None:
        self.number = number
        self._durations_ns: list[int] = []
        self.many = self.total_ns = 0

    def add(self, duration_ns: int) -> None:
        """One job more has ended."""
        self._durations_ns.append(duration_ns)
        self.many += 1
        self.total_ns += duration_ns

    @property
    def durations_ns(self) -> list[int]:
        """Ascending. They are put in order when they are asked for, which takes little where few are new."""
        self._durations_ns.sort()
        return self._durations_ns


class History:
    """Groups of jobs, and chains of them by number.

    Attributes:
        chains: from the narrowest group to that of all jobs, which all chains share.
    """

    def __init__(self) -> None:
        self.chains: list[tuple[Group, ...]] = []
        self._numbers: dict[tuple[Hashable, ...], int] = {}
        self._groups: dict[Hashable, Group] = {}

    def number(self, job: JobArrived) -> int:
        """The number of a job's chain of groups."""
        chain = chain_of(job)
        number = self._numbers.get(chain)
        if number is None:
            number = self._numbers[chain] = len(self.chains)
            self.chains.append(tuple(self._groups.setdefault(key, Group(len(self._groups))) for key in chain))
        return number

    def add(self, number: int, duration_ns: int) -> None:
        """A job of this chain has ended, after so much work."""
        for group in self.chains[number]:
            group.add(duration_ns)

    def narrowest(self, number: int) -> Group:
        """The narrowest group of a chain that has seen `ENOUGH`; that of all jobs, where none has."""
        chain = self.chains[number]
        for group in chain:
            if group.many >= ENOUGH:
                return group
        return chain[-1]

    def mean_ns(self, number: int) -> int:
        """The mean duration there; an hour before anything has ended."""
        group = self.narrowest(number)
        return group.total_ns // group.many if group.many else _UNKNOWN_NS
