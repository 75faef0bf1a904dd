"""Numbers of a policy by direct search on earlier weeks, judged on later ones that the search has not seen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np

from jobs.case import JobsCase, NamedPolicy
from jobs.comparing import against, run_policy
from jobs.figures import figures, job_columns
from jobs.policies.multifactor import MULTIFACTOR
from jobs.policies.policy import JobPolicy
from jobs.resampling import Blocks
from jobs.spec import POLICY_SCHEMA
from kit.chance import stream
from kit.errors import InputError
from kit.parallel import Jobs, each
from kit.units import NS_PER_S

SCHEMA: Final = "slimsched.jobstuning/1"
NARROWED: Final = 0.5  # the second half of the tries looks so near to the best so far, in logarithms of the ranges
Numbers = Mapping[str, float]
PREEMPTION: Final[Mapping[str, tuple[float, float]]] = {
    "round_s": (30.0, 7200.0),
    "hysteresis": (1.0, 8.0),
    "least_run_s": (1.0, 14_400.0),
}
SLURM: Final[Mapping[str, tuple[float, float]]] = {
    "weight_age": (1.0, 1e5),
    "weight_size": (1.0, 1e5),
    "weight_fairshare": (1.0, 1e5),
    "max_age_s": (3600.0, 30 * 86400.0),
    "half_life_s": (3600.0, 60 * 86400.0),
}


@dataclass(frozen=True, slots=True, eq=False)
class Tuning:
    """What the search found.

    Attributes:
        tried: numbers and the figure they came to on earlier weeks; the first are the policy's own.
        best: the policy with the best numbers.
        judged: its change against its own former self on later weeks (`comparing.against`).
    """

    tried: tuple[tuple[Numbers, float], ...]
    best: NamedPolicy
    judged: Mapping[str, Any]


def ranges_of(policy: JobPolicy) -> Mapping[str, tuple[float, float]]:
    """The numbers that a policy has, from where to where.

    Raises:
        InputError: it has none.
    """
    if policy.order == MULTIFACTOR:
        return SLURM
    if policy.is_preemptive:
        return PREEMPTION
    raise InputError("--policy", "", "has no numbers to tune: take one that preempts, or multifactor")


def tune(
    earlier: JobsCase,
    later: JobsCase,
    tries: int,
    jobs: Jobs,
    key: str = "wait_s",
    told: Callable[[Numbers, float], None] = lambda numbers, figure: None,
) -> Tuning:
    """Half of the tries anywhere in the ranges, half near the best so far; all in logarithms.

    Args:
        key: whose mean is made small: `wait_s`, `jct_s` or `slowdown`.

    Raises:
        InputError: a policy without numbers.
    """
    own = earlier.policies[0]
    ranges = ranges_of(own.policy)
    rng = stream(earlier.scenario.seed, "job policy search")
    tried: list[tuple[Numbers, float]] = []
    first = tries // 2
    for batch in ([_numbers_of(own.policy), *(_drawn(ranges, rng) for _ in range(first))], None):
        wanted = batch or [_drawn(ranges, rng, min(tried, key=_figure)[0]) for _ in range(tries - first)]
        policies = [with_numbers(own.policy, numbers) for numbers in wanted]
        made = dict(each(_score, (earlier, own, key), policies, jobs))
        for place, numbers in enumerate(wanted):
            tried.append((numbers, made[place]))
            told(numbers, made[place])
    best = replace(own, policy=with_numbers(own.policy, min(tried, key=_figure)[0]))
    return Tuning(tuple(tried), best, _judged(later, own, best, jobs))


def _figure(each_: tuple[Numbers, float]) -> float:
    return each_[1]


def _score(common: tuple[JobsCase, NamedPolicy, str], policy: JobPolicy) -> float:
    case, own, key = common
    found = figures(run_policy(case, replace(own, policy=policy)), case.scenario.cluster.gpus)
    value: float | None = found[key]["mean"]
    return float("inf") if found["jobs"]["unfinished"] or value is None else value


def _judged(later: JobsCase, own: NamedPolicy, best: NamedPolicy, jobs: Jobs) -> Mapping[str, Any]:
    made = dict(each(run_policy, later, [own, best], jobs))
    gpus = later.scenario.cluster.gpus
    before, after = (job_columns(made[place], gpus) for place in (0, 1))
    blocks = Blocks.of(before.submit_s)
    waits = {name: blocks.mean(each_.wait_s, each_.is_done) for name, each_ in (("own", before), ("tuned", after))}
    return {"waits_s": waits, "change": against(after, before, blocks)}


# ------------------------------------------------------------------------------------------------------------- numbers


def _numbers_of(policy: JobPolicy) -> Numbers:
    """Those it has."""
    if policy.order == MULTIFACTOR:
        return {name: float(getattr(policy.multifactor, name)) for name in SLURM}
    knobs = policy.knobs
    return {
        "round_s": knobs.round_ns / NS_PER_S,
        "hysteresis": knobs.hysteresis,
        "least_run_s": knobs.least_run_ns / NS_PER_S,
    }


def _drawn(
    ranges: Mapping[str, tuple[float, float]], rng: np.random.Generator, near: Numbers | None = None
) -> dict[str, float]:
    found = {}
    for name, (low, high) in ranges.items():
        width = float(np.log(high / low))
        if near is None:
            place = float(rng.uniform(0, width))
        else:
            here = float(np.log(max(near[name], low) / low))
            place = float(np.clip(here + NARROWED * width * (rng.uniform() - 0.5), 0, width))
        found[name] = float(f"{low * np.exp(place):.3g}")
    return found


def with_numbers(policy: JobPolicy, numbers: Numbers) -> JobPolicy:
    """The policy with these numbers instead of its own."""
    if policy.order == MULTIFACTOR:
        changed: dict[str, Any] = dict(numbers)
        return replace(policy, multifactor=replace(policy.multifactor, **changed))
    knobs = replace(
        policy.knobs,
        round_ns=max(round(numbers["round_s"] * NS_PER_S), 1),
        hysteresis=max(numbers["hysteresis"], 1.0),
        least_run_ns=round(numbers["least_run_s"] * NS_PER_S),
    )
    return replace(policy, knobs=knobs)


def policy_document(policy: JobPolicy) -> dict[str, Any]:
    """A policy as the file of its own (`slimsched.jobpolicy/1`)."""
    knobs = policy.knobs
    document: dict[str, Any] = {
        "schema": POLICY_SCHEMA,
        "order": policy.order,
        "queueing": policy.queueing,
        "placement": policy.placement,
        "estimate": policy.estimate,
    }
    if policy.is_preemptive:
        document["preemption"] = {
            "kind": policy.preemption,
            "round_s": knobs.round_ns / NS_PER_S,
            "hysteresis": knobs.hysteresis,
            "least_run_s": knobs.least_run_ns / NS_PER_S,
        }
    if policy.order == MULTIFACTOR:
        document["multifactor"] = {**asdict(policy.multifactor), "shares": dict(policy.multifactor.shares)}
    return document
