"""Named random streams: one seed and a separate stream for each consumer, so that a new consumer shifts no other's
draws."""

from __future__ import annotations

from zlib import crc32

import numpy as np

_MASK = (1 << 64) - 1


def stream(seed: int, name: str) -> np.random.Generator:
    """Return the generator of one consumer (`arrivals`, `router:jsq` ...), determined by seed and name alone."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, crc32(name.encode())])))


def derived_seed(seed: int, name: str) -> int:
    """Return a seed for a consumer that takes an integer."""
    return int(np.random.SeedSequence([seed, crc32(name.encode())]).generate_state(1)[0])


def hashed(salt: int, first: int, second: int) -> int:
    """Return 64 well-mixed bits of three numbers: stateless random draws that both engines share.

    SplitMix64's finalizer (Steele, Lea and Flood 2014), applied once for each number.
    """
    mixed = salt & _MASK
    for number in (first, second):
        mixed = (mixed + (number + 1) * 0x9E3779B97F4A7C15) & _MASK
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        mixed ^= mixed >> 31
    return mixed


def hashed_share(salt: int, first: int, second: int) -> float:
    """Return `hashed` as a number in [0, 1)."""
    return (hashed(salt, first, second) >> 11) * 2.0**-53
