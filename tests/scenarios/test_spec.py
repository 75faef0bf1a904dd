"""The scenario file: what is wrong is refused at once, in one message that names the place and the remedy."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.study.keys_page import pages
from kit import strict
from kit.errors import InputError
from kit.units import parse_duration
from scenarios.files.reading import load_scenario
from scenarios.files.series import read_trace
from scenarios.files.spec import Scenario
from tests.scenarios.files import SCENARIO, write_scenario


def test_a_trace_of_dates(tmp_path: Path) -> None:
    """Dates become seconds: only differences count."""
    path = tmp_path / "trace.csv"
    path.write_text("id, at\n1, 2023-11-16 18:17:03.5\n2, 2023-11-16 18:17:05\n")
    times_s = read_trace(path, "at")
    assert times_s[1] - times_s[0] == 1.5


@given(st.floats(0.001, 1e5), st.sampled_from([("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3600.0), ("d", 86400.0)]))
def test_durations(value: float, unit: tuple[str, float]) -> None:
    """A number with a unit is that many seconds, and a plain number is itself."""
    text = f"{value:.3f}"
    assert parse_duration(text + unit[0]) == float(text) * unit[1]
    assert parse_duration(text) == float(text)


def test_a_scenario_survives_being_written(tmp_path: Path) -> None:
    """What was read, written and read again is the same scenario, from any folder."""
    scenario = load_scenario(write_scenario(tmp_path, "preload: all", "idle_unload_s: null, preload: [[1, 0.5]]"))
    other = tmp_path / "elsewhere"
    other.mkdir()
    (other / "again.yaml").write_text(scenario.to_yaml())
    assert load_scenario(other / "again.yaml") == scenario


def test_paths_are_relative_to_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the user stands does not matter to the paths in a scenario."""
    path = write_scenario(tmp_path)
    monkeypatch.chdir("/")
    assert load_scenario(path).cluster.named_servers[0].profile == str(tmp_path / "fast.yaml")


def test_a_servers_knobs_go_over_the_clusters() -> None:
    """A server has its own knobs where it gives them (null and false among them), else the cluster's."""
    text = SCENARIO.replace("10gbe}", "10gbe, greedy: {idle_unload_s: null, batch_limit: 4}}")
    cluster = strict.parse(Scenario, text, "x").cluster
    fast, slow = (cluster.greedy_of(server) for server in cluster.named_servers)
    assert (fast.batch_limit, fast.idle_unload_s, fast.preload) == (4, None, "all")
    assert (slow.batch_limit, slow.idle_unload_s, slow.preload) == (16, 5.0, "all")


@pytest.mark.parametrize("name", pages())
def test_the_pages_of_keys_are_up_to_date(name: str) -> None:
    """They are what `python -m benchmarks.study.keys_page` writes, and every key has a meaning."""
    assert Path("docs", name).read_text(encoding="utf-8") == pages()[name]
    assert "|  |" not in pages()[name]


def test_half_a_character_is_no_yaml() -> None:
    """libyaml complains of it in its own way."""
    with pytest.raises(InputError, match="not valid YAML"):
        strict.mapping("a: \ud800", "x.yaml")
