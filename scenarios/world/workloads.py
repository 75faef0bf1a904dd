"""When images arrive: a scenario's workload, played by `sim.workload`.

A kind of workload is a section in `scenarios.files.spec` and one function here, registered for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import singledispatch
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from policies.chance import stream
from scenarios.files.series import read_rates, read_trace
from scenarios.files.spec import (
    DiurnalWorkload,
    FlashWorkload,
    GammaWorkload,
    MmppWorkload,
    PoissonWorkload,
    RatesWorkload,
    TraceWorkload,
    WorkloadSection,
)
from sim import workload
from sim.workload import Arrivals


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Which part of a scenario a run for training or tuning is from: one of so many, the whole by default."""

    number: int = 0
    parts: int = 1

    def start_s(self, seed: int, duration_s: float, horizon_s: float) -> float:
        """Where in the part it begins: at random, but so that it does not reach beyond the scenario's end."""
        longest_s = max(0.0, duration_s - horizon_s)
        return longest_s * (self.number + float(stream(seed, "excerpt").uniform())) / self.parts


Series = Mapping[tuple[str, str], NDArray[np.float64]]
"""What stands in a column of a file: by both."""


def series_of(given: WorkloadSection) -> Series:
    """All that the files of a workload hold; raises `InputError` where one can't be read."""
    match given:
        case RatesWorkload():
            files = filter(None, (given.file, given.tuning_file))
            return {(file, given.column): read_rates(Path(file), given.column) for file in files}
        case TraceWorkload():
            return {(given.file, given.time_column): read_trace(Path(given.file), given.time_column)}
    return {}


@dataclass(frozen=True, slots=True)
class Play:
    """What a workload is played at.

    Attributes:
        rate_img_s: its mean rate, scaled; 0 for a trace, which has its own.
        scale: in times of its own rate.
        start_s: where in the scenario the run begins.
        is_tuning: whether it is for training or tuning a router.
        series: of the workload, where its files were read before.
    """

    rate_img_s: float
    scale: float
    horizon_s: float
    start_s: float
    is_tuning: bool
    rng: np.random.Generator
    series: Series = field(default_factory=dict)


@singledispatch
def arrivals_ns(given: WorkloadSection, play: Play) -> Arrivals:
    """Arrival times of one run, ascending."""
    raise NotImplementedError(f"nothing plays {type(given).__name__}")


@arrivals_ns.register
def _poisson(given: PoissonWorkload, play: Play) -> Arrivals:
    return workload.poisson(play.rate_img_s, play.horizon_s, play.rng)


@arrivals_ns.register
def _mmpp(given: MmppWorkload, play: Play) -> Arrivals:
    burst = (given.burst_factor, given.burst_share, given.dwell_s)
    return workload.mmpp(play.rate_img_s, *burst, play.horizon_s, play.rng)


@arrivals_ns.register
def _gamma(given: GammaWorkload, play: Play) -> Arrivals:
    return workload.gamma(play.rate_img_s, given.cv, play.horizon_s, play.rng)


@arrivals_ns.register
def _diurnal(given: DiurnalWorkload, play: Play) -> Arrivals:
    sine = (given.amplitude, given.period_s)
    return workload.diurnal(play.rate_img_s, *sine, play.horizon_s, play.rng, start_s=play.start_s)


@arrivals_ns.register
def _rates(given: RatesWorkload, play: Play) -> Arrivals:
    file = (given.tuning_file if play.is_tuning else None) or given.file
    levels = (play.series or series_of(given))[file, given.column]
    return workload.rates(levels, play.rate_img_s, given.period_s, play.horizon_s, play.rng, start_s=play.start_s)


@arrivals_ns.register
def _flash(given: FlashWorkload, play: Play) -> Arrivals:
    shape = (given.factor, given.at_s - play.start_s, given.rise_s, given.hold_s, given.fall_s)
    return workload.flash(play.rate_img_s, *shape, play.horizon_s, play.rng)


@arrivals_ns.register
def _trace(given: TraceWorkload, play: Play) -> Arrivals:
    times_s = (play.series or series_of(given))[given.file, given.time_column]
    return workload.trace(times_s.tolist(), given.factor * play.scale, play.horizon_s)
