"""A page for people: the traffic of the last minute. It has no script, and nothing from elsewhere."""

from __future__ import annotations

import asyncio
import time  # noqa: TID251 - it counts seconds
from collections import deque
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from prometheus_client import Counter

from hw.door.bridge import Bridge
from hw.door.metrics import Metrics
from hw.door.protocol import Served
from hw.door.words import ServerState
from kit.units import NS_PER_S

_SECONDS: Final = 60
_SOON: Final = 10
_LATENCIES: Final = 20_000
_HEIGHT: Final = 100.0


@dataclass(frozen=True, slots=True)
class _Counts:
    """The counts since the start, at one moment."""

    at_s: float
    answered: float
    refused: float
    failed: float
    router_ns: int
    servers: tuple[ServerState, ...]


def _total(counter: Counter) -> float:
    return sum(sample.value for family in counter.collect() for sample in family.samples)


class LivePage:
    """The last minute of one ingress: `watch` samples every second."""

    def __init__(self, served: Served, bridge: Bridge, metrics: Metrics) -> None:
        self._served = served
        self._bridge = bridge
        self._metrics = metrics
        self._seconds: deque[_Counts] = deque([self._counts()], maxlen=_SECONDS + 1)
        self._latencies_s: deque[tuple[float, float]] = deque(maxlen=_LATENCIES)  # with when they ended
        templates = Environment(loader=PackageLoader("hw.door", ""), autoescape=True, undefined=StrictUndefined)
        templates.filters["percent"] = lambda share: f"{100 * share:.0f} %"
        self._template = templates.get_template("live.html.j2")

    async def watch(self) -> None:
        """Sample for ever."""
        while True:
            await asyncio.sleep(1.0)
            self._seconds.append(self._counts())

    def note(self, latency_s: float) -> None:
        """Count an answered request."""
        self._latencies_s.append((time.monotonic(), latency_s))

    def _counts(self) -> _Counts:
        metrics, status = self._metrics, self._bridge.status
        answered, refused, failed = map(_total, (metrics.answered, metrics.refused, metrics.failed))
        busy_ns, servers = (status.busy_ns, status.servers) if status is not None else (0, ())
        return _Counts(time.monotonic(), answered, refused, failed, busy_ns, servers)

    def html(self) -> bytes:
        """Return the page as it is now."""
        now, seconds = self._counts(), [*self._seconds]
        rates_img_s = [
            (after.answered - before.answered) / (after.at_s - before.at_s) for before, after in pairwise(seconds)
        ]
        most_img_s = max(rates_img_s, default=0.0)
        points = [
            f"{place + _SECONDS - len(rates_img_s)},{_HEIGHT - _HEIGHT * rate / (most_img_s or 1.0):.1f}"
            for place, rate in enumerate(rates_img_s)
        ]
        since = seconds[-min(len(seconds), _SOON)]
        passed_s = max(now.at_s - since.at_s, 1e-3)
        latencies_ms = [1e3 * latency_s for at_s, latency_s in self._latencies_s if at_s > now.at_s - _SECONDS]
        return self._template.render(
            name=self._served.name,
            is_ready=self._bridge.is_ready,
            inside=self._bridge.inside,
            slots=self._served.most,
            router_share=max(0, now.router_ns - since.router_ns) / NS_PER_S / passed_s,
            spans=[_span(now, seconds, many) for many in (_SOON, _SECONDS)],
            most_img_s=most_img_s,
            points=" ".join(points),
            latencies_ms=np.percentile(latencies_ms, (50, 99)).tolist() if latencies_ms else [],
            servers=_servers(now, since, passed_s),
        ).encode()


def _span(now: _Counts, seconds: list[_Counts], many: int) -> dict[str, float]:
    since = seconds[-min(len(seconds), many)]
    return {
        "seconds": many,
        "answered_img_s": (now.answered - since.answered) / max(now.at_s - since.at_s, 1e-3),
        "refused": int(now.refused - since.refused),
        "failed": int(now.failed - since.failed),
    }


def _servers(now: _Counts, since: _Counts, passed_s: float) -> list[dict[str, str | bool | float]]:
    before = {server.name: server for server in since.servers}
    rows: list[dict[str, str | bool | float]] = []
    for server in now.servers:
        was = before.get(server.name, server)
        share = min(1.0, (server.busy_ns - was.busy_ns) / NS_PER_S / passed_s)
        img_s = (server.images - was.images) / passed_s
        rows.append({"name": server.name, "is_up": server.is_up, "img_s": img_s, "share": share})
    return rows
