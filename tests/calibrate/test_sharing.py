"""What running together costs, as observed."""

from __future__ import annotations

import pytest

from calibrate.measurement_bench import TogetherResult
from calibrate.measurement_plan import Together
from calibrate.sharing_and_energy import observed_sets
from hw.transport.messages import Point


@pytest.mark.parametrize(("exponent", "slow_down"), [(1.0, 2.0), (2.0, 1.0), (0.0, 4.0)])
def test_slow_downs_leave_out_what_the_reference_was_slower_by(exponent: float, slow_down: float) -> None:
    """Alone at full speed, together at half of it by the reference, in four times the time."""
    step = Together((Point(0, 1.0, 1.0, 4),))
    result = TogetherResult((0.01,), (0.04,), (1.0,), (2.0,))
    (found,) = observed_sets([(step, result)], held_out=False, reference_exponent=exponent)
    assert found.finished == pytest.approx([slow_down])
