"""The suite: rows there and back, who is best and counted, what its table says, and a race over a tiny one."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from scenarios.job import comparing_stage
from scenarios.job.comparing_stage import SuiteFile, case_names, load_case, race, read_suite
from scenarios.metrics.result_documents import Case, Equal, Run, SuiteScore, cases_of, rows_of
from scenarios.runs.folder import RunFolder
from scenarios.runs.router_planning import EqualRuns
from scenarios.show.comparison_table import suite_table
from scenarios.show.tables import to_text
from slimsched.cli import main

RUN = Run(seed=1, accuracy=0.75, mean_s=0.01, p99_s=0.02, image_j=0.1, unserved=0.0)


def equal(p99_s: float, by: float | None = 0.1, *, is_kept: bool = True, **changes: float) -> Equal:
    """Two runs of about this p99."""
    runs = [replace(RUN, seed=seed, p99_s=p99_s * (1 + seed / 1000), **changes) for seed in (300, 301)]
    return Equal(by, is_kept, tuple(runs))


LOST = replace(equal(0.001), runs=(replace(RUN, p99_s=0.001, unserved=0.5),))
ONE = Case("one", 0.75, 0.005, {"compass": equal(0.03), "ladder": equal(0.02), "milp": LOST, "me": equal(0.01, None)})
MISSED = equal(0.01, None, is_kept=False, accuracy=0.7)
TWO = Case("two", 0.74, 0.004, {"compass": equal(0.01), "ladder": equal(0.02), "me": MISSED})
SCORE = SuiteScore(published=("compass", "ladder", "milp"), entrants=("me",), cases=(ONE, TWO))


def test_rows_come_back_as_the_cases_they_are_of() -> None:
    assert cases_of(rows_of((ONE, TWO))) == (ONE, TWO) == cases_of(SCORE.rows())


def test_the_best_is_the_quickest_of_those_that_count() -> None:
    """One that leaves images unserved, or has not the floor, does not; nor does one that the case has not."""
    assert ONE.best(("compass", "ladder", "milp", "nobody")) == "ladder"
    assert ONE.best(("milp",)) is ONE.best(()) is None
    assert [each.counts for each in (LOST, TWO.routers["me"], ONE.routers["me"])] == [False, False, True]
    assert ONE.routers["me"].against(ONE.routers["ladder"], "p99_s")["ratio"] == pytest.approx(0.5)


def test_the_table_says_why_one_is_not_compared() -> None:
    """Beside the bound, Compass and the best rule of each case; what is ahead for certain is counted below."""
    text = to_text([suite_table(SCORE, "me")], 200)
    row = next(line for line in text.splitlines() if line.startswith("two"))
    assert "(70.0000 %, no dial)" in row
    assert "(ladder)" in row
    assert "not compared, as it misses the floor or leaves images unserved: two" in text
    assert "p99 against compass: behind for certain in 0 of 1 cases, ahead in 1; median -66.7 %" in text
    assert "p99 against the best published rule: behind for certain in 0 of 1 cases, ahead in 1; median -50.0 %" in text
    assert "50.00 % unserved" in to_text([suite_table(replace(SCORE, entrants=("milp",), cases=(ONE,)), "milp")], 200)


def test_bundled_suite_scenarios_have_floors_and_separate_seeds() -> None:
    """Every scenario exists; no seed is used for tuning or training."""
    given = read_suite()
    assert len(case_names(given)) == len(given.scenarios) + len(given.drawn)
    for name in given.scenarios:
        case = load_case(given, name)
        assert case.floor < max(case.experiment.held_accuracies.values())
        assert not {*case.seeds} & {*case.experiment.scenario.compare.seeds, case.experiment.scenario.seed}


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SuiteFile:
    """Two drawn cases of few images; of one, figures are published."""
    given = yaml.safe_load(comparing_stage.FILE.read_text())
    given |= {"name": "tiny", "seeds": [300, 301], "scenarios": [], "drawn": {"a": 0.74, "b": 0.74}}
    given["clusters"] |= {"images": 2000, "servers": [2]}
    monkeypatch.setattr(comparing_stage, "FILE", tmp_path / "suite.yaml")
    monkeypatch.setattr(comparing_stage, "PUBLISHED", tmp_path / "suite.csv")
    comparing_stage.FILE.write_text(yaml.safe_dump(given))
    with comparing_stage.PUBLISHED.open("w", newline="") as file:
        rows = rows_of((Case("drawn-a", 0.74, 0.001, {"compass": equal(1.0), "slackfit": equal(2.0, None)}),))
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return read_suite()


@contextmanager
def opened(path: Path) -> Iterator[RunFolder]:
    folder = RunFolder(path)
    with folder.opened():
        yield folder


def test_a_race_runs_the_entrants_beside_what_is_published(tiny: SuiteFile, tmp_path: Path) -> None:
    """At the floor of each case; what is published is not run again, and a case of which nothing is has its bound."""
    with opened(tmp_path / "runs") as folder:
        found = race(["ladder", "jsq"], folder, quiet=True)
    assert (found.published, found.entrants) == (("compass", "slackfit"), ("ladder", "jsq"))
    assert [case.name for case in found.cases] == [*case_names(tiny)] == ["drawn-a", "drawn-b"]
    first, second = found.cases
    assert list(first.routers) == ["compass", "slackfit", "ladder", "jsq"]
    assert first.routers["compass"] == comparing_stage.published()[0].routers["compass"]
    assert list(second.routers) == ["ladder", "jsq"]
    for case in found.cases:
        its = case.routers["ladder"]
        assert its.is_kept
        assert its.mean("accuracy") == pytest.approx(case.floor, abs=0.001)
        assert case.bound_s < its.mean("mean_s")
        assert case.routers["jsq"].by is None


def test_an_interrupted_race_goes_on_from_what_is_finished(
    tiny: SuiteFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule, other = tmp_path / "my.rule.yaml", "schema: slimsched.rule/1\nkind: ladder\nplacement: jsq\n"
    rule.write_text("schema: slimsched.rule/1\nkind: ladder\n")
    played, run = list[str](), EqualRuns.at_floor

    def at_floor(self: EqualRuns, router: str, floor: float) -> Equal:
        if len(played) == 3:
            raise KeyboardInterrupt
        played.append(router)
        return run(self, router, floor)

    monkeypatch.setattr(EqualRuns, "at_floor", at_floor)
    with opened(tmp_path / "runs") as folder, pytest.raises(KeyboardInterrupt):
        race(["jsq", str(rule)], folder, quiet=True)
    with opened(tmp_path / "runs") as folder:
        assert len(played) == 3
        played.append("")
        found = race(["jsq", str(rule)], folder, quiet=True)
        assert played[4:] == [str(rule)], "the last case's second router alone"
        assert race(["jsq", str(rule)], folder, quiet=True) == found
        rule.write_text(other)
        race(["jsq", str(rule)], folder, quiet=True)
        assert played[5:] == [str(rule)] * 2
        comparing_stage.FILE.write_text(comparing_stage.FILE.read_text() + "# another\n")
        race(["jsq"], folder, ["drawn-a"], quiet=True)
    assert played[7:] == ["jsq"]


def test_the_command_prints_a_table_for_each_entrant(
    tiny: SuiteFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["suite", "-r", "ladder", "--only", "drawn-a", "--json", "-", "-q"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "slimsched.suite-score/1"
    assert [case["name"] for case in document["cases"]] == ["drawn-a"]
    assert main(["suite", "-r", "ladder", "--only", "drawn-a", "-q"]) == 0
    assert "ladder: latencies at equal accuracy, simulated" in capsys.readouterr().out
