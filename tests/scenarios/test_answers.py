"""The box that a run begins with: which router won, can the simulation be trusted, what to do next."""

from __future__ import annotations

from math import ceil, log
from typing import Any

import pytest

from policies.vocabulary import Provenance
from scenarios.metrics.comparison import ComparisonDocument, compare_results
from scenarios.metrics.fidelity import PREDICTED, Predictions, ValidationDocument, ValidationRun, validate_results
from scenarios.metrics.prediction import Range
from scenarios.metrics.ranking import validated
from scenarios.metrics.result import Result
from scenarios.metrics.slo import NO_SLO, Slo
from scenarios.metrics.statistics import estimate, paired_ratio
from scenarios.show.answers import NEXT, TRUSTED, WON, Answer, answers, box_text
from scenarios.show.charts import WORLDS, standings
from scenarios.show.comparison import comparison_table
from scenarios.show.summary import format_summary, summary_table
from scenarios.show.table import to_text
from scenarios.show.validation import errors_tables
from tests.scenarios.folders import summary, validation_run
from tests.scenarios.test_result import WINDOW, record, request

LADDER, FIXED = "tuned:ladder", "tuned:fixed"
HARDWARE: Any = {"mode": "hardware", "engine": "torch"}
WOBBLE = (0.98, 0.99, 1.0, 1.01, 1.02)
CLEAR = ("compass", 0.98, 1.0, 0.95), (LADDER, 1.24, 1.25, 0.9495)
LOST = ("compass", 1.25, 1.3, 0.95), (LADDER, 1.0, 1.0, 0.95)


def result(router: str, latency_s: float, accuracy: float, seed: int = 0, **changes: Any) -> Result:
    """A run with this mean latency and accuracy."""
    made = summary(record(request(0, 3, latency_s), ended_s=20), router=router, seed=seed, **WINDOW, **changes)
    return {**made, "expected_accuracy": accuracy}


def comparison(
    *found: tuple[str, float, float], wobble: tuple[float, ...] = WOBBLE, slo: Slo = NO_SLO, **facts: Any
) -> ComparisonDocument:
    """Of (router, latency, accuracy), over seeds that are slow or quick for all alike; `compass` and `ppo` learned."""
    runs = [result(r, s * by, top1, seed, slo=slo) for r, s, top1 in found for seed, by in enumerate(wobble)]
    return compare_results(runs, learned=["compass", "ppo"], **facts)


def validation(
    *found: tuple[str, float, float, float],
    wobble: tuple[float, ...] = WOBBLE,
    odd: float = 0.0,
    half: float = 0.06,
) -> ValidationDocument:
    """Of (router, simulated, hardware, accuracy) with repeats of one seed; `odd` moves every second router's against
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


def told(one: ComparisonDocument | None, other: ValidationDocument | None) -> tuple[Answer, Answer, Answer]:
    found = {each.question: each for each in answers(one, other)}
    assert next(iter(found)) == (TRUSTED if other is not None else WON)
    won, trusted, after = (found[question] for question in (WON, TRUSTED, NEXT))
    return won, trusted, after


NO_FLOOR = "No floor of accuracy is asked for (`slo.floor`), so accuracy decides nothing."


def test_executors_come_first() -> None:
    """By how much, beside whom, and at which accuracy; what simulation says of it comes after, with its own runs."""
    found = comparison(("compass", 0.9, 0.95), (LADDER, 1.2, 0.95), wobble=(*WOBBLE, 0.97))
    won, _, after = told(found, validation(*CLEAR))
    assert won.mood == "yes"
    assert won.text == (
        "On executors (5 runs a router) compass (learned) wins: p99 latency 1000.00 ms at 95.00 % accuracy, 20.0 "
        f"% below that of tuned:ladder (-20.0 to -20.0 %; 95.00 % accuracy). {NO_FLOOR} In simulation (datasheet, 6 "
        "seeds) it wins, too: 25.0 % below that of tuned:ladder "
        f"(-25.0 to -25.0 %; 95.00 % accuracy). {NO_FLOOR}"
    )
    assert after.text.endswith("Take compass, and try it under another load.")


FLOOR = "The floor of 94.00 % accuracy"


@pytest.mark.parametrize(
    ("found", "mood", "texts"),
    [
        (
            [(LADDER, 1.0, 0.95), ("compass", 1.2, 0.95), ("ppo", 5.0, 0.95), (FIXED, 1.1, 0.95)],
            "yes",
            ["tuned:ladder wins: p99 latency 1000.00 ms at 95.00 % accuracy, 9.1 % below that of tuned:fixed (",
             "The p99 latency of compass (learned), 1200.00 ms at 95.00 % accuracy, is 20.0 % above that of",
             "The p99 latency of ppo (learned), 5000.00 ms at 95.00 % accuracy, is 400.0 % above", f"{FLOOR}: kept by"],
        ),
        (
            [("ppo", 0.5, 0.93), (LADDER, 1.0, 0.95), (FIXED, 2.0, 0.9391)],
            "yes",
            [") tuned:ladder wins: ", f"{FLOOR} (a tenth of a point less still keeps it): broken by ppo (93.00 %)."],
        ),
        ([("ppo", 0.5, 0.93), (LADDER, 1.0, 0.95)], "open", [") tuned:ladder alone can win: p99 latency 1000.00 ms"]),
        ([("ppo", 0.5, 0.93), (LADDER, 1.0, 0.9)], "no", ["Nobody can win in", "by ppo (93.00 %), tuned:ladder (90"]),
        (
            [(FIXED, 1.0, 0.95), (LADDER, 1.0, 0.97), ("jsq", 2.0, 0.95)],
            "open",
            ["it is a tie of tuned:fixed (1000.00 ms at 95.00 % accuracy) and tuned:ladder (1000.00 ms at 97.00 % ",
             "): in p99 latency their differences are not statistically significant."],
        ),
    ],
)  # fmt: skip
def test_who_won(found: list[tuple[str, float, float]], mood: str, texts: list[str]) -> None:
    """Whoever keeps the floor, to a tenth of a point, however much more accurate others are; learned or not."""
    won, _, after = told(comparison(*found, slo=Slo(0.94)), None)
    assert won.mood == mood
    assert [text for text in texts if text not in won.text] == []
    assert ("Ask for less accuracy" in after.text) == (mood == "no")
    assert "Take ppo" not in after.text


def test_energy_wins_where_the_scenario_tunes_for_it() -> None:
    """At a p99 within its limit, and not the lowest p99."""
    runs = []
    for router, latency_s, energy_j in (("compass", 2.0, 1.0), (LADDER, 1.0, 3.0), ("ppo", 5.0, 0.1)):
        for seed, by in enumerate(WOBBLE):
            one = result(router, latency_s * by, 0.95, seed, slo=Slo(0.9, 3.0, objective="energy"))
            one["energy_per_image_j"]["total"] = energy_j * by
            runs.append(one)
    won, *_ = told(compare_results(runs), None)
    assert (
        "compass wins: energy per image 1.00 J/image at 95.00 % accuracy, 66.7 % below that of tuned:ladder" in won.text
    )
    assert (
        "The floor of 90.00 % accuracy and the p99 limit of 3000.00 ms: broken by ppo (95.00 %, 5000.00 ms)."
        in won.text
    )


@pytest.mark.parametrize("mean_s", [1.05, 0.95])
def test_what_is_not_significant_is_no_win_and_no_loss(mean_s: float) -> None:
    won, _, after = told(None, validation(("compass", 1.0, mean_s, 0.95), (LADDER, 1.0, 1.0, 0.95), odd=0.05))
    assert won.mood == "open"
    assert won.text.startswith("On executors (5 runs a router) it is a tie of ")
    assert "not statistically significant" in won.text
    assert "runs would tell" in after.text


def test_fewer_than_five_runs_name_no_winner() -> None:
    """However far apart: of three an interval is hardly known."""
    won, _, after = told(comparison(("compass", 1.0, 0.95), (LADDER, 3.0, 0.95), wobble=WOBBLE[:4]), None)
    assert won.mood == "open"
    assert won.text.startswith("In simulation (datasheet, 4 seeds) no winner can be named: so few runs tell nothing of")
    assert "The lowest p99 latency has compass (learned), 995.00 ms" in won.text
    assert after.text.endswith("Make 5 seeds a router or more: fewer tell nothing of chance.")


def test_few_runs_on_executors_confirm_whom_simulation_names() -> None:
    """Alone they name no winner; if another router is first there, that stays open, and comes first."""
    one = comparison(("compass", 1.0, 0.95), (LADDER, 1.25, 0.95))
    won, _, after = told(one, validation(*CLEAR, wobble=WOBBLE[:3]))
    assert won.mood == "yes"
    assert won.text.startswith("In simulation (datasheet, 5 seeds) compass (learned) wins: p99 latency 1000.00 ms at")
    assert "On executors (3 runs a router) it has the lowest p99 latency, too: 20.0 % below that of tuned:l" in won.text
    assert after.text == "Take compass, and try it under another load."
    won = told(one, validation(*LOST, wobble=WOBBLE[:3]))[0]
    assert won.text.startswith(
        "On executors (3 runs a router) no winner can be named: so few runs tell nothing of chance"
    )


def test_how_many_runs_would_tell() -> None:
    """An interval narrows with the root of their number: a difference of half its interval needs four times as many."""
    found = validation(("compass", 1.0, 1.05, 0.95), (LADDER, 1.0, 1.0, 0.95), odd=0.05)
    one, other = validated(found, "hardware").able
    lead: Any = one.lead(other)
    needed = ceil(5 * (log(lead["high"] / lead["ratio"]) / log(lead["ratio"])) ** 2)
    assert (
        f"About {needed} runs would tell {one.router} from {other.router} (there were 5)." in told(None, found)[2].text
    )


def test_a_few_runs_do_not_decide_who_keeps_the_floor() -> None:
    """The comparison does; on executors with what those lost of the accuracy of the same arrivals."""
    found = validation(("compass", 1.0, 1.0, 0.93), (LADDER, 1.2, 1.25, 0.93))
    for pair in found["pairs"]:
        pair["hardware"]["slo"]["floor"] = 0.94
    assert told(None, found)[0].text.startswith("Nobody can win on executors")
    one = comparison(("compass", 1.0, 0.95), (LADDER, 1.2, 0.95), slo=Slo(0.94))
    assert told(one, found)[0].text.startswith("On executors (5 runs a router) compass (learned) wins")
    for pair in found["pairs"]:
        pair["hardware"]["expected_accuracy"] = 0.91 if pair["router"] == "compass" else 0.93
    assert f"{FLOOR}: broken by compass (93.00 %)." in told(one, found)[0].text


def test_what_spoils_an_answer_is_in_it() -> None:
    """Who completes less than arrives, though all is worked off in the end; and who was calibrated among others."""
    one = comparison(("compass", 1.0, 0.95), (LADDER, 1.2, 0.95), unreliable=["cpu0"])
    for row, completed in zip(one["rows"], (899.0, 901.0), strict=True):
        row["offered_img_s"], row["throughput_img_s"] = estimate([1000.0] * 5), estimate([completed] * 5)
    won, trusted, after = told(one, None)
    assert won.text.endswith("Saturated: compass (1000.0 images/s offered, 899.0 completed).")
    assert "Lower the rate" not in after.text
    assert "UNRELIABLE: the calibration of cpu0 stayed disturbed" in trusted.text
    assert "Take compass" in after.text
    one["rows"][1]["throughput_img_s"] = estimate([899.0] * 5)
    assert told(one, None)[2].text.startswith("Lower the rate, or add a server: no router serves what arrives.")


def test_a_disturbed_calibration_is_not_to_be_longer_but_elsewhere() -> None:
    """On a host whose cores change their speed a longer one is as disturbed."""
    off = validation(*CLEAR, (FIXED, 3.0, 2.0, 0.95), ("jsq", 3.0, 2.0, 0.95))
    routers = [(name, 1.0, 0.95) for name in ("compass", LADDER, FIXED, "jsq")]
    assert "Calibrate for longer (`calibration.budget`)." in told(comparison(*routers), off)[2].text
    disturbed = told(comparison(*routers, unreliable=["cpu0"]), off)[2].text
    assert "Calibrate where nothing else runs and cores keep their speed" in disturbed
    assert "longer" not in disturbed


def test_a_promise_is_told_and_that_nobody_keeps_it() -> None:
    """Who keeps most of it; what to do where that is too little; nothing of who is flagged."""
    runs = []
    for router, kept, unserved in (("compass", 0.5, 0.0), (LADDER, 0.25, 0.0), ("lost", 1.0, 0.5)):
        one = result(router, 1.0, 0.95, slo=Slo(0.9, 0.01))
        one["slo_attainment"], one["shares"]["unserved"] = {"both": kept, "floor": kept, "p99_limit": kept}, unserved
        runs.append(one)
    won, *_ = told(compare_results(runs), None)
    assert "The SLO is an accuracy of at least 90.00 % and a p99 of at most 10.00 ms in each of 3 windows" in won.text
    assert won.text.endswith(". compass attains it most often, in 50.0 %.")
    runs[2]["shares"]["unserved"] = 0.0
    for kept, is_told in ((0.9, True), (0.99, False)):
        runs[2]["slo_attainment"] = {"both": kept, "floor": kept, "p99_limit": kept}
        assert ("Nobody keeps what is promised" in told(compare_results(runs), None)[2].text) == is_told


INSIDE = (
    "measured values inside the predicted 90 % ranges: mean latency {0} of {1} (at least {2} expected), p99 latency"
)


@pytest.mark.parametrize(
    ("found", "half", "mood", "texts"),
    [
        (
            CLEAR,
            0.06,
            "yes",
            [f"Yes: {INSIDE.format(10, 10, 7)}"],
        ),
        (
            CLEAR,
            0.06,
            "yes",
            [
                "Of 1 pair of routers that differ significantly on executors, 1 had",
                "Largest bias: mean latency -2.0 % (compass); p99",
            ],
        ),
        (CLEAR, 0.3, "open", ["Honest, but wide, up to +-30 %:"]),
        (
            CLEAR,
            0.001,
            "yes",
            [f"Yes, to within 5 % of a mean and 10 % of a p99; {INSIDE.format(1, 10, 7)}"],
        ),
        (
            (*CLEAR, (FIXED, 3.0, 2.0, 0.95), ("jsq", 3.0, 2.0, 0.95)),
            0.06,
            "no",
            [f"No: {INSIDE.format(10, 20, 16)}", "mean latency +50.0 % (tuned:fixed"],
        ),
        (
            (("compass", 0.9, 1.3, 0.95), (LADDER, 1.2, 1.0, 0.95)),
            0.06,
            "no",
            [
                "Of 1 pair of routers that differ significantly on executors, 0 had",
                "Simulation had another winner: compass.",
            ],
        ),
    ],
)
def test_simulation_is_judged_by_what_lies_inside_its_ranges(
    found: Any, half: float, mood: str, texts: list[str]
) -> None:
    """With the router that it is farthest off for, not a mean of all; and whether the order is right."""
    trusted = told(None, validation(*found, half=half))[1]
    assert trusted.mood == mood
    assert [text for text in texts if text not in " ".join(trusted.text.split())] == []


def test_the_stage_that_makes_a_bias_is_named() -> None:
    found = validation(("compass", 2.0, 1.0, 0.95), (LADDER, 2.5, 1.25, 0.95))
    for row in found["rows"]:
        row["stages_s"] = {"simulated": {"router_wait": 1.5, "run": 0.5}, "hardware": {"router_wait": 0.5, "run": 0.5}}
    trusted = told(None, found)[1]
    assert "mean latency +100.0 % (compass, most of it in router wait: -1000.00 ms on executors)" in trusted.text


def test_what_nobody_checked_is_said() -> None:
    """Nothing ran; or the devices were emulated; or power was a formula."""
    one = comparison(("compass", 1.0, 0.95), (LADDER, 1.25, 0.95))
    unknown, after = told(one, None)[1:]
    assert unknown.text.startswith("Not known: nothing of this was run on executors. Its devices come from datasheets")
    assert "slimsched validate" in after.text
    emulated: Any = {**one, "provenance": "emulated", "emulated_slowdowns": [4.0], "accuracy_provenance": "paper"}
    assert told(emulated, None)[1].text.endswith(
        "Its devices are emulated, 4 times as slow as the real ones: they play profiles. Accuracies are of the paper, "
        "and of no network."
    )
    found = validation(*CLEAR)
    for pair in found["pairs"]:
        pair["hardware"]["emulated_slowdowns"] = [20.0]
        pair["not_applicable"] = {}
    won, trusted, _ = told(None, found)
    assert won.text.startswith("On executors whose devices are emulated x20 (5 runs a router) compass wins")
    assert trusted.text.endswith("The devices were emulated x20: nothing is said of real ones.")
    found["pairs"][0]["not_applicable"] = {"energy_per_image": "modelled"}
    assert "Energy was not metered on executors: nothing here checks it." in told(None, found)[1].text


def test_who_serves_too_little_has_not_won() -> None:
    runs = [result("ppo", 0.1, 0.95), result(LADDER, 1.0, 0.95), result(FIXED, 1.1, 0.95)]
    runs[0]["shares"] = {**runs[0]["shares"], "unserved": 0.1}
    won, _, after = told(compare_results(runs), None)
    assert "The lowest p99 latency has tuned:ladder, 1000.00 ms" in won.text
    assert won.text.endswith("Not judged, for too much is unserved or unknown: ppo.")
    assert "Lower the rate" not in after.text
    assert told(compare_results([runs[0], {**runs[0], "router": "jsq"}]), None)[2].text.startswith("Lower the rate")
    missed: list[Any] = [{**each, "slo": {**each["slo"], "floor": 0.99}} for each in runs]
    assert "Lower the rate" not in told(compare_results(missed), None)[2].text


def test_a_busy_host_comes_before_other_advice() -> None:
    found = validation(*CLEAR)
    found["rows"][0]["background_load"] = {"programs": 0.9, "stolen": 0.0}
    _, trusted, after = told(None, found)
    assert "part of the error is theirs" in trusted.text
    assert after.text.startswith("Stop what else runs on this host")


def test_nothing_side_by_side_has_no_box() -> None:
    """Saturated runs alone check nothing, either."""
    one, found = comparison(("compass", 1.0, 0.95), (LADDER, 1.25, 0.95)), validation(*CLEAR)
    found["rows"] = []
    assert answers(one, found) == answers(one, None)
    assert answers(None, found) == answers(None, None) == answers(comparison(("compass", 1.0, 0.95)), None) == []


@pytest.mark.parametrize("width", [40, 80, 120])
def test_all_fits_the_terminal(width: int) -> None:
    """The box and every table below it; the box is never wider than is good to read."""
    found = validation(*CLEAR)
    one = comparison(("compass", 1.0, 0.95), (LADDER, 1.25, 0.95))
    box = box_text(answers(one, found), width).splitlines()
    assert {len(line) for line in box} == {min(width, 100)}
    lines = to_text([comparison_table(one), *errors_tables(found)], width).splitlines()
    assert max(map(len, lines)) <= width


LONG_NAMES = (
    ("tuned:compass-keeping", 0.98, 1.0, 0.95),
    (FIXED, 1.24, 1.25, 0.9495),
    ("own_router:Mine", 50.0, 60.0, 0.9),
)


@pytest.mark.parametrize(("is_compared", "is_validated"), [(True, False), (False, True), (True, True)])
def test_a_command_prints_one_table_of_six_columns(is_compared: bool, is_validated: bool) -> None:
    """Side by side in 100 characters, in a pipe (as here) too; who wins is marked where it is shown in a page."""
    one = comparison(*((r, s, top1) for r, s, _, top1 in LONG_NAMES)) if is_compared else None
    other = validation(*LONG_NAMES) if is_validated else None
    table = summary_table(one, other)
    assert table is not None
    assert len(table.columns) == 6
    assert table.marks == {LONG_NAMES[0][0]: "wins"}
    lines = format_summary(one, other).splitlines()
    assert max(map(len, lines)) <= 100
    assert [len(line.split()) for line in lines if line.startswith("---")] == [6]
    assert len({line.split()[0] for line in lines if line.startswith(tuple(name for name, *_ in LONG_NAMES))}) == 3


# ------------------------------------------------------------------------------------------------------- who beats whom


def test_intervals_of_ratios_never_pass_zero() -> None:
    """However far runs lie apart."""
    found = paired_ratio([4.0, 0.4, 0.1], [600.0, 10.0, 10.0])
    assert found["low"] is not None
    assert 0 < found["low"] < (found["ratio"] or 0) < 0.1
    assert paired_ratio([2.0, 2.0], [1.0, 1.0]) == {"ratio": 2, "low": 2, "high": 2, "runs": 2, "differs": True}
    assert paired_ratio([2.0], [1.0])["differs"] is paired_ratio([2.0, 0.0], [1.0, 1.0])["differs"] is None


def test_leads_are_paired() -> None:
    """Repeats that are slow for all alike leave the difference sharp; of several seeds each is its repeats' mean."""
    found = validation(("a", 1.0, 1.0, 0.95), ("b", 1.0, 1.1, 0.95), wobble=(0.5, 1.0, 1.5))
    one, other = validated(found, "hardware").able
    assert one.lead(other)["high"] == pytest.approx(one.lead(other)["low"])
    assert (one.interval["ci95"] or 0) > 1.0
    runs = [
        validation_run(result("a", 1.0, 0.9, seed), result("a", s, 0.9, seed, **HARDWARE), repeat=repeat)
        for seed, of in ((0, (1.0, 3.0)), (1, (5.0, 7.0)))
        for repeat, s in enumerate(of)
    ]
    (alone,) = validated(validate_results(runs, Provenance.MODELLED), "hardware").able
    assert alone.values == {0: pytest.approx(2.0), 1: pytest.approx(6.0)}


def test_the_picture_has_the_ranges_and_accuracies_of_the_table() -> None:
    """Predicted and measured; of a comparison alone what was simulated. Accuracies are those of the long run."""
    found = validation(("compass", 0.9, 1.0, 0.94), (LADDER, 1.2, 1.25, 0.95))
    worlds = standings(comparison(("compass", 1.0, 0.95)), found)
    simulated, real = (next(one for one in worlds[world] if one.router == "compass") for world in WORLDS)
    predicted = next(row["predicted"]["latency_p99"] for row in found["rows"] if row["router"] == "compass")
    assert predicted is not None
    ends_ms = [1000 * value_s for value_s in (predicted["low"], predicted["median"], predicted["high"])]
    assert [simulated.low_ms, simulated.p99_ms, simulated.high_ms] == pytest.approx(ends_ms)
    assert real.p99_ms == pytest.approx(1000)
    assert [simulated.accuracy, real.accuracy] == pytest.approx([0.95, 0.95])
    ((world, (alone,)),) = standings(comparison(("compass", 1.0, 0.95)), None).items()
    assert world == WORLDS[0]
    assert alone.accuracy == pytest.approx(0.95)
