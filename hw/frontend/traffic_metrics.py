"""The ingress's counters under Prometheus' names, and a page for people with the traffic of the last minute."""

from __future__ import annotations

import asyncio
import time  # noqa: TID251 - it counts seconds
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hw.frontend.inference_protocol import Answer, RequestTotals, Served, version_of
from hw.frontend.router_link import Bridge, ServerState, Status, VersionState
from kit.units import NS_PER_S

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_BUCKETS_S: Final = tuple(round(base * 10.0**power, 4) for power in range(-3, 2) for base in (1, 2, 5))


class _OfRouter(Collector):
    """The metrics of the router's last report."""

    def __init__(self, status: Callable[[], Status | None], heard_s: Callable[[], float]) -> None:
        self._status = status
        self._heard_s = heard_s

    def collect(self) -> Iterable[Metric]:
        status = self._status()
        if status is None:
            return
        yield GaugeMetricFamily("slimsched_ready", "Whether images are accepted.", value=status.is_ready)
        yield GaugeMetricFamily(
            "slimsched_router_heard_seconds", "How long ago the router reported.", value=self._heard_s()
        )
        yield GaugeMetricFamily("slimsched_images_queued", "Images inside that no server has.", value=status.queued)
        yield CounterMetricFamily(
            "slimsched_router_busy_seconds", "CPU time of the router.", value=status.busy_ns / NS_PER_S
        )
        yield CounterMetricFamily(
            "slimsched_router_collections", "Collections of garbage in the router.", value=status.collections
        )
        yield CounterMetricFamily(
            "slimsched_router_collecting_seconds", "Time that they took.", value=status.collected_ns / NS_PER_S
        )
        up = GaugeMetricFamily("slimsched_server_up", "Whether a server is up.", labels=["server"])
        busy = CounterMetricFamily("slimsched_server_busy_seconds", "Time that some pass ran.", labels=["server"])
        images = CounterMetricFamily("slimsched_server_images", "Images that passed a segment.", labels=["server"])
        for server in status.servers:
            up.add_metric([server.name], server.is_up)
            busy.add_metric([server.name], server.busy_ns / NS_PER_S)
            images.add_metric([server.name], server.images)
        yield from (up, busy, images)
        yield from _of_goals(status)


def _of_goals(status: Status) -> Iterable[Metric]:
    yield CounterMetricFamily(
        "slimsched_images_completed", "Images that have passed all segments.", value=status.completed
    )
    yield CounterMetricFamily(
        "slimsched_accuracy", "Sum of what the accuracy table says of each of them.", value=status.accuracy_sum
    )
    yield GaugeMetricFamily("slimsched_goal_accuracy", "The mean accuracy asked for; 0: none.", value=status.floor)
    yield GaugeMetricFamily(
        "slimsched_goal_p99_seconds", "The p99 latency asked for; 0: none.", value=status.limit_ns / NS_PER_S
    )


class _Answered:
    """Metrics of answered requests, by one label."""

    def __init__(self, label: str, registry: CollectorRegistry) -> None:
        self._images = Counter(
            f"slimsched_{label}_images_answered", f"Images that were answered, by {label}.", [label], registry=registry
        )
        text = "Of these, as many as the accuracy table says at their widths."
        self._right = Counter(f"slimsched_{label}_images_expected_right", text, [label], registry=registry)
        self._seconds = Histogram(
            f"slimsched_{label}_request_seconds", f"From a whole request to its answer, by {label}.", [label],
            buckets=_BUCKETS_S, registry=registry,
        )  # fmt: skip

    def note(self, value: str, answers: Sequence[Answer], took_s: float) -> None:
        """Count a request."""
        self._images.labels(value).inc(len(answers))
        self._right.labels(value).inc(sum(answer.expected for answer in answers))
        self._seconds.labels(value).observe(took_s)


class Metrics:
    """The metrics of one ingress.

    Args:
        served: the present model; each of its classes of requests is counted separately.
        inside: returns the number of images in slots.
        status: the router's last report; `heard_s`: its age.
    """

    def __init__(
        self,
        served: Callable[[], Served],
        inside: Callable[[], int],
        status: Callable[[], Status | None],
        heard_s: Callable[[], float],
    ) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry()
        self.requests = self._counter("requests", "Inference requests, by HTTP's code.", "code")
        self.arrived = self._counter("images_arrived", "Images of readable requests.")
        self.answered = self._counter("images_answered", "Images that were answered.")
        self.refused = self._counter("images_refused", "Images that were not let in.", "reason")
        self.failed = self._counter("images_failed", "Images that were let in and got no answer.", "reason")
        self.seconds = Histogram(
            "slimsched_request_seconds", "From a whole request to its answer.", buckets=_BUCKETS_S,
            registry=self._registry,
        )  # fmt: skip
        gauge = Gauge("slimsched_images_inside", "Images that take a place inside.", registry=self._registry)
        gauge.set_function(inside)
        self._registry.register(_OfRouter(status, heard_s))
        self._served = served
        self._last_s = 0.0
        self._router_ns = 0
        self._by_class = _Answered("class", self._registry) if served().class_names else None
        self._by_version = _Answered("version", self._registry)
        self.version_failed = self._counter("version_images_failed", "Images without an answer, by version.", "version")
        self._compared = self._counter("canary_images_compared", "Images that both versions served.", "version")
        self._agreed = self._counter("canary_images_agreed", "Of these, those with the same prediction.", "version")
        ProcessCollector(registry=self._registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"slimsched_{name}", text, labels, registry=self._registry)

    def note_answered(self, service_class: int, answers: Sequence[Answer], took_s: float, at_s: float) -> None:
        """Count a request that was answered at `at_s` of the epoch, also by version, and by class if there are any."""
        self._last_s = at_s
        self._router_ns += max(answer.took_ns for answer in answers)
        self.answered.inc(len(answers))
        self.seconds.observe(took_s)
        self._by_version.note(version_of(answers), answers, took_s)
        if self._by_class is not None:
            self._by_class.note(self._served().class_names[service_class], answers, took_s)

    def note_compared(self, answers: Sequence[Answer], others: Sequence[Answer]) -> None:
        """Count a canary's request that the stable version has served, too."""
        agreed = sum(one.prediction == other.prediction for one, other in zip(answers, others, strict=True))
        self._compared.labels(answers[0].version).inc(len(answers))
        self._agreed.labels(answers[0].version).inc(agreed)

    def counts_of(self, version: str) -> list[int]:
        """Return a version's images so far: answered, failed, compared, and those of them that agreed."""
        names = ("version_images_answered", "version_images_failed", "canary_images_compared", "canary_images_agreed")
        values = (self._registry.get_sample_value(f"slimsched_{name}_total", {"version": version}) for name in names)
        return [int(value or 0) for value in values]

    def totals(self) -> RequestTotals:
        """Return the counts that Triton's statistics have."""
        value_of = self._registry.get_sample_value
        answered = int(value_of("slimsched_request_seconds_count") or 0)
        requests = sum(sample.value for metric in self.requests.collect() for sample in metric.samples)
        return RequestTotals(
            answered=answered,
            answered_s=value_of("slimsched_request_seconds_sum") or 0.0,
            router_s=self._router_ns / NS_PER_S,
            failed=max(0, int(requests) - answered),  # one is answered before it is counted
            images=int(value_of("slimsched_images_answered_total") or 0),
            last_ms=round(1e3 * self._last_s),
        )

    def text(self) -> bytes:
        """Return the metrics as Prometheus reads them."""
        return generate_latest(self._registry)


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
        # when they ended, how long they took, the version and the mean accuracy of its table
        self._latest: deque[tuple[float, float, str, float]] = deque(maxlen=_LATENCIES)
        templates = Environment(loader=PackageLoader("hw.frontend", ""), autoescape=True, undefined=StrictUndefined)
        templates.filters["percent"] = lambda share: f"{100 * share:.0f} %"
        self._template = templates.get_template("live.html.j2")

    async def watch(self) -> None:
        """Sample for ever."""
        while True:
            await asyncio.sleep(1.0)
            self._seconds.append(self._counts())
            self._bridge.versions = self.versions()

    def note(self, latency_s: float, answers: Sequence[Answer]) -> None:
        """Count an answered request."""
        expected = sum(answer.expected for answer in answers) / len(answers)
        self._latest.append((time.monotonic(), latency_s, version_of(answers), expected))

    def versions(self) -> tuple[VersionState, ...]:
        """Return what is known of each version; nothing without a canary."""
        served, since_s = self._bridge.served, time.monotonic() - _SECONDS
        if served.canary is None:
            return ()
        recent = [each for each in self._latest if each[0] > since_s]
        states = []
        for role, version in zip(("stable", "canary"), served.versions, strict=True):
            own = [(latency_s, expected) for _, latency_s, its, expected in recent if its == version]
            p50_ms = p99_ms = accuracy = None
            if own:
                latencies_s, expected = zip(*own, strict=True)
                p50_ms, p99_ms = (1e3 * np.percentile(latencies_s, (50, 99))).tolist()
                accuracy = sum(expected) / len(own)
            facts = role, len(own) / max(1, len(recent)), p50_ms, p99_ms, accuracy
            states.append(VersionState(version, *facts, *self._metrics.counts_of(version)))
        return tuple(states)

    def _counts(self) -> _Counts:
        metrics, status = self._metrics, self._bridge.status
        answered, refused, failed = map(_total, (metrics.answered, metrics.refused, metrics.failed))
        busy_ns, servers = (status.busy_ns, status.servers) if status is not None else (0, ())
        return _Counts(time.monotonic(), answered, refused, failed, busy_ns, servers)

    def html(self) -> bytes:
        """Return the page as it is now."""
        counts, seconds = self._counts(), [*self._seconds]
        rates_img_s = [
            (after.answered - before.answered) / (after.at_s - before.at_s) for before, after in pairwise(seconds)
        ]
        most_img_s = max(rates_img_s, default=0.0)
        points = [
            f"{index + _SECONDS - len(rates_img_s)},{_HEIGHT - _HEIGHT * rate / (most_img_s or 1.0):.1f}"
            for index, rate in enumerate(rates_img_s)
        ]
        since = seconds[-min(len(seconds), _SOON)]
        passed_s = max(counts.at_s - since.at_s, 1e-3)
        latencies_ms = [1e3 * latency_s for at_s, latency_s, *_ in self._latest if at_s > counts.at_s - _SECONDS]
        return self._template.render(
            name=self._served.name,
            is_ready=self._bridge.is_ready,
            inside=self._bridge.inside,
            slots=self._served.most,
            router_share=max(0, counts.router_ns - since.router_ns) / NS_PER_S / passed_s,
            spans=[_span(counts, seconds, duration_s) for duration_s in (_SOON, _SECONDS)],
            most_img_s=most_img_s,
            points=" ".join(points),
            latencies_ms=np.percentile(latencies_ms, (50, 99)).tolist() if latencies_ms else [],
            servers=_servers(counts, since, passed_s),
            versions=self.versions(),
        ).encode()


def _span(counts: _Counts, seconds: list[_Counts], duration_s: int) -> dict[str, float]:
    since = seconds[-min(len(seconds), duration_s)]
    return {
        "seconds": duration_s,
        "answered_img_s": (counts.answered - since.answered) / max(counts.at_s - since.at_s, 1e-3),
        "refused": int(counts.refused - since.refused),
        "failed": int(counts.failed - since.failed),
    }


def _servers(counts: _Counts, since: _Counts, passed_s: float) -> list[dict[str, str | bool | float]]:
    before = {server.name: server for server in since.servers}
    rows: list[dict[str, str | bool | float]] = []
    for server in counts.servers:
        earlier = before.get(server.name, server)
        share = min(1.0, (server.busy_ns - earlier.busy_ns) / NS_PER_S / passed_s)
        img_s = (server.images - earlier.images) / passed_s
        rows.append({"name": server.name, "is_up": server.is_up, "img_s": img_s, "share": share})
    return rows
