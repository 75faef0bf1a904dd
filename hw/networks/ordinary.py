"""An ordinary network of a third party, torchvision's or timm's: made by its name, with randomly drawn weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor, nn

from hw.networks.servable import Servable
from kit.errors import InputError, in_a_line, nearest
from kit.plugins import blaming, own_class

TORCHVISION, TIMM = "torchvision", "timm"
LIBRARIES: Final = (TORCHVISION, TIMM)  # before the colon: one of its networks


@dataclass(frozen=True, slots=True)
class Named:
    """A network by its name.

    Attributes:
        name: `torchvision:resnet18`, or `module:Class`.
        options: the arguments of its constructor.
        source, key: of the name, for messages.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    source: str = "model"
    key: str = "network"


class Rescale(nn.Module):
    """Conversion of images from one normalisation to another: x * weight + bias, for each channel."""

    weight: Tensor
    bias: Tensor

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self.register_buffer("bias", bias)

    @classmethod
    def nothing(cls, channels: int) -> Rescale:
        """Return one that changes nothing."""
        return cls(torch.ones(channels), torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Convert images, (B, C, H, W) in and out."""
        return x * self.weight[:, None, None] + self.bias[:, None, None]


class GivenNetwork(nn.Module):
    """A network that takes a data set's images as they are normalised here; for use, not for training."""

    def __init__(self, rescale: nn.Module, network: nn.Module) -> None:
        super().__init__()
        self.rescale, self.network = rescale, network
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Compute (B, classes) logits of (B, C, H, W) images."""
        return logits_of(self.network(self.rescale(x)))


def logits_of(answer: Any) -> Tensor:
    """Return the logits of a network's answer: the answer itself, or its part as in networks of `transformers`."""
    logits: Tensor = answer["logits"] if isinstance(answer, Mapping) else answer
    return logits


def build_given(network: Named, classes: int) -> nn.Module:
    """Build an ordinary network with randomly drawn weights.

    Args:
        network: `torchvision:resnet18`, `timm:resnet18`, or `module:Class`.
        classes: of a library's network, if its options do not specify them.

    Raises:
        InputError: the network does not exist, or it can't be made.
    """
    if (make := library_maker(network)) is not None:
        name = network.name.partition(":")[2]
        with blaming(network.name, network.source, network.key):
            return make(name, {"num_classes": classes, **network.options}).eval()
    given = own_class(network.name, network.source, network.key)
    is_ordinary = isinstance(given, type) and issubclass(given, nn.Module) and not issubclass(given, Servable)
    if not is_ordinary:
        problem = "must be a class of torch.nn.Module that is not slimmable yet"
        raise InputError(network.source, network.key, f"{network.name!r} {problem}; name another")
    with blaming(network.name, network.source, network.key):
        module: nn.Module = given(**network.options)
    return module.eval()


_Make: TypeAlias = Callable[[str, dict[str, Any]], nn.Module]


def library_maker(network: Named) -> _Make | None:
    """Return the maker of a library's network; None for a class. Raises `InputError` if the library lacks it."""
    kind, _, name = network.name.partition(":")
    if kind not in LIBRARIES:
        return None
    known, make = _torchvision() if kind == TORCHVISION else _timm(network)
    if name not in known:
        problem = f"{kind} has no {name!r} that tells what an image is of"
        raise InputError(network.source, network.key, f"{problem}; {in_a_line(nearest(name, known), 120)}")
    return make


def _torchvision() -> tuple[list[str], _Make]:
    """Return its networks' names, and their maker."""
    from torchvision import models

    known = models.list_models(models)  # of images: others fetch parts of theirs as they are made
    return known, lambda name, options: models.get_model(name, **{**options, "weights": None})


def _timm(network: Named) -> tuple[list[str], _Make]:
    """See `_torchvision`; nothing is fetched, or opened."""
    try:
        import timm
    except ImportError:
        problem = f"{network.name!r}: timm is not installed; `pip install timm` puts it here"
        raise InputError(network.source, network.key, problem) from None
    nothing = {"pretrained": False, "checkpoint_path": ""}
    return timm.list_models(), lambda name, options: timm.create_model(name, **{**options, **nothing})
