"""What `slimsched jobs` says on a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from jobs.figures import Interval, chance_explains, chance_text
from jobs.logs.importing import Imported
from jobs.logs.rows import Count
from jobs.operating import Limit, Tried
from scenarios.show.answers import Answer, box_text
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
        parts.append(_reasons("left out", tally.left_out))
    if tally.noted:
        parts.append(_reasons("kept, but", tally.noted))
    parts += [f"note: {text}" for text in tally.told]
    return to_text(parts, screen_width())


def _reasons(head: str, found: Mapping[str, Count]) -> Table:
    rows = [[reason, f"{count.rows:,}", f"{count.first_line:,}"] for reason, count in found.items()]
    return Table(columns(head, "rows", "first line"), rows)


def summary_text(found: Mapping[str, Any], name: str) -> str:
    """A trace in tables."""
    groups = [
        _trace_groups(found[key], title)
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


def _trace_groups(found: Sequence[Mapping[str, Any]], head: str) -> Table | None:
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


# -------------------------------------------------------------------------------------------------------------- answers
# What a comparison of policies for training jobs says in words: who waits least, who pays, how far from the best.


LEAST: Final = "Which policy makes users wait least?"
PAYS: Final = "Who pays for it?"
ROOM: Final = "How far is it from the best possible?"
Row = Mapping[str, Any]


def answers(found: Mapping[str, Any]) -> list[Answer]:
    """Of a comparison document; none where no two policies that a scheduler could run stand beside each other."""
    if not found["least"]:
        return []
    rows = {row["policy"]: row for row in found["policies"]}
    best = rows[found["least"][0]]
    told = [Answer(LEAST, " ".join(_least(found, [rows[name] for name in found["least"]])))]
    if "against_baseline" in best:
        told.append(Answer(PAYS, " ".join(_pays(found, best))))
    room = " ".join(room_for(found["bounds"], best))
    return [*told, Answer(ROOM, room)] if room else told


def _least(found: Mapping[str, Any], least: Sequence[Row]) -> Iterator[str]:
    for row, lead in zip(least, ("", "Of those that stop no job: "), strict=False):
        yield lead + (_gain(found, row) if "against_baseline" in row else _unbeaten(row))
        yield from _alike(found, row)
        if row["is_preemptive"]:
            yield "It stops running jobs to let others in."


def _unbeaten(row: Row) -> str:
    return f"{row['policy']}, the baseline: {time_text(row['wait_s']['mean'])} in the mean. No other is below it."


def _alike(found: Mapping[str, Any], best: Row) -> Iterator[str]:
    """Who waits longer, but by no more than chance explains."""
    names = [
        row["policy"]
        for row in found["policies"]
        if (behind := row["behind"].get(best["policy"])) is not None
        and behind["value"] is not None
        and chance_explains(behind)
        and row["is_preemptive"] <= best["is_preemptive"]
        and "oracle" not in row["policy"]
    ]
    if names:
        yield f"Its lead over {', '.join(names)} may be chance: the interval holds 0."


def _gain(found: Mapping[str, Any], row: Row) -> str:
    base = next(each for each in found["policies"] if each["policy"] == found["baseline"])
    waits = f"{row['policy']}, {time_text(row['wait_s']['mean'])} in the mean"
    theirs = f"{base['policy']} has {time_text(base['wait_s']['mean'])}"
    share = row["against_baseline"]["wait_s"]["share"]
    if share["value"] is None:
        return f"{waits}; {theirs}."
    low, high = (number(share[key], 1, 100, signed=True) for key in ("low", "high"))
    chance = f"; that {chance_text(share)}" if chance_explains(share) else ""
    return f"{waits}; {theirs} ({number(share['value'], 1, 100, signed=True)} %, {low} to {high}{chance})."


def _pays(found: Mapping[str, Any], best: Row) -> Iterator[str]:
    base = next(each for each in found["policies"] if each["policy"] == found["baseline"])
    change = best["against_baseline"]
    if not change["more_wait_share"]:
        yield f"Nobody waits longer than under {base['policy']}."
    else:
        more, less = (share_text(change[key]) for key in ("more_wait_share", "less_wait_share"))
        yield f"{more} of the jobs wait longer than under {base['policy']}, {less} wait less."
        sizes = [group for group in best["groups"] if group["kind"] == "size"]
        if len(sizes) > 1:
            worst = max(sizes, key=lambda group: float(group["more_wait_share"] or 0.0))
            yield f"Jobs of {worst['name']} GPUs pay most: {share_text(worst['more_wait_share'])} of them wait longer."
    longest, theirs = (time_text(row["wait_s"]["max"]) for row in (best, base))
    yield f"The longest wait is {longest}; {base['policy']} has {theirs}."


def room_for(bounds: Sequence[Mapping[str, Any]], best: Row) -> Iterator[str]:
    """What no policy of its kind can be below, and how far it is from there."""
    for bound in bounds:
        if bound["is_preemptive"] == best["is_preemptive"]:
            whom = "that may stop jobs " if bound["is_preemptive"] else "that stops no job "
            yield f"No policy {whom}can have a mean wait below {time_text(max(bound['wait_mean_s'], 0.0))}."
            if best["above_bound"] is not None:
                share = share_text(best["above_bound"]["jct_share"])
                yield f"Completion times under {best['policy']} are {share} above what none can be below."


# ---------------------------------------------------------------------------------------------------- comparison tables
# What runs of training jobs and their comparison look like on a terminal.


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
    head = f"{found['scenario']}: {found['policy']}, {_counts(found)}, load {_load(found['load'])}"
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
    head = (
        f"{found['scenario']}: {found['jobs']:,} jobs{measured} on {found['gpus']:,} GPUs, load {_load(found['load'])}"
    )
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
    head = f"{found['scenario']}: {found['jobs']:,} jobs on {found['gpus']:,} GPUs, load {_load(found['load'])}"
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


# ------------------------------------------------------------------------------------------------------ operator tables
# What an operator is told: of a change, of what a cluster carries, of a log's own waits, of tuned numbers.


REQUESTED: Final = "fifo-easy-requested"  # nearest to what most clusters run
_MANY: Final = 10.0
_ONE_LOG: Final = "  This is of this one log; other weeks may need more."


def signed_time(time_s: float) -> str:
    """A difference of times."""
    unit_s, unit = unit_of(time_s)
    return f"{time_s / unit_s:+.1f} {unit}"


def _load(load: float | None) -> str:
    """A burst, whose jobs come at once, has none."""
    return "-" if load is None else f"{load:.2f}"


def whatif_text(found: Mapping[str, Any], changes: Sequence[str]) -> str:
    """Before and after, and the change in one sentence a policy."""
    rows, said = [], []
    for row in found["policies"]:
        for world in ("now", "then"):
            waits = row[world]["wait_s"]
            used = share_text(row[world]["utilization"])
            rows.append(
                [f"{row['policy']}, {world}", *(time_text(waits[key]) for key in ("mean", "p50", "p99", "max")), used]
            )
        said.append(_sentence(row))
    (before, after), (load_now, load_then) = found["gpus"], found["load"]
    head = (
        f"{found['scenario']}, {found['jobs']:,} jobs; what if {', '.join(changes)}?\n"
        f"GPUs {before:,} -> {after:,}, load {_load(load_now)} -> {_load(load_then)}"
    )
    heads = ("", "mean wait", "median", "p99", "max", "utilization")
    block = time_text(found["policies"][0]["block_s"])
    notes = [
        f"Intervals (95 %) from how blocks of {block} differ, paired by job. {OF_THE_TIME}",
        *coverage_notes(found["days"], found["run_cv2"]),
    ]
    return to_text([head, Table([Column(heads[0]), *columns(*heads[1:])], rows, notes=notes), *said], screen_width())


def _sentence(row: Mapping[str, Any]) -> str:
    change = row["change"]
    wait, less, more = change["wait_s"], change["less_wait_share"], change["more_wait_share"]
    if wait["difference"] is None:
        return f"{row['policy']}: no job was done in both."
    if wait["share"]["value"] is None:
        return f"{row['policy']}: no job waits now; the mean wait changes by {signed_time(wait['difference'])}."
    told = f" That {chance_text(wait['share'])}." if chance_explains(wait["share"]) else ""
    return (
        f"{row['policy']}: the mean wait changes by {share_interval(wait['share'])}, that is "
        f"{signed_time(wait['difference'])}; {share_text(less)} of the jobs wait less, {share_text(more)} more.{told}"
    )


# ------------------------------------------------------------------------------------------------------------ capacity


def limit_text(limit: Limit) -> str:
    """In words."""
    name = "a mean wait" if limit.key == "mean" else f"a {limit.key} of waits"
    return f"{name} of at most {time_text(limit.wait_s)}"


def tried_text(tried: Tried, what: str) -> str:
    """One try."""
    wait = "jobs are not done" if tried.wait_s == float("inf") else time_text(tried.wait_s)
    return f"{what} {tried.value:g}: {wait}"


def load_text(found: Mapping[str, Any], limit: Limit) -> str:
    """The largest load."""
    head = f"{found['scenario']}, {found['policy']}: "
    low, high = found["load_kept"], found["load_broken"]
    if low is None:
        return f"{head}even a load of {high:g} breaks {limit_text(limit)}"
    until = f", not {high:.3g}" if high is not None else ", the largest that was tried"
    factor = low / found["load_now"]
    return (
        f"{head}carries a load of {low:.3g}{until}, at {limit_text(limit)}\n"
        f"  now the load is {found['load_now']:.3g}: {factor:.2f} times as many jobs of this kind fit\n{_ONE_LOG}"
    )


def nodes_text(found: Mapping[str, Any], limit: Limit) -> str:
    """The fewest nodes."""
    return (
        f"{found['scenario']}, {found['policy']}: {found['nodes']:,} nodes of the first group are enough, at "
        f"{limit_text(limit)}; there are {found['nodes_now']:,}\n{_ONE_LOG}"
    )


# ---------------------------------------------------------------------------------------------------------- validation


def validation_text(found: Mapping[str, Any]) -> str:
    """The verdict first, then how far all is apart."""
    simulated, recorded = found["simulated_s"], found["recorded_s"]
    said = f"{found['policy']}, {found['jobs']:,} jobs with a recorded wait, load {_load(found['load'])}"
    head = f"{found['scenario']}: {said}\n{_verdict(found)}"
    rows = [
        ["simulated", *map(time_text, simulated.values())],
        ["recorded", *map(time_text, recorded.values())],
    ]
    notes = [
        f"{_error_text(found['error_share'])}, that is {signed_time(found['error_s'])}.",
        f"Job by job: {share_text(found['near_share'])} within a minute or a factor of 2; "
        f"{share_text(found['only_simulated_share'])} wait in simulation alone, "
        f"{share_text(found['only_recorded_share'])} in the log alone; rank correlation "
        f"{number(found['rank_correlation'], 2)}.",
    ]
    tables = [Table([Column("wait"), *columns(*simulated)], rows, notes=notes)]
    for kind, title in (("size", "GPUs"), ("vc", "VC")):
        cells = [
            [each["name"], f"{each['jobs']:,}", time_text(each["simulated_mean_s"]), time_text(each["recorded_mean_s"])]
            for each in found["groups"]
            if each["kind"] == kind
        ][:12]
        if cells:
            tables.append(Table([Column(title), *columns("jobs", "simulated mean wait", "recorded")], cells))
    return to_text([head, *tables], screen_width())


def _error_text(share: Interval) -> str:
    """From ten times on, how many times as long: a large percentage is hard to read."""
    if share["value"] is None or share["value"] < _MANY - 1:
        return f"Mean error {share_interval(share)}"
    value, low, high = (number(None if end is None else end + 1, None, grouped=True) for end in _ends(share))
    return f"The simulated mean wait is {value} times as long ({low} to {high})"


def _ends(share: Interval) -> tuple[float | None, float | None, float | None]:
    return share["value"], share["low"], share["high"]


def _verdict(found: Mapping[str, Any]) -> str:
    share = found["error_share"]
    if share["value"] is None:
        return "The log's jobs did not wait: nothing can be said of simulated waits."
    if not found["simulated_s"]["max"]:
        return (
            "No simulated job waits: there are always GPUs free. What the log recorded has other causes (start-up, "
            "limits of users, nodes held back), and no policy changes it."
        )
    size = abs(share["value"])
    if size <= 0.2 and found["near_share"] >= 0.8:
        return "The simulation waits as the log did: within a fifth in the mean, and for four jobs of five."
    if (found["load"] or 0) > 1 and share["value"] > 0:
        cause = (
            f"the load is {_load(found['load'])}, more work than the GPUs can do, so simulated queues grow; the log's "
            "cluster has probably more GPUs than the scenario"
        )
        return f"Simulated waits are not the recorded ones: {cause}. Correct cluster.nodes first."
    rules = "its rules, its nodes or what else ran there are not those of the scenario"
    other = "fifo" if found["policy"] == REQUESTED else REQUESTED
    remedy = f"Try the rule that your scheduler uses, such as --policy {other}"
    return f"Simulated waits are not the recorded ones: {rules}. {remedy}, and believe differences with care."


# -------------------------------------------------------------------------------------------------------------- tuning


def is_better(found: Mapping[str, Any]) -> bool:
    """Whether later jobs wait less under the tuned numbers, and by more than chance may explain."""
    wait = found["judged"]["change"]["wait_s"]
    return (wait["difference"] or 0.0) < 0 and not chance_explains(wait["share"])


def tuning_text(found: Mapping[str, Any]) -> str:
    """The numbers, what they came to where they were sought, and what they are worth later."""
    rows = [
        [name, f"{found['own'][name]:g}", f"{value:g}"] for name, value in found["best"].items()
    ]  # the same names in both
    figures = " -> ".join(
        f"{value:,.4g}" if found["key"] == "slowdown" else time_text(value)
        for value in (found["own_figure"], found["best_figure"])
    )
    later = found["judged"]
    wait = later["change"]["wait_s"]
    said = (
        f"On earlier jobs, where it was sought, {found['key']} has a mean of {figures}, after {found['tries']} tries.\n"
        f"On later ones: mean wait {time_text(later['waits_s']['own']['value'])} "
        f"({interval_text(later['waits_s']['own'])}) -> {time_text(later['waits_s']['tuned']['value'])} "
        f"({interval_text(later['waits_s']['tuned'])}), a change of {share_interval(wait['share'])}."
    )
    why = f"That {chance_text(wait['share'])}." if chance_explains(wait["share"]) else "Later jobs wait longer."
    told = "" if is_better(found) else f"{why} Keep the former numbers."
    doubt = "" if is_better(found) else ", which is not better than the former numbers"
    table = Table([Column("number"), *columns("before", "tuned")], rows)
    parts: list[Table | str] = [f"{found['policy']}", table, said, told, f"written: {found['file']}{doubt}"]
    return to_text(filter(None, parts), screen_width())
