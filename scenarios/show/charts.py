"""The report's figures: data in, one SVG out. It reads no file and decides nothing but how things look.

Every axis carries its unit. A router has the same color in every figure; hardware is dashed, simulation solid.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from scenarios.metrics import pareto
from scenarios.show.profile_curves import LatencyBand, uniform_curves
from sim.profile import LatencyCurve, Profile
from sim.steady import SteadyPoint, knee
from sim.tables import BatchKey

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#6A3D9A", "#8C6D31", "#444444", "#B22222")
MARKERS = "osD^vPX*<>"
STYLE: Any = {  # matplotlib types its keys one by one
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#666",
    "axes.labelcolor": "#222",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.7,
    "xtick.color": "#444",
    "ytick.color": "#444",
    "legend.frameon": False,
    "legend.fontsize": 8,
    "lines.linewidth": 1.5,
    "svg.fonttype": "none",
    "svg.hashsalt": "slimsched",
}
CDF_POINTS = 300
TIMELINE_POINTS = 400
PNG_DPI = 160
GREY = "#777777"
NESTED_BY = 1.4  # points, for each line that lies on top
SAME = 0.02  # shares that differ by less are the same to the eye


@dataclass(frozen=True, slots=True)
class Point:
    """A router in a trade-off: x and y with the half-widths of their intervals (0 for none)."""

    name: str
    x: float
    y: float
    x_error: float = 0.0
    y_error: float = 0.0


@dataclass(frozen=True, slots=True)
class TradeOff:
    """One panel of accuracy against a cost; `bound` is a line (cost, accuracy) beyond which no router can be."""

    points: Sequence[Point]
    xlabel: str
    bound: Sequence[tuple[float, float]] = ()


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


@dataclass(frozen=True, slots=True)
class StageBar:
    """Mean seconds of an image by stage, in both worlds."""

    router: str
    simulated_s: Mapping[str, float]
    hardware_s: Mapping[str, float]


@contextmanager
def _figure(
    width: float, height: float, rows: int = 1, columns: int = 1, **options: Any
) -> Iterator[tuple[Figure, Any]]:
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure, figure.subplots(rows, columns, **options)


def to_svg(figure: Figure) -> str:
    """The figure as an `<svg>` element that fills its place; deterministic, and with no reference to anything."""
    with mpl.rc_context(STYLE):
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    return re.sub(
        r'(<svg[^>]*?) width="[^"]*pt"', r"\1", re.sub(r'(<svg[^>]*?) height="[^"]*pt"', r"\1", text, count=1)
    )


def to_png(figure: Figure) -> bytes:
    """The figure as a picture."""
    with mpl.rc_context(STYLE):
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=PNG_DPI, metadata={"Software": None})
    return buffer.getvalue()


def router_colors(routers: Sequence[str]) -> dict[str, str]:
    """One color a router, in their order."""
    return {router: COLORS[index % len(COLORS)] for index, router in enumerate(dict.fromkeys(routers))}


# -------------------------------------------------------------------------------------------------- what routers reach


def latency_distributions(curves: Sequence[Latencies], colors: Mapping[str, str]) -> Figure:
    """The share of images done within a time, a line a router; hardware dashed over simulation."""
    with _figure(6.2, 3.9) as (figure, axes):
        for curve in curves:
            shares = np.linspace(0.001, 1.0, CDF_POINTS)
            times_ms = np.quantile(np.asarray(curve.latencies_s) * 1000, shares, method="inverted_cdf")
            is_real = curve.world == "hardware"
            label = f"{curve.router}, hardware" if is_real else curve.router
            axes.plot(times_ms, 100 * shares, "--" if is_real else "-", color=colors[curve.router], label=label)
        if any(max(curve.latencies_s) > 10 * min(curve.latencies_s) for curve in curves):
            axes.set_xscale("log")
            _plain_log_ticks(axes.xaxis)
        axes.set(
            xlabel="latency, ms (arrival to last segment done)", ylabel="images done within it, %", ylim=(0, 100.5)
        )
        _legend_beside(axes)
    return figure


def trade_off(points: Sequence[Point], xlabel: str, *, colors: Mapping[str, str]) -> Figure:
    """Accuracy against a cost; the dotted line joins what no other router beats on both."""
    with _figure(5.2, 3.7) as (figure, axes):
        _draw_trade_off(axes, TradeOff(points, xlabel), colors)
        axes.set(ylabel="accuracy, %")
        _legend_beside(axes)
    return figure


def trade_offs(panels: Sequence[TradeOff], *, colors: Mapping[str, str]) -> Figure:
    """Accuracy against several costs side by side, with one legend; dashed where no router can be beyond it."""
    with _figure(3.4 * len(panels), 4.1, 1, len(panels), squeeze=False, sharey=True) as (figure, grid):
        for axes, panel in zip(grid[0], panels, strict=True):
            _draw_trade_off(axes, panel, colors)
        grid[0][0].set(ylabel="accuracy, %")
        found = [axes.get_legend_handles_labels() for axes in grid[0]]
        named = {label: handle for handles, labels in found for handle, label in zip(handles, labels, strict=True)}
        figure.legend(list(named.values()), list(named), loc="outside lower center", ncols=min(6, len(named)))
    return figure


def _draw_trade_off(axes: Axes, panel: TradeOff, colors: Mapping[str, str]) -> None:
    points = panel.points
    front = pareto.pareto_front([pareto.Point(point.name, point.y, point.x) for point in points])
    axes.plot([p.cost for p in front], [p.accuracy for p in front], ":", color="#888", linewidth=1.2, zorder=1)
    if panel.bound:
        costs, accuracies = zip(*panel.bound, strict=True)
        axes.plot(costs, accuracies, "--", color=GREY, linewidth=1.2, zorder=1, label="fluid bound")
    for index, point in enumerate(points):
        axes.errorbar(
            point.x,
            point.y,
            xerr=point.x_error or None,
            yerr=point.y_error or None,
            fmt=MARKERS[(index + index // len(COLORS)) % len(MARKERS)],  # colors come round, their markers don't
            color=colors[point.name],
            markersize=6,
            elinewidth=1,
            capsize=2,
            label=point.name,
        )
    if points and max(p.x for p in points) > 20 * min(p.x for p in points) > 0:
        axes.set_xscale("log")
        _plain_log_ticks(axes.xaxis)
    _frame_points(axes, points)
    axes.set(xlabel=panel.xlabel)


def _frame_points(axes: Axes, points: Sequence[Point]) -> None:
    """Limits that show the points well; an interval as wide as the page may run over the edge."""
    if not points:
        return
    low, high = min(p.y for p in points), max(p.y for p in points)
    margin = max(0.25 * (high - low), 0.5)
    axes.set_ylim(low - margin, high + margin)
    if axes.get_xscale() == "linear":
        axes.set_xlim(0, 1.2 * max(p.x for p in points) or 1.0)


def over_time(servers: Sequence[Telemetry]) -> Figure:
    """Each server's utilization and power along the run."""
    with _figure(6.2, 4.2, 2, 1, sharex=True) as (figure, (top, bottom)):
        for index, server in enumerate(servers):
            step = max(1, len(server.times_s) // TIMELINE_POINTS)
            times_s = np.asarray(server.times_s)[::step]
            style = {"color": COLORS[index % len(COLORS)], "linewidth": 1.1}
            top.plot(times_s, 100 * np.asarray(server.utilization)[::step], label=server.server, **style)
            bottom.plot(times_s, np.asarray(server.power_w)[::step], **style)
        top.set(ylabel="utilization, %", ylim=(-2, 102))
        bottom.set(xlabel="time, s", ylabel="power, W")
        bottom.set_ylim(bottom=0)
        figure.legend(*top.get_legend_handles_labels(), loc="outside upper center", ncols=min(4, len(servers)))
    return figure


def both_over_time(simulated: Sequence[Telemetry], hardware: Sequence[Telemetry]) -> Figure:
    """Each server's utilization along the run, a panel a server: simulated solid, on real executors dashed."""
    count = len(simulated)
    with _figure(6.2, 0.9 + 1.5 * count, count, 1, sharex=True, squeeze=False) as (figure, axes):
        for index, (ours, theirs) in enumerate(zip(simulated, hardware, strict=True)):
            panel, color = axes[index][0], COLORS[index % len(COLORS)]
            for of, line, label in ((ours, "-", "simulation"), (theirs, "--", "hardware")):
                step = max(1, len(of.times_s) // TIMELINE_POINTS)
                shares = 100 * np.asarray(of.utilization)[::step]
                panel.plot(np.asarray(of.times_s)[::step], shares, line, color=color, linewidth=1.1, label=label)
            panel.set(ylabel=f"{ours.server}: utilization, %", ylim=(-2, 102))
        axes[-1][0].set_xlabel("time, s")
        figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside upper center", ncols=2)
    return figure


def stage_bars(bars: Sequence[StageBar]) -> Figure:
    """Where an image's time goes: two stacked bars a router, simulation above hardware (hatched)."""
    stages = list(bars[0].simulated_s)
    with _figure(6.6, 1.2 + 0.62 * len(bars)) as (figure, axes):
        for index, bar in enumerate(bars):
            for offset, stages_s, hatch in ((-0.2, bar.simulated_s, ""), (0.2, bar.hardware_s, "////")):
                left_ms = 0.0
                for number, stage in enumerate(stages):
                    width_ms = 1000 * stages_s[stage]
                    style = {"color": COLORS[number % len(COLORS)], "hatch": hatch, "edgecolor": "white"}
                    axes.barh(index + offset, width_ms, 0.36, left=left_ms, linewidth=0.4, **style)
                    left_ms += width_ms
        handles = [Patch(color=COLORS[number % len(COLORS)]) for number in range(len(stages))]
        axes.set_yticks(range(len(bars)), [bar.router for bar in bars])
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.set(xlabel="mean time of an image, ms")
        figure.legend(handles, [stage.replace("_", " ") for stage in stages], loc="outside lower center", ncols=4)
    return figure


def training_curve(decisions: Sequence[float], panels: Mapping[str, Sequence[float]]) -> Figure:
    """What the learner reported, one panel a scalar, along decisions."""
    count = len(panels)
    with _figure(6.2, 1.1 + 1.25 * count, count, 1, sharex=True, squeeze=False) as (figure, axes):
        for index, (name, values) in enumerate(panels.items()):
            panel = axes[index][0]
            panel.plot(decisions, values, color=COLORS[0], alpha=0.35, linewidth=1)
            panel.plot(decisions, smoothed(values), color=COLORS[0], marker="." if len(decisions) < 10 else "")
            panel.set_ylabel(name)
        axes[-1][0].set_xlabel("decisions")
        axes[-1][0].xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    return figure


def smoothed(values: Sequence[float], keep: float = 0.8) -> list[float]:
    """An exponential mean, so that a trend can be seen."""
    means: list[float] = []
    for value in values:
        means.append(value if not means else keep * means[-1] + (1 - keep) * value)
    return means


# ---------------------------------------------------------------------------------------------- what a profile says


def latency_curves(profile: Profile, bands: Mapping[BatchKey, LatencyBand]) -> Figure:
    """Solo latency along the batch size, a panel a segment, a line a width (previous width the same)."""

    def draw(panel: Axes, curve: LatencyCurve, color: str) -> None:
        median_ms = np.asarray(curve.p50_s) * 1000
        panel.plot(curve.batches, median_ms, "-o", color=color, markersize=2.5, label=f"{curve.width:g}")
        band = bands.get(_key(curve))
        if band is None:
            return
        low_ms, high_ms = np.asarray(band.low_s) * 1000, np.asarray(band.high_s) * 1000
        panel.fill_between(curve.batches, low_ms, high_ms, color=color, alpha=0.18, linewidth=0)
        for sign in (-1, 1) if band.error_share else ():
            stated_ms = median_ms * (1 + sign * (band.error_share or 0.0))
            panel.plot(curve.batches, stated_ms, "--", color=color, linewidth=0.7)

    notes: dict[str, Artist] = {}
    if any(curve.jitter or curve.p95_s for curve in profile.latency):
        notes["5-95 % of repeats"] = Patch(color=GREY, alpha=0.3, linewidth=0)
    if any(band.error_share for band in bands.values()):
        notes["stated error"] = Line2D([], [], color=GREY, linestyle="--", linewidth=0.8)
    return _panels(profile, draw, "batch size", "latency of a batch alone, ms", log="xy", notes=notes)


def utilization_by_batch(profile: Profile) -> Figure:
    """Figure 1 of the paper: utilization against batch size; dotted, the share of the SMs where it is known."""

    widths = profile.model.widths
    is_flat = np.ptp([share for curve in profile.latency for share in curve.utilization]) < SAME

    def draw(panel: Axes, curve: LatencyCurve, color: str) -> None:
        shares = 100 * np.asarray(curve.utilization)
        above = (len(widths) - 1 - widths.index(curve.width)) * is_flat  # a CPU is always busy: all lines are one
        thick, dot, label = 1.5 + NESTED_BY * above, 2.5 + NESTED_BY * above, f"{curve.width:g}"
        panel.plot(curve.batches, shares, "-o", color=color, linewidth=thick, markersize=dot, label=label)
        if curve.sm_utilization:
            panel.plot(curve.batches, 100 * np.asarray(curve.sm_utilization), ":", color=color, linewidth=1)
        panel.set_ylim(0, 104)

    notes: dict[str, Artist] = {}
    if any(curve.sm_utilization for curve in profile.latency):
        notes["any kernel runs"] = Line2D([], [], color=GREY, marker="o", markersize=2.5)
        notes["share of the SMs"] = Line2D([], [], color=GREY, linestyle=":", linewidth=1)
    return _panels(profile, draw, "batch size", "utilization, %", log="x", notes=notes)


def energy_by_utilization(profile: Profile, under_load: Mapping[BatchKey, Sequence[SteadyPoint]]) -> Figure:
    """Figure 2 of the paper: the energy of one batch (mean power x latency) as load on the device grows."""
    power = f"power {profile.power.provenance}"
    return _by_utilization(profile, under_load, lambda point: point.energy_j, "energy of a batch, J", power)


def latency_by_utilization(profile: Profile, under_load: Mapping[BatchKey, Sequence[SteadyPoint]]) -> Figure:
    """Figure 3 of the paper: mean latency of a batch as load on the device grows."""
    return _by_utilization(profile, under_load, lambda point: 1000 * point.latency_s, "mean latency of a batch, ms")


def _by_utilization(
    profile: Profile,
    under_load: Mapping[BatchKey, Sequence[SteadyPoint]],
    value: Callable[[SteadyPoint], float],
    ylabel: str,
    source: str = "",
) -> Figure:
    """A ring where the device is nearly idle, a dot at the knee of latency; shaded, where the paper saw the bend."""

    def draw(panel: Axes, curve: LatencyCurve, color: str) -> None:
        points = under_load[_key(curve)]
        shares, values = [100 * point.utilization for point in points], [value(point) for point in points]
        panel.plot(shares, values, "-", color=color, label=f"{curve.width:g}")
        panel.plot(shares[0], values[0], "o", color=color, markersize=3.5, markerfacecolor="white")
        bend = knee(points)
        if bend is not None:
            panel.plot(100 * bend.utilization, value(bend), "o", color=color, markersize=3.5)

    notes: dict[str, Artist] = {
        "nearly idle": Line2D([], [], color=GREY, marker="o", markersize=3.5, markerfacecolor="white", linewidth=0),
        "latency's knee": Line2D([], [], color=GREY, marker="o", markersize=3.5, linewidth=0),
        "the paper's bend": Patch(color=GREY, alpha=0.2, linewidth=0),
    }
    figure = _panels(profile, draw, "utilization of the device, %", ylabel, log="y", notes=notes, source=source)
    for panel in figure.axes:
        panel.axvspan(90, 95, color=GREY, alpha=0.2, linewidth=0)
        panel.set(xlim=(0, 103), xticks=range(0, 101, 25))
    return figure


def _key(curve: LatencyCurve) -> BatchKey:
    return curve.segment, curve.width, curve.previous_width


def _panels(
    profile: Profile,
    draw: Callable[[Axes, LatencyCurve, str], None],
    xlabel: str,
    ylabel: str,
    *,
    log: str,
    notes: Mapping[str, Artist],
    source: str = "",
) -> Figure:
    """A panel a segment; `notes` stand in the legend below the widths, `source` behind the device."""
    segments, widths = profile.model.segments, profile.model.widths
    columns = min(segments, 2)  # so that a phone's screen keeps the text readable
    rows = -(-segments // columns)
    with _figure(1.9 + 2.0 * columns, 0.95 + 1.75 * rows, rows, columns, sharey=True, squeeze=False) as (figure, grid):
        shades = [mpl.colormaps["viridis"](x) for x in np.linspace(0.05, 0.85, len(widths))]
        for curve in uniform_curves(profile):
            panel = grid[(curve.segment - 1) // columns][(curve.segment - 1) % columns]
            draw(panel, curve, shades[widths.index(curve.width)])
        for index, panel in enumerate(grid.ravel()):
            _dress_panel(panel, index, segments, log)
        figure.suptitle(_heading(profile, source), fontsize=8.5)
        figure.supxlabel(xlabel, fontsize=9)
        figure.supylabel(ylabel, fontsize=9)
        handles, labels = grid[0][0].get_legend_handles_labels()
        handles, labels = [*handles, *notes.values()], [*(f"width {label}" for label in labels), *notes]
        figure.legend(handles, labels, loc="outside right center")
    return figure


def _heading(profile: Profile, source: str) -> str:
    """Whose curves these are, where they are from, and which of them are drawn."""
    drawn, known = sum(1 for _ in uniform_curves(profile)), len(profile.latency)
    which = "" if drawn == known else f"\n{drawn} of {known} curves: where the previous width is the same"
    named = f"{profile.name}: {profile.device.name}, latency {profile.provenance}"
    return f"{named}{', ' if source else ''}{source}{which}"


def _dress_panel(panel: Axes, index: int, segments: int, log: str) -> None:
    panel.set_title(f"segment {index + 1}")
    panel.set_visible(index < segments)
    if "x" in log:  # batch sizes
        panel.set_xscale("log", base=2)
        panel.xaxis.set_major_formatter(FuncFormatter(_plain))
    if "y" in log:
        panel.set_yscale("log")
        _plain_log_ticks(panel.yaxis)


def _legend_beside(axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure = axes.get_figure()
    assert isinstance(figure, Figure)
    if handles:
        figure.legend(handles, labels, loc="outside lower center", ncols=min(3, len(handles)))


def _plain_log_ticks(axis: Axis) -> None:
    """Ticks at 1, 2 and 5 of each decade, as plain numbers."""
    axis.set_major_locator(LogLocator(10, subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(_plain))
    axis.set_minor_formatter(NullFormatter())


def _plain(value: float, _: int | None) -> str:
    return f"{value:g}"
