"""Several models in one file, so that one cluster serves them all: memory, placement and batching are common.

Each keeps its own widths. Together they are the ranks of one width set, the first model's before the second's, and no
key mixes two models. A request's class decides its model. All have the same numbers of segments and classes. If images
are a whole number k of times as large as a model's own, it sees every k-th pixel.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

import torch
from torch import Tensor, nn

from hw.networks.servable import Instance, ModelSpec, SegmentCost, Servable, Shape
from kit.errors import InputError
from policies.vocabulary import IMAGE

MAX_WIDTHS: Final = 62


class Part(NamedTuple):
    """One of the models: its name in requests' classes, and its network with that network's `label`."""

    name: str
    network: str
    model: Servable


class _Own(NamedTuple):
    """A model's own width, and the model's number."""

    part: int
    width: float


class JoinedModels(Servable):
    """See the module's docstring.

    Raises:
        InputError: they do not belong together.
    """

    def __init__(self, parts: tuple[Part, ...], source: str = "model") -> None:
        super().__init__()
        self.networks = {part.name: part.network for part in parts}
        self.parts = nn.ModuleList(part.model for part in parts)
        self._spec = _joined({part.name: part.model.spec for part in parts}, source)
        own = [_Own(number, width) for number, part in enumerate(parts) for width in part.model.spec.widths]
        self._own = dict(zip(self._spec.widths, own, strict=True))
        self._steps = [self._spec.input_shape[1] // part.model.spec.input_shape[1] for part in parts]

    @property
    def spec(self) -> ModelSpec:
        """See `Servable`."""
        return self._spec

    def _of(self, segment: int, width: float, previous_width: float | None = None) -> tuple[Servable, float, float]:
        """Return a model, and its own widths; raises `ValueError` if the key does not exist."""
        previous_width = self._spec.widest_input(segment, width) if previous_width is None else previous_width
        self._spec.require(segment, width, previous_width)
        own = self._own[width]
        model = self.parts[own.part]
        assert isinstance(model, Servable), "nothing else is among them"
        return model, own.width, IMAGE if previous_width == IMAGE else self._own[previous_width].width

    def forward_segment(self, x: Tensor, segment: int, width: float, previous_width: float) -> Tensor:
        """See `Servable`."""
        model, own, previous = self._of(segment, width, previous_width)
        if segment == 1:
            x = _every(x, self._steps[self._own[width].part])
        return model.forward_segment(x, segment, own, previous)

    def instance(self, segment: int, width: float, path: Path | None = None, prefix: str = "") -> JoinedInstance:
        """See `Servable`."""
        model, own, _ = self._of(segment, width)
        part = self._own[width].part
        made = model.instance(segment, own, path, f"{prefix}parts.{part}.")
        widths = {each: its.width for each, its in self._own.items() if its.part == part}
        return JoinedInstance(made, width, {IMAGE: IMAGE, **widths}, self._steps[part] if segment == 1 else 1)

    def instance_bytes(self, segment: int, width: float, element_bytes: int = 4) -> int:
        """See `Servable`."""
        model, own, _ = self._of(segment, width)
        return model.instance_bytes(segment, own, element_bytes)

    def activation_shape(self, segment: int, width: float) -> Shape:
        """See `Servable`."""
        if segment == 0:
            return self._spec.input_shape
        model, own, _ = self._of(segment, width)
        return model.activation_shape(segment, own)

    def cost(self, segment: int, width: float, previous_width: float) -> SegmentCost:
        """See `Servable`."""
        model, own, previous = self._of(segment, width, previous_width)
        return model.cost(segment, own, previous)


class JoinedInstance:
    """An instance of one of several models; see `hw.networks.servable.Instance`.

    Args:
        widths: its model's own.
        step: k; it sees every k-th pixel.
    """

    def __init__(self, instance: Instance, width: float, widths: Mapping[float, float], step: int) -> None:
        self.instance = instance
        self.width = width
        self._widths = widths
        self._step = step

    @property
    def segment(self) -> int:
        """See `Instance`."""
        return self.instance.segment

    @property
    def held_bytes(self) -> int:
        """See `Instance`."""
        return self.instance.held_bytes

    def run(self, x: Tensor, width: float, previous_width: float) -> Tensor:
        """See `Instance`."""
        if width not in self._widths or previous_width not in self._widths:
            raise ValueError(f"an instance of width {self.width} is of another model than {previous_width}, {width}")
        return self.instance.run(_every(x, self._step), self._widths[width], self._widths[previous_width])

    def to(self, device: torch.device, dtype: torch.dtype, memory_format: torch.memory_format) -> JoinedInstance:
        """See `Instance`."""
        return JoinedInstance(self.instance.to(device, dtype, memory_format), self.width, self._widths, self._step)


def _every(x: Tensor, step: int) -> Tensor:
    return x if step == 1 else x[..., ::step, ::step]


def _joined(specs: Mapping[str, ModelSpec], source: str) -> ModelSpec:
    """Return their common description for the rest of the system."""
    count = sum(len(spec.widths) for spec in specs.values())
    if len(specs) < 2 or count > MAX_WIDTHS:
        problem = f"{len(specs)} models of {count} widths; join at least 2, of at most {MAX_WIDTHS} widths in all"
        raise InputError(source, "", problem)
    first = next(iter(specs))
    channels, *extent = max((spec.input_shape for spec in specs.values()), key=lambda shape: shape[1])
    for spec in specs.values():
        sizes = [(large % own, large // own) for large, own in zip(extent, spec.input_shape[1:], strict=True)]
        fits = spec.input_shape[0] == channels and len(set(sizes)) == 1 and sizes[0][0] == 0
        if not fits or (spec.segments, spec.classes) != (specs[first].segments, specs[first].classes):
            has = {each: (*its.input_shape, its.segments, its.classes) for each, its in specs.items()}
            what = ", ".join(
                f"{each}: {c} x {h} x {w} in {s} segments, {n} classes" for each, (c, h, w, s, n) in has.items()
            )
            remedy = "take networks of as many segments and classes, whose images are alike or whole times as large"
            raise InputError(source, "", f"{what}; {remedy}")
    return ModelSpec(
        segments=specs[first].segments,
        widths=tuple(round(rank / count, 3) for rank in range(1, count + 1)),
        input_shape=(channels, *extent),
        classes=specs[first].classes,
        labels=tuple(f"{name} {spec.name_of(width)}" for name, spec in specs.items() for width in spec.widths),
        nests=tuple(n for spec in specs.values() for n in spec.nests or (len(spec.widths),)),
        models=tuple((name, len(spec.widths)) for name, spec in specs.items()),
    )
