"""The reference beside each pass tells full speed from slow spells."""

from __future__ import annotations

import numpy as np
import pytest

from calibrate.measurement_bench import SlowdownLook, at_full_speed, look

PASS_S, REFERENCE_S = 1e-3, 3e-5


def chain(slow_share: float, mean_slow_s: float, factor: float, passes: int) -> tuple[list[float], list[float]]:
    """Passes one after the other on a device that is slow now and then, and their references, a little noisy."""
    rng = np.random.default_rng(1)
    leave = PASS_S * factor / mean_slow_s
    enter = PASS_S / (mean_slow_s * (1 - slow_share) / slow_share)
    state, repeats_s, references_s = False, [], []
    for draw, noise in zip(rng.random(passes), rng.normal(1.0, 0.02, passes), strict=True):
        state = draw >= leave if state else draw < enter
        repeats_s.append(PASS_S * (factor if state else 1.0))
        references_s.append(REFERENCE_S * noise * (1.4 if state else 1.0))
    return repeats_s, references_s


def test_spells_are_seen() -> None:
    found = look(*chain(0.4, 0.1, 1.5, 200_000))
    assert found.mean_slow_s == pytest.approx(0.1, rel=0.3)  # the shortest ones count as interrupts
    assert found.best_s == pytest.approx(REFERENCE_S, rel=0.06)
    assert found.full_s == pytest.approx(REFERENCE_S, rel=0.01)


def test_a_steady_device_has_no_spells() -> None:
    """Noise of 2 % and a single interrupted pass make none."""
    rng = np.random.default_rng(0)
    references_s = REFERENCE_S * rng.normal(1.0, 0.02, 1000)
    references_s[500] *= 10
    found = look([PASS_S] * 1000, references_s.tolist())
    assert found.mean_slow_s == 0.0
    assert found.full_s == pytest.approx(REFERENCE_S, rel=0.01)


def test_without_references_nothing_is_said() -> None:
    """A GPU has none."""
    assert look([1.0, 2.0], []) == SlowdownLook(0.0, 0.0, 0.0)


def test_passes_are_sorted_by_the_reference_and_not_by_their_own_time() -> None:
    """A slow pass beside a quick reference is the device's own, and stays."""
    assert at_full_speed([1.0, 1.1, 1.3, 2.0], 1.0).tolist() == [True, True, False, False]
