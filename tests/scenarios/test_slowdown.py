"""What agents read of their cores' slowdown becomes the slowdown of the simulated twin."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from policies.records import RunRecord
from scenarios.executors.campaign import Campaign
from scenarios.executors.slowdown import mean_slowdown, observed_slowdowns
from scenarios.world.world import World
from sim.tables import DeviceTables, compile_tables
from tests import worlds
from tests.scenarios.test_campaign import plan, side, world  # noqa: F401 - a fixture

REFERENCE_S = 3e-5
SLOWDOWN: dict[str, Any] = {
    "slow_factor": 1.5, "slow_share": 0.4, "mean_slow_s": 0.1, "reference_s": REFERENCE_S, "reference_exponent": 2.0,
    "provenance": "measured",
}  # fmt: skip


def tables(**changes: Any) -> DeviceTables:
    return compile_tables(worlds.profile(**changes), 32)


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


def test_each_repeat_has_a_twin_at_its_own_slowdown(world: World) -> None:  # noqa: F811
    """The second repeat's device was slow throughout: its twin is slower than the first one's; with nothing read, one
    twin serves both."""
    runs: list[int] = []

    def slowdowns_of(_: RunRecord) -> dict[int, tuple[tuple[int, float], ...]]:
        runs.append(len(runs))
        return dict.fromkeys(range(len(world.cluster.devices)), ((0, 1.0 + runs[-1]),))

    asked: list[Any] = []
    simulated = side(world, asked)
    repeated = plan(world, ("jsq",), repeats=2)
    found = list(Campaign(repeated, simulated, side(world, []), (), slowdowns_of).carry_out())
    first, second = (each.run["simulated"]["latency_s"]["mean"] for each in found)
    assert first is not None
    assert second is not None
    assert second > 1.5 * first
    assert [job.slowdowns[0][0][1] for job in asked if not job.is_probe] == [1.0, 2.0]
    assert found[1].simulated is None  # the first one's record is kept
    assert [each.run["slowdown"] for each in found] == pytest.approx([1.0, 2.0])
    asked.clear()
    list(Campaign(repeated, simulated, side(world, [])).carry_out())
    assert len(asked) == 1


def test_a_twin_without_slowdowns_draws_its_own() -> None:
    """The named stream of the profile's spells; with the run's own, the same run again."""
    spec = worlds.cluster([worlds.profile("a", slowdown=SLOWDOWN)])
    plain = worlds.run(spec, worlds.poisson_s(50, 2.0), 2.0)
    always_slow = replace(plain, slowdowns={0: ((0, 3.0),)})
    drawn, slow = (worlds.simulate(spec, run)[1] for run in (plain, always_slow))
    took = [np.mean([r.finished_ns - r.arrived_ns for r in found.requests]) for found in (drawn, slow)]
    assert took[1] > 1.2 * took[0]
