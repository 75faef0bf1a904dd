import numpy as np
import numpy.typing as npt
import pytest
import torch

from kit.jit import entry, singles
from policies.ppo.kernels import TILE, Layout, exp, multiply, tanh
from scenarios.files.scenario_keys import TrainingSection
from scenarios.learn.ppo import loss_of
from tests.policies.ppo.problems import (
    BATCHING_DELAYS_S,
    act_on,
    masked_softmax,
    network_of,
    seen_by,
    spec_of,
    tensors_of,
)

Row = npt.NDArray[np.float32]

# ------------------------------------------------------------------------------------------------------ arithmetic


@entry
def _exps(x: Row) -> None:
    for i in range(len(x)):
        x[i] = exp(x[i])


@entry
def _tanhs(x: Row) -> None:
    for i in range(len(x)):
        x[i] = tanh(x[i])


@entry
def _product(c: Row, a: Row, b: Row) -> None:
    multiply(singles(c), 0, singles(a), 0, singles(b), 0, c.shape[0], b.shape[0], c.shape[1])


def test_exp_is_good_to_a_float32s_rounding() -> None:
    """Over all of its range; beyond it is exactly 0, which is what a masked logit must have."""
    x = np.linspace(-87, 88, 200_001, dtype=np.float32)
    y = x.copy()
    _exps(y)
    true = np.exp(x.astype(np.float64))
    assert np.max(np.abs(y - true) / true) < 1.2e-7
    ends = np.array([0.0, -87.1, -1e9], np.float32)
    _exps(ends)
    assert ends.tolist() == [1.0, 0.0, 0.0]


def test_tanh_is_good_to_2e_7() -> None:
    """Over all of its range and near 0, where it is exactly 0 at 0: what is padded stays 0."""
    x = np.concatenate([np.linspace(-20, 20, 200_001), np.linspace(-0.01, 0.01, 50_001), [-1e9, 1e9]])
    y = x.astype(np.float32)
    _tanhs(y)
    assert np.max(np.abs(y - np.tanh(x.astype(np.float32).astype(np.float64)))) < 2e-7
    assert y[100_000] == 0 == x[100_000]


@pytest.mark.parametrize("rows", [1, 3, 4, 7, 32])
@pytest.mark.parametrize("terms", [0, 4, 12, 64])
@pytest.mark.parametrize("columns", [16, 48, 80])
def test_products_add_up(rows: int, terms: int, columns: int) -> None:
    """C + A B against float64; and each row has the same bits alone."""
    rng = np.random.default_rng(0)
    start, a, b = (
        rng.normal(size=shape).astype(np.float32) for shape in ((rows, columns), (rows, terms), (terms, columns))
    )
    c = start.copy()
    _product(c, a, b)
    assert c == pytest.approx(start + a.astype(np.float64) @ b, abs=2e-5)
    for row in range(rows):
        alone = start[row : row + 1].copy()
        _product(alone, a[row : row + 1].copy(), b)
        assert alone.tobytes() == c[row].tobytes()


# -------------------------------------------------------------------------------------------------------- layout


@pytest.mark.parametrize("hidden", [(64, 64), (5,), (16, 33, 8)])
def test_weights_survive_packing(hidden: tuple[int, ...]) -> None:
    """Every tensor has a place of its own; the rest is 0; a router without value has 0 there."""
    spec = spec_of(3)
    layout, tensors = Layout(spec, hidden), tensors_of(network_of(spec, hidden))
    row = layout.pack(tensors)
    assert row.size == layout.parameters
    assert np.array_equal(np.sort(row[row != 0]), np.sort(np.concatenate([v[v != 0] for v in tensors.values()])))
    policy = {name: value for name, value in tensors.items() if not name.startswith("value.")}
    lacking = row != layout.pack(policy)
    assert np.count_nonzero(lacking) == sum(np.count_nonzero(tensors[f"value.{name}"]) for name in ("weight", "bias"))
    with pytest.raises(KeyError, match=r"heads\.bias"):
        layout.pack({name: value for name, value in tensors.items() if name != "heads.bias"})


# -------------------------------------------------------------------------------------------------------- drawing


@pytest.mark.parametrize(("servers", "batching_delays_s"), [(1, ()), (3, ()), (10, ()), (3, BATCHING_DELAYS_S)])
@pytest.mark.parametrize("eps", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("hidden", [(64, 64), (24,), (16, 16, 40)])
def test_act_draws_what_numpy_draws(
    servers: int, batching_delays_s: tuple[float, ...], eps: float, hidden: tuple[int, ...]
) -> None:
    """5000 rows with any masks: each drawn index is the one whose interval the uniform number lies in.

    The interval is torch's and numpy's; it may be missed by float32's noise, 2e-6, and by no more.
    """
    spec, rng = spec_of(servers, batching_delays_s), np.random.default_rng(servers)
    network, seen, rows = network_of(spec, hidden), seen_by(spec, 5000, rng), np.arange(5000)
    acted = act_on(network, spec, seen, eps)
    with torch.inference_mode():
        logits, value = (each.numpy() for each in network(torch.from_numpy(seen.observation)))
    chosen = seen.width_mask[rows, acted.actions[:, 0]]
    of_server = masked_softmax(logits[:, :servers], seen.server_mask)
    shares = [
        (1 - eps) * of_server + eps * seen.server_mask / seen.server_mask.sum(axis=1, keepdims=True),
        masked_softmax(logits[:, servers : servers + 4], chosen),
        masked_softmax(logits[:, servers + 4 : servers + 10], np.ones((5000, 6), np.bool_)),
    ]
    if batching_delays_s:
        may = seen.may_delay[:, None] | [True, False, False]
        assert np.array_equal(acted.batching_delay_mask, may)
        shares.append(masked_softmax(logits[:, servers + 10 :], may))
        assert set(acted.actions[:, 3]) == {0, 1, 2}
    log_prob = np.zeros(5000)
    for head, share in enumerate(shares):
        drawn, uniform = acted.actions[:, head], seen.uniforms[:, head]
        above = share.cumsum(axis=1)[rows, drawn]
        assert np.all(share[rows, drawn] > 0)
        assert np.all(uniform < above + 2e-6)
        assert np.all(uniform >= above - share[rows, drawn] - 2e-6)
        log_prob += np.log(share[rows, drawn])
    assert acted.log_prob == pytest.approx(log_prob, abs=1e-5)
    assert acted.value == pytest.approx(value, abs=1e-5)
    assert np.array_equal(acted.server_mask, seen.server_mask)
    assert np.array_equal(acted.width_mask, chosen)


def test_a_server_far_below_the_likeliest_is_still_explored() -> None:
    """Eq. 5: where exp underflows to 0 there is still eps / N, in the draw and in what is learned."""
    spec = spec_of(3)
    network = network_of(spec)
    network.heads.bias.data[:3] = torch.tensor([300.0, 0.0, 0.0])
    seen = seen_by(spec, 3000, np.random.default_rng(0))
    seen.codes[:] = 15
    acted = act_on(network, spec, seen, 0.3)
    assert np.bincount(acted.actions[:, 0]) / 3000 == pytest.approx([0.8, 0.1, 0.1], abs=0.02)
    _, figures = loss_of(network, acted, np.zeros(3000, np.float32), TrainingSection())
    assert float(figures[2]) == pytest.approx(0, abs=1e-6)  # the divergence


def test_rows_name_where_decisions_stand() -> None:
    """Only the named rows are written, each with what it would have alone."""
    spec = spec_of(3)
    network, seen = network_of(spec), seen_by(spec, 100, np.random.default_rng(0))
    whole = act_on(network, spec, seen, 0.1)
    rows = np.random.default_rng(1).permutation(100)[: TILE + 5]
    some = act_on(network, spec, seen, 0.1, rows)
    for name in ("actions", "log_prob", "value", "server_mask", "width_mask"):
        assert getattr(some, name)[rows].tobytes() == getattr(whole, name)[rows].tobytes()
    others = np.setdiff1d(np.arange(100), rows)
    assert not some.log_prob[others].any()
