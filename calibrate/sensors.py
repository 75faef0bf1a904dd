"""The simulator's model of a GPU's power sensor, measured or published: its lag and its windows."""

from __future__ import annotations

from hw.telemetry import Timing
from hw.telemetry.nvml import UTILIZATION_WINDOW_S
from sim.profile import SensorModel


def gpu_sensor(timing: Timing, period_s: float, *, instant: bool) -> SensorModel:
    """Return the model of a sensor that is read every `period_s`.

    A GPU renews its reading at its own period, so it is half of that old on average, and half of its rise; it averages
    over the architecture's window.

    Args:
        instant: whether the board's instant reading is used.
    """
    return SensorModel(
        period_s=period_s,
        lag_s=round((timing.period_s + timing.rise_s) / 2, 6),
        power_window_s=max(period_s, timing.window_of(instant)),
        utilization_window_s=max(period_s, UTILIZATION_WINDOW_S),
    )
