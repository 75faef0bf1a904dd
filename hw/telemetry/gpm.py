"""NVML's GPU performance monitoring: utilization of multiprocessors and memory bus between two samples."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from hw.telemetry.library import Board, RefusedError

METRICS = {
    "sm_utilization": "NVML_GPM_METRIC_SM_UTIL",
    "sm_occupancy": "NVML_GPM_METRIC_SM_OCCUPANCY",
    "dram_bandwidth": "NVML_GPM_METRIC_DRAM_BW_UTIL",
}
_APART_NS = 100_000_000  # the least time between two samples, by NVML's reference


class Gpm:
    """Shares between the two latest samples that are far enough apart (Hopper and later).

    Raises:
        RefusedError: the device, the driver or the library has no GPM.
    """

    def __init__(self, board: Board, parent: Board, instance: int | None, monotonic_ns: Callable[[], int]) -> None:
        """Take the whole GPU as `parent`; `instance` is the MIG instance of it that is meant."""
        self._board = parent
        self._instance = instance
        self._monotonic_ns = monotonic_ns
        self._metrics = {name: board.constant(constant) for name, constant in METRICS.items()}
        if not parent.ask("nvmlGpmQueryDeviceSupport").isSupportedDevice:
            raise RefusedError("GPM needs a Hopper GPU or a later one")
        self._older, self._newer = self._buffer(), self._buffer()
        self._look(self._newer)
        self._at_ns = monotonic_ns()
        self._shares: dict[str, float] = {}

    def shares(self) -> Mapping[str, float]:
        """Return shares in [0, 1] by name; the previous ones right after a sample; empty before two samples."""
        now_ns = self._monotonic_ns()
        if now_ns - self._at_ns > _APART_NS:
            self._older, self._newer = self._newer, self._older
            self._at_ns = now_ns
            self._look(self._newer)
            self._shares = self._between()
        return self._shares

    def _buffer(self) -> Any:
        """Allocate a sample, which is freed with this object."""
        buffer = self._board.call("nvmlGpmSampleAlloc")
        weakref.finalize(self, _free, self._board, buffer)
        return buffer

    def _look(self, buffer: Any) -> None:
        if self._instance is None:
            self._board.ask("nvmlGpmSampleGet", buffer)
        else:
            self._board.ask("nvmlGpmMigSampleGet", self._instance, buffer)

    def _between(self) -> dict[str, float]:
        request = self._board.constant("c_nvmlGpmMetricsGet_t")()
        request.version = self._board.constant("NVML_GPM_METRICS_GET_VERSION")
        request.numMetrics = len(self._metrics)
        request.sample1, request.sample2 = self._older, self._newer
        for position, metric in enumerate(self._metrics.values()):
            request.metrics[position].metricId = metric
        self._board.call("nvmlGpmMetricsGet", request)
        answers = zip(self._metrics, request.metrics, strict=False)
        return {name: answer.value / 100 for name, answer in answers if answer.nvmlReturn == 0}


def _free(board: Board, buffer: Any) -> None:
    with contextlib.suppress(RefusedError):  # the device, or the library, may be gone
        board.call("nvmlGpmSampleFree", buffer)
