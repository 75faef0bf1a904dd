"""Who was not served: how much of what arrived failed or was left, why, and who is marked for it.

Latency, accuracy and energy are of completed images alone. Who serves few of them may look quick, so whoever leaves
more than `LIMIT` unserved is never called the winner; and a run that completed nothing is an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypedDict

from kit.errors import WorkError
from policies.faults import NO_LABEL, OUT_OF_MEMORY
from scenarios.metrics.result import Result, Shares, shares_of

LIMIT: Final = 0.01  # of what arrived
MARK: Final = " !"  # behind a marked router's name
WHY: Final = {  # reasons of failed requests, in words
    "deadline": "shed at the deadline",
    "server_down": "server down",
    "instance_too_large": "instance larger than the memory",
    "no_room": "no room at the server",
    NO_LABEL: "no label",
    OUT_OF_MEMORY: "out of memory",
}
_REMEDIES: Final = {
    "deadline": "give more time (deadline_s), switch shed off, or lower the rate",
    "server_down": "look at restarts in the result, and at faults",
    "instance_too_large": "raise cluster.greedy.vram_cap_gb",
    OUT_OF_MEMORY: "raise cluster.greedy.vram_cap_gb, or look at faults",
}
_SLOW: Final = "lower the rate, or give duration_s more time"


class Served(TypedDict):
    """Means over runs of `Shares`; null where a run has none. `failures`: shares of what arrived, by reason."""

    completed: float | None
    unfinished: float | None
    failed: float | None
    unserved: float | None
    failures: dict[str, float]


def shares_in(result: Result) -> Shares:
    """A result's shares, also of a stored one that is older than they are."""
    return result["shares"] if "shares" in result else shares_of(result["images"], result.get("end"))


def served(results: Sequence[Result]) -> Served:
    """Over runs of one router in one world."""
    found = [shares_in(result) for result in results]
    return Served(
        completed=_mean([each["completed"] for each in found]),
        unfinished=_mean([each["unfinished"] for each in found]),
        failed=_mean([each["failed"] for each in found]),
        unserved=_mean([each["unserved"] for each in found]),
        failures=failure_shares(results),
    )


def failure_shares(results: Sequence[Result]) -> dict[str, float]:
    """Of what arrived, by reason; the most frequent first."""
    shares: dict[str, float] = {}
    for result in results:
        for reason, count in result.get("failures", {}).items():
            shares[reason] = shares.get(reason, 0.0) + count / result["images"]["arrived"] / len(results)
    return dict(sorted(shares.items(), key=lambda found: -found[1]))


def leaves_many(shares: Mapping[str, Any]) -> bool:
    """Whether more than `LIMIT` was not served: such a router, or world, is marked and wins nothing."""
    known = [share for share in (shares["unserved"], shares["failed"]) if share is not None]
    return max(known, default=0.0) > LIMIT


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None


# ----------------------------------------------------------------------------------------------- nothing was completed


def is_barren(result: Result) -> bool:
    """Whether a run completed nothing."""
    return not result["images"]["completed"]


def require_completed(results: Iterable[Result]) -> None:
    """A run that completed nothing says nothing of its router.

    Raises:
        WorkError: there are such runs; it tells what became of their images, and what to do.
    """
    barren: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        if is_barren(result):
            barren.setdefault((result["router"], result["mode"]), []).append(result)
    if barren:
        told = "; ".join(_barren_text(router, mode, runs) for (router, mode), runs in barren.items())
        raise WorkError(f"{told}. Everything else is kept")


def _barren_text(router: str, mode: str, runs: Sequence[Result]) -> str:
    seeds = list(dict.fromkeys(run["seed"] for run in runs))
    of = f"{router!r} completed nothing ({mode}, seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))})"
    arrived = sum(run["images"]["arrived"] for run in runs)
    if not arrived:
        return f"{of}: no image arrived; give duration_s more time, or raise the rate"
    fates: dict[str, int] = {}
    for run in runs:
        for reason, count in (*run["failures"].items(), ("", run["images"]["in_flight"])):
            fates[reason] = fates.get(reason, 0) + count
    words = {"": "unfinished", **WHY}
    told = [f"{count} {words.get(reason, reason)}" for reason, count in fates.items() if count]
    most = max(fates, key=lambda reason: fates[reason])
    remedy = _REMEDIES.get(most) or _remedy_of_unfinished(runs)
    return f"{of}: of {arrived} images {', '.join(told)}; {remedy}"


def _remedy_of_unfinished(runs: Sequence[Result]) -> str:
    lost = {down["server"]: None for run in runs for down in run.get("restarts", []) if down["up_s"] is None}
    if not lost:
        return _SLOW
    return f"{', '.join(map(repr, lost))} went down and never came back: look at restarts in the result, and at faults"
