"""Stable-Baselines3's PPO with our network: one trunk of two tanh layers, heads and value on it.

It knows no masks: the environment replaces what is illegal. Its rewards are the sums that `step` returns, so the credit
of a decision comes later, and gamma and lambda stay at its defaults (0.99, 0.95).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.speed.sb3.bursty import KNOBS, Clock, Snapshot, make_env, policy_spec
from policies.ppo.router import PPORouter


def learn(clusters: int, seconds: float, seed: int, each: Callable[[Snapshot], None]) -> None:
    """Learn for so long, to the end of an update; `each` gets the router before every rollout."""
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.vec_env import DummyVecEnv

    torch.set_num_threads(1)  # two are slower for matrices this small
    model = PPO(
        "MlpPolicy",
        DummyVecEnv([make_env] * clusters) if clusters > 1 else make_env(),
        n_steps=KNOBS.batch // clusters,
        batch_size=KNOBS.minibatch,
        n_epochs=KNOBS.epochs,
        learning_rate=KNOBS.learning_rate,
        clip_range=KNOBS.clip,
        vf_coef=KNOBS.value_weight,
        ent_coef=KNOBS.entropy_weight,
        max_grad_norm=KNOBS.max_grad_norm,
        policy_kwargs={"features_extractor_class": _trunk_class(), "net_arch": []},
        seed=seed,
        device="cpu",
    )

    clock, seen = Clock(), []

    class Keep(BaseCallback):  # type: ignore[misc, unused-ignore]
        def _on_rollout_start(self) -> None:
            seen.append(clock.snapshot(self.num_timesteps, _router(model)))
            each(seen[-1])

        def _on_step(self) -> bool:
            return seen[-1].seconds < seconds

    model.learn(KNOBS.decisions, callback=Keep())


def _trunk_class() -> type:
    from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
    from torch import nn

    class Trunk(BaseFeaturesExtractor):  # type: ignore[misc, unused-ignore]
        def __init__(self, observation_space: Any) -> None:
            first, second = KNOBS.hidden
            super().__init__(observation_space, second)
            inputs = observation_space.shape[0]
            self.layers = nn.Sequential(nn.Linear(inputs, first), nn.Tanh(), nn.Linear(first, second), nn.Tanh())

        def forward(self, observation: Any) -> Any:
            return self.layers(observation)

    return Trunk


def _router(model: Any) -> PPORouter:
    found = {name: value.numpy().copy() for name, value in model.policy.state_dict().items()}
    names = {
        "trunk.0": "features_extractor.layers.0",
        "trunk.1": "features_extractor.layers.2",
        "heads": "action_net",
    }
    tensors = {
        f"{ours}.{part}": found[f"{theirs}.{part}"] for ours, theirs in names.items() for part in ("weight", "bias")
    }
    return PPORouter(policy_spec(), tensors)
