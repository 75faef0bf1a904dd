"""Algorithm 1, rule by rule, on a core that is handed literal events and times."""

from __future__ import annotations

from typing import Any

import pytest

from policies.greedy_scheduler import GreedyParams, GreedyScheduler
from policies.vocabulary import (
    BatchFailed,
    BatchFinished,
    InstanceLoaded,
    InstanceUnloaded,
    LoadFailed,
    LoadInstance,
    MicroBatch,
    MicroBatchArrived,
    RejectRequests,
    Residency,
    ReturnRequests,
    RunBatch,
    ServerDown,
    ServerUp,
    TelemetrySampled,
    TimerFired,
    UnloadInstance,
    WorkKey,
)

W = (0.25, 0.5, 0.75, 1.0)
MB = 1_000_000


def scheduler(**changes: Any) -> GreedyScheduler:
    """Every instance needs 100 MB; the cap leaves room for ten beside the context."""
    params = GreedyParams(
        **{
            "widths": W,
            "instance_bytes": {(s, w): 100 * MB for s in (1, 2, 3, 4) for w in W},
            "context_bytes": 50 * MB,
            "batch_limit": 4,
            "vram_cap_bytes": 1050 * MB,
            **changes,
        }
    )
    core = GreedyScheduler(params, server=0)
    core.handle(ServerUp(0, incarnation=1), 0)
    return core


_micro_batches = iter(range(10**9))


def arrive(core: GreedyScheduler, now: int, segment: int, width: float, *requests: int, prev: float = 0.0) -> list[Any]:
    micro_batch = MicroBatch(next(_micro_batches), 0, 1, WorkKey(segment, width, prev), requests)
    return list(core.handle(MicroBatchArrived(micro_batch), now))


def loaded(core: GreedyScheduler, now: int, segment: int, width: float) -> int:
    """Bring in one free instance without leaving anything queued."""
    load = next(c for c in arrive(core, now, segment, width, 10**6) if isinstance(c, LoadInstance))
    run = handle(core, InstanceLoaded(1, load.instance), now)[0]
    assert isinstance(run, RunBatch)
    handle(core, BatchFinished(1, run.batch), now)
    return load.instance


def handle(core: GreedyScheduler, event: Any, now: int) -> list[Any]:
    """`core.handle` with commands that a test may take apart."""
    return list(core.handle(event, now))


def sample(core: GreedyScheduler, now: int, utilization: float) -> list[Any]:
    return handle(core, TelemetrySampled(1, now, now, utilization, 100.0, 0), now)


def of(kind: type, commands: list[Any]) -> list[Any]:
    return [command for command in commands if isinstance(command, kind)]


def test_first_request_loads_its_instance_then_runs() -> None:
    """Alg. 1: no free instance, memory and utilization allow it: load; the batch runs when it is in."""
    core = scheduler()
    (load,) = arrive(core, 0, 1, 0.5, 7)
    assert (load.segment, load.width) == (1, 0.5)
    (run,) = handle(core, InstanceLoaded(1, load.instance), 10)
    assert run.requests == (7,)
    assert run.served_width == 0.5
    (returned,) = handle(core, BatchFinished(1, run.batch), 20)
    assert returned == ReturnRequests(1, (7,), 1, 0.5, Residency(loaded=0b10))


def test_batches_hold_one_key_up_to_the_limit_in_order() -> None:
    """B_max bounds a batch; different widths or previous widths never share one."""
    core = scheduler(vram_cap_bytes=150 * MB)
    loaded(core, 0, 2, 1.0)
    (first,) = arrive(core, 1, 2, 0.5, *range(6), prev=0.25)
    assert first.requests == (0, 1, 2, 3)
    arrive(core, 1, 2, 0.5, 90, prev=0.5)
    second = of(RunBatch, handle(core, BatchFinished(1, first.batch), 2))[0]
    assert second.requests == (4, 5)
    assert second.previous_width == 0.25
    third = of(RunBatch, handle(core, BatchFinished(1, second.batch), 3))[0]
    assert third.requests == (90,)
    assert third.previous_width == 0.5


def test_a_member_of_a_family_serves_no_other_ones_requests() -> None:
    """Nor does its load keep another's from being asked for, nor is it what another's failed load leaves behind."""
    core = scheduler(nests=(1,) * len(W), load_retries=1)
    loaded(core, 0, 1, 1.0)
    (load,) = arrive(core, 1, 1, 0.5, 2)
    assert (load.segment, load.width) == (1, 0.5)
    (second,) = arrive(core, 2, 1, 0.25, 3)
    assert (second.segment, second.width) == (1, 0.25)
    commands = handle(core, LoadFailed(1, second.instance, "out_of_memory"), 3)
    assert commands == [RejectRequests(1, (3,), "out_of_memory")]


def test_best_fit_is_the_smallest_width_that_serves() -> None:
    """A free 0.5 is taken for 0.5 though 1.0 is free, too; and 1.0 serves when only it is free."""
    core = scheduler()
    narrow, wide = loaded(core, 0, 1, 0.5), loaded(core, 1, 1, 1.0)
    (fit,) = arrive(core, 5, 1, 0.5, 3)
    assert fit.instance == narrow
    (wider,) = arrive(core, 6, 1, 0.25, 4)
    assert wider.instance == wide


def test_best_fit_ties_go_to_the_most_recently_used_then_the_lowest_id() -> None:
    """Two free instances of one width: the one used last; at equal times the lower id."""
    core = scheduler(preload=((1, 1.0), (1, 1.0)))
    handle(core, InstanceLoaded(1, 0), 5)
    handle(core, InstanceLoaded(1, 1), 5)
    (run,) = arrive(core, 6, 1, 1.0, 1)
    assert run.instance == 0
    (other,) = arrive(core, 6, 1, 1.0, 2)
    assert other.instance == 1
    handle(core, BatchFinished(1, run.batch), 7)
    handle(core, BatchFinished(1, other.batch), 8)
    assert arrive(core, 9, 1, 1.0, 3)[0].instance == 1


def test_returns_say_what_is_loaded() -> None:
    """By segment and width; what is on its way out counts no more, and what is gone with an incarnation neither."""
    core = scheduler(vram_cap_bytes=350 * MB, idle_unload_ns=10)
    loaded(core, 0, 1, 0.25)
    loaded(core, 0, 2, 1.0)
    (load,) = arrive(core, 1, 4, 0.5, 1)
    assert core.residency == Residency(loaded=1 << 0 | 1 << 7, loading=1 << 13)
    (run,) = arrive(core, 2, 1, 0.25, 2)
    handle(core, TimerFired(), 10)  # all but what runs has been idle for long enough
    (returned,) = of(ReturnRequests, handle(core, BatchFinished(1, run.batch), 11))
    assert returned.residency == Residency(loaded=1 << 0, loading=1 << 13)
    handle(core, LoadFailed(1, load.instance, "out_of_memory"), 12)
    assert core.residency == Residency(loaded=1 << 0)
    handle(core, ServerDown(0, 1, "process_died"), 13)
    assert core.residency == Residency()


@pytest.mark.parametrize("served, width", [("requested", 0.25), ("instance", 1.0)])
def test_served_width(served: str, width: float) -> None:
    """A wider instance runs at the requested width, or at its own, and the return shows which."""
    core = scheduler(served_width=served)
    loaded(core, 0, 1, 1.0)
    (run,) = arrive(core, 1, 1, 0.25, 5)
    assert run.served_width == width
    (returned,) = handle(core, BatchFinished(1, run.batch), 2)
    assert (returned.requests, returned.width) == ((5,), width)


def test_utilization_at_the_threshold_blocks_a_load_and_below_it_allows_one() -> None:
    """U_blk reads the latest sample; a sample below it is a reason to try again."""
    core = scheduler(utilization_block=0.9)
    loaded(core, 0, 1, 0.25)
    sample(core, 1, 0.9)
    assert arrive(core, 2, 1, 1.0, 1) == []
    assert of(LoadInstance, sample(core, 3, 0.89)) != []


def test_the_first_instance_of_a_segment_ignores_the_utilization_block() -> None:
    """Else a busy server could starve a segment."""
    core = scheduler(utilization_block=0.9)
    loaded(core, 0, 1, 0.25)
    sample(core, 1, 1.0)
    assert of(LoadInstance, arrive(core, 2, 2, 0.5, 1, prev=0.25)) != []


def test_memory_is_charged_from_the_loads_start_and_freed_at_the_unloads_end() -> None:
    """VRAM book-keeping of M_max."""
    core = scheduler(idle_unload_ns=100)
    (load,) = arrive(core, 0, 1, 0.5, 1)
    assert core.vram_used_bytes == 150 * MB
    (run,) = handle(core, InstanceLoaded(1, load.instance), 1)
    handle(core, BatchFinished(1, run.batch), 2)
    assert core.next_wake_ns == 102
    assert handle(core, TimerFired(), 101) == []
    assert handle(core, TimerFired(), 102) == [UnloadInstance(1, load.instance)]
    assert core.vram_used_bytes == 150 * MB
    handle(core, InstanceUnloaded(1, load.instance), 110)
    assert core.vram_used_bytes == 50 * MB


def test_an_idle_instance_is_not_unloaded_while_it_is_used_in_time() -> None:
    """t_last moves with each batch end."""
    core = scheduler(idle_unload_ns=100)
    loaded(core, 0, 1, 0.5)
    (run,) = arrive(core, 90, 1, 0.5, 1)
    assert core.next_wake_ns is None
    handle(core, BatchFinished(1, run.batch), 120)
    assert handle(core, TimerFired(), 150) == []
    assert core.next_wake_ns == 220


def test_full_memory_evicts_the_least_recently_used_idle_instance_for_the_oldest_blocked_key() -> None:
    """Alg. 1 starves under tight VRAM; the settled reading evicts on demand, and only as much as is needed."""
    core = scheduler(vram_cap_bytes=250 * MB)
    first = loaded(core, 0, 1, 1.0)
    loaded(core, 10, 2, 1.0)
    (unload,) = arrive(core, 20, 3, 1.0, 1, prev=1.0)
    assert unload == UnloadInstance(1, first)
    assert arrive(core, 21, 3, 1.0, 2, prev=1.0) == []  # enough is on its way out
    (load,) = handle(core, InstanceUnloaded(1, first), 30)
    assert (load.segment, load.width) == (3, 1.0)


def test_the_literal_algorithm_neither_skips_nor_evicts() -> None:
    """head_of_line: wait puts the batch back and waits."""
    core = scheduler(vram_cap_bytes=250 * MB, head_of_line="wait", idle_unload_ns=None)
    loaded(core, 0, 1, 1.0)
    loaded(core, 0, 2, 1.0)
    assert arrive(core, 1, 3, 1.0, 1, prev=1.0) == []
    assert arrive(core, 2, 1, 1.0, 2) == []


def test_skip_serves_the_next_key_until_the_blocked_one_is_overdue() -> None:
    """After skip_limit nothing overtakes the oldest blocked key."""
    core = scheduler(vram_cap_bytes=250 * MB, skip_limit_ns=100)
    loaded(core, 0, 1, 1.0)
    loaded(core, 0, 2, 1.0)
    (busy,) = arrive(core, 1, 1, 1.0, 1)
    (busy2,) = arrive(core, 1, 2, 1.0, 2, prev=1.0)
    assert arrive(core, 2, 3, 1.0, 3, prev=1.0) == []  # blocked: both instances run
    arrive(core, 3, 1, 1.0, 4)
    overtaking = handle(core, BatchFinished(1, busy.batch), 50)
    assert of(RunBatch, overtaking)[0].requests == (4,)
    arrive(core, 60, 2, 1.0, 5, prev=1.0)
    late = handle(core, BatchFinished(1, busy2.batch), 102)
    assert of(RunBatch, late) == []  # request 3 is overdue
    assert of(UnloadInstance, late) != []  # and evicts the idle instance


def test_a_loading_instance_that_serves_stops_further_loads_for_the_key() -> None:
    """Batches stay queued meanwhile; a narrower key waits for a wider load, too."""
    core = scheduler()
    assert len(of(LoadInstance, arrive(core, 0, 1, 1.0, 1))) == 1
    assert arrive(core, 1, 1, 1.0, 2) == []
    assert arrive(core, 2, 1, 0.5, 3) == []
    assert len(of(LoadInstance, arrive(core, 3, 2, 0.5, 4, prev=1.0))) == 1


def test_a_busy_instance_is_no_reason_to_load() -> None:
    """Nor to evict: what waits takes its turn, with memory to spare and with none."""
    for cap_bytes in (1050 * MB, 250 * MB):
        core = scheduler(vram_cap_bytes=cap_bytes, idle_unload_ns=None, batch_limit=1)
        loaded(core, 0, 1, 1.0)
        loaded(core, 0, 2, 1.0)
        (busy,) = arrive(core, 1, 1, 1.0, 1)
        assert arrive(core, 2, 1, 0.5, 2) == []
        (_, following) = handle(core, BatchFinished(1, busy.batch), 3)
        assert following.requests == (2,)


def test_an_overdue_key_loads_beside_a_busy_instance() -> None:
    """That may hang; and it evicts where memory is short."""
    core = scheduler(vram_cap_bytes=250 * MB, skip_limit_ns=100, idle_unload_ns=None)
    loaded(core, 0, 1, 1.0)
    idle = loaded(core, 0, 2, 1.0)
    arrive(core, 1, 1, 1.0, 1)
    assert arrive(core, 2, 1, 1.0, 2) == []
    assert sample(core, 101, 0.0) == []
    assert sample(core, 102, 0.0) == [UnloadInstance(1, idle)]
    (load,) = handle(core, InstanceUnloaded(1, idle), 103)
    assert (load.segment, load.width) == (1, 1.0)


def test_a_queue_above_the_trigger_loads_a_further_instance_up_to_the_cap() -> None:
    """Q_th and N_new: not while one is loading; the counter counts every load for the key and ends with its queue."""
    core = scheduler(scale_trigger=3, scale_cap=2, idle_unload_ns=None)
    (first,) = of(LoadInstance, arrive(core, 0, 1, 1.0, *range(12)))
    assert arrive(core, 1, 1, 1.0, *range(12, 20)) == []  # one is loading
    _, second = handle(core, InstanceLoaded(1, first.instance), 2)
    assert isinstance(second, LoadInstance)
    assert of(LoadInstance, handle(core, InstanceLoaded(1, second.instance), 3)) == []  # the counter is at N_new
    assert core.queue_length == 20 - 8


def test_the_load_counter_is_reset_when_the_keys_queue_empties() -> None:
    """A later rush of the same key may have a further instance again."""
    core = scheduler(scale_trigger=1, scale_cap=1, batch_limit=4, idle_unload_ns=None)
    (first,) = of(LoadInstance, arrive(core, 0, 1, 1.0, *range(4)))
    (run,) = of(RunBatch, handle(core, InstanceLoaded(1, first.instance), 1))
    assert len(run.requests) == 4  # the queue is empty: the counter ends here
    assert len(of(LoadInstance, arrive(core, 2, 1, 1.0, 10, 11))) == 1


def test_no_further_instance_evicts() -> None:
    """A long queue whose instance is busy waits for it where memory is short."""
    core = scheduler(vram_cap_bytes=250 * MB, scale_trigger=1, scale_cap=5, idle_unload_ns=None)
    loaded(core, 0, 1, 1.0)
    loaded(core, 0, 2, 1.0)
    arrive(core, 1, 1, 1.0, *range(4))
    assert arrive(core, 2, 1, 1.0, *range(10, 30)) == []


def test_loads_for_a_key_count_against_its_cap_and_others_do_not() -> None:
    """Neither a preload nor a load for another previous width counts; a key's own first load does."""
    core = scheduler(scale_trigger=1, scale_cap=1, batch_limit=1, preload=((2, 1.0),), idle_unload_ns=None)
    handle(core, InstanceLoaded(1, 0), 0)
    arrive(core, 1, 2, 1.0, 1, prev=0.5)  # runs on what was preloaded
    (other,) = of(LoadInstance, arrive(core, 2, 2, 1.0, *range(2, 6), prev=0.5))
    assert arrive(core, 3, 2, 1.0, 9, prev=1.0) == []  # what the other key loads will serve this one, too
    handle(core, InstanceLoaded(1, other.instance), 4)
    assert len(of(LoadInstance, arrive(core, 5, 2, 1.0, *range(10, 20), prev=1.0))) == 1
    assert len(of(LoadInstance, arrive(core, 6, 3, 1.0, *range(30, 40), prev=1.0))) == 1


def test_at_the_trigger_no_further_instance_loads() -> None:
    """The queue must be *above* Q_th."""
    core = scheduler(scale_trigger=4, scale_cap=2)
    loaded(core, 0, 1, 1.0)
    arrive(core, 1, 1, 1.0, 1)
    assert arrive(core, 2, 1, 1.0, *range(10, 14)) == []
    assert len(of(LoadInstance, arrive(core, 3, 1, 1.0, 14))) == 1


@pytest.mark.parametrize("served, loads", [("requested", 0), ("instance", 1)])
def test_a_key_gets_its_own_width_where_a_wider_one_would_serve_at_its_own(served: str, loads: int) -> None:
    """While the wider one is busy; once, and never by eviction."""
    core = scheduler(served_width=served, idle_unload_ns=None)
    loaded(core, 0, 1, 1.0)
    arrive(core, 1, 1, 1.0, 1)
    assert len(of(LoadInstance, arrive(core, 2, 1, 0.5, 2))) == loads
    full = scheduler(served_width=served, idle_unload_ns=None, vram_cap_bytes=250 * MB)
    loaded(full, 0, 1, 1.0)
    loaded(full, 0, 2, 1.0)
    arrive(full, 1, 1, 1.0, 1)
    assert arrive(full, 2, 1, 0.5, 2) == []


def test_failed_loads_back_off_and_then_reject_what_waits() -> None:
    """Memory is given back, the wait doubles, and after the last try the router hears of it."""
    core = scheduler(load_retries=2, load_backoff_ns=100)
    (load,) = arrive(core, 0, 1, 1.0, 1, 2)
    assert handle(core, LoadFailed(1, load.instance, "out_of_memory"), 10) == []
    assert core.vram_used_bytes == 50 * MB
    assert core.next_wake_ns == 110
    (again,) = handle(core, TimerFired(), 110)
    assert isinstance(again, LoadInstance)
    (rejected,) = handle(core, LoadFailed(1, again.instance, "out_of_memory"), 120)
    assert rejected == RejectRequests(1, (1, 2), "out_of_memory")
    assert core.queue_length == 0


def test_a_failed_batch_goes_back_to_the_router_and_frees_its_instance() -> None:
    """The inputs are still here; the reason travels."""
    core = scheduler()
    loaded(core, 0, 1, 1.0)
    (run,) = arrive(core, 1, 1, 1.0, 1)
    assert handle(core, BatchFailed(1, run.batch, "bad_input"), 2) == [RejectRequests(1, (1,), "bad_input")]
    assert isinstance(arrive(core, 3, 1, 1.0, 2)[0], RunBatch)


def run_and_lack_memory(core: GreedyScheduler, load: Any, now: int) -> list[Any]:
    (run,) = of(RunBatch, handle(core, InstanceLoaded(1, load.instance), now))
    return handle(core, BatchFailed(1, run.batch, "out_of_memory"), now + 1)


def test_a_batch_without_memory_costs_its_instance() -> None:
    """The batch goes back, the instance is unloaded, and its next load waits as after a failed one."""
    core = scheduler(load_backoff_ns=100)
    (load,) = arrive(core, 0, 1, 1.0, 1)
    assert run_and_lack_memory(core, load, 9) == [
        RejectRequests(1, (1,), "out_of_memory"),
        UnloadInstance(1, load.instance),
    ]
    assert arrive(core, 20, 1, 1.0, 2) == []
    handle(core, InstanceUnloaded(1, load.instance), 30)
    assert core.vram_used_bytes == 50 * MB
    assert core.next_wake_ns == 110
    (again,) = handle(core, TimerFired(), 110)
    assert (again.segment, again.width) == (1, 1.0)


def test_batches_that_lack_memory_in_a_row_reject_what_waits() -> None:
    """Loads that succeed in between do not end the row; the wait doubles; other widths are not concerned."""
    core = scheduler(load_retries=3, load_backoff_ns=100, batch_limit=1, vram_cap_bytes=150 * MB)  # room for one
    (load,) = arrive(core, 0, 1, 1.0, 1, 2, 3, 4, 5)
    for now, wake in ((9, 110), (119, 320)):
        failed = run_and_lack_memory(core, load, now)
        assert of(RejectRequests, failed)[0].reason == "out_of_memory"
        handle(core, InstanceUnloaded(1, load.instance), now + 1)
        assert core.next_wake_ns == wake
        (load,) = handle(core, TimerFired(), wake)
    assert arrive(core, 321, 1, 0.5, 9) == []  # the wider one that is loading will serve it
    last = run_and_lack_memory(core, load, 330)
    assert [rejected.requests for rejected in of(RejectRequests, last)] == [(3,), (4, 5)]
    (narrow,) = handle(core, InstanceUnloaded(1, load.instance), 332)
    assert (narrow.segment, narrow.width) == (1, 0.5)


def test_a_batch_that_ends_is_the_end_of_the_row() -> None:
    """One failure, one success, one failure: the wait is the first one's again."""
    core = scheduler(load_retries=2, load_backoff_ns=100, batch_limit=1)
    (load,) = arrive(core, 0, 1, 1.0, 1)
    run_and_lack_memory(core, load, 9)
    handle(core, InstanceUnloaded(1, load.instance), 20)
    (load,) = arrive(core, 200, 1, 1.0, 2)
    (run,) = of(RunBatch, handle(core, InstanceLoaded(1, load.instance), 210))
    handle(core, BatchFinished(1, run.batch), 220)
    arrive(core, 221, 1, 1.0, 3)
    arrive(core, 222, 1, 1.0, 4)
    failed = handle(core, BatchFailed(1, run.batch + 1, "out_of_memory"), 230)
    assert [rejected.requests for rejected in of(RejectRequests, failed)] == [(3,)]
    assert core.next_wake_ns == 330


def test_instances_that_lack_memory_together_are_one_failure() -> None:
    """Both go; who waits is not given up at the first lack."""
    core = scheduler(load_retries=2, load_backoff_ns=100, batch_limit=1, preload=((1, 1.0), (1, 1.0)))
    for instance in range(2):
        handle(core, InstanceLoaded(1, instance), 1)
    for run in of(RunBatch, arrive(core, 2, 1, 1.0, 1, 2, 3)):
        failed = handle(core, BatchFailed(1, run.batch, "out_of_memory"), 10)
        assert [rejected.requests for rejected in of(RejectRequests, failed)] == [run.requests]
    assert (core.queue_length, core.next_wake_ns) == (1, 110)


def test_another_instance_that_works_serves_those_who_wait() -> None:
    """Nobody is given up for whom there is one."""
    core = scheduler(load_retries=1, batch_limit=1, preload=((1, 1.0), (1, 1.0)))
    for instance in range(2):
        handle(core, InstanceLoaded(1, instance), 1)
    lacking, working = of(RunBatch, arrive(core, 2, 1, 1.0, 1, 2, 3))
    failed = handle(core, BatchFailed(1, lacking.batch, "out_of_memory"), 10)
    assert [rejected.requests for rejected in of(RejectRequests, failed)] == [(1,)]
    assert of(RunBatch, handle(core, BatchFinished(1, working.batch), 20))[0].requests == (3,)


def test_what_can_never_fit_is_rejected_at_once() -> None:
    """An instance larger than the cap."""
    core = scheduler(vram_cap_bytes=100 * MB, context_bytes=50 * MB)
    assert arrive(core, 0, 1, 1.0, 1) == [RejectRequests(1, (1,), "instance_too_large")]


def test_death_forgets_everything_and_stale_events_change_nothing() -> None:
    """An event of an earlier incarnation is refused."""
    core = scheduler()
    (load,) = arrive(core, 0, 1, 1.0, 1)
    handle(core, ServerDown(0, 1, "killed"), 1)
    assert (core.queue_length, core.vram_used_bytes, core.next_wake_ns) == (0, 50 * MB, None)
    handle(core, ServerUp(0, 2), 2)
    assert handle(core, InstanceLoaded(1, load.instance), 3) == []
    assert arrive(core, 4, 1, 1.0, 5) == []  # a micro-batch that was sent to the former incarnation
    assert core.queue_length == 0


def test_padding_gives_the_device_the_next_size_of_the_grid() -> None:
    """padded is at least the batch, and from the grid."""
    core = scheduler(padded_sizes=(1, 2, 4))
    loaded(core, 0, 1, 1.0)
    (run,) = arrive(core, 1, 1, 1.0, 1, 2, 3)
    assert (len(run.requests), run.padded) == (3, 4)


def test_preload_beyond_the_cap_is_refused_before_anything_runs() -> None:
    """The message names both numbers."""
    with pytest.raises(ValueError, match=r"need 1150000000 bytes, the cap is 1050000000"):
        scheduler(preload=tuple((1, 1.0) for _ in range(11)))


def test_a_failed_further_load_rejects_nothing_that_a_working_instance_serves() -> None:
    """A queue with an instance is not given up."""
    core = scheduler(scale_trigger=1, scale_cap=5, load_retries=1)
    loaded(core, 0, 1, 1.0)
    (busy,) = of(RunBatch, arrive(core, 1, 1, 1.0, *range(4)))
    (load,) = of(LoadInstance, arrive(core, 2, 1, 1.0, *range(10, 30)))
    assert of(RejectRequests, handle(core, LoadFailed(1, load.instance, "out_of_memory"), 3)) == []
    assert core.queue_length == 20
    assert of(RunBatch, handle(core, BatchFinished(1, busy.batch), 4)) != []


def test_an_overdue_key_ignores_the_utilization_block() -> None:
    """Others may keep a shared device busy for ever; a narrower free instance of the segment doesn't count."""
    core = scheduler(utilization_block=0.9, skip_limit_ns=100, idle_unload_ns=None)
    loaded(core, 0, 1, 0.25)
    sample(core, 1, 1.0)
    assert arrive(core, 2, 1, 1.0, 1) == []
    assert sample(core, 101, 1.0) == []
    (load,) = sample(core, 102, 1.0)
    assert load.width == 1.0


def test_no_further_instance_loads_past_an_overdue_key() -> None:
    """Memory that it waits for is not given to a younger one."""
    core = scheduler(vram_cap_bytes=250 * MB, scale_trigger=1, skip_limit_ns=100, idle_unload_ns=None)
    loaded(core, 0, 1, 1.0)
    arrive(core, 1, 1, 1.0, 1)
    loaded_two = of(LoadInstance, arrive(core, 1, 2, 1.0, 2, prev=1.0))
    assert len(loaded_two) == 1
    arrive(core, 2, 3, 1.0, 3, prev=1.0)  # blocked: memory is full, nothing is idle
    assert of(LoadInstance, arrive(core, 200, 4, 0.25, *range(10, 20), prev=1.0)) == []


def test_what_is_freed_for_the_oldest_key_is_not_taken_by_a_younger_one() -> None:
    """Of two victims the first one's memory would fit the younger key; it waits."""
    sizes = {(s, w): 100 * MB for s in (1, 2, 4) for w in W} | {(3, w): 200 * MB for w in W}
    core = scheduler(vram_cap_bytes=250 * MB, instance_bytes=sizes, idle_unload_ns=None)
    first, second = loaded(core, 0, 1, 1.0), loaded(core, 1, 2, 1.0)
    unloads = arrive(core, 2, 3, 1.0, 1, prev=1.0)
    assert unloads == [UnloadInstance(1, first), UnloadInstance(1, second)]
    arrive(core, 3, 4, 1.0, 2, prev=1.0)
    assert handle(core, InstanceUnloaded(1, first), 4) == []
    (load,) = handle(core, InstanceUnloaded(1, second), 5)
    assert load.segment == 3


def test_memory_is_booked_as_the_device_tells_it() -> None:
    """A load that took more keeps others out until it is gone; one that took less lets others in. In simulation nothing
    is told, and what the parameters say stands."""
    core = scheduler(vram_cap_bytes=350 * MB)
    load = of(LoadInstance, arrive(core, 0, 1, 1.0, 1))[0]
    handle(core, InstanceLoaded(1, load.instance, 250 * MB), 1)
    assert core.vram_used_bytes == 300 * MB
    assert core.memory.peak_bytes == 300 * MB
    assert of(LoadInstance, arrive(core, 2, 2, 1.0, 2)) == []  # 100 MB do not fit, and the other one is busy
    (unload,) = of(UnloadInstance, handle(core, BatchFinished(1, 0), 3))
    (second,) = of(LoadInstance, handle(core, InstanceUnloaded(1, unload.instance), 4))
    assert core.vram_used_bytes == 150 * MB
    handle(core, InstanceLoaded(1, second.instance, 40 * MB), 5)
    assert core.vram_used_bytes == 90 * MB
    (third,) = of(LoadInstance, arrive(core, 6, 3, 1.0, 3))
    handle(core, InstanceLoaded(1, third.instance), 7)
    assert core.vram_used_bytes == 190 * MB
