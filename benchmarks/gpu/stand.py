"""Test environment of checks: a network with random weights on a GPU, or (without one) on this machine's CPU."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from benchmarks.gpu import MARK
from hw.device_settings import DeviceSpec
from hw.networks.architectures import SLIMRESNETS, SlimResNet
from hw.networks.network_files import ModelFile, save_model
from hw.networks.slimmable import SlimmableModel
from hw.telemetry import usable_cores
from hw.worker.instances import Instances, open_device

NETWORKS: Final = {"cuda": "slimresnet18", "cpu": "digit-pairs"}  # a CPU would take minutes for the large one
SEED: Final = 0


class CantTellError(Exception):
    """A check that needs a GPU; the text describes it."""


@dataclass(frozen=True)
class Stand:
    """Device and network of a check.

    Attributes:
        kind: kind of the device.
        out: a folder for its output.
    """

    kind: str
    out: Path

    def tell(self, numbers: Mapping[str, Any]) -> None:
        """Report measurements so far, by name, units last: they count whatever happens to the check."""
        print(MARK + json.dumps({"numbers": dict(numbers)}, default=str), flush=True)

    @property
    def is_gpu(self) -> bool:
        """Whether the device is a GPU."""
        return self.kind == "cuda"

    def require_gpu(self, what: str) -> None:
        """Raise `CantTellError` on a CPU."""
        if not self.is_gpu:
            raise CantTellError(f"only a GPU has {what}")

    @cached_property
    def device(self) -> DeviceSpec:
        """The device as serving uses it."""
        if self.is_gpu:
            return DeviceSpec(kind="cuda", vram_bytes=torch.cuda.get_device_properties(0).total_memory)
        return DeviceSpec(cores=usable_cores()[:1])

    @cached_property
    def torch_device(self) -> torch.device:
        """The device as a worker opens it."""
        return open_device(self.device)

    @cached_property
    def model(self) -> SlimmableModel:
        """The model with random weights in every tensor, so that no mistake is masked by zeros."""
        torch.manual_seed(SEED)
        model = SlimResNet(SLIMRESNETS[NETWORKS[self.kind]])
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() == 1:
                    parameter.add_(0.1 * torch.randn_like(parameter))
        return model.eval()

    @cached_property
    def file(self) -> ModelFile:
        """The model on disk, in the evidence's folder: commands that run elsewhere read it, too."""
        path = self.out.resolve() / "model.safetensors"
        path.parent.mkdir(parents=True, exist_ok=True)
        save_model(path, self.model, NETWORKS[self.kind], {})
        return ModelFile(path)

    def instances(self, **changes: object) -> Instances:
        """Create instances; `changes` of the device."""
        device = replace(self.device, **changes)  # type: ignore[arg-type]
        return Instances(self.model, self.file.path, device, self.torch_device)

    def activations(self, segment: int, previous_width: float, batch: int, seed: int = SEED) -> Tensor:
        """Return activations like those of a real batch, on the CPU."""
        shape = self.model.activation_shape(segment - 1, previous_width)
        return torch.randn(batch, *shape, generator=torch.Generator().manual_seed(seed)).relu_()
