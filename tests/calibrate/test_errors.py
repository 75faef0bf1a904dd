"""A profile is as wrong as it says: at batch sizes that were not fitted, from four of them, and between rounds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from calibrate.errors import AFFINE_ERROR, FOUR_POINT_ERROR, REPEATABILITY, SOLO_ERROR, solo_errors
from calibrate.samples import Pooled, Samples
from hw.transport.messages import Point
from sim.interpolation import interpolate_latency_s
from sim.profile import LatencyCurve, StatedError

KEY = (1, 1.0, 0.0)


def curve(batches: Sequence[int], values_s: Sequence[float]) -> LatencyCurve:
    """Only its batch sizes and latencies matter."""
    shares = (0.5,) * len(batches)
    return LatencyCurve(
        segment=KEY[0],
        width=KEY[1],
        previous_width=KEY[2],
        batches=tuple(batches),
        mean_s=tuple(values_s),
        p50_s=tuple(values_s),
        utilization=shares,
        energy_j_per_image=shares,
        host_share=shares,
        bandwidth_share=shares,
    )


def told(
    known: LatencyCurve, held_out_s: dict[int, float], rounds_s: dict[int, Sequence[float]] | None = None
) -> dict[str, StatedError]:
    """All but the cross-validated errors, by their metric."""
    held_out = {Point(*KEY, batch): Pooled.of([Samples(1, (s,))]) for batch, s in held_out_s.items()}
    rounds = {Point(*KEY, batch): medians_s for batch, medians_s in (rounds_s or {}).items()}
    found = solo_errors(held_out, {KEY: known}, rounds, left_out=[])
    return {error.metric: error for error in found if error.kind != "cross-validated"}


def test_a_fitted_batch_size_is_not_held_out() -> None:
    """Measured a second time it tells how far two measurements lie apart, and nothing of sizes in between."""
    found = told(curve((1, 2, 3), (1.0, 2.0, 3.0)), {2: 2.2}, {2: [2.0]})
    assert set(found) == {REPEATABILITY}
    assert found[REPEATABILITY].mean_abs_pct == pytest.approx(100 * 0.2 / 2.1)
    both = told(curve((1, 2, 4), (1.0, 2.0, 4.0)), {2: 2.2, 3: 2.5}, {2: [2.0]})
    assert both[SOLO_ERROR].points == 1
    assert both[SOLO_ERROR].max_abs_pct == pytest.approx(20.0)


@pytest.mark.parametrize("rounds", [2, 3, 6])
def test_repeatability_does_not_depend_on_the_number_of_rounds(rounds: int) -> None:
    """Two normal measurements with a deviation of 1 % lie 2 / sqrt(pi) % apart on average, however many there are."""
    draws = 1 + 0.01 * np.random.default_rng(1).standard_normal((4000, rounds))
    known = curve((1, 5000), (1.0, 1.0))
    found = told(known, {}, {batch: row.tolist() for batch, row in enumerate(draws, start=1)})[REPEATABILITY]
    assert found.mean_abs_pct == pytest.approx(2 / np.sqrt(np.pi), rel=0.03)
    assert found.points == 4000 * rounds * (rounds - 1) // 2


def test_from_four_sizes_is_what_a_profile_of_four_would_replay() -> None:
    """PCHIP through 1, 4, 16 and 64; where latency bends, that is not what max(t0, c0 + c1 b) says."""

    def truth(batch: int) -> float:
        return float(1.0 + 0.02 * batch**1.5)

    batches = (1, 2, 4, 8, 16, 32, 64)
    known = curve(batches, [truth(b) for b in batches])
    replayed = interpolate_latency_s((1, 4, 16, 64), [truth(b) for b in (1, 4, 16, 64)], 24)
    found = told(known, {24: truth(24)})
    assert found[FOUR_POINT_ERROR].mean_abs_pct == pytest.approx(100 * abs(replayed / truth(24) - 1))
    assert found[AFFINE_ERROR].mean_abs_pct > 2 * found[FOUR_POINT_ERROR].mean_abs_pct
    straight = curve(batches, [1.0 + 0.1 * b for b in batches])
    assert told(straight, {24: 3.4})[AFFINE_ERROR].mean_abs_pct == pytest.approx(0.0, abs=1e-6)
