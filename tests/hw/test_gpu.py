"""What a GPU says, and what follows from it; here nobody has one."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
import time  # noqa: TID251 - what two do at once takes real time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from hw.device_settings import MATHS, DeviceSpec
from hw.worker.cuda import Streams, give_back, is_broken, lacks_memory, own_stream, refused_by_mode, unseen, unserved
from hw.worker.instances import open_measured
from tests.hw.fake_nvml import FakeNvml, FakeNvmlDevice

PLACE, OTHER = torch.device("cuda", 0), torch.device("cuda", 1)
ADVICE = "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions."


@pytest.mark.parametrize(
    ("error", "memory", "broken"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB"), True, False),
        (MemoryError(), True, False),
        (RuntimeError("CUDA error: out of memory"), True, False),
        (RuntimeError("CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True, False),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), True, False),
        (RuntimeError("CUDA error: device-side assert triggered"), False, True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False, True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"), False, True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED"), False, False),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False, False),
        (ValueError("an instance of width 0.5 cannot serve width 1.0"), False, False),
        (RuntimeError("GET was unable to find an engine to execute this computation"), True, False),
        (torch.AcceleratorError(f"CUDA error: unspecified launch failure\n{ADVICE}"), False, True),
        (torch.AcceleratorError(f"CUDA error: uncorrectable ECC error encountered\n{ADVICE}"), False, True),
        (torch.AcceleratorError(f"CUDA error: no CUDA-capable device is detected\n{ADVICE}"), False, True),
        (torch.AcceleratorError(f"CUDA error: invalid argument\n{ADVICE}"), False, False),
        (torch.AcceleratorError("CUDA error: operation not permitted when stream is capturing"), False, False),
    ],
)
def test_errors_are_told_apart(error: Exception, memory: bool, broken: bool) -> None:
    """What there is too little memory for, what ends a process, and all else."""
    assert (lacks_memory(error), is_broken(error)) == (memory, broken)


@pytest.mark.parametrize(
    ("capability", "built_for", "problem"),
    [
        ((9, 0), ["sm_75", "sm_80", "sm_90"], ""),
        ((8, 9), ["sm_75", "sm_80", "sm_90"], ""),  # kernels of 8.0 run on 8.9
        ((10, 3), ["sm_90", "sm_100f", "compute_120"], ""),
        ((10, 3), ["sm_90", "sm_100a", "compute_120"], "sm_103; install"),
        ((12, 1), ["sm_90", "compute_90"], ""),  # compiled when it is loaded
        ((5, 2), ["sm_75", "sm_80", "compute_90"], "sm_52; .*for CUDA 12.6 alone: .*torch 2.10"),
        ((7, 0), ["sm_75"], "sm_70; Maxwell, Pascal and Volta"),
        ((3, 5), ["sm_75"], "sm_35; install a torch that is built for it"),
        ((12, 0), ["sm_75", "sm_90"], "sm_120; install a torch that is built for it"),
        ((9, 0), [], "built for no GPU, this one is sm_90"),
    ],
)
def test_a_gpu_that_the_installed_torch_was_not_built_for_is_known(
    capability: tuple[int, int], built_for: list[str], problem: str
) -> None:
    """A GTX 980 Ti is told what still serves it; who is served is told nothing."""
    found = unserved(capability, built_for)
    assert re.search(problem, found) if problem else found == ""


@pytest.mark.parametrize(
    ("mode", "workers", "is_refused"),
    [
        ("default", 4, False),
        ("", 4, False),
        ("exclusive process", 1, False),
        ("exclusive process", 2, True),
        ("prohibited", 1, True),
    ],
)
def test_a_mode_that_refuses_processes_is_known(mode: str, workers: int, is_refused: bool) -> None:
    assert ("nvidia-smi -c DEFAULT" in refused_by_mode(mode, workers)) == is_refused


def test_streams_are_used_again_and_shared_by_nobody() -> None:
    """Of a device its own; only as many are made as are in use at once."""
    made: list[torch.device] = []

    def make(place: torch.device) -> int:
        made.append(place)
        return len(made)

    streams = Streams(make)
    first, second, elsewhere = streams.take(PLACE), streams.take(PLACE), streams.take(OTHER)
    assert len({first, second, elsewhere}) == 3
    streams.give_back(PLACE, first)
    streams.give_back(OTHER, elsewhere)
    assert streams.take(PLACE) == first
    assert streams.take(PLACE) not in (first, second, elsewhere)
    assert made == [PLACE, PLACE, OTHER, PLACE]


@pytest.mark.parametrize(("reserved", "given_back"), [(91, True), (90, False), (10, False)])
def test_memory_is_given_back_where_there_is_little(
    reserved: int, given_back: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the device would stall for nothing; the driver is not asked."""
    asked: list[bool] = []
    monkeypatch.setattr("torch.cuda.empty_cache", lambda: asked.append(True))
    monkeypatch.setattr("torch.cuda.memory_reserved", lambda _: reserved)
    monkeypatch.delattr("torch.cuda.mem_get_info")
    give_back(PLACE, 100)
    assert bool(asked) == given_back


def test_how_a_gpu_computes_is_in_its_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch would choose by release or by environment, and which ways are on; of a CPU nothing of it."""
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    plain = DeviceSpec(kind="cuda").execution()
    assert plain.items() >= {**MATHS, "connections": "32", "tf32_override": "0"}.items()
    assert "graphs" not in plain
    assert DeviceSpec(kind="cuda", graphs=True).execution()["graphs"] == "True"
    assert not {*MATHS, "connections", "graphs"} & set(DeviceSpec().execution())


def test_devices_are_counted_as_their_sensors_are() -> None:
    """Whatever the environment says of the order; of other things it may say what it likes."""
    code = "import hw, os; print(os.environ['CUDA_DEVICE_ORDER'], os.environ['CUDA_DEVICE_MAX_CONNECTIONS'])"
    told = {**os.environ, "CUDA_DEVICE_ORDER": "FASTEST_FIRST", "CUDA_DEVICE_MAX_CONNECTIONS": "4"}
    done = subprocess.run([sys.executable, "-c", code], env=told, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["PCI_BUS_ID", "4"]


def test_threads_of_a_pass_sleep_while_they_wait() -> None:
    """OpenMP's own way is to spin, on cores that other lanes need."""
    told = {**os.environ, "OMP_DISPLAY_ENV": "verbose"}
    code = "import hw.worker.instances"
    done = subprocess.run([sys.executable, "-c", code], env=told, capture_output=True, text=True, check=True)
    assert "GOMP_SPINCOUNT = '0'" in done.stderr


def test_how_threads_wait_is_in_a_profile_of_several(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes in parallel take other times by it; one thread waits for none."""
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    assert DeviceSpec(threads=2).execution()["wait_policy"] == "ACTIVE"
    assert "wait_policy" not in DeviceSpec().execution()


@pytest.mark.parametrize(("told", "wanted"), [(600 << 20, 600 << 20), (None, 1100 << 20)])
def test_a_context_is_this_processs_own(told: int | None, wanted: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though another one opens the device meanwhile; where nobody tells by process it is what the device lost."""
    nvml_device = FakeNvmlDevice(processes=[os.getpid(), 1], process_bytes={os.getpid(): told}, vram_used_bytes=1 << 30)
    opened: list[torch.device] = []

    def open_device(device: DeviceSpec) -> torch.device:
        nvml_device.vram_used_bytes += 1100 << 20  # this one's and another one's
        return PLACE

    monkeypatch.setattr("hw.worker.instances.load_nvml", lambda: FakeNvml(nvml_device))
    monkeypatch.setattr("hw.worker.instances.open_device", open_device)
    monkeypatch.setattr("hw.worker.instances._open_libraries", opened.append)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert open_measured(DeviceSpec(kind="cuda")) == (PLACE, wanted)
    assert opened == [PLACE]


def test_a_context_is_not_taken_for_that_of_an_worker_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody tells by process: they open the device one after another, whatever is started side by side."""
    nvml_device, size_bytes = FakeNvmlDevice(vram_used_bytes=1 << 30), 1100 << 20

    def open_device(device: DeviceSpec) -> torch.device:
        nvml_device.vram_used_bytes += size_bytes
        time.sleep(0.2)
        return PLACE

    monkeypatch.setattr("hw.worker.instances.load_nvml", lambda: FakeNvml(nvml_device))
    monkeypatch.setattr("hw.worker.instances.open_device", open_device)
    monkeypatch.setattr("hw.worker.instances._open_libraries", lambda place: None)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with ThreadPoolExecutor(2) as workers:
        assert list(workers.map(open_measured, [DeviceSpec(kind="cuda")] * 2)) == [(PLACE, size_bytes)] * 2


@pytest.mark.parametrize(
    "given, said",
    [
        ({"nvml_devices": 0}, ""),
        ({"built_for": None}, "is built without CUDA"),
        ({"serves": (11, 8)}, "serves CUDA 11.8, torch is built for 12.6; install a newer driver"),
        ({"serves": (12, 2)}, "torch does not"),  # a later minor version needs no newer driver
        ({"serves": None}, "torch does not"),
        ({"visible": "7"}, "CUDA_VISIBLE_DEVICES=7 hides it"),
        ({"mig": True}, "MIG is on; name an instance"),
    ],
)
def test_why_torch_sees_no_gpu(given: dict[str, Any], said: str) -> None:
    usual: dict[str, Any] = {
        "nvml_devices": 1,
        "driver": "560.1",
        "serves": (12, 6),
        "built_for": "12.6",
        "visible": None,
    }
    found = unseen(**{**usual, "mig": False, **given})
    assert (said in found) if said else found == ""


def test_a_stream_of_ones_own_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    made, current = itertools.count(1), ["default"]

    @contextmanager
    def stream(name: str) -> Iterator[None]:
        before, current[0] = current[0], name
        try:
            yield
        finally:
            current[0] = before

    monkeypatch.setattr("hw.worker.cuda.STREAMS", Streams(lambda place: f"stream {next(made)}"))
    monkeypatch.setattr("torch.cuda.stream", stream)
    place = torch.device("cuda", 0)

    def break_within() -> None:
        with own_stream(place):
            assert current == ["stream 1"]
            raise ValueError("within")

    for _ in range(2):
        with pytest.raises(ValueError, match="within"):
            break_within()
        assert current == ["default"]
    with own_stream(torch.device("cpu")):
        assert current == ["default"]
