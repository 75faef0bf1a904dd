"""The device of a server and its settings, for calibration and serving, and its share of a GPU by NVIDIA's MPS.

`DeviceSpec` names a device and its settings; it neither opens the device (`hw.worker.instances` does) nor measures it.

Shares by MPS (`start_daemon`): the command has a separate control daemon, with pipes in a separate folder: an
administrator's settings are untouched. MPS limits each *process* to its share, so each server with a share has a
separate process.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Literal

from hw.host_resources import core_count, usable_cores
from hw.telemetry import CPU_IDLE_W_PER_CORE, CPU_TDP_W_PER_CORE
from kit.errors import InputError, in_a_line

if TYPE_CHECKING:
    import torch


_CPU_BUDGET_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """One device as a server uses it.

    Attributes:
        kind: `cpu` or `cuda`.
        cores: the CPU cores that the server's process is pinned to; empty pins it to none.
        threads: torch's threads for one operation.
        onednn: whether oneDNN's kernels may be used; without them convolutions of batches take several times as long
            on the same cores, so that even two cores give an unequal cluster.
        index: of the GPU, in PCI bus order.
        dtype, channels_last: of weights and activations.
        idle_w, tdp_w: of a CPU device, for modelled power; None takes the documented assumptions for its cores.
        vram_bytes: memory for instances, and on a GPU also for its context and for activations between segments; a load
            or a batch beyond it fails as `out_of_memory`.
        graphs: on a GPU, passes are captured and replayed (`hw.worker.cuda`).
        warm_sizes: batch sizes that every instance's own lane runs as it is loaded: a GPU's libraries choose kernels
            for each thread and shape separately.
        sm_percent: of a GPU: the share of its multiprocessors that this server's process may use, by MPS; None: all.
        repeats: of a GPU without MPS: each pass is computed this many times, instead of a smaller share.
    """

    kind: Literal["cpu", "cuda"] = "cpu"
    cores: tuple[int, ...] = ()
    threads: int = 1
    onednn: bool = True
    index: int = 0
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    channels_last: bool = True
    idle_w: float | None = None
    tdp_w: float | None = None
    vram_bytes: int = _CPU_BUDGET_BYTES
    graphs: bool = False
    warm_sizes: tuple[int, ...] = ()
    sm_percent: int | None = None
    repeats: int = 1

    @property
    def physical(self) -> tuple[str, tuple[int, ...]]:
        """The key that is equal for servers that share a device: the GPU, or the same set of cores."""
        return (self.kind, (self.index,) if self.kind == "cuda" else self.cores or usable_cores())

    @property
    def torch_dtype(self) -> torch.dtype:
        """Torch's type of `dtype`."""
        import torch  # here and below: a process that only names a device need not wait for it

        dtype: torch.dtype = getattr(torch, self.dtype)
        return dtype

    @property
    def memory_format(self) -> torch.memory_format:
        """The layout of activations and kernels."""
        import torch

        return torch.channels_last if self.channels_last else torch.contiguous_format

    @property
    def modelled_idle_w(self) -> float:
        """Idle power of a CPU device, given or assumed."""
        return self.idle_w if self.idle_w is not None else CPU_IDLE_W_PER_CORE * len(self.physical[1])

    @property
    def modelled_tdp_w(self) -> float:
        """Power of a busy CPU device, given or assumed."""
        return self.tdp_w if self.tdp_w is not None else CPU_TDP_W_PER_CORE * len(self.physical[1])

    def execution(self) -> dict[str, str]:
        """Return a description of the execution path, for profiles and records."""
        import torch

        common = {
            "dtype": self.dtype,
            "memory_format": "channels_last" if self.channels_last else "contiguous",
            "slicing": "in place",
            "torch": str(torch.__version__),
        }
        if self.kind == "cuda":
            settings = {"graphs": "True"} if self.graphs else {}
            settings |= {} if self.sm_percent is None else {"sm_percent": str(self.sm_percent)}
            settings |= {"repeats": str(self.repeats)} if self.repeats > 1 else {}
            environment = _settings(connections="CUDA_DEVICE_MAX_CONNECTIONS", tf32_override="NVIDIA_TF32_OVERRIDE")
            return {**common, "device": f"cuda:{self.index}", **MATHS, **settings, **environment}
        cores = ",".join(map(str, self.cores)) or "any"
        kernels = {
            "threads": str(self.threads),
            "onednn": str(self.onednn),
            "nnpack": "False",
        }  # see `hw.worker.instances`
        waiting = _settings(wait_policy="OMP_WAIT_POLICY") if self.threads > 1 else {}
        return {**common, "device": "cpu", "cores": cores, **kernels, **waiting}


def formats_of(execution: Mapping[str, str]) -> dict[str, Any]:
    """Return a GPU's dtype and memory format from a recorded execution path, as `DeviceSpec` has them."""
    formats: dict[str, Any] = {}
    if "memory_format" in execution:
        formats["channels_last"] = execution["memory_format"] == "channels_last"
    if execution.get("dtype") in DTYPES:
        formats["dtype"] = execution["dtype"]
    return formats


DTYPES: Final = ("float32", "bfloat16", "float16")

MATHS: Final = {"tf32": "True", "cudnn_benchmark": "False", "deterministic": "False"}
"""How a GPU computes, set by `hw.worker.instances.open_device`: torch's releases differ in their defaults."""


def _settings(**variables: str) -> dict[str, str]:
    """Return the environment's settings of a device, by name."""
    return {name: os.environ[variable] for name, variable in variables.items() if variable in os.environ}


def require_torch_device(name: str) -> None:
    """Raise `InputError` unless torch can compute there; `name` is in torch's notation."""
    import torch

    try:
        usable = float(torch.ones(1, device=name)) == 1.0
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        problem = f"{name!r} can't be used ({in_a_line(str(error))}); expected cpu, cuda:0 ..."
        raise InputError("model", "training.device", problem) from None
    assert usable


def local_devices() -> list[DeviceSpec]:
    """Return the devices of a cluster on this machine: its GPUs, one GPU and a CPU, or two unequal CPU devices.

    With four cores and more the first CPU device has two thirds of them, the second the rest. With fewer, each has one
    core (the same one, if there is only one) and the second does without oneDNN. Next to one GPU the CPU has half of
    the cores; the GPU's process has the others, except for one that is left to the router.
    """
    import torch

    cores = usable_cores()[: core_count()]
    sizes = [(index, gpu_bytes(index)) for index in range(torch.cuda.device_count())]
    visible = ((index, size) for index, size in sizes if size is not None)
    if gpus := [DeviceSpec("cuda", index=index, vram_bytes=size, graphs=True) for index, size in visible]:
        return gpus if len(gpus) > 1 else _with_a_cpu(gpus[0], cores)
    if len(cores) < 4:
        return [DeviceSpec(cores=cores[:1]), DeviceSpec(cores=cores[-1:], onednn=False)]
    large = len(cores) * 2 // 3
    parts = (cores[:large], cores[large:])
    return [DeviceSpec(cores=part, threads=len(part)) for part in parts]


def _with_a_cpu(gpu: DeviceSpec, cores: tuple[int, ...]) -> list[DeviceSpec]:
    """Add a CPU device: a cluster of one server leaves a router nothing to choose."""
    middle = len(cores) // 2
    if middle < 2:
        return [gpu, DeviceSpec(cores=cores[-1:])]
    return [replace(gpu, cores=cores[1:middle]), DeviceSpec(cores=cores[middle:], threads=len(cores) - middle)]


def gpu_bytes(index: int) -> int | None:
    """Return a GPU's memory; None if no GPU is here, or torch can't open it: it is lost, say."""
    import torch

    if not torch.cuda.is_available() or index >= torch.cuda.device_count():
        return None
    try:
        return int(torch.cuda.get_device_properties(index).total_memory)
    except (RuntimeError, AssertionError):
        return None


CONTROL: Final = "nvidia-cuda-mps-control"
SHARE_VARIABLE: Final = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"  # read by CUDA as a process opens it
_PIPES, _LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
_START_S: Final = 5.0


@cache
def start_daemon() -> str:
    """Start the daemon unless one is named in the environment; it ends with this process.

    Returns:
        Why there is none; empty if it answers. Processes that this one starts from then on are its clients.
    """
    if _PIPES in os.environ:
        return ""
    control = shutil.which(CONTROL)
    if control is None:
        return f"{CONTROL} is not installed"
    folder = tempfile.mkdtemp(prefix="mps-")
    folders = {_PIPES: folder, _LOGS: folder}

    def end() -> None:
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            _run([control], "quit\n", folders)
        shutil.rmtree(folder, ignore_errors=True)

    try:
        _run([control, "-d"], "", folders)
        float(_run([control], "get_default_active_thread_percentage\n", folders))
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        end()
        return f"{CONTROL} does not come up within {_START_S:.0f} s: {in_a_line(str(error))}"
    atexit.register(end)
    os.environ.update(folders)
    return ""


def _run(command: list[str], text: str, variables: dict[str, str]) -> str:
    environment = {**os.environ, **variables}
    process = subprocess.run(  # noqa: S603 - NVIDIA's program
        command, input=text, env=environment, timeout=_START_S, check=True, capture_output=True, text=True
    )
    return process.stdout
