"""The paragraph that a run ends with: who won, by how much, and what simulation was worth; sentence by sentence."""

from __future__ import annotations

from typing import Any

import pytest

from policies.vocabulary import Provenance
from scenarios.metrics.comparison import Comparison, compare_results
from scenarios.metrics.fidelity import Validation, ValidationRun, validate_results
from scenarios.metrics.result import Result
from scenarios.metrics.service import Promise
from scenarios.metrics.standing import compared, validated
from scenarios.show.standing_bars import standing_bars
from scenarios.show.verdict import verdict
from tests.scenarios.folders import summary, validation_run
from tests.scenarios.test_result import WINDOW, record, request

LADDER, FIXED = "tuned:ladder", "tuned:fixed"
HARDWARE: Any = {"mode": "hardware", "engine": "torch"}
WOBBLE = (0.99, 1.0, 1.01)


def result(router: str, latency_s: float, accuracy: float, seed: int = 0, **changes: Any) -> Result:
    """A run with this mean latency and accuracy."""
    made = summary(record(request(0, 3, latency_s), ended_s=20), router=router, seed=seed, **WINDOW, **changes)
    return {**made, "expected_accuracy": accuracy}


def comparison(*found: tuple[str, float, float], wobble: tuple[float, ...] = WOBBLE) -> Comparison:
    """Of (router, latency, accuracy), over seeds that are slow or quick for all alike."""
    runs = [result(r, s * by, top1, seed) for r, s, top1 in found for seed, by in enumerate(wobble)]
    return compare_results(runs)


def validation(
    *found: tuple[str, float, float, float], wobble: tuple[float, ...] = WOBBLE, odd: float = 0.0
) -> Validation:
    """Of (router, simulated, hardware, accuracy) with repeats of one seed; `odd` moves every second router's against
    the others'."""
    runs: list[ValidationRun] = []
    for number, (router, simulated_s, hardware_s, top1) in enumerate(found):
        own = [by + (odd * (repeat - 1) if number % 2 else 0.0) for repeat, by in enumerate(wobble)]
        for repeat, by in enumerate(own):
            twins = result(router, simulated_s, top1), result(router, hardware_s * by, top1, **HARDWARE)
            runs.append(validation_run(*twins, repeat=repeat))
    return validate_results(runs, Provenance.MODELLED)


def test_a_clear_win() -> None:
    """The winner, by how much with its interval, at which accuracy; what was promised, how far off, and the order."""
    found = validation(("tide", 0.9, 1.0, 0.95), (LADDER, 1.2, 1.25, 0.9495), ("random", 3.0, 2.0, 0.90))
    assert verdict(None, found) == (
        "On real executors (3 runs a router) tide wins: a mean latency of 1000.00 ms at 95.00 % accuracy, 20.0 +-0.5 % "
        "below that of tuned:ladder (94.95 % accuracy), the quickest other of comparable accuracy. "
        "Simulation of the same arrivals had promised 900.00 ms for tide. "
        "Its mean latencies are off by -10.0 to +50.0 %, its p99 by -10.0 to +50.0 %. "
        "The executors tell 3 of 3 pairs of routers apart (the paired 95 % interval leaves 0 out); "
        "simulation orders all of these alike."
    ).replace("-10.0 to", _low_error(found, "latency_mean"))


def _low_error(found: Validation, stem: str) -> str:
    """The least error of the routers, which the wobble moves by a hundredth of a percent."""
    return f"{min(row['error_pct'][stem]['mean'] or 0.0 for row in found['rows']):+.1f} to"


def test_what_is_kept_of_a_promise_comes_before_all() -> None:
    """The three that keep most, of equals the thrifty one first; energy with its sign; nobody who is marked."""
    found = {"fifth": (0.5, 3.0), "dear": (1.0, 4.0), "thrifty": (1.0, 2.0), "lean": (0.75, 1.0), "lost": (1.0, 0.1)}
    runs = []
    for router, (kept, joules) in found.items():
        one = result(router, 1.0, 0.95, promise=Promise(0.9, 0.01))
        one["kept"], one["energy_per_image_j"]["total"] = {"both": kept, "floor": kept, "p99_limit": kept}, joules
        one["shares"]["unserved"] = 0.5 if router == "lost" else 0.0
        runs.append(one)
    text = verdict(compare_results(runs), validation(("tide", 0.9, 1.0, 0.95), (LADDER, 1.2, 1.25, 0.9495)))
    assert text.startswith(
        "In simulation (datasheet, 1 seed), of what is promised, an accuracy of at least 90.00 % and a p99 of at most "
        "10.00 ms in each of 3 windows of 2.67 s, most is kept by thrifty 100.0 % (p99 1.000 s, accuracy 100.00 %, "
        "2.00 J/image), dear 100.0 % (p99 1.000 s, accuracy 100.00 %, 4.00 J/image: +100.0 %), lean 75.0 % "
        "(p99 1.000 s, accuracy 100.00 %, 1.00 J/image: -50.0 %). On real executors"
    )


def test_who_never_keeps_a_promise_does_not_keep_most_of_it() -> None:
    runs = []
    for router, kept in (("tide", 0.5), ("never", 0.0)):
        one = result(router, 1.0, 0.95, promise=Promise(0.9, 0.01))
        one["kept"] = {"both": kept, "floor": kept, "p99_limit": kept}
        runs.append(one)
    text = verdict(compare_results(runs), None)
    assert "most is kept by tide 50.0 %" in text
    assert "never 0.0 %" not in text


def test_a_clear_loss_comes_first() -> None:
    """A learned router that a rule beats is the first thing to be read."""
    found = validation(("tide", 1.0, 1.3, 0.95), (LADDER, 1.2, 1.0, 0.95), ("ppo", 1.0, 1.1, 0.94))
    text = verdict(None, found)
    losses, rest = text.split(" On real executors (3 runs a router) tuned:ladder wins: ")
    assert losses == (
        "On real executors (3 runs a router) the learned router tide loses: its mean latency, 1300.00 ms at 95.00 % "
        "accuracy, is 30.0 +-0.7 % above that of tuned:ladder (a rule, 95.00 % accuracy). "
        "On real executors (3 runs a router) the learned router ppo loses: its mean latency, 1100.00 ms at 94.00 % "
        "accuracy, is 10.0 +-0.2 % above that of tuned:ladder (a rule, 95.00 % accuracy)."
    )
    assert rest.startswith("a mean latency of 1000.00 ms at 95.00 % accuracy, 23.1 +-0.6 % below that of tide")


def test_a_tie_is_no_win() -> None:
    """Where the paired interval has 0 in it, chance explains the difference, and the machine is called noisy."""
    found = validation(("tide", 1.0, 1.0, 0.95), (LADDER, 1.0, 1.05, 0.95), odd=0.2)
    text = verdict(None, found)
    assert "it is a tie: tide has a mean latency of 1000.00 ms" in text
    assert "below that of tuned:ladder (95.00 % accuracy), which chance explains." in text
    assert "wins" not in text
    assert "loses" not in text
    assert (
        "The executors tell none of 1 pair of routers apart: their mean latencies span 1000.00 ms to 1050.00 ms" in text
    )
    assert "differs by up to 21.0 %. This machine is too noisy to tell them apart, or too little was run." in text


def test_a_learned_router_that_is_hardly_slower_has_not_lost() -> None:
    """It can't be told apart from the rule that is a little quicker; said once."""
    second = validation((LADDER, 1.0, 1.0, 0.95), ("tide", 1.0, 1.05, 0.95), odd=0.2)
    assert "it is a tie: tuned:ladder" in verdict(None, second)
    assert "loses" not in verdict(None, second)
    assert "can't be told apart" not in verdict(None, second)
    third = validation((LADDER, 1.0, 1.0, 0.95), ("tide", 1.0, 1.05, 0.95), (FIXED, 1.0, 1.02, 0.95), odd=0.2)
    assert "tide and tuned:ladder can't be told apart: 1050.00 ms" in verdict(None, third)


def test_simulation_that_orders_wrongly_is_told() -> None:
    """It named another winner, and of the pairs that the executors tell apart it orders some the other way."""
    found = validation(("tide", 0.9, 1.3, 0.95), (LADDER, 1.2, 1.0, 0.95), ("random", 3.0, 3.0, 0.95))
    text = verdict(None, found)
    promised = (
        "Simulation of the same arrivals had promised 1200.00 ms for tuned:ladder, and another winner: tide, at 900"
    )
    assert promised in text
    assert "tell 3 of 3 pairs of routers apart" in text
    assert text.endswith("simulation orders 2 of these alike.")


def test_only_simulated() -> None:
    """The same of a comparison, by seed, and that nothing ran on executors."""
    text = verdict(comparison(("random", 2.0, 0.9), (LADDER, 1.25, 0.95), ("tide", 1.0, 0.95)), None)
    assert text == (
        "In simulation (datasheet, 3 seeds) tide wins: a mean latency of 1000.00 ms at 95.00 % accuracy, 20.0 +-0.5 % "
        "below that of tuned:ladder (95.00 % accuracy), the quickest other of comparable accuracy. "
        "Nothing of this was run on executors."
    )


def test_both_documents() -> None:
    """Executors come first; of the comparison its winner is told."""
    found = validation(("tide", 0.9, 1.0, 0.95), (LADDER, 1.2, 1.25, 0.95))
    text = verdict(comparison(("tide", 1.0, 0.95), (LADDER, 1.25, 0.95)), found)
    assert text.startswith("On real executors")
    assert "In simulation (datasheet, 3 seeds) tide wins:" in text
    assert "Nothing of this" not in text


def test_who_serves_too_little_is_left_out() -> None:
    """However quick: it is named, and can't win; where that leaves one, nobody wins."""
    quick = [result("ppo", 0.1, 0.95, seed) for seed in range(3)]
    for run in quick:
        run["shares"] = {**run["shares"], "completed": 0.9, "failed": 0.1, "unserved": 0.1}
    rest = [result(router, s, 0.95, seed) for router, s in (("tide", 1.0), (LADDER, 2.0)) for seed in range(3)]
    text = verdict(compare_results([*quick, *rest]), None)
    assert text.startswith("In simulation (datasheet, 3 seeds) ppo left more than 1 % of the images unserved")
    assert "tide wins" in text
    assert "nobody wins: tide alone can be judged." in verdict(compare_results([*quick, *rest[:3]]), None)


def test_quick_and_inaccurate_is_no_win() -> None:
    """A tenth of a point is comparable, more is not: who is quicker and less accurate beats nobody, and is told."""
    text = verdict(comparison(("ppo", 0.5, 0.93), ("tide", 1.0, 0.95), (LADDER, 1.25, 0.9509)), None)
    assert "tide wins" in text
    assert "ppo is not set beside tide: 500.00 ms, but 2.0 points less accurate." in text
    assert "nobody wins: whoever is quicker is less accurate, by more than 0.1 points." in verdict(
        comparison(("ppo", 0.5, 0.93), ("tide", 1.0, 0.95)), None
    )


def test_the_levelled_ladder_is_told_beside_a_learned_router() -> None:
    """Also where another rule is the rival."""
    text = verdict(comparison(("tide", 1.0, 0.95), (FIXED, 1.1, 0.9505), (LADDER, 1.25, 0.95)), None)
    assert "below that of tuned:fixed" in text
    assert "Levelled, tide's mean latency is 20.0 +-0.5 % below that of tuned:ladder." in text


def test_a_single_run_tells_nothing_of_chance() -> None:
    """No interval, so no win."""
    text = verdict(comparison(("tide", 1.0, 0.95), (LADDER, 1.25, 0.95), wobble=(1.0,)), None)
    assert "tide is the quickest, but a single run says nothing of chance" in text
    assert "wins" not in text


def test_emulated_devices_are_named() -> None:
    """Nobody takes them for real ones."""
    found = validation(("tide", 0.9, 1.0, 0.95), (LADDER, 1.2, 1.25, 0.95))
    for pair in found["pairs"]:
        pair["hardware"]["emulated_slowdowns"] = [20.0]
    assert verdict(None, found).startswith("On executors whose devices are emulated x20 (3 runs a router) tide wins")


def test_nothing_to_say() -> None:
    """No documents, no paragraph; one that is older than values by seed is judged by nobody."""
    assert verdict(None, None) == ""
    old = comparison(("tide", 1.0, 0.95), (LADDER, 1.25, 0.95))
    for row in old["rows"]:
        del row["by_seed"]
    assert "nobody wins: no router can be judged." in verdict(old, None)


def test_the_percentage_is_of_the_means() -> None:
    """A mean of percents over noisy repeats may be of the other sign than the difference of the means. An interval that
    is wider than the means leaves the sign alone to be told."""
    runs = [
        validation_run(result(router, 1.0, 0.95), result(router, s, 0.95, **HARDWARE), repeat=repeat)
        for router, of in (("a", (4.0, 0.4)), ("b", (6.0, 0.1)))
        for repeat, s in enumerate(of)
    ]
    found = validate_results(runs, Provenance.MODELLED)
    one, other = validated(found, "hardware").contenders
    assert (one.lead(other)["percent"]["mean"] or 0.0) > 0
    text = verdict(None, found)
    tie = "it is a tie: a has a mean latency of 2200.00 ms at 95.00 % accuracy, below that of b"
    assert f"{tie} (runs differ too much to say by how much)" in text


def test_leads_are_paired() -> None:
    """Repeats that are slow for all alike leave the difference sharp; of several seeds each is its repeats' mean."""
    found = validation(("a", 1.0, 1.0, 0.95), ("b", 1.0, 1.1, 0.95), wobble=(0.5, 1.0, 1.5))
    one, other = validated(found, "hardware").contenders
    assert one.lead(other)["percent"]["ci95"] == pytest.approx(0.0, abs=1e-9)
    assert (one.interval_s["ci95"] or 0) > 1.0
    runs = [
        validation_run(result("a", 1.0, 0.9, seed), result("a", s, 0.9, seed, **HARDWARE), repeat=repeat)
        for seed, of in ((0, (1.0, 3.0)), (1, (5.0, 7.0)))
        for repeat, s in enumerate(of)
    ]
    (alone,) = validated(validate_results(runs, Provenance.MODELLED), "hardware").contenders
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
    both = {bar.router: bar for bar in standing_bars(comparison(("tide", 1.0, 0.95)), found)}
    simulated_s, hardware_s = both["tide"].simulated_s, both["tide"].hardware_s
    assert simulated_s is not None
    assert hardware_s is not None
    assert simulated_s["mean"] == pytest.approx(0.9)
    assert hardware_s["mean"] == pytest.approx(1.0)
    (alone,) = standing_bars(comparison(("tide", 1.0, 0.95)), None)
    assert alone.hardware_s is None
    assert alone.simulated_accuracy == pytest.approx(0.95)
