"""The box that a run begins with: did a learned router win, can the simulation be trusted, what to do next."""

from __future__ import annotations

from math import ceil
from typing import Any

import pytest

from policies.vocabulary import Provenance
from scenarios.metrics.comparison import ComparisonDocument, compare_results
from scenarios.metrics.fidelity import ValidationDocument, ValidationRun, validate_results
from scenarios.metrics.ranking import compared, validated
from scenarios.metrics.result import Result
from scenarios.metrics.slo import Slo
from scenarios.show.answers import Answer, answers, box_text
from scenarios.show.charts import WORLDS, standings
from scenarios.show.comparison import comparison_table
from scenarios.show.table import to_text
from scenarios.show.validation import errors_tables
from tests.scenarios.folders import summary, validation_run
from tests.scenarios.test_result import WINDOW, record, request

LADDER, FIXED = "tuned:ladder", "tuned:fixed"
HARDWARE: Any = {"mode": "hardware", "engine": "torch"}
WOBBLE = (0.99, 1.0, 1.01)
CLEAR = ("tide", 0.98, 1.0, 0.95), (LADDER, 1.24, 1.25, 0.9495)
LOST = ("tide", 1.25, 1.3, 0.95), (LADDER, 1.0, 1.0, 0.95)


def result(router: str, latency_s: float, accuracy: float, seed: int = 0, **changes: Any) -> Result:
    """A run with this mean latency and accuracy."""
    made = summary(record(request(0, 3, latency_s), ended_s=20), router=router, seed=seed, **WINDOW, **changes)
    return {**made, "expected_accuracy": accuracy}


def comparison(*found: tuple[str, float, float], wobble: tuple[float, ...] = WOBBLE) -> ComparisonDocument:
    """Of (router, latency, accuracy), over seeds that are slow or quick for all alike."""
    runs = [result(r, s * by, top1, seed) for r, s, top1 in found for seed, by in enumerate(wobble)]
    return compare_results(runs)


def validation(
    *found: tuple[str, float, float, float], wobble: tuple[float, ...] = WOBBLE, odd: float = 0.0
) -> ValidationDocument:
    """Of (router, simulated, hardware, accuracy) with repeats of one seed; `odd` moves every second router's against
    the others'."""
    runs: list[ValidationRun] = []
    for number, (router, simulated_s, hardware_s, top1) in enumerate(found):
        own = [by + (odd * (repeat - 1) if number % 2 else 0.0) for repeat, by in enumerate(wobble)]
        for repeat, by in enumerate(own):
            twins = result(router, simulated_s, top1), result(router, hardware_s * by, top1, **HARDWARE)
            runs.append(validation_run(*twins, repeat=repeat))
    return validate_results(runs, Provenance.MODELLED)


def told(one: ComparisonDocument | None, other: ValidationDocument | None) -> tuple[Answer, Answer, Answer]:
    won, trusted, after = answers(one, other)
    assert [won.question, trusted.question, after.question] == [
        "Did a learned router win?", "Can the simulation be trusted?", "What to do next?"
    ]  # fmt: skip
    return won, trusted, after


def test_executors_come_first() -> None:
    """By how much, beside whom, and at which accuracy; what simulation says of it comes after."""
    found = comparison(("tide", 0.9, 0.95), (LADDER, 1.2, 0.95))
    won, _, after = told(found, validation(*CLEAR))
    assert won.mood == "yes"
    assert won.text == (
        "Yes: on real executors (3 runs a router) tide has a mean latency of 1000.00 ms at 95.00 % accuracy, "
        "20.0 +-0.5 % below that of tuned:ladder (94.95 % accuracy). Yes: in simulation (datasheet, 3 seeds) tide has "
        "a mean latency of 900.00 ms at 95.00 % accuracy, 25.0 +-0.6 % below that of tuned:ladder (95.00 % accuracy)."
    )
    assert after.text.endswith("Serve with tide, and try it under another load.")


NOBODY = "No: in simulation (datasheet, 3 seeds) nobody wins, whoever is quicker is less accurate."
WINS = (
    "No: in simulation (datasheet, 3 seeds) tuned:ladder (a rule) wins with 1000.00 ms at 95.00 % accuracy; {} has a "
    "mean"
)


@pytest.mark.parametrize(
    ("found", "mood", "text"),
    [
        (
            [(LADDER, 1.0, 0.95), ("tide", 1.3, 0.95), ("ppo", 5.0, 0.95), (FIXED, 1.2, 0.95)],
            "no",
            f"{WINS.format('tide')} latency of 1300.00 ms at 95.00 % accuracy, 30.0 +-0.7 % above that of tuned:ladder."
            " ppo's mean latency, 5000.00 ms at 95.00 % accuracy, is 400.0 +-9.9 % above that of tuned:ladder "
            "(95.00 % accuracy).",
        ),
        (
            [("ppo", 0.5, 0.93), (LADDER, 1.0, 0.95), (FIXED, 2.0, 0.95)],
            "no",
            f"{WINS.format('ppo')} latency of 500.00 ms at 93.00 % accuracy, 2.0 points less accurate.",
        ),
        ([("ppo", 1.5, 0.97), (LADDER, 1.0, 0.95)], "no", NOBODY),
        (
            [(FIXED, 1.0, 0.95), (LADDER, 1.25, 0.95)],
            "open",
            "No learned router took part. Of the rules tuned:fixed is the quickest in simulation (datasheet, 3 seeds): "
            "a mean latency of 1000.00 ms at 95.00 % accuracy, 20.0 +-0.5 % below that of tuned:ladder (95.00 % "
            "accuracy).",
        ),
        (
            [("jsq", 0.5, 0.93), (LADDER, 1.0, 0.95)],
            "open",
            "No learned router took part. In simulation (datasheet, 3 seeds) no rule wins: whoever is quicker is less "
            "accurate.",
        ),
    ],
)  # fmt: skip
def test_who_won(found: list[tuple[str, float, float]], mood: str, text: str) -> None:
    """A tenth of a point is comparable, more is not; every learned router is set beside a rule."""
    won, *_ = told(comparison(*found), None)
    assert (won.mood, won.text) == (mood, text)


@pytest.mark.parametrize("mean_s", [1.05, 0.95])
def test_what_is_not_significant_is_no_win_and_no_loss(mean_s: float) -> None:
    won, _, after = told(None, validation(("tide", 1.0, mean_s, 0.95), (LADDER, 1.0, 1.0, 0.95), odd=0.05))
    assert won.mood == "open"
    assert won.text.startswith("Not shown: on real executors")
    assert won.text.endswith("(95.00 % accuracy), not statistically significant.")
    assert "runs would tell" in after.text


def test_one_run_says_nothing_of_chance() -> None:
    won, _, after = told(comparison(("tide", 1.0, 0.95), (LADDER, 1.25, 0.95), wobble=(1.0,)), None)
    assert won.text.endswith("and one run says nothing of chance.")
    assert "Make more seeds" in after.text


def test_how_many_runs_would_tell() -> None:
    """An interval narrows with the root of their number: a difference of half its interval needs four times as many."""
    found = validation(("tide", 1.0, 1.05, 0.95), (LADDER, 1.0, 1.0, 0.95), odd=0.05)
    one, other = validated(found, "hardware").candidates
    lead: Any = one.lead(other)["difference"]
    needed = ceil(3 * (lead["ci95"] / lead["mean"]) ** 2)
    assert f"About {needed} runs would tell tuned:ladder from tide (there were 3)." in told(None, found)[2].text


def test_a_promise_is_told_and_that_nobody_keeps_it() -> None:
    """Who keeps most of it; what to do where that is too little; nothing of who is flagged."""
    runs = []
    for router, kept, unserved in (("tide", 0.5, 0.0), (LADDER, 0.25, 0.0), ("lost", 1.0, 0.5)):
        one = result(router, 1.0, 0.95, slo=Slo(0.9, 0.01))
        one["slo_attainment"], one["shares"]["unserved"] = {"both": kept, "floor": kept, "p99_limit": kept}, unserved
        runs.append(one)
    won, *_ = told(compare_results(runs), None)
    assert "Promised is an accuracy of at least 90.00 % and a p99 of at most 10.00 ms in each of 3 windows" in won.text
    assert won.text.endswith(": tide keeps most, 50.0 % of them.")
    runs[2]["shares"]["unserved"] = 0.0
    for kept, is_told in ((0.9, True), (0.99, False)):
        runs[2]["slo_attainment"] = {"both": kept, "floor": kept, "p99_limit": kept}
        assert ("Nobody keeps what is promised" in told(compare_results(runs), None)[2].text) == is_told


YES = (
    "Yes, its latencies are within what is promised. It orders 1 of 1 pair of routers that executors tell apart as they"
)
ORDER = (
    "For the order of the routers, not for milliseconds. It orders 3 of 3 pairs of routers that executors tell apart"
)


@pytest.mark.parametrize(
    ("found", "mood", "texts"),
    [
        (CLEAR, "yes", [YES, "mean latency -2.0 % (tide, 5 % allowed)"]),
        ((*CLEAR, (FIXED, 3.0, 2.0, 0.95)), "open", [ORDER, "mean latency +50.0 % (tuned:fixed, 5 % allowed); p99"]),
        ((*CLEAR, (FIXED, 1.5, 3.0, 0.95)), "open", ["mean latency -50.0 % (tuned:fixed, 5 % allowed)"]),
        (
            (("tide", 0.9, 1.3, 0.95), (LADDER, 1.2, 1.0, 0.95)),
            "no",
            ["No. It orders 0 of 1 pair of routers", "It had named another winner: tide, at 900.00 ms."],
        ),
    ],
)
def test_simulation_is_judged_by_the_router_that_it_is_farthest_off_for(
    found: Any, mood: str, texts: list[str]
) -> None:
    """Not by a mean of all; with what is allowed, and whether the order is right."""
    trusted = told(None, validation(*found))[1]
    assert trusted.mood == mood
    assert [text for text in texts if text not in trusted.text] == []


def test_what_nobody_checked_is_said() -> None:
    """Nothing ran; or the devices were emulated; or power was a formula."""
    one = comparison(("tide", 1.0, 0.95), (LADDER, 1.25, 0.95))
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
    assert won.text.startswith("Yes: on executors whose devices are emulated x20 (3 runs a router) tide has")
    assert trusted.text.endswith("The devices were emulated x20: nothing is said of real ones.")
    found["pairs"][0]["not_applicable"] = {"energy_per_image": "modelled"}
    assert "Energy was not metered on the hardware: nothing here checks it." in told(None, found)[1].text


def test_who_serves_too_little_has_not_won() -> None:
    runs = [result("ppo", 0.1, 0.95), result(LADDER, 1.0, 0.95), result(FIXED, 1.1, 0.95)]
    runs[0]["shares"] = {**runs[0]["shares"], "unserved": 0.1}
    won, _, after = told(compare_results(runs), None)
    assert (won.mood, won.text) == (
        "no",
        "No: in simulation (datasheet, 1 seed) ppo can't be judged, or left too much unserved.",
    )
    assert after.text.startswith("Lower the rate, or add a server")


def test_a_busy_host_comes_before_other_advice() -> None:
    found = validation(*CLEAR)
    found["rows"][0]["background_load"] = {"programs": 0.9, "stolen": 0.0}
    _, trusted, after = told(None, found)
    assert "part of the error is theirs" in trusted.text
    assert after.text.startswith("Stop what else runs on this host")


def test_nothing_side_by_side_has_no_box() -> None:
    """Saturated runs alone check nothing, either."""
    one, found = comparison(("tide", 1.0, 0.95), (LADDER, 1.25, 0.95)), validation(*CLEAR)
    found["rows"] = []
    assert answers(one, found) == answers(one, None)
    assert answers(None, found) == answers(None, None) == answers(comparison(("tide", 1.0, 0.95)), None) == []


@pytest.mark.parametrize("width", [40, 80, 120, None])
def test_all_fits_the_terminal(width: int | None) -> None:
    """The box and every table below it; the box is never wider than is good to read."""
    found = validation(*CLEAR)
    one = comparison(("tide", 1.0, 0.95), (LADDER, 1.25, 0.95))
    box = box_text(answers(one, found), width).splitlines()
    assert {len(line) for line in box} == {min(width or 100, 100)}
    if width is not None:
        lines = to_text([comparison_table(one), *errors_tables(found)], width).splitlines()
        assert max(map(len, lines)) <= width


# ------------------------------------------------------------------------------------------------------- who beats whom


def test_the_percentage_is_of_the_means() -> None:
    """A mean of percents over noisy repeats may be of the other sign than the difference of the means. An interval that
    is wider than the means leaves the sign alone to be told."""
    runs = [
        validation_run(result(router, 1.0, 0.95), result(router, s, 0.95, **HARDWARE), repeat=repeat)
        for router, of in (("tide", (4.0, 0.4)), ("b", (6.0, 0.1)))
        for repeat, s in enumerate(of)
    ]
    found = validate_results(runs, Provenance.MODELLED)
    one, other = validated(found, "hardware").candidates
    assert (one.lead(other)["percent"]["mean"] or 0.0) > 0
    assert "below that of b (runs differ too much to say by how much)" in told(None, found)[0].text


def test_leads_are_paired() -> None:
    """Repeats that are slow for all alike leave the difference sharp; of several seeds each is its repeats' mean."""
    found = validation(("a", 1.0, 1.0, 0.95), ("b", 1.0, 1.1, 0.95), wobble=(0.5, 1.0, 1.5))
    one, other = validated(found, "hardware").candidates
    assert one.lead(other)["percent"]["ci95"] == pytest.approx(0.0, abs=1e-9)
    assert (one.interval_s["ci95"] or 0) > 1.0
    runs = [
        validation_run(result("a", 1.0, 0.9, seed), result("a", s, 0.9, seed, **HARDWARE), repeat=repeat)
        for seed, of in ((0, (1.0, 3.0)), (1, (5.0, 7.0)))
        for repeat, s in enumerate(of)
    ]
    (alone,) = validated(validate_results(runs, Provenance.MODELLED), "hardware").candidates
    assert alone.latency_s == {0: pytest.approx(2.0), 1: pytest.approx(6.0)}


def test_the_winner_is_beaten_by_nobody() -> None:
    """A router of comparable accuracy that is quicker keeps another from winning, whomever that beats."""
    found = compared(comparison(("a", 2.0, 0.960), ("b", 1.0, 0.9592), ("c", 3.0, 0.9608), ("d", 4.0, 0.9609)))
    assert found.winner is not None
    assert found.winner.router == "b"
    assert found.next_of(found.winner).router == "a"


def test_the_picture_shows_who_ran() -> None:
    """Both worlds of a validation; of a comparison alone the simulated side."""
    found = validation(("tide", 0.9, 1.0, 0.95), (LADDER, 1.2, 1.25, 0.95))
    worlds = standings(comparison(("tide", 1.0, 0.95)), found)
    means_s = [next(one.mean_s for one in worlds[world] if one.router == "tide") for world in WORLDS]
    assert means_s == [pytest.approx(0.9), pytest.approx(1.0)]
    ((world, (alone,)),) = standings(comparison(("tide", 1.0, 0.95)), None).items()
    assert world == WORLDS[0]
    assert alone.accuracy == pytest.approx(0.95)
