"""Inputs and results of a simulated run of training jobs: the initial state, outages and variability, records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from jobs.policies.cluster import NodeGroup, Variability
from jobs.trace import JobTrace
from kit.chance import stream
from kit.errors import InputError
from kit.units import NS_PER_S


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
            job_class: tuple(tuple(np.exp(-spread * (row - fastest)).tolist()) for row in z)
            for job_class, spread in spreads.items()
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
