from collections.abc import Mapping
from dataclasses import astuple, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from kit.chance import derived_seed
from kit.errors import WorkError
from policies.ppo import PPOKnobs, PPORouter
from policies.ppo.buffer import Experience
from policies.ppo.compiled_trainer import CompiledTrainer
from policies.ppo.compiled_update import CompiledLearner
from policies.ppo.layout import Layout
from policies.ppo.network import PolicyNetwork
from policies.ppo.trainer import Trainer
from policies.ppo.training import CHECKPOINT, scalars_of
from policies.ppo.update import update
from tests.policies.ppo.bandit import BEST, SPEC, Bandit
from tests.policies.ppo.problems import HOLDS_S, experience_of, hidden_of, spec_of, tensors_of
from tests.policies.ppo.rollouts import NOTHING, BanditRollouts, best_server

KNOBS = PPOKnobs(
    decisions=4000, batch=400, minibatch=100, hidden=(16, 16), learning_rate=3e-3, eps_decay=3000, checkpoint_every=1
)


def weights(router: PPORouter) -> dict[str, bytes]:
    return {name: value.tobytes() for name, value in router._weights.items()}


# ---------------------------------------------------------------------------------------------------------- updates


@pytest.mark.parametrize(("servers", "holds_s"), [(1, ()), (3, ()), (10, ()), (3, HOLDS_S)])
def test_an_update_is_torchs(servers: int, holds_s: tuple[float, ...]) -> None:
    """Three epochs of ten steps on the same experience, in the same order: weights to 1e-4, figures to 1e-3."""
    network, experience = experience_of(
        servers, 1003, seed=1, holds_s=holds_s
    )  # no ratio at the very clip, where rounding decides
    knobs = PPOKnobs(batch=1000, minibatch=101, learning_rate=1e-3)
    spec = spec_of(servers, holds_s)
    layout = Layout.of(spec, hidden_of(network))
    learner = CompiledLearner(layout, knobs, tensors_of(network))
    optimizer = torch.optim.Adam(network.parameters(), lr=knobs.learning_rate, eps=1e-5)
    before = learner.weights.copy()
    wanted = update(network, optimizer, experience, spec.head_sizes, knobs, np.random.default_rng(0))
    found = learner.update(experience, np.random.default_rng(0))
    after = layout.pack(tensors_of(network))
    assert np.max(np.abs(learner.weights - after)) < 1e-4 < 0.1 * np.max(np.abs(before - after))
    assert scalars_of(found) == pytest.approx(scalars_of(wanted), rel=1e-3, abs=1e-4)
    assert ("entropy/hold" in scalars_of(found)) == bool(holds_s)
    assert learner.steps == 30
    moments = learner.moments()
    for name, parameter in network.named_parameters():
        state = optimizer.state[parameter]
        for moment in ("exp_avg", "exp_avg_sq"):
            assert moments[f"{moment}.{name}"] == pytest.approx(state[moment].numpy(), rel=1e-2, abs=1e-4)
        assert moments[f"step.{name}"] == state["step"]


def test_threads_change_nothing() -> None:
    """One thread or two, twice each: the same bits."""
    network, experience = experience_of(3, 700)
    layout, knobs, found = Layout.of(spec_of(3), hidden_of(network)), PPOKnobs(minibatch=128), []
    for threads in (1, 2, 1, 2):
        learner = CompiledLearner(layout, knobs, tensors_of(network), threads)
        stats = learner.update(experience, np.random.default_rng(0))
        found.append((learner.weights.tobytes(), astuple(stats)))
    assert len(set(found)) == 1


def test_tiny_batches_are_learned_from() -> None:
    """Two decisions in minibatches of one: a half is empty, and nothing breaks."""
    network, experience = experience_of(3, 2)
    learner = CompiledLearner(Layout.of(spec_of(3), hidden_of(network)), PPOKnobs(minibatch=1), tensors_of(network))
    stats = learner.update(experience, np.random.default_rng(0))
    assert all(np.isfinite(list(scalars_of(stats).values())))
    assert learner.steps == 6


def test_divergence_is_an_error_and_leaves_the_weights_alone() -> None:
    """A reward that is not a number stops training before it spoils the network."""
    network, experience = experience_of(3, 50)
    learner = CompiledLearner(Layout.of(spec_of(3), hidden_of(network)), PPOKnobs(), tensors_of(network))
    before = learner.weights.copy()
    broken = replace(experience, reward=np.full_like(experience.reward, np.nan))
    with pytest.raises(WorkError, match="diverged"):
        learner.update(broken, np.random.default_rng(0))
    assert np.array_equal(learner.weights, before)
    assert learner.moments() == {}


# --------------------------------------------------------------------------------------------------------- learning


def test_it_finds_the_best_arm_of_every_context() -> None:
    """The optimum is known, depends on what is seen, and is paid for late: the likeliest choice is it."""
    knobs = replace(KNOBS, decisions=60_000, batch=1000, minibatch=250, eps_decay=30_000)
    trainer = CompiledTrainer(BanditRollouts, knobs, 0, SPEC)
    trainer.run(None, None, False)
    with torch.inference_mode():
        network = PolicyNetwork(SPEC, knobs.hidden, 0)
        network.load_state_dict({name: torch.from_numpy(each) for name, each in trainer._weights().items()})
        seen = np.random.default_rng(0).random((500, SPEC.observation.size)).astype(np.float32)
        logits = network(torch.from_numpy(seen))[0].numpy()
    clear = np.abs(seen[:, 2] - 0.5) > 0.1
    assert np.mean((logits[:, 1:3].argmax(axis=1) + 1 == best_server(seen))[clear]) > 0.95
    assert np.all(logits[:, 3:7].argmax(axis=1) == SPEC.widths.index(BEST.width))
    assert np.all(logits[:, 7:].argmax(axis=1) == SPEC.groups.index(BEST.group))


def test_it_begins_with_the_weights_of_the_readable_trainer() -> None:
    """The same seed, before the first update: both have the same network."""
    compiled = CompiledTrainer(BanditRollouts, KNOBS, 3, SPEC)
    assert weights(compiled.router()) == weights(Trainer([Bandit()], KNOBS, 3, SPEC).router())


def test_same_seed_twice_gives_equal_weights() -> None:
    """Training is a function of its seed, whatever the threads: to the bit with the same, otherwise with another."""
    first, same, other = (
        weights(CompiledTrainer(BanditRollouts, KNOBS, seed, SPEC, threads=threads).run())
        for seed, threads in ((1, 1), (1, 2), (2, 2))
    )
    assert first == same
    assert first != other


def test_log_has_what_the_readable_trainers_has() -> None:
    """The same names and counts: updates wait for a batch, eps falls with decisions, forgotten ones are counted."""
    logged: list[tuple[int, Mapping[str, float]]] = []
    wanted: list[Mapping[str, float]] = []
    begun: list[BanditRollouts] = []

    def begin(first: int) -> BanditRollouts:
        begun.append(BanditRollouts(first))
        return begun[0]

    CompiledTrainer(begin, KNOBS, 0, SPEC).run(log=lambda done, scalars: logged.append((done, scalars)))
    knobs = replace(KNOBS, decisions=500)
    Trainer([Bandit(parts=True)], knobs, 0, SPEC).run(lambda _, scalars: wanted.append(scalars), None, False)
    assert set(logged[0][1]) == set(wanted[0])
    assert [done for done, _ in logged] == [480, 880, 1280, 1680, 2160, 2560, 2960, 3360, 3760]  # at 2000 80 are lost
    assert logged[0][1]["reward/accuracy"] == pytest.approx(logged[0][1]["reward/mean"])
    rollouts = begun[0]
    assert [eps for eps, _ in rollouts.asked[:2]] == [KNOBS.eps(0), KNOBS.eps(400)]
    assert sum(scalars["decisions/forgotten"] for _, scalars in logged) == rollouts.forgotten == 80
    assert logged[-1][1]["decisions/waiting"] == rollouts.waiting == 80
    assert rollouts.decisions == KNOBS.decisions
    assert logged[-1][1]["episodes"] == rollouts.episodes == len(rollouts.seeds)


def test_terms_are_left_out_where_there_are_none() -> None:
    """A reward without parts is logged as its mean alone."""
    scalars = CompiledTrainer(lambda first: BanditRollouts(first, parts=False), KNOBS, 0, SPEC).iterate()
    assert scalars is not None
    assert [name for name in scalars if name.startswith("reward/")] == ["reward/mean"]


def test_clusters_that_never_decide_are_an_error() -> None:
    """Rollouts that make no decision do not loop forever."""

    class Idle(BanditRollouts):
        def collect(self, weights: np.ndarray, eps: float, decisions: int) -> Experience:
            return NOTHING

    with pytest.raises(WorkError, match="no cluster made a decision"):
        CompiledTrainer(Idle, KNOBS, 0, SPEC).run()


# ------------------------------------------------------------------------------------------------ keeping, resuming


def test_resume_continues_with_weights_moments_and_new_episodes(tmp_path: Path) -> None:
    """Four updates of clusters without memory are two, a checkpoint, and two in a fresh trainer: to the bit."""

    def stateless(first: int) -> BanditRollouts:
        return BanditRollouts(first, lag=0, length=10)  # a batch is an episode of each cluster

    whole, first, second = (CompiledTrainer(stateless, KNOBS, 5, SPEC) for _ in range(3))
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
    assert second.learner.weights.tobytes() == whole.learner.weights.tobytes()
    assert second.learner.second.tobytes() == whole.learner.second.tobytes()
    assert isinstance(second._rollouts, BanditRollouts)
    assert second._rollouts.seeds[0] == derived_seed(7, "ppo:episode:80")


def test_each_trainer_reads_the_others_checkpoint(tmp_path: Path) -> None:
    """One format: weights and Adam's state survive the way there and back, to the bit."""
    compiled = CompiledTrainer(BanditRollouts, KNOBS, 0, SPEC)
    compiled.iterate()
    compiled.save(tmp_path / "compiled")
    readable = Trainer([Bandit()], KNOBS, 0, SPEC)
    readable.restore(tmp_path / "compiled")
    assert weights(readable.router()) == weights(compiled.router())
    readable.save(tmp_path / "readable")
    back = CompiledTrainer(BanditRollouts, KNOBS, 0, SPEC)
    back.restore(tmp_path / "readable")
    assert back.learner.steps == compiled.learner.steps == 3 * 4
    assert back.learner.weights.tobytes() == compiled.learner.weights.tobytes()
    assert back.learner.first.tobytes() == compiled.learner.first.tobytes()
    readable.iterate()  # torch's optimizer can go on from there
    assert readable.progress.updates == 2
