"""The stages `model` and `accuracy`: the scenario's network is trained, and its accuracy table filled."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from safetensors.torch import load, save

from hw.device_settings import require_torch_device
from hw.networks.accuracy_table import SCHEMA as ACCURACY_SCHEMA
from hw.networks.accuracy_table import Evaluation, PaperTable, load_accuracy, save_accuracy
from hw.networks.datasets import Dataset, is_image_folder, load_dataset, require_fit
from hw.networks.network_checks import require_conformance
from hw.networks.network_files import ModelFile, Network, save_model
from hw.networks.network_training import TrainingParams, evaluate, recipe, train
from hw.subprocesses import Runner, Tell, apart, here
from kit.errors import InputError, WorkError
from kit.plugins import FAILURES, failure
from scenarios.experiment.scenario_building import ACCURACY_FILE, MODEL_FILE
from scenarios.experiment.scenario_routers import of_accuracy
from scenarios.files.scenario_keys import Scenario
from scenarios.job.job_stages import Run, blamed_on
from scenarios.terminal.progress import Progress


def require_accuracy(run: Run) -> None:
    """Check, before anything is measured, that the scenario's own accuracy table is of the network that it runs.

    Raises:
        InputError: it is not, or the images that it was measured on can't be opened.
    """
    section = run.scenario.model
    if section.accuracy is None:
        return
    table, key = load_accuracy(Path(section.accuracy)), "model.accuracy"
    if isinstance(table, PaperTable):
        problem = "is not a measurement of the network that this scenario runs; leave one of the two out"
        raise InputError(run.scenario.name, key, f"{section.accuracy} {problem}")
    if section.checkpoint is None:
        problem = f"{section.accuracy} can't be of a network that is yet to be trained; leave it out"
        raise InputError(run.scenario.name, key, problem)
    _, metadata = run.model.load()
    if table.hash != metadata["hash"]:
        problem = f"{section.accuracy} is of the network {table.hash}, the checkpoint is {metadata['hash']}"
        raise InputError(run.scenario.name, key, f"{problem}; leave it out, or name the one that belongs to it")
    load_measured(run.scenario, table)  # a missing folder shows now, not after the calibration


def make_model(run: Run) -> None:
    """Train the network, unless the scenario brings one."""
    section, network = run.scenario.model, run.network
    if section.checkpoint is not None or network is None:
        run.model.load()  # refuses what is not a model, before anything else runs
        return
    if network.is_own:
        require_conformance(network)  # a broken rule shows now, not after hours
    params = training_params(run.scenario)
    fingerprint = run.fingerprint(run.network_parts, run.images, params.of_the_result())

    def work() -> Sequence[Path]:
        with blamed_on(run.scenario):
            return train_model(run, fingerprint)

    run.stage("model", fingerprint, work)


def make_accuracy(run: Run) -> None:
    """Evaluate every width tuple on every test image."""

    def work() -> Sequence[Path]:
        section = run.scenario.model
        device = section.training.device
        with blamed_on(run.scenario):
            return [evaluate_model(run, section.dataset, device=device)]

    network = run.network
    if network is not None and network.is_own:
        require_conformance(network, run.model)
    fingerprint = run.fingerprint(ACCURACY_SCHEMA, of_accuracy(run.scenario), run.model.path)
    if run.scenario.model.accuracy is None:
        run.stage("accuracy", fingerprint, work)


def training_params(scenario: Scenario) -> TrainingParams:
    """Return the data set's recipe, with what the scenario changes."""
    changes = scenario.model.training.model_dump(exclude_none=True)
    return replace(recipe(scenario.model.dataset, scenario.model.network or ""), seed=scenario.seed, **changes)


@contextmanager
def own_code(network: Network | None) -> Iterator[None]:
    """Report whatever goes wrong inside a user's network as the user's error, in one line."""
    try:
        yield
    except (InputError, WorkError):
        raise
    except FAILURES as error:
        if network is None or not network.is_own:
            raise
        raise WorkError(f"{network.name}: {failure(error)}") from error


def load_measured(scenario: Scenario, evaluation: Evaluation) -> Dataset:
    """Load the data set that an accuracy was measured on: the images that requests are drawn from.

    Raises:
        InputError: it is not there, or is a folder that has changed since.
    """
    with blamed_on(scenario):
        name = scenario.model.dataset
        if not is_image_folder(name):
            return load_dataset(evaluation.dataset)
        dataset = load_dataset(name)
        if dataset.name != evaluation.dataset:
            problem = f"the accuracy was measured on {evaluation.dataset}, this is {dataset.name}; evaluate again"
            raise InputError("model", "dataset", problem)
        return dataset


def runner_for(device: str) -> Runner:
    """Return what runs work on a device: a GPU's work runs in a separate process.

    The context that it opens would otherwise stay, and take power and memory from what is measured afterwards.
    """
    return apart if device.startswith("cuda") else here


def trained(
    network: Network, data: Dataset, params: TrainingParams, checkpoint: Path, tensorboard: Path, tell: Tell
) -> bytes:
    """Return the weights, as safetensors; see `hw.networks.network_training.train`."""
    with own_code(network):
        model = train(network, data, params, checkpoint=checkpoint, tensorboard=tensorboard, on_step=tell)
    return save({name: tensor.contiguous() for name, tensor in model.state_dict().items()})


def evaluated(file: ModelFile, data: Dataset, device: str, tell: Tell) -> Evaluation:
    """Evaluate a model; see `hw.networks.network_training.evaluate`."""
    require_torch_device(device)
    model, _ = file.load()
    with own_code(file.network):
        return evaluate(model, data, on_progress=tell, device=device)


def train_model(run: Run, fingerprint: str) -> list[Path]:
    """Train the scenario's network, from the checkpoint of an interrupted training if it has the same settings."""
    network, folder = run.network, run.folder
    assert network is not None, "asked for by the caller"
    params = training_params(run.scenario)
    log_path = folder / "training" / f"model-{fingerprint[:12]}"
    checkpoint = log_path.with_suffix(".safetensors")
    data = load_dataset(run.scenario.model.dataset)
    with own_code(network), Progress("train the network", None, unit="step", quiet=run.quiet) as progress:

        def on_step(done: int, steps: int) -> None:
            progress.set(done, steps)

        task = partial(trained, network, data, params, checkpoint, log_path)
        model = network.build()
        model.load_state_dict(load(runner_for(params.device)(task, on_step)))
    metadata = {"dataset": data.name, "training": json.dumps(asdict(params), sort_keys=True)}
    save_model(folder / MODEL_FILE, model, network.label, metadata)
    return [folder / MODEL_FILE]


def evaluate_model(run: Run, dataset: str, *, device: str = "cpu") -> Path:
    """Fill the accuracy table and the correctness matrix of a network; returns their file."""
    file = run.model
    model, _ = file.load()
    data = load_dataset(dataset)
    require_fit(model.spec, data)
    with (
        own_code(file.network),
        Progress("evaluate all width tuples", len(data.test_labels), unit="image", quiet=run.quiet) as progress,
    ):
        task = partial(evaluated, file, data, device)
        evaluation = runner_for(device)(task, lambda done, _: progress.set(done))
    save_accuracy(run.folder / ACCURACY_FILE, replace(evaluation, made_with=of_accuracy(run.scenario)))
    return run.folder / ACCURACY_FILE
