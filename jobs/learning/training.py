"""Windows of consecutive jobs: what is learned on, and judged on. Jobs and a cluster come from anywhere."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from jobs.learning.learned import (
    FAITHFUL,
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
from jobs.policies.policy import JobPolicy
from jobs.sim.jobs import JobsRecord
from jobs.sim.world import JobRun, JobSimulation, JobWorld
from jobs.trace import JobTrace
from kit.chance import derived_seed, stream
from kit.errors import InputError
from kit.parallel import Jobs, results
from kit.units import NS_PER_S

LENGTH: Final = 256
TRAINING_JOBS: Final = 10_000  # of a trace: RLTune learns on its first ones


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

    jobs: JobTrace
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
    def as_run(jobs: JobTrace, world: JobWorld, training_jobs: int | None = None, length: int = LENGTH) -> Windows:
        """As RLTune draws them, on an empty cluster: for training from the first 10,000 jobs, or from all."""
        many = len(jobs) if training_jobs is None else min(training_jobs, len(jobs))
        return Windows(jobs, world, min(length, many - length - 2), many - length - 2, length)

    @staticmethod
    def split(
        jobs: JobTrace, world: JobWorld, share: float = 0.6, length: int = LENGTH, warm: int = LENGTH
    ) -> tuple[Windows, Windows]:
        """Earlier ones to learn on, and later ones to judge by, that have no job in common, on a warm cluster."""
        cut = int(np.searchsorted(jobs.submit_s, jobs.submit_s[0] + share * (jobs.submit_s[-1] - jobs.submit_s[0])))
        earlier = Windows(jobs, world, warm, cut - length, length, warm)
        return earlier, Windows(jobs, world, cut + warm, len(jobs) - length, length, warm)

    @staticmethod
    def to_learn_and_judge(
        jobs: JobTrace, world: JobWorld, is_as_run: bool, length: int = LENGTH
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


# ------------------------------------------------------------------------------------------------------------- scores


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


# --------------------------------------------------------------------------------------------------------------- course
# Training a job policy: episodes over several processes, an update, and again; it resumes after each epoch.
#
# rltune-faithful  RLTune's reward at the end of an episode on an empty cluster; everybody visible may be chosen
# rltune-fixed     after each choice, by how many job seconds in the system it is ahead of the base policy since the
#                  last one; the sum is the difference of all completion times. As what the base policy does depends
#                  on time alone, it moves no optimum


MIN_WAIT_S: Final = 60.0  # a job, of the base policy: what a window's rewards of `rltune-fixed` are shares of
_WORDS: Final = {  # of a course: what `rltune-faithful` and `rltune-fixed` have where nothing is said
    "reward": ("end", "steps"),
    "against": ("stall", "first-fit"),
    "value": ("slots", "means"),
}
Told = Callable[[int, JobUpdateStats, float, float], None]  # epoch, update, mean scores of the policy and of its base


@dataclass(frozen=True, slots=True)
class TrainingConfig:
    """What is learned and how.

    Attributes:
        spec: the policy.
        windows: to learn on.
        score: one of RLTune's five, for `rltune-faithful`.
        epochs, episodes: updates, and windows before each.
        reward: `end`, RLTune's at the end of an episode, or `steps`, after each choice; empty for the kind's.
        against: how the base policy waits, `stall` or `first-fit`; empty for the kind's.
        value: of `slots` (128), or of `means` and largest values over the queue; empty for the kind's.
    """

    spec: LearnedSpec
    windows: Windows
    knobs: JobPPOKnobs = field(default_factory=JobPPOKnobs)
    score: str = "wait"
    epochs: int = 100
    episodes: int = 100
    seed: int = 0
    reward: str = ""
    against: str = ""
    value: str = ""

    def word(self, key: str) -> str:
        """What is said of `reward`, `against` or `value`, or else its kind's."""
        return getattr(self, key) or _WORDS[key][self.spec.kind != FAITHFUL]

    @property
    def base(self) -> JobPolicy:
        """Whom the rewards are set against: the first in order, in RLTune's way, or whoever fits."""
        spec = self.spec
        return JobPolicy(spec.base, self.word("against"), placement="lowest", estimate=spec.estimate)

    def identity(self) -> dict[str, Any]:
        """What a checkpoint must have been begun with; the number of epochs may change."""
        windows = self.windows
        return {
            "spec": asdict(self.spec),
            "knobs": asdict(self.knobs),
            "score": self.score,
            "episodes": self.episodes,
            "seed": self.seed,
            **{key: self.word(key) for key in _WORDS},
            "windows": [len(windows.jobs), windows.first, windows.last, windows.length, windows.warm],
        }


def play(config: TrainingConfig, task: tuple[Weights, int, int]) -> Episode:
    """One episode: with a network's weights, in the window that begins with a job, and a seed for its draws."""
    weights, start, seed = task
    windows, memory = config.windows, list[Decision]()
    chooser = NetChooser(JobNet(weights), stream(seed, "jobs:episode"), memory)
    base = windows.run(start, config.base)
    episode_record = windows.run(start, config.spec.policy, Choosing(chooser))
    rows, chosen, log_prob, at_ns, queues = zip(*memory, strict=True)
    if config.word("reward") == "steps":
        rewards, score, base_score = _stepwise(windows, at_ns, base, episode_record)
    else:
        score, base_score = (
            score_of(record, config.score, windows.gpus, windows.count(record)) for record in (episode_record, base)
        )
        rewards = np.zeros(len(memory))
        rewards[-1] = gain(base_score, score)
    return Episode(
        np.concatenate(rows),
        np.array([len(each) for each in rows]),
        np.array(chosen),
        np.array(log_prob, np.float32),
        np.stack(queues),
        rewards.astype(np.float32),
        score,
        base_score,
    )


def _stepwise(
    windows: Windows, at_ns: Sequence[int], base: JobsRecord, own: JobsRecord
) -> tuple[NDArray[np.float64], float, float]:
    end_ns = max(int(base.end_ns.max()), int(own.end_ns.max()))
    until_ns = np.array([*at_ns[1:], end_ns])
    ahead = in_system_s(base, until_ns) - in_system_s(own, until_ns)
    counts = windows.count(own)
    waits = [float(np.nanmean(record.wait_s[counts])) for record in (own, base)]
    all_waits_s = float(np.nansum(base.wait_s))
    rewards = np.diff(ahead, prepend=0.0) / max(all_waits_s, MIN_WAIT_S * len(base.submit_ns))
    return rewards, waits[0], waits[1]


def train(config: TrainingConfig, path: Path, jobs: Jobs = 1, resume: bool = True, told: Told | None = None) -> Learned:
    """Train from the start, or from where the file is; it is written after each epoch.

    Raises:
        InputError: the file is of another training.
        WorkError: training diverged, or a process was killed.
    """
    learner = JobLearner(config.knobs, config.seed, has_slots=config.word("value") == "slots")
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
