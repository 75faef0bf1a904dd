"""Policies on the same jobs, set against one of them job by job, and against the bound."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from jobs.bounding import CaseBound
from jobs.case import JobsCase, NamedPolicy
from jobs.figures import JobColumns, figures, groups_of, job_columns
from jobs.records import SUFFIX, fingerprint, read_run, write_run
from jobs.resampling import Blocks, Interval
from jobs.sim.record import JobsRecord
from jobs.sim.world import JobSimulation
from kit.parallel import Jobs, each
from kit.units import NS_PER_S

SCHEMA: Final = "slimsched.jobscomparison/1"
RESULT_SCHEMA: Final = "slimsched.jobsresult/1"
SAME_S: Final = 1.0  # waits that differ by less are the same
COMPARED: Final = ("jct_s", "wait_s", "slowdown", "finish_time_fairness")
Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class PolicyRun:
    """One policy's run."""

    name: str
    is_preemptive: bool
    record: JobsRecord


def run_policy(case: JobsCase, named: NamedPolicy) -> JobsRecord:
    """One policy's run on a case."""
    return JobSimulation(case.world, case.run_of(named)).run()


def run_all(
    case: JobsCase, jobs: Jobs, folder: Path | None = None, told: Callable[[str, bool], None] = lambda name, found: None
) -> list[PolicyRun]:
    """All policies of a case, in their order; those whose runs lie in the folder are read from there.

    Args:
        jobs: in so many processes, or elsewhere.
        folder: where runs are kept, as soon as each is done.
        told: is called with a policy's name when its run is there, and whether it had been before.

    Raises:
        InputError: something else lies where a run would be written.
    """
    records: dict[str, JobsRecord] = {}
    marks = {named.name: fingerprint(case, named) for named in case.policies} if folder is not None else {}
    for named in case.policies if folder is not None else ():
        if (record := read_run(_place(folder, named), marks[named.name])) is not None:
            records[named.name] = record
            told(named.name, True)
    missing = [named for named in case.policies if named.name not in records]
    for place, record in each(run_policy, case, missing, jobs):
        name = missing[place].name
        records[name] = record
        if folder is not None:
            write_run(_place(folder, missing[place]), record, case.jobs.job_id, marks[name])
        told(name, False)
    return [PolicyRun(named.name, named.policy.is_preemptive, records[named.name]) for named in case.policies]


def _place(folder: Path | None, named: NamedPolicy) -> Path:
    assert folder is not None
    return folder / f"{re.sub(r'[^A-Za-z0-9.,@=_-]', '_', named.name)}{SUFFIX}"


# ------------------------------------------------------------------------------------------------------------ documents


def result_document(case: JobsCase, run: PolicyRun, bounds: Sequence[CaseBound] = ()) -> dict[str, Any]:
    """One run as a document, with those bounds that are of its kind."""
    gpus = case.scenario.cluster.gpus
    return {
        "schema": RESULT_SCHEMA,
        "scenario": case.scenario.name,
        "policy": run.name,
        "is_preemptive": run.is_preemptive,
        "load": case.load,
        **figures(run.record, gpus),
        "bounds": _documents(bounds),
        "above_bound": _above(job_columns(run.record, gpus), bounds, run.is_preemptive),
    }


def comparison_document(case: JobsCase, runs: Sequence[PolicyRun], bounds: Sequence[CaseBound]) -> dict[str, Any]:
    """All runs beside each other; each but the baseline against it, job by job."""
    gpus = case.scenario.cluster.gpus
    columns = {run.name: job_columns(run.record, gpus) for run in runs}
    base = next(run for run in runs if run.name == case.baseline.name)
    blocks = Blocks.of(base.record.submit_ns / NS_PER_S)
    rows = []
    for run in runs:
        mine = columns[run.name]
        row = {
            "policy": run.name,
            "is_preemptive": run.is_preemptive,
            **figures(run.record, gpus),
            "intervals": {name: blocks.mean(getattr(mine, name), mine.is_done) for name in COMPARED},
            "above_bound": _above(mine, bounds, run.is_preemptive),
        }
        if run is not base:
            row["against_baseline"] = against(mine, columns[base.name], blocks)
            row["groups"] = list(_by_group(run.record, mine, columns[base.name]))
        rows.append(row)
    least = _least(rows)
    for row in rows:
        mine = columns[row["policy"]]
        row["behind"] = {name: _behind(mine, columns[name], blocks) for name in least if name != row["policy"]}
    return {
        "schema": SCHEMA,
        "scenario": case.scenario.name,
        "load": case.load,
        "gpus": gpus,
        "jobs": len(case.jobs),
        "warmup_s": case.scenario.warmup_s,
        "days": case.jobs.days,
        "run_cv2": case.jobs.run_cv2,
        "baseline": base.name,
        "least": least,
        "block_s": blocks.block_s,
        "bounds": _documents(bounds),
        "policies": rows,
    }


def _documents(bounds: Sequence[CaseBound]) -> list[dict[str, Any]]:
    keys = ("is_preemptive", "jobs", "jct_mean_s", "wait_mean_s")
    return [{key: getattr(bound, key) for key in keys} for bound in bounds]


def _least(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Who waits least of all that a scheduler could run, and of those that stop no job.

    A policy that knows true run times (`oracle`), or that left jobs undone, is none of them.
    """
    able = [row for row in rows if "oracle" not in row["policy"] and not row["jobs"]["unfinished"]]
    pools = able, [row for row in able if not row["is_preemptive"]]
    best = [min(pool, key=lambda row: float(row["wait_s"]["mean"]))["policy"] for pool in pools if len(pool) > 1]
    return list(dict.fromkeys(best))


def _behind(mine: JobColumns, best: JobColumns, blocks: Blocks) -> Interval:
    """By which share the other's mean wait is below its own, paired by job."""
    return blocks.share(best.wait_s, mine.wait_s, mine.is_done & best.is_done)


def _above(mine: JobColumns, bounds: Sequence[CaseBound], is_preemptive: bool) -> dict[str, float] | None:
    """How far a policy is from its bound: None without one, or where not all jobs are done that the bound counts."""
    for bound in bounds:
        if bound.is_preemptive == is_preemptive and int(mine.is_done.sum()) == bound.jobs:
            jct_mean_s = float(mine.jct_s[mine.is_done].mean())
            return {
                "wait_mean_s": float(mine.wait_s[mine.is_done].mean()) - bound.wait_mean_s,
                "jct_share": jct_mean_s / bound.jct_mean_s - 1,
            }
    return None


def against(mine: JobColumns, base: JobColumns, blocks: Blocks) -> dict[str, Any]:
    """By how much means differ, of jobs that both have done: as a share, whose interval judges, and as such."""
    both = mine.is_done & base.is_done
    found: dict[str, Any] = {}
    for name in COMPARED:
        ours, theirs = getattr(mine, name), getattr(base, name)
        found[name] = {
            "share": blocks.share(ours, theirs, both),
            "difference": float((ours - theirs)[both].mean()) if both.any() else None,
        }
    return {**found, **_won(mine, base, both)}


def _won(mine: JobColumns, base: JobColumns, both: NDArray[np.bool_]) -> dict[str, float | None]:
    """Shares of the jobs that wait less, and more, than under the baseline."""
    if not both.any():
        return {"less_wait_share": None, "more_wait_share": None}
    change_s = (mine.wait_s - base.wait_s)[both]
    return {
        "less_wait_share": float((change_s < -SAME_S).mean()),
        "more_wait_share": float((change_s > SAME_S).mean()),
    }


def _by_group(record: JobsRecord, mine: JobColumns, base: JobColumns) -> Iterator[Mapping[str, Any]]:
    """Who wins and who loses: by size and by virtual cluster."""
    both = mine.is_done & base.is_done
    for group in groups_of(record):
        members = both & group.members
        if members.any():
            yield {
                "kind": group.kind,
                "name": group.name,
                "jobs": int(members.sum()),
                "wait_mean_s": float(mine.wait_s[members].mean()),
                "baseline_wait_mean_s": float(base.wait_s[members].mean()),
                **_won(mine, base, members),
            }
