"""Which runs a validation makes: with a second simulator in the place of executors, so that the truth is known."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from kit.documents import Memo
from kit.errors import InputError, WorkError
from policies.run_records import BackgroundLoad
from scenarios.executors.validation_plan import Campaign, Changes, FinishedRun, PlannedRun, Ran, ValidationPlan
from scenarios.experiment.resolved_scenario import Experiment
from scenarios.experiment.scenario_building import load_experiment
from scenarios.files.scenario_keys import ValidateSection
from scenarios.job import validation_stage
from scenarios.job.validation_stage import keep_runs, validate_experiment
from scenarios.metrics.fidelity import ValidationDocument, ValidationRun, validate_results
from scenarios.metrics.run_result import Mode
from scenarios.runs.folder import RunFolder
from scenarios.runs.run_store import read_runs
from scenarios.runs.simulated_runs import run_simulation
from tests import tiny
from tests.scenarios.files import SEGMENTS, WIDTHS, write_scenario
from tests.scenarios.folders import run_of

ROUTERS = ("random", "jsq")


def opened(folder: Path, slowness: float) -> Experiment:
    """Two small servers, so that an overload is a few hundred images."""
    path = write_scenario(folder, "duration_s: 1", "duration_s: 2")
    for name, speed in (("fast", 0.2), ("slow", 0.1)):
        profile = tiny.profile(name, segments=SEGMENTS, widths=WIDTHS, batches=(1, 4, 16), speed=speed / slowness)
        (folder / f"{name}.yaml").write_text(profile.to_yaml())
    return load_experiment(path)


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    """The servers as their profiles say."""
    return opened(tmp_path_factory.mktemp("experiment"), 1.0)


@pytest.fixture(scope="module")
def slower(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    """The same servers, 10 % slower."""
    return opened(tmp_path_factory.mktemp("slower"), 1.1)


def side(experiment: Experiment, seen: list[PlannedRun], mode: Mode = "simulation") -> Callable[[PlannedRun], Ran]:
    """One experiment, on the quick engine; it notes what it was asked for."""

    def run(planned: PlannedRun) -> Ran:
        seen.append(planned)
        end = "cut" if planned.kind == "saturated" else None
        policy = experiment.router(planned.router)
        detail = not planned.is_probe
        result, record = run_simulation(
            experiment,
            policy,
            planned.router,
            planned.seed,
            scale=planned.scale,
            end=end,
            detail=detail,
            slowdowns=planned.slowdowns,
            engine="compiled",
        )
        result["mode"] = mode
        return result, record

    return run


def plan(experiment: Experiment, routers: tuple[str, ...] = ROUTERS, **given: object) -> ValidationPlan:
    return ValidationPlan.of(experiment, routers, ValidateSection.model_validate(given))


def made(
    experiment: Experiment, executors: Experiment, plan: ValidationPlan
) -> tuple[Campaign, list[FinishedRun], list[PlannedRun], list[PlannedRun]]:
    """Everything that a plan makes, and what each side was asked for (probes apart)."""
    ours: list[PlannedRun] = []
    theirs: list[PlannedRun] = []
    campaign = Campaign(plan, side(experiment, ours), side(executors, theirs, "executors"))
    return campaign, list(campaign.carry_out()), [planned for planned in ours if not planned.is_probe], theirs


def test_without_loads_it_is_a_pair_of_each_router_and_seed(experiment: Experiment) -> None:
    _, found, ours, theirs = made(experiment, experiment, plan(experiment, seeds=(3, 4)))
    assert [(planned.router, planned.seed, planned.scale, planned.load) for planned in theirs] == [
        (router, seed, 1.0, None) for seed in (3, 4) for router in ROUTERS
    ]
    assert ours == theirs
    for each in found:
        assert each.run["simulated"]["latency_s"] == each.run["executors"]["latency_s"]


def test_campaign_records_background_load_with_each_run(experiment: Experiment) -> None:
    loads = [BackgroundLoad(0.4, 0.1), None]
    simulate = side(experiment, [])

    def executors(planned: PlannedRun) -> Ran:
        result, record = simulate(planned)
        return result, replace(record, background_load=loads[planned.repeat])

    found = list(Campaign(plan(experiment, ("random",), repeats=2), simulate, executors).carry_out())
    assert [each.run["background_load"] for each in found] == [{"programs": 0.4, "stolen": 0.1}, None]


def test_slowdowns_are_replayed_by_each_paired_simulation(experiment: Experiment) -> None:
    ours: list[PlannedRun] = []
    slowdowns: list[dict[int, Changes]] = [{0: ((0, 1.5),)}, {0: ((0, 2.0),)}]
    wanted = plan(experiment, ("random",), repeats=2)
    campaign = Campaign(
        wanted, side(experiment, ours), side(experiment, []), (), lambda _: slowdowns[len(campaign.runs)]
    )
    first, second = [each.run for each in campaign.carry_out()]
    assert [planned.slowdowns for planned in ours] == slowdowns
    assert first["simulated"]["latency_s"]["mean"] != second["simulated"]["latency_s"]["mean"]
    again: list[PlannedRun] = []
    resumed = Campaign(wanted, side(experiment, again), side(experiment, []), (first,), lambda _: slowdowns[1])
    assert (len(list(resumed.carry_out())), [planned.slowdowns for planned in again]) == (1, [slowdowns[1]])


def test_loads_are_shares_of_what_the_slowest_router_carries(experiment: Experiment, slower: Experiment) -> None:
    """Saturated first; all routers see one rate a load; repeats are outermost; each twin is simulated once."""
    wanted = plan(experiment, loads=(0.3, 0.6), repeats=2)
    campaign, found, ours, theirs = made(experiment, slower, wanted)
    first, rest = found[:2], found[2:]
    theirs = [planned for planned in theirs if planned.kind == "pair"]
    assert [each.planned.kind for each in first] == ["saturated"] * 2
    reference = min(each.run["executors"]["throughput_img_s"] for each in first)
    assert [(planned.repeat, planned.load, planned.router) for planned in theirs] == [
        (repeat, load, router) for repeat in (0, 1) for load in (0.3, 0.6) for router in ROUTERS
    ]
    for each in rest:
        rate_img_s = (each.run["load"] or 0.0) * reference
        assert each.run["rate_img_s"] == pytest.approx(rate_img_s)
        arrived = each.run["executors"]["images"]["arrived"]
        assert arrived == each.run["simulated"]["images"]["arrived"] == pytest.approx(2.0 * rate_img_s, rel=0.3)
    assert len(ours) == len(ROUTERS) * (1 + 2)
    assert ([each.simulated is None for each in rest], len(found)) == ([False] * 4 + [True] * 4, wanted.hardware_runs)
    assert len(campaign.runs) == len(found)


def test_a_saturated_run_is_saturated_but_not_flooded(experiment: Experiment, slower: Experiment) -> None:
    """the executors' backlog grows, but not by much; executors 10 % slower are found to be so."""
    _, found, _, _ = made(experiment, slower, plan(experiment, ("jsq", "sticky"), loads=(0.3,)))
    for each in found[:2]:
        growth = each.run["backlog_growth"]
        assert growth is not None
        assert 0.1 <= growth["executors"] <= 0.3
    document = validate_results([each.run for each in found], experiment.power_provenance)
    assert all(5 < (row["error_pct"] or 0) < 20 and row["met"] is False for row in document["saturated"])


def test_hardware_that_serves_nothing_is_said_to(experiment: Experiment) -> None:
    theirs: list[PlannedRun] = []
    simulate = side(experiment, theirs, "executors")

    def dead(planned: PlannedRun) -> Ran:
        result, record = simulate(planned)
        lost = tuple(structs.replace(request, status="in_flight") for request in record.requests)
        result["images"]["completed"], result["throughput_img_s"] = 0, 0.0
        return result, replace(record, requests=lost)

    campaign = Campaign(plan(experiment, ("jsq",), loads=(0.3,)), side(experiment, []), dead)
    with pytest.raises(WorkError, match="jsq: executors served nothing in 2 s at"):
        list(campaign.carry_out())
    assert len(theirs) == 1


def test_hardware_far_from_its_profile_is_saturated_all_the_same(experiment: Experiment, tmp_path: Path) -> None:
    """2.5 times as slow or as fast as calibrated: the rate is looked for on executors itself."""
    for slowness in (2.5, 0.4):
        folder = tmp_path / f"{slowness:.1f}"
        folder.mkdir()
        _, found, _, theirs = made(experiment, opened(folder, slowness), plan(experiment, ("jsq",), loads=(0.3,)))
        growth = found[0].run["backlog_growth"]
        assert growth is not None
        assert 0.1 <= growth["executors"] <= 0.35
        assert len([planned for planned in theirs if planned.kind == "saturated"]) > 1


def test_repeated_run_keeps_its_place_in_the_order_of_the_plan(experiment: Experiment) -> None:
    wanted = plan(experiment, loads=(0.6, 0.3), repeats=2, saturate=True, seeds=(4, 3))
    runs = [each.run for each in made(experiment, experiment, wanted)[1]]
    assert wanted.in_order([*runs[5:], *reversed(runs[:5])]) == runs


def test_an_interrupted_campaign_goes_on(experiment: Experiment, slower: Experiment) -> None:
    """Stopped after any run, the rest are made once, at the same rates, and the whole is the same."""
    wanted = plan(experiment, ("jsq",), loads=(0.5,), repeats=2, saturate=True)
    whole, _, _, all_jobs = made(experiment, slower, wanted)
    for stop in (1, 2):
        asked: list[PlannedRun] = []
        second = Campaign(wanted, side(experiment, []), side(slower, asked, "executors"), whole.runs[:stop])
        list(second.carry_out())
        assert asked == all_jobs[len(all_jobs) - len(whole.runs) + stop :]
        for one, other in zip(second.runs, whole.runs, strict=True):
            for result in (one["simulated"], one["executors"], other["simulated"], other["executors"]):
                result["wall_s"] = 0.0
        assert second.runs == whole.runs


def test_hardware_that_serves_nothing_has_no_capacity(experiment: Experiment) -> None:

    def dead(planned: PlannedRun) -> Ran:
        result, record = side(experiment, [])(planned)
        result["throughput_img_s"] = 0.0
        return result, record

    with pytest.raises(WorkError, match="no capacity"):
        list(Campaign(plan(experiment, loads=(0.5,)), side(experiment, []), dead).carry_out())


def test_runs_lie_where_their_load_and_repeat_say(experiment: Experiment, tmp_path: Path) -> None:
    """A pair alone has the short name; loads, repeats and kinds are in the longer ones; only repeat 0 is kept whole."""
    folder = RunFolder(tmp_path)
    for each in made(experiment, experiment, plan(experiment, ("jsq",)))[1]:
        keep_runs(folder, each, repeats=1)
    for each in made(experiment, experiment, plan(experiment, ("jsq",), loads=(0.25,), repeats=2, saturate=True))[1]:
        keep_runs(folder, each, repeats=2)
    runs = {(run.path.parent.name, run.path.name): (run.point, run.repeat) for run in read_runs(folder)}
    assert runs == {
        ("simulation", "jsq-seed0"): ("", 0),
        ("executors", "jsq-seed0"): ("", 0),
        ("simulation", "jsq-saturated-seed0"): ("saturated", 0),
        ("executors", "jsq-saturated-seed0"): ("saturated", 0),
        ("simulation", "jsq-load0.25-seed0"): ("load0.25", 0),
        ("executors", "jsq-load0.25-seed0-rep0"): ("load0.25", 0),
        ("executors", "jsq-load0.25-seed0-rep1"): ("load0.25", 1),
    }
    later = tmp_path / "executors" / "jsq-load0.25-seed0-rep1"
    assert sorted(path.name for path in later.iterdir()) == ["requests.parquet", "result.json"]


def test_a_trace_has_no_rate_to_set(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("time_s\n" + "\n".join(str(i / 100) for i in range(100)))
    old = "workload: {kind: poisson, rate_img_s: 200}"
    experiment = load_experiment(write_scenario(tmp_path, old, "workload: {kind: trace, file: t.csv}"))
    for given in ({"loads": (0.5,)}, {"saturate": True}):
        with pytest.raises(InputError, match=rf"validate\.{next(iter(given))}: a trace has no rate"):
            plan(experiment, **given)
    _, found, _, _ = made(experiment, experiment, plan(experiment))
    assert [each.run["rate_img_s"] for each in found] == [None, None]


def test_probes_are_asked_for_as_probes(experiment: Experiment) -> None:
    ours: list[PlannedRun] = []
    list(Campaign(plan(experiment, ("jsq",), saturate=True), side(experiment, ours), side(experiment, [])).carry_out())
    kept = [planned for planned in ours if not planned.is_probe]
    assert [planned.kind for planned in kept] == ["saturated", "pair"]
    assert len(ours) > len(kept)
    assert all(replace(planned, is_probe=False).kind == "saturated" for planned in ours if planned.is_probe)


def test_an_interrupted_validation_keeps_each_run(
    experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was finished lies in the folder and in the memo; the second try makes the rest alone."""
    wanted, folder = plan(experiment, loads=(0.3,)), RunFolder(tmp_path)
    path = folder.memo("validate", "").path
    asked: list[PlannedRun] = []

    def runs(*_: object, finished: tuple[ValidationRun, ...], **__: object) -> Iterator[FinishedRun]:
        yield from Campaign(wanted, side(experiment, []), side(experiment, asked, "executors"), finished).carry_out()

    def until_third(*_: object, **options: Any) -> Iterator[FinishedRun]:
        for number, each in enumerate(runs(**options)):
            if number == 3:
                raise KeyboardInterrupt
            yield each

    monkeypatch.setattr(validation_stage, "load_measured", lambda *_: None)

    def validate() -> ValidationDocument:
        return validate_experiment(run_of(folder, ROUTERS), experiment, wanted, "")

    monkeypatch.setattr(validation_stage, "validate_runs", until_third)
    with pytest.raises(KeyboardInterrupt):
        validate()
    assert [row["run"]["router"] for row in Memo(path, "").rows] == ["random", "jsq", "random"]
    assert len(read_runs(folder)) == 6
    asked.clear()
    monkeypatch.setattr(validation_stage, "validate_runs", runs)
    document = validate()
    assert [(planned.kind, planned.router) for planned in asked] == [("pair", "jsq")]
    assert ([pair["router"] for pair in document["pairs"]], len(document["saturated"])) == (["random", "jsq"], 2)
    for name, remade in (
        ("executors/random-load0.3-seed0/requests.parquet", [("pair", "random")]),
        ("simulation/jsq-load0.3-seed0/result.json", [("pair", "jsq")]),
        ("executors/jsq-saturated-seed0/requests.parquet", [("saturated", router) for router in ROUTERS]),
    ):
        asked.clear()
        assert (tmp_path / name).is_file()
        (tmp_path / name).write_text("damaged")
        validate()
        made = list(dict.fromkeys((planned.kind, planned.router) for planned in asked))
        assert made == remade + [("pair", router) for router in ROUTERS if len(remade) > 1]
