"""Families: ordinary networks as the widths of one; their instances, their files, and the rules that they keep."""

from __future__ import annotations

from pathlib import Path
from threading import Barrier, Event, Thread

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from hw.networks.datasets import Dataset
from hw.networks.model_families import Family, FamilyStructure, Member, ranked
from hw.networks.network_checks import broken_rules, rules_of
from hw.networks.network_files import ModelFile, Network, load_tensors, save_model, save_tensors
from hw.networks.network_training import evaluate
from hw.networks.servable import ModelSpec, Shape, counted
from hw.networks.slimmable import SlimmableModel, Weights
from hw.networks.third_party_networks import Int8Network, Named, build_given, build_quantizable
from kit.errors import InputError
from policies.vocabulary import IMAGE

CPU, LAST = torch.device("cpu"), torch.channels_last
SHAPE = (3, 32, 32)


class Small(nn.Module):
    """An ordinary network of a user's own, with all that training and use do differently."""

    def __init__(self, channels: int = 4, classes: int = 5) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, channels, 3, padding=1)
        self.norm, self.drop = nn.BatchNorm2d(channels), nn.Dropout(0.5)
        self.head = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.drop(self.norm(self.first(x)).relu().mean((2, 3))))
        return logits


def family(*members: Member, classes: int = 5) -> Family:
    """With weights and statistics that say something."""
    torch.manual_seed(0)
    made = Family(ranked(members, SHAPE, classes))
    for name, buffer in made.named_buffers():
        if name.endswith("running_mean"):
            buffer.normal_()
    return made


def small(label: str, **options: int) -> Member:
    return Member(label=label, network=f"{__name__}:Small", options=options)


TORCHVISION = (
    Member(label="mobilenet", network="torchvision:mobilenet_v3_small"),
    Member(label="squeezenet", network="torchvision:squeezenet1_1"),
    Member(label="squeezenet bfloat16", network="torchvision:squeezenet1_1", form="bfloat16"),
)


@pytest.fixture(scope="module")
def ordinary() -> Family:
    return family(*TORCHVISION)


@pytest.fixture(scope="module")
def path(ordinary: Family, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("family") / "family.safetensors"
    save_model(file, ordinary, ordinary.structure.label, {})
    return file


def images(count: int = 4) -> Tensor:
    return torch.randn(count, *SHAPE, generator=torch.Generator().manual_seed(1))


def test_a_family_is_a_network_of_one_segment_whose_widths_are_ranks_with_names(ordinary: Family) -> None:
    spec = ordinary.spec
    assert (spec.segments, spec.widths, spec.nests) == (1, (0.333, 0.667, 1.0), (1, 1, 1))
    assert spec.labels == ("mobilenet", "squeezenet", "squeezenet bfloat16")
    assert spec.tuples() == [(0.333,), (0.667,), (1.0,)]
    assert not spec.serves(1.0, 0.333)
    assert ModelSpec(1, (0.5, 1.0), SHAPE, 5).serves(1.0, 0.5)


def test_an_instance_answers_as_the_module_itself_does_wherever_its_weights_come_from(
    ordinary: Family, path: Path
) -> None:
    with torch.inference_mode():
        for width in ordinary.spec.widths:
            wanted = ordinary.member(width)(images())
            for source in (None, path):
                instance = ordinary.instance(1, width, source).to(CPU, torch.float32, LAST)
                found = instance.run(images(), width, IMAGE)
                torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
                assert instance.held_bytes == ordinary.instance_bytes(1, width)
            for other in set(ordinary.spec.widths) - {width}:
                with pytest.raises(ValueError, match="cannot serve"):
                    instance.run(images(), other, IMAGE)


def test_a_form_halves_the_bytes_and_stays_whatever_the_device_computes_in(ordinary: Family) -> None:
    plain, half = (ordinary.instance_bytes(1, width) for width in (0.667, 1.0))
    assert half == pytest.approx(plain / 2, rel=0.01)
    assert ordinary.instance_bytes(1, 1.0, 2) == pytest.approx(half, rel=1e-4)
    assert (
        ordinary.instance(1, 1.0).to(CPU, torch.float32, LAST).module.get_parameter("network.classifier.1.weight").dtype
        == torch.bfloat16
    )
    assert ordinary.instance(1, 0.667).to(CPU, torch.bfloat16, LAST).held_bytes == ordinary.instance_bytes(1, 0.667, 2)


def test_kernels_of_one_pixel_follow_the_memory_format(ordinary: Family) -> None:
    """Else oneDNN takes a slow way: MobileNets took up to 1.85 times as long."""
    moved = ordinary.instance(1, 0.333).to(CPU, torch.float32, LAST).module
    kernels = [
        module.weight for module in moved.modules() if isinstance(module, nn.Conv2d) and module.kernel_size == (1, 1)
    ]
    assert {tuple(kernel.stride()[1:]) for kernel in kernels} == {
        (1, kernel.shape[1], kernel.shape[1]) for kernel in kernels
    }


def test_members_are_in_use_whatever_mode_is_asked_for(ordinary: Family) -> None:
    """In training mode an image's answer would hang on its batch."""
    ordinary.train()
    assert not any(part.training for part in ordinary.modules())
    with torch.inference_mode():
        torch.testing.assert_close(
            ordinary(images(), (0.667,))[:1], ordinary(images()[:1], (0.667,)), rtol=1e-4, atol=1e-5
        )


def test_a_file_gives_the_same_family_back_and_names_it(ordinary: Family, path: Path) -> None:
    loaded, metadata = ModelFile(path).load()
    assert isinstance(loaded, Family)
    assert loaded.structure == ordinary.structure
    assert metadata["network"] == (
        "family of torchvision:mobilenet_v3_small, torchvision:squeezenet1_1, torchvision:squeezenet1_1 bfloat16"
    )
    with torch.inference_mode():
        torch.testing.assert_close(loaded(images(), (0.667,)), ordinary(images(), (0.667,)))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[]", "family"),
        ('{"members": [], "input_shape": [3, 8, 8], "classes": 2}', "members"),
        (
            '{"members": [{"label": "a", "network": "os:system"}], "input_shape": [3, 8, 8], "classes": 2}',
            "name it as well",
        ),
        (
            '{"members": [{"label": "a", "network": "torchvision:resnet81"}], "input_shape": [3, 8, 8], "classes": 2}',
            "torchvision has no",
        ),
        (
            '{"members": [{"label": "a", "network": "torchvision:alexnet"}, {"label": "a", "network": '
            '"torchvision:resnet18"}], "input_shape": [3, 8, 8], "classes": 2}',
            "one label",
        ),
    ],
)
def test_a_family_that_is_none_is_told_in_a_line(text: str, problem: str, path: Path, tmp_path: Path) -> None:
    tensors, metadata = load_tensors(path, "slimsched.model/1")
    file = tmp_path / "other.safetensors"
    save_tensors(file, tensors, {**metadata, "family": text})
    with pytest.raises(InputError, match=problem) as error:
        ModelFile(file).load()
    assert "\n" not in str(error.value)


def test_a_class_of_ones_own_is_made_only_where_it_is_named(tmp_path: Path) -> None:
    made, file = family(small("narrow"), small("wide", channels=8)), tmp_path / "own.safetensors"
    save_model(file, made, made.structure.label, {})
    with pytest.raises(InputError, match="name it as well"):
        ModelFile(file).load()
    with pytest.raises(InputError, match="holds weights of"):
        ModelFile(file, Network("digits")).load()
    loaded, _ = ModelFile(file, Network(f"{__name__}:Small")).load()
    with torch.inference_mode():
        torch.testing.assert_close(loaded(images(), (1.0,)), made(images(), (1.0,)))


def test_evaluation_records_which_images_each_member_classifies_correctly(ordinary: Family) -> None:
    pixels, labels = images(120).numpy(), np.arange(120) % 5
    data = Dataset("any", pixels, labels, pixels, labels, 5)
    evaluation = evaluate(ordinary, data)
    with torch.inference_mode():
        answers = [ordinary.member(w)(torch.from_numpy(data.test_images)).argmax(1) for w in ordinary.spec.widths]
    assert evaluation.tuples == ((0.333,), (0.667,), (1.0,))
    for place, answer in enumerate(answers):
        assert (evaluation.correct[:, place] == (answer.numpy() == data.test_labels)).all()


def test_torchvision_network_is_built_without_a_download(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names and options may be a file's, which must not make its reader fetch anything."""
    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", None)
    for build in (build_given, build_quantizable):
        build(Named("torchvision:resnet18", {"weights": "DEFAULT"}), 5)
    with pytest.raises(InputError, match="torchvision has no 'fcn_resnet50'"):
        build_given(Named("torchvision:fcn_resnet50"), 5)  # it would fetch a backbone


# ---------------------------------------------------------------------------------------------------------------- int8


def test_int8_answers_nearly_the_same_from_a_quarter_of_the_bytes_and_comes_back_from_its_file(tmp_path: Path) -> None:
    torch.manual_seed(0)
    made = Family(ranked((Member(label="int8", network="torchvision:resnet18", form="int8"),), SHAPE, 5))
    named, member = Network("torchvision:resnet18"), made.member(1.0)
    plain = build_given(named, 5)
    quantizable = build_quantizable(named, 5)
    quantizable.load_state_dict(plain.state_dict())
    member.network = Int8Network(quantizable, images(32))
    with torch.inference_mode():
        wanted, found = plain(images()), made(images(), (1.0,))
        assert (found - wanted).abs().max() < 0.1 * wanted.abs().max()
        file = tmp_path / "int8.safetensors"
        save_model(file, made, made.structure.label, {})
        loaded, _ = ModelFile(file).load()
        assert torch.equal(loaded(images(), (1.0,)), found)
        instance = loaded.instance(1, 1.0, file).to(CPU, torch.float32, LAST)
        assert torch.equal(instance.run(images(), 1.0, IMAGE), found)
    assert instance.held_bytes == made.instance_bytes(1, 1.0)
    assert instance.held_bytes < 0.27 * sum(each.nbytes for each in plain.state_dict().values())
    assert made.cost(1, 1.0, IMAGE).macs == counted(lambda: plain(images(1)))[0].macs
    with pytest.raises(ValueError, match="CPUs alone"):
        instance.to(torch.device("cuda", 0), torch.float32, LAST)


@pytest.mark.parametrize("name", ["torchvision:resnet34", f"{__name__}:Small"])
def test_network_without_an_int8_form_in_torchvision_is_refused(name: str) -> None:
    with pytest.raises(InputError, match=r"no int8 form in torchvision; .*resnet18"):
        build_quantizable(Network(name), 5)


# --------------------------------------------------------------------------------------------------------------- rules


def test_a_family_keeps_the_rules_that_are_not_of_nesting(tmp_path: Path) -> None:
    made, file = family(small("narrow"), small("wide", channels=8)), tmp_path / "own.safetensors"
    save_model(file, made, made.structure.label, {})
    assert broken_rules(ModelFile(file, Network(f"{__name__}:Small"))) == {}
    assert set(rules_of(made)) == {"spec", "shapes", "no state", "no neighbours", "instances", "memory", "concurrent"}


def _pause(*_: object) -> None:
    """So that lanes meet, on a busy host, too."""
    Event().wait(1e-3)


class Shared(SlimmableModel):
    """The obvious way to serve a module, and wrong: two lanes put their weights into one module."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Sequential(
            nn.Conv2d(1, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.Flatten(), nn.Linear(1024, 3)
        )
        self.module[2].register_forward_pre_hook(_pause)
        self.wide = nn.Parameter(torch.ones(2))

    @property
    def spec(self) -> ModelSpec:
        return ModelSpec(1, (0.5, 1.0), (1, 8, 8), 3)

    def weight_shapes(self, segment: int, width: float, previous_width: float) -> dict[str, Shape]:
        shapes = {f"module.{name}": tuple(each.shape) for name, each in self.module.named_parameters()}
        return {**shapes, "wide": (round(2 * width),)}

    def run_segment(self, segment: int, weights: Weights, x: Tensor) -> Tensor:
        own = {name.removeprefix("module."): weight * len(weights["wide"]) for name, weight in weights.items()}
        own.pop("wide")
        logits: Tensor = functional_call(self.module, own, (x,))
        return logits


def test_module_shared_by_two_lanes_breaks_the_concurrency_rule() -> None:
    """The network raises no error and is right on its own, so the other rules accept it."""
    broken = broken_rules(Network(f"{__name__}:Shared"))
    assert "concurrent" in broken
    assert "functional_call" in broken["concurrent"].remedy
    assert not {"instances", "no state", "no neighbours"} & broken.keys()


def test_two_lanes_of_a_family_answer_as_one() -> None:
    made = family(small("narrow"), small("wide"))
    instances = {width: made.instance(1, width) for width in made.spec.widths}
    wanted = {width: made.forward_segment(images(), 1, width, IMAGE) for width in instances}
    wrong, start = list[float](), Barrier(len(instances))

    def work(width: float) -> None:
        start.wait()
        for _ in range(100):
            if not torch.allclose(instances[width].run(images(), width, IMAGE), wanted[width], rtol=1e-4, atol=1e-5):
                wrong.append(width)

    threads = [Thread(target=work, args=(width,)) for width in instances]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_structure_says_nothing_twice() -> None:
    structure = ranked((small("a"), small("b", channels=8)), SHAPE, 5)
    assert FamilyStructure.from_json(structure.model_dump_json(exclude_defaults=True)) == structure
