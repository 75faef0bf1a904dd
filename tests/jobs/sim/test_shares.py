"""Shares of a GPU: several jobs on one, none split over two; and who knows whole GPUs alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.job_records import NodeOutage, sampled_variability
from jobs.job_simulation import ClusterModel, JobRun, JobSimulation
from jobs.job_traces import JobTrace
from jobs.policies.job_cluster import PLACEMENTS, NodeGroup, Pool, Wake
from jobs.policies.job_orders import MultifactorParams
from jobs.policies.named_policies import JobPolicy, PreemptionParams, policy_of
from tests.jobs.sim.cluster_models import S, jobs, require_sane, run, seconds

PACKING = ["fifo", "fifo-first-fit", "smallest", "saf-requested-strict", "sjf-history", "multifactor", "qssf-worst-fit"]
OTHERS = ["las", "gittins", "fifo-easy-history", "fifo-conservative-requested", "gavel", "srtf-history"]


def shares(*gpu_share: float) -> dict[str, Any]:
    return {"gpu_share": list(gpu_share)}


def pool(nodes: int, size: int) -> Pool:
    return Pool(0, range(nodes), size, "gpu", "")


def test_a_share_lies_on_one_gpu_and_goes_where_least_is_left() -> None:
    """0.5, then 0.7 on another GPU: 0.3 goes beside 0.7, 0.2 beside 0.5; 0.4 is left in all, 0.3 of it on one GPU."""
    scene = jobs(*((at, 50, 1) for at in range(6)), **shares(0.5, 0.7, 0.3, 0.2, 0.4, 0.3))
    record = run("fifo-first-fit", scene, nodes=(2,))
    assert (seconds(record.start_ns), seconds(record.end_ns)) == ([0, 1, 2, 3, 50, 5], [50, 51, 52, 53, 100, 55])


def test_a_node_that_dies_takes_all_its_shares_with_it() -> None:
    scene = jobs((0, 100, 1), (0, 100, 1), **shares(0.5, 0.5))
    record = run("fifo", scene, nodes=(1, 1), outages=(NodeOutage(10 * S, 500 * S, 0),))
    assert record.kills.tolist() == [1, 1]
    assert seconds(record.end_ns) == [100, 100]  # both go on in parallel on the other node


@pytest.mark.parametrize(
    "name, ends", [("fifo", [10, 10]), ("las", [10, 20]), ("fifo-easy-oracle", [10, 20]), ("gavel", [10, 20])]
)
def test_policy_that_reserves_or_preempts_gives_whole_gpus_to_shares(name: str, ends: list[float]) -> None:
    record = run(name, jobs((0, 10, 1), (0, 10, 1), **shares(0.5, 0.5)), nodes=(1,))
    assert (seconds(record.end_ns), policy_of(name).packs_shares) == (ends, name == "fifo")


def test_gpu_share_holds_a_whole_gpu_when_gpus_differ_in_speed() -> None:
    groups = (NodeGroup(1, 1),)
    scene = jobs((0, 10, 1), (0, 10, 1), **shares(0.5, 0.5))
    record = run("fifo", scene, groups=groups, variability=sampled_variability(groups, {"net": 0.1}, 0))
    assert seconds(record.end_ns) == [10, 20]


def test_figures_and_load_count_shares() -> None:
    scene = jobs((0, 10, 1), (10, 10, 4), **shares(0.25, 1))
    assert scene.gpu_s.tolist() == [2.5, 40]
    assert scene.load_on(4) == pytest.approx(42.5 / 40)
    record = run("fifo", scene)
    assert (record.held_ns * record.jobs.gpus_used / S).tolist() == [2.5, 40]


def test_an_account_is_charged_for_shares() -> None:
    params = MultifactorParams.model_construct(half_life_s=1e300, period_s=7)
    cluster_model, policy = ClusterModel((NodeGroup(2, 4),)), JobPolicy("multifactor", "first-fit", multifactor=params)
    simulation = JobSimulation(cluster_model, JobRun(drawn(0), policy))
    record = simulation.run()
    accounts = simulation.scheduler.order.accounts
    assert accounts is not None
    assert (accounts._used + accounts._fresh).sum() == pytest.approx((record.held_ns * record.jobs.gpus_used).sum() / S)


def drawn(seed: int, many: int = 80) -> JobTrace:
    rng = np.random.default_rng(seed)
    gpus = rng.choice([1, 1, 1, 2, 4, 6], many)
    share = np.where(gpus == 1, rng.choice([0.05, 0.2, 0.47, 0.5, 0.81, 1.0], many), 1.0)
    run_s = np.ceil(rng.exponential(100, many))
    submit_s = np.sort(rng.integers(0, 10 * many, many))
    return JobTrace.of(
        submit_s, run_s, gpus, requested_s=run_s * 1.5, gpu_share=share, user=rng.choice(["a", "b"], many)
    )


class Followed(JobSimulation):
    """Proves at each start that all that runs can be on GPUs of its node: shares by trying all ways to lay them."""

    def _start(self, command: Any) -> None:
        super()._start(command)
        milli = np.round(self.spec.jobs.gpu_share * 1000).astype(int)
        packs = self.spec.policy.packs_shares
        for node, _ in command.allocation:
            pool, _ = self.scheduler.cluster.where(node)
            there = [
                (job, dict(attempt.allocation)[node])
                for job, attempt in self._running.items()
                if node in dict(attempt.allocation)
            ]
            whole = sum(gpus for job, gpus in there if milli[job] == 1000 or not packs)
            parts = [int(milli[job]) for job, _ in there if milli[job] < 1000] if packs else []
            assert fits(sorted(parts, reverse=True), [1000] * (pool.size - whole))

    def _tell(self, event: Any) -> None:
        super()._tell(event)
        is_over = isinstance(event, Wake) and self.scheduler.next_wake_ns != self.now_ns
        if is_over and self.spec.policy.queueing == "first-fit" and self.spec.policy.packs_shares:
            self._require_no_room()

    def _require_no_room(self) -> None:
        scheduler, columns = self.scheduler, self._columns
        for job, arrival in enumerate(self._arrivals[: self._arrived]):
            if columns.end_ns[job] < 0 and job not in self._running:
                for pool in scheduler.cluster.pools:
                    if arrival.gpu_milli < 1000:
                        assert not scheduler._shared.find(pool, arrival.gpu_milli, PLACEMENTS["best-fit"].search)
                    else:
                        assert not PLACEMENTS["best-fit"].search(pool, arrival.gpus)


def fits(parts: list[int], room: list[int]) -> bool:
    return not parts or any(
        left >= parts[0] and fits(parts[1:], [*room[:place], left - parts[0], *room[place + 1 :]])
        for place, left in enumerate(room)
        if left not in room[:place]
    )


@pytest.mark.parametrize("name", PACKING + OTHERS)
@settings(max_examples=3)
@given(seed=st.integers(0, 10_000))
def test_shared_gpus_are_never_overfull_and_are_free_after_all_jobs_end(name: str, seed: int) -> None:
    cluster_model = ClusterModel(
        (NodeGroup(2, 4), NodeGroup(1, 2)), restart_ns=2 * S, outages=(NodeOutage(60 * S, 200 * S, 1),)
    )
    simulation = Followed(cluster_model, JobRun(drawn(seed), policy_of(name, PreemptionParams(round_s=20))))
    record = simulation.run()
    require_sane(record)
    assert record.is_done.all()
    for pool in simulation.scheduler.cluster.pools:
        assert pool.free == [pool.size] * len(pool.nodes)
    assert simulation.scheduler._shared._of_job == {}
    assert not any(simulation.scheduler._shared._of_pool.values())
