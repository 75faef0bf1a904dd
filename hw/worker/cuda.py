"""The parts that only a CUDA device has: contexts, memory, streams, and passes captured as graphs.

Contexts, memory and supported devices: decisions are functions of reported values, so that they can be tested without a
device.

Captured passes: a pass has one key and one batch size, and from its second occurrence on it is replayed. The passes of
one instance never run together, so they share one buffer for inputs, one for outputs and one pool for intermediate
tensors. Each is as large as the largest pass needs, if that pass is captured first. A batch is gathered straight into
the buffer for inputs; outputs are copied out.

Tests: `GraphedInstance` does not depend on a device and is tested with a simulated `Capture`. On an H200, the labels of
captured passes are the CPU's (`docs/gpu-measurements.md`, F1).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fcntl import LOCK_EX, flock
from mmap import mmap
from pathlib import Path
from typing import Any, Final, Protocol

import torch
from torch import Tensor

from hw.networks.servable import Instance
from kit.errors import in_a_line

BROKEN_EXIT: Final = 70  # of a process whose context is broken (EX_SOFTWARE): its supervisor starts another one
LITTLE_FREE: Final = 0.1  # of the device's memory: below it freed memory is given back, though that stalls all lanes

CAPTURING: Final = threading.Lock()
"""Held while passes are captured, and while freed memory is given back: that waits for the whole device, which no
capture outlives."""

# torch's own, CUDA's, its libraries', and the error text if none of cuDNN's ways had enough memory
_NO_MEMORY: Final = ("not enough memory", "out of memory", "alloc_failed", "unable to find an engine to execute")
_BROKEN: Final = (  # after these CUDA answers every call with the same error
    "an illegal memory access",
    "device-side assert triggered",  # torch's advice below any other error speaks of "device-side assertions"
    "unspecified launch failure",
    "launch timed out",
    "an illegal instruction",
    "misaligned address",
    "invalid program counter",
    "global/shared address space",
    "hardware stack error",
    "uncorrectable ecc error",
    "uncorrectable nvlink error",
    "over nvlink or a hardware error",
    "busy or unavailable",
    "no cuda-capable device",
    "context is destroyed",
    "cuda error: unknown error",
    "cudnn_status_execution_failed",
    "cublas_status_execution_failed",
)


def lacks_memory(error: BaseException) -> bool:
    """Return whether this error is a lack of memory; libraries state it in a `RuntimeError`'s text alone."""
    text = str(error).lower()
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or any(pattern in text for pattern in _NO_MEMORY)


def is_broken(error: BaseException) -> bool:
    """Return whether this leaves the process's context unusable: an illegal address, a failed assertion, a lost device.

    Every later call fails as well then, and only a new process helps. A call that was merely refused breaks nothing.
    """
    text = str(error).lower()
    return isinstance(error, RuntimeError) and not lacks_memory(error) and any(pattern in text for pattern in _BROKEN)


@contextmanager
def in_turn() -> Iterator[None]:
    """Admit one process of this host at a time: a decrease of the device's memory meanwhile is this one's."""
    with Path(__file__).open("rb") as file:
        with suppress(OSError):  # a file system without locks
            flock(file, LOCK_EX)
        yield


def finish(device: torch.device) -> None:
    """Wait until all of this thread's work on a GPU is done; a CPU is done when it returns."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


def pin(memory: mmap) -> str:
    """Register mapped memory with CUDA, for asynchronous copies from and to it. Return why not; empty if it is."""
    tensor = torch.frombuffer(memory, dtype=torch.uint8)
    error = torch.cuda.cudart().cudaHostRegister(tensor.data_ptr(), tensor.nbytes, 0)  # type: ignore[no-untyped-call]
    return "" if int(error) == 0 else str(error)


def give_back(device: torch.device, vram_bytes: int) -> None:
    """Give freed memory back to the device if this process has almost all of `vram_bytes`: that waits for the whole
    device. By torch's own count: a query of the driver costs a call at each unload."""
    if torch.cuda.memory_reserved(device) > (1 - LITTLE_FREE) * vram_bytes:
        empty_cache()


def drop_workspaces() -> None:
    """Drop cuBLAS's workspaces, kept for each stream for ever. Not if passes are captured: they point to them."""
    if (drop := getattr(torch._C, "_cuda_clearCublasWorkspaces", None)) is not None:
        drop()


def empty_cache() -> None:
    """Give freed memory back to the device."""
    with CAPTURING:
        torch.cuda.empty_cache()


def reserved_bytes(device: torch.device) -> int:
    """Return the GPU memory that torch has reserved for this process, at its minimum; 0 on a CPU, which uses the heap.

    This is more than tensors take: a library's workspace and the rest of a segment are not available to others, either.
    """
    if device.type != "cuda":
        return 0
    empty_cache()
    return int(torch.cuda.memory_reserved(device))


# ---------------------------------------------------------------------------------------------------- supported devices


def unserved(capability: tuple[int, int], built_for: Sequence[str]) -> str:
    """Return why an installed torch can't compute on a GPU, with a remedy; empty if it can.

    Args:
        capability: of the GPU, (major, minor).
        built_for: from `torch.cuda.get_arch_list`: `sm_80` runs on 8.0 and later 8.x, `sm_90a` on 9.0 alone,
            `compute_90` on all from 9.0 on.
    """
    major, minor = capability
    for name in built_for:
        kind, _, number = name.partition("_")
        architecture = divmod(int(number.rstrip("af")), 10)
        is_later = architecture <= capability and (kind == "compute" or architecture[0] == major)
        if architecture == capability or (is_later and not number.endswith("a")):
            return ""
    problem = (
        f"torch {torch.__version__} is built for {', '.join(built_for) or 'no GPU'}, this one is sm_{major}{minor}"
    )
    return f"{problem}; {_REMEDY_OF_OLD if _OLDEST <= capability < _TURING else 'install a torch that is built for it'}"


_OLDEST: Final = (5, 0)
_TURING: Final = (7, 5)
_REMEDY_OF_OLD: Final = (
    "Maxwell, Pascal and Volta are served by builds for CUDA 12.6 alone: install one, such as torch 2.10 (cu126)"
)


def unseen(
    nvml_devices: int,
    driver: str,
    serves: tuple[int, int] | None,
    built_for: str | None,
    visible: str | None,
    *,
    mig: bool,
) -> str:
    """Return why torch sees no GPU although NVIDIA's library does, with a remedy; empty if that sees none either.

    Args:
        boards: how many it sees.
        driver: its version.
        serves: the newest CUDA that the driver serves; None if it does not report that.
        built_for: `torch.version.cuda`; None for a torch without CUDA.
        visible: CUDA_VISIBLE_DEVICES.
        mig: whether a board is divided into instances.
    """
    if not nvml_devices:
        return ""
    if built_for is None:
        return f"torch {torch.__version__} is built without CUDA; install one that has it"
    needs = int(built_for.partition(".")[0])
    if serves is not None and serves[0] < needs:
        problem = f"the driver {driver} serves CUDA {serves[0]}.{serves[1]}, torch is built for {built_for}"
        return f"{problem}; install a newer driver, or a torch that is built for CUDA {serves[0]}"
    if visible is not None:
        return f"CUDA_VISIBLE_DEVICES={visible} hides it; change it, or leave it out"
    if mig:
        return "MIG is on; name an instance as CUDA_VISIBLE_DEVICES (`nvidia-smi -L` lists them)"
    return "NVIDIA's library sees it, torch does not; python -c 'import torch; torch.cuda.init()' shows why"


def refused_by_mode(mode: str, workers: int) -> str:
    """Return why a GPU in this compute mode can't serve this number of workers, with a remedy; empty if it can."""
    if mode == "prohibited":
        return "its compute mode is 'prohibited'; an administrator may set it: nvidia-smi -c DEFAULT"
    if mode == "exclusive process" and workers > 1:
        return (
            f"its compute mode is 'exclusive process', and {workers} processes are to use it; an administrator may "
            "set it: nvidia-smi -c DEFAULT"
        )
    return ""


# -------------------------------------------------------------------------------------------------------------- streams


class Streams:
    """Streams that are reused: torch has 32 for each device, and the 33rd is the first one once more.

    Args:
        make: a further one, of a device.
    """

    def __init__(self, make: Callable[[torch.device], Any]) -> None:
        self._make = make
        self._free: dict[torch.device, list[Any]] = {}
        self._lock = threading.Lock()

    def take(self, device: torch.device) -> Any:
        """Return a stream that is not in use."""
        with self._lock:
            free = self._free.get(device)
            return free.pop() if free else self._make(device)

    def give_back(self, device: torch.device, stream: Any) -> None:
        """Take back a stream whose work is done."""
        with self._lock:
            self._free.setdefault(device, []).append(stream)


STREAMS: Final = Streams(lambda device: torch.cuda.Stream(device))  # type: ignore[no-untyped-call]


@contextmanager
def own_stream(device: torch.device) -> Iterator[None]:
    """Use a separate stream for this thread's GPU work within: on the default one no pass can be captured."""
    if device.type != "cuda":
        yield
        return
    stream = STREAMS.take(device)
    try:
        with torch.cuda.stream(stream):
            yield
    finally:
        STREAMS.give_back(device, stream)


class StreamQueue:
    """A separate stream on a GPU: its work is done in order, and completion is queried without a wait."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = STREAMS.take(device)

    def use(self) -> None:
        """Use it for this thread's GPU work from now on."""
        torch.cuda.set_stream(self._stream)

    def mark(self) -> Callable[[], bool]:
        """Return a function that returns whether all work so far is done, and raises its error."""
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(self._stream)
        query: Callable[[], bool] = event.query
        return query

    def close(self) -> None:
        """Release the stream: it gets no more work, and all is done."""
        STREAMS.give_back(self._device, self._stream)


# ------------------------------------------------------------------------------------------------------ captured passes


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
        self._replays: dict[Key, Replay | None] = {}  # None: run eagerly
        self._warm_keys: set[Key] = set()  # of passes that have run: the next one is captured
        self.refused = ""

    @property
    def captured(self) -> int:
        """Passes that are replayed."""
        return sum(replay is not None for replay in self._replays.values())

    @property
    def tried(self) -> int:
        """Passes that were to be captured."""
        return len(self._replays)

    @property
    def held_bytes(self) -> int:
        """The memory of the instance and of its captured passes."""
        return self._instance.held_bytes + self._capture.held_bytes

    def run(self, x: Tensor, width: float, previous_width: float) -> Tensor:
        """See `Instance`."""
        key = (width, previous_width, tuple(x.shape))
        if key not in self._warm_keys:
            self._warm_keys.add(key)
            return self._instance.run(x, width, previous_width)
        if key not in self._replays:
            self._replays[key] = self._captured(x, width, previous_width)
        replay = self._replays[key]
        if replay is None:
            return self._instance.run(x, width, previous_width)
        replay.inputs.copy_(x)
        return replay(len(x))

    def replay(self, width: float, previous_width: float, shape: tuple[int, ...]) -> Replay | None:
        """Return the captured pass of inputs of that shape (B, ...); None if there is none, or none yet."""
        return self._replays.get((width, previous_width, shape))

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
    """An instance that computes each pass several times, instead of a smaller share of its GPU
    (`hw.device_settings`)."""

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

    def __init__(self, device: torch.device) -> None:
        self._device = device
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
        finish(self._device)
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
