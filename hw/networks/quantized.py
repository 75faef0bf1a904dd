"""int8 on a CPU, by torchvision's quantizable networks: kernels by output channel, activations by sample images.

Such a network holds quantized tensors, which safetensors does not support: in a `state_dict` each is its numbers in
int8, its scales and its zero points.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from hw.networks.ordinary import TORCHVISION, Named
from kit.errors import InputError, in_a_line, nearest
from kit.plugins import blaming

_SCALES, _ZEROS = "_scales", "_zero_points"
_OF_LINEAR = "_packed_params._packed_params"


def build_quantizable(network: Named, classes: int) -> nn.Module:
    """Build a float32 network that can be quantized, with the ordinary one's names of weights.

    Raises:
        InputError: torchvision has none such.
    """
    from torchvision.models import get_model, list_models

    kind, _, name = network.name.partition(":")
    known = [each.removeprefix("quantized_") for each in list_models() if each.startswith("quantized_")]
    if kind != TORCHVISION or name not in known:
        allowed = in_a_line(nearest(name, known), 120)
        raise InputError(network.source, network.key, f"{network.name!r} has no int8 form in torchvision; {allowed}")
    with blaming(network.name, network.source, network.key):
        options = {"num_classes": classes, **network.options, "weights": None, "quantize": False}
        found: nn.Module = get_model(f"quantized_{name}", **options)
        return found.eval()


class Int8Network(nn.Module):
    """A network in int8; its inputs and outputs are float32.

    Args:
        network: see `build_quantizable`; it is used up.
        images: (n, C, H, W), as it takes them, by which the scales of activations are found; without any it is a
            structure that waits for a `state_dict`.
    """

    def __init__(self, network: nn.Module, images: Tensor | None = None) -> None:
        super().__init__()
        self._held = [_quantized(network, images)]  # not as a part: it needs special code to be moved, cast and stored

    def forward(self, x: Tensor) -> Tensor:
        """Compute (B, classes) logits of (B, C, H, W) images."""
        logits: Tensor = self._held[0](x)
        return logits

    def _save_to_state_dict(self, destination: dict[str, Tensor], prefix: str, keep_vars: bool) -> None:
        destination.update((prefix + name, tensor) for name, tensor in _plain(self._held[0].state_dict()))

    def _load_from_state_dict(
        self, state_dict: dict[str, Tensor], prefix: str, _: Any, __: bool, missing_keys: list[str], *rest: Any
    ) -> None:
        own = self._held[0].state_dict()
        missing = [prefix + name for name, _ in _plain(own) if prefix + name not in state_dict]
        missing_keys.extend(missing)
        if not missing:
            for name, value in own.items():
                own[name] = _as_stored(name, value, state_dict, prefix)
            self._held[0].load_state_dict(own)


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
        found: nn.Module = quantization.convert(network, inplace=True)
    return found


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
    shape = [-1 if place == axis else 1 for place in range(numbers.dim())]
    exact = (numbers - zeros.view(shape)) * scales.view(shape)  # rounds to the same numbers again
    return torch.quantize_per_channel(exact.float(), scales, zeros, axis, value.dtype)
