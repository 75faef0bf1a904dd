"""The suite's table: each entrant next to the bound, Compass and the best published rule, at equal accuracy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from policies.registry import COMPASS
from scenarios.metrics.statistics import PairedRatio
from scenarios.metrics.suite import Case, Equal, Figure, SuiteScore
from scenarios.show.numbers import NONE, number, ratio_change, share
from scenarios.show.table import Column, Table

_MEAN = "mean / p99 latency, in ms"
FAR = 0.0005  # a larger excess over the case's accuracy is reported: a dial of few steps comes no nearer


def suite_table(score: SuiteScore, entrant: str) -> Table:
    """Return a row a case: the bound, the two rivals, the entrant, and its p99 against theirs."""
    rules = [name for name in score.published if name != COMPASS]
    rivals = [name for name in (COMPASS, "") if name != entrant]  # "": the best published rule of the case
    head = [Column("case"), Column("accuracy", "%", 2, 100), Column("bound", "ms", None, 1e3)]
    head += [Column(name or "best rule", "ms", is_text=True, meaning=_MEAN) for name in rivals]
    head += [Column(entrant, "ms", is_text=True, meaning=_MEAN)]
    head += [Column(f"p99 against {name or 'best rule'}", "%", is_text=True) for name in rivals]
    rows = []
    for case in score.cases:
        others = [name or case.best(rules) or "" for name in rivals]
        its = case.routers[entrant]
        rows.append([
            case.name,
            its.mean("accuracy"),
            case.bound_s,
            *(_figures(case, name, is_named=not given) for name, given in zip(others, rivals, strict=True)),
            _figures(case, entrant),
            *(_change(its, case.routers.get(name)) for name in others),
        ])  # fmt: skip
    return Table(head, rows, f"{entrant}: latencies at equal accuracy, simulated", list(_notes(score, entrant, rules)))


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


def _change(its: Equal, other: Equal | None) -> str:
    return ratio_change(its.against(other, "p99_s")) if other and its.counts and other.counts else NONE


def _notes(score: SuiteScore, entrant: str, rules: Sequence[str]) -> Iterator[str]:
    figures: dict[Figure, str] = {"p99_s": "p99", "mean_s": "mean latency"}
    for figure, called in figures.items():
        for rival in (COMPASS, ""):
            if rival != entrant and (found := list(ratios(score, entrant, rival, rules, figure))):
                yield f"{called} against {rival or 'the best published rule'}: {counts_text(found)}"
    out = [case.name for case in score.cases if not case.routers[entrant].counts]
    if out:
        yield f"not compared, as it misses the floor or leaves images unserved: {', '.join(out)}"


def ratios(score: SuiteScore, entrant: str, rival: str, rules: Sequence[str], figure: Figure) -> Iterator[PairedRatio]:
    """Yield ratios of the cases in which both may be compared; `rival`: empty for the rule that is best in each."""
    for case in score.cases:
        other = case.routers.get(rival or case.best(rules, figure) or "")
        if other is not None and other.counts and case.routers[entrant].counts:
            yield case.routers[entrant].against(other, figure)


def counts_text(found: Sequence[PairedRatio]) -> str:
    """Describe the median change, and in how many cases a router is ahead or behind for certain."""
    changes = [100 * ((each["ratio"] or 1.0) - 1.0) for each in found]
    behind = sum(1 for each in found if each["differs"] and (each["ratio"] or 1.0) > 1.0)
    ahead = sum(1 for each in found if each["differs"] and (each["ratio"] or 1.0) < 1.0)
    text = f"median {median(changes):+.1f} % ({min(changes):+.0f} to {max(changes):+.0f})"
    return f"behind for certain in {behind} of {len(found)} cases, ahead in {ahead}; {text}"
