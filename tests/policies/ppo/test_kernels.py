from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
import torch

from kit.jit import entry, singles
from policies.ppo import kernels
from policies.ppo.experience import Experience
from policies.ppo.knobs import PPOKnobs
from policies.ppo.layout import TILE, Layout
from policies.ppo.learner import Learner
from policies.ppo.network import PolicyNetwork
from policies.ppo.vectors import exp, multiply, tanh
from tests.policies.ppo.problems import (
    HOLDS_S,
    act_on,
    experience_of,
    hidden_of,
    masked_softmax,
    network_of,
    seen_by,
    spec_for,
    spec_of,
    tensors_of,
    torch_loss,
)

KNOBS = PPOKnobs()
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
def _product(c: Row, a: Row, b: Row, row_step: int, k_step: int) -> None:
    multiply(singles(c), 0, singles(a), 0, row_step, k_step, singles(b), 0, c.shape[0], b.shape[0], c.shape[1])


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
@pytest.mark.parametrize("terms", [0, 1, 5, 12, 64])
@pytest.mark.parametrize("columns", [16, 48, 80])
def test_products_add_up(rows: int, terms: int, columns: int) -> None:
    """C + A B, A as it is or a transpose, against float64; and each row has the same bits alone."""
    rng = np.random.default_rng(0)
    start, a, b = (
        rng.normal(size=shape).astype(np.float32) for shape in ((rows, columns), (rows, terms), (terms, columns))
    )
    c, of_transpose = start.copy(), start.copy()
    _product(c, a, b, terms, 1)
    _product(of_transpose, np.ascontiguousarray(a.T), b, 1, rows)
    assert c == pytest.approx(start + a.astype(np.float64) @ b, abs=2e-5)
    assert c.tobytes() == of_transpose.tobytes()
    for row in range(rows):
        alone = start[row : row + 1].copy()
        _product(alone, a[row : row + 1].copy(), b, terms, 1)
        assert alone.tobytes() == c[row].tobytes()


# -------------------------------------------------------------------------------------------------------- layout


@pytest.mark.parametrize("hidden", [(64, 64), (5,), (16, 33, 8)])
def test_weights_survive_packing(hidden: tuple[int, ...]) -> None:
    """Every tensor has a place of its own; the rest is 0; a router without value has 0 there."""
    spec = spec_of(3)
    layout, tensors = Layout.of(spec, hidden), tensors_of(network_of(spec, hidden))
    row = layout.pack(tensors)
    back = layout.unpack(row)
    assert set(back) == set(tensors)
    assert all(np.array_equal(back[name], tensors[name]) for name in tensors)
    assert row.size == layout.parameters
    assert np.count_nonzero(row) == sum(np.count_nonzero(value) for value in tensors.values())
    policy = {name: value for name, value in tensors.items() if not name.startswith("value.")}
    assert not np.any(layout.unpack(layout.pack(policy))["value.weight"])
    with pytest.raises(KeyError, match=r"heads\.bias"):
        layout.pack({name: value for name, value in tensors.items() if name != "heads.bias"})


# -------------------------------------------------------------------------------------------------------- drawing


@pytest.mark.parametrize(("servers", "holds_s"), [(1, ()), (3, ()), (10, ()), (3, HOLDS_S)])
@pytest.mark.parametrize("eps", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("hidden", [(64, 64), (24,), (16, 16, 40)])
def test_act_draws_what_numpy_draws(
    servers: int, holds_s: tuple[float, ...], eps: float, hidden: tuple[int, ...]
) -> None:
    """5000 rows with any masks: each drawn index is the one whose interval the uniform number lies in.

    The interval is torch's and numpy's; it may be missed by float32's noise, 2e-6, and by no more.
    """
    spec, rng = spec_of(servers, holds_s), np.random.default_rng(servers)
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
    if holds_s:
        may = seen.may_hold[:, None] | [True, False, False]
        assert np.array_equal(acted.hold_mask, may)
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
    """Eq. 5: where exp underflows to 0 there is still eps / N, in the draw and in the gradient's ratio."""
    spec = spec_of(3)
    network = network_of(spec)
    network.heads.bias.data[:3] = torch.tensor([300.0, 0.0, 0.0])
    seen = seen_by(spec, 3000, np.random.default_rng(0))
    seen.codes[:] = 15
    acted = act_on(network, spec, seen, 0.3)
    assert np.bincount(acted.actions[:, 0]) / 3000 == pytest.approx([0.8, 0.1, 0.1], abs=0.02)
    _, sums = gradient_of(network, acted)
    assert sums[2] == pytest.approx(0, abs=1e-6)  # the divergence


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


# -------------------------------------------------------------------------------------------------------- learning


def gradient_of(network: PolicyNetwork, experience: Experience) -> tuple[Row, npt.NDArray[np.float64]]:
    """The compiled gradient, and the means behind `UpdateStats`."""
    e, layout = experience, Layout.of(spec_for(experience), hidden_of(network))
    weights, sizes = layout.pack(tensors_of(network)), layout.sizes()
    transposed, slopes, sums = np.zeros_like(weights), np.zeros_like(weights), np.zeros(4 + e.actions.shape[1])
    kernels.transpose(weights, sizes, transposed)
    records = Learner(layout, KNOBS, tensors_of(network))._records(e)
    share, scratch = 1 / float(e.images.sum()), np.full(layout.scratch, np.nan, np.float32)
    kernels.gradient(
        weights, transposed, sizes, np.arange(len(e)), records, share, KNOBS.clip, KNOBS.value_weight,
        KNOBS.entropy_weight, scratch, slopes, sums,
    )  # fmt: skip
    return slopes, sums * share


@pytest.mark.parametrize(("servers", "holds_s"), [(1, ()), (3, ()), (10, ()), (3, HOLDS_S)])
@pytest.mark.parametrize("eps", [0.0, 0.1, 1.0])
def test_gradient_is_autograds(servers: int, holds_s: tuple[float, ...], eps: float) -> None:
    """Every parameter's to 2e-5 of its tensor's largest, and the statistics to 1e-5, in an incomplete last tile too."""
    network, experience = experience_of(servers, 2000 + 7, eps=eps, holds_s=holds_s)
    loss, figures = torch_loss(network, experience, KNOBS)
    loss.backward()  # type: ignore[no-untyped-call]
    slopes, means = gradient_of(network, experience)
    found = Layout.of(spec_of(servers, holds_s), (64, 64)).unpack(slopes)
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None
        wanted = parameter.grad.numpy()
        assert np.max(np.abs(found[name] - wanted)) <= 2e-5 * np.max(np.abs(wanted)), name
    assert means == pytest.approx(figures.numpy(), rel=1e-5, abs=1e-6)
    assert 0.2 < figures[3] < 0.5  # some are clipped, some not: both branches were there


def test_a_block_counts_as_often_as_it_has_images() -> None:
    """What is learned from blocks is what is learned where each image was decided about alone."""
    network, blocks = experience_of(3, 300)
    images = replace(
        blocks.rows(np.repeat(np.arange(300), blocks.images.astype(int))),
        images=np.ones(int(blocks.images.sum()), np.float32),
    )
    for whole, apart in zip(gradient_of(network, blocks), gradient_of(network, images), strict=True):
        assert whole == pytest.approx(apart, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("hidden", [(5,), (16, 33, 8)])
def test_what_is_padded_has_no_gradient(hidden: tuple[int, ...]) -> None:
    """Layers of any size and number: gradients are where weights are, and are autograd's there."""
    network, (_, experience) = network_of(spec_of(3), hidden), experience_of(3, 500)
    torch_loss(network, experience, KNOBS)[0].backward()  # type: ignore[no-untyped-call]
    slopes, _ = gradient_of(network, experience)
    layout = Layout.of(spec_of(3), hidden)
    wanted = layout.pack(
        {name: each.grad.numpy() for name, each in network.named_parameters() if each.grad is not None}
    )
    assert slopes == pytest.approx(wanted, abs=2e-5 * float(np.max(np.abs(wanted))))
    assert not np.any(slopes[wanted == 0])


@pytest.mark.parametrize("max_norm", [0.01, 1e9])
def test_adam_is_torchs(max_norm: float) -> None:
    """Twenty steps on random gradients, all clipped or none: weights and both moments to a few roundings."""
    rng, size = np.random.default_rng(0), 500
    parameter = torch.nn.Parameter(torch.from_numpy(rng.normal(size=size).astype(np.float32)))
    weights = parameter.detach().numpy().copy()
    optimizer = torch.optim.Adam([parameter], lr=1e-2, eps=1e-5)
    first, second = np.zeros((2, size), np.float32)
    for step in range(1, 21):
        slopes = rng.normal(size=(2, size)).astype(np.float32)
        parameter.grad = torch.from_numpy(slopes.sum(axis=0))
        wanted = float(torch.nn.utils.clip_grad_norm_([parameter], max_norm))
        optimizer.step()
        norm = kernels.adam(weights, slopes, first, second, step, 1e-2, max_norm)
        assert norm == pytest.approx(wanted, rel=1e-6)
    state = optimizer.state[parameter]
    assert weights == pytest.approx(parameter.detach().numpy(), abs=1e-6)
    assert first == pytest.approx(state["exp_avg"].numpy(), abs=1e-6)
    assert second == pytest.approx(state["exp_avg_sq"].numpy(), rel=1e-5)


@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_a_gradient_that_is_not_finite_changes_nothing(broken: float) -> None:
    """The norm says so, and weights and moments are as they were."""
    slopes = np.ones((2, 40), np.float32)
    slopes[1, 20] = broken
    state = [np.ones(40, np.float32) for _ in range(3)]
    assert not np.isfinite(kernels.adam(state[0], slopes, state[1], state[2], 1, 1e-2, 0.5))
    assert all(np.all(each == 1) for each in state)
