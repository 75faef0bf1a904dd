"""Lanes of a real device, without a worker around them: they load, run, move and fail as they should."""

from __future__ import annotations

import itertools
import math
import os
import threading
import time  # noqa: TID251 - lanes run on a real clock
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

import pytest
import torch

from hw.device_settings import DeviceSpec
from hw.networks.architectures import SlimResNet
from hw.networks.network_files import ModelFile
from hw.networks.servable import Instance, rows_of
from hw.transport.messages import Input, Move, MoveBroken, Moved
from hw.transport.shared_memory import Arena
from hw.worker.activations import Activations, KeptMicroBatches, MemoryBudget, tensor_in
from hw.worker.cuda import BROKEN_EXIT
from hw.worker.instances import NO_PREDICTION, Instances, PassKey, predictions_of, serve
from hw.worker.lanes import BatchBroken, BatchEnded, LaneEvent, LoadBroken, LoadEnded, MoveEnded, UnloadEnded
from hw.worker.torch_lanes import TorchLanes
from hw.worker.torch_outfit import TorchOutfit
from policies.faults import Impairment
from policies.vocabulary import IMAGE, RunBatch
from tests.hw.test_gpu_lanes import Device
from tests.hw.tiny import POISON, TINY, IdleNet, MoodyNet

WAIT_S = 60.0
AHEAD_NS = 10**15
WIDTHS = (1.0, 0.5, 1.0)

Event = TypeVar("Event", BatchEnded, BatchBroken, LoadEnded, LoadBroken, UnloadEnded, MoveEnded)


class Desk:
    """Lanes, two arenas (the first is theirs), and what was told. Their clock is `AHEAD_NS` ahead, unless given.
    With `counts` what is kept counts in the device's budget, as on a GPU."""

    def __init__(
        self,
        model: SlimResNet,
        path: Path,
        device: DeviceSpec | None = None,
        clock_ns: Callable[[], int] = lambda: time.monotonic_ns() + AHEAD_NS,
        leave: Callable[[int], object] = os._exit,
        counts: bool = False,
        arena: type[Arena] = Arena,
    ) -> None:
        self.device = device or DeviceSpec(channels_last=False)
        self.model = model
        self.arenas = (arena(1 << 22), arena(1 << 22))
        self.told: SimpleQueue[LaneEvent] = SimpleQueue()
        place = torch.device("cpu")
        self.budget = MemoryBudget(self.device.vram_bytes)
        kept = KeptMicroBatches(self.budget) if counts else None
        store = Activations(self.arenas, 0, place, kept)
        maker = Instances(model, path, self.device, place, budget=self.budget)
        self.lanes = TorchLanes(maker, store, self.told.put, clock_ns, leave)
        self._batches = 0

    def wait(self, kind: type[Event]) -> Event:
        """The next word, which must be of a kind."""
        event = self.told.get(timeout=WAIT_S)
        assert isinstance(event, kind), event
        return event

    def load(self, instance: int, segment: int, width: float, from_disk: bool = False) -> LoadEnded:
        self.lanes.load(instance, segment, width, from_disk)
        return self.wait(LoadEnded)

    def give(self, requests: tuple[int, ...], tensors: torch.Tensor, offset: int = 0) -> None:
        """Activations that somebody has written to their arena."""
        tensor_in(self.arenas[0], offset, tuple(tensors.shape), tensors.dtype).copy_(tensors)
        dtype = str(tensors.dtype).removeprefix("torch.")
        self.lanes.take([Input(requests, offset, tuple(tensors.shape[1:]), dtype, False)])

    def submit(
        self, instance: int, requests: tuple[int, ...], segment: int, previous: float, width: float, padded: int = 0
    ) -> None:
        self._batches += 1
        size = max(padded, len(requests))
        self.lanes.run(RunBatch(1, self._batches, instance, requests, segment, previous, width, size))


@pytest.fixture
def desk(model: SlimResNet, path: Path) -> Iterator[Desk]:
    made = Desk(model, path)
    yield made
    made.lanes.reset()


def _images(count: int) -> torch.Tensor:
    return torch.randn(count, 1, 8, 8, generator=torch.Generator().manual_seed(1))


def _labels(model: SlimResNet, images: torch.Tensor, widths: tuple[float, ...]) -> tuple[int, ...]:
    with torch.inference_mode():
        return tuple(model(images, widths).argmax(1).tolist())


def test_inputs_that_are_retained_leave_the_arena(desk: Desk, model: SlimResNet) -> None:
    """Others are written to their place, and they are run as they were."""
    images, previous = _images(3), IMAGE
    desk.give((1, 2, 3), images)
    desk.lanes.retain((1, 3, 9))
    desk.give((4, 5, 6), torch.zeros(3, 1, 8, 8))
    for segment in (1, 2, 3):
        desk.load(segment, segment, 1.0)
        desk.submit(segment, (1, 3), segment, previous, 1.0)
        ended, previous = desk.wait(BatchEnded), 1.0
    assert ended.predictions == _labels(model, images[[0, 2]], (1.0, 1.0, 1.0))


def test_requests_are_labelled_as_by_the_model(desk: Desk, model: SlimResNet) -> None:
    """In an order of their own, padded, each segment at a width of its own; their activations are used up then."""
    requests, images = (5, 9, 2), _images(3)
    for segment in (1, 2, 3):
        desk.load(segment, segment, 1.0)
    desk.give(requests, images)
    previous = IMAGE
    for segment, width, padded in zip((1, 2, 3), WIDTHS, (4, 3, 8), strict=True):
        desk.submit(segment, requests, segment, previous, width, padded)
        ended, previous = desk.wait(BatchEnded), width
        assert (ended.failed, bool(ended.predictions)) == ((), segment == 3)
    wanted = _labels(model, images, WIDTHS)
    assert len(set(wanted)) == len(wanted)
    assert ended.predictions == wanted
    assert desk.lanes.reset() == 0


def test_activations_move_intact_and_stay_until_they_are_forgotten(desk: Desk) -> None:
    """Moved twice; after that they are not here any more, which a move says."""
    images = _images(2)
    desk.give((1, 2), images)
    for offset in (512, 4096):
        moved = desk.lanes.move(Move(7, 1, offset, (2, 1)))
        assert moved is not None
        assert (moved.transfer, moved.shape, moved.dtype) == (7, (1, 8, 8), "float32")
        assert torch.equal(tensor_in(desk.arenas[1], offset, (2, 1, 8, 8), torch.float32), images.flip(0))
    desk.lanes.forget((1,))
    with pytest.raises(KeyError):
        desk.lanes.move(Move(8, 1, 0, (1, 2)))
    desk.lanes.move(Move(9, 1, 0, (2,)))


class _FarArena(Arena):
    waits = True


def test_moves_over_a_network_are_told_when_they_have_ended(model: SlimResNet, path: Path) -> None:
    """In the order in which they were asked for, the one that goes wrong as well; a reset waits for all of them."""
    desk, images = Desk(model, path, arena=_FarArena), _images(2)
    desk.give((1, 2), images)
    for transfer, requests in ((7, (2, 1)), (8, (3,)), (9, (1,))):
        assert desk.lanes.move(Move(transfer, 1, 512, requests)) is None
    desk.lanes.reset()
    moved, broken, last = (desk.wait(MoveEnded).answer for _ in range(3))
    assert isinstance(moved, Moved)
    assert (moved.transfer, moved.shape) == (7, (1, 8, 8))
    assert isinstance(broken, MoveBroken)
    assert (broken.transfer, broken.reason) == (8, "bad_input")
    assert last.transfer == 9
    assert torch.equal(tensor_in(desk.arenas[1], 512, (1, 1, 8, 8), torch.float32), images[:1])
    desk.give((4,), images[:1])
    assert desk.lanes.move(Move(10, 1, 0, (4,))) is None
    assert desk.wait(MoveEnded).answer.transfer == 10


def test_wrong_inputs_break_their_batch_alone(desk: Desk) -> None:
    """Missing ones, some of a wrong shape, some beyond the arena: a reason each, and the lane serves on."""
    desk.load(1, 1, 1.0)
    desk.give((1,), _images(1))
    desk.give((2,), torch.zeros(1, 3, 8, 8), 4096)
    desk.lanes.take([Input((3,), 1 << 22, (1, 8, 8), "float32", False)])
    for request in (2, 3, 4):
        desk.submit(1, (request,), 1, IMAGE, 1.0)
        assert desk.wait(BatchBroken).reason == "bad_input"
    desk.submit(1, (1, 2), 1, IMAGE, 1.0)
    mixed = desk.wait(BatchEnded)
    assert (mixed.failed, mixed.reason) == ((2,), "bad_input")
    desk.submit(1, (1,), 2, 0.5, 1.0)  # of another segment than its instance
    assert isinstance(desk.wait(BatchBroken), BatchBroken)


def test_labels_are_of_numbers_alone() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0], [0.0, torch.nan, 9.0], [torch.inf, 0.0, 0.0], [5.0, 0.0, 1.0]])
    assert predictions_of(logits) == [1, NO_PREDICTION, NO_PREDICTION, 0]
    assert predictions_of(logits.bfloat16()) == [1, NO_PREDICTION, NO_PREDICTION, 0]


def test_images_without_numbers_have_no_label(desk: Desk, model: SlimResNet) -> None:
    for segment in (1, 2, 3):
        desk.load(segment, segment, 1.0)
    images = _images(3)
    desk.give((0, 1, 2), torch.stack([images[0], images[1] * torch.nan, images[2]]))
    previous = IMAGE
    for segment in (1, 2, 3):
        desk.submit(segment, (0, 1, 2), segment, previous, 1.0)
        ended, previous = desk.wait(BatchEnded), 1.0
    assert (ended.failed, ended.reason) == ((1,), "no_prediction")
    right = _labels(model, images, (1.0,) * 3)
    assert ended.predictions == (right[0], right[2])


def test_memory_is_counted_in_real_bytes(model: SlimResNet, path: Path) -> None:
    """Loads take the bytes of their weights; one beyond the budget fails, and unloading makes room."""
    sizes = {width: model.instance_bytes(3, width) for width in TINY.widths}
    desk = Desk(model, path, DeviceSpec(vram_bytes=sizes[1.0] + sizes[0.5] - 1))
    assert desk.load(0, 3, 1.0).vram_bytes == sizes[1.0]
    desk.lanes.load(1, 3, 0.5, False)
    broken = desk.wait(LoadBroken)
    assert (broken.instance, broken.reason) == (1, "out_of_memory")
    desk.lanes.unload(0)
    assert desk.wait(UnloadEnded).instance == 0
    assert desk.load(2, 3, 0.5, from_disk=True).vram_bytes == sizes[0.5]
    desk.lanes.reset()
    assert desk.load(3, 3, 1.0).vram_bytes == sizes[1.0]  # all of it is free again
    desk.lanes.reset()


def test_waiting_activations_count_in_the_device_memory(model: SlimResNet, path: Path) -> None:
    """A batch whose outputs lack memory runs in halves, and a load fails until waiting activations are released."""
    weights, images = model.instance_bytes(1, 1.0), _images(6)
    output_bytes = 4 * math.prod(model.activation_shape(1, 1.0))
    room = 3 * output_bytes
    desk = Desk(model, path, DeviceSpec(channels_last=False, vram_bytes=weights + room), counts=True)
    desk.load(1, 1, 1.0)
    desk.give(tuple(range(6)), images)
    desk.submit(1, tuple(range(6)), 1, IMAGE, 1.0)
    ended = desk.wait(BatchEnded)
    assert (ended.failed, ended.reason) == ((3, 4, 5), "out_of_memory")
    assert desk.budget.used_bytes == weights + room
    desk.submit(1, (3, 4), 1, IMAGE, 1.0)  # its inputs are still there
    assert desk.wait(BatchBroken).reason == "out_of_memory"
    desk.lanes.load(2, 1, 1.0, False)
    assert desk.wait(LoadBroken).reason == "out_of_memory"
    desk.lanes.forget((0, 1, 2))
    desk.submit(1, (3, 4, 5), 1, IMAGE, 1.0)
    assert desk.wait(BatchEnded).failed == ()
    desk.lanes.reset()
    assert desk.budget.used_bytes == 0


@pytest.mark.parametrize("kind", ["cuda", "cpu"])
def test_an_worker_of_a_gpu_has_one_budget_for_all(
    kind: Any, model: SlimResNet, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hw.worker.torch_outfit.open_measured", lambda device: (torch.device("cpu"), 1000))
    monkeypatch.setattr("hw.worker.torch_outfit._gpus", {})
    monkeypatch.setattr("hw.worker.torch_outfit.StreamQueue", lambda place: Device().queue())
    monkeypatch.setattr("hw.worker.torch_outfit.pin", lambda memory: "")
    weights, images = model.instance_bytes(1, 1.0), _images(4)
    device = DeviceSpec(kind=kind, channels_last=False, vram_bytes=1000 + weights + images.nbytes)
    arena, told = Arena(1 << 20), SimpleQueue[LaneEvent]()
    fitting = TorchOutfit(device, ModelFile(path), (arena,), 0).fit(told.put, time.monotonic_ns)
    tensor_in(arena, 0, tuple(images.shape), images.dtype).copy_(images)
    fitting.lanes.take([Input((1, 2, 3, 4), 0, tuple(images.shape[1:]), "float32", False)])
    assert fitting.activation_bytes() == 0  # it lies in the arena

    def wait() -> LaneEvent:
        until_s = time.monotonic() + WAIT_S
        while told.empty() and time.monotonic() < until_s:
            fitting.lanes.ring(time.monotonic_ns())
        return told.get_nowait()

    for number, expected in ((1, LoadEnded), (2, LoadBroken)):
        fitting.lanes.load(number, number, 1.0, False)
        assert type(wait()) is expected
    fitting.lanes.take([Input((5,), 0, tuple(images.shape[1:]), "float32", False)])
    fitting.lanes.run(RunBatch(1, 1, 1, (5,), 1, IMAGE, 1.0, 1))
    ended = wait()
    if kind == "cpu":
        assert isinstance(ended, BatchEnded)
    else:
        assert isinstance(ended, BatchBroken)
        assert ended.detail.endswith(f"exceed {weights + images.nbytes}")
    fitting.lanes.reset()


def test_instances_work_at_the_same_time(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two instances' batches overlap: neither ends before the other has begun."""
    both = threading.Barrier(2, timeout=10.0)

    def meet(*given: Any) -> torch.Tensor:
        both.wait()
        return serve(*given)

    monkeypatch.setattr("hw.worker.torch_lanes.serve", meet)
    for instance in (1, 2):
        desk.load(instance, 1, 1.0)
        desk.give((instance,), _images(1), offset=4096 * instance)
    for instance in (1, 2):
        desk.submit(instance, (instance,), 1, IMAGE, 1.0)
    one, other = desk.wait(BatchEnded), desk.wait(BatchEnded)
    assert one.began_ns < other.ended_ns
    assert other.began_ns < one.ended_ns


def test_a_slow_device_takes_so_many_times_as_long(
    model: SlimResNet, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that shows a microsecond more whenever it is looked at: a pass of one, and a rest of 49 more."""
    rests_s: list[float] = []
    monkeypatch.setattr("hw.worker.torch_lanes.time.sleep", rests_s.append)
    desk = Desk(model, path, clock_ns=itertools.count(0, 1000).__next__)
    desk.load(1, 1, 1.0)
    for factor in (1.0, 50.0):
        desk.lanes.impair(Impairment(slow_factor=factor))
        desk.give((1,), _images(1))
        desk.submit(1, (1,), 1, IMAGE, 1.0)
        desk.wait(BatchEnded)
    assert rests_s == [pytest.approx(49e-6)]
    desk.lanes.reset()


class SeenNet(MoodyNet):
    """The moody one, which remembers how many images it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []

    def run_segment(self, segment: int, weights: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        self.seen.append(len(x))
        return super().run_segment(segment, weights, x)


@pytest.fixture
def moody(path: Path) -> Iterator[Desk]:
    made = Desk(SeenNet(), path)
    made.load(1, 1, 1.0)
    yield made
    made.lanes.reset()


def _seen(desk: Desk) -> list[int]:
    assert isinstance(desk.model, SeenNet)
    return desk.model.seen


def test_a_batch_that_memory_cannot_hold_runs_in_parts(moody: Desk) -> None:
    """Seven images where three fit: 2 + 2 + 3, none failed; what a real out-of-memory error does."""
    requests = tuple(range(7))
    moody.give(requests, _images(7))
    moody.submit(1, requests, 1, IMAGE, 1.0)
    assert moody.wait(BatchEnded).failed == ()
    assert _seen(moody) == [7, 4, 2, 2, 3]


def test_tensors_of_a_failed_pass_are_freed_before_memory_is_compacted(
    moody: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error's traceback holds the tensors, so within its handler they would not be free yet."""
    made: list[weakref.ref[torch.Tensor]] = []
    gone: list[bool] = []

    def lacking(*given: Any) -> torch.Tensor:
        half_done = torch.zeros(8)
        made.append(weakref.ref(half_done))
        raise torch.OutOfMemoryError("a pass of many tensors")

    monkeypatch.setattr("hw.worker.torch_lanes.serve", lacking)
    monkeypatch.setattr(Activations, "compact", lambda store: gone.append(made[-1]() is None))
    moody.give((1, 2), _images(2))
    moody.submit(1, (1, 2), 1, IMAGE, 1.0)
    assert moody.wait(BatchBroken).reason == "out_of_memory"
    assert gone == [True] * 3


def test_image_that_breaks_a_batch_fails_without_the_other_images(moody: Desk) -> None:
    """The broken image fails, with the reason; the others have passed. Alone it is the whole batch that broke."""
    images = _images(3)
    images[1] = POISON
    moody.give((0, 1, 2), images)
    moody.submit(1, (0, 1, 2), 1, IMAGE, 1.0)
    ended = moody.wait(BatchEnded)
    assert (ended.failed, ended.reason) == ((1,), "internal_error")
    moody.submit(1, (1,), 1, IMAGE, 1.0)  # its input is still there
    broken = moody.wait(BatchBroken)
    assert broken.reason == "internal_error"
    assert "a broken image" in broken.detail


def test_a_network_that_gives_back_its_input_keeps_its_activations(path: Path) -> None:
    """Its output must not lie where the next arrival is written."""
    desk = Desk(IdleNet(), path)
    desk.load(2, 2, 1.0)
    shape = desk.model.activation_shape(1, 1.0)
    first = torch.randn(2, *shape)
    desk.give((0, 1), first)
    desk.submit(2, (0, 1), 2, 1.0, 1.0)
    desk.wait(BatchEnded)
    desk.give((5, 6), torch.zeros(2, *shape))  # over the same place
    desk.lanes.move(Move(0, 1, 0, (0, 1)))
    assert torch.equal(tensor_in(desk.arenas[1], 0, (2, *shape), torch.float32), first)
    desk.lanes.reset()


@pytest.mark.parametrize("words", ["CUDA error: an illegal memory access was encountered", "a broken image"])
def test_a_broken_context_ends_the_process_when_it_has_said_so(words: str, tmp_path: Path) -> None:
    """Another error leaves it as it is, and is looked for in each half of the batch; this one is not."""
    left: list[int] = []
    model = MoodyNet(words=words)
    desk = Desk(model, tmp_path / "unused", leave=left.append)
    desk.load(1, 1, 1.0)
    desk.give((1, 2), torch.full((2, 1, 8, 8), POISON))
    before = model.passes
    desk.submit(1, (1, 2), 1, IMAGE, 1.0)
    assert desk.wait(BatchBroken).reason == "internal_error"
    desk.lanes.reset()
    is_broken = words.startswith("CUDA")
    assert model.passes - before == (1 if is_broken else 3)
    assert left == ([BROKEN_EXIT] if is_broken else [])


def test_a_broken_context_is_met_where_activations_go(
    model: SlimResNet, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[int] = []

    def broken(place: torch.device) -> None:
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

    desk = Desk(model, path, leave=left.append)
    desk.load(1, 1, 1.0)
    desk.give((1,), _images(1))
    monkeypatch.setattr("hw.worker.activations.finish", broken)
    with pytest.raises(RuntimeError, match="illegal"):
        desk.lanes.move(Move(7, 1, 512, (1,)))
    desk.lanes.reset()
    assert left == [BROKEN_EXIT]


def test_pass_output_is_complete_and_copied_before_its_input_is_overwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait for the device is the last of all: an output that would share its input's memory is copied before."""
    model = IdleNet()
    instance, x = model.instance(2, 1.0), torch.randn(2, 8, 8, 8)
    expected = x.clone()

    def overwritten(place: torch.device) -> None:
        x.zero_()  # from here on others may write to the inputs

    monkeypatch.setattr("hw.worker.instances.finish", overwritten)
    assert torch.equal(serve(instance, rows_of(x), (1.0, 1.0, 2), torch.contiguous_format), expected)


def test_reset_forgets_all_and_ends_what_runs(desk: Desk) -> None:
    """What was submitted before has ended when it returns; the count is of the activations that were kept."""
    desk.load(1, 1, 1.0)
    desk.give((1, 2, 3), _images(3))
    desk.lanes.impair(Impairment(room_images=0))
    desk.submit(1, (1, 2), 1, IMAGE, 1.0)
    assert desk.lanes.reset() == 3
    desk.wait(BatchBroken)
    desk.load(1, 1, 1.0)
    desk.give((1, 2), _images(2))
    desk.submit(1, (1, 2), 1, IMAGE, 1.0)
    desk.wait(BatchEnded)  # nothing is wrong with it any more


def test_the_next_run_keeps_what_it_preloads(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """One instance of each kind that it names; the others give their memory back."""
    loads: list[float] = []
    load = Instances.load

    def noted(maker: Instances, segment: int, width: float, from_disk: bool = False) -> Instance:
        loads.append(width)
        return load(maker, segment, width, from_disk)

    monkeypatch.setattr(Instances, "load", noted)
    for number, width in enumerate((1.0, 1.0, 0.5)):
        desk.load(number, 1, width)
    desk.lanes.reset(((1, 1.0), (2, 1.0)))
    assert desk.budget.used_bytes == desk.model.instance_bytes(1, 1.0)
    desk.load(0, 1, 1.0)
    assert loads == [1.0, 1.0, 0.5]
    desk.give((1,), _images(1))
    desk.submit(0, (1,), 1, IMAGE, 1.0)
    desk.wait(BatchEnded)
    desk.load(1, 1, 1.0)
    assert loads == [1.0, 1.0, 0.5, 1.0]


def test_reset_waits_for_an_instance_that_is_leaving(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its end must not be told to the next run, in which the same number may be another instance's."""
    is_reset, came_after = threading.Event(), list[bool]()
    monkeypatch.setattr("hw.worker.torch_lanes.give_back", lambda *_: came_after.append(is_reset.wait(0.5)))
    desk.load(1, 1, 1.0)
    desk.lanes.unload(1)
    desk.lanes.reset()
    is_reset.set()
    desk.wait(UnloadEnded)
    assert came_after == [False]


@pytest.mark.parametrize("sizes", [(), (1, 4)])
def test_a_load_warms_its_own_lane(
    model: SlimResNet, path: Path, sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU's libraries choose kernels for each thread again: every size at every previous width, in the thread that
    will serve, before it is told of."""
    seen: list[tuple[int, float, int]] = []

    def noted(instance: Any, rows: Any, key: PassKey, *rest: Any) -> torch.Tensor:
        _, previous, padded = key
        seen.append((threading.get_ident(), previous, padded))
        return serve(instance, rows, key, *rest)

    monkeypatch.setattr("hw.worker.instances.serve", noted)
    desk = Desk(model, path, DeviceSpec(channels_last=False, warm_sizes=sizes))
    desk.load(1, 2, 0.5)
    widest_first = reversed(model.spec.previous_widths(2, 1.0))
    expected = [(previous, size) for previous in widest_first for size in reversed(sizes)]
    assert [key for _, *key in seen] == [list(key) for key in expected]
    threads: list[int] = []

    def served(*given: Any) -> torch.Tensor:
        threads.append(threading.get_ident())
        return serve(*given)

    monkeypatch.setattr("hw.worker.torch_lanes.serve", served)
    shape = model.activation_shape(1, 0.5)
    desk.give((9,), torch.randn(1, *shape))
    desk.submit(1, (9,), 2, 0.5, 0.5)
    desk.wait(BatchEnded)
    assert {thread for thread, *_ in seen} <= set(threads)
    desk.lanes.reset()


def test_a_load_that_can_not_warm_all_sizes_serves_what_fits(
    model: SlimResNet, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too little memory for a large batch is not a lack of the instance; anything else is, and costs no memory."""
    problem = ["CUDA out of memory"]

    def broken(instance: Any, rows: Any, key: PassKey, *rest: Any) -> torch.Tensor:
        if key[-1] == 4:
            raise RuntimeError(problem[0])
        return serve(instance, rows, key, *rest)

    monkeypatch.setattr("hw.worker.instances.serve", broken)
    maker = Instances(model, path, DeviceSpec(channels_last=False, warm_sizes=(1, 4)), torch.device("cpu"))
    instance = maker.load(1, 1.0)
    assert maker.budget.used_bytes == instance.held_bytes
    problem[0] = "no kernel image is available"
    with pytest.raises(RuntimeError, match="no kernel image"):
        maker.load(1, 1.0)
    assert maker.budget.used_bytes == instance.held_bytes
