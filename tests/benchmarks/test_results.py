"""The results' whole way: what runs, what is kept and made again, what is missing, data and page."""

from __future__ import annotations

import shutil
from pathlib import Path

import pandas as pd
import pytest
import yaml

from benchmarks.__main__ import main
from benchmarks.grid import GridRow, Row, kept_rows, make_rows, read_rows
from benchmarks.study import pages, runs
from benchmarks.study.candidates import (
    PLACEMENTS,
    TOLD,
    experiments,
    read_case,
    scenario_files,
    state_of,
    tuned_label,
)
from benchmarks.study.pictures import gains_chart
from benchmarks.study.results import make_results
from policies.rules.specs import FixedRule
from policies.vocabulary import FOLLOW_NS
from scenarios.files.spec import Scenario
from tests.benchmarks.cases import RULE, write_case, write_tuned
from tests.fuzz.base import base as fuzz_base

ROUTERS = "data/routers/main-tiny"

# --------------------------------------------------------------------------------------------------------------- grids


def double(made: list[int], point: GridRow) -> Row:
    number = int(point.key["number"])
    if number == 3:
        raise KeyboardInterrupt
    made.append(number)
    return {"twice": 2 * number}


def test_rows_are_kept_as_they_come_and_stale_ones_go(tmp_path: Path) -> None:
    """Also a line that was torn; rows of scenarios that nobody asks for stay."""
    path, made = tmp_path / "rows.jsonl", list[int]()

    def points(*numbers: int, state: str = "a", scenario: str = "x") -> list[GridRow]:
        return [GridRow({"scenario": scenario, "number": number}, state) for number in numbers]

    with pytest.raises(KeyboardInterrupt):
        make_rows(path, points(1, 2, 3, 4), double, made, quiet=True)
    assert made == [1, 2]
    with path.open("a") as file:
        file.write('{"inputs": "torn')
    path.write_text(path.read_text() + "\n")
    assert make_rows(path, points(4, 1), double, made, quiet=True) == 1
    assert [row["twice"] for row in read_rows(path)] == [8, 2], "in the order of the points"
    assert make_rows(path, points(5, scenario="y"), double, made, quiet=True) == 1
    assert make_rows(path, points(1, state="b"), double, made, quiet=True) == 1
    assert [(row["scenario"], row["number"]) for row in read_rows(path)] == [("y", 5), ("x", 1)]
    assert kept_rows(path, points(1)) == [None]


# ------------------------------------------------------------------------------------------------------- the whole way


def remake(folder: Path) -> int:
    """The page of a folder's scenarios; returns how many runs had to be made."""
    said = make_results(scenarios=folder, out=folder / "runs", docs=folder / "docs", quiet=True)
    made, _, page = said.partition(" runs made; ")
    assert page == str(folder / "docs/results.md")
    return int(made)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    write_case(folder)
    assert remake(folder) == 10, "five routers and two seeds"
    return folder


def test_every_router_has_a_row_above_its_bound(made: Path) -> None:
    routers = pages.read_frames(made / "docs/data", "results-")["routers"]
    assert sorted(routers["router"]) == ["compass", "compass, fine-tuned", "ladder", "ladder, not tuned", "random"]
    assert (routers[["energy_over_bound_pct", "latency_over_bound_pct"]] > -1e-9).all(axis=None)
    assert (routers["lost_images"] == 0).all()
    assert not any(
        "servers" in result and result["servers"] for result in map(_result, read_rows(made / "runs/main-tiny.jsonl"))
    )


def _result(row: Row) -> Row:
    result: Row = row["result"]
    return result


def test_who_compass_is_behind_for_certain_comes_first(made: Path, tmp_path: Path) -> None:
    """Not what was asked and missed, nor that tuning has not helped."""
    shutil.copytree(made / "docs", tmp_path / "docs")
    rows = ["p99,9.1,,%,ladder,,False", "mean latency,5,1,%,fixed,at most +1 %,False", "so,3,,%,compass,,False"]
    losses = ["scenario,what,change,ci95,unit,against,asked,holds", *(f"main-tiny,{row}" for row in rows)]
    (tmp_path / "docs/data/results-losses.csv").write_text("\n".join(losses))
    pages.results_page(tmp_path / "docs")
    first = (tmp_path / "docs/results.md").read_text().partition("## In short\n\n")[2]
    assert first.startswith(
        "- **Compass is behind for certain in 1 scenario**:\n  `main-tiny` (p99 +9 % against ladder).\n"
    )


def test_the_page_is_of_the_data_and_of_no_machine(made: Path) -> None:
    """What is missing is named; the same data give the same page, and pictures lie beside it."""
    page = made / "docs/results.md"
    text = page.read_text()
    assert str(made) not in text
    assert "| main-tiny | moving | " in text
    assert "- seeds: main-tiny.\n" in text
    assert all((made / "docs" / path).is_file() for path in ("images/results-gains.svg", "images/results-fronts.svg"))
    pages.results_page(made / "docs")
    assert page.read_text() == text


def test_nothing_runs_twice_and_what_has_changed_runs_alone(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One file of a router: its two runs; the scenario: all of them. A part has its page where its runs are."""
    folder = tmp_path / "again"
    shutil.copytree(made, folder)
    text = (folder / "docs/results.md").read_text()
    assert remake(folder) == 0
    assert (folder / "docs/results.md").read_text() == text
    path = folder / "main-tiny.yaml"
    write_tuned(path, "ladder", rule=RULE.model_copy(update={"thresholds": (3.0,)}))
    assert remake(folder) == 2
    path.write_text(path.read_text().replace("warmup_s: 0", "warmup_s: 0.2"))
    assert remake(folder) == 10
    flags = ["--scenarios", str(folder), "--out", str(folder / "runs"), "--seeds", "1", "--jobs", "1", "--quiet"]
    assert main(["results", *flags]) == 0
    assert capsys.readouterr().out == f"0 runs made; {folder / 'runs' / 'results.md'}\n"


def test_a_scenario_with_little_to_win_misses_no_goal(made: Path, tmp_path: Path) -> None:
    """Its row says so, and it is counted apart."""
    folder = tmp_path / "again"
    shutil.copytree(made, folder)
    words = ["--scenarios", str(folder), "--docs", str(folder / "docs"), "--kept", str(folder / "rows.jsonl")]
    assert main(["headroom", *words, "--seeds", "2", "--jobs", "1"]) == 0
    figures, page = folder / "docs/data/headroom.csv", folder / "docs/results.md"
    found = pd.read_csv(figures)
    assert found["without"].tolist() == ["as it is", "changes of load", "links", "all", "bound"]
    for is_little, shown in ((False, "1 scenarios"), (True, "0 scenarios")):
        found.assign(is_little=is_little).to_csv(figures, index=False)
        pages.results_page(folder / "docs")
        text = page.read_text()
        assert f"- **In 0 of {shown}**" in text
        assert ("1 more has [less than 3 % to win](#what-there-is-to-win)" in text) == is_little
        assert ("| little to win |" in text) == is_little


def test_bounds_are_solved_once(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = read_case(made / "main-tiny.yaml")
    monkeypatch.setattr(runs, "_solve", None)
    (bounds,) = runs.bounds_of([case], made / "runs", 1, quiet=True)
    assert 0.8 < bounds["oracle"] <= 0.9 + 1e-9
    accuracies = [corner[0] for corner in bounds["bounds"]]
    assert accuracies == sorted(set(accuracies)), "one for all who have the same accuracy and rate"
    assert {0.8018, 0.9} <= set(accuracies)


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--only", "main-tinny"], "no scenario 'main-tinny'; did you mean 'main-tiny'"),
        (["--seeds", "3"], "main-tiny.yaml has 2"),
        (["--seeds", "many"], "many"),
        (["--sed", "1"], "--sed"),
    ],
)
def test_wrong_flags_run_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], told: str
) -> None:
    write_case(tmp_path)
    assert main(["results", "--scenarios", str(tmp_path), "--out", str(tmp_path / "runs"), *flags]) == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_a_change_beyond_the_charts_edge_is_an_arrow_with_its_figure() -> None:
    """Within it there is none."""
    for change, told in ((160.0, ["+160 %", "+160 %"]), (90.0, [])):
        row = {"scenario": "x", "mean_pct": change, "mean_pct_ci95": 0.0, "p99_pct": change, "p99_pct_ci95": None}
        (axes,) = gains_chart(pd.DataFrame([row])).axes
        assert [text.get_text() for text in axes.texts] == told
        assert axes.get_xlim()[1] == pytest.approx(100 if told else 95)


# ---------------------------------------------------------------------------------------------------------- candidates


def test_what_is_stale_or_not_to_be_tuned_is_named_and_hides_nothing(tmp_path: Path) -> None:
    path = write_case(tmp_path)
    write_tuned(path, "compass", changes={"tuning.decisions": "15000000"})
    write_tuned(path, "milp", changes={"tuning.floor": "0.75"})
    (tmp_path / ROUTERS / "slackfit.failed.txt").write_text("slackfit: the most was 0.7\n")
    case = read_case(path)
    shown = [candidate.label for candidate in case.candidates]
    assert shown == ["compass", "ladder", "slackfit, not tuned", "ladder, not tuned", "random"]
    assert set(case.missing) > {
        "compass: `routers/main-tiny/compass.rule.yaml` is stale (`make routers`): "
        "tuning.decisions 15000000, now 40000000",
        "milp: `routers/main-tiny/milp.failed.txt` is stale (`make routers`): tuning.floor 0.75, now 0.8",
        "slackfit: the most was 0.7",
        "infaas: no `routers/main-tiny/infaas.rule.yaml` (`make routers`)",
    }


def test_placements_run_the_tuned_tuple(tmp_path: Path) -> None:
    """Each but its own, which is the tuned rule itself, unless `sticky` could not carry it."""
    path = write_case(tmp_path)
    for made_by, others in (({}, set(PLACEMENTS) - {"sticky"}), ({"latency_mean_s": 0.2}, set())):
        write_tuned(path, "fixed", made_by, FixedRule(tuple=(0.5, 1.0)))
        named = {candidate.label: candidate.router for candidate in read_case(path).candidates}
        assert set(PLACEMENTS) & set(named) == others
    assert "jiq" not in named


def test_those_with_a_dial_also_run_told_what_is_promised(tmp_path: Path) -> None:
    """As the same files' other rows: what they are told makes another run of it."""
    path = write_case(tmp_path)
    assert not [each for each in read_case(path).candidates if each.group == TOLD], "nothing is promised"
    document = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump({**document, "slo": {"floor": 0.8, "p99_limit_s": 0.05}}))
    case = read_case(path)
    labels = {each.label: each for each in case.candidates}
    for kind in ("compass", "ladder"):
        plain, told = labels[tuned_label(kind)].make(case.world), labels[f"{kind}, told its goals"].make(case.world)
        limits_ns = [getattr(getattr(each, "control", None), "limit_ns", 0) for each in (plain, told)]
        assert limits_ns == [0, FOLLOW_NS]
    inputs = [point.inputs for point in runs.run_points(case)]
    assert len(set(inputs)) == len(inputs)


def test_the_papers_routers_are_found_and_another_reward_is_no_other_experiment(tmp_path: Path) -> None:
    text = write_case(tmp_path, "paper").read_text()
    (tmp_path / "data/routers/paper-heavy.safetensors").write_bytes(fuzz_base()["ppo.safetensors"])
    case = read_case(tmp_path / "paper.yaml")
    assert [each.label for each in case.candidates] == ["random", "sticky at 0.5", "sticky at 1", "ppo-heavy"]
    assert "PPO, latency: no `routers/paper-latency.safetensors`" in case.missing
    for name, change in (("paper-relaxed", {"reward": {"alpha": 9.0}}), ("paper-slow", {"duration_s": 2})):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(yaml.safe_load(text) | change | {"name": name}))
    cases = [read_case(path) for path in scenario_files(tmp_path)]
    assert [case.name for case in experiments(cases)] == ["paper", "paper-slow"]


class Later(Scenario):
    """A scenario of a later version, which knows one key more."""

    another_key: int = 3


def test_a_key_that_is_new_makes_no_other_state_of_who_does_not_use_it(tmp_path: Path) -> None:
    """Else each new key would make all kept tables stale."""
    now = read_case(write_case(tmp_path)).scenario
    told = now.model_dump(by_alias=True, exclude_unset=True)
    assert state_of(Later.model_validate(told)) == state_of(now)
    assert state_of(Later.model_validate({**told, "another_key": 4})) != state_of(now)
