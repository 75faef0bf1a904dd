"""What a comparison of policies for training jobs says in words: who waits least, who pays, how far from the best."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from scenarios.show.answers import Answer
from scenarios.show.numbers import number
from scenarios.training_jobs.tables import share_text, time_text

LEAST: Final = "Which policy makes users wait least?"
PAYS: Final = "Who pays for it?"
ROOM: Final = "How far is it from the best possible?"
Row = Mapping[str, Any]


def answers(found: Mapping[str, Any]) -> list[Answer]:
    """Of a comparison document; none where no two policies that a scheduler could run stand beside each other.

    A policy that knows true run times (`oracle`), or that left jobs undone, can't be the answer.
    """
    rows = [row for row in found["policies"] if "oracle" not in row["policy"] and not row["jobs"]["unfinished"]]
    if len(rows) < 2:
        return []
    best = min(rows, key=lambda row: float(row["wait_s"]["mean"]))
    told = [Answer(LEAST, " ".join(_least(found, rows, best)))]
    if "against_baseline" in best:
        told.append(Answer(PAYS, " ".join(_pays(found, best))))
    room = " ".join(_room(found, best))
    return [*told, Answer(ROOM, room)] if room else told


def _least(found: Mapping[str, Any], rows: Sequence[Row], best: Row) -> Iterator[str]:
    if "against_baseline" not in best:
        yield f"{best['policy']}, the baseline: {time_text(best['wait_s']['mean'])} in the mean. No other is below it."
        return
    yield _gain(found, best)
    if best["is_preemptive"]:
        yield "It stops running jobs to let others in."
        staying = [row for row in rows if not row["is_preemptive"]]
        second = min(staying, key=lambda row: float(row["wait_s"]["mean"]), default=None)
        if second is not None and "against_baseline" in second:
            yield f"Of those that stop no job: {_gain(found, second)}"


def _gain(found: Mapping[str, Any], row: Row) -> str:
    base = next(each for each in found["policies"] if each["policy"] == found["baseline"])
    waits = f"{row['policy']}, {time_text(row['wait_s']['mean'])} in the mean"
    theirs = f"{base['policy']} has {time_text(base['wait_s']['mean'])}"
    share = row["against_baseline"]["wait_s"]["share"]
    if share["value"] is None:
        return f"{waits}; {theirs}."
    low, high = (number(share[key], 1, 100, signed=True) for key in ("low", "high"))
    chance = ", which chance explains" if share["low"] <= 0 <= share["high"] else ""
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


def _room(found: Mapping[str, Any], best: Row) -> Iterator[str]:
    for bound in found["bounds"]:
        if bound["is_preemptive"] == best["is_preemptive"]:
            whom = "that may stop jobs " if bound["is_preemptive"] else "that stops no job "
            yield f"No policy {whom}can have a mean wait below {time_text(max(bound['wait_mean_s'], 0.0))}."
            if best["above_bound"] is not None:
                share = share_text(best["above_bound"]["jct_share"])
                yield f"Completion times under {best['policy']} are {share} above what none can be below."
