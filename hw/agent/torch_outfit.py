"""The outfit of a real device's agent: torch, opened by the device's settings."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch

from hw.agent.benchmarks import DeviceBench
from hw.agent.gpu_lanes import FlightWaker, GpuLanes
from hw.agent.lanes import Tell
from hw.agent.outfit import AgentSpec, Fitting
from hw.agent.torch_lanes import TorchLanes, explain
from hw.device import DeviceSpec
from hw.devices.activations import Activations
from hw.devices.gpu import StreamQueue, pin
from hw.devices.instances import Instances, Lane, open_measured
from hw.devices.kept_blocks import KeptBlocks
from hw.devices.memory_budget import MemoryBudget
from hw.networks.registry import ModelFile
from hw.telemetry import NvmlSensor, Sensor, cpu_sensor, load_nvml, nvml_handle
from hw.transport.arena import Arena

ARENA_BYTES = 1 << 26


@dataclass(frozen=True, slots=True)
class TorchOutfit:
    """Travels to the agent's process.

    Attributes:
        device: its settings.
        model: the file of the network that is served.
        arenas: of all agents, by index.
        own: this agent's index among them.
    """

    device: DeviceSpec
    model: ModelFile
    arenas: tuple[Arena, ...]
    own: int

    def elsewhere(self, arenas: tuple[Arena, ...], model: Path | None) -> TorchOutfit:
        """See `FarOutfit`."""
        return replace(self, arenas=arenas, model=self.model if model is None else replace(self.model, path=model))

    def fit(self, tell: Tell, clock_ns: Callable[[], int]) -> Fitting:
        """See `Outfit`."""
        device = self.device
        gpu = _gpu(device, clock_ns) if device.kind == "cuda" else None
        place, context_bytes = open_measured(device) if gpu is None else (gpu.place, gpu.context_bytes)
        model, _ = self.model.load()
        budget = MemoryBudget(device.vram_bytes - context_bytes)
        store = Activations(self.arenas, self.own, place, None if gpu is None else KeptBlocks(budget))
        maker = Instances(model, self.model.path, device, place, budget=budget)
        return Fitting(
            lanes=TorchLanes(maker, store, tell, clock_ns) if gpu is None else self._gpu_lanes(gpu, maker, store, tell),
            sensor=partial(sensor_of, device),
            measure=DeviceBench(maker, store).carry_out,
            explain=explain,
            context_bytes=context_bytes,
            execution=device.execution(),
            computes_here=gpu is None,
            activation_bytes=lambda: store.held_bytes,
            has_own_memory=gpu is not None,
            reads_apart=gpu is not None,  # an H200's energy counter took 3 ms, and 17 now and then
            waker=None if gpu is None else gpu.waker,
        )

    def _gpu_lanes(self, gpu: _Gpu, maker: Instances, store: Activations, tell: Tell) -> GpuLanes:
        if problem := next(filter(None, (pin(arena.buffer) for arena in self.arenas)), ""):
            print(f"arenas can't be pinned, so copies wait for {gpu.place}: {problem}", file=sys.stderr)
        gpu.stores[self.own] = store
        lanes = GpuLanes(
            maker,
            store,
            tell,
            gpu.clock_ns,
            new_queue=partial(StreamQueue, gpu.place),
            loader=gpu.loader,
            neighbours=gpu.stores,
        )
        gpu.waker.lanes.append(lanes)
        return lanes


@dataclass(frozen=True, slots=True)
class _Gpu:
    """The part shared by servers of one GPU in one process: the context, and the threads."""

    place: torch.device
    context_bytes: int
    clock_ns: Callable[[], int]
    loader: Lane
    waker: FlightWaker
    stores: dict[int, Activations] = field(default_factory=dict)


_gpus: dict[int, _Gpu] = {}  # of this process, by index


def _gpu(device: DeviceSpec, clock_ns: Callable[[], int]) -> _Gpu:
    """Return the GPU, opened with the first of its servers."""
    if device.index not in _gpus:
        place, context_bytes = open_measured(device)
        _gpus[device.index] = _Gpu(place, context_bytes, clock_ns, Lane(device, place), FlightWaker(clock_ns))
    return _gpus[device.index]


def sensor_of(device: DeviceSpec, pids: Sequence[int]) -> Sensor:
    """Return a device's sensor; on a CPU, for the share of its cores that these processes use."""
    if device.kind == "cpu":
        return cpu_sensor(pids, device.physical[1], device.modelled_idle_w, device.modelled_tdp_w, lambda: 0)
    nvml = load_nvml()
    return Sensor() if nvml is None else NvmlSensor(nvml, nvml_handle(nvml, device.index))


@contextlib.contextmanager
def torch_agents(devices: Sequence[tuple[str, DeviceSpec]], model: ModelFile) -> Iterator[list[AgentSpec]]:
    """Yield the specs of agents without a scheduler, by (name, device): only measured, each with an arena of
    `ARENA_BYTES` that the others write to."""
    with contextlib.ExitStack() as stack:
        arenas = tuple(stack.enter_context(contextlib.closing(Arena(ARENA_BYTES))) for _ in devices)
        yield [AgentSpec(name, TorchOutfit(device, model, arenas, own)) for own, (name, device) in enumerate(devices)]
