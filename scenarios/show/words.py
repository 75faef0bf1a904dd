"""Sentences about results that more than one table or page has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from hw.networks.accuracy import MEASURED
from policies.faults import PLANNED, WORKER_DIED, WORKER_HUNG
from scenarios.metrics.catalogue import KEPT, SERVED, Measure
from scenarios.metrics.comparison import Comparison
from scenarios.metrics.result import Cpu, Lateness, Restart, Result, Signature, lateness_share
from scenarios.metrics.served import MARK, WHY, Served, leaves_many
from scenarios.metrics.service import Service
from scenarios.metrics.signatures import tally_text
from scenarios.show.numbers import NONE, duration, number, plural, share
from scenarios.show.table import Column, Table
from sim.profile import origin_of

ROUNDING: Final = 1e-9  # of sums of shares


def provenance(of: Result | Comparison) -> str:
    """The weakest origin of the numbers, and the accuracy's where no network was measured."""
    accuracy = of.get("accuracy_provenance", MEASURED)
    origin = origin_of(of["provenance"], of.get("emulated_slowdowns", []))
    return origin if accuracy == MEASURED else f"{origin}; accuracy: {accuracy}"


_ORIGINS: Final[Mapping[str, str]] = {
    "measured": "All of it rests on devices that were measured.",
    "polled": "All of it rests on devices that were measured, some by sensors that are read now and then.",
    "modelled": "Part of it is modelled (power, where no sensor tells it), the rest was measured.",
    "emulated": "Its devices are emulated{slower}: they play profiles.",
    "datasheet": "Its devices come from datasheets: nothing of them was measured.",
}


def provenance_text(of: Comparison) -> str:
    """The same in a sentence or two, for who does not know the words."""
    slowdowns = "/".join(f"{slowdown:g}" for slowdown in of.get("emulated_slowdowns", []))
    slower = f", {slowdowns} times as slow as the real ones" if slowdowns else ""
    told = _ORIGINS[of["provenance"]].format(slower=slower)
    accuracy = of.get("accuracy_provenance", MEASURED)
    return told if accuracy == MEASURED else f"{told} Accuracies are of the {accuracy}, and of no network."


def late_text(of: Lateness) -> str:
    """How late ends were seen, and whether that is too much to tell anything."""
    found = f"ends seen {duration(of['p50'])} late (p50), {duration(of['p99'])} (p99: {share(lateness_share(of))} of"
    return f"{found} a mean pass of {duration(of['mean_pass'])})"


def decisions_text(charged: Mapping[str, float]) -> list[str]:
    """How much longer routers' own decisions take in simulation, as it was measured; nothing where none does."""
    told = ", ".join(f"{router} {number(each_s, 0, 1e6)} us" for router, each_s in charged.items())
    return [f"In simulation a decision takes so much longer than random's, as measured here: {told}."] if told else []


def cpu_text(of: Cpu) -> str:
    """What a run's own processes took of the host."""
    agent = f", an agent {share(of['agent'])}" if of["agent"] else ""
    return f"the router took {share(of['router'])} of a core{agent}; the fullest of their cores {share(of['cores'])}"


def extrapolated(of_time: float) -> str:
    """What a share of extrapolated time means."""
    return f"{share(of_time)} of the time more batches ran at once than were measured together: slow-downs extrapolated"


MOST_UNMETERED: Final = 0.01  # of the time: a run's first moments, before a sensor's second look


def unmetered(of_time: float) -> str:
    """What a share of time without a reading means."""
    return f"for {share(of_time)} of the time a device's sensor told nothing: its energy is too low by about as much"


def marked(name: str, is_marked: bool) -> str:
    """A router's name, with the mark behind it where it leaves too many images unserved."""
    return f"{name}{MARK if is_marked else ''}"


def served_measures(found: Iterable[Served]) -> list[Measure]:
    """The columns that say how much was served: unfinished and failed where there are any; none for old documents."""
    known = [each for each in found if each["completed"] is not None]
    return [each for each in SERVED if known and (each is SERVED[0] or any(each.of({"shares": of}) for of in known))]


def kept_measures(service: Service | None) -> list[Measure]:
    """The columns that say in how much of the time a promise was kept; its two parts where it has two."""
    if service is None or service["floor"] is service["p99_limit_s"] is None:
        return []
    return list(KEPT[:1] if None in (service["floor"], service["p99_limit_s"]) else KEPT)


def promise_text(service: Service) -> str:
    """What was promised, and in which windows it was looked at."""
    floor, limit_s = service["floor"], service["p99_limit_s"]
    parts = [] if floor is None else [f"an accuracy of at least {share(floor)}"]
    parts += [] if limit_s is None else [f"a p99 of at most {duration(limit_s)}" if limit_s else "no limit of the p99"]
    changes = f" (at first; changed {plural(service['changes'], 'time')})" if service.get("changes") else ""
    return f"{' and '.join(parts)}{changes} in each of {service['windows']} windows of {service['window_s']:.3g} s"


def kept_text(result: Result) -> str | None:
    """In how much of a run its promise was kept; None where there is none."""
    service = result.get("service")
    if service is None or not (measures := kept_measures(service)):
        return None
    parts = [
        f"{measure.title.removeprefix('windows that kept ')} in {_of(measure, result)}" for measure in measures[1:]
    ]
    told = f"in {_of(measures[0], result)} of the time: {promise_text(service)}"
    return f"{told} ({', '.join(parts)})" if parts else told


def _of(measure: Measure, result: Result) -> str:
    found = measure.of(result)
    return NONE if found is None else f"{number(found, measure.digits, measure.scale)} %"


def unserved_text(found: Served) -> str:
    """How much was not served, and why."""
    parts = [f"{WHY.get(reason, reason.replace('_', ' '))} {share(of)}" for reason, of in found["failures"].items()]
    if (left := _left(found)) > ROUNDING:
        parts.append(f"left after the drain {share(left)}")
    return f"{share(found['unserved'])} of the images unserved ({', '.join(parts)})"


def _left(found: Served) -> float:
    return (found["unserved"] or 0.0) - (found["failed"] or 0.0)


def unserved_lines(found: Iterable[tuple[str, str, Served]]) -> tuple[list[str], list[str]]:
    """Of (router, where, how much it served): who left few images unserved, and (with what that means) who many."""
    few, many, is_cut = [], [], False
    for name, where, of in found:
        is_cut |= of["unserved"] is not None and (of["unfinished"] or 0.0) > _left(of) + ROUNDING
        if leaves_many(of):
            meaning = "its numbers are of what it served alone, and it is never called the winner"
            many.append(f"{name}{MARK}{where} leaves {unserved_text(of)}: {meaning}.")
        elif of["failed"] or of["unserved"]:
            few.append(f"{name}{where} leaves {unserved_text(of)}.")
    if is_cut:
        few.append("Unfinished images were under way when their run was cut off: they mark nobody.")
    return few, many


def served_of(row: Mapping[str, Any]) -> Served:
    """Of a comparison's row, also of one that is older than shares."""
    shares = {key: each["mean"] for key, each in row["shares"].items()} if "shares" in row else {}
    return Served(
        completed=shares.get("completed"),
        unfinished=shares.get("unfinished"),
        failed=shares.get("failed"),
        unserved=shares.get("unserved"),
        failures=row.get("failures", {}),
    )


def downtime_table(runs: Iterable[tuple[str, Result]], most: int | None = None) -> Table | None:
    """When a server was down, in which run, and why; None where none was.

    Args:
        runs: each with what tells it from the others.
        most: rows that are shown.
    """
    head = [Column("server"), *(Column(name, is_text=True) for name in ("router", "which run", "cause"))]
    rows = [
        [
            restart["server"],
            result["router"],
            run,
            _cause(restart),
            number(restart["down_s"], 2),
            "never" if restart["up_s"] is None else number(restart["up_s"], 2),
        ]
        for run, result in runs
        for restart in result.get("restarts", [])
    ]
    if not rows:
        return None
    more = [] if most is None or len(rows) <= most else [f"And {len(rows) - most} more."]
    return Table([*head, Column("down at", "s"), Column("up at", "s")], rows[:most], "servers that were down", more)


def _cause(restart: Restart) -> str:
    """A stored one may have none."""
    words = {PLANNED: "outage", WORKER_DIED: "worker died", WORKER_HUNG: "worker hung"}
    cause = restart.get("cause", "")
    return f"{words.get(cause, cause or NONE)}{', planned' if restart.get('planned') else ''}"


def signature_texts(found: Sequence[Signature] | None) -> list[str]:
    """Each failure that a run shows, with its reason."""
    return [f"{signature['name']}: {signature['reason']}" for signature in found or ()]


def signature_lines(comparison: Comparison) -> list[str]:
    """Which routers show which failures, in how many of their runs."""
    rows = [row for row in comparison["rows"] if row.get("signatures")]
    return [f"{row['router']} shows {tally_text(row['signatures'], len(row['seeds']))}" for row in rows]
