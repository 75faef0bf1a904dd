"""Your own PPO in 60 lines of torch: it learns to route, its file is a router, compared with two bundled ones.

`python examples/train_router.py` takes one to four minutes on two cores, by what else runs there. With `40000 0 1 2`
behind it, it learns from so many decisions with three seeds, whose curves stand in one picture, `curves.svg`.
docs/how-to/own-ppo.md explains it.
"""

from __future__ import annotations

import sys

import gymnasium
import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.distributions import Categorical

import slimsched

CHANGES = {"workload.rate_img_s": 500, "duration_s": 5, "warmup_s": 0.5}  # of the scenario `paper`
SIZES = (3, 4, 6)  # its servers, widths and groups; 2 + 3 x 3 numbers are seen
ENVIRONMENTS, STEPS, EPOCHS, GAMMA, LAMBDA, CLIP = 8, 128, 4, 0.9, 0.95, 0.2


# ---------------------------------------------------------------------------------------------------- the 60 lines


def chosen(logits: Tensor, masks: Tensor, action: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """A free server, a width that it holds, a group: (B, 3) actions, (B,) log probabilities, (B,) entropies."""
    free, held = masks[:, : SIZES[0]], masks[:, SIZES[0] :].unflatten(1, SIZES[:2])
    server, width, micro_batch_size = logits.split(SIZES, dim=1)
    first = Categorical(logits=server.masked_fill(~free, -1e8))
    place = first.sample() if action is None else action[:, 0]
    may = held[torch.arange(len(place)), place]
    heads = [first, Categorical(logits=width.masked_fill(~may, -1e8)), Categorical(logits=micro_batch_size)]
    action = torch.stack([place, *(head.sample() for head in heads[1:])], 1) if action is None else action
    parts = [head.log_prob(part) for head, part in zip(heads, action.T, strict=True)]
    return action, torch.stack(parts).sum(0), torch.stack([head.entropy() for head in heads]).sum(0)


def advantages_of(values: Tensor, rewards: Tensor, dones: Tensor, last: Tensor) -> Tensor:
    """(steps, environments): generalized advantage estimates."""
    following = torch.cat([values[1:], last[None]])
    errors, running = rewards + GAMMA * following * (1 - dones) - values, torch.zeros_like(last)
    gains = torch.zeros_like(rewards)
    for step in reversed(range(len(rewards))):
        gains[step] = running = errors[step] + GAMMA * LAMBDA * (1 - dones[step]) * running
    return gains


def learn(decisions: int, seed: int) -> tuple[nn.Sequential, list[float]]:
    """PPO (Schulman et al. 2017): the actor, and the mean reward at each update."""
    torch.manual_seed(seed)
    actor = nn.Sequential(nn.Linear(11, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, sum(SIZES)))
    critic = nn.Sequential(nn.Linear(11, 64), nn.Tanh(), nn.Linear(64, 1), nn.Flatten(0))
    weights = [*actor.parameters(), *critic.parameters()]
    optimizer, curve = torch.optim.Adam(weights, lr=3e-3, eps=1e-5), list[float]()
    clusters = gymnasium.make_vec(
        "slimsched.gym:SlimCluster-v0", ENVIRONMENTS, scenario="paper", changes=CHANGES, duration_s=0.5
    )
    seen, info = clusters.reset(seed=seed)
    for _ in range(decisions // (STEPS * ENVIRONMENTS)):
        kept = []
        for _ in range(STEPS):
            now = torch.as_tensor(seen)
            free, held = (np.stack([*info[name]]).reshape(len(now), -1) for name in ("server_mask", "width_mask"))
            masks = torch.as_tensor(np.hstack([free, held]))
            with torch.no_grad():
                action, log_probability, _ = chosen(actor(now), masks)
                value = critic(now)
            seen, reward, ended, cut, info = clusters.step(action.numpy())
            kept.append((now, masks, action, log_probability, value, *map(torch.as_tensor, (reward, ended | cut))))
        *given, values, rewards, dones = (torch.stack(column) for column in zip(*kept, strict=True))
        curve.append(float(rewards.mean()))
        with torch.no_grad():
            last = critic(torch.as_tensor(seen))
        advantages = advantages_of(values, rewards.float(), dones.float(), last)
        batch = [column.flatten(0, 1) for column in (*given, advantages, advantages + values)]
        for rows in (part for _ in range(EPOCHS) for part in torch.randperm(STEPS * ENVIRONMENTS).chunk(4)):
            now, masks, action, before, advantage, wanted = (column[rows] for column in batch)
            _, log_probability, entropy = chosen(actor(now), masks, action)
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
            ratio = (log_probability - before).exp()
            gained = torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage)
            loss = ((critic(now) - wanted) ** 2).mean() / 2 - gained.mean() - 0.01 * entropy.mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(weights, 0.5)
            optimizer.step()
    return actor, curve


# ------------------------------------------------------------------------------------------ and what is done with it


def main(decisions: int = 40_000, *seeds: int) -> None:
    """Learn with each seed, save, draw, compare."""
    if decisions < STEPS * ENVIRONMENTS:
        sys.exit(f"{decisions} decisions are less than one update's, {STEPS * ENVIRONMENTS}")
    scenario, figure, routers = slimsched.load("paper", CHANGES), Figure(layout="constrained"), []
    axes = figure.subplots()
    for seed in seeds or (0,):
        actor, curve = learn(decisions, seed)
        routers.append(slimsched.save_router(scenario, actor, f"own-{seed}.safetensors", deterministic=True))
        axes.plot(STEPS * ENVIRONMENTS * (1 + np.arange(len(curve))), curve, label=f"seed {seed}")
    axes.set(xlabel="decisions", ylabel="mean reward of a decision")
    axes.legend()
    figure.savefig("curves.svg")
    table = slimsched.compare(scenario, ["random", "jsq", *routers], seeds=[0, 1], engine="compiled")
    for each in table.routers:
        print(each.router, f"{each.estimates['latency_mean_s']:.4f} s at {each.estimates['accuracy']:.2%}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
