"""Runs of main scenarios for benches that ask what of their promises a rule keeps."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.study.tuned_rows import rule_of_now
from policies.rules.specs import RuleSpec
from scenarios.metrics.catalogue import MEASURES
from scenarios.runs.simulate import simulate_metrics
from scenarios.world.materials import load_world
from scenarios.world.world import World

NAMES: Final = ("kept_share", "expected_accuracy", "latency_p99_s", "latency_mean_s", "energy_per_image_j")


def asked_for(about: str | None) -> Iterator[tuple[str, Path, World]]:
    """The scenarios that the command line names, without `main-`."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", metavar="NAME", help="of main scenarios, without `main-`")
    for name in parser.parse_args().names:
        path = Path(f"scenarios/main-{name}.yaml")
        yield name, path, load_world(path)


def tuned(path: Path, world: World, kind: str) -> RuleSpec:
    """The scenario's rule of that kind."""
    rule = rule_of_now(path, world, kind)
    assert rule is not None, f"{path} has no {kind} of now: `make routers`"
    return rule


def means(world: World, rule: RuleSpec, runs: int) -> Mapping[str, float]:
    """Of so many runs, with the first seeds of the scenario's comparison."""
    results = [
        simulate_metrics(world, rule.make(world.context), rule.KIND, seed, engine="compiled", detail=False)
        for seed in world.scenario.compare.seeds[:runs]
    ]
    return {name: float(np.mean([MEASURES[name].of(result) for result in results])) for name in NAMES}


def told(found: Mapping[str, float]) -> str:
    """In a line."""
    return ", ".join(f"{name} {value:.4g}" for name, value in found.items())
