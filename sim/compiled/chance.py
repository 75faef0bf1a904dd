"""`kit.chance.hashed`, compiled."""

from __future__ import annotations

import numpy as np

from kit.jit import kernel


@kernel
def _mixed(mixed: np.uint64, number: int) -> np.uint64:
    mixed = mixed + (np.uint64(number) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


@kernel
def hashed_below(salt: int, first: int, second: int, limit: int) -> int:
    """Compute `hashed(...) % limit`."""
    return np.int64(_mixed(_mixed(np.uint64(salt), first), second) % np.uint64(limit))  # type: ignore[return-value]


@kernel
def hashed_share(salt: int, first: int, second: int) -> float:
    """Compute `kit.chance.hashed_share`."""
    return np.float64(_mixed(_mixed(np.uint64(salt), first), second) >> np.uint64(11)) * 2.0**-53
