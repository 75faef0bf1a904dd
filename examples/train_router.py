"""PPO for a router in one file, in the style of CleanRL, on the public environment: `python examples/train_router.py`.

It learns to route images of a simulated cluster, saves what it learned as a router's file, and compares it with routers
that ship. Change anything: the reward that you shape, the network, the update.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import gymnasium
import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

import slimsched

CHANGES = {"workload.rate_img_s": 500, "duration_s": 5, "warmup_s": 0.5}
MASKED = -1e8  # a logit that is never drawn


@dataclass(frozen=True)
class Args:
    """What is trained, and how; each is a flag of the same name.

    Attributes:
        scenario: a shipped one by name, or a file.
        decisions: to learn from, in all.
        steps: of an environment between two updates.
        gamma, lam: of the generalized advantage estimate.
        clip: how far an update may move a probability.
    """

    scenario: str = "paper"
    decisions: int = 40_000
    environments: int = 8
    steps: int = 128
    episode_s: float = 0.5
    learning_rate: float = 3e-3
    gamma: float = 0.9
    lam: float = 0.95
    epochs: int = 4
    minibatches: int = 4
    clip: float = 0.2
    entropy: float = 0.01
    value: float = 0.5
    hidden: int = 64
    seed: int = 0
    out: str = "trained.safetensors"


class Agent(nn.Module):
    """An actor that gives logits of server, width and group, and a critic."""

    def __init__(self, seen: int, choices: list[int], hidden: int) -> None:
        super().__init__()
        self.choices = choices
        self.actor = nn.Sequential(
            nn.Linear(seen, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, sum(choices))
        )
        self.critic = nn.Sequential(nn.Linear(seen, hidden), nn.Tanh(), nn.Linear(hidden, 1))

    def act(
        self, seen: torch.Tensor, servers: torch.Tensor, widths: torch.Tensor, action: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """A server that is free, then a width that it holds, then a group: action, log probability, entropy, value."""
        server_logits, width_logits, *rest = self.actor(seen).split(self.choices, dim=-1)
        server = Categorical(logits=server_logits.masked_fill(~servers, MASKED))
        chosen = server.sample() if action is None else action[:, 0]
        held = widths[torch.arange(len(seen)), chosen]
        heads = [server, Categorical(logits=width_logits.masked_fill(~held, MASKED))]
        heads += [Categorical(logits=logits) for logits in rest]
        if action is None:
            action = torch.stack([chosen, *(head.sample() for head in heads[1:])], dim=1)
        parts = list(zip(heads, action.T, strict=True))
        log_probability = torch.stack([head.log_prob(part) for head, part in parts]).sum(0)
        entropy = torch.stack([head.entropy() for head in heads]).sum(0)
        return action, log_probability, entropy, self.critic(seen).squeeze(-1)

    def layers(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Of the actor, as `slimsched.save_router` takes them."""
        return [(part.weight.detach(), part.bias.detach()) for part in self.actor if isinstance(part, nn.Linear)]


def masks(info: dict[str, np.ndarray]) -> tuple[torch.Tensor, torch.Tensor]:
    """Which servers are free, and which widths each holds, by environment."""
    return torch.as_tensor(np.stack([*info["server_mask"]])), torch.as_tensor(np.stack([*info["width_mask"]]))


def learn(args: Args) -> Agent:
    """PPO (Schulman et al. 2017) with masked actions."""
    torch.manual_seed(args.seed)
    clusters = gymnasium.make_vec(
        "slimsched.gym:SlimCluster-v0",
        num_envs=args.environments,
        scenario=args.scenario,
        changes=CHANGES,
        duration_s=args.episode_s,
    )
    actions, observations = clusters.single_action_space, clusters.single_observation_space
    assert isinstance(actions, gymnasium.spaces.MultiDiscrete)
    assert isinstance(observations, gymnasium.spaces.Box)
    agent = Agent(observations.shape[0], actions.nvec.tolist(), args.hidden)
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)
    observation, info = clusters.reset(seed=args.seed)
    seen = torch.as_tensor(observation)
    allowed = masks(info)
    updates = max(1, args.decisions // (args.steps * args.environments))
    for update in range(updates):
        kept = []
        with torch.no_grad():
            for _ in range(args.steps):
                action, log_probability, _, value = agent.act(seen, *allowed)
                observation, reward, terminated, truncated, info = clusters.step(action.numpy())
                done = torch.as_tensor(terminated | truncated)
                kept.append((seen, *allowed, action, log_probability, value, torch.as_tensor(reward), done))
                seen, allowed = torch.as_tensor(observation), masks(info)
            last = agent.critic(seen).squeeze(-1)
        columns = [torch.stack(column) for column in zip(*kept, strict=True)]
        values, rewards, dones = columns[5], columns[6].float(), columns[7].float()
        advantages = advantages_of(values, rewards, dones, last, args)
        batch = [column.flatten(0, 1) for column in (*columns[:5], advantages, advantages + values)]
        loss = improve(agent, optimizer, batch, args)
        print(f"update {update + 1} of {updates}: mean reward {rewards.mean():.3f}, loss {loss:.3f}")
    return agent


def advantages_of(
    values: torch.Tensor, rewards: torch.Tensor, dones: torch.Tensor, last: torch.Tensor, args: Args
) -> torch.Tensor:
    """(steps, environments): generalized advantage estimates."""
    advantages, running = torch.zeros_like(rewards), torch.zeros_like(last)
    following = last
    for step in reversed(range(len(rewards))):
        goes_on = 1 - dones[step]
        delta = rewards[step] + args.gamma * following * goes_on - values[step]
        running = delta + args.gamma * args.lam * goes_on * running
        advantages[step], following = running, values[step]
    return advantages


def improve(agent: Agent, optimizer: torch.optim.Optimizer, batch: list[torch.Tensor], args: Args) -> float:
    """A few epochs over what was seen; returns the last loss."""
    size = len(batch[0])
    loss = torch.zeros(())
    for _ in range(args.epochs):
        for rows in torch.randperm(size).chunk(args.minibatches):
            seen, servers, widths, action, before, advantage, wanted = (column[rows] for column in batch)
            _, log_probability, entropy, value = agent.act(seen, servers, widths, action)
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
            ratio = (log_probability - before).exp()
            clipped = ratio.clamp(1 - args.clip, 1 + args.clip)
            policy = -torch.minimum(ratio * advantage, clipped * advantage).mean()
            critic = ((value - wanted) ** 2).mean()
            loss = policy + args.value * critic - args.entropy * entropy.mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()
    return loss.item()


def main() -> None:
    """Learn, save, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in vars(Args()).items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    args = Args(**vars(parser.parse_args()))
    scenario = slimsched.load(args.scenario, CHANGES)
    router = slimsched.save_router(scenario, learn(args).layers(), args.out, deterministic=True)
    table = slimsched.compare(scenario, ["random", "jsq", router], seeds=[0, 1], engine="compiled")
    for each in table.routers:
        print(each.router, f"{each.estimates['latency_mean_s']:.4f} s at {each.estimates['accuracy']:.2%}")


if __name__ == "__main__":
    main()
