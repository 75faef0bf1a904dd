"""The one table that a command prints: six columns that distinguish the routers. All else is in the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from scenarios.metrics.fidelity import ValidationDocument, is_flagged, was_stopped
from scenarios.metrics.metric_catalogue import ATTAINMENT, MEASURES
from scenarios.metrics.router_comparison import (
    ComparisonDocument,
    Ranking,
    accuracy_measure,
    compared,
    long_run_accuracies,
    validated,
)
from scenarios.show.answers import answers
from scenarios.show.comparison_table import comparison_table
from scenarios.show.result_words import classes_table, flagged, provenance, slo_measures
from scenarios.show.tables import Answer, Cell, Column, Table, column, plural, to_text
from scenarios.show.validation_table import (
    disturbance_warnings,
    errors_tables,
    far_apart_warnings,
    prediction_cells,
    prediction_columns,
    rows_at_middle,
    saturation_tables,
    title_at_middle,
)

_P99, _MEAN, _ACCURACY = (MEASURES[name] for name in ("latency_p99_s", "latency_mean_s", "accuracy"))
_ENERGY, _THROUGHPUT = MEASURES["energy_per_image_j"], MEASURES["throughput_img_s"]
_LONG_RUN: Final = "The mean of many runs as long as these, as simulation predicts it: a floor of accuracy is of it."


def format_summary(
    comparison: ComparisonDocument | None,
    validation: ValidationDocument | None,
    extra_answers: Sequence[Answer] = (),
    ending: str = "",
) -> str:
    """Format answers (and more, if there are any), the table, below it the warnings on its runs, and the rest."""
    replies = answers(comparison, validation)
    warnings = [*comparison_table(comparison).warnings] if comparison else []
    if validation is not None:
        judged = [*errors_tables(validation), *saturation_tables(validation)]
        warnings += [text for table in judged for text in table.warnings]
        warnings += disturbance_warnings(validation, "rows that the report flags")
        warnings += [] if was_stopped(validation) else far_apart_warnings(validation)  # or its command's error has them
    tables = [summary_table(comparison, validation), compared_classes(comparison), validated_classes(validation)]
    text = to_text([[*replies, *extra_answers] if replies else [], *filter(None, tables), "\n".join(warnings)])
    return f"{text}\n\n{ending}" if ending else text  # to be copied: never broken


def compared_classes(comparison: ComparisonDocument | None) -> Table | None:
    """Return what each class got by each router in simulation; None if requests have no classes."""
    if comparison is None:
        return None
    rows = [((row["router"],), row.get("classes", {})) for row in comparison["rows"]]
    return classes_table(comparison["slo"], rows, "router", title="By class, simulated")


def validated_classes(validation: ValidationDocument | None) -> Table | None:
    """Return the same of a validation's pairs of runs."""
    if validation is None or not validation["pairs"]:
        return None
    rows = [
        ((pair["router"], f"{pair['seed']}", side), result.get("classes", {}))
        for pair in validation["pairs"]
        for side, result in (("executors", pair["executors"]), ("simulation", pair["simulated"]))
    ]
    slo = validation["pairs"][0]["executors"]["slo"]
    return classes_table(slo, rows, "router", "seed", "side", title="By class, in simulation and on executors")


def summary_table(comparison: ComparisonDocument | None, validation: ValidationDocument | None) -> Table | None:
    """Return executors' and simulated figures, or simulated ones alone; of saturated runs alone their throughput."""
    if validation is not None and validation["rows"]:
        return _of_both_sides(comparison, validation)
    if comparison is not None:
        return _of_simulation(comparison)
    return next(iter(saturation_tables(validation)), None) if validation is not None else None


def places(comparison: ComparisonDocument | None, validation: ValidationDocument | None) -> dict[str, str]:
    """Return the winner, or the tied routers, on executors if they ran: by router the word."""
    ranking = _ranking(comparison, validation)
    if ranking is None or len(ranking.able) < 2 or ranking.is_open:
        return {}
    return dict.fromkeys(ranking.first, "wins" if ranking.winner else "ties")


def _ranking(comparison: ComparisonDocument | None, validation: ValidationDocument | None) -> Ranking | None:
    if validation is not None and validation["rows"]:
        return validated(validation, "executors", long_run=long_run_accuracies(comparison))
    return None if comparison is None else compared(comparison)


def _of_simulation(comparison: ComparisonDocument) -> Table:
    """Return the table, whose last column is the bound (`--bound`), the attainment of a promise, or mere throughput."""
    rows = comparison["rows"]
    last = ATTAINMENT[0] if slo_measures(comparison["slo"]) else _THROUGHPUT
    measures = [_P99, accuracy_measure(rows), _ENERGY, _MEAN, last]
    header = [Column("router"), *(column(measure, measure.title) for measure in measures)]
    cells = [[flagged(row["router"], row["is_flagged"]), *(measure.of(row) for measure in measures)] for row in rows]
    if comparison["pareto"]["bounds"].get(_MEAN.name):
        gaps = {row["router"]: row["gap_pct"] for row in comparison["pareto"]["fronts"][_MEAN.name]}
        header[-1] = Column(f"{_MEAN.header} over bound", "%", 0, signed=True)
        cells = [[*values[:-1], gaps.get(row["router"])] for values, row in zip(cells, rows, strict=True)]
    title = f"{comparison['scenario']}, simulated ({provenance(comparison)}; {_seeds(rows)})"
    return Table(header, cells, title, marks=places(comparison, None))


def _seeds(rows: Sequence[Mapping[str, Any]]) -> str:
    return plural(max(len(row["seeds"]) for row in rows), "seed")


def _of_both_sides(comparison: ComparisonDocument | None, validation: ValidationDocument) -> Table:
    """Return executors' figures, simulation's for the same arrivals, and those of many simulated runs, if any."""
    real = {row["router"]: row for row in rows_at_middle(validation["rows"])}
    long = {} if comparison is None else {row["router"]: row for row in comparison["rows"]}
    ranking = _ranking(comparison, validation)
    judged = {} if ranking is None else {each.router: each.accuracy for each in ranking.judged}
    accuracies = {**long_run_accuracies(comparison), **judged}
    accuracy = replace(column(_ACCURACY, "accuracy"), meaning=_LONG_RUN)
    header = [Column("router"), accuracy, *prediction_columns(_P99, "p99")[:2], Column("inside", is_text=True)]
    header.append(column(_P99, "p99 of all seeds") if long else Column("p99 error", "%", 1, signed=True))
    rows: list[list[Cell]] = []
    for router in dict.fromkeys([*long, *real]):
        row, long_row = real.get(router), long.get(router)
        last = _P99.of(long_row) if long_row else None if long or row is None else row["error_pct"].get(_P99.stem)
        leaves_many = (row is not None and is_flagged(row["served"])) or bool(long_row and long_row["is_flagged"])
        name = flagged(router, leaves_many)
        rows.append([name, accuracies.get(router), *prediction_cells(row, _P99), last])
    title = f"{validation['scenario']}: {title_at_middle(validation)}"
    title += f", {_seeds([*long.values()])} simulated" if long else ""
    return Table(header, rows, title, marks=places(comparison, validation))
