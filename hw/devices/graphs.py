"""Passes that are captured once and replayed: a GPU is asked for a whole segment at once, not for each kernel.

A pass is of one key and batch size; from its second sight on it is replayed. What it reads and writes lies in memory of
its own, so inputs are copied in and outputs out: an instance's passes run one after another in its lane, on one stream.

What holds on any device is tested with a capture that only plays; on an H200 labels are the CPU's
(`docs/gpu-measurements.md`, F1).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from hw.devices.gpu import CAPTURING, finish
from hw.networks.servable import Instance

Pass = Callable[[Tensor], Tensor]
Key = tuple[float, float, tuple[int, ...]]


class Replay(Protocol):
    """A captured pass."""

    @property
    def held_bytes(self) -> int:
        """Device memory of what it reads and writes."""
        ...

    def __call__(self, x: Tensor) -> Tensor:
        """The pass on other numbers of the same shape, in memory that nobody else writes to."""
        ...


class Capture(Protocol):
    """Captures passes of one instance."""

    def __call__(self, run: Pass, x: Tensor) -> Replay:
        """Raises where this can't be captured; the device is as before then."""
        ...


class GraphedInstance:
    """An instance that replays what it has seen twice; what can't be captured is run as ever.

    Args:
        instance: on its device.
        capture: for this instance alone.
    """

    def __init__(self, instance: Instance, capture: Capture) -> None:
        self.segment, self.width = instance.segment, instance.width
        self._instance = instance
        self._capture = capture
        self._seen: dict[Key, Replay | None] = {}  # None: run as ever
        self._once: set[Key] = set()

    @property
    def captured(self) -> int:
        """Passes that are replayed."""
        return sum(replay is not None for replay in self._seen.values())

    @property
    def held_bytes(self) -> int:
        """The instance's, and what captured passes read and write."""
        return self._instance.held_bytes + sum(
            replay.held_bytes for replay in self._seen.values() if replay is not None
        )

    def run(self, x: Tensor, width: float, previous_width: float) -> Tensor:
        """See `Instance`."""
        key = (width, previous_width, tuple(x.shape))
        if key not in self._once:
            self._once.add(key)
            return self._instance.run(x, width, previous_width)
        if key not in self._seen:
            self._seen[key] = self._captured(x, width, previous_width)
        replay = self._seen[key]
        return self._instance.run(x, width, previous_width) if replay is None else replay(x)

    def to(self, device: torch.device, dtype: torch.dtype, memory_format: torch.memory_format) -> GraphedInstance:
        """See `Instance`; nothing is captured there yet."""
        return GraphedInstance(self._instance.to(device, dtype, memory_format), self._capture)

    def _captured(self, x: Tensor, width: float, previous_width: float) -> Replay | None:
        eager = self._instance.run
        try:
            return self._capture(lambda inputs: eager(inputs, width, previous_width), x)
        except Exception:  # an operation that no graph takes, or no memory for it; a broken device shows at once
            return None


class CudaCapture:
    """`Capture` by torch's CUDA graphs, in memory that the passes of one instance share: they never run together."""

    def __init__(self, place: torch.device) -> None:
        self._place = place
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, run: Pass, x: Tensor) -> Replay:
        """See `Capture`."""
        inputs = x.clone(memory_format=torch.preserve_format)
        run(inputs)  # on this very stream: nothing is chosen or made for it while it is captured
        finish(self._place)
        graph = torch.cuda.CUDAGraph()
        with CAPTURING:  # other lanes go on meanwhile, but for what waits for the whole device
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                outputs = run(inputs)
            finally:
                graph.capture_end()
        return CudaReplay(graph, inputs, outputs)


@dataclass(frozen=True, slots=True)
class CudaReplay:
    """See `Replay`."""

    graph: Any
    inputs: Tensor
    outputs: Tensor

    @property
    def held_bytes(self) -> int:
        """See `Replay`."""
        return self.inputs.nbytes + self.outputs.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        """See `Replay`."""
        self.inputs.copy_(x)
        self.graph.replay()
        return self.outputs.clone(memory_format=torch.preserve_format)
