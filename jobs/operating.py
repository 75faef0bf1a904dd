"""What-if comparison of a changed cluster: one policy on the same jobs before and after, paired by job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import isfinite
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr

from jobs.case import JobsCase, read_case
from jobs.comparing import against, band, jittered_waits_s, log_error, recorded, run_policy
from jobs.figures import NEAR_MEAN, Blocks, by_job, figures, groups_of, spread
from jobs.learning.learned import NamedPolicy
from jobs.sim.jobs import JobsRecord
from jobs.site import busy_of
from jobs.spec import NodesSection
from kit.errors import InputError
from kit.parallel import results
from kit.units import NS_PER_S

WHATIF_SCHEMA: Final = "slimsched.jobswhatif/1"


def whatif_document(now: JobsCase, then: JobsCase, jobs: int) -> dict[str, Any]:
    """Compare each policy's runs before and after a change: the difference as a share with its interval.

    Args:
        now, then: the scenario before and after the change; with the same policies, in the same order.

    Raises:
        InputError: the change alters the jobs.
    """
    if len(now.jobs) != len(then.jobs):
        problem = f"the change makes {len(then.jobs):,} jobs of {len(now.jobs):,}"
        raise InputError(now.source, "window", f"{problem}: no job could be set against itself")
    places = range(len(now.policies))
    records = results(_run, (now, then), [(world, place) for world in (0, 1) for place in places], jobs)
    pairs = zip(records[: len(places)], records[len(places) :], now.policies, strict=True)
    rows = [
        {"policy": named.name, "jitter_share": None, **_change((now, before), (then, after))}
        for before, after, named in pairs
    ]
    if now.scenario.jitter_s:
        before_s, after_s = (jittered_waits_s(case, jobs).T for case in (now, then))
        for place in places:
            if before_s[place].all():
                rows[place]["jitter_share"] = band(after_s[place] / before_s[place] - 1)
    return {
        "schema": WHATIF_SCHEMA,
        "scenario": now.scenario.name,
        "jobs": len(now.jobs),
        "days": now.jobs.days,
        "run_cv2": now.jobs.run_cv2,
        "gpus": [case.scenario.cluster.gpus for case in (now, then)],
        "load": [case.offered_load for case in (now, then)],
        "jitter_s": now.scenario.jitter_s,
        "policies": rows,
    }


def _run(cases: tuple[JobsCase, JobsCase], task: tuple[int, int]) -> JobsRecord:
    case = cases[task[0]]
    return run_policy(case, case.policies[task[1]])


def _change(*runs: tuple[JobsCase, JobsRecord]) -> dict[str, Any]:
    """Compare one policy's runs before and after."""
    before, after = (by_job(record, case.scenario.cluster.gpus) for case, record in runs)
    now, then = (figures(record, case.scenario.cluster.gpus) for case, record in runs)
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
    case: JobsCase,
    wait_s: float,
    key: str = "mean",
    by: Literal["load", "nodes"] = "load",
    told: Callable[[float, float], None] = lambda value, there_s: None,
) -> dict[str, Any]:
    """Find the largest load, or the fewest nodes of the first group, at which waits stay below a limit.

    With fewer nodes no job may be refused that is not refused now. Waits need not increase monotonically with the load,
    so loads below the answer are tried, too (`CHECKS`); `broken_below` lists loads that exceed the limit, with their
    waits.

    Args:
        wait_s, key: limit of the `mean`, `p50`, `p90` or `p99` of all waits.
        told: is called with each value that is tried, and its wait; infinite if jobs are not done.

    Raises:
        InputError: no number of nodes is enough.
    """
    waits_s: dict[float, float] = {}
    changed, most_refused = (_at_load, None) if by == "load" else (_with_nodes, _figures(case)["jobs"]["refused"])

    def keeps(value: float) -> bool:
        waits_s[value] = there_s = _wait_s(changed(case, value), key, most_refused)
        told(value, there_s)
        return there_s <= wait_s

    found: dict[str, Any]
    if by == "load":
        low, high = _largest_load(keeps)
        below = [] if low is None else [share * low for share in CHECKS if not keeps(share * low)]
        broken = [{"load": load, "wait_s": waits_s[load] if isfinite(waits_s[load]) else None} for load in below]
        found = {"load_kept": low, "load_broken": high, "broken_below": broken}
    else:
        nodes = _fewest_nodes(keeps, case.scenario.cluster.nodes[0])
        found = {"nodes": nodes, "wait_there_s": waits_s[nodes]}
    return {
        "schema": CAPACITY_SCHEMA,
        "scenario": case.scenario.name,
        "policy": case.policies[0].name,
        "load_now": case.load,
        "nodes_now": case.scenario.cluster.nodes[0].count,
        "limit": {"of": key, "wait_s": wait_s},
        **found,
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


def _at_load(case: JobsCase, load: float) -> JobsCase:
    return replace(case, jobs=case.jobs.at_load(load, case.scenario.cluster.gpus))


def _with_nodes(case: JobsCase, nodes: float) -> JobsCase:
    cluster = case.scenario.cluster
    groups = (cluster.nodes[0].model_copy(update={"count": int(nodes)}), *cluster.nodes[1:])
    scenario = case.scenario.model_copy(update={"cluster": cluster.model_copy(update={"nodes": groups})})
    changed = read_case(scenario, case.source, case.images_s)
    return replace(changed, jobs=case.jobs)  # the same arrivals, although more nodes change the load


def _figures(case: JobsCase) -> dict[str, Any]:
    """Return metrics of a run of the first policy."""
    return figures(run_policy(case, case.policies[0]), case.scenario.cluster.gpus)


def _wait_s(case: JobsCase, key: str, most_refused: int | None) -> float:
    """Return a wait's statistic; infinite if jobs are not done, or too many are refused."""
    result = _figures(case)
    is_lost = result["jobs"]["unfinished"] or (most_refused is not None and result["jobs"]["refused"] > most_refused)
    wait_s: float | None = result["wait_s"][key]
    return float("inf") if is_lost or wait_s is None else wait_s


# ------------------------------------------------------------------------------------------------------- log validation
# Validation: the error of simulated waits against the log's, to judge all other results.


VALIDATION_SCHEMA: Final = "slimsched.jobsvalidation/1"
NEAR_S: Final = 60.0  # waits that differ by less, or by a fifth of the mean, are near, whatever their ratio
FACTOR: Final = 2.0
Numbers = NDArray[np.float64]


def validation_document(case: JobsCase, named: NamedPolicy, jobs: int = 1) -> dict[str, Any]:
    """Compare one policy's waits with the recorded ones, of jobs that have both.

    Raises:
        InputError: the log recorded no waits, or too few.
    """
    record = run_policy(case, named)
    columns = by_job(record, case.scenario.cluster.gpus)
    recorded_s, both = recorded(case, columns)
    if both.sum() < 2:
        problem = "the log recorded no waits that could be compared; import it with the columns of its starts"
        raise InputError(case.source, "trace", problem)
    blocks = Blocks.of(case.jobs.submit_ns / NS_PER_S)
    simulated = columns["wait_s"]
    gpus, jitter_s = case.scenario.cluster.gpus, case.scenario.jitter_s
    return {
        "schema": VALIDATION_SCHEMA,
        "scenario": case.scenario.name,
        "policy": named.name,
        "load": case.offered_load,
        "gpus": gpus,
        "busy_gpus": busy_of(case.jobs, gpus)[0],
        "jobs": int(both.sum()),
        "left_out": int(len(case.jobs) - both.sum()),
        "simulated_s": spread(simulated[both]),
        "recorded_s": spread(recorded_s[both]),
        "jitter_s": jitter_s,
        "jitter_wait_s": band(jittered_waits_s(replace(case, policies=(named,)), jobs)) if jitter_s else None,
        "error_share": blocks.share(simulated, recorded_s, both),
        "error_s": float((simulated - recorded_s)[both].mean()),
        "log_error": log_error(case, columns),
        **_closeness(simulated[both], recorded_s[both]),
        "groups": [row for row, _ in groups_of(record, both, simulated_mean_s=simulated, recorded_mean_s=recorded_s)],
    }


def _closeness(simulated: Numbers, recorded: Numbers) -> dict[str, float | None]:
    """Compare job by job: shares of near waits and of waits in only one of the two, and Spearman's rho."""
    low, high = np.minimum(simulated, recorded), np.maximum(simulated, recorded)
    near_s = min(NEAR_S, NEAR_MEAN * float(recorded.mean()))
    near = (high - low <= near_s) | (high <= FACTOR * low)
    constant = np.ptp(simulated) == 0 or np.ptp(recorded) == 0
    return {
        "near_s": near_s,
        "near_share": float(near.mean()),
        "only_simulated_share": float(((simulated > near_s) & (recorded <= near_s)).mean()),
        "only_recorded_share": float(((recorded > near_s) & (simulated <= near_s)).mean()),
        "rank_correlation": None if constant else float(spearmanr(simulated, recorded).statistic),
    }
