"""What all systems serve: one network at full width, on one core, and the bare loop that they are measured against.

All run the same instances with the same settings of torch: the whole chain in one call (the peers and the bare loop) or
a segment at a time (ours). So what differs is what stands around them.
"""

from __future__ import annotations

import gc
import json
import os
import time  # noqa: TID251 - a benchmark reads the clock
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.speed.peers.nothing import model_file
from hw.telemetry import usable_cores

BATCH_LIMIT = 16
IMAGES = 256  # different ones
PARTS = SATURATION, LOW_LOAD = ("saturation", "low_load")
MODEL = Path("scenarios/data/models/slimresnet-tiny.safetensors")

Pin = Literal["process", "thread", "none"]


@dataclass(frozen=True)
class Job:
    """One measurement of one system, in processes of its own.

    Attributes:
        system: `bare`, `ours`, `ray` or `litserve`.
        path: of the model's file; `shape` is its images'.
        settings: of the system; see `SETTINGS` of its module.
        parts: what of `PARTS` is measured.
        seconds: of saturation, and about as long of low load, one request each `interval_s`.
        overload_per_s: rate of requests that overloads the open loop (ours).
        core, other_cores: of the model, and of everything else.
    """

    system: str
    path: str
    shape: tuple[int, ...]
    settings: dict[str, Any]
    parts: tuple[str, ...]
    seconds: float
    interval_s: float
    overload_per_s: float
    core: tuple[int, ...]
    other_cores: tuple[int, ...]

    @property
    def requests(self) -> int:
        """Of the low load."""
        return max(20, round(self.seconds / self.interval_s))

    def as_json(self) -> str:
        """For another process."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Job:
        """What `as_json` gave."""
        found: dict[str, Any] = json.loads(text)
        for key in ("shape", "parts", "core", "other_cores"):
            found[key] = tuple(found[key])
        return cls(**found)


def split_cores() -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The model's core, and those of everything else (the same one, where there is only one)."""
    cores = usable_cores()
    return cores[:1], cores[1:] or cores


def pin_process(cores: Sequence[int]) -> None:
    """Every thread of this process, those that others have started as well, where the system can pin."""
    if hasattr(os, "sched_setaffinity"):
        tasks = Path("/proc/self/task")
        for task in [int(path.name) for path in tasks.iterdir()] if tasks.is_dir() else [0]:
            os.sched_setaffinity(task, cores)


def pin_thread(cores: Sequence[int]) -> None:
    """The calling thread alone."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)


class Chain:
    """The network in the process that serves it: bytes of images in, labels out. For one thread.

    Args:
        path: of the model's file.
        core: where it runs.
        pin: what of this process is pinned there.
    """

    def __init__(self, path: str, core: Sequence[int], pin: Pin = "process") -> None:
        if pin != "none":
            {"process": pin_process, "thread": pin_thread}[pin](core)
        torch.set_num_threads(1)
        model, _ = model_file(path).load()
        self.shape = model.spec.input_shape
        place = torch.device("cpu")
        self._instances = [
            model.instance(segment, 1.0).to(place, torch.float32, torch.channels_last)
            for segment in range(1, model.spec.segments + 1)
        ]
        if pin != "none" or core:
            gc.collect()
            gc.freeze()  # as our agents do

    def labels(self, images: Sequence[bytes]) -> list[int]:
        """One batch, whole."""
        arrays = [np.frombuffer(data, np.float32).reshape(self.shape) for data in images]
        x = torch.from_numpy(np.stack(arrays))
        return self.forward(x)

    def forward(self, x: torch.Tensor) -> list[int]:
        """(n, C, H, W) to n labels."""
        with torch.inference_mode():
            for instance in self._instances:
                previous_width = 0.0 if instance.segment == 1 else 1.0
                if x.dim() == 4:
                    x = x.contiguous(memory_format=torch.channels_last)
                x = instance.run(x, 1.0, previous_width)
            return x.argmax(dim=1).tolist()


def images(shape: Sequence[int]) -> NDArray[np.float32]:
    """(IMAGES, *shape), the same ones every time."""
    return np.random.default_rng(0).standard_normal((IMAGES, *shape), dtype=np.float32)


def measure_bare(job: Job) -> dict[str, float]:
    """The loop without a server: forwards of ready batches one after another, and single ones at the low load's pace.

    Returns:
        images_per_s: batches of `BATCH_LIMIT`, back to back.
        tight_s: median forward of batch 1, back to back.
        paced_s: the same with a pause before each, after which caches and clocks are as cold as a server finds them.
    """
    chain = Chain(job.path, job.core)
    data = torch.from_numpy(images(chain.shape))
    batch = data[:BATCH_LIMIT].clone()
    for _ in range(5):
        chain.forward(batch)
        chain.forward(batch[:1])
    begin_ns, done = time.monotonic_ns(), 0
    while (elapsed_s := (time.monotonic_ns() - begin_ns) / 1e9) < job.seconds:
        chain.forward(batch)
        done += BATCH_LIMIT
    singles = [data[index % IMAGES, None] for index in range(job.requests // 2)]
    tight = [_timed_s(chain, x, 0.0) for x in singles]
    paced = [_timed_s(chain, x, job.interval_s) for x in singles]
    return {
        "images_per_s": done / elapsed_s,
        "tight_s": float(np.median(tight)),
        "paced_s": float(np.median(paced)),
    }


def _timed_s(chain: Chain, x: torch.Tensor, pause_s: float) -> float:
    if pause_s:
        time.sleep(pause_s)
    begin_ns = time.monotonic_ns()
    chain.forward(x)
    return (time.monotonic_ns() - begin_ns) / 1e9


def true_labels(path: str) -> list[int]:
    """Of `images`, one at a time: what every system must answer."""
    chain = Chain(path, (), "none")
    return [chain.labels([image.tobytes()])[0] for image in images(chain.shape)]
