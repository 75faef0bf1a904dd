"""The slimmable vision Transformer: rules, sizes, heads, files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hw.networks.architectures import SLIMVITS, SlimVit
from hw.networks.network_checks import broken_rules
from hw.networks.network_files import ModelFile, Network, save_model


@pytest.mark.parametrize("name", ["slimvit-tiny", pytest.param("slimvit", marks=pytest.mark.release)])
def test_slimvit_breaks_no_rule(name: str) -> None:
    assert broken_rules(Network(name)) == {}


@pytest.mark.parametrize(
    "name, width, macs, params",
    [
        ("slimvit-tiny", 1.0, 23.4e6, 659e3),
        ("slimvit-tiny", 0.25, 1.85e6, 44.5e3),
        ("slimvit", 1.0, 105.8e6, 3.79e6),
        ("slimvit", 0.25, 7.67e6, 244e3),
    ],
)
def test_slimvit_has_its_published_size(name: str, width: float, macs: float, params: float) -> None:
    """Multiply-accumulates, those of attention among them, and parameters (`models.md`)."""
    model = Network(name).build()
    costs = [model.cost(s, width, 0.0 if s == 1 else width) for s in range(1, 5)]
    assert sum(cost.macs for cost in costs) == pytest.approx(macs, rel=0.01)
    assert sum(cost.params for cost in costs) == pytest.approx(params, rel=0.01)


def test_fewer_heads_are_the_leading_ones_whole() -> None:
    """Two of four heads compute what all do if nobody hears the others."""
    torch.manual_seed(0)
    model = SlimVit(SLIMVITS["slimvit-tiny"])
    prefix, head = "segment1_block0_", 16
    weights = {n: w.detach() for n, w in model.named_parameters() if n.startswith(prefix)}
    two = weights | {
        f"{prefix}heads": weights[f"{prefix}heads"][: 2 * 3 * head],
        f"{prefix}out": weights[f"{prefix}out"][:, : 2 * head],
    }
    unheard = weights[f"{prefix}out"].clone()
    unheard[:, 2 * head :] = 0
    x = torch.randn(2, 9, 64)
    heard = model._block(weights | {f"{prefix}out": unheard}, prefix, x, head)
    torch.testing.assert_close(model._block(two, prefix, x, head), heard)
    assert not torch.allclose(model._block(weights, prefix, x, head), heard)


def test_slimvit_takes_images_of_any_size() -> None:
    """Without a table of positions, images may grow during training."""
    model = SlimVit(SLIMVITS["slimvit-tiny"])
    with torch.no_grad():
        for pixels in (16, 24, 33):
            assert model(torch.randn(2, 3, pixels, pixels), (0.25, 1.0, 0.5, 0.75)).shape == (2, 100)


def test_slimvit_file_loads_without_a_network_given(tmp_path: Path) -> None:
    path, model = tmp_path / "model.safetensors", Network("slimvit-tiny").build()
    save_model(path, model, "slimvit-tiny", {})
    for network in (None, Network("slimvit-tiny")):
        found, _ = ModelFile(path, network).load()
        assert torch.equal(found.state_dict()["segment4_classes"], model.state_dict()["segment4_classes"])
