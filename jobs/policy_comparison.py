"""Comparison of policies on training jobs; runs are Parquet files with a fingerprint, so that none is repeated."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from jobs.job_records import DAY_S, Blocks, JobsRecord, are_done, by_day, by_job, figures, groups_of
from jobs.job_scenario import JobExperiment, require_a_fit
from jobs.job_simulation import JobSimulation
from jobs.job_traces import JobTrace
from jobs.learning.scoring_network import NamedPolicy
from jobs.policies.job_cluster import Cluster, Pool
from jobs.policies.named_policies import EASY, NONE, RESERVING, in_slurm, shown_name
from jobs.policies.run_times import HISTORY, REQUESTED
from jobs.wait_bound import BoundProblem, lower_bound
from kit.documents import inputs_hash
from kit.errors import InputError
from kit.files import atomic_path, lies_there
from kit.parallel import each, results
from kit.random_streams import stream
from kit.strict import named_files, with_paths
from kit.units import NS_PER_S

RUN_SCHEMA: Final = "slimsched.jobsrun/1"
SUFFIX: Final = ".jobsrun.parquet"
_KEY: Final = b"slimsched"
_SCALARS: Final = ("policy", "begun_ns", "ended_ns", "capacity_gpu_ns", "down_gpu_ns", "in_system_ns")
_OF_THE_TRACE: Final = ("job_id", "submit_ns", "gpus", "gpu_share", "user", "vc", "work_ns")
_COLUMNS: Final = tuple(field.name for field in fields(JobsRecord) if field.name not in (*_SCALARS, "jobs"))
# A policy brings its own numbers of preemption and priorities.
_NOT_IN_A_RUN: Final = ("name", "policies", "baseline", "bound", "preemption", "multifactor", "jitter_s")


def fingerprint(experiment: JobExperiment, candidate: NamedPolicy) -> str:
    """Return a hash of all that a run depends on: the scenario's keys, the files that it names, the policy."""
    scenario = with_paths(experiment.scenario, lambda text: Path(text).name)
    keys = {key: value for key, value in scenario.model_dump(mode="json").items() if key not in _NOT_IN_A_RUN}
    paths = [file.path for file in named_files(experiment.scenario) if file.key.partition(".")[0] not in _NOT_IN_A_RUN]
    net = None if candidate.learned is None else candidate.learned.content()
    return inputs_hash(
        RUN_SCHEMA, keys, repr(experiment.cluster_model.speeds), candidate.name, repr(candidate.policy), net, *paths
    )


def write_run(path: Path, made_of: str, record: JobsRecord) -> None:
    """Write a run's columns with some of the trace's, and its sums."""
    import pyarrow
    from pyarrow import parquet

    columns = {name: getattr(record.jobs, name) for name in _OF_THE_TRACE}
    columns |= {name: getattr(record, name) for name in _COLUMNS}
    scalars = {name: getattr(record, name) for name in _SCALARS}
    text = json.dumps({"schema": RUN_SCHEMA, "made_of": made_of, **scalars}, sort_keys=True)
    table = pyarrow.table({name: pyarrow.array(values) for name, values in columns.items()})
    with atomic_path(path) as temporary:
        parquet.write_table(table.replace_schema_metadata({_KEY: text.encode()}), temporary, compression="zstd")


def read_run(path: Path, made_of: str, jobs: JobTrace) -> JobsRecord | None:
    """Read a run of these jobs from its file; None if there is none, or its fingerprint differs.

    Raises:
        InputError: the file is not such a run, so it isn't overwritten.
    """
    from pyarrow import ArrowException, parquet

    if not lies_there(path):
        return None
    try:
        table = parquet.read_table(path)
        header: dict[str, Any] = json.loads((table.schema.metadata or {}).get(_KEY, b"{}"))
    except (ArrowException, OSError, ValueError):
        raise InputError(str(path), "", "is not a run of training jobs, or damaged; remove it") from None
    if header.get("schema") != RUN_SCHEMA:
        raise InputError(str(path), "", "was not made by `slimsched jobs`; move it elsewhere, or name another folder")
    if header["made_of"] != made_of:
        return None
    columns = {name: table[name].to_numpy() for name in _COLUMNS}
    return JobsRecord(jobs=jobs, **columns, **{name: header[name] for name in _SCALARS})


# ------------------------------------------------------------------------------------------------------------- bounding
# The bound of a case: a lower bound of completion times under any policy, with preemption and without.


BOTH: Final = (False, True)  # without preemption, and with
Numbers = NDArray[np.float64]


Bound = Mapping[str, Any]  # the output of `bound_of`


def bound_of(experiment: JobExperiment, is_preemptive: bool) -> Bound:
    """Return the best bound found in the scenario's number of passes, as a document.

    No policy's mean completion time is below `jct_mean_s`; `wait_mean_s` is the same less the mean run time at full
    speed on the fastest type; `prices` are hours of completion time that a GPU-hour is worth, by pool, over time.
    `jobs` are the measured ones that can run at all. Other jobs and failures are left out: they could only make these
    wait longer.

    Raises:
        InputError: no measured job fits into the cluster.
    """
    require_a_fit(experiment)
    cluster = Cluster(experiment.cluster_model.groups)
    run_s, best_s = _run_times(experiment, cluster)
    measured = experiment.run_of(experiment.baseline).is_measured
    counts = measured & np.isfinite(run_s).any(axis=1)
    problem = BoundProblem(
        experiment.jobs.submit_s[counts],
        (experiment.jobs.gpus * experiment.jobs.gpu_share)[counts],
        run_s[counts],
        np.array([float(pool.gpus) for pool in cluster.pools]),
    )
    settings = experiment.scenario.bound
    bound = lower_bound(problem, is_preemptive, settings.passes, settings.cell_s)
    jct_mean_s = bound.total_s / int(counts.sum())
    prices = bound.prices
    return {
        "is_preemptive": is_preemptive,
        "jobs": int(counts.sum()),
        "jct_mean_s": jct_mean_s,
        "wait_mean_s": jct_mean_s - float(best_s[counts].mean()),
        "price_mean": float(prices.mean()),
        "price_max": float(prices.max()),
        "free_share": float((prices == 0).mean()),
        "cell_s": bound.cell_s,
        "begins_s": bound.begins_s,
        "prices": dict(zip(_pool_names(cluster.pools), prices.tolist(), strict=True)),
    }


def _run_times(experiment: JobExperiment, cluster: Cluster) -> tuple[Numbers, Numbers]:
    """Return (n, pools) seconds by pool, infinite if a job may not run; (n,) on the fastest type that it may use."""
    speeds = cluster.speeds(experiment.jobs.arrivals(), experiment.cluster_model.speeds)
    fastest = speeds.max(axis=1)
    for needed, most in (
        (experiment.jobs.gpus, [pool.gpus for pool in cluster.pools]),
        (experiment.jobs.nodes, [len(pool.nodes) for pool in cluster.pools]),
    ):
        speeds[needed[:, None] > np.array(most)] = 0.0
    work_s = experiment.jobs.work_ns / NS_PER_S
    with np.errstate(divide="ignore"):
        return work_s[:, None] / speeds, work_s / np.where(fastest > 0, fastest, 1.0)


def _pool_names(pools: Sequence[Pool]) -> list[str]:
    """Return type and VC of each pool; and the node size, if two pools are otherwise equal."""
    names = [f"{pool.gpus:,} {pool.gpu_type}{f' of {pool.vc}' if pool.vc else ''}" for pool in pools]
    if len(set(names)) < len(names):
        return [f"{name}, {pool.size} a node" for name, pool in zip(names, pools, strict=True)]
    return names


def bounds_of(
    experiment: JobExperiment, kinds: Sequence[bool] = BOTH, on_bound: Callable[[], None] = lambda: None
) -> list[Bound]:
    """Compute the bounds without preemption (False) and with; calls `on_bound` after each.

    A bound with preemption also holds without, for schedules without preemption are a special case. So if both are
    sought, the bound without is the larger of the two: its search stalls if many jobs are equal.
    """
    bounds = []
    for is_preemptive in kinds:
        bounds.append(bound_of(experiment, is_preemptive))
        on_bound()
    largest = max(bounds, key=lambda bound: float(bound["jct_mean_s"]))
    return [bound if bound["is_preemptive"] else {**largest, "is_preemptive": False} for bound in bounds]


# ------------------------------------------------------------------------------------------------------------ comparing
# Policies on the same jobs, compared with one of them job by job, and with the bound.


SCHEMA: Final = "slimsched.jobscomparison/1"
RESULT_SCHEMA: Final = "slimsched.jobsresult/1"
ByJob = Mapping[str, Numbers]  # as `figures.by_job` has it
SAME_S: Final = 1.0  # waits that differ by less are the same


def run_policy(experiment: JobExperiment, candidate: NamedPolicy) -> JobsRecord:
    """Run one policy on a case."""
    return JobSimulation(experiment.cluster_model, experiment.run_of(candidate)).run()


def run_all(
    experiment: JobExperiment,
    jobs: int,
    folder: Path | None = None,
    on_run: Callable[[str, bool], None] = lambda *_: None,
) -> dict[str, JobsRecord]:
    """Run all policies of a case; returns runs by name, in order, and reads runs that are in the folder.

    Args:
        jobs: number of processes, unless another backend is configured.
        folder: the folder in which each run is stored as soon as it is done.
        on_run: is called with a policy's name when its run is available, and whether it was read from the folder.

    Raises:
        InputError: another file has the name of a run's file.
    """
    records: dict[str, JobsRecord] = {}
    files: dict[str, tuple[Path, str]] = {}  # file and fingerprint
    if folder is not None:
        for candidate in experiment.policies:
            file = f"{re.sub(r'[^A-Za-z0-9.,@=_-]', '_', candidate.name)}{SUFFIX}"
            files[candidate.name] = folder / file, fingerprint(experiment, candidate)
            if (record := read_run(*files[candidate.name], experiment.jobs)) is not None:
                records[candidate.name] = record
                on_run(candidate.name, True)
    missing = [candidate for candidate in experiment.policies if candidate.name not in records]
    for index, record in each(run_policy, experiment, missing, jobs):
        name = missing[index].name
        records[name] = record
        if name in files:
            write_run(*files[name], record)
        on_run(name, False)
    return {candidate.name: records[candidate.name] for candidate in experiment.policies}


GROWN: Final = 1.5  # times the baseline's longest wait: above it a policy gets a guard, and the result a warning


def guarded(experiment: JobExperiment, comparison: Mapping[str, Any]) -> NamedPolicy | None:
    """Give the best policy that stops no job a guard of age and reservations, if its longest wait grows.

    The guard is a third of the baseline's longest wait. It reserves (`easy`): without a reservation small jobs keep
    starting before the oldest job, until the GPUs that it needs happen to be free.

    Returns:
        None if no longest wait grows, or the policy already has a guard or cannot have one.
    """
    longest_s = {row["policy"]: row["wait_s"]["max"] or 0.0 for row in comparison["policies"]}
    candidate = next(
        (best for best in experiment.policies if [best.name] == comparison["least"][-1:]), experiment.baseline
    )
    policy, base_s = candidate.policy, longest_s[experiment.baseline.name]
    grows = 0 < GROWN * base_s < longest_s[candidate.name]
    if not grows or policy.is_preemptive or policy.learned or policy.age_guard_ns:
        return None
    unit_s = 3600 if base_s >= 6 * 3600 else 60
    guard_ns = max(1, round(base_s / 3 / unit_s)) * unit_s * NS_PER_S
    limits = HISTORY if np.isnan(experiment.jobs.requested_s).any() else REQUESTED
    estimate = limits if policy.estimate == NONE else policy.estimate
    queueing = policy.queueing if policy.queueing in RESERVING else EASY
    policy = replace(policy, queueing=queueing, estimate=estimate, age_guard_ns=guard_ns)
    return None if shown_name(policy) in longest_s else NamedPolicy(shown_name(policy), policy)


def recorded(experiment: JobExperiment, mine: ByJob) -> tuple[Numbers, NDArray[np.bool_]]:
    """Return (n,) each: the log's waits in seconds, 0 if missing; and which jobs have one and are done here.

    At another load than the log's no job counts.
    """
    recorded_s = experiment.jobs.recorded_wait_s
    is_compared = are_done(mine) & np.isfinite(recorded_s) & (experiment.scenario.load is None)
    return np.maximum(np.nan_to_num(recorded_s), 0.0), is_compared


def log_error(experiment: JobExperiment, mine: ByJob) -> float | None:
    """Return the mean of |simulated - recorded| waits, as a share of the recorded mean.

    0 means equal waits of each job; 1 is the error of a simulation without any waits, so larger errors are meaningless.
    (A median would be near 0 under any policy, for most jobs of most logs hardly wait.) None if the log has no waits,
    or their mean is below a second.
    """
    recorded_s, is_compared = recorded(experiment, mine)
    if not is_compared.any() or recorded_s[is_compared].mean() < SAME_S:
        return None
    return float(np.abs(mine["wait_s"] - recorded_s)[is_compared].mean() / recorded_s[is_compared].mean())


def _recorded_mean_s(experiment: JobExperiment, mine: ByJob) -> dict[str, float] | None:
    """Return the mean waits of the jobs of `log_error`, in the log and in simulation; None if it has none."""
    recorded_s, is_compared = recorded(experiment, mine)
    if log_error(experiment, mine) is None:
        return None
    return {"log": float(recorded_s[is_compared].mean()), "simulated": float(mine["wait_s"][is_compared].mean())}


# --------------------------------------------------------------------------------------------------------------- jitter
# Sensitivity of means to single seconds: a job that arrives or ends a second later may start after others, which
# changes everything after it.


DRAWS: Final = 20
Band = tuple[float, float]  # from the 5th to the 95th of a hundred


def jittered_waits_s(experiment: JobExperiment, jobs: int) -> Numbers:
    """Simulate (draws, policies) mean waits; a draw is the same for all policies, and all cases of equal jobs."""
    tasks = [(draw, index) for draw in range(DRAWS) for index in range(len(experiment.policies))]
    return np.array(results(_jittered_wait_s, experiment, tasks, jobs)).reshape(DRAWS, -1)


def _jittered_wait_s(experiment: JobExperiment, task: tuple[int, int]) -> float:
    draw, index = task
    rng = stream(experiment.scenario.seed, f"job jitter {draw}")
    came, ended = experiment.scenario.jitter_s * rng.uniform(size=(2, len(experiment.jobs)))
    moved = replace(experiment.jobs, submit_s=experiment.jobs.submit_s + came, run_s=experiment.jobs.run_s + ended)
    jobs = moved.rows(np.argsort(moved.submit_s, kind="stable"))
    columns = by_job(
        run_policy(replace(experiment, jobs=jobs), experiment.policies[index]), experiment.scenario.cluster.gpus
    )
    return float(columns["wait_s"][are_done(columns)].mean())


def band(values: Numbers) -> Band:
    """Return the draws' band."""
    low, high = np.quantile(values, [0.05, 0.95]).tolist()
    return low, high


def jitter_document(experiment: JobExperiment, jobs: int) -> dict[str, Any]:
    """Return each policy's band, and that of its change against the baseline."""
    waits_s = jittered_waits_s(experiment, jobs)
    base_s = waits_s[:, experiment.policies.index(experiment.baseline)]
    rows = [
        {"policy": candidate.name, "wait_s": band(mine_s), "share": band(mine_s / base_s - 1) if base_s.all() else None}
        for candidate, mine_s in zip(experiment.policies, waits_s.T, strict=True)
    ]
    return {"jitter_s": experiment.scenario.jitter_s, "draws": DRAWS, "policies": rows}


# ------------------------------------------------------------------------------------------------------------ documents


def result_document(
    experiment: JobExperiment, candidate: NamedPolicy, record: JobsRecord, bounds: Sequence[Bound] = ()
) -> dict[str, Any]:
    """Return one policy's run as a document, with the bounds of its kind."""
    gpus, is_preemptive = experiment.scenario.cluster.gpus, candidate.policy.is_preemptive
    return {
        "schema": RESULT_SCHEMA,
        "scenario": experiment.scenario.name,
        "policy": candidate.name,
        "is_preemptive": is_preemptive,
        "load": experiment.offered_load,
        **figures(record, gpus),
        "bounds": _documents(bounds),
        "above_bound": _above(by_job(record, gpus), bounds, is_preemptive),
    }


def comparison_document(
    experiment: JobExperiment, runs: Mapping[str, JobsRecord], bounds: Sequence[Bound]
) -> dict[str, Any]:
    """Compare all runs; each but the baseline with the baseline, job by job."""
    gpus = experiment.scenario.cluster.gpus
    columns = {name: by_job(record, gpus) for name, record in runs.items()}
    done = {name: are_done(of_policy) for name, of_policy in columns.items()}
    base = columns[experiment.baseline.name]
    blocks = Blocks.of(experiment.jobs.submit_ns / NS_PER_S)
    rows = []
    for candidate in experiment.policies:
        record, mine = runs[candidate.name], columns[candidate.name]
        row = {
            "policy": candidate.name,
            "is_preemptive": candidate.policy.is_preemptive,
            **figures(record, gpus),
            "intervals": {name: blocks.mean(values, done[candidate.name]) for name, values in mine.items()},
            "above_bound": _above(mine, bounds, candidate.policy.is_preemptive),
            "daily_wait_s": by_day(experiment.jobs.submit_s, mine["wait_s"], done[candidate.name]),
            "slurm": asdict(in_slurm(candidate.policy)),
        }
        if mine is not base:
            row["against_baseline"] = against(mine, base, blocks)
            is_compared = done[candidate.name] & done[experiment.baseline.name]
            groups = groups_of(record, is_compared, wait_mean_s=mine["wait_s"], baseline_wait_mean_s=base["wait_s"])
            row["groups"] = [group | _won(mine, base, members) for group, members in groups]
        rows.append(row)
    least = _least(rows)
    for row in rows:
        policy = row["policy"]
        row["behind"] = {  # the share by which the best one's mean wait is below its own, paired by job
            name: blocks.share(columns[name]["wait_s"], columns[policy]["wait_s"], done[policy] & done[name])
            for name in least
            if name != policy
        }
    return {
        "schema": SCHEMA,
        "scenario": experiment.scenario.name,
        "load": experiment.offered_load,
        "gpus": gpus,
        "jobs": len(experiment.jobs),
        "warmup_s": experiment.scenario.warmup_s,
        "days": experiment.jobs.days,
        "run_cv2": experiment.jobs.run_cv2,
        "baseline": experiment.baseline.name,
        "baseline_log_error": log_error(experiment, base),
        "recorded_wait_s": _recorded_mean_s(experiment, base),
        "recorded_daily_wait_s": by_day(experiment.jobs.submit_s, *recorded(experiment, base)),
        "first_day": int(experiment.jobs.submit_s[0] // DAY_S),
        "least": least,
        "block_s": blocks.block_s,
        "bounds": _documents(bounds),
        "policies": rows,
    }


def bound_document(experiment: JobExperiment, bounds: Sequence[Bound]) -> dict[str, Any]:
    """Return all bounds with their prices."""
    return {
        "schema": "slimsched.jobsbound/1",
        "scenario": experiment.scenario.name,
        "jobs": bounds[0]["jobs"],
        "gpus": experiment.scenario.cluster.gpus,
        "load": experiment.load,
        "bounds": [{key: value for key, value in bound.items() if key != "jobs"} for bound in bounds],
    }


def _documents(bounds: Sequence[Bound]) -> list[dict[str, Any]]:
    keys = ("is_preemptive", "jobs", "jct_mean_s", "wait_mean_s")
    return [{key: bound[key] for key in keys} for bound in bounds]


def _least(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the policies with the least wait: of all that a scheduler could run, and of those that stop no job.

    Policies that use true run times (`oracle`), or left jobs undone, are excluded.
    """
    able = [row for row in rows if "oracle" not in row["policy"] and not row["jobs"]["unfinished"]]
    pools = able, [row for row in able if not row["is_preemptive"]]
    best = [min(pool, key=lambda row: float(row["wait_s"]["mean"]))["policy"] for pool in pools if len(pool) > 1]
    return list(dict.fromkeys(best))


def _above(mine: ByJob, bounds: Sequence[Bound], is_preemptive: bool) -> dict[str, float] | None:
    """Return how far a policy is above its bound; None without one, or if a job that the bound counts is not done."""
    done = are_done(mine)
    for bound in bounds:
        if bound["is_preemptive"] == is_preemptive and int(done.sum()) == bound["jobs"]:
            jct_mean_s = float(mine["jct_s"][done].mean())
            return {
                "wait_mean_s": float(mine["wait_s"][done].mean()) - bound["wait_mean_s"],
                "jct_share": jct_mean_s / bound["jct_mean_s"] - 1,
            }
    return None


def against(mine: ByJob, base: ByJob, blocks: Blocks) -> dict[str, Any]:
    """Return the difference of means over jobs that both have done: relative (its interval decides), and absolute."""
    is_compared = are_done(mine) & are_done(base)
    changes: dict[str, Any] = {}
    for name, theirs in base.items():
        changes[name] = {
            "share": blocks.share(mine[name], theirs, is_compared),
            "difference": float((mine[name] - theirs)[is_compared].mean()) if is_compared.any() else None,
        }
    return {**changes, **_won(mine, base, is_compared)}


def _won(mine: ByJob, base: ByJob, is_compared: NDArray[np.bool_]) -> dict[str, float | None]:
    """Return the shares of jobs that wait less, and more, than under the baseline."""
    if not is_compared.any():
        return {"less_wait_share": None, "more_wait_share": None}
    change_s = (mine["wait_s"] - base["wait_s"])[is_compared]
    return {"less_wait_share": float((change_s < -SAME_S).mean()), "more_wait_share": float((change_s > SAME_S).mean())}
