"""Networks by name and their files; whoever breaks a rule of slimmable networks is found out."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hw.networks import network_files as networks
from hw.networks.architectures import SlimResNet
from hw.networks.network_checks import RULES, Finding, _are_one, broken_rules, require_conformance, unchecked_rules
from hw.networks.network_files import ModelFile, Network, load_tensors, model_hash, save_model, save_tensors
from hw.networks.servable import counted
from hw.networks.slimmable import ModelSpec, Shape, SlimmableModel, Weights
from kit.errors import InputError, WorkError
from slimsched.cli import main
from tests.hw.tiny import TINY_NETWORK


def test_files_come_back_and_foreign_ones_are_refused(model: SlimResNet, tmp_path: Path) -> None:
    """A saved model is loaded bit for bit; truncated, foreign and tampered files are the user's error."""
    path = tmp_path / "folder" / "model.safetensors"
    save_model(path, model, "tiny", {"note": "kept"})
    loaded, metadata = ModelFile(path).load()
    assert loaded.spec == model.spec
    assert metadata["note"] == "kept"
    assert not loaded.training  # dropout would be served
    assert metadata["hash"] == model_hash(model.state_dict()) == model_hash(loaded.state_dict())
    assert list(path.parent.iterdir()) == [path]

    with pytest.raises(InputError, match="missing"):
        ModelFile(tmp_path / "missing.safetensors").load()
    (tmp_path / "cut.safetensors").write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InputError, match="safetensors"):
        ModelFile(tmp_path / "cut.safetensors").load()
    save_tensors(tmp_path / "foreign.safetensors", {"x": torch.zeros(1)}, {"schema": "other/1"})
    with pytest.raises(InputError, match="schema"):
        ModelFile(tmp_path / "foreign.safetensors").load()
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    (tmp_path / "flipped.safetensors").write_bytes(raw)
    with pytest.raises(InputError, match="hash"):
        ModelFile(tmp_path / "flipped.safetensors").load()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_weights_of_other_precision_are_whole(dtype: torch.dtype, tmp_path: Path) -> None:
    """The network holds them as float32; the hash is of what it holds."""
    model = Network("digits").build()
    kept = {name: tensor.to(dtype).float() for name, tensor in model.state_dict().items()}
    save_model(tmp_path / "m.safetensors", model.to(dtype), "digits", {})
    loaded, metadata = ModelFile(tmp_path / "m.safetensors").load()
    assert all(torch.equal(kept[name], tensor) for name, tensor in loaded.state_dict().items())
    assert metadata["hash"] == model_hash(kept) == model_hash(loaded.state_dict())


def test_a_host_that_has_no_handle_left_is_told(
    model: SlimResNet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is whole: it is not a mistake of the user's, and no bug to trace back."""

    def failing(*_: object, **__: object) -> None:
        raise RuntimeError("unable to open file <a> in read-only mode: Too many open files (24)\nmore")

    save_model(tmp_path / "a.safetensors", model, "tiny", {})
    monkeypatch.setattr(networks, "safe_open", failing)
    with pytest.raises(WorkError, match=r"a\.safetensors: can't be read now \(unable to open .* \(24\)\)$"):
        ModelFile(tmp_path / "a.safetensors").load()


def test_the_same_network_is_the_same_bytes(model: SlimResNet, tmp_path: Path) -> None:
    """Stages that read its file are done again where a byte of it differs."""
    found = set()
    for number in range(5):
        path = tmp_path / f"{number}.safetensors"
        save_model(path, model, "tiny", {"one": "1", "two": "zwei, größer", "three": "3"})
        found.add(path.read_bytes())
    assert len(found) == 1


def test_the_hash_tells_weights_apart(model: SlimResNet) -> None:
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    first = model_hash(state)
    name = next(name for name, tensor in state.items() if tensor.dim() == 4)
    state[name] = state[name].contiguous(memory_format=torch.channels_last)
    assert model_hash(state) == first
    state[name][0, 0, 0, 0] += 1
    assert model_hash(state) != first


def test_a_file_never_chooses_what_code_runs(tmp_path: Path) -> None:
    """A file of a user's class is opened only under the name that the user gives, with the same options."""
    path = tmp_path / "own.safetensors"
    network = Network(TINY_NETWORK.name, {"shape": "tiny"})
    save_model(path, network.build(), network.label, {})
    assert "config" not in load_tensors(path, "slimsched.model/1")[1]
    loaded, _ = ModelFile(path, network).load()
    assert type(loaded).__name__ == "TinyNet"
    with pytest.raises(InputError, match="never chooses what code runs"):
        ModelFile(path).load()
    for other in (TINY_NETWORK, Network("digits")):
        with pytest.raises(InputError, match="holds weights of"):
            ModelFile(path, other).load()


def test_file_that_lacks_a_tensor_of_its_network_is_refused(model: SlimResNet, tmp_path: Path) -> None:
    save_model(tmp_path / "whole.safetensors", model, "tiny", {})
    tensors, metadata = load_tensors(tmp_path / "whole.safetensors", "slimsched.model/1")
    save_tensors(tmp_path / "less.safetensors", dict(list(tensors.items())[1:]), metadata)
    with pytest.raises(InputError, match="do not fit"):
        ModelFile(tmp_path / "less.safetensors").load()


# ------------------------------------------------------------------------------------------------ conformance


class Pooled(SlimmableModel):
    """A user's network at its shortest: one linear map a segment, on mean pixels; `fault` names a rule to break."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.fault = fault
        self.first = nn.Parameter(torch.randn(8, 3))
        self.second = nn.Parameter(torch.randn(5, 8))
        if fault == "gradients":
            self.idle = nn.Parameter(torch.zeros(1))
        self.calls = 0

    @property
    def spec(self) -> ModelSpec:
        return ModelSpec(2, (0.25, 1.0), (3, 4, 4), 5)

    def weight_shapes(self, segment: int, width: float, previous_width: float) -> dict[str, Shape]:
        if segment == 2:
            return {"second": (5, 9 if "slices" in self.fault else round(8 * previous_width))}
        return {"first": (round(8 * width), 3)}

    def run_segment(self, segment: int, weights: Weights, x: Tensor) -> Tensor:
        self.calls += 1
        if segment == 2:
            own = self.second[:, : x.shape[1]] if "instances" in self.fault else weights["second"]
            return x @ own.T
        if "input" in self.fault:
            x.add_(1)
        if "no neighbours" in self.fault:
            x = x - x.mean(0)
        y = x.mean((2, 3)) @ weights["first"].T
        if self.fault == "order" and len(weights["first"]) < 8:
            for _ in range(2):
                y = y @ weights["first"] @ weights["first"].T
        return y + self.calls if "no state" in self.fault else y

    def cost(self, segment, width, previous_width):  # type: ignore[no-untyped-def]
        found = super().cost(segment, width, previous_width)
        if "cost" in self.fault:
            return type(found)(found.macs + 1, found.params, found.activation_bytes, 1, 1)
        return found


POOLED = "tests.hw.test_networks:Pooled"


def test_a_users_network_needs_three_methods(tmp_path: Path) -> None:
    """Widths, costs, instances and files follow; its second segment costs the same at every width, and may."""
    network = Network(POOLED)
    assert broken_rules(network) == {}
    model = network.build()
    assert model.cost(1, 0.25, 0.0).macs == 6
    assert model.cost(2, 1.0, 0.25).macs == 10
    assert model.activation_shape(1, 0.25) == (2,)
    assert model.instance_bytes(1, 0.25) == 24
    save_model(tmp_path / "pooled.safetensors", model, network.label, {})
    loaded, _ = ModelFile(tmp_path / "pooled.safetensors", network).load()
    assert model_hash(loaded.state_dict()) == model_hash(model.state_dict())


@pytest.mark.parametrize(
    "fault, rule",
    [(fault, fault) for fault in ("slices", "no state", "no neighbours", "instances", "cost", "gradients")]
    + [("input", "no state"), ("order", "order")],
)
def test_a_broken_rule_is_found(fault: str, rule: str) -> None:
    """A network that breaks a rule on purpose is told which, and where."""
    network = Network(POOLED, {"fault": fault})
    assert rule in broken_rules(network)
    with pytest.raises(InputError, match="breaks a rule"):
        require_conformance(network)


class Exits(SlimmableModel):
    """Early exits: there is one segment, of which each width is the layers up to an exit, and its head."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ParameterList(torch.randn(6, 6) for _ in range(3))
        self.heads = nn.ParameterList(torch.randn(5, 6) for _ in range(3))
        self.stem = nn.Parameter(torch.randn(6, 3))

    @property
    def spec(self) -> ModelSpec:
        return ModelSpec(1, (0.25, 0.5, 1.0), (3, 4, 4), 5)

    def weight_shapes(self, segment: int, width: float, previous_width: float) -> dict[str, Shape]:
        depth = 1 + self.spec.widths.index(width)
        heads = {f"heads.{number}": (5, 6) for number in range(depth)}  # an instance serves the exits before, too
        return {"stem": (6, 3), **{f"layers.{number}": (6, 6) for number in range(depth)}, **heads}

    def run_segment(self, segment: int, weights: Weights, x: Tensor) -> Tensor:
        depth = len(weights) // 2
        y = x.mean((2, 3)) @ weights["stem"].T
        for number in range(depth):
            y = torch.relu(y @ weights[f"layers.{number}"].T) + y
        return y @ weights[f"heads.{depth - 1}"].T


def test_early_exits_are_widths_of_one_segment() -> None:
    """A deeper exit's instance serves those before it, and costs more."""
    network = Network("tests.hw.test_networks:Exits")
    assert broken_rules(network) == {}
    model = network.build()
    assert [model.cost(1, width, 0.0).macs for width in (0.25, 0.5, 1.0)] == [18 + 36 * n + 30 for n in (1, 2, 3)]
    x = torch.randn(4, 3, 4, 4)
    with torch.inference_mode():
        assert torch.equal(model.instance(1, 1.0).run(x, 0.5, 0.0), model(x, (0.5,)))


class Normed(Pooled):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8)

    def run_segment(self, segment: int, weights: Weights, x: Tensor) -> Tensor:
        found = super().run_segment(segment, weights, x)
        return self.norm(found) if segment == 1 and found.shape[1] == 8 else found


def test_batch_norm_is_told_by_name_and_first(capsys: pytest.CaptureFixture[str]) -> None:
    """With what to take in its place; what else it breaks comes after it."""
    network = Network("tests.hw.test_networks:Normed")
    ((name, found),) = broken_rules(network).items()  # its buffer of whole numbers is not a finding of its own
    assert name == "no neighbours"
    assert found.problem.startswith("norm: BatchNorm: ")
    with pytest.raises(InputError, match=r"norm: BatchNorm: .*: normalize each image separately: GroupNorm"):
        require_conformance(network)
    assert main(["model", "check", network.name]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines].count("unchecked") == len(RULES) - 4
    assert f"{RULES['no neighbours'][0]}: {found.problem}" in lines
    assert sum(line.startswith("  remedy: ") for line in lines) == 1


class Failing(Pooled):
    def run_segment(self, segment: int, weights: Weights, x: Tensor) -> Tensor:
        if segment == 2 and x.shape[1] == 2:
            raise ZeroDivisionError("by nothing")
        return super().run_segment(segment, weights, x)


def test_failing_network_is_reported_with_its_segment_and_widths() -> None:
    """The remedy does not name `input_shape`, because a wrong shape would be no more than a guess."""
    (found,) = broken_rules(Network("tests.hw.test_networks:Failing")).values()
    assert found.problem.startswith("at (2, 0.25, 0.25) it fails: ZeroDivisionError: by nothing (")
    assert "segment, width and previous_width" in found.remedy
    assert "input_shape" not in found.remedy


def test_every_broken_rule_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """Two faults, both named; where a basic rule is broken the rest is unchecked, never called kept."""
    assert set(broken_rules(Network(POOLED, {"fault": "no neighbours, cost"}))) == {"no neighbours", "cost"}
    assert unchecked_rules({"cost": Finding("wrong", "", is_basic=False)}) == []
    assert set(unchecked_rules({"slices": Finding("wrong", "", is_basic=True)})) == set(RULES) - {
        "spec",
        "slices",
        "shapes",
    }


def test_code_is_part_of_what_was_made() -> None:
    """The file of a user's class has a hash; our own networks come with the project's version."""
    hashes = [Network(name).settings[f"the code of {name}"] for name in (TINY_NETWORK.name, POOLED)]
    assert [len(each) for each in hashes] == [16, 16]
    assert hashes[0] != hashes[1]
    assert Network("digits").settings == {"model.network": "digits"}


class Flat(Pooled):
    """`view` where `flatten` belongs: contiguous images alone can be seen so."""

    def run_segment(self, segment: int, weights: Weights, x: Tensor) -> Tensor:
        return super().run_segment(segment, weights, x.view(len(x), -1).view(x.shape) if segment == 1 else x)


class Forgetful(Pooled):
    def __init__(self) -> None:
        self.fault = ""


class Counting(Pooled):
    """A buffer of whole numbers, and one that no file keeps."""

    def __init__(self, *, persistent: bool) -> None:
        super().__init__()
        dtype = torch.int64 if persistent else torch.float32
        self.register_buffer("steps", torch.zeros((), dtype=dtype), persistent=persistent)


def test_network_that_fails_only_on_executors_breaks_a_rule() -> None:
    """Feature maps with channels last are tried, and an incomplete class is reported as well."""
    assert "channels last" in broken_rules(Network("tests.hw.test_networks:Flat"))["instances"].problem
    assert "has no attribute" in broken_rules(Network("tests.hw.test_networks:Forgetful"))["spec"].problem
    for persistent in (True, False):
        counting = Network("tests.hw.test_networks:Counting", {"persistent": persistent})
        assert "steps is torch." in broken_rules(counting)["spec"].problem


class Tied(Pooled):
    def __init__(self) -> None:
        super().__init__()
        self.third = self.second


def test_tied_weights_survive_a_file(tmp_path: Path) -> None:
    network = Network("tests.hw.test_networks:Tied")
    save_model(tmp_path / "tied.safetensors", network.build(), network.label, {})
    loaded, _ = ModelFile(tmp_path / "tied.safetensors", network).load()
    assert isinstance(loaded, Tied)
    assert loaded.third is loaded.second


@pytest.mark.parametrize("value", [32.0, 1.5, 10**9, "16", True])
def test_a_header_that_asks_for_nonsense_is_refused(value: object, tmp_path: Path) -> None:
    """Sizes in a file are whole numbers within reason; nothing is built before that is known."""
    save_model(tmp_path / "good.safetensors", Network("digits").build(), "digits", {})
    tensors, metadata = load_tensors(tmp_path / "good.safetensors", "slimsched.model/1")
    config = {**json.loads(metadata["config"]), "base_channels": value}
    save_tensors(tmp_path / "bad.safetensors", tensors, {**metadata, "config": json.dumps(config)})
    with pytest.raises(InputError, match="whole numbers"):
        ModelFile(tmp_path / "bad.safetensors").load()


@pytest.mark.parametrize("scale", [1e-10, 1.0, 1e6])
def test_results_are_compared_by_their_size(scale: float) -> None:
    """A rounding of large numbers is not a fault, and a fault in small ones is found."""
    wanted = scale * torch.tensor([3.0, -0.001, 1.0])
    assert _are_one(wanted + 1e-4 * scale, wanted)
    assert not _are_one(wanted + 1e-2 * scale, wanted)
    assert not _are_one(wanted * float("nan"), wanted)


def test_fused_attention_is_counted() -> None:
    """On a CPU as on `meta`: queries by keys, and what comes of it by values."""
    for device in ("cpu", "meta"):
        x = torch.zeros(2, 4, 6, 8, device=device)
        counts, _ = counted(lambda x=x: F.scaled_dot_product_attention(x, x, x))  # type: ignore[misc]
        assert counts.macs == 2 * (2 * 4 * 6 * 6 * 8)


def test_lanes_count_in_turns() -> None:
    """Two threads under a mode at once can leave torch with a freed operator: a worker died of it."""
    first_is_in, second_is_in, met = Event(), Event(), list[bool]()

    def first() -> Tensor:
        first_is_in.set()
        met.append(second_is_in.wait(0.2))
        return torch.ones(1)

    def second() -> Tensor:
        second_is_in.set()
        return counted(lambda: torch.ones(2))[1]  # a network may ask for a shape while it is counted

    with ThreadPoolExecutor(2) as lanes:
        lanes.submit(counted, first)
        assert first_is_in.wait(10.0)
        assert lanes.submit(counted, second).result()[1].shape == (2,)
    assert met == [False]


def test_kernels_of_one_pixel_are_laid_out_as_asked() -> None:
    """Where either order describes them, torch leaves strides that a slow kernel is chosen by."""
    instance = Network("slimresnet-tiny").build().instance(2, 1.0)
    moved = instance.to(torch.device("cpu"), torch.float32, torch.channels_last)
    kernel = next(tensor for name, tensor in moved.weights.items() if name.endswith("projection"))
    assert kernel.shape[2:] == (1, 1)
    assert kernel.stride() == (kernel.shape[1], 1, kernel.shape[1], kernel.shape[1])
