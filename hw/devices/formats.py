"""Finds the fastest of several ways to compute on a device: one block through the whole network, in each of them.

A library's preference cannot be derived: a norm that supports only one order of memory converts feature maps before and
after it. So it is measured, in a separate process: it leaves no context behind.
"""

from __future__ import annotations

import time  # noqa: TID251 - real passes are timed with a real clock
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from statistics import median
from typing import Final

import torch
from torch import Tensor

from hw.device import DeviceSpec
from hw.devices.gpu import own_stream
from hw.devices.instances import Instances, open_device, serve
from hw.host.apart import Tell, apart
from hw.networks.registry import ModelFile
from hw.networks.rows import rows_of
from hw.networks.servable import Instance
from kit.errors import WorkError, in_a_line
from policies.vocabulary import IMAGE

MAY_LOSE: Final = 0.004  # of the labels, more than the first way loses: one of 256, a tie; more is another network
WORTH: Final = 0.98  # of the time: less of a gain is noise, and the first way is taken
ROUNDS: Final = 20
_WARM_ROUNDS: Final = 3
_IMAGES: Final = 256  # 5 s of 16 cores for the largest network that is bundled


@dataclass(frozen=True, slots=True)
class Way:
    """The result of one way of computing.

    Attributes:
        device: with this way's settings.
        block_s: by its images, the median time of a block through all segments at the widest.
        agreement: share of the labels of drawn images that equal those of the CPU's float32.
    """

    device: DeviceSpec
    block_s: Mapping[int, float]
    agreement: float

    @property
    def pass_s(self) -> float:
        """The time of the largest block."""
        return self.block_s[max(self.block_s)]

    def __str__(self) -> str:
        order = "channels_last" if self.device.channels_last else "contiguous"
        return f"{self.device.dtype} {order} {1e3 * self.pass_s:.3g} ms, {100 * self.agreement:.1f} % of labels"


def race(file: ModelFile, ways: Sequence[DeviceSpec], batches: Sequence[int]) -> list[Way]:
    """Return each way of computing on one device, timed in turns in a separate process.

    Args:
        batches: images of the blocks that are timed.

    Raises:
        InputError: the file is not a model.
        WorkError: the device failed.
    """
    try:
        return apart(partial(raced, file, ways, batches), lambda *_: None)
    except WorkError as error:
        what = in_a_line(str(error))
        raise WorkError(f"the ways to compute on {ways[0].kind}:{ways[0].index} can't be timed: {what}") from None


def quickest(ways: Sequence[Way]) -> Way:
    """Return the fastest way whose labels are the CPU's; the first one if no other is notably faster."""
    best = ways[0]
    for way in ways[1:]:
        if way.agreement >= ways[0].agreement - MAY_LOSE and way.pass_s < WORTH * best.pass_s:
            best = way
    return best


def raced(
    file: ModelFile, ways: Sequence[DeviceSpec], batches: Sequence[int], tell: Tell = lambda *_: None
) -> list[Way]:
    """Do as `race`, in this process."""
    place = open_device(ways[0])
    model, _ = file.load()
    generator = torch.Generator().manual_seed(0)
    images, block = (torch.randn(n, *model.spec.input_shape, generator=generator) for n in (_IMAGES, max(batches)))
    with torch.inference_mode(), own_stream(place):
        right = model(images, (model.spec.widths[-1],) * model.spec.segments).argmax(dim=1)
        runners = [_Runner(Instances(model, file.path, way, place)) for way in ways]
        agreements = [float((runner.labels(images) == right).double().mean()) for runner in runners]
        laps = list(product(runners, sorted(batches, reverse=True)))
        for runner, batch in laps:
            for _ in range(_WARM_ROUNDS):
                runner.timed_s(block[:batch])
        rounds = [[runner.timed_s(block[:batch]) for runner, batch in laps] for _ in range(ROUNDS)]
    medians_s = dict(zip(laps, map(median, zip(*rounds, strict=True)), strict=True))
    return [
        Way(way, {batch: medians_s[runner, batch] for batch in batches}, agreement)
        for way, runner, agreement in zip(ways, runners, agreements, strict=True)
    ]


class _Runner:
    """All segments at the widest, in one way."""

    def __init__(self, maker: Instances) -> None:
        self._maker = maker
        spec = maker.model.spec
        self._instances: list[Instance] = [maker.make(s, spec.widths[-1]) for s in range(1, spec.segments + 1)]

    def labels(self, images: Tensor) -> Tensor:
        """Return the labels of drawn images (n, C, H, W); (n,) on the CPU."""
        return torch.cat([self._run(part).argmax(dim=1).cpu() for part in torch.split(images, 64)])

    def timed_s(self, images: Tensor) -> float:
        """Return the time of one block, from its images on the host to its logits."""
        begin_ns = time.monotonic_ns()
        self._run(images)
        return (time.monotonic_ns() - begin_ns) / 1e9

    def _run(self, images: Tensor) -> Tensor:
        x = images.to(self._maker.place, self._maker.device.torch_dtype)
        previous = IMAGE
        for instance in self._instances:
            rows = rows_of(x)
            x = serve(instance, rows, instance.width, previous, len(rows), self._maker.device.memory_format)
            previous = instance.width
        return x.float()
