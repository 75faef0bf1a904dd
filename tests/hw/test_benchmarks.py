"""What a pass on a GPU takes of its host; the wait for the device here is one that spins, as CUDA's does."""

from __future__ import annotations

import time  # noqa: TID251 - CPU time is what is measured
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

import hw.worker.torch_outfit
from hw.device_settings import DeviceSpec
from hw.networks.architectures import SLIMRESNETS, SlimResNet
from hw.networks.servable import Instance
from hw.transport.messages import (
    Benchmark,
    BenchmarkBesideLoad,
    BenchmarkInstance,
    BenchmarkLoad,
    BenchmarkPaths,
    BenchmarkResult,
    BenchmarkTogether,
    BenchmarkUnload,
    BesideLoadResult,
    InstanceResult,
    Point,
    Timed,
)
from hw.worker.activations import Activations
from hw.worker.instances import Instances
from hw.worker.torch_outfit import DeviceBench, _reserved_bytes, alone, together

SPUN_S = 0.03
REPEATS = 5


@pytest.fixture
def spinning(monkeypatch: pytest.MonkeyPatch) -> None:
    def spin(place: torch.device) -> None:
        end_s = time.thread_time() + SPUN_S
        while time.thread_time() < end_s:
            pass

    monkeypatch.setattr("hw.worker.instances.finish", spin)


def _timed(
    model: SlimResNet, path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, pause_s: float = 0.0
) -> BenchmarkResult:
    instances = Instances(model, path, DeviceSpec(channels_last=False), torch.device("cpu"))
    if kind == "cuda":  # as far as the loop knows; tensors stay where they are
        monkeypatch.setattr(instances, "torch_device", SimpleNamespace(type="cuda"))
        monkeypatch.setattr("hw.worker.torch_outfit.Lane", lambda device, place: InThread())
        monkeypatch.setattr(instances, "make", lambda segment, width: model.instance(segment, width))
        rows = [(torch.randn(1, 1, 8, 8), 0)]
        monkeypatch.setattr(instances, "inputs", lambda *_: rows)
    point = Point(1, 1.0, 0.0, 1)
    return alone(instances, Benchmark(point, 2, REPEATS, 0.0, pause_s=pause_s))


class InThread:
    """A lane without a stream: jobs are done at once."""

    def submit(self, job: object) -> None:
        assert callable(job)
        with torch.inference_mode():
            job()

    def stop(self) -> None:
        """Nothing is left."""


@pytest.mark.usefixtures("spinning")
def test_the_wait_for_a_gpu_is_no_work_of_its_host(
    model: SlimResNet, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_gpu, on_cpu = (_timed(model, path, monkeypatch, kind) for kind in ("cuda", "cpu"))
    spun_s = REPEATS * SPUN_S
    assert 0 < on_gpu.cpu_s < 0.7 * spun_s < 0.9 * spun_s < on_cpu.cpu_s
    assert min(on_gpu.samples_s) >= SPUN_S


@pytest.mark.parametrize(
    ("kind", "pause_s", "pauses", "looks"),
    [("cuda", 0.001, 0, 2 * REPEATS + 2), ("cuda", 0.0, 0, 2), ("cpu", 0.001, 5, 0)],
)
def test_waits_for_a_core_between_passes_are_not_theirs_on_a_gpu(
    model: SlimResNet, path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, pause_s: float, pauses: int, looks: int
) -> None:
    """There passes are so short that a pause's wait alone would count as disturbed; a CPU's loop is one piece.

    Nor is anything read between passes without a pause: a loop of short ones would be idle half of the time.
    """
    waited, of_a_pass_ns, of_a_pause_ns = [0], 10, 1_000_000
    asked: list[str] = []

    def wait(duration_ns: int) -> None:
        waited[0] += duration_ns

    def look(threads: str) -> int:
        asked.append(threads)
        return waited[0]

    monkeypatch.setattr("hw.worker.instances.finish", lambda place: wait(of_a_pass_ns))
    monkeypatch.setattr("hw.worker.torch_outfit.time.sleep", lambda seconds: wait(of_a_pause_ns))
    monkeypatch.setattr("hw.worker.torch_outfit.waited_ns", lambda: look("all"))
    monkeypatch.setattr("hw.worker.torch_outfit.thread_waited_ns", lambda: look("own"))
    found = _timed(model, path, monkeypatch, kind, pause_s)
    assert round(found.waited_s * 1e9) == REPEATS * of_a_pass_ns + pauses * of_a_pause_ns
    assert (asked.count("all"), asked.count("own")) == (0 if looks else 2, looks)


@pytest.mark.parametrize(("graphs", "drops"), [(False, True), (False, False), (True, True)])
def test_memory_of_a_load_is_what_was_taken_for_it(graphs: bool, drops: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library's workspace of another stream would count or not by luck: it is dropped before, but not where captured
    passes point to it; then what nothing needs is given back. A CPU's is its heap."""
    asked: list[str] = []

    def reserved(place: torch.device) -> int:
        asked.append("reserved")
        return 7

    monkeypatch.setattr("hw.worker.torch_outfit.cuda.drop_workspaces", lambda: asked.append("workspaces"))
    monkeypatch.setattr("hw.worker.cuda.empty_cache", lambda: asked.append("cache"))
    monkeypatch.setattr(torch.cuda, "memory_reserved", reserved)
    for kind, expected in (("cuda", 7), ("cpu", 0)):
        place, device = torch.device(kind), DeviceSpec(kind="cuda", graphs=graphs)
        instances = Instances(SlimResNet(SLIMRESNETS["digits"]), Path(), device, place)
        assert _reserved_bytes(instances, drops=drops) == expected
    assert asked == [*(["workspaces"] if drops and not graphs else []), "cache", "reserved"]


PASS_S, CAPTURE_S = 0.5e-3, 12e-3


class _Spinning:
    """An instance whose passes take `PASS_S`, eager or replayed; a capture takes `CAPTURE_S`."""

    held_bytes = 0

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self.segment, self.width = instance.segment, instance.width

    def run(self, x: Tensor, width: float, previous_width: float) -> Tensor:
        _spin(PASS_S)
        return x[:, :1].clone()

    def to(self, *_: object) -> _Spinning:
        return self


class _Replayed:
    def __init__(self, inputs: Tensor) -> None:
        self.inputs = inputs

    def __call__(self, count: int) -> Tensor:
        _spin(PASS_S)
        return self.inputs[:count, :1].clone()


def _spin(duration_s: float) -> None:
    end_s = time.perf_counter() + duration_s
    while time.perf_counter() < end_s:
        pass


class _Captures:
    """Captures, and counts them; `seen`: how many there were before and after each timed loop."""

    held_bytes = 0

    def __init__(self) -> None:
        self.count = 0
        self.seen: list[int] = []
        self.ended_ns = 0  # the last one

    def __call__(self, run: object, x: Tensor) -> _Replayed:
        self.count += 1
        _spin(CAPTURE_S)
        self.ended_ns = time.monotonic_ns()
        return _Replayed(x.clone())


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> _Captures:
    made, clocks = _Captures(), hw.worker.torch_outfit._clocks

    def look(waited: Callable[[], int]) -> tuple[int, int, int]:
        made.seen.append(made.count)
        return clocks(waited)

    monkeypatch.setattr("hw.worker.torch_outfit._clocks", look)
    return made


@pytest.fixture
def graphed(model: SlimResNet, path: Path, captures: _Captures, monkeypatch: pytest.MonkeyPatch) -> Instances:
    """As on a GPU, where there is no reference either."""
    real = model.instance
    monkeypatch.setattr(model, "instance", lambda *given: _Spinning(real(*given)))
    monkeypatch.setattr("hw.worker.torch_outfit._reference", lambda instances: None)
    device = DeviceSpec(channels_last=False, graphs=True, warm_sizes=(1, 4))
    return Instances(model, path, device, torch.device("cpu"), lambda place: captures)


def test_no_timed_repeat_holds_a_capture(captures: _Captures, graphed: Instances) -> None:
    """A first timed repeat that captured made passes alone up to 59 % too long, and slow-downs too small by that."""
    point = Point(1, 1.0, 0.0, 4)
    for number, warmup in enumerate((0, 1, 5), start=1):
        found = alone(graphed, Benchmark(point, warmup, 5, 0.0))
        assert captures.seen[-2:] == [number, number]
        assert min(found.samples_s) >= PASS_S
    found_together = together(graphed, BenchmarkTogether((point,), 0.02))
    assert captures.count == 4
    assert captures.ended_ns <= found_together.began_ns


def test_an_instance_is_made_once_for_all_its_points(
    captures: _Captures, graphed: Instances, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them are captured when it is loaded; its passes and those of a path take what they take alone."""
    made: list[tuple[int, float]] = []
    make = graphed.make

    def counted(segment: int, width: float, from_disk: bool = False) -> Instance:
        made.append((segment, width))
        return make(segment, width, from_disk)

    monkeypatch.setattr(graphed, "make", counted)
    bench = DeviceBench(graphed, Activations((), 0, graphed.torch_device))
    points = tuple(Point(2, 1.0, previous, batch) for previous in (0.5, 1.0) for batch in (1, 4))
    bench.carry_out(BenchmarkLoad(7, 2, 1.0))
    found = bench.carry_out(BenchmarkInstance(7, points, 1, 9))
    bench.carry_out(BenchmarkUnload(7))
    assert made == [(2, 1.0)]
    assert isinstance(found, InstanceResult)
    assert found.captured == len(graphed.model.spec.previous_widths(2, 1.0)) * len(graphed.device.warm_sizes)
    assert [len(loop.samples_s) for loop in found.loops] == [9] * len(points)
    served = len(graphed.model.spec.served_keys(2, 1.0)) * len(graphed.device.warm_sizes)  # a narrower width's, too
    assert captures.seen == [served] * (2 * len(points))


def test_a_path_is_made_of_its_hops(graphed: Instances, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each instance is made once for all paths, and given back; no capture is timed."""
    monkeypatch.setattr("hw.worker.torch_outfit.predictions_of", lambda logits: [])

    now_ns, hop_ns = [0], 500_000

    def hop(*_: object) -> Tensor:
        now_ns[0] += hop_ns
        return torch.zeros(4, 1)

    monkeypatch.setattr("hw.worker.torch_outfit.serve", hop)
    monkeypatch.setattr("hw.worker.torch_outfit.time", SimpleNamespace(monotonic_ns=lambda: now_ns[0]))
    monkeypatch.setattr("hw.worker.torch_outfit.seconds_since", lambda begin_ns: (now_ns[0] - begin_ns) / 1e9)
    path = tuple(Point(segment, 1.0, 1.0 if segment > 1 else 0.0, 4) for segment in (1, 2, 3))
    bench = DeviceBench(graphed, Activations((), 0, graphed.torch_device))
    found = bench.carry_out(BenchmarkPaths((path, path), 5))
    assert isinstance(found, Timed)
    assert found.samples_s == pytest.approx([len(path) * hop_ns / 1e9] * 2)
    assert graphed.budget.used_bytes == 0


def test_passes_beside_a_load_are_timed(graphed: Instances) -> None:
    bench = DeviceBench(graphed, Activations((), 0, graphed.torch_device))
    found = bench.carry_out(BenchmarkBesideLoad(Point(1, 1.0, 0.0, 4), 2, 1.0, 0.05))
    assert isinstance(found, BesideLoadResult)
    assert min(found.quiet_s, found.beside_s) >= PASS_S
    assert found.load_s >= 2 * CAPTURE_S
    assert graphed.budget.used_bytes == 0
