"""What ships with the project: a trained network, its accuracy table, and the scenario that serves it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.study import suite
from benchmarks.study.paper import is_replica
from hw.networks.accuracy_table import Evaluation, load_accuracy
from hw.networks.datasets import Dataset, load_dataset
from hw.networks.network_files import ModelFile, Network
from hw.networks.network_training import TrainingParams, evaluate
from kit.errors import InputError
from policies.router_kinds import BASELINES, COMPASS
from scenarios.experiment.scenario_building import load_experiment
from scenarios.files.bundled_files import FOLDERS, scenario_file
from scenarios.files.router_files import made_by
from scenarios.files.scenario_keys import RatesWorkload
from scenarios.files.scenario_reading import load_scenario
from scenarios.job.comparing_stage import load_case, read_suite
from scenarios.job.network_stages import training_params
from scenarios.runs.fluid_bound import overload_of

ROOT = Path(__file__).parents[2]
MODELS = ROOT / "scenarios" / "data" / "models"
NETWORKS = ("slimresnet-tiny", "slimresnet-pairs")
each_network = pytest.mark.parametrize("name", NETWORKS)


def _network(name: str) -> Path:
    return MODELS / f"{name}.safetensors"


def _table(name: str) -> Evaluation:
    table = load_accuracy(MODELS / f"{name}.accuracy.json")
    assert isinstance(table, Evaluation)
    return table


@pytest.mark.parametrize(
    ("name", "images", "max_bytes"), [(NETWORKS[0], 10_000, 2_000_000), (NETWORKS[1], 800, 3_000_000)]
)
def test_a_network_and_its_table_belong_together(name: str, images: int, max_bytes: int) -> None:
    model, metadata = ModelFile(_network(name), Network(name)).load()
    table = _table(name)
    assert (table.hash, table.tuples) == (metadata["hash"], tuple(model.spec.tuples()))
    assert table.correct.shape == (images, 256)
    assert _network(name).stat().st_size < max_bytes
    assert (MODELS / f"{name}.accuracy.json").stat().st_size < 400_000


@pytest.mark.parametrize(("name", "least", "most"), [("slimresnet-tiny", 0.36, 0.55), ("slimresnet-pairs", 0.6, 0.88)])
def test_wider_networks_know_more(name: str, least: float, most: float) -> None:
    """Uniform widths are strictly ordered; the narrowest and the widest are far above chance (1 %)."""
    top1 = _table(name).top1()
    uniform = [accuracy for widths, accuracy in sorted(top1.items()) if len(set(widths)) == 1]
    assert uniform == sorted(set(uniform))
    assert uniform[0] > least
    assert uniform[-1] > most


@each_network
def test_a_network_is_made_by_the_settings_beside_it(name: str) -> None:
    """The file keeps the parameters it was trained with, and the scenario beside it asks for the same.

    A parameter that came since has its default there.
    """
    _, metadata = ModelFile(_network(name), Network(name)).load()
    asked = json.loads(json.dumps(asdict(training_params(load_scenario(MODELS / f"{name}.yaml")))))
    assert {**asdict(TrainingParams()), **json.loads(metadata["training"])}.items() >= asked.items()


@each_network
def test_a_scenario_names_a_shipped_network_by_its_name(name: str, tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    changes = {"model": {"checkpoint": name, "accuracy": name, "dataset": "cifar100"}}
    path.write_text((ROOT / "scenarios" / "cifar100.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    model = load_scenario(path, changes).model
    assert Path(model.checkpoint or "").samefile(_network(name))
    assert Path(model.accuracy or "").samefile(MODELS / f"{name}.accuracy.json")
    (tmp_path / name).touch()
    assert load_scenario(path, changes).model.checkpoint == str(tmp_path / name)


SCENARIOS = sorted((ROOT / "scenarios").glob("*.yaml"))
BELOW = [path for folder in FOLDERS for path in sorted((ROOT / "scenarios" / folder).glob("*.yaml"))]
LIVE = "paper-live"  # on emulated devices: nothing is reported of them
COMPARED = ("main-*.yaml", "memory-*.yaml", "mixed-links.yaml", "night.yaml", "paper*.yaml")
REPORTED = sorted(p for each in COMPARED for p in (ROOT / "scenarios").glob(each) if not p.stem.startswith(LIVE))


@pytest.mark.parametrize("name", ["quickstart", "paper-live-x1", "live/bursts"])
def test_a_scenario_is_found_by_its_name(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the user is; what lies there by that name comes first, a path is a path, a file's name no scenario."""
    monkeypatch.chdir(tmp_path)
    assert scenario_file(Path(name)) == ROOT / "scenarios" / f"{name}.yaml"
    with pytest.raises(InputError, match="the bundled one is named without its ending"):
        scenario_file(Path(f"{name}.yaml"))
    for path in (Path("elsewhere", name), tmp_path / name):
        assert scenario_file(path) == path
    Path(name).parent.mkdir(exist_ok=True)
    Path(name).write_text("a user's own")
    assert scenario_file(Path(name)) == Path(name)


@pytest.mark.parametrize("path", [*SCENARIOS, *BELOW], ids=lambda path: path.stem)
def test_every_scenario_reads_and_is_listed(path: Path) -> None:
    """It names itself as its file does (of `live/NAME` it is `live-NAME`), and stands in the page of scenarios."""
    place = str(path.relative_to(ROOT / "scenarios").with_suffix(""))
    name = load_scenario(path).name
    assert (name, scenario_file(Path(name))) == (place.replace("/", "-"), path)
    assert f"`{place}`" in (ROOT / "docs" / "scenarios.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", REPORTED, ids=lambda path: path.stem)
def test_a_reported_scenario_can_be_carried_and_is_new_to_what_was_tuned(path: Path) -> None:
    """Its mean rate is within what its cluster can carry; curves are tuned on another day than they are reported on."""
    experiment = load_experiment(path)
    assert overload_of(experiment) is None
    first = 100 if is_replica(experiment.scenario.name) else 200
    assert set(experiment.scenario.compare.seeds) >= set(range(first, first + 10))
    assert COMPASS in experiment.scenario.compare.routers or not experiment.scenario.name.startswith("main-")
    workload = experiment.scenario.workload
    if isinstance(workload, RatesWorkload):
        assert workload.tuning_file not in (None, workload.file)


@pytest.fixture(scope="module")
def cifar100(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """The real images: from SLIMSCHED_DATA, or unpacked from a folder beside the project where there is one."""
    if "SLIMSCHED_DATA" in os.environ:
        return load_dataset("cifar100")
    unpack = ROOT.parent / "shared" / "data" / "unpack.py"
    if not unpack.is_file():
        pytest.skip("needs CIFAR-100: let SLIMSCHED_DATA name the folder that holds cifar-100-python")
    folder = tmp_path_factory.mktemp("cifar100")
    subprocess.run([sys.executable, unpack, "--out", folder], check=True, capture_output=True)
    return load_dataset("cifar100", folder)


@pytest.mark.slow
@pytest.mark.release
def test_the_bits_are_what_the_network_computes(cifar100: Dataset) -> None:
    """On the first test images; kernels of another machine add in another order, which may turn a close call."""
    assert share_of_bits("slimresnet-tiny", cifar100, 250) > 0.999


@pytest.mark.slow
def test_the_bits_of_the_quickstarts_network_are_what_it_computes() -> None:
    assert share_of_bits("slimresnet-pairs", load_dataset("large-digit-pairs"), 32) > 0.999


def share_of_bits(name: str, data: Dataset, count: int) -> float:
    """Of the first test images at each width tuple: whose answer is right or wrong as the table says."""
    few = replace(data, test_images=data.test_images[:count], test_labels=data.test_labels[:count])
    model, _ = ModelFile(_network(name)).load()
    found = evaluate(model, few, batch=count)
    return float(np.mean(found.correct == _table(name).correct[:count]))


SUITE = read_suite()


@pytest.mark.parametrize("name", SUITE.scenarios)
def test_rules_of_the_suites_scenarios_were_tuned_for_them(name: str) -> None:
    """Each kind has a file, made by this scenario's command at its floor, or a note that it can't keep that."""
    floor = load_case(SUITE, name).floor
    for kind in BASELINES:
        path = suite.file_of(name, kind)
        assert path.is_file() != path.with_name(f"{kind}{suite.FAILED}").is_file(), kind
        if path.is_file():
            told = made_by(path)
            assert told["floor"] == floor
            assert told["accuracy"] >= floor
            assert told["command"] == f"python -m benchmarks suite {name}"
