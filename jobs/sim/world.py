"""Training jobs on a simulated cluster: appointments by time drive the scheduler's core.

At one instant: arrivals, then ends by job, stops by job, deaths of nodes by node, returns by node; last the scheduler
decides, and what it stops is told to it before it decides again at the same instant. The same jobs, cluster, policy
and seed give the same bits.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from jobs.policies.choices import Choosing
from jobs.policies.cluster import (
    Allocation,
    JobArrived,
    JobEnded,
    JobEvent,
    NodeDown,
    NodeGroup,
    NodeUp,
    Preempted,
    PreemptJob,
    RefuseJob,
    Speeds,
    StartJob,
    Variability,
    Wake,
    length_ns,
)
from jobs.policies.history import ORACLE
from jobs.policies.orders import LONGEST_S
from jobs.policies.policy import JobPolicy, shown_name
from jobs.policies.scheduler import JobScheduler
from jobs.sim.jobs import NOT_YET, JobsRecord, NodeOutage, Snapshot
from jobs.trace import JobTrace
from kit.errors import InputError
from kit.units import NS_PER_S

# The order of what happens at one instant; the number of the job or node is added to those between the two.
ARRIVAL, END, STOPPED, NODE_DOWN, NODE_UP, LAST = (place << 32 for place in range(6))
_RECORDED: Final = ("start_ns", "end_ns", "is_refused", "preemptions", "kills", "lost_ns", "restart_ns", "held_ns")
_YEAR_NS: Final = 366 * 86_400 * NS_PER_S


@dataclass(frozen=True, slots=True)
class JobWorld:
    """The cluster, and what it costs to stop a job.

    Attributes:
        groups: its nodes.
        speeds: how fast jobs run where; the scheduler knows this table.
        restart_ns: a job that goes on after a stop holds its GPUs for so long before its work goes on.
        start_delay_ns: so does each job at each start, whatever was before.
        checkpoint_ns: running jobs keep their work so often, in time since their start; 0 for always (no work is lost).
        outages: when nodes are out of service.
        variability: how GPUs of one type differ; None where they do not.

    Raises:
        InputError: for an outage of a node that is not there.
    """

    groups: tuple[NodeGroup, ...]
    speeds: Speeds = field(default_factory=Speeds)
    restart_ns: int = 0
    checkpoint_ns: int = 0
    outages: tuple[NodeOutage, ...] = ()
    variability: Variability | None = None
    start_delay_ns: int = 0

    def __post_init__(self) -> None:
        nodes = sum(group.nodes for group in self.groups)
        for outage in self.outages:
            if not 0 <= outage.node < nodes:
                raise InputError("failures", f"node {outage.node}", f"is not there: nodes are 0 to {nodes - 1}")


@dataclass(frozen=True, slots=True)
class JobRun:
    """What happens to it.

    Attributes:
        warmup_s: jobs that are submitted so long after the run's begin are run and not measured.
        snapshot: what the log found when the run begins; None begins with the first submission, on an empty cluster.
        longest_ns: the run is ended so long after the last submission, whatever still waits or runs.
        past: what the policy has seen before: jobs that had ended, as `JobScheduler` takes them.
        choosing: who chooses for a learned policy; it may remember, so each run has its own.

    Raises:
        InputError: for times out of range, or a warm-up after which no job is submitted.
    """

    jobs: JobTrace
    policy: JobPolicy
    warmup_s: float = 0.0
    snapshot: Snapshot | None = None
    longest_ns: int = _YEAR_NS
    past: tuple[tuple[JobArrived, int], ...] = ()
    choosing: Choosing | None = None

    def __post_init__(self) -> None:
        for name, least in (("submit_s", 0.0), ("run_s", 1e-9)):
            values = getattr(self.jobs, name)
            if (outside := ~((values >= least) & (values <= LONGEST_S))).any():
                row = int(outside.argmax())
                problem = f"job {row} has {values[row]}: allowed are {least:g} to {LONGEST_S:g} seconds"
                raise InputError("trace", name, problem)
        if not self.is_measured.any():
            last_s = self.jobs.submit_s[-1] - self.begins_ns / NS_PER_S
            problem = f"{self.warmup_s:g} s leave no job to measure: the last is submitted after {last_s:g} s"
            raise InputError("run", "warmup_s", problem)

    @property
    def begins_ns(self) -> int:
        """When the run begins."""
        return int(self.jobs.submit_ns[0]) if self.snapshot is None else self.snapshot.at_ns

    @property
    def is_measured(self) -> NDArray[np.bool_]:
        """(n,) Which jobs count in figures."""
        return np.asarray(self.jobs.submit_ns >= self.begins_ns + round(self.warmup_s * NS_PER_S))


class _RunningJob(msgspec.Struct):
    """One job that runs: since when, from when its work goes on, how fast."""

    since_ns: int
    from_ns: int
    speed: float
    starts: int  # which of its starts this is: an end that was planned for an earlier one is void
    allocation: Allocation


class _Columns:
    """What is written down of each job while the run goes on."""

    def __init__(self, many: int) -> None:
        self.start_ns, self.end_ns = np.full((2, many), NOT_YET)
        self.done_ns, self.lost_ns, self.restart_ns, self.held_ns = np.zeros((4, many), np.int64)
        self.preemptions, self.kills, self.starts = np.zeros((3, many), np.int64)
        self.is_refused = np.zeros(many, np.bool_)


class JobSimulation:
    """One run: `run` it, once.

    Attributes:
        now_ns: the present, integer nanoseconds since the trace's start.
    """

    def __init__(self, world: JobWorld, run: JobRun) -> None:
        self.world, self.spec = world, run
        jobs = run.jobs
        self._work_ns, self._submit_ns = jobs.work_ns, jobs.submit_ns
        oracle = self._work_ns if run.policy.estimate == ORACLE else None
        self.scheduler = JobScheduler(
            run.policy, world.groups, world.speeds, oracle, run.past, world.variability, run.choosing
        )
        self.now_ns = 0
        self._heap: list[tuple[int, int, int, Callable[..., None], tuple[Any, ...]]] = []  # what happens when
        self._made = count()
        self._columns = _Columns(len(jobs))
        self._begins_ns = run.begins_ns
        self._arrivals, self._arrived = jobs.arrivals(), 0
        self._running: dict[int, _RunningJob] = {}
        self._down: dict[int, int] = {}  # nodes out of service, since when
        self._down_gpu_ns = 0
        self._in_system = self._in_system_ns = 0
        self._counted_ns = self._begins_ns
        self._wake_ns: int | None = None
        self._last_ns = int(self._submit_ns[-1]) + run.longest_ns
        self._carry_out: dict[type, Callable[[Any], None]] = {
            StartJob: self._start,
            PreemptJob: self._preempt,
            RefuseJob: self._refuse,
        }

    def run(self) -> JobsRecord:
        """Simulate to the last job's end; what the run did is proven to add up."""
        self._set_off()
        self._at(self._last_ns, LAST, self._pass)  # who is not done by then has held GPUs until then
        scheduler, heap = self.scheduler, self._heap
        while True:
            while scheduler.next_wake_ns == self.now_ns and not (heap and heap[0][0] == self.now_ns):
                self._tell(Wake())
            self._plan_wake()
            if self._is_over or not heap or heap[0][0] > self._last_ns:
                return self._record()
            self.now_ns, _, _, act, arguments = heapq.heappop(heap)
            act(*arguments)

    def _at(self, when_ns: int, order: int, act: Callable[..., None], *arguments: Any) -> None:
        """Call `act` at a time; of one instant's the smallest `order` first: `ARRIVAL` to `LAST`."""
        heapq.heappush(self._heap, (when_ns, order, next(self._made), act, arguments))

    @property
    def _is_over(self) -> bool:
        return self._in_system == 0 and self._arrived == len(self._arrivals)

    def _set_off(self) -> None:
        for outage in self.world.outages:
            if outage.to_ns > self._begins_ns:
                self._at(outage.from_ns, NODE_DOWN + outage.node, self._lose_node, outage.node)
                self._at(outage.to_ns, NODE_UP + outage.node, self._gain_node, outage.node)
        if self.spec.snapshot is not None:
            self._at(self._begins_ns, ARRIVAL, self._find)
        else:
            self._plan_arrival()

    def _tell(self, event: JobEvent) -> None:
        for command in self.scheduler.handle(event, self.now_ns):
            self._carry_out[type(command)](command)

    def _plan_wake(self) -> None:
        wake_ns = self.scheduler.next_wake_ns
        if wake_ns is not None and wake_ns > self.now_ns and wake_ns != self._wake_ns:
            self._wake_ns = wake_ns
            self._at(wake_ns, LAST, self._pass)

    def _pass(self) -> None:
        """An instant at which nothing happens by itself."""

    def _count(self, more: int) -> None:
        """So many more jobs are in the system from now on."""
        now_ns = self.now_ns
        self._in_system_ns += self._in_system * (now_ns - self._counted_ns)
        self._counted_ns = now_ns
        self._in_system += more

    # ------------------------------------------------------------------------------------------------------ arrivals

    def _find(self) -> None:
        """The run begins with what the log found: who ran goes on before anybody else is started."""
        table = self.spec.snapshot
        assert table is not None
        self._columns.done_ns[:] = table.done_ns
        for job in table.done_ns.nonzero()[0].tolist():
            self._count(1)
            self._tell(msgspec.structs.replace(self._arrivals[job], done_ns=int(table.done_ns[job])))
        self._tell(Wake())
        self._plan_arrival()

    def _plan_arrival(self) -> None:
        table = self.spec.snapshot
        while table is not None and self._arrived < len(self._arrivals) and table.done_ns[self._arrived]:
            self._arrived += 1
        if self._arrived < len(self._arrivals):
            at_ns = max(self._arrivals[self._arrived].submit_ns, self._begins_ns)
            self._at(at_ns, ARRIVAL, self._arrive)

    def _arrive(self) -> None:
        job = self._arrived
        self._arrived += 1
        self._count(1)
        self._tell(self._arrivals[job])
        self._plan_arrival()

    def _refuse(self, command: RefuseJob) -> None:
        self._columns.is_refused[command.job] = True
        self._count(-1)

    # ----------------------------------------------------------------------------------------------- jobs that run

    def _start(self, command: StartJob) -> None:
        job = command.job
        columns = self._columns
        now_ns = self.now_ns
        assert job not in self._running, "a job is started twice"
        starts = int(columns.starts[job])
        columns.starts[job] = starts + 1
        if not starts:
            columns.start_ns[job] = now_ns
        speed = self._speed(job, command)
        from_ns = now_ns + self.world.start_delay_ns + (self.world.restart_ns if starts else 0)
        self._running[job] = _RunningJob(now_ns, from_ns, speed, starts + 1, command.allocation)
        left_ns = int(self._work_ns[job] - columns.done_ns[job])
        self._at(from_ns + length_ns(left_ns, speed), END + job, self._end, job, starts + 1)

    def _speed(self, job: int, command: StartJob) -> float:
        pool, _ = self.scheduler.cluster.where(command.allocation[0][0])
        arrival, world = self._arrivals[job], self.world
        is_spread = len(command.allocation) > pool.fewest_nodes(arrival.gpus, arrival.nodes)
        speed = world.speeds.of(arrival.job_class, pool.gpu_type, is_spread)
        if world.variability is not None:
            speed *= world.variability.of(arrival.job_class, command.allocation, command.slots)
        return speed

    def _end(self, job: int, starts: int) -> None:
        running = self._running.get(job)
        if running is None or running.starts != starts:
            return  # it was stopped meanwhile
        self._leave(job, running)
        self._columns.done_ns[job] = self._work_ns[job]
        self._columns.end_ns[job] = self.now_ns
        self._count(-1)
        self._tell(JobEnded(job))

    def _leave(self, job: int, running: _RunningJob) -> None:
        del self._running[job]
        columns, now_ns = self._columns, self.now_ns
        columns.held_ns[job] += now_ns - running.since_ns
        columns.restart_ns[job] += min(now_ns, running.from_ns) - running.since_ns

    def _preempt(self, command: PreemptJob) -> None:
        self._columns.preemptions[command.job] += 1
        self._stop(command.job)

    def _stop(self, job: int) -> None:
        """What it has done since its last checkpoint is lost; the scheduler hears of it at the end of the instant."""
        running, columns = self._running[job], self._columns
        self._leave(job, running)
        ran_ns = max(self.now_ns - running.from_ns, 0)
        every_ns = self.world.checkpoint_ns
        kept_ns = ran_ns // every_ns * every_ns if every_ns else ran_ns
        done_ns = int(columns.done_ns[job]) + int(kept_ns * running.speed)
        columns.done_ns[job] = min(done_ns, int(self._work_ns[job]))
        columns.lost_ns[job] += int(ran_ns * running.speed) - int(kept_ns * running.speed)
        self._at(self.now_ns, STOPPED + job, self._tell, Preempted(job, columns.done_ns[job]))

    # -------------------------------------------------------------------------------------------------------- nodes

    def _lose_node(self, node: int) -> None:
        self._down[node] = self.now_ns
        self._tell(NodeDown(node))
        for job in [
            job for job, running in self._running.items() if any(node == used for used, _ in running.allocation)
        ]:
            self._columns.kills[job] += 1
            self._stop(job)

    def _gain_node(self, node: int) -> None:
        pool, _ = self.scheduler.cluster.where(node)
        self._down_gpu_ns += pool.size * (self.now_ns - max(self._down.pop(node), self._begins_ns))
        self._tell(NodeUp(node))

    # ------------------------------------------------------------------------------------------------------- the end

    def _record(self) -> JobsRecord:
        self._count(0)
        columns = self._columns
        spec = self.spec
        ended_ns = self.now_ns
        for job, running in list(self._running.items()):
            self._leave(job, running)
        for node, since_ns in self._down.items():
            pool, _ = self.scheduler.cluster.where(node)
            self._down_gpu_ns += pool.size * (ended_ns - max(since_ns, self._begins_ns))
        record = JobsRecord(
            policy=shown_name(spec.policy),
            jobs=spec.jobs,
            best_ns=self._best_ns(),
            is_measured=spec.is_measured,
            begun_ns=self._begins_ns,
            ended_ns=ended_ns,
            capacity_gpu_ns=self.scheduler.cluster.gpus * (ended_ns - self._begins_ns),
            down_gpu_ns=self._down_gpu_ns,
            in_system_ns=self._in_system_ns,
            **{name: getattr(columns, name) for name in _RECORDED},
        )
        record.require_little()
        return record

    def _best_ns(self) -> NDArray[np.int64]:
        """Run times at full speed on the fastest types that the jobs may use; refused ones' at the reference."""
        fastest = self.scheduler.cluster.speeds(self._arrivals, self.world.speeds).max(axis=1)
        is_plain = (fastest == 0) | (fastest == 1)
        return np.where(is_plain, self._work_ns, np.ceil(self._work_ns / np.where(is_plain, 1.0, fastest))).astype(
            np.int64
        )
