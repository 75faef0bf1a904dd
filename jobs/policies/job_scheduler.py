"""The scheduler of training jobs, as a core without I/O: events and the time go in, commands come out.

It decides once per instant: `handle` records events and then requests a wake at the same time; the driver sends `Wake`
when nothing else happens at this instant. A job is in exactly one state: it waits, runs, is being stopped, or is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jobs.policies.chosen_queueing import Choices, Choosing, mapper_of
from jobs.policies.job_cluster import (
    WHOLE_MILLI,
    JobArrived,
    JobCommand,
    JobEnded,
    JobEvent,
    NodeDown,
    NodeGroup,
    NodeUp,
    Pool,
    Preempted,
    RefuseJob,
    Speeds,
    Variability,
    Wake,
)
from jobs.policies.job_ledger import JobLedger
from jobs.policies.job_orders import GONE, NEVER_NS, OBJECTIVES, RUNNING, STOPPING
from jobs.policies.named_policies import CHOICE, RESERVING, ROUNDS, JobPolicy
from jobs.policies.preemption import CompetingClasses, WaitingClass
from jobs.policies.queueing import QUEUEINGS, Rounds
from jobs.policies.run_times import HISTORY, estimate_of

_Demand = tuple[int, tuple[int, ...], tuple[float, ...], int, int]  # GPUs, pools, speeds there, thousandths, nodes


class JobScheduler(JobLedger):
    """Core that starts, preempts and refuses jobs: `handle` each event, execute the commands, wake it as requested.

    Args:
        oracle_work_ns: true work by job number, for the estimate `oracle`; no other part receives it.
        past: jobs that had ended before, with their work: the initial data of `history` and `gittins`.
        variability: how GPUs of one type differ, if they do. Only a variability-aware placement uses it.
        choosing: the chooser, if the policy's queueing uses one (`jobs.policies.chosen_queueing`).

    Raises:
        InputError: later, if the policy uses requested times and a job has none.
    """

    def __init__(
        self,
        policy: JobPolicy,
        groups: Iterable[NodeGroup],
        speeds: Speeds | None = None,
        oracle_work_ns: NDArray[np.int64] | None = None,
        past: Iterable[tuple[JobArrived, int]] = (),
        variability: Variability | None = None,
        choosing: Choosing | None = None,
    ) -> None:
        assert choosing is not None or not policy.learned, "a learned policy without what it has learned"
        assert choosing is None or policy.queueing == CHOICE, "the policy does not use the given chooser"
        super().__init__(policy, groups, speeds, variability)
        self._estimate = estimate_of(policy.estimate, self.history, oracle_work_ns)
        mapper = mapper_of(choosing.scores if choosing else None) if self.placement.is_programme else None
        self.choices = Choices(choosing, mapper)
        self._queueing = (
            Rounds(OBJECTIVES[policy.order], policy.params.round_ns, len(self.cluster.pools))
            if policy.queueing == ROUNDS
            else {**QUEUEINGS, CHOICE: self.choices.choice}[policy.queueing]
        )
        self._learns = policy.estimate == HISTORY or self.order.tables is not None
        moves = self.order.run_worsens or policy.params.min_run_ns > 0 or policy.queueing == ROUNDS
        self._has_rounds = policy.is_preemptive and moves
        self._round_ns = policy.params.round_ns
        if self.order.accounts is not None and policy.queueing != "first-fit":  # another job may become the first
            self._has_rounds, self._round_ns = True, policy.multifactor.period_ns
        self._bf_interval_ns = policy.bf_interval_ns if policy.queueing in RESERVING else 0
        if self._bf_interval_ns:
            self._has_rounds, self._round_ns = True, self._bf_interval_ns
        self._classes: dict[_Demand, WaitingClass] = {}
        self._by_demand: dict[tuple[Any, ...], WaitingClass | str] = {}  # a demand's class, or why it has none
        self._take_in: dict[type, Callable[[Any], None]] = {
            JobArrived: self._arrive,
            JobEnded: self._end,
            Preempted: self._requeue,
            NodeDown: lambda event: self._set_down(event.node, is_down=True),
            NodeUp: lambda event: self._set_down(event.node, is_down=False),
            Wake: self._wake,
        }
        for job, work_ns in past if self._learns else ():
            self._learn(self._group_of(job), work_ns)

    def handle(self, event: JobEvent, now_ns: int) -> list[JobCommand]:
        """Take an event and its time; returns the commands, in order. Times must not decrease."""
        assert now_ns >= self.now_ns, "time goes back"
        self.now_ns = now_ns
        self.commands = []
        self._take_in[type(event)](event)
        return self.commands

    # ------------------------------------------------------------------------------------------------ what happens

    def _arrive(self, event: JobArrived) -> None:
        demand = (event.gpus, event.vc, event.gpu_types, event.job_class, event.gpu_milli, event.nodes)
        waiting = self._by_demand.get(demand)
        if waiting is None:
            waiting = self._by_demand[demand] = self._make_class(event)
        if isinstance(waiting, str):
            self.commands.append(RefuseJob(event.job, waiting))
            return
        job, book = event.job, self.book
        book.make_room(job)
        group = self._group_of(event)
        book.gpus[job] = event.gpus
        book.submit_ns[job] = event.submit_ns
        book.done_ns[job] = event.done_ns
        book.group[job], book.from_ns[job] = group, NEVER_NS
        book.estimate_ns[job] = self._estimate(event, group)
        book.begun[job] = 0
        book.share[job] = event.gpu_milli / WHOLE_MILLI
        if self.order.accounts is not None:
            self.order.accounts.arrive(event, self.now_ns)
        if self.slots is not None:
            self.slots.arrive(job, event.job_class)
        self.class_of[job] = waiting
        self._wait(job, waiting)

    def _group_of(self, event: JobArrived) -> int:
        """Return the number of a job's chain of groups, if the policy uses history."""
        if not self._learns:
            return 0
        group = self.history.number(event)
        if self.order.tables is not None:
            self.order.tables.hear_of(group)
        return group

    def _end(self, event: JobEnded) -> None:
        job = event.job
        assert self.book.state[job] == RUNNING, "a job ends that does not run"
        if self._learns:
            self._learn(int(self.book.group[job]), int(self.book.attained_ns(job, self.now_ns)))
        self._release(job)
        self.book.state[job] = GONE
        del self.class_of[job]

    def _learn(self, group: int, work_ns: int) -> None:
        self.history.add(group, work_ns)
        if self.order.tables is not None:
            self.order.tables.learn(group)

    def _requeue(self, event: Preempted) -> None:
        """Requeue a job: stopped by us, its GPUs are given away already; after a node's failure, they are free."""
        job, book = event.job, self.book
        assert book.state[job] in (RUNNING, STOPPING), "a job stops that does not run"
        if book.state[job] == RUNNING:
            self._release(job)
        book.done_ns[job] = event.done_ns
        self._wait(job, self.class_of[job])

    def _set_down(self, node: int, is_down: bool) -> None:
        pool, position = self.cluster.where(node)
        pool.set_down(position, is_down)
        self.running[pool.index].is_up[position] = not is_down
        self._open(pool)

    def _wake(self, event: Wake) -> None:
        if self._has_rounds and self.now_ns % self._round_ns == 0:
            for line in self._lines.values():
                line.is_open = True
                self._touch(line)
        lines, self._touched = self._touched, {}
        for line in lines.values():
            self._decide(line)
        self._touched = {number: line for number, line in lines.items() if line.is_open}  # GPUs may be left over
        self.next_wake_ns = self.now_ns if self._touched else self._next_round_ns()

    def _next_round_ns(self) -> int | None:
        """Return when running jobs may fall behind waiting ones in order without an event."""
        if not self._has_rounds:
            return None
        runs = any(running.held for running in self.running)
        may_change = self.waiting or runs if self.policy.queueing == ROUNDS else self.waiting and runs
        return (self.now_ns // self._round_ns + 1) * self._round_ns if may_change else None

    # --------------------------------------------------------------------------------------- classes, lines and waits

    def _make_class(self, event: JobArrived) -> WaitingClass | str:
        """Return the class of jobs with this demand; or why no such job can ever run here."""
        allowed = self.cluster.open_to(event.vc, event.gpu_types)
        pools = [pool for pool in allowed if pool.may_hold(event.gpus, event.nodes)]
        if not pools:
            return _why_not(event, allowed)
        ordered = self.placement.sorted_pools(event, pools, self.speeds)
        speeds = tuple(self.speeds.of(event.job_class, pool.gpu_type) for pool in ordered)
        packs = self.policy.packs_shares and self.slots is None
        milli = event.gpu_milli if packs else WHOLE_MILLI
        key = (event.gpus, tuple(pool.index for pool in ordered), speeds, milli, event.nodes)
        waiting = self._classes.get(key)
        if waiting is None:
            waiting = self._classes[key] = WaitingClass(event.gpus, ordered, speeds, milli, event.nodes)
            self._join_lines(waiting)
        return waiting

    def _join_lines(self, waiting: WaitingClass) -> None:
        """Create one line for all pools of a class, with all classes of these pools' lines."""
        joined = CompetingClasses()
        indices = self._lines if self.policy.queueing == CHOICE else [pool.index for pool in waiting.pools]
        former = {id(line): line for pool in indices if (line := self._lines.get(pool)) is not None}
        for line in former.values():
            joined.classes += line.classes
            joined.fresh += line.fresh
            joined.is_open |= line.is_open
            self._touched.pop(id(line), None)
        joined.classes.append(waiting)
        for member in joined.classes:
            for pool in member.pools:
                self._lines[pool.index] = joined
        if joined.is_open or joined.fresh:
            self._touch(joined)

    # -------------------------------------------------------------------------------------------------- decisions

    def _decide(self, line: CompetingClasses) -> None:
        if len(line.fresh) > 1:
            line.fresh = list(dict.fromkeys(line.fresh))
        stopped = self.stopped
        plans = not self._bf_interval_ns or self.now_ns % self._bf_interval_ns == 0
        (self._queueing if plans else QUEUEINGS["strict"])(line, self)
        line.fresh, line.is_open = [], self.stopped > stopped


def _why_not(event: JobArrived, allowed: Sequence[Pool]) -> str:
    if not allowed:
        types = f" of type {' or '.join(event.gpu_types)}" if event.gpu_types else ""
        return f"no node{types} is open to VC {event.vc!r}" if event.vc else f"the cluster has no node{types}"
    most = max(pool.gpus for pool in allowed)
    if most >= event.gpus:
        return f"requests {event.nodes} nodes and {event.gpus} GPUs; no pool that it may use has both"
    return f"requests {event.gpus} GPUs; the largest pool that it may use has {most}"
