"""A user's ordinary network, which knows nothing of widths: convolutions with BatchNorm on 8x8 digits."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from hw.networks.datasets import load_dataset


class Plain(nn.Sequential):
    """Two blocks of convolution, BatchNorm and ReLU, and a head."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10),
        )  # fmt: skip


def trained() -> Plain:
    """After three seconds."""
    torch.manual_seed(0)
    digits, module = load_dataset("digits"), Plain()
    x, y = torch.from_numpy(digits.train_images), torch.from_numpy(digits.train_labels)
    optimizer = torch.optim.SGD(module.parameters(), 0.05, 0.9)
    for step in range(120):
        part = torch.randperm(len(y), generator=torch.Generator().manual_seed(step))[:64]
        optimizer.zero_grad()
        F.cross_entropy(module(x[part]), y[part]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return module.eval()
