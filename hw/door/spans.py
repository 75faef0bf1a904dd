"""A span a request, sent to the collector of OpenTelemetry that the environment names, by its own variables."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PATIENCE_S: Final = 1.0
_ASKED_OFTEN: Final = "/v2/health/,/metrics"
PACKAGES: Final = (
    "opentelemetry.sdk",
    "opentelemetry.instrumentation.asgi",
    "opentelemetry.exporter.otlp.proto.http",
)
Application = Callable[..., Awaitable[None]]


def is_wanted() -> bool:
    """Whether a collector is named."""
    return any(os.environ.get(name) for name in _ENDPOINTS)


@contextmanager
def tracing(app: Application) -> Iterator[Application]:
    """The application whose requests have spans, each a part of the trace that its client says it is of."""
    if not is_wanted():
        yield app
        return
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.instrumentation.asgi import OpenTelemetryMiddleware
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    name: dict[str, Any] = {} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": "slimsched"}
    provider = TracerProvider(resource=Resource.create(name), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # a collector that is away is no news of ours
    try:
        yield OpenTelemetryMiddleware(
            app, tracer_provider=provider, excluded_urls=_ASKED_OFTEN, exclude_spans=["receive", "send"]
        )
    finally:  # what is not sent yet is sent, but nobody waits long for a collector that is away
        last = threading.Thread(target=provider.shutdown, daemon=True)
        last.start()
        last.join(_PATIENCE_S)
