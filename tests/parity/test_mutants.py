"""Every rule of the engines, broken on purpose: the scenarios of this folder must notice each of them.

A difference between two engines is only ever found if some scenario can tell a rule from its neighbour. So each mutant
of the reference is held against the reference itself, over the same scenarios that the compiled engine has to pass. The
table of what was caught by what is printed at the end (`pytest -s`).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache

import pytest

from sim.simulated_cluster import Simulation
from tests.parity.compare import Moment, compare, play
from tests.parity.directed import pairs, scenes
from tests.parity.draws import SeededDraws
from tests.parity.mutants import ROWS, UNNOTICEABLE, Mutant, mutants, stop_when_stuck
from tests.parity.scenarios import Scenario, draw_scenario, in_racks, sampled

pytestmark = pytest.mark.mutants
SEEDS = (*range(120), 182, 234, 1232)  # the last three meet rules that hardly any other meets
COMMUTING = ("transfer end and", "unload end and", "timer and", "slowness and", "hang and", "crash and")
MUTANTS = mutants()


@cache
def scenarios() -> list[Scenario]:
    """The scenes, drawn scenarios, each with Compass, too, some with samples and in racks, and last the pairs."""
    drawn = [draw_scenario(SeededDraws(seed), f"seed {seed}") for seed in SEEDS]
    compasses = [replace(each, name=f"{each.name}, compass", policy_name="compass") for each in drawn]
    many = [in_racks(sampled(each, 2)) for each in drawn[:20]]
    return [*(scene.scenario for scene in scenes()), *drawn, *compasses, *many, *(pair.scenario for pair in pairs())]


@cache
def expected(position: int) -> list[Moment]:
    """What the unbroken reference does; to be asked for while nothing is broken."""
    return list(play(Simulation, scenarios()[position]))


def caught_by(mutant: Mutant, positions: Sequence[int]) -> str | None:
    """The first of these scenarios that notices a mutant, and what it notices."""
    for position in positions:
        scenario, moments = scenarios()[position], expected(position)
        with pytest.MonkeyPatch.context() as patch:
            mutant.break_it(patch)
            stop_when_stuck(patch)
            difference = compare(scenario, Simulation, moments)
        if difference is not None:
            return f"{scenario.name}: {difference}"
    return None


@pytest.fixture(scope="module")
def table() -> Iterator[dict[str, str]]:
    """(mutant -> what caught it), printed when all are done."""
    caught: dict[str, str] = {}
    yield caught
    width = max(map(len, caught), default=0)
    print("", *(f"{name:{width}}  {by}" for name, by in caught.items()), sep="\n")


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_broken_rule_is_noticed(mutant: Mutant, table: dict[str, str]) -> None:
    found = caught_by(mutant, range(len(scenarios())))
    assert found is not None, "no scenario tells this from the rule"
    table[mutant.name] = found[:160]


@pytest.mark.parametrize("mutant", UNNOTICEABLE, ids=lambda mutant: mutant.name)
def test_mutant_that_swaps_commuting_steps_is_not_caught(mutant: Mutant) -> None:
    """The swaps commute (`mutants` shows why): an engine is free in them, and no scenario can distinguish them."""
    met = [n for n, each in enumerate(scenarios()) if each.name.startswith(tuple(COMMUTING))]
    assert len(met) > 100
    assert caught_by(mutant, [*range(len(scenarios()) // 12), *met[::3]]) is None


def broken(module: str, old: str, new: str, first: str) -> str:
    """What notices that a line of the compiled engine is another one; in a process of its own, in the interpreter."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.parity.broken_engine"]
    command += [f"sim.compiled.{module}", old, new, first]
    environment = {**os.environ, "SLIMSCHED_JIT": "0"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


def test_the_interpreted_engine_is_the_reference_where_nothing_is_broken() -> None:
    module, old, _, first = next(iter(ROWS["compiled"].values()))
    assert broken(module, old, old, first) == ""


@pytest.mark.parametrize("name", ROWS["compiled"])
def test_a_broken_line_of_the_compiled_engine_is_noticed(name: str, table: dict[str, str]) -> None:
    difference = broken(*ROWS["compiled"][name])
    assert difference, "no scenario tells this from the rule"
    table[f"compiled: {name}"] = difference[:160]
