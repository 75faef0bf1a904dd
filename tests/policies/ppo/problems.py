"""Random learning problems: a network with opinions, what it saw, what was masked, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from policies.observation import Bools, Floats
from policies.ppo.buffer import Experience
from policies.ppo.kernels import act
from policies.ppo.layout import Layout
from policies.ppo.network import PolicyNetwork
from policies.ppo.spec import PolicySpec
from tests.policies.cluster_views import WIDTHS

GROUPS = (1, 2, 4, 8, 16, 32)
HOLDS_S = (0.002, 0.01)


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


@dataclass(frozen=True)
class Seen:
    """What decisions are made from: observations, codes as `act` has them, uniform numbers."""

    observation: Floats
    codes: npt.NDArray[np.int64]
    uniforms: npt.NDArray[np.float64]
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


def act_on(network: PolicyNetwork, spec: PolicySpec, seen: Seen, eps: float) -> Experience:
    """What the compiled `act` says, reward 0."""
    layout, rows = Layout.of(spec, hidden_of(network)), len(seen.codes)
    servers, widths, _, *holds = spec.head_sizes
    actions, log_prob, value = np.full((rows, 3 + len(holds)), -1, np.int64), *np.zeros((2, rows), np.float32)
    server_mask, width_mask = np.zeros((rows, servers), np.bool_), np.zeros((rows, widths), np.bool_)
    hold_mask = np.zeros((rows, sum(holds)), np.bool_)
    scratch = np.full(layout.scratch, np.nan, np.float32)
    act(
        layout.pack(tensors_of(network)), layout.sizes(), np.arange(rows), seen.observation, seen.codes,
        seen.uniforms, eps, scratch, actions, log_prob, value, server_mask, width_mask,
        seen.may_hold, hold_mask,
    )  # fmt: skip
    shares, rewards = np.full(rows, eps, np.float32), np.zeros(rows, np.float32)
    images = np.ones(rows, np.float32)
    seen_and_done = (seen.observation, server_mask, width_mask, actions, log_prob, shares, value)
    return Experience(*seen_and_done, rewards, images, hold_mask)


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
