"""The slimmable ResNet: slices, widths and costs."""

from __future__ import annotations

import itertools
from math import prod
from pathlib import Path

import pytest
import torch

from hw.device import DeviceSpec
from hw.devices.instances import Instances
from hw.networks.conformance import RULES, broken_rules
from hw.networks.registry import Network
from hw.networks.slimresnet import PRESETS, SlimResNet, SlimResNetConfig
from tests.hw.worlds import TINY, TINY_NETWORK, TINY_SPEC, tiny_model


def test_an_instance_gives_exactly_what_the_model_gives(model: SlimResNet) -> None:
    """Every instance that is wide enough computes bit for bit what `forward_segment` does, for every work key."""
    torch.manual_seed(0)
    with torch.inference_mode():
        for segment, width, previous in TINY_SPEC.work_keys():
            x = torch.randn(3, *model.activation_shape(segment - 1, previous))
            wanted = model.forward_segment(x, segment, width, previous)
            for own in (own for own in TINY.widths if own >= width):
                assert torch.equal(model.instance(segment, own).run(x, width, previous), wanted)


def test_narrow_weights_are_slices_of_wide_ones(model: SlimResNet) -> None:
    """The weights of a narrower instance are the leading slices of a wider one's, in memory of their own."""
    for segment, (narrow, wide) in itertools.product((1, 2, 3), itertools.combinations(TINY.widths, 2)):
        small, large = model.instance(segment, narrow), model.instance(segment, wide)
        for name, tensor in small.weights.items():
            assert torch.equal(tensor, large.weights[name][tuple(slice(0, n) for n in tensor.shape)])
            assert tensor.is_contiguous()
            assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()


def test_groups_have_a_constant_number_of_channels() -> None:
    """GroupNorm's groups hold the same channels at every width: channels of a narrow net see the same neighbors."""
    for config, width in itertools.product(PRESETS.values(), (0.25, 0.5, 0.75, 1.0)):
        for segment in range(1, config.segments + 1):
            assert config.channels(segment, width) % config.channels_per_group == 0


def test_extra_width_changes_nothing_in_the_first_groups(model: SlimResNet) -> None:
    """At one input, the first normalized channels of a wide convolution are those of the narrow one."""
    x = torch.randn(2, 8, 8, 8)
    kernel, scale, shift = torch.randn(8, 8, 3, 3), torch.randn(8), torch.randn(8)
    narrow, wide = (
        model._convolve({"c": kernel[:n], "c_scale": scale[:n], "c_shift": shift[:n]}, "c", x, 1, 1) for n in (4, 8)
    )
    torch.testing.assert_close(wide[:, :4], narrow)


class Strided(SlimResNet):
    """Odd sizes, two blocks, no full number of strides."""

    def __init__(self) -> None:
        super().__init__(SlimResNetConfig(2, 9, 5, 8, 2, 2, strides=(2, 2)))


OURS = [*map(Network, PRESETS), TINY_NETWORK, Network("tests.hw.test_slimresnet:Strided")]


@pytest.mark.parametrize("network", OURS, ids=lambda network: network.name)
def test_our_networks_keep_the_rules(network: Network) -> None:
    """Every one of them; the closed form of cost among these is what is counted."""
    assert RULES
    assert broken_rules(network) == {}


def test_segments_hold_all_weights_once() -> None:
    """The segments' parameters at full width are the network's."""
    model = Network("slimresnet-tiny").build()
    found = sum(model.cost(s, 1.0, model.spec.widest_input(s)).params for s in range(1, model.spec.segments + 1))
    assert found == sum(parameter.numel() for parameter in model.parameters())


def test_networks_have_their_published_sizes() -> None:
    """Millions of multiply-accumulates and parameters, at full width and at a quarter (`calibration.md`)."""
    sizes = {
        "slimresnet18": ((1.0, 560e6, 11.2e6), (0.25, 45e6, 0.72e6)),
        "slimresnet-tiny": ((1.0, 16.4e6, 0.32e6), (0.25, 1.94e6, 23e3)),
    }
    for name, rows in sizes.items():
        model = Network(name).build()
        for width, macs, params in rows:
            costs = [model.cost(s, width, 0.0 if s == 1 else width) for s in range(1, 5)]
            assert sum(c.macs for c in costs) == pytest.approx(macs, rel=0.05)
            assert sum(c.params for c in costs) == pytest.approx(params, rel=0.05)


def test_what_is_illegal_is_refused(model: SlimResNet) -> None:
    """Unknown widths, segments and previous widths raise, and so does a width above the instance's."""
    x = torch.zeros(1, 1, 8, 8)
    for segment, width, previous in ((0, 1.0, 0.0), (4, 1.0, 1.0), (1, 0.3, 0.0), (1, 1.0, 1.0), (2, 1.0, 0.0)):
        with pytest.raises(ValueError, match="not"):
            model.forward_segment(x, segment, width, previous)
    with pytest.raises(ValueError, match="cannot serve"):
        model.instance(1, 0.5).run(x, 1.0, 0.0)
    with pytest.raises(ValueError, match="channels_per_group"):
        SlimResNetConfig(1, 8, 10, 8, 1, 3)


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
def test_packed_weights_lie_in_order_and_compute_the_same(order: torch.memory_format) -> None:
    """Slices for narrower inputs are laid out once; what they take is counted, and given back with the instance."""
    model, place = tiny_model(), torch.device("cpu")
    plain = model.instance(2, 1.0).to(place, torch.float32, order)
    packed = model.instance(2, 1.0).to(place, torch.float32, order, packs=True)
    for previous in model.spec.previous_widths(2):
        x = torch.randn(3, *model.activation_shape(1, previous)).contiguous(memory_format=order)
        torch.testing.assert_close(packed.run(x, 1.0, previous), plain.run(x, 1.0, previous), rtol=1e-5, atol=1e-5)
        views = packed._views[1.0, previous]
        assert all(kernel.is_contiguous(memory_format=order) for kernel in views.values() if kernel.dim() == 4)
    narrower = [p for p in model.spec.previous_widths(2) if p < 1.0]
    extra = sum(
        4 * prod(shape)
        for p in narrower
        for name, shape in model.weight_shapes(2, 1.0, p).items()
        if shape[1:] != model.instance_shapes(2, 1.0)[name][1:]
    )
    assert packed.weight_bytes == plain.weight_bytes + extra > plain.weight_bytes
    device = DeviceSpec(channels_last=order == torch.channels_last, packed_weights=True)
    maker = Instances(model, Path("none"), device, place)
    instance = maker.make(2, 1.0)
    assert maker.budget.used_bytes == instance.weight_bytes == packed.weight_bytes
    maker.free(instance)
    assert maker.budget.used_bytes == 0
