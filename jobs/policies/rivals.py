"""Every policy for training jobs that has a name: the one list that names, help and checks ask.

A name is a kind (`sjf`), followed by words that differ from the kind's own (`sjf-oracle`, `fifo-easy-requested`,
`saf-history-strict`). Whoever knows true durations says so in his name, wherever it is shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from jobs.policies.estimates import ESTIMATES
from jobs.policies.placements import PLACEMENTS
from jobs.policies.policy import BY_INDEX, NONE, JobPolicy, PreemptionKnobs
from jobs.policies.queueing import QUEUEINGS
from jobs.policies.rounds import ROUNDS
from kit.errors import InputError, nearest
from kit.units import NS_PER_S


@dataclass(frozen=True, slots=True)
class RivalKind:
    """One kind of policy.

    Attributes:
        help: what it does, in a few words.
        source: where it is defined.
        order, queueing, preemption, estimate: its words; `none` as estimate where a name must say which.
        knobs: where nobody says others.
    """

    name: str
    help: str
    source: str
    order: str
    queueing: str = "first-fit"
    preemption: str = NONE
    estimate: str = NONE
    knobs: PreemptionKnobs | None = None

    def fields(self) -> dict[str, Any]:
        """Its words, by the names of a `JobPolicy`."""
        return {
            "order": self.order,
            "queueing": self.queueing,
            "preemption": self.preemption,
            "estimate": self.estimate,
            "placement": "best-fit",
        }


def _gavel(name: str, help_text: str) -> RivalKind:
    order = f"{name}-max-min" if name == "gavel" else name
    knobs = PreemptionKnobs(round_ns=360 * NS_PER_S)
    return RivalKind(name, help_text, "Narayanan et al., OSDI'20", order, ROUNDS, BY_INDEX, knobs=knobs)


_RLSCHEDULER: Final = "Zhang et al., SC'20"
KINDS: Final[Mapping[str, RivalKind]] = {
    kind.name: kind
    for kind in (
        RivalKind("fifo", "first come first served; the first that does not fit blocks", "-", "fifo", "strict"),
        RivalKind("fifo-easy", "the same with backfilling that does not delay it", "Lifka, JSSPP'95", "fifo", "easy"),
        RivalKind("smallest", "fewest GPUs first", "-", "smallest"),
        RivalKind("sjf", "shortest job first", "-", "sjf"),
        RivalKind("saf", "smallest area first: run time x GPUs", _RLSCHEDULER, "saf"),
        RivalKind("srtf", "shortest remaining time first", "Schrage 1968", "srtf", preemption=BY_INDEX),
        RivalKind("srsf", "shortest remaining GPU time first", "Gu et al., NSDI'19", "srsf", preemption=BY_INDEX),
        RivalKind("las", "least attained service first", "Nuyens and Wierman 2008", "las", preemption=BY_INDEX),
        RivalKind("2dlas", "two queues by attained GPU time", "Gu et al., NSDI'19", "2dlas", preemption=BY_INDEX),
        RivalKind("wfp3", "-(wait / run time)^3 x GPUs", "Tang et al., 2009", "wfp3"),
        RivalKind("unicep", "-wait / (log2(GPUs) x run time)", _RLSCHEDULER, "unicep"),
        RivalKind("f1", "log10(run time) x GPUs + 870 log10(submission)", "Carastan-Santos et al., SC'17", "f1"),
        RivalKind("qssf", "smallest predicted area first", "Hu et al., SC'21", "saf", estimate="history"),
        RivalKind("gittins", "by the Gittins index of past durations", "Gittins 1989", "gittins", preemption=BY_INDEX),
        RivalKind("multifactor", "Slurm's age, size and fair share", "Slurm, priority/multifactor", "multifactor"),
        _gavel("gavel", "in rounds, by a linear programme of shares of unequal types: max-min fairness"),
        _gavel("gavel-blind", "the same as if all types were equal"),
        _gavel("gavel-finish-time", "the same with fair times of completion"),
        _gavel("gavel-fifo", "the same, first come first served"),
        _gavel("gavel-least-jct", "the same, what is done of each job's rest"),
        RivalKind("round-robin", "who has waited longest, in rounds", "-", "round-robin", preemption=BY_INDEX),
    )
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
    kind = next((KINDS[start] for start in _starts(name) if start in KINDS), None)
    if kind is None:
        raise InputError("policy", "", f"{name!r} is no policy: {nearest(name.split('-')[0], KINDS)}")
    fields, rest = kind.fields(), name.removeprefix(kind.name)
    while rest:
        part, word = _next_word(name, rest)
        fields[part] = word
        rest = rest.removeprefix(f"-{word}")
    return replace(JobPolicy(**fields), knobs=knobs or kind.knobs or PreemptionKnobs())


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
    by_distance = sorted(KINDS.values(), key=lambda kind: len(_differing(policy, kind)))
    for kind in by_distance:
        if kind.order == policy.order and kind.preemption == policy.preemption:
            return "-".join((kind.name, *_differing(policy, kind)))
    return "-".join((policy.order, policy.preemption, policy.queueing, policy.estimate, policy.placement))


def _differing(policy: JobPolicy, kind: RivalKind) -> list[str]:
    fields = kind.fields()
    return [getattr(policy, part) for part in _PARTS if getattr(policy, part) != fields[part]]
