"""What a picture of a run's verdict shows: each router's mean latency and accuracy, in the worlds where it ran."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from scenarios.metrics.comparison import Comparison
from scenarios.metrics.fidelity import Validation
from scenarios.metrics.standing import compared, validated
from scenarios.metrics.statistics import Estimate


@dataclass(frozen=True, slots=True)
class StandingBar:
    """A router's mean latency in each world where it ran, and its accuracy there (a share)."""

    router: str
    simulated_s: Estimate | None = None
    hardware_s: Estimate | None = None
    simulated_accuracy: float | None = None
    hardware_accuracy: float | None = None

    @property
    def means_s(self) -> list[float]:
        """Those that are known, the measured one first."""
        known = [found["mean"] for found in (self.hardware_s, self.simulated_s) if found is not None]
        return [mean for mean in known if mean is not None]


def standing_bars(comparison: Comparison | None, validation: Validation | None) -> Iterator[StandingBar]:
    """Of the routers that executors ran, else of those that were compared."""
    if validation is not None and validation.get("rows"):
        real, promised = validated(validation, "hardware"), validated(validation, "simulated")
        for one in real.contenders:
            twin = promised.of(one.router)
            yield StandingBar(
                one.router,
                simulated_s=None if twin is None else twin.interval_s,
                hardware_s=one.interval_s,
                simulated_accuracy=None if twin is None else twin.accuracy,
                hardware_accuracy=one.accuracy,
            )
    elif comparison is not None:
        for one in compared(comparison).contenders:
            yield StandingBar(one.router, simulated_s=one.interval_s, simulated_accuracy=one.accuracy)
