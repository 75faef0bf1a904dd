"""What jobs suffer in the simulated cluster: scenes by hand, each of one rule."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from jobs.job_records import NodeOutage, sampled_outages, snapshot_at
from jobs.job_simulation import ClusterModel
from jobs.policies.job_cluster import NodeGroup, Speeds
from jobs.policies.named_policies import JobPolicy, PreemptionParams
from kit.errors import InputError
from tests.jobs.sim.cluster_models import S, jobs, run, seconds

TWO_TYPES = (NodeGroup(1, 4, "slow"), NodeGroup(1, 4, "fast"))
SPEEDS = Speeds({"net": {"slow": 0.5, "fast": 2.0}})


# ------------------------------------------------------------------------------------------------------- placement


def test_a_gang_starts_whole_or_not_at_all_on_one_node_if_it_can() -> None:
    """3 + 3 GPUs are free on two nodes of 4: a job of 4 waits for a whole node."""
    record = run("fifo", jobs((0, 5, 1), (0, 9, 3), (1, 9, 1), (2, 9, 4)), nodes=(4, 4))
    assert seconds(record.start_ns) == [0, 0, 1, 9]


def test_best_fit_keeps_nodes_whole_and_worst_fit_does_not() -> None:
    scene = jobs((0, 9, 2), (1, 9, 1), (2, 5, 4))
    assert seconds(run("fifo-best-fit", scene, nodes=(4, 4)).start_ns) == [0, 1, 2]
    assert seconds(run("fifo-worst-fit", scene, nodes=(4, 4)).start_ns) == [0, 1, 9]


def test_consolidate_spreads_rather_than_waits_and_pays_for_it() -> None:
    scene = jobs((0, 9, 3), (0, 9, 3), (1, 6, 2))
    slowed = Speeds(spread_slowdown=1.5)
    waits = run("fifo", scene, nodes=(4, 4), speeds=slowed)
    spreads = run("fifo-consolidate", scene, nodes=(4, 4), speeds=slowed)
    assert (seconds(waits.start_ns)[2], seconds(waits.end_ns)[2]) == (9, 15)
    assert (seconds(spreads.start_ns)[2], seconds(spreads.end_ns)[2]) == (1, 10)
    assert seconds(run("fifo-consolidate", scene, nodes=(4, 4, 4), speeds=slowed).end_ns)[2] == 7  # it need not


def test_a_job_goes_where_it_lies_on_the_fewest_nodes() -> None:
    """Not on two nodes of 2, though these come first."""
    speeds = Speeds({"net": {"quad": 2.0}})
    groups = (NodeGroup(2, 2, "pair"), NodeGroup(1, 4, "quad"))
    record = run("fifo", jobs((0, 8, 4), (1, 8, 2), job_class=["net", "net"]), groups=groups, speeds=speeds)
    assert seconds(record.end_ns) == [4, 9]


def test_speed_aware_goes_where_a_job_runs_fastest() -> None:
    scene = jobs((0, 8, 4), (1, 8, 4), job_class=["net", "net"])
    blind = run("fifo", scene, groups=TWO_TYPES, speeds=SPEEDS)
    aware = run("fifo-speed-aware", scene, groups=TWO_TYPES, speeds=SPEEDS)
    assert seconds(blind.end_ns) == [16, 5]
    assert seconds(aware.end_ns) == [4, 17]
    assert aware.wait_s.tolist() == [0, 12]  # over its 4 s on the fastest type


def test_a_job_keeps_to_its_types_and_its_vc() -> None:
    groups = (NodeGroup(1, 2, "a", "red"), NodeGroup(1, 2, "b", "blue"), NodeGroup(1, 2, "c"))
    scene = jobs(
        (0, 5, 2), (0, 5, 2), (0, 5, 2), (0, 5, 2), (0, 5, 2),
        vc=["red", "red", "blue", "red", "green"],
        gpu_types=["", "", "a|b", "b", ""],
    )  # fmt: skip
    record = run("fifo", scene, groups=groups)
    assert seconds(record.start_ns) == [0, 0, 0, -1, 5]
    assert record.is_refused.tolist() == [False, False, False, True, False]


def test_what_can_never_fit_is_refused_and_counted() -> None:
    scene = jobs((0, 5, 9), (0, 5, 8), (1, 5, 1), gpu_types=["", "", "none"])
    record = run("fifo", scene, nodes=(4, 4))
    assert record.is_refused.tolist() == [True, False, True]
    assert not run("fifo", scene, groups=(NodeGroup(3, 4),)).is_refused[0]


# ------------------------------------------------------------------------------------------------------ preemption

SRTF = "srtf-oracle"


def test_a_shorter_job_takes_the_place_of_a_longer_one_which_goes_on_later() -> None:
    record = run(SRTF, jobs((0, 10, 1), (2, 3, 1)), nodes=(1,))
    assert seconds(record.start_ns) == [0, 2]
    assert seconds(record.end_ns) == [13, 5]
    assert record.preemptions.tolist() == [1, 0]


def test_restarts_cost_time_and_what_was_done_since_the_last_checkpoint() -> None:
    """8 s of work done of 20, kept 6 (a checkpoint every 3 s); then a restart of 4 s, and 14 s of work."""
    record = run(SRTF, jobs((0, 20, 1), (8, 2, 1)), nodes=(1,), restart_ns=4 * S, checkpoint_ns=3 * S)
    assert seconds(record.end_ns) == [10 + 4 + 14, 10]
    assert (seconds(record.lost_ns)[0], seconds(record.restart_ns)[0]) == (2, 4)
    assert seconds(record.held_ns) == [8 + 4 + 14, 2]


def test_those_who_come_last_make_room_and_no_more_than_are_needed() -> None:
    """A job of 2 GPUs stops the one that has most left; jobs of 1 GPU go on where they are not in its way."""
    scene = jobs((0, 30, 1), (0, 20, 1), (0, 40, 1), (0, 50, 1), (5, 2, 2))
    record = run(SRTF, scene)
    assert record.preemptions.tolist() == [0, 0, 1, 1, 0]
    other = run(SRTF, scene, nodes=(2, 2))  # on two nodes it needs both GPUs of one
    assert seconds(other.start_ns)[4] == 5
    assert other.preemptions.tolist() == [0, 0, 1, 1, 0]
    unneeded = run(SRTF, jobs((0, 50, 1), (0, 20, 2), (0, 40, 2), (5, 2, 2)), nodes=(3, 3))
    assert unneeded.preemptions.tolist() == [0, 0, 1, 0]  # the one with 50 s left is on the other node


def test_hysteresis_and_least_run_protect_those_that_run() -> None:
    scene = jobs((0, 10, 1), (1, 6, 1))  # 9 s are left when a job of 6 comes
    assert run(SRTF, scene, nodes=(1,)).preemptions[0] == 1
    held = PreemptionParams(restart_s=0, hysteresis=1.6)
    assert run(SRTF, scene, nodes=(1,), params=held).preemptions[0] == 0
    least = PreemptionParams(round_s=1, restart_s=0, min_run_s=2)
    record = run(SRTF, scene, nodes=(1,), params=least)
    assert seconds(record.start_ns) == [0, 2]


def test_2dlas_lets_a_new_job_pass_one_in_the_second_queue_alone() -> None:
    """8 GPUs reach 3200 GPU seconds after 400 s."""
    early = run("2dlas", jobs((0, 1000, 8), (300, 50, 8)), nodes=(8,))
    late = run("2dlas", jobs((0, 1000, 8), (500, 50, 8)), nodes=(8,))
    assert seconds(early.start_ns)[1] == 400  # at the round in which job 0 changes queues
    assert seconds(late.start_ns)[1] == 500


@pytest.mark.parametrize("policy", ["gittins", "las", "qssf", "srsf-history"])
def test_where_all_takes_seven_times_as_long_it_begins_seven_times_as_late(policy: str) -> None:
    """No order has a length of time of its own, but for those whose formula has one."""
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


# -------------------------------------------------------------------------------------------------------- failures


def test_a_node_that_dies_takes_work_since_the_last_checkpoint_and_comes_back_empty() -> None:
    outage = NodeOutage(7 * S, 15 * S, 0)
    record = run("fifo", jobs((0, 10, 2), (0, 9, 1)), nodes=(2, 1), outages=(outage,), checkpoint_ns=5 * S)
    assert seconds(record.end_ns) == [15 + 5, 9]
    assert record.kills.tolist() == [1, 0]
    assert record.preemptions.tolist() == [0, 0]
    assert seconds(record.lost_ns) == [2, 0]
    assert record.down_gpu_ns == 2 * 8 * S


def test_jobs_that_no_node_is_left_for_are_not_done() -> None:
    down = (NodeOutage(1 * S, 10**9 * S, 0),)
    record = run("fifo", jobs((0, 5, 1)), nodes=(1,), outages=down, run_options={"longest_ns": 100 * S})
    assert record.is_done.tolist() == [False]
    assert not record.is_refused.any()


def test_drawn_outages_have_their_means_and_one_seed_draws_them_again() -> None:
    drawn = sampled_outages(200, 1000.0, 100.0, 50_000.0, seed=3)
    assert drawn == sampled_outages(200, 1000.0, 100.0, 50_000.0, seed=3) != sampled_outages(200, 1000.0, 100.0, 5e4, 4)
    down_s = np.array([(outage.to_ns - outage.from_ns) / S for outage in drawn])
    assert abs(down_s.mean() - 100) < 3 * 100 / np.sqrt(len(down_s))
    assert abs(len(drawn) / 200 - 50_000 / 1100) < 3 * np.sqrt(50_000 / 1100 / 200)


# ------------------------------------------------------------------------------------------- how a run begins


def test_warm_up_is_run_and_not_measured() -> None:
    record = run("fifo", jobs((0, 10, 1), (5, 1, 1), (9, 1, 1)), nodes=(1,), run_options={"warmup_s": 9.0})
    assert record.is_measured.tolist() == [False, False, True]
    assert seconds(record.start_ns) == [0, 10, 11]
    with pytest.raises(InputError, match="leave no job to measure"):
        run("fifo", jobs((0, 10, 1)), run_options={"warmup_s": 9.0})


def test_a_run_begins_with_what_the_log_found() -> None:
    """At 10 s job 2 has 5 s left and runs, job 1 waits (since 3 s), job 0 ends just then, job 3 is to come."""
    trace = jobs((0, 10, 1), (3, 4, 1), (6, 7, 1), (12, 1, 1), recorded_start_s=[0, 20, 8, 30])
    left, found = snapshot_at(trace, 10.0)
    assert left.job_id.tolist() == ["1", "2", "3"]
    record = run("fifo", left, nodes=(1,), run_options={"snapshot": found}, restart_ns=60 * S)
    assert seconds(record.start_ns) == [15, 10, 19]
    assert seconds(record.end_ns) == [19, 15, 20]
    assert record.is_measured.tolist() == [False, False, True]
    with pytest.raises(InputError, match=r"recorded_start_s: job 0 has none"):
        snapshot_at(jobs((0, 9, 1), (3, 7, 1)), 1.0)


def test_load_rescales_arrivals() -> None:
    trace = jobs((0, 10, 2), (50, 10, 2), (100, 10, 1))
    assert trace.load_on(5) == 0.1
    assert trace.at_load(0.5, 5).submit_s.tolist() == [0, 10, 20]
    assert trace.at_load(0.5, 5).load_on(5) == pytest.approx(0.5)
    with pytest.raises(InputError, match="no rate of arrivals"):
        jobs((0, 10, 2), (0, 10, 2)).at_load(0.5, 1)


# --------------------------------------------------------------------------------------------------------- refused


def test_bad_input_is_refused_with_its_key() -> None:
    with pytest.raises(InputError, match="node 4: is not there: nodes are 0 to 3"):
        ClusterModel((NodeGroup(4, 1),), outages=(NodeOutage(0, 1, 4),))
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
