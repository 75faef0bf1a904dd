"""The box that a run begins with: did a learned router win, can the simulation be trusted, what to do next."""

from __future__ import annotations

from math import ceil
from typing import Any

import pytest

from scenarios.metrics.comparison import Comparison, compare_results
from scenarios.metrics.fidelity import Validation
from scenarios.metrics.service import Promise
from scenarios.show.answers import Answer, answers, box_text
from scenarios.show.comparison import comparison_tables
from scenarios.show.table import to_text
from scenarios.show.validation import errors_tables
from tests.scenarios.test_verdict import FIXED, LADDER, comparison, result, validation

CLEAR = ("tide", 0.98, 1.0, 0.95), (LADDER, 1.24, 1.25, 0.9495)
LOST = ("tide", 1.25, 1.3, 0.95), (LADDER, 1.0, 1.0, 0.95)


def told(one: Comparison | None, other: Validation | None) -> tuple[Answer, Answer, Answer]:
    won, trusted, after = answers(one, other)
    assert [won.question, trusted.question, after.question] == [
        "Did a learned router win?", "Can the simulation be trusted?", "What to do next?"
    ]  # fmt: skip
    return won, trusted, after


def test_a_learned_router_that_wins() -> None:
    """By how much, beside whom, and at which accuracy; what simulation says of it comes after what executors do."""
    found = comparison(("tide", 0.9, 0.95), (LADDER, 1.2, 0.95))
    won, _, after = told(found, validation(*CLEAR))
    assert won.mood == "yes"
    assert won.text.startswith(
        "Yes: on real executors (3 runs a router) tide has a mean latency of 1000.00 ms at 95.00 % accuracy, "
        "20.0 +-0.5 % below that of tuned:ladder (94.95 % accuracy). Yes: in simulation (datasheet, 3 seeds) tide has"
    )
    assert "Serve with tide" in after.text


def test_a_learned_router_that_loses() -> None:
    """The rule that wins, and how far behind the best learned one is."""
    won, _, after = told(None, validation(*LOST, ("ppo", 5.0, 5.0, 0.95)))
    assert won.mood == "no"
    assert won.text == (
        "No: on real executors (3 runs a router) tuned:ladder (a rule) wins with 1000.00 ms at 95.00 % accuracy; tide "
        "has a mean latency of 1300.00 ms at 95.00 % accuracy, 30.0 +-0.7 % above that of tuned:ladder."
    )
    assert "train the learned routers for longer" in after.text


def test_what_chance_explains_is_no_win_and_no_loss() -> None:
    """How many runs would tell, where that is a number that somebody can make."""
    for mean_s in (1.05, 0.95):
        won, _, after = told(None, validation(("tide", 1.0, mean_s, 0.95), (LADDER, 1.0, 1.0, 0.95), odd=0.05))
        assert won.mood == "open"
        assert won.text.startswith("Not shown: on real executors")
        assert won.text.endswith("which chance explains.")
        assert "runs would tell" in after.text
    single = comparison(("tide", 1.0, 0.95), (LADDER, 1.25, 0.95), wobble=(1.0,))
    won, _, after = told(single, None)
    assert won.text.endswith("and one run says nothing of chance.")
    assert "Make more seeds" in after.text


def test_how_many_runs_would_tell() -> None:
    """An interval narrows with the root of their number: a difference of half its interval needs four times as many."""
    found = validation(("tide", 1.0, 1.05, 0.95), (LADDER, 1.0, 1.0, 0.95), odd=0.05)
    lead = _lead(found)
    needed = ceil(3 * (lead["ci95"] / lead["mean"]) ** 2)
    assert f"About {needed} runs would tell tuned:ladder from tide (there were 3)." in told(None, found)[2].text


def _lead(found: Validation) -> Any:
    from scenarios.metrics.standing import validated

    one, other = validated(found, "hardware").contenders
    return one.lead(other)["difference"]


def test_rules_alone() -> None:
    won, _, after = told(comparison((FIXED, 1.0, 0.95), (LADDER, 1.25, 0.95)), None)
    assert won.mood == "open"
    assert won.text == (
        "No learned router took part. Of the rules tuned:fixed is the quickest in simulation (datasheet, 3 seeds): a "
        "mean latency of 1000.00 ms at 95.00 % accuracy, 20.0 +-0.5 % below that of tuned:ladder (95.00 % accuracy)."
    )
    assert "Serve with tuned:fixed" in after.text


def test_a_promise_is_told_and_that_nobody_keeps_it() -> None:
    """Who keeps most of it; what to do where that is too little; nothing of who is marked."""
    runs = []
    for router, kept, unserved in (("tide", 0.5, 0.0), (LADDER, 0.25, 0.0), ("lost", 1.0, 0.5)):
        one = result(router, 1.0, 0.95, promise=Promise(0.9, 0.01))
        one["kept"], one["shares"]["unserved"] = {"both": kept, "floor": kept, "p99_limit": kept}, unserved
        runs.append(one)
    won, *_ = told(compare_results(runs), None)
    assert "Promised is an accuracy of at least 90.00 % and a p99 of at most 10.00 ms in each of" in won.text
    assert won.text.endswith(": tide keeps most, 50.0 % of them.")
    runs[2]["shares"]["unserved"] = 0.0
    runs[2]["kept"] = {"both": 0.9, "floor": 0.9, "p99_limit": 0.9}
    assert "Nobody keeps what is promised all the time" in told(compare_results(runs), None)[2].text
    runs[2]["kept"] = {"both": 0.99, "floor": 0.99, "p99_limit": 0.99}
    assert "Nobody keeps" not in told(compare_results(runs), None)[2].text


def test_where_numbers_come_from_is_told_in_words() -> None:
    found = comparison(("tide", 1.0, 0.95), (LADDER, 1.25, 0.95))
    emulated: Any = {**found, "provenance": "emulated", "emulated_slowdowns": [4.0], "accuracy_provenance": "paper"}
    text = told(emulated, None)[1].text
    assert "Its devices are emulated, 4 times as slow as the real ones: they play profiles." in text
    assert text.endswith("Accuracies are of the paper, and of no network.")


def test_who_is_quick_and_inaccurate_has_not_won() -> None:
    won, *_ = told(comparison(("ppo", 0.5, 0.93), (LADDER, 1.0, 0.95), (FIXED, 2.0, 0.95)), None)
    assert won.mood == "no"
    assert won.text.endswith("; ppo has a mean latency of 500.00 ms at 93.00 % accuracy, 2.0 points less accurate.")


def test_simulation_is_judged_by_the_router_that_it_is_farthest_off_for() -> None:
    """Not by a mean of all; with what is allowed, and whether the order is right."""
    good = told(None, validation(*CLEAR))[1]
    assert good.mood == "yes"
    assert good.text.startswith("Yes, its latencies are within what is promised. It orders 1 of 1 pair of routers")
    far = told(None, validation(*CLEAR, (FIXED, 3.0, 2.0, 0.95)))[1]
    assert far.mood == "open"
    assert far.text.startswith("For the order of the routers, not for milliseconds. It orders 3 of 3 pairs of routers")
    assert "Where it is farthest off: mean latency +50.0 % (tuned:fixed, 5 % allowed); p99 latency" in far.text
    low = told(None, validation(*CLEAR, (FIXED, 1.5, 3.0, 0.95), ("random", 4.4, 4.0, 0.95)))[1]
    assert "mean latency -50.0 % (tuned:fixed, 5 % allowed)" in low.text
    wrong = told(None, validation(("tide", 0.9, 1.3, 0.95), (LADDER, 1.2, 1.0, 0.95)))[1]
    assert wrong.mood == "no"
    assert wrong.text.startswith("No. It orders 0 of 1 pair of routers that executors tell apart as they do.")


def test_what_nobody_checked_is_said() -> None:
    """Nothing ran; or the devices were emulated; or power was a formula."""
    simulated = told(comparison(("tide", 1.0, 0.95), (LADDER, 1.25, 0.95)), None)
    unknown = "Not known: nothing of this was run on executors."
    assert simulated[1].text == f"{unknown} Its devices come from datasheets: nothing of them was measured."
    assert "slimsched validate" in simulated[2].text
    found = validation(*CLEAR)
    for pair in found["pairs"]:
        pair["hardware"]["emulated_slowdowns"] = [20.0]
        pair["not_applicable"] = {}
    text = told(None, found)[1].text
    assert "The devices were emulated x20: nothing is said of real ones." in text
    assert "Energy" not in text
    found["pairs"][0]["not_applicable"] = {"energy_per_image": "modelled"}
    assert "Energy was not metered on the hardware: nothing here checks it." in told(None, found)[1].text


def test_saturated_runs_alone_check_nothing() -> None:
    """A validation that has no row at any load is none."""
    found = validation(*CLEAR)
    found["rows"] = []
    one = comparison(("tide", 1.0, 0.95), (LADDER, 1.25, 0.95))
    assert answers(one, found) == answers(one, None)
    assert answers(None, found) == []


def test_who_serves_too_little_has_not_won() -> None:
    runs = [result("ppo", 0.1, 0.95), result(LADDER, 1.0, 0.95), result(FIXED, 1.1, 0.95)]
    runs[0]["shares"] = {**runs[0]["shares"], "unserved": 0.1}
    won, _, after = told(compare_results(runs), None)
    assert won.mood == "no"
    assert won.text.endswith("1 seed) ppo can't be judged, or left too much unserved.")
    assert after.text.startswith("Lower the rate, or add a server")


def test_a_busy_host_comes_before_other_advice() -> None:
    found = validation(*CLEAR)
    found["rows"][0]["foreign_load"] = {"programs": 0.9, "stolen": 0.0}
    _, trusted, after = told(None, found)
    assert "part of the error is theirs" in trusted.text
    assert after.text.startswith("Stop what else runs on this host")


def test_nothing_side_by_side_has_no_box() -> None:
    assert answers(None, None) == []
    assert answers(comparison(("tide", 1.0, 0.95)), None) == []


@pytest.mark.parametrize("width", [40, 80, 120, None])
def test_all_fits_the_terminal(width: int | None) -> None:
    """The box and every table below it; the box is never wider than is good to read."""
    found = validation(*CLEAR)
    one = comparison(("tide", 1.0, 0.95), (LADDER, 1.25, 0.95))
    box = box_text(answers(one, found), width).splitlines()
    assert len({len(line) for line in box}) == 1
    assert len(box[0]) == min(width or 100, 100)
    if width is not None:
        lines = to_text([*comparison_tables(one), *errors_tables(found)], width).splitlines()
        assert max(map(len, lines)) <= width
