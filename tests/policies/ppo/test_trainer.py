import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import save

from kit import checkpoint
from kit.errors import InputError, WorkError
from policies.interfaces import RouterConfig
from policies.observation import ObservationSpec
from policies.ppo import PolicySpec, PPOKnobs, PPORouter
from policies.ppo.trainer import CHECKPOINT, TensorBoardLog, Trainer, train
from policies.vocabulary import Choice, ClusterView, Hold
from tests.policies.cluster_views import WIDTHS, choice_of, server, view
from tests.policies.ppo.bandit import BEST, SPEC, Bandit

KNOBS = PPOKnobs(
    decisions=1024, batch=256, minibatch=64, hidden=(16, 16), learning_rate=3e-3, eps_decay=800, checkpoint_every=1
)
CONFIG = RouterConfig(segments=4, widths=WIDTHS, holds=(((True,) * 4,) * 4,) * 3, groups=(1, 4, 16))


def weights(router: PPORouter) -> dict[str, bytes]:
    return {name: value.tobytes() for name, value in router._weights.items()}


# -------------------------------------------------------------------------------------------------------- learning


def test_ppo_finds_the_best_arm_of_three_heads() -> None:
    """The optimum is known: after training, argmax is it and draws mostly are, though rewards come late."""
    knobs = replace(KNOBS, decisions=12_000, eps_decay=6000)
    environments = [Bandit(lag=3) for _ in range(4)]
    router = train(environments, knobs, 0, SPEC)
    rng = np.random.default_rng(0)
    drawn = [router.choose(environments[0].view(), rng) for _ in range(200)]
    assert sum(choice == BEST for choice in drawn) > 150
    router.deterministic = True
    assert router.choose(environments[0].view(), rng) == BEST


class Patient(Bandit):
    """Pays 1 for the longer wait, every other time that the candidates may be held at all."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: list[Choice | Hold] = []

    def view(self) -> ClusterView:
        left_ns = 15_000_000 * (self._decision % 2)
        return msgspec.structs.replace(super().view(), candidates=2, hold_left_ns=left_ns)

    def decide(self, choice: Choice | Hold) -> None:
        assert isinstance(choice, Choice) or self.view().hold_left_ns > 0
        self.answers.append(choice)
        self._credits.append((self._decision, float(choice == Hold(4, 15_000_000))))


def test_it_learns_to_wait_where_that_pays() -> None:
    """At the start a third of those that may be held are held so long, at the end most; never those that may not."""
    environment = Patient()
    router = train([environment], replace(KNOBS, decisions=6000), 0, replace(SPEC, holds_s=(0.005, 0.02)))
    early, late = (
        2 * float(np.mean([answer == Hold(4, 15_000_000) for answer in part]))
        for part in (environment.answers[:256], environment.answers[-256:])  # the first update comes after so many
    )
    assert 0.2 < early < 0.45
    assert late > 0.8
    router.deterministic = True
    environment._decision = 1
    assert router.choose(environment.view(), np.random.default_rng(0)) == Hold(4, 15_000_000)


def test_same_seed_twice_gives_equal_weights() -> None:
    """Training is a function of its seed: to the bit with the same, and otherwise with another."""
    first, same, other = (weights(train([Bandit(), Bandit()], KNOBS, seed, SPEC)) for seed in (1, 1, 2))
    assert first == same
    assert first != other


def test_only_legal_choices_are_made() -> None:
    """Through all exploration no environment ever sees a server or width that its view masks."""
    environment = Bandit()
    train([environment], replace(KNOBS, eps_max=1.0, eps_min=1.0), 0, SPEC)
    assert {choice.server for choice in environment.choices} == {1, 2}
    assert {choice.width for choice in environment.choices if choice.server == 1} == {0.25, 0.5}


def test_episodes_have_their_own_seeds_and_lose_what_waited() -> None:
    """None resets with a fresh seed; the five decisions that waited then are forgotten and counted."""
    logged: list[Mapping[str, float]] = []
    environments = [Bandit(episode=50, lag=5), Bandit(episode=50, lag=5)]
    train(environments, KNOBS, 0, SPEC, log=lambda _, scalars: logged.append(scalars))
    seeds = [seed for environment in environments for seed in environment.seeds]
    assert len(seeds) == len(set(seeds)) > 10
    ended = int(logged[-1]["episodes"]) - len(environments)  # each of the episodes but the two that run
    assert sum(scalars["decisions/forgotten"] for scalars in logged) == 5 * ended > 0


def test_an_empty_episode_is_an_error() -> None:
    """An environment that ends before its first decision does not loop forever."""
    with pytest.raises(WorkError, match="without a single decision"):
        train([Bandit(episode=0)], KNOBS, 0, SPEC)


def test_threads_are_left_as_they_were() -> None:
    """Training's own thread setting does not outlive it."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        train([Bandit()], replace(KNOBS, decisions=10), 0, SPEC)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_log_has_reward_parts_losses_and_exploration(tmp_path: Path) -> None:
    """Every update logs what the paper's training is judged by; TensorBoard takes the same call."""
    logged: list[tuple[int, Mapping[str, float]]] = []
    board = TensorBoardLog(tmp_path)

    def log(decisions: int, scalars: Mapping[str, float]) -> None:
        logged.append((decisions, dict(scalars)))
        board(decisions, scalars)

    train([Bandit(parts=True)], KNOBS, 0, SPEC, log=log)
    board.close()
    assert [decisions for decisions, _ in logged] == [257, 513, 769]  # a reward is seen at the next question
    scalars = logged[0][1]
    assert scalars["reward/accuracy"] == pytest.approx(scalars["reward/mean"])
    assert scalars["reward/latency"] == 0
    wanted = {"loss/policy", "loss/value", "entropy/server", "entropy/width", "entropy/group", "eps"}
    wanted |= {"update/approx_kl", "update/clip_fraction", "update/grad_norm", "update/explained_variance"}
    assert wanted <= set(scalars)
    assert list(tmp_path.glob("events.*"))


# ------------------------------------------------------------------------------------------------ keeping, resuming


def iterate(trainer: Trainer, updates: int) -> None:
    """So many updates, with the environments reset after each, as they are at a resume."""
    for _ in range(updates):
        trainer.iterate()
        for index in range(len(trainer.environments)):
            trainer._buffer.forget(index)
        trainer._started = False


def test_resume_continues_to_the_very_weights(tmp_path: Path) -> None:
    """Four updates are two, a checkpoint, and two in a fresh trainer: weights, counters and streams to the bit."""
    knobs = replace(KNOBS, decisions=10_000)
    whole, first, second = (Trainer([Bandit(), Bandit()], knobs, 5, SPEC) for _ in range(3))
    iterate(whole, 4)
    iterate(first, 2)
    first.save(tmp_path / CHECKPOINT)
    second.restore(tmp_path / CHECKPOINT)
    assert second.progress == first.progress
    iterate(second, 2)
    assert second.progress == whole.progress
    assert whole.progress.updates == 4
    assert weights(second.router()) == weights(whole.router())
    assert second._rngs["draws"].random() == whole._rngs["draws"].random()


def test_train_resumes_from_its_folder_and_finishes_at_once_when_done(tmp_path: Path) -> None:
    """A finished run resumed decides nothing more; with more decisions it goes on from there."""
    done = train([Bandit()], KNOBS, 0, SPEC, checkpoint_dir=tmp_path)
    idle = Bandit()
    again = train([idle], KNOBS, 0, SPEC, checkpoint_dir=tmp_path, resume=True)
    assert (weights(again), idle.choices) == (weights(done), [])
    more = Bandit()
    longer = replace(KNOBS, decisions=1536, checkpoint_every=7)
    train([more], longer, 0, SPEC, checkpoint_dir=tmp_path, resume=True)
    assert len(more.choices) == 512
    assert not list(tmp_path.glob(".*.tmp"))


def test_resume_refuses_another_run(tmp_path: Path) -> None:
    """Other knobs, another seed, another cluster: each is named; a router alone is not a checkpoint."""
    router = train([Bandit()], replace(KNOBS, decisions=10), 0, SPEC, checkpoint_dir=tmp_path)

    def resume(knobs: PPOKnobs = KNOBS, seed: int = 0, spec: PolicySpec = SPEC) -> None:
        train([Bandit()], knobs, seed, spec, checkpoint_dir=tmp_path, resume=True)

    with pytest.raises(InputError, match=r"another clip, eps_max;"):
        resume(replace(KNOBS, clip=0.1, eps_max=0.5))
    with pytest.raises(InputError, match="another seed;"):
        resume(seed=1)
    with pytest.raises(InputError, match="another cluster;"):
        resume(spec=replace(SPEC, groups=(1, 2, 4)))
    router.save(tmp_path / CHECKPOINT)
    with pytest.raises(InputError, match="a router alone"):
        resume()


# --------------------------------------------------------------------------------------------------------- the router


def spread_router(seed: int, deterministic: bool = True) -> tuple[Trainer, PPORouter]:
    """An untrained network with strong opinions."""
    trainer = Trainer([Bandit()], replace(KNOBS, hidden=(32, 32)), seed, SPEC)
    trainer.network.heads.weight.data *= 300
    generator = torch.Generator().manual_seed(seed)
    for layer in (*trainer.network.trunk, trainer.network.heads):
        torch.nn.init.normal_(layer.bias, generator=generator)
    trainer.deterministic = deterministic
    return trainer, trainer.router()


@given(st.integers(0, 50), st.lists(st.floats(0, 10, width=32), min_size=11, max_size=11))
def test_numpy_forward_is_torchs(seed: int, observation: list[float]) -> None:
    """Logits agree to 1e-6 of their size, and so does every head's argmax where it is no near-tie."""
    trainer, router = spread_router(seed)
    with torch.inference_mode():
        wanted = trainer.network(torch.tensor([observation], dtype=torch.float32))[0][0].numpy()
    found = router.logits(np.array(observation, np.float32))
    scale = max(1.0, float(np.abs(wanted).max()))
    assert np.abs(found - wanted).max() <= 1e-6 * scale * 4
    for part in (slice(0, 3), slice(3, 7), slice(7, 10)):
        top = np.sort(wanted[part])[-2:]
        if top[1] - top[0] > 1e-5 * scale:
            assert found[part].argmax() == wanted[part].argmax()


def test_deterministic_takes_the_most_probable_legal_choice() -> None:
    """Argmax over what is valid, width by the chosen server's mask; it needs no chance."""
    for seed in range(20):
        _, router = spread_router(seed)
        seen = view(server(valid=False), server(3, widths=(True, True, False, False)), server(1))
        choice = choice_of(router, seen, np.random.default_rng(0))
        assert choice == router.choose(seen, np.random.default_rng(1))
        logits = router.logits(ObservationSpec(SPEC.power_limits_w).observe(seen))
        assert choice.server == (1 if logits[1] >= logits[2] else 2)
        held = 2 if choice.server == 1 else 4
        assert choice.width == WIDTHS[int(logits[3 : 3 + held].argmax())]
        assert choice.group == SPEC.groups[int(logits[7:].argmax())]


def test_sampling_follows_the_policy_without_exploration() -> None:
    """Drawn shares are the softmax's: a server that the policy rules out is not explored."""
    trainer, _ = spread_router(0, deterministic=False)
    trainer.network.heads.weight.data.zero_()
    trainer.network.heads.bias.data = torch.tensor([0.0, -60.0, 0.0, *np.log([0.1, 0.2, 0.3, 0.4]), 0.0, 0.0, 0.0])
    router, rng = trainer.router(), np.random.default_rng(3)
    drawn = [choice_of(router, view(server(), server(), server()), rng) for _ in range(4000)]
    shares = [sum(choice.server == i for choice in drawn) / 4000 for i in range(3)]
    assert shares == pytest.approx([0.5, 0.0, 0.5], abs=0.03)
    assert shares[1] == 0
    widths = [sum(choice.width == width for choice in drawn) / 4000 for width in WIDTHS]
    assert widths == pytest.approx([0.1, 0.2, 0.3, 0.4], abs=0.03)
    together = sum(choice.server == 0 and choice.width == 1.0 for choice in drawn) / 4000
    assert together == pytest.approx(0.2, abs=0.03)  # the heads draw apart


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_saved_router_decides_as_before(tmp_path: Path, deterministic: bool) -> None:
    """Weights, shape and mode come back; the mode can be overridden; a training checkpoint holds a router too."""
    trainer, router = spread_router(0, deterministic)
    router.save(tmp_path / "router.safetensors")
    trainer.save(tmp_path / CHECKPOINT)
    for name in ("router.safetensors", CHECKPOINT):
        loaded = PPORouter.load(tmp_path / name, CONFIG)
        assert (loaded.spec, loaded.deterministic) == (SPEC, deterministic)
        assert weights(loaded) == weights(router)
    other = PPORouter.load(str(tmp_path / "router.safetensors"), deterministic=not deterministic)
    assert other.deterministic is not deterministic


@pytest.mark.parametrize(
    "config, words",
    [
        (replace(CONFIG, holds=CONFIG.holds[:2]), "servers: expected 2, found 3"),
        (replace(CONFIG, segments=3), "segments: expected 3, found 4"),
        (replace(CONFIG, widths=(0.5, 1.0)), r"widths: expected \[0.5, 1.0\], found \[0.25, 0.5, 0.75, 1.0\]"),
        (replace(CONFIG, groups=(1, 2)), r"groups: expected \[1, 2\], found \[1, 4, 16\]"),
    ],
)
def test_a_router_for_another_cluster_is_refused(tmp_path: Path, config: RouterConfig, words: str) -> None:
    """The message names the file and says which shape differs, expected against found."""
    spread_router(0)[1].save(tmp_path / "router.safetensors")
    with pytest.raises(InputError, match=rf"router.safetensors: .*{words}"):
        PPORouter.load(tmp_path / "router.safetensors", config)


def test_a_view_of_another_cluster_is_refused() -> None:
    """A router asked about more servers than it knows says so."""
    with pytest.raises(InputError, match="trained for 3 servers, asked about 2"):
        spread_router(0)[1].choose(view(server(), server()), np.random.default_rng(0))


def _written(change: Callable[[Any], Any]) -> Callable[[Path], None]:
    """A router's file in which one tensor is another."""

    def spoil(path: Path) -> None:
        tensors, header = checkpoint.read(path)
        checkpoint.write(path, {**tensors, "policy.heads.bias": change(tensors["policy.heads.bias"])}, header)

    return spoil


def _write_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _write_another_schema(path: Path) -> None:
    tensors, header = checkpoint.read(path)
    checkpoint.write(path, tensors, header, "slimsched.router/9")


SPOILED: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (Path.unlink, "no such file"),
    "a pipe, which nobody waits for": (_write_pipe, "a device or a pipe"),
    "no safetensors": (lambda path: path.write_bytes(b"not a router"), "not a safetensors file"),
    "cut": (lambda path: path.write_bytes(path.read_bytes()[:-40]), "not a safetensors file"),
    "no spec": (lambda path: checkpoint.write(path, {"a": np.zeros(1)}, {}), "damaged"),
    "another schema": (_write_another_schema, r"found slimsched\.router/9, expected slimsched\.router/1"),
    "not a number": (
        _written(lambda bias: np.full_like(bias, np.nan)),
        r"heads\.bias: holds numbers that are not finite",
    ),
    "no end": (_written(lambda bias: bias + np.inf), r"heads\.bias: holds numbers that are not finite"),
    "whole numbers": (_written(lambda bias: bias.astype(np.int32)), "not a router of this version, or damaged"),
    "another shape": (_written(lambda bias: bias[None]), "not a router of this version, or damaged"),
    "another length": (_written(lambda bias: bias[:-1]), "not a router of this version, or damaged"),
}


@pytest.mark.parametrize("what", SPOILED)
def test_files_that_are_no_router_are_refused(what: str, tmp_path: Path) -> None:
    """`InputError` each, which says what is wrong."""
    path = tmp_path / "router.safetensors"
    spread_router(0)[1].save(path)
    spoil, words = SPOILED[what]
    spoil(path)
    with pytest.raises(InputError, match=rf"router\.safetensors: .*{words}"):
        PPORouter.load(path)


def _rewritten(path: Path, tensors: dict[str, np.ndarray], header: dict[str, str]) -> None:
    """As another program would write it: with the checksum that was there."""
    path.write_bytes(save({name: np.ascontiguousarray(value) for name, value in tensors.items()}, header))


def test_a_router_that_was_changed_is_refused(tmp_path: Path) -> None:
    """In a weight, in the header, or by leaving the checksum out."""
    path = tmp_path / "router.safetensors"
    spread_router(0)[1].save(path)
    with safe_open(path, framework="numpy") as file:
        header, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    _rewritten(path, tensors, header)
    PPORouter.load(path)
    name = "policy.heads.bias"
    changed = {**tensors, name: np.nextafter(tensors[name], np.float32(9))}
    without = {key: value for key, value in header.items() if key != "checksum"}
    for content in ((changed, header), (tensors, {**header, "made_by": "{}"}), (tensors, without)):
        _rewritten(path, *content)
        with pytest.raises(InputError, match=r"checksum: says .*, the content has '[0-9a-f]{16}'"):
            PPORouter.load(path)
