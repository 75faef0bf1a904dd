"""What runs inside a worker process: instances with a thread each, and the activations that they work on.

It obeys `hw.messages` and decides nothing: which batch, which instance and when are the scheduler's business. Every
failure becomes an answer; none ends the process.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import sys
import threading
import time  # noqa: TID251 - real passes are timed with a real clock
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue

import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import Tensor

from hw.activations import Activations, Row, gather, in_format, rows_of, shares_memory
from hw.arena import Arena
from hw.device import DeviceSpec
from hw.messages import (
    Benchmark,
    BenchmarkTogether,
    Broken,
    Close,
    Done,
    Finished,
    FromWorker,
    Load,
    LoadBroken,
    Loaded,
    Move,
    MoveBroken,
    Moved,
    Ping,
    Pong,
    Ready,
    Reason,
    Refused,
    Release,
    Reset,
    Run,
    Slow,
    Squeeze,
    Take,
    ToWorker,
    Unload,
    Unloaded,
    Warm,
)
from hw.networks import ModelFile
from hw.pace import Pacemeter
from hw.slimmable import SegmentInstance, SlimmableModel
from hw.telemetry import load_nvml, nvml_handle, used_vram_bytes
from hw.wire import decode, encode

_NICENESS = 5  # the router's process, which may share these cores, must not wait behind a forward pass
_SWITCH_S = 5e-4  # a thread that wants to answer must not wait 5 ms (Python's default) for one that computes


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
    rows: Sequence[Row],
    width: float,
    previous_width: float,
    padded: int,
    memory_format: torch.memory_format,
) -> Tensor:
    """One batch, from single activations to its outputs on an idle device: what is timed is what serves.

    Args:
        rows: n images, or activations of one shape.
        padded: the batch size that the device sees, zeros beyond n.

    Returns:
        (n, ...) outputs in memory of their own; whoever keeps a single row keeps them all.
    """
    x = gather(rows)
    if padded > len(rows):
        x = F.pad(x, (0, 0) * (x.dim() - 1) + (0, padded - len(rows)))
    y = instance.run(in_format(x, memory_format), width, previous_width)
    if y.is_cuda:
        torch.cuda.current_stream(y.device).synchronize()
    if shares_memory(x, y):  # the inputs' place will be written to again
        y = y.clone()
    return y[: len(rows)]


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
            weights = {  # copies: a view of the mapped file would be read only when a batch needs it
                name: file.get_slice(name)[tuple(slice(0, n) for n in shape)].clone(
                    memory_format=torch.contiguous_format
                )
                for name, shape in shapes.items()
            }
        return SegmentInstance(self._model, segment, width, weights)


@dataclass(slots=True)
class _Outcome:
    """What became of a batch's members."""

    passes: int = 0
    rows: dict[int, Row] = field(default_factory=dict)
    failed: dict[int, tuple[Reason, str]] = field(default_factory=dict)


class Executor:
    """Carries out messages; `loop` returns when the driver closes or is gone.

    Args:
        device: how to run.
        file: the model's.
        control: to and from the driver.
        arenas: of all workers, by index.
        own: this worker's index among them.
    """

    def __init__(
        self, device: DeviceSpec, file: ModelFile, control: Connection, arenas: Sequence[Arena], own: int
    ) -> None:
        used_bytes = _used_vram_bytes(device)
        self.device = device
        self.place = open_device(device)
        self._context_bytes = max(0, _used_vram_bytes(device) - used_bytes)
        model, _ = file.load()
        self.weights = Weights(model, file.path, device, self.place)
        self.model = model
        self.spec = model.spec
        self._control = control
        self._control_lock = threading.Lock()
        self._store = Activations(arenas, own, device, self.place)
        self._lanes: dict[int, Lane] = {}
        self._instances: dict[int, SegmentInstance] = {}
        self._slow_factor = 1.0
        self._most_images: int | None = None
        self._pacemeter = Pacemeter() if device.kind == "cpu" else None

    # ------------------------------------------------------------------------------------------------------ messages

    def loop(self) -> None:
        """Obey until `Close`, or until the driver's end of the pipe is gone."""
        sys.setswitchinterval(_SWITCH_S)
        gc.collect()
        gc.freeze()  # torch's objects live as long as the process: no collection has to look at them again
        self.reply(Ready(os.getpid(), self._context_bytes, self.device.execution()))
        while True:
            try:
                messages: list[ToWorker] = decode(self._control.recv_bytes())
            except (EOFError, OSError):
                return
            for message in messages:
                if isinstance(message, Close):
                    return
                self._obey(message)

    def reply(self, message: FromWorker) -> None:
        """Answer the driver, from any thread."""
        data = encode((message,))
        try:
            with self._control_lock:
                self._control.send_bytes(data)
        except OSError:  # the driver is gone: nobody is left to work for
            os._exit(0)

    def _obey(self, message: ToWorker) -> None:
        match message:
            case Run():
                self._submit(message.instance, lambda: self._run(message))
            case Take(requests, offset, shape, dtype, channels_last):
                self._store.take(requests, offset, shape, getattr(torch, dtype), channels_last)
            case Release(requests):
                self._store.forget(requests)
            case Move():
                self._move(message)
            case Ping(number):
                self.reply(Pong(number))
            case Load():
                self._lanes[message.instance] = Lane(self.device, self.place)
                self._lanes[message.instance].submit(lambda: self._load(message))
            case Unload():
                self._unload(message)
            case Slow(factor):
                self._slow_factor = factor
            case Squeeze(images):
                self._most_images = images
            case Warm() | Reset() | Benchmark() | BenchmarkTogether():
                self._obey_and_wait(message)
            case Close():
                raise AssertionError("handled by the loop")

    def _obey_and_wait(self, message: Warm | Reset | Benchmark | BenchmarkTogether) -> None:
        """What keeps the main thread busy: nothing else is asked meanwhile."""
        from hw import benchmarks  # which runs instances as this module does

        try:
            match message:
                case Warm(number, batches):
                    benchmarks.warm(self, batches)
                    answer: FromWorker = Done(number)
                case Reset(number):
                    answer = Done(number, self._reset())
                case Benchmark():
                    answer = benchmarks.alone(self, message)
                case BenchmarkTogether():
                    answer = benchmarks.together(self, message)
        except Exception as error:  # the worker outlives any request
            answer = Refused(*explain(error))
        self.reply(answer)

    # --------------------------------------------------------------------------------------------------- instances

    def _submit(self, instance: int, job: Callable[[], None]) -> None:
        lane = self._lanes.get(instance)
        if lane is None:  # the job finds out and answers
            job()
        else:
            lane.submit(job)

    def _load(self, message: Load) -> None:
        begin_ns = time.monotonic_ns()
        try:
            instance = self.weights.make(message.segment, message.width, message.from_disk)
            load_s = seconds_since(begin_ns)
            workspace_bytes = self._workspace_bytes(instance, message.probe_batch)
        except Exception as error:
            lane = self._lanes.pop(message.instance)
            self.reply(LoadBroken(message.instance, *explain(error)))
            threading.Thread(target=lane.stop, daemon=True).start()  # a thread cannot wait for its own end
            return
        self._instances[message.instance] = instance
        self.reply(Loaded(message.instance, load_s, instance.weight_bytes + workspace_bytes))

    def _workspace_bytes(self, instance: SegmentInstance, batch: int) -> int:
        """Device memory that one batch takes beside weights and inputs; on a CPU it comes from the host's heap."""
        if not batch or self.place.type != "cuda":
            return 0
        previous = self.spec.widest_input(instance.segment)
        inputs = self.inputs(instance.segment, previous, batch)
        torch.cuda.reset_peak_memory_stats(self.place)
        before = torch.cuda.memory_allocated(self.place)
        serve(instance, inputs, instance.width, previous, batch, self.device.memory_format)
        return int(torch.cuda.max_memory_allocated(self.place) - before)

    def inputs(self, segment: int, previous_width: float, batch: int) -> list[Row]:
        """Activations like those of a real batch: as a segment leaves them (none below zero), in one block."""
        shape = self.model.activation_shape(segment - 1, previous_width)
        block = torch.randn(batch, *shape, generator=torch.Generator().manual_seed(0)).relu_()
        return rows_of(in_format(block.to(self.place, self.device.torch_dtype), self.device.memory_format))

    def _unload(self, message: Unload) -> None:
        begin_ns = time.monotonic_ns()
        lane = self._lanes.pop(message.instance, None)
        if lane is not None:
            lane.stop()  # the scheduler unloads idle instances only: nothing is waited for
        instance = self._instances.pop(message.instance, None)
        if instance is not None:
            self.weights.free(instance)
            del instance
            give_back(self.place)
        self.reply(Unloaded(message.instance, seconds_since(begin_ns)))

    def _reset(self) -> int:
        """Finish, forget everything; returns how many activations that were."""
        for lane in list(self._lanes.values()):  # a load that fails takes its own away
            lane.stop()
        for instance in self._instances.values():
            self.weights.free(instance)
        self._lanes.clear()
        self._instances.clear()
        self._slow_factor, self._most_images = 1.0, None
        return self._store.clear()

    # ------------------------------------------------------------------------------------------------------- batches

    def _run(self, message: Run) -> None:
        begin_ns = time.monotonic_ns()
        outcome = _Outcome()
        try:
            instance = self._instance_for(message)
            self._attempt(instance, message, message.requests, outcome)
            labels = self._keep(message, outcome)
        except Exception as error:  # it concerns the whole batch
            self.reply(Broken(message.batch, *explain(error)))
            return
        if self._slow_factor > 1.0:
            time.sleep((self._slow_factor - 1.0) * seconds_since(begin_ns))
        forward_s = seconds_since(begin_ns)
        reading = self._pacemeter.take() if self._pacemeter else (0, 0.0)
        if not outcome.failed:
            self.reply(Finished(message.batch, labels, begin_ns, forward_s, outcome.passes, (), "", "", *reading))
            if self._pacemeter:
                self._pacemeter.look()
            return
        # lack of memory would cost the instance its place: it is the reason only where there is no other
        reason, detail = min(outcome.failed.values(), key=lambda found: found[0] == "out_of_memory")
        if not outcome.rows:
            self.reply(Broken(message.batch, reason, detail))
            return
        failed = tuple(request for request in message.requests if request in outcome.failed)
        self.reply(Finished(message.batch, labels, begin_ns, forward_s, outcome.passes, failed, reason, detail))

    def _instance_for(self, message: Run) -> SegmentInstance:
        instance = self._instances.get(message.instance)
        if instance is None:
            raise _UnknownInstanceError(f"instance {message.instance} is not loaded")
        if instance.segment != message.segment:
            raise ValueError(f"instance {message.instance} is of segment {instance.segment}, not {message.segment}")
        return instance

    def _attempt(self, instance: SegmentInstance, message: Run, requests: Sequence[int], outcome: _Outcome) -> None:
        """Run these together; where that fails, each half by itself: memory may do for less, and whoever breaks a
        batch is found without costing the others more than some passes."""
        try:
            y = self._forward(instance, message, requests)
        except Exception as error:
            reason, detail = explain(error)
            if reason == "out_of_memory" and self.place.type == "cuda":
                torch.cuda.empty_cache()
            if len(requests) == 1:
                outcome.failed[requests[0]] = (reason, detail)
                return
        else:
            outcome.passes += 1
            outcome.rows.update(zip(requests, rows_of(y), strict=True))
            return
        half = (len(requests) + 1) // 2
        self._attempt(instance, message, requests[:half], outcome)
        self._attempt(instance, message, requests[half:], outcome)

    def _forward(self, instance: SegmentInstance, message: Run, requests: Sequence[int]) -> Tensor:
        if self._most_images is not None and len(requests) > self._most_images:
            raise MemoryError(f"{len(requests)} images, there is memory for {self._most_images}")
        rows = [self._store.row(request) for request in requests]
        shape = self.model.activation_shape(message.segment - 1, message.previous_width)
        for block in {id(block): block for block, _ in rows}.values():
            if tuple(block.shape[1:]) != shape:
                raise ValueError(f"activations of {tuple(block.shape[1:])} where {shape} is expected")
        padded = message.padded if len(requests) == len(message.requests) else len(requests)
        return serve(instance, rows, message.width, message.previous_width, padded, self.device.memory_format)

    def _keep(self, message: Run, outcome: _Outcome) -> tuple[int, ...]:
        """Outputs replace inputs; after the last segment there are labels (of logits that are numbers) instead."""
        if message.segment < self.spec.segments:
            self._store.put_rows(outcome.rows)
            return ()
        if not outcome.rows:
            return ()
        requests = list(outcome.rows)
        logits = gather(list(outcome.rows.values()))
        finite = logits.isfinite().all(dim=1).tolist()
        labels = dict(zip(requests, logits.argmax(dim=1).tolist(), strict=True))
        for request, is_finite in zip(requests, finite, strict=True):
            if not is_finite:
                del labels[request], outcome.rows[request]
                outcome.failed[request] = ("no_label", "its logits are no numbers")
        self._store.forget(labels)
        return tuple(labels[request] for request in message.requests if request in labels)

    def _move(self, message: Move) -> None:
        try:
            shape, dtype, channels_last = self._store.send(message.requests, message.destination, message.offset)
        except Exception as error:
            self.reply(MoveBroken(message.transfer, *explain(error)))
            return
        self.reply(Moved(message.transfer, shape, str(dtype).removeprefix("torch."), channels_last))


class _UnknownInstanceError(LookupError):
    """A batch for an instance that is not there."""


def give_back(place: torch.device) -> None:
    """What was freed goes back to the device or the system, not into an allocator's store."""
    if place.type == "cuda":
        torch.cuda.empty_cache()
    elif _malloc_trim is not None:
        _malloc_trim(0)


def _find_malloc_trim() -> Callable[[int], int] | None:
    try:
        found: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (OSError, TypeError, AttributeError):  # not glibc
        return None
    return found


_malloc_trim = _find_malloc_trim()


def explain(error: Exception) -> tuple[Reason, str]:
    """A failure in the protocol's words."""
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or "not enough memory" in text:
        return "out_of_memory", text
    if isinstance(error, _UnknownInstanceError):
        return "unknown_instance", text
    if isinstance(error, LookupError | ValueError | TypeError):
        return "bad_input", text
    return "internal_error", text


def seconds_since(begin_ns: int) -> float:
    """On the clock that passes are timed with."""
    return (time.monotonic_ns() - begin_ns) / 1e9


def _used_vram_bytes(device: DeviceSpec) -> int:
    """Memory in use on a GPU, by whomever; 0 on a CPU, or where NVML does not say."""
    nvml = load_nvml() if device.kind == "cuda" else None
    if nvml is None:
        return 0
    return used_vram_bytes(nvml, nvml_handle(nvml, device.index))
