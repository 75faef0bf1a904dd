"""Names that are meant to be more than names: in every table, page and picture they are text, as they are."""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml
from matplotlib.figure import Figure

from kit.documents import read_json, write_json, write_text
from kit.errors import InputError
from scenarios.metrics.metric_catalogue import MEASURES
from scenarios.show import charts, report
from scenarios.show.report import build_report
from scenarios.show.tables import Table, columns, to_text
from scenarios.terminal.screen import exit_code
from sim.device_profile import Profile
from slimsched.launching import Terminal
from slimsched.results import CommandResult
from tests import tiny
from tests.scenarios.folders import run_folder

EVIL = "_$a_b$<img src=x onerror=no()>\"'&amp;{{7*7}}\x1b[31m\x00\n"
SEEN = "_$a_b$<img src=x onerror=no()>\"'&amp;{{7*7}}\\x1b[31m\\x00\\n"
SHORT = ("_a", "$b_1$", "<c>&'\"")  # what fits into a line of a picture
CHARTS = ("latency", "trade-off", "over time", "stages", "training")
SVG = "{http://www.w3.org/2000/svg}"
SCRIPT = (Path(report.__file__).parent / "templates" / "page.js").read_text(encoding="utf-8")


class Page(HTMLParser):
    """What is in a page: elements, attributes and text, which tags are open at its end, and addresses."""

    VOID = frozenset({"meta", "br", "hr", "img", "link"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: set[str] = set()
        self.attributes: set[str] = set()
        self.policy: str | None = ""
        self.text = ""
        self.open: list[str] = []
        self.scripts, self.fetched, self.linked = list[str](), list[str](), list[str]()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag)
        if tag not in self.VOID:
            self.open.append(tag)
        self.attributes |= {name for name, _ in attrs}
        if ("http-equiv", "Content-Security-Policy") in attrs:
            self.policy = dict(attrs)["content"]
        found = [f"{value}" for name, value in attrs if name in ("src", "href", "xlink:href", "data", "srcset")]
        (self.linked if tag == "a" else self.fetched).extend(found)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data
        if self.open[-1:] == ["script"]:
            self.scripts.append(data)


def hostile(path: Path, name: str) -> Page:
    """The page of a run folder in which everything is called so: scenario, routers, servers, devices."""
    folder = run_folder(path, routers=(name,), seeds=(0,))
    write_text(folder / "scenario.yaml", yaml.safe_dump({"name": name}))
    for file in folder.path.glob("*/*/result.json"):
        result = read_json(file)
        write_json(file, {**result, "servers": [{**server, "name": name} for server in result["servers"]]})
    write_json(folder / "environment.json", {"system": name, "devices": [{"name": name}], "packages": {name: name}})
    for file in folder.path.glob("profiles/*.yaml"):
        write_text(file, named(name).to_yaml())
    return Page(build_report(folder).read_text(encoding="utf-8"))


def named(name: str) -> Profile:
    profile = tiny.profile(segments=2)
    device = profile.device.model_copy(update={"name": name})
    return profile.model_copy(update={"name": name, "device": device})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("evil")


@pytest.fixture(scope="module")
def evil(folder: Path) -> Page:
    return hostile(folder, EVIL)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Page:
    return hostile(tmp_path_factory.mktemp("plain"), "plain")


def test_a_page_has_no_element_of_a_names_making(evil: Page, plain: Page) -> None:
    """The elements and attributes are those of a page with plain names; the names are in its text."""
    assert (evil.elements, evil.attributes) == (plain.elements, plain.attributes)
    assert evil.text.count(SEEN.removesuffix("\\n")) > 10
    assert "\x1b" not in evil.text
    assert "\x00" not in evil.text


def test_a_page_may_fetch_nothing_and_run_our_script_alone(plain: Page) -> None:
    """Its policy allows styles that stand in it, and the script of this hash; nothing in it would be forbidden."""
    assert plain.policy is not None
    policy = dict(part.strip().split(" ", 1) for part in plain.policy.split(";"))
    assert policy == {
        "default-src": "'none'", "style-src": "'unsafe-inline'", "base-uri": "'none'", "form-action": "'none'",
        "script-src": f"'sha256-{b64encode(sha256(SCRIPT.encode()).digest()).decode()}'",
    }  # fmt: skip
    assert plain.scripts == [SCRIPT]
    assert plain.elements.isdisjoint({"img", "link", "iframe", "object", "embed", "base", "form", "image"})
    assert not [name for name in plain.attributes if name.startswith("on")]


def drawn(figure: Figure) -> list[str]:
    return [text.text or "" for text in ElementTree.fromstring(charts.to_svg(figure)).iter(f"{SVG}text")]


def of_routers(names: tuple[str, ...]) -> dict[str, Figure]:
    """Every chart that says names, by what it shows."""
    colors = charts.router_colors(names)
    times = [charts.Latencies(name, experiment, [0.1, 0.2]) for name in names for experiment in charts.SIDES]
    accuracy, cost = MEASURES["accuracy"], MEASURES["latency_mean_s"]
    rows = [
        {
            "router": name,
            "is_flagged": False,
            "accuracy": {"mean": 0.7 + 0.1 * index, "ci95": None},
            "latency_s": {"mean": {"mean": 1.0 + index, "ci95": None}},
            "stages_s": {"simulated": {"run": 0.1}, "executors": {"run": 0.2}},
        }
        for index, name in enumerate(names)
    ]
    bounds = {cost.name: [(0.7, 0.001), (0.71, 0.002)]}
    servers = [charts.Telemetry(name, [0.0, 1.0], [0.5, 0.6], [10.0, 11.0]) for name in names]
    return {
        "latency": charts.latency_distributions(times, colors),
        "trade-off": charts.trade_offs(rows, accuracy, [cost], colors, bounds),
        "over time": charts.over_time({"simulated": servers}),
        "stages": charts.stage_bars(rows),
        "training": charts.training_curves({"ppo": {name: [([0.0, 1.0], [1.0, 2.0])] for name in names}}),
    }


@pytest.mark.parametrize("chart", CHARTS)
def test_a_picture_says_names_as_they_are(chart: str) -> None:
    texts = drawn(of_routers(SHORT)[chart])
    assert [name for name in SHORT if name not in texts] == []


@pytest.mark.parametrize("chart", CHARTS)
def test_a_picture_of_names_that_no_file_may_hold_is_whole(chart: str) -> None:
    """Long ones go on in the next line; the SVG can be read; what can't be seen is written out."""
    name = EVIL * 3
    texts = drawn(of_routers((name, "b"))[chart])
    assert max(map(len, texts)) <= charts.LINE + len(", executors")
    assert SEEN * 3 in "".join(texts)


def test_a_table_keeps_its_lines() -> None:
    text = to_text([Table(columns("router", "x"), [["a\nb\x1b[2J\u202e\x9b", "1"], ["c", "2"]])])
    assert len(text.splitlines()) == 4
    assert "a\\nb\\x1b[2J\\u202e\\x9b" in text


def test_terminal_escapes_control_characters_in_results_and_errors(capsys: pytest.CaptureFixture[str]) -> None:
    """Remarks are escaped, too, and names that aren't text; our line breaks stay."""
    terminal = Terminal(quiet=False, json=None, written=())
    terminal.show(CommandResult({}, "one\ntwo \x1b[2J \udcff"))
    terminal.remark("remark \x1b]0;title\x07")

    def fail() -> int:
        raise InputError("\x1b[31m.yaml", "", "no such file")

    exit_code("slimsched", fail)
    streams = capsys.readouterr()
    assert streams.out == "one\ntwo \\x1b[2J \\udcff\n"
    assert streams.err == "remark \\x1b]0;title\\x07\nslimsched: \\x1b[31m.yaml: no such file\n"
