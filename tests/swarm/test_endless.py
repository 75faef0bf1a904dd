"""A server that goes on for ever: after three times as many requests its parts remember no more."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import MethodType
from typing import Any

import numpy as np
import pytest

from hw.clock import NEVER_NS, RunClock
from hw.frontend.client_requests import ServingStats
from hw.frontend.connections import Journal
from hw.frontend.log_segments import LogBounds, SegmentLog
from hw.host_resources import CollectionMeter
from hw.router.router_loop import Parts, RouterLoop, Routing, RunProgress
from hw.router.run_requests import HardwareRun, PlannedTraffic
from hw.router.worker_handles import make_all_ready
from kit.random_streams import stream
from policies.faults import Supervision
from policies.interfaces import AccuracyPrior, RewardWeights, RouterConfig
from policies.router_core import RouterCore
from policies.vocabulary import NS_PER_S, RequestArrived
from tests.swarm import play
from tests.swarm.mix import INPUT_BYTES, MICRO_BATCH_SIZES, MS, US, WIDTHS, Mix
from tests.swarm.world import World

FEW, MANY, GAP_NS = 1000, 3000, 2 * MS
OURS = ("hw", "policies")


class RunEnd(BaseException):
    """The run is over; what it remembers is known."""


class Endless(PlannedTraffic):
    """One request after the other, none of them planned before."""

    def __init__(self, run: HardwareRun, core: RouterCore, clock: RunClock) -> None:
        super().__init__(run, core, clock)
        self.next_ns, self.has_ended = 0, False

    def take(self, now_ns: int) -> tuple[RequestArrived, int]:
        request, came_ns = self._taken, self.next_ns
        self._taken += 1
        self.next_ns = self._taken * GAP_NS
        if self.next_ns >= self.horizon_ns:
            self.next_ns, self.has_ended = NEVER_NS, True
        return RequestArrived(request), came_ns


def parts_of(each: Any) -> Iterator[tuple[str, Any]]:
    kind = type(each)
    slots = [name for base in kind.__mro__ for name in getattr(base, "__slots__", ())]
    names = dict.fromkeys([*getattr(each, "__dict__", ()), *slots, *getattr(kind, "__struct_fields__", ())])
    yield from ((f"{kind.__name__}.{name}", getattr(each, name)) for name in names if hasattr(each, name))


def lengths(*roots: Any) -> Counter[str]:
    """How many items the containers have that can be reached, by the attribute that has them."""
    found, seen, left = Counter[str](), set[int](), [("", root) for root in roots]
    while left:
        name, each = left.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, dict | list | tuple | set | frozenset | deque | bytearray):
            found[name] += len(each)
            items = each.values() if isinstance(each, dict) else () if isinstance(each, bytearray) else each
            left += [(name, item) for item in items]
        elif isinstance(each, MethodType):
            left.append((name, each.__self__))
        if any(base.__module__.partition(".")[0] in OURS for base in type(each).__mro__):
            left += parts_of(each)
    return found


def mix(*, is_far: bool, kills: int) -> Mix:
    """At a third of what two servers carry; `kills`: the mean time between two, over all workers."""
    return replace(
        Mix.draw(0), is_far=is_far, kills=kills, horizon_ns=MANY * GAP_NS, arrivals_ns=np.arange(MANY) * GAP_NS,
        router=RouterConfig(2, WIDTHS, (((True, True),) * 2,) * 2, micro_batch_sizes=MICRO_BATCH_SIZES),
        supervision=Supervision(hang_ns=500 * MS, stuck_ns=NS_PER_S, backoff_ns=5 * MS, backoff_limit_ns=20 * MS),
        ends="drain", deadline_ns=None, runs=1, rooms=8, shares_device=False, preloads=True, idle_unload_ns=None,
        vram_bytes=1 << 30, pass_ns=500 * US, has_links=False, spins=False, tick_ns=US, pauses=0.0, stops=(),
        late_ns=20 * US, link_ns=20 * US, split=0.0, room_bytes=1 << 20, halts=0, severs=0, cuts=0, stalls=0.0,
        start_ns=MS, stillborn=0.0, faults=(), drains=(), leaves=False, batching_delays_rule=False,
    )  # fmt: skip


@pytest.mark.parametrize(("is_far", "kills"), [(True, 0), (False, 50 * MS)])
def test_server_state_does_not_grow_with_requests_or_deaths(
    is_far: bool, kills: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    most: list[Counter[str]] = [Counter(), Counter()]  # in the last fifth before so many requests
    wanted = mix(is_far=is_far, kills=kills)

    def loop_of(wanted: Mix, world: World, parts: Parts) -> RouterLoop:
        log = SegmentLog(tmp_path, LogBounds(1e6, 1.0), lambda _: None)
        stats = ServingStats(
            [server.name for server in parts.servers],
            wanted.router,
            Journal(lambda _: None, as_json=False),
            CollectionMeter(),
            log,
        )

        def traffic(run: HardwareRun, core: RouterCore, clock: RunClock) -> Endless:
            log.watch(core)
            return Endless(run, core, clock)

        def look(progress: RunProgress) -> None:
            for until, found in zip((FEW, MANY), most, strict=True):
                if 0.8 * until < progress.completed <= until:
                    now = lengths(loop, *(process.worker for process in world.processes if not process.is_dead))
                    found |= now

        run = HardwareRun(
            np.zeros(0, np.int64), np.zeros((4, INPUT_BYTES // 4), np.float32), np.zeros(4, np.int64),
            wanted.horizon_ns, is_correct=lambda request, widths: True,
        )  # fmt: skip
        prior = AccuracyPrior({(1.0,) * 2: 0.9})
        routing = Routing(play.Drawer(wanted), stream(0, "swarm:router"), RewardWeights(), prior)
        loop = Whole(parts, run, wanted.router, routing, stats, look, traffic)
        return loop

    class Whole(RouterLoop):
        def carry_out(self) -> Any:
            self.drive()
            raise RunEnd

    monkeypatch.setattr(play, "_loop", loop_of)
    monkeypatch.setattr(play, "make_all_ready", lambda slots, keep_log: make_all_ready(slots, keep_log=False))
    with pytest.raises(RunEnd):
        play.play_mix(wanted)
    few, many = most
    assert few["RouterCore._servers"] == 2
    grown = {name: (few[name], count) for name, count in many.items() if count > 1.5 * few[name] + 20}
    assert grown == {}
