"""Gavel's rounds: scenes by hand, what they come to on one type, and what knowing the types is worth."""

from __future__ import annotations

import numpy as np
import pytest

from jobs.job_records import NodeOutage
from jobs.job_traces import JobTrace
from jobs.policies.job_cluster import NodeGroup, Speeds
from jobs.policies.named_policies import PreemptionParams, policy_of, shown_name
from tests.jobs.sim.cluster_models import S, jobs, run, seconds

ROUNDS = PreemptionParams(round_s=100, restart_s=0)
TWO_TYPES = (NodeGroup(1, 1, "slow"), NodeGroup(1, 1, "fast"))


def test_who_goes_on_stays_on_its_nodes() -> None:
    """Job 1 ends; jobs 0 and 2 stay where they are, and job 3 takes the node of job 1."""
    record = run("gavel", jobs((0, 500, 4), (0, 100, 4), (0, 500, 4), (50, 100, 4)), nodes=(4, 4, 4), params=ROUNDS)
    assert seconds(record.end_ns) == [500, 100, 500, 200]
    assert record.preemptions.sum() == 0


def test_a_job_moves_for_one_that_needs_a_whole_node_and_is_started_at_once() -> None:
    """Two of 2 GPUs lie on two nodes beside jobs that end; a job of 4 has room when one of them moves to the other."""
    scene = jobs((0, 100, 2), (0, 900, 2), (0, 100, 2), (0, 900, 2), (50, 400, 4))
    record = run("gavel", scene, nodes=(4, 4), params=ROUNDS, restart_ns=10 * S)
    assert seconds(record.start_ns)[4] == 100
    assert record.preemptions.tolist() == [0, 1, 0, 0, 0]
    assert record.restart_ns.tolist() == [0, 10 * S, 0, 0, 0]
    assert seconds(record.end_ns)[1] == 910  # moved at 100 s, without a break but for its restart


def test_each_goes_where_it_is_relatively_faster() -> None:
    """Job 0 is four times as fast on the fast type, job 1 as fast on both: it lies on the slow one from the start."""
    speeds = Speeds({"big": {"slow": 1.0, "fast": 4.0}, "small": {"slow": 1.0, "fast": 1.0}})
    scene = jobs((0, 2000, 1), (0, 900, 1), job_class=["big", "small"])
    record = run("gavel", scene, groups=TWO_TYPES, speeds=speeds, params=ROUNDS)
    assert seconds(record.end_ns) == [500, 900]
    assert record.preemptions.sum() == 0


def test_pools_in_which_jobs_are_equally_fast_are_one_to_them() -> None:
    """A cluster in two halves: hardly more stops than in one, though a program's shares may lie in either."""
    rng = np.random.default_rng(0)
    rows = [(float(at), 100.0 * rng.integers(1, 20), int(rng.choice([1, 1, 2, 4]))) for at in range(0, 20_000, 165)]
    halves, whole = (
        run("gavel", jobs(*rows), groups=groups, params=ROUNDS).preemptions.sum()
        for groups in ((NodeGroup(2, 4, "a"), NodeGroup(2, 4, "b")), (NodeGroup(4, 4),))
    )
    assert 0 < halves < 1.35 * whole


def test_a_job_moves_to_the_faster_type_when_that_is_free() -> None:
    speeds = Speeds({"net": {"slow": 1.0, "fast": 2.0}})
    scene = jobs((0, 200, 1), (0, 1000, 1), job_class=["net", "net"], gpu_types=["fast", ""])
    record = run("gavel", scene, groups=TWO_TYPES, speeds=speeds, params=ROUNDS)
    assert seconds(record.end_ns) == [100, 550]
    assert record.preemptions.tolist() == [0, 1]


def test_a_node_that_dies_takes_no_job_until_it_returns() -> None:
    outages = (NodeOutage(150 * S, 350 * S, 0),)
    record = run("gavel", jobs((0, 400, 4), (0, 400, 4)), nodes=(4, 4), params=ROUNDS, outages=outages)
    assert record.kills.tolist() == [1, 0]
    assert seconds(record.end_ns) == [550, 500]


def test_who_can_not_run_for_want_of_nodes_takes_nothing_from_the_others() -> None:
    """Job 0 may use the dead node alone. It is not the least of all: job 3 of 2 GPUs has its third of the time."""
    groups = (NodeGroup(1, 1, "dead"), NodeGroup(1, 2, "alive"))
    scene = jobs((0, 50, 1), (100, 900, 1), (100, 900, 1), (100, 900, 2), gpu_types=["dead", "alive", "alive", "alive"])
    record = run("gavel", scene, groups=groups, params=ROUNDS, outages=(NodeOutage(1 * S, 5000 * S, 0),))
    assert seconds(record.end_ns)[0] == 5049
    assert seconds(record.start_ns)[3] < 500


@pytest.mark.parametrize("name", ["gavel", "las"])
@pytest.mark.parametrize("seed", range(10))
def test_on_one_type_those_run_that_have_had_least(seed: int, name: str) -> None:
    """Jobs of one GPU that came together and end with a round. Of equals the older run, under `las` those that ran."""
    rng = np.random.default_rng(seed)
    rounds = rng.integers(1, 12, 12)
    had, ran, end = np.zeros(12, int), np.zeros(12, bool), np.zeros(12)
    while (had < rounds).any():
        order = np.lexsort((~ran, had) if name == "las" else (had,))
        ran = np.isin(np.arange(12), order[had[order] < rounds[order]][:4])
        had += ran
        end = np.where(had < rounds, end + 100, np.where(ran, end + 100, end))
    record = run(name, jobs(*((0, 100 * int(many), 1) for many in rounds)), nodes=(2, 2), params=ROUNDS)
    assert seconds(record.end_ns) == end.tolist()


def drawn(seed: int, many: int = 50) -> JobTrace:
    """As Gavel draws them: minutes of 10^1.5 to 10^3, one in five of 10^3 to 10^4; 70 % of one GPU."""
    rng = np.random.default_rng(seed)
    exponent = np.where(rng.random(many) < 0.8, rng.uniform(1.5, 3, many), rng.uniform(3, 4, many))
    gpus = rng.choice([1, 2, 4, 8], many, p=[0.7, 0.1, 0.15, 0.05])
    columns = {"job_class": rng.choice(["conv", "rnn", "rl"], many)}
    return JobTrace.of(np.cumsum(rng.exponential(7000, many)), 60 * 10**exponent, gpus, **columns)


THREE_TYPES = tuple(NodeGroup(1, 8, name) for name in ("v100", "p100", "k80"))
SPEEDS = Speeds({
    "conv": {"v100": 1.0, "p100": 0.6, "k80": 0.1},
    "rnn": {"v100": 1.0, "p100": 0.8, "k80": 0.3},
    "rl": {"v100": 1.0, "p100": 1.0, "k80": 0.9},
})  # fmt: skip
PARAMS = PreemptionParams(round_s=360, restart_s=30)


def mean_jct_h(policy: str, seed: int, speeds: Speeds) -> float:
    record = run(policy, drawn(seed), groups=THREE_TYPES, speeds=speeds, params=PARAMS, restart_ns=30 * S)
    return float(record.jct_s.mean()) / 3600


def test_knowing_the_types_is_worth_something_where_they_differ() -> None:
    unequal = [(mean_jct_h("gavel", seed, SPEEDS), mean_jct_h("gavel-blind", seed, SPEEDS)) for seed in range(1)]
    assert all(aware < 0.8 * blind for aware, blind in unequal)


def test_names_and_parts() -> None:
    assert policy_of("gavel").params.round_ns == 360 * S
    assert policy_of("gavel", ROUNDS).params is ROUNDS
    assert shown_name(policy_of("gavel-least-jct-history")) == "gavel-least-jct-history"
