"""The stages that train the scenario's network and fill its accuracy table."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

from hw.accuracy import save_accuracy
from hw.datasets import load_dataset, require_fit
from hw.device import require_torch_device
from hw.evaluation import evaluate
from hw.networks import ModelFile, Network, save_model
from hw.training import TrainingKnobs, recipe, train
from policies.errors import InputError, WorkError
from scenarios.files.spec import Scenario
from scenarios.terminal.progress import Progress
from scenarios.world.materials import ACCURACY_FILE, MODEL_FILE, network_of


def training_knobs(scenario: Scenario) -> TrainingKnobs:
    """The data set's recipe, with what the scenario changes."""
    given = scenario.model.training.model_dump(exclude_none=True)
    return replace(recipe(scenario.model.dataset, scenario.model.network or ""), seed=scenario.seed, **given)


@contextmanager
def own_code(network: Network | None) -> Iterator[None]:
    """Whatever goes wrong inside a user's network is the user's to know, in one line."""
    try:
        yield
    except (InputError, WorkError):
        raise
    except Exception as error:
        if network is None or not network.is_own:
            raise
        raise WorkError(f"{network.name}: {type(error).__name__}: {error}") from error


@contextmanager
def blamed_on(scenario: Scenario) -> Iterator[None]:
    """What is wrong with the `model` that the work was given stands under `model` in the scenario."""
    try:
        yield
    except InputError as error:
        if error.source != "model":
            raise
        raise InputError(scenario.name, f"model.{error.key}", error.problem) from None


def training_text(knobs: TrainingKnobs) -> str:
    """How a network was trained, as its file keeps it."""
    return json.dumps(asdict(knobs), sort_keys=True)


def train_model(scenario: Scenario, folder: Path, fingerprint: str, *, quiet: bool = False) -> list[Path]:
    """Train the scenario's network; goes on from the checkpoint of an interrupted training with the same settings."""
    network = network_of(scenario)
    assert network is not None, "asked for by the caller"
    knobs = training_knobs(scenario)
    work = folder / "training" / f"model-{fingerprint[:12]}"
    work.parent.mkdir(parents=True, exist_ok=True)
    data = load_dataset(scenario.model.dataset)
    with own_code(network), Progress("train the network", None, unit="step", quiet=quiet) as progress:
        model = train(
            network,
            data,
            knobs,
            checkpoint=work.with_suffix(".safetensors"),
            tensorboard=work,
            on_step=progress.set,
        )
    metadata = {"dataset": data.name, "training": training_text(knobs)}
    save_model(folder / MODEL_FILE, model, network.label, metadata)
    return [folder / MODEL_FILE]


def evaluate_model(file: ModelFile, dataset: str, folder: Path, *, device: str = "cpu", quiet: bool = False) -> Path:
    """Fill the accuracy table and the correctness matrix of a network; returns their file."""
    require_torch_device(device)
    model, _ = file.load()
    data = load_dataset(dataset)
    require_fit(model.spec, data)
    with (
        own_code(file.network),
        Progress("evaluate all width tuples", len(data.test_labels), unit="image", quiet=quiet) as progress,
    ):
        evaluation = evaluate(model, data, on_progress=lambda done, _: progress.set(done), device=device)
    path = folder / ACCURACY_FILE
    save_accuracy(path, evaluation)
    return path
