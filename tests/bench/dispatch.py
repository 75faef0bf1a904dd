"""What a batch costs beside its forward pass: command to forward start, and result to scheduler.

    python -m tests.bench.dispatch

One worker of `slimresnet-tiny`, batches of 16 after segment 1 at full width: 1 MiB of activations. The driver asks for
a batch and waits for its result, as a cluster with nothing else to do would; a pause before each lets the worker sleep.
`in one block` is the usual case; `scattered` makes the worker stack 16 single activations first, which is counted as
overhead here.
"""

from __future__ import annotations

import json
import os
import time  # noqa: TID251 - it measures
from pathlib import Path

import numpy as np
import torch

from hw.device import DeviceSpec
from hw.messages import Finished, Ping, Run, Take
from hw.networks import ModelFile
from hw.telemetry import usable_cores
from hw.worker import Worker, WorkerSpec

MODEL = Path("scenarios/data/models/slimresnet-tiny.safetensors")
BATCH, SEGMENT, WIDTH = 16, 2, 1.0
COUNT, WARMUP, PAUSE_S = 2000, 100, 1e-3


def measure() -> dict[str, dict[str, float]]:
    """Microseconds, p50 and p99, of both ways."""
    cores = usable_cores()
    if len(cores) > 1:
        os.sched_setaffinity(0, cores[1:])
    found = {}
    with Worker(WorkerSpec("server", DeviceSpec(cores=cores[:1]), ModelFile(MODEL))) as worker:
        model, _ = worker.spec.model.load()
        shape = model.activation_shape(SEGMENT - 1, WIDTH)
        inputs = torch.randn(BATCH, *shape).relu_()
        worker.load(0, SEGMENT, WIDTH)
        forward_s = float(np.median(_round_trips(worker, inputs, scattered=False)[1]))
        for name, scattered in (("in one block", False), ("scattered", True)):
            total_s, own_s = _round_trips(worker, inputs, scattered)
            overhead_s = total_s - (forward_s if scattered else own_s)
            p50, p99 = np.percentile(overhead_s, [50, 99]) * 1e6
            found[name] = {"mib": inputs.nbytes / 2**20, "p50_us": float(p50), "p99_us": float(p99)}
        for name, pause_s in (("ping, awake", 0.0), ("ping after 5 ms", 5e-3)):
            p50, p99 = np.percentile(_pings(worker, pause_s), [50, 99]) * 1e6
            found[name] = {"mib": 0.0, "p50_us": float(p50), "p99_us": float(p99)}
    return found


def _pings(worker: Worker, pause_s: float) -> np.ndarray:
    """Seconds of an empty message there and back, each after a pause: what waking up costs."""
    found_s = []
    for number in range(WARMUP + COUNT // 2):
        time.sleep(pause_s)
        begin_ns = time.monotonic_ns()
        worker.send(Ping(number))
        worker.receive()
        found_s.append((time.monotonic_ns() - begin_ns) / 1e9)
    return np.asarray(found_s[WARMUP:])


def _round_trips(worker: Worker, inputs: torch.Tensor, scattered: bool) -> tuple[np.ndarray, np.ndarray]:
    """Seconds from command to result, and of the forward pass alone as the worker says."""
    requests, run = tuple(range(BATCH)), Run(0, 0, tuple(range(BATCH)), SEGMENT, WIDTH, WIDTH, BATCH)
    total_s, forward_s = [], []
    for _ in range(WARMUP + COUNT):
        worker.put(requests, inputs, channels_last=True)
        if scattered:  # the same places, each taken by itself, so that no two follow one another in one block
            size = inputs[0].nbytes
            for request in requests:
                worker.post(Take((request,), request * size, tuple(inputs.shape[1:]), "float32", True))
            worker.flush()
        time.sleep(PAUSE_S)
        begin_ns = time.monotonic_ns()
        worker.send(run)
        answer = worker.receive()
        assert isinstance(answer, Finished), answer
        total_s.append((time.monotonic_ns() - begin_ns) / 1e9)
        forward_s.append(answer.forward_s)
    return np.asarray(total_s[WARMUP:]), np.asarray(forward_s[WARMUP:])


if __name__ == "__main__":
    print(json.dumps(measure(), indent=1))
