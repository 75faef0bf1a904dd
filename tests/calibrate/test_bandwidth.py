"""Bandwidth of a device whose copies and waits take known times: what asking costs is not taken for the memory's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from calibrate.measurement_bench import (
    COPIES,
    IN_A_ROW,
    bandwidth_bytes_s,
    cpu_bandwidth_bytes_s,
    row_bandwidth_bytes_s,
)
from hw.device_settings import DeviceSpec
from kit.errors import WorkError

NBYTES = 1 << 28
COPY_NS, WAIT_NS = 125_000, 12_000


class FakeMemory:
    """A tensor on a device with a clock of its own."""

    def __init__(self) -> None:
        self.device, self.nbytes, self.now_ns, self.waits = "cuda", NBYTES, 0, 0

    def copy_(self, source: object) -> None:
        self.now_ns += COPY_NS

    def wait(self, place: object) -> None:
        self.now_ns += WAIT_NS
        self.waits += 1


def test_asking_for_a_copy_is_not_taken_for_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """One copy at a time would read a tenth low."""
    memory = FakeMemory()
    monkeypatch.setattr("calibrate.measurement_bench.torch", SimpleNamespace(zeros_like=lambda source: source))
    monkeypatch.setattr("calibrate.measurement_bench.time", SimpleNamespace(monotonic_ns=lambda: memory.now_ns))
    found = row_bandwidth_bytes_s(cast(Any, memory), memory.wait)
    true = 2 * NBYTES / (COPY_NS / 1e9)
    assert 0.99 * true < found < true
    assert memory.waits == 2 * (COPIES + 1)
    assert 2 * NBYTES / ((COPY_NS + WAIT_NS) / 1e9) < 0.92 * true < 0.92 * found * (1 + 1 / IN_A_ROW)


def test_a_gpu_that_fails_is_named() -> None:
    """In a process of its own: here it has no such device, or none at all."""
    with pytest.raises(WorkError, match=r"^cuda:99: no bandwidth could be measured \(.+\)$"):
        bandwidth_bytes_s(DeviceSpec(kind="cuda", index=99))


def test_a_cpus_memory_has_some_bandwidth() -> None:
    assert 1e8 < cpu_bandwidth_bytes_s(1) < 1e12
