"""Each order is its paper's formula: worked examples by hand, on the same four jobs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.policies.job_cluster import JobArrived
from jobs.policies.job_orders import OBJECTIVES, ORDERS, Features, JobBook, order_of
from jobs.policies.named_policies import JobPolicy, policy_of, shown_name
from jobs.policies.preemption import WaitingClass
from jobs.policies.run_times import DurationHistory, GittinsTables, inverse_gittins_s
from kit.errors import InputError

S = 1_000_000_000
#           submitted, estimate, done, GPUs (all in seconds; it is 1000 s now, and all wait)
JOBS = [(10, 1000, 0, 1), (100, 100, 50, 8), (200, 400, 350, 4), (900, 100, 0, 2)]
NOW_S = 1000


def features(is_running: bool = False, restart_s: float = 0.0) -> Features:
    book = JobBook()
    for job, (submit_s, estimate_s, done_s, gpus) in enumerate(JOBS):
        book.submit_ns[job], book.estimate_ns[job] = submit_s * S, estimate_s * S
        book.done_ns[job], book.gpus[job], book.since_ns[job] = done_s * S, gpus, submit_s * S
    return Features(book, np.arange(len(JOBS)), NOW_S * S, is_running, restart_s)


def no_tables() -> GittinsTables:
    raise AssertionError("asked for without need")


# index of each by the formula, worked out by hand
EXPECTED = {
    "fifo": [10, 100, 200, 900],
    "smallest": [1, 8, 4, 2],
    "sjf": [1000, 100, 400, 100],
    "saf": [1000, 800, 1600, 200],
    "srtf": [1000, 50, 50, 100],
    "srsf": [1000, 400, 200, 200],
    "las": [0, 50, 350, 0],
    "2dlas": [0, 0, 0, 0],  # attained GPU seconds: 0, 400, 1400, 0; the second queue begins at 3200
    "round-robin": [10, 100, 200, 900],
    "wfp3": [-(0.99**3), -(9.0**3) * 8, -(2.0**3) * 4, -(1.0**3) * 2],
    "unicep": [-990 / (1e-9 * 1000), -900 / (3 * 100), -800 / (2 * 400), -100 / (1 * 100)],
    "f1": [3 * 1 + 870 * 1, 2 * 8 + 870 * 2, 2.602060 * 4 + 870 * 2.301030, 2 * 2 + 870 * 2.954243],
    "lcfs": [-10, -100, -200, -900],
    "lpf": [-1000, -100, -400, -100],
    "age-size": [-1016.666667, -970.833333, -993.518519, -989.814815],
}


def test_age_guard_orders_jobs_past_it_first_oldest_first() -> None:
    order = order_of("saf", no_tables).guarded(850 * S)
    assert np.argsort(order.index(features())).tolist() == [0, 1, 3, 2]
    assert order.wait_moves
    with pytest.raises(InputError, match="is of waiting jobs"):
        JobPolicy("las", "first-fit", "by-index", age_guard_ns=S)


ELSEWHERE = ("gittins", "multifactor", *OBJECTIVES)  # held against their definitions below, and in files of their own


@pytest.mark.parametrize("word", [word for word in ORDERS if word not in ELSEWHERE])
def test_an_order_is_its_formula(word: str) -> None:
    assert order_of(word, no_tables).index(features()).tolist() == pytest.approx(EXPECTED[word], rel=1e-6)


def test_an_order_is_the_same_for_one_job_as_for_many() -> None:
    for word in EXPECTED:
        order, book = order_of(word, no_tables), features()
        one_by_one = [Features(book._book, job, NOW_S * S, is_running=False) for job in range(len(JOBS))]
        assert [float(order.index(one)) for one in one_by_one] == order.index(book).tolist()


def test_the_gittins_index_of_two_durations_by_hand() -> None:
    """Durations 1 and 10, without restarts. At 0: stopping at 1 ends 1 of 2 for 1 + 1 s, so 2 s a job; going on to 10
    would end both for 1 + 10 s. At 5: the one that is left needs 5 s."""
    durations, points = np.array([1.0, 10.0]), np.array([0.0, 5.0, 20.0])
    once = np.ones(2)
    assert inverse_gittins_s(durations, once, points, 0.0)[:2].tolist() == [2.0, 5.0]
    assert inverse_gittins_s(durations, once, points, 0.0)[2] == 20.0  # nobody ran so long: once more as long
    thrice = inverse_gittins_s(durations, np.array([3.0, 1.0]), points, 0.0)  # three end of four, for 1 + 1 + 1 + 1 s
    assert thrice[0] == pytest.approx(4 / 3)
    with_restart = inverse_gittins_s(durations, once, points, 10.0)  # to 1: (2 * 10 + 2) / 1; to 10: (2 * 10 + 11) / 2
    assert with_restart[:2].tolist() == [15.5, 15.0]


def test_the_gittins_index_is_its_definition() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        durations = np.sort(rng.integers(1, 30, rng.integers(1, 15)).astype(float))
        attained, restart = float(rng.integers(0, 30)), float(rng.integers(0, 5))
        left = durations[durations > attained] - attained
        if len(left):
            ratios = [np.mean(left <= x) / (restart + np.mean(np.minimum(left, x))) for x in np.unique(left)]
            assert inverse_gittins_s(durations, np.ones(len(durations)), np.array([attained]), restart)[
                0
            ] == pytest.approx(1 / max(ratios))


def test_the_gittins_order_divides_by_gpus_and_learns_from_ends_alone() -> None:
    history = DurationHistory()
    tables = GittinsTables(history, restart_s=100.0)
    order = order_of("gittins", lambda: tables)
    small, large = JobArrived(0, 1, 0, vc="a"), JobArrived(1, 4, 0, vc="a")
    book = JobBook()
    book.gpus[:2] = 1, 4
    for job in (small, large):
        book.group[job.job] = history.number(job)
        tables.hear_of(int(book.group[job.job]))
    nothing_known = order.index(Features(book, np.arange(2), 0, is_running=False))
    assert nothing_known[1] == 4 * nothing_known[0]
    version = tables.version
    for _ in range(30):
        history.add(0, 100 * S)
        tables.learn(0)
    assert tables.version > version
    assert order.index(Features(book, np.arange(2), 0, is_running=False)).tolist() == [
        200.0,
        800.0,
    ]  # 100 s and a restart
    assert order.index(Features(book, np.arange(2), 0, is_running=True)).tolist() == [100.0, 400.0]


@pytest.mark.parametrize(
    "draw, inverse_s",
    [
        (lambda rng: 100.0 * rng.pareto(1.5, 3000), lambda a: (100 + a) / 1.5),  # it pays to stop at once: 1 / hazard
        (lambda rng: rng.uniform(0, 600, 3000), lambda a: (600 - a) / 2),  # or never: the mean of what is left
        (lambda rng: np.full(3000, 600.0), lambda a: 600 - a),
    ],
    ids=["pareto", "uniform", "constant"],
)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_the_index_learned_from_draws_is_near_that_of_their_law(
    draw: Callable[[np.random.Generator], Any], inverse_s: Callable[[float], float], scale: float
) -> None:
    """For jobs of 1 s as for those of days, where one in ten, a half and nine in ten are over, and between these."""
    durations_s = draw(np.random.default_rng(1))
    history = DurationHistory()
    tables = GittinsTables(history, restart_s=0.0)
    tables.hear_of(history.number(JobArrived(0, 1, 0)))
    for duration_s in durations_s:
        history.add(0, round(duration_s * scale * S))
        tables.learn(0)
    attained_s = np.quantile(durations_s, 0.9) * np.linspace(0.0, 0.99, 20)
    found = tables.inverse_s(np.zeros(20, int), attained_s * scale, True) / scale
    assert np.abs(found / [inverse_s(a) for a in attained_s] - 1).mean() < 0.15
    assert [tables.inverse_s(0, a, True) for a in attained_s * scale] == pytest.approx(found * scale, rel=1e-12)


def test_gittins_table_of_small_group_falls_back_to_a_wider_group() -> None:
    """30 jobs of 100 s in one VC, 40 of 1000 s in another: after 200 s the first VC's have 800 s left, as all have."""
    history = DurationHistory()
    tables = GittinsTables(history, restart_s=0.0)
    numbers = [history.number(JobArrived(0, 1, 0, vc=vc)) for vc in ("a", "b")]
    tables.hear_of(numbers[1])
    for number, duration_s, many in ((numbers[0], 100, 30), (numbers[1], 1000, 40)):
        for _ in range(many):
            history.add(number, duration_s * S)
            tables.learn(number)
    assert tables.inverse_s(numbers[0], 0.0, True) == 100.0
    assert tables.inverse_s(numbers[0], 200.0, True) == pytest.approx(800.0, rel=1e-3)
    assert tables.inverse_s(numbers[1], 200.0, True) == pytest.approx(800.0, rel=1e-3)


def test_a_group_that_has_not_seen_enough_is_not_asked() -> None:
    """29 jobs are too few: all 69 are asked, of whom most run long."""
    history = DurationHistory()
    tables = GittinsTables(history, restart_s=0.0)
    few, other = (history.number(JobArrived(0, 1, 0, vc=vc)) for vc in ("a", "b"))
    tables.hear_of(other)
    for number, duration_s, many in ((other, 1000, 40), (few, 100, 29)):
        for _ in range(many):
            history.add(number, duration_s * S)
            tables.learn(number)
    assert tables.inverse_s(few, 0.0, True) > 200.0


def test_history_comes_from_the_narrowest_group_that_has_seen_enough() -> None:
    history = DurationHistory()
    one = history.number(JobArrived(0, 2, 0, user="ann", vc="x"))
    same_vc = history.number(JobArrived(1, 2, 0, user="bob", vc="x"))
    other = history.number(JobArrived(2, 8, 0, user="bob", vc="y"))
    assert history.mean_ns(one) == 3600 * S  # nothing is known yet
    for _ in range(29):
        history.add(one, 10 * S)
    assert history.mean_ns(other) == 10 * S  # all jobs, for want of anything else
    history.add(same_vc, 100 * S)  # one of its user's own is not enough; thirty of its VC are
    assert history.mean_ns(same_vc) == 13 * S
    history.add(one, 10 * S)
    for _ in range(29):
        history.add(same_vc, 100 * S)
    assert (history.mean_ns(one), history.mean_ns(same_vc)) == (10 * S, 100 * S)
    assert history.mean_ns(history.number(JobArrived(3, 2, 0, user="eve", vc="x"))) == 55 * S
    assert history.mean_ns(other) == 55 * S


@pytest.mark.parametrize(
    "name, shown",
    [
        ("fifo-easy-oracle", "fifo-easy-oracle"),
        ("fifo-oracle-easy", "fifo-easy-oracle"),
        ("saf-history", "qssf"),
        ("saf-strict-oracle", "saf-oracle-strict"),
        ("las-consolidate", "las-consolidate"),
        ("fifo-first-fit", "fifo-first-fit"),
        ("saf-history-easy-48h", "qssf-easy-2d"),
        ("smallest-90m", "smallest-90m"),
    ],
)
def test_names_are_shown_in_one_form(name: str, shown: str) -> None:
    assert shown_name(policy_of(name)) == shown


def test_a_name_may_end_in_a_guard_of_age() -> None:
    assert policy_of("qssf-easy-50h").age_guard_ns == 50 * 3600 * S
    with pytest.raises(InputError, match="has no part '50h-easy'"):
        policy_of("qssf-50h-easy")
    with pytest.raises(InputError, match="of waiting jobs, not of running ones"):
        policy_of("las-2d")


def test_a_learned_policy_is_shown_with_the_order_that_it_sees() -> None:
    learned = JobPolicy("sjf", "choice", estimate="oracle", learned="rltune")
    assert shown_name(learned) == "rltune-sjf-oracle"


def test_learned_policy_without_a_choice_is_refused() -> None:
    with pytest.raises(InputError, match="does not use a learned choice"):
        JobPolicy(learned="rltune")


STEPS = st.lists(st.tuples(st.booleans(), st.integers(0, 40), st.sampled_from([0.0, 1.0, 2.0])), max_size=60)


@given(steps=STEPS)
def test_the_first_is_the_least_by_index_and_number(steps: list[tuple[bool, int, float]]) -> None:
    """Whoever comes and goes, in any order of numbers (who was preempted comes back between others)."""
    waiting, expected = WaitingClass(1, (), ()), dict[int, float]()
    for is_added, job, index in steps:
        if is_added and job not in expected:
            waiting.add(job, index)
            expected[job] = index
        elif not is_added and expected:
            first = min(expected, key=lambda number: (expected[number], number))
            assert waiting.key_at(waiting.head) == (expected[first], first)
            assert waiting.remove(waiting.head) == first
            del expected[first]
        if expected:
            assert waiting.jobs.tolist() == sorted(expected)
            may = waiting.jobs % 2 == 0
            odd_out = [number for number in expected if number % 2 == 0]
            place = waiting.first_of(may)
            least = min(odd_out, key=lambda number: (expected[number], number), default=None)
            assert (None if place is None else waiting.key_at(place)[1]) == least
            assert waiting.key_at(waiting.head)[0] == min(expected.values())
