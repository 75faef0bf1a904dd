"""Charts of results and of learning, drawn by matplotlib.

Every axis states its unit. A router has the same color in every chart; executors are dashed. Names are
drawn as they are: matplotlib parses none as a formula, and omits none from a legend for its first characters.

Learning curves (`save_curves`) are of one run folder's trainings, or of several folders' in one chart.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import nan
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
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator
from numpy.typing import NDArray

from kit.errors import InputError
from kit.files import atomic_path
from scenarios.files.bundled_files import MADE_KINDS, made_name, training_file
from scenarios.metrics import router_comparison
from scenarios.metrics.fidelity import ValidationDocument, middle_load
from scenarios.metrics.metric_catalogue import COSTS, MEASURES, Measure
from scenarios.metrics.router_comparison import (
    P99,
    ComparisonDocument,
    RankedRouter,
    compared,
    long_run_accuracies,
    validated,
)
from scenarios.metrics.statistics import Range
from scenarios.runs.folder import RunFolder
from scenarios.show.result_words import flagged
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
BESIDE = 0.15  # inches between panels, so that the ticks of two don't look like one number
LEAST_SPAN_PCT: Final = 0.5  # of an axis of accuracies, so that hundredths do not look like a difference
HALF_SPANS: Final = (-LEAST_SPAN_PCT / 2, LEAST_SPAN_PCT / 2)
FLOOR: Final[Mapping[str, Any]] = {"color": "#888", "linestyle": ":", "linewidth": 1.2}
LITTLE = 0.005  # of a bar: invisibly small
SIDES: Final = ("simulated", "on executors")
FILLS: Final[Mapping[str, Any]] = dict(zip(SIDES, ("none", "full"), strict=True))
LINES: Final[Mapping[str, Any]] = dict(zip(SIDES, ("-", "--"), strict=True))
CDF_POINTS = 300
TIMELINE_POINTS = 400
PNG_DPI = 160
LINE = 40  # characters of a name
LETTERS_PER_INCH, KEY_LETTERS = 14, 7  # of a legend: its letters, and what a key and the gaps take
GREY = "#777777"
Line = tuple[Sequence[float], Sequence[float]]  # x and y, point by point
Loc = Literal["outside lower center", "outside upper center"]
_EXCESS = re.compile(r"(?<=\.\d\d)\d+")  # of a coordinate in points: digits too small to see, which make a page larger
_UNDATED = {"Date": None, "Creator": None, "Format": None, "Type": None}


@dataclass(frozen=True, slots=True)
class Latencies:
    """One curve of the latency distributions."""

    router: str
    side: str
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
    text = re.sub('(?<= d=")[^"]*', lambda match: _EXCESS.sub("", match[0]), text)
    return Markup(text[text.index("<svg") :])  # noqa: S704 - it is drawn here, of escaped text


def save(figure: Figure, path: Path) -> None:
    """Write the chart as a PNG or SVG file, by its ending: whole or not at all, and the same whenever it is drawn."""
    metadata: Any = _UNDATED if path.suffix == ".svg" else {"Software": None}
    with atomic_path(path) as temporary, mpl.rc_context(STYLE):
        figure.savefig(temporary, format=path.suffix.removeprefix("."), dpi=PNG_DPI, metadata=metadata)


def label_of(name: str) -> str:
    """Return a name for a chart: what can't be seen is written out, and a long one continues in the next line."""
    printable = visible(name)
    return "\n".join(printable[start : start + LINE] for start in range(0, len(printable), LINE))


def _legend(figure: Figure, handles: Sequence[Any], names: Sequence[str], most: int, loc: Loc) -> Legend:
    """Draw a legend with as many columns of names as there is room for, but at most `most`."""
    labels = [label_of(name) for name in names]
    longest = max((len(line) for label in labels for line in label.splitlines()), default=0)
    room = int(figure.get_figwidth() * LETTERS_PER_INCH / (longest + KEY_LETTERS))
    return figure.legend(handles, labels, loc=loc, ncols=max(1, min(most, room)))


def joint_legend(figure: Figure, panels: Iterable[Axes], columns: int) -> None:
    """Draw one legend of all panels, in which each label is once, widths before the rest; none without labels."""
    entries = [panel.get_legend_handles_labels() for panel in panels]
    legend = {label: handle for entry in entries for handle, label in zip(*entry, strict=True)}
    if labels := sorted(legend, key=lambda label: not label.startswith("width ")):
        figure.legend([legend[label] for label in labels], labels, loc="outside lower center", ncols=columns)


def _sides_legend(figure: Figure, sides: Collection[str]) -> None:
    """Draw the legend of the lines' styles, if there is more than one."""
    if len(sides) > 1:
        handles = [Line2D([], [], color=GREY, linestyle=line) for line in LINES.values()]
        figure.legend(handles, list(LINES), loc="outside upper center", ncols=2)


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
            axes.plot(times_ms, 100 * shares, LINES[curve.side], color=colors[curve.router])
            handles[curve.router] = Line2D([], [], color=colors[curve.router])
        if any(max(curve.latencies_s) > DECADE * min(curve.latencies_s) for curve in curves):
            axes.set_xscale("log")
            plain_log_ticks(axes.xaxis)
        axes.set(
            xlabel="latency, ms (arrival to last segment done)", ylabel="images done within it, %", ylim=(0, 100.5)
        )
        _legend(figure, list(handles.values()), list(handles), 3, "outside lower center")
        _sides_legend(figure, {curve.side for curve in curves})
    return figure


class Point(NamedTuple):
    """A router's cost and accuracy in a chart's units, and how far their intervals reach below and above."""

    router: str
    cost: float
    accuracy: float
    cost_errors: tuple[float, float] = (0.0, 0.0)
    accuracy_errors: tuple[float, float] = (0.0, 0.0)
    side: str = SIDES[1]  # drawn filled; hollow: simulated, next to it
    is_flagged: bool = False


def standings(comparison: ComparisonDocument | None, validation: ValidationDocument | None) -> list[Point]:
    """Return p99 latency and accuracy of the routers that executors ran, predicted and measured, or were compared."""
    if validation is None or not validation["rows"]:
        return [] if comparison is None else [_standing(each, SIDES[0]) for each in compared(comparison, P99).judged]
    long_run = long_run_accuracies(comparison)
    real, promised = (
        validated(validation, side, of=P99, long_run=long_run).judged for side in ("executors", "simulated")
    )
    load = middle_load(row["load"] for row in validation["rows"])
    ranges = {row["router"]: row["predicted"].get(P99.stem) for row in validation["rows"] if row["load"] == load}
    ran = {router.router for router in real}
    predicted = [_standing(router, SIDES[0], ranges[router.router]) for router in promised if router.router in ran]
    return [*predicted, *(_standing(router, SIDES[1]) for router in real)]


def _standing(router: RankedRouter, side: str, predicted: Range | None = None) -> Point:
    half_s = router.interval["ci95"] or 0.0
    middle_s, errors_s = router.mean, (half_s, half_s)
    if predicted is not None:
        middle_s = predicted["median"]
        errors_s = middle_s - predicted["low"], predicted["high"] - middle_s
    below, above = (1000 * error_s for error_s in errors_s)
    return Point(router.router, 1000 * middle_s, 100 * router.accuracy, (below, above), side=side)


def ranking_chart(
    points: Sequence[Point],
    colors: Mapping[str, str],
    accuracy: Measure,
    first: Collection[str] = (),
    floor: float | None = None,
) -> Figure:
    """Draw accuracy against p99 latency, hollow simulated and filled on executors, if both are there.

    Args:
        accuracy: which one the routers are judged by.
        first: the routers that have won, or tie; in bold letters.
        floor: of accuracy, drawn as a line.
    """
    with canvas(WIDTH, 3.9) as (figure, axes):
        if floor:
            axes.axhline(100 * floor, **FLOOR)
        markers = _draw_points(axes, points, colors)
        axes.set(xlabel=P99.axis, ylabel=accuracy.axis)
        legend = _legend(figure, list(markers.values()), list(markers), 6, "outside lower center")
        for text, router in zip(legend.get_texts(), markers, strict=True):
            text.set_fontweight("bold" if router in first else "normal")
        style: Any = {"marker": "o", "linestyle": "none", "color": "#444"}
        sides = dict.fromkeys(point.side for point in points)
        fills: Mapping[str, Any] = FILLS if len(sides) > 1 else dict.fromkeys(sides, "full")
        handles = [Line2D([], [], fillstyle=fill, label=side, **style) for side, fill in fills.items()]
        handles += [Line2D([], [], label="floor", **FLOOR)] if floor else []
        figure.legend(handles=handles, loc="outside upper center", ncols=3)
    return figure


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
        markers: dict[str, Any] = {}
        for axes, cost in zip(grid[0], costs, strict=True):
            bound = [(least * cost.scale, top1 * accuracy.scale) for top1, least in bounds.get(cost.name, ())]
            drawable = [row for row in rows if None not in (cost.of(row)["mean"], accuracy.of(row)["mean"])]
            markers |= _draw_points(axes, [_point(row, cost, accuracy) for row in drawable], colors)
            if bound:
                line = {"color": GREY, "linestyle": "--", "linewidth": 1.2, "zorder": 1}
                (markers["fluid bound"],) = axes.plot(*zip(*bound, strict=True), **line)
            axes.set(xlabel=cost.axis)
        grid[0][0].set(ylabel=accuracy.axis)
        _legend(figure, list(markers.values()), list(markers), 6, "outside lower center")
    return figure


def _point(row: Mapping[str, Any], cost: Measure, accuracy: Measure) -> Point:
    (x, y), (half_x, half_y) = (
        [measure.scale * (measure.of(row)[key] or 0.0) for measure in (cost, accuracy)] for key in ("mean", "ci95")
    )
    return Point(row["router"], x, y, (half_x, half_x), (half_y, half_y), is_flagged=row["is_flagged"])


def _draw_points(axes: Axes, points: Sequence[Point], colors: Mapping[str, str]) -> dict[str, Any]:
    """Draw points with their intervals and their front; returns what the legend needs: by name what was drawn.

    A router that leaves too many images unserved is flagged, and on no front. two sides the front is of the second.
    """
    markers = dict[str, Any]()
    is_single = len({point.side for point in points}) < 2
    for point in points:
        is_filled = is_single or point.side == SIDES[1]
        index = list(colors).index(point.router)
        axes.update_datalim([(point.cost, point.accuracy + half) for half in HALF_SPANS])
        (markers[flagged(point.router, point.is_flagged)],) = axes.plot(
            point.cost,
            point.accuracy,
            linestyle="none",
            marker=MARKERS[(index + index // len(COLORS)) % len(MARKERS)],  # colors come round, their markers don't
            color=colors[point.router],
            fillstyle="full" if is_filled else "none",
            markersize=6 if is_filled else 9,
            zorder=3,
        )
    _frame_costs(axes, [point.cost for point in points], 6)
    for point in points:  # pale and below all points: a wide one hides none, and one beyond the frame ends there
        errors: Any = {"xerr": np.reshape(point.cost_errors, (2, 1)), "yerr": np.reshape(point.accuracy_errors, (2, 1))}
        style: Any = {"fmt": "none", "ecolor": colors[point.router], "alpha": 0.5, "elinewidth": 1.4, "zorder": 1.5}
        axes.errorbar(point.cost, point.accuracy, **errors, **style)
    judged = [point for point in points if point.side == points[-1].side and not point.is_flagged]
    front = router_comparison.pareto_front(
        [router_comparison.ParetoPoint(point.router, point.accuracy, point.cost) for point in judged]
    )
    costs, accuracies = [point.cost for point in front], [point.accuracy for point in front]
    axes.plot(costs, accuracies, ":", color="#888", linewidth=1.2, zorder=1)
    return markers


def _frame_costs(axes: Axes, costs: Sequence[float], ticks: int) -> None:
    """Set the limits by the points drawn so far, along x from 0, or logarithmic if costs are far apart."""
    axes.margins(0.25, 0.15)
    if costs and max(costs) > DECADE * min(costs) > 0:
        axes.set_xscale("log")
        plain_log_ticks(axes.xaxis, ticks)
    else:
        axes.set_xlim(0, 1.25 * max(costs, default=0.0) or 1.0)
        axes.xaxis.set_major_locator(MaxNLocator(ticks))
    axes.set_ylim(axes.get_ylim())
    axes.autoscale(False)


def over_time(sides: Mapping[str, Sequence[Telemetry]]) -> Figure:
    """Draw utilization and power along the run, a row of panels a server: simulated solid, on executors dashed."""
    count = max(map(len, sides.values()))
    with canvas(WIDTH, 0.9 + 1.25 * count, count, 2, sharex=True, sharey="col", squeeze=False) as (figure, grid):
        for side, servers in sides.items():
            for index, (server, (left, right)) in enumerate(zip(servers, grid, strict=True)):
                style: Any = {"color": COLORS[index % len(COLORS)], "linestyle": LINES[side], "linewidth": 1.1}
                times_s = _thinned(server.times_s)
                left.plot(times_s, 100 * _thinned(server.utilization), **style)
                right.plot(times_s, _thinned(server.power_w), **style)
                left.set_title(label_of(server.server), loc="left")
                left.set(ylabel="utilization, %", ylim=(-2, 102))
                right.set_ylabel("power, W")
        grid[0][1].set_ylim(bottom=0)
        for panel in grid[-1]:
            panel.set_xlabel("time, s")
        figure.align_ylabels()
        _sides_legend(figure, sides)
    return figure


def _thinned(values: Sequence[float]) -> NDArray[np.float64]:
    """Choose evenly spaced values, at most as many as are visible."""
    return np.asarray(values)[:: max(1, len(values) // TIMELINE_POINTS)]


def stage_bars(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw where an image's time goes, two bars of shares a router: simulation above executors (hatched).

    Rows are those of a validation with stages in simulation and on executors; the milliseconds of all are behind the
    bars. A stage that takes next to nothing of every bar is left out; each keeps its color.
    """
    bars = [bar for row in rows for bar in row["stages_s"].values()]
    colors = {stage: COLORS[number % len(COLORS)] for number, stage in enumerate(bars[0])}
    stages = [stage for stage in colors if any(bar[stage] > LITTLE * sum(bar.values()) for bar in bars)] or list(colors)
    with canvas(WIDTH, 1.3 + 0.55 * len(rows)) as (figure, axes):
        for offset, side, hatch in ((-0.2, "simulated", ""), (0.2, "executors", "////")):
            positions = np.arange(len(rows)) + offset
            spent_s = np.array([[row["stages_s"][side][stage] for stage in stages] for row in rows])
            totals_s = np.array([sum(row["stages_s"][side].values()) for row in rows])
            shares = 100 * spent_s / np.where(totals_s > 0, totals_s, 1.0)[:, None]
            left = np.cumsum(shares, axis=1) - shares
            for number, stage in enumerate(stages):
                style: Any = {"color": colors[stage], "hatch": hatch, "edgecolor": "white", "linewidth": 0.4}
                axes.barh(positions, shares[:, number], 0.36, left=left[:, number], **style)
            for position, total_s in zip(positions, totals_s, strict=True):
                axes.text(101.5, position, f"{1000 * total_s:.3g} ms", va="center", fontsize=8)
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
                panel.xaxis.set_major_formatter("{x:,.0f}")
                panel.tick_params(labelbottom=False)
            several = f", {len(lines)} trainings" if len(lines) > 1 else ""
            panel.tick_params(labelbottom=True)
            panel.set_xlabel(f"decisions of {router}{several}")
        figure.align_ylabels()
        joint_legend(figure, axes[:, 0], 2)
    return figure


def _draw_training(panel: Axes, lines: Sequence[Line]) -> None:
    means = [(decisions, smoothed(values)) for decisions, values in lines]
    for decisions, values in lines if len(lines) == 1 else means:
        panel.plot(decisions, values, color=COLORS[0], alpha=0.35, linewidth=1)
    first, last = max(decisions[0] for decisions, _ in means), min(decisions[-1] for decisions, _ in means)
    common = sorted({at for decisions, _ in means for at in decisions if first <= at <= last})
    curves = np.array([np.interp(common, decisions, values) for decisions, values in means])
    label, marker = "mean of the trainings" if len(lines) > 1 else None, "." if len(common) < 10 else ""
    panel.plot(common, curves.mean(axis=0), color=COLORS[0], marker=marker, label=label)
    if label:
        low, high = curves.min(axis=0), curves.max(axis=0)
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
    axis.set_major_formatter("{x:g}")
    axis.set_minor_locator(NullLocator())


# ------------------------------------------------------------------------------------------------------ learning curves


Steps = Sequence[Mapping[str, float]]  # what a learner reported, update by update, or generation by generation
Trained = tuple[Mapping[str, Any], Mapping[str, Steps]]  # a run folder's scenario, and its trainings by kind
PANELS = 4  # the number of scalars that fit on a page
FIRST = ("reward", "accuracy", "inside")  # what is learned, before how
LABELS = {"objective": "cost", "inside": "images inside"}
_UNLEARNED = {"seed", "name", "compare", "validate"}  # of a scenario: what trainings may differ by


def trainings_in(folder: RunFolder) -> dict[str, Steps]:
    """Return what a run folder keeps of its trainings, by the kind of router."""
    files = {kind: training_file(kind) for kind in MADE_KINDS if (folder / training_file(kind)).exists()}
    return {kind: steps for kind, name in files.items() if (steps := folder.read_json(name))}


def curves_of(runs: Sequence[Steps]) -> dict[str, list[Line]]:
    """Return a line a training, by the scalar: the first with each beginning (`reward/mean`, `loss/value` ...)."""
    first: dict[str, str] = {}
    for name in runs[0][0]:
        first.setdefault(name.partition("/")[0], name)
    names = sorted(
        (name for name in first.values() if name != "decisions"), key=lambda name: not name.startswith(FIRST)
    )
    return {
        LABELS.get(name, name): [
            ([step["decisions"] for step in steps], [step.get(name, nan) for step in steps]) for steps in runs
        ]
        for name in names[:PANELS]
    }


def save_curves(trained: Mapping[Path, Trained], picture: Path, say: Callable[[str], None]) -> None:
    """Draw the curves of all trainings in these run folders, kind by kind (PNG or SVG, by the file's ending).

    Raises:
        InputError: nothing was trained in one of them.
    """
    for folder, (_, trainings) in trained.items():
        if not trainings:
            problem = "no router was trained here, so it has no learning curve"
            problem += "; `slimsched train SCENARIO --out DIR` keeps one"
            raise InputError(str(folder), "", problem)
    columns = {}
    for kind in MADE_KINDS:
        of_kind = {folder: trainings[kind] for folder, (_, trainings) in trained.items() if kind in trainings}
        if of_kind:
            columns[made_name(kind)] = curves_of(list(of_kind.values()))
            for doubt in _doubts({folder: trained[folder][0] for folder in of_kind}):
                say(f"warning: {doubt}")
    save(training_curves(columns), picture)


def _doubts(scenarios: Mapping[Path, Mapping[str, Any]]) -> Iterator[str]:
    """Yield why a mean over these trainings may mean little: in all but the seed they should be the same."""
    first_folder, first_scenario = next(iter(scenarios.items()))
    seeds: dict[Any, Path] = {}
    for folder, scenario in scenarios.items():
        keys = {*first_scenario, *scenario} - _UNLEARNED
        unlike = sorted(key for key in keys if _key_text(first_scenario, key) != _key_text(scenario, key))
        if unlike:
            yield f"{folder}: other {', '.join(unlike)} than in {first_folder}, so the mean is of unlike trainings"
        elif scenario and (same := seeds.setdefault(scenario.get("seed"), folder)) != folder:
            yield f"{folder}: the seed of {same}, and so the same curve; train it with --set seed=N"


def _key_text(scenario: Mapping[str, Any], key: str) -> str:
    """Return a key's text; a file that both name has another relative path from another folder."""
    return str(scenario.get(key)).replace("../", "")
