"""RLTune: windows of consecutive jobs of any trace and cluster; PPO; training of a policy; judgement. It needs torch.

The policy needs no padding: each job is a row, and a decision is a sequence of rows. The value network's inputs are
means and maxima over the queue (17-32-16-8-1), independent of its length. An update is of full batches, with a bound on
its KL divergence.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from heapq import heappop, heappush
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from jobs.job_records import JobsRecord
from jobs.job_simulation import ClusterModel, JobRun, JobSimulation
from jobs.job_traces import JobTrace
from jobs.learning.scoring_network import (
    HIDDEN,
    POOLED,
    SIZES,
    Decision,
    JobNet,
    Learned,
    LearnedSpec,
    NamedPolicy,
    NetChooser,
    Weights,
    fresh_weights,
    read_learned,
    write_learned,
)
from jobs.policies.chosen_queueing import Choosing, Inputs
from jobs.policies.named_policies import CHOICE, JobPolicy, policy_of
from jobs.policies.run_times import HISTORY, REQUESTED, DurationHistory
from kit.documents import inputs_hash
from kit.errors import InputError, WorkError
from kit.parallel import results
from kit.random_streams import derived_seed, stream
from kit.units import NS_PER_S

MOMENTS: Final = ("step", "exp_avg", "exp_avg_sq")
Floats = NDArray[np.float32]
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
    cluster_model: ClusterModel
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
        jobs: JobTrace, cluster_model: ClusterModel, share: float = 0.6, length: int = LENGTH, warm: int = LENGTH
    ) -> tuple[Windows, Windows]:
        """Split a trace into earlier windows to train on and later ones to evaluate on: disjoint, and warmed up."""
        cut = int(np.searchsorted(jobs.submit_s, jobs.submit_s[0] + share * (jobs.submit_s[-1] - jobs.submit_s[0])))
        earlier = Windows(jobs, cluster_model, warm, cut - length, length, warm, predicted_s(jobs))
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
        return JobSimulation(self.cluster_model, JobRun(jobs, policy, warmup_s, choosing=choosing))

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


# ------------------------------------------------------------------------------------------------------------------ PPO


@dataclass(frozen=True, slots=True)
class JobPPOParams:
    """Hyperparameters of PPO; RLTune has 80 steps at 3e-4 and 1e-3.

    Attributes:
        steps: gradient steps an update, at most, of the policy; the same number of the value.
        kl_stop: the policy's steps end when the mean log-ratio exceeds 1.5 times this.
        lam: lambda of generalized advantages (with a discount of 1).
    """

    policy_rate: float = 1e-3
    value_rate: float = 3e-3
    clip: float = 0.2
    steps: int = 25
    kl_stop: float = 0.01
    lam: float = 0.97


@dataclass(frozen=True, slots=True, eq=False)
class Episode:
    """Experience from one window; D decisions.

    Attributes:
        rows: (R, 8) inputs of all decisions, concatenated.
        counts: (D,) number of rows of each.
        choice: (D,) the chosen one of its rows.
        log_prob: (D,) log-probability of the choice when it was drawn.
        pooled: (D, 17) summary of the queue.
        rewards: (D,) reward after each.
        score, base_score: the sum of the rewards, and the base policy's score.
    """

    rows: Inputs
    counts: NDArray[np.int64]
    choice: NDArray[np.int64]
    log_prob: Floats
    pooled: Floats
    rewards: Floats
    score: float
    base_score: float


@dataclass(frozen=True, slots=True)
class JobUpdateStats:
    """Statistics of one update.

    Attributes:
        steps: policy steps before the bound was reached.
        kl: mean log-ratio at the end.
        entropy: mean -log-probability of the choices, when they were drawn.
        value_loss: before the update.
    """

    decisions: int
    steps: int
    kl: float
    entropy: float
    value_loss: float
    policy_loss: float


def advantages(rewards: Floats, values: Floats, lam: float) -> tuple[Floats, Floats]:
    """Return (D,) generalized advantages without discount (Schulman et al. 2016), and (D,) sums of future rewards."""
    deltas = rewards + np.append(values[1:], 0.0) - values
    advantage, ahead = np.empty_like(deltas), 0.0
    for step in range(len(deltas) - 1, -1, -1):
        ahead = advantage[step] = deltas[step] + lam * ahead
    return advantage.astype(np.float32), np.cumsum(rewards[::-1])[::-1].astype(np.float32)


class JobNetwork(nn.ModuleList):
    """A network with ReLU between layers and the weights of `fresh_weights`: (n, inputs) to (n,)."""

    def __init__(self, sizes: tuple[int, ...], seed: int, name: str) -> None:
        super().__init__([nn.Linear(inputs, outputs) for inputs, outputs in pairwise(sizes)])
        self.put(fresh_weights(sizes, seed, name))

    def forward(self, rows: Tensor) -> Tensor:
        """Map (n, inputs) to (n,)."""
        *hidden, last = self
        for layer in hidden:
            rows = torch.relu(layer(rows))
        scores: Tensor = last(rows)[:, 0]
        return scores

    def put(self, weights: Weights) -> None:
        """Load weights by the number of their layer."""
        self.load_state_dict({name: torch.from_numpy(value) for name, value in weights.items()})

    def weights(self) -> dict[str, Floats]:
        """Return a copy of the weights by the number of their layer."""
        return {name: value.numpy().copy() for name, value in self.state_dict().items()}


class JobLearner:
    """The policy's and the value's networks, with their optimizers."""

    def __init__(self, params: JobPPOParams, seed: int) -> None:
        self.params = params
        self.actor = JobNetwork(SIZES, seed, "actor")
        self.critic = JobNetwork((POOLED, *HIDDEN, 1), seed, "critic")
        parts = ((self.actor, params.policy_rate), (self.critic, params.value_rate))
        self.optimizer = torch.optim.Adam([{"params": list(net.parameters()), "lr": rate} for net, rate in parts])

    def update(self, episodes: Sequence[Episode]) -> JobUpdateStats:
        """Learn from all episodes at once; windows without choices contribute nothing.

        Raises:
            WorkError: a loss is no longer a number.
        """
        episodes = [episode for episode in episodes if len(episode.counts)]
        if not episodes:
            return JobUpdateStats(decisions=0, steps=0, kl=0.0, entropy=0.0, value_loss=0.0, policy_loss=0.0)
        inputs = torch.from_numpy(np.concatenate([episode.pooled for episode in episodes]))
        with torch.no_grad():
            values = self.critic(inputs).numpy()
        bounds = np.cumsum([len(episode.counts) for episode in episodes])[:-1]
        pairs = [
            advantages(episode.rewards, value, self.params.lam)
            for episode, value in zip(episodes, np.split(values, bounds), strict=True)
        ]
        advantage = np.concatenate([pair[0] for pair in pairs])
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        steps, kl, policy_loss = self._improve(_Choices.of(episodes, advantage))
        value_loss = self._value(inputs, torch.from_numpy(np.concatenate([pair[1] for pair in pairs])))
        entropy = -float(np.concatenate([episode.log_prob for episode in episodes]).mean())
        return JobUpdateStats(len(advantage), steps, kl, entropy, value_loss, policy_loss)

    def _improve(self, choices: _Choices) -> tuple[int, float, float]:
        kl, first_loss = 0.0, 0.0
        if not len(choices.picked):  # all were forced
            return 0, kl, first_loss
        for step in range(self.params.steps + 1):
            log_ratio = choices.log_prob_by(self.actor) - choices.log_prob
            kl = -float(log_ratio.detach().sum()) / choices.decisions
            if step == self.params.steps or kl > 1.5 * self.params.kl_stop:
                return step, kl, first_loss
            share = len(log_ratio) / choices.decisions  # forced choices have no gradient, and count in means
            ratio, clip = log_ratio.exp(), self.params.clip
            gains = ratio * choices.advantage, ratio.clamp(1 - clip, 1 + clip) * choices.advantage
            loss = share * -torch.minimum(*gains).mean()
            first_loss = first_loss if step else float(loss.detach())
            self._descend(loss)
        raise AssertionError("steps end within the loop")

    def _value(self, inputs: Tensor, returns: Tensor) -> float:
        first_loss = 0.0
        for step in range(self.params.steps):
            loss = (self.critic(inputs) - returns).square().mean()
            first_loss = first_loss if step else float(loss.detach())
            self._descend(loss)
        return first_loss

    def _descend(self, loss: Tensor) -> None:
        """Take a step of the network of this loss; the other has no gradient."""
        if not torch.isfinite(loss):
            raise WorkError("training diverged: the loss is no longer a number; take a smaller learning rate")
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()

    # ----------------------------------------------------------------------------------------------------- keeping

    def tensors(self) -> dict[str, NDArray[np.float32]]:
        """Return all that `restore` takes, except the policy's weights."""
        tensors = {f"critic.{name}": value for name, value in self.critic.weights().items()}
        for number, state in self.optimizer.state_dict()["state"].items():
            tensors |= {f"adam.{number}.{moment}": state[moment].numpy().copy() for moment in MOMENTS}
        return tensors

    def restore(self, actor: Weights, tensors: dict[str, Floats]) -> None:
        """Resume from the output of `tensors`; raises `KeyError` or `RuntimeError` for another network's."""
        self.actor.put(actor)
        start = "critic."
        self.critic.put({name.removeprefix(start): value for name, value in tensors.items() if name.startswith(start)})
        for number, parameter in enumerate((*self.actor.parameters(), *self.critic.parameters())):
            if f"adam.{number}.step" in tensors:
                moments = {name: torch.from_numpy(tensors[f"adam.{number}.{name}"].copy()) for name in MOMENTS}
                self.optimizer.state[parameter] = moments


@dataclass(frozen=True, slots=True, eq=False)
class _Choices:
    """Decisions with more than one row: C decisions with R rows; `decisions` counts all.

    Attributes:
        owner: (R,) the decision of each row.
        picked: (C,) the chosen row.
    """

    rows: Tensor
    owner: Tensor
    picked: Tensor
    log_prob: Tensor
    advantage: Tensor
    decisions: int

    @staticmethod
    def of(episodes: Sequence[Episode], advantage: Floats) -> _Choices:
        counts = np.concatenate([episode.counts for episode in episodes])
        is_free = counts > 1
        rows = np.concatenate([episode.rows for episode in episodes])[np.repeat(is_free, counts)]
        free_counts = counts[is_free]
        first = np.cumsum(free_counts) - free_counts
        choice = np.concatenate([episode.choice for episode in episodes])[is_free]
        log_prob = np.concatenate([episode.log_prob for episode in episodes])[is_free]
        return _Choices(
            torch.from_numpy(rows),
            torch.from_numpy(np.repeat(np.arange(len(free_counts)), free_counts)),
            torch.from_numpy(first + choice),
            torch.from_numpy(log_prob),
            torch.from_numpy(advantage[is_free]),
            len(counts),
        )

    def log_prob_by(self, actor: nn.Module) -> Tensor:
        """Return (C,) log-probabilities of the choices, by a network's scores."""
        scores: Tensor = actor(self.rows)
        most: Tensor = torch.full((len(self.picked),), -torch.inf)
        most = most.scatter_reduce(0, self.owner, scores.detach(), "amax")
        sums = torch.zeros(len(self.picked)).index_add(0, self.owner, (scores - most[self.owner]).exp())
        return scores[self.picked] - most - sums.log()


# --------------------------------------------------------------------------------------------------------------- course
# Training a job policy: episodes over several processes, an update, and again; it resumes after each epoch.
#
# A choice's reward is the lead over the base policy, in job seconds in the system, gained since the last choice. The
# rewards' sum is the difference of all completion times. The base policy's part depends only on time, so it does not
# change the optimum.


MIN_WAIT_S: Final = 60.0  # a job, of the base policy: the least denominator of a window's rewards
OnEpoch = Callable[[int, JobUpdateStats, float, float], None]  # epoch, update, mean scores of policy and base


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
    params: JobPPOParams = field(default_factory=JobPPOParams)
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
            "params": asdict(self.params),
            "episodes": self.episodes,
            "seed": self.seed,
            "windows": [len(windows.jobs), windows.first, windows.last, windows.length, windows.warm],
            "jobs": inputs_hash(*(column.tolist() for column in (jobs.submit_ns, jobs.work_ns, jobs.gpus, jobs.nodes))),
            "cluster": inputs_hash(repr(windows.cluster_model)),
        }


def play(config: TrainingConfig, task: tuple[Weights, int, int]) -> Episode:
    """Play one episode from a task: network weights, the window's first job, and a seed for draws."""
    weights, start, seed = task
    windows, memory = config.windows, list[Decision]()
    chooser = NetChooser(JobNet(weights), stream(seed, "jobs:episode"), memory)
    base = windows.run(start, config.base)
    episode_record = windows.run(start, config.spec.policy, Choosing(chooser))
    rows, choice, log_prob, at_ns, queues = zip(*memory, strict=True)
    return Episode(
        np.concatenate(rows),
        np.array([len(choices) for choices in rows]),
        np.array(choice),
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


def train(
    config: TrainingConfig, path: Path, jobs: int = 1, resume: bool = True, on_epoch: OnEpoch | None = None
) -> Learned:
    """Train from the start, or resume from the file; it is written after each epoch.

    Raises:
        InputError: the file is from another training.
        WorkError: training diverged, or a process was killed.
    """
    learner = JobLearner(config.params, config.seed)
    history: list[dict[str, float]] = _resumed(config, path, learner) if resume and path.is_file() else []
    for epoch in range(len(history), config.epochs):
        seed = derived_seed(config.seed, f"jobs epoch:{epoch}")
        starts = config.windows.drawn(config.episodes, seed, "training").tolist()
        weights = learner.actor.weights()
        tasks = [(weights, start, derived_seed(seed, f"episode:{number}")) for number, start in enumerate(starts)]
        episodes = results(play, config, tasks, jobs)
        stats = learner.update(episodes)
        own, base = (float(np.mean([getattr(one, name) for one in episodes])) for name in ("score", "base_score"))
        history.append({**asdict(stats), "score": own, "base_score": base})
        header = {"training": json.dumps({"course": config.identity(), "history": history})}
        write_learned(path, Learned(config.spec, JobNet(learner.actor.weights())), learner.tensors(), header)
        if on_epoch is not None:
            on_epoch(epoch, stats, own, base)
    return Learned(config.spec, JobNet(learner.actor.weights()))


def _resumed(config: TrainingConfig, path: Path, learner: JobLearner) -> list[dict[str, float]]:
    learned, tensors, header = read_learned(path)
    try:
        training = json.loads(header["training"])
        theirs, mine = training["course"], json.loads(json.dumps(config.identity()))
        differ = [name for name, value in mine.items() if theirs.get(name) != value]
        if differ:
            remedy = "continue with the settings it was begun with, or start from scratch in another file"
            raise InputError(str(path), "", f"begun with another {', '.join(differ)}; {remedy}")
        learner.restore(learned.net.weights, tensors)
        return list(training["history"])
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        problem = f"not a training to continue with, or damaged ({error!r:.300}); remove it to start from scratch"
        raise InputError(str(path), "", problem) from error


# ------------------------------------------------------------------------------------------------------------ judgement
# Mean waits on the same windows with intervals, and paired differences from a learned policy.


DRAWS: Final = 2000
_QSSF: Final = policy_of("qssf-lowest")
Numbers = NDArray[np.float64]


BASELINES: Final = (
    NamedPolicy("fifo-first-fit", policy_of("fifo-first-fit-lowest")),
    NamedPolicy("random-fitting", JobPolicy("fifo", CHOICE, placement="lowest", learned="random")),
    NamedPolicy("smallest", policy_of("smallest-lowest")),
    NamedPolicy("qssf", _QSSF),
    NamedPolicy("qssf-24h", replace(_QSSF, age_guard_ns=24 * 3600 * NS_PER_S)),
    NamedPolicy("sjf-oracle", policy_of("sjf-oracle-lowest")),
    NamedPolicy("saf-oracle", policy_of("saf-oracle-lowest")),
)
"""Baselines with learned policies' placement: `random-fitting` is an untrained learner, `qssf-24h` has an age guard."""


def judge(
    candidates: Iterable[NamedPolicy], windows: Windows, starts: Iterable[int], seed: int = 0, jobs: int = 1
) -> Iterator[tuple[NamedPolicy, Numbers]]:
    """Yield (candidate, (windows,) mean wait of the jobs that count in each window, seconds), one after another."""
    tasks = [(int(start), derived_seed(seed, f"window:{number}")) for number, start in enumerate(starts)]
    for candidate in candidates:
        yield candidate, np.array(results(_wait_s, (candidate, windows), tasks, jobs))


def _wait_s(common: tuple[NamedPolicy, Windows], window: tuple[int, int]) -> float:
    (candidate, windows), (start, seed) = common, window
    return windows.mean_wait_s(windows.run(start, candidate.policy, candidate.choosing(seed)))


class BootstrapMean(NamedTuple):
    """A mean over windows, and its 95 % bootstrap interval over resampled windows."""

    mean: float
    low: float
    high: float


def mean_of(waits_s: Numbers, seed: int = 0) -> BootstrapMean:
    """Return the bootstrap mean over windows; equal numbers of windows share resamples, so differences are paired."""
    many = len(waits_s)
    drawn = stream(seed, "job windows:bootstrap").integers(many, size=(DRAWS, many))
    low, high = np.percentile(waits_s[drawn].mean(axis=1), (2.5, 97.5))
    return BootstrapMean(float(waits_s.mean()), float(low), float(high))


def table_of(waits_s: dict[str, Numbers], against: str | None) -> str:
    """Return Markdown: each mean wait, and its excess over the reference policy's, with intervals."""
    lines = ["| policy | mean wait (s) | above it (s) |", "|---|---|---|"]
    for name, waits in waits_s.items():
        mean, cells = mean_of(waits), [name]
        cells.append(f"{mean.mean:,.0f} ({mean.low:,.0f} to {mean.high:,.0f})")
        more = mean_of(waits - waits_s[against]) if against is not None and name != against else None
        cells.append("" if more is None else f"{more.mean:+,.0f} ({more.low:+,.0f} to {more.high:+,.0f})")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
