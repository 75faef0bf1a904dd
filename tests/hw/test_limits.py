"""What a process may use: control groups of both versions, as containers, Slurm and systemd set them."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from hw import host_resources
from hw.device_settings import local_devices

V1 = "3:memory:/docker/a\n2:cpu,cpuacct:/docker/a\n1:name=systemd:/docker/a\n0::/docker/a\n"


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A root without limits, on a machine of 64 cores and 9 TiB."""
    monkeypatch.setattr(host_resources, "CGROUPS", tmp_path)
    monkeypatch.setattr(host_resources, "MEMBERSHIP", tmp_path / "membership")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=9 << 40))
    return tmp_path


@pytest.mark.parametrize(
    "membership, files, cores, memory_bytes",
    [
        (None, {}, 64, 9 << 40),
        ("0::/\n", {"cpu.max": "250000 100000\n", "memory.max": "3000000000\n"}, 3, 3_000_000_000),
        ("0::/\n", {"cpu.max": "max 100000\n", "memory.max": "max\n"}, 64, 9 << 40),
        ("0::/slurm/job 7/step\n", {"slurm/job 7/cpu.max": "400000 100000\n", "slurm/memory.max": "5\n"}, 4, 5),
        ("0::/a/b\n", {"a/cpu.max": "200000 100000\n", "a/b/cpu.max": "800000 100000\n"}, 2, 9 << 40),
        ("0::/a\n", {"a/cpu.max": "5000 100000\n"}, 1, 9 << 40),
        (V1, {"cpu/cpu.cfs_quota_us": "150000", "cpu/cpu.cfs_period_us": "50000"}, 3, 9 << 40),
        (V1, {"cpu/docker/a/cpu.cfs_quota_us": "-1", "cpu/docker/a/cpu.cfs_period_us": "100000"}, 64, 9 << 40),
        (V1, {"memory/docker/a/memory.limit_in_bytes": "7000000\n"}, 64, 7_000_000),
        (V1, {"memory/memory.limit_in_bytes": "9223372036854771712\n"}, 64, 9 << 40),
        (V1, {"blkio/cpu.max": "100000 100000", "memory/other/memory.limit_in_bytes": "7"}, 64, 9 << 40),
    ],
)
def test_limits_count_as_what_there_is(
    membership: str | None, files: dict[str, str], cores: int, memory_bytes: int, groups: Path
) -> None:
    """Its own group's and those above it, the least of them; another group's do not."""
    for name, text in {**files, **({"membership": membership} if membership else {})}.items():
        (groups / name).parent.mkdir(parents=True, exist_ok=True)
        (groups / name).write_text(text)
    assert (host_resources.core_count(), host_resources.machine_bytes()) == (cores, memory_bytes)


def test_a_quota_leaves_devices_no_more_threads(groups: Path) -> None:
    (groups / "membership").write_text("0::/\n")
    (groups / "cpu.max").write_text("600000 100000\n")
    assert [device.threads for device in local_devices()] == [4, 2]


@pytest.mark.parametrize(
    ("gpus", "cores", "cluster"),
    [
        (1, 16, [("cuda", tuple(range(1, 8)), 1), ("cpu", tuple(range(8, 16)), 8)]),
        (1, 2, [("cuda", (), 1), ("cpu", (1,), 1)]),
        (2, 16, [("cuda", (), 1), ("cuda", (), 1)]),
    ],
)
def test_a_lone_gpu_has_a_cpu_beside_it(
    gpus: int, cores: int, cluster: list[tuple[str, tuple[int, ...], int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cluster of one server leaves nothing to choose; one core is the router's where there are enough."""
    monkeypatch.setattr("hw.device_settings.usable_cores", lambda: tuple(range(cores)))
    monkeypatch.setattr("hw.device_settings.core_count", lambda: cores)
    monkeypatch.setattr("hw.device_settings.gpu_bytes", lambda index: 8 << 30)
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    assert [(device.kind, device.cores, device.threads) for device in local_devices()] == cluster


@pytest.mark.parametrize(
    ("soft", "hard", "after"), [(100, 500, 300), (100, 200, 200), (100, -1, 300), (400, 500, 400), (-1, -1, -1)]
)
def test_as_many_descriptors_as_wanted_and_allowed(
    soft: int, hard: int, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = [(soft, hard)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limit[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, wanted: limit.append(wanted))
    host_resources.allow_descriptors(300)
    assert limit[-1] == (after, hard)


def test_an_affinity_is_the_most(groups: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {5})
    (groups / "membership").write_text("0::/\n")
    (groups / "cpu.max").write_text("600000 100000\n")
    assert host_resources.core_count() == 1
