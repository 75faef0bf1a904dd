"""How long a job will run, as a policy may know it: a word in a policy file.

`oracle` alone knows the truth, which no scheduler has: it is given apart (`oracle_work_ns`), and to nobody else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from jobs.policies.history import History
from jobs.policies.vocabulary import JobArrived
from kit.errors import InputError

ORACLE: Final = "oracle"
HISTORY: Final = "history"


class Estimate(Protocol):
    """How much work a job has, at the reference type."""

    def work_ns(self, job: JobArrived, group: int) -> int:
        """Asked once, when it arrives."""


class NoEstimate:
    """Nothing is known, and no part of the policy asks."""

    def work_ns(self, job: JobArrived, group: int) -> int:
        """None."""
        return 0


class Requested:
    """The time that the user asked for."""

    def work_ns(self, job: JobArrived, group: int) -> int:
        """As requested.

        Raises:
            InputError: for a job without a request.
        """
        if job.requested_ns is None:
            problem = f"job {job.job} has none: take the estimate `history`, or a trace with requested times"
            raise InputError("trace", "requested_s", problem)
        return job.requested_ns


class MeanOfHistory:
    """The mean of those of its group that have ended."""

    def __init__(self, history: History) -> None:
        self._history = history

    def work_ns(self, job: JobArrived, group: int) -> int:
        """By what had ended when it arrived."""
        return self._history.mean_ns(group)


class Oracle:
    """The truth, by job number."""

    def __init__(self, oracle_work_ns: NDArray[np.int64]) -> None:
        self._oracle_work_ns = oracle_work_ns

    def work_ns(self, job: JobArrived, group: int) -> int:
        """As it will turn out."""
        return int(self._oracle_work_ns[job.job])


def estimate_of(word: str, history: History, oracle_work_ns: NDArray[np.int64] | None) -> Estimate:
    """The part that a word names.

    Raises:
        InputError: for an oracle that was not given the truth.
    """
    if word == ORACLE:
        if oracle_work_ns is None:
            raise InputError("policy", "estimate", "`oracle` needs the true durations, which only a simulation has")
        return Oracle(oracle_work_ns)
    return _BY_WORD[word](history)


_BY_WORD: Final[Mapping[str, Callable[[History], Estimate]]] = {
    "none": lambda _: NoEstimate(),
    "requested": lambda _: Requested(),
    HISTORY: MeanOfHistory,
}
ESTIMATES: Final = (ORACLE, *_BY_WORD)
