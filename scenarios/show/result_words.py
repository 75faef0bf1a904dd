"""What more than one table or page states about results and classes of requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from hw.networks.accuracy_table import MEASURED
from kit.errors import WorkError
from policies.faults import PLANNED, WORKER_DIED, WORKER_HUNG
from scenarios.metrics.failure_signs import FLAG, Served, completed_nothing, leaves_many, signature_text
from scenarios.metrics.metric_catalogue import ATTAINMENT, MEASURES, OF_CLASSES, SERVED, Measure
from scenarios.metrics.run_result import Result
from scenarios.metrics.slo import SloDocument
from scenarios.show.tables import NONE, Column, Table, column, number
from scenarios.show.wording import say
from sim.device_profile import origin_of

if TYPE_CHECKING:
    from scenarios.metrics.router_comparison import ComparisonDocument


ROUNDING: Final = 1e-9  # of sums of shares
_CAUSES: Final = {PLANNED: "outage", WORKER_DIED: "worker died", WORKER_HUNG: "worker hung"}


def provenance(of: Result | ComparisonDocument) -> str:
    """Return the weakest origin of the numbers, and the accuracy's if no network was measured."""
    origin = origin_of(of["provenance"], of["emulated_slowdowns"])
    return origin if of["accuracy_provenance"] == MEASURED else f"{origin}; accuracy: {of['accuracy_provenance']}"


def origin_text(comparison: ComparisonDocument) -> str:
    """Return the origin in a sentence or two, for readers new to the terms."""
    slowdowns = "/".join(f"{slowdown:g}" for slowdown in comparison["emulated_slowdowns"])
    return say("results", "origin", comparison["provenance"], slowdowns, comparison["accuracy_provenance"])


def decisions_text(charged: Mapping[str, float]) -> list[str]:
    """Describe how much longer routers' own decisions take in simulation, as measured; nothing if none does."""
    return [say("results", "decisions", charged)] if charged else []


def flagged(name: str, is_flagged: bool) -> str:
    """Return a router's name, with the mark behind it if it leaves too many images unserved."""
    return f"{name}{FLAG if is_flagged else ''}"


def served_measures(served: Iterable[Served]) -> list[Measure]:
    """Return the columns of how much was served: unfinished and failed if there are any."""
    documents = [{"shares": each} for each in served if each["completed"] is not None]
    return [each for each in SERVED if documents and (each is SERVED[0] or any(map(each.of, documents)))]


def slo_measures(slo: SloDocument | None) -> list[Measure]:
    """Return the columns of how much of the time a promise was kept; its two parts if it has two."""
    if slo is None:
        return []
    promised = [slo, *slo.get("classes", {}).values()]
    has_floor, has_limit = (any(each[kind] is not None for each in promised) for kind in ("floor", "p99_limit_s"))
    if not (has_floor or has_limit):
        return []
    return list(ATTAINMENT if has_floor and has_limit else ATTAINMENT[:1])


def slo_text(result: Result) -> str | None:
    """Describe in how much of a run its promise was kept; None if there is none."""
    measures = slo_measures(result["slo"])
    shares = [NONE if measure.of(result) is None else f"{number(measure.of(result), 1, 100)} %" for measure in measures]
    parts = zip((measure.title.removeprefix("SLO attainment, ") for measure in measures[1:]), shares[1:], strict=True)
    return say("results", "attainment", result["slo"], shares[0], list(parts)) if measures else None


def unserved_lines(rows: Iterable[tuple[str, str, Served]]) -> tuple[list[str], list[str]]:
    """Return which routers left few images unserved, and (with the meaning) many; rows are (router, where, share)."""
    few, many = [], []
    is_cut = False
    for name, where, served in rows:
        remaining = (served["unserved"] or 0.0) - (served["failed"] or 0.0)
        is_cut |= served["unserved"] is not None and (served["unfinished"] or 0.0) > remaining + ROUNDING
        is_flagged = leaves_many(served)
        left = remaining if remaining > ROUNDING else None
        text = say("results", "unserved", flagged(name, is_flagged), where, served, left, is_flagged)
        if is_flagged:
            many.append(text)
        elif served["failed"] or served["unserved"]:
            few.append(text)
    if is_cut:
        few.append("Unfinished images were in flight when their run was cut off: they flag no router.")
    return few, many


def require_completed(results: Iterable[Result]) -> None:
    """Check that every run completed something: otherwise it shows nothing of its router.

    Raises:
        WorkError: there are such runs; it reports what happened to their images, and what to do.
    """
    empty_run: dict[tuple[str, str], list[Result]] = {}
    for result in filter(completed_nothing, results):
        empty_run.setdefault((result["router"], result["mode"]), []).append(result)
    if empty_run:
        text = "; ".join(say("results", "empty_run", _fates(runs)) for runs in empty_run.values())
        raise WorkError(f"{text}. Everything else is kept")


def _fates(runs: Sequence[Result]) -> dict[str, Any]:
    """Return what happened to the images of one router's runs."""
    fates: Counter[str] = Counter()
    for run in runs:
        fates.update(run["failures"])
        fates[""] += run["images"]["in_flight"]
    lost = {down["server"]: None for run in runs for down in run["restarts"] if down["up_s"] is None}
    seeds = list(dict.fromkeys(run["seed"] for run in runs))
    arrived = sum(run["images"]["arrived"] for run in runs)
    return {**runs[0], "seeds": seeds, "arrived": arrived, "fates": fates, "lost": list(lost)}


def served_of(row: Mapping[str, Any]) -> Served:
    """Read how much a comparison's row served."""
    shares = {key: each["mean"] for key, each in row["shares"].items()}
    return cast(Served, {**shares, "failures": row["failures"]})


def downtime_table(runs: Iterable[tuple[str, Result]]) -> Table | None:
    """Return when a server was down, in which run (each with what distinguishes it), and why; None if none was."""
    header = [Column("server"), *(Column(name, is_text=True) for name in ("router", "which run", "cause"))]
    header += [Column("down at", "s", 2), Column("up at", "s", 2)]
    rows = [
        [
            restart["server"],
            result["router"],
            run,
            f"{_CAUSES.get(restart['cause'], restart['cause'])}{', planned' if restart['planned'] else ''}",
            restart["down_s"],
            "never" if restart["up_s"] is None else restart["up_s"],
        ]
        for run, result in runs
        for restart in result["restarts"]
    ]
    return Table(header, rows, "servers that were down") if rows else None


def signature_lines(comparison: ComparisonDocument) -> list[str]:
    """Return which routers show which failures, in how many of their runs."""
    rows = [row for row in comparison["rows"] if row["signatures"]]
    return [f"{row['router']} shows {signature_text(row['signatures'], len(row['seeds']))}" for row in rows]


_ACCURACY, _P99 = MEASURES["expected_accuracy"], MEASURES["latency_p99_s"]


def classes_table(
    slo: SloDocument | None, rows: Iterable[tuple[tuple[str, ...], Mapping[str, Any]]], *headers: str, title: str = ""
) -> Table | None:
    """Return a line for each class of each row: the router (under `headers`), its `classes`; None without classes."""
    promised = {} if slo is None else slo.get("classes", {})
    if not promised:
        return None
    columns = [*(Column(header, is_text=True) for header in headers), Column("class", is_text=True)]
    columns += [column(_ACCURACY, "floor"), column(_P99, "p99 limit"), *map(column, OF_CLASSES)]
    cells = [
        [*names, name, promise["floor"], promise["p99_limit_s"], *(each.of(classes[name]) for each in OF_CLASSES)]
        for names, classes in rows
        for name, promise in promised.items()
    ]
    return Table(columns, cells, title)
