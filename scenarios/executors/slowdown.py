"""The actual slowdown of the devices during a run on the hardware, for its paired simulation to replay.

How fast a virtual machine's core is depends on its host's other tenants: like the arrivals, it comes from outside, and
a simulation that draws it at random is compared with another run than the one that was made. Agents on CPUs read a
fixed piece of work between their batches (`hw.host.core_speed`); the profile has its time at full speed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from policies.records import RunRecord
from sim.profile import Profile
from sim.tables import DeviceTables

SMOOTHED = 3  # readings; a single long one was interrupted
FASTEST, SLOWEST = 0.9, 5.0  # times full speed: what is beyond was not a reading of the slowdown

Changes = tuple[tuple[int, float], ...]


def observed_slowdowns(record: RunRecord, devices: Sequence[DeviceTables], owners: Sequence[int]) -> dict[int, Changes]:
    """Return, by device, (when, how many times as long things take from then on); of those that were read.

    Args:
        owners: for each server the index of its device.
    """
    by_server = {}
    for index, tables in enumerate(devices):
        readings = sorted((at, read_s) for server, at, read_s in record.references if owners[server] == index)
        changes = _changes(readings, tables.profile)
        if changes:
            by_server[index] = changes
    return by_server


def mean_slowdown(changes: Changes, until_ns: int) -> float:
    """Return the average over the time from the start of a run."""
    times = [at for at, _ in changes] + [max(until_ns, changes[-1][0] + 1)]
    lasted = np.diff(np.asarray(times, dtype=np.float64))
    return float(np.average([factor for _, factor in changes], weights=lasted))


def _changes(readings: Sequence[tuple[int, float]], profile: Profile) -> Changes:
    """Return the changes: each reading holds from half-way after the one before; the first one from the start."""
    slowdown = profile.slowdown
    if slowdown is None or not slowdown.reference_s or len(readings) < SMOOTHED:
        return ()
    times = np.asarray([at for at, _ in readings], dtype=np.float64)
    slow = np.asarray([read_s for _, read_s in readings]) / slowdown.reference_s
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(slow, SMOOTHED // 2, mode="edge"), SMOOTHED)
    factors = np.clip(np.median(windows, axis=1) ** slowdown.reference_exponent, FASTEST, SLOWEST)
    starts = np.concatenate([[0.0], (times[1:] + times[:-1]) / 2])
    return tuple((int(start), float(factor)) for start, factor in zip(starts, factors, strict=True))
