"""What a hop costs beside its forward pass on an idle device, and how near a saturated server comes to a bare loop.

    python -m benchmarks.speed.idle_hop
    python -m benchmarks.speed.idle_hop --rounds 5 --seconds 6 --json hops.json

One server of `slimresnet-tiny` on one core, a request every 20 ms: each makes four hops. A hop's overhead is from the
router's snapshot until the pass begins, and from its end until the router's core has the block back. The router has a
core to itself, or shares all cores with the agent; in turns. Throughput is beside a loop of the same forwards at
batch 16 on the same core, in turns too; ratios are taken within a round. Intervals (95 %) are over rounds.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.speed import tiny
from benchmarks.speed.harness import show
from hw.telemetry import usable_cores
from scenarios.metrics.statistics import estimate

PERCENTILES = ("p50", "p90", "p99")


def main() -> None:
    """See above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=6.0, help="of each run")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    core = usable_cores()[:1]
    found: dict[str, Any] = {"hops_us": hops(core, asked.rounds, asked.seconds)}
    found["saturated"] = saturation(core, asked.rounds, asked.seconds)
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=1))


def hops(core: Sequence[int], rounds: int, seconds: float) -> dict[str, Any]:
    """Of both places, in turns; a round's percentiles are of all its hops."""
    places = {"a core of its own": tuple(core), "shared cores": ()}
    of: dict[str, list[tiny.Hops]] = {place: [] for place in places}
    for _ in range(rounds):
        for place, cores in places.items():
            with tiny.cluster(cores) as cluster:
                of[place].append(tiny.idle(cluster, seconds))
    rows, found = [], {}
    for place, runs in of.items():
        for name, stages in {"whole": (), **{stage: (stage,) for stage in tiny.STAGES}}.items():
            values = np.array([run.percentiles(*stages) for run in runs])
            found[f"{place}: {name}"] = values.tolist()
            rows.append((place, name, *(tiny.with_interval(estimate(column)) for column in values.T.tolist())))
    title = f"A hop on an idle device beside its pass, us; {rounds} rounds of {seconds:g} s"
    show(title, ("the router has", "part", *PERCENTILES), rows)
    return found


def saturation(core: Sequence[int], rounds: int, seconds: float) -> list[dict[str, float]]:
    """Bare loop and server in turns."""
    found = []
    for _ in range(rounds):
        bare_s = tiny.bare(core, seconds)
        with tiny.cluster(tuple(core)) as cluster:
            tiny.saturated(cluster, tiny.OVERLOAD * bare_s, 1.0)
            found.append({"bare": bare_s, **tiny.saturated(cluster, tiny.OVERLOAD * bare_s, seconds)})
    of_bare = [100 * each["images_per_s"] / each["bare"] for each in found]
    rows = [(
        tiny.with_interval(estimate([each["images_per_s"] for each in found])),
        tiny.with_interval(estimate([each["bare"] for each in found])), tiny.with_interval(estimate(of_bare), 1),
        *(float(np.mean([each[key] for each in found])) for key in ("mean_batch", "router_us_image", "agent_us_image")),
    )]  # fmt: skip
    head = ("images/s", "bare loop", "of bare, %", "mean batch", "router, us an image", "agent, us an image")
    show(f"Saturated, on one core; {rounds} rounds of {seconds:g} s", head, rows)
    return found


if __name__ == "__main__":
    main()
