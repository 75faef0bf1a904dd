"""Identity and state of a device before anything runs on it: its stamps, its sensor, its powers.

It changes no clock, no limit and no mode, and opens no context on a GPU: bare idle power must still be measurable.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import torch

from calibrate.datasheet import find_gpu
from calibrate.meter import RISE_S, Meter
from calibrate.sensors import gpu_sensor
from hw.device import DeviceSpec
from hw.host.limits import core_count, machine_bytes
from hw.telemetry import NvmlSensor, board_facts, cpu_name, cpu_sensor, device_label, nvml_handle
from hw.telemetry import Sensor as HardwareSensor
from hw.telemetry.library import RefusedError
from hw.telemetry.nvml import open_library
from kit.errors import InputError
from policies.vocabulary import Provenance
from sim.profile import DeviceInfo, Power, SensorModel


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
    info = DeviceInfo(
        kind=spec.kind,
        name=device_name(spec),
        vram_bytes=spec.vram_bytes,
        stamps={**_machine(), **gpu_stamps(spec), **{f"telemetry_{k}": v for k, v in sensor.describe().items()}},
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
    return {**versions, **board_facts(*open_nvml(spec))}


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
