"""What a block costs beside its forward pass: the way to its agent and back, and the instance's own dispatch.

    python -m tests.bench.dispatch

One agent of `slimresnet-tiny`, blocks of 16 after segment 1 at full width: 1 MiB of activations, which stand in the
agent's arena. This process hands a block over and waits for its return, as a cluster with nothing else to do would; a
pause before each lets the agent sleep. `in one block` is the usual case; `scattered` makes the agent stack 16 single
activations first, which is part of the pass. `dispatch` is from the scheduler's command to the start of the pass, and
from its end until the scheduler knows; `handover` is all else.
"""

from __future__ import annotations

import contextlib
import json
import os
import time  # noqa: TID251 - it measures
from pathlib import Path

import numpy as np
import torch

from hw.activations import tensor_in
from hw.agent import Service
from hw.agents import AgentProcess, AgentSpec, OneHost
from hw.arena import Arena
from hw.device import DeviceSpec
from hw.messages import ComeUp, Deliver, Input, Ping, Pong, Preloaded, Release, Returned, Start
from hw.networks import ModelFile
from hw.slimmable import SlimmableModel
from hw.telemetry import usable_cores
from hw.torch_outfit import TorchOutfit
from policies.faults import Supervision
from policies.greedy import GreedyKnobs
from policies.vocabulary import Block, WorkKey

MODEL = Path("scenarios/data/models/slimresnet-tiny.safetensors")
BATCH, SEGMENT, WIDTH = 16, 2, 1.0
COUNT, WARMUP, PAUSE_S = 2000, 100, 1e-3
ARENA_BYTES, VRAM_BYTES = 1 << 24, 1 << 30


def measure() -> dict[str, dict[str, float]]:
    """Microseconds, p50 and p99, of each part."""
    cores = usable_cores()
    if len(cores) > 1:
        os.sched_setaffinity(0, cores[1:])
    file = ModelFile(MODEL)
    model, _ = file.load()
    inputs = torch.randn(BATCH, *model.activation_shape(SEGMENT - 1, WIDTH)).relu_()
    found = {}
    with contextlib.closing(OneHost()) as carrier:
        (arena,) = carrier.arenas(1, ARENA_BYTES)
        outfit = TorchOutfit(DeviceSpec(cores=cores[:1]), file, carrier.arenas_of(0), 0)
        service = Service(_knobs(model), model.spec.segments, Supervision())
        with AgentProcess(AgentSpec("server", outfit, service)) as agent:
            _begin(agent)
            for name, scattered in (("in one block", False), ("scattered", True)):
                for part, times_s in _round_trips(agent, arena, inputs, scattered).items():
                    found[f"{part}, {name}"] = {"mib": inputs.nbytes / 2**20, **_spread(times_s)}
            for name, pause_s in (("ping, awake", 0.0), ("ping after 5 ms", 5e-3)):
                found[name] = {"mib": 0.0, **_spread(_pings(agent, pause_s))}
    return found


def _spread(times_s: list[float]) -> dict[str, float]:
    p50, p99 = np.percentile(times_s, [50, 99]) * 1e6
    return {"p50_us": float(p50), "p99_us": float(p99)}


def _knobs(model: SlimmableModel) -> GreedyKnobs:
    spec = model.spec
    sizes = {(s, w): model.instance_bytes(s, w) for s in range(1, spec.segments + 1) for w in spec.widths}
    return GreedyKnobs(spec.widths, sizes, 0, BATCH, VRAM_BYTES, idle_unload_ns=None, preload=((SEGMENT, WIDTH),))


def _begin(agent: AgentProcess) -> None:
    agent.prepare(0, keep_log=False)
    agent.send(ComeUp(1))
    agent.expect(Preloaded)
    agent.send(Start(time.monotonic_ns()))


def _pings(agent: AgentProcess, pause_s: float) -> list[float]:
    """Seconds of an empty message there and back, each after a pause: what waking up costs."""
    found_s = []
    for number in range(WARMUP + COUNT // 2):
        time.sleep(pause_s)
        begin_ns = time.monotonic_ns()
        agent.send(Ping(number))
        agent.expect(Pong)
        found_s.append((time.monotonic_ns() - begin_ns) / 1e9)
    return found_s[WARMUP:]


def _round_trips(agent: AgentProcess, arena: Arena, inputs: torch.Tensor, scattered: bool) -> dict[str, list[float]]:
    """Seconds of both parts, for each block."""
    requests = tuple(range(BATCH))
    tensor_in(arena, 0, tuple(inputs.shape), torch.float32, channels_last=True).copy_(inputs)
    given = tuple(_inputs(requests, inputs, scattered))
    found: dict[str, list[float]] = {"handover": [], "dispatch": []}
    for number in range(WARMUP + COUNT):
        time.sleep(PAUSE_S)
        begin_ns = time.monotonic_ns()
        agent.send(Deliver(Block(number, 0, 1, WorkKey(SEGMENT, WIDTH, WIDTH), requests), given))
        told = agent.expect(Returned).told
        total_ns = time.monotonic_ns() - begin_ns
        dispatch_ns = told.started_ns - told.commanded_ns + told.ended_ns - told.forward_ended_ns
        found["dispatch"].append(dispatch_ns / 1e9)
        found["handover"].append((total_ns - dispatch_ns - (told.forward_ended_ns - told.started_ns)) / 1e9)
        agent.send(Release(requests))
    return {part: times_s[WARMUP:] for part, times_s in found.items()}


def _inputs(requests: tuple[int, ...], inputs: torch.Tensor, scattered: bool) -> list[Input]:
    """All in one block; or each by itself, so that no two follow one another in one."""
    shape, size_bytes = tuple(inputs.shape[1:]), inputs[0].nbytes
    if not scattered:
        return [Input(requests, 0, shape, "float32", True)]
    return [Input((request,), request * size_bytes, shape, "float32", True) for request in requests]


if __name__ == "__main__":
    print(json.dumps(measure(), indent=1))
