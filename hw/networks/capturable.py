"""Whether CUDA graphs can hold a network's passes, determined on any machine: by tensors that claim to be on a GPU.

A captured pass (`hw.devices.graphs`) is a fixed list of kernels. While it is captured, nothing may wait for the device:
no number may be read back, no shape may depend on numbers, nothing may be copied from or to the host's pageable memory.
torch's fake tensors hold no numbers, so an operation that would wait raises an error. A network that can't be captured
is served all the same, with each kernel launched separately.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.nn import Parameter
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hw.networks.family import MemberInstance
from hw.networks.joined import JoinedInstance
from hw.networks.servable import Instance, Servable
from kit.plugins import FAILURES, failure

BATCH: Final = 2
GPU: Final = torch.device("cuda")
REMEDY: Final = (
    "stay on the device: torch.where or a mask instead of `if`, float(), .item() and boolean indices; torch.full and "
    "torch.arange with device=x.device instead of torch.tensor"
)


class Uncapturable(NamedTuple):
    """A segment that no graph holds, and the obstacle; of several widths the first."""

    segment: int
    problem: str


class _HostCopyError(Exception):
    """A copy between host and device."""


def uncapturable(model: Servable) -> list[Uncapturable]:
    """Find the segments whose passes a GPU can't capture, or can't run at all.

    Args:
        model: that keeps the rules of `hw.networks.conformance`; its weights are not read.
    """
    found = [Uncapturable(segment, _problem(model, segment)) for segment in range(1, model.spec.segments + 1)]
    return [each for each in found if each.problem]


def _problem(model: Servable, segment: int) -> str:
    """Return the obstacle to the capture of a segment; empty if there is none."""
    for width in model.spec.widths:
        previous = model.spec.widest_input(segment, width)
        shape = model.activation_shape(segment - 1, previous)
        instance, mode = model.instance(segment, width), _NoDevice(allow_non_fake_inputs=True)
        try:
            with mode, torch.no_grad():
                instance = _on_gpu(instance)
                x = torch.empty(BATCH, *shape, device=GPU)
                with _NoHostCopies():  # type: ignore[no-untyped-call]
                    instance.run(x, width, previous)
        except DataDependentOutputException as error:
            return f"it reads numbers back from the device: {failure(error)}"
        except DynamicOutputShapeException as error:
            return f"a shape depends on numbers: {failure(error)}"
        except _HostCopyError as error:
            return f"it copies between host and device: {failure(error)}"
        except FAILURES as error:  # a user's code may fail in any way
            return f"it fails on a GPU: {failure(error)}"
    return ""


def _on_gpu(instance: Instance) -> Instance:
    """Return the instance with fake weights on a GPU."""
    if isinstance(instance, JoinedInstance):
        instance.instance = _on_gpu(instance.instance)
        return instance
    if not isinstance(instance, MemberInstance) or instance.module.form == "int8":
        return instance.to(GPU, torch.float32, torch.contiguous_format)
    for part in instance.module.modules():  # torch can't copy a module while tensors are fake, as `to` does
        for name, parameter in [*part.named_parameters(recurse=False)]:
            setattr(part, name, Parameter(parameter.to(GPU), requires_grad=False))
        for name, buffer in [*part.named_buffers(recurse=False)]:
            setattr(part, name, buffer.to(GPU))
    return instance


class _NoDevice(FakeTensorMode):  # type: ignore[no-untyped-call]
    """Acts as without a GPU: torch.tensor(..., device="cuda") is then a copy that shows on any machine."""

    avoid_device_init = True


class _NoHostCopies(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Raises `_HostCopyError` for a copy between devices."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default):
            devices = {leaf.device.type for leaf in tree_leaves((args, result)) if isinstance(leaf, Tensor)}
            if len(devices) > 1:
                raise _HostCopyError(str(func))
        return result
