"""What ships: all that the packages hold, in a wheel that works far from the checkout."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.installed import Installed, wheel_in

ROOT = Path(__file__).resolve().parents[1]
BUILT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]["targets"]
PACKAGES = BUILT["wheel"]["packages"]

pytestmark = pytest.mark.skipif(find_spec("hatchling") is None, reason="needs hatchling (pip install '.[dev]')")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an sdist, and with the wheel that is built from nothing but that."""
    folder = tmp_path_factory.mktemp("dist")
    build(ROOT, "sdist", folder)
    (source,) = folder.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        archive.extractall(folder / "source", filter="data")
    (unpacked,) = (folder / "source").iterdir()
    build(unpacked, "wheel", folder)
    return folder


def build(source: Path, target: str, folder: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(folder)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(wheel_in(built), tmp_path_factory.mktemp("environment"))


def test_a_wheel_holds_all_that_the_packages_hold(built: Path) -> None:
    """Code, scenarios, profiles, routers, traces and templates; nothing beside them but what says so."""
    here = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(wheel_in(built)) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert held == here
    assert {"scenarios/quickstart.yaml", "scenarios/data/profiles/t4.yaml", "scenarios/show/templates/page.css"} < held


def test_installed_package_runs_outside_the_checkout(installed: Installed, tmp_path: Path) -> None:
    """No package is imported from the checkout, and a bundled scenario is found by its name."""
    for package in PACKAGES:
        assert not installed.place_of(package, tmp_path).is_relative_to(ROOT)
    assert installed.run(["bound", "main-poisson50-10g", "--quiet", "--json", "bound.json"], tmp_path) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["bound.json"]
