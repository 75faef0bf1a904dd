"""The slimmable network: slices, widths, costs and files."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from hw.slimresnet import (
    PRESETS,
    SlimResNet,
    SlimResNetConfig,
    _convolve,
    activation_shape,
    cost,
    instance_bytes,
    load_model,
    model_hash,
    preset,
    save_model,
    save_tensors,
    tensor_shapes,
)
from policies.errors import InputError
from tests.hw.worlds import TINY, tiny_model


@pytest.fixture(scope="module")
def model() -> SlimResNet:
    return tiny_model()


def test_an_instance_gives_exactly_what_the_model_gives(model: SlimResNet) -> None:
    """Every instance that is wide enough computes bit for bit what `forward_segment` does, for every work key."""
    torch.manual_seed(0)
    with torch.inference_mode():
        for segment, width, previous in TINY.work_keys():
            x = torch.randn(3, *activation_shape(TINY, segment - 1, previous))
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


def test_extra_width_changes_nothing_in_the_first_groups() -> None:
    """At one input, the first normalized channels of a wide convolution are those of the narrow one."""
    x = torch.randn(2, 8, 8, 8)
    kernel, scale, shift = torch.randn(8, 8, 3, 3), torch.randn(8), torch.randn(8)
    narrow, wide = (
        _convolve(TINY, {"c": kernel[:n], "c_scale": scale[:n], "c_shift": shift[:n]}, "c", x, 1, 1) for n in (4, 8)
    )
    torch.testing.assert_close(wide[:, :4], narrow)


STRIDED = SlimResNetConfig(2, 9, 5, 8, 2, 2, strides=(2, 2))


@pytest.mark.parametrize("config", [PRESETS["digits"], PRESETS["slimresnet-tiny"], STRIDED])
def test_cost_is_what_is_counted(config: SlimResNetConfig) -> None:
    """MACs equal half of torch's counted flops; parameters and bytes equal those of the tensors that run."""
    model = SlimResNet(config)
    with torch.inference_mode():
        for segment, width, previous in config.work_keys():
            x = torch.randn(1, *activation_shape(config, segment - 1, previous))
            with FlopCounterMode(display=False) as counter:
                y = model.forward_segment(x, segment, width, previous)
            found = cost(config, segment, width, previous)
            assert found.macs * 2 == counter.get_total_flops()
            assert found.activation_bytes == y.numel() * y.element_size()
            assert tuple(y.shape[1:]) == activation_shape(config, segment, width)
            shapes = tensor_shapes(config, segment, width, previous).values()
            assert found.params == sum(torch.Size(shape).numel() for shape in shapes)
            instance = model.instance(segment, width)
            assert instance.weight_bytes == instance_bytes(config, segment, width)
    assert sum(
        cost(config, s, 1.0, config.previous_widths(s)[-1]).params for s in range(1, config.segments + 1)
    ) == sum(parameter.numel() for parameter in model.parameters())


def test_the_full_network_has_the_published_size() -> None:
    """The slimmable ResNet-18 has about 560 MMAC and 11.2 M parameters, and 45 MMAC and 0.72 M at a quarter."""
    config = PRESETS["slimresnet18"]
    for width, macs, params in ((1.0, 560e6, 11.2e6), (0.25, 45e6, 0.72e6)):
        costs = [cost(config, s, width, 0.0 if s == 1 else width) for s in range(1, 5)]
        assert sum(c.macs for c in costs) == pytest.approx(macs, rel=0.02)
        assert sum(c.params for c in costs) == pytest.approx(params, rel=0.02)


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
    with pytest.raises(InputError, match="did you mean 'digits'"):
        preset("digit")


def test_files_come_back_and_foreign_ones_are_refused(model: SlimResNet, tmp_path: Path) -> None:
    """A saved model is loaded bit for bit; truncated, foreign and tampered files are the user's error."""
    path = tmp_path / "folder" / "model.safetensors"
    save_model(path, model, {"note": "kept"})
    loaded, metadata = load_model(path)
    assert loaded.config == model.config
    assert metadata["note"] == "kept"
    assert metadata["hash"] == model_hash(model.state_dict()) == model_hash(loaded.state_dict())
    assert list(path.parent.iterdir()) == [path]

    with pytest.raises(InputError, match="missing"):
        load_model(tmp_path / "missing.safetensors")
    (tmp_path / "cut.safetensors").write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InputError, match="safetensors"):
        load_model(tmp_path / "cut.safetensors")
    save_tensors(tmp_path / "foreign.safetensors", {"x": torch.zeros(1)}, {"schema": "other/1"})
    with pytest.raises(InputError, match="schema"):
        load_model(tmp_path / "foreign.safetensors")
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    (tmp_path / "flipped.safetensors").write_bytes(raw)
    with pytest.raises(InputError, match="hash"):
        load_model(tmp_path / "flipped.safetensors")


def test_the_hash_tells_weights_apart(model: SlimResNet) -> None:
    """One changed number changes the hash; memory layout does not."""
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    first = model_hash(state)
    name = next(name for name, tensor in state.items() if tensor.dim() == 4)
    state[name] = state[name].contiguous(memory_format=torch.channels_last)
    assert model_hash(state) == first
    state[name][0, 0, 0, 0] += 1
    assert model_hash(state) != first
