"""An ordinary ResNet with BatchNorm, as torchvision has it, with a stem for small grey images.

`python plain.py` trains it on pairs of digits, shows how many of the test images it gets right, and writes `plain.pt`.
"""

from __future__ import annotations

import time  # noqa: TID251 - it shows what it took

import torch
import torch.nn.functional as F
from torch import nn
from torchvision.models.resnet import BasicBlock, ResNet

from hw.networks.datasets import load_dataset

EPOCHS, BATCH, RATE = 8, 64, 0.1


class Plain(ResNet):  # type: ignore[misc]
    """Four stages of one micro-batch; the stem keeps the image's size."""

    def __init__(self, channels: int = 24) -> None:
        super().__init__(BasicBlock, [1, 1, 1, 1], num_classes=100)
        self.conv1, self.bn1 = nn.Conv2d(1, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)
        self.maxpool = nn.Identity()
        self.inplanes = channels
        for stage in range(4):
            made = self._make_layer(BasicBlock, channels << stage, 1, stride=1 if stage == 0 else 2)
            setattr(self, f"layer{stage + 1}", made)
        self.fc = nn.Linear(channels << 3, 100)


def main() -> None:
    """Plain training, as anybody does it."""
    torch.manual_seed(0)
    data, network, begin_s = load_dataset("digit-pairs"), Plain(), time.process_time()
    images, labels = torch.from_numpy(data.train_images), torch.from_numpy(data.train_labels)
    optimizer = torch.optim.SGD(network.parameters(), RATE, momentum=0.9, weight_decay=5e-4, nesterov=True)
    steps = EPOCHS * len(labels) // BATCH
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        chosen = torch.randint(len(labels), (BATCH,))
        optimizer.zero_grad()
        F.cross_entropy(network(images[chosen]), labels[chosen], label_smoothing=0.05).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
    network.eval()
    with torch.inference_mode():
        right = network(torch.from_numpy(data.test_images)).argmax(1) == torch.from_numpy(data.test_labels)
    torch.save(network.state_dict(), "plain.pt")
    print(f"{100 * right.float().mean():.1f} % in {time.process_time() - begin_s:.0f} CPU-seconds")


if __name__ == "__main__":
    main()
