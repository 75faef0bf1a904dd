"""`--engine auto`: the quicker engine for the work, the one that began it, and simpy where the compiled one can't."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import slimsched
from scenarios.cli import main
from scenarios.files.reading import load_scenario
from scenarios.job import comparison
from scenarios.metrics.result import Result, Simulator
from scenarios.runs import engines
from scenarios.runs.engines import COMPILING_S, OPENING_S, engine_of, quicker_engine
from scenarios.runs.simulate import simulate_all
from scenarios.world.materials import make_world
from scenarios.world.world import World
from tests.scenarios.files import write_scenario

KEEPING = ("scenarios.runs.engines.is_kept", lambda *_: True)


def world_of(folder: Path) -> World:
    return make_world(load_scenario(write_scenario(folder)), folder)  # 200 images/s, for a second


def make_compiled_quicker(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the first image on; whether it is so here must not matter."""
    monkeypatch.setattr(*KEEPING)
    monkeypatch.setattr(engines, "OPENING_S", 0.0)


# ----------------------------------------------------------------------------------------------------- which is quicker


@pytest.mark.parametrize(
    "simpy_s, can_compile, is_kept, engine",
    [
        (0.9 * OPENING_S, True, True, "simpy"),
        (1.1 * OPENING_S, True, True, "compiled"),
        (0.9 * COMPILING_S, True, False, "simpy"),
        (1.1 * COMPILING_S, True, False, "compiled"),
        (100 * COMPILING_S, False, True, "simpy"),
    ],
)
def test_the_compiled_engine_must_repay_its_beginning(
    simpy_s: float, can_compile: bool, is_kept: bool, engine: Simulator
) -> None:
    assert quicker_engine(simpy_s, can_compile=can_compile, is_kept=is_kept) == engine


def test_work_is_what_all_runs_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By their number, their length, and how many are beside each other; an engine by name is taken at its word."""
    world = world_of(tmp_path)
    monkeypatch.setattr(*KEEPING)
    assert engine_of(world, "auto", 1) == engine_of(world, "auto", 100, jobs=100) == "simpy"
    assert engine_of(world, "auto", 100) == engine_of(world, "auto", 1, duration_s=100.0) == "compiled"
    assert (engine_of(world, "simpy", 100), engine_of(world, "compiled", 1)) == ("simpy", "compiled")
    assert engine_of(world, "auto", 100, is_here=False) == "simpy"  # nobody knows what other machines keep
    monkeypatch.setattr("scenarios.runs.engines.is_kept", lambda *_: False)
    assert (engine_of(world, "auto", 100), engine_of(world, "auto", 10_000)) == ("simpy", "compiled")
    monkeypatch.setattr(engines, "IS_ON", False)
    assert engine_of(world, "auto", 10_000) == "simpy"


# ----------------------------------------------------------------------------------------------------- what commands do


def of_command(path: Path, command: str, *flags: str) -> tuple[str, dict[str, Any]]:
    """What a command on the default engine says, and its result."""
    out = path.parent / "result.json"
    assert main([command, str(path), "--router", "jsq", "--json", str(out), *flags]) == 0
    found: dict[str, Any] = json.loads(out.read_text())
    return found.pop("engine"), {**found, "wall_s": 0}


@pytest.mark.parametrize("command", ["simulate", "compare", "capacity"])
def test_a_long_run_is_compiled_and_says_so_and_a_short_one_is_not(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same figures; what must be compiled is told where the engine may have to be."""
    told = []

    @contextlib.contextmanager
    def telling(say: object) -> Iterator[None]:
        told.append(say)
        yield

    monkeypatch.setattr("scenarios.terminal.compiling.telling", telling)
    monkeypatch.setattr("scenarios.runs.engines.is_kept", lambda *_: False)
    path = write_scenario(tmp_path)
    flags = {"simulate": [], "compare": ["--seed", "0"], "capacity": ["--duration", "500ms", "--precision", "0.3"]}
    short, theirs = of_command(path, command, *flags[command], "--out", str(tmp_path / "short"))
    assert (short, told) == ("simpy", [])
    monkeypatch.setattr(engines, "COMPILING_S", 0.0)
    long, ours = of_command(path, command, *flags[command], "--out", str(tmp_path / "long"))
    assert (long, len(told)) == ("compiled", 1)
    assert ours == theirs


@pytest.mark.parametrize("command", ["simulate", "compare"])
def test_what_the_compiled_engine_cannot_do_simpy_does(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And says so: it takes long, as else it would not have been thought of."""
    make_compiled_quicker(monkeypatch)
    monkeypatch.setattr("sim.compiled.run.MOST_NS", 60_500_000_000)  # with the limit of draining: half a second
    path = write_scenario(tmp_path)
    assert of_command(path, command, "--seed", "0", "--out", str(tmp_path / "run"))[0] == "simpy"
    assert "the compiled engine can't do runs longer than 0 s: simpy does it" in capsys.readouterr().err


def test_python_takes_the_quicker_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the commands do."""
    path = write_scenario(tmp_path)
    assert slimsched.simulate(path, "jsq").engine == "simpy"
    make_compiled_quicker(monkeypatch)
    assert slimsched.simulate(path, "jsq").engine == "compiled"
    assert slimsched.simulate(path, "jsq", engine="simpy").engine == "simpy"


# ------------------------------------------------------------------------------------------------------------- going on


@pytest.mark.parametrize("began, quicker", [("simpy", "compiled"), ("compiled", "simpy")])
@pytest.mark.parametrize("is_interrupted", [False, True])
def test_a_comparison_goes_on_with_the_engine_that_began_it(
    began: Simulator, quicker: Simulator, is_interrupted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Whichever is the quicker now; what was interrupted and what is whole; no run is made twice."""
    path = write_scenario(tmp_path)
    routers = ["--router", "jsq", "--router", "random"]
    command = ["compare", str(path), *routers, "--seed", "0", "--out", str(tmp_path / "run")]
    made, interruptions = [], [KeyboardInterrupt] * is_interrupted

    def watched(*given: Any, on_result: Any, finished: Any, **options: Any) -> list[Result]:
        def keep(result: Result) -> None:
            on_result(result)
            made.append((result["router"], options["engine"]))
            if interruptions:
                raise interruptions.pop()

        return simulate_all(*given, on_result=keep, finished=finished, **options)

    monkeypatch.setattr(comparison, "simulate_all", watched)
    main([*command, "--engine", began])
    assert len(made) == (1 if is_interrupted else 2)
    if quicker == "compiled":
        make_compiled_quicker(monkeypatch)
    made.clear()
    capsys.readouterr()
    assert main([*command, "--json", "-"]) == 0
    streams = capsys.readouterr()
    assert json.loads(streams.out)["engine"] == began
    assert ("compare: skipped" in streams.err) is not is_interrupted
    assert made == ([("jsq", began), ("random", began)] if is_interrupted else [])  # the first is told, not made
