"""Passes that are captured once and replayed: a whole segment is launched on the GPU at once, not each kernel.

A pass is of one key and batch size; from its second occurrence on it is replayed. The passes of one instance never run
together, so they share one buffer for inputs, one for outputs and one pool for intermediate tensors: as large as the
largest pass needs, if that is captured first. A batch is gathered straight into the buffer; outputs are copied out.

The device-independent part is tested with a simulated capture; on an H200 labels are the CPU's
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
from kit.errors import in_a_line

Pass = Callable[[Tensor], Tensor]
Key = tuple[float, float, tuple[int, ...]]


class Replay(Protocol):
    """A captured pass.

    Attributes:
        inputs: its input buffer, which others of the instance share.
    """

    @property
    def inputs(self) -> Tensor: ...  # noqa: D102

    def __call__(self, count: int) -> Tensor:
        """Run the pass on the present `inputs`; return its first `count` outputs, in separate memory."""
        ...


class Capture(Protocol):
    """Captures passes of one instance."""

    @property
    def held_bytes(self) -> int:
        """Device memory of all inputs, outputs and intermediate tensors of its passes."""
        ...

    def __call__(self, run: Pass, x: Tensor) -> Replay:
        """Capture a pass; raises an error if that is impossible; the device is as before then."""
        ...


class GraphedInstance:
    """An instance that replays passes from their second occurrence on; passes that can't be captured run eagerly.

    Args:
        instance: on its device.
        capture: for this instance alone.

    Attributes:
        refused: why the first pass that could not be captured was refused; empty if all were captured.
    """

    def __init__(self, instance: Instance, capture: Capture) -> None:
        self.segment, self.width = instance.segment, instance.width
        self._instance = instance
        self._capture = capture
        self._seen: dict[Key, Replay | None] = {}  # None: run eagerly
        self._once: set[Key] = set()
        self.refused = ""

    @property
    def captured(self) -> int:
        """Passes that are replayed."""
        return sum(replay is not None for replay in self._seen.values())

    @property
    def tried(self) -> int:
        """Passes that were to be captured."""
        return len(self._seen)

    @property
    def held_bytes(self) -> int:
        """The memory of the instance and of its captured passes."""
        return self._instance.held_bytes + self._capture.held_bytes

    def run(self, x: Tensor, width: float, previous_width: float) -> Tensor:
        """See `Instance`."""
        key = (width, previous_width, tuple(x.shape))
        if key not in self._once:
            self._once.add(key)
            return self._instance.run(x, width, previous_width)
        if key not in self._seen:
            self._seen[key] = self._captured(x, width, previous_width)
        replay = self._seen[key]
        if replay is None:
            return self._instance.run(x, width, previous_width)
        replay.inputs.copy_(x)
        return replay(len(x))

    def replay(self, width: float, previous_width: float, shape: tuple[int, ...]) -> Replay | None:
        """Return the captured pass of inputs of that shape (B, ...); None if there is none, or none yet."""
        return self._seen.get((width, previous_width, shape))

    def to(self, device: torch.device, dtype: torch.dtype, memory_format: torch.memory_format) -> GraphedInstance:
        """See `Instance`; nothing is captured there yet."""
        return GraphedInstance(self._instance.to(device, dtype, memory_format), self._capture)

    def _captured(self, x: Tensor, width: float, previous_width: float) -> Replay | None:
        eager = self._instance.run
        try:
            return self._capture(lambda inputs: eager(inputs, width, previous_width), x)
        except Exception as error:  # an operation that no graph takes, or no memory; a broken device shows at once
            self.refused = self.refused or in_a_line(f"{type(error).__name__}: {error}")
            return None


class Repeated:
    """An instance that computes each pass several times, instead of a smaller share of its GPU (`hw.devices.mps`)."""

    def __init__(self, instance: Instance, times: int) -> None:
        self.segment, self.width = instance.segment, instance.width
        self._instance, self._times = instance, times

    @property
    def held_bytes(self) -> int:
        """See `Instance`."""
        return self._instance.held_bytes

    def run(self, x: Tensor, width: float, previous_width: float) -> Tensor:
        """See `Instance`."""
        for _ in range(self._times - 1):
            self._instance.run(x, width, previous_width)
        return self._instance.run(x, width, previous_width)

    def to(self, device: torch.device, dtype: torch.dtype, memory_format: torch.memory_format) -> Repeated:
        """See `Instance`."""
        return Repeated(self._instance.to(device, dtype, memory_format), self._times)


class Rooms:
    """Buffers that passes share, by name: as large as the largest one requested so far."""

    def __init__(self) -> None:
        self._rooms: dict[str, Tensor] = {}  # flat
        self.held_bytes = 0  # an outgrown smaller one counts, too: earlier passes read there

    def like(self, x: Tensor, name: str) -> Tensor:
        """Return a buffer of x's shape and order of memory; its numbers are arbitrary."""
        room = self._rooms.get(name)
        if room is None or room.numel() < x.numel():
            room = self._rooms[name] = torch.empty(x.numel(), dtype=x.dtype, device=x.device)
            self.held_bytes += room.nbytes
        return room.as_strided(x.shape, torch.empty_like(x, device="meta").stride())


class CudaCapture:
    """`Capture` by torch's CUDA graphs, in memory that the passes of one instance share."""

    def __init__(self, place: torch.device) -> None:
        self._place = place
        self._pool = torch.cuda.graph_pool_handle()
        self._rooms = Rooms()

    @property
    def held_bytes(self) -> int:
        """See `Capture`."""
        segments = torch.cuda.memory_snapshot(self._pool, False)  # type: ignore[no-untyped-call]
        return self._rooms.held_bytes + sum(int(segment["total_size"]) for segment in segments)

    def __call__(self, run: Pass, x: Tensor) -> Replay:
        """See `Capture`."""
        inputs = self._rooms.like(x, "inputs")
        inputs.copy_(x)
        outputs = self._rooms.like(run(inputs), "outputs")  # on this stream: no kernel is chosen during the capture
        finish(self._place)
        graph = torch.cuda.CUDAGraph()
        with CAPTURING:  # other lanes continue meanwhile, except for calls that wait for the whole device
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                outputs.copy_(run(inputs))
            finally:
                graph.capture_end()
        return CudaReplay(graph, inputs, outputs)


@dataclass(frozen=True, slots=True)
class CudaReplay:
    """See `Replay`."""

    graph: Any
    inputs: Tensor
    outputs: Tensor

    def __call__(self, count: int) -> Tensor:
        """See `Replay`."""
        self.graph.replay()
        return self.outputs[:count].clone(memory_format=torch.preserve_format)
