"""The vector environment is `SyncVectorEnv` over the single environment, number for number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, replace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from policies.faults import Crash, Outage
from policies.observation import ObservationSpec
from policies.run_records import RunColumns
from sim.cluster_env import SlimClusterEnv
from sim.compiled import UnsupportedScenario
from sim.compiled.vector_env import SlimClusterVectorEnv
from sim.simulated_cluster import ClusterSpec, RunSpec, Simulation
from tests import tiny

NS_PER_S = 1_000_000_000
Plan = Callable[[int], RunSpec]


def plain(horizon_s: float = 0.4, **changes: Any) -> tuple[ClusterSpec, Plan]:
    """Three unequal servers; every seed has arrivals, jitter and a length of its own."""
    spec = tiny.cluster()

    def plan(seed: int) -> RunSpec:
        length_s = horizon_s * (0.5 + (seed % 7) / 7)
        run = tiny.run(spec, tiny.poisson_s(400, length_s, seed), length_s, detail=False, end="cut", seed=seed)
        return replace(run, **changes)

    return spec, plan


def narrow() -> tuple[ClusterSpec, Plan]:
    """Memories that hold few instances, so that many choices are illegal, and one micro-batch a server at
    most."""
    spec = tiny.cluster(greedy={"vram_cap_bytes": 160_000_000}, router={"outstanding_micro_batches": 1})
    run = tiny.run(spec, tiny.poisson_s(300, 0.3), 0.3, detail=False)
    return spec, lambda seed: replace(run, seed=seed)


def holed() -> tuple[ClusterSpec, Plan]:
    """Widths are missing between others, so that two are as near as each other."""
    spec = tiny.cluster()
    segment = (True, False, True, False)
    router = replace(spec.router, fits=((segment,) * 4, (segment[::-1],) * 4, ((True, False, False, True),) * 4))
    run = tiny.run(spec, tiny.poisson_s(300, 0.2), 0.2, detail=False)
    return replace(spec, router=router), lambda seed: replace(run, seed=seed)


def flooded() -> tuple[ClusterSpec, Plan]:
    """So many requests at once that every pool must grow, more than once."""
    spec = tiny.cluster()
    run = tiny.run(spec, np.linspace(0, 0.02, 900), 0.3, detail=False, end="cut")
    return spec, lambda seed: replace(run, seed=seed)


def broken() -> tuple[ClusterSpec, Plan]:
    faults = (Outage(0, NS_PER_S // 10, NS_PER_S // 5), Crash(1, NS_PER_S // 8))
    return plain(0.4, faults=faults)


def patient(**faults: Any) -> tuple[ClusterSpec, Plan]:
    """Requests may be held; some are given up meanwhile."""
    spec = tiny.cluster(router={"max_batching_delay_ns": 15_000_000, "shed_expired": True})

    def plan(seed: int) -> RunSpec:
        late_ns = {"deadlines_ns": (12_000_000,)}
        return tiny.run(spec, tiny.poisson_s(400, 0.4, seed), 0.4, detail=False, seed=seed, **late_ns, **faults)

    return spec, plan


def patient_and_broken() -> tuple[ClusterSpec, Plan]:
    """The same with servers that go and come back."""
    return patient(faults=(Outage(0, NS_PER_S // 10, NS_PER_S // 5), Crash(1, NS_PER_S // 8)))


def pair(
    made: tuple[ClusterSpec, Plan], clusters: int, batching_delays_s: tuple[float, ...] = ()
) -> tuple[SlimClusterVectorEnv, SyncVectorEnv[Any, Any]]:
    spec, plan = made
    limits = ObservationSpec(tuple(tables.profile.power.cap_w for tables in spec.devices))
    single = [
        lambda: SlimClusterEnv(lambda seed: Simulation(spec, plan(seed)), limits, batching_delays_s, figures)
    ] * clusters
    return SlimClusterVectorEnv(spec, plan, clusters, batching_delays_s, figures), SyncVectorEnv(single)


def figures(run: RunSpec, columns: RunColumns) -> dict[str, float]:
    """Of all that a run's figures are computed from, something."""
    requests = columns.requests
    totals: list[Any] = [*columns.servers, *columns.devices]
    found = {
        "seed": run.seed,
        "decisions": columns.decisions,
        "ended_ns": columns.ended_ns,
        "downs": len(columns.downtimes),
    }
    found |= {name: getattr(requests, name).sum() for name in ("status", "correct", "energy_j", "moves", "finished_ns")}
    numbers = [value for total in totals for value in astuple(total) if not isinstance(value, str)]
    return {name: float(value) for name, value in found.items()} | {
        f"total {i}": float(v) for i, v in enumerate(numbers)
    }


def assert_same_infos(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert ours.keys() == theirs.keys()
    for key in theirs:
        if key == "figures":
            assert_same_infos(ours[key], theirs[key])
            continue
        assert ours[key].dtype == theirs[key].dtype, key
        assert repr(ours[key].tolist()) == repr(theirs[key].tolist()), key  # not-a-number is itself


def assert_same_answers(ours: Any, theirs: Any) -> None:
    for mine, other in zip(ours[:-1], theirs[:-1], strict=True):
        assert mine.dtype == other.dtype
        assert mine.shape == other.shape
        assert mine.tolist() == other.tolist()
    assert_same_infos(ours[-1], theirs[-1])


@pytest.mark.parametrize(("make", "ends"), [(plain, 12), (narrow, 4), (holed, 4), (flooded, 3), (broken, 8)])
def test_is_syncvectorenv_over_the_single_environment(make: Callable[[], Any], ends: int) -> None:
    """Observations, rewards, ends and infos are equal, step by step, for random actions over several episodes."""
    ours, theirs = pair(make(), 3)
    assert_same_answers(ours.reset(seed=5), theirs.reset(seed=5))
    rng = np.random.default_rng(0)
    ended, replaced, credited, told = 0, 0, 0, 0
    while ended < ends:
        actions = rng.integers(0, [3, 4, 6], size=(3, 3))
        mine, other = ours.step(actions), theirs.step(actions)
        assert_same_answers(mine, other)
        assert ours.action_masks().tolist() == np.array(theirs.call("action_masks")).tolist()
        told += int(mine[-1].get("_figures", np.zeros(3)).sum())
        assert (mine[1] != 0).any() or not any(mine[-1]["credits"])
        ended += int(mine[3].sum())
        replaced += int(mine[-1]["replaced"].sum())
        credited += sum(len(each) for each in mine[-1]["credits"])
    assert replaced > 0, "no action was illegal"
    assert told >= ended
    assert credited > 100


@pytest.mark.parametrize("make", [patient, patient_and_broken, plain])
def test_waits_are_the_single_environments(make: Callable[[], Any]) -> None:
    """A fourth index holds, or is replaced where no request may be delayed; where the limit is 0 nobody ever may."""
    batching_delays_s = () if make is plain else (0.001, 0.01)
    ours, theirs = pair(make(), 3, batching_delays_s)
    assert ours.action_space == theirs.action_space
    assert_same_answers(ours.reset(seed=5), theirs.reset(seed=5))
    rng, held, ended = np.random.default_rng(0), 0, 0
    infos: dict[str, Any] = {}
    while ended < 6:
        actions = rng.integers(0, [3, 4, 6, 3][: 3 + bool(batching_delays_s)], size=(3, 3 + bool(batching_delays_s)))
        if "batching_delay_mask" in infos:
            held += int(infos["batching_delay_mask"][np.arange(3), actions[:, 3]][actions[:, 3] > 0].sum())
        mine, other = ours.step(actions), theirs.step(actions)
        assert_same_answers(mine, other)
        infos = mine[-1]
        assert ("batching_delay_mask" in infos) <= bool(batching_delays_s)
        ended += int(mine[3].sum())
    assert (held > 100) == bool(batching_delays_s)


def test_a_cluster_is_reset_by_the_step_after_its_end() -> None:
    """Gymnasium's next-step rule, which the metadata name: no reward, no end, and the first decision of a new run."""
    env, _ = pair(plain(0.1), 2)
    assert env.metadata["autoreset_mode"] == AutoresetMode.NEXT_STEP
    env.reset(seed=1)
    action = np.zeros((2, 3), np.int64)
    truncated = np.zeros(2, np.bool_)
    while not truncated.any():
        observations, _, _, truncated, infos = env.step(action)
    over = int(np.flatnonzero(truncated)[0])
    assert (observations[over] == 0).all()
    assert not infos["_decision"][over]
    observations, rewards, _, truncated, infos = env.step(action)
    assert (rewards[over], truncated[over], infos["decision"][over]) == (0.0, False, 1)
    assert observations[over][0] > 0, "a request waits"


def test_an_episode_without_a_decision() -> None:
    """It is not an end, as nothing was decided; the step that follows is refused."""
    spec, plan = plain()
    mine, other = (iter([plan(0), plan(1), tiny.run(spec, [], 0.1, detail=False)]) for _ in range(2))
    ours = SlimClusterVectorEnv(spec, lambda seed: next(mine), 1)
    limits = ObservationSpec((250.0,) * 3)
    theirs = SyncVectorEnv([lambda: SlimClusterEnv(lambda seed: Simulation(spec, next(other)), limits)])
    assert_same_answers(ours.reset(), theirs.reset())
    action, is_over = np.array([[0, 0, 2]]), False
    while not is_over:
        answer = ours.step(action)
        assert_same_answers(answer, theirs.step(action))
        is_over = bool(answer[3].any())
    assert_same_answers(ours.step(action), theirs.step(action))
    for env in (ours, theirs):
        with pytest.raises(gymnasium.error.ResetNeeded):
            env.step(action)


def test_seeds_are_one_a_cluster_and_a_mask_resets_some() -> None:
    """A list of seeds, a reset of one cluster, and no seed at all do what `SyncVectorEnv` does."""
    ours, theirs = pair(plain(), 3)
    assert_same_answers(ours.reset(seed=[3, 1, 3]), theirs.reset(seed=[3, 1, 3]))
    actions = np.array([[0, 1, 2], [1, 1, 1], [2, 3, 0]])
    for _ in range(20):
        assert_same_answers(ours.step(actions), theirs.step(actions))
    mask = np.array([False, True, False])
    assert_same_answers(ours.reset(options={"reset_mask": mask}), theirs.reset(options={"reset_mask": mask}))
    assert_same_answers(ours.step(actions), theirs.step(actions))
    assert_same_answers(ours.reset(), theirs.reset())


def test_observations_returned_to_the_caller_do_not_change_with_later_steps() -> None:
    env, _ = pair(plain(), 2)
    kept: list[Any] = [env.reset(seed=0)]
    before = []
    for _ in range(30):
        before.append(repr(kept[-1]))
        kept.append(env.step(np.array([[0, 0, 0], [1, 0, 5]])))
    assert [repr(each) for each in kept[:-1]] == before


def test_vector_env_refuses_invalid_actions_seeds_and_options() -> None:
    """Actions out of range, a step before the first reset, seeds that don't fit, and what the engine can't do."""
    spec, plan = plain()
    env = SlimClusterVectorEnv(spec, plan, 2)
    fine = np.zeros((2, 3), np.int64)
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(fine)
    env.reset(seed=0)
    shapes = (np.array([[0, 0, 0], [3, 0, 0]]), np.array([[0, 0, 0], [0, -1, 0]]), np.zeros((1, 3), np.int64))
    for wrong in (*shapes, np.full((2, 3), 0.5), np.array([["0"] * 3] * 2)):
        with pytest.raises(ValueError, match=r"actions must be \(2, 3\) of whole numbers, .* below \[3, 4, 6\]; found"):
            env.step(wrong)
    with pytest.raises(ValueError, match=r"found \[3, 0, 0\] for cluster 1"):
        env.step(shapes[0])
    with pytest.raises(ValueError, match="3 seeds for 2 clusters"):
        env.reset(seed=[1, 2, 3])
    with pytest.raises(ValueError, match="reset_mask"):
        env.reset(options={"reset_mask": np.array([1, 0])})
    with pytest.raises(UnsupportedScenario, match="log"):
        SlimClusterVectorEnv(spec, lambda seed: replace(plan(seed), keep_log=True), 2)
