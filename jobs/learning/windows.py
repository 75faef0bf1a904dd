"""Windows of consecutive jobs: what is learned on, and judged on. Jobs and a cluster come from anywhere."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from jobs.policies.choices import Choosing
from jobs.policies.cluster import NodeGroup
from jobs.policies.policy import JobPolicy
from jobs.sim.jobs import JobList
from jobs.sim.record import JobsRecord
from jobs.sim.world import JobRun, JobSimulation, JobWorld
from kit.chance import stream
from kit.errors import InputError
from kit.units import NS_PER_S

LENGTH: Final = 256
TRAINING_JOBS: Final = 10_000  # of a trace: RLTune learns on its first ones
_SMALL, _LARGE = "p100x2", "p100x8"


@dataclass(frozen=True, slots=True, eq=False)
class Windows:
    """Where windows of a trace may begin.

    Attributes:
        first, last: the first jobs of the first window and of the last.
        length: jobs of a window that count.
        warm: jobs before them that are run, too, so that the cluster is not empty; they don't count.

    Raises:
        InputError: the trace is too short.
    """

    jobs: JobList
    world: JobWorld
    first: int
    last: int
    length: int = LENGTH
    warm: int = 0

    def __post_init__(self) -> None:
        if not self.warm <= self.first <= self.last <= len(self.jobs) - self.length:
            problem = f"{len(self.jobs):,} jobs leave no window of {self.length} after {self.warm} that warm up"
            raise InputError("trace", "", f"{problem}: take shorter windows, or a longer trace")

    @staticmethod
    def as_run(jobs: JobList, world: JobWorld, training_jobs: int | None = None, length: int = LENGTH) -> Windows:
        """As RLTune draws them, on an empty cluster: for training from the first 10,000 jobs, or from all."""
        many = len(jobs) if training_jobs is None else min(training_jobs, len(jobs))
        return Windows(jobs, world, min(length, many - length - 2), many - length - 2, length)

    @staticmethod
    def split(
        jobs: JobList, world: JobWorld, share: float = 0.6, length: int = LENGTH, warm: int = LENGTH
    ) -> tuple[Windows, Windows]:
        """Earlier ones to learn on, and later ones to judge by, that have no job in common, on a warm cluster."""
        cut = int(np.searchsorted(jobs.submit_s, jobs.submit_s[0] + share * (jobs.submit_s[-1] - jobs.submit_s[0])))
        earlier = Windows(jobs, world, warm, cut - length, length, warm)
        return earlier, Windows(jobs, world, cut + warm, len(jobs) - length, length, warm)

    @staticmethod
    def to_learn_and_judge(
        jobs: JobList, world: JobWorld, is_as_run: bool, length: int = LENGTH
    ) -> tuple[Windows, Windows]:
        """What a command learns on, and later windows that judge it: both as RLTune begins them, on an empty cluster,
        and its first 10,000 jobs to learn on (fewer, where these are not over by 60 % of the time); or `split`."""
        if not is_as_run:
            return Windows.split(jobs, world, length=length, warm=length)
        earlier, later = Windows.split(jobs, world, length=length, warm=0)
        return Windows.as_run(jobs, world, min(TRAINING_JOBS, earlier.last + length), length), later

    def drawn(self, many: int, seed: int, name: str) -> NDArray[np.int64]:
        """(many,) The jobs with which windows begin, by a stream of this name; each as likely as any."""
        return stream(seed, f"job windows:{name}").integers(self.first, self.last + 1, many)

    def run(self, start: int, policy: JobPolicy, choosing: Choosing | None = None) -> JobsRecord:
        """One window, to the last job's end."""
        return self.simulation(start, policy, choosing).run()

    def simulation(self, start: int, policy: JobPolicy, choosing: Choosing | None = None) -> JobSimulation:
        """One window, not yet run."""
        jobs = self.jobs.rows(slice(start - self.warm, start + self.length))
        warmup_s = float(jobs.submit_s[self.warm] - jobs.submit_s[0]) if self.warm else 0.0
        return JobSimulation(self.world, JobRun(jobs, policy, warmup_s, choosing=choosing))

    @property
    def gpus(self) -> int:
        """Of the cluster."""
        return sum(group.nodes * group.gpus for group in self.world.groups)

    def count(self, record: JobsRecord) -> slice:
        """Which rows of a window's record count."""
        return slice(self.warm, self.warm + self.length)


def philly_cluster(jobs: JobList) -> tuple[JobList, JobWorld]:
    """RLTune's Philly: 16 nodes of 2 GPUs and 20 of 8; jobs of more than 4 GPUs on those of 8 alone, none on both.

    As kinds of nodes are told apart by their GPUs' type, that is what the jobs are bound to.
    """
    bound = np.where(jobs.gpus > 4, _LARGE, "").astype(object)
    world = JobWorld((NodeGroup(16, 2, _SMALL), NodeGroup(20, 8, _LARGE)))
    return replace(jobs, gpu_types=bound), world


# ------------------------------------------------------------------------------------------------------------- scores

SCORES: Final = ("bounded slowdown", "wait", "turnaround", "utilisation", "slowdown")


def score_of(record: JobsRecord, kind: str, gpus: int, which: slice = slice(None)) -> float:
    """One of RLTune's five, of the jobs that were started; smaller is better.

    Args:
        gpus: of the cluster.
    """
    rows = np.arange(len(record.submit_ns))[which]
    rows = rows[record.is_done[rows]]
    run_s = record.work_ns[rows] / NS_PER_S
    wait_s = (record.start_ns[rows] - record.submit_ns[rows]) / NS_PER_S
    if kind == "utilisation":
        wall_s = (record.end_ns[rows].max() - record.submit_ns[rows].min()) / NS_PER_S
        return -float((run_s * record.gpus[rows]).sum() / (max(wall_s, 1.0) * gpus))
    by_job = {
        "bounded slowdown": np.maximum(1.0, (wait_s + run_s) / np.maximum(run_s, 10.0)),
        "wait": wait_s,
        "turnaround": wait_s + run_s,
        "slowdown": (wait_s + run_s) / run_s,
    }[kind]
    return float(by_job.mean())


def gain(base: float, own: float) -> float:
    """RLTune's reward of an episode."""
    return (base - own) / max(base, own, 1.0)


def in_system_s(record: JobsRecord, until_ns: NDArray[np.int64]) -> NDArray[np.float64]:
    """Seconds that jobs had been in the system, all in all, by each of these times (ascending)."""
    is_in = record.is_done
    total = np.zeros(len(until_ns))
    for sign, at_ns in ((1.0, record.submit_ns[is_in]), (-1.0, record.end_ns[is_in])):
        times = np.sort(at_ns)
        many = np.searchsorted(times, until_ns, side="right")
        origin = int(record.begun_ns)
        summed = np.concatenate([[0.0], np.cumsum((times - origin) / NS_PER_S)])
        total += sign * (many * ((until_ns - origin) / NS_PER_S) - summed[many])
    return total
