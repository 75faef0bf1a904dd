"""Captured passes: when one is captured, that it computes the same, what it holds, and what is never captured."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

from hw.device_settings import DeviceSpec
from hw.networks.architectures import SlimResNet
from hw.networks.servable import Instance, rows_of
from hw.transport.messages import Captures
from hw.worker.cuda import CAPTURING, CudaReplay, GraphedInstance, Repeated, Rooms, empty_cache
from hw.worker.instances import Instances, serve
from hw.worker.torch_lanes import captures_of
from policies.vocabulary import IMAGE

CPU = torch.device("cpu")
FIRST = torch.contiguous_format


@dataclass
class Playback:
    """A graph of a CPU: it computes in place, on the numbers that stand there."""

    run: Callable[[Tensor], Tensor]
    inputs: Tensor
    outputs: Tensor

    def replay(self) -> None:
        self.outputs.copy_(self.run(self.inputs))


class Recorder:
    """Captures, and counts how often; what is as large as `refused` images it can't."""

    def __init__(self, refused: int | None = None) -> None:
        self.shapes: list[tuple[int, ...]] = []
        self._refused = refused
        self._rooms = Rooms()

    @property
    def held_bytes(self) -> int:
        return self._rooms.held_bytes

    def __call__(self, run: Callable[[Tensor], Tensor], x: Tensor) -> CudaReplay:
        self.shapes.append(tuple(x.shape))
        if len(x) == self._refused:
            raise RuntimeError("operation not permitted when stream is capturing")
        inputs = self._rooms.like(x, "inputs")
        inputs.copy_(x)
        outputs = self._rooms.like(run(inputs), "outputs")
        return CudaReplay(Playback(run, inputs, outputs), inputs, outputs)


def _graphed(model: SlimResNet, path: Path, recorder: Recorder) -> tuple[Instances, GraphedInstance]:
    device = DeviceSpec(channels_last=False, graphs=True)
    maker = Instances(model, path, device, CPU, lambda _: recorder)
    instance = maker.make(1, 1.0)
    assert isinstance(instance, GraphedInstance)
    return maker, instance


def _images(count: int, seed: int) -> Tensor:
    return torch.randn(count, 1, 8, 8, generator=torch.Generator().manual_seed(seed))


def _served(instance: GraphedInstance, count: int, seed: int, padded: int = 0, width: float = 1.0) -> Tensor:
    with torch.inference_mode():
        return serve(instance, rows_of(_images(count, seed)), (width, IMAGE, padded or count), FIRST)


def test_a_pass_is_captured_at_second_sight_and_computes_the_same(model: SlimResNet, path: Path) -> None:
    """Whatever the numbers; what an earlier pass gave stays what it was."""
    recorder = Recorder()
    _, instance = _graphed(model, path, recorder)
    kept = [(0, _served(instance, 3, 0))]
    assert recorder.shapes == []
    kept += [(seed, _served(instance, 3, seed)) for seed in range(1, 4)]
    assert recorder.shapes == [(3, 1, 8, 8)]
    assert instance.captured == 1
    assert instance.held_bytes == model.instance_bytes(1, 1.0) + _images(3, 0).nbytes + kept[0][1].nbytes
    for seed, found in kept:
        torch.testing.assert_close(found, model.forward_segment(_images(3, seed), 1, 1.0, IMAGE), rtol=1e-5, atol=1e-5)


def test_each_width_and_size_is_a_pass_of_its_own(model: SlimResNet, path: Path) -> None:
    """A wide instance that runs narrow too; a padded batch is of the padded size."""
    recorder = Recorder()
    _, instance = _graphed(model, path, recorder)
    for _ in range(3):
        narrow = _served(instance, 2, 7, width=0.5)
        _served(instance, 3, 7, padded=4)
        _served(instance, 4, 7)
    assert sorted(recorder.shapes) == [(2, 1, 8, 8), (4, 1, 8, 8)]
    torch.testing.assert_close(narrow, model.forward_segment(_images(2, 7), 1, 0.5, IMAGE), rtol=1e-5, atol=1e-5)


def test_pass_that_cannot_be_captured_runs_without_a_graph(model: SlimResNet, path: Path) -> None:
    recorder = Recorder(refused=3)
    _, instance = _graphed(model, path, recorder)
    for seed in range(4):
        found = _served(instance, 3, seed)
    torch.testing.assert_close(found, model.forward_segment(_images(3, 3), 1, 1.0, IMAGE), rtol=1e-5, atol=1e-5)
    assert (recorder.shapes, instance.captured, instance.tried) == ([(3, 1, 8, 8)], 0, 1)
    assert captures_of(instance) == Captures(0, 1, "RuntimeError: operation not permitted when stream is capturing")


def test_a_batch_lies_in_the_captured_passs_own_inputs(model: SlimResNet, path: Path) -> None:
    """Wherever its rows lay, in any order, without a copy between; places beyond them are zero whatever was there."""
    recorder = Recorder()
    _, instance = _graphed(model, path, recorder)
    for seed in range(2):
        _served(instance, 4, seed)
    replay = instance.replay(1.0, IMAGE, (4, 1, 8, 8))
    assert replay is not None
    first, second = rows_of(_images(4, 5)), rows_of(_images(2, 6))
    rows = [first[2], second[1], first[0]]
    with torch.inference_mode():
        found = serve(instance, rows, (1.0, IMAGE, 4), FIRST)
    wanted = torch.stack([block[index] for block, index in rows])
    assert torch.equal(replay.inputs, torch.cat([wanted, torch.zeros(1, 1, 8, 8)]))
    torch.testing.assert_close(found, model.forward_segment(wanted, 1, 1.0, IMAGE), rtol=1e-5, atol=1e-5)
    assert len(found) == 3


def test_passes_of_an_instance_share_their_memory(model: SlimResNet, path: Path) -> None:
    """Captured in any order they compute the same; largest first, all take what the largest takes."""
    images_bytes, outputs_bytes = _images(4, 0).nbytes, 4 * 4 * math.prod(model.activation_shape(1, 1.0))
    for sizes, expected in (((4, 2, 1), images_bytes + outputs_bytes), ((2, 4), 1.5 * (images_bytes + outputs_bytes))):
        recorder = Recorder()
        _, instance = _graphed(model, path, recorder)
        for size in (*sizes, *sizes, *sizes):
            found = _served(instance, size, size)
            wanted = model.forward_segment(_images(size, size), 1, 1.0, IMAGE)
            torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
        assert recorder.held_bytes == expected


@pytest.mark.parametrize("width, served", [(0.5, 1), (1.0, 2)])
def test_a_load_captures_whatever_the_instance_will_serve(
    model: SlimResNet, path: Path, width: float, served: int
) -> None:
    """Every size at every key, a narrower width's, too, before the first batch; the largest first: memory is shared."""
    recorder = Recorder()
    device = DeviceSpec(channels_last=False, graphs=True, warm_sizes=(1, 4))
    maker = Instances(model, path, device, CPU, lambda _: recorder)
    with torch.inference_mode():
        instance = maker.load(2, width)
        assert isinstance(instance, GraphedInstance)
        previous = model.spec.previous_widths(2, 1.0)
        expected = [(size, *model.activation_shape(1, before)) for before in reversed(previous) for size in (4, 1)]
        assert recorder.shapes == expected * served
        assert instance.captured == len(recorder.shapes)
        for narrower, before in model.spec.served_keys(2, width):
            serve(instance, maker.inputs(2, before, 4), (narrower, before, 4), device.memory_format)
    assert instance.captured == instance.tried == len(recorder.shapes)


def test_a_smaller_share_without_mps_computes_each_pass_several_times(model: SlimResNet, path: Path) -> None:
    """As often as the device says, captured at once; the outputs are those of one pass."""
    device = DeviceSpec(channels_last=False, repeats=3)
    assert isinstance(Instances(model, path, device, CPU).make(1, 1.0), Repeated)
    passes = Counted(model.instance(1, 1.0))
    found = Repeated(passes, 3).run(_images(2, 2), 1.0, IMAGE)
    assert passes.count == 3
    torch.testing.assert_close(found, model.forward_segment(_images(2, 2), 1, 1.0, IMAGE), rtol=1e-5, atol=1e-5)


class Counted:
    def __init__(self, instance: Instance) -> None:
        self.segment, self.width, self.held_bytes = instance.segment, instance.width, instance.held_bytes
        self._instance = instance
        self.count = 0

    def run(self, x: torch.Tensor, width: float, previous_width: float) -> torch.Tensor:
        self.count += 1
        return self._instance.run(x, width, previous_width)

    def to(self, *_: object) -> Counted:
        return self


def test_cached_memory_is_not_released_while_a_pass_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """The release waits for the whole device, which would break a capture."""
    seen: list[bool] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: seen.append(CAPTURING.locked()))
    empty_cache()
    assert (seen, CAPTURING.locked()) == ([True], False)
