"""Advice on the order of jobs that wait in a running Slurm, as SiteFactors; without a clock.

Jobs of one partition and QOS exchange their priorities: the first in the advised order is given the highest that any of
them has, and so on. So all others (arrays, jobs of other partitions, new ones) keep their places relative to them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from jobs.job_records import NEAR, NOT_YET, Snapshot, by_job
from jobs.job_scenario import JobExperiment
from jobs.job_traces import JobTrace
from jobs.learning.scoring_network import NamedPolicy
from jobs.logs.sacct import count_of, types_of
from jobs.policies.job_orders import MULTIFACTOR, Features
from jobs.policies.job_scheduler import JobScheduler
from jobs.policies.named_policies import ROUNDS, shown_name
from jobs.policies.run_times import HISTORY, ORACLE
from jobs.policy_comparison import DRAWS, band, log_error, run_policy
from jobs.slurm_conf import span_s
from kit.errors import InputError
from kit.parallel import results
from kit.random_streams import stream
from kit.units import NS_PER_S

SCHEMA: Final = "slimsched.jobsadvice/1"
BAND: Final = 1_000_000  # of a SiteFactor, up and down: if priorities differ by more, the site's own order stays
GAP: Final = 2  # between two priorities: Slurm's minimum is 1, so a 1 may be one less without a SiteFactor
MOST_RESERVED: Final = 50  # waiting jobs: of a longer queue, reserving for all takes minutes, so only the first has one
SLACK: Final = 100  # a priority that has drifted by no more is left unchanged
NO_LIMIT_S: Final = 365 * 86400.0  # as Slurm has it
MOVED: Final = ("Priority", "Resources")
_WAITS: Final = (*MOVED, "None")  # None: Slurm has not considered it yet
_QUEUE: Final = "JobID JobArrayID UserName Partition QOS State Reason EligibleTime TimeLimit TimeUsed tres-alloc"
QUEUE_COMMAND: Final = ("squeue", "-h", "-r", "-O", ",".join(f"{key}:|" for key in _QUEUE.split()))
FACTORS_COMMAND: Final = ("sprio", "-h", "-o", "%i|%S|%Y")
CONFIG_COMMAND: Final = ("scontrol", "show", "config")
_DOUBTS: Final = (  # keys, their unproblematic values, and the doubt about others
    ("PriorityWeightFairShare", "0", "fair share moves priorities as users run jobs; predicted waits ignore that"),
    ("PreemptType", "preempt/none", "jobs are stopped by QOS or partition; predicted waits ignore that"),
)
_NO_LIMITS: Final = ("UNLIMITED", "NOT_SET", "Partition_Limit", "INVALID")
_FOREIGN: Final = "SiteFactor set by others"
_LINE: Final = '{"job":'  # the start of each line of the journal
Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class LiveJob:
    """A job of the queue.

    Attributes:
        name: the users' name: `9_4` is a task of an array.
        since_s: time since which it could have begun (Unix time); infinite if it can't yet.
        limit_s: its time limit.
        used_s: the part of the limit that it has used.
        priority, factor: its present values in Slurm; None for jobs without a priority.
    """

    job_id: int
    name: str
    user: str
    partition: str
    qos: str
    state: str
    reason: str
    since_s: float
    limit_s: float
    used_s: float
    gpus: int
    gpu_types: str
    priority: int = 0
    factor: int | None = None

    @property
    def waits(self) -> bool:
        """Whether it could start if there were room."""
        return self.state == "PENDING" and self.reason in _WAITS and self.gpus > 0 and self.factor is not None

    @property
    def standing(self) -> tuple[int, int]:
        """Sort key in Slurm's order: smallest first."""
        return -self.priority, self.job_id

    @property
    def own_priority(self) -> int:
        """The job's priority without a SiteFactor."""
        return self.priority - (self.factor or 0)


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a SiteFactor: a line of the journal."""

    job: int
    before: int
    after: int

    @property
    def command(self) -> tuple[str, ...]:
        """The command that writes it."""
        return "scontrol", "update", f"JobId={self.job}", f"SiteFactor={self.after}"

    @property
    def line(self) -> str:
        """The change as a line of the journal."""
        return msgspec.json.encode(self).decode() + "\n"


Journal = Sequence[Change]

# ------------------------------------------------------------------------------------------------------ what Slurm says


def live_jobs(queue: str, factors: str) -> list[LiveJob]:
    """Parse the texts of `QUEUE_COMMAND` and `FACTORS_COMMAND`, with times in seconds since 1970.

    Raises:
        InputError: a line can't be parsed.
    """
    lines = [line for line in factors.splitlines() if line.strip()]
    many = Counter(line.partition("|")[0].strip() for line in lines)
    weighed: dict[int, tuple[int, int]] = {}
    for line in lines:
        match = re.fullmatch(r"\s*(\d+)\s*\|\s*(-?\d+)\s*\|\s*(\d+)\s*", line)
        if match is None:
            raise _not_understood("sprio", line)
        if many[match[1]] == 1:  # a job of several partitions has several
            weighed[int(match[1])] = int(match[2]), int(match[3])
    jobs = []
    for job in (_live_job(line) for line in queue.splitlines() if line.strip()):
        factor, priority = weighed.get(job.job_id, (None, 0))
        jobs.append(replace(job, factor=factor, priority=priority))
    return jobs


def _live_job(line: str) -> LiveJob:
    try:
        job_id, *names, since, limit, used, tres, _ = (cell.strip() for cell in line.split("|"))
        name, user, partition, qos, state, reason = names
        since_s = float("inf") if since in ("N/A", "Unknown", "NONE") else float(since)
        limit_s = NO_LIMIT_S if limit in _NO_LIMITS else span_s(limit, "TimeLimit", "squeue")
        used_s = 0.0 if used in _NO_LIMITS else span_s(used, "TimeUsed", "squeue")
        gpus, types = int(count_of(tres)), types_of(tres)
        return LiveJob(int(job_id), name, user, partition, qos, state, reason, since_s, limit_s, used_s, gpus, types)
    except (ValueError, InputError):
        raise _not_understood("squeue", line) from None


def _not_understood(command: str, line: str) -> InputError:
    remedy = "Slurm 22.05 writes otherwise; report this line and `sinfo --version`"
    return InputError(command, "", f"{line.strip()!r:.200} is not understood: {remedy}")


def doubts_of(config: str) -> list[str]:
    """Return the site's settings, by the text of `CONFIG_COMMAND`, that expected waits don't take into account.

    Raises:
        InputError: a SiteFactor would move nothing.
    """
    settings = dict(re.findall(r"^(\w+) *= *(\S+)", config, re.MULTILINE))
    if (kind := settings.get("PriorityType", "nothing")) != "priority/multifactor":
        remedy = "only under priority/multifactor do priorities hang on a SiteFactor; write that into slurm.conf"
        raise InputError("slurm.conf", "PriorityType", f"{kind!r:.80}: {remedy}")
    site = {key: settings[key] for key, none, _ in _DOUBTS if settings.get(key, none) not in (none, "(null)")}
    return [f"{key}={site[key]}: {doubt}" for key, _, doubt in _DOUBTS if key in site]


# ---------------------------------------------------------------------------------------------------------- the journal


def read_journal(text: str, source: str) -> list[Change]:
    """Parse the journal's lines; a last line that was cut off had no effect.

    Raises:
        InputError: it is not such a journal.
    """
    *lines, cut = text.split("\n")
    try:
        if not (cut.startswith(_LINE) or _LINE.startswith(cut)):
            raise msgspec.DecodeError
        return [msgspec.json.decode(line, type=Change) for line in lines]
    except msgspec.DecodeError:
        raise InputError(
            source, "", "is not a journal of `slimsched jobs advise`; name the one that it wrote"
        ) from None


def _is_ours(job: LiveJob, last: Mapping[int, Change]) -> bool:
    """Return whether its SiteFactor is unset or ours; the change of the journal's last line may not have been made."""
    mine = last.get(job.job_id)
    return job.factor in ((0,) if mine is None else (mine.before, mine.after))


def undoing(journal: Journal, jobs: Iterable[LiveJob]) -> tuple[list[Change], dict[str, int]]:
    """Return changes that restore values from before the journal; and numbers of jobs left alone, by reason."""
    first = {change.job: change.before for change in reversed(journal)}
    last = {change.job: change for change in journal}
    pending = {job.job_id: job for job in jobs if job.state == "PENDING"}
    changes, left = [], Counter[str]()
    for job_id, before in first.items():
        job = pending.get(job_id)
        if job is None or job.factor is None:
            left["started, gone or held"] += 1 if last[job_id].after != before else 0
        elif not _is_ours(job, last):
            left[_FOREIGN] += 1
        elif job.factor != before:
            changes.append(Change(job_id, job.factor, before))
    return changes, dict(+left)


# ------------------------------------------------------------------------------------------------------------ who, when


def require_order(candidate: NamedPolicy, source: str) -> None:
    """Raise `InputError` if a policy is not an order of waiting jobs that is known without their run times."""
    policy = candidate.policy
    if policy.is_preemptive or policy.learned or policy.queueing == ROUNDS or policy.order == MULTIFACTOR:
        problem = "stops jobs, is learned, or is Slurm's own"
    elif policy.estimate == ORACLE:
        problem = "needs true run times, which no scheduler has"
    else:
        return
    allowed = "saf-requested (smallest requested GPU time first), qssf, smallest, sjf-history, fifo and the like"
    raise InputError(source, "", f"{candidate.name} {problem}; expected {allowed}")


def require_near(experiment: JobExperiment) -> float | None:
    """Return the error of the site's own policy against the scenario's log; None if the log has no waits.

    Raises:
        InputError: the error is too large for any simulation to be trusted, or the policy stops jobs.
    """
    site = experiment.baseline
    if site.policy.is_preemptive or site.policy.learned:
        problem = f"{site.name} is nothing that Slurm runs, so waits there can't be foretold"
        raise InputError(experiment.source, "baseline", f"{problem}; {_NEAREST}")
    error = log_error(experiment, by_job(run_policy(experiment, site), experiment.scenario.cluster.gpus))
    if error is not None and error > NEAR:
        problem = f"{site.name} is {error:.0%} off the log, job by job, and at most {NEAR:.0%} is near"
        raise InputError(experiment.source, "baseline", f"{problem}; {_NEAREST}")
    return error


_NEAREST: Final = "`slimsched jobs init TRACE --slurm-conf FILE` finds the policy that is nearest"


def wanted_order(
    experiment: JobExperiment, candidate: NamedPolicy, jobs: Iterable[LiveJob], now_s: float
) -> list[LiveJob]:
    """Return the jobs that fit on the scenario's nodes, in the policy's order."""
    waiting = sorted(jobs, key=lambda job: (job.since_s, job.job_id))
    if not waiting:
        return []
    begin_s = min(waiting[0].since_s, now_s)
    now_ns = round((now_s - begin_s) * NS_PER_S)
    scheduler = JobScheduler(
        candidate.policy, experiment.cluster_model.groups, experiment.cluster_model.speeds, None, experiment.past
    )
    for arrival in _trace(experiment, waiting, [min(job.since_s, now_s) - begin_s for job in waiting]).arrivals():
        scheduler.handle(arrival, now_ns)
    fits = np.array(sorted(scheduler.class_of), np.int64)
    index = scheduler.order.index(Features(scheduler.book, fits, now_ns, is_running=False))
    return [waiting[row] for row in fits[np.argsort(index, kind="stable")].tolist()]


def factors_of(ordered: Sequence[LiveJob]) -> dict[int, int]:
    """Return SiteFactors by job that put jobs of one group into this order; jobs in place keep theirs."""
    factors, below = {}, 0
    for job, priority in zip(reversed(ordered), sorted(job.own_priority for job in ordered), strict=True):
        target = max(priority, below + GAP)
        is_right = below < job.priority <= target + SLACK
        factor = (job.factor or 0) if is_right else min(max(target - job.own_priority, -BAND), BAND)
        factors[job.job_id], below = factor, job.own_priority + factor
    return factors


def why_left(job: LiveJob, last: Mapping[int, Change]) -> str:
    """Return why the SiteFactor of a pending job is left alone; empty if it isn't."""
    if job.name != str(job.job_id):
        return "array, or part of a job"
    if job.reason not in MOVED:
        return "not looked at yet" if job.reason == "None" else job.reason
    if job.gpus == 0:
        return "requests no GPU"
    if job.factor is None:
        return "no single priority"
    return "" if _is_ours(job, last) else _FOREIGN


# ------------------------------------------------------------------------------------------------------------- document


def advice_document(
    experiment: JobExperiment,
    candidate: NamedPolicy,
    jobs: Sequence[LiveJob],
    journal: Journal,
    now_s: float,
    processes: int = 1,
) -> dict[str, Any]:
    """Build the advice: waiting jobs in Slurm's order and in the advised one, changes to write, expected waits of both.

    Args:
        journal: changes written before.
        now_s: the time, in seconds since 1970.
    """
    if HISTORY in (candidate.policy.estimate, experiment.baseline.policy.estimate):
        ended = zip(experiment.jobs.arrivals(), experiment.jobs.work_ns.tolist(), strict=True)
        experiment = replace(experiment, past=(*experiment.past, *ended))
    last = {change.job: change for change in journal}
    why = {job.name: why_left(job, last) for job in jobs if job.state == "PENDING"}
    standing = sorted((job for job in jobs if job.waits), key=lambda job: job.standing)
    ordered = wanted_order(experiment, candidate, standing, now_s)
    free, fitting = [job for job in ordered if not why[job.name]], {job.name for job in ordered}
    factors = _factors_by_group(free)
    moved = {job.name: job.own_priority + factors[job.job_id] for job in free}
    now = [job for job in standing if job.name in fitting]
    then = sorted(now, key=lambda job: (-moved.get(job.name, job.priority), job.job_id))
    running = [job for job in jobs if job.state == "RUNNING" and job.gpus]
    site, guard_s = _simulated_site(experiment, len(now)), candidate.policy.age_guard_ns / NS_PER_S
    simulated = replace(
        experiment,
        policies=(site,),
        scenario=experiment.scenario.model_copy(update={"baseline": None, "warmup_s": 0.0}),
    )
    variants = [
        ({job.name: position for position, job in enumerate(order)}, waits_s)
        for order, waits_s in zip(
            (now, then), expected_waits_s(simulated, running, (now, then), now_s, processes), strict=True
        )
    ]
    written = [(job, factors[job.job_id]) for job in free]
    changes = [Change(job.job_id, job.factor or 0, factor) for job, factor in written if factor != (job.factor or 0)]
    left = Counter(filter(None, why.values()))
    left["fits on no node"] = len(standing) - len(now)
    return {
        "schema": SCHEMA,
        "scenario": experiment.scenario.name,
        "site": site.name,
        "policy": candidate.name,
        "age_guard_s": guard_s,
        "late": sum(job.since_s < now_s - guard_s for job in now),
        "running": len(running),
        "jobs": [_row(job, variants, factors, now_s) | {"left": why[job.name]} for job in now],
        "expected": [_expected(waits_s) for _, waits_s in variants] if now else [],
        "left": dict(+left),
        "changes": [asdict(change) for change in changes],
        "commands": [" ".join(change.command) for change in changes],
    }


def _factors_by_group(free: Sequence[LiveJob]) -> dict[int, int]:
    """Return factors for each partition and QOS separately: jobs exchange priorities only within these."""
    factors: dict[int, int] = {}
    for group in dict.fromkeys((job.partition, job.qos) for job in free):
        factors |= factors_of([job for job in free if (job.partition, job.qos) == group])
    return factors


def _row(
    job: LiveJob, variants: Sequence[tuple[Mapping[str, int], Numbers]], factors: Mapping[int, int], now_s: float
) -> dict[str, Any]:
    """Return a job's row: its place, SiteFactor and expected wait, now and then."""
    return {
        "job": job.name,
        "user": job.user,
        "gpus": job.gpus,
        "limit_s": job.limit_s,
        "waited_s": max(now_s - job.since_s, 0.0),
        "place": [positions[job.name] + 1 for positions, _ in variants],
        "factor": [job.factor, factors.get(job.job_id, job.factor)],
        "wait_s": [float(waits_s[:, positions[job.name]].mean()) for positions, waits_s in variants],
    }


def _simulated_site(experiment: JobExperiment, waiting: int) -> NamedPolicy:
    """Return the site's rules, in the jobs' given order; for a long queue with a reservation only for the first."""
    policy = experiment.baseline.policy
    if policy.queueing == "conservative" and waiting > MOST_RESERVED:
        policy = replace(policy, queueing="easy")
    policy = replace(policy, order="fifo")
    return NamedPolicy(shown_name(policy), policy)


def _expected(waits_s: Numbers) -> dict[str, Any]:
    """Summarize (draws, jobs): the mean wait and the longest, with bands if there are several draws."""
    figures = {"mean_s": waits_s.mean(axis=1), "longest_s": waits_s.max(axis=1)}
    return {
        key: {"value": float(values.mean()), "band": band(values) if len(values) > 1 else None}
        for key, values in figures.items()
    }


# ----------------------------------------------------------------------------------------------------------- simulation


def expected_waits_s(
    experiment: JobExperiment,
    running: Sequence[LiveJob],
    orders: Sequence[Sequence[LiveJob]],
    now_s: float,
    processes: int,
) -> list[Numbers]:
    """Simulate the waits of each order, (draws, jobs): whole waits of its jobs under the site's own rules.

    In each draw a job runs for a share of its limit sampled from the log's jobs, and up to `jitter_s` longer; if the
    log has no limits, for all of it. No other jobs arrive.
    """
    draws = DRAWS if np.isfinite(experiment.jobs.requested_s).any() or experiment.scenario.jitter_s else 1
    tasks = [(running, order, now_s, draw) for order in orders for draw in range(draws)]
    waits_s = results(_waits_s, experiment, tasks, processes) if orders[0] else [np.empty(0)] * len(tasks)
    return [np.array(waits_s[number * draws : (number + 1) * draws]) for number in range(len(orders))]


def _waits_s(experiment: JobExperiment, task: tuple[Sequence[LiveJob], Sequence[LiveJob], float, int]) -> Numbers:
    running, order, now_s, draw = task
    jobs = [*sorted(running, key=lambda job: -job.used_s), *order]  # at one instant the first row comes first
    many, longest_s = len(running), max((job.used_s for job in running), default=0.0)
    ran_s = np.array([max(job.used_s, 1e-3) if row < many else 0.0 for row, job in enumerate(jobs)])
    at_s = longest_s + 1.0
    trace = replace(_trace(experiment, jobs, at_s - ran_s), run_s=_lengths_s(experiment, jobs, draw))
    simulated = replace(
        experiment,
        jobs=trace,
        snapshot=Snapshot(round(at_s * NS_PER_S), np.round(ran_s * NS_PER_S).astype(np.int64)),
        cluster_model=replace(experiment.cluster_model, outages=()),
    )
    record = run_policy(simulated, experiment.baseline)
    start_s = np.where(record.start_ns == NOT_YET, record.ended_ns, record.start_ns)[many:] / NS_PER_S
    return np.asarray(start_s - at_s + [max(now_s - job.since_s, 0.0) for job in order])


def _lengths_s(experiment: JobExperiment, jobs: Sequence[LiveJob], draw: int) -> Numbers:
    """Draw (n,) run times; the same in all orders."""
    log, rng = experiment.jobs, stream(experiment.scenario.seed, f"job advice {draw}")
    has_limit = np.isfinite(log.requested_s)
    shares = np.sort(np.minimum(log.run_s[has_limit] / log.requested_s[has_limit], 1.0))
    lengths_s = np.empty(len(jobs))
    for row in sorted(range(len(jobs)), key=lambda row: jobs[row].name):
        job, (quantile, late) = jobs[row], rng.uniform(size=2)
        possible_s = np.sort(log.run_s) if job.limit_s == NO_LIMIT_S else shares * job.limit_s
        longer_s = possible_s[np.searchsorted(possible_s, job.used_s, "right") :]  # than its run so far
        length_s = longer_s[int(quantile * len(longer_s))] if len(longer_s) else job.limit_s
        lengths_s[row] = max(length_s, job.used_s + 1.0) + late * experiment.scenario.jitter_s
    return lengths_s


def _trace(experiment: JobExperiment, jobs: Sequence[LiveJob], submit_s: Sequence[float] | Numbers) -> JobTrace:
    """Return a trace of the jobs in the order of these submissions."""
    types = {group.type for group in experiment.scenario.cluster.nodes}
    limits_s = [job.limit_s for job in jobs]
    return JobTrace.of(
        submit_s,
        limits_s,
        [job.gpus for job in jobs],
        user=[job.user for job in jobs],
        vc=[job.partition for job in jobs],
        gpu_types=[job.gpu_types if set(job.gpu_types.split("|")) <= types else "" for job in jobs],
        requested_s=limits_s,
    )
