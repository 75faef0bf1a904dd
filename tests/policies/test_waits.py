"""Waits by index: when they may be chosen, what they mean, and which are none."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from kit.errors import InputError
from policies.observation import Waits, problem_with
from policies.vocabulary import BatchingDelay
from tests.policies.cluster_views import context, server, view

WAITS = Waits.of((0.001, 0.02), (1, 4, 16))
SEEN = view(server(), candidates=3)


def test_an_index_is_a_wait_for_the_next_larger_group() -> None:
    seen = msgspec.structs.replace(SEEN, batching_delay_left_ns=5_000_000)
    assert WAITS.mask(seen).tolist() == [True, True, True]
    assert [WAITS.batching_delay(index, seen) for index in (1, 2)] == [
        BatchingDelay(4, 1_000_000),
        BatchingDelay(4, 5_000_000),
    ]
    assert WAITS.batching_delay(1, msgspec.structs.replace(seen, candidates=4)) == BatchingDelay(16, 1_000_000)


def test_mask_without_a_possible_wait_leaves_only_the_immediate_choice() -> None:
    """A wait needs time left and a larger group; a rule without waits has no choice at all."""
    assert WAITS.mask(SEEN).tolist() == [True, False, False]
    assert WAITS.mask(msgspec.structs.replace(SEEN, batching_delay_left_ns=9, candidates=16)).tolist() == [
        True,
        False,
        False,
    ]
    assert Waits.of((), (1, 4)).mask(msgspec.structs.replace(SEEN, batching_delay_left_ns=9)).tolist() == []


@pytest.mark.parametrize("wrong", [(0.0,), (-1.0,), (0.02, 0.01), (0.01, 0.01), (float("nan"),), (1e-12,), (1e300,)])
def test_waits_ascend_and_are_above_0(wrong: tuple[float, ...]) -> None:
    assert "must ascend" in str(problem_with(wrong, 1.0))


def test_waits_are_within_the_limit() -> None:
    config = context().config
    with pytest.raises(
        InputError, match=r"batching_delays_s: .*no request may be delayed; set router.max_batching_delay_s above 0"
    ):
        Waits.within((0.01,), config)
    limited = replace(config, max_batching_delay_ns=10_000_000)
    assert Waits.within((0.01,), limited).waits_ns == (10_000_000,)
    with pytest.raises(InputError, match=r"0.02 is longer .* at most router.max_batching_delay_s \(0.01\); raise"):
        Waits.within((0.01, 0.02), limited)
