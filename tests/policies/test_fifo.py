"""The keyed queue behaves as a plain list of (key, item) pairs would."""

from hypothesis import given
from hypothesis import strategies as st

from policies.router_queue import KeyedFifo

operations = st.lists(
    st.one_of(
        st.tuples(st.just("push"), st.integers(0, 3), st.integers(1, 4)),
        st.tuples(st.just("take"), st.integers(0, 3), st.integers(1, 5)),
        st.tuples(st.just("remove"), st.integers(0, 3), st.integers(2, 3)),
    ),
    max_size=40,
)


@given(operations)
def test_agrees_with_a_list(steps: list[tuple[str, int, int]]) -> None:
    """Head, order by age, lengths and every group taken are those of the plain list."""
    fifo: KeyedFifo[int] = KeyedFifo()
    model: list[tuple[int, int]] = []
    number = 0
    for operation, key, count in steps:
        if operation == "push":
            items = list(range(number, number + count))
            number += count
            fifo.push(key, items)
            model += [(key, item) for item in items]
        elif operation == "take":
            expected = [item for k, item in model if k == key][:count]
            assert list(fifo.peek(key, count)) == expected
            assert list(fifo.take(key, count)) == expected
            model = [(k, item) for k, item in model if not (k == key and item in expected)]
        else:
            doomed = {item for _, item in model if item % count == 0}
            expected = [item for k, item in model if k == key and item in doomed]
            assert list(fifo.remove(key, doomed)) == expected
            model = [(k, item) for k, item in model if not (k == key and item in doomed)]
        assert len(fifo) == len(model)
        assert fifo.head() == (model[0][0] if model else None)
        assert fifo.by_age() == list(dict.fromkeys(k for k, _ in model))
        assert all(fifo.length(k) == sum(k == other for other, _ in model) for k in range(4))


def test_fifo_whose_head_is_never_read_does_not_keep_taken_items() -> None:
    fifo: KeyedFifo[int] = KeyedFifo()
    for item in range(5000):
        fifo.push(item % 3, (item,))
        fifo.take(item % 3, 1)
    assert len(fifo) == 0
    assert len(fifo._order) < 100
