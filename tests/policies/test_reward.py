import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.interfaces import AccuracyPrior, RewardWeights, reward_terms, variance

SHARES = st.floats(0, 1)


def test_reward_by_hand() -> None:
    """r = alpha p - beta L - gamma E - delta Var + bonus, each term with its sign."""
    weights = RewardWeights(alpha=2.0, beta=3.0, gamma=0.5, delta=10.0, bonus=0.25)
    terms = reward_terms(weights, p_acc=0.75, mean_accuracy=0.5, latency_s=0.1, energy_j=4.0, gpu_var=0.02)
    assert (terms.accuracy, terms.latency, terms.energy) == pytest.approx((1.5, -0.3, -2.0))
    assert (terms.imbalance, terms.bonus) == pytest.approx((-0.2, 0.25))
    assert terms.total == pytest.approx(1.5 - 0.3 - 2.0 - 0.2 + 0.25)


def test_centring_subtracts_the_mean_top1_before_alpha() -> None:
    weights = RewardWeights(alpha=2.0, beta=0.0, centre=True)
    figures = {"mean_accuracy": 0.7, "latency_s": 1.0, "energy_j": 1.0, "gpu_var": 1.0}
    assert reward_terms(weights, p_acc=0.7, **figures).total == 0.0
    assert reward_terms(weights, p_acc=0.8, **figures).accuracy == pytest.approx(0.2)


@given(st.lists(SHARES, min_size=1, max_size=8), st.floats(0, 1))
def test_variance_ignores_a_common_shift_and_vanishes_when_equal(shares: list[float], shift: float) -> None:
    """Var(x + c) = Var(x) >= 0, and equal utilizations have none."""
    assert variance(shares) >= 0
    assert variance([share + shift for share in shares]) == pytest.approx(variance(shares), abs=1e-9)
    assert variance([shift] * len(shares)) == pytest.approx(0, abs=1e-12)


def test_variance_is_the_populations() -> None:
    """Two servers at 0 and 1 have a quarter: the sum over N, not over N - 1."""
    assert variance([0.0, 1.0]) == 0.25


WIDTHS = (0.1, 0.2, 0.3, 0.6, 1.0)  # most are no binary fractions: 0.3 - 0.2 is not 0.2 - 0.1
TABLES = st.dictionaries(st.tuples(*[st.sampled_from(WIDTHS)] * 3), SHARES, min_size=1, max_size=12)
ASKED = st.lists(st.sampled_from((*WIDTHS, 0.4, 0.8)), min_size=1, max_size=3).map(tuple)


@given(TABLES, ASKED)
def test_any_prior_is_the_mean_of_the_nearest_beginning(
    table: dict[tuple[float, ...], float], asked: tuple[float, ...]
) -> None:
    """By hand, in whole tenths: the nearest beginning of that length, the smallest of equals; then its tuples' mean."""
    tenths = [round(10 * width) for width in asked]

    def distance(known: tuple[float, ...]) -> int:
        return sum(abs(round(10 * a) - b) for a, b in zip(known, tenths, strict=True))

    beginnings = sorted({known[: len(asked)] for known in table})
    least = min(map(distance, beginnings))
    nearest = next(known for known in beginnings if distance(known) == least)
    values = [value for known, value in table.items() if known[: len(asked)] == nearest]
    assert AccuracyPrior(table)(asked) == pytest.approx(sum(values) / len(values))


@given(TABLES)
def test_means_of_prefixes_keep_within_what_they_are_means_of(table: dict[tuple[float, ...], float]) -> None:
    """A complete tuple has its own value; a prefix is between its tuples' least and most; order is nothing."""
    prior, reverse = AccuracyPrior(table), AccuracyPrior(dict(reversed(table.items())))
    assert prior.mean_accuracy == pytest.approx(sum(table.values()) / len(table))
    for widths, value in table.items():
        assert prior(widths) == value
        for length in (1, 2):
            values = [v for known, v in table.items() if known[:length] == widths[:length]]
            assert min(values) - 1e-12 <= prior(widths[:length]) <= max(values) + 1e-12
            assert reverse(widths[:length]) == prior(widths[:length])


def test_prior_refuses_what_it_cannot_answer() -> None:
    """An empty table, one of two lengths, and a tuple longer than the table's, are errors."""
    with pytest.raises(ValueError, match="at least one"):
        AccuracyPrior({})
    with pytest.raises(ValueError, match="one length"):
        AccuracyPrior({(1.0,): 0.5, (1.0, 1.0): 0.6})
    with pytest.raises(ValueError, match="length 3"):
        AccuracyPrior({(1.0, 1.0): 0.5})((1.0, 1.0, 1.0))
