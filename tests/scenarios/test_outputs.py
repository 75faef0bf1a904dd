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
    before = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    assert main(command.split()) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1, error
    assert {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()} == before
    return error


def test_a_device_takes_two_results() -> None:
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
