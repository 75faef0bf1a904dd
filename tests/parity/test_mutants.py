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
from dataclasses import dataclass, replace
from functools import cache

import pytest

from sim.cluster import Simulation
from tests.parity.compare import Moment, compare, play
from tests.parity.directed import pairs, scenes
from tests.parity.draws import SeededDraws
from tests.parity.mutants import UNNOTICEABLE, Mutant, mutants, stop_when_stuck
from tests.parity.scenarios import Scenario, draw_scenario

pytestmark = pytest.mark.mutants
DRAWN, TIDES = 120, 120
COMMUTING = (
    "transfer end and",
    "batch start and",
    "unload end and",
    "timer and",
    "slowness and",
    "hang and",
    "crash and",
)
MUTANTS = mutants()


@cache
def scenarios() -> list[Scenario]:
    """The scenes, drawn scenarios, some of them with Tide, and last the pairs."""
    drawn = [draw_scenario(SeededDraws(seed), f"seed {seed}") for seed in range(DRAWN)]
    tides = [replace(each, name=f"{each.name}, tide", policy_name="tide") for each in drawn[:TIDES]]
    return [*(each.scenario for each in scenes()), *drawn, *tides, *(each.scenario for each in pairs())]


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
def test_what_makes_no_difference_makes_none(mutant: Mutant) -> None:
    """These swaps commute (`mutants` says why): an engine is free in them, and no scenario can tell."""
    met = [n for n, each in enumerate(scenarios()) if each.name.startswith(tuple(COMMUTING))]
    assert len(met) > 100
    assert caught_by(mutant, [*range(len(scenarios()) // 12), *met[::3]]) is None


@dataclass(frozen=True)
class Line:
    """One line of a module of the compiled engine, what is put in its place, and the scenes to be tried first."""

    module: str
    old: str
    new: str
    first: str


BROKEN = {
    "a question before its instant is over": Line(
        "agenda", "if wake <= now and due > now:", "if wake <= now:", "a question"
    ),
    "arrivals last": Line(
        "agenda",
        "if c.arrival_ns == now:",
        "if c.arrival_ns == now and soonest_ns(c, p) > now:",
        "returns and arrivals",
    ),
    "loads before batches": Line(
        "agenda",
        "elif times.end == now:",
        "elif times.end == now and times.load > now:",
        "the host is busy until",
    ),
    "the highest server first": Line(
        "rows",
        "if tree[node] != tree[1]:",
        "if tree[node + 1] == tree[1]:",
        "decisions without delay",
    ),
    "ends rounded down": Line("physics", "max(0, ceil(", "max(0, int(", "batches of two servers end"),
    "work by the reciprocal": Line(
        "physics",
        "-= worked / instance.slow_down",
        "-= worked * (1 / instance.slow_down)",
        "no memory for more than 1",
    ),
    "energy of seconds": Line("ledger", "* (now - c.power_ns) / _NS", "* ((now - c.power_ns) / _NS)", "a question"),
    "the highest id of equal instances": Line(
        "greedy", "instance.id < other.id", "instance.id > other.id", "two free instances"
    ),
    "what begins before what ends": Line(
        "faults", "return one.order < other.order", "return one.order > other.order", "an outage ends as"
    ),
    "the host works on two things": Line("host", "begun = max(now, c.host_free_ns)", "begun = now", "messages wait"),
    "the host is free at once": Line(
        "host", "c.host_free_ns = begun + work", "c.host_free_ns = begun", "messages wait"
    ),
    "what the host costs rounded down": Line("host", "return ceil(", "return int(", "messages wait"),
    "messages overtake": Line(
        "host",
        "max(server.last_back_ns, max(now, device.chores_from_ns) + back_ns)",
        "max(now, device.chores_from_ns) + back_ns",
        "ways of different",
    ),
    "a block arrives with the one before it": Line(
        "greedy", "else max(now, block_at(c, p, following).due_ns)", "else now", "ways of different"
    ),
    "messages of an earlier epoch count": Line(
        "host", "if server.is_up == 0 or server.epoch != message.epoch:", "if server.is_up == 0:", "on its way back"
    ),
    "a hung server's timer rings": Line(
        "faults", "server.times.timer = NEVER", "server.times.start = NEVER", "a hung server reads nothing"
    ),
    "the oldest command starts first": Line(
        "greedy",
        "instance.due_ns == now and (due == NONE or instance.batch",
        "instance.due_ns <= now + 8000 and (due == NONE or instance.batch",
        "dispatches of",
    ),
    "another hash": Line("chance", "+ np.uint64(1)) *", "+ np.uint64(2)) *", "slowdown and jitter"),
}


def test_the_interpreted_engine_is_the_reference_where_nothing_is_broken() -> None:
    """Else a broken line would be noticed whatever it does."""
    line = next(iter(BROKEN.values()))
    command = [sys.executable, "-W", "ignore", "-m", "tests.parity.broken_engine"]
    command += [f"sim.compiled.{line.module}", line.old, line.old, line.first]
    done = subprocess.run(
        command, env={**os.environ, "SLIMSCHED_JIT": "0"}, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout == ""


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_line_of_the_compiled_engine_is_noticed(name: str, table: dict[str, str]) -> None:
    line = BROKEN[name]
    command = [sys.executable, "-W", "ignore", "-m", "tests.parity.broken_engine"]
    command += [f"sim.compiled.{line.module}", line.old, line.new, line.first]
    done = subprocess.run(
        command, env={**os.environ, "SLIMSCHED_JIT": "0"}, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout, "no scenario tells this from the rule"
    table[f"compiled: {name}"] = done.stdout.strip()[:160]
