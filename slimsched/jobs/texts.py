"""What `slimsched jobs` prints on a terminal: tables and sentences of documents.

The columns of tables are in `templates/tables.yaml`, the sentences in `templates/sentences.j2`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, partial
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, PackageLoader

from jobs.job_records import NEAR, NEAR_MEAN, chance_explains
from jobs.logs.log_import import Imported
from kit import strict
from kit.documents import read_text
from scenarios.show.answers import TRUSTED
from scenarios.show.tables import NONE, Answer, Column, Table, columns, number, to_text
from scenarios.show.wording import environment

Row = Mapping[str, Any]
TABLES: Final = Path(__file__).parent / "templates" / "tables.yaml"
MAX_ROWS: Final = 12
MINUTE_S: Final = 60.0
HOUR_S: Final = 3600.0
DAY_S: Final = 86400.0
HEAVY_CV2: Final = (
    4.0  # from here on, and of shorter logs than this, intervals hold the truth less often (docs/jobs.md)
)
FEW_DAYS: Final = 28.0


# ---------------------------------------------------------------------------------------------------- cells, sentences


def unit_of(value_s: float) -> tuple[float, str]:
    """Return the unit that a time reads best in: its seconds, and its name."""
    units = ((DAY_S, "d"), (HOUR_S, "h"), (MINUTE_S, "min"))
    return next(((unit_s, unit) for unit_s, unit in units if abs(value_s) >= 2 * unit_s), (1.0, "s"))


def time_text(value_s: float | None, sign: str = "") -> str:
    """Format a time in the unit that reads best; `-` for none."""
    if value_s is None:
        return NONE
    unit_s, unit = unit_of(value_s)
    return f"{value_s / unit_s:{sign}.1f} {unit}"


def share_text(value: float | None) -> str:
    """Format a share in percent; `-` for none."""
    return NONE if value is None else f"{number(value, 1, 100)} %"


def interval_text(interval: Row) -> str:
    """Format an interval's ends, in the unit of the value between."""
    if interval["low"] is None:
        return NONE
    unit_s, unit = unit_of(interval["value"])
    return f"{interval['low'] / unit_s:.1f} to {interval['high'] / unit_s:.1f} {unit}"


def share_interval(change: Row) -> str:
    """Format a change in percent with its interval."""
    value, low, high = (_percent(change[key]) for key in ("value", "low", "high"))
    return NONE if change["value"] is None else f"{value} % ({low} to {high})"


_percent = partial(number, digits=1, scale=100, signed=True)
_count = "{:,}".format
_decimal = partial(number, digits=2)
_grouped = partial(number, digits=1, grouped=True)


def _band(ends: Sequence[float]) -> str:
    return f"{time_text(ends[0])} to {time_text(ends[1])}"


@cache
def _templates() -> Environment:
    templates: Environment = environment().overlay(loader=PackageLoader("slimsched.jobs", "templates"))
    templates.filters = templates.filters | {
        "time": time_text,
        "signed_time": partial(time_text, sign="+"),
        "share": share_text,
        "percent": _percent,
        "interval": interval_text,
        "share_interval": share_interval,
        "band": _band,
        "share_band": lambda ends: f"{_percent(ends[0])} to {_percent(ends[1])} %",
        "kind": lambda is_preemptive: "may preempt" if is_preemptive else "does not preempt",
        "thousands": _count,
        "jobs": lambda count: f"{count:,} job{'' if count == 1 else 's'}",
        "times": lambda share: number(None if share is None else share + 1, None, grouped=True),
    }
    templates.tests = templates.tests | {"chance": chance_explains}
    templates.globals = {**templates.globals, "inf": float("inf"), "NEAR": NEAR, "NEAR_MEAN": NEAR_MEAN}
    return templates


def say(macro: str, *facts: Any) -> str:
    """Return what a macro of the sentences makes of some facts."""
    template = getattr(_templates().get_template("sentences.j2").module, macro)
    lines = (" ".join(line.split()) for line in str(template(*facts)).split("¶"))
    return "\n".join(re.sub(r" (?=[,.;:)]+(?: |$))|(?<=\() ", "", line) for line in lines if line)


@cache
def _columns(table: str) -> dict[str, Any]:
    """Return, by head, what a row has there, as a function of the row's facts."""
    cells = strict.mapping(read_text(TABLES), "tables.yaml")[table]
    return {header: _templates().compile_expression(cell, undefined_to_none=False) for header, cell in cells.items()}


def _table(name: str, rows: Iterable[Row], title: str = "", notes: Iterable[str] = (), **heads: str) -> Table:
    """Return a table of rows; empty notes are left out.

    Args:
        heads: values of the braces in its heads.
    """
    cells = _columns(name)
    written = [[str(cell(row)) for cell in cells.values()] for row in rows]
    shown = columns(*(header.format(**heads).rstrip() for header in cells))
    return Table(shown, written, title=title, notes=list(filter(None, notes)))


def _first(rows: Sequence[Any], what: str) -> list[str]:
    """Return the note below the first rows of many."""
    return [f"And {len(rows) - MAX_ROWS:,} {what}."] if len(rows) > MAX_ROWS else []


# ------------------------------------------------------------------------------------------------------------- a trace


def imported_text(imported: Imported, log: Path, out: Path) -> str:
    """Describe what was read, left out and noted, and the trace's path."""
    stats = imported.stats
    reasons = [
        _table("reasons", rows, header=header)
        for header, rows in zip(
            ("left out", "kept, but"), itemgetter("left_out", "noted")(stats.document()), strict=True
        )
        if rows
    ]
    return to_text([say("imported", imported, log, out), *reasons, *(f"note: {text}" for text in stats.messages)])


def summary_text(trace: Row, name: str) -> str:
    """Describe a trace in tables."""
    kinds = (("users", "user"), ("vcs", "vc"), ("gpu_types", "GPU type"), ("statuses", "status"))
    groups = [
        _table("groups", trace[key][:MAX_ROWS], notes=_first(trace[key], "more with less"), header=header)
        for key, header in kinds
        if [row["name"] for row in trace[key]] not in ([""], ["unknown"])  # all the same, and uninformative
    ]
    predicted = _table("prediction", trace["prediction"], notes=[say("prediction")])
    return to_text([say("summary", trace, name), _spreads(trace), _sizes(trace["sizes"]), *groups, predicted])


def _spreads(trace: Row) -> Table:
    """Return quantiles of run times, waits and the load by day."""
    waits, load = trace["recorded_waits"], trace["load"]["days_quantiles"]
    rows = [["run time", *_times(trace["durations"])]]
    if waits["mean_s"] is not None:
        rows.append([f"recorded wait ({share_text(waits['known_share'])} known)", *_times(waits)])
    if load is not None:
        rows.append(["busy GPUs by day", NONE, NONE, *map(_grouped, load.values())])
    heads = columns("", "mean", "C^2", *trace["durations"]["quantiles_s"])
    return Table(heads, rows, notes=["C^2 is the variance over the squared mean: 1 for exponential times."])


def _times(spread: Row) -> list[str]:
    return [time_text(spread["mean_s"]), number(spread["cv2"], 1), *map(time_text, spread["quantiles_s"].values())]


def _sizes(sizes: Sequence[Row]) -> Table:
    """Return the sizes by GPUs; if there are many, those with most GPU time."""
    largest = sorted(sizes, key=lambda row: -row["gpu_time_share"])[:MAX_ROWS]
    jobs = sum(row["jobs"] for row in sizes)
    rows = [{**row, "share_of_jobs": row["jobs"] / jobs} for row in sorted(largest, key=lambda row: row["gpus"])]
    return _table("sizes", rows, notes=_first(sizes, "sizes"))


# ------------------------------------------------------------------------------------------------------ runs, policies


def result_text(run: Row) -> str:
    """Describe one run."""
    kinds = (
        ("wait", "wait_s", time_text),
        ("completion time (JCT)", "jct_s", time_text),
        ("bounded slowdown", "slowdown", _decimal),
        ("finish-time fairness", "finish_time_fairness", _decimal),
    )
    rows = [[name, *map(write, run[key].values())] for name, key, write in kinds]
    table = Table(columns("", *run["wait_s"]), rows)
    room, lost = say("room", run, run["bounds"]), say("lost", [run])
    return to_text([say("result_head", run), table, say("result", run), room, lost])


def answers(comparison: Row) -> list[Answer]:
    """Return a comparison document's answers; none without two comparable policies that a scheduler could run."""
    rows = {row["policy"]: row for row in comparison["policies"]}
    if not comparison["least"]:
        return []
    base = rows[comparison["baseline"]]
    best, *staying = (rows[name] for name in comparison["least"])
    least = [say("least", row, base, _alike(comparison, row)) for row in (best, *staying)]
    least[1:] = [f"of those that stop no job: {text}" for text in least[1:]]
    if (guarded := rows.get(comparison.get("guarded"))) is not None and guarded not in (best, *staying):
        least.append(say("guarded", guarded))
    replies = [Answer("Least wait", least)]
    if "against_baseline" in best:
        sizes = [group for group in best["groups"] if group["kind"] == "size"]
        largest = max(sizes, key=_rise_s) if len(sizes) > 1 else None
        replies.append(Answer("Trade-off", [say("pays", best, base, largest)]))
    if room := say("room", best, comparison["bounds"]):
        replies.append(Answer("Bound", [room]))
    waits_s = {name: row["wait_s"]["mean"] for name, row in rows.items() if row["wait_s"]["mean"] is not None}
    believed = Answer(TRUSTED, [say("believed", comparison, base)])
    replies.insert(len(replies) if comparison["baseline_log_error"] is None else 0, believed)
    return [*replies, Answer("In Slurm", [say("in_slurm", row, waits_s) for row in (best, *staying)])]


def _rise_s(group: Row) -> float:
    return float((group["wait_mean_s"] or 0.0) - (group["baseline_wait_mean_s"] or 0.0))


def _alike(comparison: Row, best: Row) -> list[str]:
    """Return policies with longer waits, but not significantly."""
    return [
        row["policy"]
        for row in comparison["policies"]
        if (behind := row["behind"].get(best["policy"])) is not None
        and behind["value"] is not None
        and chance_explains(behind)
        and row["is_preemptive"] <= best["is_preemptive"]
        and "oracle" not in row["policy"]
    ]


def comparison_text(comparison: Row) -> str:
    """Format answers, then all policies in one table, which groups win and lose, and all bounds."""
    tables = [*waits_tables(comparison), *others_tables(comparison)]
    return to_text([answers(comparison), comparison_head(comparison), *tables, say("lost", comparison["policies"])])


def comparison_head(comparison: Row) -> str:
    """Describe what was compared: jobs, cluster, load, and the baseline with its error."""
    rows = comparison["policies"]
    return say("comparison_head", comparison, rows[0]["jobs"]["measured"], max(row["jobs"]["refused"] for row in rows))


def waits_tables(comparison: Row) -> list[Table]:
    """Return waits; how far means hang on single seconds, if that was asked; completion times and slowdowns."""
    tables, baseline = [_waits(comparison)], comparison["baseline"]
    if (jitter := comparison.get("jitter")) is not None:
        notes = [say("jitter", jitter)]
        tables.append(_table("jitter", jitter["policies"], say("jitter_title", jitter), notes, baseline=baseline))
    note = "Slowdown: JCT over run time, of at least 10 s (bounded)."
    return [*tables, _table("slowdowns", comparison["policies"], "Completion times and slowdowns", [note])]


def others_tables(comparison: Row) -> list[Table]:
    """Return the cluster and fairness; which groups of jobs win and lose."""
    cluster = _table("cluster", comparison["policies"], "Cluster and fairness", [say("cluster")])
    return [cluster, *_groups(comparison)]


def in_slurm_table(comparison: Row) -> Table:
    """Return what makes Slurm run each policy, or the nearest."""
    heads = [Column("policy"), Column("in Slurm", is_text=True)]
    rows = [[row["policy"], say("settings", row["slurm"])] for row in comparison["policies"]]
    return Table(heads, rows, notes=[say("slurm_notes")])


def _waits(comparison: Row) -> Table:
    has_oracle = any("oracle" in row["policy"] for row in comparison["policies"])
    notes = [say("intervals", comparison), _coverage(comparison), say("oracle") if has_oracle else ""]
    base = comparison["baseline"]
    table = _table("waits", comparison["policies"], "Waits", notes, baseline=base)
    bounds = [[*row, *[NONE] * 6] for row in _table("least", comparison["bounds"]).rows]
    marks = dict(zip(comparison["least"], ("waits least", "least, stops no job"), strict=False))
    return Table(table.columns, [*table.rows, *bounds], table.title, table.notes, base=base, marks=marks)


def _coverage(document: Row) -> str:
    """Describe when 95 % intervals cover the truth less often, as measured; otherwise empty."""
    return say("coverage", document, document["run_cv2"] > HEAVY_CV2, document["days"] < FEW_DAYS)


def _groups(comparison: Row) -> list[Table]:
    """Return mean waits by size and by virtual cluster, and the shares of jobs that wait less or more than before."""
    base, others = comparison["baseline"], [row for row in comparison["policies"] if "groups" in row]
    tables = []
    for kind, header, title in (("size", "GPUs", "size"), ("vc", "VC", "virtual cluster")):
        by_policy = [{group["name"]: group for group in row["groups"] if group["kind"] == kind} for row in others]
        names = list(by_policy[0]) if by_policy else []
        if names:
            rows = [_group_row(name, by_policy) for name in names[:MAX_ROWS]]
            note = f"Mean wait; in brackets the share of jobs that wait less, and more, than under {base}."
            notes = [note, *_first(names, "more with fewer jobs")]
            heads = columns(header, "jobs", base, *(row["policy"] for row in others))
            tables.append(Table(heads, rows, f"Who wins and who loses, by {title}", notes))
    return tables


def _group_row(name: str, by_policy: Sequence[Mapping[str, Row]]) -> list[str]:
    first = by_policy[0][name]
    cells = [name, _count(first["jobs"]), time_text(first["baseline_wait_mean_s"])]
    for group in (groups.get(name) for groups in by_policy):
        less, more = (number(group[f"{key}_wait_share"], 0, 100) for key in ("less", "more")) if group else ("", "")
        cells.append(f"{time_text(group['wait_mean_s'])} ({less} %, {more} %)" if group else NONE)
    return cells


# ------------------------------------------------------------------------------------------------------------ operators


def bound_text(document: Row) -> str:
    """Describe both bounds, and when GPU time is expensive."""
    return to_text([say("bound_head", document), _table("bounds", document["bounds"], notes=[say("bound")])])


def whatif_text(document: Row, changes: Sequence[str]) -> str:
    """Describe before and after, and the change in one sentence a policy."""
    runs = [
        {"policy": row["policy"], "when": when, **row[when]} for row in document["policies"] for when in ("now", "then")
    ]
    table = _table("whatif", runs, notes=[say("whatif_intervals", document), _coverage(document)])
    return to_text(
        [say("whatif_head", document, changes), table, *(say("changed", row) for row in document["policies"])]
    )


def capacity_text(document: Row) -> str:
    """Describe the largest load, or the fewest nodes, and below it what that means."""
    return say("capacity", document).replace("\n", "\n  ")


def validation_text(document: Row) -> str:
    """Describe the verdict first, then how far all is apart."""
    rows = [[kind, *map(time_text, document[f"{kind}_s"].values())] for kind in ("simulated", "recorded")]
    notes = [say("error", document), say("closeness", document)]
    tables = [Table(columns("wait", *document["simulated_s"]), rows, notes=notes)]
    for kind, header in (("size", "GPUs"), ("vc", "VC")):
        groups = [group for group in document["groups"] if group["kind"] == kind][:MAX_ROWS]
        tables += [_table("near", groups, header=header)] if groups else []
    return to_text([say("validation_head", document), *tables])


def advice_text(document: Row) -> str:
    """Describe what is expected, then the order of jobs, then what was written, or would be."""
    table = [_table("advice", document["jobs"], notes=[say("advice_notes", document)])] if document["jobs"] else []
    commands = [] if "written" in document else document["commands"]
    return to_text([say("advice_head", document), *table, "\n".join(commands), say("advice_end", document)])
