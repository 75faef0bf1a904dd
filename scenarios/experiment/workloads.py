"""When images arrive: a scenario's workload, played by `kit.random_streams`.

A kind of workload is a section in `scenarios.files.scenario_keys` and one function here, registered for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import singledispatch
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kit import random_streams
from kit.random_streams import Arrivals, stream
from scenarios.files.scenario_keys import (
    DiurnalWorkload,
    FlashWorkload,
    GammaWorkload,
    MmppWorkload,
    PoissonWorkload,
    RatesWorkload,
    TraceWorkload,
    WorkloadSection,
)
from scenarios.files.series_files import read_rates, read_trace


@dataclass(frozen=True, slots=True)
class TraceSlice:
    """The part of a scenario that a run for training or tuning is from: one of several, the whole by default."""

    number: int = 0
    parts: int = 1

    def start_s(self, seed: int, duration_s: float, horizon_s: float) -> float:
        """Return where in the part it begins: at random, but so that it does not reach beyond the scenario's end."""
        longest_s = max(0.0, duration_s - horizon_s)
        return longest_s * (self.number + float(stream(seed, "excerpt").uniform())) / self.parts


Series = Mapping[tuple[str, str], NDArray[np.float64]]
"""The cells of a column of a file: by both."""


def series_of(workload: WorkloadSection) -> Series:
    """Read all that the files of a workload hold; raises `InputError` if one can't be read."""
    match workload:
        case RatesWorkload():
            files = filter(None, (workload.file, workload.tuning_file))
            return {(file, workload.column): read_rates(Path(file), workload.column) for file in files}
        case TraceWorkload():
            return {(workload.file, workload.time_column): read_trace(Path(workload.file), workload.time_column)}
    return {}


@dataclass(frozen=True, slots=True)
class Play:
    """The settings that a workload is played at.

    Attributes:
        rate_img_s: its mean rate, scaled; 0 for a trace, which has its own.
        scale: factor of the rate that its file or its keys give.
        start_s: where in the scenario the run begins.
        is_tuning: whether it is for training or tuning a router.
        series: of the workload, if its files were read before.
    """

    rate_img_s: float
    scale: float
    horizon_s: float
    start_s: float
    is_tuning: bool
    rng: np.random.Generator
    series: Series = field(default_factory=dict)


@singledispatch
def arrivals_ns(workload: WorkloadSection, play: Play) -> Arrivals:
    """Return the arrival times of one run, ascending."""
    raise NotImplementedError(f"nothing plays {type(workload).__name__}")


@arrivals_ns.register
def _poisson(workload: PoissonWorkload, play: Play) -> Arrivals:
    return random_streams.poisson(play.rate_img_s, play.horizon_s, play.rng)


@arrivals_ns.register
def _mmpp(workload: MmppWorkload, play: Play) -> Arrivals:
    burst = (workload.burst_factor, workload.burst_share, workload.dwell_s)
    return random_streams.mmpp(play.rate_img_s, *burst, play.horizon_s, play.rng)


@arrivals_ns.register
def _gamma(workload: GammaWorkload, play: Play) -> Arrivals:
    return random_streams.gamma(play.rate_img_s, workload.cv, play.horizon_s, play.rng)


@arrivals_ns.register
def _diurnal(workload: DiurnalWorkload, play: Play) -> Arrivals:
    sine = (workload.amplitude, workload.period_s)
    return random_streams.diurnal(play.rate_img_s, *sine, play.horizon_s, play.rng, start_s=play.start_s)


@arrivals_ns.register
def _rates(workload: RatesWorkload, play: Play) -> Arrivals:
    file = (workload.tuning_file if play.is_tuning else None) or workload.file
    levels = (play.series or series_of(workload))[file, workload.column]
    return random_streams.rates(
        levels, play.rate_img_s, workload.period_s, play.horizon_s, play.rng, start_s=play.start_s
    )


@arrivals_ns.register
def _flash(workload: FlashWorkload, play: Play) -> Arrivals:
    shape = (workload.factor, workload.at_s - play.start_s, workload.rise_s, workload.peak_s, workload.fall_s)
    return random_streams.flash(play.rate_img_s, *shape, play.horizon_s, play.rng)


@arrivals_ns.register
def _trace(workload: TraceWorkload, play: Play) -> Arrivals:
    times_s = _times_s(workload, play.series)
    return random_streams.trace(times_s, workload.factor * play.scale, play.horizon_s, play.rng, workload.resolution_s)


def _times_s(workload: TraceWorkload, series: Series) -> NDArray[np.float64]:
    """Return times from `from_s` on."""
    times_s: NDArray[np.float64] = (series or series_of(workload))[workload.file, workload.time_column]
    later: NDArray[np.float64] = times_s[times_s >= times_s.min() + workload.from_s]
    return later


# ------------------------------------------------------------------------------------------------- doubts about a trace

_UNITS = {1e9: "nanoseconds", 1e6: "microseconds", 1e3: "milliseconds"}  # the number of each in a second
_EPOCH_S = 6e8  # 1989, in seconds since 1970; the same number of milliseconds is beyond any year of four digits
_DATES = 1.97e13, 2.1e13  # as numbers; as milliseconds since 1970 they are beyond the year 2590
_STEPS_S = {3600: "hours", 60: "minutes", 1: "seconds"}


def warnings_of(workload: WorkloadSection, duration_s: float, series: Series) -> list[str]:
    """Return what is odd about a trace in a run of that length, with what to write; nothing of another workload."""
    if not isinstance(workload, TraceWorkload):
        return []
    times_s = _times_s(workload, series)
    if _DATES[0] <= times_s.min() <= times_s.max() < _DATES[1]:
        problem = f"its times look like dates, YYYYMMDDhhmmss ({times_s[0]:.0f}), and are taken as seconds"
        return [f"{workload.file}: {problem}; write them in ISO 8601, such as 2024-10-26T23:00:00"]
    unit = next((unit for unit in _UNITS if times_s.min() >= _EPOCH_S * unit), 1.0)
    if unit > 1 and workload.factor * 100 <= unit:
        problem = f"its times look like {_UNITS[unit]} since 1970 ({times_s[0]:.0f}), and are taken as seconds"
        return [f"{workload.file}: {problem}; write workload.factor: {workload.factor * unit:g}"]
    doubts = _length_doubt(workload, times_s, duration_s), _step_doubt(workload, times_s, unit)
    return [f"{workload.file}: {doubt}" for doubt in doubts if doubt]


def _length_doubt(workload: TraceWorkload, times_s: NDArray[np.float64], duration_s: float) -> str:
    since_s = (times_s - times_s.min()) / workload.factor
    last_s, beyond = float(since_s.max()), int((since_s >= duration_s).sum())
    if not beyond:
        ends = f"its last arrival is after {last_s:.4g} s of the run's {duration_s:g} s, and nothing comes in the rest"
        return f"{ends}; shorten duration_s" if last_s < duration_s / 2 else ""
    text = f"{beyond:,} of {len(times_s):,} arrivals are beyond the run's {duration_s:g} s and are left out"
    remedy = f"duration_s: {np.ceil(last_s + 1e-9):.0f} holds all, or raise workload.factor"
    if workload.factor == 1 and last_s > len(times_s) and (times_s % 1 == 0).all():
        remedy += "; if the times are milliseconds, workload.factor: 1000"
    return f"{text}; {remedy}"


def _step_doubt(workload: TraceWorkload, times_s: NDArray[np.float64], unit: float) -> str:
    step_s = next((step_s for step_s in _STEPS_S if (times_s % (step_s * unit) == 0).all()), 0)
    shared = len(times_s) - len(np.unique(times_s))
    if workload.resolution_s or not step_s or shared < len(times_s) / 10 or (unit == 1 and workload.factor >= 100):
        return ""
    text = f"its times are whole {_STEPS_S[step_s]}, and {shared:,} of {len(times_s):,} come at once with another"
    return f"{text}; workload.resolution_s: {step_s * unit:g} lets each arrive at a random time within its step"
