"""Policies for training jobs, by name and by parts, and the lines of `slurm.conf` that configure them.

Policies in Slurm (`in_slurm`): the correspondence was observed on a real Slurm 22.05. Its backfilling reserves for all
waiting jobs, and only for the first with `bf_job_part_count_reserve=1`. If it favours small jobs, they wait as with
`smallest`. If `job_submit.lua` (docs/jobs.md) gives each job a `nice` at submission that grows with GPUs and time
limit, jobs wait as with `saf` by time limits.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any, Final

from pydantic import Field

from jobs.policies.job_cluster import PLACEMENTS
from jobs.policies.job_orders import MULTIFACTOR, NEED_ESTIMATES, OBJECTIVES, ORDERS, MultifactorParams, Span, Time
from jobs.policies.run_times import ESTIMATES, REQUESTED
from kit.errors import InputError, nearest
from kit.strict import StrictModel
from kit.units import NS_PER_S

EASY: Final = "easy"
RESERVING: Final = (EASY, "conservative")
CHOICE: Final = "choice"  # all jobs are in one line
QUEUEINGS: Final = ("strict", "first-fit", *RESERVING, CHOICE)
ROUNDS: Final = "rounds"
NONE: Final = "none"
BY_INDEX: Final = "by-index"
PACKING: Final = ("strict", "first-fit")
PREEMPTIONS: Final = (NONE, BY_INDEX)
NEED_PREEMPTION: Final = ("round-robin",)
_USUAL_S: Final = 60.0  # the default of a round and a restart


class PreemptionParams(StrictModel):
    """When running jobs are preempted; a policy's file may set other values."""

    round_s: Span | None = Field(
        None, description="interval of comparisons while jobs wait; null: 60 s, for `gavel` 360 s"
    )
    hysteresis: Annotated[float, Field(ge=1, le=1e6)] = Field(
        1.0, description="a job is preempted if its index is more than this many times a waiting job's"
    )
    min_run_s: Time = Field(0.0, description="least run time before a preemption")
    restart_s: Time | None = Field(
        None, description="cost of a restart that the policy assumes; null: `cluster.restart_s`"
    )

    @property
    def round_ns(self) -> int:
        """`round_s` in whole nanoseconds."""
        return round((self.round_s or _USUAL_S) * NS_PER_S)

    @property
    def min_run_ns(self) -> int:
        """`min_run_s` in whole nanoseconds."""
        return round(self.min_run_s * NS_PER_S)

    @property
    def restart_ns(self) -> int:
        """`restart_s` in whole nanoseconds."""
        return round((_USUAL_S if self.restart_s is None else self.restart_s) * NS_PER_S)


@dataclass(frozen=True, slots=True)
class JobPolicy:
    """The parts of a policy from which a `JobScheduler` is built.

    Attributes:
        learned: the name of the learned chooser among waiting jobs; empty: the first in order is chosen.
        bf_interval_ns: period of planning with reservations, between which only the first in order starts; 0 always
            plans.
        age_guard_ns: jobs that have waited longer come first, the oldest before all; 0: only the order decides.

    Raises:
        InputError: a word is unknown, or parts can't be combined.
    """

    order: str = "fifo"
    queueing: str = "strict"
    preemption: str = NONE
    placement: str = "best-fit"
    estimate: str = NONE
    params: PreemptionParams = field(default_factory=lambda: PreemptionParams(round_s=_USUAL_S))
    multifactor: MultifactorParams = field(default_factory=MultifactorParams)
    learned: str = ""
    bf_interval_ns: int = 0
    age_guard_ns: int = 0

    def __post_init__(self) -> None:
        allowed = {"order": ORDERS, "queueing": (*QUEUEINGS, ROUNDS), "preemption": PREEMPTIONS}
        for key, values in (allowed | {"placement": tuple(PLACEMENTS), "estimate": ESTIMATES}).items():
            if (value := getattr(self, key)) not in values:
                raise InputError("policy", key, f"{value!r} is not a {key}: {nearest(value, values)}")
        for key, problem in self._contradictions():
            raise InputError("policy", key, problem)

    def _contradictions(self) -> Iterator[tuple[str, str]]:
        """Yield parts that can't be combined: the key that would have to change, and why."""
        order = self.order
        queueing = self.queueing
        preempts = self.preemption != NONE
        estimates = ", ".join(name for name in ESTIMATES if name != NONE)
        asking = order if order in NEED_ESTIMATES else queueing if queueing in RESERVING else ""
        if asking and self.estimate == NONE:
            yield "estimate", f"{asking} asks how long jobs run: take one of {estimates}"
        if (order in OBJECTIVES) != (queueing == ROUNDS):
            yield (
                "queueing",
                f"{queueing} with the order {order}: {', '.join(OBJECTIVES)} go with {ROUNDS}, and no other",
            )
        if queueing == ROUNDS and not preempts:
            yield "preemption", f"{ROUNDS} stop jobs: take {BY_INDEX}"
        if preempts and queueing in RESERVING:
            why = "keeps reservations, and jobs that are preempted break them: take first-fit"
            yield "queueing", f"{queueing} {why}"
        if order in NEED_PREEMPTION and not preempts:
            yield "preemption", f"{order} goes round by preemption: take {BY_INDEX}"
        if preempts and order == MULTIFACTOR:
            why = f"is a priority of waiting jobs, not of running ones: take {NONE}"
            yield "preemption", f"{order} {why}"
        if preempts and self.age_guard_ns:
            yield "age_guard_s", f"is of waiting jobs, not of running ones: take preemption {NONE}"
        if preempts and queueing == CHOICE:
            yield "preemption", f"{queueing} starts the chosen job, and preempts no job: take preemption {NONE}"
        if PLACEMENTS[self.placement].is_programme and queueing != CHOICE:
            yield "placement", f"{self.placement} places the chosen job: take the queueing {CHOICE}"
        if self.learned and queueing != CHOICE:
            yield "queueing", f"{queueing} does not use a learned choice: take {CHOICE}"

    @property
    def is_preemptive(self) -> bool:
        """Whether running jobs may be preempted."""
        return self.preemption != NONE

    @property
    def packs_shares(self) -> bool:
        """Whether GPUs are shared between jobs; otherwise each share holds a whole one
        (`jobs.policies.job_cluster`)."""
        return self.preemption == NONE and self.queueing in PACKING


# ------------------------------------------------------------------------------------------------------------ baselines
# All named policies for training jobs: the only list, used by names, help and checks.
#
# A name is a kind (`sjf`), followed by words that differ from the kind's own (`sjf-oracle`, `fifo-easy-requested`,
# `saf-history-strict`), and by its guard of age (`qssf-easy-24h`). The name of a policy that uses true durations always
# shows it.


@dataclass(frozen=True, slots=True)
class Kind:
    """The words of one kind of policy; its estimate is `none` if a name must specify it.

    Attributes:
        round_s: the default round of its preemption.
    """

    order: str
    queueing: str = "first-fit"
    preemption: str = NONE
    estimate: str = NONE
    placement: str = "best-fit"
    round_s: float = _USUAL_S


_GAVEL: Final[Mapping[str, Any]] = {"queueing": ROUNDS, "preemption": BY_INDEX, "round_s": 360.0}
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
    # In rounds, by a linear program of shares of unequal types (Narayanan et al., OSDI'20): max-min fairness; the
    # same as if all types were equal; fair times of completion; first come first served; share of remaining work done.
    "gavel": Kind("gavel-max-min", **_GAVEL),
    "gavel-blind": Kind("gavel-blind", **_GAVEL),
    "gavel-finish-time": Kind("gavel-finish-time", **_GAVEL),
    "gavel-fifo": Kind("gavel-fifo", **_GAVEL),
    "gavel-least-jct": Kind("gavel-least-jct", **_GAVEL),
    "round-robin": Kind("round-robin", preemption=BY_INDEX),  # the longest wait first, in rounds
}
_IN_SLURM: Final = {  # Slurm's own terms for some
    "backfill": "fifo-requested-conservative",
    "sched/backfill": "fifo-requested-conservative",
    "sched/builtin": "fifo",
    "builtin": "fifo",
    "fair-share": "multifactor-requested-conservative",
    "fairshare": "multifactor-requested-conservative",
    "priority/multifactor": "multifactor-requested-conservative",
}
_PARTS: Final[Mapping[str, tuple[str, ...]]] = {
    "estimate": tuple(name for name in ESTIMATES if name != NONE),
    "queueing": tuple(QUEUEINGS),
    "placement": tuple(PLACEMENTS),
}
_UNITS_S: Final = {"d": 86_400, "h": 3600, "m": 60, "s": 1}
_GUARD: Final = re.compile(r"-([1-9][0-9]{0,5})([dhms])$")


def policy_of(name: str, params: PreemptionParams | None = None) -> JobPolicy:
    """Return the policy that a name means.

    Raises:
        InputError: the name is unknown, or does not specify the estimate of run times.
    """
    kind = max((kind for kind in KINDS if f"{name}-".startswith(f"{kind}-")), key=len, default=None)
    if name in _IN_SLURM:
        raise InputError("policy", "", f"{name!r} is Slurm's word; here it is {_IN_SLURM[name]}")
    if kind is None:
        raise InputError("policy", "", f"{name!r} is not a policy: {nearest(name.split('-')[0], KINDS)}")
    fields, rest = asdict(KINDS[kind]), name.removeprefix(kind)
    own = PreemptionParams(round_s=fields.pop("round_s"))
    if guard := _GUARD.search(rest):
        fields["age_guard_ns"] = int(guard[1]) * _UNITS_S[guard[2]] * NS_PER_S
        rest = rest[: guard.start()]
    while rest:
        part, value = _next_part(name, rest)
        fields[part] = value
        rest = rest.removeprefix(f"-{value}")
    return JobPolicy(**fields, params=params or own)


def _next_part(name: str, rest: str) -> tuple[str, str]:
    for part, values in _PARTS.items():
        for value in values:
            if rest == f"-{value}" or rest.startswith(f"-{value}-"):
                return part, value
    all_values = [value for values in _PARTS.values() for value in values]
    raise InputError("policy", "", f"{name!r} has no part {rest[1:]!r}: {nearest(rest[1:], all_values)}")


def shown_name(policy: JobPolicy) -> str:
    """Return the shortest name that means the policy's words (not its parameters)."""
    if policy.age_guard_ns:
        guard_s = policy.age_guard_ns // NS_PER_S
        unit = next(unit for unit, unit_s in _UNITS_S.items() if guard_s % unit_s == 0)
        return f"{shown_name(replace(policy, age_guard_ns=0))}-{guard_s // _UNITS_S[unit]}{unit}"
    if policy.learned:
        estimate = [] if policy.estimate == NONE else [policy.estimate]
        return "-".join((policy.learned, policy.order, *estimate))
    differing = {
        name: [getattr(policy, part) for part in _PARTS if getattr(policy, part) != getattr(kind, part)]
        for name, kind in KINDS.items()
        if kind.order == policy.order and kind.preemption == policy.preemption
    }
    if differing:
        name, parts = min(differing.items(), key=lambda item: len(item[1]))
        return "-".join((name, *parts))
    return "-".join((policy.order, policy.preemption, policy.queueing, policy.estimate, policy.placement))


# ---------------------------------------------------------------------------------------------------- policies in Slurm


_BACKFILL: Final = "SchedulerType=sched/backfill"
_MULTIFACTOR: Final = "PriorityType=priority/multifactor"
SLURM: Final[Mapping[str, tuple[str, ...]]] = {
    "fifo": ("SchedulerType=sched/builtin", "PriorityType=priority/basic"),
    "fifo-easy-requested": (
        _BACKFILL,
        "SchedulerParameters=bf_job_part_count_reserve=1",
        "PriorityType=priority/basic",
    ),
    "fifo-requested-conservative": (_BACKFILL, "PriorityType=priority/basic"),
    "smallest": (_BACKFILL, _MULTIFACTOR, "PriorityWeightJobSize=1000", "PriorityFavorSmall=YES"),
    "saf-requested-conservative": (_BACKFILL, _MULTIFACTOR, "JobSubmitPlugins=lua"),  # nice = GPUs x time limit
    "multifactor-requested-conservative": (
        _BACKFILL,
        _MULTIFACTOR,
        "PriorityFlags={0.flags}",
        "PriorityWeightAge={0.weight_age:.0f}",
        "PriorityWeightJobSize={0.weight_size:.0f}",
        "PriorityWeightFairshare={0.weight_fairshare:.0f}",
    ),
}
"""Settings of the policies that Slurm runs, by name; also the policies that a site with a log may run."""
_NEAREST: Final[Mapping[str, str]] = {  # by order; of others, first come first served
    **dict.fromkeys(("smallest", "sjf", "saf", "srtf", "srsf", "f1", "las", "2dlas", "gittins"), "smallest"),
    **dict.fromkeys(("multifactor", "wfp3", "unicep"), "multifactor-requested-conservative"),
}
_PREEMPTING: Final = ("PreemptType=preempt/qos", "PreemptMode=REQUEUE")


@dataclass(frozen=True, slots=True)
class InSlurm:
    """Slurm's substitute for a policy.

    Attributes:
        policy: the name of the policy that it runs.
        is_same: whether it is the policy itself.
        is_preemptive: whether jobs are stopped; in Slurm only by their QOS.
        settings: lines of `slurm.conf`.
    """

    policy: str
    is_same: bool
    is_preemptive: bool
    settings: tuple[str, ...]


def in_slurm(policy: JobPolicy) -> InSlurm:
    """Return the policy itself, or the nearest; Slurm's run times are time limits only, and placement is ignored."""
    asked = replace(policy, placement="best-fit")
    name, by_limits = shown_name(asked), shown_name(replace(asked, estimate=REQUESTED))
    if policy.order == "saf" and policy.estimate == REQUESTED:  # its script uses time limits, and no history
        by_limits = "saf-requested-conservative"
    match = next((candidate for candidate in (name, by_limits) if candidate in SLURM), None)
    runs = match or _NEAREST.get(policy.order, "fifo-requested-conservative")
    settings = [line.format(policy.multifactor) for line in SLURM[runs]]
    stops = _PREEMPTING if policy.is_preemptive else ()
    return InSlurm(runs, name == runs, policy.is_preemptive, (*settings, *stops))
