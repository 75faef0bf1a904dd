"""A comparison's trade-offs drawn: accuracy against mean latency, its p99 and attributed energy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from policies.errors import InputError
from policies.files import atomic_path
from scenarios.metrics.comparison import COSTS, Comparison, measure
from scenarios.show import charts as figures

_AXES = {
    "latency_mean_s": ("mean latency, ms", 1000.0),
    "latency_p99_s": ("p99 latency, ms", 1000.0),
    "energy_dynamic_j": ("attributed energy, J/image", 1.0),
}
PICTURE_DPI = 110


def trade_off_figure(comparison: Comparison) -> Figure:
    """A panel a cost: the routers with their 95 % intervals, their front, and the bound where it is known.

    Raises:
        InputError: no router has any of these costs, for nothing was completed.
    """
    panels = [_panel(comparison, cost) for cost in COSTS if comparison["pareto"]["fronts"][cost]]
    if not panels:
        raise InputError(comparison["scenario"], "", "no router completed an image in each run: nothing to draw")
    colors = figures.router_colors([row["router"] for row in comparison["rows"]])
    return figures.trade_offs(panels, colors=colors)


def save_trade_offs(comparison: Comparison, path: Path) -> None:
    """The same as a picture, whole or not at all; PNG or SVG, by the file's ending."""
    figure = trade_off_figure(comparison)
    with atomic_path(path) as temporary, mpl.rc_context(figures.STYLE):
        figure.savefig(temporary, format=path.suffix.removeprefix("."), dpi=PICTURE_DPI, metadata=_undated(path))


def _undated(path: Path) -> Mapping[str, Any]:
    """The same figures give the same file, whenever it is drawn."""
    return {"Date": None} if path.suffix == ".svg" else {"Software": None}


def _panel(comparison: Comparison, cost: str) -> figures.TradeOff:
    title, scale = _AXES[cost]
    pareto = comparison["pareto"]
    shown = {row["router"] for row in pareto["fronts"][cost]}
    points = []
    for row in comparison["rows"]:
        if row["router"] in shown:
            accuracy, value = measure(row, pareto["accuracy"]), measure(row, cost)
            points.append(
                figures.Point(
                    name=row["router"],
                    x=value["mean"] * scale,
                    y=accuracy["mean"] * 100,
                    x_error=(value["ci95"] or 0.0) * scale,
                    y_error=(accuracy["ci95"] or 0.0) * 100,
                )
            )
    bound = [(least * scale, accuracy * 100) for accuracy, least in pareto["bounds"].get(cost, ())]
    return figures.TradeOff(points, title, bound)
