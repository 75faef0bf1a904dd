"""`profile check`: open-loop runs are judged as points are; a served profile is checked as it was calibrated."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from calibrate.device_identity import stamps_here
from calibrate.fresh_points import Allowed, CheckedMetric, meaningful
from hw.device_settings import DeviceSpec
from hw.networks.architectures import SlimResNet, SlimResNetConfig
from hw.networks.network_files import ModelFile, save_model
from hw.telemetry import usable_cores
from kit.errors import InputError
from scenarios.executors.device_calibration import (
    MODELLED,
    NO_SERVING,
    SHARE,
    OpenLoopRun,
    open_loop_experiment,
    open_loop_metrics,
    profile_device,
)
from scenarios.executors.preflight import stamp_warnings
from scenarios.executors.serving_costs import DeviceCosts, PassExtra, ServingCosts
from scenarios.executors.serving_measurement import ServingOverheads, is_served, with_overheads
from scenarios.metrics.run_result import Result
from scenarios.runs.simulated_runs import run_simulation
from scenarios.show.command_tables import check_document, check_table
from sim.device_profile import Profile, RouterHost, WorkCost
from sim.device_tables import compile_tables
from slimsched.cli import main
from tests import tiny
from tests.scenarios.folders import simulated

ERRORS = [
    {
        "metric": "solo latency",
        "kind": "held out",
        "median_abs_pct": 1.0,
        "mean_abs_pct": 1.0,
        "p90_abs_pct": 2.0,
        "max_abs_pct": 2.0,
        "points": 9,
    }
]


def served_profile(power: str = "measured", **changes: Any) -> Profile:
    """A measured profile of this machine's first core, with what serving costs."""
    device = DeviceSpec(cores=usable_cores()[:1])
    here = stamps_here(device)
    return tiny.profile(
        provenance="measured",
        errors=ERRORS,
        device={
            "kind": "cpu",
            "name": here["device"],
            "vram_bytes": device.vram_bytes,
            "stamps": {"torch": here["torch"]},
        },
        execution=device.execution(),
        router_host={"decision": {"micro_batch_s": 1e-4, "image_s": 0}, "returned": {"micro_batch_s": 0, "image_s": 0}},
        power={"bare_idle_w": 10.0, "context_idle_w": 30.0, "cap_w": 250.0, "provenance": power},
        **changes,
    )


@cache
def told() -> Result:
    return simulated("random", 0, rate=50)[0]


def twins(*factors: float, energy: float = 1.0) -> list[OpenLoopRun]:
    """Runs, each with a real twin whose latencies are so many times as long."""
    pairs = []
    for factor in factors:
        real = copy.deepcopy(told())
        real["latency_s"]["mean"] = factor * (real["latency_s"]["mean"] or 0.0)
        real["latency_s"]["p99"] = factor * (real["latency_s"]["p99"] or 0.0)
        real["energy_per_image_j"]["total"] = energy * (real["energy_per_image_j"]["total"] or 0.0)
        pairs.append(OpenLoopRun(told(), real))
    return pairs


def judged(profile: Profile, runs: list[OpenLoopRun]) -> dict[str, CheckedMetric]:
    return {metric.metric: metric for metric in open_loop_metrics(profile, runs)}


def test_runs_that_agree_hold_and_runs_that_are_all_slower_drift() -> None:
    """Five runs within noise; one that is far off; all of them 30 % slower; all of them hungrier."""
    noisy = judged(served_profile(), twins(1.02, 0.97, 1.03, 1.0, 0.99))
    assert {metric.verdict for metric in noisy.values()} == {"holds"}
    assert {metric.verdict for metric in judged(served_profile(), twins(1.02, 3.0, 1.0, 1.0, 1.0)).values()} == {
        "holds"
    }
    slower = judged(served_profile(), twins(1.3, 1.28, 1.33, 1.31, 1.3))
    assert {name for name, metric in slower.items() if metric.verdict == "drifted"} == {"mean latency", "p99 latency"}
    assert slower["mean latency"].finding == "mean latency: 30 % slower than the profile states"
    hungry = judged(served_profile(), twins(1, 1, 1, 1, 1, energy=1.2))
    assert hungry["energy per image"].finding == "energy per image: 20 % more than the profile states"


def test_metric_unknown_to_the_profile_is_shown_but_not_judged() -> None:
    metrics = judged(served_profile("modelled"), twins(1, 1, 1, 1, 1, energy=2.0))
    assert (metrics["energy per image"].verdict, metrics["energy per image"].not_judged) == ("not judged", MODELLED)
    assert metrics["mean latency"].verdict == "holds"
    bare = tiny.profile(provenance="measured", errors=ERRORS)
    found = judged(bare, twins(2, 2, 2, 2, 2))["p99 latency"]
    assert (found.verdict, found.not_judged) == ("not judged", NO_SERVING)


def test_a_slowdown_that_is_not_the_profiles_is_shown_beside() -> None:
    """Others come and go on the host: the runs had it, and nothing is concluded from it."""
    runs = [replace(run, slowdown=1.5) for run in twins(1, 1, 1)]
    slowdown = judged(served_profile(), runs)["slowdown of the device"]
    assert slowdown.verdict == "not judged"
    assert slowdown.bias_pct == pytest.approx(100 / 1.5 - 100)
    assert "slowdown of the device" not in judged(served_profile(), twins(1, 1, 1))


def test_the_table_and_the_document_say_the_same() -> None:
    """Each metric's verdict, what has drifted, and the whole verdict; the document is plain JSON."""
    profile = served_profile("modelled")
    metrics = open_loop_metrics(profile, twins(1.3, 1.3, 1.3, 1.3, 1.3))
    table = check_table(profile, metrics)
    assert [(row[0], row[1], row[-1]) for row in table.rows] == [
        ("mean latency", "5", "drifted"), ("p99 latency", "5", "drifted"),
        ("throughput", "5", "holds"), ("energy per image", "5", "not judged"),
    ]  # fmt: skip
    assert table.rows[0][2:8] == ["23.1", "23.1", "-23.1", "-23.1 to -23.1", "5.0", "5.0"]
    document = json.loads(json.dumps(check_document(profile, ["w"], metrics)))
    assert (document["schema"], document["holds"], document["warnings"]) == ("slimsched.check/1", False, ["w"])
    assert [metric["verdict"] for metric in document["metrics"]] == ["drifted", "drifted", "holds", "not judged"]
    assert len(document["metrics"][0]["pairs"]) == 5


def test_check_of_drifted_profile_ends_with_the_drift_and_the_remedy() -> None:
    """A profile that holds is reported as such, and so are large errors that a profile states."""
    profile = served_profile("modelled")
    (metric, *others) = open_loop_metrics(profile, twins(1.3, 1.3, 1.3, 1.3, 1.3))
    told = "30 % slower than the profile states (it states 0.77 times what is measured now, a bias of -23.1 %)"
    notes = check_table(profile, [metric, *others]).notes
    assert [*notes[-3:]] == [
        f"mean latency: {told}", f"p99 latency: {told}",
        "the profile toy no longer holds; `slimsched calibrate` makes a new one",
    ]  # fmt: skip
    assert "a number has drifted only where its whole 95 % interval lies beyond what is allowed" in notes
    assert check_table(profile, open_loop_metrics(profile, twins(1, 1, 1, 1, 1))).notes[-1] == "the profile toy holds"
    for each, is_told in ((metric, False), (replace(metric, allowed=Allowed(60.0, 30.0)), True)):
        assert any("own errors are large" in note for note in check_table(profile, [each]).notes) is is_told


def test_a_check_that_could_judge_nothing_says_so_and_why() -> None:
    profile = served_profile("modelled")
    energy = [metric for metric in open_loop_metrics(profile, twins(1, 1, 1)) if metric.not_judged]
    empty = CheckedMetric("solo latency", (), Allowed(3.0, 3.0))
    last = check_table(profile, [*energy, empty]).notes[-1]
    assert last.startswith("nothing could be judged, so the profile toy may hold or not (")
    assert f"energy per image: {MODELLED}; solo latency: nothing could be measured" in last
    document = check_document(profile, (), [*energy, empty])
    assert (document["holds"], document["judged"]) == (False, False)


def test_a_metric_that_may_be_off_by_anything_is_not_judged() -> None:
    """More than half of its value is allowed: to hold says nothing, but to drift does."""
    (metric, *_) = open_loop_metrics(served_profile(), twins(1, 1, 1, 1, 1))
    assert meaningful(metric).verdict == "holds"
    assert meaningful(replace(metric, allowed=Allowed(50.0, 25.0))).verdict == "holds"
    vague = meaningful(replace(metric, allowed=Allowed(60.0, 30.0)))
    assert vague.verdict == "not judged"
    assert "60 % are allowed" in vague.not_judged
    notes = check_table(served_profile(), [vague]).notes
    assert not any("so large errors itself" in note for note in notes)  # it is said once
    (far, *_) = open_loop_metrics(served_profile(), twins(4, 4, 4, 4, 4))
    assert meaningful(replace(far, allowed=Allowed(60.0, 30.0))).verdict == "drifted"


def test_the_open_loop_run_is_of_one_device_at_half_of_what_it_carries() -> None:
    """In simulation at least: everything completes, and the device is busy about half of the time."""
    profile = served_profile(link={"latency_s": 1e-5, "bandwidth_bytes_s": 1e9}, base_s=0.02, per_image_s=0.004)
    experiment = open_loop_experiment(profile, profile_device(profile, "p.yaml"), seed=3)
    assert len(experiment.cluster.servers) == 1
    assert experiment.emulated_links(0) is None
    result, _ = run_simulation(experiment, experiment.router("random"), "random", 5, duration_s=5.0, warmup_s=0.5)
    assert result["images"]["completed"] == result["images"]["arrived"] > 100
    assert experiment.rate_img_s is not None
    twice, _ = run_simulation(
        experiment, experiment.router("random"), "random", 5, duration_s=5.0, warmup_s=0.5, scale=1.5 / SHARE, end="cut"
    )
    assert twice["images"]["in_flight"] > 0.2 * twice["images"]["arrived"]  # thrice the rate is too much


def test_a_profiles_device_is_used_as_it_was_calibrated() -> None:
    """Cores, threads and oneDNN from the profile; cores that are not here are refused."""
    core = usable_cores()[0]
    for device in (DeviceSpec(cores=(core,), onednn=False), DeviceSpec(threads=2)):
        profile = tiny.profile(execution=device.execution())
        assert profile_device(profile, "p.yaml").execution() == device.execution()
    absent = tiny.profile(execution=DeviceSpec(cores=(4096,)).execution())
    with pytest.raises(InputError, match="no core 4096"):
        profile_device(absent, "p.yaml")


HOST = RouterHost(decision=WorkCost(micro_batch_s=1e-4, image_s=0.0), returned=WorkCost(micro_batch_s=0.0, image_s=0.0))


def test_serving_overheads_leave_the_calibrated_curves_unchanged() -> None:
    """The curves stay, so that a check compares like with like; the simulator adds the rest to every pass, and a
    modelled power, which follows from busy time, lasts as long."""
    calibrated = tiny.profile()
    found = ServingCosts(HOST, (DeviceCosts(dispatch_s=2e-4, extra=PassExtra(3e-4, 0.0, 0.0, (0.0,) * 3)),))
    served = with_overheads(calibrated, ServingOverheads(found, ""), 0)
    assert served.latency == calibrated.latency
    assert not is_served(calibrated)
    assert is_served(served)
    before, now = (compile_tables(profile, 8, jitter=False).keys[1, 1.0, 0.0] for profile in (calibrated, served))
    assert [late - soon for late, soon in zip(now.latency_ns[1:], before.latency_ns[1:], strict=True)] == pytest.approx(
        [3e5] * 8, abs=2
    )
    cpu = calibrated.model_copy(update={"device": calibrated.device.model_copy(update={"kind": "cpu"})})
    slower = cpu.model_copy(update={"served_extra_s": 3e-4})
    before, now = (compile_tables(profile, 8, jitter=False).keys[1, 1.0, 0.0] for profile in (cpu, slower))
    assert now.power_mw == before.power_mw


def test_another_stack_is_told_line_by_line() -> None:
    """Another device, another torch; a profile of this very stack, and one of a datasheet, are told nothing of."""
    profile = served_profile()
    device = profile_device(profile, "p.yaml")
    assert stamp_warnings(profile, device) == ()
    assert stamp_warnings(tiny.profile(), device) == ()
    old = profile.model_copy(update={"execution": {**profile.execution, "torch": "1.13"}})
    (line,) = stamp_warnings(old, device)
    assert line.startswith(f"warning: profile toy: torch: the profile has 1.13, here it is {torch.__version__}; ")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy profile's shape, random weights."""
    torch.manual_seed(0)
    config = SlimResNetConfig(1, 8, 10, 8, 1, 2, widths=(0.25, 0.5, 0.75, 1.0), strides=(1, 1, 2, 2))
    path = tmp_path_factory.mktemp("model") / "four.safetensors"
    save_model(path, SlimResNet(config), "four", {})
    return path


def of_model(profile: Profile, model: Path) -> Profile:
    digest = ModelFile(model).load()[1]["hash"]
    return profile.model_copy(update={"model": profile.model.model_copy(update={"hash": digest})})


@pytest.mark.parametrize(
    "change, wanted",
    [
        ({"provenance": "datasheet"}, ["p.yaml: provenance", "promises nothing"]),
        ({"hash": "ffff"}, ["p.yaml: model.hash", "(ffff)", "calibrate this model"]),
        ({"name": "Another Processor"}, ["p.yaml: execution: ", "instead of Another Processor", "calibrate"]),
        ({"cores": "4096"}, ["p.yaml: execution.cores", "no core 4096"]),
    ],
)
def test_profile_check_of_wrong_profile_model_or_device_is_refused(
    change: dict[str, str], wanted: list[str], model: Path, tmp_path: Path, capsys: Any
) -> None:
    """The error is one line with exit code 2, before any process is started."""
    profile = served_profile(link={"latency_s": 0.0, "bandwidth_bytes_s": 1e9}, base_s=1e-3)
    raw = json.loads(of_model(profile, model).model_dump_json(by_alias=True))
    raw["provenance"] = change.get("provenance", "measured")
    raw["model"]["hash"] = change.get("hash", raw["model"]["hash"])
    raw["device"]["name"] = change.get("name", raw["device"]["name"])
    raw["execution"]["cores"] = change.get("cores", raw["execution"]["cores"])
    path = tmp_path / "p.yaml"
    path.write_text(Profile.model_validate_json(json.dumps(raw)).to_yaml())
    assert main(["profile", "check", str(path), "--model", str(model)]) == 2
    streams = capsys.readouterr()
    assert (streams.out, len(streams.err.strip().splitlines())) == ("", 1)
    assert [word for word in wanted if word not in streams.err] == []


@pytest.mark.slow
@pytest.mark.release
def test_a_made_up_profile_does_not_hold(model: Path, tmp_path: Path, capsys: Any) -> None:
    """Real processes: a toy's latencies are not this machine's, and exit code 1 says so; the document has each pair."""
    path, document = tmp_path / "p.yaml", tmp_path / "check.json"
    profile = of_model(served_profile("modelled", base_s=0.01, batches=(1, 4)), model)
    path.write_text(profile.to_yaml())
    flags = ["--json", str(document), "--quiet"]
    assert main(["profile", "check", str(path), "--model", str(model), *flags]) == 1
    metrics = {metric["metric"]: metric for metric in json.loads(document.read_text())["metrics"]}
    assert (metrics["solo latency"]["verdict"], metrics["solo latency"]["looks"]) == ("drifted", 2)
    assert (len(metrics["solo latency"]["pairs"]), len(metrics["mean latency"]["pairs"])) == (24, 5)
    assert np.median([pair["predicted"][0] for pair in metrics["mean latency"]["pairs"]]) > 0.02
    assert "faster than the profile states" in capsys.readouterr().out
