"""Whether a validation is worth going on with: its first runs on the hardware beside their simulated twins.

Where a profile is of another machine, or this one is overloaded, every run says so; hours of more of them say no more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from policies.records import STAGES
from scenarios.metrics.catalogue import MEASURES
from scenarios.metrics.fidelity import FarRun, ValidationRun, Worlds
from scenarios.metrics.statistics import change_pct

MOST_APART_PCT: Final = 50.0  # ten times what is promised of a mean: nobody's noise, and nobody's fine tuning
FEWEST_IMAGES = 30  # to judge a run by: the mean of so many latencies that scatter by their mean is known to 18 %
FEWEST_RUNS = 2  # that agree before anything is stopped: one run alone may have met a stall, or a cold start
_MEASURES: Final = (MEASURES["latency_mean_s"], MEASURES["throughput_img_s"])


def far_runs(runs: Sequence[ValidationRun]) -> list[FarRun]:
    """All that can be judged, where each of them is more than 50 % from its twin; else none.

    One that is nearer clears the rest for good, in whatever order they are looked at: a validation that has passed
    does not stop when it is resumed.
    """
    judged = [run for run in runs if _is_comparable(run)]
    found = [_far_run(run) for run in judged if _is_far(run)]
    return found if len(found) == len(judged) else []


def is_hopeless(runs: Sequence[ValidationRun]) -> bool:
    """Whether enough of them say so."""
    return len(far_runs(runs)) >= FEWEST_RUNS


def _is_comparable(run: ValidationRun) -> bool:
    """Whether a run can tell a wrong profile from something else.

    A saturated run can't: its rate is what the hardware just can't carry, so the twin, which gets the same, completes
    about as much, and its latency is that of a backlog. A run that completed nothing is made again. While a server is
    down, planned or not, latencies hang on how long it takes to start.
    """
    simulated, hardware = run["simulated"], run["hardware"]
    if run["kind"] != "pair" or not hardware["images"]["completed"]:
        return False
    is_enough = simulated["images"]["completed"] >= FEWEST_IMAGES
    return is_enough and not simulated.get("restarts") and not hardware.get("restarts")


def _errors_pct(run: ValidationRun) -> dict[str, float | None]:
    return {each.stem: change_pct(each.of(run["simulated"]), each.of(run["hardware"])) for each in _MEASURES}


def _is_far(run: ValidationRun) -> bool:
    return any(error is not None and abs(error) > MOST_APART_PCT for error in _errors_pct(run).values())


def _far_run(run: ValidationRun) -> FarRun:
    simulated, hardware = run["simulated"], run["hardware"]
    stage = _most_apart(simulated.get("stages_s"), hardware.get("stages_s"))
    return FarRun(
        router=run["router"],
        load=run["load"],
        seed=run["seed"],
        repeat=run["repeat"],
        error_pct=_errors_pct(run),
        latency_s={"simulated": simulated["latency_s"]["mean"], "hardware": hardware["latency_s"]["mean"]},
        throughput_img_s=Worlds(simulated=simulated["throughput_img_s"], hardware=hardware["throughput_img_s"]),
        stage=None if stage is None else stage[0],
        stage_s=None if stage is None else stage[1],
        foreign_load=run.get("foreign_load"),
        cpu=hardware.get("cpu"),
    )


def _most_apart(simulated: dict[str, float] | None, hardware: dict[str, float] | None) -> tuple[str, Worlds] | None:
    """By seconds: that is where the error of the latency comes from."""
    if not simulated or not hardware:
        return None
    known = [name for name in STAGES if name in simulated and name in hardware]
    most = max(known, key=lambda name: abs(simulated[name] - hardware[name]))
    return most, Worlds(simulated=simulated[most], hardware=hardware[most])
