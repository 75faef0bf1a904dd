"""What a run of training jobs leaves behind: columns by job, and the cluster's sums."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kit.units import NS_PER_S

NOT_YET: Final = -1
Times = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class JobsRecord:
    """A run. All columns have a row for each job of the trace; times are nanoseconds since the trace's start.

    Attributes:
        policy: as it is shown.
        submit_ns, gpus, gpu_share, user, vc: as in the trace.
        work_ns: run time at the reference type.
        best_ns: run time at full speed on the fastest type that it may use.
        start_ns: when it was first started; -1 for never.
        end_ns: when its work was done; -1 for not within the run.
        is_refused: it could never run here.
        preemptions: how often it was stopped for another job.
        kills: how often a node died under it.
        lost_ns: work (at the reference type) that it did in vain.
        restart_ns: time that it held GPUs for restarts.
        held_ns: time that it held GPUs, all in all.
        is_measured: whether it counts in figures: submitted after the warm-up.
        begun_ns, ended_ns: when the run began and ended.
        capacity_gpu_ns, down_gpu_ns: GPU time of all nodes from begin to end; of that, out of service.
        in_system_ns: time integral of the number of jobs that had been submitted and not ended (Little's law).
    """

    policy: str
    submit_ns: Times
    gpus: NDArray[np.int64]
    gpu_share: NDArray[np.float64]
    user: NDArray[np.object_]
    vc: NDArray[np.object_]
    work_ns: Times
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
    def gpus_used(self) -> NDArray[np.float64]:
        """(n,) GPUs that a job uses: fewer than one, of a job with a share of one."""
        return np.asarray(self.gpus * self.gpu_share)

    @property
    def is_done(self) -> NDArray[np.bool_]:
        """(n,) Whether its work was done within the run."""
        return np.asarray(self.end_ns != NOT_YET)

    @property
    def jct_s(self) -> NDArray[np.float64]:
        """(n,) Job completion time, from submission to end; not-a-number where there is none."""
        return np.where(self.is_done, self.end_ns - self.submit_ns, np.nan) / NS_PER_S

    @property
    def wait_s(self) -> NDArray[np.float64]:
        """(n,) What of it is not run time at full speed on the fastest type; not-a-number where there is none."""
        return np.asarray(self.jct_s - self.best_ns / NS_PER_S)

    def require_little(self) -> None:
        """Little's law: the sum over time of jobs in the system is the sum over jobs of their times in it."""
        came_ns = np.maximum(self.submit_ns, self.begun_ns)
        left_ns = np.where(self.is_done, self.end_ns, np.where(self.is_refused, came_ns, self.ended_ns))
        came_by_end = came_ns <= self.ended_ns
        in_system_ns = sum((left_ns - came_ns)[came_by_end].tolist())  # beyond 64 bits, perhaps
        assert in_system_ns == self.in_system_ns, "Little's law does not hold"
