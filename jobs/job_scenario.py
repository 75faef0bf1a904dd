"""A scenario of training jobs with all the files that it names, read and checked as a whole; its throughputs.

The throughputs of each class of jobs on each type of GPU are YAML (`slimsched.throughputs/1`) or CSV: a header
`job_class,TYPE,TYPE ...`, and a row for each class. They may be steps, images or samples a second: only ratios within a
row matter.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar

import numpy as np
from pydantic import Field

from jobs.job_records import NodeOutage, Snapshot, sampled_outages, sampled_variability, snapshot_at
from jobs.job_scenario_keys import LEARNED_SUFFIX, POLICY_SUFFIX, JobClusterSection, JobsScenario, PolicyFile
from jobs.job_simulation import ClusterModel, JobRun
from jobs.job_traces import JobTrace, read_trace
from jobs.learning.scoring_network import Learned, NamedPolicy, read_learned
from jobs.policies.job_cluster import Cluster, JobArrived, NodeGroup, Pool, Speeds
from jobs.policies.job_orders import MultifactorParams
from jobs.policies.named_policies import JobPolicy, PreemptionParams, policy_of, shown_name
from jobs.policies.run_times import ORACLE
from kit import strict
from kit.documents import read_text
from kit.errors import InputError, nearest
from kit.strict import StrictModel, with_paths
from kit.units import NS_PER_S

Positive = Annotated[float, Field(gt=0)]
OTHERS: Final = "*"  # the row of classes without one
Table = Mapping[str, Mapping[str, float]]
Value = TypeVar("Value")


class ThroughputsFile(StrictModel):
    """Throughputs by job class and GPU type."""

    schema_: Literal["slimsched.throughputs/1"] = Field(alias="schema")
    classes: Annotated[dict[str, dict[str, Positive]], Field(min_length=1)]


def read_throughputs(path: Path) -> Table:
    """Read a table: job class -> GPU type -> throughput, above 0.

    Raises:
        InputError: the file does not exist, or is not such a table.
    """
    text = read_text(path)
    if path.suffix.lower() == ".csv":
        return _of_csv(text, str(path))
    return strict.parse(ThroughputsFile, text, str(path)).classes


def _of_csv(text: str, source: str) -> Table:
    lines = csv.reader(text.splitlines())
    header = [cell.strip() for cell in next(lines, [])]
    if len(header) < 2 or header[0] != "job_class" or len(set(header)) < len(header) or not all(header):
        problem = f"{','.join(header)!r:.80}; it must be `job_class`, and a column for each GPU type"
        raise InputError(source, "line 1", problem)
    table: dict[str, Mapping[str, float]] = {}
    for row in lines:
        if not row:
            continue
        key = f"line {lines.line_num}"
        if len(row) != len(header):
            raise InputError(source, key, f"has {len(row)} fields; the header has {len(header)}")
        job_class = row[0].strip()
        if job_class in table:
            raise InputError(source, key, f"the class {job_class!r:.80} occurs twice")
        cells = zip(header[1:], row[1:], strict=True)
        table[job_class] = {kind: _number(cell, source, f"{key}, {kind}") for kind, cell in cells if cell.strip()}
    if not table:
        raise InputError(source, "", "holds no class of jobs; give a row for each")
    return table


def _number(text: str, source: str, key: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not 0 < value < float("inf"):
        raise InputError(source, key, f"{text.strip()!r:.40}; a throughput is a finite number above 0")
    return value


def relative_to(table: Table, reference: str, source: str) -> dict[str, dict[str, float]]:
    """Return speeds: each throughput over that of its class on the reference type.

    Raises:
        InputError: a class has no throughput there.
    """
    for job_class, row in table.items():
        if reference not in row:
            problem = (
                f"has no throughput on {reference!r}, on which the trace's run times count ({nearest(reference, row)})"
            )
            raise InputError(source, job_class, f"{problem}; add it, or name another type as `cluster.reference`")
    return {
        job_class: {kind: value / row[reference] for kind, value in row.items()} for job_class, row in table.items()
    }


def with_others(by_class: Mapping[str, Value], classes: Iterable[str]) -> dict[str, Value]:
    """Return the table with the value of `*` for each of these classes that has none."""
    own = {job_class: value for job_class, value in by_class.items() if job_class != OTHERS}
    return own if OTHERS not in by_class else {**dict.fromkeys(classes, by_class[OTHERS]), **own}


# ----------------------------------------------------------------------------------------------------------------- case
# A scenario of training jobs with all that it names: jobs, world and policies, checked as a whole and ready to run.


ImagesS = Callable[[Path, str, str], float]
"""Reader of images a second from a GPU's profile: its name or file, and the scenario and key that name it."""


@dataclass(frozen=True, slots=True, eq=False)
class JobExperiment:
    """Inputs of a scenario's runs.

    Attributes:
        source: the scenario's file.
        jobs: the jobs to run, at the scenario's load.
        past: jobs that had ended before the window.
    """

    scenario: JobsScenario
    source: str
    cluster_model: ClusterModel
    jobs: JobTrace
    snapshot: Snapshot | None
    past: tuple[tuple[JobArrived, int], ...]
    policies: tuple[NamedPolicy, ...]
    images_s: ImagesS | None = None

    @property
    def load(self) -> float:
        """Requested GPU time over available GPU time, from the first to the last submission, at the reference type."""
        return self.jobs.load_on(self.scenario.cluster.gpus)

    @property
    def offered_load(self) -> float | None:
        """`load` in documents: None if all jobs arrive at once."""
        return self.load if np.isfinite(self.load) else None

    @property
    def baseline(self) -> NamedPolicy:
        """The policy that the others are compared with."""
        name = self.scenario.baseline
        return self.policies[0 if name is None else self.scenario.policies.index(name)]

    def run_of(self, candidate: NamedPolicy) -> JobRun:
        """Build one policy's run.

        Raises:
            InputError: no job is left after the warm-up.
        """
        with _of_file(self.source):
            return JobRun(
                self.jobs,
                candidate.policy,
                self.scenario.warmup_s,
                self.snapshot,
                round(self.scenario.longest_s * NS_PER_S),
                self.past,
                candidate.choosing(self.scenario.seed),
            )


def read_scenario(path: Path, changes: Mapping[str, Any] | None = None, policies: Sequence[str] = ()) -> JobsScenario:
    """Read a scenario from its file; the files that it names get absolute paths.

    Args:
        changes: other values than the file's, by dotted keys: `cluster.nodes.0.count`, `cluster.restart_s`.
        policies: instead of the file's, the first as baseline; those of a file by its path from here.

    Raises:
        InputError: it is not a scenario, or a change does not fit.
    """
    if path.is_file() and path.suffix not in (".yaml", ".yml", ".json"):
        remedy = (
            "`slimsched jobs import LOG` makes a trace of a log, and `slimsched jobs init TRACE --nodes 64x8` one of it"
        )
        raise InputError(str(path), "", f"is not a scenario of training jobs: {remedy}")
    raw = strict.mapping(read_text(path), str(path))
    for key, value in (changes or {}).items():
        strict.change(raw, key.split("."), value, str(path))
    if policies:
        suffixes = (POLICY_SUFFIX, LEARNED_SUFFIX)
        paths = [str(Path(name).absolute()) if name.endswith(suffixes) else name for name in policies]
        raw |= {"policies": paths, "baseline": None}
    scenario = strict.validate(JobsScenario, raw, str(path))
    folder = path.absolute().parent
    return with_paths(scenario, lambda text: str(folder / text))


def read_case(
    scenario: JobsScenario, source: str, images_s: ImagesS | None = None, named_by: str = ""
) -> JobExperiment:
    """Read what a scenario names, and check it as a whole.

    Args:
        images_s: reader of profiles, for a scenario whose nodes have some.
        named_by: the flag that named its policies; empty if its file does.

    Raises:
        InputError: a file that it names is invalid, or parts don't fit together.
    """
    trace = _trace(scenario, source)
    where = (named_by, "") if named_by else (source, "policies")
    policies = tuple(named_policy(name, scenario, *where) for name in scenario.policies)
    with _of_file(source):
        cluster_model = _cluster_model(scenario, trace, source, images_s)
        jobs, source_jobs = _jobs(scenario, trace)
        past = _past(trace, scenario.window.from_s) if scenario.history == "earlier" else ()
    _require_requests(policies, jobs, *where)
    experiment = JobExperiment(scenario, source, cluster_model, jobs, source_jobs, past, policies, images_s)
    for policy in policies:
        experiment.run_of(policy)
    return experiment


def _trace(scenario: JobsScenario, source: str) -> JobTrace:
    """Read the trace; raises `InputError` for a missing one with the key that named it."""
    path = Path(scenario.trace)
    if not path.exists():
        remedy = "`slimsched jobs import LOG` writes one of a cluster's log, `jobs generate` draws one"
        raise InputError(source, "trace", f"{path}: no such file; {remedy}")
    return read_trace(path)


@contextmanager
def _of_file(source: str) -> Iterator[None]:
    """Add the scenario's file to errors that the core raises."""
    try:
        yield
    except InputError as error:
        if error.source not in ("policy", "trace", "run", "load", "cluster"):
            raise
        prefix = "" if error.source in ("run", "policy") else error.source
        raise InputError(source, ".".join(filter(None, (prefix, error.key))), error.problem) from None


# ------------------------------------------------------------------------------------------------------------ policies


def named_policy(name: str, scenario: JobsScenario, source: str, key: str = "") -> NamedPolicy:
    """Return a policy by its name, or from a file, with the scenario's numbers.

    Args:
        source, key: the place that names it.

    Raises:
        InputError: the policy is unknown.
    """
    if name.endswith(LEARNED_SUFFIX):
        learned = read_learned(Path(name))[0]
        candidate = _named(name, LEARNED_SUFFIX, learned.spec.policy, learned)
    elif name.endswith(POLICY_SUFFIX):
        candidate = read_policy(Path(name), scenario.cluster)
    else:
        try:
            policy = _with_numbers(policy_of(name), scenario.preemption, scenario.multifactor, scenario.cluster)
        except InputError as error:
            raise InputError(source, key, error.problem) from None
        candidate = NamedPolicy(shown_name(policy), policy)
    interval_ns = round(scenario.slurm.bf_interval_s * NS_PER_S)
    return replace(candidate, policy=replace(candidate.policy, bf_interval_ns=interval_ns))


def read_policy(path: Path, cluster: JobClusterSection) -> NamedPolicy:
    """Read a policy from its own file; it gets the file's name.

    Raises:
        InputError: it is not a policy, or its parts can't be combined.
    """
    file = strict.parse(PolicyFile, read_text(path), str(path))
    if file.learned is not None:
        learned = read_learned(path.parent / file.learned)[0]
        policy = learned.spec.policy
        placement = file.placement if "placement" in file.model_fields_set else policy.placement
        with _of_file(str(path)):
            return _named(path.name, POLICY_SUFFIX, replace(policy, placement=placement), learned)
    with _of_file(str(path)):
        policy = JobPolicy(file.order, file.queueing, file.preemption.kind, file.placement, file.estimate)
        policy = _with_numbers(policy, file.preemption, file.multifactor, cluster)
        policy = replace(policy, age_guard_ns=round((file.age_guard_s or 0.0) * NS_PER_S))
    return _named(path.name, POLICY_SUFFIX, policy)


def _named(file: str, suffix: str, policy: JobPolicy, learned: Learned | None = None) -> NamedPolicy:
    """Name a policy by its file; with `oracle` in the name if it uses true run times."""
    name = Path(file).name.removesuffix(suffix)
    is_named = policy.estimate != ORACLE or ORACLE in name
    return NamedPolicy(name if is_named else f"{name}-{ORACLE}", policy, learned)


def _with_numbers(
    policy: JobPolicy, params: PreemptionParams, multifactor: MultifactorParams, cluster: JobClusterSection
) -> JobPolicy:
    """Return the policy with a file's numbers of preemption and priorities; its own round if there is none."""
    restart_s = cluster.restart_s if params.restart_s is None else params.restart_s
    own = {"round_s": params.round_s or policy.params.round_ns / NS_PER_S, "restart_s": restart_s}
    return replace(policy, params=params.model_copy(update=own), multifactor=multifactor)


def _require_requests(policies: tuple[NamedPolicy, ...], jobs: JobTrace, source: str, key: str) -> None:
    """Check that all jobs have requested times if a policy uses them."""
    without = np.isnan(jobs.requested_s)
    for policy in policies:
        if policy.policy.estimate == "requested" and without.any():
            problem = f"{policy.name} needs requested times, and {without.sum():,} of {len(jobs):,} jobs have none"
            raise InputError(source, key, f"{problem}; take the estimate `history` instead")


# ------------------------------------------------------------------------------------------------------- the cluster


def _cluster_model(scenario: JobsScenario, trace: JobTrace, source: str, images_s: ImagesS | None) -> ClusterModel:
    cluster, classes = scenario.cluster, trace.codes("job_class")[0].tolist()
    groups = tuple(NodeGroup(group.count, group.gpus, group.type, group.vc) for group in cluster.nodes)
    nodes, spreads = sum(group.nodes for group in groups), with_others(cluster.variability, classes)
    if not set(trace.codes("vc")[0].tolist()) & {group.vc for group in groups} and all(group.vc for group in groups):
        problem = f"no virtual cluster of the trace has nodes; {nearest(groups[0].vc, trace.codes('vc')[0].tolist())}"
        raise InputError(source, "cluster.nodes", problem)
    return ClusterModel(
        groups,
        Speeds(_speeds(cluster, classes, source, images_s), cluster.spread_slowdown),
        round(cluster.restart_s * NS_PER_S),
        round(cluster.checkpoint_s * NS_PER_S),
        _outages(scenario, nodes, float(trace.submit_s[-1])),
        sampled_variability(groups, spreads, scenario.seed) if cluster.variability else None,
        round(scenario.slurm.start_delay_s * NS_PER_S),
    )


def _speeds(
    cluster: JobClusterSection, classes: Sequence[str], source: str, images_s: ImagesS | None
) -> Mapping[str, Mapping[str, float]]:
    reference = cluster.reference or cluster.nodes[0].type
    if cluster.throughputs is not None:
        speeds = relative_to(read_throughputs(Path(cluster.throughputs)), reference, cluster.throughputs)
        return with_others(speeds, classes)
    of_type: dict[str, float] = {}
    for number, group in enumerate(cluster.nodes):
        if group.profile is None:
            continue
        key = f"cluster.nodes.{number}.profile"
        if images_s is None:
            raise InputError(source, key, "nothing here reads profiles; `slimsched.jobs` does")
        rates = images_s(Path(group.profile), source, key)
        if of_type.setdefault(group.type, rates) != rates:
            problem = f"another group of type {group.type!r} has another profile; name the types apart"
            raise InputError(source, key, problem)
    if not of_type:
        return {}
    if reference not in of_type:
        problem = f"no nodes are of type {reference!r}; {nearest(reference, of_type)}"
        raise InputError(source, "cluster.reference", problem)
    row = {kind: value / of_type[reference] for kind, value in of_type.items()}
    return dict.fromkeys(classes, row)


def _outages(scenario: JobsScenario, nodes: int, last_s: float) -> tuple[NodeOutage, ...]:
    planned = scenario.cluster.outages
    outages = [NodeOutage(round(each.from_s * NS_PER_S), round(each.to_s * NS_PER_S), each.node) for each in planned]
    failures = scenario.cluster.failures
    if failures is not None:
        horizon_s = last_s + scenario.longest_s
        outages += sampled_outages(nodes, failures.up_s, failures.down_s, horizon_s, scenario.seed)
    return tuple(sorted(outages))


# ---------------------------------------------------------------------------------------------------------------- jobs


def _jobs(scenario: JobsScenario, trace: JobTrace) -> tuple[JobTrace, Snapshot | None]:
    """Return the window's jobs, and the log's state at its begin."""
    from_s, until_s = scenario.window.from_s, scenario.window.until_s
    is_early = trace.submit_s < (np.inf if until_s is None else until_s)
    is_inside = is_early & (trace.submit_s >= from_s)
    if not is_inside.any():
        days = trace.submit_s[-1] / 86400
        problem = (
            f"no job is submitted in it; the trace's last one comes after {trace.submit_s[-1]:.0f} s ({days:.1f} d)"
        )
        raise InputError("run", "window", problem)
    if scenario.begin == "snapshot":
        return snapshot_at(trace.rows(is_early), from_s)
    jobs = trace.rows(is_inside)
    return (jobs if scenario.load is None else jobs.at_load(scenario.load, scenario.cluster.gpus)), None


def _past(trace: JobTrace, from_s: float) -> tuple[tuple[JobArrived, int], ...]:
    """Return jobs that had ended before the window, by their ends."""
    end_s = trace.recorded_end_s
    ended = (end_s <= from_s) & (trace.submit_s < from_s)
    if not ended.any():
        return ()
    jobs = trace.rows(ended)
    arrivals, work_ns = jobs.arrivals(), jobs.work_ns.tolist()
    order = np.argsort(end_s[ended], kind="stable").tolist()
    return tuple((arrivals[row], work_ns[row]) for row in order)


# --------------------------------------------------------------------------------------------------------------- doubts
# Checks of a scenario of training jobs: warnings, and a refusal if no job could run.


_MAX_NAMED: Final = 5


def warnings_of(experiment: JobExperiment) -> Iterator[str]:
    """Yield warnings that affect how far results can be trusted."""
    cluster = experiment.scenario.cluster
    if experiment.load > 1:
        yield (
            f"the load is {experiment.load:.2f}: more work than {cluster.gpus:,} GPUs can do, so queues grow as "
            "long as the trace lasts, and waits say more of its length than of a policy"
        )
    yield from _idle_nodes(experiment)
    yield from _short_rounds(experiment)
    yield from _whole_for_shares(experiment)
    unknown = sorted(set(experiment.jobs.job_class.tolist()) - set(experiment.cluster_model.speeds.by_class))
    if unknown and cluster.throughputs is not None:
        doubt = f"no throughputs are known of {_some(unknown)}"
        yield f"{doubt}: such jobs run equally fast everywhere; a row `*` would be theirs"


def require_a_fit(experiment: JobExperiment) -> None:
    """Check before a run that some measured job fits.

    Raises:
        InputError: no measured job fits into the cluster by its size, types or virtual cluster.
    """
    cluster, rooms = Cluster(experiment.cluster_model.groups), dict[tuple[str, str], list[Pool]]()
    jobs = experiment.jobs.rows(experiment.run_of(experiment.baseline).is_measured)
    columns = [column.tolist() for column in (jobs.vc, jobs.gpu_types, jobs.gpus, jobs.nodes)]
    for vc, types, gpus, nodes in zip(*columns, strict=True):
        if (vc, types) not in rooms:
            rooms[vc, types] = cluster.open_to(vc, types.split("|") if types else ())
        if any(pool.may_hold(gpus, nodes) for pool in rooms[vc, types]):
            return
    if missing := _missing_types(experiment):
        why = f"they ask for GPUs of type {_some(missing)}: {_type_remedy(experiment, missing)}"
    else:
        least, most = jobs.gpus.min(), max((pool.gpus for pools in rooms.values() for pool in pools), default=0)
        why = f"the smallest requests {least:,} GPUs, and {most:,} is the most that one may have"
        if least <= most:
            why = "no type of node that a job may use has the GPUs, and the nodes, that it requests"
    raise InputError(experiment.source, "cluster.nodes", f"no job of the trace fits into the cluster; {why}")


def _missing_types(experiment: JobExperiment) -> list[str]:
    """Return types that jobs request and no node has."""
    return sorted(experiment.jobs.asked_types - {group.type for group in experiment.scenario.cluster.nodes})


def _type_remedy(experiment: JobExperiment, missing: list[str]) -> str:
    """Return the line to write: in nodes whose type no job requests, otherwise in new ones."""
    asked_types = experiment.jobs.asked_types
    unasked = [
        number for number, group in enumerate(experiment.scenario.cluster.nodes) if group.type not in asked_types
    ]
    where = f"in cluster.nodes.{unasked[0]}" if unasked else "in a new group of cluster.nodes"
    return f"write `type: {missing[0]}` {where}"


def _short_rounds(experiment: JobExperiment) -> Iterator[str]:
    """Warn of jobs stopped before their first checkpoint after a restart: these never make progress."""
    cluster_model = experiment.cluster_model
    needed_ns = cluster_model.restart_ns + cluster_model.checkpoint_ns
    for each in experiment.policies:
        params = each.policy.params
        if each.policy.is_preemptive and needed_ns and max(params.round_ns, params.min_run_ns) <= needed_ns:
            yield (
                f"{each.name}: a restart and the time to the first checkpoint are {needed_ns / NS_PER_S:g} s, and jobs "
                f"may be stopped after {max(params.round_ns, params.min_run_ns) / NS_PER_S:g} s: some may never get "
                "anywhere; give preemption.min_run_s more than that"
            )


def _whole_for_shares(experiment: JobExperiment) -> Iterator[str]:
    """Warn if a policy does not support shares of a GPU."""
    if not (experiment.jobs.gpu_share < 1).any():
        return
    packs = experiment.cluster_model.variability is None
    if whole := [policy.name for policy in experiment.policies if not (packs and policy.policy.packs_shares)]:
        yield f"jobs that ask for a share of a GPU hold a whole one under {_some(whole)}"


def _idle_nodes(experiment: JobExperiment) -> Iterator[str]:
    """Warn of requests that no node satisfies, and of nodes that no job may use."""
    groups = experiment.scenario.cluster.nodes
    jobs = experiment.jobs
    kinds = {group.type for group in groups}
    vcs = {group.vc for group in groups}
    if missing := _missing_types(experiment):
        may = np.array([not text or bool(kinds & set(text.split("|"))) for text in jobs.gpu_types.tolist()])
        lost = f"; {np.sum(~may):,} jobs may run nowhere, and are refused" if not may.all() else ""
        remedy = _type_remedy(experiment, missing)
        yield f"no node has GPUs of type {_some(missing)}, for which jobs ask{lost}; {remedy}"
    if "" not in vcs:
        without = ~np.isin(jobs.vc.astype(str), sorted(vcs))
        if without.any():
            names = sorted(set(jobs.vc[without].tolist()))
            yield f"{without.sum():,} jobs are of VC {_some(names)}, which has no nodes, and are refused"
    if unused := sorted(vcs - {""} - set(jobs.vc.tolist())):
        yield f"no job is of VC {_some(unused)}, so its nodes stand idle; {nearest(unused[0], set(jobs.vc.tolist()))}"


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return ", ".join(repr(name) for name in names[:_MAX_NAMED]) + more
