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
from scenarios.files.scenario_keys import Scenario
from scenarios.files.scenario_reading import load_scenario
from tests.scenarios.files import SCENARIO, write_scenario


@given(st.floats(0.001, 1e5), st.sampled_from([("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3600.0), ("d", 86400.0)]))
def test_durations(value: float, unit: tuple[str, float]) -> None:
    text = f"{value:.3f}"
    assert (parse_duration(text + unit[0]), parse_duration(text)) == (float(text) * unit[1], float(text))


def test_a_scenario_survives_being_written(tmp_path: Path) -> None:
    scenario = load_scenario(write_scenario(tmp_path, "preload: all", "idle_unload_s: null, preload: [[1, 0.5]]"))
    other = tmp_path / "elsewhere"
    other.mkdir()
    (other / "again.yaml").write_text(scenario.to_yaml())
    assert load_scenario(other / "again.yaml") == scenario


def test_paths_are_relative_to_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_scenario(tmp_path)
    monkeypatch.chdir("/")
    assert load_scenario(path).cluster.named_servers[0].profile == str(tmp_path / "fast.yaml")


def test_a_servers_params_go_over_the_clusters() -> None:
    """A server has its own parameters where it gives them (null and false among them), else the cluster's."""
    text = SCENARIO.replace("10gbe}", "10gbe, greedy: {idle_unload_s: null, batch_limit: 4}}")
    cluster = strict.parse(Scenario, text, "x").cluster
    fast, slow = (cluster.greedy_of(server) for server in cluster.named_servers)
    assert (fast.batch_limit, fast.idle_unload_s, fast.preload) == (4, None, "all")
    assert (slow.batch_limit, slow.idle_unload_s, slow.preload) == (16, 5.0, "all")


@pytest.mark.parametrize("name", pages())
def test_the_pages_of_keys_are_up_to_date(name: str) -> None:
    """They are what `python -m benchmarks.study.keys_page` writes, and every key has a meaning."""
    assert Path("docs", name).read_text(encoding="utf-8") == pages()[name]
    assert "): \n" not in pages()[name]


def test_half_a_character_is_no_yaml() -> None:
    with pytest.raises(InputError, match="not valid YAML"):
        strict.mapping("a: \ud800", "x.yaml")


RACKS = """
schema: slimsched.scenario/1
name: racks
model: {accuracy: slimresnet18-paper}
cluster:
  racks:
    - {name: r, count: 2, latency_s: 1e-5, bandwidth_bytes_s: 1e9}
    - {name: s, latency_s: 1e-5, bandwidth_bytes_s: 1e9}
  servers:
    - {name: a, count: 2, device: {emulated: t4}, link: 10gbe, rack: r}
    - {name: b, device: {emulated: l4}, link: 10gbe, rack: s}
workload: {kind: poisson, load: 0.5}
"""


def test_racks_and_counts_are_servers_one_by_one() -> None:
    cluster = strict.parse(Scenario, RACKS, "x").cluster
    assert [(server.name, server.rack) for server in cluster.named_servers] == [
        ("r0-a-0", "r0"), ("r0-a-1", "r0"), ("r1-a-0", "r1"), ("r1-a-1", "r1"), ("b", "s")
    ]  # fmt: skip
