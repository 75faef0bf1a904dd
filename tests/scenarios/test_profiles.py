"""Profiles that ship, what `profile show` says of one, and its charts."""

from __future__ import annotations

import json
import re
import textwrap
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from calibrate.datasheet import GPUS, MeasuredHost, synthesize
from calibrate.measurement_plan import costs_of
from hw.networks.network_files import Network
from kit.errors import InputError
from policies.vocabulary import Provenance
from scenarios.experiment.scenario_building import load_experiment
from scenarios.files import bundled_files
from scenarios.files.scenario_reading import load_scenario, read_profile, relative_paths
from scenarios.job import profile_stages
from scenarios.job.job_stages import Run
from scenarios.runs.simulated_runs import simulate_metrics
from scenarios.show.charts import save
from scenarios.show.command_tables import described, error_table, range_table
from scenarios.show.profile_charts import band_of_repeats_s, stated_solo_error, under_load, utilization_by_batch
from scenarios.show.report import profile_page
from sim.device_profile import Profile, Range, Slowdown, StatedError
from sim.host_and_network import HostTable
from sim.simulated_device import knee
from slimsched.cli import main
from tests import tiny
from tests.scenarios.files import write_scenario

ROOT = Path(__file__).parents[2]
PNG = b"\x89PNG\r\n\x1a\n"
SHIPPED_SCENARIO = f"""
schema: slimsched.scenario/1
name: shipped
model: {{accuracy: {ROOT / "scenarios" / "data" / "models" / "slimresnet18-paper.accuracy.json"}}}
cluster:
  greedy: {{batch_limit: 16}}
  servers:
  - {{name: new, profile: rtx-2080-ti, link: 10gbe}}
  - {{name: old, profile: gtx-980-ti, link: 10gbe}}
workload: {{kind: poisson, rate_img_s: 200}}
duration_s: 1
warmup_s: 0.1
"""


def measured(**changes: Any) -> Profile:
    """A toy profile that states an error and where it holds, with jitter from 1 - 0.16 to 1 + 0.16."""
    error = StatedError(
        metric="solo latency",
        kind="held out",
        median_abs_pct=1.5,
        mean_abs_pct=2.0,
        p90_abs_pct=4.0,
        max_abs_pct=7.25,
        points=40,
    )
    found = Range(metric="solo latency", quantity="batch size", low=1, high=32)
    profile = tiny.profile(segments=2, widths=(0.5, 1.0), jitter=(1 + 0.16 * np.linspace(-1, 1, 33)).tolist())
    update = {"provenance": Provenance.MEASURED, "errors": (error,), "ranges": (found,), "omitted": ("3 sets",)}
    return profile.model_copy(update={**update, **changes})


def test_shipped_profiles_are_what_the_model_makes() -> None:
    """Each is small, and what `make profiles` writes today; there is one of every GPU, and no other."""
    network = Network("slimresnet18", {}, "", "")
    costs = costs_of(network.build(), network.label, network.label)
    host = MeasuredHost.from_yaml(bundled_files.SHIPPED_HOST.read_text(encoding="utf-8"), "host")
    files = {path.stem: path for path in bundled_files.SHIPPED_PROFILES.iterdir()}
    assert files.keys() == GPUS.keys()
    for key, path in files.items():
        assert path.read_text(encoding="utf-8") == synthesize(GPUS[key], costs, 128, host=host).to_yaml(), (
            f"{path}: run `make profiles`"
        )
        assert path.stat().st_size < 60_000
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert bundled_files.SHIPPED.parent.name in packages["packages"]  # a wheel takes all files of a package


@pytest.mark.parametrize("name", GPUS)
def test_a_shipped_profile_names_the_host_that_it_is_served_by(name: str) -> None:
    """Costs of deciding and ways were measured, and it says on what and how; nothing else in it was."""
    profile = read_profile(Path(name))
    host = MeasuredHost.from_yaml(bundled_files.SHIPPED_HOST.read_text(encoding="utf-8"), "host")
    assert (profile.router_host, profile.handover) == (host.router_host, host.handover)
    assert 0 < host.router_host.decision.image_s < host.router_host.decision.micro_batch_s < 1e-3
    assert 0 < host.router_host.returned.image_s < host.router_host.returned.micro_batch_s < 1e-3
    stamp = profile.device.stamps["router_host_and_handover"]
    assert stamp == f"measured on {host.measured}"
    assert "`python -m benchmarks.speed.router_host" in stamp
    assert "but router_host and handover" in profile.omitted[0]
    assert (profile.busy_serving, profile.cpu_work) == (None, None)


def test_a_experiment_on_shipped_profiles_pays_for_deciding(tmp_path: Path) -> None:
    """Its host is the measured one and its policy takes nothing more; every image pays."""
    path = tmp_path / "shipped.yaml"
    path.write_text(SHIPPED_SCENARIO)
    experiment, host = load_experiment(path), read_profile(Path("rtx-2080-ti")).router_host
    assert host is not None
    assert (experiment.cluster.decision_ns, experiment.cluster.host) == (0, HostTable.of(host))
    stages_s = simulate_metrics(experiment, experiment.router("jsq"), "jsq", 0, engine="compiled")["stages_s"] or {}
    assert stages_s["decision"] > 4 * host.decision.micro_batch_s * host.sent_share * host.spread[0]
    assert stages_s["handover"] > 4 * (2.2e-4 + 8e-5)


def test_a_gpu_of_ones_own_is_made_of_its_sheet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The sheet of the documentation, and a table's GPU written as a sheet: the same but for its name."""
    page = (ROOT / "docs" / "profiles.md").read_text(encoding="utf-8")
    text = re.search(r"(?:^    .*\n)+", page[page.index("schema: slimsched.sheet/1") - 4 :], re.MULTILINE)
    assert text is not None
    sheet, flags = tmp_path / "sheet.yaml", ["--network", "slimresnet-tiny"]
    sheet.write_text(textwrap.dedent(text[0]))
    assert main(["profile", "synth", str(sheet), *flags, "--out", str(tmp_path / "own.yaml")]) == 0
    own = read_profile(tmp_path / "own.yaml")
    assert (own.name, own.device.name, own.device.vram_bytes) == ("rtx-4070-slimresnet-tiny", "RTX 4070", 12 * 10**9)
    assert (round(own.power.bare_idle_w, 1), round(own.power.context_idle_w, 1)) == (17.1, 53.1)  # as the page says
    sheet.write_text(
        "{schema: slimsched.sheet/1, name: Tesla T4, multiprocessors: 40, tflop_s: 8.1, gb_s: 320, gb: 16, tdp_w: 70, "
        "idle_w: 10, architecture: Turing, memory: GDDR}"
    )
    capsys.readouterr()
    documents = []
    for words in (["t4"], [str(sheet)]):
        assert main(["profile", "synth", *words, *flags, "--json", "-"]) == 0
        documents.append(json.loads(capsys.readouterr().out))
    assert [document.pop("name") for document in documents] == ["t4-slimresnet-tiny", "tesla-t4-slimresnet-tiny"]
    assert [document["device"].pop("name") for document in documents] == ["T4", "Tesla T4"]
    assert documents[0] == documents[1]


def test_a_scenario_names_shipped_profiles(tmp_path: Path) -> None:
    """By a bare word, which stays one in a run folder's copy; a path is taken from the scenario's folder as before."""
    path = tmp_path / "shipped.yaml"
    path.write_text(SHIPPED_SCENARIO)
    scenario = load_scenario(path)
    copied = relative_paths(scenario, tmp_path / "run")
    assert [server.profile for server in copied.cluster.named_servers] == ["rtx-2080-ti", "gtx-980-ti"]
    assert main(["simulate", str(path), "--out", str(tmp_path / "run"), "--json", str(tmp_path / "result.json")]) == 0
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["provenance"] == "datasheet"
    assert result["images"]["completed"] > 0
    toy = load_scenario(write_scenario(tmp_path, "fast.yaml", "./fast.yaml"))
    assert toy.cluster.named_servers[0].profile == str(tmp_path / "fast.yaml")


def test_a_measured_profile_says_how_wrong_it_is_and_where_it_holds() -> None:
    """Kind, median, mean, largest and points of every error; ranges; what was left out; where each part is from."""
    words = described(measured())
    assert error_table(measured()).rows == [["solo latency", "held out", "1.50", "2.00", "4.00", "7.25", "40"]]
    assert range_table(measured()).rows == [["solo latency", "batch size", "1", "32"]]
    assert "7.25" in words
    assert "left out    3 sets" in words
    assert "(measured)" in words
    assert "(datasheet)" in words  # the toy's power and concurrency
    assert "DATASHEET" not in words
    sheet = tiny.profile(segments=1, widths=(1.0,))
    assert all("DERIVED FROM A DATASHEET" in show(sheet) for show in (described, profile_page))
    sharing = measured().concurrency.model_copy(update={"across_beta": 0.9, "across_beta_ci95": 0.05})
    slowdown = Slowdown(slow_factor=1.5, slow_share=0.1, mean_slow_s=0.2, provenance=Provenance.MEASURED)
    words = described(measured(concurrency=sharing, slowdown=slowdown))
    assert "beta 1.000, across processes 0.900 +-0.050" in words
    assert "slow spells: 10 % of the time, 0.2 s each, things take 1.50 times as long" in words
    page = profile_page(measured())
    assert all(f">{cell}</td>" in page for cell in ("held out", "7.25", "batch size"))
    assert "dashed, the stated error of 2.0 %" in page


def test_bands_hold_nine_tenths_of_the_repeats_and_the_stated_error() -> None:
    """Evenly spread repeats: the 5th and the 95th percentile are 0.9 of the way out."""
    profile = measured()
    curve = profile.latency[0]
    low_s, high_s = band_of_repeats_s(curve)
    assert np.asarray(low_s) / curve.p50_s == pytest.approx(1 - 0.16 * 0.9, abs=0.006)
    assert np.asarray(high_s) / curve.p50_s == pytest.approx(1 + 0.16 * 0.9, abs=0.006)
    assert stated_solo_error(profile) == pytest.approx(0.02)
    without = tiny.profile(segments=2, widths=(0.5, 1.0))
    assert band_of_repeats_s(without.latency[0]) == (curve.p50_s, curve.p50_s)
    assert stated_solo_error(without) is None


def test_the_knee_of_metric_3_comes_out_of_the_device_model() -> None:
    """On the paper's GPU every width bends late and sharply; on a device that never saturates nothing bends."""
    profile = read_profile(Path("rtx-2080-ti"))
    for points in under_load(profile).values():
        bend = knee(points)
        assert bend is not None
        assert 0.83 < bend.utilization < 0.95
        assert points[-1].latency_s > 4 * bend.latency_s
    free = profile.concurrency.model_copy(update={"alpha": 0.0, "beta": 0.0})
    power = profile.power.model_copy(update={"throttle": 0.0})
    unbounded = profile.model_copy(update={"concurrency": free, "power": power})
    low_loads = under_load(unbounded, loads=(0.01, 0.1, 0.3, 0.5), at_once=200)
    assert all(knee(points) is None for points in low_loads.values())


def test_show_writes_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--plot DIR` writes the latency curves and Figures 1-3; the same profile gives the same pictures."""
    (tmp_path / "toy.yaml").write_text(measured().to_yaml())
    show = ["profile", "show", str(tmp_path / "toy.yaml"), "--plot"]
    assert main([*show, str(tmp_path / "a")]) == 0
    assert "figure3.png" in capsys.readouterr().out
    names = {path.name for path in (tmp_path / "a").iterdir()}
    assert names == {"latency.png", "figure1.png", "figure2.png", "figure3.png"}
    assert all((tmp_path / "a" / name).read_bytes().startswith(PNG) for name in names)
    save(utilization_by_batch(measured()), tmp_path / "again.png")
    assert (tmp_path / "a" / "figure1.png").read_bytes() == (tmp_path / "again.png").read_bytes()
    assert main([*show, str(tmp_path / "page.html"), "--json", "-"]) == 0
    assert "Figure 1" in (tmp_path / "page.html").read_text(encoding="utf-8")
    assert json.loads(capsys.readouterr().out)["provenance"] == "measured"


def test_a_profile_that_was_changed_by_hand_is_told() -> None:
    """With the remedy: the line is there so that nobody's change is taken for a measurement."""
    profile = measured()
    text = profile.to_yaml()
    assert text.splitlines()[2].startswith("checksum: ")
    assert Profile.from_yaml(text, "x.yaml") == profile
    assert Profile.from_yaml(f"# a remark\n{text}", "x.yaml") == profile
    cut = text[: text.index("omitted:")]
    for changed in (text.replace("cap_w: 250.0", "cap_w: 200.0"), cut):
        assert changed != text
        with pytest.raises(InputError, match=r"x\.yaml: checksum: .* changed by hand.*delete the line `checksum`"):
            Profile.from_yaml(changed, "x.yaml")
    kept = "\n".join(
        line for line in text.replace("cap_w: 250.0", "cap_w: 200.0").splitlines() if "checksum" not in line
    )
    assert Profile.from_yaml(kept, "x.yaml").power.cap_w == 200


@pytest.mark.parametrize("labels", [("a",), ("a", "a"), ("a", "b", "b")])
def test_labels_name_each_width_once(labels: tuple[str, ...]) -> None:
    model = tiny.profile("a", segments=1, widths=(0.5, 1.0)).model
    given = {**model.model_dump(), "nests": (1, 1)}
    assert type(model)(**given, labels=("a", "b")).name_of(0.5) == "a"
    with pytest.raises(ValueError, match="labels must name each of 2 widths once"):
        type(model)(**given, labels=labels)


SCENARIO = """
schema: slimsched.scenario/1
name: small
model: {checkpoint: model.safetensors, accuracy: accuracy.json, dataset: digits}
cluster: {servers: [{name: a, device: {cores: [0]}}]}
workload: {kind: poisson, rate_img_s: 30}
validate: {routers: [random]}
duration_s: 3
warmup_s: 1
"""
CALIBRATED = tiny.profile("a", dispatch_s=0.001)
SERVED = tiny.profile("a", dispatch_s=0.002)


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """Carry out the stages of profiles; returns what was said of them. Nothing is measured."""
    (tmp_path / "small.yaml").write_text(SCENARIO)
    (tmp_path / "model.safetensors").touch()
    (tmp_path / "accuracy.json").touch()
    monkeypatch.setattr(profile_stages, "calibrate_device", lambda *_, **__: CALIBRATED)
    monkeypatch.setattr(profile_stages, "measure_serving", lambda *_, **__: None)
    monkeypatch.setattr(profile_stages, "with_overheads", lambda *_: SERVED)
    monkeypatch.setattr(profile_stages, "load_dataset", lambda _: None)
    monkeypatch.setattr(Run, "experiment", lambda _: SimpleNamespace())

    def carry_out() -> list[str]:
        said: list[str] = []
        job = Run(load_scenario(tmp_path / "small.yaml"), tmp_path / "run", say=said.append, quiet=True)
        profile_stages.make_profiles(job)
        profile_stages.make_serving(job)
        return [line for line in said if "profiles" in line or "a.yaml" in line or line.startswith("serving")]

    return carry_out


def test_a_profile_that_was_edited_counts(made: Callable[[], list[str]], tmp_path: Path) -> None:
    path = tmp_path / "run" / "profiles" / "a.yaml"
    assert made() == ["serving: begins"]
    assert path.read_text() == SERVED.to_yaml()
    assert made() == ["serving: skipped, done before"]
    edited = tiny.profile("a", dispatch_s=0.003).to_yaml()
    path.write_text(edited)
    assert made() == ["profiles/a.yaml was edited since, and is used as it is", "serving: skipped, done before"]
    assert path.read_text() == edited


def test_a_profile_that_is_gone_is_made_again(made: Callable[[], list[str]], tmp_path: Path) -> None:
    """From what was kept in `calibration/`, with what serving costs; nothing is measured again."""
    path = tmp_path / "run" / "profiles" / "a.yaml"
    made()
    path.unlink()
    assert made()[-1] == "serving: skipped, done before"
    assert path.read_text() == SERVED.to_yaml()


def test_an_edited_profile_stays_beside_a_new_measurement(
    made: Callable[[], list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run" / "profiles" / "a.yaml"
    made()
    edited = tiny.profile("a", dispatch_s=0.003).to_yaml()
    path.write_text(edited)
    (tmp_path / "run" / ".stages" / "serving.json").unlink()
    assert any("was edited since: it is kept as a.yaml.edited" in line for line in made())
    assert path.read_text() == SERVED.to_yaml()
    assert path.with_name("a.yaml.edited").read_text() == edited


def test_calibrate_replaces_only_what_it_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A profile from elsewhere, or one that was edited, is kept beside; its own is not."""
    monkeypatch.setattr("calibrate.model_costs", lambda *_: None)
    monkeypatch.setattr("scenarios.executors.device_calibration.calibrate_device", lambda *_, **__: CALIBRATED)
    monkeypatch.setattr("scenarios.executors.device_calibration.with_serving", lambda *_, **__: SERVED)
    (tmp_path / "model.safetensors").touch()
    place = tmp_path / "profiles" / "cpu0.yaml"
    place.parent.mkdir()
    place.write_text("mine")
    words = ["calibrate", "--model", str(tmp_path / "model.safetensors"), "--out", str(place.parent)]
    words += ["--device", "cpu:0", "--budget", "60s"]
    assert main(words) == 0
    assert f"{place} was not made by this calibration, or was edited since: it is kept as" in capsys.readouterr().err
    place.with_suffix(".jsonl").touch()
    assert main(words) == 0
    assert "it is kept as" not in capsys.readouterr().err
    edited = place.read_text().replace("checksum: ", "# ")
    place.write_text(edited)
    assert main(words) == 0
    kept = {path.name: path.read_text() for path in place.parent.glob("*.kept*")}
    assert kept == {"cpu0.yaml.kept": "mine", "cpu0.yaml.kept-2": edited}
    assert place.read_text() == SERVED.to_yaml()
