"""The network behind Ray Serve, in the rivals' environment: `python -m benchmarks.serving.rival_ray ...`."""

from __future__ import annotations

import logging
import signal
from typing import Any

import numpy as np
import ray
from ray import serve
from starlette.requests import Request

from benchmarks.serving.rival_network import FullWidth, Settings, settings


def application(options: Settings) -> Any:
    """Build replicas, one per core; each batches waiting requests."""

    @serve.deployment(
        num_replicas=options.workers, max_ongoing_requests=8 * options.batch, ray_actor_options={"num_cpus": 1},
        logging_config={"log_level": "ERROR", "enable_access_log": False},
    )  # fmt: skip
    class Network:
        def __init__(self) -> None:
            self._network = FullWidth(options.model, options.take_core())

        @serve.batch(max_batch_size=options.batch, batch_wait_timeout_s=options.wait_s)
        async def _labels(self, images: list[Any]) -> list[int]:
            return self._network.labels(np.stack(images))

        async def __call__(self, request: Request) -> dict[str, int]:
            return {"label": await self._labels(np.frombuffer(await request.body(), np.float32))}

    return Network.bind()  # type: ignore[attr-defined]


if __name__ == "__main__":
    options = settings()
    ray.init(num_cpus=options.workers + 1, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    serve.start(http_options={"host": "127.0.0.1", "port": options.port}, logging_config={"log_level": "ERROR"})
    serve.run(application(options), name="network", route_prefix="/predict")
    try:
        signal.pause()
    except KeyboardInterrupt:
        serve.shutdown()  # type: ignore[no-untyped-call]
        ray.shutdown()
