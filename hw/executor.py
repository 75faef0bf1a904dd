"""What runs inside a worker process: instances with a thread each, stored activations, links to the other workers.

It obeys `hw.messages` and decides nothing: which batch, which instance and when are the scheduler's business. Every
failure becomes an answer; none ends the process.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import threading
import time  # noqa: TID251 - real passes are timed with a real clock
from collections.abc import Callable, Generator, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from queue import SimpleQueue

import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import Tensor

from hw.device import DeviceSpec
from hw.messages import (
    Arrived,
    Benchmark,
    BenchmarkPoint,
    BenchmarkResult,
    BenchmarkTogether,
    Broken,
    Close,
    ConcurrentResult,
    Done,
    Finished,
    FromWorker,
    Load,
    LoadBroken,
    Loaded,
    Move,
    MoveBroken,
    Ready,
    Reason,
    Refused,
    Release,
    Reset,
    Run,
    Store,
    TogetherResult,
    ToWorker,
    Unload,
    Unloaded,
    Warm,
)
from hw.networks import ModelFile
from hw.slimmable import SegmentInstance, SlimmableModel
from hw.telemetry import NvmlSensor, load_nvml, nvml_handle

_WARM_PASSES_TOGETHER = 3
_NICENESS = 5  # the router's process, which may share these cores, must not wait behind a forward pass


def open_device(device: DeviceSpec) -> torch.device:
    """Pin this process and set torch up as the device says; returns where tensors live."""
    if device.cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, device.cores)
    if device.kind == "cpu":
        os.nice(_NICENESS)
    torch.set_num_threads(device.threads)
    if device.kind == "cuda":
        torch.cuda.set_device(device.index)
        torch.zeros(1, device="cuda")  # the context exists from here on
        return torch.device("cuda", device.index)
    torch.backends.mkldnn.enabled = device.onednn  # type: ignore[assignment]
    return torch.device("cpu")


def serve(
    instance: SegmentInstance,
    inputs: Sequence[Tensor],
    width: float,
    previous_width: float,
    padded: int,
    memory_format: torch.memory_format,
) -> Tensor:
    """One batch, from single activations to its outputs on an idle device: what is timed is what serves.

    Args:
        inputs: n images, or activations of one shape.
        padded: the batch size that the device sees, zeros beyond n.

    Returns:
        (n, ...) outputs; the caller may keep single rows, which share one allocation.
    """
    x = torch.stack(tuple(inputs))
    if padded > len(inputs):
        x = F.pad(x, (0, 0) * (x.dim() - 1) + (0, padded - len(inputs)))
    y = instance.run(in_format(x, memory_format), width, previous_width)
    if y.is_cuda:
        torch.cuda.current_stream(y.device).synchronize()
    return y[: len(inputs)]


def in_format(x: Tensor, memory_format: torch.memory_format) -> Tensor:
    """A contiguous batch; only images and feature maps (B, C, H, W) have more than one order."""
    return x.contiguous(memory_format=memory_format) if x.dim() == 4 else x.contiguous()


class Lane:
    """An instance's own thread (and, on a GPU, its own stream): jobs run one after another in it."""

    def __init__(self, device: DeviceSpec, place: torch.device) -> None:
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, args=(device, place), daemon=True)
        self._thread.start()

    def submit(self, job: Callable[[], None]) -> None:
        """Run a job after those before it; it must not raise."""
        self._jobs.put(job)

    def stop(self) -> None:
        """Finish what was submitted, then end the thread."""
        self._jobs.put(None)
        self._thread.join()

    def _work(self, device: DeviceSpec, place: torch.device) -> None:
        torch.set_num_threads(device.threads)  # OpenMP keeps the number by thread
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.inference_mode())
            if place.type == "cuda":
                stack.enter_context(torch.cuda.stream(torch.cuda.Stream(place)))  # type: ignore[no-untyped-call]
            while (job := self._jobs.get()) is not None:
                job()


class Weights:
    """The model's weights in host memory, and instances made from them within the device's budget."""

    def __init__(self, model: SlimmableModel, path: Path, device: DeviceSpec, place: torch.device) -> None:
        self._model = model
        self._path = path
        self._device = device
        self._place = place
        self._lock = threading.Lock()
        self.used_bytes = 0

    def make(self, segment: int, width: float, from_disk: bool = False) -> SegmentInstance:
        """An instance on the device; raises `MemoryError` beyond the budget."""
        needed = self._model.instance_bytes(segment, width, self._device.torch_dtype.itemsize)
        with self._lock:
            if self.used_bytes + needed > self._device.vram_bytes:
                raise MemoryError(f"{needed} bytes more than {self.used_bytes} exceed {self._device.vram_bytes}")
            self.used_bytes += needed
        try:
            source = self._from_disk(segment, width) if from_disk else self._model.instance(segment, width)
            instance = source.to(self._place, self._device.torch_dtype, self._device.memory_format)
            if self._place.type == "cuda":
                torch.cuda.current_stream(self._place).synchronize()
        except BaseException:
            with self._lock:
                self.used_bytes -= needed
            raise
        return instance

    def free(self, instance: SegmentInstance) -> None:
        """Give the budget back; the tensors go with their last reference."""
        with self._lock:
            self.used_bytes -= instance.weight_bytes

    def _from_disk(self, segment: int, width: float) -> SegmentInstance:
        shapes = self._model.instance_shapes(segment, width)
        with safe_open(self._path, framework="pt") as file:
            weights = {
                name: file.get_slice(name)[tuple(slice(0, n) for n in shape)].contiguous()
                for name, shape in shapes.items()
            }
        return SegmentInstance(self._model, segment, width, weights)


class Executor:
    """Carries out messages; `loop` returns when the driver closes or is gone.

    Args:
        device: how to run.
        file: the model's.
        control: to and from the driver.
        outgoing: one-way links to the other workers, by their index.
        incoming: one-way links from them.
    """

    def __init__(
        self,
        device: DeviceSpec,
        file: ModelFile,
        control: Connection,
        outgoing: Mapping[int, Connection],
        incoming: Sequence[Connection],
    ) -> None:
        self._device = device
        used_bytes = _used_vram_bytes(device)
        self._place = open_device(device)
        self._context_bytes = max(0, _used_vram_bytes(device) - used_bytes)
        model, _ = file.load()
        self._weights = Weights(model, file.path, device, self._place)
        self._model = model
        self._spec = model.spec
        self._control = control
        self._control_lock = threading.Lock()
        self._store: dict[int, Tensor] = {}
        self._sent: dict[int, dict[int, Tensor]] = {}  # by transfer
        self._lanes: dict[int, Lane] = {}
        self._instances: dict[int, SegmentInstance] = {}
        self._senders = {index: _Sender(self, link) for index, link in outgoing.items()}
        if incoming:
            threading.Thread(target=self._receive, args=(list(incoming),), daemon=True).start()

    # ------------------------------------------------------------------------------------------------------ messages

    def loop(self) -> None:
        """Obey until `Close`, or until the driver's end of the pipe is gone."""
        gc.collect()
        gc.freeze()  # torch's objects live as long as the process: no collection has to look at them again
        self.reply(Ready(os.getpid(), self._context_bytes, self._device.execution()))
        while True:
            try:
                message: ToWorker = self._control.recv()
            except (EOFError, OSError):
                return
            if isinstance(message, Close):
                return
            self._obey(message)

    def reply(self, message: FromWorker) -> None:
        """Answer the driver, from any thread."""
        try:
            with self._control_lock:
                self._control.send(message)
        except OSError:  # the driver is gone: nobody is left to work for
            os._exit(0)

    def _obey(self, message: ToWorker) -> None:
        match message:
            case Run():
                self._submit(message.instance, lambda: self._run(message))
            case Load():
                self._lanes[message.instance] = Lane(self._device, self._place)
                self._lanes[message.instance].submit(lambda: self._load(message))
            case Unload():
                self._unload(message)
            case Store():
                self._keep(message)
            case Move():
                self._move(message)
            case Release(requests, transfer) if transfer is not None:
                self._forget_sent(requests, transfer)
            case Release(requests):
                for request in requests:
                    self._store.pop(request, None)
            case Warm() | Reset() | Benchmark() | BenchmarkTogether():
                self._obey_and_wait(message)
            case Close():
                raise AssertionError("handled by the loop")

    def _obey_and_wait(self, message: Warm | Reset | Benchmark | BenchmarkTogether) -> None:
        """What keeps the main thread busy: nothing else is asked meanwhile."""
        try:
            match message:
                case Warm(batches):
                    self._warm(batches)
                    answer: FromWorker = Done()
                case Reset():
                    answer = Done(self._reset())
                case Benchmark():
                    answer = self._benchmark(message)
                case BenchmarkTogether():
                    answer = self._benchmark_together(message)
        except Exception as error:  # the worker outlives any request
            answer = Refused(*_explain(error))
        self.reply(answer)

    # ----------------------------------------------------------------------------------------- instances and batches

    def _submit(self, instance: int, job: Callable[[], None]) -> None:
        lane = self._lanes.get(instance)
        if lane is None:  # the job finds out and answers
            job()
        else:
            lane.submit(job)

    def _load(self, message: Load) -> None:
        begin_ns = time.monotonic_ns()
        try:
            instance = self._weights.make(message.segment, message.width, message.from_disk)
            load_s = _seconds_since(begin_ns)
            workspace_bytes = self._workspace_bytes(instance, message.probe_batch)
        except Exception as error:
            lane = self._lanes.pop(message.instance)
            self.reply(LoadBroken(message.instance, *_explain(error)))
            threading.Thread(target=lane.stop, daemon=True).start()  # a thread cannot wait for its own end
            return
        self._instances[message.instance] = instance
        self.reply(Loaded(message.instance, load_s, instance.weight_bytes + workspace_bytes))

    def _workspace_bytes(self, instance: SegmentInstance, batch: int) -> int:
        """Device memory that one batch takes beside weights and inputs; on a CPU it comes from the host's heap."""
        if not batch or self._place.type != "cuda":
            return 0
        previous = self._spec.widest_input(instance.segment)
        inputs = self._inputs(BenchmarkPoint(instance.segment, instance.width, previous, batch))
        torch.cuda.reset_peak_memory_stats(self._place)
        before = torch.cuda.memory_allocated(self._place)
        serve(instance, inputs, instance.width, previous, batch, self._device.memory_format)
        return int(torch.cuda.max_memory_allocated(self._place) - before)

    def _unload(self, message: Unload) -> None:
        begin_ns = time.monotonic_ns()
        lane = self._lanes.pop(message.instance, None)
        if lane is not None:
            lane.stop()  # the scheduler unloads idle instances only: nothing is waited for
        instance = self._instances.pop(message.instance, None)
        if instance is not None:
            self._weights.free(instance)
            del instance
        self.reply(Unloaded(message.instance, _seconds_since(begin_ns)))

    def _run(self, message: Run) -> None:
        begin_ns = time.monotonic_ns()
        try:
            y = self._forward(message)
            is_last = message.segment == self._spec.segments
            labels = tuple(y.argmax(dim=1).tolist()) if is_last else ()
            forward_s = _seconds_since(begin_ns)
            self._keep_outputs(message, y)
        except Exception as error:
            self.reply(Broken(message.batch, *_explain(error)))
            return
        self.reply(Finished(message.batch, labels, begin_ns, forward_s))

    def _forward(self, message: Run) -> Tensor:
        instance = self._instances.get(message.instance)
        if instance is None:
            raise _UnknownInstanceError(f"instance {message.instance} is not loaded")
        if instance.segment != message.segment:
            raise ValueError(f"instance {message.instance} is of segment {instance.segment}, not {message.segment}")
        inputs = [self._store[request] for request in message.requests]
        shape = self._model.activation_shape(message.segment - 1, message.previous_width)
        for request, tensor in zip(message.requests, inputs, strict=True):
            if tuple(tensor.shape) != shape:
                raise ValueError(f"request {request} has activations of {tuple(tensor.shape)}, expected {shape}")
        width, previous, padded = message.width, message.previous_width, message.padded
        return serve(instance, inputs, width, previous, padded, self._device.memory_format)

    def _keep_outputs(self, message: Run, y: Tensor) -> None:
        if message.segment == self._spec.segments:
            for request in message.requests:
                self._store.pop(request, None)
        else:
            self._store.update(zip(message.requests, y.unbind(0), strict=True))

    # --------------------------------------------------------------------------------------------------- activations

    def _keep(self, message: Store) -> None:
        try:
            self.keep_bytes(message.requests, message.shape, torch.float32, bytearray(message.data))
        except Exception as error:
            self.reply(MoveBroken(message.transfer, *_explain(error)))
            return
        self.reply(Arrived(message.transfer))

    def keep_bytes(self, requests: Sequence[int], shape: Sequence[int], dtype: torch.dtype, data: bytearray) -> None:
        """Store one tensor of `shape` for each request, from raw bytes in order."""
        tensors = torch.frombuffer(data, dtype=dtype).reshape(len(requests), *shape)
        placed = tensors.to(self._place, self._device.torch_dtype)
        if placed.is_cuda:
            torch.cuda.current_stream(self._place).synchronize()
        self._store.update(zip(requests, placed.unbind(0), strict=True))

    def stored(self, requests: Sequence[int]) -> Tensor:
        """The activations of these, (n, ...) on the host; raises `KeyError` where one is missing."""
        return torch.stack([self._store[request] for request in requests]).cpu().contiguous()

    def departing(self, message: Move) -> Tensor:
        """`stored` of what a move sends; what exactly that was is remembered until its `Release`."""
        self._sent[message.transfer] = {request: self._store[request] for request in message.requests}
        return self.stored(message.requests)

    def _forget_sent(self, requests: Sequence[int], transfer: int) -> None:
        sent = self._sent.pop(transfer, {})
        for request in requests:
            if request in sent and self._store.get(request) is sent[request]:
                del self._store[request]

    def _move(self, message: Move) -> None:
        sender = self._senders.get(message.destination)
        if sender is None:
            self.reply(MoveBroken(message.transfer, "link_down", f"no link to worker {message.destination}"))
        else:
            sender.send(message)

    def _receive(self, links: list[Connection]) -> None:
        """The receiving thread: whatever any link brings, until all are gone."""
        while links:
            for link in wait(links):
                assert isinstance(link, Connection)
                try:
                    self._receive_one(link)
                except (EOFError, OSError):  # that worker is gone; the driver will say what is lost with it
                    links.remove(link)

    def _receive_one(self, link: Connection) -> None:
        header = json.loads(link.recv_bytes())
        data = bytearray(link.recv_bytes())
        try:
            self.keep_bytes(header["requests"], header["shape"], getattr(torch, header["dtype"]), data)
        except Exception as error:
            self.reply(MoveBroken(header["transfer"], *_explain(error)))
            return
        self.reply(Arrived(header["transfer"]))

    def _reset(self) -> int:
        """Finish, forget everything; returns how many activations that were."""
        for lane in self._lanes.values():
            lane.stop()
        for sender in self._senders.values():
            sender.flush()
        for instance in self._instances.values():
            self._weights.free(instance)
        self._lanes.clear()
        self._instances.clear()
        forgotten = len(self._store)
        self._store.clear()
        self._sent.clear()
        return forgotten

    # ---------------------------------------------------------------------------------------------------- benchmarks

    def _inputs(self, point: BenchmarkPoint) -> list[Tensor]:
        """Activations like those of a real batch: (C, H, W) each, as a segment leaves them (none below zero)."""
        shape = self._model.activation_shape(point.segment - 1, point.previous_width)
        batch = torch.randn(point.batch, *shape, generator=torch.Generator().manual_seed(0)).relu_()
        placed = in_format(batch.to(self._place, self._device.torch_dtype), self._device.memory_format)
        return list(placed.unbind(0))

    def _passes(self, point: BenchmarkPoint) -> Generator[None]:
        """Forward passes of a point without end, each as `Run` does it, label reading included."""
        instance = self._weights.make(point.segment, point.width)
        try:
            inputs = self._inputs(point)
            while True:
                y = serve(instance, inputs, point.width, point.previous_width, point.batch, self._device.memory_format)
                if point.segment == self._spec.segments:
                    y.argmax(dim=1).tolist()
                yield
        finally:
            self._weights.free(instance)

    def _in_lanes(self, jobs: Sequence[Callable[[], None]]) -> None:
        """Run jobs at the same time, a lane each; raises the first one's error."""
        errors: list[Exception] = []

        def guarded(job: Callable[[], None]) -> Callable[[], None]:
            def run() -> None:
                try:
                    job()
                except Exception as error:
                    errors.append(error)

            return run

        lanes = [Lane(self._device, self._place) for _ in jobs]
        for lane, job in zip(lanes, jobs, strict=True):
            lane.submit(guarded(job))
        for lane in lanes:
            lane.stop()
        if errors:
            raise errors[0]

    def _warm(self, batches: Sequence[int]) -> None:
        def job() -> None:
            for segment, width, previous in self._spec.work_keys():
                for batch in batches:
                    with contextlib.closing(self._passes(BenchmarkPoint(segment, width, previous, batch))) as passes:
                        next(passes)

        self._in_lanes([job])

    def _benchmark(self, message: Benchmark) -> BenchmarkResult:
        samples_ns: list[int] = []
        clocks: list[tuple[int, int]] = []

        def job() -> None:
            with contextlib.closing(self._passes(message.point)) as passes:
                for _ in range(message.warmup):
                    next(passes)
                clocks.append((time.monotonic_ns(), time.process_time_ns()))
                while len(samples_ns) < message.repeats or _seconds_since(clocks[0][0]) < message.min_s:
                    if message.pause_s:
                        time.sleep(message.pause_s)
                    begin_ns = time.monotonic_ns()
                    next(passes)
                    samples_ns.append(time.monotonic_ns() - begin_ns)
                clocks.append((time.monotonic_ns(), time.process_time_ns()))

        self._in_lanes([job])
        wall_ns, cpu_ns = (clocks[1][i] - clocks[0][i] for i in range(2))
        return BenchmarkResult(tuple(sample / 1e9 for sample in samples_ns), wall_ns / 1e9, cpu_ns / 1e9)

    def _benchmark_together(self, message: BenchmarkTogether) -> TogetherResult:
        results: dict[int, ConcurrentResult] = {}
        cpu_ns: list[int] = []
        barrier = threading.Barrier(len(message.points), action=lambda: cpu_ns.append(time.process_time_ns()))

        def job(index: int, point: BenchmarkPoint) -> None:
            try:
                with contextlib.closing(self._passes(point)) as passes:
                    for _ in range(_WARM_PASSES_TOGETHER):
                        next(passes)
                    barrier.wait()
                    begin_ns, completed, elapsed_s = time.monotonic_ns(), 0, 0.0
                    while elapsed_s < message.duration_s:
                        next(passes)
                        completed += 1
                        elapsed_s = _seconds_since(begin_ns)
                    results[index] = ConcurrentResult(completed, elapsed_s)
            except BaseException:
                barrier.abort()
                raise

        self._in_lanes([lambda i=i, p=p: job(i, p) for i, p in enumerate(message.points)])  # type: ignore[misc]
        used_s = (time.process_time_ns() - cpu_ns[0]) / 1e9
        return TogetherResult(tuple(results[index] for index in range(len(message.points))), used_s)


class _Sender:
    """The sending end of a link, with a thread of its own, so that a slow receiver holds up nothing else."""

    def __init__(self, executor: Executor, link: Connection) -> None:
        self._executor = executor
        self._link = link
        self._waiting: SimpleQueue[Move | threading.Event] = SimpleQueue()
        threading.Thread(target=self._work, daemon=True).start()

    def send(self, message: Move) -> None:
        """Send after what was asked before."""
        self._waiting.put(message)

    def flush(self) -> None:
        """Wait until everything is on its way."""
        sent = threading.Event()
        self._waiting.put(sent)
        sent.wait()

    def _work(self) -> None:
        while True:
            message = self._waiting.get()
            if isinstance(message, threading.Event):
                message.set()
                continue
            try:
                self._send(message)
            except OSError as error:
                self._executor.reply(MoveBroken(message.transfer, "link_down", str(error)))
            except Exception as error:
                self._executor.reply(MoveBroken(message.transfer, *_explain(error)))

    def _send(self, message: Move) -> None:
        tensors = self._executor.departing(message)
        header = {
            "transfer": message.transfer,
            "requests": message.requests,
            "shape": tuple(tensors.shape[1:]),
            "dtype": str(tensors.dtype).removeprefix("torch."),
        }
        self._link.send_bytes(json.dumps(header).encode())
        self._link.send_bytes(tensors.view(torch.uint8).numpy().tobytes())


class _UnknownInstanceError(LookupError):
    """A batch for an instance that is not there."""


def _explain(error: Exception) -> tuple[Reason, str]:
    """A failure in the protocol's words."""
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or "not enough memory" in text:
        return "out_of_memory", text
    if isinstance(error, _UnknownInstanceError):
        return "unknown_instance", text
    if isinstance(error, LookupError | ValueError | TypeError):
        return "bad_input", text
    return "internal_error", text


def _seconds_since(begin_ns: int) -> float:
    return (time.monotonic_ns() - begin_ns) / 1e9


def _used_vram_bytes(device: DeviceSpec) -> int:
    """Memory in use on a GPU, by whomever; 0 on a CPU, or where NVML does not say."""
    nvml = load_nvml() if device.kind == "cuda" else None
    if nvml is None:
        return 0
    return NvmlSensor(nvml, nvml_handle(nvml, device.index)).sample().vram_used_bytes or 0
