"""What each stage depends on: one bit of whatever it reads makes it again, and no stage that does not read it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hw.networks.network_files import ModelFile
from kit.documents import write_text
from policies.rules.rule_params import LadderRule
from scenarios.executors.validation_plan import ValidationPlan
from scenarios.files.router_files import write_rule
from scenarios.files.scenario_keys import Scenario
from scenarios.files.scenario_reading import load_scenario
from scenarios.job import comparing_stage, job_stages, network_stages, profile_stages, training_stage, validation_stage
from scenarios.job.job_stages import Run
from tests.scenarios.files import profile_text

NETWORK_STAGES = {"model", "accuracy", "calibrate-cpu", "serving", "validate"}
SIMULATED = {"train-ppo", "compare", "validate"}
ALL = NETWORK_STAGES | SIMULATED

OWN = """
schema: slimsched.scenario/1
name: own
model: {network: 'own_net:Net', options: {features: 7}, dataset: 'own_set:Images'}
cluster: {servers: [{name: cpu, device: {cores: [0]}}], greedy: {batch_limit: 8}}
workload: {kind: rates, rate_img_s: 30, file: curves/report.csv, tuning_file: curves/tuning.csv, period_s: 1}
compare: {routers: [jsq, compared.rule.yaml, compared.safetensors, 'own_router:Compared', ppo], seeds: [0]}
validate: {routers: [random, validated.rule.yaml, 'own_router_too:Validated', ppo]}
duration_s: 3
warmup_s: 0.5
"""
GIVEN = """
schema: slimsched.scenario/1
name: given
model: {checkpoint: net.safetensors, accuracy: table.json, dataset: images}
cluster: {servers: [{name: cpu, device: {cores: [0]}, profile: given.yaml, link: 1gbe}], greedy: {batch_limit: 8}}
workload: {kind: trace, file: trace.csv}
compare: {routers: [jsq, ppo]}
validate: {routers: [random]}
duration_s: 3
warmup_s: 0.5
"""
TEXTS = {
    "curves/report.csv": "count\n7\n3\n",
    "curves/tuning.csv": "count\n3\n7\n",
    "trace.csv": "time_s\n0.7\n",
    "compared.safetensors": "7",
    "net.safetensors": "7",
    "table.json": "7",
    "images/train/0/a.png": "7",
    "images/test/0/a.png": "7",
    # a network that imports from its folder in every way, and what is not a part of it
    "own_net.py": "import own_beside, own_dotted.inner\nfrom own_package import deep\nx = 7  # remark\n",
    "own_beside.py": "def f():\n    from own_late import x\n    importlib.import_module('own_literal')\n",
    "own_late.py": "x = 7\n",
    "own_literal.py": "x = 7\n",
    "own_dotted/__init__.py": "x = 7\n",
    "own_dotted/inner.py": "x = 7\n",
    "own_package/__init__.py": "from .above import *\nx = 7\n",
    "own_package/above.py": "x = 7\n",
    "own_package/deep/__init__.py": "from ..sibling import x\nfrom . import below\n",
    "own_package/deep/below.py": "x = 7\n",
    "own_package/sibling.py": "x = 7\n",
    "own_package/unused.py": "x = 7\n",
    "own_typed.py": "x = 7\n",
    "own_set.py": "import numpy, own_set_helper\n\nclass Images:\n    pass\n",
    "own_set_helper.py": "if TYPE_CHECKING:\n    import own_typed\nx = 7\n",
    "own_router.py": "from own_router_helper import x\n\nclass Compared:\n    pass\n",
    "own_router_helper.py": "x = 7\n",
    "own_router_too.py": "class Validated:\n    x = 7\n",
    # what the run has made
    "run/model.safetensors": "7",
    "run/accuracy.json": "7",
    "run/calibration/cpu.yaml": "7",
    "run/profiles/cpu.yaml": "7",
    "run/ppo.safetensors": "7",
    "run/profiles/former.yaml": "7",
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """All that the scenarios name, and a run folder; stages end as they ask whether they are done."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name, text in TEXTS.items():
        write_text(tmp_path / name, text)
    (tmp_path / "given.yaml").write_text(profile_text("given", 1.0))
    for name in ("compared", "validated"):
        write_rule(tmp_path / f"{name}.rule.yaml", LadderRule(thresholds=(7,), rungs=((1.0, 1.0), (0.5, 0.5))))
    (tmp_path / "own.yaml").write_text(OWN)
    monkeypatch.setattr(network_stages, "require_conformance", lambda *_: None)
    monkeypatch.setattr(ModelFile, "load", lambda _: None)
    for name in ("require_devices", "require_ready", "warn_of_another_stack"):
        monkeypatch.setattr(validation_stage, name, lambda *_: None)
    monkeypatch.setattr(ValidationPlan, "of", lambda *_: None)
    return tmp_path


class _Asked(Exception):  # noqa: N818 - no error
    """A stage was asked whether it is done."""


def fingerprints(
    scenario: Scenario, folder: Path, *charged: tuple[str, float], dials: dict[str, float] | None = None
) -> dict[str, str]:
    """By stage, as each asks whether it is done; `charged`: what routers' own decisions are."""
    found: dict[str, str] = {}

    class Asking(Run):
        def stage(self, name: str, fingerprint: str, work: object) -> None:
            found[name] = fingerprint
            raise _Asked

    experiment: Any = SimpleNamespace(decision_parts=lambda _: charged, dials=dials or {})
    stages: list[Callable[[Run], object]] = [
        network_stages.make_model,
        network_stages.make_accuracy,
        profile_stages.make_profiles,
        profile_stages.make_serving,
        lambda job: training_stage.make_routers(job, experiment, ["ppo"]),
        lambda job: comparing_stage.compare(job, experiment),
        lambda job: validation_stage.validate(job, experiment),
    ]
    for stage in stages:
        with contextlib.suppress(_Asked):
            stage(Asking(scenario, folder / "run", say=lambda _: None, quiet=True))
    return found


def flip(path: Path) -> None:
    """One bit of the last 7 in a file."""
    before, after = path.read_bytes().rsplit(b"7", 1)
    path.write_bytes(before + b"6" + after)


def changed(before: dict[str, str], after: dict[str, str]) -> set[str]:
    assert before.keys() == after.keys()
    return {stage for stage in before if before[stage] != after[stage]}


@pytest.mark.parametrize(
    ("file", "stages"),
    [
        ("curves/report.csv", SIMULATED),
        ("curves/tuning.csv", {"train-ppo"}),
        ("compared.rule.yaml", {"compare"}),
        ("compared.safetensors", {"compare"}),
        ("own_router.py", {"compare"}),
        ("own_router_helper.py", {"compare"}),
        ("validated.rule.yaml", {"validate"}),
        ("own_router_too.py", {"validate"}),
        *[
            (name, NETWORK_STAGES)
            for name in (
                "own_net.py", "own_beside.py", "own_late.py", "own_literal.py", "own_dotted/__init__.py",
                "own_dotted/inner.py", "own_package/__init__.py",
                "own_package/above.py", "own_package/deep/__init__.py", "own_package/deep/below.py",
                "own_package/sibling.py",
            )
        ],
        ("own_package/unused.py", set()),
        ("own_typed.py", set()),
        ("own_set.py", NETWORK_STAGES - {"calibrate-cpu"}),
        ("own_set_helper.py", NETWORK_STAGES - {"calibrate-cpu"}),
        ("run/model.safetensors", NETWORK_STAGES - {"model"}),
        ("run/accuracy.json", {"serving", *SIMULATED}),
        ("run/calibration/cpu.yaml", {"serving"}),
        ("run/profiles/cpu.yaml", SIMULATED),
        ("run/profiles/former.yaml", set()),  # of a server that the scenario no longer has
        ("run/ppo.safetensors", {"compare", "validate"}),
    ],
)  # fmt: skip
def test_fingerprints_change_for_stages_that_read_a_flipped_file(file: str, stages: set[str], folder: Path) -> None:
    scenario = load_scenario(folder / "own.yaml")
    before = fingerprints(scenario, folder)
    assert before.keys() == ALL
    if b"7" not in (folder / file).read_bytes():
        (folder / file).write_text((folder / file).read_text() + "x = 7\n")
        before = fingerprints(scenario, folder)
    flip(folder / file)
    assert changed(before, fingerprints(scenario, folder)) == stages


@pytest.mark.parametrize(
    ("file", "stages"),
    [
        ("given.yaml", SIMULATED),
        ("trace.csv", SIMULATED),
        ("table.json", SIMULATED),
        ("net.safetensors", {"validate"}),
        ("images/train/0/a.png", {"validate"}),
        ("images/test/0/a.png", {"validate"}),
    ],
)
def test_fingerprints_change_for_stages_that_read_a_flipped_scenario_input(
    file: str, stages: set[str], folder: Path
) -> None:
    (folder / "given-scenario.yaml").write_text(GIVEN)
    scenario = load_scenario(folder / "given-scenario.yaml")
    before = fingerprints(scenario, folder)
    assert before.keys() == SIMULATED
    flip(folder / file)
    assert changed(before, fingerprints(scenario, folder)) == stages


@pytest.mark.parametrize(
    ("old", "new", "stages"),
    [
        ("duration_s: 3", "duration_s: 4", SIMULATED),
        ("name: own", "name: own\nseed: 1", {"model", "serving", "train-ppo"}),
        ("name: own", "name: own\ntraining: {hidden: [32]}", {"train-ppo"}),
        ("name: own", "name: own\ntraining: {deterministic: false}", SIMULATED),
        ("name: own", "name: own\nreward: {beta: 2}", SIMULATED),
        ("name: own", "name: own\ncalibration: {budget: 10s}", {"calibrate-cpu"}),
        ("seeds: [0]", "seeds: [0, 1]", {"compare"}),
        ("[jsq, ", "[sticky, ", {"compare"}),
        ("[random, ", "[sticky, ", {"validate"}),
        ("'own_router_too:Validated', ppo]}", "'own_router_too:Validated', ppo], go_on: true}", set()),
        ("features: 7", "features: 6", NETWORK_STAGES),
        ("period_s: 1", "period_s: 2", SIMULATED),
    ],
)
def test_a_key_makes_anew_what_reads_it(old: str, new: str, stages: set[str], folder: Path) -> None:
    before = fingerprints(load_scenario(folder / "own.yaml"), folder)
    assert OWN.count(old) == 1
    (folder / "own.yaml").write_text(OWN.replace(old, new))
    assert changed(before, fingerprints(load_scenario(folder / "own.yaml"), folder)) == stages


def test_fingerprints_of_simulations_change_with_decision_times(folder: Path) -> None:
    scenario = load_scenario(folder / "own.yaml")
    found = [fingerprints(scenario, folder, ("jsq", each_s)) for each_s in (1e-4, 2e-4)]
    assert changed(*found) == {"compare", "validate"}


def test_a_dial_makes_a_comparison_anew(folder: Path) -> None:
    scenario = load_scenario(folder / "own.yaml")
    found = [fingerprints(scenario, folder, dials={"jsq": by}) for by in (0.1, 0.2)]
    assert changed(*found) == {"compare"}


def test_another_version_makes_all_anew(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = load_scenario(folder / "own.yaml")
    before = fingerprints(scenario, folder)
    monkeypatch.setattr(job_stages, "version_of", lambda _: "0.2.0")
    assert changed(before, fingerprints(scenario, folder)) == ALL


def test_fingerprints_ignore_file_locations_and_comments(folder: Path) -> None:
    before = fingerprints(load_scenario(folder / "own.yaml"), folder)
    (folder / "curves").rename(folder / "elsewhere")
    (folder / "own.yaml").write_text(OWN.replace("curves/", "elsewhere/"))
    (folder / "own_net.py").write_text(TEXTS["own_net.py"].replace("# remark", "# another"))
    assert changed(before, fingerprints(load_scenario(folder / "own.yaml"), folder)) == set()
