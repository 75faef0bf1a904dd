"""Every rule of the engines, broken on purpose: the scenarios of this folder must notice each of them.

A difference between two engines is only ever found if some scenario can tell a rule from its neighbour. So each mutant
of the reference is held against the reference itself, over the same scenarios that the compiled engine has to pass. The
table of what was caught by what is printed at the end (`pytest -s`).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from sim.cluster import Simulation
from tests.parity.compare import Moment, compare, play
from tests.parity.directed import pairs, scenes
from tests.parity.draws import SeededDraws
from tests.parity.mutants import UNNOTICEABLE, Mutant, mutants, stop_when_stuck
from tests.parity.scenarios import Scenario, draw_scenario

DRAWN = 120
MUTANTS = mutants()
Expected = list[tuple[Scenario, list[Moment]]]


@pytest.fixture(scope="module")
def expected() -> Expected:
    """What the unbroken reference does: in the scenes, in the pairs, in drawn scenarios."""
    directed = [each.scenario for each in (*scenes(), *pairs())]
    drawn = [draw_scenario(SeededDraws(seed), f"seed {seed}") for seed in range(DRAWN)]
    return [(scenario, list(play(Simulation, scenario))) for scenario in (*directed, *drawn)]


@pytest.fixture(scope="module")
def table() -> Iterator[dict[str, str]]:
    """(mutant -> what caught it), printed when all are done."""
    caught: dict[str, str] = {}
    yield caught
    width = max(map(len, caught), default=0)
    print("", *(f"{name:{width}}  {by}" for name, by in caught.items()), sep="\n")


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_broken_rule_is_noticed(mutant: Mutant, expected: Expected, table: dict[str, str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        mutant.break_it(patch)
        stop_when_stuck(patch)
        found = ((scenario.name, compare(scenario, Simulation, moments)) for scenario, moments in expected)
        name, difference = next(((name, found) for name, found in found if found is not None), ("", None))
    assert difference is not None, "no scenario tells this from the rule"
    table[mutant.name] = f"{name}: {difference[:120]}"


@pytest.mark.parametrize("mutant", UNNOTICEABLE, ids=lambda mutant: mutant.name)
def test_what_makes_no_difference_makes_none(mutant: Mutant, expected: Expected) -> None:
    """These swaps commute (each says why): an engine is free in them, and no scenario can tell."""
    with pytest.MonkeyPatch.context() as patch:
        mutant.break_it(patch)
        assert [s.name for s, moments in expected if compare(s, Simulation, moments) is not None] == []


def test_there_are_enough_of_them() -> None:
    names = [mutant.name for mutant in MUTANTS]
    assert len(set(names)) == len(names) >= 25


# One line of the compiled engine each: (module, what stands there, what is put there).
BROKEN = {
    "a question before its instant is over": ("engine", "if wake <= now and due > now:", "if wake <= now:"),
    "arrivals last": (
        "engine",
        "if k[C_ARRIVAL_NS] == now:",
        "if k[C_ARRIVAL_NS] == now and k[p[P_TREE] + 1] > now:",
    ),
    "loads before batches": (
        "engine",
        "elif k[times + END] == now:",
        "elif k[times + END] == now and k[times + LOAD] > now:",
    ),
    "the highest server first": (
        "records",
        "if k[tree + node] != soonest:",
        "if k[tree + node + 1] == soonest:",
    ),
    "ends rounded down": ("physics", "max(0, ceil(", "max(0, int("),
    "work by the reciprocal": ("physics", "-= elapsed / r[i + I_SLOW]", "-= elapsed * (1 / r[i + I_SLOW])"),
    "energy of seconds": ("books", "* (now - k[C_POWER_NS]) / _NS", "* ((now - k[C_POWER_NS]) / _NS)"),
    "the highest id of equal instances": ("scheduling", "k[i + I_ID] < k[b + I_ID]", "k[i + I_ID] > k[b + I_ID]"),
    "what begins before what ends": (
        "faults",
        "return k[one + F_ORDER] < k[other + F_ORDER]",
        "return k[one + F_ORDER] > k[other + F_ORDER]",
    ),
    "another hash": ("chance", "+ np.uint64(1)) *", "+ np.uint64(2)) *"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_line_of_the_compiled_engine_is_noticed(name: str, table: dict[str, str]) -> None:
    module, old, new = BROKEN[name]
    command = [sys.executable, "-W", "ignore", "-m", "tests.parity.broken_engine", f"sim.batch.{module}", old, new]
    done = subprocess.run(
        command, env={**os.environ, "SLIMSCHED_JIT": "0"}, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout, "no scenario tells this from the rule"
    table[f"compiled: {name}"] = done.stdout.strip()[:120]
