"""A record begins as its declaration says."""

from __future__ import annotations

from policies.compiled.plan_layout import INT, REAL, Record


class Inner(Record):
    next = -1
    share = 0.5


class Outer(Record):
    count = INT
    inner = Inner.blank()
    weight = REAL
    last = first = 7


def test_fields_are_at_first_what_they_are_declared_as() -> None:
    made = Outer.blank()
    assert (made.count, made.weight, made.last, made.first) == (0, 0.0, 7, 7)
    assert (made.inner.next, made.inner.share) == (-1, 0.5)


def test_two_records_share_no_memory() -> None:
    one, other = Outer.blank(), Outer.blank()
    one.inner.share, one.last = 0.25, 8
    assert (other.inner.share, other.last) == (0.5, 7)
