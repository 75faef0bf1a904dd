"""A price of device time that follows the load: what Tide's ladder takes for its load (docs/tide.md).

    price = exp(level) (1 + n / 8) ^ rise          n: requests inside for each server that is up

The price is how much accuracy a unit of device time must bring.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log
from typing import Final

FEW: Final = 8.0  # requests: from here on a load counts by its logarithm
MOST: Final = 50.0  # of a price's logarithm, either way: beyond, nothing changes


@dataclass(frozen=True, slots=True)
class Price:
    """Its logarithm with nobody inside, and what that gains for each time that the load is e times as large."""

    level: float
    rise: float

    def of(self, load: float) -> float:
        """The price at a load."""
        return exp(min(max(self.level + self.rise * log(1.0 + load / FEW), -MOST), MOST))
