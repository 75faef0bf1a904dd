"""What checks work on: a network with random weights on a GPU, or (where there is none) on this machine's CPU."""

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
from hw.device import DeviceSpec
from hw.devices.instances import Instances, open_device
from hw.networks.registry import ModelFile, save_model
from hw.networks.slimmable import SlimmableModel
from hw.networks.slimresnet import PRESETS, SlimResNet
from hw.telemetry import usable_cores

NETWORKS: Final = {"cuda": "slimresnet18", "cpu": "digit-pairs"}  # a CPU would take minutes for the large one
SEED: Final = 0


class CantTellError(Exception):
    """Only a GPU can tell; the text says what."""


@dataclass(frozen=True)
class Stand:
    """Where and what a check tries.

    Attributes:
        kind: of the device.
        out: a folder for what it leaves.
    """

    kind: str
    out: Path

    def tell(self, numbers: Mapping[str, Any]) -> None:
        """What was measured by now, by name, units last: it counts whatever becomes of the check."""
        print(MARK + json.dumps({"numbers": dict(numbers)}, default=str), flush=True)

    @property
    def is_gpu(self) -> bool:
        """Whether it is one."""
        return self.kind == "cuda"

    def require_gpu(self, what: str) -> None:
        """Raises `CantTellError` on a CPU."""
        if not self.is_gpu:
            raise CantTellError(f"only a GPU has {what}")

    @cached_property
    def device(self) -> DeviceSpec:
        """As serving uses it."""
        if self.is_gpu:
            return DeviceSpec(kind="cuda", vram_bytes=torch.cuda.get_device_properties(0).total_memory)
        return DeviceSpec(cores=usable_cores()[:1])

    @cached_property
    def place(self) -> torch.device:
        """Opened as an agent opens it."""
        return open_device(self.device)

    @cached_property
    def model(self) -> SlimmableModel:
        """With random weights in every tensor, so that no mistake hides behind zeros."""
        torch.manual_seed(SEED)
        model = SlimResNet(PRESETS[NETWORKS[self.kind]])
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() == 1:
                    parameter.add_(0.1 * torch.randn_like(parameter))
        return model.eval()

    @cached_property
    def file(self) -> ModelFile:
        """The same on disk, in the evidence's folder: commands that are run elsewhere read it, too."""
        path = self.out.resolve() / "model.safetensors"
        path.parent.mkdir(parents=True, exist_ok=True)
        save_model(path, self.model, NETWORKS[self.kind], {})
        return ModelFile(path)

    def instances(self, **changes: object) -> Instances:
        """Makes instances; `changes` of the device."""
        device = replace(self.device, **changes)  # type: ignore[arg-type]
        return Instances(self.model, self.file.path, device, self.place)

    def activations(self, segment: int, previous_width: float, batch: int, seed: int = SEED) -> Tensor:
        """Like those of a real batch, on the CPU."""
        shape = self.model.activation_shape(segment - 1, previous_width)
        return torch.randn(batch, *shape, generator=torch.Generator().manual_seed(seed)).relu_()
