"""Slurm's multifactor priority: worked by hand, and its usage against a second by second account."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from jobs.job_records import NodeOutage
from jobs.job_simulation import ClusterModel, JobRun, JobSimulation
from jobs.policies.job_cluster import JobArrived, NodeGroup
from jobs.policies.job_orders import Accounts, Features, JobBook, MultifactorParams
from jobs.policies.named_policies import JobPolicy
from tests.jobs.sim.cluster_models import S, jobs

DAY_S = 86_400
HOUR = MultifactorParams(weight_age=0, weight_size=0, half_life_s=3600, period_s=600)


def priorities(accounts: Accounts, rows: list[tuple[int, int]], now_s: int) -> list[float]:
    book = JobBook()
    for job, (submit_s, gpus) in enumerate(rows):
        book.submit_ns[job], book.gpus[job] = submit_s * S, gpus
    index = accounts.index(Features(book, np.arange(len(rows)), now_s * S, is_running=False))
    return [-value for value in index.tolist()]


def test_a_priority_is_the_weighted_sum_of_its_factors() -> None:
    """Three days old of fourteen, 16 GPUs of 64; its user has used three quarters with half of the shares."""
    accounts = Accounts(MultifactorParams(), gpus=64, nodes=8)
    for job, user in enumerate(("ann", "bob")):
        accounts.arrive(JobArrived(job, 16, 0, user=user), 0)
    accounts.hold(0, 3, 0)
    accounts.hold(1, 1, 0)
    age, size, fair = 3 / 14, (2 / 8 + 16 / 64) / 2, 2 ** -(0.75 / 0.5)
    assert priorities(accounts, [(0, 16)], 3 * DAY_S) == [np.floor(1000 * age + 1000 * size + 10_000 * fair)]
    assert priorities(accounts, [(0, 16), (0, 16)], 3 * DAY_S)[1] == np.floor(1000 * (age + size) + 10_000 * 2**-0.5)


@pytest.mark.parametrize(
    "params, expected",
    [
        ({"weight_age": 700, "weight_size": 0}, [100, 350, 700]),  # 2, 7 and 15 of 14 days old
        ({"weight_age": 0, "weight_size": 640}, [45, 80, 320]),  # 1, 8 and 32 of 64 GPUs, on 1, 1 and 4 of 8 nodes
        ({"weight_age": 0, "weight_size": 640, "favors_small": True}, [595, 560, 320]),
        ({"weight_age": 0, "weight_size": 1}, [1, 1, 1]),  # 0 is for jobs that are held
    ],
)
def test_each_factor_by_itself(params: dict[str, Any], expected: list[float]) -> None:
    accounts = Accounts(MultifactorParams(weight_fairshare=0, **params), gpus=64, nodes=8)
    for job in range(3):
        accounts.arrive(JobArrived(job, 1, 0), 0)
    assert priorities(accounts, [(13 * DAY_S, 1), (8 * DAY_S, 8), (0, 32)], 15 * DAY_S) == expected


def test_shares_damping_and_accounts() -> None:
    """ann has three of four shares and has used half: 2^-(0.5 / 0.75), and with a damping of 2 its root."""
    for damping in (1.0, 2.0):
        params = MultifactorParams(weight_age=0, weight_size=0, damping=damping, shares={"ann": 3.0}, account="user")
        accounts = Accounts(params, gpus=8, nodes=1)
        accounts.arrive(JobArrived(0, 1, 0, user="ann", vc="x"), 0)
        accounts.arrive(JobArrived(1, 1, 0, user="", vc="x"), 0)  # nobody: its VC
        for job in range(2):
            accounts.hold(job, 4, 0)
        expected = [10_000 * 2 ** -(0.5 / 0.75 / damping), 10_000 * 2 ** -(0.5 / 0.25 / damping)]
        assert priorities(accounts, [(0, 1), (0, 1)], 300) == np.floor(expected).tolist()
    by_vc = Accounts(MultifactorParams(weight_age=0, weight_size=0, account="vc"), gpus=8, nodes=1)
    for job, user in enumerate(("ann", "bob")):
        by_vc.arrive(JobArrived(job, 1, 0, user=user, vc="x"), 0)
    by_vc.hold(0, 1, 0)
    assert priorities(by_vc, [(0, 1), (0, 1)], 300) == [5000, 5000]  # one account has used all: 2^-1


def test_fair_tree_ranks_accounts() -> None:
    """ann has used half with three of five shares, bob as much with one, and the third nothing: it comes first.

    A real Slurm with eight users had 8/9 for each of two who had used nothing, then 6/9, 5/9 and so on.
    """
    params = MultifactorParams(weight_age=0, weight_size=0, fair_tree=True, shares={"ann": 3.0})
    accounts = Accounts(params, gpus=8, nodes=1)
    for job, user in enumerate(("ann", "bob", "eve")):
        accounts.arrive(JobArrived(job, 1, 0, user=user), 0)
    for job in range(2):
        accounts.hold(job, 4, 0)
    assert priorities(accounts, [(0, 1)] * 3, 300) == [5000, 2500, 7500]
    nobody = Accounts(params, gpus=8, nodes=1)
    for job, user in enumerate(("ann", "bob")):
        nobody.arrive(JobArrived(job, 1, 0, user=user), 0)
    assert priorities(nobody, [(0, 1)] * 2, 300) == np.floor([20_000 / 3] * 2).tolist()


def test_usage_is_that_of_an_account_kept_period_by_period() -> None:
    """However long nothing happens: 40 drawn changes, each account written on at each period's end."""
    rng = np.random.default_rng(0)
    accounts = Accounts(HOUR, gpus=8, nodes=1)
    for job in range(3):
        accounts.arrive(JobArrived(job, 1, 0, user=str(job)), 0)
    used, fresh, held, at_s = np.zeros(3), np.zeros(3), np.zeros(3), 0
    for change_s in np.cumsum(rng.choice([0, 50, 600, 5000, 40_000], 40)).tolist():
        while at_s < change_s:
            until_s = min(change_s, (at_s // 600 + 1) * 600)
            fresh += held * (until_s - at_s)
            at_s = until_s
            if at_s % 600 == 0:
                used, fresh = (used + fresh) * 2 ** (-600 / 3600), np.zeros(3)
        job, gpus = int(rng.integers(3)), int(rng.integers(1, 9))
        accounts.hold(job, gpus - held[job], change_s * S)
        held[job] = gpus
    while at_s < 10**7:  # nothing for months
        until_s = (at_s // 600 + 1) * 600
        used, fresh, at_s = (used + fresh + held * (until_s - at_s)) * 2 ** (-600 / 3600), np.zeros(3), until_s
    accounts.advance(at_s * S)
    assert accounts._used == pytest.approx(used, rel=1e-9)


def test_multifactor_accounts_hold_no_gpus_after_all_jobs_end() -> None:
    """Jobs whose node died are included; usage equals the record's GPU time (without decay here)."""
    params = MultifactorParams.model_construct(half_life_s=1e300, period_s=7)
    scene = jobs((0, 30, 4), (5, 30, 2), (5, 70, 2), user=["ann", "ann", "bob"])
    policy = JobPolicy(order="multifactor", multifactor=params)
    cluster_model = ClusterModel((NodeGroup(2, 4),), outages=(NodeOutage(10 * S, 20 * S, 0),))
    simulation = JobSimulation(cluster_model, JobRun(scene, policy))
    record = simulation.run()
    accounts = simulation.scheduler.order.accounts
    assert accounts is not None
    assert (record.kills.sum(), accounts._held.tolist()) == (1, [0, 0])
    held_gpu_s = record.held_ns * record.jobs.gpus / S
    assert (accounts._used + accounts._fresh).tolist() == [held_gpu_s[:2].sum(), held_gpu_s[2]]
