from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kit.chance import derived_seed
from kit.errors import InputError, WorkError
from policies.ppo import PolicySpec, PPOKnobs, PPORouter
from policies.ppo.experience import Experience
from policies.ppo.network import PolicyNetwork
from policies.ppo.router import CHECKPOINT
from policies.ppo.steps import moments_of
from policies.ppo.trainer import Trainer
from tests.policies.ppo.rollouts import BEST, NOTHING, SPEC, BanditRollouts, best_server

KNOBS = PPOKnobs(
    decisions=4000, batch=400, minibatch=100, hidden=(16, 16), learning_rate=3e-3, eps_decay=3000, checkpoint_every=1
)


def weights(router: PPORouter) -> dict[str, bytes]:
    return {name: value.tobytes() for name, value in router._weights.items()}


def test_it_finds_the_best_arm_of_every_context() -> None:
    """The optimum is known, depends on what is seen, and is paid for late: the likeliest choice is it."""
    knobs = replace(KNOBS, decisions=60_000, batch=1000, minibatch=250, eps_decay=30_000)
    trainer = Trainer(BanditRollouts, knobs, 0, SPEC)
    trainer.run()
    router = trainer.router()
    seen = np.random.default_rng(0).random((500, SPEC.observation.size)).astype(np.float32)
    logits = router.logits(seen)
    clear = np.abs(seen[:, 2] - 0.5) > 0.1
    assert np.mean((logits[:, 1:3].argmax(axis=1) + 1 == best_server(seen))[clear]) > 0.95
    assert np.all(logits[:, 3:7].argmax(axis=1) == BEST[0])
    assert np.all(logits[:, 7:].argmax(axis=1) == BEST[1])


def test_same_seed_twice_gives_equal_weights() -> None:
    """Training is a function of its seed: to the bit with the same, otherwise with another."""
    trainers = [Trainer(BanditRollouts, KNOBS, seed, SPEC) for seed in (1, 1, 2)]
    for trainer in trainers:
        trainer.run()
    first, same, other = (weights(trainer.router()) for trainer in trainers)
    assert first == same
    assert first != other


def test_weights_come_from_their_seed_and_no_global_state() -> None:
    """Torch's own generator is not touched."""
    state = torch.get_rng_state()
    first, same, other = (PolicyNetwork(SPEC, (8, 8), seed).heads.weight for seed in (1, 1, 2))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), state)


def test_log_has_reward_losses_and_exploration() -> None:
    """Updates wait for a batch, eps falls with decisions, forgotten ones are counted."""
    logged: list[tuple[int, Mapping[str, float]]] = []
    begun: list[BanditRollouts] = []

    def begin(first: int) -> BanditRollouts:
        begun.append(BanditRollouts(first))
        return begun[0]

    Trainer(begin, KNOBS, 0, SPEC).run(log=lambda done, scalars: logged.append((done, scalars)))
    assert [done for done, _ in logged] == [480, 880, 1280, 1680, 2160, 2560, 2960, 3360, 3760]  # at 2000 80 are lost
    wanted = {"loss/policy", "loss/value", "entropy/server", "entropy/width", "entropy/group", "eps", "reward/latency"}
    wanted |= {"update/approx_kl", "update/clip_fraction", "update/grad_norm", "update/explained_variance"}
    assert wanted < set(logged[0][1])
    assert logged[0][1]["reward/accuracy"] == pytest.approx(logged[0][1]["reward/mean"])
    rollouts = begun[0]
    assert [eps for eps, _ in rollouts.asked[:2]] == [KNOBS.eps(0), KNOBS.eps(400)]
    assert sum(scalars["decisions/forgotten"] for _, scalars in logged) == rollouts.forgotten == 80
    assert logged[-1][1]["decisions/waiting"] == rollouts.waiting == 80
    assert rollouts.decisions == KNOBS.decisions
    assert logged[-1][1]["episodes"] == rollouts.episodes == len(rollouts.seeds)


def test_terms_are_left_out_where_there_are_none() -> None:
    """A reward without parts is logged as its mean alone."""
    scalars = Trainer(lambda first: BanditRollouts(first, parts=False), KNOBS, 0, SPEC).iterate()
    assert scalars is not None
    assert [name for name in scalars if name.startswith("reward/")] == ["reward/mean"]


def test_clusters_that_never_decide_are_an_error() -> None:
    """Rollouts that make no decision do not loop forever."""

    class Idle(BanditRollouts):
        def collect(self, weights: np.ndarray, eps: float, decisions: int) -> Experience:
            return NOTHING

    with pytest.raises(WorkError, match="no cluster made a decision"):
        Trainer(Idle, KNOBS, 0, SPEC).run()


# ------------------------------------------------------------------------------------------------ keeping, resuming


def test_resume_continues_with_weights_moments_and_new_episodes(tmp_path: Path) -> None:
    """Four updates of clusters without memory are two, a checkpoint, and two in a fresh trainer: to the bit."""

    def stateless(first: int) -> BanditRollouts:
        return BanditRollouts(first, lag=0, length=10)  # a batch is an episode of each cluster

    whole, first, second = (Trainer(stateless, KNOBS, 5, SPEC) for _ in range(3))
    for _ in range(4):
        whole.iterate()
    first.iterate()
    first.iterate()
    first.save(tmp_path / CHECKPOINT)
    second.restore(tmp_path / CHECKPOINT)
    assert second.progress == first.progress
    second.iterate()
    second.iterate()
    assert second.progress == whole.progress
    assert whole.progress.updates == 4
    assert second.learner.weights().tobytes() == whole.learner.weights().tobytes()
    moments = [moments_of(each.learner.network, each.learner.optimizer) for each in (second, whole)]
    assert moments[0]["exp_avg_sq.heads.weight"].tobytes() == moments[1]["exp_avg_sq.heads.weight"].tobytes()
    assert isinstance(second._rollouts, BanditRollouts)
    assert second._rollouts.seeds[0] == derived_seed(7, "ppo:episode:80")


def test_a_folder_is_resumed_and_a_finished_run_decides_nothing_more(tmp_path: Path) -> None:
    """With more decisions it goes on from there; what is in the folder is a router, too."""
    trainer = Trainer(BanditRollouts, KNOBS, 0, SPEC)
    trainer.run(None, tmp_path)
    done = trainer.router()
    assert weights(PPORouter.load(tmp_path / CHECKPOINT)) == weights(done)
    idle = Trainer(BanditRollouts, KNOBS, 0, SPEC)
    idle.run(None, tmp_path, resume=True)
    assert weights(idle.router()) == weights(done)
    assert idle._rollouts is None
    more = Trainer(BanditRollouts, replace(KNOBS, decisions=5200, checkpoint_every=7), 0, SPEC)
    more.run(None, tmp_path, resume=True)
    assert isinstance(more._rollouts, BanditRollouts)
    assert more._rollouts.decisions == 1200
    assert not list(tmp_path.glob(".*.tmp"))


@pytest.mark.parametrize(
    ("knobs", "seed", "spec", "words"),
    [
        ({"clip": 0.1, "eps_max": 0.5}, 0, SPEC, "another clip, eps_max;"),
        ({}, 1, SPEC, "another seed;"),
        ({}, 0, replace(SPEC, groups=(1, 2, 4)), "another cluster;"),
        ({}, 0, replace(SPEC, holds_s=(0.1,)), "another holds_s;"),
    ],
)
def test_resume_refuses_another_run(
    tmp_path: Path, knobs: dict[str, Any], seed: int, spec: PolicySpec, words: str
) -> None:
    """Each difference is named; a router alone is not a checkpoint."""
    path = tmp_path / CHECKPOINT
    first = Trainer(BanditRollouts, KNOBS, 0, SPEC)
    first.save(path)
    with pytest.raises(InputError, match=words):
        Trainer(BanditRollouts, replace(KNOBS, **knobs), seed, spec).restore(path)
    first.router().save(path)
    with pytest.raises(InputError, match="a router alone"):
        Trainer(BanditRollouts, KNOBS, 0, SPEC).restore(path)


# ------------------------------------------------------------------------------------------------------------ knobs


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
        {"entropy_weight": -1.0},
        {"learning_rate": float("nan")},
    ],
)
def test_impossible_knobs_are_refused(wrong: dict[str, float]) -> None:
    """A setting that could only fail later fails when it is made."""
    with pytest.raises(ValueError, match=r"must|hold"):
        PPOKnobs(**wrong)  # type: ignore[arg-type]
