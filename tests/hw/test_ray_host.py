"""What a host keeps for a cluster, without Ray: the model's file, what workers print, and workers that nobody wants."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import cast

import pytest

from hw.device_settings import DeviceSpec
from hw.networks.network_files import ModelFile
from hw.router import ray_workers as ray_host
from hw.router.ray_workers import MAX_LOGS, FarStart, Supervisor, cache, facts, fresh_log, kept, kept_logs
from hw.transport.peers import fresh_certificate
from hw.worker.lanes import WorkerSpec
from hw.worker.torch_outfit import TorchOutfit
from kit.errors import WorkError
from kit.plugins import code_here
from tests.hw.fake_nvml import FakeNvml, FakeNvmlDevice


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_a_model_is_kept_under_its_hash_and_only_once() -> None:
    content = b"weights" * 1000
    path = kept(content)
    assert path.read_bytes() == content
    assert path.stem == hashlib.sha256(content).hexdigest()
    before = path.stat().st_mtime_ns
    assert kept(content) == path
    assert path.stat().st_mtime_ns == before
    path.write_bytes(content[:-1])
    assert kept(content).read_bytes() == content


def test_a_host_without_room_for_the_model_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(WorkError, match=r"7 bytes of the model can't be kept in .*No space left.*make room there"):
        kept(b"weights")
    assert not [path for path in (cache() / "models").iterdir() if path.suffix == ".safetensors"]


def test_printed_output_is_kept_for_a_limited_number_of_workers() -> None:
    for number in range(MAX_LOGS + 5):
        path = fresh_log(f"server{number}")
        path.write_bytes(b"" if number % 2 else b"said")
        os.utime(path, (number, number))
    assert len(list((cache() / ray_host.LOGS).iterdir())) == MAX_LOGS
    told = kept_logs()
    assert set(told.values()) == {b"said"}
    assert not any(name.startswith("server0-") for name in told)
    assert any(name.startswith(f"server{MAX_LOGS + 4}-") for name in told)


def test_an_worker_that_nobody_wants_any_more_is_not_started() -> None:
    spec = WorkerSpec("late", TorchOutfit(DeviceSpec(), ModelFile(Path("none")), (), 0))
    keeper = Supervisor()
    keeper.end(3)
    keeper.signal(3, 9)
    told = keeper.run(FarStart(spec, 0, 1, 64, 3, "127.0.0.1:1", "127.0.0.1", b""), None)
    assert told == "it was given up before it began"


def test_an_worker_that_finds_no_router_ends_and_says_why() -> None:
    spec = WorkerSpec("lost", TorchOutfit(DeviceSpec(), ModelFile(Path("none")), (), 0))
    told = Supervisor().run(FarStart(spec, 0, 1, 64, 1, "127.0.0.1:1", "127.0.0.1", fresh_certificate()), None)
    assert told == "exit code 1"
    ((name, content),) = kept_logs().items()
    assert name.startswith("lost-")
    assert b"Connection refused" in content


def test_a_host_with_a_lost_gpu_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        sys.modules, "pynvml", cast(ModuleType, FakeNvml(FakeNvmlDevice(name="A"), FakeNvmlDevice(lost=True)))
    )
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert facts("alpha").devices[:2] == ("cuda:0 (A, 8.6 GB)", "cuda:1 (can't be used: GPU is lost)")


def test_a_host_says_what_it_is() -> None:
    found = facts("alpha")
    assert (found.host, found.code, found.machine) == ("alpha", code_here(), ray_host.machine())
    assert found.cores >= 1
    assert 0 < found.free_bytes <= found.memory_bytes
    assert any(device.startswith("cpu (") for device in found.devices)
