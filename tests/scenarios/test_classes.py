"""Classes of requests: what follows from their definition, in simulation, in the bound and in the figures."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import slimsched
from hw.clock import RunClock
from hw.router.run_requests import HardwareRun, PlannedTraffic
from kit.errors import InputError
from kit.random_streams import stream
from policies.router_core import RouterCore
from policies.router_names import make_router
from policies.rules.compass import CompassRule
from policies.rules.rule_params import FixedRule
from policies.vocabulary import RequestArrived, RunBatch, SendMicroBatch
from scenarios.cluster_gym import make_env
from scenarios.experiment.resolved_scenario import Experiment
from scenarios.experiment.scenario_building import default_folder, make_experiment
from scenarios.files.scenario_reading import load_scenario
from scenarios.learn import tune
from scenarios.learn.evaluator import lacking
from scenarios.learn.ppo_training import require_one_class
from scenarios.metrics.router_comparison import Promise, RankedRouter
from scenarios.metrics.run_result import Result
from scenarios.metrics.slo import ClassPromise, Judged, Slo, SloDocument, attainment_of
from scenarios.runs import fluid_bound
from scenarios.runs.capacity_search import RateReading, Search, read
from scenarios.runs.fluid_bound import FluidModel
from scenarios.runs.simulated_runs import simulate_metrics
from sim.compiled.compiled_simulation import CompiledSimulation
from sim.simulated_cluster import RunSpec, Simulation
from slimsched.cli import main
from tests import tiny
from tests.parity.compare import difference
from tests.parity.scenarios import Scenario

pytestmark = pytest.mark.usefixtures("undrawn")

SHIPPED = Path("scenarios/classes.yaml")


def experiment(**changes: Any) -> Experiment:
    return of(SHIPPED, changes)


def of(path: Path, changes: dict[str, Any]) -> Experiment:
    scenario = load_scenario(path, changes)
    return make_experiment(scenario, default_folder(scenario))


def classes(*floors: float | None, **more: Any) -> list[dict[str, Any]]:
    return [{"name": f"c{n}", "share": 1 / len(floors), "floor": floor, **more} for n, floor in enumerate(floors)]


@lru_cache
def served(seed: int = 2) -> Result:
    given = experiment(duration_s=120.0, warmup_s=10.0)
    return simulate_metrics(given, given.router("compass"), "compass", seed, engine="compiled")


def test_in_overload_who_is_served_gets_what_was_promised() -> None:
    """At 1.3 times the bound both classes keep floor and limit, and the one that is promised less is refused first."""
    load = {"workload": {"kind": "poisson", "rate_img_s": 10_600}, "duration_s": 80.0, "warmup_s": 20.0}

    def run(**changes: Any) -> Result:
        given = experiment(**load, **changes)
        return simulate_metrics(given, given.router("compass"), "compass", 2, engine="compiled")

    found = run()
    for name, floor in (("gold", 0.76), ("bronze", 0.74)):
        its = found["classes"][name]
        assert its["expected_accuracy"] is not None
        assert its["expected_accuracy"] > floor - 0.001
        assert its["latency_s"]["p99"] is not None
        assert its["latency_s"]["p99"] < 0.05
    assert found["failures"].keys() == {"refused"}
    served = {name: of["shares"]["completed"] for name, of in found["classes"].items()}
    assert (served["gold"] or 0.0) > 0.8 > 0.3 > (served["bronze"] or 0.0) > 0.1
    assert (found["goodput_img_s"] or 0.0) > 5000
    all_in = run(**{"slo.refuse": False})["classes"]["gold"]
    assert (all_in["expected_accuracy"] or 1.0) < 0.76 - 0.005
    assert (all_in["latency_s"]["p99"] or 0.0) > 1.1 * (found["classes"]["gold"]["latency_s"]["p99"] or 0.0)


def test_classes_add_up_to_the_whole() -> None:
    found = served()
    parts = found["classes"].values()
    for key in found["images"]:
        assert sum(part["images"][key] for part in parts) == found["images"][key]  # type: ignore[literal-required]
    assert sum(part["throughput_img_s"] for part in parts) == pytest.approx(found["throughput_img_s"])
    of_both = [part["throughput_img_s"] * (part["expected_accuracy"] or 0.0) for part in parts]
    assert sum(of_both) / found["throughput_img_s"] == pytest.approx(found["expected_accuracy"], abs=1e-4)
    assert max(part["latency_s"]["max"] or 0.0 for part in parts) == found["latency_s"]["max"]


def test_each_class_is_about_as_accurate_as_it_is_promised() -> None:
    gold, bronze = served()["classes"].values()
    assert gold["expected_accuracy"] == pytest.approx(0.76, abs=0.003)
    assert bronze["expected_accuracy"] == pytest.approx(0.74, abs=0.003)


def test_shares_are_drawn_beside_the_arrivals() -> None:
    given, plain = experiment(), experiment(classes=[])
    run, other = given.run_spec(5), plain.run_spec(5)
    assert np.array_equal(run.arrivals_ns, other.arrivals_ns)
    assert other.classes is None
    assert run.classes is not None
    unequal = experiment(
        classes=[{"name": "a", "share": 0.1}, {"name": "b", "share": 0.3}, {"name": "c", "share": 0.6}]
    )
    drawn = unequal.class_of(5, 100_000)
    assert drawn is not None
    assert np.bincount(drawn) / 1e5 == pytest.approx([0.1, 0.3, 0.6], abs=0.01)


def simulated(config: dict[str, Any], run: dict[str, Any], router: str = "jsq") -> tuple[Any, Any]:
    """A busy run on both engines."""
    profiles = [tiny.profile(name, speed=speed) for name, speed in (("a", 1.0), ("b", 0.5))]
    spec = tiny.cluster(profiles, router=config)
    its = tiny.run(spec, tiny.poisson_s(400, 0.5), 0.5, **run)
    records = []
    for engine in (Simulation, CompiledSimulation):
        policy = make_router(router, Scenario("alike", spec, its).context())
        records.append(engine(spec, its).run(policy, np.random.default_rng(3)))
    assert difference(records[0], records[1], "record") is None
    return records[0], its


def without_heads(record: Any) -> Any:
    return replace(
        record, micro_batches=tuple((each.decision, each.server, each.ended_ns) for each in record.micro_batches)
    )


def test_two_classes_alike_are_one_where_a_block_is_one_image() -> None:
    """Which line a request waits in is all that they change; the oldest goes first, whosoever it is."""
    names = {"micro_batch_sizes": (1,), "classes": ("gold", "bronze")}
    mixed = np.random.default_rng(1).integers(0, 2, len(tiny.poisson_s(400, 0.5)))
    for router in ("jsq", "ladder:2,4", "shortest-delay"):
        one, _ = simulated({"micro_batch_sizes": (1,)}, {}, router)
        two, _ = simulated(names, {"classes": mixed, "deadlines_ns": (None, None)}, router)
        assert without_heads(one) == without_heads(two)
        assert {each.head.service_class for each in two.micro_batches} == {0, 1}


def test_a_single_class_is_none() -> None:
    plain = of(Path("scenarios/main-mmpp-10g.yaml"), {"duration_s": 20.0})
    single = experiment(classes=[{"name": "all", "share": 1.0, "floor": 0.753}], duration_s=20.0)
    records = []
    for each in (plain, single):
        run = each.run_spec(3, detail=False)
        policy = CompassRule().make(each.context)  # by its name it starts at a level of the scenario's
        records.append(CompiledSimulation(each.cluster, run).run(policy, stream(3, "router:compass")))
    assert records[0] == records[1]


def test_blocks_are_of_one_class_and_batches_may_mix() -> None:
    """A batch runs at one width, so nobody in it is less accurate than its micro-batch was to be."""
    mixed = np.arange(len(tiny.poisson_s(400, 0.5))) % 2
    names, run = {"classes": ("gold", "bronze")}, {"classes": mixed, "deadlines_ns": (None, None)}
    spec = tiny.cluster([tiny.profile()], router=names)
    its: RunSpec = tiny.run(spec, tiny.poisson_s(400, 0.5), 0.5, keep_log=True, **run)
    simulation = Simulation(spec, its)
    record = simulation.run(make_router("jsq", Scenario("x", spec, its).context()), np.random.default_rng(3))
    assert isinstance(simulation.router, RouterCore)
    micro_batches = [
        command.micro_batch for step in record.log for command in step.commands if isinstance(command, SendMicroBatch)
    ]
    assert {len({int(mixed[request]) for request in micro_batch.requests}) for micro_batch in micro_batches} == {1}
    batches = [
        command.requests
        for step in record.log
        for command in step.commands
        if isinstance(command, RunBatch) and len(command.requests) > 1
    ]
    assert any(len({int(mixed[request]) for request in requests}) == 2 for requests in batches)


def test_the_bound_of_classes_alike_is_that_of_one() -> None:
    alike = experiment(classes=classes(0.75, 0.75, 0.75))
    one, three = FluidModel(alike), FluidModel(alike, classes=alike.scenario.classes)
    assert three.capacity_img_s() == pytest.approx(one.capacity_img_s(0.75), rel=1e-6)
    assert three.latency_s(0.75, 1000.0) == pytest.approx(one.latency_s(0.75, 1000.0), rel=1e-6)
    assert three.energy_j(0.75, 1000.0) == pytest.approx(one.energy_j(0.75, 1000.0), rel=1e-6)


def test_a_programme_is_as_large_as_its_classes_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    given = experiment(classes=classes(0.75, 0.75, 0.75))
    monkeypatch.setattr(fluid_bound, "MAX_UNKNOWNS", fluid_bound.unknowns_of(given, len(given.cluster.router.widths)))
    FluidModel(given)
    with pytest.raises(InputError, match="program of"):
        FluidModel(given, classes=given.scenario.classes)


def test_classes_carry_what_their_shares_cost() -> None:
    """Where one device is full, times add up: the rate is the harmonic mean, by share, of those of each class alone."""
    given = experiment()
    model = FluidModel(given, classes=given.scenario.classes)
    strict, loose = (FluidModel(given).capacity_img_s(floor) for floor in (0.76, 0.74))
    assert model.capacity_img_s() == pytest.approx(1 / (0.5 / strict + 0.5 / loose), rel=0.005)
    assert model.capacity_img_s() > 1.4 * strict


def test_unequal_shares_are_those_of_the_programme() -> None:
    given = experiment(classes=[{"name": "a", "share": 0.2, "floor": 0.76}, {"name": "b", "share": 0.8, "floor": 0.74}])
    strict, loose = (FluidModel(given).capacity_img_s(floor) for floor in (0.76, 0.74))
    found = FluidModel(given, classes=given.scenario.classes).capacity_img_s()
    assert found == pytest.approx(1 / (0.2 / strict + 0.8 / loose), rel=0.005)


def test_no_router_is_below_its_bound(tmp_path: Path) -> None:
    """Not even one that keeps no class's floor: it is held to the mean accuracy that it has itself."""
    rule = {"schema": "slimsched.rule/1", "kind": "fixed", "tuple": [0.25] * 4, "placement": "jsq"}
    (tmp_path / "narrow.rule.yaml").write_text(json.dumps(rule))
    changes = {"duration_s": "6", "warmup_s": "1", "workload": {"kind": "poisson", "rate_img_s": 1500}}
    found = slimsched.compare(SHIPPED, [tmp_path / "narrow.rule.yaml"], [1, 2], bound=True, changes=changes)
    gaps = [point["gap_pct"] for cost in found.document["pareto"]["fronts"].values() for point in cost]
    assert len(gaps) >= 2
    assert min(gap for gap in gaps if gap is not None) >= 0


def test_a_rate_is_read_class_by_class() -> None:
    given = experiment()
    prior, wide, narrow = given.context.prior, (1.0,) * 4, (0.25,) * 4
    policy = FixedRule(tuples={"gold": wide, "bronze": narrow}).make(given.context)
    found = read(given, policy, 0.2, 1, Search("fixed", (1,), 3.0, engine="compiled", slo=Slo.of(given.scenario)))
    assert [each.accuracy for each in found.classes] == pytest.approx([prior(wide), prior(narrow)], abs=1e-6)
    assert found.accuracy == pytest.approx((prior(wide) + prior(narrow)) / 2, abs=0.02)


def test_deadlines_and_limits_are_of_each_class() -> None:
    promised = [
        {"name": "calm", "share": 0.5, "deadline_s": 60.0, "p99_limit_s": 60.0},
        {"name": "rash", "share": 0.5, "deadline_s": 1e-6, "p99_limit_s": 1e-6},
    ]
    given = experiment(classes=promised, duration_s=5.0, warmup_s=1.0, **{"slo.refuse": False})
    found = simulate_metrics(given, given.router("jsq"), "jsq", 1, engine="compiled")
    calm, rash = found["classes"].values()
    assert (calm["in_time"], rash["in_time"]) == (1.0, 0.0)
    assert [each["slo_attainment"]["p99_limit"] for each in (calm, rash, found)] == [1.0, 0.0, 0.0]


def test_a_class_that_nobody_was_of_lacks_nothing() -> None:
    params: Any = SimpleNamespace(class_floors=(0.7, 0.76))
    score: Any = SimpleNamespace(class_images=(10, 0), class_accuracies=(0.69, 0.0))
    assert lacking([score], params) == pytest.approx(1.0)


def test_fixed_tuples_of_classes_are_cheap_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, c = ((width,) * 4 for width in (1.0, 0.75, 0.25))
    able = {0.76: [a, b], 0.74: [a, b, c]}
    monkeypatch.setattr(tune, "able_tuples", lambda _, floor: able[floor])
    monkeypatch.setattr(tune, "best_settings", lambda *_: {})
    params = SimpleNamespace(class_floors=(0.76, 0.74), floor=None)
    evaluator: Any = SimpleNamespace(context=experiment().context, params=params)
    specs: list[Any] = [each.spec for each in tune._tuples(evaluator)]
    assert [spec.tuples for spec in specs] == [{"gold": a, "bronze": b}, {"gold": b, "bronze": c}]


def test_a_rate_is_carried_where_every_class_is_kept_what_it_is_promised() -> None:
    slo = Slo(classes=(Slo(0.76, 0.05), Slo(None, 0.1)))
    good, slow, poor = RateReading(True, 0.04, 0.77), RateReading(True, 0.09, 0.77), RateReading(True, 0.04, 0.7)
    assert RateReading(True, classes=(good, slow)).keeps(slo)
    assert not RateReading(False, classes=(good, slow)).keeps(slo)
    assert not RateReading(True, classes=(slow, good)).keeps(slo)
    assert not RateReading(True, classes=(poor, good)).keeps(slo)


def test_router_below_a_class_floor_misses_its_promise() -> None:
    slo = SloDocument(floor=None, p99_limit_s=None, window_s=10.0, windows=3)
    slo["classes"] = {name: ClassPromise(floor=floor, p99_limit_s=None) for name, floor in (("a", 0.76), ("b", None))}
    promise = Promise.of(slo)
    for accuracy, misses in ((0.76, False), (0.7591, False), (0.758, True)):
        one = RankedRouter("x", 0.99, 0.01, {0: 0.01}, {"a": accuracy, "b": 0.1})
        assert promise.missed_by(one) is misses


def test_a_plan_of_arrivals_has_each_ones_class_and_deadline() -> None:
    core = RouterCore(tiny.cluster([tiny.profile()], router={"classes": ("gold", "bronze")}).router)
    run = HardwareRun(
        np.array([5, 5, 9]), np.zeros((1, 1), np.float32), np.zeros(1, np.int64), 100,
        deadlines_ns=(None, 40), classes=np.array([1, 0, 1]),
    )  # fmt: skip
    traffic = PlannedTraffic(run, core, RunClock(lambda: 0))
    arrived = [traffic.take(at_ns)[0] for at_ns in (6, 6, 9)]
    assert arrived == [RequestArrived(0, 45, 1), RequestArrived(1, None, 0), RequestArrived(2, 49, 1)]


def test_slo_attainment_with_classes_counts_windows_kept_for_every_class() -> None:
    def judged_of(*kept: int, counts: tuple[int, ...] = (1, 1, 1, 1)) -> tuple[Judged, Judged, None]:
        judged = Judged(np.array(kept, np.bool_), np.array(counts, np.bool_))
        return judged, judged, None

    found = attainment_of([judged_of(1, 1, 0, 1), judged_of(1, 0, 1, 0, counts=(1, 1, 1, 0)), (None, None, None)])
    assert found == {"both": 0.5, "floor": 0.5, "p99_limit": None}


def test_a_class_may_have_the_only_deadline() -> None:
    found = load_scenario(SHIPPED, {"shed": True, "classes.0.deadline_s": 0.1, "deadline_s": None})
    assert found.deadlines_s == (0.1, None)


def test_commands_without_support_for_classes_refuse_a_scenario_with_classes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InputError, match="is trained without classes"):
        require_one_class(experiment().scenario)
    with pytest.raises(InputError, match="shows no classes"):
        make_env(SHIPPED)
    assert main(["plan", str(SHIPPED)]) == 2
    assert "a plan has no classes" in capsys.readouterr().err
    ppo = ("--set", "compare.routers=[jsq, ppo]", "--out", str(tmp_path / "run"))
    assert main(["run", str(SHIPPED), *ppo]) == 2
    assert "is trained without classes" in capsys.readouterr().err
    assert not (tmp_path / "run" / "comparison.json").exists()


def test_tables_have_a_line_for_each_class(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    short = ["--set", "duration_s=3", "--set", "warmup_s=1", "--out", str(tmp_path / "run")]
    assert main(["simulate", str(SHIPPED), "--router", "compass", *short]) == 0
    lines = [line.split()[:2] for line in capsys.readouterr().out.splitlines() if line.startswith(("gold", "bronze"))]
    assert lines[:2] == [["gold", "76.00"], ["bronze", "74.00"]]
    assert main(["compare", str(SHIPPED), "-r", "sticky", "-r", "compass", "-s", "1", "-s", "2", *short]) == 0
    assert sum(line.split()[1:2] == ["gold"] for line in capsys.readouterr().out.splitlines()) >= 2
    assert main(["report", str(tmp_path / "run")]) == 0
    assert "bronze" in (tmp_path / "run" / "report.html").read_text()
