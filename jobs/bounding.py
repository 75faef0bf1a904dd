"""The bound of a case: completion times below which no policy comes, with preemption and without."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from jobs.case import JobsCase
from jobs.doubts import require_a_fit
from jobs.policies.cluster import Cluster
from jobs.sim.bound import Bound, BoundProblem, lower_bound
from kit.units import NS_PER_S

BOTH: Final = (False, True)  # without preemption, and with
Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class CaseBound:
    """Of the measured jobs of a case, those that can run at all.

    Attributes:
        jct_mean_s: no policy's mean completion time is below.
        wait_mean_s: the same less the mean run time at full speed on the fastest type.
        pools: what its prices are of, in words.
    """

    is_preemptive: bool
    jobs: int
    jct_mean_s: float
    wait_mean_s: float
    pools: tuple[str, ...]
    bound: Bound


def bound_of(case: JobsCase, is_preemptive: bool) -> CaseBound:
    """The best one that the scenario's number of passes finds.

    Other jobs than the measured ones are left out: they could only make these wait longer. So are failures.

    Raises:
        InputError: no measured job fits into the cluster.
    """
    require_a_fit(case)
    cluster = Cluster(case.world.groups)
    run_s, best_s = _run_times(case, cluster)
    measured = case.run_of(case.baseline).is_measured
    counts = measured & np.isfinite(run_s).any(axis=1)
    problem = BoundProblem(
        case.jobs.submit_s[counts],
        (case.jobs.gpus * case.jobs.gpu_share)[counts],
        run_s[counts],
        np.array([float(pool.gpus) for pool in cluster.pools]),
    )
    given = case.scenario.bound
    bound = lower_bound(problem, is_preemptive, given.passes, given.cell_s)
    jct_mean_s = bound.total_s / int(counts.sum())
    return CaseBound(
        is_preemptive,
        int(counts.sum()),
        jct_mean_s,
        jct_mean_s - float(best_s[counts].mean()),
        tuple(_pool_name(pool.gpu_type, pool.vc, pool.gpus) for pool in cluster.pools),
        bound,
    )


def _run_times(case: JobsCase, cluster: Cluster) -> tuple[Numbers, Numbers]:
    """(n, pools) seconds by pool, infinite where a job may not run; (n,) on the fastest type that it may use."""
    jobs, speeds = case.jobs, case.world.speeds
    rows: dict[tuple[str, str, str], tuple[Numbers, float]] = {}
    sizes = np.array([pool.gpus for pool in cluster.pools])
    factors, fastest = np.zeros((len(jobs), len(cluster.pools))), np.ones(len(jobs))
    for job, key in enumerate(zip(jobs.vc.tolist(), jobs.gpu_types.tolist(), jobs.job_class.tolist(), strict=True)):
        if key not in rows:
            vc, types, job_class = key
            may = cluster.open_to(vc, types.split("|") if types else ())
            row = np.zeros(len(cluster.pools))
            for pool in may:
                row[pool.index] = speeds.of(job_class, pool.gpu_type)
            rows[key] = row, float(row.max()) or 1.0
        factors[job], fastest[job] = rows[key]
    factors[jobs.gpus[:, None] > sizes[None, :]] = 0.0
    work_s = jobs.work_ns / NS_PER_S
    with np.errstate(divide="ignore"):
        return work_s[:, None] / factors, work_s / fastest


def _pool_name(gpu_type: str, vc: str, gpus: int) -> str:
    return f"{gpus:,} {gpu_type}{f' of {vc}' if vc else ''}"


def bounds_of(case: JobsCase, kinds: Sequence[bool] = BOTH, told: Callable[[], None] = lambda: None) -> list[CaseBound]:
    """Without preemption (False) and with; `told` is called after each.

    What holds where jobs may be stopped holds where they may not, for those schedules are among these. So where both
    are sought, the larger of the two stands for the latter: that search stalls where many jobs are alike.
    """
    found = []
    for is_preemptive in kinds:
        found.append(bound_of(case, is_preemptive))
        told()
    largest = max(found, key=lambda each: each.jct_mean_s)
    return [each if each.is_preemptive else replace(largest, is_preemptive=False) for each in found]
