"""What jobs suffer in the simulated cluster: scenes by hand, each of one rule. Expected is what a run's record has."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from jobs.job_records import NodeOutage, sampled_variability
from jobs.job_traces import JobTrace
from jobs.policies.job_cluster import NodeGroup, Speeds, Variability
from jobs.policies.named_policies import PreemptionParams
from tests.jobs.sim.cluster_models import S, jobs, run, seconds

Scenes = dict[str, tuple[str, JobTrace, dict[str, Any], dict[str, Any]]]  # policy, jobs, world, expected
TWO: dict[str, Any] = {"nodes": (4, 4)}
SLOWED = Speeds(spread_slowdown=1.5)
BY_TYPE: dict[str, Any] = {
    "groups": (NodeGroup(1, 4, "slow"), NodeGroup(1, 4, "fast")), "speeds": Speeds({"net": {"slow": 0.5, "fast": 2.0}}),
}  # fmt: skip
SPREAD, RACE = jobs((0, 9, 3), (0, 9, 3), (1, 6, 2)), jobs((0, 10, 1), (1, 6, 1))  # of the race 9 s are left at 1 s
NETS = jobs((0, 8, 4), (1, 8, 4), job_class=["net", "net"])
CROWD = jobs((0, 30, 1), (0, 20, 1), (0, 40, 1), (0, 50, 1), (5, 2, 2))
PLACEMENT: Scenes = {
    "best fit keeps nodes whole":
        ("fifo-best-fit", jobs((0, 9, 2), (1, 9, 1), (2, 5, 4)), TWO, {"start_ns": [0, 1, 2]}),
    "worst fit does not":
        ("fifo-worst-fit", jobs((0, 9, 2), (1, 9, 1), (2, 5, 4)), TWO, {"start_ns": [0, 1, 9]}),
    "a gang waits for a whole node":
        ("fifo", SPREAD, {**TWO, "speeds": SLOWED}, {"start_ns": [0, 0, 9], "end_ns": [9, 9, 15]}),
    "consolidate spreads rather than waits, and pays for it":
        ("fifo-consolidate", SPREAD, {**TWO, "speeds": SLOWED}, {"start_ns": [0, 0, 1], "end_ns": [9, 9, 10]}),
    "consolidate need not spread":
        ("fifo-consolidate", SPREAD, {"nodes": (4, 4, 4), "speeds": SLOWED}, {"end_ns": [9, 9, 7]}),
    "a job goes where it lies on the fewest nodes, though two of 2 come first":
        ("fifo", jobs((0, 8, 4), (1, 8, 2), job_class=["net", "net"]),
         {"groups": (NodeGroup(2, 2, "pair"), NodeGroup(1, 4, "quad")), "speeds": Speeds({"net": {"quad": 2.0}})},
         {"end_ns": [4, 9]}),
    "who is blind to types": ("fifo", NETS, BY_TYPE, {"end_ns": [16, 5]}),
    "speed-aware goes where a job runs fastest; waits are over the 4 s there":
        ("fifo-speed-aware", NETS, BY_TYPE, {"end_ns": [4, 17], "wait_s": [0, 12]}),
    "a job keeps to its types and its VC":
        ("fifo",
         jobs(*[(0, 5, 2)] * 5, vc=["red", "red", "blue", "red", "green"], gpu_types=["", "", "a|b", "b", ""]),
         {"groups": (NodeGroup(1, 2, "a", "red"), NodeGroup(1, 2, "b", "blue"), NodeGroup(1, 2, "c"))},
         {"start_ns": [0, 0, 0, -1, 5], "is_refused": [False, False, False, True, False]}),
    "what can never fit is refused":
        ("fifo", jobs((0, 5, 9), (0, 5, 8), (1, 5, 1), gpu_types=["", "", "none"]), TWO,
         {"is_refused": [True, False, True]}),
    "9 GPUs fit on three nodes": ("fifo", jobs((0, 5, 9)), {"groups": (NodeGroup(3, 4),)}, {"is_refused": [False]}),
}  # fmt: skip
PREEMPTION: Scenes = {
    # 8 s of work done of 20, kept 6 (a checkpoint every 3 s); then a restart of 4 s, and 14 s of work
    "restarts cost time and what was done since the last checkpoint":
        ("srtf-oracle", jobs((0, 20, 1), (8, 2, 1)), {"nodes": (1,), "restart_ns": 4 * S, "checkpoint_ns": 3 * S},
         {"end_ns": [10 + 4 + 14, 10], "lost_ns": [2, 0], "restart_ns": [4, 0], "held_ns": [8 + 4 + 14, 2]}),
    "those with most left make room": ("srtf-oracle", CROWD, {}, {"preemptions": [0, 0, 1, 1, 0]}),
    "on two nodes both GPUs of one are needed":
        ("srtf-oracle", CROWD, {"nodes": (2, 2)}, {"preemptions": [0, 0, 1, 1, 0], "start_ns": [0, 0, 0, 0, 5]}),
    "who is not in its way goes on":  # the one with 50 s left is on the other node
        ("srtf-oracle", jobs((0, 50, 1), (0, 20, 2), (0, 40, 2), (5, 2, 2)), {"nodes": (3, 3)},
         {"preemptions": [0, 0, 1, 0]}),
    "without hysteresis": ("srtf-oracle", RACE, {"nodes": (1,)}, {"preemptions": [1, 0]}),
    "hysteresis protects those that run":
        ("srtf-oracle", RACE, {"nodes": (1,), "params": PreemptionParams(restart_s=0, hysteresis=1.6)},
         {"preemptions": [0, 0]}),
    "so does the least run":
        ("srtf-oracle", RACE, {"nodes": (1,), "params": PreemptionParams(round_s=1, restart_s=0, min_run_s=2)},
         {"start_ns": [0, 2]}),
    # 8 GPUs reach 3200 GPU seconds after 400 s: at the round in which job 0 changes queues
    "2dlas lets a new job wait for the first queue's end":
        ("2dlas", jobs((0, 1000, 8), (300, 50, 8)), {"nodes": (8,)}, {"start_ns": [0, 400]}),
    "2dlas lets it pass one in the second queue":
        ("2dlas", jobs((0, 1000, 8), (500, 50, 8)), {"nodes": (8,)}, {"start_ns": [0, 500]}),
}  # fmt: skip
FAILURES: Scenes = {
    "a node that dies takes work since the last checkpoint and comes back empty":
        ("fifo", jobs((0, 10, 2), (0, 9, 1)),
         {"nodes": (2, 1), "outages": (NodeOutage(7 * S, 15 * S, 0),), "checkpoint_ns": 5 * S},
         {"end_ns": [15 + 5, 9], "kills": [1, 0], "preemptions": [0, 0], "lost_ns": [2, 0], "down_gpu_ns": [2 * 8]}),
    "jobs that no node is left for are not done":
        ("fifo", jobs((0, 5, 1)),
         {"nodes": (1,), "outages": (NodeOutage(1 * S, 10**9 * S, 0),), "run_options": {"longest_ns": 100 * S}},
         {"is_done": [False], "is_refused": [False]}),
    "warm-up is run and not measured":
        ("fifo", jobs((0, 10, 1), (5, 1, 1), (9, 1, 1)), {"nodes": (1,), "run_options": {"warmup_s": 9.0}},
         {"is_measured": [False, False, True], "start_ns": [0, 10, 11]}),
}  # fmt: skip
ROUNDS = PreemptionParams(round_s=100, restart_s=0)
IN_ROUNDS: dict[str, Any] = {"nodes": (4, 4), "params": ROUNDS}
SLOW_FAST: dict[str, Any] = {"groups": (NodeGroup(1, 1, "slow"), NodeGroup(1, 1, "fast")), "params": ROUNDS}
OF_ROUNDS: Scenes = {
    "who goes on stays on its nodes":
        ("gavel", jobs((0, 500, 4), (0, 100, 4), (0, 500, 4), (50, 100, 4)), {"nodes": (4, 4, 4), "params": ROUNDS},
         {"end_ns": [500, 100, 500, 200], "preemptions": [0] * 4}),
    # two of 2 GPUs lie on two nodes beside jobs that end: one moves to the other, without a break but for its restart
    "a job moves for one that needs a whole node and is started at once":
        ("gavel", jobs((0, 100, 2), (0, 900, 2), (0, 100, 2), (0, 900, 2), (50, 400, 4)),
         {**IN_ROUNDS, "restart_ns": 10 * S},
         {"start_ns": [0, 0, 0, 0, 100], "preemptions": [0, 1, 0, 0, 0], "restart_ns": [0, 10, 0, 0, 0],
          "end_ns": [100, 910, 100, 900, 500]}),
    # job 0 is four times as fast on the fast type, job 1 as fast on both
    "each goes where it is relatively faster":
        ("gavel", jobs((0, 2000, 1), (0, 900, 1), job_class=["big", "small"]),
         {**SLOW_FAST, "speeds": Speeds({"big": {"slow": 1.0, "fast": 4.0}, "small": {"slow": 1.0, "fast": 1.0}})},
         {"end_ns": [500, 900], "preemptions": [0, 0]}),
    "a job moves to the faster type when that is free":
        ("gavel", jobs((0, 200, 1), (0, 1000, 1), job_class=["net", "net"], gpu_types=["fast", ""]),
         {**SLOW_FAST, "speeds": Speeds({"net": {"slow": 1.0, "fast": 2.0}})},
         {"end_ns": [100, 550], "preemptions": [0, 1]}),
    "a dead node takes no job until it returns":
        ("gavel", jobs((0, 400, 4), (0, 400, 4)), {**IN_ROUNDS, "outages": (NodeOutage(150 * S, 350 * S, 0),)},
         {"kills": [1, 0], "end_ns": [550, 500]}),
}  # fmt: skip
ASKED: Scenes = {
    # two nodes of 4: job 0 holds all of one until 10 s, job 1 wants 2 GPUs, job 2 stands behind it
    "who asks for one node": ("fifo", jobs((0, 10, 4), (1, 1, 2), (2, 1, 2)), TWO, {"start_ns": [0, 1, 2]}),
    "who asks for two waits for both":
        ("fifo", jobs((0, 10, 4), (1, 1, 2), (2, 1, 2), nodes=[1, 2, 1]), TWO, {"start_ns": [0, 10, 10]}),
    "nor does it keep others out that fit on one":  # 3 and 0 GPUs are free
        ("fifo-first-fit", jobs((0, 10, 4), (0, 10, 1), (1, 1, 2), (1, 1, 3), nodes=[1, 1, 2, 1]), TWO,
         {"start_ns": [0, 0, 10, 1]}),
    # 6 GPUs are free on each of three nodes of 8: 7 + 7 do not fit, 18, which need three, do
    "nor larger gangs that need one more":
        ("fifo-first-fit", jobs((0, 10, 6), (1, 1, 14), (1, 1, 18), nodes=[3, 2, 2]), {"groups": (NodeGroup(3, 8),)},
         {"start_ns": [0, 10, 1]}),
    # job 2 (1 + 1) is promised 10 s on both nodes: of the 3 free GPUs it will have one
    "a reservation is of as many nodes":
        ("fifo-easy-oracle", jobs((0, 10, 4), (0, 20, 1), (1, 5, 2), (2, 30, 3), (3, 30, 2), nodes=[1, 1, 2, 1, 1]),
         TWO, {"start_ns": [0, 0, 10, 10, 3]}),
    "one job gives way for a gang on one node":
        ("srtf-oracle", jobs((0, 100, 2), (0, 50, 2), (1, 5, 2)), {"nodes": (2, 2)},
         {"start_ns": [0, 0, 1], "preemptions": [1, 0, 0]}),
    "as many give way as are needed for the nodes":
        ("srtf-oracle", jobs((0, 100, 2), (0, 50, 2), (1, 5, 2), nodes=[1, 1, 2]), {"nodes": (2, 2)},
         {"start_ns": [0, 0, 1], "preemptions": [1, 1, 0]}),
    "who waits for a node that is down keeps no GPUs from others":
        ("gavel", jobs((0, 10, 4), (0, 10, 2), nodes=[2, 1]), {**TWO, "outages": (NodeOutage(0, 100 * S, 1),)},
         {"start_ns": [100, 0]}),
    "who lies on the nodes that it asked for is not slowed down":
        ("fifo", jobs((0, 10, 2), nodes=[2]), {"nodes": (2, 2), "speeds": Speeds(spread_slowdown=3.0)},
         {"end_ns": [10]}),
}  # fmt: skip
A_B: dict[str, Any] = {"groups": (NodeGroup(1, 2, "a"), NodeGroup(1, 2, "b"))}
RESERVED: Scenes = {
    # at 5 s job 0 should have ended at 4: job 1 is promised 6 s, so job 2 (2 s) may not overtake, job 3 (1 s) may
    "a job over its estimate counts as one that ends in a second":
        ("fifo-easy-requested", jobs((0, 9, 3), (1, 5, 4), (5, 2, 1), (5, 1, 1), requested_s=[4, 5, 2, 1]), {},
         {"start_ns": [0, 9, 14, 5]}),
    "types that share no job have separate reservations":
        ("fifo-easy-oracle",
         jobs((0, 10, 1), (0, 10, 1), (1, 5, 2), (1, 5, 2), (2, 20, 1), (2, 20, 1), gpu_types=["a", "b"] * 3),
         A_B, {"start_ns": [0, 0, 10, 10, 15, 15]}),
    # job 2 may have either type: b is free at 5 s, a at 10 s; so job 3 may use the rest of a, and job 4 waits for b
    "a reservation is made where it can be kept first":
        ("fifo-easy-oracle",
         jobs((0, 10, 1), (0, 5, 1), (1, 5, 2), (2, 20, 1), (2, 20, 1), gpu_types=["a", "b", "", "a", "b"]),
         A_B, {"start_ns": [0, 0, 5, 2, 10]}),
}  # fmt: skip
PAIR = Variability({"net": ((0.5, 1.0), (0.8, 0.25)), "memory": ((0.98, 1.0), (1.0, 0.97))})
UNEQUAL: dict[str, Any] = {"nodes": (2, 2), "variability": PAIR}
THREE: dict[str, Any] = {
    "nodes": (2, 2, 2), "variability": Variability({"net": ((0.5, 1.0), (0.8, 0.25), (0.7, 0.6))}),
}  # fmt: skip
SLOW: dict[str, Any] = {"nodes": (2,), "variability": Variability({"net": ((0.5, 0.5),)})}


def nets(*rows: tuple[float, float, int]) -> JobTrace:
    return jobs(*rows, job_class=["net"] * len(rows))


KNOWN: Scenes = {
    "who does not know takes the first GPU, and a gang runs at its slowest":
        ("fifo", nets((0, 10, 1), (0, 10, 1), (30, 10, 2)), UNEQUAL, {"end_ns": [20, 10, 50], "wait_s": [10, 0, 10]}),
    # a sensitive job takes 1.0, the next 0.5 before it begins a node; one that waits for memory takes the slowest
    "who knows takes the fastest for the class and leaves it where that matters little":
        ("fifo-variability-aware",
         jobs((0, 10, 1), (0, 10, 1), (0, 97, 1), (0, 4, 1), job_class=["net", "net", "memory", "net"]), UNEQUAL,
         {"end_ns": [10, 20, 100, 5]}),
    "a class without factors takes the slowest":
        ("fifo-variability-aware", jobs((0, 98, 1), (0, 10, 1), job_class=["", "net"]), UNEQUAL,
         {"end_ns": [98, 12.5]}),
    "a gang takes the nodes whose slowest GPU is fastest":
        ("fifo-variability-aware", nets((0, 6, 2), (0, 5, 2)), THREE, {"end_ns": [10, 10]}),
    "so does one of two nodes": ("fifo-variability-aware", nets((0, 5, 4)), THREE, {"end_ns": [10]}),
    "0.7 and 0.6, and 1.0 of another node": ("fifo-variability-aware", nets((0, 8, 3)), THREE, {"end_ns": [80 / 6]}),
    # job 0 takes 200 s for 100 s: who knows that promises job 1 the node at 200 s, and lets job 2 begin before
    "the scheduler expects nothing that it does not know":
        ("fifo-easy-oracle", nets((0, 100, 1), (1, 10, 2), (2, 150, 1)), SLOW, {"start_ns": [0, 200, 220]}),
    "the scheduler expects what it knows":
        ("fifo-easy-oracle-variability-aware", nets((0, 100, 1), (1, 10, 2), (2, 150, 1)), SLOW,
         {"start_ns": [0, 302, 2]}),
}  # fmt: skip
SCENES: Scenes = {
    **PLACEMENT, **PREEMPTION, **FAILURES, **OF_ROUNDS, **ASKED, **RESERVED, **KNOWN,
}  # fmt: skip


@pytest.mark.parametrize(("policy", "these", "cluster_model", "expected"), SCENES.values(), ids=SCENES)
def test_a_scene_ends_as_worked_out_by_hand(
    policy: str, these: JobTrace, cluster_model: dict[str, Any], expected: dict[str, Any]
) -> None:
    record = run(policy, these, **cluster_model)
    columns = {name: getattr(record, name) for name in expected}
    found = {name: seconds(np.atleast_1d(each)) if name.endswith("_ns") else [*each] for name, each in columns.items()}
    assert found == {name: pytest.approx(each) for name, each in expected.items()}


@pytest.mark.parametrize("name", ["fifo-variability-aware", "fifo-choice-program"])
def test_a_job_that_would_choose_nodes_leaves_it_to_the_search(name: str) -> None:
    """One GPU on each of three nodes: then no whole node is left."""
    groups = (NodeGroup(3, 4),)
    scene = jobs((0, 10, 3), (1, 5, 4), nodes=[3, 1])
    record = run(name, scene, groups=groups, variability=sampled_variability(groups, {"": 0.1}, 0))
    assert record.start_ns.tolist() == [0, record.end_ns[0]]
