from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from kit import checkpoint
from kit.random_streams import derived_seed
from policies.ppo import PPORouter
from policies.ppo.ppo_router import CHECKPOINT
from scenarios.files.scenario_keys import TrainingSection
from scenarios.learn.ppo import PolicyNetwork, Trainer, exploration
from sim.compiled.rollout import Rollouts
from tests.policies.ppo.rollouts import BEST, SPEC, BanditRollouts, best_server

PARAMS = TrainingSection(
    decisions=4000, batch=400, minibatch=100, hidden=(16, 16), learning_rate=3e-3, eps_decay=3000, checkpoint_every=1
)


def trainer_of(
    begin: Callable[[int], BanditRollouts] = BanditRollouts, seed: int = 0, path: Path | None = None, **params: Any
) -> Trainer:
    section = PARAMS.model_copy(update=params)
    return Trainer(cast("Callable[[int], Rollouts]", begin), SPEC, section, seed, path)


def bandits_of(trainer: Trainer) -> BanditRollouts:
    return cast(BanditRollouts, trainer.rollouts)


def weights(router: PPORouter) -> dict[str, bytes]:
    return {name: value.tobytes() for name, value in router._weights.items()}


def test_trained_router_finds_the_best_arm_of_every_context() -> None:
    """The optimum is known, depends on what is seen, and is paid for late: the likeliest choice is it."""
    router = trainer_of(decisions=60_000, batch=1000, minibatch=250, eps_decay=30_000).run()
    seen = np.random.default_rng(0).random((500, SPEC.observation.size)).astype(np.float32)
    logits = router.logits(seen)
    clear = np.abs(seen[:, 2] - 0.5) > 0.1
    assert np.mean((logits[:, 1:3].argmax(axis=1) + 1 == best_server(seen))[clear]) > 0.95
    assert np.all(logits[:, 3:7].argmax(axis=1) == BEST[0])
    assert np.all(logits[:, 7:].argmax(axis=1) == BEST[1])


def test_same_seed_twice_gives_equal_weights() -> None:
    """Training is a function of its seed: to the bit with the same, otherwise with another."""
    first, same, other = (weights(trainer_of(seed=seed).run()) for seed in (1, 1, 2))
    assert first == same
    assert first != other


def test_weights_come_from_their_seed_and_no_global_state() -> None:
    state = torch.get_rng_state()
    first, same, other = (PolicyNetwork(SPEC, (8, 8), seed).heads.weight for seed in (1, 1, 2))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), state)


def test_log_has_reward_losses_and_exploration() -> None:
    """Updates wait for a batch, eps falls with decisions, forgotten ones are counted."""
    logged: list[tuple[int, Mapping[str, float]]] = []
    trainer = trainer_of()
    trainer.run(lambda done, scalars: logged.append((done, scalars)))
    assert [done for done, _ in logged] == [480, 880, 1280, 1680, 2160, 2560, 2960, 3360, 3760]  # at 2000 80 are lost
    wanted = {
        "loss/policy",
        "loss/value",
        "entropy/server",
        "entropy/width",
        "entropy/micro_batch_size",
        "eps",
        "reward/latency",
    }
    wanted |= {"update/approx_kl", "update/clip_fraction", "update/grad_norm", "update/explained_variance"}
    assert wanted < set(logged[0][1])
    assert logged[0][1]["reward/accuracy"] == pytest.approx(logged[0][1]["reward/mean"])
    rollouts = bandits_of(trainer)
    assert [eps for eps, _ in rollouts.asked[:2]] == [exploration(PARAMS, 0), exploration(PARAMS, 400)]
    assert sum(scalars["decisions/forgotten"] for _, scalars in logged) == rollouts.forgotten == 80
    assert logged[-1][1]["decisions/waiting"] == rollouts.waiting == 80
    assert rollouts.decisions == PARAMS.decisions
    assert logged[-1][1]["episodes"] == rollouts.episodes == len(rollouts.seeds)


def test_resume_continues_with_weights_moments_and_new_episodes(tmp_path: Path) -> None:
    """Four updates of clusters without memory are two, a checkpoint, and two in a fresh trainer: to the bit."""

    def stateless(first: int) -> BanditRollouts:
        return BanditRollouts(first, lag=0, length=10)  # a batch is an episode of each cluster

    whole, parts = tmp_path / "whole", tmp_path / "parts"
    trainer_of(stateless, 5, whole, decisions=1600).run()
    trainer_of(stateless, 5, parts, decisions=800).run()
    second = trainer_of(stateless, 5, parts, decisions=1600)
    assert second.progress == {"decisions": 800, "updates": 2, "episodes": 80}
    assert bandits_of(second).episodes == 80
    second.run()
    assert second.progress == {"decisions": 1600, "updates": 4, "episodes": 160}
    assert bandits_of(second).seeds[0] == derived_seed(7, "ppo:episode:80")
    assert parts.read_bytes() == whole.read_bytes()
    assert "optimizer.exp_avg_sq.heads.weight" in checkpoint.read(parts)[0]


def test_a_finished_training_decides_nothing_more(tmp_path: Path) -> None:
    path = tmp_path / CHECKPOINT
    done = trainer_of(path=path).run()
    assert weights(PPORouter.load(path)) == weights(done)
    idle = trainer_of(path=path)
    assert weights(idle.run()) == weights(done)
    assert bandits_of(idle).decisions == 0
    assert not list(tmp_path.glob(".*.tmp"))


def test_eps_falls_linearly_and_stays() -> None:
    """Eq. 5's schedule: eps_max at 0, half way at T_dec / 2, eps_min from T_dec on."""
    params = TrainingSection(eps_max=0.5, eps_min=0.1, eps_decay=100)
    assert [exploration(params, t) for t in (0, 50, 100, 10**6)] == pytest.approx([0.5, 0.3, 0.1, 0.1])
