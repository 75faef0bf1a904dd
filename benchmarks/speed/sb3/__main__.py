"""PPO of Stable-Baselines3 (one environment, and eight) beside this project's: `make bench-sb3`.

Throughput: decisions a second through all of learning, in turns. Time to the same reward: each learns from nothing;
every so often its router is kept, and all that were kept are scored afterwards, on the same held-out runs of the SimPy
model. The target is what Stable-Baselines3 with one environment has at the end of its time.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import median

from benchmarks.speed.harness import machine
from benchmarks.speed.sb3 import ours, peer
from benchmarks.speed.sb3.bursty import Snapshot, mean_reward

Learn = Callable[[float, int, Callable[[Snapshot], None]], None]
SINGLE, EIGHT, OURS = "Stable-Baselines3, one environment", "Stable-Baselines3, DummyVecEnv(8)", "slim-scheduler"
KEPT = 12  # routers of one learning that are scored


@dataclass(frozen=True)
class Point:
    """What a router was worth after so many seconds."""

    seconds: float
    cpu_s: float
    decisions: int
    reward: float


def learners(arguments: argparse.Namespace) -> dict[str, Learn]:
    """By name."""

    def single(seconds: float, seed: int, each: Callable[[Snapshot], None]) -> None:
        peer.learn(1, seconds, seed, each)

    def eight(seconds: float, seed: int, each: Callable[[Snapshot], None]) -> None:
        peer.learn(8, seconds, seed, each)

    mine = partial(ours.learn, batch=arguments.batch, minibatch=arguments.minibatch, clusters=arguments.clusters)
    return {SINGLE: single, EIGHT: eight, OURS: mine}


def throughput(learn: Learn, seconds: float) -> tuple[float, float]:
    """Decisions a second, and a second of processor time, from the end of the first update on (the first is slower)."""
    seen: list[Snapshot] = []
    learn(seconds, 0, seen.append)
    first, last = seen[1 if len(seen) > 2 else 0], seen[-1]
    decisions = last.decisions - first.decisions
    return decisions / (last.seconds - first.seconds), decisions / (last.cpu_s - first.cpu_s)


def curve(learn: Learn, seconds: float, seed: int) -> list[Point]:
    """Learn, then score `KEPT` of its routers: the first and the last, and between them in equal ratios of time."""
    seen: list[Snapshot] = []
    learn(seconds, seed, seen.append)
    return [Point(each.seconds, each.cpu_s, each.decisions, mean_reward(each.router)) for each in spread(seen)]


def spread(seen: list[Snapshot]) -> list[Snapshot]:
    """At most `KEPT` of them."""
    first_s, last_s = max(seen[1].seconds, seen[-1].seconds / 1000), seen[-1].seconds
    wanted = [first_s * (last_s / first_s) ** (n / (KEPT - 2)) for n in range(KEPT - 1)]
    places = {0} | {min(range(len(seen)), key=lambda i: abs(seen[i].seconds - at)) for at in wanted}
    return [seen[place] for place in sorted(places)]


def measure_throughput(found: dict[str, Learn], seconds: float, rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Rates by name, the learners in turns; prints their medians, and the ratios within a round."""
    rates: dict[str, list[tuple[float, float]]] = {name: [] for name in found}
    for _ in range(rounds):
        for name, learn in found.items():
            rates[name].append(throughput(learn, seconds))
    print("\n| learner | decisions/s | beside one environment | decisions/CPU-s | beside |")
    print("|---|---|---|---|---|")
    for name in found:
        print(f"| {name} | " + " | ".join(_beside(rates[name], rates[SINGLE], by) for by in (0, 1)) + " |", flush=True)
    return rates


def _beside(rates: list[tuple[float, float]], single: list[tuple[float, float]], by: int) -> str:
    ratios = sorted(mine[by] / one[by] for mine, one in zip(rates, single, strict=True))
    return f"{median(each[by] for each in rates):,.0f} | {median(ratios):.1f}x ({ratios[0]:.1f} to {ratios[-1]:.1f})"


def race(found: dict[str, Learn], seed: int, seconds: float, ours_seconds: float) -> dict[str, list[Point]]:
    """Curves by name; prints when each reached what Stable-Baselines3 with one environment ends with."""
    curves = {name: curve(learn, ours_seconds if name == OURS else seconds, seed) for name, learn in found.items()}
    target = curves[SINGLE][-1].reward
    print(f"\nseed {seed}: untrained {curves[SINGLE][0].reward:.4f}, target {target:.4f}")
    print("| learner | s to the target | CPU-s | decisions | best reward | at the end | s of learning |")
    print("|---|---|---|---|---|---|---|")
    for name, points in curves.items():
        at = next((each for each in points if each.reward >= target), None)
        reached = f"{at.seconds:.2f} | {at.cpu_s:.2f} | {at.decisions:,}" if at else "never | - | -"
        last, best = points[-1], max(each.reward for each in points)
        print(f"| {name} | {reached} | {best:.4f} | {last.reward:.4f} | {last.seconds:.1f} |", flush=True)
    return curves


def main() -> None:
    """Measure, print, and keep."""
    given = parsed()
    found = learners(given)
    print(f"{machine()}, stable-baselines3 {version('stable-baselines3')}", flush=True)
    ours.learn(0.5, 0, lambda _: None, batch=2048, minibatch=512, clusters=8)  # compiles what is not in the cache
    document: dict[str, object] = {"machine": machine(), "settings": {k: str(v) for k, v in vars(given).items()}}
    if given.rounds:
        document["decisions_per_s"] = measure_throughput(found, given.throughput_seconds, given.rounds)
    curves = {seed: race(found, seed, given.seconds, given.ours_seconds) for seed in given.seeds}
    document["curves"] = {
        seed: {name: [[p.seconds, p.cpu_s, p.decisions, p.reward] for p in points] for name, points in by_name.items()}
        for seed, by_name in curves.items()
    }
    if given.json:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps(document, indent=1))


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.speed.sb3", description="PPO beside Stable-Baselines3's."
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="that Stable-Baselines3 learns for")
    parser.add_argument("--ours-seconds", type=float, default=12.0, help="that this project learns for")
    parser.add_argument("--throughput-seconds", type=float, default=15.0, help="of each learner's turn")
    parser.add_argument("--rounds", type=int, default=3, help="turns for throughput; 0 for none")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2], help="of the races; none for none")
    parser.add_argument("--batch", type=int, default=8192, help="ours: decisions an update")
    parser.add_argument("--minibatch", type=int, default=1024, help="ours: decisions a gradient step")
    parser.add_argument("--clusters", type=int, default=64, help="ours: clusters carried along")
    parser.add_argument("--json", type=Path, help="where all points are kept")
    return parser.parse_args()


if __name__ == "__main__":
    main()
