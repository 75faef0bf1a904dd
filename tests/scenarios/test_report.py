"""The report: every part of a run folder is shown, in one file that asks nothing of the network."""

from __future__ import annotations

import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest

from policies.errors import InputError
from scenarios.files.documents import read_json, write_json, write_text
from scenarios.runs.folder import RunFolder
from scenarios.show.page import build_report, profile_page
from tests import worlds
from tests.scenarios.folders import run_folder

SECTIONS = (
    "Routers compared in simulation",
    "Simulation against hardware",
    "Latency",
    "Accuracy against cost",
    "Servers over time",
    "Training of the PPO router",
    "Devices as calibrated",
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


class _Tags(HTMLParser):
    """Which tags are open at the end, and every address that something is fetched from."""

    VOID = frozenset({"meta", "br", "hr", "img", "link"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)
        self.fetched += [f"{value}" for name, value in attrs if name in ("src", "href", "xlink:href", "data", "srcset")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_self_contained(page: str) -> None:
    """Every section is there; tags close; nothing is fetched from anywhere but the page itself."""
    assert [title for title in SECTIONS if f"<h2>{title}</h2>" not in page] == []
    tags = _Tags()
    tags.feed(page)
    assert tags.open == []
    assert [address for address in tags.fetched if not address.startswith("#")] == []
    assert re.findall(r"url\((?!#)|@import|<script|<link|<img", page) == []


def test_names_are_escaped(page: str) -> None:
    """A name of the user's is text, never markup."""
    assert "&lt;ppo&gt;" in page
    assert "<ppo>" not in page


def test_the_same_folder_gives_the_same_page(folder: RunFolder, page: str) -> None:
    """No date and no chance in it."""
    assert build_report(folder.path).read_text(encoding="utf-8") == page


def test_every_figure_names_its_units(page: str) -> None:
    """Axes carry units."""
    for label in ("latency, ms", "power, W", "utilization, %", "accuracy, %", "energy of a batch, J", "time, s"):
        assert label in page


def test_what_is_missing_is_said(folder: RunFolder, tmp_path: Path) -> None:
    """A folder with profiles alone is reported, and the page says what is not there."""
    (tmp_path / "profiles").mkdir()
    shutil.copy(folder / "profiles" / "a.yaml", tmp_path / "profiles")
    page = build_report(tmp_path).read_text(encoding="utf-8")
    assert "Not in this run folder: routers compared in simulation; simulation against hardware" in page
    assert "Figure 3" in page


def test_an_accuracy_that_was_not_measured_is_said(folder: RunFolder, page: str, tmp_path: Path) -> None:
    """A page whose labels were drawn from the paper's table says so at its head."""
    assert "accuracy: paper" not in page
    comparison = read_json(folder / "comparison.json")
    write_json(tmp_path / "comparison.json", {**comparison, "accuracy_provenance": "paper"})
    assert "accuracy: paper" in build_report(tmp_path).read_text(encoding="utf-8")


@pytest.mark.parametrize("segments", [1, 3])
def test_any_number_of_segments(segments: int) -> None:
    """A profile of any number of segments and widths has its curves."""
    page = profile_page(worlds.profile(segments=segments, widths=(0.3, 1.0)))
    assert f"segment {segments}" in page
    assert f">segment {segments + 1}<" not in page


def test_no_run_folder_is_the_users_mistake(tmp_path: Path) -> None:
    """A folder that is missing or empty is refused, and nothing is written."""
    with pytest.raises(InputError, match="no such run folder"):
        build_report(tmp_path / "x")
    with pytest.raises(InputError, match="nothing to report"):
        build_report(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_broken_document_is_named(tmp_path: Path) -> None:
    """A file that is no JSON is named."""
    write_text(tmp_path / "comparison.json", "{")
    with pytest.raises(InputError, match=r"comparison\.json"):
        build_report(tmp_path)
