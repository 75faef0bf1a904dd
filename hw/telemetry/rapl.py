"""Running average power limit (RAPL): the energy counters of whole CPU packages, as Linux shows them."""

from __future__ import annotations

import time  # noqa: TID251 - a sensor reads real clocks
from collections.abc import Callable, Mapping
from pathlib import Path

from hw.telemetry.cpu import CpuShare
from hw.telemetry.port import Reading, Sensor, Support
from policies.vocabulary import Provenance

POWERCAP = Path("/sys/class/powercap")


class RaplCounter:
    """The energy of all CPU packages, from the kernel's powercap files (they wrap; this does not).

    Raises:
        OSError: the counters are not there, or not readable by this user (`PermissionError`).
    """

    def __init__(self, root: Path = POWERCAP) -> None:
        self._zones = sorted(zone for zone in root.glob("intel-rapl:*") if _is_package(zone))
        if not self._zones:
            raise FileNotFoundError(f"no RAPL package under {root}")
        self._range_uj = [int((zone / "max_energy_range_uj").read_text()) for zone in self._zones]
        self._last_uj = [self._read(zone) for zone in self._zones]
        self._total_uj = 0

    @staticmethod
    def _read(zone: Path) -> int:
        return int((zone / "energy_uj").read_text())

    def energy_j(self) -> float:
        """Return the joules since this object was made; must be called more often than the counters wrap (minutes)."""
        now_uj = [self._read(zone) for zone in self._zones]
        for now, last, span in zip(now_uj, self._last_uj, self._range_uj, strict=True):
            self._total_uj += now - last if now >= last else now - last + span
        self._last_uj = now_uj
        return self._total_uj / 1e6


def _is_package(zone: Path) -> bool:
    """Return whether it is a package: its parts (`:0:0`) and the whole platform (`psys`) would count twice."""
    if zone.name.count(":") != 1:
        return False
    try:
        return (zone / "name").read_text().startswith("package")
    except FileNotFoundError:
        return True


def why_no_counter(error: OSError) -> str:
    """Return why `RaplCounter` could not be made, with the remedy."""
    if isinstance(error, PermissionError):
        return (
            "RAPL's counter may be read by administrators only; remedy: "
            f"sudo chmod a+r {POWERCAP}/intel-rapl:*/energy_uj, until the next boot"
        )
    return str(error)


class RaplSensor(Sensor):
    """CPU power from the packages' counters; for a device that is the whole CPU."""

    def __init__(self, counter: RaplCounter, share: CpuShare, vram_used_bytes: Callable[[], int]) -> None:
        self._counter = counter
        self._share = share
        self._vram_used_bytes = vram_used_bytes
        self._energy_j = counter.energy_j()
        self._at_ns = time.monotonic_ns()

    def supports(self) -> Mapping[str, Support]:
        """Return that everything is measured."""
        return {
            "power": Support(Provenance.MEASURED, "RAPL, whole packages"),
            "utilization": Support(Provenance.MEASURED, "CPU clocks of the server's processes"),
            "vram": Support(Provenance.MEASURED, "bytes of loaded weights"),
            "energy": Support(Provenance.MEASURED, "RAPL counter"),
        }

    def sample(self) -> Reading:
        """Read now; power is the counter's mean since the previous sample."""
        energy_j, now_ns = self.energy_j(), time.monotonic_ns()
        provenance = dict.fromkeys(("power_w", "utilization", "vram_used_bytes"), Provenance.MEASURED)
        power_w = None
        elapsed_s = (now_ns - self._at_ns) / 1e9
        if energy_j is None or elapsed_s <= 0:
            del provenance["power_w"]
        else:
            power_w = (energy_j - self._energy_j) / elapsed_s
            self._energy_j, self._at_ns = energy_j, now_ns
        return Reading(power_w, self._share.take(), self._vram_used_bytes(), provenance)

    def energy_j(self) -> float | None:
        """Return the packages' counter; None while it cannot be read."""
        try:
            return self._counter.energy_j()
        except (OSError, ValueError):
            return None
