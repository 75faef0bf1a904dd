"""`ppo`: it begins as Compass, fits any cluster, learns by gradients, and its credit is what the slow formula says."""

from __future__ import annotations

from math import exp
from pathlib import Path

import numpy as np
import pytest

from kit import checkpoint
from kit.chance import stream
from kit.errors import InputError
from policies.plan_of import plan_of
from policies.ppo.candidate_learner import WARM, CandidateLearner, CandidatePolicy, Fade, advantages, rewards
from policies.ppo.candidate_router import CandidateSpec
from policies.ppo.knobs import PPOKnobs
from policies.rules.candidates import SHAPES
from policies.rules.compass import CompassRule, Numbers, unit_of
from policies.rules.context import RouterContext
from policies.vocabulary import Choice
from scenarios.files.router_names import read_router
from scenarios.learn.search import FloorMultiplier
from scenarios.learn.train import worth_of
from sim.cluster import RunSpec
from sim.compiled.candidate_rollout import CandidateRollouts
from sim.compiled.program import program_of
from sim.compiled.scoring import tuple_priors
from sim.costs import ProfileCosts
from tests import worlds
from tests.policies.cluster_views import LinearCosts, context, server, view


def drawn(seed: int, sharpness: float = 1.0) -> CandidateSpec:
    """A network that nobody trained."""
    rng = np.random.default_rng(seed)
    tensors = {f"{name}.weight": rng.normal(size=(6, inputs)).astype(np.float32) for name, inputs in SHAPES.items()}
    tensors |= {"setting.bias": rng.normal(size=6).astype(np.float32)}
    tensors |= {"last.weight": rng.normal(size=(1, 6)).astype(np.float32)}
    return CandidateSpec(CompassRule(), {**tensors, "sharpness": np.array([sharpness], np.float32)})


def test_it_begins_as_compass() -> None:
    """Whatever the view, and whatever its first layers are."""
    rng, policy = np.random.default_rng(0), CandidatePolicy(6, (8,), seed=3)
    spec = CandidateSpec(CompassRule(), policy.network_tensors())
    routers = spec.make(context(servers=3)), CompassRule().make(context(servers=3))
    for _ in range(50):
        seen = view(*(server(int(count)) for count in rng.integers(0, 60, 3)), fifo=int(rng.integers(1, 90)))
        first, second = (router.choose(seen, rng) for router in routers)
        assert first == second


def test_a_file_serves_clusters_of_every_size(tmp_path: Path) -> None:
    """Made on three servers it decides on ten, by what a server is like and not by its place."""
    path = tmp_path / "ppo.safetensors"
    drawn(1, sharpness=0.0).save(path)
    rng, found, spec = np.random.default_rng(0), set(), read_router(path)
    ten = context(LinearCosts(speeds=(1.0,) * 10), servers=10)
    for draw in range(30):
        loads = [int(count) for count in rng.permutation(80)[:10]]
        turned = loads[3:] + loads[:3]
        one, other = (spec.make(ten).choose(view(*map(server, each)), rng) for each in (loads, turned))
        assert isinstance(one, Choice)
        assert isinstance(other, Choice)
        assert (one.server, one.width) == ((other.server + 3) % 10, other.width), draw
        found.add(one.server)
    assert len(found) > 3
    three = spec.make(context(servers=3)).choose(view(server(1), server(2), server(3)), rng)
    assert isinstance(three, Choice)
    assert three.server < 3


@pytest.mark.parametrize("wrong", ["rule", "server.weight", "last.weight"])
def test_a_file_that_is_none_is_refused(tmp_path: Path, wrong: str) -> None:
    """By its name, with the remedy."""
    spec, path = drawn(2), tmp_path / "ppo.safetensors"
    tensors = {checkpoint.POLICY + name: value for name, value in spec.tensors.items() if name != wrong}
    header = {key: value for key, value in spec.header.items() if key != wrong}
    checkpoint.write(path, tensors, header)
    with pytest.raises(InputError, match=rf"ppo.safetensors: not a router of this version.*{wrong}.*train it again"):
        read_router(path)


def test_advantages_are_what_the_slow_formula_says() -> None:
    """Sums over all that follows, each by itself: discount by time, lambda by decisions, nothing beyond an end."""
    rng = np.random.default_rng(5)
    time, value = np.cumsum(rng.random((3, 12)), axis=1), rng.normal(size=(3, 12))
    cost, worth, ended = rng.random((3, 12)), rng.random((3, 12)), rng.random((3, 12)) < 0.2
    average, fade = 0.4, Fade(2.0, 0.7)
    found = advantages(rewards(cost, worth, time, average), value, time, ended, fade)
    for e in range(3):
        for first in range(11):
            total = 0.0
            for k in range(first, 11):
                if ended[e, first : k + 1].any():
                    break
                length = time[e, k + 1] - time[e, k]
                mean = 0.5 * (cost[e, k] + cost[e, k + 1])
                error = worth[e, k] - (mean - average) * length + exp(-length / 2.0) * value[e, k + 1] - value[e, k]
                total += 0.7 ** (k - first) * exp(-(time[e, k] - time[e, first]) / 2.0) * error
            assert found[e, first] == pytest.approx(total, abs=1e-12)


def test_learning_empties_the_cluster() -> None:
    """A quick server, a slow one and no floor: what began at random soon has fewer images inside."""
    cluster = worlds.cluster([worlds.profile("quick"), worlds.profile("slow", speed=0.2)])
    servers = cluster.servers
    costs = ProfileCosts(cluster.devices, [s.knobs.batch_limit for s in servers], [s.attachment for s in servers])
    where = RouterContext(cluster.router, costs, cluster.prior, (250.0,) * 2)
    knobs = PPOKnobs(
        minibatch=512,
        learning_rate=1e-3,
        candidate_learning_rate=2e-2,
        hidden=(16,),
        candidate_hidden=8,
        from_scratch=True,
    )
    config = cluster.router
    worth = worth_of(tuple_priors(program_of(cluster)), config.segments, len(config.widths))
    learner = CandidateLearner(knobs, 0, unit_of(where), worth, FloorMultiplier((0.1, 0.01, 0.0)), floor=0.0)
    rule = CompassRule(numbers=Numbers(first_wait=0.0, later_wait=0.0))
    planned = plan_of(CandidateSpec(rule, learner.policy.network_tensors()).make(where), config)
    assert planned is not None

    def episode(seed: int) -> RunSpec:
        return worlds.run(cluster, worlds.poisson_s(800, 20, seed), 20, detail=False, end="cut", seed=seed)

    rollouts, rng, inside = CandidateRollouts(cluster, episode, planned, 0, clusters=32), stream(0, "test"), []
    for update in range(30):
        found = rollouts.collect(learner.policy.network(), 4096)
        inside.append(np.mean(found.whole("in_flight")))
        learner.update(found, rng, 1.0 - update / 30)
    assert np.median(inside[-6:]) < 0.85 * np.median(inside[WARM - 4 : WARM + 2]), inside
