"""What a pass on a GPU takes of its host; the wait for the device here is one that spins, as CUDA's does."""

from __future__ import annotations

import time  # noqa: TID251 - CPU time is what is measured
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from hw.agent.benchmarks import DeviceBench, _reserved_bytes, alone
from hw.device import DeviceSpec
from hw.devices.activations import Activations
from hw.devices.instances import Instances
from hw.networks.slimresnet import PRESETS, SlimResNet
from hw.transport.messages import Benchmark, BenchmarkLoad, BenchmarkResult, Point

SPUN_S = 0.03
REPEATS = 5


@pytest.fixture
def spinning(monkeypatch: pytest.MonkeyPatch) -> None:
    def spin(place: torch.device) -> None:
        end_s = time.thread_time() + SPUN_S
        while time.thread_time() < end_s:
            pass

    monkeypatch.setattr("hw.devices.instances.finish", spin)


def _timed(
    model: SlimResNet, path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, pause_s: float = 0.0
) -> BenchmarkResult:
    instances = Instances(model, path, DeviceSpec(channels_last=False), torch.device("cpu"))
    if kind == "cuda":  # as far as the loop knows; tensors stay where they are
        monkeypatch.setattr(instances, "place", SimpleNamespace(type="cuda"))
        monkeypatch.setattr("hw.agent.benchmarks.Lane", lambda device, place: InThread())
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
    """The same loop on a CPU counts all of it."""
    on_gpu, on_cpu = (_timed(model, path, monkeypatch, kind) for kind in ("cuda", "cpu"))
    spun_s = REPEATS * SPUN_S
    assert 0 < on_gpu.cpu_s < 0.7 * spun_s < 0.9 * spun_s < on_cpu.cpu_s
    assert min(on_gpu.samples_s) >= SPUN_S


@pytest.mark.parametrize(
    ("kind", "pause_s", "pauses", "looks"), [("cuda", 0.001, 0, 2 * REPEATS), ("cuda", 0.0, 0, 0), ("cpu", 0.001, 5, 0)]
)
def test_waits_for_a_core_between_passes_are_not_theirs_on_a_gpu(
    model: SlimResNet,
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    pause_s: float,
    pauses: int,
    looks: int,
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

    monkeypatch.setattr("hw.devices.instances.finish", lambda place: wait(of_a_pass_ns))
    monkeypatch.setattr("hw.agent.benchmarks.time.sleep", lambda seconds: wait(of_a_pause_ns))
    monkeypatch.setattr("hw.agent.benchmarks.waited_ns", lambda: look("all"))
    monkeypatch.setattr("hw.agent.benchmarks.thread_waited_ns", lambda: look("own"))
    found = _timed(model, path, monkeypatch, kind, pause_s)
    assert round(found.waited_s * 1e9) == REPEATS * of_a_pass_ns + pauses * of_a_pause_ns
    assert (asked.count("all"), asked.count("own")) == (2, looks)


@pytest.mark.parametrize(("graphs", "drops"), [(False, True), (False, False), (True, True)])
def test_memory_of_a_load_is_what_was_taken_for_it(graphs: bool, drops: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library's workspace of another stream would count or not by luck: it is dropped before, but not where captured
    passes point to it; then what nothing needs is given back. A CPU's is its heap."""
    asked: list[str] = []

    def reserved(place: torch.device) -> int:
        asked.append("reserved")
        return 7

    monkeypatch.setattr("hw.agent.benchmarks.gpu.drop_workspaces", lambda: asked.append("workspaces"))
    monkeypatch.setattr("hw.devices.gpu.empty_cache", lambda: asked.append("cache"))
    monkeypatch.setattr(torch.cuda, "memory_reserved", reserved)
    for kind, expected in (("cuda", 7), ("cpu", 0)):
        place, device = torch.device(kind), DeviceSpec(kind="cuda", graphs=graphs)
        instances = Instances(SlimResNet(PRESETS["digits"]), Path(), device, place)
        assert _reserved_bytes(instances, drops=drops) == expected
    assert asked == [*(["workspaces"] if drops and not graphs else []), "cache", "reserved"]


def test_a_load_that_fails_while_it_is_measured_costs_no_memory(
    model: SlimResNet, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody will unload it."""
    device, place = DeviceSpec(channels_last=False), torch.device("cpu")
    instances = Instances(model, path, device, place)
    bench = DeviceBench(instances, Activations((), 0, place))

    def broken(*_: object) -> int:
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr("hw.agent.benchmarks._probe", broken)
    with pytest.raises(RuntimeError, match="out of memory"):
        bench.carry_out(BenchmarkLoad(1, 1, 1.0, False, 8))
    assert instances.budget.used_bytes == 0
