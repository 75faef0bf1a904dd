"""Which requests were not served: the share of arrivals that failed or was left, why, and which routers are flagged.

Latency, accuracy and energy are of completed images alone. A router that serves few of them may look fast, so one that
leaves more than `LIMIT` unserved is never the winner; and a run that completed nothing is an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from scenarios.metrics.result import Result, Shares

LIMIT: Final = 0.01  # of what arrived
CARRIED: Final = 0.9  # of what is offered: a router that completes less meanwhile has a growing queue, drained or not
FLAG: Final = " !"  # behind a flagged router's name


class Served(Shares):
    """Means over runs; null if a run has none. `failures`: shares of what arrived, by reason."""

    failures: dict[str, float]


def served(results: Sequence[Result]) -> Served:
    """Return the mean shares over the runs of one router, all simulated or all on executors."""
    runs: list[Mapping[str, Any]] = [result["shares"] for result in results]
    shares = {key: _mean([run[key] for run in runs]) for key in Shares.__annotations__}
    return cast(Served, {**shares, "failures": _failure_shares(results)})


def _failure_shares(results: Sequence[Result]) -> dict[str, float]:
    """Return the failed shares of what arrived, by reason; the most frequent first."""
    shares: dict[str, float] = {}
    for result in results:
        for reason, count in result["failures"].items():
            shares[reason] = shares.get(reason, 0.0) + count / result["images"]["arrived"] / len(results)
    return dict(sorted(shares.items(), key=lambda found: -found[1]))


def leaves_many(shares: Mapping[str, Any]) -> bool:
    """Return whether more than `LIMIT` was not served: such a router is flagged, and wins nothing."""
    known = [share for share in (shares["unserved"], shares["failed"]) if share is not None]
    return max(known, default=0.0) > LIMIT


def is_saturated(offered_img_s: float | None, completed_img_s: float | None) -> bool:
    """Return whether so much less is completed than arrives that a queue grows; unknown is not."""
    return None not in (offered_img_s, completed_img_s) and (completed_img_s or 0.0) < CARRIED * (offered_img_s or 0.0)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None


def completed_nothing(result: Result) -> bool:
    """Return whether a run completed nothing."""
    return not result["images"]["completed"]
