"""The network that rivals serve, at full width, executed as by our workers; and the rivals' settings."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from hw.device_settings import DeviceSpec
from hw.networks.network_files import ModelFile
from hw.worker.instances import Instances, open_device
from policies.vocabulary import IMAGE


@dataclass(frozen=True)
class Settings:
    """Settings of a rival.

    Attributes:
        workers: number of workers, each on a separate core.
        batch: largest batch in images.
        wait_s: batching delay.
        is_fast: LitServe's `fast_queue`.
        taken: a file to which each worker appends a byte: the next one takes the next core.
    """

    model: Path
    port: int
    workers: int
    batch: int
    wait_s: float
    is_fast: bool
    taken: Path

    def take_core(self) -> int:
        """Take a core that no other worker has."""
        file = os.open(self.taken, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, b"x")
        return (os.lseek(file, 0, os.SEEK_CUR) - 1) % self.workers


def settings() -> Settings:
    """Parse the command line."""
    parser = argparse.ArgumentParser()
    for name, kind in (("model", Path), ("port", int), ("workers", int), ("batch", int), ("wait-s", float)):
        parser.add_argument(f"--{name}", type=kind, required=True)
    parser.add_argument("--is-fast", action="store_true")
    parser.add_argument("--taken", type=Path, required=True)
    return Settings(**vars(parser.parse_args()))


class FullWidth:
    """The network on one core."""

    def __init__(self, path: Path, core: int) -> None:
        device = DeviceSpec(cores=(core,))
        torch_device = open_device(device)
        model, _ = ModelFile(path).load()
        instances = Instances(model, path, device, torch_device)
        self._chain = [instances.make(segment, 1.0) for segment in range(1, model.spec.segments + 1)]
        self._shape, self._format = model.spec.input_shape, device.memory_format

    def labels(self, images: NDArray[np.float32]) -> list[int]:
        """Return the labels of (n, values of an image)."""
        with torch.inference_mode():
            x = torch.from_numpy(images.reshape(-1, *self._shape)).to(memory_format=self._format)
            previous = IMAGE
            for instance in self._chain:
                x, previous = instance.run(x, 1.0, previous), 1.0
            labels: list[int] = x.argmax(1).tolist()
        return labels
