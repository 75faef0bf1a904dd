"""`policies.rules.price`, compiled."""

from __future__ import annotations

from math import exp, log

from kit.jit import kernel
from policies.compiled.record import REAL, Record
from policies.rules.price import FEW, MOST


class Price(Record):
    """`Price`."""

    level = rise = REAL


@kernel
def price_of(price: Price, load: float) -> float:
    """`Price.of`."""
    return exp(min(max(price.level + price.rise * log(1.0 + load / FEW), -MOST), MOST))
