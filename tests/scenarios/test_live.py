"""The live scenarios' page: who wins in either world, whether simulation had said so, and what is missing."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.study.__main__ import main
from benchmarks.study.live import SCHEMA, collect, known_in, make_page, measured_in
from benchmarks.study.live_findings import Measured, Outcome, change_over, outcome, said_so
from benchmarks.study.live_page import live_page, summary_text
from kit.documents import read_json, write_json
from kit.errors import InputError
from policies.registry import TIDE
from policies.rules.specs import LadderRule
from scenarios.files.reading import load_scenario
from scenarios.files.router_names import write_rule
from scenarios.files.spec import ServerDownFault, StragglerFault
from scenarios.learn.settings import FEWEST
from scenarios.metrics.comparison import compare_results
from scenarios.metrics.fidelity import Validation
from scenarios.metrics.statistics import estimate
from scenarios.runs.bound import router_load_of, window_rates_img_s
from scenarios.runs.folder import RunFolder
from scenarios.world.materials import make_world
from tests.scenarios.test_answers import FIXED, LADDER, validation

FILE = "scenarios/live/bursts.yaml"
LIVE = Path(FILE).parent
ROOM = 0.6  # of what the router carries, at most


def folder_of(path: Path, found: Validation) -> RunFolder:
    """A finished run's, with its two tables alone."""
    folder = RunFolder(path)
    with folder.opened(maker="validate"):
        write_json(folder / "comparison.json", compare_results([pair["simulated"] for pair in found["pairs"]]))
        write_json(folder / "validation.json", found)
    return folder


def measured(path: Path, found: Validation, floor: float | None = None) -> Measured:
    """What the page keeps of it, with a floor."""
    kept = measured_in(folder_of(path, found), FILE)
    assert kept is not None
    return {**kept, "floor": floor}


ALIKE = validation(("tide", 0.9, 1.0, 0.95), (LADDER, 1.2, 1.25, 0.95))
NOT_ALIKE = validation(("tide", 0.9, 1.3, 0.95), (LADDER, 1.2, 1.0, 0.95))
TIE = validation(("tide", 0.9, 1.0, 0.95), (LADDER, 1.2, 1.01, 0.95), odd=0.2)


def test_one_winner_in_both_worlds(tmp_path: Path) -> None:
    """Simulation had said so; what it promised stands beside what was measured."""
    found = measured(tmp_path / "run", ALIKE)
    simulated, real = outcome(found, "simulated"), outcome(found, "hardware")
    assert (simulated.winner, real.winner, said_so(simulated, real)) == ("tide", "tide", "yes")
    assert change_over(simulated, LADDER)["mean"] == pytest.approx(-25.0)
    assert change_over(real, LADDER)["mean"] == pytest.approx(-20.0)
    page = live_page({"drawn": found}, [])
    assert "- **Tide wins** on executors in `drawn`.\n" in page
    assert "| `drawn` | real | tide | tide | yes | tuned:ladder | -25.0 ± 0.0 % | -20.0 ± 0.5 % |" in page
    assert "| tide | 95.00 ± 0.00 | - | - | 900.00 ± 0.00 | 1000.00 ± 24.84 | 95.00 ± 0.00 | 95.00 ± 0.00 |" in page
    assert "worse than" not in page
    assert "wrong" not in page


def test_a_loss_comes_first_and_names_what_simulation_said(tmp_path: Path) -> None:
    """Then the error of simulation, and only then what was won."""
    page = live_page(
        {"won": measured(tmp_path / "won", ALIKE), "lost": measured(tmp_path / "lost", NOT_ALIKE)}, ["`day` is missing"]
    )
    lines = [line for line in page.splitlines() if line.startswith("- **")][:3]
    assert lines == [
        "- **Tide loses** on executors in `lost`: a p99 of 1300.00 ms against 1000.00 of tuned:ladder.",
        "- **Simulation was wrong** in `lost`: tide in simulation, tuned:ladder on executors.",
        "- **Tide wins** on executors in `won`.",
    ]
    assert "| `lost` | real | tide | tuned:ladder | no | tuned:ladder | -25.0 ± 0.0 % | +30.0 ± 0.7 % |" in page
    assert "worse than tuned:ladder, by more than chance. P99 latency: 1300.00 against 1000.00 ms. Mean" in page
    assert "- `day` is missing\n" in page


def test_who_is_less_accurate_alone_is_not_called_worse(tmp_path: Path) -> None:
    """One that is more accurate and far slower is no better router."""
    found = validation(("tide", 0.9, 1.0, 0.95), (LADDER, 9.0, 9.0, 0.99))
    page = live_page({"drawn": measured(tmp_path / "run", found)}, [])
    assert "Tide is less accurate than tuned:ladder, by more than chance. Expected accuracy: 95.00" in page
    assert "worse than" not in page


@pytest.mark.parametrize(("counts", "told"), [((0, 1, 3), 1), ((3, 3), 3), ((), 0)])
def test_how_many_searches_made_the_routers_is_told(counts: tuple[int, ...], told: int, tmp_path: Path) -> None:
    """The fewest that one of them had; a fixed tuple, all of which are looked at, has none."""
    folder = folder_of(tmp_path / "run", ALIKE)
    for place, count in enumerate(counts):
        write_rule(tmp_path / "run" / f"router{place}.rule.yaml", LadderRule(made_by={"searches": count}))
    found = measured_in(folder, FILE)
    assert found is not None
    assert found["searches"] == told
    page = live_page({"drawn": found}, [])
    assert ("tuned by one search." in page, "Routers of `drawn` are of one **search** each" in page) == (told == 1,) * 2
    assert ("tuned by 3 searches." in page) == (told == 3)


def test_a_tie_is_no_win(tmp_path: Path) -> None:
    """Simulation may be right of it, or not: nobody can tell; where it named a third, it was wrong."""
    found = measured(tmp_path / "tie", TIE)
    simulated, real = outcome(found, "simulated"), outcome(found, "hardware")
    assert (real.winner, real.first, said_so(simulated, real)) == (None, ("tide", LADDER), "open")
    text = summary_text({"drawn": found}, [])
    assert "**A tie** on executors in `drawn`: tide, tuned:ladder can't be told apart." in text
    assert "tie: tide, tuned:ladder | open |" in text
    assert "wins** on" not in text
    assert "loses" not in text
    third = validation(("tide", 0.9, 1.0, 0.95), (LADDER, 1.2, 1.01, 0.95), (FIXED, 0.5, 2.0, 0.95), odd=0.2)
    of_third = measured(tmp_path / "third", third)
    assert said_so(outcome(of_third, "simulated"), outcome(of_third, "hardware")) == "no"


def test_who_misses_the_floor_wins_nothing(tmp_path: Path) -> None:
    """However quick; a tenth of a point is forgiven. Alone nobody wins."""
    quick = validation(("tide", 0.5, 0.5, 0.9489), (LADDER, 1.2, 1.25, 0.95), (FIXED, 1.3, 1.5, 0.9491))
    found = measured(tmp_path / "run", quick, floor=0.95)
    real = outcome(found, "hardware")
    assert (real.winner, real.below) == (LADDER, ("tide",))
    page = live_page({"drawn": found}, [])
    assert "- **Tide can't win** on executors in `drawn`: it is below the floor of accuracy.\n" in page
    assert "- Below the floor on executors: tide." in page
    assert "| tuned:ladder | - | - |" in page, "no change of a router that can't be judged"
    assert outcome({**found, "floor": 0.96}, "hardware").winner is None
    found["accuracy"]["tide"]["ci95"] = 0.01
    assert outcome(found, "hardware").winner == LADDER, "whose accuracy varies more keeps no floor more easily"


def test_a_winner_that_is_less_accurate_says_by_how_much(tmp_path: Path) -> None:
    """Quicker than its rival at the floor is a win; a comparable accuracy needs no words."""
    narrow = validation(("tide", 0.9, 1.0, 0.90), (LADDER, 1.2, 1.25, 0.95))
    page = live_page({"drawn": measured(tmp_path / "narrow", narrow, floor=0.9)}, [])
    assert "- **Tide wins** on executors in `drawn` (with 5.0 points less accuracy than tuned:ladder).\n" in page
    wide = validation(("tide", 0.9, 1.25, 0.95), (LADDER, 1.2, 1.0, 0.92))
    page = live_page({"drawn": measured(tmp_path / "wide", wide, floor=0.9)}, [])
    assert "1000.00 of tuned:ladder (with 3.0 points less accuracy than tide).\n" in page
    alike = validation(("tide", 0.9, 1.0, 0.9492), (LADDER, 1.2, 1.25, 0.95))
    assert "less accuracy than" not in live_page({"drawn": measured(tmp_path / "alike", alike, floor=0.9)}, [])


def test_simulation_that_could_not_tell_is_not_wrong(tmp_path: Path) -> None:
    """Of a tie with the real winner in it, and where it could judge one alone; without it in the tie it was wrong."""
    found = {
        "in": validation(("tide", 1.0, 1.0, 0.95), (LADDER, 1.0, 1.25, 0.95)),
        "out": validation(("tide", 2.0, 1.0, 0.95), (LADDER, 1.0, 1.25, 0.95), (FIXED, 1.0, 1.25, 0.95)),
    }
    outcomes = {}
    for name, each in found.items():
        kept = measured(tmp_path / name, each)
        outcomes[name] = outcome(kept, "simulated"), outcome(kept, "hardware")
    assert [(len(one.tied), real.winner) for one, real in outcomes.values()] == [(1, "tide"), (1, "tide")]
    assert [said_so(*both) for both in outcomes.values()] == ["open", "no"]
    simulated, real = outcomes["in"]
    alone = Outcome(simulated.able[1:], (), (), ())
    assert (alone.winner, alone.first, said_so(alone, real)) == (None, (LADDER,), "open")


def test_what_intervals_are_over_follows_the_runs(tmp_path: Path) -> None:
    """Repeats of one trace tell the host's noise, seeds also of other arrivals."""
    one = measured(tmp_path / "one", ALIKE)
    seeds: Measured = {**one, "pairs": [{**pair, "seed": pair["repeat"], "repeat": 0} for pair in one["pairs"]]}
    over = "- Intervals (95 %) are over seeds. They tell of other arrivals and of the host's noise together.\n"
    assert over in live_page({"a": seeds, "b": seeds}, [])
    assert "nothing of other arrivals" not in live_page({"a": seeds}, [])
    assert "- Intervals (95 %) are over repeats of one trace. They tell the host's noise, and" in live_page(
        {"a": one}, []
    )
    both = live_page({"a": seeds, "b": one}, [])
    assert "of `a` are over seeds" in both
    assert "of `b` are over repeats of one trace" in both


def test_the_fullest_core_of_all_routers_is_told(tmp_path: Path) -> None:
    """How much room the host has; `-` where nothing tells it."""
    found = validation(("tide", 0.9, 1.0, 0.95), (LADDER, 1.2, 1.25, 0.95))
    assert "-20.0 ± 0.5 % | - |" in live_page({"drawn": measured(tmp_path / "none", found)}, [])
    for row, taken in zip(found["rows"], (0.31, 0.47), strict=True):
        row["cpu"] = {"router": taken, "agent": 0.2, "cores": 0.3}
    page = live_page({"drawn": measured(tmp_path / "run", found)}, [])
    assert "| CPU %" in page
    assert "-20.0 ± 0.5 % | 47 |" in page
    assert "- **CPU**: what the router or an agent (but of a CPU device) took of a core" in page


def test_what_executors_lose_of_the_accuracy_counts(tmp_path: Path) -> None:
    """A trace may be hard for all; who is less accurate on executors than simulated on it has bought its latency so."""
    found = measured(tmp_path / "run", ALIKE, floor=0.95)
    hard: Measured = {**found, "accuracy": dict.fromkeys(("tide", LADDER), estimate([0.96])), "floor": 0.96}
    assert outcome(hard, "hardware").winner == "tide", "both worlds' runs are at 0.95"
    for pair in found["pairs"]:
        if pair["router"] == "tide":
            pair["hardware"]["expected_accuracy"] = 0.948
    assert outcome(found, "hardware").below == ("tide",)
    assert outcome(found, "simulated").winner == "tide"


def test_what_is_missing_is_told_and_what_was_measured_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The page is the same without the run folder; a run that is not finished is no result."""
    folder_of(tmp_path / "runs" / "live-bursts", ALIKE)
    (tmp_path / "runs" / "live-day").mkdir()
    json, page = tmp_path / "live.json", tmp_path / "live.md"
    words = ["live", "--runs", str(tmp_path / "runs"), "--json", str(json), "--page", str(page)]
    assert main(words) == 0
    assert "`live-day` is begun and not finished: `slimsched run" in capsys.readouterr().out
    first = page.read_text()
    assert "- `live-crowd` is not measured yet: `slimsched run scenarios/live/crowd.yaml`\n" in first
    assert str(tmp_path) not in first + json.read_text(), "no machine's paths"
    shutil.rmtree(tmp_path / "runs" / "live-bursts")
    assert main(words) == 0
    assert page.read_text() == first


def test_what_is_no_such_file_is_refused(tmp_path: Path) -> None:
    """So are several loads, of which a page of one could tell nothing true, and a folder without scenarios."""
    write_json(tmp_path / "other.json", {"schema": "slimsched.faster/1"})
    with pytest.raises(InputError, match=f"must be '{SCHEMA}'"):
        known_in(tmp_path / "other.json")
    loads = {**ALIKE, "rows": [{**row, "load": at} for at, row in enumerate(ALIKE["rows"])]}
    with pytest.raises(InputError, match=r"leave validate\.loads out"):
        measured_in(folder_of(tmp_path / "run", loads), FILE)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="name the folder of the live scenarios"):
        make_page([], tmp_path, tmp_path / "live.json", tmp_path / "live.md")


def test_the_page_is_made_of_the_figures_beside_it() -> None:
    """`python -m benchmarks.study live` makes both."""
    files = sorted(LIVE.glob("*.yaml"))
    found, missing = collect(files, Path("no runs here"), known_in(Path("docs/live.json")))
    page = live_page(found, missing)
    assert Path("docs/live.md").read_text(encoding="utf-8") == page
    told = [line for line in Path("README.md").read_text(encoding="utf-8").splitlines() if line.startswith("| `live-")]
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| `live-") and line.count(" | ") == 8]
    assert told == [f"{' | '.join(row[:4])} |" for row in rows], "the first columns of its table are in README"
    assert read_json(Path("docs/live.json")) == {"schema": SCHEMA, "scenarios": found}


@pytest.mark.parametrize("path", sorted(LIVE.glob("*.yaml")), ids=lambda path: path.stem)
def test_routers_are_tuned_and_compared_on_runs_like_the_measured_ones(path: Path) -> None:
    """As long and of the same mix, so that the floor that was kept there is kept here; the rivals are in both."""
    found = load_scenario(path)
    assert (found.validate_.duration_s, found.validate_.warmup_s) == (None, None), "those of the scenario"
    assert (found.duration_s, found.tuning.episode_s, found.training.horizon_s) == (20, 20, 20)
    timed = [fault for fault in found.faults if isinstance(fault, ServerDownFault | StragglerFault)]
    assert all((fault.end_s or found.duration_s) < found.duration_s for fault in timed), "it is over before the run is"
    assert set(found.validate_.seeds) < set(found.compare.seeds), "the comparison tells what they have in the long run"
    assert {"tuned:infaas", "tuned:lookahead", "tuned:ladder", TIDE} <= set(found.validate_.routers)
    assert set(found.validate_.routers) < set(found.compare.routers)


@pytest.mark.parametrize(
    ("name", "block"), [("bursts", 4), ("crowd", 8), ("day", 4), ("dying-server", 4), ("straggler", 4)]
)
def test_the_highest_burst_leaves_the_router_room(name: str, block: int, tmp_path: Path) -> None:
    """In the fullest second of all measured runs at most 0.6 of what the router carries arrives.

    It is so in blocks of `block` images or more, each back in one message. What a tuned hold makes is known only when
    it is tuned: nobody waits for fewer than `FEWEST`, but some may not wait at all.
    """
    world = make_world(load_scenario(LIVE / f"{name}.yaml"), tmp_path)  # of the shipped host, whatever was run here
    assert world.cluster.host is not None, "what the router's process costs was measured"
    assert world.mean_rate_img_s is not None
    peak_img_s = max(float(max(window_rates_img_s(world, seed))) for seed in world.scenario.validate_.seeds)
    groups = world.cluster.router.groups
    shares = {}
    for at, group in enumerate(groups):
        limited = replace(world.cluster, router=replace(world.cluster.router, groups=groups[: at + 1]))
        load = router_load_of(replace(world, cluster=limited))
        assert load is not None
        shares[group] = load.share * peak_img_s / world.mean_rate_img_s
    assert min(group for group, share in shares.items() if share <= ROOM) == block, shares
    assert block >= FEWEST


@pytest.mark.parametrize("path", sorted(LIVE.glob("*-cpu.yaml")), ids=lambda path: path.stem)
def test_cpu_scenarios_ask_what_the_emulated_ones_do(path: Path) -> None:
    """The same routers, as long and as often; with holds, and a floor that the network can keep but not always."""
    found, emulated = load_scenario(path), load_scenario(LIVE / path.name.replace("-cpu", ""))
    assert found.validate_ == emulated.validate_
    assert (found.compare, found.tuning.decisions) == (emulated.compare, emulated.tuning.decisions)
    assert [fault.kind for fault in found.faults] == [fault.kind for fault in emulated.faults]
    assert not any(server.emulated for server in found.cluster.named_servers)
    assert found.router.hold_limit_s > 0
    assert found.tuning.floor is not None
    assert 0.4012 < found.tuning.floor < 0.5665, "of slimresnet-tiny, at its narrowest and at its widest"


def test_a_tie_that_executors_cant_decide_is_no_error_of_simulation(tmp_path: Path) -> None:
    tie = validation(("tide", 0.9, 1.0, 0.95), (LADDER, 1.2, 1.01, 0.95), odd=0.2)
    assert "Simulation was wrong" not in live_page({"drawn": measured(tmp_path / "run", tie)}, [])


def test_a_tie_in_simulation_names_nobody(tmp_path: Path) -> None:
    found = measured(tmp_path / "run", validation(("tide", 1.0, 1.0, 0.95), (LADDER, 1.0, 1.25, 0.95)))
    simulated, real = outcome(found, "simulated"), outcome(found, "hardware")
    assert (simulated.winner, real.winner, said_so(simulated, real)) == (None, "tide", "open")


def test_the_rival_is_the_quickest_other_on_executors_in_both_columns(tmp_path: Path) -> None:
    found = validation(("tide", 0.9, 1.0, 0.95), (LADDER, 1.2, 1.25, 0.95), (FIXED, 1.0, 2.0, 0.95))
    text = summary_text({"drawn": measured(tmp_path / "run", found)}, [])
    assert f"| yes | {LADDER} | -25.0" in " ".join(text.split())
