"""Words for a validation whose hardware runs are far from their simulation: what was found, why, and what to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kit.errors import WorkError
from scenarios.metrics.catalogue import MEASURES
from scenarios.metrics.far_apart import MOST_APART_PCT
from scenarios.metrics.fidelity import FarApart, FarRun, Validation, Worlds, foreign_share, is_busy, was_stopped
from scenarios.metrics.result import MOST_CPU, cpu_share
from scenarios.show.numbers import number, plural, shown

_LATENCY, _THROUGHPUT = MEASURES["latency_mean_s"], MEASURES["throughput_img_s"]
_MOST_TOLD = 2  # runs in a message: those that decided


def first_far_text(run: FarRun) -> str:
    """Of the first run alone, while it is not known what the next one says."""
    return (
        f"more than {MOST_APART_PCT:.0f} % from its simulation: {_run_text(run)}; if the next run is so, too, this ends"
    )


def far_apart_text(found: FarApart) -> str:
    """One line: how many runs, how far, in which stage, the likely causes, and what to do."""
    runs = plural(found["made"], "hardware run")
    began = f"stopped after {runs} of {found['planned']}" if found["made"] < found["planned"] else runs
    told = "; ".join(map(_run_text, found["runs"][:_MOST_TOLD]))
    return (
        f"{began}: more than {MOST_APART_PCT:.0f} % from simulation: {told}. "
        f"Likely causes: {'; '.join(_causes(found['runs']))}. {_remedies(found)}"
    )


def far_apart_warnings(validation: Validation) -> list[str]:
    """What nobody should miss in a report."""
    found = validation.get("far_apart")
    return [] if found is None else [f"Far apart: {far_apart_text(found)}"]


def require_hopeful(validation: Validation) -> None:
    """Raises `WorkError` where the validation was stopped as hopeless; all that was made is kept."""
    found = validation.get("far_apart")
    if found is not None and was_stopped(validation):
        raise WorkError(f"validate: {far_apart_text(found)} Everything that was made is kept")


def _run_text(run: FarRun) -> str:
    """`jsq, load 0.5, seed 0: mean latency 3.00 ms simulated, 9.00 ms measured, ...; most apart in run: ...`."""
    at = "" if run["load"] is None else f", load {run['load']:g}"
    repeat = f", repeat {run['repeat']}" if run["repeat"] else ""
    latency = _both_ms(run["latency_s"])
    throughput = "/".join(shown(_THROUGHPUT, run["throughput_img_s"][world]) for world in ("simulated", "hardware"))
    text = f"{run['router']}{at}, seed {run['seed']}{repeat}: mean latency {latency}"
    text += f" ({_error(run, _LATENCY.stem)}), {throughput} images/s ({_error(run, _THROUGHPUT.stem)})"
    if run["stage"] is not None and run["stage_s"] is not None:
        text += f", most of it in the stage `{run['stage'].replace('_', ' ')}`, {_both_ms(run['stage_s'])}"
    return text


def _both_ms(found: Worlds | Mapping[str, float | None]) -> str:
    return f"{number(found['simulated'], 2, 1000)} ms simulated, {number(found['hardware'], 2, 1000)} ms measured"


def _error(run: FarRun, name: str) -> str:
    return f"{number(run['error_pct'][name], 1, signed=True)} %"


def _causes(runs: Sequence[FarRun]) -> list[str]:
    """What was seen first, then what nothing tells."""
    foreign = max((foreign_share(load) for run in runs if (load := run["foreign_load"]) is not None), default=None)
    cpu = max((cpu_share(found) for run in runs if (found := run["cpu"]) is not None), default=0.0)
    seen = []
    if foreign is not None and any(is_busy(run["foreign_load"]) for run in runs):
        seen.append(f"others took {number(foreign, 0, 100)} % of a device meanwhile")
    if cpu > MOST_CPU:
        seen.append("the run's own processes were short of CPU time, so this machine can't carry the load")
    if any((run["error_pct"][_THROUGHPUT.stem] or 0.0) > MOST_APART_PCT for run in runs):
        seen.append("the devices can't carry the load here")
    unseen = ["the profiles are of another host, stack or load"]
    unseen += ["other programs use the machine"] if foreign is None else []
    return [*seen, *unseen]


def _remedies(found: FarApart) -> str:
    text = (
        "Stop other programs or lower the load; see whether the profiles still hold (`slimsched profile check`), and "
    )
    text += f"calibrate again where they don't. To measure these runs again remove {found['kept']} in the run folder"
    return f"{text}. To go on all the same: --go-on, in a scenario validate.go_on."
