"""The slimmable ResNet: slices, widths and costs."""

from __future__ import annotations

import pytest
import torch

from hw.networks.architectures import SLIMRESNETS, SlimResNet, SlimResNetConfig
from hw.networks.network_checks import broken_rules
from hw.networks.network_files import Network
from tests.hw.tiny import TINY_NETWORK


def test_extra_width_changes_nothing_in_the_first_groups(model: SlimResNet) -> None:
    """At one input, the first normalized channels of a wide convolution are those of the narrow one."""
    x = torch.randn(2, 8, 8, 8)
    kernel, scale, shift = torch.randn(8, 8, 3, 3), torch.randn(8), torch.randn(8)
    narrow, wide = (
        model._convolve({"c": kernel[:n], "c_scale": scale[:n], "c_shift": shift[:n]}, "c", x, 1, 1) for n in (4, 8)
    )
    torch.testing.assert_close(wide[:, :4], narrow)


class Strided(SlimResNet):
    """Odd sizes, two micro-batches, no full number of strides."""

    def __init__(self) -> None:
        super().__init__(SlimResNetConfig(2, 9, 5, 8, 2, 2, strides=(2, 2)))


LARGE = {"large-digit-pairs", "slimresnet18"}  # many seconds; of one code with the others
OURS = [
    *(pytest.param(Network(name), marks=[pytest.mark.release] if name in LARGE else []) for name in SLIMRESNETS),
    TINY_NETWORK,
    Network("tests.hw.test_slimresnet:Strided"),
]


@pytest.mark.parametrize("network", OURS, ids=lambda network: network.name)
def test_our_networks_keep_the_rules(network: Network) -> None:
    """Every one of them; the closed form of cost among these is what is counted."""
    assert broken_rules(network) == {}


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


def test_model_with_an_illegal_width_or_segment_raises(model: SlimResNet) -> None:
    """Unknown widths, segments and previous widths raise, and so does a width above the instance's."""
    x = torch.zeros(1, 1, 8, 8)
    for segment, width, previous in ((0, 1.0, 0.0), (4, 1.0, 1.0), (1, 0.3, 0.0), (1, 1.0, 1.0), (2, 1.0, 0.0)):
        with pytest.raises(ValueError, match="not"):
            model.forward_segment(x, segment, width, previous)
    with pytest.raises(ValueError, match="cannot serve"):
        model.instance(1, 0.5).run(x, 1.0, 0.0)
    with pytest.raises(ValueError, match="channels_per_group"):
        SlimResNetConfig(1, 8, 10, 8, 1, 3)
