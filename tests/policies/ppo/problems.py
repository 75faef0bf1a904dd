"""Random learning problems: a network with opinions, what it saw, what was masked, and what torch makes of it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from policies.observation import Bools, Floats
from policies.ppo.kernels import Experience, Layout, act, empty
from policies.ppo.spec import PolicySpec
from scenarios.learn.ppo import PolicyNetwork
from tests.policies.cluster_views import WIDTHS

MICRO_BATCH_SIZES = (1, 2, 4, 8, 16, 32)
BATCHING_DELAYS_S = (0.002, 0.01)
Doubles = npt.NDArray[np.float64]


def spec_of(servers: int, batching_delays_s: tuple[float, ...] = ()) -> PolicySpec:
    limits_w = (250.0,) * servers
    return PolicySpec(
        segments=4,
        widths=WIDTHS,
        micro_batch_sizes=MICRO_BATCH_SIZES,
        power_limits_w=limits_w,
        batching_delays_s=batching_delays_s,
    )


def network_of(spec: PolicySpec, hidden: tuple[int, ...] = (64, 64), seed: int = 0) -> PolicyNetwork:
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
    may_delay: Bools

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
    layout, count = Layout(spec, hidden_of(network)), len(seen.codes)
    chosen = np.arange(count) if rows is None else rows
    drawn = empty(spec, count)
    act(
        layout.pack(tensors_of(network)), layout.sizes(), chosen, seen.observation, seen.codes[chosen],
        seen.uniforms[chosen], eps, np.full(layout.scratch, np.nan, np.float32), drawn.actions, drawn.log_prob,
        drawn.value, drawn.server_mask, drawn.width_mask, seen.may_delay[chosen], drawn.batching_delay_mask,
    )  # fmt: skip
    ones = np.ones(count, np.float32)
    return replace(drawn, observation=seen.observation, eps=eps * ones, images=ones)


def experience_of(
    servers: int,
    rows: int,
    seed: int = 0,
    eps: float = 0.1,
    hidden: tuple[int, ...] = (64, 64),
    batching_delays_s: tuple[float, ...] = (),
) -> tuple[PolicyNetwork, Experience]:
    """A network and what it is to learn from, drawn by another not far from it: some ratios are clipped, some not."""
    rng, spec = np.random.default_rng(seed), spec_of(servers, batching_delays_s)
    network = network_of(spec, hidden, seed)
    experience = act_on(network, spec, seen_by(spec, rows, rng), eps)
    drift = rng.normal(0, 0.2, rows).astype(np.float32)
    reward = rng.normal(0.3, 1, rows).astype(np.float32)
    images = rng.integers(1, 33, rows).astype(np.float32)
    return network, replace(experience, log_prob=experience.log_prob + drift, reward=reward, images=images)


def spec_for(experience: Experience) -> PolicySpec:
    return spec_of(experience.server_mask.shape[1], BATCHING_DELAYS_S if experience.batching_delay_mask.size else ())
