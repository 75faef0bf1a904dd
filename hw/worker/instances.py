"""Instances on a device, as calibration times and workers serve them, and the fastest way to compute there.

The fastest way to compute: which number format and order of memory a library prefers cannot be derived; for example, a
norm that supports only one order of memory converts feature maps before and after it. So `race` measures the ways, in a
separate process, which leaves no context behind.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import threading
import time  # noqa: TID251 - real passes are timed with a real clock
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from queue import SimpleQueue
from statistics import median
from typing import Final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from hw.device_settings import MATHS, SHARE_VARIABLE, DeviceSpec
from hw.networks.network_files import ModelFile
from hw.networks.servable import Instance, Row, Servable, gather, gather_into, rows_of
from hw.subprocesses import Tell, apart
from hw.telemetry import load_nvml, nvml_handle, used_vram_bytes
from hw.telemetry.nvml import process_vram_bytes
from hw.worker import cuda
from hw.worker.activations import MemoryBudget, in_format, shares_memory
from hw.worker.cuda import Capture, CudaCapture, GraphedInstance, Repeated, finish, own_stream
from kit.errors import WorkError, in_a_line
from policies.vocabulary import IMAGE

NO_PREDICTION = -1
PassKey = tuple[float, float, int]  # (width, previous width, batch size)
_NICENESS = 5  # the router's process, which may share these cores, must not wait behind a forward pass


def open_device(device: DeviceSpec) -> torch.device:
    """Pin this process and set torch up by the device's settings; return torch's device."""
    if device.cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, device.cores)
    if device.kind == "cpu":
        os.nice(_NICENESS)
    torch.set_num_threads(device.threads)
    if device.kind == "cuda":
        is_tf32 = MATHS["tf32"] == "True"
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = is_tf32
        torch.backends.cudnn.benchmark = MATHS["cudnn_benchmark"] == "True"
        torch.backends.cudnn.deterministic = MATHS["deterministic"] == "True"
        if device.sm_percent is not None:
            os.environ[SHARE_VARIABLE] = str(device.sm_percent)
        torch.cuda.set_device(device.index)
        torch.zeros(1, device="cuda")  # the context exists from here on
        return torch.device("cuda", device.index)
    _give_large_blocks_back()
    torch.backends.mkldnn.enabled = device.onednn  # type: ignore[assignment]
    # Its pool has a thread for each core of the machine, not only of the device: passes of 17 ms took 300 ms.
    torch.backends.nnpack.set_flags(False)  # type: ignore[no-untyped-call]
    return torch.device("cpu")


def open_measured(device: DeviceSpec) -> tuple[torch.device, int]:
    """Return `open_device`, and the device memory that this process takes with nothing loaded: a GPU's context."""
    if device.kind == "cpu":
        return open_device(device), 0
    with cuda.in_turn():  # if memory is not reported by process, as in a container, the device's decrease is taken
        before_bytes = _used_vram_bytes(device)
        torch_device = open_device(device)
        _open_libraries(torch_device)
        nvml = load_nvml()
        own_bytes = None if nvml is None else process_vram_bytes(nvml, nvml_handle(nvml, device.index), os.getpid())
        return torch_device, max(0, _used_vram_bytes(device) - before_bytes) if own_bytes is None else own_bytes


def _open_libraries(torch_device: torch.device) -> None:
    """Load the libraries that a first pass would load: they belong to a context as much as CUDA's own memory."""
    x = F.group_norm(
        F.conv2d(torch.ones(1, 8, 4, 4, device=torch_device), torch.ones(8, 8, 3, 3, device=torch_device)), 2
    )
    F.linear(x.flatten(1), torch.ones(4, x[0].numel(), device=torch_device))
    finish(torch_device)
    torch.cuda.empty_cache()


def context_bytes(device: DeviceSpec) -> int:
    """Return the bytes of `open_measured` in a separate process, which ends at once; 0 if the device can't open."""
    if device.kind == "cpu":
        return 0
    try:
        return apart(partial(_context_bytes, device), lambda *_: None)
    except WorkError:  # work on the device will report why
        return 0


def _context_bytes(device: DeviceSpec, _: Tell) -> int:
    return open_measured(device)[1]


def _used_vram_bytes(device: DeviceSpec) -> int:
    """Return the memory in use on a GPU, by any process; 0 if NVML does not report it."""
    nvml = load_nvml()
    return 0 if nvml is None else used_vram_bytes(nvml, nvml_handle(nvml, device.index))


# --------------------------------------------------------------------------------------------------------------- passes


def serve(
    instance: Instance,
    rows: Sequence[Row],
    key: PassKey,
    memory_format: torch.memory_format,
    launched: Callable[[], object] | None = None,
    on: tuple[torch.device, torch.dtype] | None = None,
) -> Tensor:
    """Run one batch, from single activations to its outputs on an idle device: calibration times this very code.

    Args:
        rows: n images, or activations of one shape.
        key: with the batch size that the device sees, zeros beyond n.
        launched: called when all work is launched on the device, before the wait for it.
        on: the device and type of the computation; by default those of the rows.

    Returns:
        (n, ...) outputs in separate memory; keeping a single row keeps them all.
    """
    y = launch(instance, rows, key, memory_format, on)
    if launched is not None:
        launched()
    finish(y.device)  # the last of all: from here on any thread may read it
    return y


def launch(
    instance: Instance,
    rows: Sequence[Row],
    key: PassKey,
    memory_format: torch.memory_format,
    on: tuple[torch.device, torch.dtype] | None = None,
) -> Tensor:
    """Do as `serve`, without waiting for the device."""
    width, previous_width, padded = key
    shape = (padded, *rows[0][0].shape[1:])
    replay = instance.replay(width, previous_width, shape) if isinstance(instance, GraphedInstance) else None
    if replay is not None:
        gather_into(rows, replay.inputs)
        return replay(len(rows))
    micro_batch = rows[0][0]
    torch_device, dtype = on or (micro_batch.device, micro_batch.dtype)
    if padded == len(rows) and all(tensor.device == torch_device for tensor, _ in rows):
        x = in_format(gather(rows).to(dtype), memory_format)
    else:
        order = memory_format if len(shape) == 4 else torch.contiguous_format
        x = torch.empty(shape, dtype=dtype, device=torch_device, memory_format=order)
        gather_into(rows, x)
    y = instance.run(x, width, previous_width)
    if shares_memory(x, y):  # the inputs' memory will be written to again
        y = y.clone()
    return y[: len(rows)]


def predictions_of(logits: Tensor) -> list[int]:
    """Return the largest one's index, of (n, classes); `NO_PREDICTION` if some are not finite. A GPU is waited for
    once."""
    if (torch_device := logits.device).type != "cpu":
        logits = on_host(logits)
        finish(torch_device)
    numbers = logits.float().numpy()
    predictions: list[int] = np.where(np.isfinite(numbers).all(axis=1), numbers.argmax(axis=1), NO_PREDICTION).tolist()
    return predictions


def on_host(x: Tensor) -> Tensor:
    """Return a copy in pinned memory, which is complete once the current stream has done its present work."""
    return torch.empty(x.shape, dtype=x.dtype, pin_memory=x.is_cuda).copy_(x, non_blocking=True)


# ------------------------------------------------------------------------------------------------------------ instances


class Lane:
    """An instance's own thread (and, on a GPU, its own stream): jobs run one after another in it."""

    def __init__(self, device: DeviceSpec, torch_device: torch.device) -> None:
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, args=(device, torch_device), daemon=True)
        self._thread.start()

    def submit(self, job: Callable[[], None]) -> None:
        """Run a job after the previous ones; it must not raise."""
        self._jobs.put(job)

    def end(self) -> None:
        """Let the thread end when submitted jobs are done, without waiting for it: it may be the caller's own."""
        self._jobs.put(None)

    def stop(self) -> None:
        """Finish the submitted jobs, then end the thread."""
        self.end()
        self._thread.join()

    def _work(self, device: DeviceSpec, torch_device: torch.device) -> None:
        torch.set_num_threads(device.threads)  # OpenMP keeps the number by thread
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.inference_mode())
            stack.enter_context(cuda.own_stream(torch_device))
            while (job := self._jobs.get()) is not None:
                job()


class Instances:
    """Makes instances of a model on a device, within the device's budget; its weights are in host memory.

    Args:
        model: with all its weights.
        path: of its file, from which weights can be read again.
        device: its settings.
        torch_device: of tensors, by `open_device`.
        new_capture: of the passes of one instance, if the device has its passes captured.
        budget: that others of the process use, too; None for all of the device's.
    """

    def __init__(
        self,
        model: Servable,
        path: Path,
        device: DeviceSpec,
        torch_device: torch.device,
        new_capture: Callable[[torch.device], Capture] = CudaCapture,
        budget: MemoryBudget | None = None,
    ) -> None:
        self.model = model
        self._path = path
        self.device = device
        self.torch_device = torch_device
        self._new_capture = new_capture
        self.budget = budget or MemoryBudget(device.vram_bytes)

    def make(self, segment: int, width: float, from_disk: bool = False) -> Instance:
        """Return an instance on the device; raises `MemoryError` beyond the budget."""
        needed = self._bytes(segment, width)
        self.budget.take(needed)
        try:
            source = self.model.instance(segment, width, self._path if from_disk else None)
            source = source if self.device.repeats == 1 else Repeated(source, self.device.repeats)
            instance = source.to(self.torch_device, self.device.torch_dtype, self.device.memory_format)
            if self.device.graphs:
                instance = GraphedInstance(instance, self._new_capture(self.torch_device))
            finish(self.torch_device)
        except BaseException:
            self.budget.give_back(needed)
            raise
        return instance

    def load(self, segment: int, width: float, from_disk: bool = False) -> Instance:
        """Do as `make`, in the lane that will serve: warm, so that no pass waits for kernels to be chosen."""
        instance = self.make(segment, width, from_disk)
        try:
            self._warm_up(instance)
        except BaseException:
            self.free(instance)
            raise
        return instance

    def _warm_up(self, instance: Instance) -> None:
        """Run each of the device's sizes at every key that the instance serves, a narrower width's, too; the largest
        first: later captures fit into its memory. Twice, if the second pass is captured."""
        device, sights = self.device, 2 if self.device.graphs else 1
        sizes = sorted(device.warm_sizes, reverse=True)
        keys = self.model.spec.served_keys(instance.segment, instance.width)
        for (width, previous), size in itertools.product(reversed(keys), sizes):
            rows = self.inputs(instance.segment, previous, size)
            try:
                for _ in range(sights):
                    serve(instance, rows, (width, previous, size), device.memory_format)
            except Exception as error:
                if not cuda.lacks_memory(error):  # otherwise serving halves a batch that does not fit
                    raise

    def free(self, instance: Instance) -> None:
        """Give the budget back; the tensors go with their last reference."""
        self.budget.give_back(self._bytes(instance.segment, instance.width))

    def _bytes(self, segment: int, width: float) -> int:
        return self.model.instance_bytes(segment, width, self.device.torch_dtype.itemsize)

    def inputs(self, segment: int, previous_width: float, batch: int) -> list[Row]:
        """Return activations like those of a real batch: as a segment leaves them (none below zero), in one
        micro-batch."""
        shape = self.model.activation_shape(segment - 1, previous_width)
        micro_batch = torch.randn(batch, *shape, generator=torch.Generator().manual_seed(0)).relu_()
        return rows_of(in_format(micro_batch.to(self.torch_device, self.device.torch_dtype), self.device.memory_format))


def give_back(device: DeviceSpec, torch_device: torch.device) -> None:
    """Give freed memory back to the device (if it is short of it) or the system, not to an allocator's cache."""
    if torch_device.type == "cuda":
        cuda.give_back(torch_device, device.vram_bytes)
    elif _malloc_trim is not None:
        _malloc_trim(0)


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_LARGE_BYTES, _KEPT_BYTES = 4 << 20, 64 << 20


def _give_large_blocks_back() -> None:
    """Free weights with their instance: glibc keeps the end of each thread's heap, however large, but no mapped block.

    By default it maps ever fewer micro-batches, up to 32 MiB. The end of the main heap that is kept then stays at its
    largest size, or every pass would request memory from the system again.
    """
    if _mallopt is not None:
        _mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        _mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


def _find(name: str) -> Callable[..., int] | None:
    try:
        function: Callable[..., int] = getattr(ctypes.CDLL(None), name)
    except (OSError, TypeError, AttributeError):  # not glibc
        return None
    return function


_malloc_trim, _mallopt = _find("malloc_trim"), _find("mallopt")


def seconds_since(begin_ns: int) -> float:
    """Return the time since then, by the clock that passes are timed with."""
    return (time.monotonic_ns() - begin_ns) / 1e9


# ------------------------------------------------------------------------------------------- the fastest way to compute


MAY_LOSE: Final = 0.004  # of the predictions, more than the first way loses: one of 256, a tie; more is another network
WORTH: Final = 0.98  # of the time: less of a gain is noise, and the first way is taken
ROUNDS: Final = 20
_WARM_ROUNDS: Final = 3
_IMAGES: Final = 256  # 5 s of 16 cores for the largest network that is bundled


@dataclass(frozen=True, slots=True)
class ComputeMode:
    """The result of one way of computing.

    Attributes:
        device: with this way's settings.
        micro_batch_s: by its images, the median time of a micro-batch through all segments at the widest.
        agreement: share of the predictions of drawn images that equal those of the CPU's float32.
    """

    device: DeviceSpec
    micro_batch_s: Mapping[int, float]
    agreement: float

    @property
    def pass_s(self) -> float:
        """The time of the largest micro-batch."""
        return self.micro_batch_s[max(self.micro_batch_s)]

    def __str__(self) -> str:
        order = "channels_last" if self.device.channels_last else "contiguous"
        return f"{self.device.dtype} {order} {1e3 * self.pass_s:.3g} ms, {100 * self.agreement:.1f} % of predictions"


def race(file: ModelFile, candidates: Sequence[DeviceSpec], batches: Sequence[int]) -> list[ComputeMode]:
    """Return each way of computing on one device, timed in turns in a separate process.

    Args:
        batches: images of the micro-batches that are timed.

    Raises:
        InputError: the file is not a model.
        WorkError: the device failed.
    """
    try:
        return apart(partial(raced, file, candidates, batches), lambda *_: None)
    except WorkError as error:
        problem = in_a_line(str(error))
        raise WorkError(
            f"the ways to compute on {candidates[0].kind}:{candidates[0].index} can't be timed: {problem}"
        ) from None


def fastest(results: Sequence[ComputeMode]) -> ComputeMode:
    """Return the fastest way whose predictions are the CPU's; the first one if no other is notably faster."""
    best = results[0]
    for result in results[1:]:
        if result.agreement >= results[0].agreement - MAY_LOSE and result.pass_s < WORTH * best.pass_s:
            best = result
    return best


def raced(
    file: ModelFile, candidates: Sequence[DeviceSpec], batches: Sequence[int], tell: Tell = lambda *_: None
) -> list[ComputeMode]:
    """Do as `race`, in this process."""
    torch_device = open_device(candidates[0])
    model, _ = file.load()
    generator = torch.Generator().manual_seed(0)
    images, micro_batch = (
        torch.randn(count, *model.spec.input_shape, generator=generator) for count in (_IMAGES, max(batches))
    )
    with torch.inference_mode(), own_stream(torch_device):
        expected = model(images, (model.spec.widths[-1],) * model.spec.segments).argmax(dim=1)
        runners = [_Runner(Instances(model, file.path, candidate, torch_device)) for candidate in candidates]
        agreements = [float((runner.predictions(images) == expected).double().mean()) for runner in runners]
        laps = list(product(runners, sorted(batches, reverse=True)))
        for runner, batch in laps:
            for _ in range(_WARM_ROUNDS):
                runner.timed_s(micro_batch[:batch])
        rounds = [[runner.timed_s(micro_batch[:batch]) for runner, batch in laps] for _ in range(ROUNDS)]
    medians_s = dict(zip(laps, map(median, zip(*rounds, strict=True)), strict=True))
    return [
        ComputeMode(candidate, {batch: medians_s[runner, batch] for batch in batches}, agreement)
        for candidate, runner, agreement in zip(candidates, runners, agreements, strict=True)
    ]


class _Runner:
    """All segments at the widest, in one way."""

    def __init__(self, maker: Instances) -> None:
        self._maker = maker
        spec = maker.model.spec
        self._instances: list[Instance] = [
            maker.make(segment, spec.widths[-1]) for segment in range(1, spec.segments + 1)
        ]

    def predictions(self, images: Tensor) -> Tensor:
        """Return the predictions of drawn images (n, C, H, W); (n,) on the CPU."""
        return torch.cat([self._run(part).argmax(dim=1).cpu() for part in torch.split(images, 64)])

    def timed_s(self, images: Tensor) -> float:
        """Return the time of one micro-batch, from its images on the host to its logits."""
        begin_ns = time.monotonic_ns()
        self._run(images)
        return (time.monotonic_ns() - begin_ns) / 1e9

    def _run(self, images: Tensor) -> Tensor:
        x = images.to(self._maker.torch_device, self._maker.device.torch_dtype)
        previous = IMAGE
        for instance in self._instances:
            key = (instance.width, previous, len(x))
            x = serve(instance, rows_of(x), key, self._maker.device.memory_format)
            previous = instance.width
        return x.float()
