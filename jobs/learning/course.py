"""Training a job policy: episodes over several processes, an update, and again; it resumes after each epoch.

rltune-faithful  RLTune's reward at the end of an episode on an empty cluster; everybody visible may be chosen
rltune-fixed     after each choice, by how many job seconds in the system it is ahead of the base policy since the
                 last one; the sum is the difference of all completion times. As what the base policy does depends
                 on time alone, it moves no optimum
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from jobs.learning.windows import SCORES, Windows, gain, in_system_s, score_of
from jobs.policies.choices import Choosing
from jobs.policies.policy import JobPolicy
from jobs.ppo.choosers import Memory, NetChooser
from jobs.ppo.files import FAITHFUL, Learned, LearnedSpec, read_learned, write_learned
from jobs.ppo.learner import Episode, JobLearner, JobPPOKnobs, UpdateStats, taken
from jobs.ppo.net import JobNet, Weights
from jobs.sim.record import JobsRecord
from kit.chance import derived_seed, stream
from kit.errors import InputError
from kit.parallel import Jobs, each

LEAST_WAIT_S: Final = 60.0  # a job, of the base policy: what a window's rewards of `rltune-fixed` are shares of
_WORDS: Final = {  # of a course; what `rltune-faithful` and `rltune-fixed` have where nothing is said
    "reward": ("", "end", "steps"),
    "against": ("", "stall", "first-fit"),
    "value": ("", "slots", "means"),
}
Told = Callable[[int, UpdateStats, float, float], None]  # epoch, update, mean scores of the policy and of its base


@dataclass(frozen=True, slots=True)
class Course:
    """What is learned and how.

    Attributes:
        spec: the policy.
        windows: to learn on.
        score: one of RLTune's five, for `rltune-faithful`.
        epochs, episodes: updates, and windows before each.
        reward: `end`, RLTune's at the end of an episode, or `steps`, after each choice; empty for the kind's.
        against: how the base policy waits, `stall` or `first-fit`; empty for the kind's.
        value: of `slots` (128), or of `means` and largest values over the queue; empty for the kind's.

    Raises:
        InputError: for a word that is none of these, or no epochs or episodes.
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

    def __post_init__(self) -> None:
        for key, known in {"score": SCORES, **_WORDS}.items():
            word = getattr(self, key)
            if word not in known:
                raise InputError("training", key, f"{word!r:.60} is none of {', '.join(filter(None, known))}")
        if min(self.epochs, self.episodes) < 1:
            raise InputError("training", "epochs", "epochs and episodes must be at least 1")

    def word(self, key: str) -> str:
        """What is said of `reward`, `against` or `value`, or else its kind's."""
        return getattr(self, key) or _WORDS[key][1 if self.spec.kind == FAITHFUL else 2]

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


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """One window to play."""

    weights: Weights
    start: int
    seed: int


def play(course: Course, task: Task) -> Episode:
    """One episode."""
    windows, memory = course.windows, Memory()
    chooser = NetChooser(JobNet(task.weights), stream(task.seed, "jobs:episode"), memory)
    base = windows.run(task.start, course.base)
    own = windows.run(task.start, course.spec.policy, Choosing(chooser))
    many = len(memory.chosen)
    if course.word("reward") == "steps":
        rewards, score, base_score = _stepwise(windows, memory, base, own)
    else:
        score, base_score = (
            score_of(record, course.score, windows.gpus, windows.count(record)) for record in (own, base)
        )
        rewards = np.zeros(many)
        rewards[-1] = gain(base_score, score)
    return Episode(
        np.concatenate(memory.rows),
        np.array([len(rows) for rows in memory.rows]),
        np.array(memory.chosen),
        np.array(memory.log_prob, np.float32),
        np.stack(memory.pooled),
        rewards.astype(np.float32),
        score,
        base_score,
    )


def _stepwise(
    windows: Windows, memory: Memory, base: JobsRecord, own: JobsRecord
) -> tuple[NDArray[np.float64], float, float]:
    end_ns = max(int(base.end_ns.max()), int(own.end_ns.max()))
    until_ns = np.array([*memory.at_ns[1:], end_ns])
    ahead = in_system_s(base, until_ns) - in_system_s(own, until_ns)
    counts = windows.count(own)
    waits = [float(np.nanmean(record.wait_s[counts])) for record in (own, base)]
    all_waits_s = float(np.nansum(base.wait_s))
    rewards = np.diff(ahead, prepend=0.0) / max(all_waits_s, LEAST_WAIT_S * len(base.submit_ns))
    return rewards, waits[0], waits[1]


def train(course: Course, path: Path, jobs: Jobs = 1, resume: bool = True, told: Told | None = None) -> Learned:
    """Train from the start, or from where the file is; it is written after each epoch.

    Raises:
        InputError: the file is of another training.
        WorkError: training diverged, or a process was killed.
    """
    learner = JobLearner(course.knobs, course.seed, has_slots=course.word("value") == "slots")
    history: list[dict[str, float]] = _resumed(course, path, learner) if resume and path.is_file() else []
    for epoch in range(len(history), course.epochs):
        seed = derived_seed(course.seed, f"jobs epoch:{epoch}")
        starts = course.windows.drawn(course.episodes, seed, "training").tolist()
        weights = taken(learner.actor)
        tasks = [Task(weights, start, derived_seed(seed, f"episode:{number}")) for number, start in enumerate(starts)]
        made = dict(each(play, course, tasks, jobs))
        episodes = [made[place] for place in range(len(tasks))]
        stats = learner.update(episodes)
        own, base = (float(np.mean([getattr(one, name) for one in episodes])) for name in ("score", "base_score"))
        history.append({**asdict(stats), "score": own, "base_score": base})
        header = {"training": json.dumps({"course": course.identity(), "history": history})}
        write_learned(path, Learned(course.spec, JobNet(taken(learner.actor))), learner.tensors(), header)
        if told is not None:
            told(epoch, stats, own, base)
    return Learned(course.spec, JobNet(taken(learner.actor)))


def _resumed(course: Course, path: Path, learner: JobLearner) -> list[dict[str, float]]:
    learned, tensors, header = read_learned(path)
    try:
        training = json.loads(header["training"])
        theirs, mine = training["course"], json.loads(json.dumps(course.identity()))
        differ = [name for name, value in mine.items() if theirs.get(name) != value]
        if differ:
            remedy = "go on with the settings it was begun with, or begin anew in another file"
            raise InputError(str(path), "", f"begun with another {', '.join(differ)}; {remedy}")
        learner.restore(learned.net.weights, tensors)
        return list(training["history"])
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        problem = f"not a training to go on with, or damaged ({error!r:.300}); remove it to begin anew"
        raise InputError(str(path), "", problem) from error


def history_in(path: Path) -> list[dict[str, float]]:
    """What each epoch of a training came to: `UpdateStats`' fields, `score` and `base_score`.

    Raises:
        InputError: the file is none, or without a training.
    """
    try:
        return list(json.loads(read_learned(path)[2]["training"])["history"])
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(str(path), "", f"has no history of a training ({error!r:.100})") from error
