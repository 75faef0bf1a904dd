"""What runs inside a worker process: instances with a thread each, and the activations that they work on.

It obeys `hw.messages` and decides nothing: which batch, which instance and when are the scheduler's business. Every
failure becomes an answer; none ends the process.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import time  # noqa: TID251 - real passes are timed with a real clock
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

import torch
from torch import Tensor

from hw import benchmarks
from hw.activations import Activations, Row, gather, rows_of
from hw.arena import Arena
from hw.core_speed import SpeedMeter
from hw.device import DeviceSpec
from hw.instances import Instances, Lane, give_back, open_measured, seconds_since, serve
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
    Take,
    ToWorker,
    Unload,
    Unloaded,
    Warm,
)
from hw.networks import ModelFile
from hw.slimmable import SegmentInstance
from hw.wire import decode, encode
from policies.faults import Impairment

_SWITCH_S = 5e-4  # a thread that wants to answer must not wait 5 ms (Python's default) for one that computes


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
        self._device = device
        self._place, self._context_bytes = open_measured(device)
        self._model, _ = file.load()
        self._maker = Instances(self._model, file.path, device, self._place)
        self._control = control
        self._control_lock = threading.Lock()
        self._store = Activations(arenas, own, device, self._place)
        self._lanes: dict[int, Lane] = {}
        self._instances: dict[int, SegmentInstance] = {}
        self._impairment = Impairment()
        self._speed_meter = SpeedMeter() if device.kind == "cpu" else None

    # ------------------------------------------------------------------------------------------------------ messages

    def loop(self) -> None:
        """Obey until `Close`, or until the driver's end of the pipe is gone."""
        sys.setswitchinterval(_SWITCH_S)
        gc.collect()
        gc.freeze()  # torch's objects live as long as the process: no collection has to look at them again
        self.reply(Ready(os.getpid(), self._context_bytes, self._device.execution()))
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
                self._lanes[message.instance] = Lane(self._device, self._place)
                self._lanes[message.instance].submit(lambda: self._load(message))
            case Unload():
                self._unload(message)
            case Impairment():
                self._impairment = message
            case Warm() | Reset() | Benchmark() | BenchmarkTogether():
                self._obey_and_wait(message)
            case Close():
                raise AssertionError("handled by the loop")

    def _obey_and_wait(self, message: Warm | Reset | Benchmark | BenchmarkTogether) -> None:
        """What keeps the main thread busy: nothing else is asked meanwhile."""
        try:
            match message:
                case Warm(number, batches):
                    benchmarks.warm(self._maker, batches)
                    answer: FromWorker = Done(number)
                case Reset(number):
                    answer = Done(number, self._reset())
                case Benchmark():
                    answer = benchmarks.alone(self._maker, message)
                case BenchmarkTogether():
                    answer = benchmarks.together(self._maker, message)
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
            instance = self._maker.make(message.segment, message.width, message.from_disk)
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
        if not batch or self._place.type != "cuda":
            return 0
        previous = self._model.spec.widest_input(instance.segment)
        inputs = self._maker.inputs(instance.segment, previous, batch)
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
            self._maker.free(instance)
            del instance
            give_back(self._place)
        self.reply(Unloaded(message.instance, seconds_since(begin_ns)))

    def _reset(self) -> int:
        """Finish, forget everything; returns how many activations that were."""
        for lane in list(self._lanes.values()):  # a load that fails takes its own away
            lane.stop()
        for instance in self._instances.values():
            self._maker.free(instance)
        self._lanes.clear()
        self._instances.clear()
        self._impairment = Impairment()
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
        if (factor := self._impairment.slow_factor) > 1.0:
            time.sleep((factor - 1.0) * seconds_since(begin_ns))
        forward_s = seconds_since(begin_ns)
        reading = self._speed_meter.take() if self._speed_meter else (0, 0.0)
        if not outcome.failed:
            self.reply(Finished(message.batch, labels, begin_ns, forward_s, outcome.passes, (), "", "", *reading))
            if self._speed_meter:
                self._speed_meter.look()
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
            if reason == "out_of_memory" and self._place.type == "cuda":
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
        room_images = self._impairment.room_images
        if room_images is not None and len(requests) > room_images:
            raise MemoryError(f"{len(requests)} images, there is memory for {room_images}")
        rows = [self._store.row(request) for request in requests]
        shape = self._model.activation_shape(message.segment - 1, message.previous_width)
        for block in {id(block): block for block, _ in rows}.values():
            if tuple(block.shape[1:]) != shape:
                raise ValueError(f"activations of {tuple(block.shape[1:])} where {shape} is expected")
        padded = message.padded if len(requests) == len(message.requests) else len(requests)
        return serve(instance, rows, message.width, message.previous_width, padded, self._device.memory_format)

    def _keep(self, message: Run, outcome: _Outcome) -> tuple[int, ...]:
        """Outputs replace inputs; after the last segment there are labels (of logits that are numbers) instead."""
        if message.segment < self._model.spec.segments:
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
