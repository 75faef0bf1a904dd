"""Ray Serve: one replica on the model's core, called through a handle (no HTTP), which is its fastest way in."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Sequence
from typing import Any

from benchmarks.speed.peers.forwards import BATCH_LIMIT, Chain, Job, images
from benchmarks.speed.peers.load import measure

QUIET = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_SERVE_LOG_TO_STDERR": "0",
    "RAY_SERVE_REQUEST_PATH_LOG_BUFFER_SIZE": "1000",
}
INLINE = {  # what RAY_SERVE_THROUGHPUT_OPTIMIZED=1 sets, but for the transport and the HTTP ingress
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
    "RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP": "0",
    "RAY_SERVE_FREEZE_GC_ON_STARTUP": "1",
}

_LOOPS: dict[str, dict[str, str]] = {"threads": {}, "inline": INLINE}
SETTINGS: tuple[dict[str, Any], ...] = tuple(
    {"wait_s": wait_s, "loops": loops, "transport": transport, "pin": pin}
    for loops, transport, pin, waits_s in (
        ("threads", "grpc", "process", (0.0, 0.002, 0.01)),
        ("threads", "actor", "process", (0.0, 0.01)),
        ("inline", "grpc", "process", (0.0, 0.01)),
        ("inline", "actor", "process", (0.0,)),
        ("threads", "grpc", "thread", (0.0,)),
        ("threads", "grpc", "none", (0.0,)),
    )
    for wait_s in waits_s
)


def drive(job: Job, truth: Sequence[int]) -> dict[str, Any]:
    """Start it, load it, end it; returns `load.measure`'s figures."""
    os.environ.update({**QUIET, **_LOOPS[job.settings["loops"]]})  # before the import, which reads them
    import ray  # type: ignore[import-not-found, unused-ignore]
    from ray import serve  # type: ignore[import-not-found, unused-ignore]

    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        ray.init(
            num_cpus=max(2, os.cpu_count() or 1),
            include_dashboard=False,
            log_to_driver=False,
            object_store_memory=256 << 20,
            _temp_dir=folder,
        )
        try:
            serve.start(proxy_location="Disabled")
            handle = serve.run(_application(serve, job), name="peers", route_prefix=None)
            return asyncio.run(_load(handle, job, truth))
        finally:
            ray.shutdown()  # and Serve with it; its own shutdown wants the loop that has ended


async def _load(handle: Any, job: Job, truth: Sequence[int]) -> dict[str, Any]:
    if job.settings["transport"] == "grpc":  # an inline handle wants this loop
        handle = handle.options(_by_reference=False, request_serialization="pickle", response_serialization="pickle")
    bodies = [image.tobytes() for image in images(job.shape)]

    async def call(index: int) -> tuple[int, int]:
        label, size = await handle.remote(bodies[index])
        return label, size

    return await measure(call, truth, job)


def _application(serve: Any, job: Job) -> Any:
    from ray.serve.schema import LoggingConfig  # type: ignore[import-not-found, unused-ignore]

    path, core, settings = job.path, job.core, job.settings

    @serve.deployment(
        num_replicas=1,
        max_ongoing_requests=1024,
        ray_actor_options={"num_cpus": 1},
        logging_config=LoggingConfig(log_level="ERROR", enable_access_log=False),
    )
    class Served:
        def __init__(self) -> None:
            self._chain: Chain | None = None

        @serve.batch(max_batch_size=BATCH_LIMIT, batch_wait_timeout_s=settings["wait_s"])  # type: ignore[untyped-decorator, unused-ignore]
        async def __call__(self, bodies: list[bytes]) -> list[tuple[int, int]]:
            if self._chain is None:  # in the thread that will use it, so that this is the one that is pinned
                self._chain = Chain(path, core, settings["pin"])
            return [(label, len(bodies)) for label in self._chain.labels(bodies)]

    return Served.bind()  # type: ignore[attr-defined, unused-ignore]
