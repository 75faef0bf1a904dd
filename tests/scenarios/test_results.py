"""The page of results: who won by which rule, what is run again and what isn't, and that nothing missing is hidden."""

from __future__ import annotations

import math
import os
import shutil
import signal
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.study import ablation, runs
from benchmarks.study.__main__ import main
from benchmarks.study.cases import (
    MARGIN,
    PLACEMENTS,
    TOLD,
    WINDOWED,
    experiments,
    for_promise,
    head_comment,
    read_case,
    scenario_files,
)
from benchmarks.study.findings import (
    Found,
    Notes,
    Row,
    compare_pair,
    compare_windowed,
    covered,
    judge,
    losses,
    replica_checks,
    searches_in,
)
from benchmarks.study.page import (
    ablation_table,
    making_table,
    results_page,
    routers_table,
    summary_table,
    windowed_table,
)
from benchmarks.study.pictures import energy_chart, gains_chart
from benchmarks.study.results import found_in, make_results, notes_of
from benchmarks.study.sources import file_digest, imported, sources_hash
from benchmarks.study.tune_all import KINDS, tune_all, tunings
from benchmarks.study.tuned_rows import digest_of, rule_of_now
from kit.documents import write_json
from kit.errors import WorkError
from policies.rules.context import ComposedRouter
from policies.rules.specs import FixedRule, LadderRule
from policies.rules.tide import TideRule
from policies.rules.widths import Ladder
from scenarios.files.router_names import read_rule, write_rule
from scenarios.files.spec import Scenario
from scenarios.learn.tune import FloorError
from scenarios.learn.tuned_files import load_of, note_failure
from scenarios.learn.tuning import Tuning
from scenarios.show.charts import to_svg
from scenarios.terminal.exits import exit_code, terminated_as_interrupted
from scenarios.world.materials import load_world
from scenarios.world.routers import deciding_in
from tests.fuzz.base import base as fuzz_base
from tests.scenarios.files import write_scenario

NOTES = Notes({"cores": "2"}, {"numpy": "2"}, 60, "datasheet")
RULE = LadderRule(rungs=((1.0, 1.0), (0.5, 1.0)), thresholds=(8.0,))
MOVING = "{kind: mmpp, rate_img_s: 200, burst_factor: 2, burst_share: 0.3, dwell_s: 0.2}"


def write_case(folder: Path, name: str = "main-tiny") -> Path:
    """A scenario with a tuned ladder and a Tide beside it."""
    document = yaml.safe_load(write_scenario(folder).read_text())
    (folder / "tiny.yaml").unlink()
    document |= {"name": name, "workload": yaml.safe_load(MOVING), "tuning": {"floor": 0.8}, "warmup_s": 0}
    path = folder / f"{name}.yaml"
    path.write_text("# A tiny\n# load.\n" + yaml.safe_dump(document))
    write_tuned(path, "ladder", told={"decisions": 1234})
    write_tuned(path, "tide", told={"wall_s": 61})
    return path


# ------------------------------------------------------------------------------------------------------ the whole way


@dataclass(frozen=True)
class Made:
    """Results of a tiny scenario: its folder, what was found, and the page."""

    folder: Path
    found: Found
    notes: Notes
    text: str


def remake(folder: Path) -> int:
    """The page of a folder's scenarios; returns how many runs had to be made."""
    page, made = make_results(folder=folder, out=folder / "runs", page=folder / "docs/results.md", jobs=1, quiet=True)
    assert page == folder / "docs/results.md"
    return made


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("results")
    case = read_case(write_case(folder))
    assert remake(folder) == 10, "five routers and two seeds"
    (fluid,) = runs.fluid_of([case], folder / "runs", 1, quiet=True).values()
    one, page = found_in(case, folder / "runs", fluid), folder / "docs/results.md"
    return Made(folder, one, notes_of([case], [one], page), page.read_text())


def test_every_router_has_one_row_with_its_gaps_to_the_bound(made: Made) -> None:
    table = routers_table(made.found)
    rows = {row[0]: dict(zip((column.head for column in table.columns), row, strict=True)) for row in table.rows}
    assert len(rows) == len(table.rows) == 5
    assert rows.keys() >= {"**tide**", "ladder", "ladder, not tuned", "random"}
    assert all(
        row[bound].startswith("+") for row in rows.values() for bound in ("energy over bound", "latency over bound")
    )
    assert {row["lost"] for row in rows.values()} == {"0"}


def test_what_is_missing_is_named_and_hides_nothing(made: Made) -> None:
    """The files that are to be tuned, the seeds; and there is one verdict all the same."""
    files = [f"{kind}: no `routers/main-tiny/{kind}.rule.yaml` (`make routers`)" for kind in
             ("slackfit", "infaas", "milp", "fixed")]  # fmt: skip
    assert set(made.found.missing) >= {*files, "seeds: `compare.seeds` has 2, 10 are asked for"}
    assert all(each in made.text for each in made.found.missing)
    assert len(summary_table([made.found], {"main-tiny": judge(made.found)}).rows) == 1


def test_each_routers_file_says_how_it_was_made(made: Made) -> None:
    rows = {row[1].partition("]")[0]: row for row in making_table(made.notes.made).rows}
    assert rows.keys() == {"[tide", "[ladder"}
    assert (rows["[tide"][2], rows["[tide"][6]) == ("one search", "61 s")
    assert rows["[tide"][-1].startswith("`slimsched tune main-tiny.yaml --router tide ")
    assert rows["[ladder"][2:7] == ["one search", "1,234", "-", "-", "-"]
    assert "Tuning: one search: tide, ladder." in made.text


def test_intervals_hold_how_sure_tuning_is() -> None:
    """The runner-up's 10 % beside none of seeds are 10 %, whoever came third; one search, or none, changes nothing."""
    plain = row("ladder", 10)
    searches = tuple({"mean_s": value / 1000, "p99_s": 0.03} for value in (99.0, 10.0, 11.0))
    several = replace(plain, searches=searches)
    alone = replace(plain, searches=searches[:1])
    assert plain.interval("latency_mean_s")["ci95"] == alone.interval("latency_mean_s")["ci95"]
    assert several.interval("latency_mean_s")["ci95"] == pytest.approx(0.001, rel=1e-5)
    assert several.interval("latency_p99_s")["ci95"] == pytest.approx(0.0, abs=1e-12)
    assert several.interval("energy_dynamic_j") == plain.interval("energy_dynamic_j")
    spread = replace(row("ladder", 10, spread=0.1), searches=searches)
    half = 0.010 * 0.1 * 4.302653 / 3**0.5
    assert spread.interval("latency_mean_s")["ci95"] == pytest.approx((0.001**2 + half**2) ** 0.5, rel=1e-5)
    change = compare_pair(tide(5), several).mean
    assert (change["mean"], change["ci95"]) == pytest.approx((-50, 5), rel=1e-5)
    both = compare_pair(replace(tide(5), searches=searches), several).mean
    assert both["ci95"] == pytest.approx(5 * 2**0.5, rel=1e-5)
    assert compare_pair(tide(5), several, with_searches=False).mean["ci95"] == pytest.approx(0.0, abs=1e-9)
    assert "Tuning: intervals of ladder hold the spread of searches." in results_page([found(tide(5), several)], NOTES)


def test_a_files_searches_are_those_of_its_race() -> None:
    """Its start is none; an old file is of one; what was looked at whole has none."""
    race = [{"of": "search 1", "mean_s": 1.0}, {"of": "start", "mean_s": 2.0}]
    assert searches_in({"command": "slimsched tune x", "race": race}) == (race[0],)
    assert searches_in({"command": "slimsched tune x", "latency_mean_s": 3.0}) == ({"mean_s": 3.0, "p99_s": None},)
    assert searches_in({"command": "slimsched tune x", "race": [{"of": "tuple (1)", "mean_s": 1.0}]}) == ()
    assert searches_in({"command": "slimsched train x"}) == searches_in({}) == ()


def test_the_page_is_of_no_machine_and_has_its_pictures(made: Made) -> None:
    """No path of this one; the scenario's own remark, what is not made yet, and charts that lie beside the page."""
    assert str(made.folder) not in made.text
    assert "A tiny load. [main-tiny.yaml]" in made.text
    assert "python -m benchmarks.study ablation" in made.text
    assert made.notes.pictures
    assert all((made.folder / "docs" / path).is_file() for path in made.notes.pictures.values())


def test_nothing_runs_twice_and_what_has_changed_runs_alone(
    made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One file of a router: its two runs; the scenario: all of them. The command takes up the same runs."""
    folder = tmp_path / "again"
    shutil.copytree(made.folder, folder)
    assert remake(folder) == 0
    assert (folder / "docs/results.md").read_text() == made.text
    write_rule(folder / "data/routers/main-tiny/ladder.rule.yaml", RULE.model_copy(update={"thresholds": (3.0,)}))
    assert remake(folder) == 2
    path = folder / "main-tiny.yaml"
    path.write_text(path.read_text().replace("warmup_s: 0", "warmup_s: 0.2"))
    assert remake(folder) == 10
    flags = ["--scenarios", str(folder), "--out", str(folder / "runs"), "--seeds", "1", "--quiet"]
    assert main(["results", *flags]) == 0
    assert capsys.readouterr().out == f"0 runs made; {folder / 'runs' / 'results.md'}\n"


def test_a_bound_is_never_beaten_and_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Energy and latency of every router lie above the fluid bound; it is solved once."""
    write_case(tmp_path)
    case = read_case(tmp_path / "main-tiny.yaml")
    runs.run_missing([case], tmp_path / "runs", 1, quiet=True)
    fluid = runs.fluid_of([case], tmp_path / "runs", 1, quiet=True)["main-tiny"]
    for label, results in runs.collect(case, tmp_path / "runs").items():
        point, row = runs.point_of(results), Row(label, "", tuple(results))
        assert point is not None
        assert (row.mean_s or 0.0) > fluid.latency_s[point]
        assert (row.metric("energy_dynamic_j")["mean"] or 0.0) > fluid.energy_j[point]
        assert all(result["servers"] == [] for result in results)
    assert fluid.oracle is not None
    assert 0.8 < fluid.oracle <= 0.9 + 1e-9
    monkeypatch.setattr(runs, "_solve", None)
    assert runs.fluid_of([case], tmp_path / "runs", 1, quiet=True)["main-tiny"] == fluid


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--only", "main-tinny"], "no scenario 'main-tinny'; did you mean 'main-tiny'"),
        (["--seeds", "3"], "main-tiny.yaml has 2"),
        (["--jobs", "0"], "must be a whole number, at least 1"),
    ],
)
def test_wrong_flags_run_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], told: str
) -> None:
    write_case(tmp_path)
    assert main(["results", "--scenarios", str(tmp_path), "--out", str(tmp_path / "runs"), *flags]) == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def sources(root: Path, **texts: str) -> str:
    """The hash of what `sim.a` imports, from sources written below `root`."""
    for name, text in texts.items():
        path = root / "sim" / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    sources_hash.cache_clear()
    return sources_hash(("sim.a",), root)


def test_comments_are_no_part_of_the_sources(tmp_path: Path) -> None:
    """A word in a docstring runs nothing again; a changed number does."""
    first = sources(tmp_path, a='"""Says this."""\nx = 1\n')
    assert sources(tmp_path, a='"""Says that."""\nx = 1  # so\n') == first
    assert sources(tmp_path, a="x = 2\n") != first


def test_what_is_imported_is_part_of_the_sources(tmp_path: Path) -> None:
    """Whether at the top or in a function, as a module or from one; but not for its types alone, nor what is alien."""
    a = "import numpy\nfrom sim import b\n\ndef f():\n    import sim.c\n\nif TYPE_CHECKING:\n    from sim.d import D\n"
    first = sources(tmp_path, __init__="", a=a, b="from sim.e import E\n", c="", d="", e="E = 1\n", f="")
    assert sources(tmp_path, d="x = 1\n", f="x = 1\n") == first
    found = [sources(tmp_path, **{name: "E = 2\n"}) for name in ("e", "c", "__init__", "b")]
    assert len({first, *found}) == 5


def test_a_stored_run_is_of_what_makes_it() -> None:
    """Signatures are stored with it; hardware, pages and the terminal have no say."""
    found = imported(runs.RUN_MAKERS)
    assert found.keys() >= {
        "sim.compiled.greedy",
        "policies.greedy",
        "scenarios.metrics.signatures",
        "hw.networks.accuracy",
    }
    assert not [
        name for name in found if name.startswith(("scenarios.show", "scenarios.terminal", "hw.router.cluster"))
    ]
    assert found.keys() < imported(runs.BOUND_MAKERS).keys() >= {"scenarios.runs.bound"}


def test_an_entry_that_is_no_module_is_an_error() -> None:
    """A module that was moved must not silently fall out of the fingerprint."""
    with pytest.raises(ModuleNotFoundError, match=r"scenarios\.compare"):
        sources_hash(("scenarios.compare",))


def test_placements_run_the_tuned_tuple(tmp_path: Path) -> None:
    """Each but its own, which is the tuned rule itself."""
    path = write_case(tmp_path)
    write_rule(tmp_path / "data/routers/main-tiny/fixed.rule.yaml", FixedRule(tuple=(0.5, 1.0)))
    named = {contender.label: contender.router for contender in read_case(path).contenders}
    assert named["jiq"] == "fixed:0.5,1@jiq"
    assert set(PLACEMENTS) - set(named) == {"sticky"}
    overloaded = FixedRule(tuple=(0.5, 1.0), made_by={"latency_mean_s": 0.2})
    write_rule(tmp_path / "data/routers/main-tiny/fixed.rule.yaml", overloaded)
    assert "jiq" not in {contender.label for contender in read_case(path).contenders}, "`sticky` could not carry that"


def test_what_is_stale_does_not_run_and_says_why(tmp_path: Path) -> None:
    """A file of another command or world; a note that there can be none; and the placements of a stale tuple."""
    path = write_case(tmp_path)
    write_tuned(path, "tide", decisions="15000000")
    write_tuned(path, "milp", floor="0.75")
    place = tmp_path / "data/routers/main-tiny"
    old = {"command": f"slimsched tune {path.name} --router fixed --floor 0.75"}
    write_rule(place / "fixed.rule.yaml", FixedRule(tuple=(0.5, 1.0), made_by=old))
    case = read_case(path)
    shown = [contender.label for contender in case.contenders]
    assert shown == ["ladder", "ladder, not tuned", "tide, not tuned", "random"]
    stale = "is stale (`make routers`):"
    told = [
        f"tide: `routers/main-tiny/tide.rule.yaml` {stale} --decisions 15000000, now 40000000",
        f"milp: `routers/main-tiny/milp.failed.txt` {stale} --floor 0.75, now 0.8",
    ]
    assert set(told) < set(case.missing)
    assert any(text.startswith(f"fixed: `routers/main-tiny/fixed.rule.yaml` {stale} --floor") for text in case.missing)
    assert any(text.startswith("placements (") for text in case.missing)


def test_what_could_not_be_tuned_runs_as_it_is_and_says_why(tmp_path: Path) -> None:
    path = write_case(tmp_path)
    (tmp_path / "data/routers/main-tiny/slackfit.failed.txt").write_text("slackfit: the most was 0.7\n")
    (tmp_path / "data/routers/main-tiny/ladder.rule.yaml").rename(tmp_path / "data/routers/main-tiny/ladder.failed.txt")
    case = read_case(path)
    assert [contender.label for contender in case.contenders].count("ladder, not tuned") == 1
    assert {contender.label: contender.router for contender in case.contenders}["slackfit, not tuned"] == "slackfit"
    assert "slackfit: the most was 0.7" in case.missing


def test_the_papers_routers_are_found_by_their_names(tmp_path: Path) -> None:
    """Those of the scenario itself come first; what is not there is named."""
    path = write_case(tmp_path, "paper-own")
    case = read_case(path)
    assert [contender.label for contender in case.contenders] == ["random", "sticky at 0.5", "sticky at 1"]
    assert case.contenders[1].router == "fixed:0.5,0.5"
    assert "PPO, heavy: no `routers/paper-heavy.safetensors`" in case.missing
    ppo = fuzz_base()["ppo.safetensors"]
    (tmp_path / "data/routers/paper-heavy.safetensors").write_bytes(ppo)
    assert "ppo-heavy" in [contender.label for contender in read_case(path).contenders]
    (tmp_path / "data/routers/paper-own-heavy.safetensors").write_bytes(ppo)
    file = read_case(path).contenders[3].file
    assert file is not None
    assert file.name == "paper-own-heavy.safetensors"


def test_another_reward_is_no_other_experiment(tmp_path: Path) -> None:
    """It is what a router was trained with; another way to serve is another one."""
    text = write_case(tmp_path, "paper").read_text()
    for name, change in (("paper-relaxed", {"reward": {"alpha": 9.0}}), ("paper-slow", {"duration_s": 2})):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(yaml.safe_load(text) | change | {"name": name}))
    cases = [read_case(path) for path in scenario_files(tmp_path)]
    assert [case.name for case in experiments(cases)] == ["paper", "paper-slow"]


def test_what_stands_at_the_head_of_a_file() -> None:
    assert head_comment("# One\n#  two\nschema: x\n# three\n") == "One two"
    assert head_comment("schema: x\n") == ""


# ------------------------------------------------------------------------------------------------------ who has won


def row(
    label: str, mean_ms: float, *, accuracy: float = 0.755, p99_ms: float | None = None, std_ms: float = 1.0,
    energy: float = 0.03, unfinished: int = 0, group: str = "tuned", spread: float = 0.0, kept: float = 1.0,
) -> Row:  # fmt: skip
    """A router with three seeds, the second of which is slower by `spread`, the third quicker."""
    results = []
    for seed, factor in enumerate((1.0, 1.0 + spread, 1.0 - spread)):
        p99_s = (3 * mean_ms if p99_ms is None else p99_ms) * factor / 1000
        results.append(
            {
                "schema": "slimsched.result/1",
                "scenario": "paper",
                "router": label,
                "seed": seed,
                "mode": "simulation",
                "engine": "compiled",
                "provenance": "datasheet",
                "end": "drain",
                "images": {"arrived": 1000, "completed": 1000 - unfinished, "in_flight": unfinished, "failed": 0},
                "accuracy": accuracy,
                "expected_accuracy": accuracy,
                "latency_s": {"mean": mean_ms * factor / 1000, "std": std_ms / 1000, "p99": p99_s},
                "energy_j": {"mean": mean_ms, "std": std_ms},
                "energy_per_image_j": {"total": 2 * energy, "dynamic": energy},
                "gpu_var": {"mean": 0.1, "std": 0.1},
                "throughput_img_s": 10.0,
                "goodput_img_s": None,
                "censored": 0,
                "decisions": 9,
                "extrapolated_share": 0.0,
                "unmetered_share": 0.0,
                "moves_per_image": 0.5,
                "kept": {"both": kept, "floor": 1.0, "p99_limit": kept},
                "wall_s": 1.0,
            }
        )
    return Row(label, group, tuple(results), 0.02, 0.002)  # type: ignore[arg-type]


def carried(tide_img_s: float = 106.0, controls: bool = True) -> tuple[dict[str, Any], ...]:
    """What Tide carries, and two others; by three seeds, alike."""
    images_s = {"tide": tide_img_s, "ladder": 100.0, "fixed": 60.0}
    more = {
        "scenario": "main-x",
        "seeds": [0, 1, 2],
        "controls": controls,
        "accuracies": [0.755] * 3,
        "images_j": [0.1] * 3,
    }
    return tuple({"router": name, "images_s": [each * by for by in (1.0, 1.1, 0.9)], **more}
                 for name, each in images_s.items())  # fmt: skip


def found(*rows: Row, load: str = "moving", is_paper: bool = False) -> Found:
    return Found(
        "main-x", "main-x.yaml", "", load, is_paper, (0, 1, 2), 120, 10, 0.755, (0.703, 0.7643), tuple(rows),
        carried=carried(),
    )  # fmt: skip


def tide(mean_ms: float, **changes: Any) -> Row:
    return row("tide", mean_ms, group="learned", **changes)


def test_the_best_rival_is_the_quickest_that_is_as_accurate() -> None:
    """Quicker ones do not count if they are less accurate by more than 0.05 points, or leave images unfinished."""
    rivals = (
        row("quick", 5, accuracy=0.7544, group="not tuned"),
        row("lazy", 5, unfinished=10),
        row("ladder", 10, accuracy=0.7546),
        row("fixed", 11, accuracy=0.76),
    )
    verdict = judge(found(tide(8), *rivals))
    assert verdict.versus is not None
    assert verdict.versus.rival == "ladder"
    assert verdict.versus.mean["mean"] == pytest.approx(-20)
    assert verdict.versus.points == pytest.approx(0.04)
    assert verdict.holds is True


@pytest.mark.parametrize("group", WINDOWED)
def test_who_is_made_for_what_is_promised_is_compared_with_those_who_are_too(group: str) -> None:
    """No rival of Tide as it was tuned; of Tide that is so, too, who keeps most windows, then the more accurate."""
    one = row(for_promise("ladder", group), 7, group=group, accuracy=0.758, kept=0.6)
    others = (one, row(for_promise("lookahead", group), 9, group=group, accuracy=0.757, kept=0.7))
    its = row(for_promise("tide", group), 6, group=group, accuracy=0.7585, kept=0.75)
    rows = (tide(8), row("ladder", 10), its, *others)
    verdict = judge(found(*rows))
    assert verdict.versus is not None
    assert verdict.versus.rival == "ladder"
    versus = compare_windowed(found(*rows), group)
    assert versus is not None
    assert (versus.router, versus.rival) == (f"tide, {group}", f"lookahead, {group}")
    assert versus.kept["mean"] == pytest.approx(5)
    assert versus.points == pytest.approx(0.15)
    as_many = replace(others[1], results=row("", 9, accuracy=0.757, kept=0.6).results)
    equal = compare_windowed(found(its, as_many, one), group)
    assert equal is not None
    assert equal.rival == f"ladder, {group}"
    (cells,) = windowed_table([found(*rows)], group).rows
    kept, accuracies, p99s_ms = (text.split(", ") for text in cells[1:4])
    assert [text for text in kept if text != "-"] == ["60.0", "70.0", "75.0"]
    assert [text for text in accuracies if text != "-"] == ["75.80", "75.70", "75.85"]
    assert [text for text in p99s_ms if text != "-"] == ["21.0", "27.0", "18.0"]
    assert cells[4] == "lookahead"
    assert compare_windowed(found(tide(8), *others), group) is None
    assert compare_windowed(found(its, tide(8)), group) is None
    other = next(each for each in WINDOWED if each != group)
    assert compare_windowed(found(*rows), other) is None


def test_those_with_a_dial_also_run_with_what_is_promised(tmp_path: Path) -> None:
    """As the same files' other rows: what they are told makes another run of it."""
    path = write_case(tmp_path)
    assert not [each for each in read_case(path).contenders if each.group == TOLD], "nothing is promised"
    document = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump({**document, "service": {"floor": 0.8, "p99_limit_s": 0.05}}))
    case = read_case(path)
    labels = {each.label: each for each in case.contenders}
    assert [each.label for each in case.contenders if each.group == TOLD] == [
        "tide, told its goals",
        "ladder, told its goals",
    ]
    for kind in ("tide", "ladder"):
        plain, told = labels[kind].make(case.world), labels[f"{kind}, told its goals"].make(case.world)
        assert getattr(plain, "control", None) is None
        assert getattr(told, "control", None) is not None
        assert runs.router_hash(labels[kind]) != runs.router_hash(labels[f"{kind}, told its goals"])


def test_those_whose_margin_was_picked_for_this_very_file_also_run_with_it(tmp_path: Path) -> None:
    """Of another file of the router it says nothing, and that is told; what it is decides the run."""
    path = write_case(tmp_path)
    document = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump({**document, "service": {"floor": 0.8, "p99_limit_s": 0.05}}))
    tuned = {each.label: each for each in read_case(path).contenders if each.file is not None}
    digests = {kind: file_digest(each.file) for kind, each in tuned.items() if each.file is not None}
    rows = [
        {"scenario": "main-tiny", "router": "ladder", "file": digests["ladder"], "margin": 0.5},
        {"scenario": "main-tiny", "router": "tide", "file": "of before", "margin": 0.5},
        {"scenario": "main-other", "router": "tide", "file": digests["tide"], "margin": 0.5},
    ]
    case = read_case(path, margins=rows)
    (ladder,) = [each for each in case.contenders if each.group == MARGIN]
    assert (ladder.label, ladder.margin) == ("ladder, with a margin", 0.5)
    assert [each for each in case.missing if "tide, with a margin: none was picked for " in each]
    assert not [each for each in (*case.missing, *read_case(path).missing) if "ladder, with" in each], "before any was"
    made = ladder.make(case.world)
    assert isinstance(made, ComposedRouter)
    assert isinstance(made.width, Ladder)
    assert made.width.thresholds == pytest.approx([8 * math.exp(0.5)])
    hashes = {runs.router_hash(replace(ladder, margin=margin)) for margin in (0.25, 0.5)}
    assert len(hashes | {runs.router_hash(tuned["ladder"])}) == 3


def test_who_leaves_more_than_one_percent_unserved_wins_nothing() -> None:
    """Tide's gain over the rival is none then; and where Tide leaves as many, who does so is still no rival."""
    lossy = tide(5, unfinished=11)
    verdict = judge(found(lossy, row("ladder", 10)))
    assert verdict.holds is False
    assert verdict.reasons == ("more images stay unfinished: missed", "Tide leaves more than 1 % unserved: missed")
    rivals = (row("lazy", 4, unfinished=11), row("ladder", 10, unfinished=10))
    versus = judge(found(lossy, *rivals)).versus
    assert versus is not None
    assert versus.rival == "ladder"
    assert covered(found(lossy, *rivals)) == covered(found(rivals[1]))
    assert [cells[0] for cells in routers_table(found(lossy, *rivals)).rows] == ["**tide** !", "lazy !", "ladder"]


@pytest.mark.parametrize(
    ("load", "changes", "img_s", "holds", "reason"),
    [
        ("moving", {}, 106, True, ""),
        ("moving", {}, 104, False, "images/s carried +4.0 ± 0.0 % against ladder, asked for is at least +5 %"),
        ("moving", {"accuracy": 0.7581}, 99, True, ""),
        ("moving", {"accuracy": 0.7579}, 99, False, "or +0.3 points of accuracy: missed"),
        ("moving", {"p99_ms": 30.4}, 106, False, "p99 +1.3 ± 0.0 %, asked for is at most +1 %: missed"),
        ("moving", {"energy": 0.0305}, 106, False, "energy +1.7 ± 0.0 %, asked for is at most +1 %"),
        (
            "moving",
            {"kept": 0.97},
            106,
            False,
            "windows not kept, against ladder, +3.0 ± 0.0 points, asked for is at most +1",
        ),
        ("stationary", {"mean_ms": 10.09, "p99_ms": 30.2}, 99.5, True, ""),
        ("stationary", {"mean_ms": 10.4}, 100, False, "mean latency +4.0 ± 0.0 %, asked for is at most +1 %"),
        ("stationary", {}, 98, False, "images/s carried -2.0 ± 0.0 % against ladder, asked for is at least -1 %"),
        ("faults", {"p99_ms": 22}, 100, True, ""),
        ("faults", {"p99_ms": 23}, 100, False, "p99 -23.3 ± 0.0 %, asked for is at most -25 %: missed"),
    ],
)
def test_what_is_asked_for(load: str, changes: dict[str, Any], img_s: float, holds: bool, reason: str) -> None:
    """More carried, or a lower tail under faults; and nowhere any figure worse by more than 1 %."""
    figures = {"mean_ms": 10, "p99_ms": 30, "energy": 0.03, **changes}
    case = found(tide(**figures), row("ladder", 10, p99_ms=30, energy=0.03), load=load)
    verdict = judge(replace(case, carried=carried(img_s)))
    assert verdict.holds is holds
    assert any(reason in each for each in verdict.reasons) if reason else verdict.reasons == ()


def test_what_an_interval_leaves_open_is_no_win() -> None:
    """Nor a loss. Searches of either that lie far apart make it wide."""
    searches = tuple({"mean_s": value / 1000, "p99_s": 0.03} for value in (10.0, 14.0))
    verdict = judge(found(tide(8), replace(row("ladder", 10), searches=searches)))
    assert verdict.holds is None
    assert verdict.reasons == ("mean latency -20.0 ± 32.0 %, asked for is at most +1 %: open",)
    unmeasured = judge(replace(found(tide(8), row("ladder", 10)), carried=()))
    assert unmeasured.holds is None
    assert unmeasured.reasons == ("images/s carried: not measured, or +0.3 points of accuracy: open",)


def test_a_floor_that_is_missed_is_told() -> None:
    """However much quicker Tide is."""
    verdict = judge(found(tide(5, accuracy=0.7544), row("ladder", 10, accuracy=0.7544)))
    assert verdict.holds is False
    assert verdict.reasons == ("accuracy 75.44 %, the floor is 75.50 %: missed",)


def test_unfinished_images_are_no_way_to_win() -> None:
    verdict = judge(found(tide(5, unfinished=5), row("ladder", 10)))
    assert verdict.holds is False
    assert verdict.reasons == ("more images stay unfinished: missed",)


def test_nobody_comparable_is_no_win() -> None:
    """Neither is a Tide that was not run."""
    alone = judge(found(tide(5), row("ladder", 4, accuracy=0.75)))
    assert (alone.holds, alone.versus) == (None, None)
    assert alone.reasons == (
        "no rival is as accurate: the most accurate that was tuned, ladder, has 75.00 %, Tide 75.50 %",
    )
    assert judge(found(row("ladder", 10))).reasons == ("no Tide was run",)


def test_a_rival_that_was_not_tuned_can_be_lost_to_but_not_beaten() -> None:
    """Else a floor that the tuned ones miss by a little would make a win of nothing."""
    untuned, tuned = row("plain", 10, group="not tuned"), row("ladder", 4, accuracy=0.754)
    won = judge(found(tide(5), untuned, tuned))
    assert won.holds is None
    assert won.reasons == (
        "no tuned rival is as accurate: the most accurate that was tuned, ladder, has 75.40 %, Tide 75.50 %",
    )
    assert "**Open**:\n\n- no tuned rival" in results_page([found(tide(5), untuned, tuned)], NOTES)
    assert judge(found(tide(12), untuned, tuned)).holds is False
    assert judge(found(tide(5), untuned, replace(tuned, results=row("ladder", 6).results))).holds is True


def test_who_is_worse_at_both_is_a_rival_and_itself_is_none() -> None:
    """Equal accuracy would only make that one slower."""
    verdict = judge(found(tide(8), row("ladder", 10, accuracy=0.75), row("tide, not tuned", 5, group="not tuned")))
    assert verdict.versus is not None
    assert (verdict.versus.rival, verdict.holds) == ("ladder", True)
    quick = row("milp", 5, accuracy=0.7544)
    verdict = judge(found(tide(8), quick, row("fixed", 1600, accuracy=0.75)))
    assert verdict.holds is None, "a slow one is no easy win beside one that just misses"
    assert verdict.reasons == ("milp, tuned, is quicker with -0.060 points of accuracy: neither is better",)


def test_less_accuracy_is_no_way_to_win() -> None:
    verdict = judge(found(tide(5), row("ladder", 10, accuracy=0.7556)))
    assert verdict.reasons == ("accuracy -0.060 points, allowed is -0.05: missed",)
    assert judge(found(tide(5), row("ladder", 10, accuracy=0.7555))).holds is True


def test_differences_are_of_the_same_seed() -> None:
    """Seeds that differ by much leave a difference without an interval, if both differ alike."""
    verdict = judge(found(tide(8, spread=0.5), row("ladder", 10, spread=0.5)))
    assert verdict.versus is not None
    assert verdict.versus.mean["mean"] == pytest.approx(-20)
    assert verdict.versus.mean["ci95"] == pytest.approx(0, abs=1e-9)


def test_a_win_still_tells_what_is_worse() -> None:
    """Against any rival, not the quickest alone; what differs for certain by the seeds, whatever searches found."""
    apart = tuple({"mean_s": value / 1000, "p99_s": value / 300} for value in (11.0, 19.0))
    other = replace(row("infaas", 11, p99_ms=15, std_ms=0.5), searches=apart)
    case = found(tide(8, std_ms=1.0), row("ladder", 10), other)
    assert judge(case).holds is True
    assert losses(case, judge(case)) == ["p99 +60.0 % against infaas", "standard deviation +100.0 % against infaas"]
    noisy = (tide(8, p99_ms=32, spread=0.3), row("ladder", 10, p99_ms=30, spread=-0.1))  # p99 higher, not for certain
    stationary = found(*noisy, load="stationary")
    assert losses(stationary, judge(stationary)) == list(judge(stationary).reasons)


def test_that_tuning_made_it_worse_is_told() -> None:
    """But not where what it began with is less accurate."""
    said = "mean latency +25.0 % against tide, not tuned: tuning has not helped"
    for accuracy, told in ((0.755, [said]), (0.754, [])):
        start = row("tide, not tuned", 4, group="not tuned", accuracy=accuracy)
        case = found(tide(5), row("ladder", 10), start)
        assert losses(case, judge(case)) == told


def test_hypervolume_is_of_a_fixed_plane() -> None:
    """One router covers its rectangle from the narrowest tuple and 50 ms; a router beyond covers nothing."""
    share = (0.755 - 0.703) / (0.7643 - 0.703) * (50 - 10) / 50
    assert covered(found(row("ladder", 10))) == pytest.approx(share)
    assert covered(found(row("ladder", 10), row("random", 90))) == pytest.approx(share)
    learned = (tide(5), row("tide, not tuned", 6, group="not tuned"))
    assert covered(found(row("ladder", 10), *learned), without="tide") == pytest.approx(share)


def test_the_replica_is_held_against_the_paper() -> None:
    rows = [
        row("random", 9000, accuracy=0.73, std_ms=7000),
        row("ppo-heavy", 300, accuracy=0.703),
        row("sticky at 0.25", 290, accuracy=0.703),
        row("ppo-relaxed", 2000, accuracy=0.7527, std_ms=7100),
    ]
    checks = {check.what: check for check in replica_checks(found(*rows, is_paper=True))}
    assert [check.holds for check in checks.values()] == [True, False, True, True, False, False, False, False]
    assert checks["ppo-heavy: mean latency against random"].found == "-96.67 %"
    assert checks["ppo-heavy: mean latency against random"].asked == "at most -96.45 %"


# ----------------------------------------------------------------------------------------------------------- the page


ABLATION_ROWS: list[dict[str, Any]] = [
    {"switch": "no tail", "scenario": "main-a", "accuracy": 0.75, "mean_ms": 9.0, "p99_ms": 30.0,
     "change_pct": {"mean": 4.0, "ci95": 1.0}, "seeds": [1, 2]},
    {"switch": "no race", "scenario": "main-a", "problem": "no floor"},
]  # fmt: skip
ABLATION = {"command": "this", "rows": ABLATION_ROWS}


def four_cases() -> list[Found]:
    """Won and lost under load that moves, won under stationary load, and a replica."""
    return [
        replace(found(tide(8), row("ladder", 10)), name="main-a"),
        replace(found(tide(9.9), row("ladder", 10)), name="main-b", carried=carried(102.0)),
        replace(found(tide(10), row("ladder", 10), load="stationary"), name="main-c", missing=("milp: no file",)),
        replace(found(row("random", 9000), row("ppo-heavy", 300), is_paper=True), name="paper", seeds=(0, 1, 5)),
    ]


def test_the_summary_has_a_row_a_scenario() -> None:
    """Tide less its best rival, and whether what is asked for holds."""
    main_cases = four_cases()[:3]
    table = summary_table(main_cases, {each.name: judge(each) for each in main_cases})
    rows = [dict(zip((column.head for column in table.columns), row, strict=True)) for row in table.rows]
    told = [(row["load"], row["best rival"], row["mean latency"], row["holds"]) for row in rows]
    assert told == [
        ("moving", "ladder", "-20.0 ± 0.0 %", "**yes**"),
        ("moving", "ladder", "-1.0 ± 0.0 %", "no"),
        ("stationary", "ladder", "+0.0 ± 0.0 %", "**yes**"),
    ]
    assert [row["images/s carried, against"] for row in rows] == [
        "+6.0 ± 0.0 %, ladder",
        "+2.0 ± 0.0 %, ladder",
        "+6.0 ± 0.0 %, ladder",
    ]
    assert [row["windows kept: Tide, most of others"] for row in rows] == ["100.0 %, 100.0 % ladder"] * 3


def test_an_ablation_that_failed_says_why() -> None:
    assert ablation_table(ABLATION).rows == [
        ["no tail", "main-a", "75.00", "9.00", "-", "30.0", "+4.0 +-1.0", "-", "2", "1"],
        ["no race", "main-a", "failed: no floor", *["-"] * 7],
    ]


def ablated(switch: str, tail: float, mean_ms: float, std_ms: float) -> dict[str, Any]:
    own = {"mean_ms": mean_ms, "std_ms": std_ms, "p99_ms": 9.0}
    by_seed = {"means_s": [mean_ms / 1000] * 2, "stds_s": [std_ms / 1000] * 2}
    rest = {"scenario": "main-a", "accuracy": 0.75, "change_pct": {"mean": 0.0, "ci95": 0.0}, "seeds": [1, 2]}
    return {"switch": switch, "settings": {"tail": tail}, "searches": [own], **own, **by_seed, **rest}


def test_what_a_tail_costs_of_the_gain_and_saves_of_the_variance() -> None:
    """Against the ladder: 4 of 10 ms without a tail; with it nine tenths of that, at 4 % more variance, not 24 %."""
    rows = [ablated(ablation.FIRST, 0.2, 6.4, 1.02), ablated(ablation.NO_TAIL, 0.0, 6.0, 1.1135)]
    assert not ablation.tails(rows)
    found = ablation.tails([*rows, ablated(ablation.RIVAL, 0.2, 10.0, 1.0)])
    assert [each.switch for each in found] == [ablation.NO_TAIL, ablation.FIRST]
    assert [each.kept_pct for each in found] == pytest.approx([100, 90])
    assert [each.variance_pct["mean"] for each in found] == pytest.approx([24, 4.04], rel=1e-2)
    assert [each.holds for each in found] == [False, True]
    notes = replace(NOTES, ablation={"rows": [*rows, ablated(ablation.RIVAL, 0.2, 10.0, 1.0)]})
    text = results_page(four_cases(), notes)
    assert f"| main-a | {ablation.FIRST} | 0.2 | 36.0 | 90 | +4.0 ± 0.0 | **yes** |" in text
    assert "weight of log p99" not in results_page(four_cases(), replace(NOTES, ablation=ABLATION)), "older rows"


def test_fronts_and_decision_times_are_on_the_page_where_they_were_made() -> None:
    point = {"scenario": "main-a", "router": "tide", "p99_ms": 20.0, "mean_ms": 9.0, "std_ms": 3.0, "image_j": 0.2,
             "unserved": 0.0, "accuracy": 0.75, "floor": 0.75,
             "energy_pct": {"mean": -12.0, "ci95": 1.0}}  # fmt: skip
    rows = [{**point, "limit": "the quickest", "limit_ms": None}, {**point, "limit": "1.5 times", "limit_ms": 30.0},
            {**point, "limit": "promised", "limit_ms": 15.0, "floor": 0.76},
            {"scenario": "main-a", "router": "ladder", "limit": "2 times", "limit_ms": 40.0,
             "problem": "no floor"}]  # fmt: skip
    faster = {"scenario": "main-a", "blocks": 4, "may_wait": True, "decision_us": 10, "means_ms": [1.0, 3.0],
              "accuracies": [0.75, 0.75], "floor": 0.75, "unserved": 0.0}  # fmt: skip
    notes = replace(
        NOTES,
        fronts={"command": "python x", "rows": rows},
        front_picture="images/e.svg",
        faster={"command": "python y", "rows": [faster]},
    )
    text = results_page(four_cases(), notes)
    for line in (
        "| main-a | tide | the quickest | 20.0 | - | 0.200 | - | 9.00 | 3.00 | 75.00 |",
        "| main-a | tide | 30.0 (1.5 times) | 20.0 | yes | 0.200 | -12.0 ± 1.0 % | 9.00 | 3.00 | 75.00 |",
        "| main-a | ladder | 40.0 (2 times): no floor | - | - | - | - | - | - | - |",
        "| `main-a` | 4 | yes | - | - | 2.00 (1.00 to 3.00) | - |",
        "![Energy an image against p99 latency](images/e.svg)",
        "- main-a, waiting: 4 blocks: can't be said, for want of rows with two searches or more (left out, for no "
        "figures or marked ones: 1000 us, 100 us, 3 us).",
    ):
        assert line in text.splitlines()
    assert "| tide ! (75.00 % accurate) | 15.0 (promised) | 20.0 | no |" in text
    assert to_svg(energy_chart(rows)).startswith("<svg")
    without = results_page(four_cases(), NOTES)
    assert "## Energy against p99" not in without
    assert "## Is a faster router" not in without


class Later(Scenario):
    """A scenario of a later version, which knows one key more."""

    another_key: int = 3


def test_a_key_that_is_new_makes_no_other_state_of_who_does_not_use_it(made: Made) -> None:
    """Else each new key would make all stored tables stale."""
    now = read_case(made.folder / "main-tiny.yaml").scenario
    told = now.model_dump(by_alias=True, exclude_unset=True)
    assert digest_of(Later.model_validate(told)) == digest_of(now)
    assert digest_of(Later.model_validate({**told, "another_key": 4})) != digest_of(now)


def test_a_table_of_another_state_of_a_scenario_is_not_shown(made: Made, tmp_path: Path) -> None:
    """Nor one that does not tell its state; the page says so, and of which scenario."""
    folder = tmp_path / "again"
    shutil.copytree(made.folder, folder)
    case, page = read_case(folder / "main-tiny.yaml"), folder / "docs/results.md"
    rows: list[dict[str, Any]] = [{**row, "scenario": "main-tiny"} for row in ABLATION_ROWS]
    now = {"main-tiny": digest_of(case.scenario)}
    for table, text in (
        ({"scenarios": now}, None),
        ({"scenarios": {"main-tiny": "0123456789abcdef"}}, "another state"),
        ({}, "another state"),
    ):
        write_json(folder / "docs/ablation.json", {"command": "this", **table, "rows": rows})
        notes = notes_of([case], [made.found], page)
        shown = results_page([made.found], notes)
        assert notes.outdated == ({} if text is None else {"ablation": ["main-tiny"]})
        assert ("Made for another state of main-tiny" in shown) is (text is not None)
        assert ("| no tail | main-tiny |" in shown) is (text is None)
    for name in ("carried", "faster", "fronts", "margins"):
        write_json(folder / f"docs/{name}.json", {"command": "this", "rows": rows})
    shown = results_page([made.found], notes_of([case], [made.found], page))
    assert shown.count("Made for another state of main-tiny") == 5
    assert "energy.svg" not in shown


def test_a_change_beyond_the_charts_edge_is_an_arrow_with_its_figure() -> None:
    """Within it there is none."""
    for mean_ms, told in ((26.0, ["+160 %", "+160 %"]), (19.0, [])):
        figure = gains_chart([judge(found(tide(mean_ms), row("ladder", 10)))])
        (axes,) = figure.axes
        arrows = [line.get_xdata() for line in axes.lines if line.get_marker() == ">"]
        assert [text.get_text() for text in axes.texts] == told
        assert len(arrows) == len(told)
        assert axes.get_xlim()[1] == pytest.approx(100 if told else 95)
        assert axes.get_legend_handles_labels()[1] == ["mean latency", "p99"]


def test_the_page_counts_wins_and_names_losses() -> None:
    """By kind of load, with what is missing, and what people wrote; the same findings give the same page."""
    notes = replace(NOTES, ablation=ABLATION, remarks="## Why\n\nSo.")
    text = results_page(four_cases(), notes)
    lines = text.splitlines()
    for line in (
        "- **Moving: in 1 of 2 scenarios** Tide has what is asked for: at least 5 % more images/s at floor and limit, "
        "or 0.3 points more accuracy, and no figure worse by more than 1 %.",
        "- **Stationary: in 1 of 1 scenarios** Tide has what is asked for: nothing better, and no figure worse by more "
        "than 1 %.",
        "- [main-b](#main-b):",
        "    - images/s carried +2.0 ± 0.0 % against ladder, asked for is at least +5 %, or +0.3 points of accuracy: "
        "missed",
        "- main-c: milp: no file.",
        "## Why",
    ):
        assert line in lines
    assert text == results_page(four_cases(), notes)


# --------------------------------------------------------------------------------------------------------- the routers


def kinds_to_tune(folder: Path, kinds: tuple[str, ...] = KINDS, *, force: bool = False) -> list[str]:
    return [each.tuning.router for each in tunings(folder, kinds=kinds, force=force)]


AROUND = {"devices", "deciding", "load"}  # what a router's file says of the world that it was tuned in


def write_tuned(path: Path, kind: str, told: Mapping[str, Any] | None = None, **changes: Any) -> None:
    """A tuned rule, or a note that there is none, as tuning would leave it now, but for the changes."""
    world = load_world(path)
    flags = {"floor": "0.8", "decisions": "40000000", "searches": "1", "seed": "0"} | changes
    words = " ".join(f"--{name} {value}" for name, value in flags.items() if name not in AROUND)
    command = f"slimsched tune {path.name} --router {kind} {words}"
    place = path.parent / "data/routers" / path.stem
    if kind == "milp":
        note_failure(place / "milp.rule.yaml", f"no setting keeps the floor ({command})")
        return
    making = {"command": command, "devices": list(world.device_names), "deciding": deciding_in(world.cluster)}
    making["load"] = load_of(world.scenario)
    making |= {name: value for name, value in changes.items() if name in making} | dict(told or {})
    rule = TideRule() if kind == "tide" else RULE
    write_rule(place / f"{kind}.rule.yaml", rule.model_copy(update={"made_by": making}))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, None),
        ({"decisions": "15000000"}, "--decisions 15000000, now 40000000"),
        ({"searches": "3"}, "--searches 3, now 1"),
        ({"floor": "0.75"}, "--floor 0.75, now 0.8"),
        ({"start": "x.safetensors"}, "--start x.safetensors, now not given"),
        ({"devices": ["A100"]}, "devices ['A100'], now ["),
        ({"load": {"workload": {"rate_img_s": 7.0}}}, "load {'workload': {'rate_img_s': 7.0}}, now {"),
        ({"deciding": {"decision_s": 7.0}}, "deciding {'decision_s': 7.0}, now {"),
    ],
)
def test_a_stale_file_is_tuned_again_and_why_is_said(
    tmp_path: Path, changes: dict[str, Any], why: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was made by another command, or for another world; of a note that there is none the command alone."""
    path = write_case(tmp_path)
    write_tuned(path, "ladder", **changes)
    write_tuned(path, "milp", **changes)
    found = {each.tuning.router: each.why for each in tunings(tmp_path, kinds=("ladder", "milp"))}
    ladder, milp = why is None, why is None or changes.keys() <= AROUND
    assert list(found) == [kind for kind, is_fresh in (("ladder", ladder), ("milp", milp)) if not is_fresh]
    assert all(why is not None and each.startswith(why) for each in found.values())
    assert main(["tune", "--scenarios", str(tmp_path), "--router", "ladder", "--dry-run"]) == 0
    assert (why or "nothing to tune") in capsys.readouterr().out


def test_a_rule_of_now_is_one_that_would_be_tuned_alike(tmp_path: Path) -> None:
    """None where there is none, or a stale one."""
    path = write_case(tmp_path)
    world = load_world(path)
    file = tmp_path / "data/routers/main-tiny/ladder.rule.yaml"
    assert rule_of_now(path, world, "ladder") == read_rule(file)
    assert rule_of_now(path, world, "fixed") is None
    write_tuned(path, "ladder", floor="0.75")
    assert rule_of_now(path, world, "ladder") is None


def test_what_no_tuning_made_is_left_alone(tmp_path: Path) -> None:
    """A rule by hand, and a user's note; where the scenario lies says nothing."""
    path = write_case(tmp_path)
    place = tmp_path / "data/routers/main-tiny"
    write_rule(place / "ladder.rule.yaml", RULE)
    (place / "milp.failed.txt").write_text("mine")
    write_tuned(path, "infaas")
    moved = tmp_path / "else"
    moved.mkdir()
    for each in [*tmp_path.glob("*.*"), tmp_path / "data"]:
        each.rename(moved / each.name)
    assert kinds_to_tune(moved, ("ladder", "milp", "infaas")) == []
    assert kinds_to_tune(moved, ("ladder",), force=True) == ["ladder"]


def test_what_has_a_file_is_tuned_by_force_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that says why there is none is one, too."""
    path = write_case(tmp_path)
    write_tuned(path, "ladder")
    write_tuned(path, "tide", seed="7")
    rest = tuple(kind for kind in KINDS if kind not in ("ladder", "tide"))
    assert kinds_to_tune(tmp_path) == [*rest, "tide"], "its file is of another seed"
    write_tuned(path, "milp")
    assert kinds_to_tune(tmp_path, rest) == [kind for kind in rest if kind != "milp"]
    assert kinds_to_tune(tmp_path, ("milp", "ladder")) == []
    assert kinds_to_tune(tmp_path, ("milp", "ladder"), force=True) == ["milp", "ladder"]
    first = tunings(tmp_path)[0]
    assert (first.tuning.scenario, first.tuning.out) == (path, tmp_path / "data/routers/main-tiny/slackfit.rule.yaml")
    assert main(["tune", "--scenarios", str(tmp_path), "--router", "ladder"]) == 0
    assert "nothing to tune" in capsys.readouterr().out
    assert main(["tune", "--scenarios", str(tmp_path), "--router", "tied"]) == 2
    assert "did you mean 'tide'" in capsys.readouterr().err


def test_a_floor_that_cant_be_kept_is_a_result_and_any_other_error_the_end(tmp_path: Path) -> None:
    """An older router would hide that the floor can't be kept."""
    write_case(tmp_path)
    tried: list[str] = []
    older = tmp_path / "data/routers/main-tiny/infaas.rule.yaml"
    older.write_text("of another floor")

    def tune(wanted: Tuning, is_alone: bool) -> str:
        assert is_alone
        tried.append(wanted.router)
        if wanted.router == "infaas":
            raise FloorError("no setting keeps the floor")
        if wanted.router == "milp":
            raise WorkError("the disk is full")
        return "tuned"

    with pytest.raises(WorkError, match="the disk is full"):
        tune_all(tunings(tmp_path, kinds=("slackfit", "infaas", "milp", "fixed"), force=True), tune)
    assert tried == ["slackfit", "infaas", "milp"]
    assert not older.exists()


def test_a_dry_run_tells_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_case(tmp_path)
    assert main(["tune", "--scenarios", str(tmp_path), "--router", "fixed", "--dry-run"]) == 0
    file = tmp_path / "data/routers/main-tiny/fixed.rule.yaml"
    assert capsys.readouterr().out == f"[1/1] slimsched tune {path} --router fixed --out {file} (no file yet)\n"


def test_beside_each_other_they_are_as_alone(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Processes of one thread find what one process with threads does."""
    made = []
    for jobs in ("1", "2"):
        folder = tmp_path / jobs
        folder.mkdir()
        write_short_case(folder)
        flags = ["--scenarios", str(folder), "--router", "ladder", "fixed", "--jobs", jobs, "--force"]
        assert main(["tune", *flags]) == 0
        place = folder / "data/routers/main-tiny"
        rules = [read_rule(place / f"{kind}.rule.yaml") for kind in ("ladder", "fixed")]
        made.append([rule.model_copy(update={"made_by": {"race": rule.made_by["race"]}}) for rule in rules])
        assert capfd.readouterr().out.count("main-tiny: ") == 2
    assert made[0] == made[1]


def write_short_case(folder: Path) -> None:
    """Tuned within a second."""
    path = write_case(folder)
    document = yaml.safe_load(path.read_text())
    document["tuning"] = {"floor": 0.8, "decisions": 2000, "episodes": 1, "episode_s": 0.2, "levels": 1}
    path.write_text(yaml.safe_dump({**document, "duration_s": 0.5}))


def test_a_termination_ends_it_as_an_interruption_does(capsys: pytest.CaptureFixture[str]) -> None:
    """Files that are there stay; the same command goes on."""
    before = signal.getsignal(signal.SIGTERM)

    def work() -> int:
        with terminated_as_interrupted():
            os.kill(os.getpid(), signal.SIGTERM)
            signal.pause()
        return 0

    assert exit_code("tune", work) == 130
    assert "goes on from what is finished" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_file_that_tells_less_or_is_broken_is_tuned_again(tmp_path: Path) -> None:
    """Of before files told their load; or cut off."""
    path = write_case(tmp_path)
    write_tuned(path, "ladder")
    file = tmp_path / "data/routers/main-tiny/ladder.rule.yaml"
    whole = file.read_text()
    document = yaml.safe_load(whole)
    for key in ("devices", "deciding", "load"):
        made_by = {name: value for name, value in document["made_by"].items() if name != key}
        file.write_text(yaml.safe_dump({**document, "made_by": made_by}))
        assert [each.why for each in tunings(tmp_path, kinds=("ladder",))] == [f"{key} not told"]
    file.write_text(whole.replace("kind: ladder", "kind: lader"))
    (broken,) = tunings(tmp_path, kinds=("ladder",))
    assert broken.why.startswith("its file can't be read: kind: unknown 'lader'")
