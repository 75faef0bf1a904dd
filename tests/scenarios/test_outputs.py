"""A result never takes the place of what the command reads, or of what a run folder keeps (more: tests/refusals)."""

from __future__ import annotations

from pathlib import Path

import pytest

from slimsched.cli import main
from tests.scenarios.files import write_scenario
from tests.scenarios.test_profiles import measured

pytestmark = pytest.mark.usefixtures("undrawn")


@pytest.fixture(autouse=True)
def scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A scenario in the folder where the user is."""
    monkeypatch.chdir(tmp_path)
    return write_scenario(tmp_path)


def refusal(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Of a command that changes no file: one line."""
    before = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    assert main(command.split()) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1, error
    assert {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()} == before
    return error


def test_no_result_replaces_an_input_by_another_name(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither through a link nor through a second name of the file."""
    Path("link.yaml").symlink_to(scenario)
    Path("hard.yaml").hardlink_to(scenario)
    for name in ("link.yaml", "hard.yaml"):
        assert "the command reads this file" in refusal(f"simulate tiny.yaml --json {name}", capsys)


def test_no_result_replaces_a_run_folders_file(capsys: pytest.CaptureFixture[str]) -> None:
    """A file of the user's own in it may be replaced, and made."""
    assert main(["compare", "tiny.yaml", "--out", "run", "--quiet"]) == 0
    for name in ("results.json", "simulation/jsq-seed0/result.json"):
        assert "was made in the run folder" in refusal(f"simulate tiny.yaml --json run/{name}", capsys)
    for _ in range(2):
        assert main(["report", "run", "--json", "run/mine.json"]) == 0


def test_a_device_takes_two_results() -> None:
    """A file takes one: the second would replace the first."""
    Path("x.svg").symlink_to("/dev/null")
    Path("y").symlink_to("/dev/null")
    assert main(["compare", "tiny.yaml", "--out", "run", "--quiet"]) == 0
    assert main(["report", "run", "--json", "y", "--quiet", "--plot", "x.svg"]) == 0


def test_synthesis_replaces_only_what_it_made(capsys: pytest.CaptureFixture[str]) -> None:
    command = "profile synth t4 --network slimresnet-tiny --out t4.yaml"
    for _ in range(2):
        assert main(command.split()) == 0
    capsys.readouterr()
    edited = Path("t4.yaml").read_text().replace("\nchecksum:", "\n# mine\n#")
    for text in (edited, measured().to_yaml(), "mine"):
        Path("t4.yaml").write_text(text)
        assert "was not made by `slimsched profile synth`" in refusal(command, capsys)
