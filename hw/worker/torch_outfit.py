"""A real device's worker: torch, opened by the device's settings, and its measurements for calibration."""

from __future__ import annotations

import contextlib
import itertools
import statistics
import sys
import threading
import time  # noqa: TID251 - real passes are timed with a real clock
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue

import torch

from hw.clock import thread_waited_ns, waited_ns
from hw.device_settings import DeviceSpec
from hw.host_resources import Reference
from hw.networks.network_files import ModelFile
from hw.networks.servable import Instance, Row, rows_of
from hw.telemetry import NvmlSensor, Sensor, cpu_sensor, load_nvml, nvml_handle
from hw.transport.messages import (
    Benchmark,
    BenchmarkBesideLoad,
    BenchmarkDispatch,
    BenchmarkInstance,
    BenchmarkLoad,
    BenchmarkMove,
    BenchmarkPaths,
    BenchmarkResult,
    BenchmarkTogether,
    BenchmarkUnload,
    BesideLoadResult,
    ConcurrentResult,
    Done,
    FromWorker,
    InstanceResult,
    Measurement,
    Point,
    Timed,
    TogetherResult,
    Warm,
)
from hw.transport.shared_memory import Arena
from hw.worker import cuda
from hw.worker.activations import Activations, KeptMicroBatches, MemoryBudget
from hw.worker.cuda import GraphedInstance, StreamQueue, pin
from hw.worker.gpu_lanes import FlightWaker, GpuLanes, SharedGpu
from hw.worker.instances import Instances, Lane, give_back, open_measured, predictions_of, seconds_since, serve
from hw.worker.lanes import Fitting, Tell, WorkerSpec
from hw.worker.torch_lanes import TorchLanes, explain

_WARM_PASSES_TOGETHER = 3
_WARM_S = 0.005  # of passes on a CPU: the first ones have cold caches and take up to 1.4 times as long
_CAPTURED_AFTER = 2  # passes: a graphed instance captures at the second sight of a key
_REFERENCE_PERIOD_NS = 10_000_000  # in a set it must take a negligible time


class DeviceBench:
    """Measurements in a worker, one after another.

    Args:
        instances: of the model on the device.
        store: of the worker's activations.
    """

    def __init__(self, instances: Instances, store: Activations) -> None:
        self._instances = instances
        self._store = store
        self._loaded: dict[int, Instance] = {}

    def carry_out(self, message: Measurement) -> FromWorker:
        """Execute a measurement; raises its error."""
        match message:
            case Warm(number, batches):
                warm(self._instances, batches)
                return Done(number)
            case BenchmarkLoad():
                return self._load(message)
            case BenchmarkUnload(instance):
                return self._unload(instance)
            case BenchmarkInstance():
                return on_instance(self._instances, self._loaded[message.instance], message)
            case BenchmarkPaths():
                return along_paths(self._instances, message)
            case BenchmarkBesideLoad():
                return beside_load(self._instances, message)
            case Benchmark():
                return alone(self._instances, message)
            case BenchmarkTogether():
                return together(self._instances, message)
            case BenchmarkDispatch():
                return dispatch(self._instances, message)
            case BenchmarkMove(request, size_bytes):
                micro_batch = torch.zeros(1, max(1, size_bytes // 4)).to(self._instances.torch_device)
                self._store.put_rows({request: (micro_batch, 0)})
                return Done(request)

    def _load(self, message: BenchmarkLoad) -> Timed:
        """Time loads in a lane, as it serves."""
        runs: list[tuple[Instance, float, int]] = []

        def job() -> None:
            before_bytes = _reserved_bytes(self._instances)
            begin_ns = time.monotonic_ns()
            instance = self._instances.load(message.segment, message.width, message.from_disk)
            load_s = seconds_since(begin_ns)
            taken_bytes = _reserved_bytes(self._instances, drops=False) - before_bytes
            runs.append((instance, load_s, max(instance.held_bytes, taken_bytes)))

        _in_lanes(self._instances, [job])
        instance, load_s, taken_bytes = runs[0]
        self._loaded[message.instance] = instance
        return Timed((load_s,), taken_bytes)

    def _unload(self, number: int) -> Timed:
        begin_ns = time.monotonic_ns()
        instance = self._loaded.pop(number)
        self._instances.free(instance)
        del instance
        give_back(self._instances.device, self._instances.torch_device)
        return Timed((seconds_since(begin_ns),))


def _reserved_bytes(instances: Instances, *, drops: bool = True) -> int:
    """Return `cuda.reserved_bytes`. cuBLAS keeps a workspace for each stream and has to drop it first, so that a load
    counts it whichever stream it gets."""
    if drops and instances.torch_device.type == "cuda" and not instances.device.graphs:
        cuda.drop_workspaces()
    return cuda.reserved_bytes(instances.torch_device)


def dispatch(instances: Instances, message: BenchmarkDispatch) -> Timed:
    """Time batches of a point, each commanded from another thread than its lane's, like the first one of a queue."""
    point, samples_s = message.point, list[float]()
    instance = instances.make(point.segment, point.width)
    inputs: list[Row] = instances.inputs(point.segment, point.previous_width, point.batch)
    lane = Lane(instances.device, instances.torch_device)
    passes_ns: SimpleQueue[int] = SimpleQueue()

    def job() -> None:
        begin_ns = time.monotonic_ns()
        serve(instance, inputs, (point.width, point.previous_width, point.batch), instances.device.memory_format)
        passes_ns.put(time.monotonic_ns() - begin_ns)

    try:
        for _ in range(message.repeats):
            time.sleep(message.pause_s)
            begin_ns = time.monotonic_ns()
            lane.submit(job)
            pass_ns = passes_ns.get()
            samples_s.append(max(0.0, seconds_since(begin_ns) - pass_ns / 1e9))  # a clock has a resolution
    finally:
        lane.stop()
        instances.free(instance)
    return Timed(tuple(samples_s))


def warm(instances: Instances, batches: Sequence[int]) -> None:
    """Run every work key once at each batch size, so that kernels are chosen before anything is timed."""

    def job() -> None:
        for segment, width, previous in instances.model.spec.work_keys():
            for batch in batches:
                point = Point(segment, width, previous, batch)
                with contextlib.closing(_passes(instances, point)) as passes:
                    next(passes)

    _in_lanes(instances, [job])


def alone(instances: Instances, message: Benchmark) -> BenchmarkResult:
    """Time each pass of a point alone, in an instance that is made for it."""
    results: list[BenchmarkResult] = []

    def job() -> None:
        launches = _Launches()
        results.append(_timed(instances, _passes(instances, message.point, launches), launches, message))

    _in_lanes(instances, [job])
    return results[0]


def on_instance(instances: Instances, instance: Instance, message: BenchmarkInstance) -> InstanceResult:
    """Time passes of points alone, one point after another, in an instance that is loaded."""
    loops: list[BenchmarkResult] = []

    def job() -> None:
        for point in message.points:
            launches = _Launches()
            benchmark = Benchmark(point, message.warmup, message.repeats, message.min_s, message.pause_s)
            loops.append(_timed(instances, _passes_of(instances, instance, point, launches), launches, benchmark))

    _in_lanes(instances, [job])
    return InstanceResult(tuple(loops), sum(_is_captured(instances, instance, point) for point in message.points))


def _is_captured(instances: Instances, instance: Instance, point: Point) -> bool:
    shape = (point.batch, *instances.model.activation_shape(point.segment - 1, point.previous_width))
    return isinstance(instance, GraphedInstance) and bool(instance.replay(point.width, point.previous_width, shape))


def along_paths(instances: Instances, message: BenchmarkPaths) -> Timed:
    """Run blocks through all segments of their paths, each hop as a lane serves it: the median seconds of each path."""
    loaded: dict[tuple[int, float], Instance] = {}
    medians_s: list[float] = []

    def run(path: Sequence[Point]) -> float:
        rows = instances.inputs(1, path[0].previous_width, path[0].batch)
        begin_ns = time.monotonic_ns()
        for point in path:
            key = (point.width, point.previous_width, point.batch)
            y = serve(loaded[point.key[:2]], rows, key, instances.device.memory_format)
            rows = rows_of(y)
        predictions_of(y)
        return seconds_since(begin_ns)

    def job() -> None:
        for path in message.paths:
            for segment, width in (point.key[:2] for point in path):
                if (segment, width) not in loaded:
                    loaded[segment, width] = instances.make(segment, width)
            for _ in range(_WARM_PASSES_TOGETHER):
                run(path)
            medians_s.append(statistics.median(run(path) for _ in range(message.repeats)))

    try:
        _in_lanes(instances, [job])
    finally:
        for instance in loaded.values():
            instances.free(instance)
    return Timed(tuple(medians_s))


def beside_load(instances: Instances, message: BenchmarkBesideLoad) -> BesideLoadResult:
    """Time passes of a point without a pause, while nothing else runs and then while an instance is loaded."""
    ends_ns: list[int] = []
    window_ns: list[int] = []
    is_warm, is_done = threading.Event(), threading.Event()

    def run() -> None:
        try:
            with contextlib.closing(_passes(instances, message.point)) as passes:
                for _ in range(_WARM_PASSES_TOGETHER):
                    next(passes)
                ends_ns.append(time.monotonic_ns())
                is_warm.set()
                while not is_done.is_set():
                    next(passes)
                    ends_ns.append(time.monotonic_ns())
        finally:
            is_warm.set()

    def load() -> None:
        try:
            is_warm.wait()
            time.sleep(message.quiet_s)
            window_ns.append(time.monotonic_ns())
            instance = instances.load(message.segment, message.width)
            window_ns.append(time.monotonic_ns())
            instances.free(instance)
        finally:
            is_done.set()

    _in_lanes(instances, [run, load])
    from_ns, until_ns = window_ns
    passes_ns = list(itertools.pairwise(ends_ns))
    quiet_s = statistics.median((end - begin) / 1e9 for begin, end in passes_ns if end <= from_ns)
    beside_s = statistics.mean((end - begin) / 1e9 for begin, end in passes_ns if end > from_ns and begin < until_ns)
    return BesideLoadResult(quiet_s, beside_s, (until_ns - from_ns) / 1e9)


def _timed(instances: Instances, passes: Generator[None], launches: _Launches, message: Benchmark) -> BenchmarkResult:
    """Return passes timed in the lane that runs them; they are closed."""
    samples_ns: list[int] = []
    references_ns: list[int] = []
    clocks: list[tuple[int, int, int]] = []
    reference, is_gpu = _reference(instances), instances.torch_device.type == "cuda"
    is_apart = is_gpu and message.pause_s > 0  # without pauses nothing else may take time between passes
    look = thread_waited_ns if is_gpu else waited_ns  # on cores every thread computes
    with contextlib.closing(passes):
        next(passes)  # makes the instance
        begin_ns, warm_passes = time.monotonic_ns(), 1
        while warm_passes < message.warmup or (not is_gpu and seconds_since(begin_ns) < _WARM_S):
            next(passes)
            warm_passes += 1
        launches.forget()
        if reference:
            references_ns.append(reference.cpu_ns())
            reference.spent_ns = 0
        clocks.append(_clocks(look))
        while len(samples_ns) < message.repeats or seconds_since(clocks[0][0]) < message.min_s:
            if message.pause_s:
                time.sleep(message.pause_s)
            if is_apart:
                launches.begin_pass()
            begin_ns = time.monotonic_ns()
            next(passes)
            samples_ns.append(time.monotonic_ns() - begin_ns)
            if is_apart:
                launches.end_pass()
            if reference:
                references_ns.append(reference.cpu_ns())
        clocks.append(_clocks(look))
    wall_ns, cpu_ns, all_waited_ns = (after - before for before, after in zip(*clocks, strict=True))
    cpu_ns -= reference.spent_ns if reference else 0
    return BenchmarkResult(
        samples_s=tuple(sample / 1e9 for sample in samples_ns),
        wall_s=wall_ns / 1e9,
        cpu_s=(launches.cpu_ns if is_gpu else cpu_ns) / 1e9,
        waited_s=(launches.waited_ns if is_apart else all_waited_ns) / 1e9,
        references_s=tuple(max(pair) / 1e9 for pair in itertools.pairwise(references_ns)),
    )


class _Launches:
    """The cost of GPU passes on the host: the lane's CPU time until everything is launched, and its waits.

    The wait for the device spins, which does not count as work. Passes are short: the worker's waits in the pauses
    between them would count as much as those within.
    """

    def __init__(self) -> None:
        self.cpu_ns = 0
        self.waited_ns = 0
        self._began_ns = 0
        self._waited_before_ns = 0

    def begin(self) -> None:
        """Note the beginning of a pass, in its thread."""
        self._began_ns = time.thread_time_ns()

    def launched(self) -> None:
        """Note that all of it is launched."""
        self.cpu_ns += time.thread_time_ns() - self._began_ns

    def begin_pass(self) -> None:
        """Note the waits for a core before a pass; this is not timed."""
        self._waited_before_ns = thread_waited_ns()

    def end_pass(self) -> None:
        """Add the waits for a core during the pass; this is not timed."""
        self.waited_ns += thread_waited_ns() - self._waited_before_ns

    def forget(self) -> None:
        """Discard the counts of the warm-up."""
        self.cpu_ns = self.waited_ns = 0


def _reference(instances: Instances) -> Reference | None:
    return Reference() if instances.torch_device.type == "cpu" else None


def _clocks(look: Callable[[], int]) -> tuple[int, int, int]:
    """Return the wall time, this process's CPU time, and the wait for a core by `look`."""
    return time.monotonic_ns(), time.process_time_ns(), look()


def together(instances: Instances, message: BenchmarkTogether) -> TogetherResult:
    """Run points at the same time, each in a separate instance and thread; return the passes that each finished."""
    results: dict[int, ConcurrentResult] = {}
    cpu_ns: list[int] = []
    began_ns: list[int] = []

    def begin() -> None:
        """Begin in one thread, while the others wait: all are warm."""
        time.sleep(max(0, message.begin_ns - time.monotonic_ns()) / 1e9)
        began_ns.append(time.monotonic_ns())
        cpu_ns.append(time.process_time_ns())

    barrier = threading.Barrier(len(message.points), action=begin)

    def job(index: int, point: Point) -> None:
        reference = _reference(instances)
        try:
            with contextlib.closing(_passes(instances, point)) as passes:
                for _ in range(_WARM_PASSES_TOGETHER):
                    next(passes)
                barrier.wait()
                begin_ns = time.monotonic_ns()
                ends_s, elapsed_s = [0.0], 0.0
                references_ns = [0]
                while elapsed_s < message.duration_s:
                    next(passes)
                    elapsed_s = seconds_since(begin_ns)
                    ends_s.append(elapsed_s)
                    if reference and elapsed_s * 1e9 > len(references_ns) * _REFERENCE_PERIOD_NS:
                        references_ns.append(reference.cpu_ns())
                mean_ns = sum(references_ns) / max(1, len(references_ns) - 1)
                passes_s = [end - begin for begin, end in itertools.pairwise(ends_s)]
                median_s = 0.0 if reference else statistics.median(passes_s)
                results[index] = ConcurrentResult(len(ends_s) - 1, elapsed_s, mean_ns / 1e9, median_s)
        except BaseException:
            barrier.abort()
            raise

    _in_lanes(instances, [partial(job, index, point) for index, point in enumerate(message.points)])
    used_s = (time.process_time_ns() - cpu_ns[0]) / 1e9
    ended_ns = began_ns[0] + round(1e9 * min(result.elapsed_s for result in results.values()))
    return TogetherResult(tuple(results[index] for index in range(len(message.points))), used_s, began_ns[0], ended_ns)


def _passes(instances: Instances, point: Point, launches: _Launches | None = None) -> Generator[None]:
    """Yield forward passes of a point without end, in an instance that is made for them."""
    instance = instances.make(point.segment, point.width)
    try:
        yield from _passes_of(instances, instance, point, launches)
    finally:
        instances.free(instance)


def _passes_of(
    instances: Instances, instance: Instance, point: Point, launches: _Launches | None = None
) -> Generator[None]:
    """Yield forward passes without end, each as `Run` does it, label reading included. A pass that the device captures
    is captured before the first of them: no loop times a capture."""
    marks = launches or _Launches()
    inputs = instances.inputs(point.segment, point.previous_width, point.batch)
    key, memory_format = (point.width, point.previous_width, point.batch), instances.device.memory_format
    for _ in range(_CAPTURED_AFTER if instances.device.graphs else 0):
        serve(instance, inputs, key, memory_format)
    while True:
        marks.begin()
        y = serve(instance, inputs, key, memory_format, marks.launched)
        if point.segment == instances.model.spec.segments:
            predictions_of(y)
        yield


def _in_lanes(instances: Instances, jobs: Sequence[Callable[[], None]]) -> None:
    """Run jobs at the same time, a lane each; raises the first one's error."""
    errors: list[Exception] = []

    def guarded(job: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            try:
                job()
            except Exception as error:
                errors.append(error)

        return run

    lanes = [Lane(instances.device, instances.torch_device) for _ in jobs]
    for lane, job in zip(lanes, jobs, strict=True):
        lane.submit(guarded(job))
    for lane in lanes:
        lane.stop()
    if errors:
        raise errors[0]


ARENA_BYTES = 1 << 26


@dataclass(frozen=True, slots=True)
class TorchOutfit:
    """Travels to the worker's process.

    Attributes:
        device: its settings.
        model: the file of the network that is served.
        arenas: of all workers, by index.
        own: this worker's index among them.
    """

    device: DeviceSpec
    model: ModelFile
    arenas: tuple[Arena, ...]
    own: int

    def elsewhere(self, arenas: tuple[Arena, ...], model: Path | None) -> TorchOutfit:
        """See `FarOutfit`."""
        return replace(self, arenas=arenas, model=self.model if model is None else replace(self.model, path=model))

    def fit(self, tell: Tell, clock_ns: Callable[[], int]) -> Fitting:
        """See `Outfit`."""
        device = self.device
        gpu = _gpu(device, clock_ns) if device.kind == "cuda" else None
        torch_device, context_bytes = open_measured(device) if gpu is None else (gpu.torch_device, gpu.context_bytes)
        model, _ = self.model.load()
        budget = MemoryBudget(device.vram_bytes - context_bytes)
        store = Activations(self.arenas, self.own, torch_device, None if gpu is None else KeptMicroBatches(budget))
        maker = Instances(model, self.model.path, device, torch_device, budget=budget)
        return Fitting(
            lanes=TorchLanes(maker, store, tell, clock_ns) if gpu is None else self._gpu_lanes(gpu, maker, store, tell),
            sensor=partial(sensor_of, device),
            measure=DeviceBench(maker, store).carry_out,
            explain=explain,
            context_bytes=context_bytes,
            execution=device.execution(),
            computes_here=gpu is None,
            activation_bytes=lambda: store.held_bytes,
            has_own_memory=gpu is not None,
            reads_apart=gpu is not None,  # an H200's energy counter took 3 ms, and 17 now and then
            waker=None if gpu is None else gpu.waker,
        )

    def _gpu_lanes(self, gpu: _Gpu, maker: Instances, store: Activations, tell: Tell) -> GpuLanes:
        if problem := next(filter(None, (pin(arena.buffer) for arena in self.arenas)), ""):
            print(f"arenas can't be pinned, so copies wait for {gpu.torch_device}: {problem}", file=sys.stderr)
        gpu.shared.stores[self.own] = store
        lanes = GpuLanes(maker, store, tell, gpu.clock_ns, shared=gpu.shared)
        gpu.waker.lanes.append(lanes)
        return lanes


@dataclass(frozen=True, slots=True)
class _Gpu:
    """The part shared by servers of one GPU in one process: the context, and the threads."""

    torch_device: torch.device
    context_bytes: int
    clock_ns: Callable[[], int]
    shared: SharedGpu
    waker: FlightWaker


_gpus: dict[int, _Gpu] = {}  # of this process, by index


def _gpu(device: DeviceSpec, clock_ns: Callable[[], int]) -> _Gpu:
    """Return the GPU, opened with the first of its servers."""
    if device.index not in _gpus:
        torch_device, context_bytes = open_measured(device)
        shared = SharedGpu(partial(StreamQueue, torch_device), Lane(device, torch_device))
        _gpus[device.index] = _Gpu(torch_device, context_bytes, clock_ns, shared, FlightWaker(clock_ns))
    return _gpus[device.index]


def sensor_of(device: DeviceSpec, pids: Sequence[int]) -> Sensor:
    """Return a device's sensor; on a CPU, for the share of its cores that these processes use."""
    if device.kind == "cpu":
        return cpu_sensor(pids, device.physical[1], device.modelled_idle_w, device.modelled_tdp_w, lambda: 0)
    nvml = load_nvml()
    return Sensor() if nvml is None else NvmlSensor(nvml, nvml_handle(nvml, device.index))


@contextlib.contextmanager
def torch_workers(devices: Sequence[tuple[str, DeviceSpec]], model: ModelFile) -> Iterator[list[WorkerSpec]]:
    """Yield the specs of workers without a scheduler, by (name, device): only measured, each with an arena of
    `ARENA_BYTES` that the others write to."""
    with contextlib.ExitStack() as stack:
        arenas = tuple(stack.enter_context(contextlib.closing(Arena(ARENA_BYTES))) for _ in devices)
        yield [WorkerSpec(name, TorchOutfit(device, model, arenas, own)) for own, (name, device) in enumerate(devices)]
