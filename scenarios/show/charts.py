"""The charts of routers and runs: data in, a chart out. It reads no file and decides nothing but how things look.

Every axis carries its unit. A router has the same color in every chart; hardware is dashed, simulation solid. Names are
drawn as they are: none is a formula, and none is left out of a legend for its first characters.
"""

from __future__ import annotations

import io
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple

import matplotlib as mpl
import numpy as np
from markupsafe import Markup
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator
from numpy.typing import NDArray

from kit.errors import InputError
from kit.files import atomic_path
from scenarios.metrics import pareto
from scenarios.metrics.catalogue import COSTS, MEASURES, Measure
from scenarios.metrics.comparison import ComparisonDocument
from scenarios.metrics.fidelity import ValidationDocument, middle_load
from scenarios.metrics.prediction import Range
from scenarios.metrics.ranking import P99, RankedRouter, compared, long_run_accuracies, validated
from scenarios.show.words import flagged
from scenarios.terminal.screen import visible

COLORS = ("#0072B2", "#D55E00", "#009E73", "#C86DA2", "#B07A00", "#2E94CF", "#6A3D9A", "#7A4A1E", "#444444", "#B22222")
MARKERS = "osD^vPX*<>"
STYLE: Any = {  # matplotlib types its keys one by one
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # as it is measured; otherwise the whole list is written at each word
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#666",
    "axes.labelcolor": "#222",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#d2d2d2",
    "grid.linewidth": 0.7,
    "xtick.color": "#444",
    "ytick.color": "#444",
    "legend.frameon": False,
    "legend.fontsize": 8,
    "lines.linewidth": 1.5,
    "text.parse_math": False,
    "text.usetex": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "slimsched",
}
WIDTH = 5.0  # inches: on a phone, where a chart is 390 pixels wide, its letters are still as high as small print
MAX_TICKS = 7
DECADE = 10.0  # times the least: from there on an axis is logarithmic
FARTHEST = 2.0  # of the largest mean: the part of an interval beyond is not drawn
ROOM = 1.25  # on either side of what is drawn, along a logarithmic axis
BESIDE = 0.15  # inches between panels, so that the ticks of two don't look like one number
LEAST_SPAN_PCT: Final = 0.5  # of an axis of accuracies
FLOOR: Final[Mapping[str, Any]] = {"color": "#888", "linestyle": ":", "linewidth": 1.2}
LITTLE = 0.005  # of a bar: invisibly small
WORLDS: Final = ("simulated", "on executors")
FILLS: Final[Mapping[str, Any]] = dict(zip(WORLDS, ("none", "full"), strict=True))
LINES: Final[tuple[Literal["-", "--"], ...]] = ("-", "--")
CDF_POINTS = 300
TIMELINE_POINTS = 400
PNG_DPI = 160
LINE = 40  # characters of a name
GREY = "#777777"
Line = tuple[Sequence[float], Sequence[float]]  # x and y, point by point
Loc = Literal["outside lower center", "outside upper center"]
_EXCESS = re.compile(r"(?<=\.\d\d)\d+")  # of a coordinate in points: digits too small to see, which make a page larger
_UNDATED = {"Date": None, "Creator": None, "Format": None, "Type": None}


@dataclass(frozen=True, slots=True)
class Latencies:
    """One curve of the latency distributions."""

    router: str
    world: str
    latencies_s: Sequence[float]


@dataclass(frozen=True, slots=True)
class Telemetry:
    """One server's readings over time."""

    server: str
    times_s: Sequence[float]
    utilization: Sequence[float]
    power_w: Sequence[float]


@contextmanager
def canvas(
    width: float, height: float, rows: int = 1, columns: int = 1, **options: Any
) -> Iterator[tuple[Figure, Any]]:
    """Return an empty chart in the house's style, and its axes: by its inches and number of panels."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(w_pad=BESIDE / 2))
        yield figure, figure.subplots(rows, columns, **options)


def to_svg(figure: Figure) -> Markup:
    """Return the chart as an `<svg>` element on a transparent background; deterministic, and without any references."""
    buffer = io.StringIO()
    with mpl.rc_context(STYLE):
        figure.savefig(buffer, format="svg", metadata=_UNDATED, transparent=True)
    text = buffer.getvalue()
    text = re.sub('(?<= d=")[^"]*', lambda found: _EXCESS.sub("", found[0]), text)
    return Markup(text[text.index("<svg") :])  # noqa: S704 - it is drawn here, of escaped text


def save(figure: Figure, path: Path) -> None:
    """Write the chart as a PNG or SVG file, by its ending: whole or not at all, and the same whenever it is drawn."""
    metadata: Any = _UNDATED if path.suffix == ".svg" else {"Software": None}
    with atomic_path(path) as temporary, mpl.rc_context(STYLE):
        figure.savefig(temporary, format=path.suffix.removeprefix("."), dpi=PNG_DPI, metadata=metadata)


def label_of(name: str) -> str:
    """Return a name for a chart: what can't be seen is written out, and a long one continues in the next line."""
    seen = visible(name)
    return "\n".join(seen[start : start + LINE] for start in range(0, len(seen), LINE))


def _legend(figure: Figure, handles: Sequence[Any], names: Sequence[str], most: int, loc: Loc) -> None:
    """Draw a legend with as many columns of names as there is room for, but at most `most`."""
    labels = [label_of(name) for name in names]
    for columns in range(min(most, len(names)), 0, -1):
        legend = figure.legend(handles, labels, loc=loc, ncols=columns)
        if columns == 1 or legend.get_window_extent().width <= figure.bbox.width:
            return
        legend.remove()


def router_colors(routers: Sequence[str]) -> dict[str, str]:
    """Return one color a router, in their order."""
    return {router: COLORS[index % len(COLORS)] for index, router in enumerate(dict.fromkeys(routers))}


# -------------------------------------------------------------------------------------------------- what routers reach


def latency_distributions(curves: Sequence[Latencies], colors: Mapping[str, str]) -> Figure:
    """Draw the share of images done within a time, a line a router; on executors dashed, simulated solid."""
    handles: dict[str, Artist] = {}
    with canvas(WIDTH, 3.6) as (figure, axes):
        for curve in curves:
            shares = np.linspace(0.001, 1.0, CDF_POINTS)
            times_ms = np.quantile(np.asarray(curve.latencies_s) * 1000, shares, method="inverted_cdf")
            line = LINES[1 if curve.world == "hardware" else 0]
            axes.plot(times_ms, 100 * shares, line, color=colors[curve.router])
            handles[curve.router] = Line2D([], [], color=colors[curve.router])
        if any(max(curve.latencies_s) > DECADE * min(curve.latencies_s) for curve in curves):
            axes.set_xscale("log")
            plain_log_ticks(axes.xaxis)
        axes.set(
            xlabel="latency, ms (arrival to last segment done)", ylabel="images done within it, %", ylim=(0, 100.5)
        )
        _legend(figure, list(handles.values()), list(handles), 3, "outside lower center")
        if len({curve.world for curve in curves}) > 1:
            both = [Line2D([], [], color=GREY, linestyle=line) for line in LINES]
            figure.legend(both, WORLDS, loc="outside upper center", ncols=2)
    return figure


class Standing(NamedTuple):
    """A router's p99 latency with the ends of its interval, in ms, and its accuracy."""

    router: str
    p99_ms: float
    low_ms: float
    high_ms: float
    accuracy: float


def standings(
    comparison: ComparisonDocument | None, validation: ValidationDocument | None
) -> dict[str, list[Standing]]:
    """Return the routers that executors ran, predicted and measured; without a validation those that were compared."""
    if validation is not None and validation["rows"]:
        long_run = long_run_accuracies(comparison)
        real, promised = (
            validated(validation, world, of=P99, long_run=long_run).judged for world in ("hardware", "simulated")
        )
        load = middle_load(row["load"] for row in validation["rows"])
        rows = [row for row in validation["rows"] if row["load"] == load]
        ranges = {row["router"]: row["predicted"].get(P99.stem) for row in rows}
        ran = {one.router for one in real}
        predicted = [_standing(one, ranges[one.router]) for one in promised if one.router in ran]
        return {WORLDS[0]: predicted, WORLDS[1]: [_standing(one) for one in real]}
    return {} if comparison is None else {WORLDS[0]: [_standing(one) for one in compared(comparison, P99).judged]}


def _standing(one: RankedRouter, predicted: Range | None = None) -> Standing:
    half_s = one.interval["ci95"] or 0.0
    found_s = (one.mean, one.mean - half_s, one.mean + half_s)
    if predicted is not None:
        found_s = (predicted["median"], predicted["low"], predicted["high"])
    middle, low, high = (1000 * value_s for value_s in found_s)
    return Standing(one.router, middle, low, high, one.accuracy)


def ranking_chart(
    worlds: Mapping[str, Sequence[Standing]],
    colors: Mapping[str, str],
    accuracy: Measure,
    first: Collection[str] = (),
    floor: float | None = None,
) -> Figure:
    """Draw a line a router, the fastest above: p99 latency, hollow simulated and filled on executors; and the accuracy.

    Args:
        accuracy: which one the routers are judged by.
        first: the routers that have won, or tie; in bold letters.
        floor: of accuracy, drawn as a line.
    """
    routers = [one.router for one in sorted([*worlds.values()][-1], key=lambda one: one.p99_ms)]
    offsets = (-0.13, 0.13) if len(worlds) > 1 else (0.0,)
    with canvas(WIDTH, 1.3 + 0.4 * len(routers), 1, 2, sharey=True, width_ratios=(3, 2)) as (figure, (left, right)):
        every = [one for standing in worlds.values() for one in standing]
        _frame_costs(left, [(one.p99_ms, one.high_ms - one.p99_ms) for one in every], 5)
        for (world, standing), offset in zip(worlds.items(), offsets, strict=True):
            for one in standing:
                place = routers.index(one.router) + offset
                style: Any = {"color": colors[one.router], "fillstyle": FILLS[world], "marker": "o", "markersize": 6}
                _interval(left, "x", (one.low_ms, one.high_ms), place, colors[one.router])
                left.plot(one.p99_ms, place, **style)
                right.plot(100 * one.accuracy, place, **style)
        left.set_yticks(range(len(routers)), [label_of(router) for router in routers])
        for router, label in zip(routers, left.get_yticklabels(), strict=True):
            label.set_fontweight("bold" if router in first else "normal")
        left.set_ylim(len(routers) - 0.5, -0.5)
        left.set(xlabel=P99.axis)
        right.set(xlabel=accuracy.axis)
        _frame_accuracies(right, floor)
        style = {"marker": "o", "linestyle": "none", "color": "#444"}
        handles = [Line2D([], [], fillstyle=FILLS[world], **style) for world in worlds]
        floors = [Line2D([], [], **FLOOR)] if floor else []
        names = [*worlds, *(["floor"] if floor else [])]
        figure.legend([*handles, *floors], names, loc="outside upper center", ncols=3)
    return figure


def _frame_accuracies(axes: Axes, floor: float | None) -> None:
    """Show at least `LEAST_SPAN_PCT`, so that hundredths do not look like a difference."""
    axes.xaxis.set_major_locator(MaxNLocator(3))
    axes.margins(x=0.15)
    if floor:
        axes.axvline(100 * floor, **FLOOR)
    low, high = axes.get_xlim()
    missing = max(0.0, LEAST_SPAN_PCT - (high - low)) / 2
    axes.set_xlim(low - missing, high + missing)


def trade_off_chart(comparison: ComparisonDocument) -> Figure:
    """Draw a panel a cost: the routers with their 95 % intervals, their front, and the bound if it is known.

    Raises:
        InputError: no router has any of these costs, because nothing was completed.
    """
    stored = comparison["pareto"]
    costs = [cost for cost in COSTS if stored["fronts"][cost.name]]
    if not costs:
        raise InputError(comparison["scenario"], "", "no router completed an image in each run: nothing to draw")
    colors = router_colors([row["router"] for row in comparison["rows"]])
    return trade_offs(comparison["rows"], MEASURES[stored["accuracy"]], costs, colors, stored["bounds"])


def trade_offs(
    rows: Sequence[Mapping[str, Any]],
    accuracy: Measure,
    costs: Sequence[Measure],
    colors: Mapping[str, str],
    bounds: Mapping[str, Sequence[tuple[float, float]]] = MappingProxyType({}),
) -> Figure:
    """Draw accuracy against costs side by side, with one legend, of a comparison's rows.

    The dotted line joins what no other router beats on both; the dashed one is a limit that no router can pass.

    Args:
        bounds: by cost, points (accuracy, least cost) as they are stored.
    """
    width = 3.4 * len(costs) if len(costs) > 1 else WIDTH
    with canvas(width, 3.9, 1, len(costs), squeeze=False, sharey=True) as (figure, grid):
        named: dict[str, Any] = {}
        for axes, cost in zip(grid[0], costs, strict=True):
            bound = [(least * cost.scale, top1 * accuracy.scale) for top1, least in bounds.get(cost.name, ())]
            known = [row for row in rows if None not in (cost.of(row)["mean"], accuracy.of(row)["mean"])]
            named |= _draw_trade_off(axes, [_point(row, accuracy, cost) for row in known], bound, colors)
            axes.set(xlabel=cost.axis)
        grid[0][0].set(ylabel=accuracy.axis)
        _legend(figure, list(named.values()), list(named), 6, "outside lower center")
    return figure


class ChartPoint(NamedTuple):
    """A router in a trade-off, with the half-widths of its intervals (0 for none)."""

    name: str
    is_flagged: bool
    x: float
    x_error: float
    y: float
    y_error: float


def _point(row: Mapping[str, Any], accuracy: Measure, cost: Measure) -> ChartPoint:
    x, y = (
        [of * each.scale for of in (each.of(row)["mean"], each.of(row)["ci95"] or 0.0)] for each in (cost, accuracy)
    )
    return ChartPoint(row["router"], row["is_flagged"], *x, *y)


def _draw_trade_off(
    axes: Axes, points: Sequence[ChartPoint], bound: Sequence[tuple[float, float]], colors: Mapping[str, str]
) -> dict[str, Any]:
    """Draw one trade-off; returns what its legend needs: by name what was drawn.

    A router that leaves too many images unserved is flagged, and on no front.
    """
    drawn = dict[str, Any]()
    front = pareto.pareto_front(
        [pareto.ParetoPoint(point.name, point.y, point.x) for point in points if not point.is_flagged]
    )
    axes.plot([p.cost for p in front], [p.accuracy for p in front], ":", color="#888", linewidth=1.2, zorder=1)
    if bound:
        (drawn["fluid bound"],) = axes.plot(*zip(*bound, strict=True), "--", color=GREY, linewidth=1.2, zorder=1)
    _frame_points(axes, points)
    for index, point in enumerate(points):
        _interval(axes, "x", (point.x - point.x_error, point.x + point.x_error), point.y, colors[point.name])
        _interval(axes, "y", (point.y - point.y_error, point.y + point.y_error), point.x, colors[point.name])
        (drawn[flagged(point.name, point.is_flagged)],) = axes.plot(
            point.x,
            point.y,
            linestyle="none",
            marker=MARKERS[(index + index // len(COLORS)) % len(MARKERS)],  # colors come round, their markers don't
            color=colors[point.name],
            markersize=6,
            zorder=3,
        )
    return drawn


def _interval(axes: Axes, along: Literal["x", "y"], ends: tuple[float, float], at: float, color: str) -> None:
    """Draw an interval, pale and below all points: a wide one hides none. One beyond the frame ends there."""
    line = ends, (at, at)
    axes.plot(*(line if along == "x" else line[::-1]), color=color, alpha=0.5, linewidth=1.4, zorder=1.5)


def _frame_costs(axes: Axes, intervals: Sequence[tuple[float, float]], ticks: int) -> None:
    """Set limits along x for (mean, half-width of its interval): from 0, or logarithmic if means are far apart."""
    means = [mean for mean, _ in intervals]
    high = min(max(mean + half for mean, half in intervals), FARTHEST * max(means))
    if max(means) > DECADE * min(means) > 0:
        axes.set_xscale("log")
        low = max(min(mean - half for mean, half in intervals), min(means) / FARTHEST)
        axes.set_xlim(low / ROOM, high * ROOM)
        plain_log_ticks(axes.xaxis, ticks)
    else:
        axes.set_xlim(0, 1.08 * high or 1.0)
        axes.xaxis.set_major_locator(MaxNLocator(ticks))


def _frame_points(axes: Axes, points: Sequence[ChartPoint]) -> None:
    """Limits that show the points well, and all of each interval but of one that is as wide as the page."""
    if not points:
        return
    _frame_costs(axes, [(point.x, point.x_error) for point in points], 6)
    low, high = min(p.y for p in points), max(p.y for p in points)
    most = max(high - low, 1.0)
    low = max(min(p.y - p.y_error for p in points), low - most)
    high = min(max(p.y + p.y_error for p in points), high + most)
    margin = max(0.1 * (high - low), 0.5)
    axes.set_ylim(low - margin, high + margin)


def over_time(servers: Sequence[Telemetry]) -> Figure:
    """Draw each server's utilization and power along the run."""
    handles: list[Artist] = []
    with canvas(WIDTH, 3.8, 2, 1, sharex=True) as (figure, (top, bottom)):
        for index, server in enumerate(servers):
            times_s, style = _thinned(server.times_s), {"color": COLORS[index % len(COLORS)], "linewidth": 1.1}
            handles += top.plot(times_s, 100 * _thinned(server.utilization), **style)
            bottom.plot(times_s, _thinned(server.power_w), **style)
        top.set(ylabel="utilization, %", ylim=(-2, 102))
        bottom.set(xlabel="time, s", ylabel="power, W")
        bottom.set_ylim(bottom=0)
        figure.align_ylabels()
        _legend(figure, handles, [server.server for server in servers], 4, "outside upper center")
    return figure


def both_over_time(simulated: Sequence[Telemetry], hardware: Sequence[Telemetry]) -> Figure:
    """Draw each server's utilization along the run, a panel a server: simulated solid, on executors dashed."""
    count = len(simulated)
    with canvas(WIDTH, 0.9 + 1.4 * count, count, 1, sharex=True, squeeze=False) as (figure, axes):
        for index, (ours, theirs) in enumerate(zip(simulated, hardware, strict=True)):
            panel, color = axes[index][0], COLORS[index % len(COLORS)]
            for of, line, label in zip((ours, theirs), LINES, WORLDS, strict=True):
                shares = 100 * _thinned(of.utilization)
                panel.plot(_thinned(of.times_s), shares, line, color=color, linewidth=1.1, label=label)
            panel.set(ylabel=f"{label_of(ours.server)}: utilization, %", ylim=(-2, 102))
        axes[-1][0].set_xlabel("time, s")
        figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside upper center", ncols=2)
    return figure


def _thinned(values: Sequence[float]) -> NDArray[np.float64]:
    """Choose evenly spaced values, at most as many as are visible."""
    return np.asarray(values)[:: max(1, len(values) // TIMELINE_POINTS)]


def stage_bars(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw where an image's time goes, two bars of shares a router: simulation above executors (hatched).

    Rows are those of a validation with stages in simulation and on executors; the milliseconds of all are behind the
    bars. A stage that takes next to nothing of every bar is left out; each keeps its color.
    """
    every = [of for row in rows for of in row["stages_s"].values()]
    colors = {stage: COLORS[number % len(COLORS)] for number, stage in enumerate(every[0])}
    stages = [stage for stage in colors if any(of[stage] > LITTLE * sum(of.values()) for of in every)] or list(colors)
    with canvas(WIDTH, 1.3 + 0.55 * len(rows)) as (figure, axes):
        for index, row in enumerate(rows):
            for offset, world, hatch in ((-0.2, "simulated", ""), (0.2, "hardware", "////")):
                spent_s, left = row["stages_s"][world], 0.0
                whole_s = sum(spent_s.values())
                for stage in stages:
                    share = 100 * spent_s[stage] / (whole_s or 1.0)
                    style = {"color": colors[stage], "hatch": hatch, "edgecolor": "white"}
                    axes.barh(index + offset, share, 0.36, left=left, linewidth=0.4, **style)
                    left += share
                axes.text(101.5, index + offset, f"{1000 * whole_s:.3g} ms", va="center", fontsize=8)
        handles = [Patch(color=colors[stage]) for stage in stages]
        axes.set_yticks(range(len(rows)), [label_of(row["router"]) for row in rows])
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.set(xlabel="share of an image's mean time, %", xlim=(0, 118), xticks=range(0, 101, 25))
        figure.legend(handles, [stage.replace("_", " ") for stage in stages], loc="outside lower center", ncols=3)
    return figure


def training_curves(routers: Mapping[str, Mapping[str, Sequence[Line]]]) -> Figure:
    """Draw what learners reported along decisions: by router, one panel a scalar, with a line a training.

    Of one training its values are pale behind their running mean. Of several the running means are pale behind their
    mean, in a band from the lowest to the highest, as far as all of them got.
    """
    count = sum(map(len, routers.values()))
    with canvas(WIDTH, 1.1 + 1.2 * count, count, 1, squeeze=False) as (figure, axes):
        panels = iter(axes[:, 0])
        for router, scalars in routers.items():
            for (name, lines), panel in zip(scalars.items(), panels, strict=False):
                _draw_training(panel, lines)
                panel.set_ylabel(label_of(name).replace("/", "/\n"))
                panel.xaxis.set_major_locator(MaxNLocator(5))  # their numbers are long
                panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
                panel.tick_params(labelbottom=False)
            several = f", {len(lines)} trainings" if len(lines) > 1 else ""
            panel.tick_params(labelbottom=True)
            panel.set_xlabel(f"decisions of {router}{several}")
        figure.align_ylabels()
        found = [panel.get_legend_handles_labels() for panel in axes[:, 0]]
        if legend := {label: handle for each in found for handle, label in zip(*each, strict=True)}:
            figure.legend(legend.values(), legend.keys(), loc="outside lower center", ncols=len(legend))
    return figure


def _draw_training(panel: Axes, lines: Sequence[Line]) -> None:
    means = [(decisions, smoothed(values)) for decisions, values in lines]
    for decisions, values in lines if len(lines) == 1 else means:
        panel.plot(decisions, values, color=COLORS[0], alpha=0.35, linewidth=1)
    first, last = max(decisions[0] for decisions, _ in means), min(decisions[-1] for decisions, _ in means)
    common = sorted({at for decisions, _ in means for at in decisions if first <= at <= last})
    each = np.array([np.interp(common, decisions, values) for decisions, values in means])
    label, marker = "mean of the trainings" if len(lines) > 1 else None, "." if len(common) < 10 else ""
    panel.plot(common, each.mean(axis=0), color=COLORS[0], marker=marker, label=label)
    if label:
        low, high = each.min(axis=0), each.max(axis=0)
        panel.fill_between(common, low, high, color=COLORS[0], alpha=0.15, linewidth=0, label="lowest to highest")


def smoothed(values: Sequence[float], keep: float = 0.8) -> list[float]:
    """Return an exponential mean, so that a trend can be seen."""
    means: list[float] = []
    for value in values:
        means.append(value if not means else keep * means[-1] + (1 - keep) * value)
    return means


def plain_log_ticks(axis: Axis, most: int = MAX_TICKS) -> None:
    """Set about `most` ticks, written as plain numbers."""
    low, high = axis.get_view_interval()
    decades = LogLocator(subs=(1, 2, 5) if high < 100 * low else (1,), numticks=most)
    axis.set_major_locator(decades if high > 10 * low else MaxNLocator(most - 1))
    axis.set_major_formatter(FuncFormatter(plain))
    axis.set_minor_locator(NullLocator())


def plain(value: float, _: int | None) -> str:
    """Format a number on an axis, without powers of ten."""
    return f"{value:g}"
