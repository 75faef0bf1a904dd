"""The Gymnasium environment keeps Gymnasium's rules and ours."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from kit.errors import InputError
from policies.observation import ObservationSpec
from policies.run_records import RunColumns
from sim.cluster_env import SlimClusterEnv
from sim.simulated_cluster import RunSpec, Simulation
from tests import tiny


def make_env(horizon_s: float = 1.0) -> SlimClusterEnv:
    spec = tiny.cluster()

    def simulate(seed: int) -> Simulation:
        return Simulation(spec, tiny.run(spec, tiny.poisson_s(300, horizon_s, seed), horizon_s, detail=False))

    return SlimClusterEnv(simulate, ObservationSpec(power_limits_w=(250.0, 250.0, 250.0)))


def test_passes_gymnasiums_own_checker() -> None:
    env = make_env()
    check_env(env, skip_render_check=True)
    assert env.observation_space.contains(env.reset(seed=3)[0])


def play(env: SlimClusterEnv, seed: int) -> tuple[list[float], list[tuple[int, float]], list[int]]:
    rewards, credits, decisions = [], [], []
    _, info = env.reset(seed=seed)
    rng = np.random.default_rng(seed)
    truncated = False
    while not truncated:
        decisions.append(info["decision"])
        action = np.array([rng.integers(3), rng.integers(4), rng.integers(6)])
        _, reward, _, truncated, info = env.step(action)
        rewards.append(reward)
        credits += info["credits"]
    return rewards, credits, decisions


def test_every_decision_gets_its_credit_once_and_the_step_rewards_are_their_sum() -> None:
    """Credits name each decision exactly once, and nothing is lost between credits and rewards."""
    rewards, credits, decisions = play(make_env(), 5)
    assert sorted(decision for decision, _ in credits) == decisions
    assert sum(rewards) == pytest.approx(sum(reward for _, reward in credits))
    assert len(decisions) > 50


def test_same_seed_same_episode() -> None:
    env = make_env()
    assert play(env, 1) == play(env, 1)
    assert play(env, 1) != play(env, 2)


def test_masked_choices_are_replaced_and_said() -> None:
    """A width that no memory holds is replaced by the nearest that fits."""
    spec = tiny.cluster(greedy={"vram_cap_bytes": 160_000_000})  # 100 MB context: segment 4 fits at 0.25 only
    run = tiny.run(spec, tiny.poisson_s(50, 1.0), 1.0)
    env = SlimClusterEnv(lambda seed: Simulation(spec, run), ObservationSpec(power_limits_w=(250.0,) * 3))
    _, info = env.reset(seed=0)
    seen = []
    truncated = False
    while not truncated:
        allowed = info["width_mask"]
        _, _, _, truncated, info = env.step(np.array([0, 3, 0]))
        seen.append((bool(allowed[0, 3]), info["replaced"]))
    assert (False, True) in seen


def test_the_last_info_tells_what_the_episode_came_to() -> None:
    """The run's figures, of its record; and the share of actions that were masked. An episode begins to count again."""
    spec = tiny.cluster(greedy={"vram_cap_bytes": 160_000_000})
    run = tiny.run(spec, tiny.poisson_s(50, 1.0), 1.0)

    def figures(asked: RunSpec, columns: RunColumns) -> dict[str, float]:
        assert asked is run
        return {"completed": float((columns.requests.status == 0).sum()), "decided": float(columns.decisions)}

    env = SlimClusterEnv(lambda seed: Simulation(spec, run), ObservationSpec((250.0,) * 3), figures=figures)
    shares = set()
    for width in (3, 2):
        infos = [env.reset(seed=0)[1]]
        truncated = False
        while not truncated:
            *_, truncated, info = env.step(np.array([0, width, 0]))
            infos.append(info)
        replaced = [info["replaced"] for info in infos[1:]]
        told = {
            "completed": float(len(run.arrivals_ns)),
            "decided": float(len(replaced)),
            "replaced_share": np.mean(replaced),
        }
        assert infos[-1]["figures"] == pytest.approx(told)
        shares.add(np.mean(replaced))
        assert not any("figures" in info for info in infos[:-1])
    assert len(shares) == 2
    assert 0 < min(shares) < max(shares) < 1


def test_masks_in_a_row_are_those_of_its_parts() -> None:
    """As sb3-contrib wants them: servers, widths that some valid server holds, groups, holds; all where nobody asks."""
    spec = tiny.cluster(
        greedy={"vram_cap_bytes": 160_000_000}, router={"outstanding_micro_batches": 1, "max_batching_delay_ns": 10**7}
    )
    run = tiny.run(spec, tiny.poisson_s(200, 0.5), 0.5)
    env = SlimClusterEnv(lambda seed: Simulation(spec, run), ObservationSpec((250.0,) * 3), (0.002,))
    assert env.action_masks().all()
    _, info = env.reset(seed=0)
    seen, truncated = set(), False
    while not truncated:
        row = env.action_masks()
        choices = getattr(env.action_space, "nvec")  # noqa: B009 - of a MultiDiscrete, which its type does not say
        assert row.shape == (sum(choices),)
        assert row.dtype == np.bool_
        servers, widths, micro_batch_sizes, batching_delays = np.split(row, np.cumsum(choices)[:-1])
        assert servers.tolist() == info["server_mask"].tolist()
        held = info["width_mask"][info["server_mask"]]
        assert widths.tolist() == [any(held[:, place]) for place in range(4)]
        assert micro_batch_sizes.all()
        assert batching_delays.tolist() == info["batching_delay_mask"].tolist()
        seen.add((servers.all(), widths.all(), batching_delays.all()))
        *_, truncated, info = env.step(np.array([0, 0, 0, 0]))
    assert {False, True} == {servers for servers, _, _ in seen} == {widths for _, widths, _ in seen}
    assert env.action_masks().all()


def test_a_step_before_a_reset_says_what_to_do() -> None:
    with pytest.raises(gymnasium.error.ResetNeeded, match="or none has begun; call reset"):
        make_env().step(np.array([0, 0, 0]))


def test_an_action_may_be_to_wait() -> None:
    """A fourth index, masked where no request may be delayed; each decision, holds included, gets its credit once."""
    spec = tiny.cluster(router={"max_batching_delay_ns": 20_000_000})
    run = tiny.run(spec, tiny.poisson_s(300, 1.0), 1.0, detail=False)
    env = SlimClusterEnv(lambda seed: Simulation(spec, run), ObservationSpec((250.0,) * 3), (0.002, 0.01))
    _, info = env.reset(seed=0)
    rng, truncated = np.random.default_rng(0), False
    decisions, credited, held, refused = [], [], 0, 0
    while not truncated:
        decisions.append(info["decision"])
        may, batching_delay = info["batching_delay_mask"].tolist(), int(rng.integers(3))
        assert may in ([True, True, True], [True, False, False])
        action = np.array([rng.integers(3), 0, rng.integers(6), batching_delay])
        _, _, _, truncated, info = env.step(action)
        held += may[batching_delay] and batching_delay > 0
        refused += not may[batching_delay]
        assert info["replaced"] or may[batching_delay]
        credited += [decision for decision, _ in info["credits"]]
    assert min(held, refused) > 50
    lost = set(decisions) - set(credited)  # enough waited when the answer came, so that nobody was held
    assert sorted(credited) == sorted(set(decisions) - lost)
    assert len(lost) < 0.1 * len(decisions)
    env.reset(seed=0)
    with pytest.raises(
        ValueError, match=r"\(server, width index, micro-batch size index, batching_delay\), .* below \(3, 4, 6, 3\)"
    ):
        env.step(np.array([0, 0, 0]))


def test_waits_that_nobody_may_wait_are_refused() -> None:
    with pytest.raises(InputError, match=r"batching_delays_s: .*max_batching_delay_s"):
        SlimClusterEnv(lambda seed: make_env()._simulate(seed), ObservationSpec((250.0,) * 3), (0.01,))


@pytest.mark.parametrize(
    "action", [[9, 9, 9], [0, 0, 6], [-1, 0, 0], [0, 0], [0, 0, 0, 0], 1, ["a", 0, 0], [0.5, 0, 0]]
)
def test_an_action_that_is_none_says_what_is_allowed(action: Any) -> None:
    env = make_env()
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"action .*: expected .* below \(3, 4, 6\)"):
        env.step(action)
    env.step(np.array([2, 3, 5]))
