"""The report: every part of a run folder is shown, in one file that asks nothing of the network."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from base64 import b64decode
from pathlib import Path
from xml.etree import ElementTree

import pytest
from matplotlib.figure import Figure

from kit.documents import read_json, write_json, write_text
from kit.errors import InputError
from policies.vocabulary import Provenance
from scenarios.runs.folder import RunFolder
from scenarios.show.report import build_report, gather, origin_badge, profile_page, report
from sim.device_profile import Profile
from slimsched.cli import main
from tests import tiny
from tests.scenarios.folders import flagged, leave_undrawn, run_folder
from tests.scenarios.test_hostile_names import Page

SVG = "{http://www.w3.org/2000/svg}"
SECTIONS = (
    "Routers in simulation",
    "Simulation and executors",
    "Latency",
    "Accuracy against cost",
    "Servers over time",
    "Training",
    "Devices",
    "Environment",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A complete run folder."""
    return run_folder(tmp_path_factory.mktemp("run"), routers=("random", "<ppo>"), seeds=(0, 1))


@pytest.fixture(scope="module")
def page(folder: RunFolder) -> str:
    """Its report."""
    return build_report(folder).read_text(encoding="utf-8")


def test_the_page_is_whole_and_self_contained(page: str) -> None:
    """Every section is there; tags close; nothing is fetched from anywhere but the page itself."""
    found = re.findall(r'<h2 id="([^"]+)">([^<]+)</h2>', page)
    assert [title for _, title in found] == list(SECTIONS)
    tags = Page(page)
    contents = [f"#{anchor}" for anchor, _ in found]
    assert tags.linked[: len(contents)] == contents
    assert tags.open == []
    assert [address for address in tags.fetched if not address.startswith("#")] == []
    assert re.findall(r"url\((?!#)|@import|<script [^>]|<link|<img", page) == []


def test_every_charted_run_can_be_looked_at_in_perfetto(folder: RunFolder, page: str) -> None:
    """The page leads there with each, and to the files that it opens; to nothing else."""
    tags = Page(page)
    linked = [address for address in tags.linked if not address.startswith("#")]
    perfetto, files = linked[:4], linked[4:]
    assert perfetto == ["https://ui.perfetto.dev/"] * 4
    places = [
        f"{experiment}/{router}-seed0" for router in ("random", "_ppo_") for experiment in ("simulation", "executors")
    ]
    assert files == [f"{place}/timeline.json" for place in places]
    held = [gzip.decompress(b64decode(found)) for found in re.findall(r'data-trace="([^"]*)"', page)]
    for file, content in zip(files, held, strict=True):
        assert read_json(folder / file)["traceEvents"]
        assert content == (folder / file).read_bytes()


def test_a_page_holds_no_more_timelines_than_it_has_room_for(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_undrawn(monkeypatch)
    held = re.findall('data-trace="([^"]*)"', report(gather(folder)))
    assert len(held) == 4
    monkeypatch.setattr("scenarios.show.report.MAX_TRACES", sum(map(len, held)) - 1)
    text = report(gather(folder))
    left = re.findall('data-trace="([^"]*)"', text)
    assert sorted(map(len, left)) == sorted(map(len, held))[:-1], "the largest alone is left out"
    assert text.count("/timeline.json") == 4
    monkeypatch.setattr("scenarios.show.report.CHARTED_PROFILES", 0)
    text = report(gather(folder))
    assert "<code>slimsched profile show profiles/a.yaml --plot a.html</code> draws them" in text
    assert "Figure 3" not in text


def test_report_without_executor_runs_has_no_executor_charts(folder: RunFolder, page: str, tmp_path: Path) -> None:
    assert ">on executors</text>" in page
    assert "Latency distributions: simulated (solid) and on executors (dashed)" in page
    other = flagged(tmp_path)
    write_json(other / "comparison.json", read_json(folder / "comparison.json"))
    shutil.copytree(folder.path / "simulation", other.path / "simulation")
    text = build_report(other).read_text(encoding="utf-8")
    assert ">simulated</text>" in text
    assert ">on executors</text>" not in text
    assert "Latency distributions in simulation" in text
    assert "on executors (dashed)" not in text


def test_report_badge_of_profile_with_datasheet_power_is_not_measured(
    folder: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_undrawn(monkeypatch)
    measured = (folder / "profiles" / "a.yaml").read_text(encoding="utf-8")
    profile = Profile.from_yaml(measured, "a")
    assert origin_badge(profile) == ("datasheet", "latency measured, power datasheet")
    power = profile.power.model_copy(update={"provenance": Provenance.MEASURED})
    assert origin_badge(profile.model_copy(update={"power": power})) == ("measured", "measured")
    other = flagged(tmp_path)
    write_text(other / "profiles" / "a.yaml", measured)
    page = build_report(other).read_text(encoding="utf-8")
    assert '<span class="badge datasheet">profiles: latency measured, power datasheet</span>' in page
    assert 'class="badge measured"' not in page


def test_the_answers_stand_before_all_else(page: str) -> None:
    box = page[page.index('<div class="box">') : page.index("</div>", page.index('<div class="box">'))]
    assert re.findall(r'<h2 class="(\w+)">([^<]*)</h2>', box) == [
        ("no", "Trusted"),
        ("open", "Winner"),
        ("open", "SLO"),
        ("open", "Next"),
        ("open", "Run"),
    ]
    assert re.search(r"passes: \w+ \d+ %", box)
    assert page.index('<div class="box">') < page.index("<figure>")
    assert "<code>" in box
    assert "`" not in box


def test_names_are_escaped_and_tables_say_what_they_mean(page: str) -> None:
    """A name of the user's is text, never markup; heads have meaning and origin, intervals are small."""
    assert "<ppo>" not in page
    assert re.search(r'<td class="text">&lt;ppo&gt;</td><td>[0-9.]+ <small>±[0-9.]+</small></td>', page)
    assert '<tr class="base"><td class="text">random</td>' in page
    assert "name toy, kind cpu, telemetry power polled" in page
    assert re.search(r'title="[^"]+ Provenance: datasheet\."\s*>p99 latency, ms</th>', page)


def test_the_same_folder_gives_the_same_page(folder: RunFolder, page: str) -> None:
    assert build_report(folder.path).read_text(encoding="utf-8") == page


def axis_labels(svg: str) -> set[str]:
    axes = [group for group in ElementTree.fromstring(svg).iter(f"{SVG}g") if "matplotlib.axis" in group.get("id", "")]
    labels = (group for axis in axes for group in axis if group.get("id", "").startswith("text_"))
    return {text.text or "" for label in labels for text in label.iter(f"{SVG}text")}


def test_every_axis_names_its_unit(page: str) -> None:
    labels = {label for svg in re.findall("<svg.*?</svg>", page, re.DOTALL) for label in axis_labels(svg)}
    assert labels >= {"time, s", "mean latency, ms", "energy per image, J/image", "power, W"}
    assert labels >= {"batch size", "utilization of the device, %"}
    of_accuracy = {label for label in labels if "accuracy" in label}
    assert of_accuracy == {"accuracy, %"}, "one accuracy of a router, that of the table"
    counts = {"batch size", "decisions of ppo", "reward", "entropy"}
    assert [label for label in labels - counts if not re.search(r", (ms|s|%|W|J/image)( \(|$)", label)] == []


def test_report_states_missing_parts_paper_accuracies_and_busy_hosts(
    folder: RunFolder, page: str, tmp_path: Path
) -> None:
    """The folder has profiles alone; then accuracies of the paper's table, and a host kept busy by other programs."""
    assert "accuracy: paper" not in page
    assert "busy" not in page
    other = flagged(tmp_path)
    write_text(other / "profiles" / "a.yaml", (folder / "profiles" / "a.yaml").read_text(encoding="utf-8"))
    text = build_report(other).read_text(encoding="utf-8")
    assert "Not in this run folder: routers in simulation; simulation and executors" in text
    assert "Figure 3" in text
    validation = read_json(folder / "validation.json")
    validation["rows"][0]["background_load"] = {"programs": 0.9, "stolen": 0.0}
    write_json(other / "validation.json", validation)
    write_json(other / "comparison.json", {**read_json(folder / "comparison.json"), "accuracy_provenance": "paper"})
    text = build_report(other).read_text(encoding="utf-8")
    assert "accuracy: paper" in text
    assert "other programs kept this host busy: part of the error is theirs" in text
    assert ">90 busy</td>" in text
    assert '<p class="warning">Busy host: ' in text


@pytest.mark.parametrize("segments", [1, 3])
def test_any_number_of_segments(segments: int) -> None:
    page = profile_page(tiny.profile(segments=segments, widths=(0.3, 1.0)))
    assert f"segment {segments}" in page
    assert f">segment {segments + 1}<" not in page


def test_no_run_folder_is_the_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such run folder"):
        build_report(tmp_path / "x")
    with pytest.raises(InputError, match="nothing to report"):
        build_report(tmp_path)
    assert list(tmp_path.iterdir()) == []


def trained(path: Path, seed: int, rewards: list[float], **changes: object) -> str:
    """A run folder in which a router was trained, and nothing else was done."""
    folder = flagged(path)
    write_text(folder / "scenario.yaml", json.dumps({"name": "toy", "seed": seed, **changes}))
    steps = [{"decisions": 100 * (at + 1), "reward/mean": reward} for at, reward in enumerate(rewards)]
    write_json(folder / "training-ppo.json", steps)
    return str(folder.path)


def test_learning_curves_of_several_seeds_are_one_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With their mean, and a band as far as all of them got. What makes a mean senseless is told."""
    drawn: list[Figure] = []
    monkeypatch.setattr("scenarios.show.charts.save", lambda figure, path: drawn.append(figure))
    monkeypatch.chdir(tmp_path)
    one = trained(tmp_path / "one", 0, [1.0, 1.0, 1.0], model="../toy")
    other = trained(tmp_path / "below" / "other", 1, [3.0, 3.0], model="../../toy")
    assert main(["report", one, other, "--plot", "x.svg"]) == 0
    panel = drawn[0].axes[0]
    assert panel.get_xlabel() == "decisions of ppo, 2 trainings"
    lines = [[line.get_xdata().tolist(), line.get_ydata().tolist()] for line in panel.lines]  # type: ignore[union-attr]
    assert lines == [[[100, 200, 300], [1, 1, 1]], [[100, 200], [3, 3]], [[100, 200], [2, 2]]]
    (band,) = panel.collections
    assert list(band.get_datalim(panel.transData).extents) == [100, 1, 200, 3]
    streams = capsys.readouterr()
    assert streams.out.splitlines() == [f"report: {folder}/report.html" for folder in (one, other)]
    assert "warning" not in streams.err
    same, unlike = trained(tmp_path / "same", 1, [3.0], model="../toy"), trained(tmp_path / "unlike", 2, [3.0])
    assert main(["report", one, other, same, unlike, "--plot", "x.svg"]) == 0
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning")]
    assert [line.split(",")[0] for line in told] == [
        f"warning: {same}: the seed of {other}",
        f"warning: {unlike}: other model than in {one}",
    ]
    empty = flagged(tmp_path / "empty")
    write_text(empty / "profiles" / "a.yaml", tiny.measured("a", segments=2).to_yaml())
    assert main(["report", one, str(empty.path), "--plot", "x.svg"]) == 2
    assert f"{empty.path}: no router was trained here" in capsys.readouterr().err
