"""A network that does next to nothing: what is left of a request is what stands around the network."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

from hw.networks.registry import ModelFile, Network, save_model
from hw.networks.slimmable import ModelSpec, Shape, SlimmableModel, Weights

NAME: Final = "nothing"  # in the place of a model's file
_NETWORK: Final = Network(f"{__name__}:Nothing")
_SEGMENTS: Final = 4


class Nothing(SlimmableModel):
    """Four segments that add a number to all that comes in; the largest of the first ten says the class."""

    def __init__(self) -> None:
        super().__init__()
        for segment in range(1, _SEGMENTS + 1):
            setattr(self, f"shift{segment}", nn.Parameter(torch.full((1,), float(segment))))

    @property
    def spec(self) -> ModelSpec:
        """Images of 12,288 bytes."""
        return ModelSpec(segments=_SEGMENTS, widths=(1.0,), input_shape=(3, 32, 32), classes=10)

    def weight_shapes(self, segment: int, width: float, previous_width: float) -> dict[str, Shape]:
        """One number."""
        return {f"shift{segment}": (1,)}

    def run_segment(self, segment: int, weights: Weights, x: Tensor) -> Tensor:
        """One addition."""
        shifted = x + weights[f"shift{segment}"]
        return shifted if segment < _SEGMENTS else shifted.flatten(1)[:, :10]


def model_file(path: str) -> ModelFile:
    """A network's file; the one of this network is opened under its name, as any user's class must be."""
    return ModelFile(Path(path), _NETWORK if Path(path).stem == NAME else None)


def write(folder: Path) -> Path:
    """Its file."""
    path = folder / f"{NAME}.safetensors"
    save_model(path, Nothing(), _NETWORK.label, {})
    return path
