"""A finished run to tear apart, and what of it takes real time kept, so that healing it takes none.

The main job is carried out once on this machine. What its stages measured (a trained network, profiles, overheads, runs
on real executors) is remembered; within `replayed` a stage that has to run again is given the same once more.
"""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from scenarios.job import network_stages, profile_stages, validation_stage
from slimsched.cli import main

NAME = "small.yaml"
SCENARIO = """\
schema: slimsched.scenario/1
name: small
model:
  {network: 'tests.scenarios.own_network:DigitsPerceptron', options: {features: 32}, dataset: digits,
   training: {epochs: 3}}
cluster:
  greedy: {batch_limit: 2, preload: all}
  servers:
  - {name: large, device: {cores: [FIRST]}}
  - {name: small, device: {cores: [LAST], onednn: false}}
router: {micro_batch_sizes: [1, 2]}
workload: {kind: poisson, rate_img_s: 30}
calibration: {budget: 5s, allow_busy: true}
training: {decisions: 2000, batch: 1024, minibatch: 256, environments: 2, horizon_s: 2}
compare: {routers: [random, jsq, ppo], seeds: [0, 1]}
validate: {routers: [random, ppo], go_on: true, duration_s: 0.5s, warmup_s: 0.1s}
duration_s: 2
warmup_s: 0.5
"""
_Made = dict[str, Any]


def scenario_text() -> str:
    """Of the run, for this machine's cores."""
    cores = sorted(os.sched_getaffinity(0))
    return SCENARIO.replace("FIRST", str(cores[0])).replace("LAST", str(cores[-1]))


@dataclass
class Finished:
    """A run folder as the job left it, and what its real stages came to."""

    folder: Path
    made: _Made = field(default_factory=dict)

    @classmethod
    @contextlib.contextmanager
    def make(cls) -> Iterator[Finished]:
        """Carry the job out, in a folder that is gone after the block."""
        with tempfile.TemporaryDirectory(prefix="fuzz-run-") as text:
            here = Path(text)
            (here / NAME).write_text(scenario_text())
            made: _Made = {}
            torch.set_num_threads(1)  # as in a trial's fork: the last digits of what is trained depend on it
            with contextlib.chdir(here), _around(made, _remembering), contextlib.redirect_stdout(io.StringIO()):
                code = main(["run", NAME, "--out", "run", "--quiet", "--json", "done.json"])
            assert code == 0, "the run that is to be torn apart did not end well"
            yield cls(here / "run", made)

    @contextlib.contextmanager
    def replayed(self) -> Iterator[None]:
        """Within it, what took real time is what it was."""
        with _around(self.made, _remembered):
            yield


_Wrap = Callable[[_Made, str, Callable[..., Any]], Callable[..., Any]]


def _remembering(made: _Made, name: str, work: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(*arguments: Any, **named: Any) -> Any:
        found = work(*arguments, **named)
        made[_key(name, arguments)] = list(found) if name == "validate_runs" else found
        return (each for each in made[name]) if name == "validate_runs" else found

    return wrapped


def _remembered(made: _Made, name: str, work: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(*arguments: Any, finished: Sequence[Any] = (), **named: Any) -> Any:
        found = made[_key(name, arguments)]
        return (each for each in _missing(found, finished)) if name == "validate_runs" else found

    return wrapped


def _missing(runs: Sequence[Any], finished: Sequence[Any]) -> list[Any]:
    """The real runs that are not among the finished ones, wherever those stand in the plan."""
    there = [_which(run) for run in finished]
    return [made for made in runs if _which(made.run) not in there]


def _which(run: Any) -> tuple[Any, ...]:
    return tuple(run[key] for key in ("kind", "router", "seed", "repeat", "load"))


def _key(name: str, arguments: tuple[Any, ...]) -> str:
    of = {"calibrate_device": lambda: arguments[0].name, "measure_decisions": lambda: arguments[1]}.get(name)
    return f"{name} {of()}" if of else name


@contextlib.contextmanager
def _around(made: _Made, wrap: _Wrap) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for module, name in (
            (network_stages, "train"),
            (network_stages, "evaluate"),
            (profile_stages, "calibrate_device"),
            (profile_stages, "measure_serving"),
            (profile_stages, "measure_decisions"),
            (validation_stage, "validate_runs"),
        ):
            stack.enter_context(patch.object(module, name, wrap(made, name, getattr(module, name))))
        yield
