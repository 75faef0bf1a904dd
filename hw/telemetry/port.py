"""The port of telemetry: what a sensor supports, what it reads, and the sensor that supports nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from policies.vocabulary import Provenance


@dataclass(frozen=True, slots=True)
class Support:
    """Whether a sensor reports a field.

    Attributes:
        provenance: of the field's values; None if the sensor does not report it.
        how: by which means it is reported, or why it is not, with the remedy if there is one; may be empty.
    """

    provenance: Provenance | None
    how: str = ""

    def __str__(self) -> str:
        word = self.provenance.value if self.provenance else "absent"
        return f"{word} ({self.how})" if self.how else word


@dataclass(frozen=True, slots=True)
class Reading:
    """One sample.

    Attributes:
        power_w: of the device; None if no sensor reports it.
        utilization: share in [0, 1] of the time that the device was busy since the previous sample; None likewise.
        vram_used_bytes: device memory in use; None likewise.
        provenance: of each field that is not None, by its name.
        lost: the device is gone (fallen off the bus, driver dead): nothing will be reported any more.
    """

    power_w: float | None
    utilization: float | None
    vram_used_bytes: int | None
    provenance: Mapping[str, Provenance]
    lost: bool = False


@dataclass(frozen=True, slots=True)
class Details:
    """Calibration's readings in addition to `Reading`; too slow for a scheduler's period. None if not reported.

    Attributes:
        power_average_w: the reading that the board itself averages, mostly over a second.
        sm_utilization, sm_occupancy, dram_bandwidth: shares in [0, 1] since the previous details: of the
            multiprocessors with work, of their warps in use, of the memory's peak bandwidth.
        sm_clock_mhz, temperature_c: now.
        throttling: why the clocks are lower than they could be; empty if they are not.
    """

    power_average_w: float | None = None
    sm_utilization: float | None = None
    sm_occupancy: float | None = None
    dram_bandwidth: float | None = None
    sm_clock_mhz: int | None = None
    temperature_c: int | None = None
    throttling: tuple[str, ...] | None = None


class Sensor:
    """One device's telemetry; this one has none at all."""

    def supports(self) -> Mapping[str, Support]:
        """Return how `power`, `utilization`, `vram`, `energy` and any other fields are reported, or why not."""
        return dict.fromkeys(("power", "utilization", "vram", "energy"), Support(None))

    def sample(self) -> Reading:
        """Read now."""
        return Reading(None, None, None, {})

    def details(self) -> Details:
        """Read the details now."""
        return Details()

    def energy_j(self) -> float | None:
        """Return a counter of joules from any origin, or None if there is none."""
        return None

    def describe(self) -> dict[str, str]:
        """Return `supports` in words, for people and for stamps."""
        return {name: str(support) for name, support in self.supports().items()}
