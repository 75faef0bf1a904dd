"""What a device says of itself before anything runs on it, who else is there, and what it means for its powers."""

from __future__ import annotations

import os
import sys
from collections import namedtuple
from collections.abc import Sequence
from types import ModuleType
from typing import Any, cast

import pynvml
import pytest
import torch

from calibrate.device_identity import (
    Interference,
    Probe,
    Process,
    assumed_power,
    meter_of,
    on_cores,
    on_gpu,
    open_sensor,
    power_model,
    probe,
    require_quiet,
    sensor_model,
)
from calibrate.device_opening import interference, naming_a_lost_device
from calibrate.measurement_bench import bandwidth_bytes_s
from hw.device_settings import DeviceSpec
from hw.telemetry import NvmlSensor, usable_cores
from kit.errors import InputError, WorkError
from policies.vocabulary import Provenance
from sim.device_profile import DeviceInfo
from tests.hw.fake_nvml import AMPERE, HOPPER, MAXWELL, TURING, VOLTA, FakeNvml, FakeNvmlDevice, Handle, Make

CUDA = DeviceSpec(kind="cuda", vram_bytes=8 << 30)


def test_power_model_keeps_idle_below_context_below_cap() -> None:
    """A noisy sensor may see less under a context, or more than the limit; the weakest provenance wins."""
    found = Probe(DeviceInfo(kind="cpu", name="x", vram_bytes=1, stamps={"power_limit_mw": "25000"}), True)
    measured, polled = (30.0, Provenance.MEASURED), (28.0, Provenance.POLLED)
    power = power_model(DeviceSpec(), found, measured, polled)
    assert (power.bare_idle_w, power.context_idle_w, power.cap_w) == (28.0, 28.0, 28.0)
    assert power.provenance == Provenance.POLLED


def test_a_probe_says_what_the_device_is() -> None:
    """Name, date, versions, and for each sensor where it comes from; bandwidth is that of a real memory."""
    spec = DeviceSpec(cores=usable_cores()[:1])
    found = probe(spec)
    assert {"date", "torch", "cpu", "telemetry_power"} <= set(found.info.stamps)
    assert sensor_model(DeviceSpec(), 0.2).power_window_s == 0.2
    assert 1e8 < bandwidth_bytes_s(spec) < 1e13


# --------------------------------------------------------------------------------------------------------- of a GPU


@pytest.fixture
def nvml_device(monkeypatch: pytest.MonkeyPatch) -> FakeNvmlDevice:
    found = FakeNvmlDevice(HOPPER, "NVIDIA H200")
    monkeypatch.setitem(sys.modules, "pynvml", cast(ModuleType, FakeNvml(found)))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return found


def test_a_gpu_is_probed_without_a_context(nvml_device: FakeNvmlDevice) -> None:
    """Stamps say what it is, how each field is told, and no CUDA context exists afterwards."""
    found = probe(CUDA)
    stamps = found.info.stamps
    assert (found.info.name, found.metered, found.limit_w) == ("NVIDIA H200", True, 500.0)
    wanted = {"driver", "cuda", "cudnn", "torch", "sm_clock_mhz", "memory_clock_mhz", "temperature_c"}
    assert wanted | {"power_limit_mw", "mig_mode", "architecture", "throttling"} <= set(stamps)
    assert stamps["telemetry_power"] == "polled (NVML, instant)"
    assert stamps["telemetry_energy"] == "measured (NVML counter)"
    assert not torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    assert meter_of(CUDA, found, open_sensor(CUDA, ())).device == "cuda:0 (NVIDIA H200)"


def test_work_that_failed_with_its_device_names_it(nvml_device: FakeNvmlDevice) -> None:
    """A worker only knows that a call failed; other failures are left alone."""
    meter = meter_of(CUDA, probe(CUDA), open_sensor(CUDA, ()))

    def fail(problem: str) -> None:
        with naming_a_lost_device(meter):
            raise WorkError(problem)

    with pytest.raises(WorkError, match=r"^worker x died$"):
        fail("worker x died")
    nvml_device.lost = True
    with pytest.raises(WorkError, match=r"^cuda:0 \(NVIDIA H200\) is lost; reset or reboot it \(worker x died\)$"):
        fail("worker x died")
    with pytest.raises(WorkError, match=r"^cuda:0 \(NVIDIA H200\) is lost: it answers no more$"):
        fail("cuda:0 (NVIDIA H200) is lost: it answers no more")


def test_a_gpu_without_a_library_or_a_place_is_refused(
    nvml_device: FakeNvmlDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match="cuda:3: NVML has no such device"):
        probe(DeviceSpec(kind="cuda", index=3))
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(InputError, match=r"cuda:0: NVIDIA's management library.*not installed; remedy: pip install"):
        probe(CUDA)
    for code, words in (
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "NVML Shared Library Not Found; the NVIDIA driver"),
        (pynvml.NVML_ERROR_NO_PERMISSION, "only administrators may read this here"),
    ):
        monkeypatch.setitem(sys.modules, "pynvml", cast(ModuleType, FakeNvml(nvml_device, init_error=code)))
        with pytest.raises(InputError, match=words):
            probe(CUDA)


def test_power_that_nothing_measures_is_given_or_published(nvml_device: FakeNvmlDevice) -> None:
    nvml_device.refused = dict.fromkeys(
        ("nvmlDeviceGetPowerUsage", "NVML_FI_DEV_POWER_INSTANT", "NVML_FI_DEV_POWER_AVERAGE"),
        pynvml.NVML_ERROR_NOT_SUPPORTED,
    )
    assert not probe(CUDA).metered
    assert assumed_power(CUDA, "NVIDIA H200").provenance == Provenance.DATASHEET
    given = assumed_power(DeviceSpec(kind="cuda", idle_w=5.0, tdp_w=50.0), "NVIDIA Imaginary 1")
    assert (given.idle_w, given.tdp_w, given.provenance) == (5.0, 50.0, Provenance.MODELLED)
    with pytest.raises(InputError, match="give its idle_w and tdp_w"):
        assumed_power(CUDA, "NVIDIA Imaginary 1")


@pytest.mark.parametrize(
    "make, instant, lag_s, power_window_s",
    [
        (MAXWELL, False, 0.2225, 0.1),
        (VOLTA, False, 0.01, 0.1),
        (TURING, False, 0.05, 0.1),
        (AMPERE, True, 0.05, 0.1),
        (HOPPER, True, 0.05, 0.1),
        (HOPPER, False, 0.05, 1.0),
    ],
)
def test_the_simulators_sensor_is_the_architectures(
    make: Make, instant: bool, lag_s: float, power_window_s: float
) -> None:
    """Half a renewal (and half a slow rise) old, averaging over the window of the reading that is used."""
    refused = {} if instant else {"NVML_FI_DEV_POWER_INSTANT": pynvml.NVML_ERROR_NOT_SUPPORTED}
    seen = FakeNvmlDevice(make, refused=refused)
    model = sensor_model(CUDA, 0.1, NvmlSensor(FakeNvml(seen), Handle(seen), seen.now_ns))
    assert (model.period_s, model.utilization_window_s) == (0.1, 1.0)
    assert model.lag_s == pytest.approx(lag_s)
    assert model.power_window_s == power_window_s


# ------------------------------------------------------------------------------------------------ who else is there

Times = namedtuple("Times", "user system idle iowait steal guest")


class Machine:
    """Two cores of which each is busy for a share of the time; `wait` is the only clock that goes on."""

    def __init__(self, *busy: float) -> None:
        self._busy = busy
        self._now_s = 0.0

    def wait(self, seconds: float) -> None:
        self._now_s += seconds

    def now_ns(self) -> int:
        return round(self._now_s * 1e9)

    def core_times(self) -> Sequence[Any]:
        # a guest's time is counted in its user's too; a stolen core is as good as busy
        return [
            Times(0.6 * b * s, 0.3 * b * s, 0.5 * (1 - b) * s, 0.5 * (1 - b) * s, 0.1 * b * s, 0.6 * b * s)
            for b, s in ((busy, 100.0 + self._now_s) for busy in self._busy)
        ]


@pytest.mark.parametrize("cores, share", [((0,), 0.8), ((1,), 0.1), ((0, 1), 0.45)])
def test_probe_measures_the_use_of_pinned_cores_by_other_processes(cores: tuple[int, ...], share: float) -> None:
    """Waiting for a disk is idle, a stolen core is in use, and a guest counts once."""
    machine = Machine(0.8, 0.1)
    found = on_cores(cores, machine.wait, machine.core_times, machine.now_ns)
    assert found.share == pytest.approx(share, abs=0.02)


def test_a_refusal_names_the_cores_and_who_uses_them() -> None:
    """The largest users on these cores, in shares of a core; not those elsewhere, nor what hardly runs."""
    machine = Machine(0.0, 0.8)

    def processes() -> dict[int, Process]:
        now_s = machine.now_ns() / 1e9
        return {
            900001: Process("busy", 0.7 * now_s, 1),
            900002: Process("elsewhere", 0.9 * now_s, 0),
            900003: Process("asleep", 0.01 * now_s, 1),
            os.getpid(): Process("ours", 0.5 * now_s, 1),
        }

    found = on_cores((1,), machine.wait, machine.core_times, machine.now_ns, processes)
    assert found.users == ("busy (900001) 70 %",)
    with pytest.raises(InputError, match=r"72 % of the device, this virtual machine.s host 8 % \(core 1; most of it"):
        require_quiet("A Processor", found, allow_busy=False)
    require_quiet("A Processor", found, allow_busy=True)
    assert "busy" not in str(found)  # whose programs they were is not for a profile that is passed on


def test_ones_own_use_of_the_cores_is_no_interference() -> None:
    """All that a core did is taken off, but for the ticks of 10 ms that a process's own time is counted in."""
    begin = os.times()

    def work(_: float) -> None:
        while os.times().user + os.times().system < begin.user + begin.system + 0.5:
            pass

    def core_times() -> Sequence[Any]:
        return [Times(os.times().user, os.times().system, os.times().elapsed, 0.0, 0.0, 0.0)]

    found = on_cores((0,), work, core_times)
    assert found.share is not None
    assert found.share < 0.2


@pytest.mark.parametrize("load, notable, refused", [(0.0, False, False), (1.0, True, True)])
def test_a_busy_gpu_is_refused(nvml_device: FakeNvmlDevice, load: float, notable: bool, refused: bool) -> None:
    """By its utilization before anything of ours runs; the message names the metric and the way out."""
    nvml_device.load = load
    nvml_device.advance(1.5)
    found = on_gpu(open_sensor(CUDA, ()), (), nvml_device.advance)
    assert found.notable == notable
    if refused:
        with pytest.raises(InputError, match=r"cuda:0: other programs use 100 % of the device.*--allow-busy"):
            require_quiet("cuda:0", found, allow_busy=False)
    require_quiet("cuda:0", found, allow_busy=True)
    require_quiet("cuda:0", Interference(0.29), allow_busy=False)


def test_processes_on_a_quiet_gpu_are_told_and_allowed(nvml_device: FakeNvmlDevice) -> None:
    """A notebook that holds memory but computes nothing; our own process is none of them."""
    nvml_device.processes = [os.getpid(), 4242]
    found = interference(CUDA, open_sensor(CUDA, ()))
    assert (found.share, found.processes) == (0.0, (4242,))
    assert str(found) == "other programs use 0 % of the device (processes 4242)"
    assert found.notable
    require_quiet("cuda:0", found, allow_busy=False)
    nvml_device.mig, nvml_device.processes = True, []  # no share is not zero
    found = interference(CUDA, open_sensor(CUDA, ()))
    assert (str(found), found.notable) == ("other programs use an unknown share of the device", False)
