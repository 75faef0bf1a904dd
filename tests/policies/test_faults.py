"""When a dead server's process may start again."""

from hypothesis import given
from hypothesis import strategies as st

from policies.faults import RestartPlan, Supervision

RULES = Supervision(backoff_ns=10, backoff_limit_ns=50, stable_ns=1000)


def test_the_wait_doubles_with_each_death_in_a_row_up_to_its_limit() -> None:
    plan = RestartPlan(RULES)
    plan.came_up(0)
    assert [plan.restart_at_ns(now) - now for now in (5, 20, 50, 100)] == [10, 20, 40, 50]


def test_a_worker_that_was_stable_begins_a_new_row() -> None:
    """Up for exactly `stable_ns` is stable; a nanosecond less is not."""
    for up_ns, wait_ns in ((1000, 10), (999, 20)):
        plan = RestartPlan(RULES)
        plan.came_up(0)
        plan.restart_at_ns(1)
        plan.came_up(100)
        assert plan.restart_at_ns(100 + up_ns) == 100 + up_ns + wait_ns


@given(st.integers(1, 200))
def test_no_number_of_deaths_makes_it_wait_longer_than_the_limit(deaths: int) -> None:
    """Doubling without end must not overflow anything."""
    plan = RestartPlan(Supervision())
    waits = [plan.restart_at_ns(0) for _ in range(deaths)]
    assert waits == sorted(waits)
    assert waits[-1] <= Supervision().backoff_limit_ns
