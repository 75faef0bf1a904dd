"""The answers that a run begins with: can the simulation be trusted, which router won, what to do next."""

from __future__ import annotations

import re
from math import ceil, log
from typing import Any, NamedTuple

import pytest

from policies.vocabulary import Provenance
from scenarios.metrics.fidelity import PREDICTED, Predictions, ValidationDocument, ValidationRun, validate_results
from scenarios.metrics.router_comparison import ComparisonDocument, compare_results, validated
from scenarios.metrics.run_result import Result
from scenarios.metrics.slo import NO_SLO, Slo
from scenarios.metrics.statistics import Range, estimate, paired_ratio
from scenarios.show.answers import EXCLUDED, NEXT, SATURATED, SLO, TRUSTED, WON, answers
from scenarios.show.charts import SIDES, standings
from tests.scenarios.folders import summary, validation_run
from tests.scenarios.test_result import WINDOW, record, request

LADDER, FIXED = "tuned:ladder", "tuned:fixed"
HARDWARE: Any = {"mode": "executors", "engine": "torch"}
WOBBLE = (0.98, 0.99, 1.0, 1.01, 1.02)
CLEAR = ("compass", 0.98, 1.0, 0.95), (LADDER, 1.24, 1.25, 0.9495)
LOST = ("compass", 1.25, 1.3, 0.95), (LADDER, 1.0, 1.0, 0.95)


def result(router: str, latency_s: float, accuracy: float, seed: int = 0, **changes: Any) -> Result:
    made = summary(record(request(0, 3, latency_s), ended_s=20), router=router, seed=seed, **WINDOW, **changes)
    return {**made, "expected_accuracy": accuracy}


def comparison(
    *found: tuple[str, float, float], wobble: tuple[float, ...] = WOBBLE, slo: Slo = NO_SLO, **facts: Any
) -> ComparisonDocument:
    """Of (router, latency, accuracy), over seeds that are slow or quick for all alike; `compass` and `ppo` learned."""
    runs = [result(r, s * by, top1, seed, slo=slo) for r, s, top1 in found for seed, by in enumerate(wobble)]
    return compare_results(runs, learned=["compass", "ppo"], **facts)


def validation(
    *found: tuple[str, float, float, float], wobble: tuple[float, ...] = WOBBLE, odd: float = 0.0, half: float = 0.06
) -> ValidationDocument:
    """Of (router, simulated, executors, accuracy) with repeats of one seed; `odd` moves every second router's against
    the others'. Predicted are latencies within a share `half` of the simulated one."""
    runs: list[ValidationRun] = []
    for number, (router, simulated_s, hardware_s, top1) in enumerate(found):
        own = [by + (odd * (repeat - 2) if number % 2 else 0.0) for repeat, by in enumerate(wobble)]
        for repeat, by in enumerate(own):
            twins = result(router, simulated_s, top1), result(router, hardware_s * by, top1, **HARDWARE)
            runs.append(validation_run(*twins, repeat=repeat))
    ranges: Predictions = {
        (router, None, 0): {
            each.stem: Range(low=(1 - half) * simulated_s, median=simulated_s, high=(1 + half) * simulated_s)
            for each in PREDICTED
        }
        for router, simulated_s, *_ in found
    }
    return validate_results(runs, Provenance.MODELLED, ranges)


class Told(NamedTuple):
    """The text of each answer, its lines in one; moods by label."""

    won: str
    excluded: str
    saturated: str
    slo: str
    trusted: str
    after: str
    moods: dict[str, str]


def told(one: ComparisonDocument | None, other: ValidationDocument | None) -> Told:
    found = {answer.label: answer for answer in answers(one, other)}
    assert next(iter(found)) == (TRUSTED if other is not None else WON)
    labels = (WON, EXCLUDED, SATURATED, SLO, TRUSTED, NEXT)
    won, excluded, saturated, slo, trusted, after = (
        "; ".join(found[label].lines) if label in found else "" for label in labels
    )
    return Told(won, excluded, saturated, slo, trusted, after, {label: each.mood for label, each in found.items()})


def test_executors_come_first() -> None:
    """By how much, next to whom, and at which accuracy; simulation's winner comes after, with its own runs."""
    found = comparison(("compass", 0.9, 0.95), (LADDER, 1.2, 0.95), wobble=(*WOBBLE, 0.97))
    said = told(found, validation(*CLEAR))
    assert said.moods[WON] == "yes"
    assert said.won == (
        "compass (learned): p99 latency 1000.00 ms at 95.00 % accuracy, 20.0 % below tuned:ladder (-20.0 to -20.0 %; "
        "95.00 % accuracy) [executors, 5 runs a router]; "
        "again, 25.0 % below tuned:ladder (-25.0 to -25.0 %; 95.00 % accuracy) [simulation, "
        "datasheet, 6 seeds]"
    )
    assert (said.slo, said.excluded) == ("no floor of accuracy is set (`slo.floor`), so accuracy decides nothing", "")
    assert said.after == "take compass, and try it under another load"


@pytest.mark.parametrize(
    ("found", "mood", "texts"),
    [
        (
            [(LADDER, 1.0, 0.95), ("compass", 1.2, 0.95), ("ppo", 5.0, 0.95), (FIXED, 1.1, 0.95)],
            "yes",
            ["tuned:ladder: p99 latency 1000.00 ms at 95.00 % accuracy, 9.1 % below tuned:fixed (",
             "; compass (learned): p99 latency 1200.00 ms at 95.00 % accuracy, 20.0 % above tuned:ladder",
             "; ppo (learned): p99 latency 5000.00 ms at 95.00 % accuracy, 400.0 % above"],
        ),
        (
            [("ppo", 0.5, 0.93), (LADDER, 1.0, 0.95), (FIXED, 2.0, 0.9391)],
            "yes",
            ["tuned:ladder: ", "below 94.00 % accuracy: ppo 93.00 % [simulation]", "a tenth of a point less still"],
        ),
        ([("ppo", 0.5, 0.93), (LADDER, 1.0, 0.95)], "open", ["tuned:ladder, as no other router keeps what is asked"]),
        ([("ppo", 0.5, 0.93), (LADDER, 1.0, 0.9)], "no", ["none: no router", "accuracy: ppo 93.00 %, tuned:ladder 90"]),
        (
            [(FIXED, 1.0, 0.95), (LADDER, 1.0, 0.97), ("jsq", 2.0, 0.95)],
            "open",
            ["a tie, the differences in p99 latency are not statistically significant: tuned:fixed 1000.00 ms at 95.00",
             " % accuracy, tuned:ladder 1000.00 ms at 97.00 % accuracy [simulation"],
        ),
    ],
)  # fmt: skip
def test_winner_is_the_router_of_lowest_p99_that_keeps_the_floor(
    found: list[tuple[str, float, float]], mood: str, texts: list[str]
) -> None:
    """The floor has a tolerance of a tenth of a point, and accuracy above it decides nothing."""
    said = told(comparison(*found, slo=Slo(0.94)), None)
    assert said.moods[WON] == mood
    assert [text for text in texts if text not in "; ".join((said.won, said.excluded, said.slo))] == []
    assert ("ask for less accuracy" in said.after) == (mood == "no")
    assert "take ppo" not in said.after


def test_energy_wins_where_the_scenario_tunes_for_it() -> None:
    """At a p99 within its limit, and not the lowest p99."""
    runs = []
    for router, latency_s, energy_j in (("compass", 2.0, 1.0), (LADDER, 1.0, 3.0), ("ppo", 5.0, 0.1)):
        for seed, by in enumerate(WOBBLE):
            one = result(router, latency_s * by, 0.95, seed, slo=Slo(0.9, 3.0, objective="energy"))
            one["energy_per_image_j"]["total"] = energy_j * by
            runs.append(one)
    said = told(compare_results(runs), None)
    assert said.won.startswith("compass: energy per image 1.00 J/image at 95.00 % accuracy, 66.7 % below tuned:ladder")
    assert "below 90.00 % accuracy or above a p99 of 3000.00 ms: ppo 95.00 % and 5000.00 ms [" in said.excluded


@pytest.mark.parametrize("mean_s", [1.05, 0.95])
def test_p99_difference_without_significance_is_reported_as_a_tie(mean_s: float) -> None:
    said = told(None, validation(("compass", 1.0, mean_s, 0.95), (LADDER, 1.0, 1.0, 0.95), odd=0.05))
    assert said.moods[WON] == "open"
    assert said.won.startswith("a tie, the differences in p99 latency are not statistically significant: ")
    assert said.won.endswith("[executors, 5 runs a router]")
    assert re.match(r"make about \d+ runs to separate", said.after)


def test_fewer_than_five_runs_name_no_winner() -> None:
    said = told(comparison(("compass", 1.0, 0.95), (LADDER, 3.0, 0.95), wobble=WOBBLE[:4]), None)
    assert said.moods[WON] == "open"
    assert said.won.startswith("not known, too few runs: the lowest p99 latency has compass (learned), 995.00 ms")
    assert said.won.endswith("[simulation, datasheet, 4 seeds]")
    assert said.after.endswith("make 5 seeds a router or more")


def test_few_runs_on_executors_confirm_whom_simulation_names() -> None:
    """Alone they name no winner; if another router is first there, that stays open, and comes first."""
    one = comparison(("compass", 1.0, 0.95), (LADDER, 1.25, 0.95))
    said = told(one, validation(*CLEAR, wobble=WOBBLE[:3]))
    assert said.moods[WON] == "yes"
    assert said.won.startswith("compass (learned): p99 latency 1000.00 ms at")
    assert "; again the lowest p99 latency, 20.0 % below tuned:ladder" in said.won
    assert said.won.endswith("[executors, 3 runs a router]")
    assert said.after == "take compass, and try it under another load"
    assert told(one, validation(*LOST, wobble=WOBBLE[:3])).won.startswith("not known, too few runs: the lowest p99")


def test_how_many_runs_would_tell() -> None:
    """An interval narrows with the root of their number: a difference of half its interval needs four times as many."""
    found = validation(("compass", 1.0, 1.05, 0.95), (LADDER, 1.0, 1.0, 0.95), odd=0.05)
    one, other = validated(found, "executors").able
    lead: Any = one.lead(other)
    needed = ceil(5 * (log(lead["high"] / lead["ratio"]) / log(lead["ratio"])) ** 2)
    advice = f"make about {needed} runs to separate {one.router} from {other.router} (there were 5)"
    assert advice in told(None, found).after


def test_a_few_runs_do_not_decide_who_keeps_the_floor() -> None:
    """The comparison does; on executors with what those lost of the accuracy of the same arrivals."""
    found = validation(("compass", 1.0, 1.0, 0.93), (LADDER, 1.2, 1.25, 0.93))
    for pair in found["pairs"]:
        pair["executors"]["slo"]["floor"] = 0.94
    assert told(None, found).won.startswith("none: no router keeps what is asked [executors")
    one = comparison(("compass", 1.0, 0.95), (LADDER, 1.2, 0.95), slo=Slo(0.94))
    assert told(one, found).won.startswith("compass (learned): p99 latency")
    for pair in found["pairs"]:
        pair["executors"]["expected_accuracy"] = 0.91 if pair["router"] == "compass" else 0.93
    assert "below 94.00 % accuracy: compass 93.00 % [executors]" in told(one, found).excluded


def test_answers_state_saturation_and_unreliable_calibration() -> None:
    """A router is saturated if it completes less than arrives, even if it drains its queue in the end."""
    one = comparison(("compass", 1.0, 0.95), (LADDER, 1.2, 0.95), unreliable=["cpu0"])
    for row, completed in zip(one["rows"], (899.0, 901.0), strict=True):
        row["offered_img_s"], row["throughput_img_s"] = estimate([1000.0] * 5), estimate([completed] * 5)
    said = told(one, None)
    assert (said.saturated, said.excluded) == ("compass: completes 899.0 of 1000.0 images/s [simulation]", "")
    assert "lower the rate" not in said.after
    assert "UNRELIABLE: the calibration of cpu0 stayed disturbed" in said.trusted
    assert "take compass" in said.after
    one["rows"][1]["throughput_img_s"] = estimate([899.0] * 5)
    assert told(one, None).after.startswith("lower the rate, or add a server: no router serves what arrives")


def test_a_disturbed_calibration_is_not_to_be_longer_but_elsewhere() -> None:
    off = validation(*CLEAR, (FIXED, 3.0, 2.0, 0.95), ("jsq", 3.0, 2.0, 0.95))
    routers = [(name, 1.0, 0.95) for name in ("compass", LADDER, FIXED, "jsq")]
    assert "calibrate for longer (`calibration.budget`)" in told(comparison(*routers), off).after
    disturbed = told(comparison(*routers, unreliable=["cpu0"]), off).after
    assert "calibrate where nothing else runs and cores keep their speed" in disturbed
    assert "longer" not in disturbed


def test_a_promise_is_told_and_that_nobody_keeps_it() -> None:
    """Who keeps most of it; what to do where that is too little; nothing of who is flagged."""
    runs = []
    for router, kept, unserved in (("compass", 0.5, 0.0), (LADDER, 0.25, 0.0), ("lost", 1.0, 0.5)):
        one = result(router, 1.0, 0.95, slo=Slo(0.9, 0.01))
        one["slo_attainment"], one["shares"]["unserved"] = {"both": kept, "floor": kept, "p99_limit": kept}, unserved
        runs.append(one)
    slo = told(compare_results(runs), None).slo
    assert slo.startswith("an accuracy of at least 90.00 % and a p99 of at most 10.00 ms in each of 3 windows of")
    assert slo.endswith(": attained most often by compass, 50.0 %")
    runs[2]["shares"]["unserved"] = 0.0
    for kept, is_told in ((0.9, True), (0.99, False)):
        runs[2]["slo_attainment"] = {"both": kept, "floor": kept, "p99_limit": kept}
        assert ("no router attains the SLO" in told(compare_results(runs), None).after) == is_told


INSIDE = "inside the predicted 90 % ranges: mean latency {0} of {1} (at least {2} expected), p99 latency"


@pytest.mark.parametrize(
    ("found", "half", "mood", "texts"),
    [
        (
            CLEAR,
            0.06,
            "yes",
            [
                f"yes: {INSIDE.format(10, 10, 7)}",
                "order of routers: as simulated for 1 of 1 pair that differ significantly on executors",
                "largest bias: mean latency -2.0 % (compass), p99",
            ],
        ),
        (CLEAR, 0.3, "open", ["yes, but not precisely (up to +-30 %): inside"]),
        (CLEAR, 0.001, "yes", [f"yes, to within 5 % of a mean and 10 % of a p99: {INSIDE.format(1, 10, 7)}"]),
        (
            (*CLEAR, (FIXED, 3.0, 2.0, 0.95), ("jsq", 3.0, 2.0, 0.95)),
            0.06,
            "no",
            [f"no: {INSIDE.format(10, 20, 16)}", "mean latency +50.0 % (tuned:fixed"],
        ),
        (
            (("compass", 0.9, 1.3, 0.95), (LADDER, 1.2, 1.0, 0.95)),
            0.06,
            "no",
            ["as simulated for 0 of 1 pair that differ significantly on executors; simulation had another winner, c"],
        ),
    ],
)
def test_simulation_is_judged_by_what_lies_inside_its_ranges(
    found: Any, half: float, mood: str, texts: list[str]
) -> None:
    """With the router that it is farthest off for, not a mean of all; and whether the order is right."""
    said = told(None, validation(*found, half=half))
    assert said.moods[TRUSTED] == mood
    assert [text for text in texts if text not in said.trusted] == []


def test_the_stage_that_makes_a_bias_is_named() -> None:
    found = validation(("compass", 2.0, 1.0, 0.95), (LADDER, 2.5, 1.25, 0.95))
    for row in found["rows"]:
        row["stages_s"] = {"simulated": {"router_wait": 1.5, "run": 0.5}, "executors": {"router_wait": 0.5, "run": 0.5}}
    trusted = told(None, found).trusted
    assert "mean latency +100.0 % (compass, most of it in router wait: -1000.00 ms on executors)" in trusted


def test_a_bias_of_slower_devices_is_told_apart() -> None:
    """Ranges are of the devices' usual speed; the paired simulation replays that of the runs."""
    found = validation(("compass", 0.5, 1.0, 0.95), (LADDER, 1.0, 1.25, 0.95))
    for row in found["rows"]:
        row["slowdown"] = {"mean": 1.8, "ci95": 0.1}
        row["stages_s"] = {"simulated": {"router_wait": 0.4, "run": 0.5}, "executors": {"router_wait": 0.4, "run": 0.6}}
    trusted = told(None, found).trusted
    worst = "compass; -10.0 % at the speed that the devices had then, most of it in run: +100.00 ms on executors"
    assert f"mean latency -50.0 % ({worst})" in trusted


def test_trust_answer_states_what_was_not_checked_on_real_devices() -> None:
    one = comparison(("compass", 1.0, 0.95), (LADDER, 1.25, 0.95))
    unknown = told(one, None)
    assert unknown.trusted.startswith("not known: nothing was run on executors; Its devices come from datasheets")
    assert "slimsched validate" in unknown.after
    emulated: Any = {**one, "provenance": "emulated", "emulated_slowdowns": [4.0], "accuracy_provenance": "paper"}
    assert told(emulated, None).trusted.endswith(
        "Its devices are emulated, 4 times as slow as the real ones: they play profiles. Accuracies are of the paper, "
        "and of no network."
    )
    found = validation(*CLEAR)
    for pair in found["pairs"]:
        pair["executors"]["emulated_slowdowns"] = [20.0]
        pair["not_applicable"] = {}
    said = told(None, found)
    assert said.won.endswith("[executors, emulated x20, 5 runs a router]")
    assert said.trusted.endswith("devices were emulated x20: nothing is known of real ones")
    found["pairs"][0]["not_applicable"] = {"energy_per_image": "modelled"}
    assert "energy was not metered on executors: nothing here checks it" in told(None, found).trusted


def test_router_with_too_many_unserved_requests_cannot_win() -> None:
    runs = [result("ppo", 0.1, 0.95), result(LADDER, 1.0, 0.95), result(FIXED, 1.1, 0.95)]
    runs[0]["shares"] = {**runs[0]["shares"], "unserved": 0.1}
    said = told(compare_results(runs), None)
    assert "the lowest p99 latency has tuned:ladder, 1000.00 ms" in said.won
    assert said.excluded == "too much unserved or unknown to be ranked: ppo [simulation]"
    assert "lower the rate" not in said.after
    assert told(compare_results([runs[0], {**runs[0], "router": "jsq"}]), None).after.startswith("lower the rate")
    missed: list[Any] = [{**run, "slo": {**run["slo"], "floor": 0.99}} for run in runs]
    assert "lower the rate" not in told(compare_results(missed), None).after


def test_a_busy_host_comes_before_other_advice() -> None:
    found = validation(*CLEAR)
    found["rows"][0]["background_load"] = {"programs": 0.9, "stolen": 0.0}
    said = told(None, found)
    assert "part of the error is theirs" in said.trusted
    assert said.after.startswith("stop what else runs on this host")


def test_answers_are_empty_without_two_routers_to_compare() -> None:
    one, found = comparison(("compass", 1.0, 0.95), (LADDER, 1.25, 0.95)), validation(*CLEAR)
    found["rows"] = []
    assert answers(one, found) == answers(one, None)
    assert answers(None, found) == answers(None, None) == answers(comparison(("compass", 1.0, 0.95)), None) == []


def test_intervals_of_ratios_never_pass_zero() -> None:
    found = paired_ratio([4.0, 0.4, 0.1], [600.0, 10.0, 10.0])
    assert found["low"] is not None
    assert 0 < found["low"] < (found["ratio"] or 0) < 0.1
    assert paired_ratio([2.0, 2.0], [1.0, 1.0]) == {"ratio": 2, "low": 2, "high": 2, "runs": 2, "differs": True}
    assert paired_ratio([2.0], [1.0])["differs"] is paired_ratio([2.0, 0.0], [1.0, 1.0])["differs"] is None


def test_leads_are_paired() -> None:
    """Repeats that are slow for all alike leave the difference sharp; of several seeds each is its repeats' mean."""
    found = validation(("a", 1.0, 1.0, 0.95), ("b", 1.0, 1.1, 0.95), wobble=(0.5, 1.0, 1.5))
    one, other = validated(found, "executors").able
    assert one.lead(other)["high"] == pytest.approx(one.lead(other)["low"])
    assert (one.interval["ci95"] or 0) > 1.0
    runs = [
        validation_run(result("a", 1.0, 0.9, seed), result("a", s, 0.9, seed, **HARDWARE), repeat=repeat)
        for seed, of in ((0, (1.0, 3.0)), (1, (5.0, 7.0)))
        for repeat, s in enumerate(of)
    ]
    (alone,) = validated(validate_results(runs, Provenance.MODELLED), "executors").able
    assert alone.values == {0: pytest.approx(2.0), 1: pytest.approx(6.0)}


def test_the_picture_has_the_ranges_and_accuracies_of_the_table() -> None:
    """Predicted and measured; of a comparison alone what was simulated. Accuracies are those of the long run."""
    found = validation(("compass", 0.9, 1.0, 0.94), (LADDER, 1.2, 1.25, 0.95))
    points = standings(comparison(("compass", 1.0, 0.95)), found)
    simulated, real = (next(p for p in points if (p.router, p.side) == ("compass", side)) for side in SIDES)
    predicted = next(row["predicted"]["latency_p99"] for row in found["rows"] if row["router"] == "compass")
    assert predicted is not None
    median = predicted["median"]
    assert simulated.cost == pytest.approx(1000 * median)
    below_above = [1000 * (median - predicted["low"]), 1000 * (predicted["high"] - median)]
    assert list(simulated.cost_errors) == pytest.approx(below_above)
    assert real.cost == pytest.approx(1000)
    assert [simulated.accuracy, real.accuracy] == pytest.approx([95, 95])
    (alone,) = standings(comparison(("compass", 1.0, 0.95)), None)
    assert alone.side == SIDES[0]
    assert alone.accuracy == pytest.approx(95)
