"""A validation's tables, notes and warnings; the sentences are `templates/validation.j2`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from hw.telemetry.background_load import NOTABLE, STRONG
from kit.errors import WorkError
from policies.run_records import STAGES
from scenarios.metrics.fidelity import (
    MAX_APART_PCT,
    PREDICTED,
    FarRun,
    Row,
    SaturatedRow,
    ValidationDocument,
    background_share,
    is_flagged,
    middle_load,
    other_loads,
    was_stopped,
)
from scenarios.metrics.metric_catalogue import MEASURES, VALIDATED, Measure
from scenarios.metrics.run_result import MAX_LATE, MOST_CPU, charged_decisions, cpu_share, lateness_share
from scenarios.show.result_words import decisions_text, flagged, served_measures, unserved_lines
from scenarios.show.tables import NONE, Column, Table, column, columns, number
from scenarios.show.wording import lines_of, say
from sim.device_profile import origin_of

AnyRow = Row | SaturatedRow
SIDES: Final[Mapping[Literal["simulated", "executors"], str]] = {
    "simulated": "in simulation",
    "executors": "on executors",
}
CPU_MEANING = (
    "what the router or a worker (but of a CPU device) took of a core, or all of them of the cores that they share, "
    "whichever was fuller, in the run that had most."
)
_LATENCY, _THROUGHPUT = MEASURES["latency_mean_s"], MEASURES["throughput_img_s"]
TITLES: Final = {measure.stem: measure.title for measure in MEASURES.values()}


@dataclass(frozen=True, slots=True)
class _Disturbance:
    """What is in the executors' numbers and in no simulation.

    Attributes:
        key: of a row.
        share: what is shown, in percent; a row that has more than `limit` is marked with the flag.
    """

    key: Literal["background_load", "lateness_s", "cpu"]
    header: str
    share: Callable[[Any], float]
    limit: float
    flag: str
    meaning: str

    def is_strong(self, validation: ValidationDocument) -> bool:
        """Return whether any row is flagged."""
        loads = (row[self.key] for row in _all_rows(validation))
        return any(load and self.share(load) > self.limit for load in loads)

    def text(self, load: Any) -> str:
        """Format one row's load: `12`, `55 busy`, `40 (20 stolen) busy`."""
        if load is None:
            return NONE
        stolen = load.get("stolen", 0.0)
        parts = [number(self.share(load), 0, 100)]
        parts += [f"({number(stolen, 0, 100)} stolen)"] if stolen > NOTABLE else []
        return " ".join([*parts, *([self.flag] if self.share(load) > self.limit else [])])


_FOREIGN = _Disturbance(
    "background_load", "background load", background_share, STRONG, "busy",
    "what other programs (stolen: a virtual machine's host) took of the device that had most of it, in the run that "
    "had most.",
)  # fmt: skip
_DISTURBANCES: Final = (
    _FOREIGN,
    _Disturbance(
        "lateness_s", "ends late", lateness_share, MAX_LATE, "late",
        "by how much the ends of passes on emulated devices were seen too late (p99), as a share of a mean pass, in "
        "the run that had most.",
    ),
    _Disturbance("cpu", "busiest core", cpu_share, MOST_CPU, "starved", CPU_MEANING),
)  # fmt: skip


def emulated_devices(validation: ValidationDocument) -> str:
    """Describe the executors' devices if they were emulated, `emulated x20`; empty if they were real."""
    slowdowns = {slowdown for pair in validation["pairs"] for slowdown in pair["executors"]["emulated_slowdowns"]}
    return origin_of("emulated", sorted(slowdowns)) if slowdowns else ""


def is_host_busy(validation: ValidationDocument) -> bool:
    """Return whether others took so much of a device that errors are not the simulator's alone."""
    return _FOREIGN.is_strong(validation)


def _titled(title: str, validation: ValidationDocument) -> str:
    """Add emulated devices to a title, so that no such table passes for one of real devices."""
    devices = emulated_devices(validation)
    return f"{title} ({devices})" if devices else title


def title_at_middle(validation: ValidationDocument) -> str:
    """Return the title of a table of that load: the load, the number of runs, and whether devices were emulated."""
    return _titled(say("validation", "load", rows_at_middle(validation["rows"])[0]), validation)


def rows_at_middle(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of the load that charts show."""
    load = middle_load(row["load"] for row in rows)
    return [row for row in rows if row["load"] == load]


def _is_slowed(row: Row) -> bool:
    return row["slowdown"]["mean"] is not None


def _all_rows(validation: ValidationDocument) -> list[AnyRow]:
    return [*validation["rows"], *validation["saturated"]]


def _disturbances(rows: Sequence[AnyRow]) -> tuple[list[Column], list[list[str]]]:
    """Return columns of what was measured, and each row's cells of them."""
    measured = [each for each in _DISTURBANCES if any(row[each.key] for row in rows)]
    header = [Column(each.header, "%", meaning=each.meaning) for each in measured]
    return header, [[each.text(row[each.key]) for each in measured] for row in rows]


def errors_tables(validation: ValidationDocument) -> list[Table]:
    """Return a table a load: simulated and measured mean latency, then each error and what is allowed."""
    by_load: dict[float | None, list[Row]] = {}
    for row in validation["rows"]:
        by_load.setdefault(row["load"], []).append(row)
    return [_errors_table(rows, _titled(say("validation", "load", rows[0]), validation)) for rows in by_load.values()]


def _errors_table(rows: Sequence[Row], title: str) -> Table:
    slowed = any(map(_is_slowed, rows))
    served_head, served_cells = _served_columns(rows)
    header = [Column("router"), *served_head]
    for measure in PREDICTED:
        header += prediction_columns(measure, measure.title)
    background_head, background_cells = _disturbances(rows)
    header += [*([Column("device slowdown", "", 2)] if slowed else []), *background_head]
    measures = [each for each in VALIDATED if any(row["error_pct"].get(each.stem) is not None for row in rows)]
    header += [Column(f"{measure.title} error", "%", 1, signed=True, meaning=measure.meaning) for measure in measures]
    body = []
    for row, served, background in zip(rows, served_cells, background_cells, strict=True):
        predicted = [cell for measure in PREDICTED for cell in prediction_cells(row, measure)]
        slowdown = [row["slowdown"]] if slowed else []
        errors = [row["error_pct"].get(measure.stem) for measure in measures]
        body.append([_name(row), *served, *predicted, *slowdown, *background, *errors])
    return Table(header, body, title, *_unserved_lines(rows))


def prediction_columns(measure: Measure, name: str) -> list[Column]:
    """Return columns of what was predicted, what was measured, and how many values are inside."""
    header = [column(measure, f"{name} {kind}") for kind in ("predicted", "measured")]
    return [*header, Column(f"{name} inside", is_text=True)]


def prediction_cells(row: Row | None, measure: Measure) -> list[str]:
    """Return `83.1 (76.0-106)`, `82.4 (78.0-88.0)`, `5 of 5`; nothing for a router that did not run on executors."""
    if row is None:
        return [NONE] * 3
    predicted, measured = row["predicted"].get(measure.stem), row["measured"][measure.stem]
    covered, mean = row["coverage"].get(measure.stem), row["executors"][measure.stem]["mean"]
    return [
        NONE if predicted is None else _range(measure, predicted["median"], predicted["low"], predicted["high"]),
        NONE if measured is None or mean is None else _range(measure, mean, measured["least"], measured["most"]),
        NONE if covered is None else f"{covered['inside']} of {covered['of']}",
    ]


def _range(measure: Measure, middle: float, low: float, high: float) -> str:
    """Format a range in three digits, because it is known to no more."""
    return "{} ({}-{})".format(*(_short(measure.scale * value) for value in (middle, low, high)))


def _short(value: float) -> str:
    return number(value, 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2)


def _name(row: AnyRow) -> str:
    return flagged(row["router"], is_flagged(row["served"]))


def _served_columns(rows: Sequence[AnyRow]) -> tuple[list[Column], list[list[str]]]:
    """Return how much simulation and executors served of what arrived: the columns, and each row's cells."""
    measures = served_measures(row["served"][side] for row in rows for side in SIDES)
    header = [Column(f"{measure.header} sim./exec.", measure.unit, meaning=measure.meaning) for measure in measures]
    return header, [[_both(row, measure) for measure in measures] for row in rows]


def _both(row: AnyRow, measure: Measure) -> str:
    return "/".join(column(measure).text(measure.of({"shares": row["served"][side]})) for side in SIDES)


def _unserved_lines(rows: Sequence[AnyRow]) -> tuple[list[str], list[str]]:
    """Return which routers left images unserved, simulated or on executors: few, and many."""
    return unserved_lines(
        (row["router"], f" {text}", row["served"][side]) for row in rows for side, text in SIDES.items()
    )


def stages_table(rows: Sequence[Row]) -> Table:
    """Return mean milliseconds an image spent in each stage, simulated/on executors; no rows if no run kept them."""
    body = []
    for row in rows:
        simulated, executors = row["stages_s"]["simulated"], row["stages_s"]["executors"]
        if simulated is not None and executors is not None:
            pairs = ((number(of.get(name), 2, 1000) for of in (simulated, executors)) for name in STAGES)
            body.append([_name(row), *map("/".join, pairs)])
    title = f"{say('validation', 'load', rows[0])}: where an image's time goes, simulated/on executors, ms"
    return Table(columns("router", *(name.replace("_", " ") for name in STAGES)), body, title)


def saturation_tables(validation: ValidationDocument) -> list[Table]:
    """Return throughput of saturated runs, if there were any."""
    rows = validation["saturated"]
    if not rows:
        return []
    served_head, served_cells = _served_columns(rows)
    background_head, background_cells = _disturbances(rows)
    header = [Column("router"), *served_head, Column("arriving", "images/s", 0), column(_THROUGHPUT, "simulated")]
    header += [column(_THROUGHPUT, "on executors"), Column("error", "%", 1, signed=True), Column("allowed")]
    header += [Column("kept up", is_text=True), *background_head]
    body = []
    for row, served, background in zip(rows, served_cells, background_cells, strict=True):
        figures = row["rate_img_s"], row["simulated_img_s"], row["hardware_img_s"], row["error_pct"]
        allowed = _allowed(row["target_pct"], row["met"])
        body.append([_name(row), *served, *figures, allowed, _kept_up(row), *background])
    title = _titled("saturated: arrivals just above capacity", validation)
    return [Table(header, body, title, *_unserved_lines(rows))]


def _kept_up(row: SaturatedRow) -> str:
    """Return whether simulation or executors kept up with arrivals, if one did: it was not saturated."""
    kept_up = [side for side, is_saturated in row["saturated"].items() if not is_saturated]
    return f"not saturated: {', '.join(kept_up)}" if kept_up else ""


def _allowed(target: float | None, is_met: bool | None) -> str:
    if target is None:
        return NONE
    return f"{target:.1f} {'' if is_met is None else 'met' if is_met else 'missed'}".rstrip()


# --------------------------------------------------------------------------------------------------------------- words


def validation_notes(validation: ValidationDocument) -> list[str]:
    """Describe what ranges and errors are, how routers rank, and what cannot be known."""
    rows, everything = validation["rows"], _all_rows(validation)
    reasons: dict[str, dict[str, None]] = {}
    for pair in validation["pairs"]:
        for stem, why in pair["not_applicable"].items():
            reasons.setdefault(why, {})[TITLES[stem]] = None
    return lines_of(
        "validation", "notes", validation,
        is_slowed=any(map(_is_slowed, rows)),
        disturbances=[each for each in _DISTURBANCES if any(row[each.key] for row in everything)],
        decisions=decisions_text(charged_decisions(pair["simulated"] for pair in validation["pairs"])),
        reasons=reasons,
    )  # fmt: skip


def disturbance_warnings(validation: ValidationDocument, rows: str = "rows flagged") -> list[str]:
    """Warn of all that is in the executors' numbers and in no simulation, and in which rows."""
    warnings = [
        say("validation", "warning", each.key, each.limit, rows) for each in _DISTURBANCES if each.is_strong(validation)
    ]
    different = other_loads(validation)
    return [*warnings, say("validation", "other_loads", different)] if different else warnings


def first_far_text(run: FarRun) -> str:
    """Describe the first run alone, while the next one's result is not known."""
    return say("validation", "first_far", run, MAX_APART_PCT)


def far_apart_warnings(validation: ValidationDocument) -> list[str]:
    """Return the warnings of a report."""
    far_apart = validation.get("far_apart")
    return [] if far_apart is None else [f"Far apart: {say('validation', 'far_apart', far_apart, MAX_APART_PCT)}"]


def require_hopeful(validation: ValidationDocument) -> None:
    """Raise `WorkError` if the validation was stopped as hopeless; all that was made is kept."""
    if was_stopped(validation):
        text = say("validation", "far_apart", validation.get("far_apart"), MAX_APART_PCT)
        raise WorkError(f"validate: {text} Everything that was made is kept")
