"""The charts of a profile and what they are drawn from: its curves, and the paper's Figures 1 to 3.

The data of the charts (`uniform_curves` to `stated_solo_error`) are the profile's curves as the simulator replays them,
and their stated errors; these functions draw nothing and read no file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from calibrate.profile_fit import SOLO_ERROR
from scenarios.show.charts import GREY, WIDTH, canvas, joint_legend, label_of, plain_log_ticks, save
from sim.device_profile import AT_ONCE as MEASURED_AT_ONCE
from sim.device_profile import JITTER_QUANTILES, LatencyCurve, Profile
from sim.device_tables import BatchKey, compile_tables
from sim.simulated_device import AT_ONCE, LOADS, SteadyPoint, knee, shared_device, steady_points

LOADED_BATCH = 16  # of the stream of batches that loads the device, or the profile's limit if that is lower
SPREAD = (0.05, 0.95)
SLICE_CENTRES = (np.arange(JITTER_QUANTILES) + 0.5) / JITTER_QUANTILES  # a row of jitter: the means of equal slices


def uniform_curves(profile: Profile) -> Iterator[LatencyCurve]:
    """Yield the curves that are shown: segment 1, and those whose previous width is their own."""
    return (curve for curve in profile.latency if curve.segment == 1 or curve.width == curve.previous_width)


def loaded_batch(profile: Profile) -> int:
    """Return how large the batches are that load the device in Figures 2 and 3."""
    return min(LOADED_BATCH, profile.batch_limit)


def loaded_at_once(profile: Profile) -> int:
    """Return how many of them run together at most: no more than calibration ever ran at once."""
    measured = [stated.high for stated in profile.ranges if stated.quantity == MEASURED_AT_ONCE]
    return int(min([AT_ONCE, *measured]))


def under_load(
    profile: Profile, loads: Sequence[float] = LOADS, at_once: int | None = None
) -> Mapping[BatchKey, Sequence[SteadyPoint]]:
    """Return the device's steady state along the load, for every curve that is shown; batches are of one process."""
    tables = compile_tables(profile, profile.batch_limit, jitter=False)
    keys = [(curve.segment, curve.width, curve.previous_width) for curve in uniform_curves(profile)]
    batch = loaded_batch(profile)
    limit = loaded_at_once(profile) if at_once is None else at_once
    return {key: steady_points(shared_device(tables, key, batch, limit), loads) for key in keys}


def band_of_repeats_s(curve: LatencyCurve) -> tuple[Sequence[float], Sequence[float]]:
    """Return the 5th and 95th percentile of repeats along the batches, from the jitter; the median without repeats."""
    if not curve.jitter:
        return curve.p50_s, curve.p95_s or curve.p50_s
    low, high = np.asarray([np.interp(SPREAD, SLICE_CENTRES, row) for row in curve.jitter]).T
    return (low * curve.p50_s).tolist(), (high * curve.p50_s).tolist()


def stated_solo_error(profile: Profile) -> float | None:
    """Return the stated mean error of solo latency, as a share: the held-out one, or the cross-validated one."""
    for kind in ("held out", "cross-validated"):
        errors_pct = [of.mean_abs_pct for of in profile.errors if of.metric == SOLO_ERROR and of.kind == kind]
        if errors_pct:
            return max(errors_pct) / 100
    return None


NESTED_BY = 1.4  # points, for each line on top
SHADE = 0.3  # how opaque what is shaded is
PALEST = 0.58  # of the color map: what is paler does not stand out from white
SAME = 0.02  # shares that differ by less are the same to the eye


def charts_of(profile: Profile) -> dict[str, Figure]:
    """Return the latency curves and the paper's Figures 1-3, by name."""
    loaded = under_load(profile)
    return {
        "latency": latency_curves(profile),
        "figure1": utilization_by_batch(profile),
        "figure2": energy_by_utilization(profile, loaded),
        "figure3": latency_by_utilization(profile, loaded),
    }


def write_charts(profile: Profile, folder: Path) -> list[Path]:
    """Write the charts as PNG files; returns their paths."""
    figures = charts_of(profile)
    for name, figure in figures.items():
        save(figure, folder / f"{name}.png")
    return [folder / f"{name}.png" for name in figures]


def latency_curves(profile: Profile) -> Figure:
    """Draw solo latency along the batch size, a panel a segment, a line a width (previous width the same)."""
    error_share = stated_solo_error(profile)
    has_repeats = any(curve.jitter or curve.p95_s for curve in profile.latency)

    def draw(panel: Axes, curve: LatencyCurve, color: str, label: str) -> None:
        median_ms = np.asarray(curve.p50_s) * 1000
        panel.plot(curve.batches, median_ms, "-o", color=color, markersize=2.5, markevery=_measured(curve), label=label)
        low_ms, high_ms = (np.asarray(each_s) * 1000 for each_s in band_of_repeats_s(curve))
        repeats = "5-95 % of repeats" if has_repeats else None
        panel.fill_between(curve.batches, low_ms, high_ms, color=color, alpha=SHADE, linewidth=0, label=repeats)
        for share in (-error_share, error_share) if error_share else ():
            panel.plot(curve.batches, median_ms * (1 + share), "--", color=color, linewidth=0.7, label="stated error")

    return _panels(profile, draw, "batch size", "latency of a batch alone, ms", log="xy")


def utilization_by_batch(profile: Profile) -> Figure:
    """Draw Figure 1 of the paper: utilization against batch size; dotted, the share of the SMs if it is known."""
    widths = profile.model.widths
    is_all_one = is_flat(profile)

    def draw(panel: Axes, curve: LatencyCurve, color: str, label: str) -> None:
        above = len(widths) - 1 - widths.index(curve.width) if is_all_one else 0  # a CPU is always busy
        style: Any = {"linewidth": 1.5 + NESTED_BY * above, "markersize": 2.5 + NESTED_BY * above}
        shares = 100 * np.asarray(curve.utilization)
        panel.plot(curve.batches, shares, "-o", color=color, markevery=_measured(curve), label=label, **style)
        if curve.sm_utilization:
            sms = 100 * np.asarray(curve.sm_utilization)
            panel.plot(curve.batches, sms, ":", color=color, linewidth=1, label="share of the SMs")
        panel.set_ylim(0, 104)

    return _panels(profile, draw, "batch size", "utilization, %", log="x")


def is_flat(profile: Profile) -> bool:
    """Check whether the utilization is the same at all batch sizes, as a CPU's is: then it is uninformative."""
    return bool(np.ptp([share for curve in profile.latency for share in curve.utilization]) < SAME)


def energy_by_utilization(profile: Profile, under_load: Mapping[BatchKey, Sequence[SteadyPoint]]) -> Figure:
    """Draw Figure 2 of the paper: the energy of one batch (mean power x latency) as load on the device grows."""
    power = f", power {profile.power.provenance}"
    return _by_utilization(profile, under_load, lambda point: point.energy_j, "energy of a batch, J", power)


def latency_by_utilization(profile: Profile, under_load: Mapping[BatchKey, Sequence[SteadyPoint]]) -> Figure:
    """Draw Figure 3 of the paper: mean latency of a batch as load on the device grows."""
    return _by_utilization(profile, under_load, lambda point: 1000 * point.latency_s, "mean latency of a batch, ms")


def _by_utilization(
    profile: Profile,
    under_load: Mapping[BatchKey, Sequence[SteadyPoint]],
    value: Callable[[SteadyPoint], float],
    ylabel: str,
    source: str = "",
) -> Figure:
    """Draw a ring for the nearly idle device, a dot at the knee of latency; shaded, the bend in the paper."""

    def draw(panel: Axes, curve: LatencyCurve, color: str, label: str) -> None:
        points = under_load[curve.segment, curve.width, curve.previous_width]
        shares, values = [100 * point.utilization for point in points], [value(point) for point in points]
        dot: Any = {"marker": "o", "color": color, "markersize": 3.5, "linestyle": "none"}
        panel.plot(shares, values, "-", color=color, label=label)
        panel.plot(shares[0], values[0], markerfacecolor="white", label="nearly idle", **dot)
        bend = knee(points)
        if bend is not None:
            panel.plot(100 * bend.utilization, value(bend), label="latency's knee", **dot)
        if curve.width == profile.model.widths[0]:  # once in each panel
            panel.axvspan(90, 95, color=GREY, alpha=SHADE, linewidth=0, label="the paper's bend")
        panel.set(xlim=(0, 103), xticks=range(0, 101, 25))

    return _panels(profile, draw, "utilization of the device, %", ylabel, log="y", source=source)


def _measured(curve: LatencyCurve) -> list[int]:
    """Return the indices of the batch sizes that were measured; all, if the curve does not record it."""
    return [index for index, count in enumerate(curve.samples or (1,) * len(curve.batches)) if count]


def _panels(
    profile: Profile,
    draw: Callable[[Axes, LatencyCurve, str, str], None],
    xlabel: str,
    ylabel: str,
    *,
    log: str,
    source: str = "",
) -> Figure:
    """Draw a panel a segment; `source` is behind the device."""
    segments, widths = profile.model.segments, profile.model.widths
    columns = min(segments, 2)  # so that a phone's screen keeps the text readable
    rows = -(-segments // columns)
    with canvas(WIDTH, 1.6 + 1.75 * rows, rows, columns, sharey=True, squeeze=False) as (figure, grid):
        shades = [mpl.colormaps["viridis"](position) for position in np.linspace(0.05, PALEST, len(widths))]
        curves = list(uniform_curves(profile))
        for curve in curves:
            label = f"width {profile.model.name_of(curve.width)}"
            draw(grid.flat[curve.segment - 1], curve, shades[widths.index(curve.width)], label)
        for index, panel in enumerate(grid.flat):
            _dress_panel(panel, index, segments, log)
        total = len(profile.latency)
        note = f"\n{len(curves)} of {total} curves: where the previous width is the same" if len(curves) < total else ""
        title = f"{label_of(profile.name)}: {label_of(profile.device.name)}, latency {profile.origin}"
        figure.suptitle(f"{title}{source}{note}", fontsize=8.5)
        for panel in grid[-1]:
            panel.set_xlabel(xlabel)  # a label of the whole figure would cover the legend
        figure.supylabel(ylabel, fontsize=9)
        joint_legend(figure, grid.flat, 3)
    return figure


def _dress_panel(panel: Axes, index: int, segments: int, log: str) -> None:
    panel.set_title(f"segment {index + 1}")
    panel.set_visible(index < segments)
    if "x" in log:  # batch sizes
        panel.set_xscale("log", base=2)
        panel.xaxis.set_major_formatter("{x:g}")
        panel.xaxis.set_minor_formatter(NullFormatter())
    if "y" in log:
        panel.set_yscale("log")
        plain_log_ticks(panel.yaxis, 5)
