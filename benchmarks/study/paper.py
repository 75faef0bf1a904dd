"""The paper's results for its routers (arXiv 2510.09018, Tables III to V), for tables that compare ours with them.

Its column "Latency (ms)" is in seconds: energy / latency is 219, 166 and 178 W, which only seconds give.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PaperRow:
    """One router of the paper; `_std` is over images (of `gpu_var`: over readings), as in a result.

    Attributes:
        latency_change_pct, energy_change_pct: against random routing, from the paper's text.
    """

    table: str
    accuracy_pct: float
    latency_s: float
    latency_std_s: float
    energy_j: float
    energy_std_j: float
    gpu_var: float
    gpu_var_std: float
    images: int
    latency_change_pct: float | None = None
    energy_change_pct: float | None = None


RANDOM = PaperRow("III", 74.43, 8.979, 7.302, 1967.94, 1629.53, 0.0433, 0.0216, 250_906)
HEAVY = PaperRow("IV", 70.30, 0.318, 0.755, 52.85, 131.46, 0.0633, 0.0571, 420_538, -96.45, -97.31)
RELAXED = PaperRow("V", 75.26, 6.100, 11.673, 1085.41, 2125.62, 0.0815, 0.0374, 196_947, -32.0, -45.0)
RELAXED_CUT_PCT = -80.0  # required change of latency and energy against random routing with the relaxed weights


def is_replica(scenario: str) -> bool:
    """Return whether a scenario claims by its name to be the paper's."""
    return scenario.startswith("paper")
