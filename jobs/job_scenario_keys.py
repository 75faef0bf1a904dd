"""The file of a scenario of training jobs: trace, cluster, policies; every key with its meaning, limits and default.

`docs/jobs-scenario-keys.md` is made from this file. It reads no other file; `jobs.job_scenario` does.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from jobs.policies.job_cluster import PLACEMENTS
from jobs.policies.job_orders import ORDERS, MultifactorParams, Span, Time
from jobs.policies.named_policies import QUEUEINGS, ROUNDS, PreemptionParams
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
    """Equal nodes."""

    count: Annotated[int, Field(ge=1, le=MAX_NODES)] = Field(description="number of nodes")
    gpus: Annotated[int, Field(ge=1, le=1024)] = Field(description="GPUs per node")
    type: GpuType = Field("gpu", description="type of its GPUs, as in the trace's `gpu_types` and in `throughputs`")
    vc: str = Field("", description="their virtual cluster; empty: shared by all", max_length=200)
    profile: ProfileName | None = Field(
        None,
        description="speed of a GPU of this type: a profile's file, or a bundled profile's name. Jobs run at "
        "its images/s at full width over those of the reference type",
    )


class FailuresSection(StrictModel):
    """Independent failures and repairs of nodes; both times are exponential."""

    up_s: Span = Field(description="mean time to failure of a node")
    down_s: Span = Field(description="mean time to repair")


class OutageSection(StrictModel):
    """A node that is out of service for a time."""

    node: Annotated[int, Field(ge=0)] = Field(description="0, 1, ... in the order of `cluster.nodes`")
    from_s: Time = Field(description="start of the outage, from the trace's start")
    to_s: Span = Field(description="its end")

    @model_validator(mode="after")
    def _ascending(self) -> OutageSection:
        if self.to_s <= self.from_s:
            raise ValueError(f"to_s {self.to_s:g} is not after from_s {self.from_s:g}")
        return self


class JobClusterSection(StrictModel):
    """The nodes, and the cost of stopping a job."""

    nodes: tuple[NodesSection, ...] = Field(description="groups of equal nodes", min_length=1, max_length=10_000)
    throughputs: FilePath | None = Field(
        None,
        description="table of speeds by job class and GPU type ([form](jobs.md#unequal-gpus)); null: from "
        "profiles, or all equal",
    )
    reference: GpuType | None = Field(
        None, description="GPU type of the trace's run times; null: that of the first nodes"
    )
    spread_slowdown: Annotated[float, Field(ge=1, le=1000)] = Field(
        1.0, description="factor on the run time of a job that is spread over more nodes than needed"
    )
    restart_s: Time = Field(0.0, description="time that a resumed job holds its GPUs before it works")
    checkpoint_s: Time = Field(
        0.0, description="interval of checkpoints; a stopped job loses the work since the last; 0: it loses nothing"
    )
    variability: dict[str, Annotated[float, Field(ge=0, le=2)]] = Field(
        default_factory=dict,
        description="spread of speed between GPUs of one type: by job class (`*`: all others) the standard "
        "deviation of its logarithm; a gang runs at its slowest GPU (PAL, SC'24)",
    )
    failures: FailuresSection | None = Field(None, description="random failures of nodes; null: none")
    outages: tuple[OutageSection, ...] = Field((), description="planned outages of nodes")

    @model_validator(mode="after")
    def _one_source_of_speeds(self) -> JobClusterSection:
        profiled = [group.profile is not None for group in self.nodes]
        if any(profiled) and self.throughputs is not None:
            raise ValueError("throughputs and profiles both specify how fast GPUs are; leave one of the two out")
        if any(profiled) and not all(profiled):
            raise ValueError("some groups of nodes have a profile and others have none; give all of them one, or none")
        return self

    @property
    def gpus(self) -> int:
        """The number of GPUs of all nodes."""
        return sum(group.count * group.gpus for group in self.nodes)


class WindowSection(StrictModel):
    """The part of the trace to run."""

    from_s: Time = Field(0.0, description="jobs submitted from this time of the trace on")
    until_s: Span | None = Field(None, description="jobs submitted before this time; null: to the trace's end")

    @model_validator(mode="after")
    def _ascending(self) -> WindowSection:
        if self.until_s is not None and self.until_s <= self.from_s:
            raise ValueError(f"until_s {self.until_s:g} is not after from_s {self.from_s:g}")
        return self


class SlurmSection(StrictModel):
    """Slurm's delays, by its own names if it has one."""

    start_delay_s: Time = Field(
        0.0, description="time that a job holds its GPUs before it works, at each start: rounds, prolog, epilog"
    )
    bf_interval_s: Time = Field(
        0.0,
        description="interval of backfilling (`easy`, `conservative`; `bf_interval`, 30 s in Slurm); in "
        "between only the first in order starts; 0: at each change",
    )


class BoundSection(StrictModel):
    """Search of the bound that no policy beats."""

    passes: Annotated[int, Field(ge=0)] = Field(
        600, description="steps of the search; the bound is valid after any number; 0: no bound"
    )
    cell_s: Span = Field(3600.0, description="interval of prices of GPU time; shorter: a tighter bound, more time")


class JobsScenario(StrictModel):
    """A trace, a cluster, and the policies to compare."""

    schema_: Literal["slimsched.jobs/1"] = Field(alias="schema", description="version of this format")
    name: Name = Field(description="up to 100 letters, digits, `.`, `_`, `-`")
    trace: FilePath = Field(description="a trace of `slimsched jobs import` or `generate`")
    cluster: JobClusterSection = Field(description="nodes for the jobs")
    window: WindowSection = Field(default_factory=WindowSection, description="part of the trace to run")
    load: Load | None = Field(
        None, description="arrivals are compressed or stretched to this load; null: as in the trace"
    )
    jitter_s: Time = Field(
        0.0,
        description="replays with random delays of each arrival and end up to this: sensitivity of figures to "
        "single seconds; 0: none",
    )
    begin: Literal["empty", "snapshot"] = Field(
        "empty", description="state at the start: an empty cluster, or the log's running and waiting jobs"
    )
    warmup_s: Time = Field(
        0.0, description="jobs submitted within this time of the start are run, and left out of figures"
    )
    history: Literal["none", "earlier"] = Field(
        "earlier", description="history of policies that use one: none, or jobs that ended before the window"
    )
    longest_s: Span = Field(366 * 86400.0, description="limit of the run after the last submission")
    preemption: PreemptionParams = Field(
        default_factory=PreemptionParams, description="preemption of policies given by name"
    )
    multifactor: MultifactorParams = Field(
        default_factory=MultifactorParams, description="weights of policies `multifactor` given by name"
    )
    slurm: SlurmSection = Field(default_factory=SlurmSection, description="Slurm's delays")
    policies: tuple[PolicyName, ...] = Field(
        description=f"names ([list](jobs.md#policies)), files ending in `{POLICY_SUFFIX}`, or learned "
        f"ones ending in `{LEARNED_SUFFIX}`",
        min_length=1,
    )
    baseline: PolicyName | None = Field(None, description="policy that others are compared with; null: the first")
    bound: BoundSection = Field(default_factory=BoundSection, description="search of the bound")
    seed: Annotated[int, Field(ge=0)] = Field(
        0, description="seed of failures, GPU speeds, and a learned policy's draws"
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


class PolicyPreemption(PreemptionParams):
    """Settings of a policy that preempts."""

    kind: Literal["none", "by-index"] = Field("none", description="whether running jobs may be preempted")


_OF_THE_LEARNED = ("order", "queueing", "preemption", "multifactor", "estimate", "age_guard_s")


class PolicyFile(StrictModel):
    """A custom policy: five words and the numbers of preemption, or a learned file and a placement."""

    schema_: Literal["slimsched.jobpolicy/1"] = Field(alias="schema", description="version of this format")
    learned: FilePath | None = Field(
        None, description=f"a learned policy's file `{LEARNED_SUFFIX}`, which sets all other words but the placement"
    )
    order: str = Field("fifo", description=f"order of jobs: {', '.join(f'`{name}`' for name in ORDERS)}")
    queueing: str = Field(
        "strict", description=f"which jobs may overtake: {', '.join(f'`{name}`' for name in (*QUEUEINGS, ROUNDS))}"
    )
    preemption: PolicyPreemption = Field(default_factory=PolicyPreemption, description="what is preempted, and when")
    multifactor: MultifactorParams = Field(
        default_factory=MultifactorParams, description="weights of the order `multifactor`"
    )
    placement: str = Field("best-fit", description=f"which GPUs: {', '.join(f'`{name}`' for name in PLACEMENTS)}")
    estimate: str = Field(
        "none", description=f"what is known of run times: {', '.join(f'`{name}`' for name in ESTIMATES)}"
    )
    age_guard_s: Span | None = Field(
        None, description="wait after which a job goes first, the oldest before all; null: order alone decides"
    )

    @model_validator(mode="after")
    def _learned_says_the_rest(self) -> PolicyFile:
        keys = [key for key in _OF_THE_LEARNED if key in self.model_fields_set]
        if self.learned is not None and keys:
            raise ValueError(f"a learned policy brings its own {', '.join(keys)}; leave it out")
        return self
