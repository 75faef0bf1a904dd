"""The results as a page of Markdown: a pure function of what was found. It decides only how things are said."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import mean
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined

from benchmarks.study import ablation, cases, findings
from benchmarks.study.ablation import Tail
from benchmarks.study.cases import FAULTS, GROUPS, LEARNED, MARGIN, MOVING, STATIONARY, TOLD, TUNED, for_promise
from benchmarks.study.faster import faster_table
from benchmarks.study.faster import verdicts as faster_verdicts
from benchmarks.study.findings import (
    CARRIED_PCT,
    ENERGY_OVER_PCT,
    FAULTS_P99_PCT,
    POINTS,
    WORST_PCT,
    Found,
    Made,
    Notes,
    Row,
    Verdict,
    Versus,
    compare_kept,
    compare_windowed,
    covered,
    judge,
    losses,
    lost_images,
    replica_checks,
    searches_in,
)
from benchmarks.study.fronts import front_table
from policies.registry import CONTROLLED, TIDE
from policies.registry import TUNED as TUNED_KINDS
from scenarios.metrics.catalogue import MEASURES
from scenarios.metrics.comparison import compare_results
from scenarios.metrics.served import LIMIT
from scenarios.metrics.signatures import tally, tally_text
from scenarios.metrics.statistics import Estimate, change_pct, estimate
from scenarios.show import numbers
from scenarios.show.comparison import paper_table
from scenarios.show.numbers import NONE, PLUS_MINUS, number, places
from scenarios.show.table import Column, Table, column, columns, to_markdown, to_text
from scenarios.show.words import marked


def results_page(found: Sequence[Found], notes: Notes) -> str:
    """The whole page; `templates/results.md.j2` has its words."""
    main, replicas = [each for each in found if not each.is_paper], [each for each in found if each.is_paper]
    verdicts = {each.name: judge(each) for each in main}
    judged = [(each.name, losses(each, verdicts[each.name])) for each in main if verdicts[each.name].versus is not None]
    environment = Environment(
        loader=PackageLoader("benchmarks.study", "templates"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "markdown": to_markdown,
        "routers": routers_table,
        "checks": checks_table,
        "ablation": ablation_table,
        "tails": tail_table,
        "fronts": front_table,
        "faster": faster_table,
        "faster_verdicts": faster_verdicts,
        "making": making_table,
        "searched": _searched,
        "paper": _paper_text,
        "percent": _percent,
        "ranges": _ranges,
        "signs": _signs,
        "told": lambda facts: ", ".join(f"{name} {value}" for name, value in facts.items()),
    }
    return environment.get_template("results.md.j2").render(
        found=found,
        main=main,
        replicas=replicas,
        verdicts=verdicts,
        counts=list(_counts(main, verdicts.values())),
        summary=summary_table(main, verdicts),
        told=windowed_table(main, TOLD),
        margin=windowed_table(main, MARGIN),
        arrivals=max((len(row["seeds"]) for each in found for row in each.carried), default=0),
        losing={name: worse for name, worse in judged if worse},
        notes=notes,
        tails=ablation.tails(notes.ablation["rows"]) if notes.ablation else [],
        runs=sum(len(row.results) for each in found for row in each.rows),
        cases=cases,
        findings=findings,
        ablation=ablation,
        limit=LIMIT,
    )


# ---------------------------------------------------------------------------------------------------------- in short


_SUMMARY: Final = columns(
    *("scenario", "load", "best rival", "images/s carried, against", "windows kept: Tide, most of others"),
    *("accuracy, points", "p99", "energy", "mean latency", "worst seed, ms: Tide, rival"),
    *("hypervolume: all, without Tide", "holds"),
)
_ASKED: Final = {
    FAULTS: f"a p99 at least {-FAULTS_P99_PCT:.0f} % lower",
    MOVING: f"at least {CARRIED_PCT:.0f} % more images/s at floor and limit, or {POINTS:.1f} points more accuracy",
    STATIONARY: "nothing better",
}


def _counts(main: Sequence[Found], verdicts: Iterable[Verdict]) -> Iterator[str]:
    """In how many scenarios of each kind Tide has what is asked for, and in how many it comes near the bound."""
    by_load: dict[str, list[bool | None]] = {load: [] for load in _ASKED}
    for verdict in verdicts:
        by_load[verdict.load].append(verdict.holds)
    for load, of in by_load.items():
        if of:
            unknown = f", in {of.count(None)} it is open" if None in of else ""
            yield (
                f"- **{load.capitalize()}: in {of.count(True)} of {len(of)} scenarios{unknown}** Tide has what is "
                f"asked for: {_ASKED[load]}, and no figure worse by more than {WORST_PCT:.0f} %."
            )
    yield from _energy_count(main)


def _energy_count(main: Sequence[Found]) -> Iterator[str]:
    """How many come near the bound; no part of a verdict."""
    tides = [tide for found in main if found.load == STATIONARY and (tide := found.row(TIDE)) is not None]
    over = [change_pct(tide.metric("energy_dynamic_j")["mean"], tide.bound_energy_j) for tide in tides]
    known = [change for change in over if change is not None]
    if known:
        near = sum(change <= ENERGY_OVER_PCT for change in known)
        yield (
            f"- **Energy under stationary load: in {near} of {len(known)} scenarios** Tide is at most "
            f"{ENERGY_OVER_PCT:.0f} % above the fluid bound; the least is {min(known):+.0f} %."
        )


def summary_table(main: Sequence[Found], verdicts: Mapping[str, Verdict]) -> Table:
    """A row a scenario: Tide less its best rival."""
    return Table(_SUMMARY, [_summary_cells(each, verdicts[each.name]) for each in main])


def _summary_cells(found: Found, verdict: Verdict) -> list[str]:
    link = f"[{found.name}](#{found.name})"
    volumes = f"{number(covered(found), 3)}, {number(covered(found, without=TIDE), 3)}"
    carried = NONE if verdict.carried is None else f"{_percent(verdict.carried.change)}, {verdict.carried.rival}"
    if verdict.versus is None:
        return [link, found.load, NONE, carried, *[NONE] * 6, volumes, f"? {verdict.reasons[0]}"]
    versus, tide, rival = verdict.versus, found.row(TIDE), found.row(verdict.versus.rival)
    assert tide is not None
    assert rival is not None
    most = None if verdict.kept is None else found.row(verdict.kept.rival)
    kept = NONE if most is None else f"{_kept(tide)}, {_kept(most)} {most.label}"
    worst = ", ".join(_ms(row.highest("latency_mean_s")) for row in (tide, rival))
    changes = [_percent(change) for change in (versus.p99, versus.energy, versus.mean)]
    holds = "open" if verdict.holds is None else _yes(verdict.holds)
    return [link, found.load, versus.rival, carried, kept, f"{versus.points:+.3f}", *changes, worst, volumes, holds]


_AGAINST: Final = (
    *("Tide against", "windows, points", "accuracy, points", "p99", "energy", "mean latency"),
    "Tide's windows against the most as tuned, points",
)


def windowed_table(main: Sequence[Found], group: str) -> Table:
    """A row a scenario: those of a group of `cases.WINDOWED`, which are made for what is promised."""
    kinds = CONTROLLED if group == TOLD else TUNED_KINDS
    head = ("scenario", f"windows kept, %: {', '.join(kinds)}", "accuracy, %", "p99, ms", *_AGAINST)
    found = [(each, versus) for each in main if (versus := compare_windowed(each, group)) is not None]
    return Table(columns(*head), [_windowed_cells(each, versus, kinds, group) for each, versus in found])


def _windowed_cells(found: Found, versus: Versus, kinds: Sequence[str], group: str) -> list[str]:
    rows = [found.row(for_promise(kind, group)) for kind in kinds]

    def each(name: str, digits: int, scale: float) -> str:
        texts = [NONE if row is None else number(row.metric(name)["mean"], digits, scale) for row in rows]
        return ", ".join(marked(text, row is not None and row.is_marked) for text, row in zip(texts, rows, strict=True))

    figures = [each("kept_share", 1, 100), each("expected_accuracy", 2, 100), each("latency_p99_s", 1, 1000)]
    changes = [_percent(change) for change in (versus.p99, versus.energy, versus.mean)]
    kept = numbers.change(versus.kept, unit="").replace(PLUS_MINUS, " ± ")
    link = f"[{found.name}](#{found.name})"
    cells = [link, *figures, versus.rival.partition(",")[0], kept, f"{versus.points:+.3f}", *changes]
    tide = found.row(versus.router)
    most = None if tide is None else compare_kept(tide, found.rows)
    if most is None:
        return [*cells, NONE]
    return [*cells, f"{numbers.change(most.change, unit='').replace(PLUS_MINUS, ' ± ')}, {most.rival}"]


def _kept(row: Row) -> str:
    measure = MEASURES["kept_share"]
    return f"{number(row.metric(measure.name)['mean'], measure.digits, measure.scale)} {measure.unit}"


# --------------------------------------------------------------------------------------------------- the main scenarios

_COLUMNS: Final = (
    Column("router"),
    *columns("carried, images/s"),
    column(MEASURES["kept_share"]),
    column(MEASURES["latency_p99_s"]),
    column(MEASURES["expected_accuracy"], "accuracy"),
    column(MEASURES["accuracy"], "of labels"),
    column(MEASURES["energy_per_image_j"]),
    column(MEASURES["latency_mean_s"], "mean"),
    column(MEASURES["latency_std_s"]),
    column(MEASURES["latency_mean_s"], "worst seed"),
    column(MEASURES["energy_dynamic_j"]),
    *columns("energy over bound", "latency over bound", "lost"),
    column(MEASURES["moves_per_image"]),
)


def routers_table(found: Found) -> Table:
    """A row a router: by group, then the quickest first."""
    ordered = sorted(found.rows, key=lambda row: (GROUPS.index(row.group), row.mean_s is None, row.mean_s or 0.0))
    carried = {row["router"]: row for row in found.carried}
    return Table(_COLUMNS, [_cells(row, carried.get(row.label)) for row in ordered])


def _cells(row: Row, carried: Mapping[str, Any] | None) -> list[str]:
    energy = row.metric("energy_dynamic_j")["mean"]
    lost = [lost_images(result) for result in row.results]
    return [
        marked(f"**{row.label}**" if row.label == TIDE else row.label, row.is_marked),
        _carried(carried),
        number(row.metric("kept_share")["mean"], 1, 100),
        _interval_ms(row.interval("latency_p99_s")),
        number(row.accuracy, 2, 100),
        number(row.metric("accuracy")["mean"], 2, 100),
        number(row.metric("energy_per_image_j")["mean"], None, grouped=True),
        _interval_ms(row.interval("latency_mean_s")),
        _ms(row.metric("latency_std_s")["mean"]),
        _ms(row.highest("latency_mean_s")),
        number(energy, None, grouped=True),
        _over(energy, row.bound_energy_j),
        _over(row.mean_s, row.bound_latency_s),
        str(sum(lost)),
        number(row.metric("moves_per_image")["mean"], 2),
    ]


def _carried(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return NONE
    if "problem" in row:
        return "none"
    found = estimate(row["images_s"])
    accuracy, joules = number(mean(row["accuracies"]), 2, 100), number(mean(row["images_j"]), None)
    text = f"{number(found['mean'], 0, grouped=True)}, at {accuracy} %, {joules} J"
    return f"{text}, told the floor" if row["controls"] else text


# ------------------------------------------------------------------------------------------------- the paper's replica


def _paper_text(found: Found) -> str:
    results = [{**result, "router": row.label} for row in found.rows for result in row.results]
    return to_text([paper_table(compare_results(results))])  # type: ignore[arg-type]


def checks_table(found: Found) -> Table:
    """A row a thing that the replica should reach."""
    rows = [[check.what, check.asked, check.found, _yes(check.holds)] for check in replica_checks(found)]
    return Table(columns("", "asked for", "found", "holds"), rows)


def _signs(row: Row) -> str:
    counts = tally(result.get("signatures") for result in row.results)
    return tally_text(counts, len(row.results)) or "none"


# ------------------------------------------------------------------------------------------- how routers came about


def ablation_table(made: Mapping[str, Any]) -> Table:
    """A row a switch and scenario."""
    rows = []
    for row in made["rows"]:
        if "problem" in row:
            rows.append([row["switch"], row["scenario"], f"failed: {row['problem']}", *[NONE] * 7])
            continue
        seeds = row["seeds"] if isinstance(row["seeds"], int) else len(row["seeds"])
        latencies = (number(row.get(key), None, grouped=True) for key in ("mean_ms", "std_ms", "p99_ms"))
        searches = str(len(row.get("searches", "1")))
        changes = [_change(row[key]) if key in row else NONE for key in ("change_pct", "p99_change_pct")]
        found = [number(row["accuracy"], 2, 100), *latencies, *changes, str(seeds), searches]
        rows.append([marked(row["switch"], row.get("unserved", 0.0) > LIMIT), row["scenario"], *found])
    head = columns("switch", "scenario", "accuracy %", "mean ms", "standard deviation, ms", "p99 ms")
    return Table([*head, *columns("mean, change %", "p99, change %", "seeds", "searches")], rows)


def tail_table(found: Sequence[Tail]) -> Table:
    """A row a weight of the tail."""
    rows = [
        [each.scenario, each.switch, f"{each.weight:g}", f"{each.gain_pct:.1f}", number(each.kept_pct, 0),
         _change(each.variance_pct), _yes(each.holds)]
        for each in found
    ]  # fmt: skip
    head = columns("scenario", "Tide with", "weight of log p99", "mean latency below the ladder's, %")
    return Table([*head, *columns("of the gain without a tail, %", "variance against the ladder's, %", "holds")], rows)


def _change(change: float | Estimate | Mapping[str, Any]) -> str:
    if isinstance(change, int | float):
        return number(change, 1, signed=True)
    return numbers.change(change, unit="")


def making_table(made: Sequence[Made]) -> Table:
    """A row a router's file."""
    head = columns("scenario", "router", "searches", "their decisions", "to set the floor", "in all", "time")
    figures = columns("accuracy %", "mean ms", "p99 ms", "of the searches, ms")
    return Table([*head, *figures, Column("command")], [_made_cells(each) for each in made])


def _made_cells(made: Made) -> list[str]:
    told = made.made_by
    seconds = next((told[key] for key in ("wall_s", "training_s", "seconds") if key in told), None)
    mean_s, p99_s = told.get("latency_mean_s"), told.get("latency_p99_s")
    return [
        made.scenario,
        f"[{made.label}](../scenarios/{made.file})",
        _searches_text(told),
        number(told.get("decisions"), 0, grouped=True),
        number(told.get("level_decisions"), 0, grouped=True),
        number(told.get("decisions_in_all"), 0, grouped=True),
        NONE if seconds is None else f"{seconds:.0f} s",
        number(told.get("accuracy"), 3, 100),
        _ms(mean_s),
        _ms(p99_s),
        ", ".join(_ms(each["mean_s"]) for each in searches_in(told)) or NONE,
        f"`{told['command']}`" if "command" in told else "not told",
    ]


def _searches_text(told: Mapping[str, Any]) -> str:
    """A file that says nothing of searches is of one; what was trained, or looked at whole, is of none."""
    if "command" not in told or not told["command"].startswith("slimsched tune"):
        return NONE
    count = told.get("searches", 1)
    return str(count) if count > 1 else "one search" if count else "all there is"


def _searched(found: Found) -> str:
    """Which routers' intervals hold the spread of searches, and which can't."""
    several = [row.label for row in found.rows if len(row.searches) > 1]
    single = [row.label for row in found.rows if row.group in (LEARNED, TUNED) and len(row.searches) == 1]
    parts = [f"intervals of {', '.join(several)} hold the spread of searches"] if several else []
    parts += [f"one search: {', '.join(single)}"] if single else []
    return f"{'; '.join(parts)}." if parts else ""


# --------------------------------------------------------------------------------------------------------------- words


def _ms(value_s: float | None) -> str:
    return number(value_s, None, 1000, grouped=True)


def _interval_ms(found: Estimate) -> str:
    """Digits to the second one of the interval that counts."""
    mean, half = found["mean"], found["ci95"]
    if mean is None or not half:
        return _ms(mean)
    digits = min(3, places(1000 * half, 2))
    return PLUS_MINUS.join(number(value, digits, 1000, grouped=True) for value in (mean, half))


def _percent(change: Estimate | Mapping[str, Any]) -> str:
    return numbers.change(change).replace(PLUS_MINUS, " ± ")


def _over(value: float | None, bound: float | None) -> str:
    change = change_pct(value, bound)
    return NONE if change is None else f"{change:+.0f} %" if change < 1000 else f"{1 + change / 100:,.0f} times"


def _yes(holds: bool | None) -> str:
    return "?" if holds is None else "**yes**" if holds else "no"


def _ranges(seeds: Sequence[int]) -> str:
    """`0-9, 12`."""
    runs: list[list[int]] = []
    for seed in sorted(seeds):
        if runs and seed == runs[-1][-1] + 1:
            runs[-1].append(seed)
        else:
            runs.append([seed])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
