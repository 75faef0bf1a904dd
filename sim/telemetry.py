"""A server's sensor: at every period it reads averages over the last window, with the age of a real reading."""

from __future__ import annotations

from collections import deque

from sim.physics import SimulatedDevice


class WindowedSensor:
    """Averages of power and utilization over whole periods up to the latest; before the first the device was idle."""

    def __init__(self, device: SimulatedDevice) -> None:
        tables = device.tables
        self._device = device
        self._period_ns = tables.period_ns
        self._windows = (tables.power_window, tables.utilization_window)
        self._readings: deque[tuple[int, float, float]] = deque(maxlen=max(self._windows) + 1)

    def read(self, now_ns: int) -> tuple[float, float]:
        """Return (power_w, utilization) now."""
        device = self._device
        self._readings.append((now_ns, device.energy_mj(now_ns), device.busy_ms(now_ns)))
        power_window, utilization_window = self._windows
        idle_w = device.tables.context_idle_mw / 1000
        return self._average(1, power_window, idle_w), self._average(2, utilization_window, 0.0)

    def _average(self, column: int, window: int, idle: float) -> float:
        """Return an average over the last `window` periods; both integrals are in thousandths times seconds."""
        latest, earlier = self._readings[-1], self._readings[max(0, len(self._readings) - 1 - window)]
        elapsed_ns = latest[0] - earlier[0]
        idle_ns = max(0, window * self._period_ns - elapsed_ns)
        return ((latest[column] - earlier[column]) * 1e6 + idle * idle_ns) / (elapsed_ns + idle_ns)

    def restart(self) -> None:
        """Reset to a new server without a past."""
        self._readings.clear()
