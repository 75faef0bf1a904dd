"""Several routers in one run do the same in both engines: dealing, handing over, telling, and dying."""

from __future__ import annotations

from collections import Counter
from typing import Any, cast

import pytest

from kit.chance import stream
from policies.interfaces import RoutingPolicy
from policies.plan_of import plan_of
from policies.records import STAGES, RunRecord
from policies.rules.compass import CompassRule
from policies.rules.controlled import ControlSpec
from policies.rules.specs import LadderRule, RuleSpec
from sim.compiled.simulation import CompiledSimulation
from sim.divided import DividedSimulation
from tests.parity.compare import changed, compare, difference, play, reference
from tests.parity.draws import SeededDraws
from tests.parity.scenarios import Scenario, divided, draw_with_compass

SEEDS = range(40)


def drawn(seed: int) -> Scenario:
    """Undivided, if it has one device only."""
    draws = SeededDraws(seed)
    scenario = draw_with_compass(draws, f"seed {seed}")
    return scenario if scenario.parts else divided(draws, scenario)


def test_engines_agree_on_several_routers_step_by_step() -> None:
    """Of what may go wrong all does, in some of them."""
    happened, differences = Counter[str](), {}
    for scenario in map(drawn, SEEDS):
        if scenario.parts is None:
            continue
        engine: list[DividedSimulation] = []

        def kept(*given: Any, engine: list[DividedSimulation] = engine) -> DividedSimulation:
            engine.append(cast(DividedSimulation, reference(*given)))
            return engine[0]

        moments = list(play(kept, scenario))
        record = moments[-1].record
        assert record is not None
        happened["three routers"] += scenario.parts[0].count == 3
        happened["handed over"] += engine[0].handed_over
        happened["killed"] += len(engine[0].territory.alive) < scenario.parts[0].count
        if scenario.run.detail:
            struck = [each.stages_ns[STAGES.index("lost")] for each in record.requests if each.retries == 0]
            happened["sent again"] += any(struck)
        differences[scenario.name] = compare(scenario, CompiledSimulation, moments)
    assert {name: found for name, found in differences.items() if found is not None} == {}
    assert len(differences) > 15
    assert happened["handed over"] > 30
    assert min(happened[what] for what in ("three routers", "killed", "sent again")) > 3, happened


RULES: dict[str, RuleSpec] = {
    "ladder": LadderRule(placement="shortest-delay", thresholds=(1.0, 2.5, 4.0, 8.0)),
    "compass": CompassRule(),
    "controlled compass": CompassRule(control=ControlSpec(p99_limit_s=0.02)),
    "drawn": LadderRule(placement="power-of-two"),
}


@pytest.mark.parametrize("name", RULES)
def test_engines_agree_where_compiled_routers_decide(name: str) -> None:
    """Each has a plan, a stream and a limit of its own; the caller's are left as if they had been asked."""
    compared = [scenario for scenario in map(drawn, SEEDS) if scenario.parts is not None][:4]
    for scenario in compared:
        context, left = scenario.context(), list[tuple[RunRecord, RoutingPolicy, float]]()
        for make in (reference, CompiledSimulation):
            router, rng = RULES[name].make(context), stream(7, "router")
            assert plan_of(router, scenario.cluster.router) is not None, "it has no compiled form"
            record = make(scenario.cluster, scenario.run, scenario.parts).run(router, rng)
            left.append((changed(record, log=()), router, rng.random()))
        assert difference(left[0][0], left[1][0], scenario.name) is None
        assert left[0][1:] == left[1][1:]
