"""Algorithm 1, one server's greedy scheduler, as a core without I/O: events and the time go in, commands come out.

`MemoryBook` accounts for the server's device memory: its charges, and whether more fits. It frees and loads nothing.

`GreedyScheduler` batches requests from the router, picks the best-fitting instance, loads and unloads instances. It
uses no clock, device or tensor: simulator and executors drive this same class. Points that the algorithm leaves open
follow the readings of `docs/paper-map.md`. States, events and invariants: `docs/theory-of-operation.md`.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Literal

import msgspec

from policies.faults import OUT_OF_MEMORY
from policies.interfaces import nest_by_width
from policies.router_queue import KeyedFifo
from policies.vocabulary import (
    NOTHING_RESIDENT,
    BatchFailed,
    BatchFinished,
    InstanceLoaded,
    InstanceUnloaded,
    LoadFailed,
    LoadInstance,
    MicroBatch,
    MicroBatchArrived,
    RejectRequests,
    Residency,
    ReturnRequests,
    RunBatch,
    ServerCommand,
    ServerDown,
    ServerEvent,
    ServerUp,
    TelemetrySampled,
    TimerFired,
    UnloadInstance,
    WorkKey,
)

# ---------------------------------------------------------------------------------------------------- a server's memory


class MemoryBook:
    """Memory of a server process under its cap M_max.

    Bytes are charged from a load's start and released at an unload's end; bytes being freed are known, so that one need
    causes one eviction.

    Args:
        cap_bytes: M_max.
        context_bytes: the memory of the process before any instance.
    """

    def __init__(self, cap_bytes: int, context_bytes: int) -> None:
        self.cap_bytes = cap_bytes
        self.context_bytes = context_bytes
        self.used_bytes = context_bytes
        self.peak_bytes = context_bytes
        self.freeing_bytes = 0

    def fits(self, vram_bytes: int) -> bool:
        """Return whether an instance of this size can be charged now."""
        return self.used_bytes + vram_bytes <= self.cap_bytes

    def fits_once_freed(self, vram_bytes: int) -> bool:
        """Return whether it can be charged when the unloads in progress have ended."""
        return self.used_bytes - self.freeing_bytes + vram_bytes <= self.cap_bytes

    def charge(self, vram_bytes: int) -> None:
        """Charge a load that starts."""
        assert self.fits(vram_bytes), "charged beyond the cap"
        self.used_bytes += vram_bytes
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)

    def correct(self, by_bytes: int) -> None:
        """Charge the difference to a load's actual size (negative if smaller); the sum may exceed the cap."""
        self.used_bytes += by_bytes
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)

    def start_freeing(self, vram_bytes: int) -> None:
        """Note that an unload starts: its memory is still used, but being freed."""
        self.freeing_bytes += vram_bytes

    def freed(self, vram_bytes: int) -> None:
        """Release the memory of an unload that has ended."""
        self.freeing_bytes -= vram_bytes
        self.release(vram_bytes)

    def release(self, vram_bytes: int) -> None:
        """Release the memory of a failed load, or of an unload that has ended."""
        self.used_bytes -= vram_bytes
        assert self.used_bytes >= self.context_bytes, "released more than was charged"

    def clear(self) -> None:
        """Reset after the process has died: only the next one's context counts."""
        self.used_bytes = self.context_bytes
        self.freeing_bytes = 0


Spec = tuple[int, float]  # (segment, width) of an instance


# --------------------------------------------------------------------------------------------- parameters and instances


@dataclass(frozen=True, slots=True)
class GreedyParams:
    """The parameters of Algorithm 1 (the arrival rate r belongs to the workload).

    Attributes:
        widths: the width set W, ascending.
        instance_bytes: device memory of an instance by (segment, width).
        context_bytes: device memory the process uses before any instance.
        batch_limit: B_max.
        vram_cap_bytes: M_max.
        utilization_block: U_blk as a share; no load while the latest sample is at or above it.
        idle_unload_ns: t_idle; None never unloads.
        scale_trigger: Q_th, queued requests of one key above which another instance may load; it never evicts.
        scale_cap: N_new, loads for a key since its queue was last empty; at this number no more are added.
        head_of_line: `skip` tries the next key if the head's can't be served; `wait` is the literal algorithm.
        skip_limit_ns: once a blocked key has waited this long, nothing overtakes it.
        served_width: a batch runs at the requested width, or at its instance's width.
        nests: how many widths each nest has (`policies.interfaces`); empty if all are one.
        padded_sizes: the batch sizes of the device (`padding: grid`), ascending; empty for no padding.
        preload: (segment, width) instances to load when the server comes up, at the start of a run and after a failure;
            they count for no key.
        load_retries: number of failures in a row (failed loads, batches without enough memory) after which requests
            that wait for that instance are rejected.
        load_backoff_ns: the wait before the second try; it doubles with each.
    """

    widths: tuple[float, ...]
    instance_bytes: Mapping[Spec, int]
    context_bytes: int
    batch_limit: int
    vram_cap_bytes: int
    utilization_block: float = 0.95
    idle_unload_ns: int | None = 5_000_000_000
    scale_trigger: int = 32
    scale_cap: int = 2
    head_of_line: Literal["skip", "wait"] = "skip"
    skip_limit_ns: int = 500_000_000
    served_width: Literal["requested", "instance"] = "requested"
    nests: tuple[int, ...] = ()
    padded_sizes: tuple[int, ...] = ()
    preload: tuple[Spec, ...] = ()
    load_retries: int = 3
    load_backoff_ns: int = 100_000_000

    @property
    def all_bytes(self) -> int:
        """The memory for one instance of every kind."""
        return self.context_bytes + sum(self.instance_bytes.values())

    def __post_init__(self) -> None:
        if self.batch_limit < 1:
            raise ValueError(f"batch_limit must be at least 1, not {self.batch_limit}")
        if self.padded_sizes and self.padded_sizes[-1] < self.batch_limit:
            raise ValueError(f"padded_sizes must reach the batch limit {self.batch_limit}: {self.padded_sizes}")
        preloaded = self.context_bytes + sum(self.instance_bytes[spec] for spec in self.preload)
        if preloaded > self.vram_cap_bytes:
            raise ValueError(f"the instances to preload need {preloaded} bytes, the cap is {self.vram_cap_bytes}")

    def can_hold(self, spec: Spec) -> bool:
        """Return whether an instance fits on the server with nothing else loaded."""
        return spec in self.instance_bytes and self.context_bytes + self.instance_bytes[spec] <= self.vram_cap_bytes


class InstanceState(Enum):
    """The states of an instance."""

    LOADING = auto()
    FREE = auto()
    BUSY = auto()
    UNLOADING = auto()


@dataclass(slots=True)
class Instance:
    """A segment's weights at one width; `last_used_ns` (t_last) is set at load end and batch end.

    `vram_bytes` is its charge: the parameters' value, until the device reports its actual size.
    """

    id: int
    segment: int
    width: float
    state: InstanceState
    last_used_ns: int
    vram_bytes: int

    @property
    def spec(self) -> Spec:
        """The instance's segment and width."""
        return self.segment, self.width


class _Batch(msgspec.Struct, frozen=True):
    instance: Instance
    requests: tuple[int, ...]
    key: WorkKey
    width: float


# -------------------------------------------------------------------------------------------------------- the scheduler


class GreedyScheduler:
    """One server's scheduler: `handle` each event with its time, execute the commands, call again at `next_wake_ns`.

    Events of an earlier incarnation of the server (another `incarnation`) are stale and change nothing. Times must not
    decrease.
    """

    def __init__(self, params: GreedyParams, server: int) -> None:
        self.params = params
        self.server = server
        self.next_wake_ns: int | None = None
        self.running_requests = 0  # in the running batches
        self.memory = MemoryBook(params.vram_cap_bytes, params.context_bytes)
        self._nests = nest_by_width(params.widths, params.nests)
        self._incarnation = 0
        self._queue: KeyedFifo[WorkKey] = KeyedFifo()
        self._paths: dict[int, MicroBatch] = {}  # by request, of those with a path
        self._instances: dict[int, Instance] = {}
        self._by_segment: dict[int, list[Instance]] = {}  # by width, ascending
        self._idle: dict[int, Instance] = {}  # the free ones, least recently used first (time does not decrease)
        self._batches: dict[int, _Batch] = {}
        self._blocked_since_ns: dict[WorkKey, int] = {}
        self._loads_for_key: dict[WorkKey, int] = {}
        self._failures: dict[Spec, int] = {}  # in a row: a batch that ends resets the row
        self._retry_at_ns: dict[Spec, int] = {}
        self._utilization = 0.0
        self._next_instance = 0
        self._next_batch = 0
        self.residency = NOTHING_RESIDENT
        self._take_in: dict[type, Callable[[Any, int, list[ServerCommand]], None]] = {
            MicroBatchArrived: self._enqueue,
            BatchFinished: self._finish_batch,
            BatchFailed: self._fail_batch,
            InstanceLoaded: self._finish_load,
            LoadFailed: self._fail_load,
            InstanceUnloaded: self._finish_unload,
            TelemetrySampled: self._hear,
            TimerFired: self._wake,
        }

    # ------------------------------------------------------------------------------------------------- questions

    @property
    def queue_length(self) -> int:
        """Number of requests queued here (running ones excluded)."""
        return self._queue.waiting

    @property
    def requests(self) -> int:
        """Number of requests queued or running here."""
        return self._queue.waiting + self.running_requests

    @property
    def vram_used_bytes(self) -> int:
        """Memory of the context and the charged instances."""
        return self.memory.used_bytes

    @property
    def instances(self) -> tuple[Instance, ...]:
        """All instances, in the order of their ids; for inspection only."""
        return tuple(self._instances.values())

    # ---------------------------------------------------------------------------------------------------- events

    def handle(self, event: ServerEvent, now_ns: int) -> list[ServerCommand]:
        """Process one event at its time; returns what to do, in order."""
        commands: list[ServerCommand] = []
        take_in = self._take_in.get(type(event))
        if take_in is not None:
            if self._is_current(event):
                take_in(event, now_ns, commands)
                self._schedule(now_ns, commands)
        elif isinstance(event, ServerUp):
            self._forget_everything()
            self._incarnation = event.incarnation
            commands.extend(self._load(spec, now_ns) for spec in self.params.preload)
            self._plan_wake(now_ns)
        elif isinstance(event, ServerDown) and self._is_current(event):
            self._forget_everything()
        return commands  # none for a batch's start and stragglers: they change nothing here

    def _is_current(self, event: Any) -> bool:
        if type(event) is MicroBatchArrived:
            return event.micro_batch.incarnation == self._incarnation
        return type(event) is TimerFired or event.incarnation == self._incarnation

    def _forget_everything(self) -> None:
        self._queue.clear()
        self.memory.clear()
        for state in (
            self._paths,
            self._instances,
            self._by_segment,
            self._idle,
            self._batches,
            self._blocked_since_ns,
            self._loads_for_key,
            self._failures,
            self._retry_at_ns,
        ):
            state.clear()
        self._incarnation = 0  # no incarnation has this number: any later event of the last one is stale
        self.residency = NOTHING_RESIDENT
        self._utilization = 0.0
        self.running_requests = 0
        self.next_wake_ns = None

    def _enqueue(self, event: MicroBatchArrived, now_ns: int, commands: list[ServerCommand]) -> None:
        micro_batch = event.micro_batch
        if self.params.can_hold((micro_batch.key.segment, micro_batch.key.width)):
            self._queue.push(micro_batch.key, micro_batch.requests)
            if micro_batch.then and self.params.served_width == "requested":
                self._paths |= dict.fromkeys(micro_batch.requests, micro_batch)
        else:
            commands.append(RejectRequests(self._incarnation, micro_batch.requests, "instance_too_large"))

    def _finish_batch(self, event: BatchFinished, now_ns: int, commands: list[ServerCommand]) -> None:
        batch = self._release_batch(event.batch, now_ns)
        self._failures.pop(batch.instance.spec, None)
        passed = batch.requests
        if event.failed:
            passed = tuple(request for request in passed if request not in event.failed)
        if self._paths:
            passed = tuple([request for request in passed if not self._goes_on(request, batch.key.segment)])
        if passed:
            commands.append(ReturnRequests(self._incarnation, passed, batch.key.segment, batch.width, self.residency))
        if event.failed:
            self._reject(event.failed, batch.key, event.reason, commands)

    def _goes_on(self, request: int, segment: int) -> bool:
        """Queue a request that has passed a segment for the next one of its path; returns False if there is none."""
        micro_batch = self._paths.get(request)
        if micro_batch is None:
            return False
        step = segment - micro_batch.key.segment
        if step == len(micro_batch.then) or not self.params.can_hold((segment + 1, micro_batch.then[step])):
            del self._paths[request]
            return False
        self._queue.push(micro_batch.key_at(step + 1), (request,))
        return True

    def _reject(self, requests: tuple[int, ...], key: WorkKey, reason: str, commands: list[ServerCommand]) -> None:
        """Reject requests of a key; those that have passed segments of their path are returned after the last one."""
        if self._paths:
            micro_batches = [self._paths.pop(request, None) for request in requests]
            on_path = [each is not None and each.key.segment < key.segment for each in micro_batches]
            if any(on_path):
                passed = tuple([request for request, is_on in zip(requests, on_path, strict=True) if is_on])
                requests = tuple([request for request, is_on in zip(requests, on_path, strict=True) if not is_on])
                last = (key.segment - 1, key.previous_width)
                commands.append(ReturnRequests(self._incarnation, passed, *last, self.residency))
        if requests:
            commands.append(RejectRequests(self._incarnation, requests, reason))

    def _fail_batch(self, event: BatchFailed, now_ns: int, commands: list[ServerCommand]) -> None:
        """Requeue the batch. If memory was short, drop its instance, too: the next batch would fail the same way."""
        batch = self._release_batch(event.batch, now_ns)
        self._reject(batch.requests, batch.key, event.reason, commands)
        if event.reason == OUT_OF_MEMORY:
            commands.append(self._unload(batch.instance))
            self._back_off(batch.instance.spec, event.reason, now_ns, commands)

    def _release_batch(self, batch_id: int, now_ns: int) -> _Batch:
        batch = self._batches.pop(batch_id)
        self.running_requests -= len(batch.requests)
        self._set_free(batch.instance, now_ns)
        return batch

    def _set_free(self, instance: Instance, now_ns: int) -> None:
        instance.state = InstanceState.FREE
        instance.last_used_ns = now_ns
        self._idle[instance.id] = instance

    def _set_taken(self, instance: Instance, state: InstanceState) -> None:
        instance.state = state
        del self._idle[instance.id]

    def _hear(self, event: TelemetrySampled, now_ns: int, commands: list[ServerCommand]) -> None:
        self._utilization = event.utilization

    def _wake(self, event: TimerFired, now_ns: int, commands: list[ServerCommand]) -> None:
        """Mark a reason to schedule."""

    def _finish_load(self, event: InstanceLoaded, now_ns: int, commands: list[ServerCommand]) -> None:
        instance = self._instances[event.instance]
        if event.vram_bytes:
            self.memory.correct(event.vram_bytes - instance.vram_bytes)
            instance.vram_bytes = event.vram_bytes
        self._set_free(instance, now_ns)
        self._note_residency()

    def _fail_load(self, event: LoadFailed, now_ns: int, commands: list[ServerCommand]) -> None:
        instance = self._instances[event.instance]
        self.memory.release(instance.vram_bytes)
        self._remove(instance)
        self._back_off(instance.spec, event.reason, now_ns, commands)

    def _back_off(self, spec: Spec, reason: str, now_ns: int, commands: list[ServerCommand]) -> None:
        """Note a failed load, or a batch out of memory: the next load waits, and after the last try its requests are
        rejected."""
        if now_ns < self._retry_at_ns.get(spec, 0):
            return  # one of several that failed together: one failure
        failures = self._failures[spec] = self._failures.get(spec, 0) + 1
        if failures < self.params.load_retries:
            self._retry_at_ns[spec] = now_ns + self.params.load_backoff_ns * 2 ** (failures - 1)
            return
        del self._failures[spec]
        self._retry_at_ns.pop(spec, None)
        for key in self._queue.by_age():
            if (key.segment, key.width) == spec and not self._has_instance_for(key):
                self._reject(self._take(key, self._queue.length(key)), key, reason, commands)

    def _finish_unload(self, event: InstanceUnloaded, now_ns: int, commands: list[ServerCommand]) -> None:
        instance = self._instances[event.instance]
        self.memory.freed(instance.vram_bytes)
        self._remove(instance)

    def _remove(self, instance: Instance) -> None:
        del self._instances[instance.id]
        self._by_segment[instance.segment].remove(instance)
        self._note_residency()

    def _note_residency(self) -> None:
        """Note that instances were added, removed, or changed between loading and loaded."""
        loaded = loading = 0
        widths = self.params.widths
        for instance in self._instances.values():
            bit = Residency.bit(instance.segment, widths.index(instance.width), len(widths))
            if instance.state is InstanceState.LOADING:
                loading |= bit
            elif instance.state is not InstanceState.UNLOADING:
                loaded |= bit
        self.residency = Residency(loaded, loading)

    # ------------------------------------------------------------------------------------------------- decisions

    def _schedule(self, now_ns: int, commands: list[ServerCommand]) -> None:
        """Run Alg. 1's loop until nothing more is possible at this instant."""
        while self._queue.waiting and (served := self._next_servable(now_ns)) is not None:
            commands.append(self._run(*served))
        if self._queue.waiting:
            self._order_loads(now_ns, commands)
        if self._idle and self.params.idle_unload_ns is not None:
            self._unload_idle(now_ns, self.params.idle_unload_ns, commands)
        self._plan_wake(now_ns)

    def _next_servable(self, now_ns: int) -> tuple[WorkKey, Instance] | None:
        """Return the oldest key that a free instance can serve, unless an older one must not be overtaken."""
        for key in self._queue.by_age():
            instance = self._find_free_best_fit(key)
            if instance is not None:
                return key, instance
            self._blocked_since_ns.setdefault(key, now_ns)
            if self._may_not_be_overtaken(key, now_ns):
                return None
        return None

    def _may_not_be_overtaken(self, key: WorkKey, now_ns: int) -> bool:
        return self.params.head_of_line == "wait" or self._is_overdue(key, now_ns)

    def _is_overdue(self, key: WorkKey, now_ns: int) -> bool:
        return now_ns - self._blocked_since_ns[key] >= self.params.skip_limit_ns

    def _find_free_best_fit(self, key: WorkKey) -> Instance | None:
        """Return Alg. 1 l. 7: the smallest free width that serves; ties go to the most recently used, then the lowest
        id."""
        best: Instance | None = None
        for instance in self._by_segment.get(key.segment, ()):
            if best is not None and instance.width > best.width:
                break
            if instance.state is InstanceState.FREE and self._fits(instance, key):
                best = instance if best is None or _goes_before(instance, best) else best
        return best

    def _fits(self, instance: Instance, key: WorkKey) -> bool:
        return key.width <= instance.width <= self._nests[key.width][-1]

    def _run(self, key: WorkKey, instance: Instance) -> RunBatch:
        """Form a batch of one key and make the instance busy (Alg. 1 l. 14-17)."""
        requests = self._take(key, self.params.batch_limit)
        self._set_taken(instance, InstanceState.BUSY)
        served = key.width if self.params.served_width == "requested" else instance.width
        batch = self._next_batch
        self._next_batch += 1
        self.running_requests += len(requests)
        self._batches[batch] = _Batch(instance, requests, key, served)
        padded = self._padded(len(requests)) if self.params.padded_sizes else len(requests)
        return RunBatch(
            self._incarnation, batch, instance.id, requests, key.segment, key.previous_width, served, padded
        )

    def _take(self, key: WorkKey, count: int) -> tuple[int, ...]:
        """Remove requests from the queue; the key is not blocked any more, and its load counter ends with its queue."""
        requests = self._queue.take(key, count)
        self._blocked_since_ns.pop(key, None)
        if key not in self._queue:
            self._loads_for_key.pop(key, None)
        return requests

    def _padded(self, size: int) -> int:
        for padded in self.params.padded_sizes:
            if padded >= size:
                return padded
        return size

    def _order_loads(self, now_ns: int, commands: list[ServerCommand]) -> None:
        """Load for need, evict for need: Alg. 1's `can_load` (l. 8) for each waiting key, oldest first.

        A key needs an instance if none here, free or busy, is wide enough, or if the key is overdue. Only need evicts,
        and only for the oldest key that memory stops. While an instance loads for a key, the key waits for it.
        """
        may_evict = self.params.head_of_line == "skip"
        for key in self._queue.by_age():
            spec, is_overdue = (key.segment, key.width), self._is_overdue(key, now_ns)
            if not self._is_loading_for(key) and self._admits(spec, now_ns, is_overdue):
                is_needed = is_overdue or not self._has_instance_for(key)
                if self.memory.fits(self.params.instance_bytes[spec]):
                    if is_needed or self._may_have_another(key):
                        commands.append(self._load_for_key(key, now_ns))
                elif is_needed and may_evict:
                    if self._evict_for(spec, commands):
                        return  # memory being freed is for this key, not for a smaller and younger one
                    may_evict = False
            if self._may_not_be_overtaken(key, now_ns):
                return

    def _may_have_another(self, key: WorkKey) -> bool:
        """Return whether a key may load another instance: above Q_th within N_new, or if only wider ones serve at their
        width."""
        if self.params.served_width == "instance" and all(
            instance.width != key.width or instance.state is InstanceState.UNLOADING
            for instance in self._by_segment[key.segment]
        ):
            return True
        is_long = self._queue.length(key) > self.params.scale_trigger
        return is_long and self._loads_for_key.get(key, 0) < self.params.scale_cap

    def _has_instance_for(self, key: WorkKey) -> bool:
        return any(
            instance.state is not InstanceState.UNLOADING and self._fits(instance, key)
            for instance in self._by_segment.get(key.segment, ())
        )

    def _is_loading_for(self, key: WorkKey) -> bool:
        return any(
            instance.state is InstanceState.LOADING and self._fits(instance, key)
            for instance in self._by_segment.get(key.segment, ())
        )

    def _admits(self, spec: Spec, now_ns: int, overdue: bool = False) -> bool:
        """Return Alg. 1's `can_load` except for the memory: the latest utilization sample is below U_blk.

        A segment's first instance ignores U_blk, and so does an overdue key: others may keep a shared device busy.
        """
        if now_ns < self._retry_at_ns.get(spec, 0):
            return False
        if overdue or self._utilization < self.params.utilization_block:
            return True
        return all(instance.state is InstanceState.UNLOADING for instance in self._by_segment.get(spec[0], ()))

    def _load_for_key(self, key: WorkKey, now_ns: int) -> LoadInstance:
        self._loads_for_key[key] = self._loads_for_key.get(key, 0) + 1
        return self._load((key.segment, key.width), now_ns)

    def _load(self, spec: Spec, now_ns: int) -> LoadInstance:
        segment, width = spec
        vram_bytes = self.params.instance_bytes[spec]
        instance = Instance(self._next_instance, segment, width, InstanceState.LOADING, now_ns, vram_bytes)
        self._next_instance += 1
        self.memory.charge(vram_bytes)
        self._instances[instance.id] = instance
        insort(self._by_segment.setdefault(segment, []), instance, key=lambda each: each.width)
        self._note_residency()
        return LoadInstance(self._incarnation, instance.id, segment, width)

    def _evict_for(self, spec: Spec, commands: list[ServerCommand]) -> bool:
        """Unload idle instances, least recently used first, if that frees enough memory (otherwise none).

        Returns whether enough memory is being freed.
        """
        needed = self.params.instance_bytes[spec]
        if self.memory.fits_once_freed(needed):
            return True
        short_bytes = self.memory.used_bytes - self.memory.freeing_bytes + needed - self.memory.cap_bytes
        victims: list[Instance] = []
        for instance in self._idle.values():
            victims.append(instance)
            short_bytes -= instance.vram_bytes
            if short_bytes <= 0:
                commands.extend(self._unload(victim) for victim in victims)
                return True
        return False

    def _unload_idle(self, now_ns: int, idle_unload_ns: int, commands: list[ServerCommand]) -> None:
        """Unload instances that were idle for t_idle: Alg. 1's second loop."""
        while self._idle:
            longest_idle = next(iter(self._idle.values()))
            if now_ns - longest_idle.last_used_ns < idle_unload_ns:
                return
            commands.append(self._unload(longest_idle))

    def _unload(self, instance: Instance) -> UnloadInstance:
        self._set_taken(instance, InstanceState.UNLOADING)
        self._note_residency()
        self.memory.start_freeing(instance.vram_bytes)
        return UnloadInstance(self._incarnation, instance.id)

    def _plan_wake(self, now_ns: int) -> None:
        """Plan the next time at which something could change without an event."""
        wake_ns: int | None = None
        if self.params.idle_unload_ns is not None and self._idle:
            wake_ns = next(iter(self._idle.values())).last_used_ns + self.params.idle_unload_ns
        if self._retry_at_ns:
            waiting = {(key.segment, key.width) for key in self._queue}
            retries_ns = [at_ns for spec, at_ns in self._retry_at_ns.items() if spec in waiting and at_ns > now_ns]
            wake_ns = min(retries_ns if wake_ns is None else [*retries_ns, wake_ns], default=None)
        self.next_wake_ns = wake_ns


def _goes_before(instance: Instance, other: Instance) -> bool:
    """Return, of two instances of one width, the one used last, or the lower id if both were."""
    if instance.last_used_ns != other.last_used_ns:
        return instance.last_used_ns > other.last_used_ns
    return instance.id < other.id
