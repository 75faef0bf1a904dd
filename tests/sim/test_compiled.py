"""The compiled engine beside its parity with the reference: what it refuses, pools that grow, and rollouts."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from kit.errors import WorkError
from policies.compiled.plan_layout import PlanRow
from policies.compiled.rule_kernels import LARGEST, RANDOM_WIDTH
from policies.faults import PLANNED, WORKER_DIED, Crash, Outage, Supervision
from policies.observation import masks
from policies.ppo.kernels import Experience, Layout
from policies.ppo.spec import PolicySpec
from policies.router_plans import CompiledRouter
from policies.vocabulary import NS_PER_S, BatchingDelay, Choice
from sim.compiled import UnsupportedScenario
from sim.compiled.cluster_rows import Program, Shape, margin, message_margin, program_of
from sim.compiled.compiled_run import RunRow, run_to_end
from sim.compiled.compiled_simulation import CompiledSimulation
from sim.compiled.rollout import Rollouts
from sim.compiled.row_layout import INSTANCES_FULL, MESSAGES_FULL, MICRO_BATCHES_FULL, RECORDS_FULL, REQUESTS_FULL
from sim.simulated_cluster import BernoulliCorrectness, ClusterSpec, MatrixCorrectness, RunSpec, Simulation
from tests import tiny

HIDDEN = (8, 8)


def small(**changes: Any) -> tuple[ClusterSpec, RunSpec]:
    spec = tiny.cluster()
    return spec, tiny.run(spec, tiny.poisson_s(200, 1.0), 1.0, **changes)


# ------------------------------------------------------------------------------------------------------------ refusals


class OwnLabels:
    def is_correct(self, request: int, widths: tuple[float, ...]) -> bool:
        return True


class AllWrong(BernoulliCorrectness):
    def is_correct(self, request: int, widths: tuple[float, ...]) -> bool:
        return False


@pytest.mark.parametrize(
    ("changes", "feature"),
    [
        ({"keep_log": True}, "log"),
        ({"correctness": OwnLabels()}, "OwnLabels"),
        ({"correctness": AllWrong(tiny.prior(), 1)}, "AllWrong"),
        ({"horizon_ns": 20_000 * NS_PER_S}, "longer than 8940 s"),
    ],
)
def test_compiled_engine_refuses_an_unsupported_feature(changes: dict[str, Any], feature: str) -> None:
    with pytest.raises(UnsupportedScenario, match=feature) as refused:
        CompiledSimulation(*small(**changes))
    assert "--engine simpy" in str(refused.value)


def test_too_many_width_tuples_are_refused() -> None:
    widths = tuple((n + 1) / 16 for n in range(16))
    spec = tiny.cluster([tiny.profile(widths=(0.5, 1.0), segments=2)])
    many = replace(spec, router=replace(spec.router, segments=5, widths=widths))
    with pytest.raises(UnsupportedScenario, match=r"16\^5 width tuples"):
        program_of(many)


def test_a_width_tuple_without_labels_stops_the_run_by_name() -> None:
    """The reference raises KeyError; here no number is made up either."""
    spec, run = small()
    images = np.zeros(len(run.arrivals_ns), np.int64)
    labels = MatrixCorrectness([(1.0, 1.0, 1.0, 1.0)], np.ones((1, 1), np.bool_), images)
    with pytest.raises(WorkError, match="width tuple"):
        CompiledSimulation(spec, replace(run, correctness=labels)).run(tiny.Uniform(), np.random.default_rng(0))


@pytest.mark.parametrize("server", [-1, -2, 3])
def test_a_server_that_is_none_never_reaches_memory(server: int) -> None:
    simulation = CompiledSimulation(*small())
    assert simulation.advance() is not None
    with pytest.raises(AssertionError, match="a server that is none"):
        simulation.decide(Choice(server, 1.0, 1))


# --------------------------------------------------------------------------------------------------------------- pools


def test_pools_that_grow_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begun with hardly any room, a run has the records of one that never lacked any."""
    slow = {"there_s": 0.001, "back_s": 0.05}
    profiles = [tiny.profile(name, speed=speed, handover=slow) for name, speed in (("a", 1.0), ("b", 0.7))]
    spec = tiny.cluster(
        profiles, greedy={"scale_trigger": 2}, router={"micro_batch_sizes": (1, 2, 4), "outstanding_micro_batches": 40}
    )
    run = tiny.run(spec, tiny.poisson_s(600, 2.0), 2.0, faults=(Crash(1, NS_PER_S),))
    ample = CompiledSimulation(spec, run).run(tiny.Uniform(), np.random.default_rng(0))
    grown: list[int] = []
    grow = RunRow.grow

    def scarce(
        program: Program, requests: int, instances: int, micro_batches: int, messages: int, **rest: Any
    ) -> Shape:
        least = (2, margin(program), 1, message_margin(program))
        sizes = (requests, instances, micro_batches, messages) if grown else least
        return Shape(program, *sizes, **rest)

    def noted(self: RunRow, status: int) -> None:
        grown.append(status)
        grow(self, status)

    monkeypatch.setattr(Program, "shape", scarce)
    monkeypatch.setattr(RunRow, "grow", noted)
    again = CompiledSimulation(spec, run).run(tiny.Uniform(), np.random.default_rng(0))
    assert again == ample
    assert {REQUESTS_FULL, INSTANCES_FULL, MICRO_BATCHES_FULL, RECORDS_FULL, MESSAGES_FULL} <= set(grown)


def with_limit(outstanding_micro_batches: int) -> tuple[ClusterSpec, RunSpec]:
    """One server that gets more than it can do, so that what is outstanding only grows."""
    spec = tiny.cluster([tiny.profile()], router={"outstanding_micro_batches": outstanding_micro_batches})
    return spec, tiny.run(spec, tiny.poisson_s(2000, 0.1), 0.1, end="cut")


def test_a_row_grows_with_the_blocks_in_use_and_not_with_their_limit() -> None:
    sizes = []
    for limit in (5_000, 100_000):
        spec, spec_run = with_limit(limit)
        run = RunRow(program_of(spec), spec_run)
        before = run.row.nbytes
        run_to_end(run, planned(spec), np.random.default_rng(0))
        sizes.append((before, run.row.nbytes, run.shape.micro_batches, run.cluster.decision))
    assert sizes[0] == sizes[1]
    assert sizes[0][2] < 2 * sizes[0][3]


def planned(spec: ClusterSpec) -> CompiledRouter:
    """A router in compiled form: each image alone, at random."""
    plan = PlanRow(spec.router, None)
    plan.head.width_rule.rule, plan.head.micro_batch_size_rule = RANDOM_WIDTH, LARGEST
    plan.set_micro_batch_sizes((1,))
    return CompiledRouter(plan.row())


COUNT = """
import sys
import numpy as np
from sim.compiled.cluster_rows import program_of
from sim.compiled.compiled_run import RunRow
from sim.compiled.compiled_run import run_to_end
from tests.sim.test_compiled import planned, with_limit

for limit in (5_000, 100_000):
    spec, run = with_limit(limit)
    row, calls = RunRow(program_of(spec), run), 0

    def count(frame, event, argument):
        global calls
        calls += event == "call"

    sys.setprofile(count)
    run_to_end(row, planned(spec), np.random.default_rng(0))
    sys.setprofile(None)
    print(calls)
"""


def test_a_run_takes_as_many_steps_whatever_the_limit_of_blocks() -> None:
    """Counted in the interpreter, where every record that is looked at is a call."""
    environment = {**os.environ, "SLIMSCHED_JIT": "0"}
    command = [sys.executable, "-W", "ignore", "-c", COUNT]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250, check=True)
    low, high = map(int, done.stdout.split())
    assert low == high


# -------------------------------------------------------------------------------------------------------------- faults


def test_a_back_off_that_64_bits_cannot_double_is_the_longest_one() -> None:
    """Thirty short outages count as deaths in a row; the crash after them waits for the limit, as in the reference."""
    spec = tiny.cluster()
    rules = Supervision(backoff_ns=100 * NS_PER_S, backoff_limit_ns=200 * NS_PER_S, stable_ns=10**6 * NS_PER_S)
    spec = replace(spec, supervision=rules)
    outages = [Outage(0, n * 10_000_000, n * 10_000_000 + 1) for n in range(1, 31)]
    run = tiny.run(spec, tiny.poisson_s(100, 1.0), 1.0, faults=(*outages, Crash(0, 400_000_000)))
    ours, theirs = (
        kind(spec, run).run(tiny.Uniform(), np.random.default_rng(0)) for kind in (Simulation, CompiledSimulation)
    )
    assert ours == theirs
    assert [down.reason for down in ours.downtimes] == [*[PLANNED] * 30, WORKER_DIED]
    assert [down.up_ns is None for down in ours.downtimes] == [*[False] * 30, True]


# ------------------------------------------------------------------------------------------------------------ rollouts


BATCHING_DELAYS_S = (0.002, 0.01)
PATIENT = {"router": {"max_batching_delay_ns": 20_000_000}}
both_kinds = pytest.mark.parametrize(
    ("experiment", "batching_delays_s"), [({}, ()), (PATIENT, BATCHING_DELAYS_S)], ids=["paper", "holds"]
)


def rollouts(
    run_of: Any, spec: ClusterSpec, batching_delays_s: tuple[float, ...] = (), **changes: Any
) -> tuple[Rollouts, np.ndarray]:
    limits_w = tuple(device.profile.power.cap_w for device in spec.devices)
    policy = PolicySpec.of(spec.router, limits_w, batching_delays_s=batching_delays_s)
    layout = Layout(policy, HIDDEN)
    weights = np.random.default_rng(1).normal(0, 0.3, layout.parameters).astype(np.float32)
    return Rollouts(spec, run_of, policy, HIDDEN, 5, **changes), weights


@both_kinds
def test_a_rollout_is_the_reference_with_the_same_choices(
    experiment: Any, batching_delays_s: tuple[float, ...]
) -> None:
    """Every observation, mask and reward of a cluster, for the choices that the policy drew in it."""
    spec = tiny.cluster(**experiment)
    run = tiny.run(spec, tiny.poisson_s(300, 3.0), 3.0, detail=False, end="cut")
    many, weights = rollouts(lambda seed: run, spec, batching_delays_s, clusters=1)
    found = many.collect(weights, 0.3, 900)
    made = many._columns  # of one cluster that nothing was carried over to: in the order of its decisions
    assert made is not None
    simulation = Simulation(spec, run)
    policy = many._spec
    rewards: dict[int, np.float32] = {}
    for n in range(900):
        asked = simulation.advance()
        assert asked is not None
        rewards.update({decision - 1: np.float32(terms.total) for decision, terms in simulation.take_credits()})
        action = made.actions[n].tolist()
        servers, widths = masks(asked.view)
        assert made.observation[n].tolist() == policy.observation.observe(asked.view).tolist()
        assert made.server_mask[n].tolist() == servers.tolist()
        assert made.width_mask[n].tolist() == widths[action[0]].tolist()
        assert made.batching_delay_mask[n].tolist() == policy.waits.mask(asked.view).tolist()
        answer: Choice | BatchingDelay = Choice(
            action[0], policy.widths[action[1]], policy.micro_batch_sizes[action[2]]
        )
        if any(action[3:]):
            answer = policy.waits.batching_delay(action[3], asked.view)
        assert made.images[n] == (
            min(answer.micro_batch_size, asked.view.candidates) if isinstance(answer, Choice) else 1
        )
        simulation.decide(answer)
    assert [made.reward[n] for n in rewards] == list(rewards.values())
    assert found.reward.tolist() == list(rewards.values())
    assert (made.actions[:900, 3:] > 0).sum() >= 50 * len(batching_delays_s)


@both_kinds
def test_every_decision_is_rewarded_waits_or_was_forgotten_whatever_the_threads(
    experiment: Any, batching_delays_s: tuple[float, ...]
) -> None:
    """Over several collections and episodes, with two threads as with one; a decision to hold is one, too."""
    spec = tiny.cluster(**experiment)

    def run_of(seed: int) -> RunSpec:
        crashes = tuple(Crash(server, (50 + 20 * server) * 1_000_000) for server in range(3))
        return tiny.run(spec, tiny.poisson_s(300, 0.3, seed), 0.3, detail=False, end="cut", seed=seed, faults=crashes)

    totals = []
    for threads in (1, 2):
        many, weights = rollouts(run_of, spec, batching_delays_s, clusters=20, threads=threads)
        parts = [many.collect(weights, 0.1, 2000) for _ in range(5)]
        assert many.episodes > 20
        assert many.decisions == sum(map(len, parts)) + many.waiting + many.forgotten
        terms = many.take_terms()
        assert terms is not None
        rewards = np.concatenate([part.reward for part in parts]).astype(np.float64)
        assert terms.total == pytest.approx(rewards.mean(), rel=1e-4)
        assert many.take_terms() is None
        totals.append(parts)
    for one, two in zip(*totals, strict=True):
        for field in fields(Experience):
            np.testing.assert_array_equal(getattr(one, field.name), getattr(two, field.name))


def test_an_episode_without_a_decision_is_said() -> None:
    spec = tiny.cluster()
    nobody = tiny.run(spec, [], 1.0, detail=False, end="cut")
    many, weights = rollouts(lambda seed: nobody, spec, clusters=1)
    with pytest.raises(WorkError, match="10 episodes in a row ended without a single decision"):
        many.collect(weights, 0.1, 10)
