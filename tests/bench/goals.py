"""The accuracy that routers serve at loads which nobody tuned them for, with and without control of a floor.

python -m tests.bench.floors
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from policies.chance import stream
from policies.records import COMPLETED
from policies.rules.controlled import ControlSpec
from policies.rules.specs import RouterSpec
from policies.tide.spec import TideSpec
from policies.vocabulary import NS_PER_S, nanoseconds
from scenarios.files.router_names import read_rule
from scenarios.metrics.service import tuples_run
from scenarios.world.materials import load_world
from scenarios.world.world import World

LAST_S = 60.0


def routers(folder: Path) -> dict[str, Any]:
    """The shipped ones of a scenario."""
    return {"tide": TideSpec.read(folder / "tide.safetensors"), "ladder": read_rule(folder / "ladder.rule.yaml")}


def with_control(spec: Any, floor: float) -> RouterSpec:
    """The same router, told to keep a floor."""
    control = ControlSpec(floor=floor)
    changed: RouterSpec = (
        replace(spec, control=control) if isinstance(spec, TideSpec) else spec.model_copy(update={"control": control})
    )
    return changed


def served(world: World, spec: RouterSpec, scale: float, seed: int, duration_s: float) -> tuple[float, float, float]:
    """Of the last minute: mean accuracy by the table, p99 latency in ms, and the share of it that did not complete."""
    run = world.run_spec(seed, scale=scale, duration_s=duration_s, end="cut", detail=False)
    engine = world.simulation(run, "compiled")
    engine.finish(spec.make(world.context), stream(seed, "router:bench"))
    requests = engine.columns().requests
    begin_ns = nanoseconds(duration_s - LAST_S)
    recent = requests.finished_ns >= begin_ns
    done = (requests.status == COMPLETED) & recent
    priors, place = tuples_run(requests, done, world.accuracy.prior)
    latency_ms = (requests.finished_ns - requests.arrived_ns)[done] / NS_PER_S * 1e3
    return float(priors[place].mean()), float(np.quantile(latency_ms, 0.99)), float(1 - done.sum() / recent.sum())


def main() -> None:
    """A table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scenario", type=Path, default=Path("scenarios/main-poisson70-10g.yaml"))
    parser.add_argument("--capacity", type=float, default=7500.0, help="images/s that the rates are shares of")
    parser.add_argument("--rates", type=float, nargs="+", default=[0.3, 0.5, 0.7, 0.8, 0.9, 0.97])
    parser.add_argument("--duration", type=float, default=120.0)
    parser.add_argument("--seed", type=int, default=100)
    given = parser.parse_args()
    world = load_world(given.scenario)
    floor, usual = world.scenario.tuning.floor, world.rate_img_s
    assert floor is not None, "the scenario names no floor"
    assert usual is not None, "a trace has no rate"
    print(f"{given.scenario.stem}, floor {floor:.4f}, the last {LAST_S:g} s of {given.duration:g}, seed {given.seed}")
    print("router, rate: accuracy and p99 (ms) as tuned | under control")
    for name, spec in routers(Path("scenarios/data/routers") / given.scenario.stem).items():
        for share in given.rates:
            scale = share * given.capacity / usual
            figures = []
            for each in (spec, with_control(spec, floor)):
                accuracy, p99_ms, lost = served(world, each, scale, given.seed, given.duration)
                figures.append(f"{accuracy:.4f} {p99_ms:8.2f}" + (f" ({lost:.1%} not served)" if lost > 0.01 else ""))
            print(f"{name:7} {share:5.2f}: {' | '.join(figures)}", flush=True)


if __name__ == "__main__":
    main()
