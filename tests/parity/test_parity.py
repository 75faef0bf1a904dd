"""The compiled engine does what the reference does: same decisions, views, credits and records, to the last bit.

`make parity` runs ten thousand scenarios; here are a hundred, and one for every rule of ties.
"""

from __future__ import annotations

import inspect
from collections import Counter
from importlib import import_module

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from policies.faults import Crash, Slowness
from policies.interfaces import RewardTerms
from sim.compiled.compiled_simulation import CompiledSimulation
from tests import tiny
from tests.parity.compare import changed, compare, difference, play, reference
from tests.parity.directed import PLACES, Directed, pairs, scenes
from tests.parity.draws import HypothesisDraws, SeededDraws
from tests.parity.mutants import ROWS, source_mutants
from tests.parity.scenarios import Scenario, as_a_family, draw_scenario, in_racks, sampled

SEEDS = range(100)
SCENES = {scene.name: scene for scene in scenes()}


def test_each_rule_that_is_broken_on_purpose_has_its_place() -> None:
    """Where code has moved, `make parity` would break nothing; a place that is lost raises."""
    for mutant in source_mutants():
        with pytest.MonkeyPatch.context() as patch:
            mutant.break_it(patch)
    for name, (module, old, *_) in ROWS["compiled"].items():
        assert inspect.getsource(import_module(f"sim.compiled.{module}")).count(old) == 1, name


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    """Whole scenarios; hypothesis shrinks them, too."""
    return draw_scenario(HypothesisDraws(draw), "drawn")


@settings(max_examples=40, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(scenarios())
def test_engines_agree_on_whatever_hypothesis_draws(scenario: Scenario) -> None:
    assert compare(scenario, CompiledSimulation) is None


def test_engines_agree_on_seeded_scenarios() -> None:
    drawn = (draw_scenario(SeededDraws(seed), f"seed {seed}") for seed in SEEDS)
    found = {scenario.name: compare(scenario, CompiledSimulation) for scenario in drawn}
    assert {name: difference for name, difference in found.items() if difference is not None} == {}


def test_engines_agree_on_families() -> None:
    drawn = (as_a_family(draw_scenario(SeededDraws(seed), f"seed {seed}")) for seed in SEEDS[:40])
    found = {scenario.name: compare(scenario, CompiledSimulation) for scenario in drawn}
    assert {name: difference for name, difference in found.items() if difference is not None} == {}


def test_engines_agree_where_decisions_look_at_some_servers_in_racks() -> None:
    drawn = (sampled(draw_scenario(SeededDraws(seed), f"seed {seed}"), 1 + seed % 3) for seed in SEEDS[:40])
    found = {scenario.name: compare(in_racks(scenario), CompiledSimulation) for scenario in drawn}
    assert {name: difference for name, difference in found.items() if difference is not None} == {}


def _served(nests: tuple[int, ...]) -> tuple[Counter[object], Counter[object]]:
    """Images by server, segment and width: as the router decided, and as batches ran, each as its instance is."""
    spec = tiny.cluster(
        [tiny.profile(name, speed=speed, load_s=0.002) for name, speed in (("a", 1.0), ("b", 0.4))],
        router={"micro_batch_sizes": (1, 2, 4, 8)},
        greedy={"batch_limit": 8, "nests": nests, "served_width": "instance"},
    )
    scenario = Scenario("nests", spec, tiny.run(spec, tiny.poisson_s(600, 0.3), 0.3), "random")
    record = list(play(reference, scenario))[-1].record
    assert record is not None
    decided, ran = Counter[object](), Counter[object]()
    for micro_batch in record.micro_batches:
        decided[micro_batch.server, micro_batch.head.segment, micro_batch.width] += micro_batch.size
    for batch in record.batches:
        ran[batch.server, batch.segment, batch.width] += batch.size
    return decided, ran


def test_a_family_serves_each_request_by_the_member_it_was_sent_to() -> None:
    """Nested instances take narrower requests, too, which is what best fit is for."""
    decided, ran = _served((1,) * 4)
    assert sum(ran.values()) > 300
    assert ran == decided
    decided, ran = _served(())
    assert ran != decided


@pytest.mark.parametrize("name", SCENES)
def test_engines_agree_where_one_rule_decides(name: str) -> None:
    assert _disagreement(SCENES[name]) is None


@pytest.mark.parametrize("place", PLACES)
def test_engines_agree_where_any_two_events_meet(place: str) -> None:
    met = [pair for pair in pairs() if pair.name.endswith(place)]
    assert len(met) > 150
    assert {pair.name: found for pair in met if (found := _disagreement(pair)) is not None} == {}


def _disagreement(directed: Directed) -> str | None:
    """Of both engines, in words; raises `AssertionError` where what the scene is for did not happen."""
    moments = list(play(reference, directed.scenario))
    record = moments[-1].record
    assert record is not None
    assert directed.happened(directed.scenario, record), f"{directed.name}: what it is for did not happen"
    return compare(directed.scenario, CompiledSimulation, moments)


def test_engines_agree_on_a_run_that_outgrows_every_list() -> None:
    """Real curves, jitter, overload: more requests in flight, blocks and batches than there is room for at first."""
    quantiles = tuple(float(x) for x in np.linspace(0.8, 1.6, 33))
    spec = tiny.cluster(
        [tiny.profile(name, speed=speed, jitter=quantiles, load_s=0.01) for name, speed in (("a", 1.0), ("b", 0.6))],
        router={"micro_batch_sizes": (1, 2), "outstanding_micro_batches": 4},
        greedy={"batch_limit": 2, "scale_trigger": 1, "idle_unload_ns": 20_000_000, "vram_cap_bytes": 3_000_000_000},
    )
    faults = (Crash(0, 300_000_000), Slowness(1, 100_000_000, 600_000_000, 1.7))
    run = tiny.run(spec, tiny.poisson_s(900, 1.5), 1.5, faults=faults, drain_limit_ns=40_000_000_000)
    scenario = Scenario("long", spec, run, "random")
    moments = list(play(reference, scenario))
    record = moments[-1].record
    assert record is not None
    assert len(record.micro_batches) > 1024 < len(record.batches)
    assert max(moment.asked.view.fifo_length for moment in moments if moment.asked) > 200
    assert compare(scenario, CompiledSimulation, moments) is None


def test_a_view_stays_what_it_was_when_the_run_goes_on() -> None:
    """A view is a snapshot, in both engines: what a router remembers does not change under it."""
    scenario = SCENES["eight servers report at one instant"].scenario
    for make in (reference, CompiledSimulation):
        at_once = [repr(moment.asked) for moment in play(make, scenario)]
        assert [repr(moment.asked) for moment in list(play(make, scenario))] == at_once


# ------------------------------------------------------------------------------------------- the comparison is strict


TERMS = RewardTerms(0.5, -0.25, 0.0, -0.0, 0.1)


@pytest.mark.parametrize(
    "ours, theirs",
    [
        (1.0, 1.0 + 2**-52),
        (0.0, -0.0),
        (1, 1.0),
        (True, 1),
        ((1, 2), [1, 2]),
        ((1, 2), (1, 2, 3)),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (TERMS, changed(TERMS, imbalance=0.0)),
        (None, TERMS),
    ],
)
def test_comparison_tells_apart_what_python_calls_equal(ours: object, theirs: object) -> None:
    assert difference(ours, theirs, "it") is not None
    assert difference(ours, ours, "it") is None
