"""Which networks CUDA graphs can hold, found without a GPU; `tests/nullcuda` asks CUDA's own rules the same."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from hw.networks.model_families import Family, Member, ranked
from hw.networks.network_checks import Uncapturable, uncapturable
from hw.networks.network_files import PRESETS, ModelFile, Network, joined, save_model
from hw.networks.slimmable import Weights
from slimsched.cli import main
from tests.hw.test_family import SHAPE, TORCHVISION, family, small
from tests.hw.tiny import TinyNet

READING = {  # what a second segment does before all else, and what is found
    "": "",
    "number": "it reads numbers back from the device: .*_local_scalar_dense",
    "branch": "it reads numbers back from the device: .*_local_scalar_dense",
    "shape": "a shape depends on numbers: .*nonzero",
    "constant": "it copies between host and device: .*_to_copy",
    "host": "it copies between host and device: .*_to_copy",
    "foreign": "it fails on a GPU: .*cuda:0 and cpu",
    "mask": "",
}


class Reading(TinyNet):
    """The tiny network, whose second segment does something that a graph may not hold."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def run_segment(self, segment: int, weights: Weights, x: torch.Tensor) -> torch.Tensor:
        """As the tiny network's; costs are counted on `meta` tensors, which hold no numbers."""
        if segment == 2 and x.device.type != "meta":
            match self.how:
                case "number":
                    x = x * float(x.mean() > -1e9)
                case "branch" if x.mean() > 1e9:
                    x = x + 1
                case "shape":
                    x = x + 0 * x[x > 0].sum()
                case "constant":
                    x = x * torch.tensor([1.0], device=x.device)
                case "host":
                    x = x * x.mean().cpu()
                case "foreign":
                    x = x * torch.ones(1)
                case "mask":
                    x = torch.where(x > -1e9, x, 0.0) * torch.full((1,), 1.0, device=x.device)
        return super().run_segment(segment, weights, x)


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_built_in_networks_have_only_capturable_segments(name: str) -> None:
    assert uncapturable(Network(name).build().eval()) == []


@pytest.mark.parametrize(("how", "problem"), READING.items())
def test_a_pass_that_would_wait_for_the_device_is_found(how: str, problem: str) -> None:
    found = uncapturable(Reading(how).eval())
    assert [each.segment for each in found] == [2] * bool(problem)
    for each in found:
        assert isinstance(each, Uncapturable)
        assert re.search(problem + r".*test_capturable.py, line \d+", each.problem)


def test_members_of_a_family_are_looked_at(tmp_path: Path) -> None:
    assert uncapturable(family(small("narrow"), small("wide", channels=8)).eval()) == []
    int8 = Family(ranked((Member(label="int8", network="torchvision:resnet18", form="int8"),), SHAPE, 5)).eval()
    assert uncapturable(int8) == [Uncapturable(1, "it fails on a GPU: ValueError: int8 runs on CPUs alone")]
    files = dict[str, ModelFile]()
    for name, made in {"one": family(TORCHVISION[1]), "other": family(TORCHVISION[2])}.items():
        save_model(tmp_path / name, made, made.structure.label, {})
        files[name] = ModelFile(tmp_path / name)
    assert uncapturable(joined(files, "test")[0].eval()) == []


def test_model_check_warns_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    network = "tests.hw.test_capturable:Reading"
    assert main(["model", "check", f'{network} {{"how": "number"}}']) == 0
    *_, warning, remedy = capsys.readouterr().out.splitlines()
    assert warning.startswith("warning: CUDA graphs can't capture segment 2: it reads numbers back from the device")
    assert remedy.startswith("  remedy: stay on the device: torch.where")
    assert main(["model", "check", f'{network} {{"how": "mask"}}', "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["uncapturable"] == {}
