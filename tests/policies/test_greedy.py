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
    LoadInstance,
    MicroBatch,
    MicroBatchArrived,
    RejectRequests,
    Residency,
    ReturnRequests,
    RunBatch,
    ServerDown,
    ServerUp,
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


def run_and_lack_memory(core: GreedyScheduler, load: Any, now: int) -> list[Any]:
    (run,) = of(RunBatch, handle(core, InstanceLoaded(1, load.instance), now))
    return handle(core, BatchFailed(1, run.batch, "out_of_memory"), now + 1)


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


def test_another_instance_that_works_serves_those_who_wait() -> None:
    core = scheduler(load_retries=1, batch_limit=1, preload=((1, 1.0), (1, 1.0)))
    for instance in range(2):
        handle(core, InstanceLoaded(1, instance), 1)
    lacking, working = of(RunBatch, arrive(core, 2, 1, 1.0, 1, 2, 3))
    failed = handle(core, BatchFailed(1, lacking.batch, "out_of_memory"), 10)
    assert [rejected.requests for rejected in of(RejectRequests, failed)] == [(1,)]
    assert of(RunBatch, handle(core, BatchFinished(1, working.batch), 20))[0].requests == (3,)


def test_request_whose_instance_can_never_fit_is_rejected_at_once() -> None:
    core = scheduler(vram_cap_bytes=100 * MB, context_bytes=50 * MB)
    assert arrive(core, 0, 1, 1.0, 1) == [RejectRequests(1, (1,), "instance_too_large")]


def test_death_forgets_everything_and_stale_events_change_nothing() -> None:
    core = scheduler()
    (load,) = arrive(core, 0, 1, 1.0, 1)
    handle(core, ServerDown(0, 1, "killed"), 1)
    assert (core.queue_length, core.vram_used_bytes, core.next_wake_ns) == (0, 50 * MB, None)
    handle(core, ServerUp(0, 2), 2)
    assert handle(core, InstanceLoaded(1, load.instance), 3) == []
    assert arrive(core, 4, 1, 1.0, 5) == []  # a micro-batch that was sent to the former incarnation
    assert core.queue_length == 0


def test_preload_beyond_the_cap_is_refused_before_anything_runs() -> None:
    with pytest.raises(ValueError, match=r"need 1150000000 bytes, the cap is 1050000000"):
        scheduler(preload=tuple((1, 1.0) for _ in range(11)))


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


def arrive_on_path(core: GreedyScheduler, now: int, then: tuple[float, ...], *requests: int) -> list[Any]:
    micro_batch = MicroBatch(next(_micro_batches), 0, 1, WorkKey(1, 0.5, 0.0), requests, then)
    return list(core.handle(MicroBatchArrived(micro_batch), now))


def test_micro_batch_with_a_path_returns_after_the_last_segment_of_it() -> None:
    """In between its requests share batches with others of the same key, which return."""
    core = scheduler()
    for segment, width in ((1, 0.5), (2, 1.0), (3, 0.5)):
        loaded(core, 0, segment, width)
    (first,) = arrive_on_path(core, 10, (1.0, 0.5), 1, 2)
    (other,) = arrive(core, 11, 2, 1.0, 3, prev=0.5)
    assert handle(core, BatchFinished(1, first.batch), 12) == [], "the instance of its next segment is busy"
    returned, second = handle(core, BatchFinished(1, other.batch), 13)
    assert (returned.requests, returned.segment) == ((3,), 2)
    assert (second.requests, second.segment, second.previous_width) == ((1, 2), 2, 0.5)
    (third,) = handle(core, BatchFinished(1, second.batch), 14)
    (end,) = handle(core, BatchFinished(1, third.batch), 15)
    assert (end.requests, end.segment, end.width) == ((1, 2), 3, 0.5)
    assert core._paths == {}


def test_request_that_fails_on_its_path_is_returned_after_the_segment_before() -> None:
    """It has passed that one, so it is not rejected yet: the router sends it again, and only then it is."""
    core = scheduler()
    loaded(core, 0, 1, 0.5)
    loaded(core, 0, 2, 1.0)
    (first,) = arrive_on_path(core, 10, (1.0,), 1, 2)
    (second,) = handle(core, BatchFinished(1, first.batch), 11)
    early, rest = handle(core, BatchFinished(1, second.batch, failed=(2,), reason="no_label"), 12)
    assert (early.requests, early.segment, early.width) == ((1,), 2, 1.0)
    assert (rest.requests, rest.segment, rest.width) == ((2,), 1, 0.5)
    (again,) = arrive(core, 13, 2, 1.0, 2, prev=0.5)
    (rejected,) = handle(core, BatchFailed(1, again.batch, "no_label"), 14)
    assert rejected == RejectRequests(1, (2,), "no_label")


@pytest.mark.parametrize("changes", [{"served_width": "instance"}, {"vram_cap_bytes": 160 * MB}])
def test_path_ends_where_the_server_cannot_follow_it(changes: dict[str, Any]) -> None:
    """If batches run at an instance's width, other widths may follow; and a server may not hold a segment."""
    sizes = {(s, w): (100 if s == 1 else 200) * MB for s in (1, 2) for w in W}
    core = scheduler(**{"instance_bytes": sizes, **changes})
    loaded(core, 0, 1, 0.5)
    (first,) = arrive_on_path(core, 10, (1.0,), 1)
    (returned,) = handle(core, BatchFinished(1, first.batch), 11)
    assert (returned.requests, returned.segment) == ((1,), 1)
