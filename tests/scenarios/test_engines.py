"""`--engine`: the same results from both, what is refused, and what is told before anything is compiled."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from kit.errors import InputError
from kit.jit import Ints, entry
from kit.jit_cache import IS_ON
from policies.ppo.ppo_router import PPORouter
from policies.ppo.spec import PolicySpec
from policies.vocabulary import Choice
from scenarios.cluster_gym import FIGURES, ID
from scenarios.experiment.resolved_scenario import Experiment
from scenarios.experiment.scenario_building import make_experiment
from scenarios.experiment.workloads import TraceSlice
from scenarios.files.scenario_reading import load_scenario
from scenarios.learn.ppo import PolicyNetwork
from scenarios.terminal.compiling import compiling_text, telling
from slimsched.cli import main
from tests.scenarios.files import write_scenario

OLD = "workload: {kind: poisson, rate_img_s: 200}"
FAULTS = """
deadline_s: 20ms
shed: true
faults:
- {kind: worker_killed, server: slow, at_s: 200ms}
- {kind: worker_hung, server: fast, at_s: 350ms}
- {kind: out_of_memory, server: slow, start_s: 500ms, end_s: 700ms, batch: 1}
- {kind: straggler, server: fast, start_s: 100ms, end_s: 300ms, factor: 3}
- {kind: server_down, server: slow, start_s: 600ms, end_s: 800ms}
- {kind: poisoned, share: 0.05}
- {kind: chaos, mean_gap_s: 400ms}
supervision: {hang_s: 100ms, stuck_s: 7, backoff_s: 0, backoff_limit_s: 1, stable_s: 2, start_s: 20ms}
"""
SIDES = {
    "plain": OLD,
    "bursts": "workload: {kind: mmpp, rate_img_s: 900, burst_factor: 4, burst_share: 0.2, dwell_s: 0.1}\nend: cut",
    "faults": OLD + FAULTS,
}


def experiment_of(folder: Path, changes: str = OLD) -> Experiment:
    return make_experiment(load_scenario(write_scenario(folder, OLD, changes)), folder)


def save_router(experiment: Experiment, path: Path, deterministic: bool) -> None:
    spec = PolicySpec.of(experiment.cluster.router, tuple(profile.power.cap_w for profile in experiment.profiles))
    tensors = {name: 5 * value.numpy() for name, value in PolicyNetwork(spec, (16,), 3).state_dict().items()}
    PPORouter(spec, tensors, deterministic=deterministic).save(path)


def test_compare_runs_again_on_the_other_engine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In one folder: what was compared on one engine is not taken for the other's, and both say the same."""
    path = write_scenario(tmp_path, OLD, SIDES["faults"])
    found = []
    for engine in ("simpy", "compiled", "compiled"):
        arguments = ["compare", str(path), "--out", str(tmp_path / "run"), "--engine", engine, "--json", "-"]
        assert main(arguments) == 0
        streams = capsys.readouterr()
        found.append(json.loads(streams.out))
        assert ("compare: skipped" in streams.err) == (len(found) == 3)
        kept = json.loads((tmp_path / "run" / "simulation" / "jsq-seed0" / "result.json").read_text())
        assert found[-1].pop("engine") == kept["engine"] == engine
    assert found[0] == found[1] == found[2]


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"engine": "numba"}, "engine: 'numba'; known: compiled, simpy"),
    ({"duration_s": 0}, "duration_s: 0: expected a number of seconds above 0"),
    ({"duration_s": -1.0}, "duration_s: -1.0"),
    ({"duration_s": float("nan")}, "duration_s: nan"),
    ({"duration_s": "0.2s"}, "duration_s: '0.2s'"),
    ({"render_mode": "human"}, "render_mode: 'human': nothing is drawn"),
    ({"num_envs": 0}, "num_envs: 0: must be a whole number from 1"),
]


@pytest.mark.parametrize("given, problem", REFUSED)
def test_environments_refuse_what_they_do_not_know(given: dict[str, Any], problem: str, tmp_path: Path) -> None:
    """In a line, one at a time and many at once; with no mode they are made, and with that which libraries ask for."""
    path = str(write_scenario(tmp_path))
    if "num_envs" not in given:
        with pytest.raises(InputError, match=re.escape(f"{ID}: {problem}")):
            gymnasium.make(ID, scenario=path, **given)
    if "engine" not in given:
        with pytest.raises(InputError, match=re.escape(f"{ID}: {problem}")):
            gymnasium.make_vec(ID, **{"scenario": path, "num_envs": 1, **given})
    gymnasium.make(ID, scenario=path, render_mode=None)
    with pytest.warns(UserWarning, match="nothing is drawn"):
        gymnasium.make(ID, scenario=path, render_mode="rgb_array")


def test_an_episode_tells_what_it_came_to(tmp_path: Path) -> None:
    """The same numbers on both engines, by one environment and by many, and those of the same run by itself."""
    path = str(write_scenario(tmp_path))
    changes = {"workload.rate_img_s": 300, "router.outstanding_micro_batches": 64}
    first: dict[str, float] = {}
    for engine in ("simpy", "compiled"):
        env = gymnasium.make(f"slimsched:{ID}", scenario=path, duration_s=0.3, engine=engine, changes=changes)
        env.reset(seed=5)
        truncated = False
        while not truncated:
            *_, truncated, info = env.step(np.array([1, 0, 2]))
        first = first or info["figures"]
        assert info["figures"] == first
    many = gymnasium.make_vec(ID, num_envs=2, scenario=path, duration_s=0.3, changes=changes)
    many.reset(seed=5)
    ended = np.zeros(2, np.bool_)
    while not ended[0]:
        *_, ended, infos = many.step(np.array([[1, 0, 2], [1, 0, 2]]))
    assert {name: infos["figures"][name][0] for name in first} == first
    assert first.keys() == {*FIGURES, "replaced_share"}
    seed = int(gymnasium.utils.seeding.np_random(5)[0].integers(2**31))
    experiment = make_experiment(load_scenario(path, changes), tmp_path)
    run = experiment.run_spec(seed, duration_s=0.3, detail=False, end="cut", trace_slice=TraceSlice())
    simulation = experiment.simulation(run, "simpy")
    while simulation.advance() is not None:
        simulation.decide(
            Choice(1, experiment.cluster.router.widths[0], experiment.cluster.router.micro_batch_sizes[2])
        )
    requests = simulation.columns().requests
    done = requests.status == 0
    latencies_s = (requests.finished_ns - requests.arrived_ns)[done] / 1e9
    assert first["latency_mean_s"] == pytest.approx(latencies_s.mean())
    assert first["accuracy"] == requests.correct[done].mean()
    assert (first["completed_share"], first["replaced_share"]) == (done.mean(), 0.0)


def test_the_reference_opens_no_compiler(tmp_path: Path) -> None:
    """A short `simulate` starts without numba, and without scipy: each takes longer to open than it runs."""
    path = write_scenario(tmp_path)
    code = (
        "import sys; from slimsched.cli import main; "
        f"code = main(['simulate', {str(path)!r}, '--router', 'jsq', '--json', '-']); "
        "print(code, sorted({'numba', 'scipy'} & {*sys.modules}), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stderr.splitlines()[-1] == "0 []"


def compiled_anew() -> int:
    """An entry that nobody has compiled yet, compiled; its answer."""

    def double(numbers: Ints) -> int:
        return int(2 * numbers[0])

    return int(entry(double)(np.array([21])))


def test_compiling_is_told_once_and_beforehand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line that names the folder; nothing where the code is there already; nothing outside."""
    monkeypatch.setenv("SLIMSCHED_CACHE", str(tmp_path))
    said: list[str] = []
    with telling(said.append):
        assert (compiled_anew(), said) == (42, [f"compiling {__name__}; once, it is kept in {tmp_path}"])
        assert compiled_anew() == 42
    with telling(said.append):
        assert compiled_anew() == 42
    assert len(said) == 1
    assert compiling_text("sim.compiled.compiled_simulation").startswith("compiling the engine: 10 to 20 s; once")
    assert compiling_text("sim.compiled.rollout").startswith("compiling the engine's rollouts: ")
    assert compiling_text("policies.ppo.kernels").startswith("compiling the router: ")


@pytest.mark.skipif(not IS_ON, reason="nothing is compiled with SLIMSCHED_JIT=0")
def test_the_command_line_tells_of_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    """On standard error, before the work; `--quiet` keeps it back; the result is the same."""
    experiment = experiment_of(tmp_path)
    save_router(experiment, tmp_path / "learned.safetensors", deterministic=True)
    (tmp_path / "file").touch()
    arguments = ["simulate", "tiny.yaml", "--router", "learned.safetensors", "--json", "-"]
    done = subprocess.run(
        [sys.executable, "-m", "slimsched", *arguments],
        cwd=tmp_path,
        env={**os.environ, "SLIMSCHED_CACHE": str(tmp_path / "file")},
        capture_output=True,
        text=True,
        check=True,
    )
    told = done.stderr.splitlines()[0]
    assert told.startswith("compiling the router")
    assert "file can't be written" in told
    assert json.loads(done.stdout)["images"]["completed"] > 100
