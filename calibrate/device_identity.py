"""Identity and state of a device before it is measured: its stamps, its use by other programs, and stamps compared.

The probe (`probe`) changes no clock, no limit and no mode, and opens no context on a GPU: bare idle power must still be
measurable.

Other programs (`Interference`): what they use of a device would be attributed to the device.

Stamps: a stamp is something that measurements depend on and that may have changed since: the device, the driver, a
library, the execution path. A stamp that a profile lacks is unknown, never assumed to be the same. The comparison of
stamps (`differences`) measures nothing.
"""

from __future__ import annotations

import os
import platform
import time  # noqa: TID251 - a share of real time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import psutil
import torch

from calibrate.datasheet import find_gpu, gpu_sensor
from calibrate.power_meter import RISE_S, Meter
from hw.device_settings import DeviceSpec
from hw.host_resources import core_count, machine_bytes
from hw.telemetry import (
    CoreWatch,
    NvmlSensor,
    Sensor,
    Used,
    cpu_name,
    cpu_sensor,
    device_label,
    nvml_device_facts,
    nvml_handle,
    process_cpu_s,
)
from hw.telemetry import Sensor as HardwareSensor
from hw.telemetry.background_load import NOTABLE, STRONG, Clock, CoreTimes, counted_times
from hw.telemetry.nvml import RefusedError, open_library
from kit.errors import InputError
from policies.vocabulary import NS_PER_S, Provenance
from sim.device_profile import DeviceInfo, Power, Profile, SensorModel


@dataclass(frozen=True, slots=True)
class Probe:
    """A device before anything runs on it.

    Attributes:
        info: its name, memory and stamps.
        metered: whether the sensor really measures power (otherwise it is modelled).
    """

    info: DeviceInfo
    metered: bool

    @property
    def limit_w(self) -> float | None:
        """The board's power limit, if it reports one."""
        limit_mw = self.info.stamps.get("power_limit_mw")
        return None if limit_mw is None else float(limit_mw) / 1e3


def probe(spec: DeviceSpec, sensor: HardwareSensor | None = None) -> Probe:
    """Inspect a device; takes well under a second.

    Args:
        sensor: the device's (`open_sensor`); opened temporarily by default.

    Raises:
        InputError: a GPU, but no NVML to ask it.
    """
    sensor = sensor or open_sensor(spec, ())
    power = sensor.supports()["power"].provenance
    telemetry = {f"telemetry_{name}": value for name, value in sensor.describe().items()}
    info = DeviceInfo(
        kind=spec.kind,
        name=device_name(spec),
        vram_bytes=spec.vram_bytes,
        stamps={**_machine(), **gpu_stamps(spec), **telemetry},
    )
    return Probe(info, power in (Provenance.MEASURED, Provenance.POLLED))


def device_name(spec: DeviceSpec) -> str:
    """Return the model name of the GPU or the processor; raises `InputError` if a GPU cannot be queried."""
    return device_label(*open_nvml(spec)) if spec.kind == "cuda" else cpu_name()


def open_sensor(spec: DeviceSpec, pids: tuple[int, ...]) -> HardwareSensor:
    """Open the device's sensor; on a CPU, utilization is that of these processes.

    Raises:
        InputError: a GPU, but no NVML to ask it.
    """
    if spec.kind == "cpu":
        return cpu_sensor(pids, spec.physical[1], spec.modelled_idle_w, spec.modelled_tdp_w, lambda: 0)
    return NvmlSensor(*open_nvml(spec))


def open_nvml(spec: DeviceSpec) -> tuple[Any, Any]:
    """Return NVIDIA's library and a GPU's handle in it; raises `InputError` if there is none."""
    try:
        nvml = open_library()
    except RefusedError as refused:
        problem = f"NVIDIA's management library (NVML) cannot be used: {refused}"
        raise InputError("device", f"cuda:{spec.index}", problem) from None
    return nvml, nvml_handle(nvml, spec.index)


def meter_of(spec: DeviceSpec, probed: Probe, sensor: HardwareSensor) -> Meter:
    """Return a meter on the device's sensor, before its trust is established."""
    name = f"cuda:{spec.index} ({probed.info.name})" if spec.kind == "cuda" else "cpu"
    return Meter(name, sensor, probed.limit_w, rise_s(sensor))


def rise_s(sensor: HardwareSensor) -> float:
    """Return the time after a step of the load in which the power reading still reflects the state before.

    At least a second, in which clocks and heat settle; more if the reading averages over a longer time, or rises
    slowly.
    """
    if not isinstance(sensor, NvmlSensor):
        return RISE_S
    lag_s = sensor.timing.window_of(sensor.instant) + sensor.timing.rise_s
    return RISE_S + (lag_s if lag_s > RISE_S / 4 else 0.0)


def power_model(
    spec: DeviceSpec, probed: Probe, bare: tuple[float, Provenance], context: tuple[float, Provenance]
) -> Power:
    """Return the measured idle powers, and the cap: the board's limit, or the assumed TDP."""
    if probed.limit_w is not None:
        cap_w, cap_provenance = probed.limit_w, Provenance.MEASURED
    else:
        assumed = assumed_power(spec, probed.info.name)
        cap_w, cap_provenance = assumed.tdp_w, assumed.provenance
    bare_w, context_w = min(bare[0], context[0]), context[0]  # a noisy sensor may see less under a context
    return Power(
        bare_idle_w=bare_w,
        context_idle_w=context_w,
        cap_w=max(cap_w, context_w),
        provenance=Provenance.weakest(bare[1], context[1], cap_provenance),
    )


def sensor_model(spec: DeviceSpec, period_s: float, sensor: HardwareSensor | None = None) -> SensorModel:
    """Return the simulator's model of the sensor, sampled every `period_s`.

    A modelled CPU sensor averages over its own period, without delay. A GPU's: see `gpu_sensor`.
    """
    if not isinstance(sensor, NvmlSensor):
        return SensorModel(period_s=period_s, lag_s=0.0, power_window_s=period_s, utilization_window_s=period_s)
    return gpu_sensor(sensor.timing, period_s, instant=sensor.instant)


# ---------------------------------------------------------------------------------------------------------- stamps


def _machine() -> dict[str, str]:
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "cpu": cpu_name(),
        "cpu_cores": str(core_count()),
        "memory_bytes": str(machine_bytes()),
    }


def gpu_stamps(spec: DeviceSpec) -> dict[str, str]:
    """Return driver, versions, clocks, temperature and limits of a GPU, as far as they are available."""
    if spec.kind == "cpu":
        return {}
    cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    versions = {"cuda": str(torch.version.cuda), "cudnn": str(cudnn)}
    return {**versions, **nvml_device_facts(*open_nvml(spec))}


# ----------------------------------------------------------------------------------------------------------- power


@dataclass(frozen=True, slots=True)
class AssumedPower:
    """Assumed powers, if nothing measures them."""

    idle_w: float
    tdp_w: float
    provenance: Provenance


def assumed_power(spec: DeviceSpec, name: str) -> AssumedPower:
    """Return given powers, assumed ones for the cores, or published ones; raises `InputError` if a GPU has none."""
    if spec.kind == "cpu":
        return AssumedPower(spec.modelled_idle_w, spec.modelled_tdp_w, Provenance.MODELLED)
    if spec.idle_w is not None and spec.tdp_w is not None:
        return AssumedPower(spec.idle_w, spec.tdp_w, Provenance.MODELLED)
    try:
        gpu = find_gpu(name)
    except InputError as error:
        problem = f"its power cannot be measured and none is published ({error.problem}); give its idle_w and tdp_w"
        raise InputError("device", f"cuda:{spec.index}", problem) from None
    return AssumedPower(gpu.idle_w, gpu.tdp_w, Provenance.DATASHEET)


# ------------------------------------------------------------------------------------------------------- other programs


LOOK_S = 0.5
LOOKS = 5
MAX_NAMED = 3  # programs named in a message


@dataclass(frozen=True, slots=True)
class Interference:
    """Use of a device by other programs.

    Attributes:
        share: share of the device's time, in [0, 1], including `stolen`; None if unknown.
        processes: number of other processes that have the device open; None likewise.
        location: the observed part of the machine, if it is not the whole device; for display.
        users: the programs that use it most, as far as known; for display.
        stolen: share taken by a virtual machine's host, as far as known.
    """

    share: float | None
    processes: tuple[int, ...] | None = None
    location: str = ""
    users: tuple[str, ...] = ()
    stolen: float = 0.0

    def __str__(self) -> str:
        share = "an unknown share" if self.share is None else f"{100 * (self.share - self.stolen):.0f} %"
        listed = ", ".join(map(str, self.processes or ()))
        stolen = f", this virtual machine's host {100 * self.stolen:.0f} %" if self.stolen > NOTABLE else ""
        return f"other programs use {share} of the device{f' (processes {listed})' if listed else ''}{stolen}"

    @property
    def details(self) -> str:
        """Place and users, as far as known: for display, not for a profile that is passed on."""
        users = f"most of it by {', '.join(self.users)}" if self.users else ""
        return "; ".join(text for text in (self.location, users) if text)

    @property
    def notable(self) -> bool:
        """Whether to warn the user."""
        return bool(self.processes) or (self.share is not None and self.share > NOTABLE)

    @property
    def is_busy(self) -> bool:
        """Whether others use so much that measurements would be invalid."""
        return self.share is not None and self.share > STRONG

    @property
    def warning(self) -> str:
        """The warning: what disturbs the measurement, and what to do; the same for all kinds of devices."""
        problem = f"{self}{f' ({self.details})' if self.details else ''}"
        if not self.is_busy:
            return f"{problem}: what is measured may be theirs, too"
        return f"{problem}, more than {100 * STRONG:.0f} %: what is measured would be theirs, too; stop them"


def require_quiet(device: str, interference: Interference, allow_busy: bool) -> None:
    """Raise `InputError` if others use so much of the device that measurements would be invalid."""
    if interference.is_busy and not allow_busy:
        remedy = "or allow it (--allow-busy, in a scenario calibration.allow_busy) and the profile records it"
        raise InputError("calibrate", device, f"{interference.warning}, {remedy}")


@dataclass(frozen=True, slots=True)
class Process:
    """A running program: its CPU time so far, and its last core."""

    name: str
    used_s: float
    core: int


Running = Callable[[], Mapping[int, Process]]  # by process id


def running() -> Mapping[int, Process]:
    """Return all processes that may be inspected."""
    processes = {}
    for process in psutil.process_iter(["name", "cpu_times", "cpu_num"]):
        name, times, core = (process.info[key] for key in ("name", "cpu_times", "cpu_num"))
        if times is not None and core is not None:
            processes[process.pid] = Process(name or "?", times.user + times.system, core)
    return processes


def on_cores(
    cores: Sequence[int],
    wait: Callable[[float], None] = time.sleep,
    core_times: CoreTimes = counted_times,
    clock: Clock = time.monotonic_ns,
    processes: Running = running,
) -> Interference:
    """Measure others' use of some cores over half a second, without this process and its children."""
    pids = [os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))]
    before, began_ns = processes(), clock()
    watch = CoreWatch([cores], lambda: {pid: Used(process_cpu_s(pid)) for pid in pids}, core_times, clock)
    wait(LOOK_S)
    load, elapsed_s = watch.take(), (clock() - began_ns) / NS_PER_S
    after = {pid: process for pid, process in processes().items() if process.core in cores and pid not in pids}
    location = f"core{'s' if len(cores) > 1 else ''} {', '.join(map(str, cores))}"
    users = _most(before, after, elapsed_s)
    if load is None:
        return Interference(None, location=location, users=users)
    return Interference(load.share, location=location, users=users, stolen=load.stolen)


def _most(before: Mapping[int, Process], after: Mapping[int, Process], elapsed_s: float) -> tuple[str, ...]:
    """Return the largest users, in shares of a core; processes started in between are left out."""
    shares = {pid: (after[pid].used_s - before[pid].used_s) / elapsed_s for pid in after if pid in before}
    largest = sorted(shares, key=lambda pid: -shares[pid])[:MAX_NAMED]
    return tuple(f"{after[pid].name} ({pid}) {100 * shares[pid]:.0f} %" for pid in largest if shares[pid] > NOTABLE)


def on_gpu(sensor: Sensor, processes: Sequence[int] | None, wait: Callable[[float], None] = time.sleep) -> Interference:
    """Measure others' use of a GPU that this process has not opened yet.

    Args:
        processes: other processes with a context on it; None if unknown.
    """
    shares = []
    for _ in range(LOOKS):
        wait(LOOK_S / LOOKS)
        share = sensor.sample().utilization
        shares += [] if share is None else [share]
    mean = sum(shares) / len(shares) if shares else None
    return Interference(mean, None if processes is None else tuple(processes))


# ------------------------------------------------------------------------------------------------- comparison of stamps


KIND, DEVICE = "kind", "device"
VERSIONS = ("driver", "cuda", "cudnn", "torch")
OF_A_GPU = ("driver", "cuda", "cudnn")  # a CPU has none
PLACES = ("torch", "device")  # of an execution path: listed among the versions, or only a place
CAPTURED = "captured"  # number of a GPU's passes that are replayed: known once a server's instances are loaded
_TITLES = {
    KIND: "kind of device",
    "driver": "NVIDIA driver",
    "cuda": "CUDA",
    "cudnn": "cuDNN",
    "memory_format": "memory format",
    "slicing": "slicing of weights",
    "cores": "CPU cores",
    "onednn": "oneDNN",
    "wait_policy": "OMP_WAIT_POLICY",
}


@dataclass(frozen=True, slots=True)
class Difference:
    """A stamp that differs, or is unknown on one side; None: unknown."""

    stamp: str
    profile: str | None
    here: str | None

    def __str__(self) -> str:
        profile = "the profile does not say" if self.profile is None else f"the profile has {self.profile}"
        here = "here it is unknown" if self.here is None else f"here it is {self.here}"
        return f"{self.title}: {profile}, {here}; {self._remedy}"

    @property
    def title(self) -> str:
        """The stamp's name for display."""
        return _TITLES.get(self.stamp, self.stamp)

    @property
    def _remedy(self) -> str:
        if self.stamp in (KIND, DEVICE):
            return "calibrate this device"
        if self.stamp in VERSIONS:
            return "`slimsched profile check` shows whether the profile still holds"
        return "run the device as it was calibrated, or calibrate it again"


def stamps_of(profile: Profile) -> dict[str, str]:
    """Return a profile's stamps of the stack on which it was measured."""
    recorded = profile.device.stamps
    versions = {name: recorded[name] for name in VERSIONS if name in recorded}
    if "torch" in profile.execution:
        versions["torch"] = profile.execution["torch"]
    return {KIND: profile.device.kind, DEVICE: profile.device.name, **versions, **_path(profile.execution)}


def stamps_here(device: DeviceSpec) -> dict[str, str]:
    """Return the same stamps of a device of this machine as it would be used now, without unavailable ones."""
    versions = {"torch": str(torch.__version__)}
    if device.kind == "cuda":
        versions |= {name: value for name, value in gpu_stamps(device).items() if name in OF_A_GPU}
    return {KIND: device.kind, DEVICE: device_name(device), **versions, **_path(device.execution())}


def differences(profile: Mapping[str, str], here: Mapping[str, str]) -> tuple[Difference, ...]:
    """Return every stamp that differs between the two; for another device or kind, only that one."""
    for stamp in (KIND, DEVICE):
        if profile.get(stamp) != here.get(stamp):
            return (Difference(stamp, profile.get(stamp), here.get(stamp)),)
    expected = [name for name in VERSIONS if here.get(KIND) == "cuda" or name not in OF_A_GPU]
    pairs = {name: (profile.get(name), here.get(name)) for name in (*expected, *here, *profile)}
    return tuple(Difference(name, *pair) for name, pair in pairs.items() if None in pair or pair[0] != pair[1])


def require_model(profile: Profile, model_hash: str, source: str, key: str) -> None:
    """Check that a profile is of this network's weights.

    Raises:
        InputError: it is of another model.
    """
    if profile.model.hash != model_hash:
        problem = f"the profile is of model {profile.model.name} ({profile.model.hash[:12]}), this is {model_hash[:12]}"
        remedy = "calibrate this model, or name the one that the profile is of"
        raise InputError(source, key, f"{problem}; {remedy}")


def require_captured(profile: Profile, captured: int, warmed: int, source: str, key: str) -> None:
    """Check that a server replays the same share of its passes as during its calibration.

    Args:
        captured, warmed: passes of the server's loaded instances that are replayed, and all warmed ones.

    Raises:
        InputError: the share differs: passes run eagerly in one of the two, which takes up to twice as long.
    """
    recorded = profile.execution.get(CAPTURED, "1 of 1" if "graphs" in profile.execution else "0 of 1")
    of_profile, all_of_profile = map(int, recorded.split(" of "))
    if warmed and captured * all_of_profile != of_profile * warmed:
        problem = f"{captured} of {warmed} passes are captured here, {recorded} when {profile.name} was calibrated"
        remedy = "calibrate again with this torch and driver, or run the network that the profile is of"
        raise InputError(source, key, f"{problem}; {remedy}")


def _path(execution: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in execution.items() if name not in (*PLACES, CAPTURED)}
