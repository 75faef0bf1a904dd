"""An emulated device's worker, without torch: a pass is a time from the device's model, activations are sizes.

Everything else is real: the process, its messages, the bytes that move, the faults. No thread waits for a pass: its end
is an absolute time, planned again whenever another pass begins or ends.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from math import isnan, nan, prod
from pathlib import Path
from struct import Struct
from typing import Final, Literal, Protocol

from hw.clock import Waker
from hw.telemetry.sensors import Reading, Sensor, Support
from hw.transport.messages import (
    BenchmarkMove,
    Done,
    FromWorker,
    Input,
    Measurement,
    Move,
    MoveBroken,
    Moved,
    Reason,
    Warm,
)
from hw.transport.shared_memory import Arena
from hw.worker.lanes import (
    BatchBroken,
    BatchEnded,
    Fitting,
    LaneEvent,
    LoadBroken,
    LoadEnded,
    MoveEnded,
    Tell,
    UnloadEnded,
    explain,
)
from policies.faults import Impairment
from policies.greedy_scheduler import Spec
from policies.vocabulary import Provenance, RunBatch

# ----------------------------------------------------------------------------------------------------------- the device


_ELEMENT_BYTES: Final = {"uint8": 1, "bfloat16": 2, "float16": 2, "float32": 4}
_NUMBER: Final = Struct("<f")
Key = tuple[int, float, float]  # (segment, width, previous width)
Ended = tuple[int, int, int, bool]  # (batch, begin, end, whether it fitted into memory)


class DeviceBehavior(Protocol):
    """The behavior of a device. Times are nanoseconds of one clock and increase from call to call."""

    segments: int
    context_bytes: int
    vram_bytes: int
    dispatch_ns: int

    def reset(self, now_ns: int) -> None:
        """Reset the device: it is idle and unimpaired, and the sensor has no past."""
        ...

    def start(self, batch: int, key: Key, images: int, padded: int, at_ns: int) -> None:
        """Begin a pass, now or later; the device computes `padded` images unless it must take them in parts."""
        ...

    def impair(self, impairment: Impairment, now_ns: int) -> None:
        """Impair the device from now on."""
        ...

    def advance(self, now_ns: int) -> Sequence[Ended]:
        """Advance to now, each event at its own time; return the passes that have ended, in order."""
        ...

    @property
    def next_ns(self) -> int | None:
        """The time at which `advance` should be called next; None if nothing runs."""
        ...

    def load_ns(self, segment: int, width: float, from_disk: bool) -> int:
        """Return the duration of a load."""
        ...

    def unload_ns(self, segment: int, width: float) -> int:
        """Return the duration of an unload."""
        ...

    def instance_bytes(self, segment: int, width: float) -> int:
        """Return the device memory of an instance."""
        ...

    def output_bytes(self, segment: int, width: float) -> int:
        """Return the size of one image's activations after a segment."""
        ...

    def sample(self, now_ns: int) -> tuple[float, float]:
        """Return (power in watts, utilization) as the device's sensor shows them, after `advance`."""
        ...

    def energy_j(self, now_ns: int) -> float:
        """Return the joules since `reset`, after `advance`."""
        ...


@dataclass(frozen=True, slots=True)
class EmulatedDevice:
    """A device that a server's process emulates.

    Attributes:
        factory: `module:function`, which makes its model from `data`; named by our own code, never by a file.
        prediction: its name for people.
        slowdown: factor on its passes and loads, relative to the device that it is named after.
        cores: that the process is pinned to; empty pins it to none.
    """

    factory: str
    data: bytes
    label: str
    slowdown: float = 1.0
    cores: tuple[int, ...] = ()

    @property
    def physical(self) -> tuple[str, tuple[int, ...]]:
        """A key that no other device has: none is shared, and none is a device of this machine."""
        return ("emulated", (id(self),))

    @property
    def channels_last(self) -> bool:
        """The layout of feature maps in memory, of which it has none."""
        return False

    def model(self) -> DeviceBehavior:
        """Return a device with nothing on it."""
        module, _, function = self.factory.partition(":")
        behavior: DeviceBehavior = getattr(importlib.import_module(module), function)(self.data)
        return behavior

    def execution(self) -> dict[str, str]:
        """Return a description of the execution, for profiles and records."""
        return {"device": f"emulated {self.label}", "slowdown": f"{self.slowdown:g}"}


# ------------------------------------------------------------------------------------------------------------ the lanes


class _Instance:
    """An instance of the scheduler's; `is_ready` once its load is over."""

    __slots__ = ("is_ready", "segment", "size_bytes", "width")

    def __init__(self, segment: int, width: float, size_bytes: int) -> None:
        self.segment = segment
        self.width = width
        self.size_bytes = size_bytes
        self.is_ready = False


def one_thread() -> Executor:
    """Return an executor that runs its jobs in one thread, one after another."""
    return ThreadPoolExecutor(1)


class EmulatedLanes:
    """`hw.worker.lanes.Lanes` on a device's model.

    Args:
        model: of the device; only these lanes drive it.
        arenas: of all servers, by index.
        own: this server's index among them.
        tell: receives every end, from within `ring`.
        clock_ns: the process's own.
        mover: makes a mover of activations over a network, which takes some time.
    """

    def __init__(
        self,
        model: DeviceBehavior,
        arenas: Sequence[Arena],
        own: int,
        tell: Tell,
        clock_ns: Callable[[], int],
        mover: Callable[[], Executor] = one_thread,
    ) -> None:
        self.model = model
        self._arenas = tuple(arenas)
        self._own = own
        self._tell = tell
        self._clock_ns = clock_ns
        self._sizes: dict[int, int] = {}  # bytes of each stored activation
        self._broken: set[int] = set()  # those of them that hold no numbers
        self._instances: dict[int, _Instance] = {}
        self._batches: dict[int, tuple[RunBatch, tuple[int, ...]]] = {}  # with the members whose inputs are missing
        self._loads: list[tuple[int, int, LaneEvent]] = []  # (end, order of the commands, the event then)
        self._commands = 0
        self._due: list[Callable[[int], LaneEvent]] = []  # ends that are not reported yet
        self._scratch = memoryview(b"")
        self._new_mover = mover
        self._mover = mover() if any(arena.waits for arena in arenas) else None
        self.used_bytes = 0  # of device memory, by instances
        model.reset(clock_ns())

    # --------------------------------------------------------------------------------------------------- instances

    def load(self, instance: int, segment: int, width: float, from_disk: bool) -> None:
        """See `Lanes`."""
        now_ns, size_bytes = self._clock_ns(), self.model.instance_bytes(segment, width)
        free_bytes = self.model.vram_bytes - self.model.context_bytes - self.used_bytes
        if size_bytes > free_bytes:
            broken = LoadBroken(instance, "out_of_memory", f"{size_bytes} bytes are more than the {free_bytes} left")
            self._due.append(lambda _: broken)
            return
        self.used_bytes += size_bytes
        self._instances[instance] = _Instance(segment, width, size_bytes)
        self._later(now_ns + self.model.load_ns(segment, width, from_disk), LoadEnded(instance, size_bytes))

    def unload(self, instance: int) -> None:
        """See `Lanes`."""
        loaded = self._instances[instance]
        self._later(self._clock_ns() + self.model.unload_ns(loaded.segment, loaded.width), UnloadEnded(instance))

    def _later(self, at_ns: int, event: LoadEnded | UnloadEnded) -> None:
        self._commands += 1
        heappush(self._loads, (at_ns, self._commands, event))

    # ------------------------------------------------------------------------------------------------------- batches

    def run(self, command: RunBatch) -> None:
        """See `Lanes`."""
        now_ns = self._clock_ns()
        self.settle(now_ns)
        problem = self._problem(command)
        if problem is not None:
            self._due.append(lambda _: problem)
            return
        missing = tuple(request for request in command.requests if request not in self._sizes)
        if len(missing) == len(command.requests):
            broken = BatchBroken(command.batch, "bad_input", f"no activations of {missing}")
            self._due.append(lambda _: broken)
            return
        self._batches[command.batch] = (command, missing)
        key = (command.segment, command.served_width, command.previous_width)
        at_ns = now_ns + self.model.dispatch_ns
        self.model.start(command.batch, key, len(command.requests), command.padded, at_ns)

    def _problem(self, command: RunBatch) -> BatchBroken | None:
        loaded = self._instances.get(command.instance)
        if loaded is None or not loaded.is_ready:
            return BatchBroken(command.batch, "unknown_instance", f"instance {command.instance} is not loaded")
        if loaded.segment != command.segment:
            problem = f"instance {command.instance} is of segment {loaded.segment}, not {command.segment}"
            return BatchBroken(command.batch, "bad_input", problem)
        return None

    def _end(self, batch: int, began_ns: int, ended_ns: int, fitted: bool) -> None:
        """End a batch: outputs replace inputs; after the last segment only a prediction is left, which others give."""
        command, missing = self._batches.pop(batch)
        failed: tuple[int, ...] = missing
        reason: Reason = "bad_input"
        if not fitted:
            failed, reason = command.requests, "out_of_memory"
        elif command.segment < self.model.segments:
            size_bytes = self.model.output_bytes(command.segment, command.served_width)
            self._sizes.update(
                dict.fromkeys((request for request in command.requests if request in self._sizes), size_bytes)
            )
        elif broken := self._broken.intersection(command.requests):
            failed, reason = (
                tuple(request for request in command.requests if request in broken or request in missing),
                "no_prediction",
            )
        if command.segment == self.model.segments:
            self.forget(request for request in command.requests if request not in failed)
        if failed == command.requests:
            self._due.append(lambda _: BatchBroken(batch, reason, f"{failed} have failed"))
            return
        failure: Reason | Literal[""] = reason if failed else ""
        self._due.append(
            lambda now_ns: BatchEnded(batch, (), began_ns, ended_ns, failed, failure, late_ns=now_ns - ended_ns)
        )

    # ---------------------------------------------------------------------------------------------------- activations

    def take(self, inputs: Sequence[Input]) -> None:
        """See `Lanes`; data outside the arena are not kept. An image that begins with NaN has no numbers."""
        arena = self._arenas[self._own]
        for activations in inputs:
            size_bytes = prod(activations.shape) * _ELEMENT_BYTES.get(activations.dtype, 0)
            if activations.offset + size_bytes * len(activations.requests) > arena.size_bytes:
                continue
            self._sizes.update(dict.fromkeys(activations.requests, size_bytes))
            for index, request in enumerate(activations.requests if size_bytes >= _NUMBER.size else ()):
                (first,) = _NUMBER.unpack_from(arena.buffer, activations.offset + index * size_bytes)
                if isnan(first):
                    self._broken.add(request)

    def keep(self, request: int, size_bytes: int) -> None:
        """Keep an activation of that size."""
        self._sizes[request] = size_bytes

    def retain(self, requests: Sequence[int]) -> None:
        """See `Lanes`: only sizes are kept, nowhere in the arena."""

    def forget(self, requests: Iterable[int]) -> None:
        """See `Lanes`."""
        for request in requests:
            self._sizes.pop(request, None)
            self._broken.discard(request)

    def move(self, message: Move) -> Moved | None:
        """See `Lanes`: the same number of bytes is really written there.

        Raises:
            KeyError: one is missing.
            ValueError: they do not fit there, or are of several sizes.
        """
        if self._mover is None:
            return self._move(message)
        self._mover.submit(self._move_apart, message)
        return None

    def _move_apart(self, message: Move) -> None:
        answer: Moved | MoveBroken
        try:
            answer = self._move(message)
        except Exception as error:
            answer = MoveBroken(message.transfer, *explain(error))
        self._tell(MoveEnded(answer))

    def _move(self, message: Move) -> Moved:
        sizes = {self._sizes[request] for request in message.requests}
        if len(sizes) != 1:
            raise ValueError(f"activations of {sorted(sizes)} bytes in one move")
        (size_bytes,) = sizes
        total_bytes, arena = size_bytes * len(message.requests), self._arenas[message.destination]
        if message.offset + total_bytes > arena.size_bytes:
            raise ValueError(f"{total_bytes} bytes from {message.offset} on are not within {arena.size_bytes}")
        if len(self._scratch) < total_bytes:
            self._scratch = memoryview(bytes(total_bytes))
        with arena.view(message.offset, total_bytes) as target:
            target[:] = self._scratch[:total_bytes]
            for index, request in enumerate(message.requests if self._broken else ()):
                if request in self._broken:
                    _NUMBER.pack_into(target, index * size_bytes, nan)
        arena.commit(message.offset, total_bytes, message.address)
        return Moved(message.transfer, (size_bytes,), "uint8", False)

    # ------------------------------------------------------------------------------------------------ what goes wrong

    def impair(self, impairment: Impairment) -> None:
        """See `Lanes`."""
        now_ns = self._clock_ns()
        self.settle(now_ns)
        self.model.impair(impairment, now_ns)

    def reset(self, keeps: Collection[Spec] = ()) -> int:
        """See `Lanes`; passes in progress are dropped, and so is everything loaded."""
        if self._mover is not None:
            self._mover.shutdown(cancel_futures=True)
            self._mover = self._new_mover()
        count = len(self._sizes)
        for collection in (self._sizes, self._broken, self._instances, self._batches, self._loads, self._due):
            collection.clear()
        self.used_bytes = 0
        self.model.reset(self._clock_ns())
        return count

    # ---------------------------------------------------------------------------------------------------------- time

    @property
    def next_ns(self) -> int | None:
        """See `Lanes`."""
        if self._due:
            return 0
        times = [self.model.next_ns, self._loads[0][0] if self._loads else None]
        return min((at_ns for at_ns in times if at_ns is not None), default=None)

    def settle(self, now_ns: int) -> None:
        """Advance the device to now; `ring` reports the events.

        The model gets its own times: a device does not wait for a poll, so the passes in progress are not slowed down
        by one that has ended. The scheduler gets the real times: the next pass begins when it is notified.
        """
        for batch, began_ns, ended_ns, fitted in self.model.advance(now_ns):
            self._end(batch, began_ns, ended_ns, fitted)
        while self._loads and self._loads[0][0] <= now_ns:
            _, _, event = heappop(self._loads)
            if isinstance(event, LoadEnded):
                self._instances[event.instance].is_ready = True
            elif isinstance(event, UnloadEnded):
                self.used_bytes -= self._instances.pop(event.instance).size_bytes
            self._due.append(lambda _, event=event: event)  # type: ignore[misc]

    def ring(self, now_ns: int) -> None:
        """See `Lanes`."""
        self.settle(now_ns)
        due, self._due = self._due, []  # a report may bring new commands
        for event in due:
            self._tell(event(now_ns))


# -------------------------------------------------------------------------------------------- the sensor and the outfit


class EmulatedSensor(Sensor):
    """The sensor of an emulated device."""

    def __init__(self, lanes: EmulatedLanes, clock_ns: Callable[[], int]) -> None:
        self._lanes = lanes
        self._clock_ns = clock_ns

    def supports(self) -> Mapping[str, Support]:
        """Return all sensors of the model."""
        return dict.fromkeys(("power", "utilization", "vram", "energy"), Support(Provenance.EMULATED))

    def sample(self) -> Reading:
        """Read now; the averages are as old as the profile's lag."""
        now_ns = self._clock_ns()
        self._lanes.settle(now_ns)
        power_w, utilization = self._lanes.model.sample(now_ns)
        provenance = dict.fromkeys(("power_w", "utilization", "vram_used_bytes"), Provenance.EMULATED)
        used_bytes = self._lanes.model.context_bytes + self._lanes.used_bytes
        return Reading(power_w, utilization, used_bytes, provenance)

    def energy_j(self) -> float:
        """Return the model's energy since the lanes were reset."""
        now_ns = self._clock_ns()
        self._lanes.settle(now_ns)
        return self._lanes.model.energy_j(now_ns)


@dataclass(frozen=True, slots=True)
class EmulatedOutfit:
    """Travels to the worker's process.

    Attributes:
        device: to emulate.
        arenas: of all workers, by index.
        own: this worker's index among them.
    """

    device: EmulatedDevice
    arenas: tuple[Arena, ...]
    own: int

    def elsewhere(self, arenas: tuple[Arena, ...], model: Path | None) -> EmulatedOutfit:
        """See `FarOutfit`."""
        return replace(self, arenas=arenas)

    def fit(self, tell: Tell, clock_ns: Callable[[], int]) -> Fitting:
        """See `Outfit`."""
        if self.device.cores and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, self.device.cores)
        lanes = EmulatedLanes(self.device.model(), self.arenas, self.own, tell, clock_ns)

        def measure(message: Measurement) -> FromWorker:
            match message:
                case Warm(number):
                    return Done(number)  # no kernel is chosen here
                case BenchmarkMove(request, size_bytes):
                    lanes.keep(request, size_bytes)
                    return Done(request)
                case _:
                    raise ValueError(f"{type(message).__name__} is asked of a real device alone")

        return Fitting(
            lanes=lanes,
            sensor=lambda _: EmulatedSensor(lanes, clock_ns),
            measure=measure,
            explain=explain,
            context_bytes=lanes.model.context_bytes,
            execution=self.device.execution(),
            computes_here=False,
            waker=Waker(clock_ns),
        )
