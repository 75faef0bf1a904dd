"""The device's speed during a measurement: full speed, or slowed by what its host lends to others.

Half of a virtual machine's core may be lent to another tenant: for milliseconds to seconds everything then takes half
as long again, and no counter of the guest shows it. A fixed piece of work next to each pass, the reference, does
(`hw.agent.benchmarks`): its time against the best one classifies the passes. This module uses no profile and measures
nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

SLACK = 1.2  # a larger ratio of a reference to the best one means slowed; 90 % of fast ones are below 1.07
BEST_SHARE = 0.02  # quantile of the best reference
EXPONENT = 0.7  # the default: between 0.62 and 0.80 in six long runs on an AMD EPYC virtual machine
SHORTEST_SPELL_S = 0.01  # anything shorter is an interrupt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class SlowdownLook:
    """Result of observing consecutive passes for a while.

    Attributes:
        best_s: the best reference; 0 if there is none (a GPU).
        full_s: the typical one at full speed (its median there).
        mean_slow_s: mean duration of a slow spell; 0 if there was none.
    """

    best_s: float
    full_s: float
    mean_slow_s: float


@dataclass(frozen=True, slots=True)
class Speed:
    """Relation of reference times to the speed of passes.

    Attributes:
        best_s: the best reference; 0 if there is none.
        full_s: the typical one at full speed.
        exponent: if the reference is x times slower, passes are x to this power slower.
    """

    best_s: float
    full_s: float
    exponent: float = EXPONENT


def look(repeats_s: Sequence[float], references_s: Sequence[float]) -> SlowdownLook:
    """Evaluate consecutive passes, and the reference next to each."""
    if not references_s:
        return SlowdownLook(0.0, 0.0, 0.0)
    best_s = float(np.quantile(references_s, BEST_SHARE))
    times_s = np.asarray(repeats_s)
    smoothed_s = _smoothed(np.asarray(references_s), 1 + 2 * int(SHORTEST_SPELL_S / np.median(times_s)))
    is_slow = smoothed_s > SLACK * best_s
    spells = int(is_slow[0]) + int(np.count_nonzero(~is_slow[:-1] & is_slow[1:]))
    full_s = best_s if is_slow.all() else float(np.median(smoothed_s[~is_slow]))
    return SlowdownLook(best_s, full_s, float(times_s[is_slow].sum()) / max(1, spells))


def at_full_speed(references_s: npt.ArrayLike, best_s: float) -> npt.NDArray[np.bool_]:
    """Return for each pass whether the device was at full speed next to it."""
    return np.asarray(references_s) <= SLACK * best_s


def _smoothed(values: Floats, window: int) -> Floats:
    """Return the median of each value and its neighbours, `window` of them in all (an odd number)."""
    if len(values) < window:
        return values
    padded = np.pad(values, window // 2, mode="edge")
    return np.asarray(np.median(np.lib.stride_tricks.sliding_window_view(padded, window), axis=1))
