"""`--engine auto`: the faster engine for the work, the one that began it, and simpy where the compiled one can't.

And what needs more memory than the machine has is refused before anything is drawn.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kit.jit_cache import is_kept
from policies.vocabulary import Decide
from scenarios.experiment.resolved_scenario import Experiment
from scenarios.experiment.scenario_building import load_experiment, make_experiment
from scenarios.files.scenario_reading import load_scenario
from scenarios.job import comparing_stage, main_job
from scenarios.job.main_job import compiling_ahead
from scenarios.metrics.run_result import Result, Simulator
from scenarios.runs import fluid_bound, simulated_runs
from scenarios.runs.fluid_bound import require_solvable
from scenarios.runs.simulated_runs import SHORT_IMAGES, SHORT_IMAGES_UNKEPT, engine_of, simulate_all
from sim.compiled.compiled_simulation import CompiledSimulation
from slimsched.cli import main
from tests.scenarios.files import write_scenario


def experiment_of(folder: Path) -> Experiment:
    return make_experiment(load_scenario(write_scenario(folder)), folder)  # 200 images/s, for a second


def make_compiled_quicker(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the first image on; whether it is so here must not matter."""
    monkeypatch.setattr(simulated_runs, "is_kept", lambda *_: True)
    monkeypatch.setattr(simulated_runs, "SHORT_IMAGES", 0)


@pytest.mark.parametrize("is_kept, short", [(True, SHORT_IMAGES), (False, SHORT_IMAGES_UNKEPT)])
def test_the_compiled_engine_must_repay_its_beginning(
    is_kept: bool, short: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = experiment_of(tmp_path)
    monkeypatch.setattr(simulated_runs, "is_kept", lambda *_: is_kept)
    assert [engine_of(experiment, "auto", short // 200 + more) for more in (0, 1)] == ["simpy", "compiled"]
    assert engine_of(experiment, "auto", 1, duration_s=short / 200 + 1) == "compiled"
    assert (engine_of(experiment, "simpy", 10**6), engine_of(experiment, "compiled", 1)) == ("simpy", "compiled")
    monkeypatch.setattr(simulated_runs, "IS_ON", False)
    assert engine_of(experiment, "auto", 10**6) == "simpy"


def of_command(path: Path, command: str, *flags: str) -> tuple[str, dict[str, Any]]:
    """The engine that a command has taken by default, and its result."""
    out = path.parent / "result.json"
    assert main([command, str(path), "--router", "jsq", "--json", str(out), *flags]) == 0
    found: dict[str, Any] = json.loads(out.read_text())
    return found.pop("engine"), {**found, "wall_s": 0}


def test_auto_engine_takes_simpy_when_the_compiled_engine_cannot_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_compiled_quicker(monkeypatch)
    monkeypatch.setattr("sim.compiled.compiled_run.MAX_NS", 60_500_000_000)  # with the limit of draining: half a second
    path = write_scenario(tmp_path)
    assert of_command(path, "compare", "--seed", "0", "--out", str(tmp_path / "run"))[0] == "simpy"
    assert "the compiled engine can't do runs longer than 0 s: simpy does it" in capsys.readouterr().err


@pytest.mark.parametrize("began, faster", [("simpy", "compiled"), ("compiled", "simpy")])
@pytest.mark.parametrize("is_interrupted", [False, True])
def test_a_comparison_goes_on_with_the_engine_that_began_it(
    began: Simulator, faster: Simulator, is_interrupted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Whichever is the faster now; what was interrupted and what is whole; no run is made twice."""
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

    monkeypatch.setattr(comparing_stage, "simulate_all", watched)
    main([*command, "--engine", began])
    assert len(made) == (1 if is_interrupted else 2)
    if faster == "compiled":
        make_compiled_quicker(monkeypatch)
    made.clear()
    capsys.readouterr()
    assert main([*command, "--json", "-"]) == 0
    streams = capsys.readouterr()
    assert json.loads(streams.out)["engine"] == began
    assert ("compare: skipped" in streams.err) is not is_interrupted
    assert made == ([("jsq", began), ("random", began)] if is_interrupted else [])  # the first is told, not made


RATE, LENGTH = "{kind: poisson, rate_img_s: 200}", "duration_s: 1\n"


@pytest.mark.parametrize(
    "old, new, most",
    [
        (LENGTH, "duration_s: 1e7\n", "images"),
        (RATE, "{kind: mmpp, rate_img_s: 200, dwell_s: 1e-9}", "changes of the load"),
        (RATE, "{kind: flash, rate_img_s: 200, factor: 1e9, at_s: 0}", "images"),
        (LENGTH, "duration_s: 1e6\nfaults: [{kind: chaos, mean_gap_s: 10ms}]\n", "images"),
    ],
)
def test_too_much_for_the_machine_is_refused_before_it_is_drawn(
    old: str, new: str, most: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """One line, exit code 2; the arrivals alone would fill the memory."""

    def draw(*_: object, **__: object) -> None:
        raise AssertionError("it draws")

    monkeypatch.setattr(Experiment, "arrivals_ns", draw)
    monkeypatch.setattr(simulated_runs, "machine_bytes", lambda: 8_000_000_000)
    monkeypatch.chdir(tmp_path)
    assert main(["compare", str(write_scenario(tmp_path, old, new))]) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    assert f"most of it for {most}; this machine has 8 GB" in error
    assert not (tmp_path / "runs").exists()


def test_a_bound_that_is_too_large_is_refused_before_the_comparison(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_scenario(tmp_path)
    require_solvable(load_experiment(path))
    monkeypatch.setattr(fluid_bound, "MAX_UNKNOWNS", 10.0)
    for command in (["bound", str(path)], ["compare", str(path), "--bound", "--out", str(tmp_path / "out")]):
        assert main(command) == 2
        assert "the bound on 2 servers is a program of" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert main(["simulate", str(path)]) == 0  # whether it is overloaded is not asked then


class Started:
    """Processes that are started in place of the compilation."""

    def __init__(self, program: str) -> None:
        self.program = program
        self.processes: list[subprocess.Popen[bytes]] = []
        self.asked: list[list[str]] = []
        self._popen = subprocess.Popen

    def __call__(self, words: list[str], **streams: Any) -> subprocess.Popen[bytes]:
        self.asked.append(words)
        self.processes.append(self._popen([sys.executable, "-c", self.program], **streams))
        return self.processes[-1]


def begun(monkeypatch: pytest.MonkeyPatch, program: str, *, kept: bool) -> Started:
    started = Started(program)
    monkeypatch.setattr(subprocess, "Popen", started)
    monkeypatch.setattr(main_job, "is_kept", lambda *_: kept)
    return started


def test_a_process_compiles_until_it_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    started, said = begun(monkeypatch, "import time; time.sleep(0.5)", kept=False), list[str]()
    with compiling_ahead(said.append) as wait:
        wait()
        assert started.processes[0].returncode == 0
    assert started.asked == [[sys.executable, "-m", "scenarios.job.main_job"]]
    assert said[1:] == ["compile: still running; the job waits for it"]


def test_a_job_that_ends_before_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    started = begun(monkeypatch, "import time; time.sleep(5)", kept=False)
    with pytest.raises(KeyboardInterrupt), compiling_ahead(lambda _: None):
        raise KeyboardInterrupt
    assert started.processes[0].returncode == -9


def test_kept_code_is_not_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    started, said = begun(monkeypatch, "", kept=True), list[str]()
    with compiling_ahead(said.append) as wait:
        wait()
    assert (started.asked, said) == ([], [])


def test_background_compilation_compiles_the_engine_at_lowest_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    given, steps = list[int](), list[int]()
    advance = CompiledSimulation.advance

    def counted(simulation: CompiledSimulation) -> Decide | None:
        steps.append(1)
        return advance(simulation)

    monkeypatch.setattr(os, "nice", given.append)
    monkeypatch.setattr(CompiledSimulation, "advance", counted)
    main_job.main()
    assert (given, steps) == ([main_job.LOWEST_PRIORITY], [1])
    assert is_kept("sim.compiled.event_loop", "run_cluster")
