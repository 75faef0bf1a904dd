"""Where an image's time goes, by hand. That stages add up, after any fault, is told in `test_conservation.py`."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from policies.faults import Outage
from policies.run_records import STAGES, RequestRecord
from policies.vocabulary import NS_PER_S
from sim.host_and_network import HostTable
from tests import tiny

MS = 1_000_000


def stages(request: RequestRecord) -> dict[str, int]:
    return dict(zip(STAGES, request.stages_ns, strict=True))


def test_each_stage_by_hand() -> None:
    """One image alone on one server: every stage is what the world's constants say."""
    profile = tiny.profile(dispatch_s=300e-6, load_s=0.05)
    spec = tiny.cluster([profile], link="loopback", decision_ns=70_000)
    _, record = tiny.simulate(spec, tiny.run(spec, [0.1], 0.2, keep_log=True))
    (request,) = record.requests
    found = stages(request)
    assert found["decision"] == 4 * 70_000
    assert found["dispatch"] == 4 * 300_000
    assert found["load"] == 4 * 50 * MS  # nothing is preloaded: each segment's instance, or its reload, is waited for
    assert found["queue"] == found["router_wait"] == found["lost"] == 0
    assert found["run"] == sum(batch.ended_ns - batch.started_ns for batch in record.batches)
    assert found["transfer"] == sum(
        micro_batch.arrived_ns - micro_batch.sent_ns for micro_batch in record.micro_batches
    )


def test_a_run_begins_with_its_preloads_in_place_and_a_restart_loads_them() -> None:
    """As on executors, where the clock starts when they are there, as `docs/scenario-keys.md` says."""
    spec = tiny.cluster([tiny.profile(load_s=0.05)], link="loopback")
    params = replace(spec.servers[0].params, preload=tiny.preload_all(spec.devices[0]))
    spec = replace(spec, servers=(replace(spec.servers[0], params=params),))
    run = tiny.run(spec, [0.0, 0.2, 0.4], 0.5, faults=(Outage(0, 100 * MS, 190 * MS),))
    _, record = tiny.simulate(spec, run)
    at_once, restarting, later = sorted(record.requests, key=lambda request: request.request)
    assert min(batch.commanded_ns for batch in record.batches) < 1 * MS
    assert stages(at_once)["load"] == stages(later)["load"] == 0 < stages(restarting)["load"]
    assert record.servers[0].loads == 2 * len(params.preload)


def test_waiting_at_the_server_is_queue_and_at_the_router_router_wait() -> None:
    """With one micro-batch at a time a burst waits at the router; with many, at the server."""
    waits = []
    for outstanding_micro_batches in (1, 1000):
        profile = tiny.profile()
        spec = tiny.cluster(
            [profile], batch_limit=1,
            router={"micro_batch_sizes": (1,), "outstanding_micro_batches": outstanding_micro_batches},
            greedy={"idle_unload_ns": None, "scale_trigger": 1000}, decision_ns=0,
        )  # fmt: skip
        _, record = tiny.simulate(spec, tiny.run(spec, [0.1] * 20, 0.2))
        waits.append([sum(stages(request)[name] for request in record.requests) for name in ("router_wait", "queue")])
    (router_ns, _), (_, queue_ns) = waits
    assert router_ns > 10 * waits[1][0]
    assert queue_ns > 10 * waits[0][1]


def test_a_death_loses_the_try_and_what_must_run_again() -> None:
    """Killed in its second segment, an image starts from scratch: all until then is lost."""
    spec = tiny.cluster([tiny.profile()], decision_ns=0)
    whole = tiny.simulate(spec, tiny.run(spec, [0.0], 0.1))[1]
    killed_ns = (whole.batches[1].started_ns + whole.batches[1].ended_ns) // 2  # in its second segment
    outage = Outage(0, killed_ns, killed_ns + 100 * MS)
    (request,) = tiny.simulate(spec, tiny.run(spec, [0.0], 0.1, faults=(outage,)))[1].requests
    assert request.retries == 1
    assert stages(request)["lost"] == killed_ns
    assert stages(request)["router_wait"] == 100 * MS
    assert sum(request.stages_ns) == request.finished_ns


def test_a_run_without_detail_keeps_none() -> None:
    spec = tiny.cluster()
    record = tiny.simulate(spec, tiny.run(spec, [0.1], 0.2, detail=False))[1]
    assert [request.stages_ns for request in record.requests] == [()]


@pytest.mark.parametrize("rate", [100, 900])
def test_the_boundaries_of_a_segment_are_those_of_its_blocks_and_batches(rate: int) -> None:
    """Between two ledgers: dispatch and run of all images are those of the batches, weighted by their sizes."""
    spec = tiny.cluster([tiny.profile(dispatch_s=1e-4)])
    run = tiny.run(spec, tiny.poisson_s(rate, 0.5), 0.5, drain_limit_ns=60 * NS_PER_S)
    _, record = tiny.simulate(spec, run)
    assert {request.status for request in record.requests} == {"completed"}
    for name, ends in (("dispatch", ("commanded_ns", "started_ns")), ("run", ("started_ns", "ended_ns"))):
        total_ns = sum(
            batch.size * (late - early)
            for batch in record.batches
            for early, late in pairwise(getattr(batch, end) for end in ends)
        )
        assert sum(stages(request)[name] for request in record.requests) == total_ns


def test_a_busy_host_spaces_its_decisions() -> None:
    """Two snapshots are never nearer than the host is busy for one; what the policy takes comes on top."""
    host = HostTable(decision=(800_000, 0), returned=(0, 0))
    spec = replace(tiny.cluster([tiny.profile()], decision_ns=70_000), host=host)
    _, record = tiny.simulate(spec, tiny.run(spec, tiny.poisson_s(300.0, 2.0), 2.0))
    snapshots_ns = sorted(micro_batch.snapshot_ns for micro_batch in record.micro_batches)
    gaps_ns = np.diff(snapshots_ns)
    assert min(gaps_ns) == 870_000
    assert max(gaps_ns) > 870_000
    assert {micro_batch.sent_ns - micro_batch.snapshot_ns for micro_batch in record.micro_batches} == {870_000}
