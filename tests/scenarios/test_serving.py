"""What serving costs, from a run's records: each moment counts once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from policies.records import BatchRecord, Handover, RouterCost, RunRecord, ServerTotals
from scenarios.executors.serving import ServingOverheads, overheads_of
from sim.tables import DeviceTables, compile_tables
from tests import worlds

US = 1000
AT_NS = 2 * 10**9


def device(kind: str = "cpu") -> DeviceTables:
    profile = worlds.profile(host_share=1.0)
    return compile_tables(profile.model_copy(update={"device": profile.device.model_copy(update={"kind": kind})}), 32)


def served(
    tables: DeviceTables,
    start_ns: int,
    end_ns: int,
    own_ns: int,
    commanded_ns: Sequence[int] = (AT_NS, 2 * AT_NS, 3 * AT_NS),
    **changes: Any,
) -> RunRecord:
    """Three batches, each `start_ns` from command to pass and `end_ns` from its end to the notice; the process uses
    `own_ns` for each beside its pass. Ways of 60 us there and 40 us back."""
    latency_ns = tables.keys[1, 1.0, 0.0].latency_ns[2]
    batches = tuple(
        BatchRecord(
            0, i, 0, 1, 1.0, 0.0, 2, at, at + start_ns, at + start_ns + latency_ns, at + start_ns + latency_ns + end_ns
        )
        for i, at in enumerate(commanded_ns)
    )
    totals = ServerTotals("s", 0, 3 * (latency_ns + own_ns) / 1e9, 6, 3, 0, 0, 0)
    ways = tuple(Handover(0, there, 60 * US if there else 40 * US) for there in (True, False) for _ in range(4))
    record = RunRecord(10**10, (), (), batches, (), (totals,), (), (), 1, handovers=ways)
    return replace(record, **changes)


def together_us(found: ServingOverheads) -> float:
    """What a block of one batch takes beside its calibrated pass and the router."""
    (extra_s,), (dispatch_s,), (handover,) = found.extra_s, found.dispatch_s, found.handover
    assert extra_s is not None
    assert dispatch_s is not None
    assert handover is not None
    return (extra_s + sum(dispatch_s) / len(dispatch_s) + handover.mean_s) * 1e6


@pytest.mark.parametrize("own_us", [10, 50, 120])
def test_what_a_cpus_core_does_for_a_batch_counts_once(own_us: int) -> None:
    """50 us around the pass and 100 us of ways are 150 us, however much of them the core was busy for."""
    tables = device()
    found = overheads_of(served(tables, 30 * US, 20 * US, own_us * US), [tables], [0])
    assert found.extra_s[0] == pytest.approx(own_us * 1e-6, rel=1e-3)
    assert together_us(found) == pytest.approx(150, rel=1e-3)


def test_no_batch_waits_for_what_an_agent_does_beside() -> None:
    """A core that was busy for 400 us a batch, where batches and their ways took 150 us: its sensor was read, too."""
    tables = device()
    found = overheads_of(served(tables, 30 * US, 20 * US, 400 * US), [tables], [0])
    assert found.extra_s[0] == pytest.approx(150e-6, rel=1e-3)
    assert together_us(found) == pytest.approx(150, rel=1e-3)


def test_a_gpu_computes_beside_its_agent() -> None:
    """Its passes are as calibrated; dispatches and ways are as they were seen."""
    tables = device("cuda")
    found = overheads_of(served(tables, 30 * US, 20 * US, 70 * US), [tables], [0])
    assert found.extra_s[0] == pytest.approx(0.0, abs=1e-9)
    assert together_us(found) == pytest.approx(150, rel=1e-3)


def test_passes_that_met_others_tell_no_cost() -> None:
    """Each took longer for the others' sake, which the simulator knows by itself: nothing is better than that."""
    tables = device("cuda")
    met = served(tables, 30 * US, 20 * US, 0, commanded_ns=(AT_NS, AT_NS + 1, AT_NS + 2))
    found = overheads_of(met, [tables], [0])
    assert (found.extra_s, found.dispatch_s) == ((None,), (None,))


def test_the_routers_costs_are_a_part_a_block_and_a_part_an_image() -> None:
    """Found again exactly where nothing is random; a share of a decision's has passed when its block is sent."""
    tables = device()
    costs = [
        RouterCost("decision", 1, images, (50 + 4 * images) * US, sent_ns=(50 + 4 * images) * US // 4)
        for images in (1, 2, 5, 9)
    ] + [RouterCost("returned", several, 3 * several, (20 + 2 * 3) * several * US) for several in (1, 2)]
    costs += [RouterCost("returned", 1, 7, (20 + 2 * 7) * US)]
    host = overheads_of(served(tables, 0, 0, 0, router_costs=tuple(costs)), [tables], [0]).router_host
    assert host is not None
    assert (host.decision.block_s, host.decision.image_s) == pytest.approx((50e-6, 4e-6))
    assert (host.returned.block_s, host.returned.image_s) == pytest.approx((20e-6, 2e-6))
    assert host.sent_share == pytest.approx(0.25, rel=1e-3)
    assert host.spread == pytest.approx([1.0] * len(host.spread))
