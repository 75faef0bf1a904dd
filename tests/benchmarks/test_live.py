"""The live scenarios' page: who wins in either world, whether simulation had said so, and what is missing."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from benchmarks.__main__ import main
from benchmarks.study.live import (
    FOCAL,
    SCHEMA,
    Measured,
    known_in,
    make_page,
    measured_in,
    outcome,
    range_rows,
    said_so,
    summary_row,
    worse_rows,
)
from kit.documents import read_json, write_json
from kit.errors import InputError
from policies.router_kinds import COMPASS
from policies.rules.rule_params import LadderRule
from scenarios.experiment.scenario_building import make_experiment
from scenarios.files.router_files import write_rule
from scenarios.files.scenario_keys import ServerDownFault, StragglerFault
from scenarios.files.scenario_reading import load_scenario
from scenarios.learn.tune import FEWEST
from scenarios.metrics.fidelity import ValidationDocument
from scenarios.metrics.router_comparison import Ranking, compare_results
from scenarios.metrics.statistics import Coverage, estimate, least_inside
from scenarios.runs.fluid_bound import router_load_of, window_rates_img_s
from scenarios.runs.folder import RunFolder
from tests.scenarios.test_answers import FIXED, LADDER, validation

FILE = "scenarios/live/bursts.yaml"
LIVE = Path(FILE).parent
ROOM = 0.6  # of what the router carries, at most


def folder_of(path: Path, found: ValidationDocument) -> RunFolder:
    """A finished run's, with its two tables alone."""
    folder = RunFolder(path)
    with folder.opened():
        write_json(folder / "comparison.json", compare_results([pair["simulated"] for pair in found["pairs"]]))
        write_json(folder / "validation.json", found)
    return folder


def measured(path: Path, *routers: Any, floor: float | None = None, odd: float = 0.0) -> Measured:
    """What the page keeps of a validation, with a floor."""
    drawn = validation(*routers, odd=odd) if odd else validation(*routers)
    kept = measured_in(folder_of(path, drawn), FILE)
    assert kept is not None
    return {**kept, "floor": floor}


def both(found: Measured) -> tuple[Ranking, Ranking]:
    return outcome(found, "simulated"), outcome(found, "executors")


T, L, F = FOCAL, LADDER, FIXED


def test_values_inside_their_ranges_are_counted(tmp_path: Path) -> None:
    found = measured(tmp_path / "run", (T, 0.9, 1.0, 0.95), (L, 1.2, 1.25, 0.95), (F, 1.0, 1.0, 0.95))
    ours, rival, last = found["rows"]
    ours["coverage"] = {"latency_mean": coverage_of(4), "latency_p99": coverage_of(5)}
    ours["error_pct"] = {"latency_mean": -10.0, "latency_p99": 2.0}
    ours["stages_s"] = {"simulated": {"run": 0.1, "queue": 0.2}, "executors": {"run": 0.11, "queue": 0.23}}
    rival["coverage"] = dict.fromkeys(ours["coverage"])
    last["coverage"], last["served"]["executors"]["unserved"] = ours["coverage"], 0.02
    (row,) = range_rows("drawn", found)
    assert (row["router"], row["latency_mean_inside"], row["latency_p99_inside"], row["latency_p99_of"]) == (T, 4, 5, 5)
    assert (row["latency_mean_bias_pct"], row["stage"]) == (-10.0, "queue")
    assert row["stage_longer_ms"] == pytest.approx(30)


def coverage_of(inside: int) -> Coverage:
    return Coverage(inside=inside, of=5, least=least_inside(5))


def test_a_rule_is_the_baseline_of_both_compasses(tmp_path: Path) -> None:
    both_and_one = (T, 0.9, 1.0, 0.95), (COMPASS, 0.8, 0.9, 0.95), (L, 1.2, 1.25, 0.95)
    row = summary_row("drawn", measured(tmp_path / "run", *both_and_one))
    assert row["best_baseline"] == L
    assert row["p99_measured_pct"] == pytest.approx(-20.0)
    assert row["shipped_p99_measured_pct"] == pytest.approx(-28.0)
    assert row["wins_on_executors"] == COMPASS
    worse = worse_rows("drawn", measured(tmp_path / "worse", (T, 1.2, 1.3, 0.95), (COMPASS, 0.8, 0.9, 0.95)))
    assert worse == []


@pytest.mark.parametrize(
    ("routers", "simulated", "real", "said"),
    [
        ([(T, 0.9, 1.0, 0.95), (L, 1.2, 1.25, 0.95)], T, T, "yes"),
        ([(T, 0.9, 1.3, 0.95), (L, 1.2, 1.0, 0.95)], T, L, "no"),
        ([(T, 1.0, 1.0, 0.95), (L, 1.0, 1.25, 0.95)], f"tie: {T}, {L}", T, "open"),
        ([(T, 2.0, 1.0, 0.95), (L, 1.0, 1.25, 0.95), (F, 1.0, 1.25, 0.95)], f"tie: {L}, {F}", T, "no"),
    ],
)
def test_summary_row_names_the_winner_and_whether_simulation_predicted_it(
    tmp_path: Path, routers: list[Any], simulated: str, real: str, said: str
) -> None:
    row = summary_row("drawn", measured(tmp_path / "run", *routers))
    assert (row["wins_in_simulation"], row["wins_on_executors"], row["said_so"]) == (simulated, real, said)
    if said == "yes":
        assert row["p99_predicted_pct"] == pytest.approx(-25.0)
        assert row["p99_measured_pct"] == pytest.approx(-20.0)


def test_a_tie_is_no_win_and_where_simulation_named_a_third_it_was_wrong(tmp_path: Path) -> None:
    tie = [(T, 0.9, 1.0, 0.95), (L, 1.2, 1.01, 0.95)]
    simulated, real = both(measured(tmp_path / "tie", *tie, odd=0.2))
    assert (real.winner, real.first, said_so(simulated, real)) == (None, (T, L), "open")
    assert said_so(*both(measured(tmp_path / "third", *tie, (F, 0.5, 2.0, 0.95), odd=0.2))) == "no"
    alone = replace(simulated, able=simulated.able[1:])
    assert (alone.winner, alone.first, said_so(alone, real)) == (None, (L,), "open")


def test_router_below_the_accuracy_floor_does_not_win(tmp_path: Path) -> None:
    """A shortfall of a tenth of a point is allowed; accuracy lost on executors counts, a hard trace does not."""
    quick = [(T, 0.5, 0.5, 0.9489), (L, 1.2, 1.25, 0.95), (F, 1.3, 1.5, 0.9491)]
    found = measured(tmp_path / "run", *quick, floor=0.95)
    real = outcome(found, "executors")
    assert ([real.first], [one.router for one in real.missed]) == ([(L,)], [T])
    assert outcome({**found, "floor": 0.96}, "executors").winner is None
    found = measured(tmp_path / "alike", (T, 0.9, 1.0, 0.95), (L, 1.2, 1.25, 0.95), floor=0.95)
    hard = {**found, "accuracy": dict.fromkeys((T, L), estimate([0.96])), "floor": 0.96}
    assert outcome(hard, "executors").first == (T,), "simulation and executors' runs are at 0.95"
    for pair in found["pairs"]:
        if pair["router"] == T:
            pair["executors"]["expected_accuracy"] = 0.948
    assert [one.router for one in outcome(found, "executors").missed] == [T]
    assert outcome(found, "simulated").first == (T,)


def test_page_lists_measures_on_which_compass_is_worse_and_its_accuracy_deficit(tmp_path: Path) -> None:
    lost = measured(tmp_path / "lost", (T, 0.9, 1.3, 0.95), (L, 1.2, 1.0, 0.92), floor=0.9)
    worse = pd.DataFrame(worse_rows("lost", lost))
    assert worse.loc[worse["measure"] == "p99 latency", ["compass", "baselines"]].values.tolist() == [
        pytest.approx([1300, 1000])
    ]
    assert summary_row("lost", lost)["winner_less_accurate_points"] == pytest.approx(3.0)
    alike = measured(tmp_path / "alike", (T, 0.9, 1.0, 0.9492), (L, 1.2, 1.25, 0.95), floor=0.9)
    assert summary_row("alike", alike)["winner_less_accurate_points"] is None


@pytest.mark.parametrize(("counts", "told"), [((0, 1, 3), 1), ((3, 3), 3), ((), 0)])
def test_the_fewest_searches_of_a_router_are_told(counts: tuple[int, ...], told: int, tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "run", validation((T, 0.9, 1.0, 0.95), (L, 1.2, 1.25, 0.95)))
    for place, count in enumerate(counts):
        write_rule(tmp_path / "run" / f"router{place}.rule.yaml", LadderRule(made_by={"searches": count}))
    found = measured_in(folder, FILE)
    assert found is not None
    assert found["searches"] == told


def test_page_without_run_folders_keeps_measured_rows_and_lists_missing_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The page is the same without the run folder; a run that is not finished is not a result."""
    folder_of(tmp_path / "runs" / "live-bursts", validation((T, 0.9, 1.0, 0.95), (L, 1.2, 1.25, 0.95)))
    (tmp_path / "runs" / "live-day").mkdir()
    words = ["live", "--runs", str(tmp_path / "runs"), "--docs", str(tmp_path / "docs")]
    assert main(words) == 0
    assert "`live-day` is begun and not finished: `slimsched run" in capsys.readouterr().out
    page = tmp_path / "docs/live.md"
    first = page.read_text()
    assert "| `live-bursts` |" in first
    assert "- `live-crowd` is not measured yet: `slimsched run scenarios/live/crowd.yaml`\n" in first
    assert str(tmp_path) not in first + (tmp_path / "docs/data/live.json").read_text(), "no machine's paths"
    shutil.rmtree(tmp_path / "runs" / "live-bursts")
    assert main(words) == 0
    assert page.read_text() == first


def test_results_file_of_another_schema_is_refused(tmp_path: Path) -> None:
    """A run of several loads and a folder without scenarios are refused as well."""
    write_json(tmp_path / "other.json", {"schema": "slimsched.faster/1"})
    with pytest.raises(InputError, match=f"must be '{SCHEMA}'"):
        known_in(tmp_path / "other.json")
    alike = validation((T, 0.9, 1.0, 0.95), (L, 1.2, 1.25, 0.95))
    loads: Any = {**alike, "rows": [{**row, "load": at} for at, row in enumerate(alike["rows"])]}
    with pytest.raises(InputError, match=r"leave validate\.loads out"):
        measured_in(folder_of(tmp_path / "run", loads), FILE)
    with pytest.raises(InputError, match="name the folder of the live scenarios"):
        make_page([], tmp_path, tmp_path)


def test_the_page_is_made_of_the_figures_beside_it(tmp_path: Path) -> None:
    """`python -m benchmarks live` makes both."""
    (tmp_path / "data").mkdir()
    shutil.copy("docs/data/live.json", tmp_path / "data")
    make_page(sorted(LIVE.glob("*.yaml")), Path("no runs here"), tmp_path)
    page = (tmp_path / "live.md").read_text(encoding="utf-8")
    assert Path("docs/live.md").read_text(encoding="utf-8") == page
    kept, made = (
        {path.name: path.read_text() for path in folder.glob("live*")}
        for folder in (Path("docs/data"), tmp_path / "data")
    )
    assert kept == made
    charts = [(folder / "images" / "live.svg").read_text() for folder in (Path("docs"), tmp_path)]
    assert charts[0].count("<use") == charts[1].count("<use") > 150
    assert read_json(Path("docs/data/live.json"))["schema"] == SCHEMA


@pytest.mark.parametrize("path", sorted(LIVE.glob("*.yaml")), ids=lambda path: path.stem)
def test_routers_are_tuned_and_compared_on_runs_like_the_measured_ones(path: Path) -> None:
    """As long and of the same mix, so that the floor that was kept there is kept here; the baselines are in both."""
    found = load_scenario(path)
    assert (found.validate_.duration_s, found.validate_.warmup_s) == (None, None), "those of the scenario"
    assert (found.duration_s, found.tuning.episode_s, found.training.horizon_s) == (20, 20, 20)
    timed = [fault for fault in found.faults if isinstance(fault, ServerDownFault | StragglerFault)]
    assert all((fault.end_s or found.duration_s) < found.duration_s for fault in timed), "it is over before the run is"
    assert set(found.validate_.seeds) < set(found.compare.seeds), "the comparison tells what they have in the long run"
    assert {"tuned:infaas", "tuned:lookahead", "tuned:ladder", FOCAL} <= set(found.validate_.routers)
    assert set(found.validate_.routers) < set(found.compare.routers)


@pytest.mark.parametrize(
    ("name", "micro_batch"),
    [("bursts", 4), ("crowd", 8), ("day", 4), ("dying-server", 4), ("memory", 4), ("straggler", 4)],
)
def test_the_highest_burst_leaves_the_router_room(name: str, micro_batch: int, tmp_path: Path) -> None:
    """In the fullest second of all measured runs at most 0.6 of what a router without paths sustains arrives.

    It is so in micro-batches of `micro_batch` images or more, each back in one message. What a tuned hold makes is
    known only when
    it is tuned: nobody waits for fewer than `FEWEST`, but some may not wait at all.
    """
    # of the shipped host, whatever was run here
    experiment = make_experiment(load_scenario(LIVE / f"{name}.yaml"), tmp_path)
    assert experiment.cluster.host is not None, "what the router's process costs was measured"
    assert experiment.mean_rate_img_s is not None
    peak_img_s = max(float(max(window_rates_img_s(experiment, seed))) for seed in experiment.scenario.validate_.seeds)
    micro_batch_sizes = experiment.cluster.router.micro_batch_sizes
    shares = {}
    for at, micro_batch_size in enumerate(micro_batch_sizes):
        limited = replace(
            experiment.cluster, router=replace(experiment.cluster.router, micro_batch_sizes=micro_batch_sizes[: at + 1])
        )
        load = router_load_of(replace(experiment, cluster=limited))
        assert load is not None
        shares[micro_batch_size] = load.share * peak_img_s / experiment.mean_rate_img_s
    assert min(micro_batch_size for micro_batch_size, share in shares.items() if share <= ROOM) == micro_batch, shares
    assert micro_batch >= FEWEST


@pytest.mark.parametrize("path", sorted(LIVE.glob("*-cpu.yaml")), ids=lambda path: path.stem)
def test_cpu_scenarios_ask_what_the_emulated_ones_do(path: Path) -> None:
    """The same routers, as long and as often; with holds, and a floor that the network can keep but not always."""
    found, emulated = load_scenario(path), load_scenario(LIVE / path.name.replace("-cpu", ""))
    assert found.validate_ == emulated.validate_
    assert (found.compare, found.tuning.decisions) == (emulated.compare, emulated.tuning.decisions)
    assert [fault.kind for fault in found.faults] == [fault.kind for fault in emulated.faults]
    assert not any(server.emulated for server in found.cluster.named_servers)
    assert found.router.max_batching_delay_s > 0
    assert found.tuning.floor is not None
    assert 0.4012 < found.tuning.floor < 0.5665, "of slimresnet-tiny, at its narrowest and at its widest"
