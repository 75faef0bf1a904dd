"""What-if comparison of a changed cluster, and inference of a site's policy from its log."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import isfinite
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from jinja2 import Environment, PackageLoader
from numpy.typing import NDArray
from scipy.stats import spearmanr

from jobs.job_records import NEAR, NEAR_MEAN, Blocks, JobsRecord, by_job, figures, groups_of, spread
from jobs.job_scenario import JobExperiment, read_case, require_a_fit
from jobs.job_scenario_keys import SCHEMA, JobsScenario, NodesSection
from jobs.job_traces import JobTrace
from jobs.learning.scoring_network import NamedPolicy
from jobs.policies.job_cluster import NodeGroup
from jobs.policies.named_policies import SLURM
from jobs.policies.run_times import HISTORY, REQUESTED
from jobs.policy_comparison import SAME_S, against, band, jittered_waits_s, log_error, recorded, run_policy
from jobs.slurm_conf import SlurmConf
from kit import strict
from kit.errors import InputError
from kit.parallel import each, results
from kit.units import NS_PER_S

MOST_JOBS: Final = 3500  # with 1,500, 3 of 10 generated logs were attributed to another policy; with 3,500 none
MOST_WAITING: Final = 20.0  # jobs on average: reservations for more of them take minutes
FEW_JOBS: Final = 300  # a log this short, however many jobs wait
_OVERFULL_SHARE: Final = 0.1  # of the starts; requeued jobs, with all their attempts in one run time, cause a few


@dataclass(frozen=True, slots=True)
class Site:
    """The result of the inference.

    Attributes:
        case: whether the log determines a policy, or why it does not.
        errors: by policy, the nearest first (`comparing.log_error`); empty if nothing was simulated.
        busy_gpus: the most that were busy at once in the log's last part.
        limited_share: share of the jobs with a time limit; backfilling uses limits if all have one.
        conf: the content of `slurm.conf`, if it was read.
    """

    case: Literal["near", "far", "no waits", "nobody waited", "too few nodes"]
    errors: Mapping[str, float]
    busy_gpus: float
    limited_share: float
    conf: SlurmConf | None = None

    @property
    def policy(self) -> str:
        """The nearest policy; if the log determines none, that of `slurm.conf`, or Slurm's default, backfilling."""
        return next(iter(self.errors)) if self.case == "near" else self.configured or f"fifo-easy-{self.estimate}"

    @property
    def configured(self) -> str:
        """The policy of `slurm.conf`, with the available estimate of run times; empty if none was read."""
        return "" if self.conf is None else self.conf.policy.replace(REQUESTED, self.estimate)

    @property
    def estimate(self) -> str:
        """The estimate of run times for backfilling."""
        return REQUESTED if self.limited_share == 1 else HISTORY


def site_of(
    trace: JobTrace,
    path: Path,
    nodes: tuple[NodeGroup, ...],
    jobs: int,
    conf: SlurmConf | None = None,
    on_policy: Callable[[int, int], object] = lambda done, count: None,
) -> Site:
    """Simulate the log's last jobs under each policy that Slurm runs, from the log's running and waiting jobs then.

    Args:
        path: the trace's file.
        jobs: number of processes.
        conf: settings whose policy is one of them, with its numbers.
        on_policy: is called with the number of finished policies, and of all.

    Raises:
        InputError: no job fits on these nodes.
    """
    site = Site("no waits", {}, 0.0, float(np.isfinite(trace.requested_s).mean()), conf)
    waits_s = trace.recorded_wait_s[-MOST_JOBS:]
    if np.isfinite(waits_s).sum() < 2:
        return site
    gpus, from_s = sum(group.nodes * group.gpus for group in nodes), float(trace.submit_s[-MOST_JOBS:][0])
    busy_gpus, overfull_share = busy_of(trace, gpus, from_s)
    site = replace(site, busy_gpus=busy_gpus)
    if overfull_share > _OVERFULL_SHARE:
        return replace(site, case="too few nodes")
    span_s = float(trace.submit_s[-1]) - from_s
    are_few = float(np.nansum(waits_s)) <= MOST_WAITING * span_s  # Little's law
    can_tell = are_few or len(waits_s) <= FEW_JOBS or not site.configured.endswith("conservative")
    bundled = [name.replace(REQUESTED, site.estimate) for name in SLURM if are_few or not name.endswith("conservative")]
    names = list(dict.fromkeys([*filter(None, [site.configured] if can_tell else []), *bundled]))
    experiment = _experiment(trace, path, nodes, names, conf)
    require_a_fit(experiment)
    errors_by_index = dict[int, float | None]()
    on_policy(0, len(names))
    for index, error in each(_error, experiment, experiment.policies, jobs):
        errors_by_index[index] = error
        on_policy(len(errors_by_index), len(names))
    errors = {name: error for index, name in enumerate(names) if (error := errors_by_index[index]) is not None}
    if not errors:
        return replace(site, case="nobody waited")
    nearest = dict(sorted(errors.items(), key=itemgetter(1)))
    return replace(site, case="near" if min(errors.values()) <= NEAR else "far", errors=nearest)


def busy_of(trace: JobTrace, gpus: int, from_s: float = 0.0) -> tuple[float, float]:
    """Return the most GPUs busy at once in the log, and the share of its last starts at which more were than `gpus`.

    If that share is not small, the log's cluster had more nodes.
    """
    has_start = np.isfinite(trace.recorded_start_s)
    begun_s = np.where(has_start, trace.recorded_start_s, trace.submit_s + trace.recorded_wait_s)
    is_known = np.isfinite(begun_s)
    start_s, used = begun_s[is_known], trace.gpus_used[is_known]
    end_s = start_s + trace.run_s[is_known] - SAME_S  # logs have whole seconds: a job may get its GPUs as another ends
    is_late = np.sort(start_s) >= from_s
    if not is_late.any():
        return 0.0, 0.0
    started, ended = np.argsort(start_s), np.argsort(end_s)
    over = np.concatenate([[0.0], np.cumsum(used[ended])])[np.searchsorted(end_s[ended], start_s[started], "right")]
    busy = (np.cumsum(used[started]) - over)[is_late]
    return float(busy.max()), float((busy > gpus).mean())


def _experiment(
    trace: JobTrace, path: Path, nodes: tuple[NodeGroup, ...], policies: list[str], conf: SlurmConf | None
) -> JobExperiment:
    """Build a case of the last jobs, from the log's state then if it has all starts; a tenth of it is not measured."""
    from_s = float(trace.submit_s[-MOST_JOBS:][0])
    has_starts = np.isfinite(trace.recorded_start_s[trace.submit_s < from_s]).all()
    groups = [{"count": group.nodes, "gpus": group.gpus, "type": group.gpu_type, "vc": group.vc} for group in nodes]
    raw = {
        "schema": SCHEMA,
        "name": "site",
        "trace": str(path),
        "cluster": {"nodes": groups},
        "window": {"from_s": from_s},
        "begin": "snapshot" if from_s > 0 and has_starts else "empty",
        "warmup_s": (float(trace.submit_s[-1]) - from_s) / 10,
        "policies": policies,
        **({} if conf is None else {"multifactor": conf.multifactor, "slurm": {"bf_interval_s": conf.bf_interval_s}}),
    }
    return read_case(strict.validate(JobsScenario, raw, str(path)), str(path))


def _error(experiment: JobExperiment, candidate: NamedPolicy) -> float | None:
    return log_error(experiment, by_job(run_policy(experiment, candidate), experiment.scenario.cluster.gpus))


# -------------------------------------------------------------------------------------------------------------- starter
# A first scenario for a trace, for users to edit, with a comment at each choice.


_NODES: Final = re.compile(r"(?P<count>\d{1,7})x(?P<gpus>\d{1,4})(?::(?P<type>[^:=]+))?(?:=(?P<vc>.+))?")
_MAX_NAMED: Final = 5


def nodes_of(text: str) -> NodeGroup:
    """Parse `64x8`, `64x8:v100`, `16x4:a100=prod`: nodes x GPUs of each, their type (empty: unknown), their VC.

    Raises:
        InputError: it has none of these forms.
    """
    match = _NODES.fullmatch(text)
    if match is None or not int(match["count"]) or not int(match["gpus"]):
        raise InputError("--nodes", "", f"{text!r:.80} is not a group of nodes; such are 64x8, 64x8:v100, 16x4:a100=VC")
    return NodeGroup(int(match["count"]), int(match["gpus"]), match["type"] or "", match["vc"] or "")


def typed(nodes: tuple[NodeGroup, ...], trace: JobTrace) -> tuple[NodeGroup, ...]:
    """Give groups without a type the only one that jobs of the trace request.

    Raises:
        InputError: a group names no type and the trace has several; or no group has a type that jobs request, and no
            job does without.
    """
    kinds = sorted(trace.asked_types)
    if not kinds:
        return tuple(replace(group, gpu_type=group.gpu_type or "gpu") for group in nodes)
    first = nodes[0]
    flags = ", ".join(f"--nodes {first.nodes}x{first.gpus}:{kind}" for kind in kinds[:_MAX_NAMED])
    flags += " and so on" if len(kinds) > _MAX_NAMED else ""
    if len(kinds) > 1 and not all(group.gpu_type for group in nodes):
        raise InputError("--nodes", "", f"jobs request several types of GPUs: give the nodes a type: {flags}")
    groups = tuple(replace(group, gpu_type=group.gpu_type or kinds[0]) for group in nodes)
    given_types = {group.gpu_type for group in groups}
    if "" not in trace.gpu_types and not given_types & set(kinds):
        types = ", ".join(map(repr, sorted(given_types)))
        raise InputError("--nodes", "", f"no job requests GPUs of type {types}, and each names a type; write {flags}")
    return groups


def starter(trace: JobTrace, path: Path, nodes: tuple[NodeGroup, ...], site: Site) -> str:
    """Return the scenario's text; its baseline is the site's inferred policy.

    Raises:
        InputError: the file's name is not valid as a scenario's name.
    """
    name = re.sub(r"[^A-Za-z0-9._-]", "-", path.name.partition(".")[0]).strip("-._")
    if not name:
        raise InputError(
            str(path), "", "its name makes no name of a scenario; rename it, such as cluster.jobtrace.parquet"
        )
    templates = Environment(loader=PackageLoader("jobs"), trim_blocks=True, lstrip_blocks=True, autoescape=False)  # noqa: S701
    templates.filters["quoted"] = _quoted
    facts = {"name": name, "trace": str(path), "nodes": nodes, "warmup": _warmup(trace), "site": site}
    return templates.get_template("starter.yaml.j2").render(facts) + "\n"


def _warmup(trace: JobTrace) -> str:
    """Return a tenth of the trace, a week at most."""
    tenth_s = min(float(trace.submit_s[-1]) / 10, 7 * 86400.0)
    for unit, unit_s in (("d", 86400), ("h", 3600), ("m", 60)):
        if tenth_s >= unit_s:
            return f"{round(tenth_s / unit_s)}{unit}"
    return f"{int(tenth_s)}s"


def _quoted(text: str) -> str:
    """Return a text as quoted YAML, whatever its content."""
    return text if re.fullmatch(r"[A-Za-z][A-Za-z0-9._/-]*", text) else "'" + text.replace("'", "''") + "'"


WHATIF_SCHEMA: Final = "slimsched.jobswhatif/1"


def whatif_document(now: JobExperiment, then: JobExperiment, jobs: int) -> dict[str, Any]:
    """Compare each policy's runs before and after a change: the difference as a share with its interval.

    Args:
        now, then: the scenario before and after the change; with the same policies, in the same order.

    Raises:
        InputError: the change alters the jobs.
    """
    if len(now.jobs) != len(then.jobs):
        problem = f"the change makes {len(then.jobs):,} jobs of {len(now.jobs):,}"
        raise InputError(now.source, "window", f"{problem}: no job could be set against itself")
    indices = range(len(now.policies))
    records = results(_run, (now, then), [(variant, index) for variant in (0, 1) for index in indices], jobs)
    pairs = zip(records[: len(indices)], records[len(indices) :], now.policies, strict=True)
    rows = [
        {"policy": candidate.name, "jitter_share": None, **_change((now, before), (then, after))}
        for before, after, candidate in pairs
    ]
    if now.scenario.jitter_s:
        before_s, after_s = (jittered_waits_s(experiment, jobs).T for experiment in (now, then))
        for index in indices:
            if before_s[index].all():
                rows[index]["jitter_share"] = band(after_s[index] / before_s[index] - 1)
    return {
        "schema": WHATIF_SCHEMA,
        "scenario": now.scenario.name,
        "jobs": len(now.jobs),
        "days": now.jobs.days,
        "run_cv2": now.jobs.run_cv2,
        "gpus": [experiment.scenario.cluster.gpus for experiment in (now, then)],
        "load": [experiment.offered_load for experiment in (now, then)],
        "jitter_s": now.scenario.jitter_s,
        "policies": rows,
    }


def _run(experiments: tuple[JobExperiment, JobExperiment], task: tuple[int, int]) -> JobsRecord:
    experiment = experiments[task[0]]
    return run_policy(experiment, experiment.policies[task[1]])


def _change(*runs: tuple[JobExperiment, JobsRecord]) -> dict[str, Any]:
    before, after = (by_job(record, experiment.scenario.cluster.gpus) for experiment, record in runs)
    now, then = (figures(record, experiment.scenario.cluster.gpus) for experiment, record in runs)
    blocks = Blocks.of(runs[0][0].jobs.submit_ns / NS_PER_S)
    return {"now": now, "then": then, "change": against(after, before, blocks), "block_s": blocks.block_s}


# ------------------------------------------------------------------------------------------------------------- room for
# Capacity of a cluster: the largest load, or the fewest nodes, at which waits stay below a limit.


CAPACITY_SCHEMA: Final = "slimsched.jobscapacity/1"
CHECKS: Final = (0.97, 0.9, 0.8)  # of the largest load that keeps the limit
LOADS: Final = (0.02, 3.0)
PRECISION: Final = 0.02  # of the largest load, as a share of it
MAX_NODES: Final = 100_000


def capacity_document(
    experiment: JobExperiment,
    wait_s: float,
    key: str = "mean",
    by: Literal["load", "nodes"] = "load",
    on_trial: Callable[[float, float], None] = lambda value, measured_s: None,
) -> dict[str, Any]:
    """Find the largest load, or the fewest nodes of the first group, at which waits stay below a limit.

    With fewer nodes no job may be refused that is not refused now. Waits need not increase monotonically with the load,
    so loads below the answer are tried, too (`CHECKS`); `broken_below` lists loads that exceed the limit, with their
    waits.

    Args:
        wait_s, key: limit of the `mean`, `p50`, `p90` or `p99` of all waits.
        on_trial: is called with each value that is tried, and its wait; infinite if jobs are not done.

    Raises:
        InputError: no number of nodes is enough.
    """
    waits_s: dict[float, float] = {}
    changed, most_refused = (_at_load, None) if by == "load" else (_with_nodes, _figures(experiment)["jobs"]["refused"])

    def keeps(value: float) -> bool:
        waits_s[value] = measured_s = _wait_s(changed(experiment, value), key, most_refused)
        on_trial(value, measured_s)
        return measured_s <= wait_s

    answer: dict[str, Any]
    if by == "load":
        low, high = _largest_load(keeps)
        below = [] if low is None else [share * low for share in CHECKS if not keeps(share * low)]
        broken = [{"load": load, "wait_s": waits_s[load] if isfinite(waits_s[load]) else None} for load in below]
        answer = {"load_kept": low, "load_broken": high, "broken_below": broken}
    else:
        nodes = _fewest_nodes(keeps, experiment.scenario.cluster.nodes[0])
        answer = {"nodes": nodes, "wait_there_s": waits_s[nodes]}
    return {
        "schema": CAPACITY_SCHEMA,
        "scenario": experiment.scenario.name,
        "policy": experiment.policies[0].name,
        "load_now": experiment.load,
        "nodes_now": experiment.scenario.cluster.nodes[0].count,
        "limit": {"of": key, "wait_s": wait_s},
        **answer,
    }


def _largest_load(keeps: Callable[[float], bool]) -> tuple[float | None, float | None]:
    """Find the largest load that keeps the limit, and the least that does not, a share of `PRECISION` apart.

    Bisection between a load that keeps the limit and one that does not, as waits needn't increase monotonically. The
    first is None if even the smallest load exceeds the limit, the second if none does.
    """
    low, high = LOADS
    if not keeps(low):
        return None, low
    if keeps(high):
        return high, None
    while high / low > 1 + PRECISION:
        middle = float(np.sqrt(low * high))
        low, high = (middle, high) if keeps(middle) else (low, middle)
    return low, high


def _fewest_nodes(keeps: Callable[[float], bool], group: NodesSection) -> int:
    """Find the fewest nodes of the first group, with the others unchanged."""
    high = max(group.count, 1)
    while not keeps(high):
        if high >= MAX_NODES:
            problem = f"even {high:,} nodes of {group.gpus} GPUs leave waits above it"
            raise InputError("--wait", "", f"{problem}: jobs wait for other nodes, or for ones that are larger")
        high = min(2 * high, MAX_NODES)
    low = 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if keeps(middle) else (middle, high)
    return high


def _at_load(experiment: JobExperiment, load: float) -> JobExperiment:
    return replace(experiment, jobs=experiment.jobs.at_load(load, experiment.scenario.cluster.gpus))


def _with_nodes(experiment: JobExperiment, nodes: float) -> JobExperiment:
    cluster = experiment.scenario.cluster
    groups = (cluster.nodes[0].model_copy(update={"count": int(nodes)}), *cluster.nodes[1:])
    scenario = experiment.scenario.model_copy(update={"cluster": cluster.model_copy(update={"nodes": groups})})
    changed = read_case(scenario, experiment.source, experiment.images_s)
    return replace(changed, jobs=experiment.jobs)  # the same arrivals, although more nodes change the load


def _figures(experiment: JobExperiment) -> dict[str, Any]:
    """Return metrics of a run of the first policy."""
    return figures(run_policy(experiment, experiment.policies[0]), experiment.scenario.cluster.gpus)


def _wait_s(experiment: JobExperiment, key: str, most_refused: int | None) -> float:
    """Return a wait's statistic; infinite if jobs are not done, or too many are refused."""
    result = _figures(experiment)
    is_lost = result["jobs"]["unfinished"] or (most_refused is not None and result["jobs"]["refused"] > most_refused)
    wait_s: float | None = result["wait_s"][key]
    return float("inf") if is_lost or wait_s is None else wait_s


# ------------------------------------------------------------------------------------------------------- log validation
# Validation: the error of simulated waits against the log's, to judge all other results.


VALIDATION_SCHEMA: Final = "slimsched.jobsvalidation/1"
NEAR_S: Final = 60.0  # waits that differ by less, or by a fifth of the mean, are near, whatever their ratio
FACTOR: Final = 2.0
Numbers = NDArray[np.float64]


def validation_document(experiment: JobExperiment, candidate: NamedPolicy, jobs: int = 1) -> dict[str, Any]:
    """Compare one policy's waits with the recorded ones, of jobs that have both.

    Raises:
        InputError: the log recorded no waits, or too few.
    """
    record = run_policy(experiment, candidate)
    columns = by_job(record, experiment.scenario.cluster.gpus)
    recorded_s, is_compared = recorded(experiment, columns)
    if is_compared.sum() < 2:
        problem = "the log recorded no waits that could be compared; import it with the columns of its starts"
        raise InputError(experiment.source, "trace", problem)
    blocks = Blocks.of(experiment.jobs.submit_ns / NS_PER_S)
    simulated = columns["wait_s"]
    groups = groups_of(record, is_compared, simulated_mean_s=simulated, recorded_mean_s=recorded_s)
    gpus, jitter_s = experiment.scenario.cluster.gpus, experiment.scenario.jitter_s
    return {
        "schema": VALIDATION_SCHEMA,
        "scenario": experiment.scenario.name,
        "policy": candidate.name,
        "load": experiment.offered_load,
        "gpus": gpus,
        "busy_gpus": busy_of(experiment.jobs, gpus)[0],
        "jobs": int(is_compared.sum()),
        "left_out": int(len(experiment.jobs) - is_compared.sum()),
        "simulated_s": spread(simulated[is_compared]),
        "recorded_s": spread(recorded_s[is_compared]),
        "jitter_s": jitter_s,
        "jitter_wait_s": band(jittered_waits_s(replace(experiment, policies=(candidate,)), jobs)) if jitter_s else None,
        "error_share": blocks.share(simulated, recorded_s, is_compared),
        "error_s": float((simulated - recorded_s)[is_compared].mean()),
        "log_error": log_error(experiment, columns),
        **_closeness(simulated[is_compared], recorded_s[is_compared]),
        "groups": [row for row, _ in groups],
    }


def _closeness(simulated_s: Numbers, recorded_s: Numbers) -> dict[str, float | None]:
    """Compare job by job: shares of near waits and of waits in only one of the two, and Spearman's rho."""
    low, high = np.minimum(simulated_s, recorded_s), np.maximum(simulated_s, recorded_s)
    near_s = min(NEAR_S, NEAR_MEAN * float(recorded_s.mean()))
    near = (high - low <= near_s) | (high <= FACTOR * low)
    constant = np.ptp(simulated_s) == 0 or np.ptp(recorded_s) == 0
    return {
        "near_s": near_s,
        "near_share": float(near.mean()),
        "only_simulated_share": float(((simulated_s > near_s) & (recorded_s <= near_s)).mean()),
        "only_recorded_share": float(((recorded_s > near_s) & (simulated_s <= near_s)).mean()),
        "rank_correlation": None if constant else float(spearmanr(simulated_s, recorded_s).statistic),
    }
