"""Lanes of a GPU: one thread launches passes, polls for their ends, and reports them.

A captured pass is launched in some 30 us, so a thread for each instance would only wait for its turn: at the
interpreter's lock, and to be woken. Here `run` launches a batch on its instance's stream and records an event in the
stream; `ring` queries the events. Only loads and unloads, which take up to a second, have a separate thread.
"""

from __future__ import annotations

import os
import time  # noqa: TID251 - waits for a real device
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import Final, Protocol

import torch

from hw.clock import Sleep, Waker
from hw.networks.servable import Instance, Row, rows_of
from hw.transport.messages import Captures, Move, Moved
from hw.worker.activations import Activations
from hw.worker.cuda import is_broken, reserved_bytes
from hw.worker.instances import Instances, Lane, give_back, launch, on_host
from hw.worker.lanes import LoadBroken, LoadEnded, MoveEnded, Tell, UnloadEnded
from hw.worker.torch_lanes import Outcome, StoreLanes, captures_of, explain
from policies.greedy_scheduler import Spec
from policies.vocabulary import NS_PER_S, RunBatch

_LOAD_LOOK_NS: Final = 1_000_000  # the period of polls for the end of a load: loads take a hundred times as long
_LOOK_NS: Final = 1_000_000  # passes are polled for this time in one go, before other work
_REST_S: Final = 5e-5


class Queue(Protocol):
    """See `hw.worker.cuda.StreamQueue`."""

    def use(self) -> None: ...  # noqa: D102

    def mark(self) -> Callable[[], bool]: ...  # noqa: D102

    def close(self) -> None: ...  # noqa: D102


_Loaded = tuple[int, Instance | None, Exception | None, int]
"""(Its number, the loaded instance, the error, device memory that it took); no instance and no error: unloaded."""


@dataclass(slots=True)
class _Flight:
    """Work in flight on the device.

    Attributes:
        is_done: raises its error.
        end: called at its end, with the time.
        fail: called if it failed.
        due_ns: its end, once it is done: later than that on a device that is slow on purpose.
    """

    is_done: Callable[[], bool]
    end: Callable[[int], None]
    fail: Callable[[Exception], None]
    began_ns: int
    due_ns: int = 0

    @property
    def has_ended(self) -> bool:
        """Whether it has ended, successfully or not."""
        try:
            return bool(self.due_ns) or self.is_done()
        except Exception:  # it is reported in its turn
            return True


@dataclass(frozen=True, slots=True)
class SharedGpu:
    """The part of a GPU that its servers in one process share.

    Attributes:
        new_queue: makes a queue of the device.
        loader: loads and unloads, one after another.
        stores: of the servers, by index: nothing is copied between them.
    """

    new_queue: Callable[[], Queue]
    loader: Lane
    stores: dict[int, Activations] = field(default_factory=dict)


class GpuLanes(StoreLanes):
    """`hw.worker.lanes.Lanes` on a GPU. One thread does everything except loads; its `ring` reports every end.

    Args:
        shared: with the others of the process on this GPU.
    """

    def __init__(
        self,
        maker: Instances,
        store: Activations,
        tell: Tell,
        clock_ns: Callable[[], int],
        leave: Callable[[int], object] = os._exit,
        *,
        shared: SharedGpu,
    ) -> None:
        super().__init__(maker, store, tell, clock_ns, leave)
        self._shared = shared
        self._queues: dict[int, Queue] = {}  # by the instance's identity: captured passes have it to themselves
        self._copies = shared.new_queue()
        self._flights: list[_Flight] = []
        self._due: deque[Callable[[], None]] = deque()
        self._loaded: SimpleQueue[_Loaded] = SimpleQueue()
        self._loading = 0
        self._looked_ns = 0

    # --------------------------------------------------------------------------------------------------- instances

    def load(self, instance: int, segment: int, width: float, from_disk: bool) -> None:
        """See `Lanes`."""
        twin = next(
            (other for other in self._instances.values() if (other.segment, other.width) == (segment, width)), None
        )
        if (ready := self._spare.pop((segment, width), twin)) is not None:  # a further one shares weights and passes
            held_bytes = ready.held_bytes if twin is None else 0
            self._due.append(partial(self._take_loaded, (instance, ready, None, held_bytes)))
        else:
            self._later(partial(self._load, instance, segment, width, from_disk))

    def unload(self, instance: int) -> None:
        """See `Lanes`."""
        unloaded = self._instances.pop(instance)
        if unloaded in self._instances.values():
            self._due.append(partial(self._take_loaded, (instance, None, None, 0)))
        else:
            self._later(partial(self._unload, instance, [unloaded]))

    def _later(self, job: Callable[[], _Loaded]) -> None:
        """Load or unload, in the loader's thread."""
        self._loading += 1
        self._shared.loader.submit(lambda: self._loaded.put(job()))

    def _load(self, number: int, segment: int, width: float, from_disk: bool) -> _Loaded:
        queue = self._shared.new_queue()
        queue.use()
        before_bytes = reserved_bytes(self._maker.torch_device)
        try:
            instance = self._maker.load(segment, width, from_disk)
        except Exception as error:
            queue.close()
            return number, None, error, 0
        self._queues[id(instance)] = queue
        taken_bytes = reserved_bytes(self._maker.torch_device) - before_bytes  # as calibration measures it
        return number, instance, None, max(instance.held_bytes, taken_bytes)

    def _unload(self, number: int, holder: list[Instance]) -> _Loaded:
        self._free(holder.pop())
        give_back(self._device, self._maker.torch_device)
        return number, None, None, 0

    def _free(self, instance: Instance) -> None:
        self._queues.pop(id(instance)).close()
        super()._free(instance)

    def _take_loaded(self, loaded: _Loaded) -> None:
        number, instance, error, taken_bytes = loaded
        if instance is not None:
            is_further = instance in self._instances.values()
            self._instances[number] = instance
            self._tell(LoadEnded(number, taken_bytes, Captures() if is_further else captures_of(instance)))
        elif error is not None:
            self._tell(LoadBroken(number, *explain(error)))
            self._leave_if_broken(error)
        else:
            self._tell(UnloadEnded(number))

    def reset(self, keeps: Collection[Spec] = ()) -> int:
        """See `Lanes`. It waits for all work of the device and the loader."""
        while not all(flight.has_ended for flight in self._flights):
            time.sleep(_REST_S)
        self._flights.clear()
        self._due.clear()
        for _ in range(self._loading):
            number, instance, *_ = self._loaded.get()
            if instance is not None:
                self._instances[number] = instance
        self._loading = 0
        return self._forget_run(keeps)

    # ------------------------------------------------------------------------------------------------------- batches

    def run(self, command: RunBatch) -> None:
        """See `Lanes`."""
        began_ns = self._clock_ns()
        try:
            with torch.inference_mode():
                self._flights.append(self._launched(command, began_ns))
        except Exception as error:
            if is_broken(error):
                self._due.append(partial(self._break, command, error))
                return
            self._due.append(partial(self._run_waiting, command))  # in parts, if it must be

    def _launched(self, command: RunBatch, began_ns: int) -> _Flight:
        instance = self._instances[command.instance]
        queue = self._queues[id(instance)]
        rows = self._inputs(command, command.requests)
        queue.use()
        key = (command.served_width, command.previous_width, command.padded)
        y = launch(instance, rows, key, self._device.memory_format, self._on)
        if command.segment == self._segments:
            y = on_host(y)
        end = partial(self._end, command, y, rows, began_ns)
        return _Flight(queue.mark(), end, partial(self._break, command), began_ns)

    def _end(self, command: RunBatch, y: torch.Tensor, _held: list[Row], began_ns: int, ended_ns: int) -> None:
        """Note the end of a batch: its inputs were held until here, as the store may have freed their blocks."""
        rows = dict(zip(command.requests, rows_of(y), strict=True))
        if command.segment < self._segments:
            try:
                self._store.put_rows(rows)
            except MemoryError:  # there may be enough for parts of them
                del rows, y
                self._run_waiting(command)
                return
        self._conclude(command, began_ns, ended_ns, Outcome(rows))

    def _run_waiting(self, command: RunBatch) -> None:
        """Run a batch while this thread waits for the device."""
        if command.instance in self._instances:
            self._queues[id(self._instances[command.instance])].use()
        self._run(command)

    # ------------------------------------------------------------------------------------------------- activations

    def move(self, message: Move) -> Moved | None:
        """See `Lanes`. Between servers of one process on one device nothing is copied."""
        if self._mover is not None:  # it may wait for a network
            return super().move(message)
        neighbour = self._shared.stores.get(message.destination)
        if neighbour is not None and (moved := self._store.hand_over(message, neighbour)) is not None:
            return moved
        with torch.inference_mode():
            self._copies.use()
            moved, rows = self._store.write(message)
        end, fail = partial(self._end_move, moved, rows), partial(self._break_move, message)
        self._flights.append(_Flight(self._copies.mark(), end, fail, self._clock_ns()))
        return None

    def _end_move(self, moved: Moved, _held: list[Row], _ended_ns: int) -> None:
        self._tell(MoveEnded(moved))

    # ---------------------------------------------------------------------------------------------------------- time

    @property
    def next_ns(self) -> int | None:
        """See `Lanes`: now, as long as the device works."""
        if self._due:
            return 0
        loading_ns = [self._looked_ns + _LOAD_LOOK_NS] if self._loading else []
        return min([*(flight.due_ns for flight in self._flights), *loading_ns], default=None)

    @property
    def is_flying(self) -> bool:
        """Whether the device has work in flight, as far as is known."""
        return any(not flight.due_ns for flight in self._flights)

    @property
    def has_news(self) -> bool:
        """Whether `ring` would report something."""
        return bool(self._due) or any(not flight.due_ns and flight.has_ended for flight in self._flights)

    def ring(self, now_ns: int) -> None:
        """See `Lanes`."""
        self._looked_ns = now_ns
        with torch.inference_mode():
            self._take_ended(now_ns)
            while not self._loaded.empty():
                self._loading -= 1
                self._take_loaded(self._loaded.get())
            for _ in range(len(self._due)):  # a report may bring new commands
                self._due.popleft()()

    def _take_ended(self, now_ns: int) -> None:
        flights, self._flights = self._flights, []
        for flight in flights:
            try:
                if not flight.due_ns and flight.is_done():
                    flight.due_ns = now_ns + round((self._impairment.slow_factor - 1) * (now_ns - flight.began_ns))
            except Exception as error:
                flight.fail(error)
                continue
            if flight.due_ns and flight.due_ns <= now_ns:
                flight.end(now_ns)
            else:
                self._flights.append(flight)


class FlightWaker(Waker):
    """Waits for passes that one thread has launched: it polls them, for a sleep would end too late.

    Attributes:
        lanes: of all servers whose thread this is.
    """

    def __init__(self, clock_ns: Callable[[], int]) -> None:
        super().__init__(clock_ns, overrun_ns=1)
        self.lanes: list[GpuLanes] = []

    def wait(self, sleep: Sleep, deadline_ns: int | None) -> bool:
        """Wait until a message has come, a pass has ended, or the deadline; not for longer than `_LOOK_NS` if a pass
        may end at any time."""
        if not any(lanes.is_flying for lanes in self.lanes):
            left_ns = 0 if deadline_ns is None else deadline_ns - self._clock_ns()
            return sleep(max(0, left_ns) / NS_PER_S)
        began_ns, until_ns = time.thread_time_ns(), self._clock_ns() + _LOOK_NS
        try:
            while not any(lanes.has_news for lanes in self.lanes) and self._clock_ns() < until_ns:
                if sleep(0.0):
                    return True
                os.sched_yield()  # other threads on this core go first
            return False
        finally:
            self.looked_ns += time.thread_time_ns() - began_ns
