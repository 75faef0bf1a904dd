"""A profile is as wrong as it says: at batch sizes that are left out, and between rounds."""

from __future__ import annotations

import numpy as np
import pytest

from calibrate.profile_fit import left_out, repeatability
from sim.device_model import interpolate_latency_s
from sim.device_profile import LatencyCurve


@pytest.mark.parametrize("rounds", [2, 3, 6])
def test_repeatability_does_not_depend_on_the_number_of_rounds(rounds: int) -> None:
    """Two normal measurements with a deviation of 1 % lie 2 / sqrt(pi) % apart on average, however many there are."""
    draws = 1 + 0.01 * np.random.default_rng(1).standard_normal((4000, rounds))
    (found,) = repeatability(draws.tolist())
    assert found.mean_abs_pct == pytest.approx(2 / np.sqrt(np.pi), rel=0.03)
    assert found.points == 4000 * rounds * (rounds - 1) // 2
    assert list(repeatability([[1.0], [2.0]])) == []  # one round tells nothing


def test_a_size_is_predicted_from_the_others() -> None:
    shares = (0.5,) * 4
    known = LatencyCurve(
        segment=1,
        width=1.0,
        previous_width=0.0,
        batches=(1, 2, 4, 8),
        mean_s=(1.0, 2.0, 5.0, 8.0),
        p50_s=(1.0, 2.0, 5.0, 8.0),
        utilization=shares,
        energy_j_per_image=shares,
        host_share=shares,
        bandwidth_share=shares,
    )
    expected = [
        (interpolate_latency_s((1, 4, 8), (1.0, 5.0, 8.0), 2), 2.0),
        (interpolate_latency_s((1, 2, 8), (1.0, 2.0, 8.0), 4), 5.0),
    ]
    assert list(left_out(known)) == expected
