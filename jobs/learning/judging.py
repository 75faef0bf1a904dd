"""Policies side by side on the same windows: mean waits with intervals, and each against a learned one, paired.

What a window came to is kept as soon as it is known, by policy; the same call goes on where it was interrupted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from jobs.learning.learned import Learned
from jobs.learning.training import Windows, score_of
from jobs.policies.choices import Choosing, View
from jobs.policies.policy import JobPolicy, policy_of
from kit.chance import derived_seed, stream
from kit.documents import inputs_hash, read_checked, write_checked
from kit.errors import InputError
from kit.parallel import Jobs, each

DRAWS: Final = 2000
_BATCH: Final = 50  # windows between two writes
Numbers = NDArray[np.float64]


class Random:
    """Whoever may be chosen, each as likely."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def choose(self, view: View) -> int:
        """A place in the view."""
        return int(self._rng.choice(view.may.nonzero()[0]))


@dataclass(frozen=True, slots=True, eq=False)
class ComparedPolicy:
    """A policy under the name that it is shown by; a learned one with what it has learned, or `random`."""

    name: str
    policy: JobPolicy
    learned: Learned | None = None

    def choosing(self, seed: int) -> Choosing | None:
        """Who chooses in one window."""
        if self.learned is not None:
            return self.learned.choosing(seed)
        return Choosing(Random(stream(seed, "jobs:random"))) if self.policy.learned else None

    def identity(self) -> dict[str, Any]:
        """What its results rest on."""
        return {"policy": asdict(self.policy), "learned": None if self.learned is None else self.learned.content()}


def stalled(order: str, estimate: str = "none") -> ComparedPolicy:
    """An order in RLTune's way: the first of them stalls the cluster until it fits."""
    policy = JobPolicy(order, "stall", placement="lowest", estimate=estimate)
    return ComparedPolicy(f"{order}{'' if estimate == 'none' else f'-{estimate}'}-stall", policy)


def baseline(name: str) -> ComparedPolicy:
    """A policy by its name, with RLTune's greedy placement."""
    return ComparedPolicy(name, policy_of(f"{name}-lowest"))


def random_choice() -> ComparedPolicy:
    """Chance, in RLTune's way."""
    return ComparedPolicy("random-stall", JobPolicy("fifo", "stall", placement="lowest", learned="random"))


def random_fitting() -> ComparedPolicy:
    """Chance among those that fit: what is left of a learner that does not stall, when it has learned nothing."""
    return ComparedPolicy("random-fitting", JobPolicy("fifo", "choice", placement="lowest", learned="random"))


def learned_choice(name: str, learned: Learned) -> ComparedPolicy:
    """A learned policy."""
    return ComparedPolicy(name, learned.spec.policy, learned)


BASELINES: Final = (
    stalled("fifo"),
    random_choice(),
    stalled("smallest"),
    stalled("sjf", "oracle"),
    baseline("fifo-first-fit"),
    random_fitting(),
    baseline("smallest"),
    baseline("sjf-oracle"),
    baseline("fifo-easy-oracle"),
)
"""What RLTune's figures are set against: its own way of waiting with four orders, and baselines that need no
learning."""


@dataclass(frozen=True, slots=True)
class _Window:
    start: int
    seed: int


def judge(
    candidates: Sequence[ComparedPolicy],
    windows: Windows,
    starts: Iterable[int],
    folder: Path,
    seed: int = 0,
    jobs: Jobs = 1,
    score: str = "wait",
) -> Iterable[tuple[ComparedPolicy, Numbers]]:
    """(candidate, (windows,) mean wait of those that count in each window, seconds), one after another.

    Args:
        score: another of RLTune's five instead of the wait; it has a folder of its own.
        folder: keeps what is known of each candidate.

    Raises:
        InputError: two candidates have one name.
    """
    names = [each.name for each in candidates]
    if len(set(names)) < len(names):
        raise InputError("policies", "", f"two have one name among {', '.join(names)}: name them apart")
    tasks = [_Window(int(start), derived_seed(seed, f"window:{number}")) for number, start in enumerate(starts)]
    for candidate in candidates:
        yield candidate, _scores(candidate, windows, tasks, score, folder / f"{candidate.name}.json", jobs)


def _scores(
    candidate: ComparedPolicy, windows: Windows, tasks: list[_Window], score: str, path: Path, jobs: Jobs
) -> Numbers:
    made_of = inputs_hash(
        score,
        candidate.identity(),
        [windows.length, windows.warm, *windows.jobs.submit_s.tolist(), *windows.jobs.run_s.tolist()],
        windows.jobs.gpus.tolist(),
        repr(windows.world),
        [asdict(task) for task in tasks],
    )
    known: list[float] = []
    if path.is_file():
        kept = read_checked(path)
        known = list(kept["scores"]) if kept["inputs"] == made_of else []
    while len(known) < len(tasks):
        batch = tasks[len(known) : len(known) + _BATCH]
        made = dict(each(_score, (candidate, windows, score), batch, jobs))
        known += [made[place] for place in range(len(batch))]
        path.parent.mkdir(parents=True, exist_ok=True)
        write_checked(path, {"inputs": made_of, "scores": known})
    return np.array(known)


def _score(common: tuple[ComparedPolicy, Windows, str], task: _Window) -> float:
    candidate, windows, score = common
    record = windows.run(task.start, candidate.policy, candidate.choosing(task.seed))
    return score_of(record, score, windows.gpus, windows.count(record))


@dataclass(frozen=True, slots=True)
class BootstrapMean:
    """A mean over windows, and where it lies in 95 % of the resamples of windows."""

    mean: float
    low: float
    high: float


def mean_of(waits_s: Numbers, seed: int = 0) -> BootstrapMean:
    """By the bootstrap over windows: the same windows are drawn for whatever has as many, so differences are paired."""
    many = len(waits_s)
    drawn = stream(seed, "job windows:bootstrap").integers(many, size=(DRAWS, many))
    low, high = np.percentile(waits_s[drawn].mean(axis=1), (2.5, 97.5))
    return BootstrapMean(float(waits_s.mean()), float(low), float(high))


def table_of(waits_s: dict[str, Numbers], against: str | None) -> str:
    """Markdown: mean wait of each, and how far it is above the one that all are set against, with intervals."""
    lines = ["| policy | mean wait (s) | above it (s) |", "|---|---|---|"]
    for name, waits in waits_s.items():
        mean, cells = mean_of(waits), [name]
        cells.append(f"{mean.mean:,.0f} ({mean.low:,.0f} to {mean.high:,.0f})")
        more = mean_of(waits - waits_s[against]) if against is not None and name != against else None
        cells.append("" if more is None else f"{more.mean:+,.0f} ({more.low:+,.0f} to {more.high:+,.0f})")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
