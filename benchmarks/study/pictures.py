"""The results in charts. It reads no file and decides nothing but how things look."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.study.cases import GROUPS, PLACED
from benchmarks.study.findings import WORST_PCT, Found, Verdict, is_of
from benchmarks.study.fronts import is_kept
from benchmarks.study.tuned_rows import flaws
from policies.registry import TIDE
from scenarios.metrics.pareto import Point, pareto_front
from scenarios.metrics.statistics import Estimate
from scenarios.show.charts import COLORS, canvas

GAINS = "Tide against its best rival"
FRONTS = "Accuracy against mean latency, up to four times the quickest router's"
HOLLOW = "hollow: missed"  # the page says what
_EDGE_PCT = 100.0  # beyond, a change is an arrow with its figure: one such would squeeze all others
_ACROSS = 4
_SHOWN_TIMES = 4.0  # the quickest router's latency
_COLORS = (COLORS[1], COLORS[0], COLORS[2], COLORS[3], "#999999", "#444444")
_LOOKS = {group: look for group, *look in zip(GROUPS, _COLORS, "*oDvs^", strict=True)}


def gains_chart(verdicts: Sequence[Verdict]) -> Figure:
    """Each judged scenario's change of mean latency and p99, with intervals; shaded is what is allowed anywhere."""
    shown = [verdict for verdict in verdicts if verdict.versus is not None][::-1]
    with canvas(7.4, 0.9 + 0.32 * len(shown)) as (figure, axes):
        lowest = -100.0
        for place, verdict in enumerate(shown):
            assert verdict.versus is not None
            axes.barh(place, WORST_PCT - lowest, left=lowest, height=0.8, color="#e8f3ea", zorder=0)
            _draw_change(axes, place + 0.14, verdict.versus.mean, COLORS[1], "o")
            _draw_change(axes, place - 0.14, verdict.versus.p99, COLORS[0], "s")
        if shown:
            axes.plot([], [], "o", color=COLORS[1], markersize=4, label="mean latency")
            axes.plot([], [], "s", color=COLORS[0], markersize=4, label="p99")
        axes.axvline(0, color="#666", linewidth=0.8)
        changes = [each for of in shown if of.versus is not None for each in (of.versus.mean, of.versus.p99)]
        ends = [(each["mean"] or 0.0) + sign * (each["ci95"] or 0.0) for each in changes for sign in (-1, 1)]
        axes.set(xlim=(max(lowest, min([*ends, -15.0]) - 5), min(_EDGE_PCT, max([*ends, 5.0]) + 5)),
                 xlabel="Tide less its best rival, %", yticks=range(len(shown)),
                 yticklabels=[verdict.scenario for verdict in shown])  # fmt: skip
        axes.grid(visible=False, axis="y")
        axes.legend(loc="best")
    return figure


def _draw_change(axes: Axes, y: float, change: Estimate, color: str, marker: str) -> None:
    mean, half = change["mean"] or 0.0, change["ci95"] or None
    if mean > _EDGE_PCT:
        axes.plot(_EDGE_PCT, y, ">", color=color, markersize=5, clip_on=False)
        axes.annotate(f"{mean:+.0f} %", (_EDGE_PCT, y), (-6, 0), textcoords="offset points", fontsize=7, color=color,
                      ha="right", va="center")  # fmt: skip
    else:
        axes.errorbar(mean, y, xerr=half, fmt=marker, color=color, markersize=4, elinewidth=1, capsize=2)


def fronts_chart(found: Sequence[Found]) -> Figure:
    """A panel a scenario; dotted is the front without Tide."""
    rows = ceil(len(found) / _ACROSS)
    across = min(_ACROSS, len(found))
    with canvas(2.5 * across + 0.4, 2.1 * rows + 0.6, rows, across, squeeze=False) as (figure, grid):
        for axes, each in zip(grid.flat, found, strict=False):
            _draw_front(axes, each)
        for axes in grid.flat[len(found) :]:
            axes.set_axis_off()
        figure.supxlabel("mean latency, ms", fontsize=9)
        figure.supylabel("expected accuracy, %", fontsize=9)
        named: dict[str, Artist] = {}
        for axes in grid.flat:
            handles, labels = axes.get_legend_handles_labels()
            named |= {str(label): handle for label, handle in zip(labels, handles, strict=True)}
        if named:
            figure.legend(list(named.values()), list(named), loc="outside upper center", ncols=len(named))
    return figure


def energy_chart(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """A panel a scenario: energy an image against p99 (up to four times the lowest), each kind's front; hollow is
    what can't count."""
    names = list(dict.fromkeys(row["scenario"] for row in rows))
    across = min(_ACROSS, len(names))
    height = ceil(len(names) / _ACROSS)
    with canvas(2.5 * across + 0.4, 2.1 * height + 0.6, height, across, squeeze=False) as (figure, grid):
        for axes, name in zip(grid.flat, names, strict=False):
            axes.set_title(name, fontsize=8)
            axes.tick_params(labelsize=7)
            _draw_energy(axes, [row for row in rows if row["scenario"] == name and "problem" not in row])
        for axes in grid.flat[len(names) :]:
            axes.set_axis_off()
        figure.supxlabel("p99 latency, ms", fontsize=9)
        figure.supylabel("J an image", fontsize=9)
    return figure


def _draw_energy(axes: Axes, rows: Sequence[Mapping[str, Any]]) -> None:
    """Hollow: the limit was missed on seeds that no tuning saw, or accuracy or images were given up."""
    edge_ms = _SHOWN_TIMES * min((row["p99_ms"] for row in rows), default=0.0)
    rows = [row for row in rows if row["p99_ms"] <= edge_ms]
    missed = [row for row in rows if not is_kept(row) or flaws(row)]
    for place, kind in enumerate(dict.fromkeys(row["router"] for row in rows)):
        color, marker = COLORS[(1 - place) % len(COLORS)], "*os^"[place % 4]
        own = sorted((row for row in rows if row["router"] == kind), key=lambda row: row["limit_ms"] or 0.0)
        kept = [(row["p99_ms"], row["image_j"]) for row in own if row not in missed]
        hollow = [(row["p99_ms"], row["image_j"]) for row in own if row in missed]
        front = pareto_front([Point(kind, -y, x) for x, y in kept])
        axes.plot([point.cost for point in front], [-point.accuracy for point in front], "-", color=color, linewidth=1)
        axes.plot([x for x, _ in kept], [y for _, y in kept], marker, color=color, markersize=5, label=kind)
        axes.plot([x for x, _ in hollow], [y for _, y in hollow], marker, color=color, markersize=5, fillstyle="none")
    if missed:
        axes.plot([], [], "o", color="#666", fillstyle="none", markersize=5, label=HOLLOW)
    if rows:
        axes.legend(fontsize=7)


def _draw_front(axes: Axes, found: Found) -> None:
    points = [
        (row, 1000 * row.mean_s, 100 * row.accuracy)
        for row in found.rows
        if row.mean_s is not None and row.accuracy is not None
    ]
    axes.set_title(found.name, fontsize=8)
    if not points:
        return
    edge_ms = _SHOWN_TIMES * min(x for _, x, _ in points)
    points = [point for point in points if point[1] <= edge_ms]
    front = pareto_front([Point(row.label, y, x) for row, x, y in points if not is_of(row, TIDE) and not row.is_marked])
    axes.plot([point.cost for point in front], [point.accuracy for point in front], ":", color="#888", linewidth=1)
    for row, x, y in points:
        color, marker = _LOOKS[row.group]
        size = 11 if row.label == TIDE else 4 if row.group == PLACED else 5.5
        label = "Tide" if row.label == TIDE else row.group + (" ..." if row.group == PLACED else "")
        axes.plot(x, y, marker, color=color, markersize=size, linestyle="none", label=label,
                  zorder=3 if row.label == TIDE else 2)  # fmt: skip
    axes.set_xlim(0, 1.05 * edge_ms)
    axes.margins(y=0.15)
    axes.tick_params(labelsize=7)
