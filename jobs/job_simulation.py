"""Simulator of training jobs on a cluster: an event queue of events drives the scheduler's core.

At one instant: arrivals, then ends by job, stops by job, failures of nodes by node, returns by node; last the scheduler
decides, and is notified of stops before it decides again at the same instant. The same jobs, cluster, policy and seed
give the same bits.
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

from jobs.job_records import NOT_YET, JobsRecord, NodeOutage, Snapshot
from jobs.job_traces import JobTrace
from jobs.policies.chosen_queueing import Choosing
from jobs.policies.job_cluster import (
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
from jobs.policies.job_orders import LONGEST_S
from jobs.policies.job_scheduler import JobScheduler
from jobs.policies.named_policies import JobPolicy, shown_name
from jobs.policies.run_times import ORACLE
from kit.errors import InputError
from kit.units import NS_PER_S

# The order of events at one instant; the number of the job or node is added to those between the two.
ARRIVAL, END, STOPPED, NODE_DOWN, NODE_UP, LAST = (rank << 32 for rank in range(6))
_RECORDED: Final = ("start_ns", "end_ns", "is_refused", "preemptions", "kills", "lost_ns", "restart_ns", "held_ns")
_YEAR_NS: Final = 366 * 86_400 * NS_PER_S


@dataclass(frozen=True, slots=True)
class ClusterModel:
    """The cluster, and the costs of stopping a job.

    Attributes:
        groups: its nodes.
        speeds: jobs' speeds by pool; the scheduler has this table.
        restart_ns: time that a resumed job holds its GPUs before its work continues.
        start_delay_ns: the same at each start of any job.
        checkpoint_ns: interval of checkpoints since a job's start; 0 for continuous ones (no work is lost).
        outages: when nodes are out of service.
        variability: how GPUs of one type differ; None if they do not.

    Raises:
        InputError: an outage is of a node that does not exist.
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
                problem = f"node {outage.node} is not there: nodes are 0 to {nodes - 1}"
                raise InputError("cluster", "outages", problem)


@dataclass(frozen=True, slots=True)
class JobRun:
    """Inputs of one simulated run.

    Attributes:
        warmup_s: jobs submitted within this time of the run's begin are run and not measured.
        snapshot: the log's state when the run begins; None begins with the first submission, on an empty cluster.
        longest_ns: the run ends this long after the last submission, even if jobs still wait or run.
        past: jobs that had ended before, as `JobScheduler` takes them.
        choosing: the chooser of a learned policy; it may have state, so each run has its own.

    Raises:
        InputError: times are out of range, or no job is submitted after the warm-up.
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
                problem = f"job {row} has {values[row]}: expected {least:g} to {LONGEST_S:g} seconds"
                raise InputError("trace", name, problem)
        if not self.is_measured.any():
            last_s = self.jobs.submit_s[-1] - self.begins_ns / NS_PER_S
            problem = f"{self.warmup_s:g} s leave no job to measure: the last is submitted after {last_s:g} s"
            raise InputError("run", "warmup_s", problem)

    @property
    def begins_ns(self) -> int:
        """The time at which the run begins."""
        return int(self.jobs.submit_ns[0]) if self.snapshot is None else self.snapshot.at_ns

    @property
    def is_measured(self) -> NDArray[np.bool_]:
        """(n,) Whether each job counts in figures."""
        return np.asarray(self.jobs.submit_ns >= self.begins_ns + round(self.warmup_s * NS_PER_S))


class _RunningJob(msgspec.Struct):
    """A running job: its start, the start of its work, and its speed."""

    since_ns: int
    from_ns: int
    speed: float
    starts: int  # number of this start: an end planned for an earlier one is void
    allocation: Allocation


class _Columns:
    """Records of each job during the run."""

    def __init__(self, many: int) -> None:
        self.start_ns, self.end_ns = np.full((2, many), NOT_YET)
        self.done_ns, self.lost_ns, self.restart_ns, self.held_ns = np.zeros((4, many), np.int64)
        self.preemptions, self.kills, self.starts = np.zeros((3, many), np.int64)
        self.is_refused = np.zeros(many, np.bool_)


class JobSimulation:
    """One run: call `run` once.

    Attributes:
        now_ns: the present, integer nanoseconds since the trace's start.
    """

    def __init__(self, cluster_model: ClusterModel, run: JobRun) -> None:
        self.cluster_model, self.spec = cluster_model, run
        jobs = run.jobs
        self._work_ns, self._submit_ns = jobs.work_ns, jobs.submit_ns
        oracle = self._work_ns if run.policy.estimate == ORACLE else None
        self.scheduler = JobScheduler(
            run.policy,
            cluster_model.groups,
            cluster_model.speeds,
            oracle,
            run.past,
            cluster_model.variability,
            run.choosing,
        )
        self.now_ns = 0
        self._heap: list[tuple[int, int, int, Callable[..., None], tuple[Any, ...]]] = []  # the event queue
        self._sequence = count()
        self._columns = _Columns(len(jobs))
        self._begins_ns = run.begins_ns
        self._arrivals, self._arrived = jobs.arrivals(), 0
        self._running: dict[int, _RunningJob] = {}
        self._down: dict[int, int] = {}  # start of the outage, by node out of service
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
        """Simulate to the last job's end; checks that the sums add up."""
        self._set_off()
        self._at(self._last_ns, LAST, self._pass)  # jobs not done by then have held GPUs until then
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
        """Call `act` at a time; at one instant by ascending `order`: `ARRIVAL` to `LAST`."""
        heapq.heappush(self._heap, (when_ns, order, next(self._sequence), act, arguments))

    @property
    def _is_over(self) -> bool:
        return self._in_system == 0 and self._arrived == len(self._arrivals)

    def _set_off(self) -> None:
        for outage in self.cluster_model.outages:
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
        """Do nothing, at an instant without an event."""

    def _count(self, more: int) -> None:
        """Add to the number of jobs in the system from now on."""
        now_ns = self.now_ns
        self._in_system_ns += self._in_system * (now_ns - self._counted_ns)
        self._counted_ns = now_ns
        self._in_system += more

    # ------------------------------------------------------------------------------------------------------ arrivals

    def _find(self) -> None:
        """Begin with the log's state: running jobs resume before any other is started."""
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
        from_ns = now_ns + self.cluster_model.start_delay_ns + (self.cluster_model.restart_ns if starts else 0)
        self._running[job] = _RunningJob(now_ns, from_ns, speed, starts + 1, command.allocation)
        left_ns = int(self._work_ns[job] - columns.done_ns[job])
        self._at(from_ns + length_ns(left_ns, speed), END + job, self._end, job, starts + 1)

    def _speed(self, job: int, command: StartJob) -> float:
        pool, _ = self.scheduler.cluster.where(command.allocation[0][0])
        arrival, cluster_model = self._arrivals[job], self.cluster_model
        is_spread = len(command.allocation) > pool.fewest_nodes(arrival.gpus, arrival.nodes)
        speed = cluster_model.speeds.of(arrival.job_class, pool.gpu_type, is_spread)
        if cluster_model.variability is not None:
            speed *= cluster_model.variability.of(arrival.job_class, command.allocation, command.slots)
        return speed

    def _end(self, job: int, starts: int) -> None:
        running = self._running.get(job)
        if running is None or running.starts != starts:
            return  # it has been stopped since
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
        """Stop a job: work since its last checkpoint is lost; the scheduler is notified at the end of the instant."""
        running, columns = self._running[job], self._columns
        self._leave(job, running)
        ran_ns = max(self.now_ns - running.from_ns, 0)
        every_ns = self.cluster_model.checkpoint_ns
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
        """Return run times at full speed on the fastest types that jobs may use; at the reference for refused jobs."""
        fastest = self.scheduler.cluster.speeds(self._arrivals, self.cluster_model.speeds).max(axis=1)
        is_plain = (fastest == 0) | (fastest == 1)
        return np.where(is_plain, self._work_ns, np.ceil(self._work_ns / np.where(is_plain, 1.0, fastest))).astype(
            np.int64
        )
