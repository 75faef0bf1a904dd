from itertools import product

import numpy as np
import pytest

from policies.interfaces import AccuracyPrior
from policies.rules.lookahead import in_lots
from policies.rules.rule_context import RouterContext, worth_of_steps
from tests.policies.cluster_views import WIDTHS, context


def test_lots_are_equal_and_leave_nobody_out() -> None:
    assert [in_lots(images, 3) for images in (0, 1, 7, 9)] == [[0, 0, 0], [1, 0, 0], [3, 3, 1], [3, 3, 3]]


def test_the_worth_of_steps_is_that_of_tuples_worth_running() -> None:
    """A bad tuple that costs as much as good ones hardly counts, whatever it has."""
    worths = []
    for bad in (0.3, 0.5):
        table = {
            tuple(WIDTHS[w] for w in code): bad if code == (0, 3, 3, 3) else 0.6 + 0.01 * sum(code)
            for code in product(range(4), repeat=4)
        }
        given = context()
        worths.append(
            worth_of_steps(RouterContext(given.config, given.costs, AccuracyPrior(table), given.power_limits_w))
        )
    assert worths[0] == pytest.approx(worths[1], abs=1e-6)
    assert worths[0] == pytest.approx(np.full((4, 3), 0.01), abs=1e-6)


def test_the_worth_of_steps_adds_up_for_a_table_that_does() -> None:
    gains = np.array([[0.01, 0.0, 0.02], [0.03, 0.01, 0.01], [0.0, 0.0, 0.0], [0.05, 0.02, 0.01]])
    table = {
        tuple(WIDTHS[w] for w in code): 0.5 + sum(gains[s, :w].sum() for s, w in enumerate(code))
        for code in product(range(4), repeat=4)
    }
    given = context()
    made = RouterContext(given.config, given.costs, AccuracyPrior(table), given.power_limits_w)
    assert worth_of_steps(made) == pytest.approx(np.maximum(gains, 1e-5), abs=1e-9)
