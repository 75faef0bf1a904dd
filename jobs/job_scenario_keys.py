"""The file of a scenario of training jobs: trace, cluster, policies; every key with its meaning, limits and default.

`docs/jobs-scenario-keys.md` is made from this file. It reads no other file; `jobs.job_scenario` does.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from jobs.policies.job_cluster import PLACEMENTS
from jobs.policies.job_orders import ORDERS, MultifactorKnobs, Span, Time
from jobs.policies.named_policies import QUEUEINGS, ROUNDS, PreemptionKnobs
from jobs.policies.run_times import ESTIMATES
from kit.strict import FileName, FilePath, Name, PossiblePath, StrictModel

SCHEMA: Literal["slimsched.jobs/1"] = "slimsched.jobs/1"
POLICY_SUFFIX = ".jobpolicy.yaml"
LEARNED_SUFFIX = ".safetensors"
MAX_NODES = 1_000_000


Load = Annotated[float, Field(gt=0, le=10)]


def _is_profile_file(text: str) -> bool:
    return Path(text).name != text or bool(Path(text).suffix)


def _is_policy_file(text: str) -> bool:
    return text.endswith((POLICY_SUFFIX, LEARNED_SUFFIX))


def _one_of_a_list(text: str) -> str:
    if "|" in text:
        raise ValueError(f"{text!r:.80}: a `|` stands between types in a trace, and in no type's name")
    return text


PolicyName = Annotated[PossiblePath, FileName(_is_policy_file)]
ProfileName = Annotated[PossiblePath, FileName(_is_profile_file, lambda text: None)]
GpuType = Annotated[str, Field(min_length=1, max_length=100), AfterValidator(_one_of_a_list)]


class NodesSection(StrictModel):
    """Some equal nodes."""

    count: Annotated[int, Field(ge=1, le=MAX_NODES)] = Field(description="how many there are")
    gpus: Annotated[int, Field(ge=1, le=1024)] = Field(description="of each node")
    type: GpuType = Field("gpu", description="of its GPUs, as the trace's `gpu_types` and the table of throughputs say")
    vc: str = Field("", description="the virtual cluster that they belong to; empty: everybody's", max_length=200)
    profile: ProfileName | None = Field(
        None,
        description="how fast a GPU of this type is: a profile's file, or a shipped profile's name. Its images/s at "
        "full width over those of the reference type's profile are the speed of every job",
    )


class FailuresSection(StrictModel):
    """Nodes that fail and return, each by itself; both times are exponential."""

    up_s: Span = Field(description="mean time that a node works")
    down_s: Span = Field(description="mean time that it is out of service then")


class OutageSection(StrictModel):
    """A node that is out of service for a time."""

    node: Annotated[int, Field(ge=0)] = Field(description="0, 1, ... in the order of `cluster.nodes`")
    from_s: Time = Field(description="since the trace's start")
    to_s: Span = Field(description="when it is back")

    @model_validator(mode="after")
    def _ascending(self) -> OutageSection:
        if self.to_s <= self.from_s:
            raise ValueError(f"to_s {self.to_s:g} is not after from_s {self.from_s:g}")
        return self


class JobClusterSection(StrictModel):
    """The nodes, and what it costs to stop a job on them."""

    nodes: tuple[NodesSection, ...] = Field(description="groups of equal nodes", min_length=1, max_length=10_000)
    throughputs: FilePath | None = Field(
        None,
        description="a table of speeds by job class and GPU type ([form](jobs.md#unequal-gpus)); null: profiles say "
        "it, or all types are equally fast",
    )
    reference: GpuType | None = Field(
        None, description="the type on which the trace's run times count; null: that of the first nodes"
    )
    spread_slowdown: Annotated[float, Field(ge=1, le=1000)] = Field(
        1.0, description="a job that lies on more nodes than it must runs so many times as long"
    )
    restart_s: Time = Field(0.0, description="a job that goes on after a stop holds its GPUs so long before it works")
    checkpoint_s: Time = Field(
        0.0, description="jobs keep their work so often, and lose the rest when they are stopped; 0: they lose nothing"
    )
    variability: dict[str, Annotated[float, Field(ge=0, le=2)]] = Field(
        default_factory=dict,
        description="GPUs of one type that are not equally fast: by job class (`*`: those not named) the standard "
        "deviation of the logarithm of their speed; a gang runs at its slowest GPU (PAL, SC'24)",
    )
    failures: FailuresSection | None = Field(None, description="nodes that fail by chance; null: none does")
    outages: tuple[OutageSection, ...] = Field((), description="nodes that are out of service at given times")

    @model_validator(mode="after")
    def _one_source_of_speeds(self) -> JobClusterSection:
        profiled = [group.profile is not None for group in self.nodes]
        if any(profiled) and self.throughputs is not None:
            raise ValueError("throughputs and profiles both say how fast GPUs are; leave one of the two out")
        if any(profiled) and not all(profiled):
            raise ValueError("some groups of nodes have a profile and others have none; give all of them one, or none")
        return self

    @property
    def gpus(self) -> int:
        """All of them."""
        return sum(group.count * group.gpus for group in self.nodes)


class WindowSection(StrictModel):
    """The part of the trace that is run."""

    from_s: Time = Field(0.0, description="jobs that are submitted from this time of the trace on")
    until_s: Span | None = Field(None, description="and before this time; null: all that follow")

    @model_validator(mode="after")
    def _ascending(self) -> WindowSection:
        if self.until_s is not None and self.until_s <= self.from_s:
            raise ValueError(f"until_s {self.until_s:g} is not after from_s {self.from_s:g}")
        return self


class SlurmSection(StrictModel):
    """What Slurm takes its time for, by its own names where it has one."""

    start_delay_s: Time = Field(
        0.0,
        description="a job holds its GPUs so long before it works, at each start: Slurm's rounds, prolog and epilog",
    )
    bf_interval_s: Time = Field(
        0.0,
        description="who reserves (`easy`, `conservative`) plans so often (`bf_interval`, 30 s in Slurm), and starts "
        "only the first in order between; 0: plans whenever something changes",
    )


class BoundSection(StrictModel):
    """How the bound is sought that no policy beats."""

    passes: Annotated[int, Field(ge=0)] = Field(
        600, description="steps of the search; the bound holds after any number; 0: no bound is sought"
    )
    cell_s: Span = Field(
        3600.0, description="prices of GPU time change so often; shorter cells bind more, and take longer"
    )


class JobsScenario(StrictModel):
    """A trace, a cluster, and the policies that are set against each other."""

    schema_: Literal["slimsched.jobs/1"] = Field(alias="schema", description="this form's name")
    name: Name = Field(description="up to 100 letters, digits, `.`, `_` and `-`")
    trace: FilePath = Field(description="a trace that `slimsched jobs import` or `generate` made")
    cluster: JobClusterSection = Field(description="what the jobs run on")
    window: WindowSection = Field(default_factory=WindowSection, description="the part of the trace that is run")
    load: Load | None = Field(
        None, description="arrivals are moved closer together or apart, so that this is the load; null: as in the trace"
    )
    jitter_s: Time = Field(
        0.0,
        description="replays in which each job comes and ends up to so much later, by chance: how far figures hang on "
        "single seconds; 0: none",
    )
    begin: Literal["empty", "snapshot"] = Field(
        "empty",
        description="what the run begins with: an empty cluster, or with the jobs that ran and waited by the log",
    )
    warmup_s: Time = Field(0.0, description="jobs submitted so long after the begin are run, and left out of figures")
    history: Literal["none", "earlier"] = Field(
        "earlier",
        description="what policies with a history have seen: nothing, or what had ended before the window",
    )
    longest_s: Span = Field(366 * 86400.0, description="the run is ended so long after the last submission")
    preemption: PreemptionKnobs = Field(default_factory=PreemptionKnobs, description="of policies given by name")
    multifactor: MultifactorKnobs = Field(
        default_factory=MultifactorKnobs, description="of the policies `multifactor` given by name"
    )
    slurm: SlurmSection = Field(default_factory=SlurmSection, description="what Slurm takes its time for")
    policies: tuple[PolicyName, ...] = Field(
        description=f"names ([list](jobs.md#policies)), files ending in `{POLICY_SUFFIX}`, or learned "
        f"ones ending in `{LEARNED_SUFFIX}`",
        min_length=1,
    )
    baseline: PolicyName | None = Field(None, description="what the others are set against; null: the first policy")
    bound: BoundSection = Field(default_factory=BoundSection, description="how the bound is sought")
    seed: Annotated[int, Field(ge=0)] = Field(
        0, description="of what is drawn: failures, differing GPUs, and what a learned policy draws"
    )

    @model_validator(mode="after")
    def _consistent(self) -> JobsScenario:
        if len(set(self.policies)) < len(self.policies):
            twice = next(name for name in self.policies if self.policies.count(name) > 1)
            raise ValueError(f"the policy {twice!r} is given twice")
        if self.baseline is not None and self.baseline not in self.policies:
            raise ValueError(f"the baseline {self.baseline!r} is none of the policies: {', '.join(self.policies)}")
        if self.begin == "snapshot" and self.load is not None:
            raise ValueError("what the log found does not fit another load; leave out load, or begin empty")
        if self.begin == "snapshot" and self.jitter_s:
            raise ValueError("what the log found does not fit other submissions; leave out jitter_s, or begin empty")
        return self


class PolicyPreemption(PreemptionKnobs):
    """Of a policy that preempts."""

    kind: Literal["none", "by-index"] = Field("none", description="whether jobs that run may have to make room")


_OF_THE_LEARNED = ("order", "queueing", "preemption", "multifactor", "estimate", "age_guard_s")


class PolicyFile(StrictModel):
    """A policy of one's own: five words, and the numbers of preemption; or what was learned, with a placement."""

    schema_: Literal["slimsched.jobpolicy/1"] = Field(alias="schema", description="this form's name")
    learned: FilePath | None = Field(
        None, description=f"what chooses: a file `{LEARNED_SUFFIX}`, which says all other words but the placement"
    )
    order: str = Field("fifo", description=f"who comes first: {', '.join(f'`{word}`' for word in ORDERS)}")
    queueing: str = Field(
        "strict", description=f"who may overtake: {', '.join(f'`{word}`' for word in (*QUEUEINGS, ROUNDS))}"
    )
    preemption: PolicyPreemption = Field(default_factory=PolicyPreemption, description="who makes room, and when")
    multifactor: MultifactorKnobs = Field(default_factory=MultifactorKnobs, description="of the order `multifactor`")
    placement: str = Field("best-fit", description=f"which GPUs: {', '.join(f'`{word}`' for word in PLACEMENTS)}")
    estimate: str = Field(
        "none", description=f"what is known of run times: {', '.join(f'`{word}`' for word in ESTIMATES)}"
    )
    age_guard_s: Span | None = Field(
        None, description="who has waited longer goes first, the oldest before all; null: order alone decides"
    )

    @model_validator(mode="after")
    def _learned_says_the_rest(self) -> PolicyFile:
        said = [key for key in _OF_THE_LEARNED if key in self.model_fields_set]
        if self.learned is not None and said:
            raise ValueError(f"a learned policy brings its own {', '.join(said)}; leave it out")
        return self
