"""What comes back chooses as it did in the library, and the example runs: `make sb3`."""

from __future__ import annotations

import shutil
import subprocess
import sys
from ast import literal_eval
from pathlib import Path

import numpy as np
from learn import CHANGES, NAME, layers_of, learn
from msgspec.structs import replace
from sb3_contrib import MaskablePPO

import slimsched
from policies.observation import masks
from policies.ppo.ppo_router import PPORouter
from policies.vocabulary import Choice, ClusterView
from scenarios.experiment.scenario_building import make_experiment
from sim.simulated_cluster import Simulation

HERE = Path(__file__).parent
RNG = np.random.default_rng(0)  # nothing is drawn


def views(router: PPORouter) -> list[ClusterView]:
    """What a router sees in a run."""
    experiment, seen = make_experiment(slimsched.load(NAME, CHANGES).keys, HERE), []
    simulation = Simulation(experiment.cluster, experiment.run_spec(0, duration_s=0.3))
    while (request := simulation.advance()) is not None:
        seen.append(request.view)
        simulation.decide(router.choose(request.view, RNG))
    return seen


def masked(view: ClusterView, answer: Choice) -> ClusterView:
    """The same, but for what was just chosen: that server is full, and no server holds that width."""
    widths = {0.25: 0, 0.5: 1, 0.75: 2, 1.0: 3}
    held = tuple(index != widths[answer.width] for index in range(4))
    servers = (replace(each, valid=index != answer.server, widths=held) for index, each in enumerate(view.servers))
    return replace(view, servers=tuple(servers))


def chosen_there(model: MaskablePPO, router: PPORouter, view: ClusterView) -> Choice:
    """By the library's own policy, with masks as the environment gives them."""
    servers, widths = masks(view)
    allowed = np.concatenate([servers, widths[servers].any(axis=0), np.ones(6, np.bool_)])
    action, _ = model.predict(router.spec.observation.observe(view), action_masks=allowed, deterministic=True)
    server, width, micro_batch_size = action.tolist()
    return Choice(server, router.spec.widths[width], router.spec.micro_batch_sizes[micro_batch_size])


def test_it_chooses_as_it_did_in_the_library(tmp_path: Path) -> None:
    """In each decision of a run, and once more with what it chose masked."""
    model = learn(2048)
    router = PPORouter.load(
        slimsched.save_router(NAME, layers_of(model), tmp_path / "x.safetensors", deterministic=True)
    )
    seen = views(router)
    first = [chosen_there(model, router, view) for view in seen]
    others = [masked(view, answer) for view, answer in zip(seen, first, strict=True)]
    second = [chosen_there(model, router, view) for view in others]
    assert [router.choose(view, RNG) for view in seen] == first
    assert [router.choose(view, RNG) for view in others] == second
    assert len(seen) > 300
    for part in ("server", "width", "micro_batch_size"):  # it has more than one answer, so this could fail
        assert len({getattr(answer, part) for answer in (*first, *second)}) > 1, part


def test_the_example_runs(tmp_path: Path) -> None:
    """As a user runs it, but shorter: so what was learned is worth little, and nothing is said of it."""
    shutil.copy(HERE / "learn.py", tmp_path)
    command = [sys.executable, "learn.py", "--decisions", "1024"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    lines = [line.split(maxsplit=1) for line in done.stdout.splitlines()]
    assert [name for name, _ in lines] == ["random", "jsq", "ladder", "sb3"]
    assert all(figure > 0 for _, figures in lines for figure in literal_eval(figures).values())
    assert (tmp_path / "sb3.safetensors").is_file()
