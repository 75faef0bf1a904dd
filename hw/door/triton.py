"""Triton's extensions of the protocol: the model's configuration, its statistics, the repository's index. No I/O.

Triton's own tools (`perf_analyzer`, `image_client`) ask for them before they send an image.
https://github.com/triton-inference-server/server/tree/main/docs/protocol
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from hw.door.protocol import Served

EXTENSIONS: Final = ("binary_tensor_data", "model_configuration", "statistics", "model_repository")


@dataclass(frozen=True, slots=True)
class RequestTotals:
    """Totals since the start.

    Attributes:
        answered_s: the answered requests' latencies, summed.
        router_s: the part of that in the router: waiting, and passes.
        last_ms: when the last one was answered, in milliseconds of the epoch; 0 before the first.
    """

    answered: int
    answered_s: float
    router_s: float
    failed: int
    images: int
    last_ms: int


def configuration(served: Served) -> dict[str, Any]:
    """Return the fields of Triton's `ModelConfig` that this server has."""
    described = served.metadata()
    return {
        "name": served.name,
        "platform": described["platform"],
        "backend": described["platform"],
        "max_batch_size": served.most,
        "input": [_tensor(each) for each in described["inputs"]],
        "output": [_tensor(each) for each in described["outputs"]],
        "dynamic_batching": {},
    }


def _tensor(described: dict[str, Any]) -> dict[str, Any]:
    """Without the batch's dimension, which `max_batch_size` stands for; Triton has no tensor without any other."""
    tensor = {"name": described["name"], "data_type": f"TYPE_{described['datatype']}"}
    if dims := described["shape"][1:]:
        return {**tensor, "dims": dims}
    return {**tensor, "dims": [1], "reshape": {"shape": []}}


def statistics(served: Served, totals: RequestTotals) -> dict[str, Any]:
    """Return Triton's statistics; `queue` is all of a request's time in the router, its passes included.

    A request's segments are batched with others' on several devices, so `compute_infer` is not known for one request.
    """
    return {
        "model_stats": [
            {
                "name": served.name,
                "version": served.version,
                "last_inference": totals.last_ms,
                "inference_count": totals.images,
                "inference_stats": {
                    "success": {"count": totals.answered, "ns": round(totals.answered_s * 1e9)},
                    "fail": {"count": totals.failed, "ns": 0},
                    "queue": {"count": totals.answered, "ns": round(totals.router_s * 1e9)},
                },
            }
        ]
    }


def repository_index(served: Served, *, is_ready: bool) -> list[dict[str, str]]:
    """Return the one model that is served."""
    state = "READY" if is_ready else "UNAVAILABLE"
    return [{"name": served.name, "version": served.version, "state": state, "reason": ""}]
