import itertools
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from policies.ppo.acting import act, draw, masked_softmax
from policies.ppo.distribution import entropies, joint_log_prob, product_policy
from policies.ppo.knobs import PPOKnobs

SIZES = (3, 4, 2)


class Head(NamedTuple):
    """One state: logits (9,), valid servers (3,), held widths (3, 4), exploration share."""

    logits: list[float]
    server_mask: list[bool]
    width_mask: list[list[bool]]
    eps: float

    def joint_log_prob(self, action: tuple[int, int, int], logits: Tensor | None = None) -> Tensor:
        """() Eq. 6 of one action."""
        if logits is None:
            logits = torch.tensor([self.logits], dtype=torch.float64)
        server_mask, width_mask = torch.tensor([self.server_mask]), torch.tensor([self.width_mask[action[0]]])
        policy = product_policy(logits, SIZES, server_mask, width_mask)
        return joint_log_prob(
            policy, server_mask, torch.tensor([action]), torch.tensor([self.eps], dtype=torch.float64)
        )

    def is_legal(self, action: tuple[int, int, int]) -> bool:
        return self.server_mask[action[0]] and self.width_mask[action[0]][action[1]]


ACTIONS: list[tuple[int, int, int]] = list(itertools.product(range(3), range(4), range(2)))
some = {3: st.lists(st.booleans(), min_size=3, max_size=3), 4: st.lists(st.booleans(), min_size=4, max_size=4)}
heads = st.builds(
    Head,
    st.lists(st.floats(-50, 50), min_size=9, max_size=9),
    some[3].filter(any),
    st.lists(some[4].filter(any), min_size=3, max_size=3),
    st.sampled_from([0.0, 0.02, 0.3, 1.0]) | st.floats(0, 1),
)


@given(heads)
def test_mixed_probabilities_sum_to_one_over_all_joint_actions(head: Head) -> None:
    """Eq. 2-6: pi~_srv x pi_width x pi_group is a distribution, and nothing illegal is in it."""
    probability = {action: float(head.joint_log_prob(action).exp()) for action in ACTIONS}
    assert sum(probability.values()) == pytest.approx(1, abs=1e-9)
    assert all(probability[action] == 0 for action in ACTIONS if not head.is_legal(action))


@given(heads)
def test_exploration_keeps_every_valid_server_at_eps_over_n(head: Head) -> None:
    """Eq. 5: a valid server is chosen with at least eps / N, N counting the valid ones."""
    by_server = np.zeros(3)
    for action in ACTIONS:
        by_server[action[0]] += float(head.joint_log_prob(action).exp())
    floor = head.eps / sum(head.server_mask)
    assert all(by_server[i] >= floor - 1e-9 for i in range(3) if head.server_mask[i])


def test_mixture_by_hand() -> None:
    """Two of three servers valid, pi = (0.8, 0.2), eps = 0.5: pi~ = (0.65, 0.35)."""
    logits = [np.log(0.8), 5.0, np.log(0.2), *[0.0] * 6]
    head = Head(logits, [True, False, True], [[True] * 4] * 3, 0.5)
    assert float(head.joint_log_prob((0, 0, 0)).exp()) == pytest.approx(0.65 / 8)
    assert float(head.joint_log_prob((2, 3, 1)).exp()) == pytest.approx(0.35 / 8)


@given(heads, st.sampled_from(ACTIONS))
def test_masked_choices_get_no_gradient(head: Head, action: tuple[int, int, int]) -> None:
    """The log-probability and the entropy of a legal action do not move a masked logit, and give no NaN."""
    if not head.is_legal(action):
        return
    logits = torch.tensor([head.logits], dtype=torch.float64, requires_grad=True)
    server_mask, width_mask = torch.tensor([head.server_mask]), torch.tensor([head.width_mask[action[0]]])
    entropy = entropies(product_policy(logits, SIZES, server_mask, width_mask)).sum()
    (head.joint_log_prob(action, logits).sum() + entropy).backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None
    gradient = logits.grad[0].tolist()
    assert np.isfinite(gradient).all()
    masked = [not valid for valid in head.server_mask] + [not held for held in head.width_mask[action[0]]]
    assert all(value == 0 for value, is_masked in zip(gradient, masked, strict=False) if is_masked)


@given(heads)
def test_joint_entropy_is_the_sum_of_the_three(head: Head) -> None:
    """Given the server, width and group are independent: H(joint) = H_srv + E[H_width | server] + H_group."""
    unmixed = head._replace(eps=0.0)
    logs = [float(unmixed.joint_log_prob(action)) for action in ACTIONS if head.is_legal(action)]
    joint = -sum(np.exp(log) * log for log in logs)
    logits, mask = torch.tensor([head.logits], dtype=torch.float64), torch.tensor([head.server_mask])
    by_server = []
    for widths in head.width_mask:
        by_server.append(entropies(product_policy(logits, SIZES, mask, torch.tensor([widths])))[0])
    weight = masked_softmax(np.array(head.logits[:3]), np.array(head.server_mask))
    width = sum(w * float(each[1]) for w, each in zip(weight, by_server, strict=True))
    assert joint == pytest.approx(float(by_server[0][0] + by_server[0][2]) + width, abs=1e-6)


@given(heads, st.lists(st.floats(0, 1, exclude_max=True), min_size=3, max_size=3))
def test_numpy_draws_what_torch_scores(head: Head, uniforms: list[float]) -> None:
    """What `act` draws is legal, and its log-probability is torch's, mixture included."""
    acted = act(
        np.array([head.logits]),
        SIZES,
        np.array([head.server_mask]),
        np.array([head.width_mask]),
        head.eps,
        np.array([uniforms]),
    )
    server, width, group = acted.actions[0].tolist()
    assert head.is_legal((server, width, group))
    assert acted.log_prob[0] == pytest.approx(float(head.joint_log_prob((server, width, group))), abs=1e-9)


@given(heads, st.lists(st.floats(-50, 50), min_size=3, max_size=3), st.booleans(), st.integers(0, 2**31))
def test_a_fourth_head_is_one_more_factor(head: Head, holds: list[float], may_hold: bool, seed: int) -> None:
    """What `act` draws with it torch scores alike; without leave it goes on, for sure; the others are as before."""
    uniforms, sizes = np.random.default_rng(seed).random((1, 4)), (*SIZES, 3)
    hold_mask = np.array([[True, may_hold, may_hold]])
    rest = np.array([head.server_mask]), np.array([head.width_mask]), head.eps
    logits = np.array([[*head.logits, *holds]])
    acted = act(logits, sizes, *rest, uniforms, hold_mask)
    three = act(np.array([head.logits]), SIZES, *rest, uniforms[:, :3])
    assert acted.actions[0, :3].tolist() == three.actions[0].tolist()
    of_hold = torch.log_softmax(torch.tensor(holds, dtype=torch.float64), 0)[acted.actions[0, 3]] if may_hold else 0.0
    assert may_hold or acted.actions[0, 3] == 0
    assert acted.log_prob[0] == pytest.approx(float(three.log_prob[0] + of_hold), abs=1e-9)
    server_mask, width_mask = torch.tensor([head.server_mask]), torch.tensor([head.width_mask[acted.actions[0, 0]]])
    policy = product_policy(torch.tensor(logits), sizes, server_mask, width_mask, torch.from_numpy(hold_mask))
    eps = torch.tensor([head.eps], dtype=torch.float64)
    scored = joint_log_prob(policy, server_mask, torch.from_numpy(acted.actions), eps)
    assert acted.log_prob[0] == pytest.approx(float(scored), abs=1e-9)
    assert entropies(policy).shape == (1, 4)
    assert may_hold or float(entropies(policy)[0, 3]) == 0


@given(st.lists(st.sampled_from([0.0, 0.1, 1.0, 3.0]), min_size=1, max_size=6).filter(any))
def test_draw_inverts_the_distribution(weights: list[float]) -> None:
    """Uniform numbers on a grid come out in the distribution's shares; the extremes never hit a zero."""
    probabilities = np.array(weights) / sum(weights)
    grid = (np.arange(4000) + 0.5) / 4000
    drawn = draw(np.tile(probabilities, (4000, 1)), grid)
    assert np.bincount(drawn, minlength=len(weights)) / 4000 == pytest.approx(probabilities, abs=1e-3)
    ends = draw(np.tile(probabilities, (2, 1)), np.array([0.0, np.nextafter(1, 0)]))
    assert all(probabilities[i] > 0 for i in ends)


def test_eps_falls_linearly_and_stays() -> None:
    """Eq. 5's schedule: eps_max at 0, half way at T_dec / 2, eps_min from T_dec on."""
    knobs = PPOKnobs(eps_max=0.5, eps_min=0.1, eps_decay=100)
    assert [knobs.eps(t) for t in (0, 50, 100, 10**6)] == pytest.approx([0.5, 0.3, 0.1, 0.1])


@pytest.mark.parametrize(
    "wrong",
    [
        {"eps_min": 0.5, "eps_max": 0.4},
        {"eps_max": 1.5},
        {"batch": 1},
        {"epochs": 0},
        {"clip": 0.0},
        {"hidden": ()},
        {"hidden": (0,)},
        {"entropy_weight": -1.0},
        {"learning_rate": float("nan")},
    ],
)
def test_impossible_knobs_are_refused(wrong: dict[str, float]) -> None:
    """A setting that could only fail later fails when it is made."""
    with pytest.raises(ValueError, match=r"must|hold"):
        PPOKnobs(**wrong)  # type: ignore[arg-type]
