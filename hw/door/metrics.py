"""The ingress's counters, and the router's reports to it, under Prometheus' names (docs/how-to/serve.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

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

from hw.door.protocol import Answer, Served
from hw.door.triton import RequestTotals
from hw.door.words import Status
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
        held = Gauge("slimsched_images_inside", "Images that take a place inside.", registry=self._registry)
        held.set_function(inside)
        self._registry.register(_OfRouter(status, heard_s))
        self._served = served
        self._last_s = 0.0
        self._router_ns = 0
        if served().class_names:
            self._of_class = self._counter("class_images_answered", "Images that were answered, by class.", "class")
            self._right = self._counter(
                "class_images_expected_right", "Of these, as many as the accuracy table says at their widths.", "class"
            )
            self._class_seconds = Histogram(
                "slimsched_class_request_seconds", "From a whole request to its answer, by class.", ["class"],
                buckets=_BUCKETS_S, registry=self._registry,
            )  # fmt: skip
        ProcessCollector(registry=self._registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"slimsched_{name}", text, labels, registry=self._registry)

    def note_answered(self, service_class: int, answers: Sequence[Answer], took_s: float, at_s: float) -> None:
        """Count a request that was answered at `at_s` of the epoch, also by its class if there are any."""
        self._last_s = at_s
        self._router_ns += max(each.took_ns for each in answers)
        self.answered.inc(len(answers))
        self.seconds.observe(took_s)
        if names := self._served().class_names:
            name = names[service_class]
            self._of_class.labels(name).inc(len(answers))
            self._right.labels(name).inc(sum(each.expected for each in answers))
            self._class_seconds.labels(name).observe(took_s)

    def totals(self) -> RequestTotals:
        """Return the counts that Triton's statistics have."""
        read = self._registry.get_sample_value
        answered = int(read("slimsched_request_seconds_count") or 0)
        requests = sum(each.value for metric in self.requests.collect() for each in metric.samples)
        return RequestTotals(
            answered=answered,
            answered_s=read("slimsched_request_seconds_sum") or 0.0,
            router_s=self._router_ns / NS_PER_S,
            failed=max(0, int(requests) - answered),  # one is answered before it is counted
            images=int(read("slimsched_images_answered_total") or 0),
            last_ms=round(1e3 * self._last_s),
        )

    def text(self) -> bytes:
        """Return the metrics as Prometheus reads them."""
        return generate_latest(self._registry)
