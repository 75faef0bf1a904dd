"""From what was measured to the table: shares of the bare loop, overheads, and how we stand to each peer. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from scenarios.metrics.statistics import estimate
from scenarios.show.numbers import interval
from scenarios.show.table import Table, columns, to_text

OURS = "ours"
GOAL_THROUGHPUT, GOAL_P50 = 3.0, 1.0  # at least, and at most


@dataclass(frozen=True)
class Repeat:
    """One system in one repeat.

    Attributes:
        images_per_s, mean_batch: at saturation.
        p50_s, p99_s: latency of one request at a time.
        bare_images_per_s, bare_paced_s, bare_tight_s: of the bare loops just before and after, averaged: batches back
            to back, single forwards at the low load's pace, single forwards back to back.
        hops: routed hops a request.
    """

    images_per_s: float
    mean_batch: float
    p50_s: float
    p99_s: float
    bare_images_per_s: float
    bare_paced_s: float
    bare_tight_s: float
    hops: int

    @property
    def figures(self) -> dict[str, float]:
        """What the table and the ratios are made of."""
        return {
            "images_per_s": self.images_per_s,
            "share_of_bare": self.images_per_s / self.bare_images_per_s,
            "mean_batch": self.mean_batch,
            "p50_s": self.p50_s,
            "p99_s": self.p99_s,
            "overhead_p50_s": self.p50_s - self.bare_paced_s,
            "overhead_p99_s": self.p99_s - self.bare_paced_s,
            "overhead_p50_over_tight_s": self.p50_s - self.bare_tight_s,
            "overhead_p50_per_hop_s": (self.p50_s - self.bare_paced_s) / self.hops,
        }


def repeat_of(saturated: Mapping[str, Any], low: Mapping[str, Any], bare: Sequence[Mapping[str, float]]) -> Repeat:
    """From what the processes told; `bare` are the neighbouring bare loops."""
    return Repeat(
        images_per_s=saturated["images_per_s"],
        mean_batch=saturated["mean_batch"],
        p50_s=float(np.quantile(low["latencies_s"], 0.5)),
        p99_s=float(np.quantile(low["latencies_s"], 0.99)),
        bare_images_per_s=float(np.mean([found["images_per_s"] for found in bare])),
        bare_paced_s=float(np.mean([found["paced_s"] for found in bare])),
        bare_tight_s=float(np.mean([found["tight_s"] for found in bare])),
        hops=saturated.get("hops", 1),
    )


def summarise(repeats: Mapping[str, Sequence[Repeat]]) -> dict[str, Any]:
    """Means with 95 % half-widths over repeats; ratios to each peer are taken within a repeat."""
    return {
        "systems": {
            name: {
                **{key: estimate([one.figures[key] for one in found]) for key in found[0].figures},
                "repeats": [asdict(one) for one in found],
            }
            for name, found in repeats.items()
        },
        "ours_to": {
            name: _ratios(repeats[OURS], found) for name, found in repeats.items() if name != OURS and OURS in repeats
        },
    }


def _ratios(ours: Sequence[Repeat], peer: Sequence[Repeat]) -> dict[str, Any]:
    return {
        key: estimate([a.figures[key] / b.figures[key] for a, b in zip(ours, peer, strict=True)])
        for key in ("images_per_s", "p50_s", "overhead_p50_s", "overhead_p99_s", "overhead_p50_over_tight_s")
    }


def format_report(report: Mapping[str, Any]) -> str:
    """The table, then a line for each peer and goal."""
    head = [
        "system",
        "images/s",
        "of bare %",
        "batch",
        "p50 ms",
        "p99 ms",
        "overhead p50 ms",
        "overhead p99 ms",
        "p50/hop ms",
    ]
    rows = [
        [
            name,
            interval(found["images_per_s"], 0),
            interval(found["share_of_bare"], 1, 100),
            interval(found["mean_batch"], 1),
            *(interval(found[key], 2, 1000) for key in ("p50_s", "p99_s", "overhead_p50_s", "overhead_p99_s")),
            interval(found["overhead_p50_per_hop_s"], 2, 1000),
        ]
        for name, found in report["systems"].items()
    ]
    lines = [to_text([Table(columns(*head), rows)])]
    for name, ratio in report["ours_to"].items():
        throughput, p50 = ratio["images_per_s"], ratio["p50_s"]
        lines += [
            f"ours / {name}: throughput {interval(throughput, 2)} (goal: at least {GOAL_THROUGHPUT:g}, "
            f"{_met(throughput['mean'] >= GOAL_THROUGHPUT)}); "
            f"p50 {interval(p50, 2)} (goal: at most {GOAL_P50:g}, {_met(p50['mean'] <= GOAL_P50)}), "
            f"its overhead {interval(ratio['overhead_p50_s'], 2)}, "
            f"over back-to-back forwards {interval(ratio['overhead_p50_over_tight_s'], 2)}"
        ]
    return "\n".join(lines)


def _met(is_met: bool) -> str:
    return "met" if is_met else "missed"
