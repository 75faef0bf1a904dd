"""Slurm's multifactor priority: age, size and fair share of a job, weighted; largest first.

`priority/multifactor` of Slurm (slurm.schedmd.com/priority_multifactor.html; its classic fair share,
slurm.schedmd.com/classic_fair_share.html, which `PriorityFlags=NO_FAIR_TREE` chooses), for accounts that lie side by
side below the root:

    priority   = weight_age x age + weight_size x size + weight_fairshare x F, cut to a whole number, at least 1
    age        = wait / max_age, at most 1
    size       = GPUs / GPUs of the cluster; 1 less that where small jobs are favoured
    F          = 2^(-(U / S) / damping), U the account's part of all usage, S its part of all shares

Usage is GPU time held, restarts included; it halves every `half_life`. Priorities and usage are calculated every
`period` for all that wait, and for a job as it arrives with the usage of the last calculation. What is used within a
period decays with the whole of it, as in Slurm for a job that runs all the time. Slurm counts nodes and CPUs in a
job's size; here, as everywhere in these pages, it is GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, Final

import numpy as np

from jobs.policies.book import Features
from jobs.policies.vocabulary import JobArrived
from kit.errors import InputError
from kit.units import NS_PER_S

MULTIFACTOR: Final = "multifactor"
USER, VC = "user", "vc"
_DAY_S: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class MultifactorKnobs:
    """What `slurm.conf` says of priorities; the values of the example in Slurm's page where nothing is said.

    Attributes:
        weight_age, weight_size, weight_fairshare: `PriorityWeightAge`, `-JobSize`, `-Fairshare`.
        max_age_s: `PriorityMaxAge`: the age that counts as 1.
        favors_small: `PriorityFavorSmall`.
        half_life_s: `PriorityDecayHalfLife` of usage.
        damping: `FairShareDampeningFactor`.
        period_s: `PriorityCalcPeriod`.
        account: whose usage counts: the `user`'s (of a job without one: its VC's), or the `vc`'s.
        shares: by account; who is not named has one.

    Raises:
        InputError: for weights below 0, times or damping that are not above 0, shares that are not above 0, or another
            account.
    """

    weight_age: float = 1000.0
    weight_size: float = 1000.0
    weight_fairshare: float = 10_000.0
    max_age_s: float = 14 * _DAY_S
    favors_small: bool = False
    half_life_s: float = 14 * _DAY_S
    damping: float = 1.0
    period_s: float = 300.0
    account: str = USER
    shares: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for key in ("weight_age", "weight_size", "weight_fairshare"):
            if not 0 <= getattr(self, key) <= 1e9:
                raise InputError("policy", f"multifactor.{key}", f"{getattr(self, key)}: allowed are 0 to 1e9")
        for key in ("max_age_s", "half_life_s", "damping"):
            _require_above_0(key, getattr(self, key))
        if not 1 <= self.period_s < 1e9:
            raise InputError("policy", "multifactor.period_s", f"{self.period_s}: allowed are 1 to 1e9 seconds")
        for name, share in self.shares.items():
            _require_above_0(f"shares.{name}", share)
        if self.account not in (USER, VC):
            raise InputError("policy", "multifactor.account", f"{self.account!r}: allowed are {USER} and {VC}")

    @property
    def period_ns(self) -> int:
        """`period_s` in whole nanoseconds."""
        return round(self.period_s * NS_PER_S)


def _require_above_0(key: str, value: float) -> None:
    if not (value > 0 and isfinite(value)):
        raise InputError("policy", f"multifactor.{key}", f"{value} is not above 0: give a finite number above 0")


class Accounts:
    """Who has used how many GPUs for how long: what was used until now, and nothing of what will be.

    Args:
        gpus: of the cluster.
    """

    def __init__(self, knobs: MultifactorKnobs, gpus: int) -> None:
        self._knobs, self._gpus = knobs, gpus
        self._numbers: dict[str, int] = {}
        self._of_job = np.zeros(1024, np.int64)
        self._shares, self._used = np.zeros(0), np.zeros(0)  # by account; GPU seconds at the last calculation
        self._fresh, self._held = np.zeros(0), np.zeros(0)  # GPU seconds since then; GPUs that are held now
        self._until_ns, self._calculated = 0, 0  # fresh usage is counted until; the number of the last calculation
        self._decay = 2.0 ** (-knobs.period_ns / NS_PER_S / knobs.half_life_s)
        self._fair = np.zeros(0)  # F at the last calculation

    def arrive(self, event: JobArrived, now_ns: int) -> None:
        """A job will count for its account."""
        self.advance(now_ns)
        name = event.vc if self._knobs.account == VC or not event.user else event.user
        number = self._numbers.setdefault(name, len(self._numbers))
        if number == len(self._shares):
            self._shares = np.append(self._shares, self._knobs.shares.get(name, 1.0))
            self._used, self._fresh, self._held = (np.append(each, 0) for each in (self._used, self._fresh, self._held))
            self._fair = np.append(self._fair, 1.0)
        if event.job >= len(self._of_job):
            more = np.zeros(max(event.job + 1, 2 * len(self._of_job)) - len(self._of_job), np.int64)
            self._of_job = np.concatenate([self._of_job, more])
        self._of_job[event.job] = number

    def hold(self, job: int, gpus: float, now_ns: int) -> None:
        """A job holds so many GPUs more from now on (below 0: fewer)."""
        self.advance(now_ns)
        self._held[self._of_job[job]] += gpus

    def advance(self, now_ns: int) -> int:
        """Count until now; the number of the last calculation, which changes whenever priorities do."""
        period_ns = self._knobs.period_ns
        many = now_ns // period_ns - self._calculated
        if many > 0:
            self._calculated += many
            at_ns = self._calculated * period_ns
            first_s = (at_ns - (many - 1) * period_ns - self._until_ns) / NS_PER_S
            used = (self._used + self._fresh + self._held * first_s) * self._decay
            if many > 1:  # nothing changed since: each period adds as much
                later = (self._decay ** np.arange(1.0, many)).sum() * period_ns / NS_PER_S
                used = used * self._decay ** (many - 1) + self._held * later
            self._used, self._fresh, self._until_ns = used, np.zeros_like(used), at_ns
            self._fair = self._fair_shares()
        self._fresh += self._held * ((now_ns - self._until_ns) / NS_PER_S)
        self._until_ns = now_ns
        return self._calculated

    def _fair_shares(self) -> Any:
        usage = self._used / max(float(self._used.sum()), 1e-300)
        return 2.0 ** (-usage / (self._shares / self._shares.sum()) / self._knobs.damping)

    def index(self, jobs: Features) -> Any:
        """Of jobs: their priority at the last calculation, below 0, so that the largest comes first."""
        knobs = self._knobs
        calculated_s = self.advance(jobs.now_ns) * knobs.period_ns / NS_PER_S
        age = np.clip((calculated_s - jobs.submit_s) / knobs.max_age_s, 0.0, 1.0)
        size = jobs.gpus / self._gpus
        if knobs.favors_small:
            size = 1.0 - size
        fair = self._fair[self._of_job[jobs.jobs]]
        priority = knobs.weight_age * age + knobs.weight_size * size + knobs.weight_fairshare * fair
        return -np.maximum(np.floor(priority), 1.0)
