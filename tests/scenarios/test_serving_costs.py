"""What serving costs, from records in which all is known: each moment counts once, at full speed."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import pytest

from calibrate.datasheet import STAMP
from policies.interfaces import RewardTerms
from policies.run_records import BatchRecord, CpuWorkCost, Handover, MicroBatchRecord, RouterCost, RunRecord
from policies.vocabulary import ROUTER, HeadKey
from scenarios.executors.serving_costs import SLICE_S, DeviceCosts, ServingCosts, costs_of
from scenarios.executors.serving_measurement import with_costs
from sim.device_profile import Profile
from sim.device_tables import DeviceTables, compile_tables
from tests import tiny

US = 1000
MS = 1000 * US
BEGIN_NS = 2 * 10**9
PAUSES_NS = (0, MS, 5 * MS, 50 * MS)  # one of each kind
EXTRA_NS = (40 * US, 70 * US, 90 * US, 160 * US)  # a pass takes so much more after each
TAKEN_NS = (60 * US, 90 * US, 120 * US, 240 * US)  # to take a micro-batch in
REFERENCE_S = 3e-5


def device(kind: str = "cpu", **changes: Any) -> DeviceTables:
    profile = tiny.profile(host_share=1.0, **changes)
    return compile_tables(profile.model_copy(update={"device": profile.device.model_copy(update={"kind": kind})}), 32)


def record(**changes: Any) -> RunRecord:
    return replace(RunRecord(10**11, (), (), (), (), (), (), (), 1), **changes)


def served(tables: DeviceTables, each: int = 40, slower: float = 1.0, start_ns: int = 30 * US) -> RunRecord:
    """Batches one after the other, so many after each kind of pause: 30 us from command to pass, 20 us from its end to
    the notice; ways of 10 us there beyond what it takes to take a micro-batch in, and 15 us back."""
    latency_ns = tables.keys[1, 1.0, 0.0].latency_ns[2]
    batches, ways, cpu_work, now_ns = [], [], [], BEGIN_NS

    def slow(time_ns: int) -> int:
        return round(slower * time_ns)

    for i in range(each * len(PAUSES_NS)):
        pause = i % len(PAUSES_NS)
        handed_ns = now_ns + PAUSES_NS[pause] - (slow(start_ns) if pause else 0)
        there_ns = slow(10 * US + TAKEN_NS[pause])
        commanded_ns = handed_ns if pause else now_ns
        started_ns = commanded_ns + slow(start_ns) if pause else now_ns
        ended_ns = started_ns + slow(latency_ns + EXTRA_NS[pause])
        told_ns = ended_ns + slow(20 * US)
        batches.append(
            BatchRecord(0, i, 0, 1, 1.0, 0.0, 2, min(commanded_ns, started_ns), started_ns, ended_ns, told_ns)
        )
        if pause and there_ns < slow(start_ns):
            ways.append(Handover(0, True, handed_ns, there_ns))
        ways.append(Handover(0, False, told_ns, slow(15 * US)))
        cpu_work += [
            CpuWorkCost(0, "taken", handed_ns, 1, 2, slow(TAKEN_NS[pause])),
            CpuWorkCost(0, "moved", handed_ns, 1, 2, slow(25 * US)),
            CpuWorkCost(0, "begun", told_ns + 1, 1, 2, slow(12 * US)),
            CpuWorkCost(0, "ended", told_ns, 1, 2, slow(18 * US)),
        ]
        now_ns = ended_ns
    return record(batches=tuple(batches), handovers=tuple(ways), cpu_work=tuple(cpu_work))


def found(run: RunRecord, tables: DeviceTables) -> DeviceCosts:
    (costs,) = costs_of([run], [tables], [0]).devices
    return costs


def test_a_pass_takes_more_the_longer_the_pause_before_it() -> None:
    costs = found(served(device()), device())
    assert costs.extra is not None
    assert costs.extra.always_s == pytest.approx(40e-6, rel=1e-3)
    assert (costs.extra.share, costs.extra.per_byte_s) == (0.0, 0.0)  # one key in one size tells neither
    assert costs.extra.after_pause_s == pytest.approx((30e-6, 50e-6, 120e-6), rel=0.03)  # nothing ran before the first


def test_extra_pass_time_is_fitted_from_pass_length_and_weights() -> None:
    """Each pass takes a fifth more than calibrated, plus 10 us, plus 5 us per unit of its instance's weights."""
    tables, rng, unit_bytes = device(), np.random.default_rng(0), 1_000_000
    memory = tables.profile.memory
    costs = [cost.model_copy(update={"vram_bytes": unit_bytes * (1 + i)}) for i, cost in enumerate(memory.instances)]
    profile = tables.profile.model_copy(update={"memory": memory.model_copy(update={"instances": tuple(costs)})})
    tables, batches, now_ns = compile_tables(profile, 32), [], BEGIN_NS
    for i in range(400):
        curve, size = profile.latency[i % len(profile.latency)], int(rng.integers(1, 33))
        key = (curve.segment, curve.width, curve.previous_width)
        units = profile.weights_bytes(curve.segment, curve.width) // unit_bytes
        ended_ns = now_ns + round(1.2 * tables.keys[key].latency_ns[size]) + (10 + 5 * units) * US
        batches.append(BatchRecord(0, i, 0, *key, size, now_ns, now_ns, ended_ns, ended_ns))
        now_ns = ended_ns
    extra = found(record(batches=tuple(batches)), tables).extra
    assert extra is not None
    assert extra.always_s == pytest.approx(10e-6, rel=0.02)
    assert extra.share == pytest.approx(0.2, rel=0.01)
    assert extra.per_byte_s == pytest.approx(5e-6 / unit_bytes, rel=0.01)
    served = compile_tables(with_costs(profile, None, DeviceCosts(extra=extra)), 32)
    last = batches[-1]
    key = (last.segment, last.width, last.previous_width)
    assert served.keys[key].latency_ns[last.size] == pytest.approx(last.ended_ns - last.started_ns, rel=0.005)


def test_cpu_work_is_fitted_by_kind_and_pause() -> None:
    cpu_work = found(served(device()), device()).cpu_work
    assert cpu_work is not None

    def of_two(cost: Any) -> float:
        return float(cost.micro_batch_s + 2 * cost.image_s)

    assert of_two(cpu_work.taken) == pytest.approx(60e-6, rel=1e-3)
    assert cpu_work.taken_after_pause == pytest.approx((1.5, 2.0, 4.0), rel=1e-3)
    kinds = (cpu_work.moved, cpu_work.begun, cpu_work.ended)
    assert [of_two(cost) for cost in kinds] == pytest.approx([25e-6, 12e-6, 18e-6], rel=1e-3)


@pytest.mark.parametrize("number", [200, 2])
def test_how_long_a_core_is_waited_for_is_told_by_waits_that_passes_cut_short(number: int) -> None:
    """Micro-batches wait 2 ms on average beside a pass, but not beyond its end: 3 ms later. Of two waits nothing is
    told. That
    batches are begun sooner tells nothing: who commands them has the core."""
    tables, rng = device(), np.random.default_rng(4)
    run = served(tables)
    batches, ways = [b for b in run.batches if b.commanded_ns < b.started_ns], []
    at_ns = max(batch.ended_ns for batch in run.batches) + 50 * MS
    for _ in range(number):
        passed_ns, told_ns, micro_batch_ns = at_ns + 4 * MS, at_ns + MS, at_ns + 200 * MS
        begun_ns = told_ns + min(round(rng.exponential(0.5 * MS)), 3 * MS)
        for times_ns in (
            (at_ns - 1, at_ns, passed_ns, passed_ns),
            (told_ns, begun_ns, begun_ns + 4 * MS, begun_ns + 4 * MS),
            (micro_batch_ns - 1, micro_batch_ns, micro_batch_ns + 4 * MS, micro_batch_ns + 4 * MS),
        ):
            batches.append(BatchRecord(0, len(batches), 0, 1, 1.0, 0.0, 2, *times_ns))
        ways.append(Handover(0, True, micro_batch_ns + MS, min(round(rng.exponential(2 * MS)), 3 * MS + 1)))
        at_ns += 400 * MS
    cpu_work = found(replace(run, batches=tuple(batches), handovers=(*run.handovers, *ways)), tables).cpu_work
    assert cpu_work is not None
    if number == 2:
        assert cpu_work.slice_s == SLICE_S
        return
    assert cpu_work.slice_s == pytest.approx(2e-3, rel=0.2)


def test_a_gpu_computes_beside_its_worker() -> None:
    """Its worker's work holds up no pass: it is in the ways, as long as they were seen to be."""
    tables = device("cuda")
    assert found(served(tables), tables).cpu_work is None


def test_a_way_is_told_without_what_the_worker_does_to_take_a_block_in() -> None:
    for kind, there_s in (("cpu", 10e-6), ("cuda", 250e-6)):
        tables = device(kind)
        run = served(tables, start_ns=300 * US)
        at_ns = max(batch.ended_ns for batch in run.batches) + 50 * MS
        ways = tuple(Handover(0, True, at_ns + i * MS, 10 * US + TAKEN_NS[-1]) for i in range(40))
        costs = found(replace(run, handovers=(*(w for w in run.handovers if not w.there), *ways)), tables)
        assert costs.handover is not None
        assert costs.handover.there_s == pytest.approx(there_s, rel=0.01), kind
        assert costs.handover.back_s == pytest.approx(15e-6)


def test_a_dispatch_counts_where_no_pass_ran() -> None:
    costs = found(served(device()), device())
    assert costs.dispatch_s == pytest.approx(50e-6, rel=1e-3)


def test_serving_costs_of_a_slowed_device_are_scaled_to_full_speed() -> None:
    """A run on a device that is 1.44 times slower yields the same costs."""
    slowdown = {"slow_factor": 1.5, "slow_share": 0.4, "mean_slow_s": 0.1, "reference_s": REFERENCE_S,
                "reference_exponent": 2.0, "provenance": "measured"}  # fmt: skip
    tables = device(slowdown=slowdown)
    readings = tuple((0, at * 10**8, REFERENCE_S * 1.2) for at in range(100))
    costs = found(replace(served(tables, slower=1.44), references=readings), tables)
    assert costs.extra is not None
    assert costs.extra.always_s == pytest.approx(40e-6, rel=1e-2)
    assert costs.cpu_work is not None
    assert costs.cpu_work.taken.micro_batch_s + 2 * costs.cpu_work.taken.image_s == pytest.approx(60e-6, rel=1e-2)
    assert costs.dispatch_s == pytest.approx(50e-6, rel=1e-2)


def test_passes_that_met_others_tell_no_cost() -> None:
    """Each took longer for the others' sake, which the simulator knows by itself: nothing is better than that."""
    tables = device("cuda")
    run = served(tables)
    crowded = [replace_times(batch, BEGIN_NS + i) for i, batch in enumerate(run.batches)]
    costs = found(replace(run, batches=tuple(crowded)), tables)
    assert costs.extra is None


def replace_times(batch: BatchRecord, started_ns: int) -> BatchRecord:
    return BatchRecord(0, batch.batch, 0, 1, 1.0, 0.0, 2, started_ns - 30, started_ns, 10**10, 10**10 + 20)


def test_handover_costs_of_a_busy_gpu_are_fitted_separately() -> None:
    """Handovers during a pass come from the busier run, those of an idle device from the light one."""
    tables = device("cuda")
    light, busy = served(tables), served(tables)
    long = [BatchRecord(0, 10_000, 1, 1, 1.0, 0.0, 2, 0, 0, 10**11, 10**11)]
    ways = [replace_way(way, 500 * US if way.there else 77 * US) for way in _spread_ways()]
    busy = replace(busy, batches=(*busy.batches, *long), handovers=tuple(ways))
    (costs,) = costs_of([light, busy], [tables], [0]).devices
    assert costs.busy is None  # the light one has no way there
    light = replace(light, handovers=tuple(replace_way(way, 100 * US) for way in _spread_ways(10**10)))
    (costs,) = costs_of([light, busy], [tables], [0]).devices
    assert costs.busy is not None
    assert costs.handover is not None
    assert (costs.handover.there_s, costs.busy.there_s) == pytest.approx((100e-6, 500e-6))
    assert costs.busy.back_s == pytest.approx(77e-6)


def _spread_ways(after_ns: int = BEGIN_NS) -> list[Handover]:
    return [Handover(0, there, after_ns + i * 60 * MS, 0) for i in range(60) for there in (True, False)]


def replace_way(way: Handover, took_ns: int) -> Handover:
    return Handover(way.server, way.there, way.at_ns, took_ns)


def test_a_way_that_waited_for_the_one_before_it_does_not_count() -> None:
    tables = device("cuda")
    at_ns = 10**10
    ways = [Handover(0, True, at_ns + i * US, 100 * US if i == 0 else 900 * US) for i in range(30)]
    run = replace(served(tables), handovers=(*ways, Handover(0, False, at_ns, 15 * US)))
    costs = found(run, tables)
    assert costs.handover is not None
    assert costs.handover.there_s == pytest.approx(100e-6)


def test_a_links_latency_is_what_a_way_takes_beyond_its_bytes_and_the_handover() -> None:
    """Sent to arrived, less the bytes at the link's rate, less the handover that comes after."""
    tables = device("cuda", link={"latency_s": 1e-6, "bandwidth_bytes_s": 1e6})
    terms = RewardTerms(0.0, 0.0, 0.0, 0.0, 0.0)
    sent_ns, bytes_ns = BEGIN_NS, 2 * 3072 * 1000
    micro_batch = MicroBatchRecord(
        1, HeadKey(1, 0.0, ROUTER), 0, 1.0, 2, sent_ns, sent_ns, sent_ns + bytes_ns + 190 * US, 0, 0.0, terms
    )
    ways = tuple(Handover(0, True, 10**10 + i * MS, 100 * US) for i in range(9))
    costs = found(
        replace(served(tables), micro_batches=(micro_batch,), handovers=(*ways, Handover(0, False, 1, 1))), tables
    )
    assert costs.transfer_s == pytest.approx(90e-6)
    profile = with_costs(tables.profile, None, costs)
    assert profile.link is not None
    assert (profile.link.latency_s, profile.link.bandwidth_bytes_s) == pytest.approx((90e-6, 1e6))


def test_fetch_cost_from_another_server_excludes_the_handover() -> None:
    """The cost is the mean time from sent to arrived less the handover that follows; the simulator uses it, too."""
    tables, terms = device("cuda"), RewardTerms(0.0, 0.0, 0.0, 0.0, 0.0)
    micro_batches = [
        MicroBatchRecord(n, HeadKey(2, 1.0, 1), 0, 1.0, 2, BEGIN_NS, BEGIN_NS, BEGIN_NS + took_ns, 0, 0.0, terms)
        for n, took_ns in enumerate((800 * US, 1000 * US))
    ]
    ways = tuple(Handover(0, True, 10**10 + i * MS, 100 * US) for i in range(9))
    run = replace(served(tables), micro_batches=tuple(micro_batches), handovers=(*ways, Handover(0, False, 1, 1)))
    costs = found(run, tables)
    assert costs.fetch_s == pytest.approx(800e-6)
    assert costs.transfer_s is None  # nothing came from the router
    assert compile_tables(with_costs(tables.profile, None, costs), 32).fetch_ns == 800 * US


def test_served_passes_of_a_real_device_lie_around_what_is_expected_of_them() -> None:
    """Three of four take what is expected, every fourth takes twice that; an emulated device's are its model's."""
    tables = device("cuda")
    usual_ns = tables.keys[1, 1.0, 0.0].latency_ns[2]
    starts_ns = [BEGIN_NS + i * 100 * MS for i in range(80)]
    passes = [
        BatchRecord(0, i, 0, 1, 1.0, 0.0, 2, at_ns, at_ns, at_ns + usual_ns * (1 + (i % 4 == 3)), at_ns + 50 * MS)
        for i, at_ns in enumerate(starts_ns)
    ]
    costs = found(record(batches=tuple(passes)), tables)
    assert len(costs.ratios) == 64
    assert costs.ratios[0] == pytest.approx(costs.ratios[47])
    assert costs.ratios[63] / costs.ratios[0] == pytest.approx(2.0)
    served_as = compile_tables(with_costs(tables.profile, None, costs), 32)
    key = served_as.keys[1, 1.0, 0.0]
    assert set(key.jitter) == {costs.ratios}
    drawn_ns = [key.typical_ns[2] * ratio for ratio in key.jitter[2]]
    assert min(drawn_ns) == pytest.approx(usual_ns, rel=1e-3)
    assert max(drawn_ns) == pytest.approx(2 * usual_ns, rel=1e-3)
    emulated = tables.profile.device.model_copy(update={"emulated_slowdown": 1.0})
    like_it = compile_tables(tables.profile.model_copy(update={"device": emulated}), 32)
    assert found(record(batches=tuple(passes)), like_it).ratios == ()


def test_the_profile_keeps_what_was_calibrated_and_can_be_read_again() -> None:
    tables = device()
    run = served(tables)
    found_here = costs_of([run], [tables], [0])
    profile = with_costs(tables.profile, found_here.router_host, found_here.devices[0])
    assert profile.latency == tables.profile.latency
    assert profile.served_extra_s == pytest.approx(40e-6, rel=1e-3)
    assert profile.cpu_work is not None
    assert Profile.from_yaml(profile.to_yaml(), "served.yaml") == profile


def test_profile_with_costs_measured_here_drops_the_stamp_of_another_host() -> None:
    """The datasheet of an emulated device names the host of its costs, which a measurement here replaces."""
    tables = device()
    of_another = {"stamps": {"source": "datasheet", STAMP: "measured elsewhere"}}
    given = tables.profile.model_copy(update={"device": tables.profile.device.model_copy(update=of_another)})
    found_here = costs_of([served(tables)], [tables], [0])
    profile = with_costs(given, found_here.router_host, found_here.devices[0])
    assert profile.device.stamps == {"source": "datasheet"}


def test_a_rare_block_of_several_images_tells_no_images_part() -> None:
    """Seen on emulated servers: two slow blocks of a hundred made an image cost 96 us, and a micro-batch nothing."""
    rows = [(1, 1, 100 * US)] * 98 + [(1, 2, 240 * US)] * 2
    done = {"decision": 20 * US, "returned": 75 * US}
    samples = [
        RouterCost(kind, *row, done[kind], 0) for kind in ("decision", "returned") for row in [*rows, (1, 1, MS)]
    ]
    host = costs_of([record(router_costs=tuple(samples))], [], []).router_host
    assert host is not None
    cpu_us = 98 * 100 + 2 * 240 + 1000
    assert (host.sent_share, host.received_share) == pytest.approx((101 * 20 / cpu_us, 101 * 75 / cpu_us))
    assert host.returned.image_s == 0.0
    assert host.returned.micro_batch_s == pytest.approx(102.8e-6)


def test_the_routers_costs_are_found_again_from_samples_of_several_blocks() -> None:
    """A part a micro-batch and a part an image, of decisions and of returns; how single costs lie around them; and more
    of all after a pause."""
    truth: dict[Literal["decision", "returned"], tuple[float, float]] = {
        "decision": (30e-6, 2e-6),
        "returned": (20e-6, 0.0),
    }
    rng = np.random.default_rng(0)
    samples = [
        RouterCost(
            kind,
            micro_batches,
            images,
            round(1e9 * more * float(part[0] * micro_batches + part[1] * images) * noise),
            0,
            pause_ns,
        )
        for kind, part in truth.items()
        for micro_batches, images in ((1, 1), (1, 8), (3, 12), (2, 40))
        for pause_ns, more in ((0, 1.0), (MS, 1.5), (5 * MS, 3.0), (50 * MS, 4.0))
        for noise in rng.choice((0.8, 1.2), 500)
    ]
    host = costs_of([record(router_costs=tuple(samples))], [], []).router_host
    assert host is not None
    for kind, (micro_batch_s, image_s) in truth.items():
        cost = getattr(host, kind)
        assert cost.micro_batch_s == pytest.approx(micro_batch_s, rel=0.05)
        assert cost.image_s == pytest.approx(image_s, rel=0.05, abs=0.05e-6)
    assert host.after_pause == pytest.approx((1.5, 3.0, 4.0), rel=0.05)
    assert host.spread[0] == pytest.approx(0.8, rel=0.05)
    assert host.spread[-1] == pytest.approx(1.2, rel=0.05)
    assert all(one <= other for one, other in pairwise(host.spread))
    assert np.mean(host.spread) == pytest.approx(1.0)
    only = [sample for sample in samples if sample.kind == "decision"]
    assert costs_of([record(router_costs=tuple(only))], [], []) == ServingCosts(None, ())
