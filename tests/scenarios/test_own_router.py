"""A router of the user's own, `module:Class`: found in the current folder, and taken by both engines."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.errors import InputError
from scenarios.experiment.scenario_building import make_experiment
from scenarios.files.scenario_reading import load_scenario
from slimsched.cli import main
from tests.scenarios.files import write_scenario

MODULE = """
from policies.vocabulary import Choice


class Mine:
    def __init__(self, context):
        pass

    def choose(self, view, rng):
        return {}
"""


FINE = "Choice([server.valid for server in view.servers].index(True), 1.0, 4)"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the user is; Python does not look there by itself, as an installed command's does not."""
    monkeypatch.chdir(tmp_path)
    sys.modules.pop("mine", None)
    elsewhere = [part for part in sys.path if part not in ("", str(tmp_path)) and not Path(part, "mine.py").exists()]
    monkeypatch.setattr(sys, "path", elsewhere)  # commands of other tests have added folders, with such a file in them
    yield tmp_path
    sys.modules.pop("mine", None)


def write(folder: Path, returned: str) -> Path:
    """The tiny scenario, and beside it a router that returns this."""
    (folder / "mine.py").write_text(MODULE.format(returned))
    return write_scenario(folder)


@pytest.mark.parametrize("engine", ["simpy", "compiled"])
def test_own_router_is_found_in_the_current_folder_and_decides(
    engine: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(folder, FINE)
    assert main(["simulate", str(path), "--router", "mine:Mine", "--engine", engine, "--quiet"]) == 0
    assert "mine:Mine" in capsys.readouterr().out


def test_a_class_that_is_another_where_a_run_is_made_is_refused(folder: Path) -> None:
    experiment = make_experiment(load_scenario(write(folder, FINE)), folder)
    maker = experiment.router_maker("mine:Mine")
    (folder / "mine.py").write_text((folder / "mine.py").read_text() + "ANOTHER = 1\n")
    with pytest.raises(InputError, match="'mine:Mine' is other code here"):
        maker.make(experiment.context)
