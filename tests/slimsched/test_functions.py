"""The functions do what the commands do, tell who asks, write nothing to the terminal, and name their own arguments."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import slimsched
from kit.documents import read_json
from policies.ppo.ppo_router import PPORouter
from scenarios.executors.device_calibration import SERVING_S
from scenarios.files.router_files import made_by
from scenarios.runs.folder import RunFolder
from slimsched import InputError, Step
from slimsched.cli import main
from slimsched.commands import COMMANDS
from slimsched.launching import flags_of, function_of
from tests import tiny
from tests.scenarios.files import write_scenario

PROFILE = tiny.profile("a")


@pytest.fixture
def scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Any:
    """A small one, in a folder of its own; after the test nothing has been printed."""
    path = write_scenario(tmp_path)
    monkeypatch.chdir(tmp_path)
    yield path
    streams = capfd.readouterr()
    assert (streams.out, streams.err) == ("", "")


@pytest.mark.parametrize("module", ["slimsched", "slimsched.cli"])
def test_package_import_loads_no_heavy_library(module: str) -> None:
    heavy = ("torch", "simpy", "numba", "scipy", "matplotlib", "pydantic", "pandas", "pyarrow")
    code = f"import sys, {module}; print([name for name in {heavy} if name in sys.modules], slimsched.__version__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("[] ")
    assert done.stdout.split()[-1] != "[]"


def test_package_is_typed_and_has_every_public_name() -> None:
    """Type checkers look for `py.typed`; each command has a public function of its name."""
    assert Path(slimsched.__file__).with_name("py.typed").is_file()
    assert all(hasattr(slimsched, name) for name in slimsched.__all__)
    assert {name for name in (module.partition(".")[2] for module, _ in COMMANDS.values()) if "." not in name} <= set(
        slimsched.__all__
    )
    with pytest.raises(AttributeError, match="has no attribute 'simulat'"):
        _ = slimsched.simulat


def command(*words: str | Path) -> dict[str, Any]:
    assert main([*map(str, words), "--quiet", "--json", "found.json"]) == 0
    found: dict[str, Any] = read_json(Path("found.json"))
    return found


def test_a_comparison_is_the_commands_and_tells_how_far_it_is(
    scenario: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    theirs = command("compare", scenario, "--router", "random", "--router", "jsq", "--seed", "4", "--out", "theirs")
    capfd.readouterr()
    steps: list[Step] = []
    with slimsched.observed_by(steps.append):
        ours = slimsched.compare(scenario, ["random", "jsq"], [4], out=Path("ours"))
    assert (json.loads(ours.to_json()), ours.folder) == (theirs, Path("ours"))
    assert [(step.done, step.total, step.unit) for step in steps if step.title == "compare"] == [
        (done, 2, "run") for done in range(3)
    ]
    assert ours.remarks == tuple(step.text for step in steps if step.text)
    assert "compare: begins" in ours.remarks
    again = slimsched.compare(scenario, ["random", "jsq"], [4], out="ours")
    assert "compare: skipped, done before" in again.remarks
    assert again.document == ours.document


def test_a_bound_is_the_commands(scenario: Path, capfd: pytest.CaptureFixture[str]) -> None:
    theirs = command("bound", scenario, "--set", "slo.floor=0.8")
    capfd.readouterr()
    steps: list[Step] = []
    with slimsched.observed_by(steps.append):
        ours = slimsched.bound(scenario, changes={"slo.floor": 0.8})
    assert json.loads(ours.to_json()) == theirs
    assert [step.done for step in steps if step.title == "bound"] == [0, 1, 2, 3]
    shown = {name: theirs[name] for name in theirs if name not in ("schema", "oracle", "classes")}
    assert ours.rows() == [{**shown, "oracle_accuracy": None}]


def test_observer_that_raises_ends_the_comparison(scenario: Path) -> None:

    def stop(step: Step) -> None:
        if step.done == 2:
            raise TimeoutError("enough")

    with slimsched.observed_by(stop), pytest.raises(TimeoutError, match="enough"):
        slimsched.compare(scenario, out="run")
    begun: list[Step] = []
    with slimsched.observed_by(begun.append):
        slimsched.compare(scenario, out="run")
    assert max(step.done for step in begun if step.title == "compare") == 4
    assert [step.done for step in begun if step.title == "compare"][:3] == [0, 1, 2]


def test_a_scenario_may_be_changed(scenario: Path) -> None:
    """By dotted keys, checked as the file is; what was loaded is taken where a file is."""
    changed = slimsched.load(
        scenario, {"duration_s": 0.5, "cluster.servers.1.link": "wifi5", "router": {"micro_batch_sizes": [1]}}
    )
    assert (changed.name, changed.path) == ("tiny", scenario)
    assert (changed.keys.duration_s, changed.keys.cluster.named_servers[1].link) == (0.5, "wifi5")
    assert changed.keys.router.micro_batch_sizes == (1,)
    assert json.loads(changed.changed)["duration_s"] == 0.5
    short, long = slimsched.simulate(changed), slimsched.simulate(scenario)
    assert 0 < short.images_arrived < long.images_arrived
    assert slimsched.load(scenario).changed == ""
    with pytest.raises(InputError, match="was read before"):
        slimsched.load(changed, {"duration_s": 1})


def test_an_item_may_be_added_to_a_list(scenario: Path) -> None:
    third = {"name": "third", "profile": "fast.yaml", "link": "10gbe"}
    more = slimsched.load(scenario, {"cluster.servers.2": third, "cluster.servers.0": {**third, "name": "first"}})
    assert [server.name for server in more.keys.cluster.named_servers] == ["first", "slow", "third"]
    assert len(slimsched.simulate(more, "jsq").servers) == 3


def test_a_change_to_an_object_is_refused(scenario: Path) -> None:
    with pytest.raises(InputError, match="not a plain number"):
        slimsched.load(scenario, {"workload.rate_img_s": object()})


def test_function_with_invalid_arguments_names_them_in_its_error(scenario: Path) -> None:
    with pytest.raises(InputError, match=r"^router: unknown router 'jqs'; did you mean 'jsq'") as caught:
        slimsched.simulate(scenario, "jqs")
    assert isinstance(caught.value, ValueError)
    assert (caught.value.source, caught.value.key) == ("router", "")
    with pytest.raises(InputError, match=r"^routers: .*'jqs'"):
        slimsched.compare(scenario, ["jqs"])
    with pytest.raises(InputError, match=r"^seeds: 1 is given twice"):
        slimsched.compare(scenario, seeds=[1, 1])
    with pytest.raises(InputError, match=r"compare.baseline: 'jsq' is not compared here"):
        slimsched.compare(scenario, ["random"], [0], changes={"compare.baseline": "jsq"})
    with pytest.raises(InputError, match=r"training: decisions \(7\) must be at least batch"):
        slimsched.train(scenario, ["ppo"], changes={"training.decisions": 7})
    with pytest.raises(InputError, match=r"^routers: 'jsq' can't be trained"):
        slimsched.train(scenario, ["jsq"])
    with pytest.raises(InputError, match=r"^model: give the network's file"):
        slimsched.calibrate()
    with pytest.raises(InputError, match=r"tiny: validate: .*give one to 'fast', 'slow'"):
        slimsched.validate(scenario, ["jsq"])


def test_a_rule_is_tuned_into_its_file(scenario: Path) -> None:
    """What changed in the scenario stands with how it was made; the file is a router's name."""
    changed = slimsched.load(
        scenario, {"duration_s": 0.6, "tuning": {"matching_runs": 1, "episode_s": 0.3, "floor": 0.6}}
    )
    (made,) = slimsched.train(changed, ["fixed"], out="mine").routers
    assert (made.kind, made.path) == ("tuned:fixed", Path("mine/fixed.rule.yaml"))
    assert made_by(made.path)["accuracy"] >= 0.6
    assert "--set tuning.floor=0.6" in made_by(made.path)["command"]
    assert slimsched.simulate(changed, made.path).router == "fixed"


def layers_for(*shapes: tuple[int, int]) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(np.zeros(shape), np.zeros(shape[0])) for shape in shapes]


def test_router_saved_from_external_layers_decides_as_computed_by_hand(scenario: Path) -> None:
    """The router reads the queue (observation 0) and leaves the fast server if it is not empty."""
    first, second, last = layers = layers_for((1, 8), (2, 1), (10, 2))  # 2 servers, 2 widths, 6 groups
    first[0][0, 0] = 1.0  # tanh(log1p(queue))
    second[0][:, 0] = (2.0, 0.0)
    second[1][1] = -0.4
    last[0][1, 0] = 1.0  # the slow server
    last[0][2:4, 1] = (1.0, -1.0)  # the bias, below 0: the wide width
    last[1][0] = 0.9
    path = slimsched.save_router(scenario, layers, "theirs.safetensors", deterministic=True)
    assert path == Path("theirs.safetensors")
    router = PPORouter.load(path)
    for queue in (1, 2, 5, 50):
        seen = np.array([np.log1p(queue), *[0.3] * 7], np.float32)
        hidden = np.tanh(2 * np.tanh(np.log1p(queue)))
        wanted = [0.9, hidden, np.tanh(-0.4), -np.tanh(-0.4), *[0] * 6]
        assert router.logits(seen) == pytest.approx(wanted, abs=1e-6)
    found = slimsched.simulate(scenario, path)
    assert (found.router, found.images_arrived > 0) == ("theirs", True)
    assert {server.name for server in found.servers if server.utilization > 0} == {"fast", "slow"}
    assert found.accuracy is not None
    assert found.accuracy > 0.8  # always wide: 0.9
    again = slimsched.save_router(scenario, layers, path)
    assert (again, PPORouter.load(again).deterministic) == (path, False)


@pytest.mark.parametrize(
    ("shapes", "problem"),
    [
        ([], "weights and biases of shapes none; the first takes 8 inputs, the last gives 10 outputs"),
        ([(8, 4), (4, 10)], r"shapes \(8, 4\) and \(8,\), \(4, 10\) and \(4,\); .*weights are \(outputs, inputs\)"),
        ([(4, 8), (8, 4)], r"the last gives 10 outputs \(2\+2\+6\)"),
        ([(4, 8), (10, 5)], "each takes what the one before gives"),
    ],
)
def test_a_network_that_does_not_fit_is_told(scenario: Path, shapes: list[tuple[int, int]], problem: str) -> None:
    with pytest.raises(InputError, match=f"^layers: .*{problem}"):
        slimsched.save_router(scenario, layers_for(*shapes), "theirs.safetensors")
    assert not Path("theirs.safetensors").exists()


class Scaled(nn.Module):
    """A user's own: what is seen, centred and scaled."""

    def forward(self, seen: torch.Tensor) -> torch.Tensor:
        return (seen - 3.0) / 0.7


def module_of(*parts: nn.Module, seen: int = 8) -> nn.Sequential:
    """For 2 servers, 2 widths and 6 groups."""
    torch.manual_seed(0)
    return nn.Sequential(*parts, nn.Linear(seen, 16), nn.Tanh(), nn.Linear(16, 10))


@pytest.mark.parametrize("rectified", [False, True])
def test_a_module_of_torch_is_a_router(scenario: Path, rectified: bool) -> None:
    """Its scaling and its activation come along; it is left as it was, in the midst of learning."""
    inner = module_of(Scaled(), nn.BatchNorm1d(8))
    if rectified:
        inner[3] = nn.ReLU()
    module = nn.Sequential(inner, nn.Identity())
    module(torch.rand(20, 8)).sum().backward()  # the batch norm has statistics of its own now
    before = {name: value.clone() for name, value in module.state_dict().items()}
    path = slimsched.save_router(scenario, module, "mine.safetensors")
    assert module.training
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert all(value.grad is not None for value in module.parameters())
    module.eval()
    seen = torch.rand(50, 8) * 9
    wanted = module(seen).detach().numpy()
    found = [PPORouter.load(path).logits(each.numpy()) for each in seen]
    assert np.array(found) == pytest.approx(wanted, abs=1e-4)
    assert slimsched.simulate(scenario, path).router == "mine"


@pytest.mark.parametrize(
    ("module", "problem"),
    [
        (module_of(nn.LayerNorm(8)), "give other logits than a router of them, by up to .*look at: LayerNorm"),
        (module_of(nn.Linear(8, 8), nn.GELU()), "look at: GELU"),
        (module_of(nn.Linear(8, 8), nn.ReLU()), "have Tanh and ReLU; a router has one of them"),
        (module_of(seen=11), "do not take observations of 8 numbers: the first Linear takes 11"),
        (module_of(nn.Linear(8, 5)), "do not take observations of 8 numbers: mat1 and mat2"),
        (module_of(), ""),
        (nn.Linear(8, 10), r"a Linear: give the torch\.nn\.Sequential"),
    ],
)
def test_a_module_that_no_file_can_hold_is_told(scenario: Path, module: Any, problem: str) -> None:
    if not problem:
        module.register_forward_hook(lambda *seen: 2 * seen[2])
        problem = "look at: forward hooks"
    with pytest.raises(InputError, match=f"^layers: .*{problem}"):
        slimsched.save_router(scenario, module, "mine.safetensors")
    assert not Path("mine.safetensors").exists()


def test_a_routers_file_takes_no_other_files_place(scenario: Path) -> None:
    layers = layers_for((4, 8), (10, 4))
    Path("notes.safetensors").write_text("mine")
    with pytest.raises(InputError, match=r"^out: notes\.safetensors exists, and is not a router; name another file"):
        slimsched.save_router(scenario, layers, "notes.safetensors")
    assert Path("notes.safetensors").read_text() == "mine"
    with pytest.raises(InputError, match=r"^out: theirs\.pt: .* ends with \.safetensors"):
        slimsched.save_router(scenario, layers, "theirs.pt")
    with pytest.raises(InputError, match=r"tiny\.yaml/theirs\.safetensors: .*tiny\.yaml is not a folder"):
        slimsched.save_router(scenario, layers, scenario / "theirs.safetensors")
    layers[1][1][3] = np.nan
    with pytest.raises(InputError, match=r"^layers: hold numbers that are not finite"):
        slimsched.save_router(scenario, layers, "theirs.safetensors")


def test_devices_are_calibrated(scenario: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def measured(wanted: Any, **_: Any) -> Any:
        asked.append(wanted)
        return PROFILE

    monkeypatch.setattr("scenarios.executors.device_calibration.calibrate_device", measured)
    monkeypatch.setattr("scenarios.executors.device_calibration.with_serving", lambda profile, *_, **__: profile)
    found = slimsched.calibrate(model="slimresnet-pairs", device="cpu:0", budget_s=100, out="here", batch_limit=8)
    assert found.profiles == (Path("here/cpu0.yaml"),)
    assert (asked[0].batch_limit, asked[0].budget_s) == (8, 100 - SERVING_S)
    assert found.rows()[0]["device"] == PROFILE.device.name
    assert json.loads(found.to_json()) == {"profiles": ["here/cpu0.yaml"], "warnings": []}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_its_function(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The list of all has the first line of its docstring; its help explains each argument."""
    assert f"{function_of(command).__doc__}\n".startswith(f"{COMMANDS[command][1]}\n")
    assert main([*command.split(), "--help"]) == 0
    told = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert f"Usage: slimsched {command}" in told
    for name in inspect.signature(function_of(command)).parameters:
        assert re.search(rf"^ +{name}: ", function_of(command).__doc__ or "", re.MULTILINE), name


def test_the_surface_is_small(capsys: pytest.CaptureFixture[str]) -> None:
    """At most 26 commands, and 9 of training jobs; each is in the list of all."""
    own = [name for name in COMMANDS if not name.startswith("jobs ")]
    assert (len(own), len(COMMANDS)) == (26, 35)
    assert sum(len(flags_of(command)) for command in own) <= 110
    for words in (["--help"], ["-h"]):
        assert main(words) == 0
        out = capsys.readouterr().out
        assert [name for name in own if f"  {name} " not in out] == []
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("slimsched ")


def test_the_report_is_drawn_after_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown: list[str] = []

    def build(folder: RunFolder) -> Path:
        shown.append(capsys.readouterr().out)
        return folder / "report.html"

    monkeypatch.setattr("scenarios.show.report.build_report", build)
    assert main(["run", str(write_scenario(tmp_path)), "--out", str(tmp_path / "run")]) == 0
    (before,) = shown
    assert "\n  Run " in before
    assert capsys.readouterr().out == f"report: {tmp_path / 'run' / 'report.html'}\n"
