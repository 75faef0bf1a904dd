"""What an operator is told: of a change, of what a cluster carries, of a log's own waits, of tuned numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from jobs.resampling import Interval, chance_explains, chance_text
from jobs.room_for import Limit, Tried
from scenarios.show.numbers import number
from scenarios.show.table import Column, Table, columns, to_text
from scenarios.terminal.screen import screen_width
from slimsched.jobs.comparison_tables import OF_THE_TIME, coverage_notes, interval_text, share_interval
from slimsched.jobs.tables import share_text, time_text, unit_of

REQUESTED: Final = "fifo-easy-requested"  # nearest to what most clusters run
_MANY: Final = 10.0
_ONE_LOG: Final = "  This is of this one log; other weeks may need more."


def signed_time(time_s: float) -> str:
    """A difference of times."""
    unit_s, unit = unit_of(time_s)
    return f"{time_s / unit_s:+.1f} {unit}"


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
        f"GPUs {before:,} -> {after:,}, load {load_now:.2f} -> {load_then:.2f}"
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
    said = f"{found['policy']}, {found['jobs']:,} jobs with a recorded wait, load {found['load']:.2f}"
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
    if found["load"] > 1 and share["value"] > 0:
        cause = (
            f"the load is {found['load']:.2f}, more work than the GPUs can do, so simulated queues grow; the log's "
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
