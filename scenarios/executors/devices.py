"""Which real device a server stands for, and which devices a command means."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import torch

from hw.device import DeviceSpec, formats_of, gpu_bytes, local_devices
from hw.devices.gpu import refused_by_mode, unseen, unserved
from hw.devices.mps import start_daemon
from hw.telemetry import load_nvml, nvml_handle
from hw.telemetry.library import Board, RefusedError
from hw.telemetry.nvml import board_facts, free_vram_bytes, handle_of, other_processes
from kit.errors import InputError, in_a_line
from scenarios.files.spec import GB, DeviceSection, ServerSection
from sim.profile import Profile

MIN_FREE_BYTES: Final = 1_000_000_000  # a context, a library or two, and small weights
CALIBRATING: Final = 2  # processes on a device: what serves is measured concurrently with another process


def chosen_devices(wanted: str | None) -> list[tuple[str, DeviceSpec]]:
    """Return local devices by name: `cuda:0`, or `cpu:0` (`cpu` means all of that kind)."""
    devices = local_devices()
    cpus = [device for device in devices if device.kind == "cpu"] or [DeviceSpec()]
    named = {f"cuda:{device.index}": device for device in devices if device.kind == "cuda"}
    named |= {f"cpu:{number}": device for number, device in enumerate(cpus)}
    if wanted is None:
        return [(name, device) for name, device in named.items() if device in devices]
    chosen = [(name, device) for name, device in named.items() if wanted in (name, name.partition(":")[0])]
    if not chosen:
        why = why_unseen() if wanted.startswith("cuda") and not torch.cuda.is_available() else ""
        allowed = f"allowed are {', '.join(named)}"
        raise InputError("--device", "", f"no device {wanted!r} here{f' ({why})' if why else ''}; {allowed}")
    return chosen


def why_unseen() -> str:
    """Explain why torch sees no GPU although there is one; empty if there is none."""
    nvml = load_nvml()
    if nvml is None:
        return ""
    library = Board(nvml, None)
    try:
        boards = int(library.call("nvmlDeviceGetCount"))
        driver = library.call("nvmlSystemGetDriverVersion")
        version = int(library.call("nvmlSystemGetCudaDriverVersion_v2"))
        facts = board_facts(nvml, handle_of(nvml, "0")) if boards else {}
    except RefusedError as refused:
        return f"NVIDIA's library says: {refused}"
    serves = (version // 1000, version % 1000 // 10)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return unseen(boards, driver, serves, torch.version.cuda, visible, mig=facts.get("mig_mode") == "1")


def require_free(index: int, source: str, key: str) -> None:
    """Check that a GPU has room for a context and something to serve.

    Raises:
        InputError: other processes use it; the message names them, if NVML does.
    """
    nvml = load_nvml()
    if nvml is None:
        return
    handle = nvml_handle(nvml, index)
    free_bytes, total_bytes = free_vram_bytes(nvml, handle)
    if free_bytes >= MIN_FREE_BYTES or not total_bytes:
        return
    pids = other_processes(nvml, handle, ())
    who = f"processes {', '.join(map(str, sorted(pids)))} use it" if pids else "NVML does not tell whose it is"
    problem = f"{free_bytes / GB:.2f} GB of {total_bytes / GB:.1f} are free ({who})"
    raise InputError(source, key, f"cuda:{index}: {problem}; end what holds it, or take another GPU")


def require_served(index: int, agents: int, source: str, key: str) -> None:
    """Check that the installed torch computes on a GPU that is here, and that `agents` processes may use it.

    Raises:
        InputError: it does not; the message names a remedy.
    """
    try:
        capability = torch.cuda.get_device_capability(index)
    except (RuntimeError, AssertionError) as error:
        problem = f"cuda:{index} can't be opened ({in_a_line(str(error))}); take another GPU"
        raise InputError(source, key, problem) from None
    problem = unserved(capability, torch.cuda.get_arch_list())
    nvml = load_nvml()
    if nvml is not None and not problem:
        problem = refused_by_mode(board_facts(nvml, nvml_handle(nvml, index)).get("compute_mode", ""), agents)
    if problem:
        raise InputError(source, key, f"cuda:{index} ({torch.cuda.get_device_name(index)}): {problem}")


def device_spec(section: DeviceSection) -> DeviceSpec:
    """Convert a scenario's device to the executors' form; a GPU is asked for its memory if none is given."""
    spec = DeviceSpec(
        kind=section.kind,
        cores=section.cores,
        threads=section.threads,
        onednn=section.onednn,
        index=section.index,
        dtype="float32" if section.dtype == "measured" else section.dtype,
        channels_last=section.memory_format != "contiguous",
        graphs=section.kind == "cuda" and section.graphs is not False,
        sm_percent=section.sm_percent,
        idle_w=section.idle_w,
        tdp_w=section.tdp_w,
    )
    if section.vram_gb is not None:
        return replace(spec, vram_bytes=round(section.vram_gb * GB))
    vram_bytes = gpu_bytes(spec.index) if spec.kind == "cuda" else None
    return spec if vram_bytes is None else replace(spec, vram_bytes=vram_bytes)


def candidates(spec: DeviceSpec, section: DeviceSection | None = None) -> tuple[DeviceSpec, ...]:
    """Return the GPU modes of which calibration takes the fastest; none if all is given."""
    given = section or DeviceSection(kind="cuda")
    if spec.kind != "cuda":
        return ()
    formats = {"measured": (True, False), "channels_last": (True,), "contiguous": (False,)}[given.memory_format]
    dtypes: tuple[Any, ...] = ("float32", "bfloat16") if given.dtype == "measured" else (given.dtype,)
    specs = tuple(replace(spec, channels_last=last, dtype=dtype) for dtype in dtypes for last in formats)
    return specs if len(specs) > 1 else ()


def as_calibrated(spec: DeviceSpec, section: DeviceSection, profile: Profile) -> DeviceSpec:
    """Return a GPU that computes as its profile specifies, if the scenario leaves that to calibration."""
    if spec.kind != "cuda":
        return spec
    measured = formats_of(profile.execution)
    if section.memory_format != "measured":
        measured.pop("channels_last", None)
    if section.dtype != "measured":
        measured.pop("dtype", None)
    if section.graphs is None:
        measured["graphs"] = "graphs" in profile.execution
    return replace(spec, **measured)


def section_of(server: ServerSection, servers: Sequence[ServerSection]) -> DeviceSection:
    """Return the section of the device that a server runs on: its own, or that of the server it shares with."""
    owner = next(s for s in servers if s.name == (server.shares_device_with or server.name))
    return owner.device or DeviceSection()


def device_of(server: ServerSection, servers: Sequence[ServerSection]) -> DeviceSpec:
    """Return the device that a server runs on; a share of a GPU as this machine can give it."""
    section = section_of(server, servers)
    spec = device_spec(section)
    if section.sm_percent is None or not start_daemon():
        return spec
    gpus = [other.device for other in servers if other.device is not None and other.device.kind == "cuda"]
    largest = max(each.sm_percent or 100 for each in gpus if each.index == spec.index)
    return replace(spec, sm_percent=None, repeats=round(largest / section.sm_percent))


def share_warning(server: str, device: DeviceSpec) -> str:
    """Describe what a server's share of a GPU is without MPS; empty if MPS gives it."""
    if device.repeats == 1:
        return ""
    problem = f"{server} has no share of the GPU's multiprocessors, for {start_daemon()}"
    remedy = f"it computes each pass {device.repeats} times instead, and takes turns with the others of its GPU"
    return f"{problem}; {remedy}, which simulation does not model"
