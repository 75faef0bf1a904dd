"""Several networks as one model: a family for one task, or joined models that share a cluster.

`Family`: each member is a width of a network with one segment. The cheapest member is the narrowest width, so that a
width is a rank. Each instance holds a separate member. (One module that serves two lanes with weights of each gives
wrong answers, and no error.) Members are served, never trained here: BatchNorm and dropout stay in eval mode.

`FamilyStructure` is plain data: it names networks of torchvision or timm, or a class, which the code that opens the
file must name as well.

`JoinedModels`: each model keeps its own widths. Together these are the ranks of one width set, the first model's before
the second's, and no key mixes two models. A request's class decides its model. All models have the same numbers of
segments and classes. If images are a whole number k of times as large as a model's own, the model gets every k-th
pixel.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple, Self, TypeAlias

import torch
from pydantic import Field, ValidationError, model_validator
from safetensors import safe_open
from torch import Tensor, nn

from hw.networks.accuracy_table import label_of
from hw.networks.servable import Instance, ModelSpec, SegmentCost, Servable, Shape, counted
from hw.networks.third_party_networks import (
    LIBRARIES,
    GivenNetwork,
    Int8Network,
    Named,
    Rescale,
    build_given,
    build_quantizable,
    logits_of,
)
from kit.errors import InputError
from kit.strict import Plain, StrictModel
from policies.vocabulary import IMAGE

Form: TypeAlias = Literal["float32", "bfloat16", "int8"]
MAX_MEMBERS: Final = 62  # kinds of instance that are reported to a router
Count = Annotated[int, Field(ge=1, le=1 << 20)]
_Text = Annotated[str, Field(min_length=1, max_length=200)]


class Member(StrictModel):
    """One network of a family.

    Attributes:
        label: its name for people.
        network: `torchvision:NAME`, `timm:NAME`, or `module:Class`.
        options: the arguments of its constructor.
        form: of its weights and activations, whatever its device's; `int8` for CPUs alone.
    """

    label: _Text
    network: _Text
    options: Plain = Field(default_factory=dict)
    form: Form = "float32"

    @property
    def text(self) -> str:
        """Name, options and form in one line."""
        form = "" if self.form == "float32" else f" {self.form}"
        return label_of(self.network, self.options) + form


def own_classes(members: Iterable[Member]) -> set[str]:
    """Return the users' classes, which are not a library's, and run only if their user names them."""
    return {member.network for member in members if member.network.partition(":")[0] not in LIBRARIES}


class FamilyStructure(StrictModel):
    """A family without its weights; members from the cheapest to the most expensive."""

    members: Annotated[tuple[Member, ...], Field(min_length=1, max_length=MAX_MEMBERS)]
    input_shape: tuple[Count, Count, Count]
    classes: Count

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Parse a structure; raises `ValueError` if it is not valid."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            detail = error.errors(include_url=False, include_context=False, include_input=False)[0]
            raise ValueError(f"{'.'.join(map(str, detail['loc']))}: {detail['msg']}") from None

    @model_validator(mode="after")
    def _differ(self) -> Self:
        if len({member.label for member in self.members}) < len(self.members):
            raise ValueError("two members have one label")
        return self

    @property
    def spec(self) -> ModelSpec:
        """The family's description for the rest of the system."""
        count = len(self.members)
        return ModelSpec(
            segments=1,
            widths=tuple(round(rank / count, 3) for rank in range(1, count + 1)),
            input_shape=self.input_shape,
            classes=self.classes,
            labels=tuple(member.label for member in self.members),
            nests=(1,) * count,
        )

    @property
    def label(self) -> str:
        """A description in one line: two families are the same if these are."""
        return f"family of {', '.join(member.text for member in self.members)}"


class Family(Servable):
    """Ordinary networks for one task, each of which is a width; see the module's docstring.

    Args:
        structure: of the family.
        source, key: of its name, for messages.

    Raises:
        InputError: a network can't be made.
    """

    def __init__(self, structure: FamilyStructure, source: str = "model", key: str = "family") -> None:
        super().__init__()
        self.structure = structure
        self.members = nn.ModuleList(self._empty(member, source, key) for member in structure.members)
        self.requires_grad_(requires_grad=False)
        self._costs: dict[float, SegmentCost] = {}

    def _empty(self, member: Member, source: str, key: str) -> MemberNetwork:
        """Return a member whose weights are to be filled."""
        network, classes = Named(member.network, member.options, source, key), self.structure.classes
        rescale = Rescale.nothing(self.structure.input_shape[0])
        if member.form == "int8":
            return MemberNetwork(rescale, Int8Network(build_quantizable(network, classes)), member.form)
        return MemberNetwork(rescale, build_given(network, classes), member.form)

    @property
    def spec(self) -> ModelSpec:
        """See `Servable`."""
        return self.structure.spec

    def train(self, mode: bool = True) -> Self:
        """Leave members in eval mode, whatever is asked for."""
        return super().train(mode=False)

    def member(self, width: float) -> MemberNetwork:
        """Return the member of this rank; raises `ValueError` if the width does not exist."""
        self.spec.require(1, width, IMAGE)
        member = self.members[self.spec.widths.index(width)]
        assert isinstance(member, MemberNetwork), "nothing else is among them"
        return member

    def forward_segment(self, x: Tensor, segment: int, width: float, previous_width: float) -> Tensor:
        """See `Servable`."""
        self.spec.require(segment, width, previous_width)
        logits: Tensor = self.member(width)(x)
        return logits

    def instance(self, segment: int, width: float, path: Path | None = None, prefix: str = "") -> MemberInstance:
        """See `Servable`."""
        self.spec.require(segment, width, IMAGE)
        module = copy.deepcopy(self.member(width))
        if path is not None:
            prefix = f"{prefix}members.{self.spec.widths.index(width)}."
            with safe_open(path, framework="pt") as file:
                module.load_state_dict({name: file.get_tensor(prefix + name) for name in module.state_dict()})
        return MemberInstance(module, width)

    def instance_bytes(self, segment: int, width: float, element_bytes: int = 4) -> int:
        """See `Servable`."""
        self.spec.require(segment, width, IMAGE)
        return self.member(width).held_bytes(element_bytes)

    def activation_shape(self, segment: int, width: float) -> Shape:
        """See `Servable`."""
        return (self.structure.classes,) if segment else self.structure.input_shape

    def cost(self, segment: int, width: float, previous_width: float) -> SegmentCost:
        """See `Servable`; counted in a dry run."""
        self.spec.require(segment, width, previous_width)
        if width not in self._costs:
            member = self.member(width)
            module = self._countable(width).to("meta")
            image = torch.empty((1, *self.structure.input_shape), device="meta")
            weights = (*module.parameters(), *module.buffers())
            counts, logits = counted(lambda: module(image), weights)
            numbers = member.held_bytes() // 4
            self._costs[width] = SegmentCost(
                counts.macs, numbers, 4 * logits[0].numel(), counts.moved_bytes, counts.kernels
            )
        return self._costs[width]

    def _countable(self, width: float) -> MemberNetwork:
        """Return a member that can be run without numbers: operations in int8 are counted as their float ones."""
        member = self.structure.members[self.spec.widths.index(width)]
        if member.form != "int8":
            return copy.deepcopy(self.member(width))
        return self._empty(member.model_copy(update={"form": "float32"}), "model", "family")


class MemberNetwork(GivenNetwork):
    """A member, in its form; it takes the family's images and converts their normalisation to its own."""

    def __init__(self, rescale: nn.Module, network: nn.Module, form: Form) -> None:
        super().__init__(rescale, network)
        self.form = form
        if form == "bfloat16":
            self.network.to(torch.bfloat16)

    def forward(self, x: Tensor) -> Tensor:
        """Compute (B, classes) logits of (B, C, H, W) images."""
        images = self.rescale(x)
        answer = self.network(images.to(torch.bfloat16) if self.form == "bfloat16" else images)
        return logits_of(answer).to(x.dtype)

    def held_bytes(self, element_bytes: int = 4) -> int:
        """Return the bytes of all weights, if a number of float32 takes this number of bytes."""
        tensors = self.state_dict().values()
        return sum(
            tensor.numel() * (element_bytes if tensor.dtype == torch.float32 else tensor.itemsize) for tensor in tensors
        )


class MemberInstance:
    """A member in separate memory; see `hw.networks.servable.Instance`."""

    segment: Final = 1

    def __init__(self, module: MemberNetwork, width: float) -> None:
        self.module = module
        self.width = width

    @property
    def held_bytes(self) -> int:
        """See `Instance`."""
        return sum(tensor.nbytes for tensor in self.module.state_dict().values())

    def run(self, x: Tensor, width: float, previous_width: float) -> Tensor:
        """See `Instance`."""
        if width != self.width:
            raise ValueError(f"an instance of width {self.width} cannot serve width {width}")
        logits: Tensor = self.module(x)
        return logits

    def to(self, device: torch.device, dtype: torch.dtype, memory_format: torch.memory_format) -> MemberInstance:
        """See `Instance`; a member's specific form stays."""
        if self.module.form == "int8" and device.type != "cpu":
            raise ValueError("int8 runs on CPUs alone")
        module = copy.deepcopy(self.module).to(device, memory_format=memory_format)  # type: ignore[call-overload]
        (module if module.form == "float32" else module.rescale).to(dtype)
        return MemberInstance(module, self.width)


def ranked(members: Sequence[Member], input_shape: Shape, classes: int) -> FamilyStructure:
    """Return the structure of members from the cheapest to the most expensive."""
    channels, height, width = input_shape
    return FamilyStructure(members=tuple(members), input_shape=(channels, height, width), classes=classes)


# -------------------------------------------------------------------------------------------------------- joined models


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
    """Several models that share a cluster; see the module's docstring.

    Raises:
        InputError: they do not belong together.
    """

    def __init__(self, parts: tuple[Part, ...], source: str = "model") -> None:
        super().__init__()
        self.networks = {part.name: part.network for part in parts}
        self.parts = nn.ModuleList(part.model for part in parts)
        self._spec = _joined({part.name: part.model.spec for part in parts}, source)
        own_widths = [_Own(number, width) for number, part in enumerate(parts) for width in part.model.spec.widths]
        self._own_widths = dict(zip(self._spec.widths, own_widths, strict=True))
        self._steps = [self._spec.input_shape[1] // part.model.spec.input_shape[1] for part in parts]

    @property
    def spec(self) -> ModelSpec:
        """See `Servable`."""
        return self._spec

    def _of(self, segment: int, width: float, previous_width: float | None = None) -> tuple[Servable, float, float]:
        """Return a model, and its own widths; raises `ValueError` if the key does not exist."""
        previous_width = self._spec.widest_input(segment, width) if previous_width is None else previous_width
        self._spec.require(segment, width, previous_width)
        own_width = self._own_widths[width]
        model = self.parts[own_width.part]
        assert isinstance(model, Servable), "nothing else is among them"
        return model, own_width.width, IMAGE if previous_width == IMAGE else self._own_widths[previous_width].width

    def forward_segment(self, x: Tensor, segment: int, width: float, previous_width: float) -> Tensor:
        """See `Servable`."""
        model, own_width, previous = self._of(segment, width, previous_width)
        if segment == 1:
            x = _every(x, self._steps[self._own_widths[width].part])
        return model.forward_segment(x, segment, own_width, previous)

    def instance(self, segment: int, width: float, path: Path | None = None, prefix: str = "") -> JoinedInstance:
        """See `Servable`."""
        model, own_width, _ = self._of(segment, width)
        part = self._own_widths[width].part
        instance = model.instance(segment, own_width, path, f"{prefix}parts.{part}.")
        widths = {joined: own.width for joined, own in self._own_widths.items() if own.part == part}
        return JoinedInstance(instance, width, {IMAGE: IMAGE, **widths}, self._steps[part] if segment == 1 else 1)

    def instance_bytes(self, segment: int, width: float, element_bytes: int = 4) -> int:
        """See `Servable`."""
        model, own_width, _ = self._of(segment, width)
        return model.instance_bytes(segment, own_width, element_bytes)

    def activation_shape(self, segment: int, width: float) -> Shape:
        """See `Servable`."""
        if segment == 0:
            return self._spec.input_shape
        model, own_width, _ = self._of(segment, width)
        return model.activation_shape(segment, own_width)

    def cost(self, segment: int, width: float, previous_width: float) -> SegmentCost:
        """See `Servable`."""
        model, own_width, previous = self._of(segment, width, previous_width)
        return model.cost(segment, own_width, previous)


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
        sizes = [(large % size, large // size) for large, size in zip(extent, spec.input_shape[1:], strict=True)]
        fits = spec.input_shape[0] == channels and len(set(sizes)) == 1 and sizes[0][0] == 0
        if not fits or (spec.segments, spec.classes) != (specs[first].segments, specs[first].classes):
            models = [
                f"{name}: {' x '.join(map(str, each.input_shape))} in {each.segments} segments, {each.classes} classes"
                for name, each in specs.items()
            ]
            remedy = "take networks with equal numbers of segments and of classes; image sizes may be integer multiples"
            raise InputError(source, "", f"{', '.join(models)}; {remedy}")
    return ModelSpec(
        segments=specs[first].segments,
        widths=tuple(round(rank / count, 3) for rank in range(1, count + 1)),
        input_shape=(channels, *extent),
        classes=specs[first].classes,
        labels=tuple(f"{name} {spec.name_of(width)}" for name, spec in specs.items() for width in spec.widths),
        nests=tuple(nest for spec in specs.values() for nest in spec.nests or (len(spec.widths),)),
        models=tuple((name, len(spec.widths)) for name, spec in specs.items()),
    )
