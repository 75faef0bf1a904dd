"""A scenario of training jobs with all that it names: jobs, world and policies, ready to be run; checked whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jobs.policies.cluster import NodeGroup
from jobs.policies.estimates import ORACLE
from jobs.policies.multifactor import MultifactorKnobs
from jobs.policies.policy import JobPolicy, PreemptionKnobs
from jobs.policies.rivals import policy_of, shown_name
from jobs.policies.speeds import Speeds
from jobs.policies.variability import Variability
from jobs.policies.vocabulary import JobArrived
from jobs.ppo.files import Learned, read_learned
from jobs.sim.failures import Outage, drawn_outages
from jobs.sim.jobs import Found, JobList, found_at
from jobs.sim.variability import drawn_variability
from jobs.sim.world import JobRun, JobWorld
from jobs.spec import (
    LEARNED_SUFFIX,
    POLICY_SUFFIX,
    ClusterSection,
    JobsScenario,
    MultifactorSection,
    PolicyFile,
    PreemptionSection,
)
from jobs.throughputs import OTHERS, read_throughputs, relative_to, with_others
from jobs.trace import JobTrace, read_trace
from kit import strict
from kit.documents import read_text
from kit.errors import InputError, nearest
from kit.named_files import with_paths
from kit.units import NS_PER_S

ImagesS = Callable[[Path, str, str], float]
"""Images a second by a GPU's profile: of its name or file, and the scenario and key that name it."""


@dataclass(frozen=True, slots=True)
class NamedPolicy:
    """A policy, and how it is shown: with `oracle` in it where it knows true run times.

    Attributes:
        learned: what chooses, where it is a learned one.
    """

    name: str
    policy: JobPolicy
    learned: Learned | None = None


@dataclass(frozen=True, slots=True, eq=False)
class JobsCase:
    """Everything that a run takes.

    Attributes:
        source: the scenario's file.
        jobs: those that are run, at the load that the scenario asks for.
        past: what had ended before the window.
    """

    scenario: JobsScenario
    source: str
    world: JobWorld
    jobs: JobList
    found: Found | None
    past: tuple[tuple[JobArrived, int], ...]
    policies: tuple[NamedPolicy, ...]
    images_s: ImagesS | None = None

    @property
    def load(self) -> float:
        """GPU time asked for over GPU time there is, from the first to the last submission, at the reference type."""
        return self.jobs.load_on(self.scenario.cluster.gpus)

    @property
    def baseline(self) -> NamedPolicy:
        """What the others are set against."""
        named = self.scenario.baseline
        return self.policies[0 if named is None else self.scenario.policies.index(named)]

    def run_of(self, named: NamedPolicy) -> JobRun:
        """One policy's run.

        Raises:
            InputError: a warm-up after which no job is left.
        """
        with _of_file(self.source):
            return JobRun(
                self.jobs,
                named.policy,
                self.scenario.warmup_s,
                self.found,
                round(self.scenario.longest_s * NS_PER_S),
                self.past,
                None if named.learned is None else named.learned.choosing(self.scenario.seed),
            )


def read_scenario(path: Path, changes: Mapping[str, Any] | None = None) -> JobsScenario:
    """A scenario from its file, with the files that it names by absolute paths.

    Args:
        changes: other values than the file's, by dotted keys: `cluster.nodes.0.count`, `cluster.restart_s`.

    Raises:
        InputError: it is none, or a change does not fit.
    """
    raw = strict.mapping(read_text(path), str(path))
    for key, value in (changes or {}).items():
        strict.change(raw, key.split("."), value, str(path))
    scenario = strict.validate(JobsScenario, raw, str(path))
    folder = path.absolute().parent
    return with_paths(scenario, lambda text: str(folder / text))


def with_flags(scenario: JobsScenario, policies: tuple[str, ...], load: float | None) -> JobsScenario:
    """The scenario with these policies and this load instead of its own, where they are given.

    Raises:
        InputError: it can't be so.
    """
    update: dict[str, Any] = {} if load is None else {"load": load}
    if policies:
        suffixes = (POLICY_SUFFIX, LEARNED_SUFFIX)
        named = [str(Path(name).absolute()) if name.endswith(suffixes) else name for name in policies]
        baseline = scenario.baseline if scenario.baseline in named else None
        update |= {"policies": named, "baseline": baseline}
    if not update:
        return scenario
    return strict.validate(JobsScenario, {**scenario.model_dump(mode="json", by_alias=True), **update}, "the flags")


def read_case(scenario: JobsScenario, source: str, images_s: ImagesS | None = None) -> JobsCase:
    """Reads what a scenario names, and checks it whole.

    Args:
        images_s: who reads profiles, for a scenario whose nodes have some.

    Raises:
        InputError: a file that it names is none, or something does not fit together.
    """
    trace = _trace(scenario, source)
    policies = tuple(_named_policy(name, scenario, source) for name in scenario.policies)
    with _of_file(source):
        world = _world(scenario, trace, source, images_s)
        jobs, found = _jobs(scenario, trace)
        past = _past(trace, scenario.window.from_s) if scenario.history == "earlier" else ()
    _require_requests(policies, jobs, source)
    case = JobsCase(scenario, source, world, jobs, found, past, policies, images_s)
    for each in policies:
        case.run_of(each)
    return case


def _trace(scenario: JobsScenario, source: str) -> JobTrace:
    """Raises `InputError`, of a missing one with the key that named it."""
    path = Path(scenario.trace)
    if not path.exists():
        remedy = "`slimsched jobs import LOG` writes one of a cluster's log, `jobs generate` draws one"
        raise InputError(source, "trace", f"{path}: no such file; {remedy}")
    return read_trace(path)


@contextmanager
def _of_file(source: str) -> Iterator[None]:
    """What the core refuses is told with the scenario's file."""
    try:
        yield
    except InputError as error:
        if error.source not in ("cluster", "policy", "speeds", "trace", "run", "load", "failures", "variability"):
            raise
        place = "" if error.source == "run" else error.source
        raise InputError(source, ".".join(filter(None, (place, error.key))), error.problem) from None


# ------------------------------------------------------------------------------------------------------------ policies


def _named_policy(name: str, scenario: JobsScenario, source: str) -> NamedPolicy:
    if name.endswith(LEARNED_SUFFIX):
        learned = read_learned(Path(name))[0]
        return _named(name, LEARNED_SUFFIX, learned.spec.policy, learned)
    if not name.endswith(POLICY_SUFFIX):
        try:
            named = policy_of(name)
            policy = _with_numbers(named, scenario.preemption, scenario.multifactor, scenario.cluster)
        except InputError as error:
            raise InputError(source, "policies", error.problem) from None
        return NamedPolicy(shown_name(policy), policy)
    return read_policy(Path(name), scenario.cluster)


def read_policy(path: Path, cluster: ClusterSection) -> NamedPolicy:
    """A policy of a file of its own; it bears the file's name.

    Raises:
        InputError: it is none, or its parts can't be combined.
    """
    given = strict.parse(PolicyFile, read_text(path), str(path))
    if given.learned is not None:
        learned = read_learned(path.parent / given.learned)[0]
        policy = learned.spec.policy
        placement = given.placement if "placement" in given.model_fields_set else policy.placement
        with _in_policy_file(path):
            return _named(path.name, POLICY_SUFFIX, replace(policy, placement=placement), learned)
    with _in_policy_file(path):
        words = JobPolicy(given.order, given.queueing, given.preemption.kind, given.placement, given.estimate)
        policy = _with_numbers(words, given.preemption, given.multifactor, cluster)
    return _named(path.name, POLICY_SUFFIX, policy)


def _named(file: str, suffix: str, policy: JobPolicy, learned: Learned | None = None) -> NamedPolicy:
    """By its file's name; with `oracle` in it where it knows true run times."""
    name = Path(file).name.removesuffix(suffix)
    is_told = policy.estimate != ORACLE or ORACLE in name
    return NamedPolicy(name if is_told else f"{name}-{ORACLE}", policy, learned)


@contextmanager
def _in_policy_file(path: Path) -> Iterator[None]:
    try:
        yield
    except InputError as error:
        raise InputError(str(path), error.key, error.problem) from None


def _with_numbers(
    policy: JobPolicy, given: PreemptionSection, said: MultifactorSection, cluster: ClusterSection
) -> JobPolicy:
    """The policy with what a file says of preemption and priorities; its own round where that says none."""
    restart_s = cluster.restart_s if given.restart_s is None else given.restart_s
    knobs = PreemptionKnobs(
        policy.knobs.round_ns if given.round_s is None else round(given.round_s * NS_PER_S),
        given.hysteresis,
        round(given.least_run_s * NS_PER_S),
        round(restart_s * NS_PER_S),
    )
    return replace(policy, knobs=knobs, multifactor=MultifactorKnobs(**said.model_dump()))


def _require_requests(policies: tuple[NamedPolicy, ...], jobs: JobList, source: str) -> None:
    """Who asks for requested times needs them of all jobs."""
    without = np.isnan(jobs.requested_s)
    for each in policies:
        if each.policy.estimate == "requested" and without.any():
            problem = f"{each.name} needs requested times, and {without.sum():,} of {len(jobs):,} jobs have none"
            raise InputError(source, "policies", f"{problem}; take the estimate `history` instead")


# --------------------------------------------------------------------------------------------------------------- world


def _world(scenario: JobsScenario, trace: JobTrace, source: str, images_s: ImagesS | None) -> JobWorld:
    cluster = scenario.cluster
    groups = tuple(NodeGroup(each.count, each.gpus, each.type, each.vc) for each in cluster.nodes)
    nodes = sum(group.nodes for group in groups)
    if not set(trace.codes("vc")[0].tolist()) & {group.vc for group in groups} and all(group.vc for group in groups):
        problem = f"no virtual cluster of the trace has nodes; {nearest(groups[0].vc, trace.codes('vc')[0].tolist())}"
        raise InputError(source, "cluster.nodes", problem)
    return JobWorld(
        groups,
        Speeds(_speeds(cluster, trace, source, images_s), cluster.spread_slowdown),
        round(cluster.restart_s * NS_PER_S),
        round(cluster.checkpoint_s * NS_PER_S),
        _outages(scenario, nodes, float(trace.submit_s[-1])),
        _variability(scenario, groups, trace),
    )


def _variability(scenario: JobsScenario, groups: tuple[NodeGroup, ...], trace: JobTrace) -> Variability | None:
    spreads = scenario.cluster.variability
    if not spreads:
        return None
    of_all = dict.fromkeys(trace.codes("job_class")[0].tolist(), spreads[OTHERS]) if OTHERS in spreads else {}
    named = {job_class: spread for job_class, spread in spreads.items() if job_class != OTHERS}
    return drawn_variability(groups, {**of_all, **named}, scenario.seed)


def _speeds(
    cluster: ClusterSection, trace: JobTrace, source: str, images_s: ImagesS | None
) -> Mapping[str, Mapping[str, float]]:
    classes = trace.codes("job_class")[0].tolist()
    reference = cluster.reference or cluster.nodes[0].type
    if cluster.throughputs is not None:
        speeds = relative_to(read_throughputs(Path(cluster.throughputs)), reference, cluster.throughputs)
        return with_others(speeds, classes)
    of_type: dict[str, float] = {}
    for place, group in enumerate(cluster.nodes):
        if group.profile is None:
            continue
        key = f"cluster.nodes.{place}.profile"
        if images_s is None:
            raise InputError(source, key, "nobody here reads profiles; `slimsched.jobs` does")
        found = images_s(Path(group.profile), source, key)
        if of_type.setdefault(group.type, found) != found:
            raise InputError(
                source, key, f"another group of type {group.type!r} has another profile; name the types apart"
            )
    if not of_type:
        return {}
    if reference not in of_type:
        raise InputError(
            source, "cluster.reference", f"no nodes are of type {reference!r}; {nearest(reference, of_type)}"
        )
    row = {kind: value / of_type[reference] for kind, value in of_type.items()}
    return dict.fromkeys(classes, row)


def _outages(scenario: JobsScenario, nodes: int, last_s: float) -> tuple[Outage, ...]:
    given = scenario.cluster.outages
    outages = [Outage(round(each.from_s * NS_PER_S), round(each.to_s * NS_PER_S), each.node) for each in given]
    failures = scenario.cluster.failures
    if failures is not None:
        horizon_s = last_s + scenario.longest_s
        outages += drawn_outages(nodes, failures.up_s, failures.down_s, horizon_s, scenario.seed)
    return tuple(sorted(outages))


# ---------------------------------------------------------------------------------------------------------------- jobs


def job_list(trace: JobTrace, which: NDArray[np.bool_] | slice = slice(None)) -> JobList:
    """Jobs of a trace as a simulation takes them."""
    texts = ("user", "vc", "gpu_types", "job_class", "job_id")
    numbers = ("requested_s", "recorded_wait_s", "recorded_start_s", "gpu_share")
    columns = {name: getattr(trace, name)[which] for name in (*texts, *numbers)}
    return JobList.of(trace.submit_s[which], trace.run_s[which], trace.gpus[which], **columns)


def _jobs(scenario: JobsScenario, trace: JobTrace) -> tuple[JobList, Found | None]:
    """Those of the window, and what the log found at its begin."""
    from_s, until_s = scenario.window.from_s, scenario.window.until_s
    is_early = trace.submit_s < (np.inf if until_s is None else until_s)
    is_inside = is_early & (trace.submit_s >= from_s)
    if not is_inside.any():
        days = trace.submit_s[-1] / 86400
        problem = (
            f"no job is submitted in it; the trace's last one comes after {trace.submit_s[-1]:.0f} s ({days:.1f} d)"
        )
        raise InputError("", "window", problem)
    if scenario.begin == "found":
        found = found_at(job_list(trace, is_early), from_s)
        return found.jobs, found
    jobs = job_list(trace, is_inside)
    return (jobs if scenario.load is None else jobs.at_load(scenario.load, scenario.cluster.gpus)), None


def _past(trace: JobTrace, from_s: float) -> tuple[tuple[JobArrived, int], ...]:
    """Jobs that had ended before the window, by their ends; where no start is recorded, as if they had not waited."""
    begun_s = np.where(np.isfinite(trace.recorded_start_s), trace.recorded_start_s, trace.submit_s)
    end_s = begun_s + trace.run_s
    ended = (end_s <= from_s) & (trace.submit_s < from_s)
    if not ended.any():
        return ()
    jobs = job_list(trace, ended)
    arrivals, work_ns = jobs.arrivals(), jobs.work_ns.tolist()
    order = np.argsort(end_s[ended], kind="stable").tolist()
    return tuple((arrivals[place], work_ns[place]) for place in order)
