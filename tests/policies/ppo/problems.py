"""Random learning problems: a network with opinions, what it saw, what was masked, and what torch makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

import numpy as np
import numpy.typing as npt
import torch
from torch.distributions import Categorical

from policies.observation import Bools, Floats
from policies.ppo.experience import Experience, empty
from policies.ppo.kernels import act
from policies.ppo.knobs import PPOKnobs
from policies.ppo.layout import Layout
from policies.ppo.learner import advantages
from policies.ppo.network import PolicyNetwork
from policies.ppo.spec import PolicySpec
from tests.policies.cluster_views import WIDTHS

GROUPS = (1, 2, 4, 8, 16, 32)
HOLDS_S = (0.002, 0.01)
Doubles = npt.NDArray[np.float64]


def spec_of(servers: int, holds_s: tuple[float, ...] = ()) -> PolicySpec:
    """Four widths and six groups."""
    limits_w = (250.0,) * servers
    return PolicySpec(segments=4, widths=WIDTHS, groups=GROUPS, power_limits_w=limits_w, holds_s=holds_s)


def network_of(spec: PolicySpec, hidden: tuple[int, ...] = (64, 64), seed: int = 0) -> PolicyNetwork:
    """Far from uniform, and with biases."""
    network = PolicyNetwork(spec, hidden, seed)
    generator = torch.Generator().manual_seed(seed)
    network.heads.weight.data *= 100
    for layer in (*network.trunk, network.heads, network.value):
        torch.nn.init.normal_(layer.bias, 0.0, 0.3, generator=generator)
    return network


def tensors_of(network: PolicyNetwork) -> dict[str, npt.NDArray[np.float32]]:
    return {name: value.numpy() for name, value in network.state_dict().items()}


def hidden_of(network: PolicyNetwork) -> tuple[int, ...]:
    return tuple(layer.bias.numel() for layer in network.trunk if isinstance(layer, torch.nn.Linear))


def masked_softmax(logits: npt.ArrayLike, mask: npt.ArrayLike) -> Doubles:
    """Over the last axis, in float64; exactly 0 where masked."""
    kept = np.where(mask, logits, -np.inf).astype(np.float64)
    kept = np.exp(kept - kept.max(axis=-1, keepdims=True))
    return np.asarray(kept / kept.sum(axis=-1, keepdims=True))


@dataclass(frozen=True)
class Seen:
    """What decisions are made from: observations, codes as `act` has them, uniform numbers."""

    observation: Floats
    codes: npt.NDArray[np.int64]
    uniforms: Doubles
    may_hold: Bools

    @property
    def server_mask(self) -> Bools:
        return np.asarray(self.codes != 0)

    @property
    def width_mask(self) -> Bools:
        """(B, N, W), of every server."""
        return np.asarray((self.codes[:, :, None] >> np.arange(len(WIDTHS))) & 1 == 1)


def seen_by(spec: PolicySpec, rows: int, rng: np.random.Generator) -> Seen:
    """Any masks with at least one server; of those, any widths but none."""
    codes = rng.integers(1, 16, (rows, spec.servers)) * rng.integers(0, 2, (rows, spec.servers))
    codes[codes.sum(axis=1) == 0, 0] = 5
    observation = (3 * rng.random((rows, spec.observation.size))).astype(np.float32)
    heads = len(spec.head_sizes)
    return Seen(observation, codes, rng.random((rows, heads)), rng.random(rows) < 0.6 * (heads == 4))


def act_on(
    network: PolicyNetwork, spec: PolicySpec, seen: Seen, eps: float, rows: npt.NDArray[np.int64] | None = None
) -> Experience:
    """What the compiled `act` says of these rows, or all; reward 0, one image each."""
    layout, count = Layout.of(spec, hidden_of(network)), len(seen.codes)
    chosen = np.arange(count) if rows is None else rows
    drawn = empty(spec, count)
    act(
        layout.pack(tensors_of(network)), layout.sizes(), chosen, seen.observation, seen.codes[chosen],
        seen.uniforms[chosen], eps, np.full(layout.scratch, np.nan, np.float32), drawn.actions, drawn.log_prob,
        drawn.value, drawn.server_mask, drawn.width_mask, seen.may_hold[chosen], drawn.hold_mask,
    )  # fmt: skip
    ones = np.ones(count, np.float32)
    return replace(drawn, observation=seen.observation, eps=eps * ones, images=ones)


def experience_of(
    servers: int,
    rows: int,
    seed: int = 0,
    eps: float = 0.1,
    hidden: tuple[int, ...] = (64, 64),
    holds_s: tuple[float, ...] = (),
) -> tuple[PolicyNetwork, Experience]:
    """A network and what it is to learn from, drawn by another not far from it: some ratios are clipped, some not."""
    rng, spec = np.random.default_rng(seed), spec_of(servers, holds_s)
    network = network_of(spec, hidden, seed)
    experience = act_on(network, spec, seen_by(spec, rows, rng), eps)
    drift = rng.normal(0, 0.2, rows).astype(np.float32)
    reward = rng.normal(0.3, 1, rows).astype(np.float32)
    images = rng.integers(1, 33, rows).astype(np.float32)
    return network, replace(experience, log_prob=experience.log_prob + drift, reward=reward, images=images)


def spec_for(experience: Experience) -> PolicySpec:
    return spec_of(experience.server_mask.shape[1], HOLDS_S if experience.hold_mask.size else ())


def torch_loss(
    network: PolicyNetwork,
    experience: Experience,
    knobs: PPOKnobs,
    rows: npt.NDArray[np.int64] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """PPO's loss over these rows, or all, and its figures: losses, divergence, clipped, the heads' entropies."""
    chosen = np.arange(len(experience)) if rows is None else rows
    advantage = torch.from_numpy(advantages(experience.reward, experience.value, experience.images)[chosen])
    e = experience.rows(chosen)
    logits, value = network(torch.from_numpy(e.observation))
    masks = [e.server_mask, e.width_mask, np.ones((len(e), len(GROUPS)), np.bool_), e.hold_mask]
    parts = torch.split(logits, list(spec_for(experience).head_sizes), dim=-1)
    heads = [
        Categorical(logits=part.masked_fill(~torch.from_numpy(mask), -1e9))
        for part, mask in zip(parts, masks, strict=False)
    ]
    actions, eps = torch.from_numpy(e.actions), torch.from_numpy(e.eps)
    valid = torch.from_numpy(e.server_mask.sum(axis=1))
    of_server = heads[0].probs.gather(1, actions[:, :1]).squeeze(1)
    log_prob = torch.log((1 - eps) * of_server + eps / valid)
    for place, head in enumerate(heads[1:], start=1):
        log_prob = log_prob + head.log_prob(actions[:, place])  # type: ignore[no-untyped-call]
    log_ratio = log_prob - torch.from_numpy(e.log_prob)
    ratio, share = log_ratio.exp(), torch.from_numpy(e.images / e.images.sum())
    gain = torch.minimum(ratio * advantage, ratio.clamp(1 - knobs.clip, 1 + knobs.clip) * advantage)
    missed = 0.5 * (torch.from_numpy(e.reward) - value).square()
    kl, clipped = ratio - 1 - log_ratio, ((ratio - 1).abs() > knobs.clip).float()
    entropies = [head.entropy() for head in heads]  # type: ignore[no-untyped-call]
    figures = torch.stack([-gain, missed, kl, clipped, *entropies]) @ share
    loss = figures[0] + knobs.value_weight * figures[1] - knobs.entropy_weight * figures[4:].sum()
    return loss, figures.detach()


def torch_update(
    network: PolicyNetwork, experience: Experience, knobs: PPOKnobs, rng: np.random.Generator
) -> tuple[torch.optim.Adam, Sequence[float]]:
    """K epochs of minibatch steps by torch's autograd and Adam; the optimizer, and means of figures and norm."""
    optimizer, steps = torch.optim.Adam(network.parameters(), lr=knobs.learning_rate, eps=1e-5), []
    for _ in range(knobs.epochs):
        order = rng.permutation(len(experience))
        for rows in np.array_split(order, ceil(len(experience) / knobs.minibatch)):
            loss, figures = torch_loss(network, experience, knobs, rows)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            norm = torch.nn.utils.clip_grad_norm_(network.parameters(), knobs.max_grad_norm)
            optimizer.step()
            steps.append([*figures.tolist(), float(norm)])
    return optimizer, np.mean(steps, axis=0).tolist()
