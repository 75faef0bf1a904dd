"""Lanes of a GPU, whose device is a CPU that ends what it was asked for when a test says so."""

from __future__ import annotations

import math
import threading
import time  # noqa: TID251 - a loader is a real thread
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
import torch

from hw.device_settings import DeviceSpec
from hw.networks.architectures import SlimResNet
from hw.networks.servable import Instance
from hw.transport.messages import Input, Move, Moved
from hw.transport.shared_memory import Arena
from hw.worker.activations import HANDED_OVER, Activations, KeptMicroBatches, MemoryBudget, tensor_in
from hw.worker.cuda import BROKEN_EXIT
from hw.worker.gpu_lanes import FlightWaker, GpuLanes, SharedGpu
from hw.worker.instances import Instances, Lane
from hw.worker.lanes import BatchBroken, BatchEnded, LaneEvent, LoadBroken, LoadEnded, MoveEnded, UnloadEnded
from policies.faults import Impairment
from policies.vocabulary import IMAGE, RunBatch

WAIT_S = 60.0
CPU = torch.device("cpu")
Event = TypeVar("Event", BatchEnded, BatchBroken, LoadEnded, LoadBroken, UnloadEnded, MoveEnded)


class Device:
    """Ends what its queues were asked for when it is told to, one mark after another; `error` goes wrong with it."""

    def __init__(self) -> None:
        self.marks = 0
        self.done = 10**9
        self.error: Exception | None = None

    def queue(self) -> FakeQueue:
        return FakeQueue(self)


class FakeQueue:
    def __init__(self, device: Device) -> None:
        self._device = device
        self.is_closed = False

    def use(self) -> None: ...

    def mark(self) -> Callable[[], bool]:
        self._device.marks += 1
        number = self._device.marks

        def is_done() -> bool:
            if self._device.error is not None:
                raise self._device.error
            return number <= self._device.done

        return is_done

    def close(self) -> None:
        self.is_closed = True


class Desk:
    """Lanes, two arenas (the first is theirs), and what was told, from which thread."""

    def __init__(self, model: SlimResNet, path: Path, spec: DeviceSpec | None = None) -> None:
        self.model = model
        self.device, self.now_ns, self.left = Device(), 1, list[int]()
        self.arenas = (Arena(1 << 22), Arena(1 << 22))
        self.spec = spec or DeviceSpec(channels_last=False)
        self.budget = MemoryBudget(self.spec.vram_bytes)
        self.store = Activations(self.arenas, 0, CPU, KeptMicroBatches(self.budget))
        self.maker = Instances(model, path, self.spec, CPU, budget=self.budget)
        self.loader = Lane(self.spec, CPU)
        self.neighbours: dict[int, Activations] = {}
        self.told: list[tuple[LaneEvent, int]] = []
        self.lanes = GpuLanes(
            self.maker,
            self.store,
            lambda event: self.told.append((event, threading.get_ident())),
            lambda: self.now_ns,
            self.left.append,
            shared=SharedGpu(self.device.queue, self.loader, self.neighbours),
        )
        self._batches = 0

    def ring(self) -> list[LaneEvent]:
        before = len(self.told)
        self.lanes.ring(self.now_ns)
        return [event for event, _ in self.told[before:]]

    def wait(self, kind: type[Event]) -> Event:
        """The next word, which must be of a kind."""
        until_s = time.monotonic() + WAIT_S
        while not (told := self.ring()):
            assert time.monotonic() < until_s
            time.sleep(1e-3)
        (event,) = told
        assert isinstance(event, kind), event
        return event

    def load(self, instance: int, segment: int, width: float = 1.0) -> LoadEnded:
        self.lanes.load(instance, segment, width, False)
        return self.wait(LoadEnded)

    def give(self, requests: tuple[int, ...], tensors: torch.Tensor, offset: int = 0) -> None:
        tensor_in(self.arenas[0], offset, tuple(tensors.shape), tensors.dtype).copy_(tensors)
        self.lanes.take([Input(requests, offset, tuple(tensors.shape[1:]), "float32", False)])

    def submit(self, instance: int, requests: tuple[int, ...], segment: int, previous: float, padded: int = 0) -> int:
        self._batches += 1
        size = max(padded, len(requests))
        self.lanes.run(RunBatch(1, self._batches, instance, requests, segment, previous, 1.0, size))
        return self._batches


@pytest.fixture
def desk(model: SlimResNet, path: Path) -> Iterator[Desk]:
    made = Desk(model, path)
    yield made
    made.device.done, made.device.error = 10**9, None
    made.lanes.reset()
    made.loader.stop()


def _images(count: int) -> torch.Tensor:
    return torch.randn(count, 1, 8, 8, generator=torch.Generator().manual_seed(1))


def test_requests_are_labelled_as_by_the_model(desk: Desk) -> None:
    """Padded, in an order of their own; all is told in the one thread, and nothing is left."""
    for segment in (1, 2, 3):
        desk.load(segment, segment)
    images, previous = _images(3), IMAGE
    desk.give((5, 9, 2), images)
    for segment in (1, 2, 3):
        desk.submit(segment, (9, 2, 5), segment, previous, padded=4)
        ended, previous = desk.wait(BatchEnded), 1.0
    right = desk.model(images[[1, 2, 0]], (1.0,) * 3)
    assert ended.predictions == tuple(right.argmax(1).tolist())
    torch.testing.assert_close(
        torch.frombuffer(bytearray(ended.scores), dtype=torch.float32).reshape(3, -1), right, rtol=1e-4, atol=1e-4
    )
    assert {thread for _, thread in desk.told} == {threading.get_ident()}
    assert desk.lanes.reset() == 0


def test_launched_pass_does_not_block_its_lanes_and_its_end_is_reported(desk: Desk) -> None:
    """The passes of two instances are on the device at once, and each is reported when it has ended."""
    for instance in (1, 2):
        desk.load(instance, 1)
        desk.give((instance,), _images(1), offset=4096 * instance)
    desk.device.done = desk.device.marks
    first, second = (desk.submit(instance, (instance,), 1, IMAGE) for instance in (1, 2))
    assert desk.ring() == []
    assert (desk.lanes.is_flying, desk.lanes.has_news) == (True, False)
    assert desk.lanes.next_ns == 0
    desk.now_ns = 500
    for batch in (first, second):
        desk.device.done += 1
        assert desk.lanes.has_news
        (ended,) = desk.ring()
        assert isinstance(ended, BatchEnded)
        assert (ended.batch, ended.began_ns, ended.ended_ns) == (batch, 1, 500)
    assert desk.lanes.next_ns is None


def test_outputs_are_not_there_before_the_pass_has_ended(desk: Desk) -> None:
    """Till then the inputs are, and their blocks are held though the store lets go of them."""
    desk.load(1, 1)
    desk.give((1,), _images(1))
    desk.device.done = desk.device.marks
    desk.submit(1, (1,), 1, IMAGE)
    assert desk.store.row(1)[0].shape[1:] == (1, 8, 8)
    assert len(desk.lanes._flights[0].end.args[2]) == 1  # type: ignore[attr-defined]
    desk.device.done += 1
    desk.ring()
    assert desk.store.row(1)[0].shape[1:] == desk.model.activation_shape(1, 1.0)


def test_a_slow_device_takes_so_many_times_as_long(desk: Desk) -> None:
    desk.load(1, 1)
    desk.give((1,), _images(1))
    desk.lanes.impair(Impairment(slow_factor=3.0))
    desk.now_ns = 100
    desk.submit(1, (1,), 1, IMAGE)
    desk.now_ns = 150
    assert desk.ring() == []
    assert desk.lanes.next_ns == 250
    assert not desk.lanes.is_flying
    desk.now_ns = 250
    assert isinstance(desk.ring()[0], BatchEnded)


def test_a_batch_that_can_not_be_launched_runs_in_parts(desk: Desk) -> None:
    """Seven where three fit; and whoever breaks a batch is found."""
    desk.load(1, 1)
    desk.lanes.impair(Impairment(room_images=3))
    desk.give(tuple(range(7)), _images(7))
    desk.submit(1, tuple(range(7)), 1, IMAGE)
    assert desk.wait(BatchEnded).failed == ()
    desk.give((1,), _images(1))
    desk.submit(1, (1, 77), 1, IMAGE)
    ended = desk.wait(BatchEnded)
    assert (ended.failed, ended.reason) == ((77,), "bad_input")


def test_outputs_without_room_run_in_parts(model: SlimResNet, path: Path) -> None:
    room = 3 * 4 * math.prod(model.activation_shape(1, 1.0))
    desk = Desk(model, path, DeviceSpec(channels_last=False, vram_bytes=model.instance_bytes(1, 1.0) + room))
    desk.load(1, 1)
    desk.give(tuple(range(6)), _images(6))
    desk.submit(1, tuple(range(6)), 1, IMAGE)
    ended = desk.wait(BatchEnded)
    assert (ended.failed, ended.reason) == ((3, 4, 5), "out_of_memory")
    desk.lanes.load(2, 2, 1.0, False)
    assert desk.wait(LoadBroken).reason == "out_of_memory"
    desk.lanes.reset()
    assert desk.budget.used_bytes == 0
    desk.loader.stop()


def test_a_broken_context_ends_the_process_when_it_has_said_so(desk: Desk) -> None:
    desk.load(1, 1)
    desk.give((1,), _images(1))
    desk.device.done = 0
    desk.submit(1, (1,), 1, IMAGE)
    desk.device.error = torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
    assert desk.lanes.has_news
    assert desk.wait(BatchBroken).reason == "internal_error"
    assert desk.left == [BROKEN_EXIT]


def test_the_next_run_keeps_what_it_preloads(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """One instance of each kind that it names: the load ends at once. What else was there is freed, and nothing of the
    first run's is told."""
    loads: list[tuple[int, float]] = []
    make = desk.maker.load

    def load(segment: int, width: float, from_disk: bool = False) -> Instance:
        loads.append((segment, width))
        return make(segment, width, from_disk)

    monkeypatch.setattr(desk.maker, "load", load)
    for number, (segment, width) in enumerate([(1, 1.0), (1, 1.0), (2, 0.5), (3, 1.0)]):
        desk.load(number, segment, width)
    desk.lanes.load(9, 2, 1.0, False)  # under way
    desk.give((1, 2), _images(2))
    desk.submit(0, (1,), 1, IMAGE)
    assert desk.lanes.reset(((1, 1.0), (2, 0.5), (2, 1.0))) == 2
    assert len(loads) == 4  # the second of a kind shares the first
    kept = [(1, 1.0), (2, 0.5), (2, 1.0)]
    assert desk.budget.used_bytes == sum(desk.model.instance_bytes(*spec) for spec in kept)
    assert len(desk.lanes._queues) == 3
    for number, (segment, width) in enumerate(kept):
        desk.lanes.load(number, segment, width, False)
    told = desk.ring()
    assert [event.instance for event in told if isinstance(event, LoadEnded)] == [0, 1, 2]
    assert len(loads) == 4
    desk.load(3, 3)
    assert len(loads) == 5
    desk.lanes.unload(0)
    assert desk.wait(UnloadEnded).instance == 0


def test_servers_of_one_process_hand_activations_over(desk: Desk, model: SlimResNet, path: Path) -> None:
    """Nothing is written to an arena; images, which lie in one whose place will be another's, are."""
    other = Activations(desk.arenas, 1, CPU, KeptMicroBatches(MemoryBudget(1 << 20)))
    desk.neighbours[1] = other
    desk.load(1, 1)
    desk.give((1, 2), _images(2))
    assert desk.lanes.move(Move(7, 1, 512, (2, 1))) is None
    assert isinstance(desk.wait(MoveEnded).answer, Moved)
    assert torch.equal(tensor_in(desk.arenas[1], 512, (2, 1, 8, 8), torch.float32), _images(2).flip(0))
    desk.submit(1, (1, 2), 1, IMAGE)
    desk.wait(BatchEnded)
    tensor_in(desk.arenas[1], 0, (1 << 20,), torch.float32).zero_()
    moved = desk.lanes.move(Move(8, 1, 4096, (2, 1)))
    assert moved == Moved(8, model.activation_shape(1, 1.0), HANDED_OVER, False)
    assert not tensor_in(desk.arenas[1], 0, (1 << 20,), torch.float32).any()
    other.take(Input((2, 1), 4096, moved.shape, moved.dtype, moved.channels_last))
    assert other.row(2)[0] is desk.store.row(2)[0]
    assert other.row(1)[1] == desk.store.row(1)[1]
    desk.lanes.forget((1, 2))
    assert other.held_bytes > 0


def test_a_move_is_told_when_it_stands_there(desk: Desk) -> None:
    desk.give((1,), _images(1))
    desk.device.done = desk.device.marks
    assert desk.lanes.move(Move(7, 1, 512, (1,))) is None
    assert desk.ring() == []
    desk.device.done += 1
    assert desk.wait(MoveEnded).answer == Moved(7, (1, 8, 8), "float32", False)
    with pytest.raises(KeyError):
        desk.lanes.move(Move(8, 1, 512, (9,)))


def test_a_waker_looks_at_passes_and_sleeps_otherwise(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """It returns as soon as one has ended or a message has come; without any it sleeps until its deadline."""
    waker, slept = FlightWaker(time.monotonic_ns), list[float]()
    waker.lanes.append(desk.lanes)

    def sleep(wait_s: float) -> bool:
        slept.append(wait_s)
        if len(slept) == 3:
            desk.device.done += 1
        return False

    assert not waker.wait(sleep, time.monotonic_ns() + 10**9)
    assert slept == [pytest.approx(1.0, abs=0.1)]
    desk.load(1, 1)
    desk.give((1,), _images(1))
    desk.device.done = desk.device.marks
    desk.submit(1, (1,), 1, IMAGE)
    monkeypatch.setattr("hw.worker.gpu_lanes._LOOK_NS", 10**12)
    slept.clear()
    assert not waker.wait(sleep, 0)
    assert slept == [0.0, 0.0, 0.0]
    desk.device.done -= 1
    assert waker.wait(lambda _: True, 0)


def test_a_further_instance_of_a_kind_shares_the_first_ones_passes(desk: Desk) -> None:
    """It takes no memory and no time; the weights go with the last of both, and a next run keeps them once."""
    first = desk.load(1, 1)
    used_bytes = desk.budget.used_bytes
    desk.lanes.load(2, 1, 1.0, False)
    assert desk.ring() == [LoadEnded(2, 0)]
    assert desk.budget.used_bytes == used_bytes > 0 < first.vram_bytes
    desk.give((5,), _images(1))
    desk.submit(2, (5,), 1, IMAGE)
    desk.wait(BatchEnded)
    desk.lanes.forget((5,))
    desk.lanes.unload(1)
    assert desk.ring() == [UnloadEnded(1)]
    assert desk.budget.used_bytes == used_bytes
    desk.lanes.load(3, 1, 1.0, False)
    desk.ring()
    desk.lanes.reset(keeps=[(1, 1.0)])
    assert desk.budget.used_bytes == used_bytes
    desk.lanes.load(4, 1, 1.0, False)
    desk.ring()
    desk.lanes.unload(4)
    desk.wait(UnloadEnded)
    assert desk.budget.used_bytes == 0
