"""`slimsched list` names what commands take, and the runs that lie here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kit.plugins import own_version
from policies.router_names import parse_router_name
from scenarios.files.bundled_files import SHIPPED_PROFILES, SHIPPED_SCENARIOS, scenario_file
from scenarios.files.router_files import check_router
from scenarios.files.scenario_reading import load_scenario, read_profile
from slimsched.cli import main
from tests.scenarios.files import write_scenario
from tests.scenarios.folders import run_folder


def listed(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["list", *words, "--json", "-", "--quiet"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert found.pop("schema") == "slimsched.list/1"
    return found


def test_each_name_is_one_that_commands_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    found = listed(capsys)
    names = {kind: [entry["name"] for entry in entries] for kind, entries in found.items()}
    assert all(entry["about"] and entry["ships"] for entries in found.values() for entry in entries)
    files = [path for folder in ("", "live/", "scale/") for path in SHIPPED_SCENARIOS.glob(f"{folder}*.yaml")]
    assert sorted(str(scenario_file(Path(name))) for name in names["scenarios"]) == sorted(map(str, files))
    assert load_scenario(scenario_file(Path("live/bursts"))).name == "live-bursts"
    assert len(names["profiles"]) == len(list(SHIPPED_PROFILES.glob("*.yaml"))) > 5
    for name in names["profiles"]:
        about = next(each["about"] for each in found["profiles"] if each["name"] == name)
        assert about == f"{read_profile(Path(name)).device.name}, datasheet"
    for name in names["routers"]:
        if name in ("fixed:...", "tuned:KIND"):
            continue
        check_router(name, "test")
        assert name == "ppo" or parse_router_name(name)
    assert names["runs"] == []


def test_list_shows_scenarios_rules_profiles_and_runs_of_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each has its path; other files and empty folders aren't listed."""
    monkeypatch.chdir(tmp_path)
    write_scenario(tmp_path)
    Path("profiles").mkdir()
    Path("fast.yaml").rename("profiles/fast.yaml")
    Path("slow.yaml").rename("profiles/slow.yaml")
    Path("mine.rule.yaml").write_text("schema: slimsched.rule/1\nkind: ladder\n")
    Path("other.yaml").write_text("schema: other/1\n")
    Path("binary.yaml").write_bytes(b"\xff\xfe\x00schema")
    run_folder(tmp_path / "runs" / "a", routers=("random",), seeds=(0,), profiles=())
    Path("runs/nothing").mkdir()
    here = {kind: [each for each in of if not each["ships"]] for kind, of in listed(capsys).items()}
    assert {kind: [each["name"] for each in of] for kind, of in here.items()} == {
        "scenarios": ["tiny.yaml"],
        "routers": ["mine.rule.yaml"],
        "profiles": ["profiles/fast.yaml", "profiles/slow.yaml"],
        "runs": ["runs/a"],
    }
    assert here["routers"][0]["about"] == "ladder"
    assert "comparison.json" in here["runs"][0]["about"]
    monkeypatch.chdir(tmp_path / "runs" / "a")
    assert {kind: [each["name"] for each in of] for kind, of in listed(capsys, "runs").items()} == {"runs": ["."]}


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    for flag in ("--version", "-V"):
        assert main([flag]) == 0
        assert capsys.readouterr().out == f"slimsched {own_version()}\n"


def test_the_most_used_flags_are_short(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scenario, out = str(write_scenario(tmp_path)), str(tmp_path / "run")
    assert (
        main(["compare", scenario, "-r", "jsq", "-s", "1", "-s", "2", "-o", out, "-j", "1", "-q", "--json", "-"]) == 0
    )
    streams = capsys.readouterr()
    assert streams.err == ""
    (row,) = json.loads(streams.out)["rows"]
    assert (row["router"], row["seeds"]) == ("jsq", [1, 2])
    assert (tmp_path / "run" / "comparison.json").is_file()
