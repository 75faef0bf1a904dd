"""What a server does now, by two looks at its `/metrics`."""

from __future__ import annotations

import time  # noqa: TID251 - rates
from collections import Counter, deque
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final

from prometheus_client.parser import text_string_to_metric_families

from hw.door.load import Target
from kit.errors import WorkError

_SPAN_S: Final = 10.0

Numbers = dict[tuple[str, str], float]
"""By a sample's name and the value of its label."""


class Watch:
    """Rates are of the last ten seconds, or since the first look.

    Args:
        server: which is looked at.
        clock_s: seconds that pass.
    """

    def __init__(self, server: Target, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._server = server
        self._clock_s = clock_s
        self._looks: deque[tuple[float, Numbers]] = deque()

    def look(self) -> dict[str, Any]:
        """What there is to see, as `--json` writes it; raises `WorkError` where nobody answers."""
        now_s, now = self._clock_s(), self._numbers()
        while self._looks and self._looks[0][0] < now_s - _SPAN_S:
            self._looks.popleft()
        self._looks.append((now_s, now))
        began_s, before = self._looks[0]
        span_s = max(now_s - began_s, 1e-3)
        since = Counter({key: max(0.0, value - before.get(key, 0.0)) for key, value in now.items()})  # it may be anew

        def rate(name: str) -> float:
            return sum(value for (each, _), value in since.items() if each == f"slimsched_{name}_total") / span_s

        completed = rate("images_completed")
        return {
            "schema": "slimsched.top/1",
            "url": self._server.url,
            "is_ready": now.get(("slimsched_ready", "")) == 1,
            "span_s": span_s,
            "answered_img_s": rate("images_answered"),
            "refused_img_s": rate("images_refused"),
            "failed_img_s": rate("images_failed"),
            "latency_s": {name: _quantile(since, share) for name, share in (("p50", 0.5), ("p99", 0.99))},
            "accuracy": rate("accuracy") / completed if completed else None,
            "goal": {
                "floor": now.get(("slimsched_goal_accuracy", ""), 0.0),
                "p99_s": now.get(("slimsched_goal_p99_seconds", ""), 0.0),
            },
            "inside": int(now.get(("slimsched_images_inside", ""), 0)),
            "queued": int(now.get(("slimsched_images_queued", ""), 0)),
            "router_share": rate("router_busy_seconds"),
            "servers": [
                {
                    "name": name,
                    "is_up": value == 1,
                    "img_s": since["slimsched_server_images_total", name] / span_s,
                    "share": since["slimsched_server_busy_seconds_total", name] / span_s,
                }
                for (each, name), value in now.items()
                if each == "slimsched_server_up"
            ],
        }

    def _numbers(self) -> Numbers:
        try:
            families = [*text_string_to_metric_families(self._server.get("/metrics").decode())]
        except ValueError as error:
            raise WorkError(f"{self._server.url}: these are no metrics ({error})") from None
        return {(s.name, next(iter(s.labels.values()), "")): s.value for family in families for s in family.samples}


def _quantile(since: Counter[tuple[str, str]], share: float) -> float | None:
    """Of the requests that were answered, by the histogram; where a bucket ends is known, and not what is in it."""
    counts = [
        (float(bound), value) for (name, bound), value in since.items() if name == "slimsched_request_seconds_bucket"
    ]
    counts.sort()
    if not counts or not (wanted := share * counts[-1][1]):
        return None
    for (least_s, below), (most_s, within) in pairwise([(0.0, 0.0), *counts]):
        if within >= wanted:
            return (
                least_s
                if most_s == float("inf")
                else least_s + (most_s - least_s) * (wanted - below) / (within - below)
            )
    return None
