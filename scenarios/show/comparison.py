"""A comparison's tables: the routers, pairs, trade-offs, and the paper's layout with its numbers beside ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scenarios.metrics.catalogue import COMPARED, COSTS, MEASURES, Measure
from scenarios.metrics.comparison import Comparison, accuracy_measure
from scenarios.metrics.served import MARK
from scenarios.metrics.statistics import PairedDifference
from scenarios.show.numbers import NONE, PLUS_MINUS, change, number, places, shown
from scenarios.show.paper import PaperRow, is_replica, paper_row
from scenarios.show.table import Column, Table, column, columns, to_text
from scenarios.show.wording import lines_of, say
from scenarios.show.words import (
    decisions_text,
    kept_measures,
    marked,
    provenance,
    served_measures,
    served_of,
    signature_lines,
    unserved_lines,
)
from scenarios.terminal.screen import screen_width
from sim.profile import origin_of

_CHANGES = {"energy_per_image_change_pct": "energy change", "latency_change_pct": "latency change"}  # a row's keys
MOST_PLACES = 6  # of a difference, after the point


def format_comparison(comparison: Comparison) -> str:
    """The table of the routers alone."""
    return to_text([comparison_table(comparison)], screen_width())


def format_all(comparison: Comparison) -> str:
    """Every table that there is something to say in, the comparison's own first."""
    return to_text(comparison_tables(comparison), screen_width())


def comparison_tables(comparison: Comparison) -> list[Table]:
    """The paper's layout for its replicas, pairs where there are several seeds, trade-offs of several routers."""
    tables = [comparison_table(comparison)]
    if is_replica(comparison["scenario"]):
        tables.append(paper_table(comparison))
    paired = comparison["paired"]
    if paired is not None and len(paired["rows"]) > 1 and any(len(row["seeds"]) > 1 for row in paired["rows"]):
        tables.append(paired_table(comparison))
    return [*tables, trade_off_table(comparison)] if len(comparison["rows"]) > 1 else tables


def comparison_table(comparison: Comparison) -> Table:
    """The paper's table: one row a router, mean +- 95 % half-width over seeds."""
    baseline, compared = comparison["baseline"], comparison["rows"]
    found = {row["router"]: served_of(row) for row in compared}
    promised = kept_measures(comparison["service"])
    measures = [*promised, *served_measures(found.values()), *COMPARED]
    changes = _CHANGES if baseline else {}
    head = [Column("router"), *(column(each, each.title, _origin(each, comparison)) for each in measures)]
    rows = [
        [
            _name(row),
            *(shown(measure, measure.of(row)) for measure in measures),
            *(change(row[key]) if key in row else NONE for key in changes),
        ]
        for row in compared
    ]
    notes = lines_of(
        "results", "compared", comparison,
        seeds=max(len(row["seeds"]) for row in compared),
        is_promised=bool(promised),
        is_drawn=accuracy_measure(compared).name == "expected_accuracy",
    )  # fmt: skip
    few, many = unserved_lines((router, "", of) for router, of in found.items())
    warnings = lines_of(
        "results", "compared_warnings", many,
        is_nobody_left=len(many) == len(rows) > 1,
        most=max(row["extrapolated_share"]["mean"] or 0.0 for row in compared),
        signs=signature_lines(comparison),
    )  # fmt: skip
    return Table(
        [*head, *columns(*changes.values())],
        rows,
        f"{comparison['scenario']} ({provenance(comparison)})",
        [*notes, *decisions_text(comparison["own_decision_s"]), *few],
        warnings,
        next((_name(row) for row in compared if row["router"] == baseline), None),
    )


def _name(row: Mapping[str, Any]) -> str:
    """A router's name as tables have it."""
    return marked(row["router"], row["is_marked"])


def _names(comparison: Comparison) -> dict[str, str]:
    return {row["router"]: _name(row) for row in comparison["rows"]}


def _origin(measure: Measure, comparison: Comparison) -> str:
    if measure.keys[0] == "accuracy":
        return comparison["accuracy_provenance"]
    return origin_of(comparison["provenance"], comparison["emulated_slowdowns"])


# --------------------------------------------------------------------------------------------------------------- pairs

_DIFFERENCES = tuple(MEASURES[name] for name in ("latency_p99_s", "energy_per_image_j", "latency_mean_s"))


def paired_table(comparison: Comparison) -> Table:
    """Seed by seed against one router: the differences, and in percent of its numbers; `*` where they are no chance."""
    paired, accuracy, names = comparison["paired"], MEASURES["accuracy"], _names(comparison)
    assert paired is not None, "there is a router that the others are set against"
    head = [Column("router")]
    for measure in _DIFFERENCES:
        head += [column(measure), Column(f"{measure.head} change")]
    rows = []
    for row in paired["rows"]:
        if row["router"] != paired["against"]:
            cells = [names[row["router"]]]
            for measure in _DIFFERENCES:
                cells += [_difference(row[measure.name], measure.scale), change(row[measure.name]["percent"])]
            rows.append([*cells, _difference(row[accuracy.name], accuracy.scale)])
    note = "Mean and 95 % interval of the differences between runs of the same seed; * where the interval leaves 0 out."
    head.append(Column("accuracy", "points", meaning=accuracy.meaning))
    return Table(head, rows, f"differences to {names[paired['against']]!r}", [note])


def _difference(found: PairedDifference, scale: float) -> str:
    """With as many digits as the interval deserves: two of it that count."""
    mean, half_width = found["difference"]["mean"], found["difference"]["ci95"]
    if mean is None:
        return NONE
    deciding = half_width * scale if half_width else mean * scale
    digits = min(MOST_PLACES, places(deciding, 2)) if deciding else 2
    text = number(mean, digits, scale, signed=True)
    if half_width is None:
        return text
    return f"{text}{PLUS_MINUS}{number(half_width, digits, scale)}{'*' if found['differs'] else ' '}"


# ---------------------------------------------------------------------------------------------------------- trade-offs


_UNBEATEN = "The costs at which no other router is as accurate for less."


def trade_off_table(comparison: Comparison) -> Table:
    """Which routers no other beats at accuracy and a cost, how far from the bound they are, and their worst seeds."""
    pareto, worst = comparison["pareto"], {row["router"]: row for row in comparison["worst"]}
    found = {cost: {row["router"]: row for row in pareto["fronts"][cost.name]} for cost in COSTS}
    bounded = [cost for cost in COSTS if pareto["bounds"].get(cost.name)]
    axis = MEASURES[pareto["accuracy"]]
    head = [
        Column("router"),
        column(axis, "accuracy"),
        *map(column, COSTS),
        Column("unbeaten at", is_text=True, meaning=_UNBEATEN),
    ]
    head += [Column(f"{cost.head} over bound") for cost in bounded]
    head += [column(axis, "worst accuracy"), *(column(cost, f"worst {cost.head}") for cost in COSTS)]
    rows = []
    for router, name in _names(comparison).items():
        places_of = {cost: of[router] for cost, of in found.items() if router in of}
        accuracy = next((row["accuracy"] for row in places_of.values()), None)
        fronts = [cost.head for cost, place in places_of.items() if place["on_front"]]
        rows.append(
            [
                name,
                shown(axis, accuracy),
                *(shown(cost, places_of[cost]["cost"] if cost in places_of else None) for cost in COSTS),
                ", ".join(fronts) or NONE,
                *(_gap(places_of.get(cost)) for cost in bounded),
                *(shown(measure, worst[router][measure.name]) for measure in (axis, *COSTS)),
            ]
        )
    expected = "accuracy expected of the widths that ran" if axis.name == "expected_accuracy" else "accuracy"
    notes = [_covered(comparison)] if comparison["hypervolume"] else []
    if any(row["is_marked"] for row in comparison["rows"]):
        notes.append(f"Who leaves more than 1 % unserved ({MARK.strip()}) is unbeaten at nothing, and covers nothing.")
    return Table(head, rows, f"trade-offs: {expected} against costs", notes)


def _covered(comparison: Comparison) -> str:
    shares = [(MEASURES[cost].title, of["share"]) for cost, of in comparison["hypervolume"].items()]
    able = [row["router"] for row in comparison["rows"] if not row["is_marked"]]
    known = [each for each in shares if each[1] is not None]
    return say("results", "covered", known, able, len(comparison["rows"]))


def _gap(row: Mapping[str, Any] | None) -> str:
    return NONE if row is None or row["gap_pct"] is None else f"{number(row['gap_pct'], 0, signed=True)} %"


# ----------------------------------------------------------------------------------------------------- the paper's own

_PAPER_COLUMNS = (
    *(Column("router"), Column("accuracy", "%"), Column("latency", "s (std)"), Column("energy", "J (std)")),
    *(Column("GPU var", "(std)"), Column("images"), Column("latency vs random"), Column("energy vs random")),
)


def paper_table(comparison: Comparison) -> Table:
    """The layout of Tables III to V; under each router that the paper has, what the paper reports."""
    rows: list[Sequence[str]] = []
    for row in comparison["rows"]:
        rows.append(_our_cells(row))
        paper = paper_row(row["router"])
        if paper is not None:
            rows.append(_paper_cells(paper))
    note = "Means over seeds; (std) is over a run's images, of GPU var over its readings. Changes are seed by seed."
    return Table(_PAPER_COLUMNS, rows, "the paper's tables", [note])


def _our_cells(row: Mapping[str, Any]) -> list[str]:
    def spread(key: str, digits: int) -> str:
        return _with_std(row[key]["mean"]["mean"], row[key]["std"]["mean"], digits)

    cells = [_name(row), number(row["accuracy"]["mean"], 2, 100), spread("latency_s", 3), spread("energy_j", 2)]
    cells += [spread("gpu_var", 4), number(row["images"]["completed"]["mean"], 0)]
    return [*cells, _percent(row["latency_change_pct"]["mean"]), _percent(row["energy_change_pct"]["mean"])]


def _paper_cells(paper: PaperRow) -> list[str]:
    cells = [f"  paper, Table {paper.table}", number(paper.accuracy_pct, 2)]
    cells += [_with_std(paper.latency_s, paper.latency_std_s, 3), _with_std(paper.energy_j, paper.energy_std_j, 2)]
    cells += [_with_std(paper.gpu_var, paper.gpu_var_std, 4), number(paper.images, 0)]
    return [*cells, _percent(paper.latency_change_pct), _percent(paper.energy_change_pct)]


def _with_std(mean: float | None, std: float | None, digits: int) -> str:
    return NONE if mean is None else f"{number(mean, digits)} ({number(std, digits)})"


def _percent(value: float | None) -> str:
    return NONE if value is None else f"{number(value, 2, signed=True)} %"
