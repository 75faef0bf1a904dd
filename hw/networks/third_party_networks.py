"""Ordinary networks of torchvision or timm by name, and torchvision's quantizable networks in int8 on a CPU.

`Int8Network` holds quantized tensors, which safetensors does not support. So its `state_dict` has three tensors for
each of them: its numbers in int8, its scales and its zero points.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
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
    maker = own_class(network.name, network.source, network.key)
    is_ordinary = isinstance(maker, type) and issubclass(maker, nn.Module) and not issubclass(maker, Servable)
    if not is_ordinary:
        problem = "must be a class of torch.nn.Module that is not slimmable yet"
        raise InputError(network.source, network.key, f"{network.name!r} {problem}; name another")
    with blaming(network.name, network.source, network.key):
        module: nn.Module = maker(**network.options)
    return module.eval()


_Make: TypeAlias = Callable[[str, dict[str, Any]], nn.Module]


def library_maker(network: Named) -> _Make | None:
    """Return the maker of a library's network; None for a class. Raises `InputError` if the library lacks it."""
    kind, _, name = network.name.partition(":")
    if kind not in LIBRARIES:
        return None
    names, make = _torchvision() if kind == TORCHVISION else _timm(network)
    if name not in names:
        problem = f"{kind} has no {name!r} that classifies images"
        raise InputError(network.source, network.key, f"{problem}; {in_a_line(nearest(name, names), 120)}")
    return make


def _torchvision() -> tuple[list[str], _Make]:
    """Return its networks' names, and their maker."""
    from torchvision import models

    names = models.list_models(models)  # of images: others fetch parts of theirs as they are made
    return names, lambda name, options: models.get_model(name, **{**options, "weights": None})


def _timm(network: Named) -> tuple[list[str], _Make]:
    """See `_torchvision`; nothing is fetched, or opened."""
    try:
        import timm
    except ImportError:
        problem = f"{network.name!r}: timm is not installed; `pip install timm` puts it here"
        raise InputError(network.source, network.key, problem) from None
    nothing = {"pretrained": False, "checkpoint_path": ""}
    return timm.list_models(), lambda name, options: timm.create_model(name, **{**options, **nothing})


_SCALES, _ZEROS = "_scales", "_zero_points"
_OF_LINEAR = "_packed_params._packed_params"


def build_quantizable(network: Named, classes: int) -> nn.Module:
    """Build a float32 network that can be quantized, with the ordinary one's names of weights.

    Raises:
        InputError: torchvision has none such.
    """
    from torchvision.models import get_model, list_models

    kind, _, name = network.name.partition(":")
    names = [each.removeprefix("quantized_") for each in list_models() if each.startswith("quantized_")]
    if kind != TORCHVISION or name not in names:
        allowed = in_a_line(nearest(name, names), 120)
        raise InputError(network.source, network.key, f"{network.name!r} has no int8 form in torchvision; {allowed}")
    with blaming(network.name, network.source, network.key):
        options = {"num_classes": classes, **network.options, "weights": None, "quantize": False}
        module: nn.Module = get_model(f"quantized_{name}", **options)
        return module.eval()


class Int8Network(nn.Module):
    """A network in int8; its inputs and outputs are float32.

    Args:
        network: see `build_quantizable`; it is used up.
        images: (n, C, H, W), as it takes them, by which the scales of activations are found; without any it is a
            structure that waits for a `state_dict`.
    """

    def __init__(self, network: nn.Module, images: Tensor | None = None) -> None:
        super().__init__()
        self._inner = [_quantized(network, images)]  # not as a part: it needs special code to be moved, cast and stored

    def forward(self, x: Tensor) -> Tensor:
        """Compute (B, classes) logits of (B, C, H, W) images."""
        logits: Tensor = self._inner[0](x)
        return logits

    def _save_to_state_dict(self, destination: dict[str, Tensor], prefix: str, keep_vars: bool) -> None:
        destination.update((prefix + name, tensor) for name, tensor in _plain(self._inner[0].state_dict()))

    def _load_from_state_dict(
        self, state_dict: dict[str, Tensor], prefix: str, _: Any, __: bool, missing_keys: list[str], *rest: Any
    ) -> None:
        state = self._inner[0].state_dict()
        missing = [prefix + name for name, _ in _plain(state) if prefix + name not in state_dict]
        missing_keys.extend(missing)
        if not missing:
            for name, value in state.items():
                state[name] = _as_stored(name, value, state_dict, prefix)
            self._inner[0].load_state_dict(state)


def _quantized(network: nn.Module, images: Tensor | None) -> nn.Module:
    from torch.ao import quantization as torch_ao

    quantization: Any = torch_ao  # it has no types
    with warnings.catch_warnings():  # of a move to torchao, to which torchvision has not moved, and of no images
        warnings.simplefilter("ignore")
        network.fuse_model(is_qat=False)  # type: ignore[operator]
        network.qconfig = quantization.get_default_qconfig(torch.backends.quantized.engine)
        quantization.prepare(network, inplace=True)
        if images is not None:
            with torch.inference_mode():
                for part in torch.split(images, 32):
                    network(part)
        converted: nn.Module = quantization.convert(network, inplace=True)
    return converted


def _plain(state: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """Yield tensors that any file can hold."""
    for name, value in state.items():
        if name.endswith(_OF_LINEAR):
            yield from _parts(name, value[0])
            yield f"{name}_bias", value[1].detach()
        elif isinstance(value, Tensor):
            yield from _parts(name, value)


def _parts(name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    if not tensor.is_quantized:
        yield name, tensor.detach()
        return
    yield name, tensor.int_repr()
    yield name + _SCALES, tensor.q_per_channel_scales()
    yield name + _ZEROS, tensor.q_per_channel_zero_points()


def _as_stored(name: str, value: Any, state: Mapping[str, Tensor], prefix: str) -> Any:
    """Return the stored form of a quantized network's value in a `state_dict`."""
    if isinstance(value, tuple):
        return _as_stored(name, value[0], state, prefix), state[f"{prefix}{name}_bias"]
    if not isinstance(value, Tensor):
        return value
    numbers = state[prefix + name]
    if not value.is_quantized:
        return numbers
    scales, zeros = state[prefix + name + _SCALES], state[prefix + name + _ZEROS]
    axis = value.q_per_channel_axis()
    shape = [-1 if dimension == axis else 1 for dimension in range(numbers.dim())]
    exact = (numbers - zeros.view(shape)) * scales.view(shape)  # rounds to the same numbers again
    return torch.quantize_per_channel(exact.float(), scales, zeros, axis, value.dtype)
