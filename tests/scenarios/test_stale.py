"""Nothing stale: each input of what a run has made is changed in turn, and every command is asked for an answer."""

from __future__ import annotations

import inspect
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

import slimsched
from hw.networks.network_files import save_model
from kit.checkpoint import header
from scenarios.files.scenario_reading import load_scenario, read_profile
from scenarios.job import profile_stages
from scenarios.job.job_stages import Run
from scenarios.job.network_stages import make_accuracy, make_model
from scenarios.job.profile_stages import make_profiles
from scenarios.job.training_stage import make_routers
from slimsched.cli import main
from tests import tiny
from tests.scenarios import own_network

OWN = "stale_net:DigitsPerceptron"
SCENARIO = f"""
schema: slimsched.scenario/1
name: mine
model: {{network: '{OWN}', options: {{features: 16}}, dataset: images, training: {{epochs: 1}}}}
cluster:
  servers: [{{name: cpu, link: 1gbe, device: {{cores: [0]}}}}]
  greedy: {{batch_limit: 16, preload: all}}
workload: {{kind: poisson, rate_img_s: 30}}
calibration: {{budget: 4s}}
tuning: {{decisions: 1000, episode_s: 0.5, matching_runs: 1}}
compare: {{routers: ['tuned:fixed'], seeds: [0]}}
duration_s: 1
warmup_s: 0.1
"""
RUN, NET, PROFILE, ROUTER = Path("runs/mine"), Path("stale_net.py"), "profiles/cpu.yaml", "fixed.rule.yaml"
COMMANDS = {
    "simulate": ["mine.yaml", "--router", "tuned:fixed"],
    "compare": ["mine.yaml"],
    "capacity": ["mine.yaml", "--router", "tuned:fixed", "--duration", "1s", "--precision", "0.5"],
    "bound": ["mine.yaml"],
    "train": ["mine.yaml"],
}
WITHOUT_ROUTERS = {"bound", "train"}  # the one reads none; the other makes them again, see below


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    """A folder in which all was made, and a copy of it as it was; devices are measured by nobody."""
    here, kept = tmp_path_factory.mktemp("stale") / "here", tmp_path_factory.mktemp("stale") / "kept"
    here.mkdir()
    digits = load_digits()
    for number, (pixels, label) in enumerate(zip(digits.images[:600], digits.target[:600], strict=True)):
        place = here / "images" / ("test" if number % 4 == 3 else "train") / str(label) / f"{number}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((pixels * 15).astype(np.uint8)).save(place)
    (here / "mine.yaml").write_text(SCENARIO)
    (here / NET).write_text(Path(own_network.__file__).read_text())

    def measured(wanted: Any, **_: Any) -> Any:
        found = tiny.measured("cpu", segments=2, widths=(0.5, 1.0), batches=(1, 4, 16))
        weights = header(wanted.file.path)["hash"]
        return found.model_copy(update={"model": found.model.model_copy(update={"hash": weights})})

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(here)
        patch.syspath_prepend(str(here))
        patch.setattr(profile_stages, "calibrate_device", measured)
        job = Run(load_scenario(Path("mine.yaml")), RUN, say=lambda _: None, quiet=True)
        with job.folder.opened(Path("mine.yaml")):
            make_model(job)
            make_accuracy(job)
            make_profiles(job)
            make_routers(job, job.experiment(), ["fixed"])
        shutil.copytree(here, kept, dirs_exist_ok=True)
        yield here, kept


def as_made(finished: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is there again as it was made, and the user is in that folder."""
    here, kept = finished
    monkeypatch.chdir(here.parent)
    shutil.rmtree(here)
    shutil.copytree(kept, here)
    monkeypatch.chdir(here)


@dataclass(frozen=True)
class Change:
    """What is changed, and the file and setting that are told of then."""

    make: Callable[[], None]
    file: str
    told: str


def edited(old: str, new: str, path: str = "mine.yaml") -> Callable[[], None]:

    def make() -> None:
        text = Path(path).read_text()
        assert old in text
        Path(path).write_text(text.replace(old, new))

    return make


def other_weights() -> None:
    torch.manual_seed(1)
    save_model(RUN / "model.safetensors", own_network.DigitsPerceptron(16), f'{OWN} {{"features": 16}}', {})


def other_image() -> None:
    Image.new("L", (8, 8), 3).save(next(Path("images/test/0").iterdir()))


def measured_again() -> None:
    """The device was found a little slower, with the same settings."""
    profile = read_profile(RUN / PROFILE)
    (RUN / PROFILE).write_text(profile.model_copy(update={"served_extra_s": 1e-4}).to_yaml())


MADE: dict[str, Change] = {
    "weights": Change(other_weights, "accuracy.json", "model: of the weights"),
    "option": Change(
        edited("features: 16", "features: 8"), PROFILE, f'model.network: made with {OWN} {{"features": 16'
    ),
    "code": Change(edited("torch.relu", "torch.tanh", str(NET)), PROFILE, f"the code of {OWN}: made with"),
    "image": Change(other_image, "accuracy.json", "model.dataset: made with images@"),
    "data set": Change(edited("dataset: images", "dataset: digits"), "accuracy.json", "the scenario has digits;"),
    "recipe": Change(edited("epochs: 1", "epochs: 2"), "accuracy.json", "model.training.epochs: made with 1, the"),
    "option of the recipe": Change(edited("epochs: 1", "epochs: 1, flip: true"), "accuracy.json", "made with nothing,"),
    "budget": Change(edited("budget: 4s", "budget: 5m"), PROFILE, "calibration.budget: made with 4 s, the scenario"),
    "threads": Change(edited("cores: [0]", "cores: [0], threads: 2"), PROFILE, "servers.cpu.device.threads: made with"),
    "engine": Change(edited("cores: [0]", "cores: [0], onednn: false"), PROFILE, "device.onednn: made with true, the"),
}
ROUTERS: dict[str, Change] = {
    "load": Change(edited("rate_img_s: 30", "rate_img_s: 60"), ROUTER, "workload.rate_img_s: made with 30.0, the"),
    "link": Change(edited("1gbe", "10gbe"), ROUTER, "cluster.servers.0.link: made with"),
    "profile": Change(measured_again, ROUTER, "the profile of cpu: made with"),
}


@pytest.mark.parametrize("name", [*MADE, *ROUTERS])
def test_no_command_answers_with_what_was_made_before_a_change(
    name: str, finished: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It refuses in a line that names the file, what differs and the remedy; or needs nothing that has changed."""
    as_made(finished, monkeypatch)
    change = (MADE | ROUTERS)[name]
    change.make()
    for command, words in COMMANDS.items():
        if name in ROUTERS and command in WITHOUT_ROUTERS:
            continue
        code = main([command, *words, "--quiet"])
        (line,) = capsys.readouterr().err.splitlines()
        assert code == 2, command
        assert f"{RUN / change.file}: " in line
        assert change.told in line
        assert "makes it again" in line


@pytest.mark.timeout(900)
def test_training_makes_a_router_for_what_the_scenario_says_now(
    finished: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    as_made(finished, monkeypatch)
    ROUTERS["load"].make()
    for command in ("bound", "train", "compare"):
        assert main([command, *COMMANDS[command], "--quiet"]) == 0, command


@pytest.mark.timeout(900)
def test_unchanged_every_command_answers(
    finished: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else a refusal would say nothing. (`replay` reads a run folder alone: it has no scenario to be at odds with.)"""
    as_made(finished, monkeypatch)
    for command, words in COMMANDS.items():
        assert main([command, *words, "--quiet"]) == 0, capsys.readouterr().err
    assert "scenario" not in inspect.signature(slimsched.replay).parameters


def test_scenario_with_a_profile_of_changed_network_code_is_refused(
    finished: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    as_made(finished, monkeypatch)
    brought = f"checkpoint: {RUN}/model.safetensors, accuracy: {RUN}/accuracy.json"
    edited("dataset: images, training: {epochs: 1}", f"{brought}")()
    edited("device: {cores: [0]}", f"profile: {RUN}/{PROFILE}")()
    assert main(["simulate", "mine.yaml", "--quiet"]) == 0, capsys.readouterr().err
    NET.write_text(NET.read_text().replace("torch.relu", "torch.tanh"))
    assert main(["simulate", "mine.yaml", "--quiet"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{PROFILE}: the code of {OWN}: made with" in line
    assert "`slimsched calibrate` makes one of yours" in line
