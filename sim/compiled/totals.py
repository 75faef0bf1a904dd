"""The energy and work of a compiled engine's device, read from its cluster's row."""

from __future__ import annotations

from policies.vocabulary import NS_PER_S
from sim.compiled.layout import Device
from sim.compiled.run import RunRow


def device_of(run: RunRow, index: int) -> Device:
    """Return a device's record."""
    return Device(run.cluster, run.shape.p.devices_at, index)


def chores_ns(device: Device, now_ns: int) -> int:
    """Return how long the device's passes were stopped since its last change."""
    return max(0, min(device.chores_until_ns, now_ns) - max(device.paused_from_ns, device.updated_ns))


def awake_ns(device: Device, stays_ns: int, now_ns: int) -> int:
    """Return how long clocks stayed up without work since the device's last change."""
    if device.count > 0 or device.passes_ended_ns == 0:
        return 0
    return max(0, min(now_ns, device.passes_ended_ns + stays_ns) - device.updated_ns)


def energy_j(run: RunRow, index: int, ended_ns: int) -> float:
    """Return a device's energy since the run's start."""
    device, tables = device_of(run, index), run.program.cluster.devices[index]
    elapsed_ns, chored_ns = ended_ns - device.updated_ns, chores_ns(device, ended_ns)
    drawn_mw_ns = device.power_mw * (elapsed_ns - chored_ns) + max(device.power_mw, tables.chores_mw) * chored_ns
    drawn_mw_ns += tables.awake_mw * awake_ns(device, tables.awake_ns, ended_ns)
    energy_mj = (device.energy_mw_ns + drawn_mw_ns) / NS_PER_S
    return energy_mj / 1000
