"""A comparison and the suite as tables, with changes seed by seed and trade-offs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from policies.router_kinds import COMPASS
from scenarios.metrics.metric_catalogue import COMPARED, COSTS, MEASURES, Measure
from scenarios.metrics.result_documents import Case, Equal, Figure, SuiteScore
from scenarios.metrics.router_comparison import ComparisonDocument, accuracy_measure
from scenarios.metrics.statistics import PairedRatio
from scenarios.show.result_words import (
    decisions_text,
    flagged,
    provenance,
    served_measures,
    served_of,
    signature_lines,
    slo_measures,
    unserved_lines,
)
from scenarios.show.tables import NONE, Cell, Column, Table, column, columns, number, ratio_change, share
from scenarios.show.wording import lines_of
from sim.device_profile import origin_of

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
    header = [Column("router"), *(column(measure, measure.title, _origin(measure, comparison)) for measure in measures)]
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
        [*header, *changes_head, *fronts_head],
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
    cells = {
        row["router"]: [ratio_change(row[measure.name]["ratio"]) for measure in measures] for row in paired["rows"]
    }
    return columns(*_CHANGES), cells


def _fronts(comparison: ComparisonDocument) -> tuple[list[Column], dict[str, list[Cell]]]:
    """Return at which costs no other router is as accurate for less, and how far a cost is above its known bound."""
    pareto, cells = comparison["pareto"], dict[str, list[Cell]]()
    positions = {cost: {row["router"]: row for row in pareto["fronts"][cost.name]} for cost in COSTS}
    bounded = [cost for cost in COSTS if pareto["bounds"].get(cost.name)]
    for row in comparison["rows"]:
        positions_of = {cost: of[row["router"]] for cost, of in positions.items() if row["router"] in of}
        unbeaten = ", ".join(cost.header for cost, position in positions_of.items() if position["on_front"])
        gaps = [positions_of[cost]["gap_pct"] if cost in positions_of else None for cost in bounded]
        cells[row["router"]] = [unbeaten or NONE, *gaps]
    meaning = "The costs at which no other router is as accurate for less."
    header = [Column("unbeaten at", is_text=True, meaning=meaning)]
    return [*header, *(Column(f"{cost.header} over bound", "%", 0, signed=True) for cost in bounded)], cells


_MEAN = "mean / p99 latency, in ms"
FAR = 0.0005  # a larger excess over the case's accuracy is reported: a dial of few steps comes no nearer


def suite_table(score: SuiteScore, entrant: str) -> Table:
    """Return a row a case: the bound, the two rivals, the entrant, and its p99 against theirs."""
    rules = [name for name in score.published if name != COMPASS]
    rivals = [name for name in (COMPASS, "") if name != entrant]  # "": the best published rule of the case
    header = [Column("case"), Column("accuracy", "%", 2, 100), Column("bound", "ms", None, 1e3)]
    header += [Column(name or "best rule", "ms", is_text=True, meaning=_MEAN) for name in rivals]
    header += [Column(entrant, "ms", is_text=True, meaning=_MEAN)]
    header += [Column(f"p99 against {name or 'best rule'}", "%", is_text=True) for name in rivals]
    rows = []
    for case in score.cases:
        opponents = [name or case.best(rules) or "" for name in rivals]
        equal = case.routers[entrant]
        rows.append([
            case.name,
            equal.mean("accuracy"),
            case.bound_s,
            *(_figures(case, name, is_named=not rival) for name, rival in zip(opponents, rivals, strict=True)),
            _figures(case, entrant),
            *(_change(equal, case.routers.get(name)) for name in opponents),
        ])  # fmt: skip
    return Table(
        header, rows, f"{entrant}: latencies at equal accuracy, simulated", list(_notes(score, entrant, rules))
    )


def _figures(case: Case, name: str, *, is_named: bool = False) -> str:
    equal = case.routers.get(name)
    if equal is None:
        return NONE
    text = f"{number(1e3 * equal.mean('mean_s'), None)} / {number(1e3 * equal.mean('p99_s'), None)}"
    if not equal.counts:
        text += f" ({_why_not(equal)})"
    elif equal.mean("accuracy") > case.floor + FAR:
        text += f" (at {number(100 * equal.mean('accuracy'), 2)} %)"
    return f"{text} ({name})" if is_named else text


def _why_not(equal: Equal) -> str:
    if equal.is_kept:
        return f"{share(equal.mean('unserved'))} unserved"
    return f"{number(100 * equal.mean('accuracy'), 4)} %" + ("" if equal.by is not None else ", no dial")


def _change(equal: Equal, opponent: Equal | None) -> str:
    return ratio_change(equal.against(opponent, "p99_s")) if opponent and equal.counts and opponent.counts else NONE


def _notes(score: SuiteScore, entrant: str, rules: Sequence[str]) -> Iterator[str]:
    figures: dict[Figure, str] = {"p99_s": "p99", "mean_s": "mean latency"}
    for figure, called in figures.items():
        for rival in (COMPASS, ""):
            if rival != entrant and (changes := list(ratios(score, entrant, rival, rules, figure))):
                yield f"{called} against {rival or 'the best published rule'}: {counts_text(changes)}"
    out = [case.name for case in score.cases if not case.routers[entrant].counts]
    if out:
        yield f"not compared, as it misses the floor or leaves images unserved: {', '.join(out)}"


def ratios(score: SuiteScore, entrant: str, rival: str, rules: Sequence[str], figure: Figure) -> Iterator[PairedRatio]:
    """Yield ratios of the cases in which both may be compared; `rival`: empty for the rule that is best in each."""
    for case in score.cases:
        opponent = case.routers.get(rival or case.best(rules, figure) or "")
        if opponent is not None and opponent.counts and case.routers[entrant].counts:
            yield case.routers[entrant].against(opponent, figure)


def counts_text(paired: Sequence[PairedRatio]) -> str:
    """Describe the median change, and in how many cases a router is ahead or behind for certain."""
    changes = [100 * ((each["ratio"] or 1.0) - 1.0) for each in paired]
    behind = sum(1 for each in paired if each["differs"] and (each["ratio"] or 1.0) > 1.0)
    ahead = sum(1 for each in paired if each["differs"] and (each["ratio"] or 1.0) < 1.0)
    text = f"median {median(changes):+.1f} % ({min(changes):+.0f} to {max(changes):+.0f})"
    return f"behind for certain in {behind} of {len(paired)} cases, ahead in {ahead}; {text}"
