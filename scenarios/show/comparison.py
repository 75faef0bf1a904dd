"""A comparison's other tables as plain text: pairs, trade-offs, and the paper's layout with its numbers beside ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import floor, log10
from typing import Any

from scenarios.metrics.comparison import COSTS, Comparison
from scenarios.metrics.statistics import PairedDifference
from scenarios.show.paper import PaperRow, is_replica, paper_row
from scenarios.show.words import NONE, change, format_comparison, number, table

COST_NAMES = {"latency_mean_s": "mean latency", "latency_p99_s": "p99 latency", "energy_dynamic_j": "attributed energy"}
_SHORT = {"latency_mean_s": "mean", "latency_p99_s": "p99", "energy_dynamic_j": "energy"}


def format_all(comparison: Comparison) -> str:
    """Every table that there is something to say in, the comparison's own first."""
    parts = [format_comparison(comparison)]
    if is_replica(comparison["scenario"]):
        parts.append(format_paper(comparison))
    paired = comparison["paired"]
    if paired is not None and len(paired["rows"]) > 1 and any(len(row["seeds"]) > 1 for row in paired["rows"]):
        parts.append(format_paired(comparison))
    if len(comparison["rows"]) > 1:
        parts.append(format_trade_offs(comparison))
    return "\n\n".join(part for part in parts if part)


# --------------------------------------------------------------------------------------------------------------- pairs


def format_paired(comparison: Comparison) -> str:
    """Seed by seed against one router: the differences, and in percent of its figures; `*` where they are no chance."""
    paired = comparison["paired"]
    if paired is None:
        return ""
    head = ["router", "latency ms", "%", "p99 ms", "%", "J/image", "%", "accuracy points"]
    rows = []
    for row in paired["rows"]:
        if row["router"] == paired["against"]:
            continue
        cells = [row["router"]]
        for name, scale in (("latency_mean_s", 1000.0), ("latency_p99_s", 1000.0), ("energy_per_image_j", 1.0)):
            cells += [_difference(row[name], scale), change(row[name]["percent"])]
        rows.append([*cells, _difference(row["accuracy"], 100.0)])
    note = "Mean and 95 % interval of the differences between runs of the same seed; * where the interval leaves 0 out."
    return f"differences to {paired['against']!r}\n{table(head, rows)}\n{note}"


def _difference(found: PairedDifference, scale: float) -> str:
    """With as many digits as the interval deserves."""
    mean, half_width = found["difference"]["mean"], found["difference"]["ci95"]
    if mean is None:
        return NONE
    digits = _digits(half_width * scale if half_width else mean * scale)
    text = number(mean * scale, digits, signed=True)
    if half_width is None:
        return text
    return f"{text} +-{number(half_width * scale, digits)}{'*' if found['differs'] else ' '}"


def _digits(value: float) -> int:
    """After the point, so that two digits of the value count; at most six, and two of nothing."""
    return min(6, max(0, 1 - floor(log10(abs(value))))) if value else 2


# ---------------------------------------------------------------------------------------------------------- trade-offs


def format_trade_offs(comparison: Comparison) -> str:
    """Which routers no other beats at accuracy and a cost, how far from the bound they are, and their worst seeds."""
    pareto, worst = comparison["pareto"], {row["router"]: row for row in comparison["worst"]}
    found = {cost: {row["router"]: row for row in rows} for cost, rows in pareto["fronts"].items()}
    bounded = [cost for cost in COSTS if pareto["bounds"].get(cost)]
    head = ["router", "accuracy %", "mean ms", "p99 ms", "attributed J/image", "on the front of"]
    head += [f"{_SHORT[cost]} over bound" for cost in bounded] + ["worst: accuracy %", "mean ms", "p99 ms", "J/image"]
    rows = []
    for router in (row["router"] for row in comparison["rows"]):
        places = {cost: of[router] for cost, of in found.items() if router in of}
        accuracy = next((row["accuracy"] for row in places.values()), None)
        fronts = [_SHORT[cost] for cost in COSTS if cost in places and places[cost]["on_front"]]
        rows.append(
            [
                router,
                _scaled(accuracy, 2, 100),
                *(_cost(cost, places[cost]["cost"] if cost in places else None) for cost in COSTS),
                ", ".join(fronts) or NONE,
                *(_gap(places.get(cost)) for cost in bounded),
                _scaled(worst[router][pareto["accuracy"]], 2, 100),
                *(_cost(cost, worst[router][cost]) for cost in COSTS),
            ]
        )
    axis = "accuracy expected of the widths that ran" if pareto["accuracy"] == "expected_accuracy" else "accuracy"
    lines = [f"trade-offs: {axis} against costs", table(head, rows)]
    lines += [_covered(comparison)] if comparison["hypervolume"] else []
    return "\n".join(lines)


def _covered(comparison: Comparison) -> str:
    shares = [
        f"{COST_NAMES[cost]} {number(of['share'], 3)}"
        for cost, of in comparison["hypervolume"].items()
        if of["share"] is not None
    ]
    if not shares:
        return "Hypervolume: none, all routers are equally accurate or equally costly."
    return f"Hypervolume, as a share of what one router with the best of both would cover: {', '.join(shares)}."


def _gap(row: Mapping[str, Any] | None) -> str:
    return NONE if row is None or row["gap_pct"] is None else f"{row['gap_pct']:+.0f} %"


def _scaled(value: float | None, digits: int, scale: float) -> str:
    return NONE if value is None else number(value * scale, digits)


def _cost(name: str, value: float | None) -> str:
    if value is None:
        return NONE
    return number(value * 1000, 2) if name.endswith("_s") else f"{value:.3g}"


# ----------------------------------------------------------------------------------------------------- the paper's own

_PAPER_HEAD = ("router", "accuracy %", "latency s (std)", "energy J (std)", "GPU var (std)", "images",
               "latency vs random", "energy vs random")  # fmt: skip


def format_paper(comparison: Comparison) -> str:
    """The layout of Tables III to V; under each router that the paper has, what the paper reports."""
    rows: list[Sequence[str]] = []
    for row in comparison["rows"]:
        rows.append(_our_cells(row))
        paper = paper_row(row["router"])
        if paper is not None:
            rows.append(_paper_cells(paper))
    note = "Means over seeds; (std) is over a run's images, of GPU var over its readings. Changes are seed by seed."
    return f"the paper's tables\n{table(_PAPER_HEAD, rows)}\n{note}"


def _our_cells(row: Mapping[str, Any]) -> list[str]:
    return [
        row["router"],
        _scaled(row["accuracy"]["mean"], 2, 100),
        _with_std(row["latency_s"], 3),
        _with_std(row["energy_j"], 2),
        _with_std(row["gpu_var"], 4),
        number(row["images"]["completed"]["mean"], 0),
        _percent(row["latency_change_pct"]["mean"]),
        _percent(row["energy_change_pct"]["mean"]),
    ]


def _paper_cells(paper: PaperRow) -> list[str]:
    return [
        f"  paper, Table {paper.table}",
        f"{paper.accuracy_pct:.2f}",
        f"{paper.latency_s:.3f} ({paper.latency_std_s:.3f})",
        f"{paper.energy_j:.2f} ({paper.energy_std_j:.2f})",
        f"{paper.gpu_var:.4f} ({paper.gpu_var_std:.4f})",
        f"{paper.images}",
        _percent(paper.latency_change_pct),
        _percent(paper.energy_change_pct),
    ]


def _with_std(spread: Mapping[str, Any], digits: int) -> str:
    mean, std = spread["mean"]["mean"], spread["std"]["mean"]
    return NONE if mean is None else f"{mean:.{digits}f} ({number(std, digits)})"


def _percent(value: float | None) -> str:
    return NONE if value is None else f"{value:+.2f} %"
