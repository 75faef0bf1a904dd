"""The results in charts, of the frames of `docs/data`. Nothing is decided here but how things look."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Any

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.study.candidates import GROUPS, PLACED
from benchmarks.study.judge import WORST_PCT, is_of
from policies.registry import COMPASS
from scenarios.metrics.pareto import ParetoPoint, pareto_front
from scenarios.show.charts import COLORS, canvas

HOLLOW = "hollow: missed"  # the page says what
_EDGE_PCT = 100.0  # beyond, a change is an arrow with its figure: one such would squeeze all others
_ACROSS = 4
_SHOWN_TIMES = 4.0  # the quickest router's latency
_COLORS = (COLORS[1], COLORS[0], COLORS[2], "#999999", "#444444")
_LOOKS = {group: look for group, *look in zip(GROUPS, _COLORS, "*oDs^", strict=True)}


def gains_chart(versus: pd.DataFrame) -> Figure:
    """Each judged scenario's change of mean latency and p99, with intervals; shaded is what is allowed anywhere."""
    shown = versus.iloc[::-1]
    ends = [
        shown[f"{stem}_pct"] + sign * shown[f"{stem}_pct_ci95"].fillna(0)
        for stem in ("mean", "p99")
        for sign in (-1, 1)
    ]
    with canvas(7.4, 0.9 + 0.32 * len(shown)) as (figure, axes):
        for place, (_, row) in enumerate(shown.iterrows()):
            axes.barh(place, WORST_PCT + 100, left=-100, height=0.8, color="#e8f3ea", zorder=0)
            _draw_change(axes, place + 0.14, row, "mean_pct", COLORS[1], "o")
            _draw_change(axes, place - 0.14, row, "p99_pct", COLORS[0], "s")
        axes.plot([], [], "o", color=COLORS[1], markersize=4, label="mean latency")
        axes.plot([], [], "s", color=COLORS[0], markersize=4, label="p99")
        axes.axvline(0, color="#666", linewidth=0.8)
        lowest, highest = min(-15.0, *(each.min() for each in ends)), max(5.0, *(each.max() for each in ends))
        axes.set(xlim=(max(-100.0, lowest - 5), min(_EDGE_PCT, highest + 5)), yticks=range(len(shown)),
                 yticklabels=list(shown["scenario"]), xlabel="Compass less its best baseline, %")  # fmt: skip
        axes.grid(visible=False, axis="y")
        axes.legend(loc="best")
    return figure


def _draw_change(axes: Axes, y: float, row: pd.Series[Any], name: str, color: str, marker: str) -> None:
    mean, half = row[name], row[f"{name}_ci95"]
    if mean > _EDGE_PCT:
        axes.plot(_EDGE_PCT, y, ">", color=color, markersize=5, clip_on=False)
        axes.annotate(f"{mean:+.0f} %", (_EDGE_PCT, y), (-6, 0), textcoords="offset points", fontsize=7, color=color,
                      ha="right", va="center")  # fmt: skip
    else:
        axes.errorbar(mean, y, xerr=half, fmt=marker, color=color, markersize=4, elinewidth=1, capsize=2)


def fronts_chart(routers: pd.DataFrame) -> Figure:
    """A panel a scenario: accuracy against mean latency; dotted is the front without Compass."""
    return _panels(routers, _draw_front, "mean latency, ms", "expected accuracy, %", is_shared=True)


def energy_chart(fronts: pd.DataFrame) -> Figure:
    """A panel a scenario: energy an image against p99 (up to four times the lowest), each kind's front."""
    return _panels(fronts, _draw_energy, "p99 latency, ms", "J an image", is_shared=False)


def _panels(
    frame: pd.DataFrame, draw: Callable[[Axes, pd.DataFrame], None], x: str, y: str, *, is_shared: bool
) -> Figure:
    names = list(frame["scenario"].unique())
    across, rows = min(_ACROSS, len(names)), ceil(len(names) / _ACROSS)
    with canvas(2.5 * across + 0.4, 2.1 * rows + 0.6, rows, across, squeeze=False) as (figure, grid):
        for axes, name in zip(grid.flat, names, strict=False):
            axes.set_title(name, fontsize=8)
            axes.tick_params(labelsize=7)
            draw(axes, frame[frame["scenario"] == name])
        for axes in grid.flat[len(names) :]:
            axes.set_axis_off()
        figure.supxlabel(x, fontsize=9)
        figure.supylabel(y, fontsize=9)
        named: dict[str, Artist] = {}
        for axes in grid.flat if is_shared else ():
            handles, labels = axes.get_legend_handles_labels()
            named |= {str(label): handle for label, handle in zip(labels, handles, strict=True)}
        if named:
            figure.legend(list(named.values()), list(named), loc="outside upper center", ncols=len(named))
    return figure


def _draw_front(axes: Axes, routers: pd.DataFrame) -> None:
    able = routers.dropna(subset=["mean_ms", "accuracy_pct"])
    if able.empty:
        return
    edge_ms = _SHOWN_TIMES * able["mean_ms"].min()
    able = able[able["mean_ms"] <= edge_ms]
    baselines = able[~able["is_flagged"].astype(bool) & ~is_of(able["router"], COMPASS)]
    front = pareto_front(
        [ParetoPoint(row["router"], row["accuracy_pct"], row["mean_ms"]) for _, row in baselines.iterrows()]
    )
    axes.plot([point.cost for point in front], [point.accuracy for point in front], ":", color="#888", linewidth=1)
    for _, row in able.iterrows():
        color, marker = _LOOKS[row["group"]]
        is_compass = row["router"] == COMPASS
        size = 11 if is_compass else 4 if row["group"] == PLACED else 5.5
        label = "Compass" if is_compass else row["group"] + (" ..." if row["group"] == PLACED else "")
        axes.plot(row["mean_ms"], row["accuracy_pct"], marker, color=color, markersize=size, linestyle="none",
                  label=label, zorder=3 if is_compass else 2)  # fmt: skip
    axes.set_xlim(0, 1.05 * edge_ms)
    axes.margins(y=0.15)


def _draw_energy(axes: Axes, rows: pd.DataFrame) -> None:
    """Hollow: the limit was missed on seeds that no tuning saw, or accuracy or images were given up."""
    able = rows.dropna(subset=["p99_ms"])
    able = able[able["p99_ms"] <= _SHOWN_TIMES * able["p99_ms"].min()].sort_values("limit_ms", na_position="first")
    missed = (able["kept"].astype(str) == "False") | able["flaws"].fillna("").ne("")
    for place, kind in enumerate(able.sort_index()["router"].unique()):
        color, marker = COLORS[(1 - place) % len(COLORS)], "*os^"[place % 4]
        kept, hollow = (able[(able["router"] == kind) & (missed == is_missed)] for is_missed in (False, True))
        front = pareto_front([ParetoPoint(kind, -row["image_j"], row["p99_ms"]) for _, row in kept.iterrows()])
        axes.plot([point.cost for point in front], [-point.accuracy for point in front], "-", color=color, linewidth=1)
        axes.plot(kept["p99_ms"], kept["image_j"], marker, color=color, markersize=5, label=kind)
        axes.plot(hollow["p99_ms"], hollow["image_j"], marker, color=color, markersize=5, fillstyle="none")
    if missed.any():
        axes.plot([], [], "o", color="#666", fillstyle="none", markersize=5, label=HOLLOW)
    if len(able):
        axes.legend(fontsize=7)
