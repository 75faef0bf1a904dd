"""Columns by job number of all that a scheduler records of jobs, and the orders of jobs based on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field

from jobs.policies.job_cluster import JobArrived
from jobs.policies.run_times import GittinsTables
from kit.strict import StrictModel
from kit.units import NS_PER_S, seconds

Jobs = Any  # a job's number, or an array of them: indexing columns by it gives a number or an array
NEVER_NS: Final = 1 << 62
WAITING, RUNNING, STOPPING, GONE = range(4)
_FRESH: Final = {"gpus": 1, "from_ns": NEVER_NS, "state": GONE, "speed": 1.0, "share": 1.0}  # other columns are 0


class JobBook:
    """Records of jobs, a column each: integers, except `speed` and `share`; all times in nanoseconds.

    Attributes:
        estimate_ns: estimate of its whole work at the reference type.
        done_ns: work that is kept.
        since_ns: start of its present wait or run.
        from_ns: start of its work (after a restart); `NEVER_NS` for a waiting job.
        begun: number of its starts.
        group: the jobs with a common history.
        speed: its present speed.
        share: the part of its one GPU that it needs; otherwise 1.
    """

    gpus: NDArray[np.int64]
    submit_ns: NDArray[np.int64]
    estimate_ns: NDArray[np.int64]
    done_ns: NDArray[np.int64]
    since_ns: NDArray[np.int64]
    from_ns: NDArray[np.int64]
    begun: NDArray[np.int64]
    group: NDArray[np.int64]
    state: NDArray[np.int64]
    speed: NDArray[np.float64]
    share: NDArray[np.float64]

    def __init__(self) -> None:
        self._room = 0
        self.make_room(1023)

    def make_room(self, job: int) -> None:
        """Extend the columns to a job of this number."""
        if job < self._room:
            return
        more = max(job + 1, 2 * self._room) - self._room
        for name in JobBook.__annotations__:
            fresh = np.full(more, _FRESH.get(name, 0))
            setattr(self, name, np.concatenate([getattr(self, name), fresh]) if self._room else fresh)
        self._room += more

    def attained_ns(self, jobs: Jobs, now_ns: int) -> Any:
        """Return work done at the reference type, including that of running jobs since their start."""
        if isinstance(jobs, int):  # the same to the last bit, in a tenth of the time
            return self.done_ns.item(jobs) + max(now_ns - self.from_ns.item(jobs), 0) * self.speed.item(jobs)
        return self.done_ns[jobs] + np.maximum(now_ns - self.from_ns[jobs], 0) * self.speed[jobs]


class Features:
    """Features that an order may use, of one job or many; computed only if used.

    Attributes:
        jobs: the number of a job, or an array of them; every feature has this shape.
        restart_s: the cost of resuming: 0 for running jobs.
    """

    __slots__ = ("_book", "is_running", "jobs", "now_ns", "restart_s")

    def __init__(self, book: JobBook, jobs: Jobs, now_ns: int, is_running: bool, restart_s: float = 0.0) -> None:
        self._book = book
        self.jobs = jobs
        self.now_ns = now_ns
        self.is_running, self.restart_s = is_running, 0.0 if is_running else restart_s

    @property
    def now_s(self) -> float:
        """The present time."""
        return self.now_ns / NS_PER_S

    @property
    def gpus(self) -> Any:
        """GPUs that each needs; a fraction for a job that needs part of one."""
        return self._book.gpus[self.jobs] * self._book.share[self.jobs]

    @property
    def submit_s(self) -> Any:
        """Time of submission."""
        return self._book.submit_ns[self.jobs] / NS_PER_S

    @property
    def waiting_since_s(self) -> Any:
        """Start of the job's (last) wait."""
        return self._book.since_ns[self.jobs] / NS_PER_S

    @property
    def estimate_s(self) -> Any:
        """Run time by the policy's estimate: a second at least."""
        return np.maximum(self._book.estimate_ns[self.jobs] / NS_PER_S, 1.0)

    @property
    def attained_s(self) -> Any:
        """Work that is done."""
        return self._book.attained_ns(self.jobs, self.now_ns) / NS_PER_S

    @property
    def remaining_s(self) -> Any:
        """Remaining work, by the estimate: not below 0."""
        book = self._book
        return np.maximum(book.estimate_ns[self.jobs] - book.attained_ns(self.jobs, self.now_ns), 0) / NS_PER_S

    @property
    def group(self) -> Any:
        """The group of jobs whose durations predict its own (`jobs.policies.run_times`)."""
        return self._book.group[self.jobs]


# ---------------------------------------------------------------------------------------------------------- multifactor
# Slurm's multifactor priority: age, size and fair share of a job, weighted; largest first.
#
# `priority/multifactor` of Slurm (slurm.schedmd.com/priority_multifactor.html; its classic fair share,
# slurm.schedmd.com/classic_fair_share.html, which `PriorityFlags=NO_FAIR_TREE` chooses), for accounts that are all
# children of the root:
#
#     priority   = weight_age x age + weight_size x size + weight_fairshare x F, cut to a whole number, at least 1
#     age        = wait / max_age, at most 1
#     size       = (share of the nodes + share of the GPUs) / 2; 1 less that if small jobs are favoured
#     F          = 2^(-(U / S) / damping), U the account's part of all usage, S its part of all shares
#     or, by Fair Tree, the number of n accounts with no larger S / U, over n + 1 (slurm.schedmd.com/fair_tree.html)
#
# Usage is GPU time held, restarts included; it halves every `half_life`. Priorities and usage are calculated every
# `period` for all waiting jobs, and a new job's priority on arrival with the usage of the last calculation. Usage
# within a period decays over the whole period, as in Slurm for a job that runs all the time. A job's size counts GPUs
# instead of Slurm's CPUs; its nodes are the number that its GPUs fill, at the cluster's mean size.


MULTIFACTOR: Final = "multifactor"
_DAY_S: Final = 86_400.0


LONGEST_S: Final = 1e9  # 31 years, so that sums of nanoseconds stay whole numbers of 64 bits
Time = Annotated[float, BeforeValidator(seconds), Field(ge=0, le=LONGEST_S)]
Span = Annotated[float, BeforeValidator(seconds), Field(gt=0, le=LONGEST_S)]
Positive = Annotated[float, Field(gt=0)]
Weight = Annotated[float, Field(ge=0, le=1e9)]


class MultifactorParams(StrictModel):
    """Slurm's multifactor priority, as `slurm.conf` has it; for the order `multifactor`."""

    weight_age: Weight = Field(1000.0, description="PriorityWeightAge")
    weight_size: Weight = Field(1000.0, description="PriorityWeightJobSize")
    weight_fairshare: Weight = Field(10_000.0, description="PriorityWeightFairshare")
    max_age_s: Span = Field(14 * _DAY_S, description="PriorityMaxAge: the age that counts as 1")
    favors_small: bool = Field(False, description="PriorityFavorSmall")
    half_life_s: Span = Field(14 * _DAY_S, description="PriorityDecayHalfLife of usage")
    damping: Positive = Field(1.0, description="FairShareDampeningFactor")
    fair_tree: bool = Field(
        False, description="accounts are ranked by shares over usage (Slurm's default); false: `NO_FAIR_TREE`"
    )
    period_s: Annotated[Span, Field(ge=1)] = Field(300.0, description="PriorityCalcPeriod")
    account: Literal["user", "vc"] = Field("user", description="whose usage counts")  # without a user, the job's VC's
    shares: dict[str, Positive] = Field(default_factory=dict, description="by account; all others have one")

    @property
    def flags(self) -> str:
        """`PriorityFlags`."""
        return "" if self.fair_tree else "NO_FAIR_TREE"

    @property
    def period_ns(self) -> int:
        """`period_s` in whole nanoseconds."""
        return round(self.period_s * NS_PER_S)


class Accounts:
    """Accounts' usage: how many GPUs for how long, up to now.

    Args:
        gpus, nodes: of the cluster.
    """

    def __init__(self, params: MultifactorParams, gpus: int, nodes: int) -> None:
        self._params = params
        self._gpus = gpus
        self._nodes = nodes
        self._numbers: dict[str, int] = {}
        self._of_job = np.zeros(1024, np.int64)
        self._shares, self._used = np.zeros(0), np.zeros(0)  # by account; GPU seconds at the last calculation
        self._fresh, self._held = np.zeros(0), np.zeros(0)  # GPU seconds since then; GPUs held now
        self._until_ns, self._calculated = 0, 0  # fresh usage is counted until; the number of the last calculation
        self._decay = 2.0 ** (-params.period_ns / NS_PER_S / params.half_life_s)
        self._fair = np.zeros(0)  # F at the last calculation

    def arrive(self, event: JobArrived, now_ns: int) -> None:
        """Register a job with its account."""
        self.advance(now_ns)
        name = event.vc if self._params.account == "vc" or not event.user else event.user
        number = self._numbers.setdefault(name, len(self._numbers))
        if number == len(self._shares):
            self._shares = np.append(self._shares, self._params.shares.get(name, 1.0))
            self._used, self._fresh, self._held = (np.append(each, 0) for each in (self._used, self._fresh, self._held))
            self._fair = np.append(self._fair, 1.0)
        if event.job >= len(self._of_job):
            more = np.zeros(max(event.job + 1, 2 * len(self._of_job)) - len(self._of_job), np.int64)
            self._of_job = np.concatenate([self._of_job, more])
        self._of_job[event.job] = number

    def hold(self, job: int, gpus: float, now_ns: int) -> None:
        """Add to the GPUs that a job holds from now on (below 0: subtract)."""
        self.advance(now_ns)
        self._held[self._of_job[job]] += gpus

    def advance(self, now_ns: int) -> int:
        """Count until now; returns the number of the last calculation, which changes whenever priorities do."""
        period_ns = self._params.period_ns
        many = now_ns // period_ns - self._calculated
        if many > 0:
            self._calculated += many
            at_ns = self._calculated * period_ns
            first_s = (at_ns - (many - 1) * period_ns - self._until_ns) / NS_PER_S
            used = (self._used + self._fresh + self._held * first_s) * self._decay
            if many > 1:  # nothing changed since: each period adds the same amount
                later = (self._decay ** np.arange(1.0, many)).sum() * period_ns / NS_PER_S
                used = used * self._decay ** (many - 1) + self._held * later
            self._used = used
            self._fresh = np.zeros_like(used)
            self._until_ns = at_ns
            self._fair = self._fair_shares()
        self._fresh += self._held * ((now_ns - self._until_ns) / NS_PER_S)
        self._until_ns = now_ns
        return self._calculated

    def _fair_shares(self) -> Any:
        usage = self._used / max(float(self._used.sum()), 1e-300)
        if self._params.fair_tree:
            level = np.divide(self._shares, usage, out=np.full(len(usage), np.inf), where=usage > 0)
            return np.searchsorted(np.sort(level), level, side="right") / (len(level) + 1)  # Slurm's root is above all
        return 2.0 ** (-usage / (self._shares / self._shares.sum()) / self._params.damping)

    def index(self, jobs: Features) -> Any:
        """Return the negative priorities of jobs at the last calculation, so that the largest comes first."""
        params = self._params
        calculated_s = self.advance(jobs.now_ns) * params.period_ns / NS_PER_S
        age = np.clip((calculated_s - jobs.submit_s) / params.max_age_s, 0.0, 1.0)
        size = (np.ceil(jobs.gpus * self._nodes / self._gpus) / self._nodes + jobs.gpus / self._gpus) / 2
        if params.favors_small:
            size = 1.0 - size
        fair = self._fair[self._of_job[jobs.jobs]]
        priority = params.weight_age * age + params.weight_size * size + params.weight_fairshare * fair
        return -np.maximum(np.floor(priority), 1.0)


# ---------------------------------------------------------------------------------------------------------------- gavel
# Gavel's linear programs: which share of the time each job gets on each type (Narayanan et al., OSDI'20, section 4).
#
# With X[m, k] the share of job m in pool k, s its speed there, z its GPUs, and throughput(m) = sum_k s[m, k] X[m, k]:
#
#     X >= 0;   sum_k X[m, k] <= 1;   sum_m z[m] X[m, k] <= GPUs of k
#
#     gavel-max-min      largest min_m  z throughput(m) / (speed of m on an equal share of all types)
#     gavel-blind        the same with all speeds taken to be 1
#     gavel-finish-time  least max_m  (age + left / throughput(m)) / (age + left / throughput of m on 1/M of all GPUs)
#     gavel-fifo         largest sum_m (M - m)  z throughput(m) / speed on the fastest type, m in order of submission
#     gavel-least-jct    largest sum_m throughput(m) / left: the sum of each job's relative progress on its rest a
#     second
#
# The last is our own. In the others, z is placed as in Gavel's code; its paper omits it. An optimal minimum or maximum
# leaves most shares undetermined: of the optimal solutions, that with the largest sum of normalised throughputs is
# taken. A pool is a type of GPU in one VC; a job that may not use a pool has no share there, and its equal share is of
# the pools that it may use.


Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Demands:
    """Jobs that compete for pools. Jobs with equal values of all that an objective uses may share a row.

    Attributes:
        gpus: (rows,) GPUs of each job.
        speeds: (rows, pools) 0 if it may not run there.
        many: (rows,) number of jobs that a row represents.
        capacity: (pools,) GPUs.
        age_s, left_s: (rows,) time since submission; remaining work at the reference type. Only some objectives use
            them.
    """

    gpus: Numbers
    speeds: Numbers
    many: Numbers
    capacity: Numbers
    age_s: Numbers
    left_s: Numbers

    def rows(self, which: NDArray[np.bool_]) -> Demands:
        """Return some of the rows."""
        gpus = self.gpus[which]
        speeds = self.speeds[which]
        many = self.many[which]
        return Demands(gpus, speeds, many, self.capacity, self.age_s[which], self.left_s[which])

    @property
    def equal_speed(self) -> Numbers:
        """(rows,) Speed on an equal share of all the GPUs that it may use."""
        may = self.speeds > 0
        return np.asarray((self.speeds * self.capacity).sum(1) / np.maximum((may * self.capacity).sum(1), 1e-300))


_SLACKS: Final = (1e-7, 1e-5)  # of a level; the solver's own tolerance is 1e-7, so the first is sometimes too small


class _Programme:
    """The constraints of all objectives; the variables are X for each job and pool that it may use, and `level`."""

    def __init__(self, demands: Demands) -> None:
        from scipy import sparse

        self.demands = demands
        self.rows, self.pools = (demands.speeds > 0).nonzero()
        self.speeds = demands.speeds[self.rows, self.pools]
        self.variables = len(self.rows)
        many, numbers = len(demands.gpus), np.arange(self.variables)
        shape = (many, self.variables + 1)
        used = demands.many[self.rows] * demands.gpus[self.rows]
        self.share = sparse.csr_array((np.ones(self.variables), (self.rows, numbers)), shape=shape)
        pools = (len(demands.capacity), self.variables + 1)
        self.capacity = sparse.csr_array((used, (self.pools, numbers)), shape=pools)
        self.throughput = sparse.csr_array((self.speeds, (self.rows, numbers)), shape=shape)

    def level(self, per_level: Numbers) -> tuple[float, Numbers]:
        """Return the largest level with throughput(m) >= level x per_level(m) for all, and the throughputs there."""
        objective = np.zeros(self.variables + 1)
        objective[-1] = -1.0
        values = self._solve(objective, per_level, None)
        assert values is not None, "running no job is a solution"
        return float(values[-1]), np.asarray(self.throughput @ values)

    def best(self, normal: Numbers, per_level: Numbers | None = None, level: float = 0.0) -> Numbers:
        """Return (rows, pools) the shares with the largest sum of throughput(m) / normal(m) that keep a level."""
        weights = (self.demands.many / normal)[self.rows] * self.speeds
        objective = np.append(-weights / float(weights.max()), 0.0)
        tries = (self._solve(objective, per_level, level * (1 - slack)) for slack in _SLACKS)
        values = next((each for each in tries if each is not None), None)
        assert values is not None, f"the level {level} was found for these constraints"
        shares = np.zeros(self.demands.speeds.shape)
        shares[self.rows, self.pools] = np.clip(values[:-1], 0.0, 1.0)
        return shares

    def _solve(self, objective: Numbers, per_level: Numbers | None, level: float | None) -> Numbers | None:
        """Return the variables' best values; None if the solver can't keep the level."""
        from scipy import sparse
        from scipy.optimize import linprog

        demands = self.demands
        blocks, limits = [self.share, self.capacity], [np.ones(len(demands.gpus)), demands.capacity]
        if per_level is not None:
            entries = np.arange(len(per_level)), np.full(len(per_level), self.variables)
            blocks.append(sparse.csr_array((per_level, entries), shape=self.throughput.shape) - self.throughput)
            limits.append(np.zeros(len(per_level)))
        last = (0.0, None) if level is None else (level, level)
        bounds = [(0.0, None)] * self.variables + [last]
        solution = linprog(objective, sparse.vstack(blocks), np.concatenate(limits), bounds=bounds, method="highs")
        return None if solution.x is None else np.asarray(solution.x)


def max_min(demands: Demands) -> Numbers:
    """Return (rows, pools) shares by max-min fairness."""
    program, per_level = _Programme(demands), demands.equal_speed / demands.gpus
    return program.best(demands.equal_speed, per_level, program.level(per_level)[0])


def finish_time(demands: Demands, exactness: float = 1e-3) -> Numbers:
    """Return (rows, pools) shares by finish-time fairness: the least maximal ratio, to this relative exactness.

    A ratio determines the throughput that each job needs, so bisection finds the least one.
    """
    program, share = _Programme(demands), np.minimum(demands.capacity.sum() / demands.many.sum() / demands.gpus, 1.0)
    age_s, left_s = demands.age_s, np.maximum(demands.left_s, 1.0)
    alone_s = age_s + left_s / (demands.equal_speed * share)

    def reached(throughput: Numbers) -> float:
        return float(((age_s + left_s / throughput) / alone_s).max())

    low = float((age_s / alone_s).max())  # below it, a job would have ended before now
    high = reached(program.level(left_s / alone_s)[1])
    while high - low > exactness * high:
        middle = (low + high) / 2
        level, throughput = program.level(left_s / (middle * alone_s - age_s))
        low, high = (middle, high) if level < 1 else (low, min(middle, reached(throughput)))
    return program.best(demands.equal_speed, left_s / (high * alone_s - age_s), 1.0)


def fifo(demands: Demands) -> Numbers:
    """Return (rows, pools) shares in the order of submission: the oldest first, each on its fastest type."""
    rank = np.argsort(np.argsort(-demands.age_s, kind="stable"))
    weight = (len(rank) - rank) * demands.gpus / demands.speeds.max(1)
    return _Programme(demands).best(1 / weight)


def least_jct(demands: Demands) -> Numbers:
    """Return (rows, pools) shares that maximize the fraction of each job's remaining work done a second."""
    return _Programme(demands).best(np.maximum(demands.left_s, 1.0))


@dataclass(frozen=True, slots=True)
class Objective:
    """An objective by which pools are shared.

    Attributes:
        shares: the shares for a table of demands.
        is_by_job: whether it uses more of a job than its GPUs and speeds; otherwise equal jobs are one row.
        is_blind: whether all speeds are taken to be 1.
        needs_estimate: whether it uses run times.
    """

    shares: Callable[[Demands], Numbers]
    is_by_job: bool = False
    is_blind: bool = False
    needs_estimate: bool = False


OBJECTIVES: Final[Mapping[str, Objective]] = {
    "gavel-max-min": Objective(max_min),
    "gavel-blind": Objective(max_min, is_blind=True),
    "gavel-finish-time": Objective(finish_time, is_by_job=True, needs_estimate=True),
    "gavel-fifo": Objective(fifo, is_by_job=True),
    "gavel-least-jct": Objective(least_jct, is_by_job=True, needs_estimate=True),
}


# --------------------------------------------------------------------------------------------------------------- orders
# Orders of jobs: an index of each job, smallest first; equal ones in the order of submission.
#
# Each is a word in a policy file. `n` is a job's GPUs, `r` its estimated run time, `s` its submission, `w` its wait.
# Formulas of wfp3, unicep and f1 as in Zhang et al., RLScheduler, SC'20 (from Tang et al. 2009; Carastan-Santos and
# de Camargo, SC'17).


Index = Callable[[Features], Any]


@dataclass(frozen=True, slots=True)
class Order:
    """An order of jobs.

    Attributes:
        index: the indices of jobs from their features, in the same shape; smallest first.
        needs_estimate: whether it uses run times.
        wait_moves: whether a waiting job's index changes with time.
        run_worsens: whether a running job's index grows with time, so that waiting jobs may overtake it.
        tables: tables that the index uses, if any: jobs' indices change when their version does.
        accounts: accounts whose usage it uses, if any: jobs' indices change when it is recalculated.
    """

    index: Index
    needs_estimate: bool = False
    wait_moves: bool = False
    run_worsens: bool = False
    tables: GittinsTables | None = None
    accounts: Accounts | None = None

    def guarded(self, age_ns: int) -> Order:
        """Return this order behind all jobs that have waited longer than a limit, the oldest of them first."""

        def index(jobs: Features) -> Any:
            waited_s = jobs.now_s - jobs.submit_s
            return np.where(waited_s > age_ns / NS_PER_S, -_BEFORE_ALL * waited_s, self.index(jobs))

        return replace(self, index=index, wait_moves=True)


_BEFORE_ALL: Final = 1e30  # a second of it outweighs any index
SECOND_QUEUE_GPU_S: Final = 3200.0  # Tiresias' threshold between its two queues (Gu et al., NSDI'19, section 5)


def _wfp3(jobs: Features) -> Any:
    slowdown = (jobs.now_s - jobs.submit_s) / jobs.estimate_s
    return -(slowdown * slowdown * slowdown) * jobs.gpus  # `**` rounds differently for one than for many


def _unicep(jobs: Features) -> Any:
    """Return UNICEP's index. One GPU has no logarithm to divide by, so such jobs come before all others, by w / r."""
    size = np.maximum(np.log2(jobs.gpus), 1e-9)
    return -(jobs.now_s - jobs.submit_s) / (size * jobs.estimate_s)


def _f1(jobs: Features) -> Any:
    """Return F1's index; the submission counts from a second after the start."""
    return np.log10(jobs.estimate_s) * jobs.gpus + 870.0 * np.log10(np.maximum(jobs.submit_s, 1.0))


def _round_robin(jobs: Features) -> Any:
    """Return the start of the wait; running jobs come last."""
    return jobs.waiting_since_s * 0.0 + jobs.now_s if jobs.is_running else jobs.waiting_since_s


GITTINS: Final = "gittins"
_PLAIN: Final[Mapping[str, Order]] = {
    "fifo": Order(lambda jobs: jobs.submit_s),
    "smallest": Order(lambda jobs: jobs.gpus),
    "sjf": Order(lambda jobs: jobs.estimate_s, needs_estimate=True),
    "saf": Order(lambda jobs: jobs.estimate_s * jobs.gpus, needs_estimate=True),  # smallest area first
    # Shortest remaining time first, and remaining GPU time (Tiresias, NSDI'19); a restart is part of the remainder.
    "srtf": Order(lambda jobs: jobs.remaining_s + jobs.restart_s, needs_estimate=True),
    "srsf": Order(lambda jobs: (jobs.remaining_s + jobs.restart_s) * jobs.gpus, needs_estimate=True),
    "las": Order(lambda jobs: jobs.attained_s, run_worsens=True),  # least attained run time, not GPU time, first
    # Two queues by attained GPU time, first come first served in each (Tiresias, NSDI'19).
    "2dlas": Order(lambda jobs: np.asarray(jobs.attained_s * jobs.gpus >= SECOND_QUEUE_GPU_S, float), run_worsens=True),
    # The longest wait first. With short rounds: processor sharing.
    "round-robin": Order(_round_robin, run_worsens=True),
    "wfp3": Order(_wfp3, needs_estimate=True, wait_moves=True),  # -(w / r)^3 n
    "unicep": Order(_unicep, needs_estimate=True, wait_moves=True),  # -w / (log2(n) r)
    "f1": Order(_f1, needs_estimate=True),  # log10(r) n + 870 log10(s)
    "lcfs": Order(lambda jobs: -jobs.submit_s),  # last come first served
    "lpf": Order(lambda jobs: -jobs.estimate_s, needs_estimate=True),  # longest first
    # RLTune's approximation of Slurm's multifactor priority.
    "age-size": Order(
        lambda jobs: -(1000.0 * (jobs.now_s - jobs.submit_s) / 43_200.0 + 1000.0 * (1.0 - jobs.gpus / 160.0)),
        wait_moves=True,
    ),
}
_SHARING: Final = {
    name: replace(_PLAIN["fifo"], needs_estimate=objective.needs_estimate) for name, objective in OBJECTIVES.items()
}
ORDERS: Final = (*_PLAIN, GITTINS, MULTIFACTOR, *_SHARING)
NEED_ESTIMATES: Final = tuple(name for name, order in {**_PLAIN, **_SHARING}.items() if order.needs_estimate)


def order_of(name: str, tables: Callable[[], GittinsTables], accounts: Callable[[], Accounts] | None = None) -> Order:
    """Return the order that a word names; `tables` makes the tables of `gittins`, `accounts` those of `multifactor`."""
    if name == MULTIFACTOR:
        assert accounts is not None, "an order of usage without accounts"
        usage = accounts()
        return Order(usage.index, accounts=usage)
    if name == GITTINS:  # GPUs / G, from the durations of jobs that have ended
        past = tables()

        def index(jobs: Features) -> Any:
            return jobs.gpus * past.inverse_s(jobs.group, jobs.attained_s, jobs.is_running)

        return Order(index, run_worsens=True, tables=past)
    return {**_PLAIN, **_SHARING}[name]
