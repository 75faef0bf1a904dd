"""Jobs that wait, kept as columns: against a sorted list."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from jobs.policies.preemption import WaitingClass

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
