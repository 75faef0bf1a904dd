"""What runs of training jobs and their comparison look like on a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from scenarios.show.answers import box_text
from scenarios.show.numbers import NONE, number
from scenarios.show.table import Column, Table, columns, to_text
from scenarios.terminal.screen import screen_width
from slimsched.jobs.answers import answers, room_for
from slimsched.jobs.tables import share_text, time_text, unit_of

_HEADS: Final = {"size": "GPUs", "vc": "VC"}
_MOST_GROUPS: Final = 12
HEAVY_CV2: Final = 4.0
FEW_DAYS: Final = 28.0
OF_THE_TIME: Final = "Utilization is of the whole time, with the draining at its end."


def result_text(found: Mapping[str, Any]) -> str:
    """One run."""
    rows = [
        ["wait", *map(time_text, found["wait_s"].values())],
        ["completion time (JCT)", *map(time_text, found["jct_s"].values())],
        ["bounded slowdown", *(number(value, 2) for value in found["slowdown"].values())],
        ["finish-time fairness", *(number(value, 2) for value in found["finish_time_fairness"].values())],
    ]
    head = f"{found['scenario']}: {found['policy']}, {_counts(found)}, load {found['load']:.2f}"
    said = (
        f"makespan {time_text(found['makespan_s'])}, utilization {share_text(found['utilization'])}, of which useful "
        f"{share_text(found['goodput_share'])}; {number(found['preemptions_per_job'], 2)} preemptions a job"
    )
    jain = ", ".join(f"{name} {number(found[f'jain_{key}'], 3)}" for key, name in (("users", "users"), ("vcs", "VCs")))
    parts: list[Table | str] = [head, Table(columns("", *found["wait_s"]), rows), f"{said}\nJain's index: {jain}"]
    room = " ".join(room_for(found["bounds"], found))
    return to_text([*parts, *filter(None, [room]), *_lost([found])], screen_width())


def _counts(found: Mapping[str, Any]) -> str:
    jobs = found["jobs"]
    refused = f", {jobs['refused']:,} refused" if jobs["refused"] else ""
    return f"{jobs['measured']:,} jobs measured{refused}"


def _lost(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What figures leave out."""
    late = [f"{row['policy']} {row['jobs']['unfinished']:,}" for row in rows if row["jobs"]["unfinished"]]
    if not late:
        return []
    return [f"Not done when the run was ended, and in no mean, so means look better than they are: {', '.join(late)}."]


# ---------------------------------------------------------------------------------------------------------- comparison


def comparison_text(found: Mapping[str, Any]) -> str:
    """Answers in a box, then all policies beside each other, who wins and who loses, and all bounds."""
    rows = found["policies"]
    refused = max(row["jobs"]["refused"] for row in rows)
    warm = time_text(found["warmup_s"])
    measured = f", {rows[0]['jobs']['measured']:,} measured after a warm-up of {warm}," if found["warmup_s"] else ""
    head = f"{found['scenario']}: {found['jobs']:,} jobs{measured} on {found['gpus']:,} GPUs, load {found['load']:.2f}"
    head += f"; {refused:,} can never fit and are refused" if refused else ""
    tables = [_waits(found), _slowdowns(rows), _cluster(rows), *_groups(found)]
    found_answers = answers(found)
    box = [box_text(found_answers, screen_width())] if found_answers else []
    return to_text([*box, head, *tables, *_lost(rows)], screen_width())


def _waits(found: Mapping[str, Any]) -> Table:
    rows = [
        [
            row["policy"],
            time_text(row["wait_s"]["mean"]),
            interval_text(row["intervals"]["wait_s"]),
            *(time_text(row["wait_s"][key]) for key in ("p50", "p99", "max")),
            share_interval(row["against_baseline"]["wait_s"]["share"]) if "against_baseline" in row else NONE,
            _distance(row["above_bound"]),
        ]
        for row in found["policies"]
    ]
    for bound in found["bounds"]:
        kind = "may preempt" if bound["is_preemptive"] else "does not preempt"
        rows.append([f"bound: who {kind}", f">= {time_text(max(bound['wait_mean_s'], 0.0))}", *[NONE] * 6])
    against = f"against {found['baseline']}"
    heads = ("mean wait", "95 % interval", "median", "p99", "max", against, "JCT above bound")
    notes = [
        f"Intervals: from how blocks of {time_text(found['block_s'])} of submissions differ, paired by job; they say "
        "what other weeks of this cluster might give, and nothing of other clusters. Figures without "
        "an interval have none known."
    ]
    notes += coverage_notes(found["days"], found["run_cv2"])
    if any("oracle" in row["policy"] for row in found["policies"]):
        notes.append("A policy with `oracle` in its name knows true run times: no scheduler does.")
    return Table([Column("policy"), *columns(*heads)], rows, title="Waits", notes=notes)


def coverage_notes(days: float, run_cv2: float) -> list[str]:
    """Where 95 % intervals hold the truth less often, as was measured (docs/jobs.md); nothing elsewhere."""
    reasons = [f"run times are heavy-tailed (C^2 {run_cv2:.1f})"] if run_cv2 > HEAVY_CV2 else []
    reasons += [f"the log has {days:.1f} days"] if days < FEW_DAYS else []
    return (
        [f"These 95 % intervals hold less than they say (docs/jobs.md): {', and '.join(reasons)}."] if reasons else []
    )


def interval_text(found: Mapping[str, Any]) -> str:
    """From where to where, in the unit of the value between."""
    if found["low"] is None:
        return NONE
    unit_s, unit = unit_of(found["value"])
    return f"{found['low'] / unit_s:.1f} to {found['high'] / unit_s:.1f} {unit}"


def share_interval(found: Mapping[str, Any]) -> str:
    """A change in percent with its interval."""
    if found["value"] is None:
        return NONE
    value, low, high = (number(found[key], 1, 100, signed=True) for key in ("value", "low", "high"))
    return f"{value} % ({low} to {high})"


def _distance(above: Mapping[str, float] | None) -> str:
    return NONE if above is None else f"{number(above['jct_share'], 1, 100, signed=True)} %"


def _slowdowns(rows: Sequence[Mapping[str, Any]]) -> Table:
    cells = [
        [
            row["policy"],
            *(time_text(row["jct_s"][key]) for key in ("mean", "p50", "p99", "max")),
            *(number(row["slowdown"][key], 2) for key in ("mean", "p50", "p99", "max")),
        ]
        for row in rows
    ]
    heads = ("mean JCT", "median", "p99", "max", "mean slowdown", "median", "p99", "max")
    note = "Slowdown: JCT over run time, of at least 10 s (bounded)."
    return Table([Column("policy"), *columns(*heads)], cells, title="Completion times and slowdowns", notes=[note])


def _cluster(rows: Sequence[Mapping[str, Any]]) -> Table:
    cells = [
        [
            row["policy"],
            time_text(row["makespan_s"]),
            share_text(row["utilization"]),
            share_text(row["goodput_share"]),
            number(row["preemptions_per_job"], 2),
            number(row["finish_time_fairness"]["mean"], 2),
            share_text(row["above_fair_share"]),
            number(row["jain_users"], 3),
            number(row["jain_vcs"], 3),
        ]
        for row in rows
    ]
    heads = (
        "makespan", "utilization", "useful", "preemptions a job", "mean rho", "rho above 1", "Jain, users", "Jain, VCs",
    )  # fmt: skip
    note = (
        f"{OF_THE_TIME} Useful: of the busy GPU time, what was no restart and was not lost. rho: completion time over "
        "that on an equal share of the cluster (finish-time fairness). Jain: of the mean slowdowns of users, of "
        "VCs; 1 where all fare alike."
    )
    return Table([Column("policy"), *columns(*heads)], cells, title="Cluster and fairness", notes=[note])


def _groups(found: Mapping[str, Any]) -> list[Table]:
    """Mean waits by size and by virtual cluster, and who waits less or more than under the baseline."""
    others = [row for row in found["policies"] if "groups" in row]
    tables = []
    for kind, head in _HEADS.items():
        names = [group["name"] for group in others[0]["groups"] if group["kind"] == kind] if others else []
        if not names:
            continue
        by_policy = [{group["name"]: group for group in row["groups"] if group["kind"] == kind} for row in others]
        rows = [_group_row(name, by_policy) for name in names[:_MOST_GROUPS]]
        heads = ("jobs", found["baseline"], *(row["policy"] for row in others))
        notes = [f"Mean wait; in brackets the share of jobs that wait less, and more, than under {found['baseline']}."]
        notes += [f"And {len(names) - _MOST_GROUPS} more with fewer jobs."] if len(names) > _MOST_GROUPS else []
        title = f"Who wins and who loses, by {'size' if kind == 'size' else 'virtual cluster'}"
        tables.append(Table([Column(head), *columns(*heads)], rows, title=title, notes=notes))
    return tables


def _group_row(name: str, by_policy: Sequence[Mapping[str, Mapping[str, Any]]]) -> list[str]:
    first = next((groups[name] for groups in by_policy if name in groups), None)
    if first is None:
        return [name, "0", NONE, *[NONE] * len(by_policy)]
    cells = [name, f"{first['jobs']:,}", time_text(first["baseline_wait_mean_s"])]
    for groups in by_policy:
        group = groups.get(name)
        cells.append(NONE if group is None else f"{time_text(group['wait_mean_s'])} ({_won(group)})")
    return cells


def _won(group: Mapping[str, Any]) -> str:
    return f"{number(group['less_wait_share'], 0, 100)} %, {number(group['more_wait_share'], 0, 100)} %"


# --------------------------------------------------------------------------------------------------------------- bound


def bound_text(found: Mapping[str, Any]) -> str:
    """Both bounds, and when GPU time is dear."""
    head = f"{found['scenario']}: {found['jobs']:,} jobs on {found['gpus']:,} GPUs, load {found['load']:.2f}"
    rows = [
        [
            "may preempt" if bound["is_preemptive"] else "does not preempt",
            time_text(max(bound["wait_mean_s"], 0.0)),
            time_text(bound["jct_mean_s"]),
            number(bound["price_mean"], 3),
            number(bound["price_max"], 3),
            share_text(bound["free_share"]),
        ]
        for bound in found["bounds"]
    ]
    heads = ("mean wait, at least", "mean JCT, at least", "mean price", "largest", "of the time free")
    note = (
        "No scheduler does better, even one that knows all run times. A price says how many hours of completion time, "
        "over all jobs, one GPU more for one hour would save at that time, by the bound's own reckoning. Nodes are "
        "left out: only GPUs count, so the bound is looser where jobs are large beside a node."
    )
    return to_text([head, Table([Column("who"), *columns(*heads)], rows, notes=[note])], screen_width())
