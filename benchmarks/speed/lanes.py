"""Lanes as threads of the agent, as they are, beside lanes as a child process of it (`benchmarks.speed.child_lanes`).

    python -m benchmarks.speed.lanes
    python -m benchmarks.speed.lanes --rounds 5 --seconds 6

Threads share the interpreter's lock with the agent's loop; a child costs a message there and one back. Both with the
agent (and its child) on one core and the router on another, and with all of them on all cores. A hop is measured as in
`benchmarks.speed.idle_hop`, throughput beside a bare loop on one core; all ways take turns.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.speed import tiny
from benchmarks.speed.child_lanes import ChildHost
from benchmarks.speed.tables import show
from hw.router.local_agents import OneHost
from hw.telemetry import usable_cores
from scenarios.metrics.statistics import estimate

WAYS: dict[str, Callable[[], OneHost]] = {"threads": OneHost, "a child": ChildHost}
HEAD = ("lanes are", "agent on", "hop p50, us", "hop p99, us", "end p99, us", "saturated, images/s", "of bare, %")


def main() -> None:
    """See above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=6.0, help="of each run")
    asked = parser.parse_args()
    cores = usable_cores()
    places = {"one core": cores[:1], **({"all cores": cores} if len(cores) > 1 else {})}
    found: dict[tuple[str, str], list[tuple[float, ...]]] = {(way, place): [] for place in places for way in WAYS}
    for number in range(asked.rounds):
        bare_s = tiny.bare(cores[:1], asked.seconds)
        order = list(found)
        for way, place in order[number % len(order) :] + order[: number % len(order)]:
            found[way, place].append(once(WAYS[way](), places[place], bare_s, asked.seconds))
            print(f"{number + 1}/{asked.rounds} {way}, {place}: {found[way, place][-1]}", flush=True)
    rows: list[Any] = []
    for (way, place), of in found.items():
        columns = [estimate(column) for column in np.array(of).T.tolist()]
        rows.append((way, place, *(tiny.with_interval(each) for each in columns)))
    show(f"Lanes; {asked.rounds} rounds of {asked.seconds:g} s", HEAD, rows)


def once(carrier: OneHost, cores: tuple[int, ...], bare_s: float, seconds: float) -> tuple[float, ...]:
    """One row."""
    with tiny.cluster(cores, carrier) as cluster:
        hops = tiny.idle(cluster, seconds)
        tiny.saturated(cluster, tiny.OVERLOAD * bare_s, 1.0)
        reached = tiny.saturated(cluster, tiny.OVERLOAD * bare_s, seconds)["images_per_s"]
    p50, _, p99 = hops.percentiles()
    return p50, p99, hops.percentiles("end")[2], reached, 100 * reached / bare_s


if __name__ == "__main__":
    main()
