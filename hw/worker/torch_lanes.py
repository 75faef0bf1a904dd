"""Lanes of a real device: an instance each, with a separate thread, and the activations that they work on."""

from __future__ import annotations

import os
import time  # noqa: TID251 - a slow device sleeps in real time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from hw.device_settings import DeviceSpec
from hw.networks.servable import Instance, Row, gather, rows_of
from hw.transport.messages import Captures, Input, Move, MoveBroken, Moved, Reason
from hw.worker import lanes
from hw.worker.activations import Activations
from hw.worker.cuda import BROKEN_EXIT, GraphedInstance, empty_cache, is_broken, lacks_memory
from hw.worker.instances import NO_PREDICTION, Instances, Lane, give_back, predictions_of, serve
from hw.worker.lanes import BatchBroken, BatchEnded, LoadBroken, LoadEnded, MoveEnded, Tell, UnloadEnded
from policies.faults import Impairment
from policies.greedy_scheduler import Spec
from policies.vocabulary import NS_PER_S, RunBatch


@dataclass(slots=True)
class Outcome:
    """The results of a batch's members."""

    rows: dict[int, Row] = field(default_factory=dict)
    failed: dict[int, tuple[Reason, str]] = field(default_factory=dict)


class StoreLanes:
    """The common part of torch's lanes: instances by number, activations, and batches that run in parts if necessary.

    Args:
        maker: of the model's instances on the device.
        store: of the worker's activations.
        tell: receives the end of everything.
        clock_ns: the worker's.
        leave: ends the process, with this exit code.
    """

    def __init__(
        self,
        maker: Instances,
        store: Activations,
        tell: Tell,
        clock_ns: Callable[[], int],
        leave: Callable[[int], object] = os._exit,
    ) -> None:
        self._maker = maker
        self._store = store
        self._tell = tell
        self._clock_ns = clock_ns
        self._leave = leave
        self._device: DeviceSpec = maker.device
        self._on = (maker.torch_device, self._device.torch_dtype)
        self._segments = maker.model.spec.segments  # a query of the model takes a tenth of a captured pass
        self._instances: dict[int, Instance] = {}
        self._spare: dict[Spec, Instance] = {}  # that the next run loads first
        self._impairment = Impairment()
        self._mover = self._new_mover() if store.moves_apart else None

    def _new_mover(self) -> Lane:
        return Lane(self._device, self._maker.torch_device)

    def _forget_run(self, keeps: Collection[Spec]) -> int:
        """Forget an ended run: one instance of each spec to be loaded again stays, the others go."""
        instances = {id(each): each for each in [*self._spare.values(), *self._instances.values()]}  # some are shared
        self._instances.clear()
        self._spare.clear()
        for instance in instances.values():
            spec = (instance.segment, instance.width)
            if spec in keeps and spec not in self._spare:
                self._spare[spec] = instance
            else:
                self._free(instance)
        if self._mover is not None:
            self._mover.stop()
            self._mover = self._new_mover()
        self._impairment = Impairment()
        return self._store.clear()

    def _free(self, instance: Instance) -> None:
        self._maker.free(instance)

    def impair(self, impairment: Impairment) -> None:
        """See `Lanes`."""
        self._impairment = impairment

    # ------------------------------------------------------------------------------------------------- activations

    def take(self, inputs: Sequence[Input]) -> None:
        """See `Lanes`."""
        for activations in inputs:
            self._store.take(activations)

    def retain(self, requests: Sequence[int]) -> None:
        """See `Lanes`."""
        self._store.retain(requests)

    def forget(self, requests: Iterable[int]) -> None:
        """See `Lanes`."""
        self._store.forget(requests)

    def move(self, message: Move) -> Moved | None:
        """See `Lanes`."""
        if self._mover is not None:
            self._mover.submit(lambda: self._move(message))
            return None
        try:
            return self._store.send(message)
        except Exception as error:
            self._leave_if_broken(error)
            raise

    def _move(self, message: Move) -> None:
        try:
            answer = self._store.send(message)
        except Exception as error:
            self._break_move(message, error)
            return
        self._tell(MoveEnded(answer))

    def _break_move(self, message: Move, error: Exception) -> None:
        self._tell(MoveEnded(MoveBroken(message.transfer, *explain(error))))
        self._leave_if_broken(error)

    # ------------------------------------------------------------------------------------------------------- batches

    def _run(self, command: RunBatch) -> None:
        """Run a batch from its inputs to the message of its end, while the caller waits."""
        began_ns = self._clock_ns()
        outcome = Outcome()
        try:
            instance = self._instances[command.instance]
            self._attempt(instance, command, command.requests, outcome)
        except Exception as error:  # it concerns the whole batch
            self._break(command, error)
            return
        if (factor := self._impairment.slow_factor) > 1.0:
            time.sleep((factor - 1.0) * (self._clock_ns() - began_ns) / NS_PER_S)
        self._conclude(command, began_ns, self._clock_ns(), outcome)

    def _conclude(self, command: RunBatch, began_ns: int, ended_ns: int, outcome: Outcome) -> None:
        try:
            predictions, scores = self._predicted(command, outcome)
        except Exception as error:
            self._break(command, error)
            return
        if not outcome.failed:
            self._tell(BatchEnded(command.batch, predictions, began_ns, ended_ns, scores=scores))
            return
        # lack of memory would cost the instance its place: it is the reason only if it is the only one
        reason, detail = min(outcome.failed.values(), key=lambda failure: failure[0] == "out_of_memory")
        if not outcome.rows:
            self._tell(BatchBroken(command.batch, reason, detail))
            return
        failed = tuple(request for request in command.requests if request in outcome.failed)
        self._tell(BatchEnded(command.batch, predictions, began_ns, ended_ns, failed, reason, scores=scores))

    def _break(self, command: RunBatch, error: Exception) -> None:
        self._tell(BatchBroken(command.batch, *explain(error)))
        self._leave_if_broken(error)

    def _attempt(self, instance: Instance, command: RunBatch, requests: Sequence[int], outcome: Outcome) -> None:
        """Run these together; if that fails, each half separately: memory may suffice for less, and a request that
        breaks a batch is found at the cost of only some passes for the others."""
        try:
            y = self._forward(instance, command, requests)
        except Exception as error:
            if is_broken(error):  # so would the halves be
                raise
            reason, detail = explain(error)
        else:
            outcome.rows.update(zip(requests, rows_of(y), strict=True))
            return
        if reason == "out_of_memory":  # only here: the error held the pass's tensors
            self._store.compact()
            if self._maker.torch_device.type == "cuda":
                empty_cache()
        if len(requests) == 1:
            outcome.failed[requests[0]] = (reason, detail)
            return
        half = (len(requests) + 1) // 2
        self._attempt(instance, command, requests[:half], outcome)
        self._attempt(instance, command, requests[half:], outcome)

    def _leave_if_broken(self, error: Exception) -> None:
        """Exit if nothing works any more in this process; its results are reported, and its server gets another."""
        if is_broken(error):
            self._leave(BROKEN_EXIT)

    def _forward(self, instance: Instance, command: RunBatch, requests: Sequence[int]) -> Tensor:
        rows = self._inputs(command, requests)
        padded = command.padded if len(requests) == len(command.requests) else len(requests)
        key = (command.served_width, command.previous_width, padded)
        y = serve(instance, rows, key, self._device.memory_format, None, self._on)
        if command.segment < self._segments:  # outputs replace inputs, if there is enough room
            self._store.put_rows(dict(zip(requests, rows_of(y), strict=True)))
        return y

    def _inputs(self, command: RunBatch, requests: Sequence[int]) -> list[Row]:
        """Return the inputs; raises their error."""
        room_images = self._impairment.room_images
        if room_images is not None and len(requests) > room_images:
            raise MemoryError(f"{len(requests)} images, there is memory for {room_images}")
        rows = [self._store.row(request) for request in requests]
        shape = self._maker.model.activation_shape(command.segment - 1, command.previous_width)
        for micro_batch in {id(micro_batch): micro_batch for micro_batch, _ in rows}.values():
            if tuple(micro_batch.shape[1:]) != shape:
                raise ValueError(f"activations of {tuple(micro_batch.shape[1:])} where {shape} is expected")
        return rows

    def _predicted(self, command: RunBatch, outcome: Outcome) -> tuple[tuple[int, ...], bytes]:
        """Return the predictions, and the logits as float32, of the last segment's logits that are numbers."""
        if command.segment < self._segments or not outcome.rows:
            return (), b""
        requests, logits = list(outcome.rows), gather(list(outcome.rows.values())).cpu()  # a GPU is waited for once
        predictions = dict(zip(requests, predictions_of(logits), strict=True))
        for request in [request for request, prediction in predictions.items() if prediction == NO_PREDICTION]:
            del predictions[request], outcome.rows[request]
            outcome.failed[request] = ("no_prediction", "its logits are not numbers")
        self._store.forget(predictions)
        labelled = [request for request in command.requests if request in predictions]
        if requests != labelled:
            logits = logits[[requests.index(request) for request in labelled]]
        return tuple([predictions[request] for request in labelled]), logits.float().numpy(force=True).tobytes()


class TorchLanes(StoreLanes):
    """`hw.worker.lanes.Lanes` on a CPU: a thread for each instance, which reports ends."""

    next_ns: int | None = None  # threads end without a timer

    def __init__(
        self,
        maker: Instances,
        store: Activations,
        tell: Tell,
        clock_ns: Callable[[], int],
        leave: Callable[[int], object] = os._exit,
    ) -> None:
        super().__init__(maker, store, tell, clock_ns, leave)
        self._lanes: dict[int, Lane] = {}
        self._leaving: dict[int, Lane] = {}  # whose instance is being freed

    def ring(self, now_ns: int) -> None:
        """Do nothing: threads report their ends."""

    def load(self, instance: int, segment: int, width: float, from_disk: bool) -> None:
        """See `Lanes`."""
        lane = self._lanes[instance] = Lane(self._device, self._maker.torch_device)
        lane.submit(lambda: self._load(instance, segment, width, from_disk))

    def _load(self, number: int, segment: int, width: float, from_disk: bool) -> None:
        try:
            instance = self._spare.pop((segment, width), None) or self._maker.load(segment, width, from_disk)
        except Exception as error:
            self._lanes.pop(number).end()
            self._tell(LoadBroken(number, *explain(error)))
            self._leave_if_broken(error)
            return
        self._instances[number] = instance
        self._tell(LoadEnded(number, instance.held_bytes, captures_of(instance)))

    def unload(self, instance: int) -> None:
        """See `Lanes`."""
        lane = self._leaving[instance] = self._lanes.pop(instance)
        lane.submit(lambda: self._unload(instance))
        lane.end()

    def _unload(self, number: int) -> None:
        if (instance := self._instances.pop(number, None)) is not None:
            self._maker.free(instance)
        del instance
        give_back(self._device, self._maker.torch_device)
        self._tell(UnloadEnded(number))
        self._leaving.pop(number, None)

    def run(self, command: RunBatch) -> None:
        """See `Lanes`."""
        self._lanes[command.instance].submit(lambda: self._run(command))

    def reset(self, keeps: Collection[Spec] = ()) -> int:
        """See `Lanes`."""
        for lane in [*self._lanes.values(), *self._leaving.values()]:  # a load that fails takes its own away
            lane.stop()
        self._lanes.clear()
        return self._forget_run(keeps)


def captures_of(instance: Instance) -> Captures:
    """Return how many of an instance's passes are captured."""
    if not isinstance(instance, GraphedInstance):
        return Captures()
    return Captures(instance.captured, instance.tried, instance.refused)


def explain(error: Exception) -> tuple[Reason, str]:
    """Return a failure in the protocol's terms; torch has its own error for a lack of memory."""
    reason, text = lanes.explain(error)
    return ("out_of_memory" if lacks_memory(error) else reason), text
