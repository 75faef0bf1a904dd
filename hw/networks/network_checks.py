"""Whether a network keeps the rules of what can be served, and whether CUDA graphs can hold its passes.

Rules: `slimsched model check module:Class` checks them, the training of a user's network does before it begins, and the
project's tests do for its own networks. Each rule is checked for every work key, on the CPU, with random weights.

Capture: a captured pass (`hw.worker.cuda`) is a fixed list of kernels. During the capture nothing may wait for the
device: no number may be read back, no shape may depend on numbers, nothing may be copied from or to the host's pageable
memory. `uncapturable` uses torch's fake tensors, which hold no numbers, so an operation that would wait raises an
error. A network that can't be captured is still served, with each kernel launched separately.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from threading import Barrier, Thread
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.nn import Parameter
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hw.networks.model_families import JoinedInstance, MemberInstance
from hw.networks.network_files import Buildable, Network, model_hash
from hw.networks.servable import Instance, Key, Servable, counted
from hw.networks.slimmable import SegmentInstance, SlimmableModel, slice_weights
from kit.errors import InputError
from kit.plugins import FAILURES, failure
from policies.vocabulary import IMAGE

BATCH = 3
AT_ONCE = 20  # passes of each of two instances: with one module for both, most of them go wrong
RELATIVE = 1e-3  # of the largest number: other batch sizes and memory layouts use kernels with other summation orders


@dataclass(frozen=True)
class Subject:
    """A network under examination, and its test inputs: for each key, an example of an input."""

    network: Buildable
    model: Servable
    inputs: dict[Key, Tensor]

    @property
    def slimmable(self) -> SlimmableModel:
        """The network, if a rule is of slimmable ones."""
        assert isinstance(self.model, SlimmableModel), "no other is asked"
        return self.model

    @property
    def work_keys(self) -> list[Key]:
        """Every legal key."""
        return self.model.spec.work_keys()


class Finding(NamedTuple):
    """A broken rule, its place, and the remedy; `is_basic`: the other rules mean nothing then."""

    problem: str
    remedy: str
    is_basic: bool


class _BrokenError(Exception):
    """A rule is broken; the text states the place. The remedy is the rule's if none is given."""

    def __init__(self, problem: str, remedy: str = "", *, is_basic: bool = False) -> None:
        super().__init__(problem)
        self.remedy, self.is_basic = remedy, is_basic


_NOT_RUN = (
    "the numbers are segment, width and previous_width, at which run_segment could not run; look at the line that is "
    "named: weights have the shapes of weight_shapes, x is the output of the previous segment; use nothing else"
)


@contextmanager
def _running(key: Key) -> Iterator[None]:
    """Report errors of the user's code within it with the key."""
    try:
        yield
    except FAILURES as error:
        raise _BrokenError(f"at {key} it fails: {failure(error)}", _NOT_RUN) from None


def _says_its_spec(subject: Subject) -> None:
    again = subject.network.build()
    if again.spec != subject.model.spec:
        raise _BrokenError(f"built twice, its spec is {subject.model.spec} and then {again.spec}")
    shapes = [{n: tuple(t.shape) for n, t in model.state_dict().items()} for model in (subject.model, again)]
    if shapes[0] != shapes[1]:
        raise _BrokenError("built twice, its weights have other names or shapes")
    if not isinstance(subject.model, SlimmableModel):
        return
    reported = tuple(f"{name}." for name in _batch_norms(subject.model))
    for name, tensor in (*subject.model.named_parameters(), *subject.model.named_buffers()):
        if name.startswith(reported):
            continue
        if not tensor.is_floating_point() or name not in shapes[0]:
            raise _BrokenError(f"{name} is {tensor.dtype}, or not persistent: weights and buffers are kept as floats")


def _slices_its_weights(subject: Subject) -> None:
    model, state = subject.slimmable, subject.model.state_dict()
    for segment, width, previous in subject.work_keys:
        shapes = model.weight_shapes(segment, width, previous)
        widest = model.weight_shapes(segment, 1.0, model.spec.widest_input(segment))
        for name, shape in shapes.items():
            location = f"{name} at {(segment, width, previous)}"
            if name not in state:
                raise _BrokenError(f"{location} is not in its state_dict")
            if name not in widest or not _fits(shape, widest[name]) or not _fits(widest[name], state[name].shape):
                raise _BrokenError(f"{location} has shape {shape}: no leading slice of {tuple(state[name].shape)}")
        for wider in (candidate for candidate in model.spec.widths if candidate > width):
            larger = model.weight_shapes(segment, wider, previous)
            if any(name not in larger or not _fits(shape, larger[name]) for name, shape in shapes.items()):
                raise _BrokenError(f"at {(segment, width, previous)} it takes weights that width {wider} does not hold")


def _fits(shape: tuple[int, ...], into: tuple[int, ...]) -> bool:
    return len(shape) == len(into) and all(1 <= size <= limit for size, limit in zip(shape, into, strict=True))


def _gives_its_shapes(subject: Subject) -> None:
    if _batch_norms(subject.model):
        return  # shapes are found without numbers, and it has some: already reported
    for key, x in subject.inputs.items():
        with _running(key):
            y = subject.model.forward_segment(x, *key)
            shape = (len(x), *subject.model.activation_shape(key[0], key[1]))
        if tuple(y.shape) != shape:
            raise _BrokenError(f"at {key} it gives {tuple(y.shape)}, expected {shape}")
        if not y.is_floating_point() or not bool(torch.isfinite(y).all()):
            raise _BrokenError(f"at {key} it gives {y.dtype} numbers, or some that are not finite")


def _keeps_no_state(subject: Subject) -> None:
    before = model_hash(subject.model.state_dict())
    for key, x in subject.inputs.items():
        copy = x.clone()
        first = subject.model.forward_segment(x, *key)
        if not torch.equal(x, copy):
            raise _BrokenError(f"at {key} it changes its input")
        if not torch.equal(first, subject.model.forward_segment(x, *key)):
            raise _BrokenError(f"at {key} the same input gives another result the second time")
    if model_hash(subject.model.state_dict()) != before:
        raise _BrokenError("a forward pass changes its weights or buffers")


def _knows_no_neighbours(subject: Subject) -> None:
    for key, x in subject.inputs.items():
        together = subject.model.forward_segment(x, *key)
        alone = subject.model.forward_segment(x[:1], *key)
        if not _are_one(together[:1], alone):
            raise _BrokenError(f"at {key} an image's result depends on the others of its batch")


def _are_one(output: Tensor, expected: Tensor) -> bool:
    """Return whether they are equal up to rounding, which is relative to the largest number."""
    return output.shape == expected.shape and bool((output - expected).abs().max() <= RELATIVE * expected.abs().max())


def _has_no_batch_norm(model: Servable) -> None:
    """Refuse BatchNorm by name, and first: by its buffers, which are not our weights, it breaks other rules as well."""
    if names := _batch_norms(model):
        several = f"{', '.join(names[:3])}{' ...' if len(names) > 3 else ''}"
        problem = "its statistics are of one width (`slimsched model slim` makes a trained network slimmable)"
        raise _BrokenError(f"{several}: BatchNorm: {problem}", is_basic=True)


def _batch_norms(model: Servable) -> list[str]:
    """Return the BatchNorms that a slimmable network can't have."""
    if not isinstance(model, SlimmableModel):
        return []
    kinds = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
    return [name for name, part in model.named_modules() if isinstance(part, kinds)]


def _serves_from_instances(subject: Subject) -> None:
    """Spoil the network's own weights, so that an instance that uses them is detected."""
    model = subject.model
    for segment in range(1, model.spec.segments + 1):
        keys = [key for key in subject.work_keys if key[0] == segment]
        expected = {key: model.forward_segment(subject.inputs[key], *key) for key in keys}
        instances = {width: model.instance(segment, width) for width in model.spec.widths}
        with _spoiled(model):
            for alone, instance in instances.items():
                for key in (key for key in keys if model.spec.serves(alone, key[1])):
                    output = instance.run(subject.inputs[key], key[1], key[2])
                    if not _are_one(output, expected[key]):
                        raise _BrokenError(
                            f"an instance of width {alone} gives other numbers at {key} than the network"
                        )
    _serves_in_channels_last(subject)


def _serves_in_channels_last(subject: Subject) -> None:
    """Run in the layout of executors' instances and of training; `view` of a feature map fails, not `flatten`."""
    order = torch.channels_last
    for (segment, width, previous), x in subject.inputs.items():
        instance = subject.model.instance(segment, width).to(x.device, x.dtype, order)
        laid_out = x.contiguous(memory_format=order) if x.dim() == 4 else x
        expected = subject.model.forward_segment(x, segment, width, previous)
        try:
            output = instance.run(laid_out, width, previous)
        except RuntimeError as error:
            raise _BrokenError(f"at {(segment, width, previous)} with channels last in memory: {error}") from None
        if not _are_one(output, expected):
            raise _BrokenError(f"at {(segment, width, previous)} with channels last in memory it gives other numbers")


@contextmanager
def _spoiled(model: Servable) -> Iterator[None]:
    """Overwrite the model's weights inside the block, and restore them."""
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for tensor in model.state_dict().values():
        tensor.fill_(7)
    yield
    model.load_state_dict(state)


def _holds_its_own_memory(subject: Subject) -> None:
    model = subject.model
    for segment in range(1, model.spec.segments + 1):
        for width in model.spec.widths:
            instance = model.instance(segment, width)
            if instance.held_bytes != model.instance_bytes(segment, width):
                size = f"{instance.held_bytes} bytes, expected {model.instance_bytes(segment, width)}"
                raise _BrokenError(f"the instance of segment {segment} at width {width} holds {size}")
            if not isinstance(instance, SegmentInstance):
                continue
            stored = sum(tensor.untyped_storage().nbytes() for tensor in instance.weights.values())
            if stored != instance.held_bytes:
                raise _BrokenError(f"the instance of segment {segment} at width {width} keeps {stored} bytes alive")


def _serves_beside_others(subject: Subject) -> None:
    """Run two lanes at once, each with a separate instance, as in an executor."""
    model, spec = subject.model, subject.model.spec
    for segment in range(1, spec.segments + 1):
        keys = [(segment, width, spec.widest_input(segment)) for width in (spec.widths[0], spec.widths[-1])]
        lanes = [(model.instance(*key[:2]), key, subject.inputs[key]) for key in keys]
        expected = [instance.run(x, *key[1:]) for instance, key, x in lanes]
        wrong_keys, start = list[Key](), Barrier(len(lanes))

        def work(instance: Instance, key: Key, x: Tensor, alone: Tensor) -> None:
            start.wait()  # noqa: B023 - of this segment's lanes, which end within it
            with torch.inference_mode():
                outputs = [_unless_it_fails(instance, x, key) for _ in range(AT_ONCE)]
            if not all(output is not None and _are_one(output, alone) for output in outputs):
                wrong_keys.append(key)  # noqa: B023

        threads = [Thread(target=work, args=(*lane, alone)) for lane, alone in zip(lanes, expected, strict=True)]
        with _switching_often():
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        if wrong_keys:
            raise _BrokenError(f"at {wrong_keys[0]} it gives other numbers while another instance runs, too")


@contextmanager
def _switching_often() -> Iterator[None]:
    """Switch threads often, so that passes of microseconds overlap, too."""
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(interval_s)


def _unless_it_fails(instance: Instance, x: Tensor, key: Key) -> Tensor | None:
    try:
        return instance.run(x, *key[1:])
    except FAILURES:
        return None


def _counts_its_cost(subject: Subject) -> None:
    model = subject.slimmable
    for key, x in subject.inputs.items():
        shapes = model.weight_shapes(*key)
        weights = slice_weights(model.state_dict(), shapes)
        counts, y = counted(lambda key=key, weights=weights, x=x[:1]: model.run_segment(key[0], weights, x))  # type: ignore[misc]
        cost = model.cost(*key)
        params = sum(prod(shape) for shape in shapes.values())
        expected = (counts.macs, params, y.numel() * y.element_size())
        if (cost.macs, cost.params, cost.activation_bytes) != expected:
            raise _BrokenError(f"at {key} it returns {cost}; expected (macs, params, activation_bytes) = {expected}")
        if min(cost.moved_bytes, cost.kernels) < 1:
            raise _BrokenError(f"at {key} it returns {cost}: nothing moved or launched")


def _costs_more_when_wider(subject: Subject) -> None:
    model, spec = subject.slimmable, subject.model.spec
    for segment, width, previous in subject.work_keys:
        cost = model.cost(segment, width, previous)
        for wider in (candidate for candidate in spec.widths if candidate > width):
            wider_cost = model.cost(segment, wider, previous)
            if (cost.macs > wider_cost.macs) or (cost.params > wider_cost.params):
                raise _BrokenError(f"at {(segment, width, previous)} it costs more than at width {wider}")
    narrow, full = (_uniform_macs(model, spec.widths[index]) for index in (0, -1))
    if len(spec.widths) > 1 and narrow >= full:
        raise _BrokenError(f"{narrow} multiply-accumulates at its narrowest, {full} at full width: nothing is saved")


def _uniform_macs(model: SlimmableModel, width: float) -> int:
    segments = range(1, model.spec.segments + 1)
    return sum(model.cost(segment, width, IMAGE if segment == 1 else width).macs for segment in segments)


def _can_learn(subject: Subject) -> None:
    model = subject.slimmable
    images = torch.randn(BATCH, *model.spec.input_shape)
    model.zero_grad(set_to_none=True)
    with torch.inference_mode(False), torch.enable_grad():
        for width in model.spec.widths:  # an early exit's head learns at its own alone
            model(images.clone(), (width,) * model.spec.segments).square().mean().backward()
    missing = [
        name for name, parameter in model.named_parameters() if parameter.requires_grad and parameter.grad is None
    ]
    model.zero_grad(set_to_none=True)
    if missing:
        raise _BrokenError(f"no gradient reaches {', '.join(missing)} at any width")


# ------------------------------------------------------------------------------------------------------------ the rules


Check = Callable[[Subject], None]
RULES: dict[str, tuple[str, Check, str]] = {  # the rule, its check, and the remedy
    "spec": (
        "built twice with the same options, it is the same network without its weights",
        _says_its_spec,
        "make all of it from the class's options, and call super().__init__(); keep weights as floats",
    ),
    "slices": (
        "the weights at a width are leading slices of those at every larger one",
        _slices_its_weights,
        "weight_shapes(segment, width, previous_width) names parameters of the class, with the shape of the part of "
        "each; segments count from 1, and previous_width is 0 for the first",
    ),
    "shapes": (
        "what a segment gives depends, in shape, on the segment and its width alone",
        _gives_its_shapes,
        "run_segment(self, segment, weights, x) takes images of the spec's input_shape in segment 1, elsewhere what "
        "the segment before gives; the last gives (images, classes)",
    ),
    "no state": (
        "a forward pass changes neither input nor weights, and gives the same again",
        _keeps_no_state,
        "compute in run_segment alone: no operation in place on x, no counters, no dropout",
    ),
    "no neighbours": (
        "an image's result does not depend on the other images of its batch",
        _knows_no_neighbours,
        "normalize each image separately: GroupNorm with a constant number of channels a group, or LayerNorm",
    ),
    "instances": (
        "an instance computes what the network does, from its own weights, at every width up to its own",
        _serves_from_instances,
        "run_segment takes all that it multiplies by from `weights`, by name, and nothing from self; and `flatten` or "
        "`reshape`, where `view` fails",
    ),
    "memory": (
        "an instance holds its own weights and no others",
        _holds_its_own_memory,
        "leave `instance` and `instance_bytes` as SlimmableModel has them",
    ),
    "concurrent": (
        "instances that run at once give what each gives alone",
        _serves_beside_others,
        "keep nothing in self during a pass: torch.func.functional_call puts weights into a module that all share",
    ),
    "cost": (
        "multiply-accumulates, parameters and activation bytes are what is counted",
        _counts_its_cost,
        "leave `cost` out, or correct it; it is counted on `meta` tensors, so run_segment has no .item(), no fixed "
        "device and no tensor of self",
    ),
    "order": (
        "a wider segment costs no less, and full width more than the narrowest",
        _costs_more_when_wider,
        "let each width take part of what the next wider one takes",
    ),
    "gradients": (
        "every parameter learns at some width",
        _can_learn,
        "name each parameter in weight_shapes and use it in run_segment, or leave it out of the class",
    ),
}
_BASIC = ("spec", "slices", "shapes")  # if one of these is broken, the others mean nothing
_OF_SLIMMABLE = ("slices", "cost", "order", "gradients")  # a family's members are not slimmable


def rules_of(model: Servable) -> list[str]:
    """Return the rules that such a network must keep."""
    return [name for name in RULES if isinstance(model, SlimmableModel) or name not in _OF_SLIMMABLE]


def broken_rules(network: Buildable) -> dict[str, Finding]:
    """Return the rules that a network breaks, by name; raises `InputError` if it can't even be built."""
    torch.manual_seed(0)
    model = network.build()
    with torch.no_grad():
        broken = _found("no neighbours", lambda: _has_no_batch_norm(model)) | _found("spec", lambda: _stir(model))
        subject = Subject(network, model, {})
        for name in rules_of(model):
            check = RULES[name][1]
            if name == "shapes":
                broken |= _found("shapes", lambda: subject.inputs.update(_inputs(model)))
            if name not in (*broken, *unchecked_rules(broken)):
                broken |= _found(name, lambda check=check: check(subject))  # type: ignore[misc]
    return broken


def _stir(model: Servable) -> None:
    """Set it to eval mode, and perturb its weights: zeros of a fresh network may hide mistakes."""
    model.eval()
    for parameter in model.parameters():
        parameter.add_(torch.randn_like(parameter), alpha=0.05)


def unchecked_rules(broken: Mapping[str, Finding]) -> list[str]:
    """Return the rules that could not be checked because of these findings."""
    rules = [name for name in RULES if name not in (*_BASIC, *broken)]
    return rules if any(finding.is_basic for finding in broken.values()) else []


def _found(name: str, check: Callable[[], None]) -> dict[str, Finding]:
    remedy, is_basic = RULES[name][2], name in _BASIC
    try:
        check()
    except _BrokenError as error:
        return {name: Finding(str(error), error.remedy or remedy, error.is_basic or is_basic)}
    except FAILURES as error:  # a user's code may fail in any way
        return {name: Finding(failure(error), remedy, is_basic)}
    return {}


def _inputs(model: Servable) -> Iterator[tuple[Key, Tensor]]:
    """Yield real activations: images through the previous segments, each at the key's previous width."""
    before = {IMAGE: torch.randn(BATCH, *model.spec.input_shape)}
    for segment in range(1, model.spec.segments + 1):
        after: dict[float, Tensor] = {}
        for previous, x in before.items():
            for width in model.spec.widths:
                yield (segment, width, previous), x
                with _running((segment, width, previous)):
                    after[width] = model.forward_segment(x, segment, width, previous)
        before = after


def require_conformance(network: Network, made_of: Buildable | None = None) -> None:
    """Raise `InputError` with the first rule that a network (or its file, `made_of`) breaks."""
    for name, (problem, remedy, _) in broken_rules(made_of or network).items():
        broken = f"{network.name!r} breaks a rule: {RULES[name][0]} ({problem}): {remedy}"
        shows = "" if made_of else f"; `slimsched model check {network.name}` shows all"
        raise InputError(network.source, network.key, f"{broken}{shows}")


# ----------------------------------------------------------------------------------------------- capture by CUDA graphs


CAPTURED_BATCH: Final = 2
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
        model: that keeps `RULES`; its weights are not read.
    """
    segments = [Uncapturable(segment, _problem(model, segment)) for segment in range(1, model.spec.segments + 1)]
    return [entry for entry in segments if entry.problem]


def _problem(model: Servable, segment: int) -> str:
    """Return the obstacle to the capture of a segment; empty if there is none."""
    for width in model.spec.widths:
        previous = model.spec.widest_input(segment, width)
        shape = model.activation_shape(segment - 1, previous)
        instance, mode = model.instance(segment, width), _NoDevice(allow_non_fake_inputs=True)
        try:
            with mode, torch.no_grad():
                instance = _on_gpu(instance)
                x = torch.empty(CAPTURED_BATCH, *shape, device=GPU)
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
