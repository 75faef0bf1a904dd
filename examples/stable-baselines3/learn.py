"""A router learned with Stable-Baselines3, beside three bundled ones: `python learn.py`, in this folder.

`pip install -r requirements.txt` first, in this project's environment. Any library for Gymnasium goes the same way.
"""

from __future__ import annotations

import argparse

import numpy as np
from sb3_contrib import MaskablePPO
from stable_baselines3.common.env_util import make_vec_env
from torch import nn

import slimsched

NAME = "paper"
CHANGES = {"workload.rate_img_s": 500, "duration_s": 5}  # random routing can just carry that: its rewards tell much
EPISODE_S = 0.5


def learn(decisions: int, seed: int = 0) -> MaskablePPO:
    """PPO that knows which actions are masked: it asks for `action_masks()`."""
    wanted = {"scenario": NAME, "changes": CHANGES, "duration_s": EPISODE_S, "engine": "compiled"}
    clusters = make_vec_env("slimsched.gym:SlimCluster-v0", n_envs=8, seed=seed, env_kwargs=wanted)
    model = MaskablePPO(
        "MlpPolicy", clusters, learning_rate=3e-3, n_steps=128, batch_size=256, n_epochs=4, gamma=0.9, seed=seed
    )
    return model.learn(decisions)


def layers_of(model: MaskablePPO) -> list[tuple[np.ndarray, np.ndarray]]:
    """From what is seen to the logits; between these layers the library has a tanh, as the routers here have."""
    hidden = [part for part in model.policy.mlp_extractor.policy_net if isinstance(part, nn.Linear)]
    return [(part.weight.detach().numpy(), part.bias.detach().numpy()) for part in (*hidden, model.policy.action_net)]


def main() -> None:
    """Learn, bring it back, compare."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--decisions", type=int, default=20_000, help="to learn from")
    decisions = parser.parse_args().decisions
    scenario = slimsched.load(NAME, CHANGES)
    router = slimsched.save_router(scenario, layers_of(learn(decisions)), "sb3.safetensors", deterministic=True)
    table = slimsched.compare(scenario, ["random", "jsq", "ladder", router], seeds=[0, 1], engine="compiled")
    for each in table.routers:
        figures = {name: each.estimates[name].mean for name in ("latency_mean_s", "accuracy", "energy_per_image_j")}
        print(each.router, {name: None if value is None else round(value, 4) for name, value in figures.items()})


if __name__ == "__main__":
    main()
