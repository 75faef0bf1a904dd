"""What jobs suffer in the simulated cluster: scenes by hand, each of one rule."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from jobs.job_records import NodeOutage, sampled_outages, snapshot_at
from jobs.job_traces import JobTrace
from jobs.policies.job_cluster import NodeGroup, Speeds
from jobs.policies.named_policies import JobPolicy, PreemptionParams
from kit.errors import InputError
from tests.jobs.sim.cluster_models import S, jobs, run, seconds


@pytest.mark.parametrize("policy", ["gittins", "las", "qssf", "srsf-history"])
def test_start_times_scale_by_seven_when_all_durations_do(policy: str) -> None:
    rng = np.random.default_rng(0)
    submit_s, run_s = np.cumsum(rng.integers(0, 20, 400)), np.ceil(rng.lognormal(4, 1.5, 400))
    gpus, vc = rng.choice([1, 2, 4], 400), rng.choice(["a", "b"], 400).tolist()
    starts = [
        run(
            policy,
            jobs(*zip(by * submit_s, by * run_s, gpus, strict=True), vc=vc),
            nodes=(4, 4),
            params=PreemptionParams(round_s=by * 10, restart_s=by),
            restart_ns=by * S,
        ).start_ns
        for by in (1, 7)
    ]
    assert (7 * starts[0]).tolist() == starts[1].tolist()


def test_drawn_outages_have_their_means_and_one_seed_draws_them_again() -> None:
    drawn = sampled_outages(200, 1000.0, 100.0, 50_000.0, seed=3)
    assert drawn == sampled_outages(200, 1000.0, 100.0, 50_000.0, seed=3) != sampled_outages(200, 1000.0, 100.0, 5e4, 4)
    down_s = np.array([(outage.to_ns - outage.from_ns) / S for outage in drawn])
    assert abs(down_s.mean() - 100) < 3 * 100 / np.sqrt(len(down_s))
    assert abs(len(drawn) / 200 - 50_000 / 1100) < 3 * np.sqrt(50_000 / 1100 / 200)


def test_a_run_begins_with_what_the_log_found() -> None:
    """At 10 s job 2 has 5 s left and runs, job 1 waits (since 3 s), job 0 ends just then, job 3 is to come."""
    trace = jobs((0, 10, 1), (3, 4, 1), (6, 7, 1), (12, 1, 1), recorded_start_s=[0, 20, 8, 30])
    left, found = snapshot_at(trace, 10.0)
    assert left.job_id.tolist() == ["1", "2", "3"]
    record = run("fifo", left, nodes=(1,), run_options={"snapshot": found}, restart_ns=60 * S)
    assert (seconds(record.start_ns), seconds(record.end_ns)) == ([15, 10, 19], [19, 15, 20])
    assert record.is_measured.tolist() == [False, False, True]
    with pytest.raises(InputError, match=r"recorded_start_s: job 0 has none"):
        snapshot_at(jobs((0, 9, 1), (3, 7, 1)), 1.0)


def test_load_rescales_arrivals() -> None:
    trace = jobs((0, 10, 2), (50, 10, 2), (100, 10, 1))
    assert (trace.load_on(5), trace.at_load(0.5, 5).submit_s.tolist()) == (0.1, [0, 10, 20])
    assert trace.at_load(0.5, 5).load_on(5) == pytest.approx(0.5)
    with pytest.raises(InputError, match="no rate of arrivals"):
        jobs((0, 10, 2), (0, 10, 2)).at_load(0.5, 1)


def test_bad_input_is_refused_with_its_key() -> None:
    with pytest.raises(InputError, match="run_s: job 1 has -5"):
        run("fifo", jobs((0, 1, 1), (1, -5, 1)))
    with pytest.raises(InputError, match=r"requested_s: job 0 has none: take the estimate `history`"):
        run("sjf-requested", jobs((0, 1, 1)))


@pytest.mark.parametrize("queueing", ["strict", "easy", "conservative"])
def test_a_guard_of_age_ends_starvation(queueing: str) -> None:
    """A large job behind a stream of small ones waits for the stream's end; or for the guard and who runs then."""
    stream = [(10 + 60 * number, 100, 2) for number in range(60)]
    these = jobs((0, 100, 4), (1, 100, 4), *stream, requested_s=[100.0] * 62)
    policy = JobPolicy("smallest", queueing, estimate="requested")
    starved, guarded = (run(each, these) for each in (policy, replace(policy, age_guard_ns=500 * S)))
    assert starved.start_ns[1] > 60 * 60 * S
    assert 500 * S < guarded.start_ns[1] - guarded.jobs.submit_ns[1] <= (500 + 100) * S


ROUNDS = PreemptionParams(round_s=100, restart_s=0)


def test_pools_in_which_jobs_are_equally_fast_are_one_to_them() -> None:
    """A cluster in two halves: hardly more stops than in one, though a program's shares may lie in either."""
    rng = np.random.default_rng(0)
    rows = [(float(at), 100.0 * rng.integers(1, 20), int(rng.choice([1, 1, 2, 4]))) for at in range(0, 20_000, 165)]
    halves, whole = (
        run("gavel", jobs(*rows), groups=groups, params=ROUNDS).preemptions.sum()
        for groups in ((NodeGroup(2, 4, "a"), NodeGroup(2, 4, "b")), (NodeGroup(4, 4),))
    )
    assert 0 < halves < 1.35 * whole


def test_gavel_job_without_available_nodes_takes_no_time_from_other_jobs() -> None:
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
