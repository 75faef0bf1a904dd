"""What workers read of their cores' slowdown becomes the slowdown of the paired simulation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from policies.run_records import RunRecord
from scenarios.executors.validation_plan import mean_slowdown, observed_slowdowns
from sim.device_tables import DeviceTables, compile_tables
from tests import tiny

REFERENCE_S = 3e-5
SLOWDOWN: dict[str, Any] = {
    "slow_factor": 1.5, "slow_share": 0.4, "mean_slow_s": 0.1, "reference_s": REFERENCE_S, "reference_exponent": 2.0,
    "provenance": "measured",
}  # fmt: skip


def tables(**changes: Any) -> DeviceTables:
    return compile_tables(tiny.profile(**changes), 32)


def record(*references: tuple[int, int, float], **changes: Any) -> RunRecord:
    return replace(RunRecord(10**9, (), (), (), (), (), (), (), 1, references=references), **changes)


def test_readings_become_changes_of_their_device() -> None:
    """Two servers on the first device, one without a slowdown in its profile on the second; the exponent is applied."""
    readings = [
        (server, at * 10**8 + server, REFERENCE_S * (1.2 if at > 4 else 1.0)) for at in range(10) for server in (0, 1)
    ]
    found = observed_slowdowns(record(*readings, (2, 5, REFERENCE_S)), [tables(slowdown=SLOWDOWN), tables()], [0, 0, 1])
    assert list(found) == [0]
    starts, factors = zip(*found[0], strict=True)
    assert starts[0] == 0
    assert list(starts) == sorted(starts)
    assert factors == pytest.approx([1.0] * 10 + [1.44] * 10)
    assert mean_slowdown(found[0], 10**9) == pytest.approx((0.45 + 0.55 * 1.44), rel=0.02)


def test_slowdown_ignores_a_single_long_reading_as_an_interrupt() -> None:
    for readings, factor in (([9.0 if at == 5 else 1.0 for at in range(10)], 1.0), ([9.0] * 10, 5.0)):
        record_of_one = record(*((0, at * 10**8, REFERENCE_S * times) for at, times in enumerate(readings)))
        (changes,) = observed_slowdowns(record_of_one, [tables(slowdown=SLOWDOWN)], [0]).values()
        assert {each for _, each in changes} == {factor}


def test_a_twin_without_slowdowns_draws_its_own() -> None:
    """The named stream of the profile's spells; with the run's own, the same run again."""
    spec = tiny.cluster([tiny.profile("a", slowdown=SLOWDOWN)])
    plain = tiny.run(spec, tiny.poisson_s(50, 2.0), 2.0)
    always_slow = replace(plain, slowdowns={0: ((0, 3.0),)})
    drawn, slow = (tiny.simulate(spec, run)[1] for run in (plain, always_slow))
    took = [np.mean([r.finished_ns - r.arrived_ns for r in found.requests]) for found in (drawn, slow)]
    assert took[1] > 1.2 * took[0]
