"""Inputs and records of a simulated run of training jobs, and confidence intervals of means over its trace.

Blocks (`Blocks`): a trace is one history, and its jobs are not independent: bursts, deadlines and a few long jobs make
weeks differ. So the trace is cut into blocks of seven days of submissions, or shorter blocks if it has fewer than 16
weeks. All policies have the same blocks, so ratios are paired by job.

Confidence intervals: an interval is of the logarithm of a ratio of two sums: twice too large is as likely as half too
small, and exchanging numerator and denominator makes no difference. A block's move e is its share of the numerator's
sum less its share of the denominator's: how the logarithm changes with the block's weight (the infinitesimal jackknife,
Jaeckel 1972). Student's t has the degrees of freedom that Satterthwaite (1946) gives to a sum of squares of one each,
(sum e^2)^2 / sum e^4. If all weeks have equal weight, the degrees of freedom are a third of the weeks or more; if one
crisis dominates the mean, they are near 1, and the interval is wide. `docs/jobs.md` reports how often the intervals
cover other histories.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypedDict

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from jobs.job_traces import JobTrace
from jobs.policies.job_cluster import NodeGroup, Variability
from kit.errors import InputError
from kit.random_streams import stream
from kit.units import NS_PER_S

# -------------------------------------------------------------------------------------------------------- initial state


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """State of jobs in a log at some time, from which a run begins instead of from an empty cluster.

    Attributes:
        done_ns: (n,) work that each had done; above 0 for jobs that were running.
    """

    at_ns: int
    done_ns: NDArray[np.int64]


def snapshot_at(jobs: JobTrace, at_s: float) -> tuple[JobTrace, Snapshot]:
    """Return the state at a time by recorded starts: jobs running, waiting, or submitted later, and their snapshot.

    They are assumed to have run at the reference type.

    Raises:
        InputError: the trace has no recorded starts, or no job from then on.
    """
    start_s = jobs.recorded_start_s
    is_old = jobs.submit_s < at_s
    if np.isnan(start_s[is_old]).any():
        problem = f"job {int(np.isnan(start_s).argmax())} has none: begin on an empty cluster, or with a warm-up"
        raise InputError("trace", "recorded_start_s", problem)
    done_s = np.where(is_old, np.clip(at_s - np.nan_to_num(start_s), 0.0, None), 0.0)
    is_left = done_s < jobs.run_s
    if not is_left.any():
        raise InputError("trace", "", f"all jobs had ended at {at_s:g} s: begin earlier")
    done_ns = np.round(done_s[is_left] * NS_PER_S).astype(np.int64)
    return jobs.rows(is_left), Snapshot(round(at_s * NS_PER_S), done_ns)


# ------------------------------------------------------------------------------------------------------------- failures
# Node failures: outages at recorded or random times.


@dataclass(frozen=True, slots=True, order=True)
class NodeOutage:
    """A node is out of service from `from_ns` until `to_ns`."""

    from_ns: int
    to_ns: int
    node: int


def sampled_outages(nodes: int, up_s: float, down_s: float, horizon_s: float, seed: int) -> tuple[NodeOutage, ...]:
    """Draw each node's alternating times: in service, exponential of mean `up_s`, and down, of mean `down_s`."""
    rng, outages = stream(seed, "job node failures"), []
    for node in range(nodes):
        at_s = rng.exponential(up_s)
        while at_s < horizon_s:
            until_s = at_s + rng.exponential(down_s)
            from_ns = round(at_s * NS_PER_S)
            outages.append(NodeOutage(from_ns, max(round(until_s * NS_PER_S), from_ns + 1), node))
            at_s = until_s + rng.exponential(up_s)
    return tuple(sorted(outages))


# ---------------------------------------------------------------------------------------------------------- variability
# Random variability of GPUs of one type.


def sampled_variability(groups: Sequence[NodeGroup], spreads: Mapping[str, float], seed: int) -> Variability:
    """Draw factors: a GPU that is slow for one class is slow for all, in proportion to each one's sensitivity.

    Each GPU draws a normal number z. Its factor for a class of spread s is exp(-s z), over that of the fastest GPU.

    Args:
        spreads: by job class: standard deviation of the speed's logarithm.
    """
    rng = stream(seed, "GPU variability")
    z = [rng.standard_normal(group.gpus) for group in groups for _ in range(group.nodes)]
    fastest = min(float(row.min()) for row in z)
    return Variability(
        {
            job_class: tuple(tuple(np.exp(-deviation * (row - fastest)).tolist()) for row in z)
            for job_class, deviation in spreads.items()
        }
    )


# --------------------------------------------------------------------------------------------------------------- record
# Result of a run of training jobs: columns by job, and the cluster's sums.


NOT_YET: Final = -1
Times = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class JobsRecord:
    """Result of a run. All columns have a row for each job of the trace; times are nanoseconds since the trace's start.

    Attributes:
        policy: its displayed name.
        jobs: the jobs of the run.
        best_ns: run time at full speed on the fastest type that it may use.
        start_ns: when it was first started; -1 for never.
        end_ns: when its work was done; -1 if not within the run.
        is_refused: whether it could never run here.
        preemptions: number of its stops for another job.
        kills: number of node failures under it.
        lost_ns: work (at the reference type) that was lost.
        restart_ns: time that it held GPUs for restarts.
        held_ns: total time that it held GPUs.
        is_measured: whether it counts in figures: submitted after the warm-up.
        begun_ns, ended_ns: when the run began and ended.
        capacity_gpu_ns, down_gpu_ns: GPU time of all nodes from begin to end; of that, out of service.
        in_system_ns: time integral of the number of jobs that had been submitted and not ended (Little's law).
    """

    policy: str
    jobs: JobTrace
    best_ns: Times
    start_ns: Times
    end_ns: Times
    is_refused: NDArray[np.bool_]
    preemptions: NDArray[np.int64]
    kills: NDArray[np.int64]
    lost_ns: Times
    restart_ns: Times
    held_ns: Times
    is_measured: NDArray[np.bool_]
    begun_ns: int
    ended_ns: int
    capacity_gpu_ns: int
    down_gpu_ns: int
    in_system_ns: int

    @property
    def is_done(self) -> NDArray[np.bool_]:
        """(n,) Whether its work was done within the run."""
        return np.asarray(self.end_ns != NOT_YET)

    @property
    def is_counted(self) -> NDArray[np.bool_]:
        """(n,) Whether it counts in figures: it is measured, and not refused."""
        return self.is_measured & ~self.is_refused

    @property
    def jct_s(self) -> NDArray[np.float64]:
        """(n,) Job completion time, from submission to end; not-a-number if it has not ended."""
        return np.where(self.is_done, self.end_ns - self.jobs.submit_ns, np.nan) / NS_PER_S

    @property
    def wait_s(self) -> NDArray[np.float64]:
        """(n,) Completion time less run time at full speed on the fastest type; not-a-number if it has not ended."""
        return np.asarray(self.jct_s - self.best_ns / NS_PER_S)

    def require_little(self) -> None:
        """Check Little's law: the integral of the number of jobs in the system is the sum of the jobs' times in it."""
        came_ns = np.maximum(self.jobs.submit_ns, self.begun_ns)
        left_ns = np.where(self.is_done, self.end_ns, np.where(self.is_refused, came_ns, self.ended_ns))
        came_by_end = came_ns <= self.ended_ns
        in_system_ns = sum((left_ns - came_ns)[came_by_end].tolist())  # may exceed 64 bits
        assert in_system_ns == self.in_system_ns, "Little's law does not hold"


# ------------------------------------------------------------------------------------------------- confidence intervals


DAY_S: Final = 86400.0
WEEK_S: Final = 7 * DAY_S
MIN_BLOCKS: Final = 16  # of a trace; a shorter one has shorter blocks
_CONFIDENCE: Final = 0.95
_WIDEST: Final = 1000.0  # times the value, and the value over it: an interval this wide is meaningless
Numbers = NDArray[np.float64]


class Interval(TypedDict):
    """A value and its 95 % confidence interval over other histories; null if there is none."""

    value: float | None
    low: float | None
    high: float | None


def chance_explains(change: Interval) -> bool:
    """Return whether a change is not statistically significant: its interval contains 0, or it has none."""
    return change["low"] is None or change["high"] is None or change["low"] <= 0 <= change["high"]


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """A trace in blocks of time.

    Attributes:
        block_s: a block's length.
        many: number of blocks.
        block: (n,) the block in which each job was submitted.
    """

    block_s: float
    many: int
    block: NDArray[np.int64]

    @staticmethod
    def of(submit_s: Numbers) -> Blocks:
        """Build the blocks of jobs from their submissions."""
        since_s = submit_s - submit_s.min()
        span_s = max(float(since_s.max()), 1e-9)
        many = max(int(np.ceil(span_s / WEEK_S)), MIN_BLOCKS)
        block = np.minimum((since_s / span_s * many).astype(np.int64), many - 1)
        return Blocks(span_s / many, many, block)

    def mean(self, values: Numbers, counts: NDArray[np.bool_]) -> Interval:
        """Return the mean of the values that count, all of them 0 or more."""
        return self._ratio(values, np.ones(len(values)), counts)

    def share(self, values: Numbers, over: Numbers, counts: NDArray[np.bool_]) -> Interval:
        """Return how far the mean of some values, 0 or more, is above that of others, as a share of that."""
        interval = self._ratio(values, over, counts)
        value, low, high = (
            None if end is None else end - 1 for end in (interval["value"], interval["low"], interval["high"])
        )
        return Interval(value=value, low=low, high=high)

    def _ratio(self, values: Numbers, over: Numbers, counts: NDArray[np.bool_]) -> Interval:
        """Return the ratio of two sums."""
        above = np.bincount(self.block[counts], values[counts], self.many)
        below = np.bincount(self.block[counts], over[counts], self.many)
        if not below.sum():
            return Interval(value=None, low=None, high=None)
        value = float(above.sum() / below.sum())
        if (below == below.sum()).any():  # one block has all, so nothing is known of the variation
            return Interval(value=value, low=None, high=None)
        moves = above / (above.sum() or 1.0) - below / below.sum()
        wider = min(float(np.exp(_half_width(moves))), _WIDEST)
        return Interval(value=value, low=value / wider, high=value * wider)


def _half_width(moves: Numbers) -> float:
    """Return the half-width of a logarithm's interval, from each block's influence on it."""
    squares = float((moves**2).sum())
    if not squares:
        return 0.0
    freedom, many = squares**2 / float((moves**4).sum()), len(moves)
    return float(stdtrit(freedom, (1 + _CONFIDENCE) / 2)) * float(np.sqrt(many / (many - 1) * squares))


# -------------------------------------------------------------------------------------------------------------- figures
# Metrics of a run of training jobs: of its measured jobs, by size and VC, and of the cluster.


NEAR: Final = 0.6  # limit of `comparing.log_error`; a policy's own log, resumed in its middle, differs by up to 0.53
NEAR_MEAN: Final = 0.2  # largest relative error of a trusted simulated mean wait
SHORT_S: Final = 10.0  # lower bound of run times in slowdowns (Feitelson)
SIZES: Final = (1, 2, 4, 8, 16, 32, 64)  # upper ends of the classes of GPUs a job; larger jobs are the last class


def by_job(record: JobsRecord, cluster_gpus: int) -> dict[str, Numbers]:
    """Return (n,) each, of a run on `cluster_gpus`; not-a-number for jobs that don't count or are not done.

    `slowdown` is bounded: JCT over run time at full speed on the fastest type, of at least 10 s; at least 1.
    `finish_time_fairness` is JCT over what it would be on the job's equal share of the cluster (Themis, NSDI'20): 1/N
    of its GPUs, with N the mean number of jobs in the system while the job is there.
    """
    best_s = record.best_ns / NS_PER_S
    jct_s = np.where(record.is_counted, record.jct_s, np.nan)
    alone_s = best_s * np.maximum(1.0, record.jobs.gpus_used * _mean_in_system(record) / cluster_gpus)
    return {
        "jct_s": jct_s,
        "wait_s": jct_s - best_s,
        "slowdown": np.maximum(jct_s / np.maximum(best_s, SHORT_S), 1.0),
        "finish_time_fairness": jct_s / alone_s,
    }


def are_done(columns: Mapping[str, Numbers]) -> NDArray[np.bool_]:
    """Return (n,) which jobs count and did their work, from the columns of `by_job`."""
    return np.isfinite(columns["jct_s"])


def _mean_in_system(record: JobsRecord) -> Numbers:
    """Return (n,) the mean number of jobs in the system during each job's stay; 1 for jobs that never left."""
    is_accepted = ~record.is_refused
    came_s = np.maximum(record.jobs.submit_ns, record.begun_ns) / NS_PER_S
    left_s = np.where(record.is_done, record.end_ns, record.ended_ns) / NS_PER_S
    times_s = np.concatenate([came_s[is_accepted], left_s[is_accepted]])
    steps = np.concatenate([np.ones(is_accepted.sum()), -np.ones(is_accepted.sum())])
    order = np.argsort(times_s, kind="stable")
    times_s, inside = times_s[order], np.cumsum(steps[order])
    area = np.concatenate([[0.0], np.cumsum(inside[:-1] * np.diff(times_s))])
    stay_s = left_s - came_s
    mean = np.interp(left_s, times_s, area) - np.interp(came_s, times_s, area)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(is_accepted & (stay_s > 0), np.maximum(mean / stay_s, 1.0), 1.0)


def figures(record: JobsRecord, cluster_gpus: int) -> dict[str, Any]:
    """Return a run's metrics; means and quantiles are of measured jobs whose work was done."""
    columns, counts = by_job(record, cluster_gpus), record.is_counted
    done = are_done(columns)
    fairness = columns["finish_time_fairness"][done]
    return {
        "jobs": {
            "measured": int(record.is_measured.sum()),
            "refused": int((record.is_refused & record.is_measured).sum()),
            "unfinished": int((counts & ~done).sum()),
        },
        **{name: spread(values[done]) for name, values in columns.items()},
        "above_fair_share": float((fairness > 1).mean()) if len(fairness) else None,
        **_of_the_cluster(record),
        "preemptions_per_job": _mean(record.preemptions[counts]),
        "kills_per_job": _mean(record.kills[counts]),
        "jain_users": _jain(columns["slowdown"][done], record.jobs.user[done]),
        "jain_vcs": _jain(columns["slowdown"][done], record.jobs.vc[done]),
    }


def spread(values: Numbers) -> dict[str, float | None]:
    """Return mean and quantiles; None for no values."""
    names = ("mean", "p50", "p90", "p99", "max")
    if not len(values):
        return dict.fromkeys(names)
    numbers = [float(values.mean()), *np.quantile(values, [0.5, 0.9, 0.99, 1.0]).tolist()]
    return dict(zip(names, numbers, strict=True))


def by_day(submit_s: Numbers, values: Numbers, counts: NDArray[np.bool_]) -> list[float | None]:
    """Return means by day of submission, from the first job's, of the values that count; None for an empty day."""
    day = ((submit_s - DAY_S * (submit_s[0] // DAY_S)) // DAY_S).astype(np.int64)
    sums, jobs = (np.bincount(day[counts], weights, int(day[-1]) + 1) for weights in (values[counts], None))
    return [float(total / many) if many else None for total, many in zip(sums, jobs, strict=True)]


def _mean(values: NDArray[Any]) -> float | None:
    return float(values.mean()) if len(values) else None


def _of_the_cluster(record: JobsRecord) -> dict[str, float | None]:
    """Return metrics of all jobs, measured or not, from begin to end; float sums, for integers could overflow."""
    held_s = record.held_ns / NS_PER_S
    busy = float((held_s * record.jobs.gpus_used).sum())
    work, lost = record.jobs.work_ns / NS_PER_S, record.lost_ns / NS_PER_S
    slo_attainment = work / (work + lost)
    useful = float(((held_s - record.restart_ns / NS_PER_S) * slo_attainment * record.jobs.gpus_used).sum())
    available_s = (record.capacity_gpu_ns - record.down_gpu_ns) / NS_PER_S
    return {
        "makespan_s": (record.ended_ns - record.begun_ns) / NS_PER_S,
        "utilization": busy / available_s if available_s else None,
        "goodput_share": useful / busy if busy else None,
    }


def _jain(slowdown: Numbers, names: NDArray[np.object_]) -> float | None:
    """Return Jain's index of the mean bounded slowdowns by name: 1 if all are equal; None for one name."""
    groups, codes = np.unique(names.astype(str), return_inverse=True)
    if len(groups) < 2:
        return None
    means = np.bincount(codes, slowdown) / np.bincount(codes)
    return float(means.sum() ** 2 / (len(means) * (means**2).sum()))


# -------------------------------------------------------------------------------------------------------------- groups


def groups_of(
    record: JobsRecord, among: NDArray[np.bool_], **values: Numbers
) -> Iterator[tuple[dict[str, Any], NDArray[np.bool_]]]:
    """Yield some jobs by classes of sizes, then by virtual clusters (largest first); no kind with only one group.

    A row each, with the means of these values, and which jobs they are.
    """
    size_class = np.searchsorted(SIZES, record.jobs.gpus)
    sizes = [(_size_name(number), size_class == number) for number in np.unique(size_class).tolist()]
    names, codes, counts = np.unique(record.jobs.vc.astype(str), return_inverse=True, return_counts=True)
    order = np.argsort(-counts, kind="stable").tolist()
    vcs = [(str(names[number]) or "(none)", codes == number) for number in order]
    for kind, classes in (("size", sizes), ("vc", vcs)):
        for name, members in classes if len(classes) > 1 else ():
            if (members & among).any():
                rows = members & among
                means = {key: float(value[rows].mean()) for key, value in values.items()}
                yield {"kind": kind, "name": name, "jobs": int(rows.sum()), **means}, rows


def _size_name(size_class: int) -> str:
    if size_class == len(SIZES):
        return f"above {SIZES[-1]}"
    low = SIZES[size_class - 1] + 1 if size_class else 1
    return str(low) if low == SIZES[size_class] else f"{low}-{SIZES[size_class]}"
