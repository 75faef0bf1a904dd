"""Shares of a GPU by MPS: the daemon's start and end, with a stand-in for its control program."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from hw import device_settings
from hw.device_settings import DeviceSpec
from scenarios.executors import device_choice
from scenarios.files.scenario_keys import DeviceSection, ServerSection

SHARES = {"large": 25, "medium": 12, "small": 6}


@pytest.fixture(autouse=True)
def no_daemon(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[object]]:
    """None is named, none is remembered; what would run at the exit is collected instead."""
    ends: list[object] = []
    monkeypatch.delenv(device_settings._PIPES, raising=False)
    monkeypatch.delenv(device_settings._LOGS, raising=False)
    monkeypatch.setattr("atexit.register", ends.append)
    device_settings.start_daemon.cache_clear()
    yield ends
    for name in (device_settings._PIPES, device_settings._LOGS):
        os.environ.pop(name, None)
    device_settings.start_daemon.cache_clear()


def control(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> Path:
    """A control program that notes what it is asked in the folder of its pipes."""
    path = folder / device_settings.CONTROL
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder / "asked"


WORKS = 'if [ "$1" = -d ]; then exit 0; fi; read word; echo $word >> "$(dirname "$0")/asked"; echo 100.0'


def test_the_daemon_is_named_to_later_processes_and_ends_with_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_daemon: list[object]
) -> None:
    asked = control(tmp_path, monkeypatch, WORKS)
    assert device_settings.start_daemon() == ""
    folder = Path(os.environ[device_settings._PIPES])
    assert folder.is_dir()
    end = no_daemon[-1]
    assert callable(end)
    end()
    assert asked.read_text().split() == ["get_default_active_thread_percentage", "quit"]
    assert not folder.exists()


@pytest.mark.parametrize("script", ["exit 3", "sleep 30", 'if [ "$1" = -d ]; then exit 0; fi; echo cannot connect'])
def test_a_daemon_that_does_not_answer_is_a_reason_and_leaves_nothing(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_settings, "_START_S", 0.5)
    control(tmp_path, monkeypatch, script)
    assert "does not come up within" in device_settings.start_daemon()
    assert device_settings._PIPES not in os.environ


def test_a_share_without_mps_is_repeats_of_each_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """25, 12 and 6 % are once, twice and four times the work; the stamps of both ways differ. A CPU has no share."""
    servers = tuple(
        ServerSection(name=name, device=DeviceSection(kind="cuda", sm_percent=share)) for name, share in SHARES.items()
    )
    beside = (*servers, ServerSection(name="cpu", device=DeviceSection()))
    monkeypatch.setattr(device_choice, "start_daemon", lambda: "nvidia-cuda-mps-control is not installed")
    without = [device_choice.device_of(server, beside) for server in servers]
    assert [(device.sm_percent, device.repeats) for device in without] == [(None, 1), (None, 2), (None, 4)]
    assert "computes each pass 4 times" in device_choice.share_warning("small", without[2])
    assert device_choice.share_warning("large", without[0]) == ""
    monkeypatch.setattr(device_choice, "start_daemon", lambda: "")
    by_mps = [device_choice.device_of(server, servers) for server in servers]
    assert [(device.sm_percent, device.repeats) for device in by_mps] == [(25, 1), (12, 1), (6, 1)]
    assert by_mps[2].execution()["sm_percent"] == "6"
    assert without[2].execution()["repeats"] == "4"


def test_a_whole_gpu_has_no_stamp_of_a_share() -> None:
    assert not {"sm_percent", "repeats"} & set(DeviceSpec("cuda").execution())
