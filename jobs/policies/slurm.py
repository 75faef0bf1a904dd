"""Policies in Slurm's own terms: the lines of `slurm.conf` that configure one, or the nearest that Slurm can run.

The correspondence was observed on a real Slurm 22.05: backfilling reserves for all waiting jobs, and only for the first
with `bf_job_part_count_reserve=1`; favouring small jobs waits as `smallest` does; a `nice` that grows with GPUs and
time limit, given at submission by `job_submit.lua` (docs/jobs.md), as `saf` by time limits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from jobs.policies.history import REQUESTED
from jobs.policies.policy import JobPolicy, shown_name

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
    there = next((each for each in (name, by_limits) if each in SLURM), None)
    runs = there or _NEAREST.get(policy.order, "fifo-requested-conservative")
    settings = [line.format(policy.multifactor) for line in SLURM[runs]]
    stops = _PREEMPTING if policy.is_preemptive else ()
    return InSlurm(runs, name == runs, policy.is_preemptive, (*settings, *stops))
