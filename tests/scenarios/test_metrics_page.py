"""`docs/metrics.md` explains every number, key and column that is shown, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from benchmarks.study.metrics_page import metrics_page
from kit.documents import read_json
from policies.run_records import STAGES
from scenarios.metrics.fidelity import ValidationDocument, validate_results
from scenarios.metrics.metric_catalogue import MEASURES, OF_SERVERS
from scenarios.metrics.router_comparison import ComparisonDocument, compare_results
from scenarios.metrics.run_result import Restart, Result, Score, SignatureName
from scenarios.show.command_tables import servers_table
from scenarios.show.comparison_table import comparison_table
from scenarios.show.result_words import downtime_table
from scenarios.show.summary_table import summary_table
from scenarios.show.tables import Table
from scenarios.show.validation_table import errors_tables, saturation_tables, stages_table
from slimsched.cli import main
from tests.scenarios.files import write_scenario
from tests.scenarios.folders import simulated
from tests.scenarios.test_comparison import run
from tests.scenarios.test_fidelity import pair, repeats, saturated

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
LONGEST_CELL = 250  # characters


def section(title: str) -> list[list[str]]:
    """The rows of the tables right under a heading; a row is its cells."""
    text = PAGE.read_text()
    after = text[text.index(f"# {title}") :].partition("\n")[2]
    lines = re.split(r"^#+ ", after, maxsplit=1, flags=re.MULTILINE)[0].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return [row for row in rows if not set("".join(row)) <= {"-", " "}][1:]


def explained(title: str) -> set[str]:
    return {name for row in section(title) for name in re.findall("`([^`]+)`", row[0])}


@pytest.fixture(scope="module")
def result() -> Result:
    return simulated("random", 0)[0]


def test_the_page_is_what_the_catalogue_says() -> None:
    """Written by `python -m benchmarks.study.metrics_page`."""
    assert PAGE.read_text() == metrics_page()


def test_every_key_of_a_result_is_explained_and_no_other(result: Result) -> None:
    numbers = explained("Result: `slimsched.result/1`")
    assert numbers == {".".join(measure.keys) for measure in MEASURES.values()}
    assert numbers | explained("Other keys") == set(places(dict(result)))
    of_server = {f"servers[].{key}" for key in result["servers"][0]} - {"servers[].name"}
    assert explained("Servers") == of_server == {f"servers[].{'.'.join(measure.keys)}" for measure in OF_SERVERS}


def places(found: dict[str, Any]) -> Iterator[str]:
    measured = {measure.keys[0] for measure in MEASURES.values()}
    for key, value in found.items():
        yield from (f"{key}.{part}" for part in value) if key in measured and isinstance(value, dict) else (key,)


@pytest.mark.parametrize(
    ("title", "document"),
    [
        ("Comparison: `slimsched.comparison/1`", ComparisonDocument),
        ("Score: `slimsched.score/1`", Score),
        ("Validation: `slimsched.validation/1`", ValidationDocument),
    ],
)
def test_every_key_of_a_document_is_explained_and_no_other(title: str, document: type) -> None:
    assert explained(title) == document.__annotations__.keys()


def test_every_key_of_a_bound_is_explained_and_no_other(tmp_path: Path) -> None:
    flash = "{kind: flash, rate_img_s: 200, at_s: 0.5, rise_s: 0, peak_s: 0.2, fall_s: 0}"
    scenario, title = write_scenario(tmp_path, "{kind: poisson, rate_img_s: 200}", flash), "Bound: `slimsched.bound/2`"
    assert main(["bound", str(scenario), "--quiet", "--json", str(tmp_path / "found.json")]) == 0
    found = read_json(tmp_path / "found.json")
    assert explained(title) == found.keys()
    assert set(re.findall("`([^`]+)`", section(title)[-1][1])) == {"null", *found["oracle"]}


def test_stages_and_signatures_are_explained() -> None:
    assert explained("Stages") == set(STAGES)
    text = PAGE.read_text().casefold()
    assert [name for name in get_args(SignatureName) if f"\n**{name.casefold()}.**" not in text] == []


def shown_tables(result: Result) -> list[Table]:
    """Every table of results that there is, with all of its columns."""
    costs = ("latency_mean_s", "latency_p99_s", "energy_dynamic_j")
    runs = [run(name, seed, 0.7, 1.0 + seed) for name in ("random", "jsq") for seed in (0, 1)]
    comparison = compare_results(runs, bounds={cost: [(0.7, 0.1)] for cost in costs})
    slowed = [pair("a", 1, 1, load=0.5, rate_img_s=9.0, slowdown=1.1)]
    validation = validate_results([*slowed, *repeats("a", 1.0, [1.0]), saturated("a", 2, 1)], "measured")  # type: ignore[arg-type]
    tables = [servers_table(result), comparison_table(comparison), *errors_tables(validation)]
    down: Restart = {"server": "s", "cause": "worker_died", "planned": True, "down_s": 1.0, "up_s": None}
    downtimes = downtime_table([("simulation, seed 0", {**result, "restarts": [down]})])
    assert downtimes is not None
    tables += [found for of in (comparison, None) if (found := summary_table(of, validation))]
    return [*tables, stages_table(validation["rows"]), *saturation_tables(validation), downtimes]


def test_every_column_is_explained_and_no_other(result: Result) -> None:
    """By the catalogue's titles and heads, or where the page explains columns; there `...` stands for one."""
    heads = {found.header for table in shown_tables(result) for found in table.columns}
    measures = {name for of in (*MEASURES.values(), *OF_SERVERS) for name in (of.header, of.title)}
    patterns = explained("Columns of the tables")
    others = heads - measures - {"router", "server", *(name.replace("_", " ") for name in STAGES)}
    names = {head: {head, *(head.replace(measure, "...") for measure in measures)} for head in others}
    used = {head: each & patterns for head, each in names.items()}
    assert [head for head, names in used.items() if not names] == []
    assert patterns == set().union(*used.values())


def test_no_cell_is_longer_than_can_be_read() -> None:
    cells = [cell for line in PAGE.read_text().splitlines() if line.startswith("|") for cell in line.split("|")]
    assert max(map(len, cells)) <= LONGEST_CELL


def test_measure_name_gives_its_place_in_the_result(result: Result) -> None:
    """Each measure is found in a result, except those that need a promise, an accuracy table or a deadline."""
    lost = [name for name, measure in MEASURES.items() if measure.of(result) is None]
    assert lost == ["slo_attainment", "accuracy_attainment", "p99_attainment", "goodput_img_s", "expected_accuracy"]
    stems = {name: MEASURES[name].stem for name in ("latency_p99_s", "throughput_img_s", "energy_j", "accuracy")}
    assert list(stems.values()) == ["latency_p99", "throughput", "energy", "accuracy"]


def test_no_two_columns_of_a_table_have_one_head(result: Result) -> None:
    for table in shown_tables(result):
        titles = [found.title for found in table.columns if found.header not in ("allowed", "change")]
        assert len(titles) == len(set(titles)), table.title
