"""The scheduler of training jobs, as a core without I/O: events and the time go in, commands come out.

It decides once an instant: `handle` takes in what happens and then asks for a wake at the same time; the driver sends
`Wake` when nothing else happens at this instant. A job is in exactly one place: it waits, runs, is being stopped, or
is gone.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jobs.policies.choices import Choices, Choosing, CompetingClasses, WaitingClass
from jobs.policies.cluster import (
    PLACEMENTS,
    WHOLE_MILLI,
    Allocation,
    Cluster,
    GpuSlots,
    JobArrived,
    JobCommand,
    JobEnded,
    JobEvent,
    NodeDown,
    NodeGroup,
    NodeUp,
    Pool,
    Preempted,
    PreemptJob,
    RefuseJob,
    SharedGpus,
    Slots,
    Speeds,
    StartJob,
    Variability,
    Wake,
    length_ns,
)
from jobs.policies.history import HISTORY, DurationHistory, GittinsTables, estimate_of
from jobs.policies.mapping import mapper_of
from jobs.policies.orders import (
    GONE,
    NEVER_NS,
    OBJECTIVES,
    RUNNING,
    STOPPING,
    WAITING,
    Accounts,
    Features,
    JobBook,
    order_of,
)
from jobs.policies.policy import ROUNDS, JobPolicy, Rounds
from jobs.policies.queueing import CHOOSING, QUEUEINGS, RESERVING
from jobs.policies.room import Holdings, PoolRanking
from kit.units import NS_PER_S

_Commands = list[JobCommand]
_Demand = tuple[int, tuple[int, ...], tuple[float, ...], int]  # GPUs, pools in order, speeds there, thousandths of each


class JobScheduler:
    """Starts, preempts and refuses jobs: `handle` each event with its time, carry out the commands, wake it as it asks.

    Args:
        oracle_work_ns: true work by job number, for the estimate `oracle`; no other part is given it.
        past: jobs that had ended before, with their work: what `history` and `gittins` begin with.
        variability: how GPUs of one type differ, where they do. Only a placement that is aware of it looks at it.
        choosing: who chooses, where the policy's queueing asks (`jobs.policies.choices`).

    Raises:
        InputError: later, for a job without a requested time where the policy asks for it.
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
        assert choosing is None or policy.queueing in CHOOSING, "a chooser was given that nobody asks"
        self.policy = policy
        self.cluster = Cluster(groups)
        self.next_wake_ns: int | None = None
        self.now_ns = 0
        self.waiting = 0  # jobs that wait
        self.running = 0  # jobs that run
        self.stopped = 0  # how many were told to stop, ever
        self._speeds = speeds or Speeds()
        self._book, self._history = JobBook(), DurationHistory()
        self._order = order_of(
            policy.order,
            lambda: GittinsTables(self._history, policy.knobs.restart_ns / NS_PER_S),
            lambda: Accounts(policy.multifactor, self.cluster.gpus),
        )
        self._accounts = self._order.accounts
        self._estimate = estimate_of(policy.estimate, self._history, oracle_work_ns)
        self._placement = PLACEMENTS[policy.placement]
        self.search, self.is_preemptive = self._placement.search, policy.is_preemptive
        mapper = mapper_of(self._placement.programme, None if choosing is None else choosing.scores)
        self.choices = Choices(self._book, choosing, mapper)
        is_aware = self._placement.is_variability_aware
        self._slots = None if variability is None else GpuSlots(self.cluster, variability, is_aware)
        self._shared = SharedGpus()
        self._in_rounds = policy.queueing == ROUNDS
        self._queueing = (
            Rounds(OBJECTIVES[policy.order], policy.knobs.round_ns, len(self.cluster.pools))
            if self._in_rounds
            else QUEUEINGS[policy.queueing]
        )
        self._restart_s = policy.knobs.restart_ns / NS_PER_S if policy.is_preemptive else 0.0
        rests_on = self._order.tables, self._accounts
        self._indices_move = self._order.wait_moves or rests_on != (None, None)  # of jobs that wait
        self._learns = policy.estimate == HISTORY or self._order.tables is not None
        moves = self._order.run_worsens or policy.knobs.min_run_ns > 0 or self._in_rounds
        self._has_rounds = policy.is_preemptive and moves
        self._round_ns = policy.knobs.round_ns
        if self._accounts is not None and policy.queueing != "first-fit":  # another may come to be the first
            self._has_rounds, self._round_ns = True, policy.multifactor.period_ns
        self._keeps_ends = policy.queueing in RESERVING
        self._classes: dict[_Demand, WaitingClass] = {}
        self.class_of: dict[int, WaitingClass] = {}  # of jobs that are not gone
        self._lines: dict[int, CompetingClasses] = {}  # by pool; pools that jobs may choose between share one
        self._known: dict[tuple[Any, ...], WaitingClass | str] = {}  # what a demand comes to: a class, or why not
        self._held: dict[int, tuple[Pool, Allocation]] = {}  # of jobs that run; places in their pool
        self.held_by_pool: list[dict[int, Allocation]] = [{} for _ in self.cluster.pools]  # the same by pool
        self._ends: list[list[tuple[int, int]]] = [[] for _ in self.cluster.pools]  # (end by estimate, job)
        self._holdings = [Holdings(pool) for pool in self.cluster.pools]  # the same as columns, where jobs make room
        self._rankings: dict[int, PoolRanking] = {}  # by pool, for an instant and the tables of an order
        self._rankings_of = -1, 0
        self._touched: dict[int, CompetingClasses] = {}  # lines to decide on, by identity
        self._commands: _Commands = []
        self._take_in: dict[type, Callable[[Any], None]] = {
            JobArrived: self._arrive,
            JobEnded: self._end,
            Preempted: self._requeue,
            NodeDown: self._lose_node,
            NodeUp: self._gain_node,
            Wake: self._wake,
        }
        for job, work_ns in past if self._learns else ():
            self._learn(self._group_of(job), work_ns)

    def handle(self, event: JobEvent, now_ns: int) -> list[JobCommand]:
        """What is to be done, in this order. Times must not go back."""
        assert now_ns >= self.now_ns, "time goes back"
        self.now_ns = now_ns
        self._commands = []
        self._take_in[type(event)](event)
        return self._commands

    # ------------------------------------------------------------------------------------------------ what happens

    def _arrive(self, event: JobArrived) -> None:
        waiting = self._class_for(event)
        if isinstance(waiting, str):
            self._commands.append(RefuseJob(event.job, waiting))
            return
        job, book = event.job, self._book
        book.make_room(job)
        group = self._group_of(event)
        book.gpus[job], book.submit_ns[job], book.done_ns[job] = event.gpus, event.submit_ns, event.done_ns
        book.group[job], book.from_ns[job] = group, NEVER_NS
        book.estimate_ns[job] = self._estimate(event, group)
        book.begun[job] = 0
        if event.gpu_milli != WHOLE_MILLI:
            book.share[job] = event.gpu_milli / WHOLE_MILLI
        if self._accounts is not None:
            self._accounts.arrive(event, self.now_ns)
        if self._slots is not None:
            self._slots.arrive(job, event.job_class)
        self.class_of[job] = waiting
        self._wait(job, waiting)

    def _group_of(self, event: JobArrived) -> int:
        """The number of its chain of groups, where anybody asks for history."""
        if not self._learns:
            return 0
        group = self._history.number(event)
        if self._order.tables is not None:
            self._order.tables.hear_of(group)
        return group

    def _end(self, event: JobEnded) -> None:
        job = event.job
        assert self._book.state[job] == RUNNING, "a job ends that does not run"
        if self._learns:
            self._learn(int(self._book.group[job]), int(self._book.attained_ns(job, self.now_ns)))
        self._release(job)
        self._book.state[job] = GONE
        del self.class_of[job]

    def _learn(self, group: int, work_ns: int) -> None:
        self._history.add(group, work_ns)
        if self._order.tables is not None:
            self._order.tables.learn(group)

    def _requeue(self, event: Preempted) -> None:
        """Stopped by us, and its GPUs are given to another already; or by a node's death, and its GPUs are free."""
        job, book = event.job, self._book
        assert book.state[job] in (RUNNING, STOPPING), "a job stops that does not run"
        if book.state[job] == RUNNING:
            self._release(job)
        book.done_ns[job] = event.done_ns
        self._wait(job, self.class_of[job])

    def _lose_node(self, event: NodeDown) -> None:
        pool, place = self.cluster.where(event.node)
        pool.set_down(place, is_down=True)
        self._holdings[pool.index].is_up[place] = False
        self._open(pool)

    def _gain_node(self, event: NodeUp) -> None:
        pool, place = self.cluster.where(event.node)
        pool.set_down(place, is_down=False)
        self._holdings[pool.index].is_up[place] = True
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
        """When running jobs may have come to stand behind waiting ones, without an event."""
        may_change = self.waiting or self.running if self._in_rounds else self.waiting and self.running
        if not (self._has_rounds and may_change):
            return None
        return (self.now_ns // self._round_ns + 1) * self._round_ns

    # --------------------------------------------------------------------------------------- classes, lines and waits

    def _class_for(self, event: JobArrived) -> WaitingClass | str:
        """The class of jobs with its demand; or why no such job can ever run here."""
        demand = (event.gpus, event.vc, event.gpu_types, event.job_class, event.gpu_milli)
        known = self._known.get(demand)
        if known is None:
            known = self._known[demand] = self._make_class(event)
        return known

    def _make_class(self, event: JobArrived) -> WaitingClass | str:
        allowed = self.cluster.open_to(event.vc, event.gpu_types)
        pools = [pool for pool in allowed if pool.gpus >= event.gpus]
        if not pools:
            return _why_not(event, allowed)
        chosen = self._placement.sorted_pools(event.gpus, event.job_class, pools, self._speeds)
        speeds = tuple(self._speeds.of(event.job_class, pool.gpu_type) for pool in chosen)
        packs = self.policy.packs_shares and self._slots is None
        milli = event.gpu_milli if packs else WHOLE_MILLI
        key = (event.gpus, tuple(pool.index for pool in chosen), speeds, milli)
        waiting = self._classes.get(key)
        if waiting is None:
            waiting = self._classes[key] = WaitingClass(event.gpus, chosen, speeds, milli)
            self._join_lines(waiting)
        return waiting

    def _join_lines(self, waiting: WaitingClass) -> None:
        """One line for all pools of a class, with all that stood in theirs."""
        joined = CompetingClasses()
        met = self._lines if self.policy.queueing in CHOOSING else [pool.index for pool in waiting.pools]
        former = {id(line): line for pool in met if (line := self._lines.get(pool)) is not None}
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

    def _touch(self, line: CompetingClasses) -> None:
        """It is to be decided on at the end of this instant."""
        self._touched[id(line)] = line
        self.next_wake_ns = self.now_ns

    def _open(self, pool: Pool) -> None:
        """Something has changed in a pool."""
        self.next_wake_ns = self.now_ns
        line = self._lines.get(pool.index)
        if line is not None:
            line.is_open = True
            self._touch(line)

    def _wait(self, job: int, waiting: WaitingClass) -> None:
        book = self._book
        book.state[job], book.since_ns[job], book.from_ns[job] = WAITING, self.now_ns, NEVER_NS
        index = self._order.index(Features(book, job, self.now_ns, is_running=False, restart_s=self._restart_s))
        waiting.add(job, float(index))
        if self._indices_move and waiting.count == 1:
            waiting.version = self._version
        self.waiting += 1
        line = self._lines[waiting.pools[0].index]
        line.fresh.append(waiting)
        self._touch(line)

    def _decide(self, line: CompetingClasses) -> None:
        if len(line.fresh) > 1:
            line.fresh = list(dict.fromkeys(line.fresh))
        stopped = self.stopped
        self._queueing(line, self)
        line.fresh, line.is_open = [], self.stopped > stopped or self.choices.is_asked

    # ------------------------------------------------------------------------------------- what a queueing asks for

    def fitting(self, classes: Iterable[WaitingClass]) -> list[WaitingClass]:
        """Those of whom one can start now on free GPUs."""
        largest: dict[int, int] = {}  # by pool, the gang that fits
        found = []
        for waiting in classes:
            if waiting.milli < WHOLE_MILLI:  # there may be room beside others' shares
                found.append(waiting)
                continue
            for pool in waiting.pools:
                if pool.index not in largest:
                    largest[pool.index] = self._placement.largest(pool)
                if waiting.gpus <= largest[pool.index]:
                    found.append(waiting)
                    break
        return found

    def refresh(self, waiting: WaitingClass) -> None:
        """Bring a class's indices up to the present, where they have moved."""
        if self._indices_move and waiting.version != self._version:
            waiting.version = self._version
            features = Features(self._book, waiting.jobs, self.now_ns, is_running=False, restart_s=self._restart_s)
            waiting.set_indices(self._order.index(features))

    @property
    def _version(self) -> tuple[int, int]:
        """What indices of jobs that wait rest on now: time, if they move with it; the order's tables, or accounts."""
        order = self._order
        if self._accounts is not None:
            return 0, self._accounts.advance(self.now_ns)
        return self.now_ns if order.wait_moves else 0, 0 if order.tables is None else order.tables.version

    def lengths_ns(self, waiting: WaitingClass, pool: Pool) -> NDArray[np.int64]:
        """(count,) How long each of a class would take in a pool, by estimate."""
        book, jobs = self._book, waiting.jobs
        left_ns = np.maximum(book.estimate_ns[jobs] - book.done_ns[jobs], 1)
        speed = waiting.speeds[waiting.pools.index(pool)]
        at_speed_ns = left_ns if speed == 1.0 else np.ceil(left_ns / speed).astype(np.int64)
        return np.asarray(at_speed_ns + (book.begun[jobs] > 0) * self.policy.knobs.restart_ns)

    def ends(self, pool: Pool) -> list[tuple[int, Allocation]]:
        """When jobs that run in a pool end, by estimate, and what becomes free then; ascending by time."""
        ends, held = self._ends[pool.index], self.held_by_pool[pool.index]
        late = bisect_left(ends, (self.now_ns + 1,))
        if late:
            soon_ns = self.now_ns + NS_PER_S
            ends = sorted([*((soon_ns, job) for _, job in ends[:late]), *ends[late:]])
        return [(at_ns, held[job]) for at_ns, job in ends]

    def try_head(self, waiting: WaitingClass, closed: Sequence[Pool] = ()) -> bool:
        """Start the first of a class, where jobs that come after it may have to make room; not in closed pools."""
        for pool in waiting.pools:
            has_room = pool.free_gpus >= waiting.gpus or waiting.milli < WHOLE_MILLI
            if has_room and pool not in closed:
                allocation = self._find(waiting, pool)
                if allocation is not None:
                    self.start(waiting, waiting.head, pool, allocation)
                    return True
        return self.is_preemptive and self._start_by_preemption(waiting, closed)

    def _find(self, waiting: WaitingClass, pool: Pool) -> Allocation | None:
        """Where the first of a class can start in a pool."""
        if self._slots is not None and self._slots.is_aware:
            return self._slots.search(int(waiting.jobs[waiting.head]), pool, waiting.gpus)
        if waiting.milli < WHOLE_MILLI:
            return self._shared.find(pool, waiting.milli, self.search)
        return self.search(pool, waiting.gpus)

    def start(self, waiting: WaitingClass, place: int, pool: Pool, allocation: Allocation) -> None:
        """Start the one at a place of a class on free GPUs."""
        job, book, now_ns = waiting.remove(place), self._book, self.now_ns
        if waiting.milli < WHOLE_MILLI:
            self._shared.take(job, pool, allocation, waiting.milli)
        else:
            pool.take(allocation)
        speed = waiting.speeds[waiting.pools.index(pool)]
        if len(allocation) > 1 and len(allocation) > pool.fewest_nodes(waiting.gpus):
            speed /= self._speeds.spread_slowdown
        slots: Slots = ()
        if self._slots is not None:
            slots, factor = self._slots.take(job, pool, allocation)
            speed *= factor
        begins_ns = now_ns + (self.policy.knobs.restart_ns if book.begun[job] else 0)
        book.state[job], book.since_ns[job], book.from_ns[job] = RUNNING, now_ns, begins_ns
        book.speed[job] = speed
        book.begun[job] += 1
        if self.is_preemptive:
            self._holdings[pool.index].add(job, allocation)
        self._held[job] = pool, allocation
        self.held_by_pool[pool.index][job] = allocation
        if self._accounts is not None:
            self._accounts.hold(job, waiting.gpus * waiting.milli / WHOLE_MILLI, now_ns)
        self.waiting -= 1
        self.running += 1
        if self._keeps_ends:
            insort(self._ends[pool.index], self._end_of(job))
        nodes = pool.nodes
        self._commands.append(StartJob(job, tuple([(nodes[place], gpus) for place, gpus in allocation]), slots))

    def look_at(self, jobs: NDArray[np.int64]) -> Features:
        """What is known of jobs, whether they run or wait."""
        return Features(self._book, jobs, self.now_ns, is_running=False)

    def _release(self, job: int) -> Pool:
        """It holds its GPUs no more."""
        pool, allocation = self._held.pop(job)
        del self.held_by_pool[pool.index][job]
        if self._accounts is not None:
            gpus = self._book.gpus[job] * self.class_of[job].milli / WHOLE_MILLI
            self._accounts.hold(job, -float(gpus), self.now_ns)
        if self._slots is not None:
            self._slots.give(job)
        if self.is_preemptive:
            self._holdings[pool.index].remove(job, allocation)
        if not self._shared.give(job, pool):
            pool.give(allocation)
        self.running -= 1
        if self._keeps_ends:
            self._forget_end(job, pool)
        self._open(pool)
        return pool

    def _end_of(self, job: int) -> tuple[int, int]:
        """When one that runs ends, by estimate."""
        book = self._book
        left_ns = max(int(book.estimate_ns[job] - book.done_ns[job]), 1)
        return int(book.from_ns[job]) + length_ns(left_ns, float(book.speed[job])), job

    def _forget_end(self, job: int, pool: Pool) -> None:
        ends, end = self._ends[pool.index], self._end_of(job)
        place = bisect_left(ends, end)
        assert ends[place] == end, "an end was lost"
        del ends[place]

    # ------------------------------------------------------------------------------------------------- preemption

    def _start_by_preemption(self, waiting: WaitingClass, closed: Sequence[Pool]) -> bool:
        index, _ = waiting.first
        for pool in waiting.pools:
            if pool in closed:
                continue
            room = self._ranking(pool).make_room(waiting.gpus, index, self._placement, self._book)
            if room is not None:
                for job in room.victims:
                    self.stop(job)
                self.start(waiting, waiting.head, pool, room.allocation)
                return True
        return False

    def stop(self, job: int) -> None:
        """Stop one that runs: its GPUs may be given to another at once."""
        self._release(job)
        self.stopped += 1
        self._book.state[job] = STOPPING
        self._commands.append(PreemptJob(job))

    def _ranking(self, pool: Pool) -> PoolRanking:
        """Who may be preempted in a pool at this instant: nobody that was started at it."""
        made_of = self.now_ns, 0 if self._order.tables is None else self._order.tables.version
        if self._rankings_of != made_of:
            self._rankings, self._rankings_of = {}, made_of
        ranking = self._rankings.get(pool.index)
        if ranking is None:
            knobs, held, holdings = self.policy.knobs, self.held_by_pool[pool.index], self._holdings[pool.index]
            jobs, nodes, gpus = holdings.columns()
            index = self._order.index(Features(self._book, jobs, self.now_ns, is_running=True))
            if knobs.hysteresis != 1.0:  # those that run have an advantage
                index = np.where(index > 0, index / knobs.hysteresis, index * knobs.hysteresis)
            latest_ns = self.now_ns - max(knobs.min_run_ns, 1)
            ranking = PoolRanking(index, jobs, nodes, gpus, latest_ns, pool, holdings, held)
            self._rankings[pool.index] = ranking
        return ranking


def _why_not(event: JobArrived, allowed: Sequence[Pool]) -> str:
    if not allowed:
        types = f" of type {' or '.join(event.gpu_types)}" if event.gpu_types else ""
        return f"no node{types} is open to VC {event.vc!r}" if event.vc else f"there is no node{types}"
    most = max(pool.gpus for pool in allowed)
    return f"asks for {event.gpus} GPUs; the largest pool that it may use has {most}"
