"""Windows of consecutive jobs for training and evaluation, of any jobs and cluster; training of a policy."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from heapq import heappop, heappush
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from jobs.learning.learned import (
    Decision,
    JobNet,
    Learned,
    LearnedSpec,
    NetChooser,
    Weights,
    read_learned,
    write_learned,
)
from jobs.learning.learner import Episode, JobLearner, JobPPOKnobs, JobUpdateStats, taken
from jobs.policies.choices import Choosing
from jobs.policies.history import HISTORY, REQUESTED, DurationHistory
from jobs.policies.policy import JobPolicy
from jobs.sim.jobs import JobsRecord
from jobs.sim.world import JobRun, JobSimulation, JobWorld
from jobs.trace import JobTrace
from kit.chance import derived_seed, stream
from kit.documents import inputs_hash
from kit.errors import InputError
from kit.parallel import results
from kit.units import NS_PER_S

LENGTH: Final = 256


def predicted_s(jobs: JobTrace) -> NDArray[np.float64]:
    """Return (n,) each job's prediction from history at submission, in whole seconds, if no earlier job had waited."""
    history = DurationHistory()
    running = list[tuple[int, int, int]]()
    predicted_ns = list[int]()
    for arrival, work_ns in zip(jobs.arrivals(), jobs.work_ns.tolist(), strict=True):
        while running and running[0][0] <= arrival.submit_ns:
            history.add(*heappop(running)[1:])
        chain = history.number(arrival)
        predicted_ns.append(history.mean_ns(chain))
        heappush(running, (arrival.submit_ns + work_ns, chain, work_ns))
    return np.ceil(np.array(predicted_ns) / NS_PER_S)


@dataclass(frozen=True, slots=True, eq=False)
class Windows:
    """Possible windows of a trace.

    Attributes:
        first, last: the first jobs of the first window and of the last.
        length: number of jobs of a window that count.
        warm: number of jobs run before them, so that the cluster is not empty; they don't count.
        predicted_s: each job's run time as predicted by policies with a history; None: these begin without history.

    Raises:
        InputError: the trace is too short.
    """

    jobs: JobTrace
    world: JobWorld
    first: int
    last: int
    length: int = LENGTH
    warm: int = 0
    predicted_s: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        if not self.warm <= self.first <= self.last <= len(self.jobs) - self.length:
            problem = f"{len(self.jobs):,} jobs leave no window of {self.length} after {self.warm} that warm up"
            raise InputError("trace", "", f"{problem}: take shorter windows, or a longer trace")

    @staticmethod
    def split(
        jobs: JobTrace, world: JobWorld, share: float = 0.6, length: int = LENGTH, warm: int = LENGTH
    ) -> tuple[Windows, Windows]:
        """Split a trace into earlier windows to train on and later ones to evaluate on: disjoint, and warmed up."""
        cut = int(np.searchsorted(jobs.submit_s, jobs.submit_s[0] + share * (jobs.submit_s[-1] - jobs.submit_s[0])))
        earlier = Windows(jobs, world, warm, cut - length, length, warm, predicted_s(jobs))
        return earlier, replace(earlier, first=cut + warm, last=len(jobs) - length)

    def drawn(self, many: int, seed: int, name: str) -> NDArray[np.int64]:
        """Draw (many,) first jobs of windows uniformly, from a stream of this name."""
        return stream(seed, f"job windows:{name}").integers(self.first, self.last + 1, many)

    def run(self, start: int, policy: JobPolicy, choosing: Choosing | None = None) -> JobsRecord:
        """Run one window, to the last job's end."""
        return self.simulation(start, policy, choosing).run()

    def simulation(self, start: int, policy: JobPolicy, choosing: Choosing | None = None) -> JobSimulation:
        """Build the simulation of one window."""
        rows = slice(start - self.warm, start + self.length)
        jobs = self.jobs.rows(rows)
        if policy.estimate == HISTORY and self.predicted_s is not None:  # a window alone has no history
            jobs = replace(jobs, requested_s=self.predicted_s[rows])
            policy = replace(policy, estimate=REQUESTED)
        warmup_s = float(jobs.submit_s[self.warm] - jobs.submit_s[0]) if self.warm else 0.0
        return JobSimulation(self.world, JobRun(jobs, policy, warmup_s, choosing=choosing))

    def mean_wait_s(self, record: JobsRecord) -> float:
        """Return the mean wait of the jobs that count in a window's record."""
        return float(np.nanmean(record.wait_s[self.warm : self.warm + self.length]))


def in_system_s(record: JobsRecord, until_ns: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the total job seconds in the system by each of these times (ascending)."""
    is_in = record.is_done
    total = np.zeros(len(until_ns))
    for sign, at_ns in ((1.0, record.jobs.submit_ns[is_in]), (-1.0, record.end_ns[is_in])):
        times = np.sort(at_ns)
        many = np.searchsorted(times, until_ns, side="right")
        origin = int(record.begun_ns)
        summed = np.concatenate([[0.0], np.cumsum((times - origin) / NS_PER_S)])
        total += sign * (many * ((until_ns - origin) / NS_PER_S) - summed[many])
    return total


# --------------------------------------------------------------------------------------------------------------- course
# Training a job policy: episodes over several processes, an update, and again; it resumes after each epoch.
#
# A choice's reward is the lead over the base policy, in job seconds in the system, gained since the last choice. The
# rewards' sum is the difference of all completion times. The base policy's part depends only on time, so it does not
# change the optimum.


MIN_WAIT_S: Final = 60.0  # a job, of the base policy: the least denominator of a window's rewards
Told = Callable[[int, JobUpdateStats, float, float], None]  # epoch, update, mean scores of the policy and of its base


@dataclass(frozen=True, slots=True)
class TrainingConfig:
    """Settings of a training.

    Attributes:
        spec: the policy's description.
        windows: windows for training.
        epochs, episodes: number of updates, and of windows before each.
    """

    spec: LearnedSpec
    windows: Windows
    knobs: JobPPOKnobs = field(default_factory=JobPPOKnobs)
    epochs: int = 100
    episodes: int = 100
    seed: int = 0

    @property
    def base(self) -> JobPolicy:
        """The policy that rewards are relative to: the first in order of the fitting jobs."""
        return JobPolicy(self.spec.base, "first-fit", placement="lowest", estimate=self.spec.estimate)

    def identity(self) -> dict[str, Any]:
        """Return the settings that a checkpoint must match; the number of epochs may change."""
        windows, jobs = self.windows, self.windows.jobs
        return {
            "spec": asdict(self.spec),
            "knobs": asdict(self.knobs),
            "episodes": self.episodes,
            "seed": self.seed,
            "windows": [len(windows.jobs), windows.first, windows.last, windows.length, windows.warm],
            "jobs": inputs_hash(*(column.tolist() for column in (jobs.submit_ns, jobs.work_ns, jobs.gpus, jobs.nodes))),
            "cluster": inputs_hash(repr(windows.world)),
        }


def play(config: TrainingConfig, task: tuple[Weights, int, int]) -> Episode:
    """Play one episode from a task: network weights, the window's first job, and a seed for draws."""
    weights, start, seed = task
    windows, memory = config.windows, list[Decision]()
    chooser = NetChooser(JobNet(weights), stream(seed, "jobs:episode"), memory)
    base = windows.run(start, config.base)
    episode_record = windows.run(start, config.spec.policy, Choosing(chooser))
    rows, chosen, log_prob, at_ns, queues = zip(*memory, strict=True)
    return Episode(
        np.concatenate(rows),
        np.array([len(each) for each in rows]),
        np.array(chosen),
        np.array(log_prob, np.float32),
        np.stack(queues),
        _rewards(at_ns, base, episode_record).astype(np.float32),
        windows.mean_wait_s(episode_record),
        windows.mean_wait_s(base),
    )


def _rewards(at_ns: Sequence[int], base: JobsRecord, own: JobsRecord) -> NDArray[np.float64]:
    """Return each choice's reward, as a share of the base policy's waits."""
    end_ns = max(int(base.end_ns.max()), int(own.end_ns.max()))
    until_ns = np.array([*at_ns[1:], end_ns])
    ahead = in_system_s(base, until_ns) - in_system_s(own, until_ns)
    return np.diff(ahead, prepend=0.0) / max(float(np.nansum(base.wait_s)), MIN_WAIT_S * len(base.jobs))


def train(config: TrainingConfig, path: Path, jobs: int = 1, resume: bool = True, told: Told | None = None) -> Learned:
    """Train from the start, or resume from the file; it is written after each epoch.

    Raises:
        InputError: the file is from another training.
        WorkError: training diverged, or a process was killed.
    """
    learner = JobLearner(config.knobs, config.seed)
    history: list[dict[str, float]] = _resumed(config, path, learner) if resume and path.is_file() else []
    for epoch in range(len(history), config.epochs):
        seed = derived_seed(config.seed, f"jobs epoch:{epoch}")
        starts = config.windows.drawn(config.episodes, seed, "training").tolist()
        weights = taken(learner.actor)
        tasks = [(weights, start, derived_seed(seed, f"episode:{number}")) for number, start in enumerate(starts)]
        episodes = results(play, config, tasks, jobs)
        stats = learner.update(episodes)
        own, base = (float(np.mean([getattr(one, name) for one in episodes])) for name in ("score", "base_score"))
        history.append({**asdict(stats), "score": own, "base_score": base})
        header = {"training": json.dumps({"course": config.identity(), "history": history})}
        write_learned(path, Learned(config.spec, JobNet(taken(learner.actor))), learner.tensors(), header)
        if told is not None:
            told(epoch, stats, own, base)
    return Learned(config.spec, JobNet(taken(learner.actor)))


def _resumed(config: TrainingConfig, path: Path, learner: JobLearner) -> list[dict[str, float]]:
    learned, tensors, header = read_learned(path)
    try:
        training = json.loads(header["training"])
        theirs, mine = training["course"], json.loads(json.dumps(config.identity()))
        differ = [name for name, value in mine.items() if theirs.get(name) != value]
        if differ:
            remedy = "go on with the settings it was begun with, or begin anew in another file"
            raise InputError(str(path), "", f"begun with another {', '.join(differ)}; {remedy}")
        learner.restore(learned.net.weights, tensors)
        return list(training["history"])
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        problem = f"not a training to go on with, or damaged ({error!r:.300}); remove it to begin anew"
        raise InputError(str(path), "", problem) from error
