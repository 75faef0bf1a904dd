"""A result never takes the place of what the command reads, of another result, or of what a run folder keeps."""

from __future__ import annotations

from pathlib import Path

import pytest

from slimsched.cli import main
from tests.scenarios.files import write_scenario
from tests.scenarios.test_profiles import measured

PICTURE = ["--plot", "x.svg"]
RULE = "schema: slimsched.rule/1\nkind: fixed\ntuple: [0.5, 0.5]\n"


def _refused(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    assert main(words) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.splitlines()) == 1, error
    assert {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    "words",
    [
        ["simulate", "tiny.yaml", "--json", "tiny.yaml"],
        ["simulate", "tiny.yaml", "--json", "link.yaml"],
        ["simulate", "tiny.yaml", "--json", "hard.yaml"],
        ["simulate", "tiny.yaml", "--json", "fast.yaml"],
        ["bound", "tiny.yaml", "--json", "accuracy.json"],
        ["compare", "tiny.yaml", "--router", "jsq", "--router", "own.rule.yaml", "--json", "own.rule.yaml"],
        ["compare", "picture.svg", "--plot", "picture.svg"],
        ["train", "tiny.yaml", "--router", "fixed", "--json", "slow.yaml"],
        ["profile", "show", "fast.yaml", "--plot", "fast.yaml"],
        ["profile", "check", "fast.yaml", "--model", "x", "--json", "fast.yaml"],
    ],
)
def test_no_result_replaces_an_input(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor through a link or another name, nor what the scenario names; each would be gone."""
    monkeypatch.chdir(tmp_path)
    scenario = write_scenario(tmp_path)
    Path("own.rule.yaml").write_text(RULE)
    Path("picture.svg").write_text(scenario.read_text())
    Path("link.yaml").symlink_to("tiny.yaml")
    Path("hard.yaml").hardlink_to("tiny.yaml")
    _refused(words, "the command reads this file", capsys)


def test_no_result_replaces_a_run_folders_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file of the user's own in it may be replaced, and made."""
    monkeypatch.chdir(tmp_path)
    write_scenario(tmp_path)
    assert main(["compare", "tiny.yaml", "--out", "run", "--quiet"]) == 0
    for name in ("results.json", "simulation/jsq-seed0/result.json"):
        _refused(["simulate", "tiny.yaml", "--json", f"run/{name}"], "was made in the run folder", capsys)
    for _ in range(2):
        assert main(["report", "run", "--json", "run/mine.json"]) == 0


def test_two_results_need_two_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The one would replace the other; a device takes both."""
    monkeypatch.chdir(tmp_path)
    write_scenario(tmp_path)
    _refused(["compare", "tiny.yaml", "--json", "./x.svg", *PICTURE], "two results", capsys)
    Path("x.svg").symlink_to("/dev/null")
    Path("y").symlink_to("/dev/null")
    assert main(["compare", "tiny.yaml", "--json", "y", "--quiet", *PICTURE]) == 0


@pytest.mark.parametrize(
    ("out", "json", "said"),
    [
        ("q", "q", "the run folder q is to be made there"),
        ("q/run", "q", "the run folder q/run is to be made there"),
        (None, "runs/tiny", "the run folder runs/tiny is to be made there"),
        ("q", "q/results.json", "is a name of the run folder q's own files"),
    ],
)
def test_no_result_is_in_the_way_of_the_run_folder(
    out: str | None,
    json: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Nor of what will be made in it; told before the work."""
    monkeypatch.chdir(tmp_path)
    write_scenario(tmp_path)
    Path(json).parent.mkdir(exist_ok=True)
    _refused(["compare", "tiny.yaml", *(["--out", out] if out else []), "--json", json], said, capsys)


def test_synthesis_replaces_only_what_it_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of all that it would write, before any is written."""
    monkeypatch.chdir(tmp_path)
    write_scenario(tmp_path)
    words = ["profile", "synth", "t4", "--network", "slimresnet-tiny", "--out", "t4.yaml"]
    for _ in range(2):
        assert main(words) == 0
    capsys.readouterr()
    edited = Path("t4.yaml").read_text().replace("\nchecksum:", "\n# mine\n#")
    for text in (edited, measured().to_yaml(), "mine"):
        Path("t4.yaml").write_text(text)
        _refused(words, "was not made by `slimsched profile synth`", capsys)
        _refused(["profile", "synth", "--all", "--out", "."], "t4.yaml: was not made by", capsys)
