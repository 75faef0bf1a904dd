"""What `slimsched jobs` says on a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from jobs.importing import Imported
from jobs.tally import Count
from scenarios.show.numbers import NONE, number
from scenarios.show.table import Column, Table, columns, to_text
from scenarios.terminal.screen import screen_width

MOST_ROWS: Final = 12
MINUTE_S, HOUR_S, DAY_S = 60.0, 3600.0, 86400.0


def imported_text(found: Imported, log: Path, out: Path) -> str:
    """What was read, left out and noted, and where the trace is."""
    tally = found.tally
    kind = f"{found.format}{' (told by its first lines)' if found.is_told else ''}"
    since = "" if found.start is None else f" from {found.start}"
    read = f"{tally.rows:,} rows, {_jobs(found.jobs)} in {found.days:.1f} days{since}"
    head = f"{log.name}: {kind}\n{read}; median run {time_text(found.run_p50_s)}\ntrace: {out}"
    parts: list[Table | str] = [head]
    if tally.left_out:
        parts.append(_counts("left out", tally.left_out))
    if tally.noted:
        parts.append(_counts("kept, but", tally.noted))
    parts += [f"note: {text}" for text in tally.told]
    return to_text(parts, screen_width())


def _counts(head: str, found: Mapping[str, Count]) -> Table:
    rows = [[reason, f"{count.rows:,}", f"{count.first_line:,}"] for reason, count in found.items()]
    return Table(columns(head, "rows", "first line"), rows)


def summary_text(found: Mapping[str, Any], name: str) -> str:
    """A trace in tables."""
    groups = [
        _groups(found[key], title)
        for key, title in (("users", "user"), ("vcs", "vc"), ("gpu_types", "GPU type"), ("statuses", "status"))
    ]
    parts: list[Table | str] = [
        _head(found, name),
        _spreads(found),
        _sizes(found["sizes"]),
        *filter(None, groups),
        _prediction(found["prediction"]),
    ]
    return to_text(parts, screen_width())


def _head(found: Mapping[str, Any], name: str) -> str:
    load, start = found["load"], found["provenance"].get("start")
    since = "" if start is None else f" from {start}"
    lines = [
        f"{name}: {_jobs(found['jobs'])} in {found['days']:.1f} days{since}",
        f"work: {found['gpu_hours']:,.0f} GPU-hours",
        f"busy GPUs on average: {number(load['busy_gpus'], 1, grouped=True)}",
    ]
    if load["gpus"] is not None:
        lines[2] += f", {share_text(load['load'])} of {load['gpus']:,}"
    if load["days_above_capacity_share"] is not None:
        lines.append(
            f"days on which more was submitted than they can do: {share_text(load['days_above_capacity_share'])}"
        )
    lines.append(f"begun more than once: {share_text(found['more_than_one_attempt_share'])} of the jobs")
    return "\n".join(lines)


def _spreads(found: Mapping[str, Any]) -> Table:
    """Quantiles of run times, waits and the load by day."""
    waits, load = found["recorded_waits"], found["load"]["days_quantiles"]
    rows = [["run time", *_times(found["durations"])]]
    if waits["mean_s"] is not None:
        rows.append([f"recorded wait ({share_text(waits['known_share'])} known)", *_times(waits)])
    if load is not None:
        rows.append(["busy GPUs by day", NONE, NONE, *(number(value, 1, grouped=True) for value in load.values())])
    names = list(found["durations"]["quantiles_s"])
    return Table(
        columns("", "mean", "C^2", *names),
        rows,
        notes=["C^2 is the variance over the squared mean: 1 for exponential times."],
    )


def _times(of: Mapping[str, Any]) -> list[str]:
    return [time_text(of["mean_s"]), number(of["cv2"], 1), *map(time_text, of["quantiles_s"].values())]


def unit_of(value_s: float) -> tuple[float, str]:
    """The unit that a time reads best in: its seconds, and its name."""
    known = ((DAY_S, "d"), (HOUR_S, "h"), (MINUTE_S, "min"))
    return next(((unit_s, unit) for unit_s, unit in known if abs(value_s) >= 2 * unit_s), (1.0, "s"))


def time_text(value_s: float | None) -> str:
    """In the unit that reads best; `-` for none."""
    if value_s is None:
        return NONE
    unit_s, unit = unit_of(value_s)
    return f"{value_s / unit_s:.1f} {unit}"


def _sizes(found: Sequence[Mapping[str, Any]]) -> Table:
    """By GPUs; where there are many sizes, those with most GPU time."""
    largest = sorted(found, key=lambda each: -each["gpu_time_share"])[:MOST_ROWS]
    jobs = sum(each["jobs"] for each in found)
    rows = [
        [
            f"{each['gpus']:,}",
            f"{each['jobs']:,}",
            share_text(each["jobs"] / jobs),
            share_text(each["gpu_time_share"]),
            time_text(each["run_mean_s"]),
            time_text(each["run_p50_s"]),
        ]
        for each in sorted(largest, key=lambda each: each["gpus"])
    ]
    heads = ("GPUs", "jobs", "share of jobs", "of GPU time", "mean run", "median run")
    return Table(columns(*heads), rows, notes=_more(found, "sizes"))


def _groups(found: Sequence[Mapping[str, Any]], head: str) -> Table | None:
    """None where all jobs have one text, and it says nothing."""
    if len(found) == 1 and found[0]["name"] in ("", "unknown"):
        return None
    rows = [
        [each["name"] or "(none)", f"{each['jobs']:,}", share_text(each["gpu_time_share"])]
        for each in found[:MOST_ROWS]
    ]
    return Table(columns(head, "jobs", "of GPU time"), rows, notes=_more(found, "more with less"))


def _more(found: Sequence[Mapping[str, Any]], what: str) -> list[str]:
    return [f"And {len(found) - MOST_ROWS:,} {what}."] if len(found) > MOST_ROWS else []


def _prediction(found: Sequence[Mapping[str, Any]]) -> Table:
    rows = [
        [
            each["name"],
            share_text(each["known_share"]),
            number(each["factor_median"], 2),
            number(each["factor_p90"], 2),
            share_text(each["within_two"]),
        ]
        for each in found
    ]
    note = (
        "A factor is exp|log estimate - log truth|. History is honest: it knows only jobs that had ended when the "
        "predicted one was submitted."
    )
    heads = [Column("predicted by"), *columns("jobs with one", "median factor", "p90 factor", "within a factor of 2")]
    return Table(heads, rows, notes=[note])


def _jobs(count: int) -> str:
    return f"{count:,} job{'' if count == 1 else 's'}"


def share_text(value: float | None) -> str:
    """In percent; `-` for none."""
    return NONE if value is None else f"{number(value, 1, 100)} %"
