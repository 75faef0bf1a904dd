"""Who comes first: an index of each job, smallest first; equal ones in the order of submission.

Each is a word in a policy file. `n` is a job's GPUs, `r` its estimated run time, `s` its submission, `w` its wait.
Formulas of wfp3, unicep and f1 as in Zhang et al., RLScheduler, SC'20 (from Tang et al. 2009; Carastan-Santos and
de Camargo, SC'17).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from jobs.policies.book import Features
from jobs.policies.gavel import OBJECTIVES
from jobs.policies.gittins import GittinsTables
from jobs.policies.multifactor import MULTIFACTOR, Accounts

Index = Callable[[Features], Any]


@dataclass(frozen=True, slots=True)
class Order:
    """One way to put jobs in order.

    Attributes:
        index: of the jobs of these features, as numbers of their shape; smallest first.
        needs_estimate: whether it asks how long a job runs.
        wait_moves: whether the index of a job that waits changes with time.
        run_worsens: whether that of one that runs grows with time, so that those that wait may come to be before it.
        tables: what the index rests on besides, if it does: jobs' indices change when its version does.
        accounts: whose usage it rests on, if it does: jobs' indices change when it is calculated anew.
    """

    index: Index
    needs_estimate: bool = False
    wait_moves: bool = False
    run_worsens: bool = False
    tables: GittinsTables | None = None
    accounts: Accounts | None = None


SECOND_QUEUE_GPU_S: Final = 3200.0  # Tiresias' threshold between its two queues (Gu et al., NSDI'19, section 5)


def _fifo(jobs: Features) -> Any:
    return jobs.submit_s


def _smallest(jobs: Features) -> Any:
    return jobs.gpus * 1.0


def _sjf(jobs: Features) -> Any:
    return jobs.estimate_s


def _saf(jobs: Features) -> Any:
    """Smallest area first."""
    return jobs.estimate_s * jobs.gpus


def _srtf(jobs: Features) -> Any:
    """Shortest remaining time first; a restart is part of what remains."""
    return jobs.remaining_s + jobs.restart_s


def _srsf(jobs: Features) -> Any:
    """Shortest remaining service (GPU time) first (Tiresias, NSDI'19)."""
    return (jobs.remaining_s + jobs.restart_s) * jobs.gpus


def _las(jobs: Features) -> Any:
    """Least attained service (run time, not GPU time) first."""
    return jobs.attained_s


def _two_d_las(jobs: Features) -> Any:
    """Two queues by attained GPU time, first come first served in each (Tiresias, NSDI'19)."""
    return (jobs.attained_s * jobs.gpus >= SECOND_QUEUE_GPU_S) * 1.0


def _round_robin(jobs: Features) -> Any:
    """Who has waited longest; those that run come last. With short rounds: processor sharing."""
    return jobs.waiting_since_s * 0.0 + jobs.now_s if jobs.is_running else jobs.waiting_since_s


def _wfp3(jobs: Features) -> Any:
    """-(w / r)^3 n."""
    slowdown = (jobs.now_s - jobs.submit_s) / jobs.estimate_s
    return -(slowdown * slowdown * slowdown) * jobs.gpus  # `**` rounds otherwise for one than for many


def _unicep(jobs: Features) -> Any:
    """-w / (log2(n) r): one GPU has no logarithm to divide by, so such jobs come before all others, by w / r."""
    size = np.maximum(np.log2(jobs.gpus), 1e-9)
    return -(jobs.now_s - jobs.submit_s) / (size * jobs.estimate_s)


def _f1(jobs: Features) -> Any:
    """log10(r) n + 870 log10(s), with s from a second after the start."""
    return np.log10(jobs.estimate_s) * jobs.gpus + 870.0 * np.log10(np.maximum(jobs.submit_s, 1.0))


def _lcfs(jobs: Features) -> Any:
    """Last come first served."""
    return -jobs.submit_s


def _lpf(jobs: Features) -> Any:
    """Longest job first."""
    return -jobs.estimate_s


def _age_size(jobs: Features) -> Any:
    """-(1000 w / 12 h + 1000 (1 - n / 160)): what RLTune takes for Slurm's multifactor priority."""
    return -(1000.0 * (jobs.now_s - jobs.submit_s) / 43_200.0 + 1000.0 * (1.0 - jobs.gpus / 160.0))


def gittins(tables: GittinsTables) -> Order:
    """GPUs / G, from the durations of jobs that have ended."""

    def index(jobs: Features) -> Any:
        return jobs.gpus * tables.inverse_s(jobs.group, jobs.attained_s, jobs.is_running)

    return Order(index, run_worsens=True, tables=tables)


GITTINS: Final = "gittins"
_PLAIN: Final[Mapping[str, Order]] = {
    "fifo": Order(_fifo),
    "smallest": Order(_smallest),
    "sjf": Order(_sjf, needs_estimate=True),
    "saf": Order(_saf, needs_estimate=True),
    "srtf": Order(_srtf, needs_estimate=True),
    "srsf": Order(_srsf, needs_estimate=True),
    "las": Order(_las, run_worsens=True),
    "2dlas": Order(_two_d_las, run_worsens=True),
    "round-robin": Order(_round_robin, run_worsens=True),
    "wfp3": Order(_wfp3, needs_estimate=True, wait_moves=True),
    "unicep": Order(_unicep, needs_estimate=True, wait_moves=True),
    "f1": Order(_f1, needs_estimate=True),
    "lcfs": Order(_lcfs),
    "lpf": Order(_lpf, needs_estimate=True),
    "age-size": Order(_age_size, wait_moves=True),
}
_SHARING: Final = {word: Order(_fifo, objective.needs_estimate) for word, objective in OBJECTIVES.items()}
ORDERS: Final = (*_PLAIN, GITTINS, MULTIFACTOR, *_SHARING)
NEED_ESTIMATES: Final = tuple(word for word, order in {**_PLAIN, **_SHARING}.items() if order.needs_estimate)


def multifactor(accounts: Accounts) -> Order:
    """Slurm's priority, largest first."""
    return Order(accounts.index, accounts=accounts)


def order_of(word: str, tables: Callable[[], GittinsTables], accounts: Callable[[], Accounts] | None = None) -> Order:
    """The order that a word names; `tables` makes what `gittins` rests on, `accounts` what `multifactor` does."""
    if word == MULTIFACTOR:
        assert accounts is not None, "an order of usage without accounts"
        return multifactor(accounts())
    return gittins(tables()) if word == GITTINS else {**_PLAIN, **_SHARING}[word]
