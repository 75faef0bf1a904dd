"""A comparison as a table: a row a router, with changes seed by seed and trade-offs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scenarios.metrics.catalogue import COMPARED, COSTS, MEASURES, Measure
from scenarios.metrics.comparison import ComparisonDocument, accuracy_measure
from scenarios.show.numbers import NONE, ratio_change
from scenarios.show.table import Cell, Column, Table, column, columns
from scenarios.show.wording import lines_of
from scenarios.show.words import (
    decisions_text,
    flagged,
    provenance,
    served_measures,
    served_of,
    signature_lines,
    slo_measures,
    unserved_lines,
)
from sim.profile import origin_of

_CHANGES = {  # what they are called, against the baseline
    "p99 change": MEASURES["latency_p99_s"],
    "energy change": MEASURES["energy_per_image_j"],
    "latency change": MEASURES["latency_mean_s"],
}


def comparison_table(comparison: ComparisonDocument) -> Table:
    """Return one row a router, mean +- 95 % half-width over seeds; then changes seed by seed, and trade-offs."""
    baseline, compared = comparison["baseline"], comparison["rows"]
    served = {row["router"]: served_of(row) for row in compared}
    promised = slo_measures(comparison["slo"])
    measures = [*promised, *served_measures(served.values()), *COMPARED]
    changes_head, changes = _changes(comparison)
    fronts_head, fronts = _fronts(comparison) if len(compared) > 1 else ([], {})
    head = [Column("router"), *(column(each, each.title, _origin(each, comparison)) for each in measures)]
    rows = [
        [
            _name(row),
            *(measure.of(row) for measure in measures),
            *changes.get(row["router"], ()),
            *fronts.get(row["router"], ()),
        ]
        for row in compared
    ]
    notes = lines_of(
        "results", "compared", comparison,
        seeds=max(len(row["seeds"]) for row in compared),
        is_promised=bool(promised),
        is_sampled=accuracy_measure(compared).name == "expected_accuracy",
    )  # fmt: skip
    few, many = unserved_lines((router, "", of) for router, of in served.items())
    warnings = lines_of(
        "results", "compared_warnings", many,
        is_nobody_left=len(many) == len(rows) > 1,
        most=max(row["extrapolated_share"]["mean"] or 0.0 for row in compared),
        signs=signature_lines(comparison),
    )  # fmt: skip
    return Table(
        [*head, *changes_head, *fronts_head],
        rows,
        f"{comparison['scenario']} ({provenance(comparison)})",
        [*notes, *decisions_text(comparison["own_decision_s"]), *few],
        warnings,
        next((_name(row) for row in compared if row["router"] == baseline), None),
    )


def _name(row: Mapping[str, Any]) -> str:
    return flagged(row["router"], row["is_flagged"])


def _origin(measure: Measure, comparison: ComparisonDocument) -> str:
    if measure.keys[0] == "accuracy":
        return comparison["accuracy_provenance"]
    return origin_of(comparison["provenance"], comparison["emulated_slowdowns"])


def _changes(comparison: ComparisonDocument) -> tuple[list[Column], dict[str, list[str]]]:
    """Return the ratios to the baseline's numbers seed by seed, as changes in percent."""
    if (paired := comparison["paired"]) is None:
        return [], {}
    measures = _CHANGES.values()
    cells = {row["router"]: [ratio_change(row[each.name]["ratio"]) for each in measures] for row in paired["rows"]}
    return columns(*_CHANGES), cells


def _fronts(comparison: ComparisonDocument) -> tuple[list[Column], dict[str, list[Cell]]]:
    """Return at which costs no other router is as accurate for less, and how far a cost is above its known bound."""
    pareto, cells = comparison["pareto"], dict[str, list[Cell]]()
    places = {cost: {row["router"]: row for row in pareto["fronts"][cost.name]} for cost in COSTS}
    bounded = [cost for cost in COSTS if pareto["bounds"].get(cost.name)]
    for row in comparison["rows"]:
        places_of = {cost: of[row["router"]] for cost, of in places.items() if row["router"] in of}
        unbeaten = ", ".join(cost.head for cost, place in places_of.items() if place["on_front"])
        gaps = [places_of[cost]["gap_pct"] if cost in places_of else None for cost in bounded]
        cells[row["router"]] = [unbeaten or NONE, *gaps]
    meaning = "The costs at which no other router is as accurate for less."
    head = [Column("unbeaten at", is_text=True, meaning=meaning)]
    return [*head, *(Column(f"{cost.head} over bound", "%", 0, signed=True) for cost in bounded)], cells
