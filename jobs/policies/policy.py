"""Rounds: who runs on which GPUs until the next round, so that over time each job has its shares (Gavel, section 5).

At the beginning of a round, jobs and pools are paired by priority, the largest first, until the GPUs are used up:

    priority[m, k] = (rounds that m should have had in k, by its shares) / (rounds that it has had there)

Pools in which a job is equally fast are one to it: the sums are over all of them, and it stays where it is if it can.
Both count from the job's first round on. While shares stay as they are, this is the paper's X[m, k] / (fraction of the
rounds received). Gavel's code begins to count anew whenever it has new shares. Where nothing was received yet, who is
owed most comes first; where priorities are equal, the older job.

Who stays in his pool stays on his nodes, if all that were chosen have room beside him. If not, all are placed anew,
the largest first; if even so not all have room, by priority. Within a round nothing is
decided: a job that comes waits for the next one, and GPUs that become free wait with it, as in Gavel. Shares are worked
out anew when jobs have come or gone, or nodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from jobs.policies.choices import ChoiceContext, CompetingClasses, WaitingClass
from jobs.policies.cluster import PLACEMENTS, Allocation, Pool, Search
from jobs.policies.history import ESTIMATES
from jobs.policies.orders import (
    MULTIFACTOR,
    NEED_ESTIMATES,
    OBJECTIVES,
    ORDERS,
    Demands,
    MultifactorKnobs,
    Objective,
)
from jobs.policies.queueing import CHOOSING, QUEUEINGS, RESERVING
from kit.errors import InputError, nearest
from kit.units import NS_PER_S

ROUNDS: Final = "rounds"
_NOTHING: Final = 1e-6  # a share below it is none
Numbers = NDArray[np.float64]
Alike = NDArray[np.bool_]  # (jobs, pools, pools) where a job is equally fast


class Rounds:
    """A queueing that decides when a round begins; what must be stopped first is started at once after that."""

    def __init__(self, objective: Objective, round_ns: int, pools: int) -> None:
        self._objective, self._round_ns, self._pools = objective, round_ns, pools
        self._owed, self._had = np.zeros((0, pools)), np.zeros((0, pools))  # rounds by job and pool
        self._planned: dict[int, tuple[Pool, Allocation]] = {}  # jobs that are to be started at this instant
        self._planned_ns = 0
        self._begun: dict[int, int] = {}  # by pool, when its last round began
        self._shares: dict[int, tuple[bytes, Numbers, Alike]] = {}  # by pool: for which jobs, and what

    def __call__(self, line: CompetingClasses, context: ChoiceContext) -> None:
        """Begin a round, if it is time; or start who had to be stopped first."""
        pools = [pool for _, pool in sorted({pool.index: pool for each in line.classes for pool in each.pools}.items())]
        if context.now_ns % self._round_ns == 0 and self._begun.get(pools[0].index) != context.now_ns:
            self._begun.update((pool.index, context.now_ns) for pool in pools)
            self._planned = self._planned if self._planned_ns == context.now_ns else {}
            self._planned_ns = context.now_ns
            self._begin(line, pools, context)
        _start(line, self._planned, context)

    def _begin(self, line: CompetingClasses, pools: Sequence[Pool], context: ChoiceContext) -> None:
        members = [each.jobs for each in line.classes] + [
            np.fromiter(context.held_by_pool[pool.index], np.int64, len(context.held_by_pool[pool.index]))
            for pool in pools
        ]
        jobs = np.sort(np.concatenate(members))
        if len(jobs):
            shares, alike = self._shares_of(jobs, pools, context)
            chosen = self._choose(jobs, shares, alike, pools, context)
            for pool in pools:
                self._arrange(pool, [job for job, where in chosen.items() if where is pool], context)

    # ------------------------------------------------------------------------------------------------------ shares

    def _shares_of(
        self, jobs: NDArray[np.int64], pools: Sequence[Pool], context: ChoiceContext
    ) -> tuple[Numbers, Alike]:
        """(jobs, pools) As they were, where neither jobs nor GPUs have changed; and which pools are alike to whom."""
        capacity = np.array([pool.free_gpus + _gpus(context.held_by_pool[pool.index]) for pool in pools], np.float64)
        key = jobs.tobytes() + capacity.tobytes()
        known = self._shares.get(pools[0].index)
        if known is None or known[0] != key:
            known = self._shares[pools[0].index] = key, *self._solve(jobs, pools, capacity, context)
        return known[1:]

    def _solve(
        self, jobs: NDArray[np.int64], pools: Sequence[Pool], capacity: Numbers, context: ChoiceContext
    ) -> tuple[Numbers, Alike]:
        classes = [context.class_of[job] for job in jobs.tolist()]
        if self._objective.is_by_job:
            heads, rows = np.arange(len(jobs)), np.arange(len(jobs))
        else:
            numbers = {id(each): number for number, each in enumerate(dict.fromkeys(classes))}
            rows = np.array([numbers[id(each)] for each in classes])
            heads = np.unique(rows, return_index=True)[1]
        features = context.look_at(jobs[heads])
        speeds = np.array([_speeds(classes[head], pools, capacity) for head in heads])
        demands = Demands(
            gpus=np.array([classes[head].gpus for head in heads], np.float64),
            speeds=np.where(speeds > 0, 1.0, 0.0) if self._objective.is_blind else speeds,
            many=np.bincount(rows).astype(np.float64),
            capacity=capacity,
            age_s=features.now_s - features.submit_s,
            left_s=features.remaining_s,
        )
        shares = np.zeros((len(heads), len(pools)))
        can_run = np.asarray((demands.speeds > 0).any(axis=1))
        if can_run.any():
            shares[can_run] = self._objective.shares(demands.rows(can_run))
        alike = (speeds[:, :, None] == speeds[:, None, :]) & (speeds > 0)[:, :, None]
        return np.asarray(shares[rows]), np.asarray(alike[rows])

    # ------------------------------------------------------------------------------------------------- who, and where

    def _choose(
        self, jobs: NDArray[np.int64], shares: Numbers, alike: Alike, pools: Sequence[Pool], context: ChoiceContext
    ) -> dict[int, Pool]:
        """Who runs in which pool in this round, by GPUs alone."""
        columns = np.array([pool.index for pool in pools])
        self._make_room(int(jobs[-1]))
        here = np.ix_(jobs, columns)
        self._owed[here] += shares
        shares, owed, had = (
            np.matmul(alike, each[:, :, None])[:, :, 0] for each in (shares, self._owed[here], self._had[here])
        )
        last = np.tile([-float(pool.free_gpus) for pool in pools], (len(jobs), 1))  # of pools that are alike
        for place, pool in enumerate(pools):
            last[np.searchsorted(jobs, list(context.held_by_pool[pool.index])), place] = -np.inf
        rows, places = (shares > _NOTHING).nonzero()
        priority = (owed / np.maximum(had, 1e-9))[rows, places]
        order = np.lexsort((places, last[rows, places], rows, -priority))
        left = [pool.free_gpus + _gpus(context.held_by_pool[pool.index]) for pool in pools]
        chosen: dict[int, Pool] = {}
        for row, place in zip(rows[order].tolist(), places[order].tolist(), strict=True):
            job = int(jobs[row])
            gpus = context.class_of[job].gpus
            if left[place] >= gpus and job not in chosen:
                left[place] -= gpus
                chosen[job] = pools[place]
                if not any(left):
                    break
        return chosen

    def _arrange(self, pool: Pool, chosen: Sequence[int], context: ChoiceContext) -> None:
        """On which nodes; who runs elsewhere, or is not among them, is stopped."""
        running = dict(context.held_by_pool[pool.index])
        gpus = {job: context.class_of[job].gpus for job in chosen}
        largest_first = sorted(chosen, key=lambda job: -gpus[job])
        places = _places(pool, largest_first, gpus, running, context.search, keeps=True)
        for order in (largest_first, chosen):
            if len(places) < len(chosen):
                places = _places(pool, order, gpus, running, context.search, keeps=False)
        for job, allocation in running.items():
            if places.get(job) != allocation:
                context.stop(job)
        for job, allocation in places.items():
            self._had[job, pool.index] += 1
            if running.get(job) != allocation:
                self._planned[job] = pool, allocation

    def _make_room(self, job: int) -> None:
        missing = job + 1 - len(self._owed)
        if missing > 0:
            more = np.zeros((max(missing, len(self._owed)), self._pools))
            self._owed, self._had = np.concatenate([self._owed, more]), np.concatenate([self._had, more])


def _places(
    pool: Pool,
    jobs: Sequence[int],
    gpus: Mapping[int, int],
    running: Mapping[int, Allocation],
    search: Search,
    keeps: bool,
) -> dict[int, Allocation]:
    """Where each of these jobs goes, one after another; who has no room is left out.

    With `keeps`, who runs stays where he is. Without, he does if that is free when it is his turn.
    """
    trial, places = pool.clone(), dict[int, Allocation]()
    for job, allocation in running.items():
        if keeps and job in gpus:
            places[job] = allocation
        else:
            trial.give(allocation)
    for job in jobs:
        if job in places:
            continue
        stays = running.get(job)
        is_free = stays is not None and all(trial.free[node] >= used for node, used in stays)
        found = stays if is_free else search(trial, gpus[job])
        if found is not None:
            trial.take(found)
            places[job] = found
    return places


def _start(line: CompetingClasses, planned: dict[int, tuple[Pool, Allocation]], context: ChoiceContext) -> None:
    """Those that wait now; who has just been stopped waits a moment later."""
    for waiting in line.classes if planned else ():
        for job in [job for job in waiting.jobs.tolist() if job in planned]:
            pool, allocation = planned.pop(job)
            context.start(waiting, int(np.searchsorted(waiting.jobs, job)), pool, allocation)


def _speeds(waiting: WaitingClass, pools: Sequence[Pool], capacity: Numbers) -> list[float]:
    """In each pool; 0 where it may not run, or too few nodes are in service."""
    by_pool = {pool.index: speed for pool, speed in zip(waiting.pools, waiting.speeds, strict=True)}
    return [
        by_pool[pool.index] if pool.index in by_pool and room >= waiting.gpus else 0.0
        for pool, room in zip(pools, capacity.tolist(), strict=True)
    ]


def _gpus(running: Mapping[int, Allocation]) -> int:
    return sum(gpus for allocation in running.values() for _, gpus in allocation)


# --------------------------------------------------------------------------------------------------------------- policy
# A policy for training jobs as five words: order, queueing, preemption, placement, estimate.


NONE: Final = "none"
BY_INDEX: Final = "by-index"
PACKING: Final = ("strict", "first-fit")
PREEMPTIONS: Final = (NONE, BY_INDEX)
NEED_PREEMPTION: Final = ("round-robin",)


@dataclass(frozen=True, slots=True)
class PreemptionKnobs:
    """When a job that runs makes room for one that comes before it.

    Attributes:
        round_ns: while jobs wait and the indices of running ones grow, all are compared anew so often, and when one
            ends; at an arrival, the one that arrives is.
        hysteresis: a job gives way where its index is more than so many times that of the one that waits; at least 1.
        min_run_ns: nor before it has run so long.
        restart_ns: what going on is taken to cost, by orders that ask.
    """

    round_ns: int = 60 * NS_PER_S
    hysteresis: float = 1.0
    min_run_ns: int = 0
    restart_ns: int = 60 * NS_PER_S


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
        """Whether shares of a GPU lie beside each other; else each holds a whole one (`jobs.policies.cluster`)."""
        return self.preemption == NONE and self.queueing in PACKING


def _require(key: str, word: str, known: Sequence[str]) -> None:
    if word not in known:
        raise InputError("policy", key, f"{word!r} is no {key}: {nearest(word, known)}")


# ------------------------------------------------------------------------------------------------------------ baselines
# Every policy for training jobs that has a name: the one list that names, help and checks ask.
#
# A name is a kind (`sjf`), followed by words that differ from the kind's own (`sjf-oracle`, `fifo-easy-requested`,
# `saf-history-strict`). Whoever knows true durations says so in his name, wherever it is shown.


@dataclass(frozen=True, slots=True)
class Kind:
    """The words of one kind of policy; `none` as estimate where a name must say which.

    Attributes:
        round_s: of its preemption, where nobody says another.
    """

    order: str
    queueing: str = "first-fit"
    preemption: str = NONE
    estimate: str = NONE
    placement: str = "best-fit"
    round_s: int = 60


_GAVEL: Final[Mapping[str, Any]] = {"queueing": ROUNDS, "preemption": BY_INDEX, "round_s": 360}
KINDS: Final[Mapping[str, Kind]] = {
    "fifo": Kind("fifo", "strict"),  # first come first served; the first that does not fit blocks
    "fifo-easy": Kind("fifo", "easy"),  # the same with backfilling that does not delay it (Lifka, JSSPP'95)
    "smallest": Kind("smallest"),  # fewest GPUs first
    "sjf": Kind("sjf"),  # shortest job first
    "saf": Kind("saf"),  # smallest area first: run time x GPUs (Zhang et al., SC'20)
    "srtf": Kind("srtf", preemption=BY_INDEX),  # shortest remaining time first (Schrage 1968)
    "srsf": Kind("srsf", preemption=BY_INDEX),  # shortest remaining GPU time first (Gu et al., NSDI'19)
    "las": Kind("las", preemption=BY_INDEX),  # least attained service first (Nuyens and Wierman 2008)
    "2dlas": Kind("2dlas", preemption=BY_INDEX),  # two queues by attained GPU time (Gu et al., NSDI'19)
    "wfp3": Kind("wfp3"),  # -(wait / run time)^3 x GPUs (Tang et al., 2009)
    "unicep": Kind("unicep"),  # -wait / (log2(GPUs) x run time) (Zhang et al., SC'20)
    "f1": Kind("f1"),  # log10(run time) x GPUs + 870 log10(submission) (Carastan-Santos et al., SC'17)
    "qssf": Kind("saf", estimate="history"),  # smallest predicted area first (Hu et al., SC'21)
    "gittins": Kind("gittins", preemption=BY_INDEX),  # by the Gittins index of past durations (Gittins 1989)
    "multifactor": Kind("multifactor"),  # Slurm's age, size and fair share (Slurm, priority/multifactor)
    # In rounds, by a linear programme of shares of unequal types (Narayanan et al., OSDI'20): max-min fairness; the
    # same as if all types were equal; fair times of completion; first come first served; what is done of each's rest.
    "gavel": Kind("gavel-max-min", **_GAVEL),
    "gavel-blind": Kind("gavel-blind", **_GAVEL),
    "gavel-finish-time": Kind("gavel-finish-time", **_GAVEL),
    "gavel-fifo": Kind("gavel-fifo", **_GAVEL),
    "gavel-least-jct": Kind("gavel-least-jct", **_GAVEL),
    "round-robin": Kind("round-robin", preemption=BY_INDEX),  # who has waited longest, in rounds
}
_PARTS: Final[Mapping[str, tuple[str, ...]]] = {
    "estimate": tuple(word for word in ESTIMATES if word != NONE),
    "queueing": tuple(QUEUEINGS),
    "placement": tuple(PLACEMENTS),
}


def policy_of(name: str, knobs: PreemptionKnobs | None = None) -> JobPolicy:
    """The policy that a name means.

    Raises:
        InputError: for a name that means none, or one that leaves open how it knows run times.
    """
    known = next((start for start in _starts(name) if start in KINDS), None)
    if known is None:
        raise InputError("policy", "", f"{name!r} is no policy: {nearest(name.split('-')[0], KINDS)}")
    fields, rest = asdict(KINDS[known]), name.removeprefix(known)
    round_ns = fields.pop("round_s") * NS_PER_S
    while rest:
        part, word = _next_word(name, rest)
        fields[part] = word
        rest = rest.removeprefix(f"-{word}")
    return JobPolicy(**fields, knobs=knobs or PreemptionKnobs(round_ns))


def _starts(name: str) -> list[str]:
    """All that a name may begin with, the longest first."""
    words = name.split("-")
    return ["-".join(words[:many]) for many in range(len(words), 0, -1)]


def _next_word(name: str, rest: str) -> tuple[str, str]:
    for part, words in _PARTS.items():
        for word in words:
            if rest == f"-{word}" or rest.startswith(f"-{word}-"):
                return part, word
    known = [word for words in _PARTS.values() for word in words]
    raise InputError("policy", "", f"{name!r} has no part {rest[1:]!r}: {nearest(rest[1:], known)}")


def shown_name(policy: JobPolicy) -> str:
    """A name that means the policy's words (not its knobs), the shortest there is."""
    if policy.learned:
        estimate = [] if policy.estimate == NONE else [policy.estimate]
        return "-".join((policy.learned, policy.order, *estimate))
    differing = {
        name: [getattr(policy, part) for part in _PARTS if getattr(policy, part) != getattr(kind, part)]
        for name, kind in KINDS.items()
        if kind.order == policy.order and kind.preemption == policy.preemption
    }
    if differing:
        name, words = min(differing.items(), key=lambda item: len(item[1]))
        return "-".join((name, *words))
    return "-".join((policy.order, policy.preemption, policy.queueing, policy.estimate, policy.placement))
