"""What calibration asks of an emulated device: its passes by the clock, as those of a real one are timed."""

from __future__ import annotations

import select
import time  # noqa: TID251 - passes take real time
from collections.abc import Callable

from hw.agent.emulated import DeviceBehavior, EmulatedLanes
from hw.host.waiting import Waker, waited_ns
from hw.transport.messages import (
    Benchmark,
    BenchmarkDispatch,
    BenchmarkLoad,
    BenchmarkMove,
    BenchmarkResult,
    BenchmarkTogether,
    BenchmarkUnload,
    ConcurrentResult,
    Done,
    FromAgent,
    Measurement,
    Point,
    Sample,
    Timed,
    TogetherResult,
    Warm,
)


def _nothing_comes(timeout_s: float) -> bool:
    """A sleep of the same kind that the agent's loop has."""
    if timeout_s > 0:
        select.select((), (), (), timeout_s)
    return False


class EmulatedDeviceBench:
    """Measurements in an agent, one after another, on a device that serves nobody meanwhile.

    Args:
        lanes: of the agent, which keep what is to be moved.
        waker: of the agent's loop.
    """

    def __init__(self, lanes: EmulatedLanes, waker: Waker, clock_ns: Callable[[], int]) -> None:
        self._lanes = lanes
        self._model: DeviceBehavior = lanes.model
        self._waker = waker
        self._clock_ns = clock_ns
        self._kept: dict[int, tuple[int, float]] = {}
        self._batch = 0

    def carry_out(self, message: Measurement) -> FromAgent:
        """Raises what went wrong."""
        match message:
            case Warm(number):
                return Done(number)  # no kernel is chosen here
            case BenchmarkLoad():
                return self._load(message)
            case BenchmarkUnload(instance):
                segment, width = self._kept.pop(instance)
                return Timed((self._wait(self._model.unload_ns(segment, width)),))
            case Benchmark():
                return self._alone(message)
            case BenchmarkTogether():
                return self._together(message)
            case BenchmarkDispatch():
                return self._dispatch(message)
            case BenchmarkMove(request, size_bytes):
                self._lanes.keep(request, size_bytes)
                return Done(request)
            case _:
                raise ValueError(f"{type(message).__name__} is asked of a real GPU alone")

    def _wait(self, duration_ns: int) -> float:
        """How many seconds that really was."""
        began_ns = self._clock_ns()
        self._waker.wait(_nothing_comes, began_ns + duration_ns)
        return (self._clock_ns() - began_ns) / 1e9

    def _load(self, message: BenchmarkLoad) -> Timed:
        size_bytes = self._model.instance_bytes(message.segment, message.width)
        held_bytes = self._model.context_bytes + sum(self._model.instance_bytes(*each) for each in self._kept.values())
        if held_bytes + size_bytes > self._model.vram_bytes:
            raise MemoryError(f"{size_bytes} bytes beside {held_bytes} exceed {self._model.vram_bytes}")
        load_s = self._wait(self._model.load_ns(message.segment, message.width, message.from_disk))
        self._kept[message.instance] = (message.segment, message.width)
        return Timed((load_s,), size_bytes)

    # -------------------------------------------------------------------------------------------------------- passes

    def _start(self, point: Point, at_ns: int) -> int:
        self._batch += 1
        key = (point.segment, point.width, point.previous_width)
        self._model.start(self._batch, key, point.batch, point.batch, at_ns)
        return self._batch

    def _next(self) -> tuple[int, list[tuple[int, int, int]]]:
        """Waits until something has ended: when that was noticed, and what (batch, began, ended)."""
        while True:
            self._waker.wait(_nothing_comes, self._model.next_ns)
            now_ns = self._clock_ns()
            if ended := self._model.advance(now_ns):
                return now_ns, [(batch, began_ns, ended_ns) for batch, began_ns, ended_ns, _ in ended]

    def _pass(self, point: Point) -> float:
        """Of one pass alone, from its start until its end was noticed, in seconds."""
        began_ns = self._clock_ns()
        self._start(point, began_ns)
        return (self._next()[0] - began_ns) / 1e9

    def _alone(self, message: Benchmark) -> BenchmarkResult:
        point, samples_s, sampled = message.point, list[float](), list[Sample]()
        for _ in range(message.warmup):
            self._pass(point)
        began_ns = next_ns = self._clock_ns()
        waited_before_ns = waited_ns()
        while len(samples_s) < message.repeats or (self._clock_ns() - began_ns) / 1e9 < message.min_s:
            if message.pause_s:
                time.sleep(message.pause_s)
            samples_s.append(self._pass(point))
            if (now_ns := self._clock_ns()) >= next_ns:
                next_ns = now_ns + self._model.period_ns
                sampled.append(Sample(now_ns, *self._model.sample(now_ns), self._model.energy_j(now_ns)))
        share = self._model.host_share((point.segment, point.width, point.previous_width), point.batch)
        wall_s = (self._clock_ns() - began_ns) / 1e9
        waited_s = (waited_ns() - waited_before_ns) / 1e9
        return BenchmarkResult(tuple(samples_s), wall_s, share * sum(samples_s), waited_s, sampled=tuple(sampled))

    def _together(self, message: BenchmarkTogether) -> TogetherResult:
        """Each point's next pass begins when the end of the one before was noticed, as in a thread of its own."""
        began_ns = self._clock_ns()
        running = {self._start(point, began_ns): index for index, point in enumerate(message.points)}
        completed, elapsed_s = [0] * len(message.points), [0.0] * len(message.points)
        host_ns = 0.0
        while running:
            now_ns, ended = self._next()
            for batch, pass_began_ns, pass_ended_ns in ended:
                index = running.pop(batch)
                point = message.points[index]
                share = self._model.host_share((point.segment, point.width, point.previous_width), point.batch)
                host_ns += share * (pass_ended_ns - pass_began_ns)
                completed[index] += 1
                elapsed_s[index] = (now_ns - began_ns) / 1e9
                if elapsed_s[index] < message.duration_s:
                    running[self._start(point, now_ns)] = index
        results = tuple(ConcurrentResult(*each) for each in zip(completed, elapsed_s, strict=True))
        return TogetherResult(results, host_ns / 1e9)

    def _dispatch(self, message: BenchmarkDispatch) -> Timed:
        samples_s = []
        for _ in range(message.repeats):
            time.sleep(message.pause_s)
            commanded_ns = self._clock_ns()
            self._start(message.point, commanded_ns + self._model.dispatch_ns(self._batch))
            noticed_ns, ((_, began_ns, ended_ns),) = self._next()
            samples_s.append((noticed_ns - commanded_ns - (ended_ns - began_ns)) / 1e9)
        return Timed(tuple(samples_s))
