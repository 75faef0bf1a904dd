"""Does slimming pay on a device? Every segment and the whole network at every uniform width, with their baselines.

python -m benchmarks.speed.slimming slimresnet18 --device cpu:0 --json slimming.json

What is timed is what serves: instances as `hw.worker.instances.Instances` makes them, and `serve` from single
activations on. All that is compared runs in turns. Ways: `served` is an instance of that very width, `views` one of
full width that runs narrower. Baselines of the full width start from the same images: `plain stack` is torchvision's
blocks with BatchNorm, `one piece` all segments in one call, `torch.compile` that compiled.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock

from benchmarks.speed.harness import in_turns, show, write
from hw.device_settings import DeviceSpec
from hw.networks.architectures import SlimResNet, SlimResNetConfig
from hw.networks.network_files import Network
from hw.networks.servable import Instance, Row, gather, rows_of
from hw.networks.slimmable import SlimmableModel
from hw.worker.activations import in_format
from hw.worker.instances import Instances, open_device, serve
from policies.vocabulary import IMAGE
from scenarios.executors.device_choice import chosen_devices

BATCHES: Final = (1, 8, 32, 128)
FULL: Final = 1.0
Pass = Callable[[], object]


def plain_stack(config: SlimResNetConfig) -> nn.Sequential:
    """Build the same shapes at full width as torchvision would; without a projection in segment 1."""
    layers: list[nn.Module] = []
    channels = config.base_channels
    layers += [nn.Conv2d(config.in_channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU()]
    for segment, stride in enumerate(config.strides, start=1):
        for block in range(config.blocks_per_segment):
            width, step = config.channels(segment, FULL), stride if block == 0 else 1
            projection = None
            if step != 1 or channels != width:
                projection = nn.Sequential(nn.Conv2d(channels, width, 1, step, bias=False), nn.BatchNorm2d(width))
            layers.append(BasicBlock(channels, width, step, projection))
            channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, config.classes))


@dataclass(frozen=True)
class OpenedNetwork:
    """A network on an opened device, with an instance of each segment and width."""

    model: SlimmableModel
    device: DeviceSpec
    torch_device: torch.device
    instances: dict[tuple[int, float], Instance]

    @classmethod
    def of(cls, model: SlimmableModel, device: DeviceSpec) -> OpenedNetwork:
        """Open the device in this process: pins it, and sets torch's threads permanently."""
        torch_device = open_device(device)
        weights = Instances(model, Path(), device, torch_device)
        segments = range(1, model.spec.segments + 1)
        instances = {(s, w): weights.make(s, w) for s in segments for w in model.spec.widths}
        return cls(model, device, torch_device, instances)

    def rows(self, segment: int, previous: float, batch: int) -> tuple[Row, ...]:
        """Return the inputs of a segment: images as they arrive, or activations as a segment outputs them."""
        shape = self.model.activation_shape(segment - 1, previous)
        values = torch.randn(batch, *shape, generator=torch.Generator().manual_seed(0)).relu_()
        placed = values.to(self.torch_device, self.device.torch_dtype)
        return tuple(rows_of(placed if segment == 1 else in_format(placed, self.device.memory_format)))

    def served(self, segments: Sequence[int], width: float, held: float, batch: int) -> Pass:
        """Return a pass: rows in, single rows between segments, labels out at the end; the device is then idle."""
        first = IMAGE if segments[0] == 1 else width
        inputs = self.rows(segments[0], first, batch)

        def run() -> None:
            rows, previous = inputs, first
            for segment in segments:
                y = serve(self.instances[segment, held], rows, (width, previous, batch), self.device.memory_format)
                rows, previous = tuple(rows_of(y)), width
            if segments[-1] == self.model.spec.segments:
                y.argmax(dim=1).tolist()

        return run

    def one_piece(self, batch: int, compute: Callable[[Tensor], Tensor] | None = None) -> Pass:
        """Return a pass at full width in a single call, from single images to labels."""
        rows, call = self.rows(1, IMAGE, batch), compute or self.compute
        return lambda: call(in_format(gather(rows), self.device.memory_format)).argmax(dim=1).tolist()

    def compute(self, x: Tensor) -> Tensor:
        """Map (B, C, H, W) images to (B, classes) logits at full width."""
        for segment in range(1, self.model.spec.segments + 1):
            x = self.instances[segment, FULL].run(x, FULL, IMAGE if segment == 1 else FULL)
        return x

    def baselines(self, batch: int, *, is_compiled: bool) -> dict[str, Pass]:
        """Return the available baselines at full width."""
        baselines = {"one piece": self.one_piece(batch)}
        if isinstance(self.model, SlimResNet):
            plain = plain_stack(self.model.config).eval().to(self.torch_device, self.device.torch_dtype)
            baselines["plain stack"] = self.one_piece(batch, plain.to(memory_format=self.device.memory_format))
        if is_compiled:
            torch.compiler.reset()  # torch stops compiling after some shapes, and would run uncompiled
            baselines["torch.compile"] = self.one_piece(
                batch, torch.compile(self.compute, fullgraph=True, dynamic=False)
            )
        return baselines


def rows_at(stand: OpenedNetwork, batch: int, *, is_compiled: bool, rounds: int) -> list[dict[str, object]]:
    """Time the whole network, then each segment, at every width; the full width's baselines with the network."""
    segments, rows = range(1, stand.model.spec.segments + 1), list[dict[str, object]]()
    for which in (tuple(segments), *((segment,) for segment in segments)):
        widths = stand.model.spec.widths
        passes = {("served", width): stand.served(which, width, width, batch) for width in widths}
        passes |= {("views", width): stand.served(which, width, FULL, batch) for width in widths if width != FULL}
        if len(which) > 1:
            passes |= {(name, FULL): run for name, run in stand.baselines(batch, is_compiled=is_compiled).items()}
        turns = in_turns(passes, rounds=rounds, turn_s=0.06)
        for (mode, width), turn in turns.items():
            ratio = turn.over(turns["served", FULL])
            ideal = _macs(stand.model, which, width) / _macs(stand.model, which, FULL)
            saved = None if ideal >= 1 else (1 - ratio.median) / (1 - ideal)
            rows.append({"segment": which[0] if len(which) == 1 else "all", "batch": batch, "width": width, "way": mode,
                          "ms": 1000 * turn.median_s, "of full": ratio.median, "q1": ratio.q1, "q3": ratio.q3,
                          "ideal": ideal, "saved": saved})  # fmt: skip
    return rows


def _macs(model: SlimmableModel, segments: Sequence[int], width: float) -> int:
    """Return the multiply-accumulates of one image at a uniform width."""
    return sum(model.cost(segment, width, IMAGE if segment == 1 else width).macs for segment in segments)


def main() -> None:
    """Print a table; `saved` is the fraction of the ideal saving."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", help="by name, or module:Class")
    parser.add_argument("--device", help="cuda:0, cpu:1 ...; the first one here by default")
    parser.add_argument("--batch", type=int, nargs="+", default=list(BATCHES))
    parser.add_argument("--compile", action="store_true", help="time torch.compile, too: a minute a batch size")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    name, device = chosen_devices(options.device)[0]
    stand = OpenedNetwork.of(Network(options.network, {}, "NETWORK", "").build(), device)
    rows = []
    with torch.inference_mode():
        for batch in options.batch:
            rows += rows_at(stand, batch, is_compiled=options.compile, rounds=options.rounds)
    show(f"{options.network} on {name}", list(rows[0]), [list(row.values()) for row in rows])
    write(options.json, rows)


if __name__ == "__main__":
    main()
