"""What a comparison of policies for training jobs says in words: who waits least, who pays, how far from the best."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from jobs.resampling import chance_explains, chance_text
from scenarios.show.answers import Answer
from scenarios.show.numbers import number
from slimsched.jobs.tables import share_text, time_text

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
