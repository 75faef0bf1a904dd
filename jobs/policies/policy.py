"""A policy for training jobs as five words: order, queueing, preemption, placement, estimate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from jobs.policies.estimates import ESTIMATES
from jobs.policies.gavel import OBJECTIVES
from jobs.policies.multifactor import MULTIFACTOR, MultifactorKnobs
from jobs.policies.orders import NEED_ESTIMATES, ORDERS
from jobs.policies.placements import PLACEMENTS
from jobs.policies.queueing import CHOOSING, QUEUEINGS, RESERVING
from jobs.policies.rounds import ROUNDS
from kit.errors import InputError, nearest

NONE: Final = "none"
BY_INDEX: Final = "by-index"
PACKING: Final = ("strict", "first-fit")
PREEMPTIONS: Final = (NONE, BY_INDEX)
NEED_PREEMPTION: Final = ("round-robin",)
_SECOND_NS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class PreemptionKnobs:
    """When a job that runs makes room for one that comes before it.

    Attributes:
        round_ns: while jobs wait and the indices of running ones grow, all are compared anew so often, and when one
            ends; at an arrival, the one that arrives is.
        hysteresis: a job gives way where its index is more than so many times that of the one that waits; at least 1.
        least_run_ns: nor before it has run so long.
        restart_ns: what going on is taken to cost, by orders that ask.

    Raises:
        InputError: for a round of no time, a hysteresis below 1, times below 0.
    """

    round_ns: int = 60 * _SECOND_NS
    hysteresis: float = 1.0
    least_run_ns: int = 0
    restart_ns: int = 60 * _SECOND_NS

    def __post_init__(self) -> None:
        if self.round_ns < 1:
            raise InputError("policy", "preemption.round_s", "must be above 0: a round takes time")
        if not self.hysteresis >= 1:
            problem = f"{self.hysteresis} is below 1: two jobs would take each other's place for ever"
            raise InputError("policy", "preemption.hysteresis", problem)
        for key, time_ns in (("least_run_s", self.least_run_ns), ("restart_s", self.restart_ns)):
            if time_ns < 0:
                raise InputError("policy", f"preemption.{key}", f"{time_ns / _SECOND_NS} is below 0")


@dataclass(frozen=True, slots=True)
class JobPolicy:
    """What a `JobScheduler` is made of.

    Attributes:
        learned: the name of what chooses among those that wait; empty: the first in order is chosen.

    Raises:
        InputError: for a word that is not known, or parts that can't be combined.
    """

    order: str = "fifo"
    queueing: str = "strict"
    preemption: str = NONE
    placement: str = "best-fit"
    estimate: str = NONE
    knobs: PreemptionKnobs = PreemptionKnobs()
    multifactor: MultifactorKnobs = field(default_factory=MultifactorKnobs)
    learned: str = ""

    def __post_init__(self) -> None:
        _require("order", self.order, ORDERS)
        _require("queueing", self.queueing, (*QUEUEINGS, ROUNDS))
        _require("preemption", self.preemption, PREEMPTIONS)
        _require("placement", self.placement, tuple(PLACEMENTS))
        _require("estimate", self.estimate, ESTIMATES)
        self._require_estimate()
        if (self.order in OBJECTIVES) != (self.queueing == ROUNDS):
            problem = (
                f"{self.queueing} with the order {self.order}: {', '.join(OBJECTIVES)} go with {ROUNDS}, and no other"
            )
            raise InputError("policy", "queueing", problem)
        if self.queueing == ROUNDS and self.preemption == NONE:
            raise InputError("policy", "preemption", f"{ROUNDS} stop jobs: take {BY_INDEX}")
        if self.preemption != NONE and self.queueing in RESERVING:
            problem = f"{self.queueing} keeps reservations, and jobs that are preempted break them: take first-fit"
            raise InputError("policy", "queueing", problem)
        if self.preemption == NONE and self.order in NEED_PREEMPTION:
            raise InputError("policy", "preemption", f"{self.order} goes round by preemption: take {BY_INDEX}")
        if self.preemption != NONE and self.order == MULTIFACTOR:
            problem = f"{self.order} is a priority of jobs that wait, which says nothing of those that run: take {NONE}"
            raise InputError("policy", "preemption", problem)
        if self.queueing in CHOOSING and self.preemption != NONE:
            problem = f"{self.queueing} starts whom is chosen, and preempts nobody: take preemption {NONE}"
            raise InputError("policy", "preemption", problem)
        if PLACEMENTS[self.placement].programme and self.queueing not in CHOOSING:
            problem = f"{self.placement} lays whoever is chosen: take the queueing {' or '.join(CHOOSING)}"
            raise InputError("policy", "placement", problem)
        if self.learned and self.queueing not in CHOOSING:
            problem = f"{self.queueing} asks nobody whose turn it is: take {' or '.join(CHOOSING)}"
            raise InputError("policy", "queueing", problem)

    def require_choosing(self, is_given: bool) -> None:
        """Raises `InputError` for a learned policy without what it has learned, and for a chooser that nobody asks."""
        if self.learned and not is_given:
            problem = f"{self.learned} is learned: name the file that training wrote"
            raise InputError("policy", "", problem)
        assert is_given <= (self.queueing in CHOOSING), "a chooser was given that nobody asks"

    def _require_estimate(self) -> None:
        remedy = f"take one of {', '.join(word for word in ESTIMATES if word != NONE)}"
        if self.estimate == NONE and self.order in NEED_ESTIMATES:
            raise InputError("policy", "estimate", f"{self.order} asks how long jobs run: {remedy}")
        if self.estimate == NONE and self.queueing in RESERVING:
            raise InputError("policy", "estimate", f"{self.queueing} asks how long jobs run: {remedy}")

    @property
    def is_preemptive(self) -> bool:
        """Whether jobs that run may have to make room."""
        return self.preemption != NONE

    @property
    def packs_shares(self) -> bool:
        """Whether shares of a GPU lie beside each other; else each holds a whole one (`jobs.policies.shares`)."""
        return self.preemption == NONE and self.queueing in PACKING

    @property
    def uses_estimate(self) -> bool:
        """Whether any part asks how long jobs run."""
        return self.order in NEED_ESTIMATES or self.queueing in RESERVING


def _require(key: str, word: str, known: Sequence[str]) -> None:
    if word not in known:
        raise InputError("policy", key, f"{word!r} is no {key}: {nearest(word, known)}")
