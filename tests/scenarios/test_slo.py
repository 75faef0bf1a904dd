"""In how much of a run a promise was kept: hand-made records, window by window."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from kit import strict
from policies.interfaces import AccuracyPrior
from policies.router_queue import REFUSED
from policies.run_records import RequestRecord
from policies.vocabulary import NS_PER_S, GoalSet
from scenarios.experiment.scenario_building import load_experiment
from scenarios.experiment.workloads import TraceSlice
from scenarios.files.scenario_keys import Scenario
from scenarios.metrics.slo import Slo, SloAttainment, slo_document, window_edges_ns
from scenarios.runs.simulated_runs import simulate_metrics
from scenarios.show.wording import say
from tests.scenarios.files import write_scenario
from tests.scenarios.folders import summary
from tests.scenarios.test_result import record, request

PRIOR = AccuracyPrior({(0.5,): 0.7, (1.0,): 0.8})
FLOOR, LIMIT = Slo(floor=0.75), Slo(p99_limit_s=0.1)
SPEC = """
schema: slimsched.scenario/1
name: it
model: {accuracy: none.json}
cluster: {servers: [{name: a, profile: a.yaml}]}
workload: {kind: poisson, rate_img_s: 10}
"""
THIRDS = {"warmup_s": 0.0, "horizon_s": 3.0}  # windows of a second


def narrow(*arguments: Any, **options: Any) -> RequestRecord:
    return replace(request(*arguments, **options), widths=(0.5,))


def kept(*requests: RequestRecord, slo: Slo, prior: AccuracyPrior | None = PRIOR, **window: Any) -> SloAttainment:
    window = {**THIRDS, **window}
    run = record(*requests, ended_s=max(window["horizon_s"], 10.0))
    return summary(run, **window, slo=slo, prior=prior)["slo_attainment"]


def test_windows_are_of_ten_seconds_or_thirds_of_a_short_run() -> None:
    """The last one takes what is left over, so that all of the time is in some window."""
    second = NS_PER_S
    assert (window_edges_ns(5 * second, 35 * second) / second).tolist() == [5, 15, 25, 35]
    assert (window_edges_ns(0, 39 * second) / second).tolist() == [0, 10, 20, 39]
    assert (window_edges_ns(2 * second, 29 * second) / second).tolist() == [2, 11, 20, 29]
    found = summary(record(request(0, 3, 1), ended_s=48), warmup_s=2.0, horizon_s=48.0, slo=FLOOR)["slo"]
    assert found == {"floor": 0.75, "p99_limit_s": None, "window_s": 10.0, "windows": 4}


@pytest.mark.parametrize(
    ("schedule", "first", "changes"),
    [
        ([{"at_s": 20, "floor": 0.7}], 0.6, 1),
        ([{"at_s": 20, "floor": 0.7}, {"at_s": 30, "p99_limit_s": 0.1}], 0.6, 2),
        ([{"at_s": 0, "floor": 0.7}], 0.7, None),
        ([{"at_s": 2, "floor": 0.7}], 0.7, None),
        ([{"at_s": 2, "floor": 0.7}, {"at_s": 20, "floor": 0.6}], 0.7, 1),
        ([{"at_s": 20, "floor": 0.6}, {"at_s": 30, "energy_weight": 3}], 0.6, None),
        ([{"at_s": 60, "floor": 0.7}], 0.6, None),
    ],
)
def test_a_change_is_what_changes_something_while_windows_last(
    schedule: list[dict[str, float]], first: float, changes: int | None
) -> None:
    """Not what holds from their start on, repeats what is asked, is of energy alone, or comes when all is over."""
    text = SPEC + yaml.safe_dump({"slo": {"floor": 0.6, "p99_limit_s": 0.05, "schedule": schedule}})
    slo = Slo.of(strict.parse(Scenario, text, "it"))
    told = slo_document(slo, window_edges_ns(5 * NS_PER_S, 60 * NS_PER_S))
    assert json.loads(json.dumps(told)) == told
    assert (told["floor"], told.get("changes")) == (first, changes)
    words = {None: "50.00 ms in each", 1: "(at first; changed 1 time) in", 2: "(at first; changed 2 times) in"}
    assert words[changes] in say("results", "objective", told)


def test_the_floor_is_kept_by_the_mean_of_whom_a_window_completed() -> None:
    """Where they arrived is not asked; a mean of just the floor keeps it, whatever the rounding; labels don't count."""
    on_floor = [request(0, 0.1, 0.5, correct=False), narrow(1, 0.2, 0.5)]
    below = [request(2, 0.9, 0.2), narrow(3, 0.9, 0.2), narrow(4, 0.9, 0.2)]
    above = [request(5, 2.1, 0.1)]
    assert kept(*on_floor, *below, *above, slo=FLOOR) == {"both": 2 / 3, "floor": 2 / 3, "p99_limit": None}
    equal = AccuracyPrior({(0.5,): 0.1, (1.0,): 0.1})
    many = [request(number, 0.5, 0.01) for number in range(10)]
    assert kept(*many, slo=Slo(floor=0.1), prior=equal)["floor"] == 1.0  # ten times 0.1 is less than 1


def test_refused_request_does_not_count_against_the_slo() -> None:
    done, refused = request(0, 0.5, 0.1), replace(request(1, 0.6, 0.0, "failed"), reason=REFUSED)
    assert kept(done, refused, slo=LIMIT)["p99_limit"] == 1.0
    assert kept(done, replace(refused, reason="deadline"), slo=LIMIT)["p99_limit"] == 0.0


def test_the_limit_is_kept_by_99_of_100() -> None:
    """By nearest rank: one of a hundred may be over it, of 99 nobody; exactly the limit is not over it."""
    late, rest = request(0, 0.5, 0.2), [request(number, 0.5, 0.1) for number in range(1, 100)]
    assert kept(late, *rest, slo=LIMIT) == {"both": 1.0, "floor": None, "p99_limit": 1.0}
    assert kept(late, *rest[:-1], slo=LIMIT)["p99_limit"] == 0.0


def quick(count: int, at_s: float = 0.5) -> list[RequestRecord]:
    return [request(1000 + round(at_s * 1e4) + number, at_s, 0.05) for number in range(count)]


def test_failed_request_counts_as_over_the_limit() -> None:
    """One failure in a hundred requests is allowed, one in 99 is not."""
    failed = request(0, 0.5, 0.05, "failed")
    assert kept(failed, *quick(99), slo=LIMIT)["p99_limit"] == 1.0
    assert kept(failed, *quick(98), slo=LIMIT)["p99_limit"] == 0.0


def test_request_in_flight_beyond_the_limit_is_over_it_in_every_window() -> None:
    """A request that completes later or never counts; one that arrived less than the limit ago doesn't count yet."""
    stuck, all_through = request(0, 0.5, 9.5, "in_flight"), [*quick(98), *quick(98, 1.5), *quick(98, 2.5)]
    assert kept(stuck, *all_through, slo=LIMIT)["p99_limit"] == 0.0
    assert kept(stuck, *all_through, *quick(1, 2.6), slo=LIMIT)["p99_limit"] == 1 / 3
    assert kept(request(0, 0.5, 7.0), *all_through, slo=LIMIT)["p99_limit"] == 0.0  # after the last window
    young, old = request(0, 0.95, 0.07), request(0, 0.85, 0.17)
    assert kept(young, *quick(10), slo=LIMIT)["p99_limit"] == 1.0
    assert kept(old, *quick(10), slo=LIMIT)["p99_limit"] == 0.0
    cut = request(0, 2.5, 0.5, "in_flight")  # the run ends with the last window
    assert kept(cut, *quick(98, 2.5), slo=LIMIT)["p99_limit"] == 0.0
    on_the_dot = request(0, 0.9, 5.0, "in_flight")  # waits for just the limit at the first end, beyond it at the next
    assert kept(on_the_dot, *quick(10), *quick(10, 1.5), *quick(10, 2.5), slo=LIMIT)["p99_limit"] == 1 / 3


def test_window_with_requests_but_no_completions_is_not_kept() -> None:
    """Windows without any request don't count."""
    both = Slo(FLOOR.floor, LIMIT.p99_limit_s)
    assert kept(request(0, 0.5, 2.0), slo=both) == {"both": 0.0, "floor": 1 / 3, "p99_limit": 0.0}
    assert kept(request(0, 0.5, 0.1, "failed"), *quick(1, 1.5), slo=both)["both"] == 0.5
    assert kept(request(0, 0.98, 0.05), slo=LIMIT)["p99_limit"] == 0.5  # in the first window it was there, no more
    assert kept(*quick(1, 1.5), slo=both) == {"both": 1.0, "floor": 1.0, "p99_limit": 1.0}
    assert kept(slo=both) == {"both": None, "floor": None, "p99_limit": None}
    assert kept(*quick(1, 4.0), slo=both)["both"] is None


def test_slo_attainment_of_both_parts_counts_windows_that_keep_both() -> None:
    found = [request(0, 0.5, 0.2), narrow(1, 1.5, 0.05), request(2, 2.5, 0.05)]
    both = Slo(FLOOR.floor, LIMIT.p99_limit_s)
    assert kept(*found, slo=both) == {"both": 1 / 3, "floor": 2 / 3, "p99_limit": 2 / 3}
    assert kept(*found, slo=both, prior=None) == {"both": None, "floor": None, "p99_limit": 2 / 3}
    assert kept(*found, slo=Slo()) == {"both": None, "floor": None, "p99_limit": None}


def test_a_window_holds_its_last_moment_and_not_its_first() -> None:
    at_ends = [request(0, 0.5, 0.5), narrow(1, 1.5, 0.5), request(2, 2.5, 0.5)]
    assert kept(*at_ends, slo=FLOOR)["floor"] == 2 / 3
    warmed_up: dict[str, Any] = {"warmup_s": 1.0, "horizon_s": 4.0}
    assert kept(narrow(0, 0.5, 0.5), request(1, 0.5, 0.6), slo=FLOOR, **warmed_up)["floor"] == 1.0


def test_a_scenario_promises_it_and_both_engines_tell_the_same(tmp_path: Path) -> None:
    """The floor of tuning stands for one that `slo` does not name."""
    path = write_scenario(tmp_path)
    path.write_text(path.read_text() + "tuning: {floor: 0.7}\nslo: {p99_limit_s: 12ms}\n")
    experiment = load_experiment(path)
    assert Slo.of(experiment.scenario) == Slo(0.7, 0.012)
    found = [
        simulate_metrics(experiment, experiment.router("random"), "random", 0, engine=engine, scale=4.0)
        for engine in ("simpy", "compiled")
    ]
    assert found[0]["slo_attainment"] == found[1]["slo_attainment"]
    assert found[0]["slo"] == {"floor": 0.7, "p99_limit_s": 0.012, "window_s": 0.3, "windows": 3}
    assert None not in found[0]["slo_attainment"].values()
    path.write_text(path.read_text().replace("{p99", "{floor: 0.9, p99"))
    assert Slo.of(load_experiment(path).scenario).floor == 0.9


SCHEDULE = "slo: {floor: 0.7, schedule: [{at_s: 0.2, floor: 0.8}, {at_s: 0.6, floor: 0.75}]}\n"


def goals_of(path: Path, **changes: Any) -> list[tuple[float, float]]:
    run = load_experiment(path).run_spec(0, **changes)
    return [(at_ns / NS_PER_S, goal.floor) for at_ns, goal in run.goals]


def with_service(tmp_path: Path, slo: str) -> Path:
    return write_scenario(tmp_path, "duration_s: 1", f"{slo}\nduration_s: 1")


def test_a_schedule_becomes_goals_of_the_run(tmp_path: Path) -> None:
    """The floor is asked for from the start; a slice begins with what is asked for at its beginning."""
    path = write_scenario(tmp_path, "duration_s: 1", SCHEDULE + "duration_s: 1")
    assert goals_of(path) == [(0.0, 0.7), (0.2, 0.8), (0.6, 0.75)]
    assert goals_of(path, duration_s=0.5) == [(0.0, 0.7), (0.2, 0.8)]
    late = goals_of(path, duration_s=0.1, trace_slice=TraceSlice(9, 10))
    assert late == [(0.0, 0.75)]
    assert goals_of(write_scenario(tmp_path)) == []
    assert goals_of(with_service(tmp_path, "tuning: {floor: 0.7}")) == [(0.0, 0.7)]


MIXED = """slo:
  p99_limit_s: 30ms
  energy_weight: 2
  schedule:
  - {at_s: 0.2, floor: 0.8}
  - {at_s: 0.4, p99_limit_s: 0, energy_weight: 5}
  - {at_s: 0.6, floor: 0, p99_limit_s: 10ms}"""


def test_slo_schedule_leaves_goals_that_a_change_omits_unchanged(tmp_path: Path) -> None:
    path = with_service(tmp_path, MIXED)
    run = load_experiment(path).run_spec(0)
    assert run.goals == (
        (0, GoalSet(0.0, 30_000_000, 2.0)),
        (200_000_000, GoalSet(0.8, 30_000_000, 2.0)),
        (400_000_000, GoalSet(0.8, 0, 5.0)),
        (600_000_000, GoalSet(0.0, 10_000_000, 5.0)),
    )
    promised = Slo.of(load_experiment(path).scenario)
    assert promised == Slo(0.0, 0.03, ((0.2, 0.8, 0.03), (0.4, 0.8, 0.0), (0.6, 0.0, 0.01)))


def test_a_window_is_judged_by_the_goals_in_force_in_it() -> None:
    """An image by what was in force when it ended; where nothing of a kind was, nothing was to be kept."""
    found = [narrow(0, 0.4, 0.1), request(1, 1.4, 0.1), narrow(2, 2.4, 0.1)]
    assert kept(*found, slo=FLOOR)["floor"] == 1 / 3
    for later, share in (((1.0, 0.85), 0.0), ((1.0, 0.7), 2 / 3), ((2.0, 0.7), 2 / 3), ((1.0, 0.0), 0.0)):
        changed = Slo(0.75, None, ((later[0], later[1], 0.0),))
        assert kept(*found, slo=changed) == {"both": share, "floor": share, "p99_limit": None}, later
    half = Slo(0.75, None, ((0.7, 0.65, 0.0),))  # in the middle of a window, whose images must keep 0.7 on average
    assert kept(narrow(0, 0.4, 0.1), narrow(1, 0.8, 0.1), slo=half)["floor"] == 1.0
    assert kept(narrow(0, 0.4, 0.1), narrow(1, 0.5, 0.1), slo=half)["floor"] == 0.0


def test_a_limit_that_changes_is_asked_of_images_as_they_end() -> None:
    slow = [request(number, number - 0.6, 0.2) for number in (1, 2, 3)]  # they end at 0.6, 1.6 and 2.6 s
    assert kept(*slow, slo=LIMIT)["p99_limit"] == 0.0
    for later, share in (((0.0, 0.3), 1.0), ((1.0, 0.3), 2 / 3), ((2.0, 0.3), 1 / 3), ((1.0, 0.0), 0.0)):
        assert kept(*slow, slo=Slo(None, 0.1, ((later[0], 0.0, later[1]),)))["p99_limit"] == share, later
    first = Slo(None, 0.0, ((1.0, 0.0, 0.1), (2.0, 0.0, 0.3)))
    assert kept(*slow, slo=first)["p99_limit"] == 1 / 2
    halfway = Slo(None, 0.0, ((0.5, 0.0, 0.1),))  # one that ends before it takes as long as it will
    assert kept(request(0, 0.2, 0.2), *quick(1, 0.8), slo=halfway)["p99_limit"] == 1.0
    stuck = request(0, 0.5, 9.0, "in_flight")
    assert kept(stuck, *quick(10), *quick(10, 1.5), *quick(10, 2.5), slo=LIMIT)["p99_limit"] == 0.0
    lifted = Slo(None, 0.1, ((0.9, 0.0, 5.0), (2.0, 0.0, 0.1)))
    assert kept(stuck, *quick(10), *quick(10, 1.5), *quick(10, 2.5), slo=lifted)["p99_limit"] == 2 / 3


def test_slo_attainment_counts_only_the_goals_in_force_in_each_window() -> None:
    slo = Slo(0.75, 0.0, ((1.0, 0.75, 0.1), (2.0, 0.0, 0.0)))
    late = [request(0, 0.3, 0.2), request(1, 1.3, 0.2), request(2, 2.3, 0.2)]
    assert kept(*late, slo=slo) == {"both": 1 / 2, "floor": 1.0, "p99_limit": 0.0}
    failed = request(3, 0.5, 0.1, "failed")  # over the limit, had there been one
    assert kept(failed, *late, slo=slo)["both"] == 1 / 2
    run = record(*late, ended_s=10.0)
    assert summary(run, **THIRDS, slo=slo, prior=PRIOR)["slo"]["changes"] == 2
