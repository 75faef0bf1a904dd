"""What routers serve at loads which nobody tuned them for, as tuned and told to keep goals (`policies.goal_control`).

python -m benchmarks.speed.goals                      the floor of the scenario's tuning
python -m benchmarks.speed.goals --limit 0.03         that limit of the p99 latency instead, in seconds
python -m benchmarks.speed.goals --weights 0 3 30     no goal but that joules cost so many points of accuracy, for Tide
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kit.chance import stream
from policies.records import COMPLETED
from policies.registry import CONTROLLED
from policies.rules.controlled import ControlSpec
from policies.rules.specs import RouterSpec, RuleSpec
from policies.vocabulary import NS_PER_S, nanoseconds
from scenarios.files.router_names import read_rule
from scenarios.learn.tuned_files import with_control
from scenarios.metrics.service import WINDOW_S, tuples_run
from scenarios.world.materials import load_world
from scenarios.world.world import World

LAST_S = 60.0


def routers(folder: Path) -> dict[str, RuleSpec]:
    """The shipped ones of a scenario, of the kinds that keep goals."""
    files = {kind: folder / f"{kind}.rule.yaml" for kind in CONTROLLED}
    return {kind: read_rule(file) for kind, file in files.items() if file.is_file()}


@dataclass(frozen=True)
class Served:
    """Of the last minute: mean accuracy by the table, p99, what was not served, windows that kept the limit, joules."""

    accuracy: float
    p99_ms: float
    lost: float
    kept: float
    image_j: float

    def text(self, limit_s: float | None, with_energy: bool) -> str:
        """The figures that are asked for."""
        found = f"{self.accuracy:.4f} {self.p99_ms:8.2f}"
        found += f" {self.kept:4.0%}" if limit_s else ""
        found += f" {self.image_j:.4f} J" if with_energy else ""
        return found + (f" ({self.lost:.1%} not served)" if self.lost > 0.01 else "")


def served(
    world: World, spec: RouterSpec, scale: float, seed: int, duration_s: float, limit_s: float | None = None
) -> Served:
    """One run; energy is that of the whole run and all devices, idle as well, an image."""
    run = world.run_spec(seed, scale=scale, duration_s=duration_s, end="cut", detail=False)
    engine = world.simulation(run, "compiled")
    engine.finish(spec.make(world.context), stream(seed, "router:bench"))
    columns = engine.columns()
    requests = columns.requests
    begin_ns = nanoseconds(duration_s - LAST_S)
    recent = requests.finished_ns >= begin_ns
    done = (requests.status == COMPLETED) & recent
    priors, place = tuples_run(requests, done, world.accuracy.prior)
    latency_s = (requests.finished_ns - requests.arrived_ns)[done] / NS_PER_S
    window = (requests.finished_ns[done] - begin_ns) // nanoseconds(WINDOW_S)
    late = latency_s > (limit_s or np.inf)
    return Served(
        accuracy=float(priors[place].mean()),
        p99_ms=float(np.quantile(latency_s, 0.99)) * 1e3,
        lost=float(1 - done.sum() / recent.sum()),
        kept=float(np.mean([late[window == number].mean() <= 0.01 for number in np.unique(window)])),
        image_j=sum(device.energy_j for device in columns.devices) / int((requests.status == COMPLETED).sum()),
    )


def main() -> None:
    """A table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenario", type=Path, default=Path("scenarios/main-poisson70-10g.yaml"))
    parser.add_argument("--capacity", type=float, default=7500.0, help="images/s that the rates are shares of")
    parser.add_argument("--rates", type=float, nargs="+", default=[0.3, 0.5, 0.7, 0.8, 0.9, 0.97])
    parser.add_argument("--duration", type=float, default=120.0)
    parser.add_argument("--seed", type=int, default=100)
    parser.add_argument("--limit", type=float, help="of the p99 latency, in seconds")
    parser.add_argument("--floor", type=float, help="the scenario's by default; none beside --limit and --weights")
    parser.add_argument("--weights", type=float, nargs="+", default=[], help="points of accuracy a joule")
    given = parser.parse_args()
    world = load_world(given.scenario)
    floor, usual = given.floor, world.rate_img_s
    if floor is None:
        floor = 0.0 if given.limit or given.weights else world.scenario.tuning.floor
    assert floor is not None, "the scenario names no floor"
    assert usual is not None, "a trace has no rate"
    told = f"floor {floor:.4f}, p99 limit {given.limit or 0:g} s"
    print(f"{given.scenario.stem}, {told}, the last {LAST_S:g} s of {given.duration:g}, seed {given.seed}")
    print("router, rate: accuracy and p99 (ms) as tuned | under control")
    for name, spec in routers(Path("scenarios/data/routers") / given.scenario.stem).items():
        if given.weights and name != "tide":
            continue
        goals = [ControlSpec(floor=floor, p99_limit_s=given.limit or 0.0, energy_weight=w) for w in given.weights]
        goals = goals or [ControlSpec(floor=floor, p99_limit_s=given.limit or 0.0)]
        specs: list[RuleSpec] = [spec, *(with_control(spec, each) for each in goals)]
        for share in given.rates:
            scale = share * given.capacity / usual
            found = [served(world, each, scale, given.seed, given.duration, given.limit) for each in specs]
            figures = " | ".join(each.text(given.limit, bool(given.weights)) for each in found)
            print(f"{name:7} {share:5.2f}: {figures}", flush=True)


if __name__ == "__main__":
    main()
