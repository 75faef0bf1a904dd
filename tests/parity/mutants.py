"""The rules of the engines, each broken on purpose in the reference: what parity has to notice.

A mutant patches the reference through names that a reader would look for. Some break the order of simultaneous events
(all events go through `Agenda.at` and `Agenda.until`), some the arithmetic, some a choice among equals.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import floor
from typing import Any, cast

import pytest

from kit.chance import hashed
from policies import ledger
from policies.faults import RestartPlan
from policies.fifo import KeyedFifo
from policies.greedy import GreedyScheduler, Instance, InstanceState
from policies.holds import Holds
from policies.ledger import Ledger, ReportedPower
from policies.memory import MemoryBook
from policies.router import RouterCore
from policies.rules import widths
from policies.rules.price import Price
from policies.vocabulary import (
    NS_PER_S,
    Block,
    BlockArrived,
    BlockFinished,
    ClusterView,
    Decide,
    Decided,
    GoalSet,
    RequestArrived,
    RequestsReturned,
    RouterCommand,
    RouterEvent,
    SendBlock,
    ServerDown,
    ServerView,
    TelemetrySampled,
    WorkKey,
)
from sim import cluster, host, network, physics, server
from sim.agenda import ARRIVAL, HOST, Agenda, Kind, rank
from sim.cluster import Simulation
from sim.faults import FaultDriver
from sim.host import HostTable, SimulatedHost
from sim.physics import SimulatedDevice
from sim.server import SharedDevice, SimulatedServer
from sim.telemetry import WindowedSensor
from tests.parity.compare import names_of

Patch = Callable[[pytest.MonkeyPatch], None]
_NUMBER = (1 << 32) - 1
_LAST = HOST + 1


@dataclass(frozen=True)
class Mutant:
    """One broken rule."""

    name: str
    break_it: Patch


# -------------------------------------------------------------------------------------------------------------- order


def _reordered(order_of: Callable[[int, str], int]) -> Patch:
    """Every event gets another place among those of its instant: (order, what is called, if anything is) -> order."""

    def break_it(patch: pytest.MonkeyPatch) -> None:
        at, until = Agenda.at, Agenda.until

        def called(self: Agenda, when_ns: int, order: int, act: Callable[..., None], *arguments: Any) -> None:
            at(self, when_ns, order_of(order, getattr(act, "__name__", "")), act, *arguments)

        patch.setattr(Agenda, "at", called)
        patch.setattr(Agenda, "until", lambda self, when_ns, order: until(self, when_ns, order_of(order, "")))

    return break_it


def _ranks(new_rank: Callable[[int, Kind, int, str], int]) -> Patch:
    """The same for events at servers: (server, kind, number, what is called) -> order."""

    def order_of(order: int, name: str) -> int:
        if not ARRIVAL < order < HOST:
            return order
        index, kind = divmod((order >> 32) - ARRIVAL - 1, len(Kind))
        return new_rank(index, Kind(kind), order & _NUMBER, name)

    return _reordered(order_of)


def _swapped(one: Kind, other: Kind) -> Patch:
    to = {one: other, other: one}
    return _ranks(lambda index, kind, number, _: rank(index, to.get(kind, kind), number))


# These commute, by argument and by experiment. A transfer's end tells the router where inputs are, and hands over what
# comes after all that was handed over before; a block's arrival is its scheduler's alone. A batch's start and a block's
# arrival touch nothing in common (a start is an event of its own only where dispatch takes time, and then what arrives
# starts later). A timer and an unload's end both lead to a pass of the scheduler over one state: what expired goes in
# the first, the freed memory goes out in the second. A fault and a change of slowdown both rate the running set anew,
# at one time, from the same work.
_COMMUTE = (
    (Kind.TRANSFER_END, Kind.BLOCK_ARRIVAL),
    (Kind.BLOCK_ARRIVAL, Kind.BATCH_START),
    (Kind.UNLOAD_END, Kind.TIMER),
    (Kind.FAULT, Kind.SLOWDOWN),
)


def _order_mutants() -> Iterator[Mutant]:
    for one, other in pairwise(Kind):
        if (one, other) not in _COMMUTE:
            yield Mutant(f"{other.name} before {one.name}", _swapped(one, other))
    yield Mutant("servers in falling order", _ranks(lambda i, kind, number, _: rank(1000 - i, kind, number)))
    yield Mutant("kinds before servers", _ranks(lambda i, kind, number, _: rank(100 * kind + i, Kind(0), number)))
    yield Mutant("ids do not count", _ranks(lambda i, kind, number, _: rank(i, kind, 0)))
    yield Mutant("ids in falling order", _ranks(lambda i, kind, number, _: rank(i, kind, _NUMBER - number)))
    yield Mutant("no order but that of planning", _reordered(lambda order, _: ARRIVAL))
    yield Mutant(
        "arrivals after the servers' events",
        _reordered(lambda order, _: HOST - 1 if order == ARRIVAL else order),
    )
    yield Mutant("arrivals after decision ends", _reordered(lambda order, _: _LAST if order == ARRIVAL else order))
    yield Mutant(
        "decision ends before the servers' events",
        _reordered(lambda order, name: ARRIVAL + 1 if order == HOST and name != "_pass" else order),
    )
    yield Mutant(
        "a sample before the report of its instant",
        _ranks(lambda i, kind, number, name: rank(i, kind, number + (name == "_report"))),
    )
    yield Mutant(
        "what begins before what ends",
        _ranks(lambda i, kind, number, _: rank(i, kind, number ^ 1 if kind is Kind.FAULT else number)),
    )
    yield Mutant("questions in the middle of an instant", _ask_at_once)


UNNOTICEABLE = [Mutant(f"{other.name} before {one.name}", _swapped(one, other)) for one, other in _COMMUTE]


def _ask_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Agenda, "is_instant_over", property(lambda self: True))


# ------------------------------------------------------------------------------------------------------ time and chance


def _set(owner: object, name: str, value: object) -> Patch:
    return lambda patch: patch.setattr(owner, name, value)


def _around(owner: Any, name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Patch:
    """A method's original goes through `wrap`."""
    return lambda patch: patch.setattr(owner, name, wrap(getattr(owner, name)))


def _jitter_rounded_down(original: Callable[..., int]) -> Callable[..., int]:
    return lambda table, *draw: original(table, *draw) - bool(table.jitter)


def _arithmetic_mutants() -> Iterator[Mutant]:
    yield Mutant("ends of batches rounded down", _set(physics, "ceil", floor))
    yield Mutant("jittered work rounded down", _around(server, "solo_ns", _jitter_rounded_down))
    yield Mutant("transfers rounded down", _set(network, "nanoseconds", lambda s: int(s * NS_PER_S)))
    yield Mutant("batches summed in the reverse order", _around(SimulatedDevice, "_rerate", _reversed_running))
    yield Mutant("work done by the reciprocal", _set(SimulatedDevice, "advance", _advance_by_reciprocal))
    yield Mutant("energy summed in joules", _set(SimulatedDevice, "advance", _advance_in_joules))
    yield Mutant("energy not updated at a change", _set(SimulatedDevice, "advance", _advance_late))
    yield Mutant("reported energy multiplied in another order", _set(ReportedPower, "energy_j", _energy_of_seconds))
    yield Mutant("mean power kept by differences", _set(ReportedPower, "report", _report_difference))
    yield Mutant("variance by squares", _set(ledger, "variance", _variance_by_squares))
    yield Mutant("a credit's energy summed from the last member", _around(Ledger, "_close_block", _reversed_spans))
    yield Mutant("jitter salted otherwise", _set(physics, "hashed", lambda salt, a, b: hashed(salt + 1, a, b)))
    yield Mutant("jitter without the server", _set(physics, "hashed", lambda salt, a, b: hashed(salt, 0, b)))
    for owner, name in (
        (server, "DISPATCH"),
        (server, "THERE"),
        (server, "BACK"),
        (host, "DECISIONS"),
        (host, "RETURNS"),
    ):
        yield Mutant(f"{name} salted otherwise", _set(owner, name, "other"))
    yield Mutant("what the host costs rounded down", _set(host, "ceil", floor))
    yield Mutant("losses salted otherwise", _set(network, "hashed_share", lambda salt, a, b: 0.37))
    yield Mutant("losses counted from one", _around(network, "hashed_share", lambda f: lambda s, a, b: f(s, a, b + 1)))
    yield Mutant("a window longer by one", _around(WindowedSensor, "_average", _longer_window))
    yield Mutant("a new epoch remembers old readings", _set(WindowedSensor, "restart", lambda self: None))


def _longer_window(average: Callable[..., float]) -> Callable[..., float]:
    return lambda self, column, window: average(self, column, window + 1)


def _reversed_running(rerate: Callable[..., None]) -> Callable[..., None]:
    def mutated(self: SimulatedDevice, now_ns: int) -> None:
        kept = self.running
        self.running = dict(reversed(kept.items()))
        rerate(self, now_ns)
        self.running = kept

    return mutated


def _advance_by_reciprocal(self: Any, now_ns: int) -> None:
    _advance(self, now_ns, self.power_mw * (now_ns - self._updated_ns), by_reciprocal=True)


def _advance_in_joules(self: Any, now_ns: int) -> None:
    _advance(self, now_ns, self.power_mw / NS_PER_S * (now_ns - self._updated_ns) * NS_PER_S)


def _advance(self: Any, now_ns: int, energy: float, by_reciprocal: bool = False) -> None:
    elapsed_ns = now_ns - self._updated_ns
    if elapsed_ns == 0:
        return
    if self._is_extrapolated:
        self._extrapolated_ns += elapsed_ns
    self._energy_mw_ns += energy
    self._busy_permille_ns += self.busy_permille * elapsed_ns
    for running in self.running.values():
        done = elapsed_ns * (1 / running.slow_down) if by_reciprocal else elapsed_ns / running.slow_down
        running.work_ns -= done
    self._updated_ns = now_ns


def _advance_late(self: Any, now_ns: int) -> None:
    """Power is taken for what it will be, not for what it was."""
    _advance(self, now_ns, self.tables.context_idle_mw * (now_ns - self._updated_ns))


def _energy_of_seconds(self: Any, until_ns: int) -> float:
    step = bisect_right(self._times_ns, until_ns) - 1
    return float(self._energies_j[step] + self._means_w[step] * ((until_ns - self._times_ns[step]) / NS_PER_S))


def _report_difference(self: Any, index: int, power_w: float, now_ns: int) -> None:
    mean_w = self._means_w[-1] + (power_w - self._power_w[index]) / len(self._power_w)
    self._power_w[index] = power_w
    if self._times_ns[-1] == now_ns:
        self._means_w[-1] = mean_w
        return
    energy_j = self.energy_j(now_ns)
    self._times_ns.append(now_ns)
    self._energies_j.append(energy_j)
    self._means_w.append(mean_w)


def _variance_by_squares(shares: list[float]) -> float:
    return sum(share * share for share in shares) / len(shares) - (sum(shares) / len(shares)) ** 2


def _reversed_spans(close_block: Callable[..., None]) -> Callable[..., None]:
    def mutated(self: Ledger, ended: BlockFinished, now_ns: int) -> None:
        fields = _fields(ended)
        fields |= {"entered_ns": ended.entered_ns[::-1], "ended_ns": ended.ended_ns[::-1]}
        close_block(self, BlockFinished(**fields), now_ns)

    return mutated


def _fields(word: Any) -> dict[str, Any]:
    return {name: getattr(word, name) for name in names_of(cast(Any, type(word)))}


# --------------------------------------------------------------------------------------------------------- the device


def _device_mutants() -> Iterator[Mutant]:
    yield Mutant("stale ends of batches honoured", _around(SharedDevice, "_end", _honour_stale))
    yield Mutant("a slowdown is always full at first", _around(physics, "hashed", _full_speed_first))
    yield Mutant("the smaller half first", _set(server, "parts_that_fit", _smaller_half_first))
    yield Mutant(
        "a frozen batch ends", _set(SimulatedDevice, "freeze", lambda self, index, now_ns: self.advance(now_ns))
    )
    yield Mutant("a straggler's running batches keep their speed", _around(SimulatedDevice, "straggle", _straggle_late))
    yield Mutant("reloads come from disk", _around(SimulatedServer, "_load", _from_disk))


def _honour_stale(end: Callable[..., None]) -> Callable[..., None]:
    return lambda self, plan, batch: end(self, self._plan, batch)


def _full_speed_first(draw: Callable[..., int]) -> Callable[..., int]:
    return lambda salt, a, b: draw(salt, a, b) if a != 1 << 32 else (1 << 63) - 1


def _smaller_half_first(size: int, room: int) -> tuple[int, ...]:
    if room < 1:
        return ()
    if size <= room:
        return (size,)
    return (*_smaller_half_first(size // 2, room), *_smaller_half_first(size - size // 2, room))


def _straggle_late(straggle: Callable[..., None]) -> Callable[..., None]:
    return lambda self, index, factor, now_ns: straggle(self, -1, factor, now_ns)


def _from_disk(load: Callable[..., None]) -> Callable[..., None]:
    def mutated(self: Any, *arguments: Any) -> None:
        kept, self._in_host_memory = self._in_host_memory, set()
        load(self, *arguments)
        self._in_host_memory = kept

    return mutated


# ------------------------------------------------------------------------------------------------------- the scheduler


def _scheduler_mutants() -> Iterator[Mutant]:
    yield Mutant(
        "equal instances: the highest id",
        _set(GreedyScheduler, "_find_free_best_fit", _fit_by(lambda i: (i.width, -i.last_used_ns, -i.id))),
    )
    yield Mutant(
        "equal widths: the least recently used",
        _set(GreedyScheduler, "_find_free_best_fit", _fit_by(lambda i: (i.width, i.last_used_ns, i.id))),
    )
    yield Mutant(
        "the widest instance",
        _set(GreedyScheduler, "_find_free_best_fit", _fit_by(lambda i: (-i.width, -i.last_used_ns, i.id))),
    )
    yield Mutant("evicted at equal times: the highest id", _around(GreedyScheduler, "_set_free", _highest_id_first))
    yield Mutant("evicted: most recently used first", _around(GreedyScheduler, "_set_free", _latest_first))
    yield Mutant("overdue only after the limit", _around(GreedyScheduler, "_is_overdue", _a_moment_earlier))
    yield Mutant("idle only after the limit", _around(GreedyScheduler, "_unload_idle", _idle_later))
    yield Mutant("a load counter that is never reset", _around(GreedyScheduler, "_take", _keep_counter))
    yield Mutant("keys in the order they came to be", _set(KeyedFifo, "by_age", lambda self: list(self._queues)))
    yield Mutant("utilization may be at the block", _around(GreedyScheduler, "handle", _may_be_at_block))
    yield Mutant("memory is free as its unload begins", _free_early)
    yield Mutant("an eviction forgets what is on its way out", _set(MemoryBook, "fits_once_freed", lambda *_: False))


def _fit_by(order: Callable[[Instance], tuple[float, int, int]]) -> Callable[[Any, WorkKey], Instance | None]:
    def find(self: Any, key: WorkKey) -> Instance | None:
        fitting = [
            instance
            for instance in self._by_segment.get(key.segment, ())
            if instance.state is InstanceState.FREE and instance.width >= key.width
        ]
        return min(fitting, key=order, default=None)

    return find


def _free_early(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MemoryBook, "start_freeing", MemoryBook.release)
    patch.setattr(MemoryBook, "freed", lambda self, vram_bytes: None)


def _highest_id_first(set_free: Callable[..., None]) -> Callable[..., None]:
    def mutated(self: Any, instance: Instance, now_ns: int) -> None:
        set_free(self, instance, now_ns)
        self._idle = dict(sorted(self._idle.items(), key=lambda item: (item[1].last_used_ns, -item[0])))

    return mutated


def _latest_first(set_free: Callable[..., None]) -> Callable[..., None]:
    def mutated(self: Any, instance: Instance, now_ns: int) -> None:
        set_free(self, instance, now_ns)
        self._idle = dict(sorted(self._idle.items(), key=lambda item: -item[1].last_used_ns))

    return mutated


def _a_moment_earlier(is_overdue: Callable[..., bool]) -> Callable[..., bool]:
    return lambda self, key, now_ns: is_overdue(self, key, now_ns - 1)


def _idle_later(unload_idle: Callable[..., None]) -> Callable[..., None]:
    return lambda self, now_ns, idle_ns, commands: unload_idle(self, now_ns, idle_ns + 1, commands)


def _keep_counter(take: Callable[..., Any]) -> Callable[..., Any]:
    def mutated(self: Any, key: Any, count: int) -> Any:
        loads = self._loads_for_key.get(key)
        taken = take(self, key, count)
        if loads is not None:
            self._loads_for_key[key] = loads
        return taken

    return mutated


def _may_be_at_block(handle: Callable[..., Any]) -> Callable[..., Any]:
    def mutated(self: Any, event: Any, now_ns: int) -> Any:
        if hasattr(event, "utilization"):
            event = type(event)(**{**_fields(event), "utilization": event.utilization - 1e-12})
        return handle(self, event, now_ns)

    return mutated


# ---------------------------------------------------------------------------------------------------------- the router


def _router_mutants() -> Iterator[Mutant]:
    yield Mutant("a batch's members return in the reverse order", _events(_reversed_return))
    yield Mutant("a deadline is over a moment later", _events(_later_deadline))
    yield Mutant("candidates are not frozen", _around(RouterCore, "handle", _thawed))
    yield Mutant("moves from the highest source first", _commands(_reversed_moves))
    yield Mutant("outstanding work sorted by key", _commands(_sorted_outstanding))
    yield Mutant("credit at the first return", _around(RouterCore, "_leave_block", _early_credit))
    yield Mutant(
        "who was with a dead server returns in the reverse order", _around(RouterCore, "_retry", _reversed_retry)
    )
    yield from _hold_mutants()
    yield from _goal_mutants()
    yield from _host_mutants()
    yield Mutant("reports of an earlier epoch count", _around(SimulatedServer, "_report", _as_of_now))


def _hold_mutants() -> Iterator[Mutant]:
    nothing = lambda self, *_: None  # noqa: E731 - in place of a method
    yield Mutant("a request may be held for the limit in each hold", _around(Holds, "_last_ns", _forgetful))
    yield Mutant("whoever joins a line was held from its start", _around(Holds, "end", _from_the_start))
    yield Mutant("whoever joins a line has all time left", _around(Holds, "join", _with_all_left))
    yield Mutant("a full line waits on", _around(Holds, "join", lambda f: lambda *a: f(*a) and False))
    yield Mutant("a rule holds whatever enters a line", _around(Holds, "join", _as_if_it_began))
    yield Mutant("who comes while a decision is under way goes at once", _set(RouterCore, "_hold_late_comers", nothing))
    yield Mutant("holds outlive a server", _set(RouterCore, "_end_holds", nothing))
    yield Mutant("holds go on after the last arrival", _set(RouterCore, "_end_holding", nothing))
    yield Mutant("a held head blocks the others", _around(RouterCore, "_oldest_servable", _head_first))
    yield Mutant("a hold has no credit", _set(Ledger, "_note_hold", nothing))
    yield Mutant("a hold is given up without a credit", _around(Ledger, "_note_failure", _without_credit))
    yield Mutant("a hold costs the host nothing", _around(SimulatedHost, "decide", _holds_for_nothing))


def _goal_mutants() -> Iterator[Mutant]:
    limit = cast(property, RouterCore._limit_ns)
    at_once = property(lambda self: max(0, limit.fget(self) - 1) if limit.fget else 0)
    yield Mutant("an image is late at its limit", _set(RouterCore, "_limit_ns", at_once))
    operators = property(lambda self: self._goal.limit_ns)
    yield Mutant("a router's own limit does not count", _set(RouterCore, "_limit_ns", operators))
    yield Mutant("images are late by their last segment", _around(RouterCore, "_enter", _as_it_came))
    yield Mutant("who fails is not late", _around(RouterCore, "_give_up", _not_late))
    yield Mutant("a goal's other kinds stay", _around(RouterCore, "_set_goal", _with_the_last_limit))


def _as_it_came(enter: Callable[..., None]) -> Callable[..., None]:
    def mutated(self: RouterCore, request: int, entry: Any, now_ns: int) -> None:
        enter(self, request, entry, now_ns)
        entry.arrived_ns = now_ns

    return mutated


def _not_late(give_up: Callable[..., None]) -> Callable[..., None]:
    def mutated(self: RouterCore, *arguments: Any) -> None:
        late = self.late
        give_up(self, *arguments)
        self.late = late

    return mutated


def _with_the_last_limit(set_goal: Callable[..., None]) -> Callable[..., None]:
    def mutated(self: RouterCore, event: GoalSet, *rest: Any) -> None:
        limit_ns = event.limit_ns or self._goal.limit_ns
        set_goal(self, GoalSet(event.floor, limit_ns, event.energy_weight), *rest)

    return mutated


def _forgetful(last_ns: Callable[..., int]) -> Callable[..., int]:
    return lambda self, entry, since_ns: last_ns(self, entry, since_ns) + entry.held_ns


def _from_the_start(end: Callable[..., None]) -> Callable[..., None]:
    def mutated(self: Any, line: Any, members: Any, now_ns: int) -> None:
        since_ns = self._held[line].since_ns
        late = [entry for entry in members if entry.entered_ns > since_ns]
        end(self, line, members, now_ns)
        for entry in late:
            entry.held_ns += min(entry.entered_ns, now_ns) - since_ns

    return mutated


def _with_all_left(join: Callable[..., bool]) -> Callable[..., bool]:
    def mutated(self: Any, line: Any, entry: Any, *rest: int) -> bool:
        hold = self._held.get(line)
        until_ns = hold.until_ns if hold else 0
        is_full = join(self, line, entry, *rest)
        if hold:
            hold.until_ns = until_ns
        return is_full

    return mutated


def _as_if_it_began(join: Callable[..., bool]) -> Callable[..., bool]:
    def mutated(self: Any, line: Any, entry: Any, segment: int, waiting: int, now_ns: int) -> bool:
        return join(self, line, entry, segment, waiting if line in self._held else 1, now_ns)

    return mutated


def _head_first(oldest: Callable[..., Any]) -> Callable[..., Any]:
    def mutated(self: Any) -> Any:
        found = oldest(self)
        return None if self._fifo.head() in self._holds else found

    return mutated


def _without_credit(note: Callable[..., None]) -> Callable[..., None]:
    def mutated(self: Any, command: Any, now_ns: int) -> None:
        self._holds.pop(command.request, ())
        note(self, command, now_ns)

    return mutated


def _holds_for_nothing(decide: Callable[..., int]) -> Callable[..., int]:
    def mutated(self: Any, server: int, decision: int, images: int, decision_ns: int, now_ns: int) -> int:
        return decide(self, server, decision, images, decision_ns, now_ns) if images else now_ns

    return mutated


def _host_mutants() -> Iterator[Mutant]:
    yield Mutant("the host decides and is free", _around(SimulatedHost, "decide", _as_free))
    yield Mutant("the host hears and is free", _around(SimulatedHost, "hear", _as_free))
    yield Mutant("the host hears while it works", _around(SimulatedHost, "hear", _at_once))
    yield Mutant("the host is free while the policy thinks", _around(SimulatedHost, "decide", _free_early_of_policy))
    yield Mutant("a block leaves when the books are kept", _around(SimulatedHost, "decide", _sent_with_the_books))
    yield Mutant("a message is heard as it arrives", _set(Simulation, "_hear", lambda self, m, _: self._tell_router(m)))
    yield Mutant("a stale message costs the host nothing", _around(Simulation, "_hear", _current_only))
    yield Mutant(
        "images cost the host nothing", _around(HostTable, "cost_ns", lambda f: lambda t, c, n, d, p: f(t, c, 1, d, p))
    )
    yield Mutant("a decision costs its whole group", lambda patch: patch.setattr(cluster, "min", _first, raising=False))
    yield Mutant("blocks overtake on their way", _set(SimulatedServer, "hand_over", _overtake))
    yield Mutant("a pause costs the host nothing", _around(HostTable, "cost_ns", lambda f: lambda *a: f(*a[:-1], 0)))
    yield Mutant("passes go on beside chores", _set(SimulatedDevice, "_chores_ns", lambda self, now_ns: 0))
    yield Mutant("a pass begins beside a chore", _set(SimulatedDevice, "chores_end_ns", lambda self, now_ns: now_ns))
    yield Mutant("chores take nothing", _around(SimulatedDevice, "do_chore", lambda f: lambda d, _, now: f(d, 0, now)))
    yield Mutant("a pause makes nothing cold", _set(SimulatedDevice, "pause", lambda self, now_ns: 0))
    yield Mutant("a device is never busy", _set(SharedDevice, "is_busy", False))
    yield Mutant("messages overtake on their way", _around(SimulatedServer, "_send_back", _forgetting("_last_back_ns")))
    yield Mutant("a new life's blocks wait for the last one's", _around(SimulatedServer, "go_down", _remember_pipe))
    yield Mutant("a hung server reads", _set(SimulatedServer, "_take_in", _read_anyway))
    yield Mutant("a hung server's timer rings", _around(SimulatedServer, "_ring", _ring_anyway))
    yield Mutant("messages numbered from one", _around(SimulatedServer, "__init__", _numbered_from_one))


def _first(one: int, other: int) -> int:
    return one


def _as_free(book: Callable[..., int]) -> Callable[..., int]:
    def mutated(self: SimulatedHost, *arguments: Any) -> int:
        free_ns = self.free_ns
        done_ns = book(self, *arguments)
        self.free_ns = free_ns
        return done_ns

    return mutated


def _at_once(hear: Callable[..., int]) -> Callable[..., int]:
    def mutated(self: SimulatedHost, *arguments: Any) -> int:
        free_ns, self.free_ns = self.free_ns, 0
        done_ns = hear(self, *arguments)
        self.free_ns = max(free_ns, done_ns)
        return done_ns

    return mutated


def _sent_with_the_books(decide: Any) -> Any:
    def late(self: SimulatedHost, *given: Any) -> int:
        sent_ns: int = decide(self, *given)
        return max(sent_ns, self.free_ns)

    return late


def _free_early_of_policy(decide: Callable[..., int]) -> Callable[..., int]:
    def mutated(self: SimulatedHost, index: int, decision: int, images: int, decision_ns: int, now_ns: int) -> int:
        done_ns = decide(self, index, decision, images, decision_ns, now_ns)
        if self.table is not None:
            self.free_ns -= decision_ns
        return done_ns

    return mutated


def _current_only(hear: Callable[..., None]) -> Callable[..., None]:
    def mutated(self: Simulation, message: Any, number: int) -> None:
        if self.servers[message.server].is_up and self.servers[message.server].epoch == message.epoch:
            hear(self, message, number)

    return mutated


def _forgetting(last: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    def wrap(send: Callable[..., None]) -> Callable[..., None]:
        def mutated(self: SimulatedServer, *arguments: Any) -> None:
            setattr(self, last, 0)
            send(self, *arguments)

        return mutated

    return wrap


def _remember_pipe(go_down: Callable[..., None]) -> Callable[..., None]:
    def mutated(self: SimulatedServer, reason: str) -> None:
        there = list(self._there)
        go_down(self, reason)
        self._there.extend(there)

    return mutated


def _overtake(self: SimulatedServer, block: Block) -> None:
    """Without a queue: each block arrives in its own time."""
    ways_ns = self._tables.there_ns or (0,)
    way_ns = ways_ns[hashed(self._there_salt, self.index, block.block) % len(ways_ns)]
    self._agenda.at(self._agenda.now_ns + way_ns, rank(self.index, Kind.BLOCK_ARRIVAL), self._take_in, block)


def _read_anyway(self: SimulatedServer, block: Block) -> None:
    if self.is_up and self.epoch == block.epoch:
        self.deliver(BlockArrived(block))


def _ring_anyway(ring: Callable[..., None]) -> Callable[..., None]:
    def mutated(self: SimulatedServer, armed_ns: int) -> None:
        is_hung, self.is_hung = self.is_hung, False
        ring(self, armed_ns)
        self.is_hung = is_hung

    return mutated


def _numbered_from_one(init: Callable[..., None]) -> Callable[..., None]:
    def mutated(self: SimulatedServer, *arguments: Any) -> None:
        init(self, *arguments)
        self._messages = 1

    return mutated


def _events(change: Callable[[RouterCore, RouterEvent], RouterEvent]) -> Patch:
    def wrap(handle: Callable[..., Any]) -> Callable[..., Any]:
        return lambda self, event, now_ns: handle(self, change(self, event), now_ns)

    return _around(RouterCore, "handle", wrap)


def _commands(change: Callable[[RouterCommand], RouterCommand]) -> Patch:
    def wrap(handle: Callable[..., Any]) -> Callable[..., Any]:
        return lambda self, event, now_ns: [change(command) for command in handle(self, event, now_ns)]

    return _around(RouterCore, "handle", wrap)


def _reversed_return(core: RouterCore, event: RouterEvent) -> RouterEvent:
    if not isinstance(event, RequestsReturned):
        return event
    fields = _fields(event) | {"requests": event.requests[::-1], "correct": event.correct[::-1]}
    return RequestsReturned(**fields)


def _later_deadline(core: RouterCore, event: RouterEvent) -> RouterEvent:
    if isinstance(event, RequestArrived) and event.deadline_ns is not None:
        return RequestArrived(event.request, event.deadline_ns + 1)
    return event


def _as_of_now(report: Callable[..., None]) -> Callable[..., None]:
    return lambda self, event: report(self, TelemetrySampled(**{**_fields(event), "epoch": self.epoch}))


def _thawed(handle: Callable[..., Any]) -> Callable[..., Any]:
    def mutated(self: Any, event: RouterEvent, now_ns: int) -> Any:
        if isinstance(event, Decided):
            asked = self._asked
            requests = self._fifo.peek(asked.line, self.config.groups[-1])
            self._asked = asked._replace(requests=requests)
        return handle(self, event, now_ns)

    return mutated


def _reversed_moves(command: RouterCommand) -> RouterCommand:
    return SendBlock(command.block, command.moves[::-1]) if isinstance(command, SendBlock) else command


def _sorted_outstanding(command: RouterCommand) -> RouterCommand:
    if not isinstance(command, Decide):
        return command
    servers = tuple(
        ServerView(**{**_fields(view), "outstanding": _by_key(view.outstanding)}) for view in command.view.servers
    )
    return Decide(command.decision, ClusterView(**{**_fields(command.view), "servers": servers}))


def _by_key(work: Mapping[Any, int]) -> dict[Any, int]:
    return dict(sorted(work.items()))


def _early_credit(leave_block: Callable[..., None]) -> Callable[..., None]:
    """The first member that returns takes the others' places in the block's counts with it."""

    def mutated(self: Any, block: Any, request: int, member: Any, commands: list[Any]) -> None:
        if block is None or block not in self._blocks:
            return
        open_block = self._blocks[block]
        for other in open_block.block.requests:
            if other != request and other not in open_block.ended:
                open_block.ended[other] = member
                self._servers[open_block.block.server].add(open_block.block.key, -1, 0)
        leave_block(self, block, request, member, commands)

    return mutated


def _reversed_retry(retry: Callable[..., None]) -> Callable[..., None]:
    def mutated(self: Any, requests: Any, reason: str, *arguments: Any) -> None:
        retry(self, tuple(requests)[::-1] if reason == "server_down" else requests, reason, *arguments)

    return mutated


# ------------------------------------------------------------------------------------------- faults, network, the end


def _cluster_mutants() -> Iterator[Mutant]:
    yield Mutant("transfers of the dead arrive", _set(Simulation, "_fail_transfers", lambda self, index: None))
    yield Mutant("a block arrives with its first transfer", _around(Simulation, "_end_transfer", _first_transfer))
    yield Mutant("back-off does not double", _around(RestartPlan, "restart_at_ns", _first_death))
    yield Mutant("a restart ends an outage", _around(FaultDriver, "_take_out", _out_for_nothing))
    yield Mutant("a hang is noticed in the next epoch", _around(FaultDriver, "_notice_hang", _notice_anyway))
    yield Mutant("one medium for all", _around(network.Network, "__init__", _one_medium))
    yield Mutant("a transfer occupies its medium for its latency", _around(network.Network, "transfer", _occupy_longer))
    yield Mutant("a dead server still counts in the mean power", _around(Ledger, "observe_router", _haunting))


def _first_transfer(end_transfer: Callable[..., None]) -> Callable[..., None]:
    def mutated(self: Any, delivery: Any, source: int, requests: tuple[int, ...]) -> None:
        delivery.moving &= {source}
        end_transfer(self, delivery, source, requests)

    return mutated


def _out_for_nothing(take_out: Callable[..., None]) -> Callable[..., None]:
    return lambda self, index, until_ns: take_out(self, index, 0.0)


def _first_death(restart_at_ns: Callable[..., int]) -> Callable[..., int]:
    def mutated(self: Any, now_ns: int) -> int:
        self._deaths_in_a_row = 0
        return restart_at_ns(self, now_ns)

    return mutated


def _notice_anyway(notice: Callable[..., None]) -> Callable[..., None]:
    return lambda self, index, epoch: notice(self, index, self._servers[index].epoch)


def _one_medium(init: Callable[..., None]) -> Callable[..., None]:
    def mutated(self: Any, attachments: Any, salt: int = 0) -> None:
        init(self, tuple(type(each)("one", each.link) for each in attachments), salt)

    return mutated


def _occupy_longer(transfer: Callable[..., tuple[int, int]]) -> Callable[..., tuple[int, int]]:
    def mutated(self: Any, source: int, destination: int, transfer_bytes: int, now_ns: int) -> tuple[int, int]:
        started_ns, arrival_ns = transfer(self, source, destination, transfer_bytes, now_ns)
        self._free_at_ns[self._attachments[destination].medium] = arrival_ns
        return started_ns, arrival_ns

    return mutated


def _haunting(observe: Callable[..., None]) -> Callable[..., None]:
    def mutated(self: Any, event: RouterEvent, commands: Any, now_ns: int) -> None:
        power_w = self._power._power_w[event.server] if isinstance(event, ServerDown) else 0.0
        observe(self, event, commands, now_ns)
        if isinstance(event, ServerDown):
            self._power.report(event.server, power_w, now_ns)

    return mutated


# --------------------------------------------------------------------------------------------------------- Tide's price


def price_mutants() -> Iterator[Mutant]:
    """A price that does not rise, one that rises at once, and servers that are out."""
    yield Mutant("nobody is dear", _price(lambda load: 0.0))
    yield Mutant("a load is dearer than it is", _price(lambda load: 2.0 * load))
    yield Mutant("servers that are out count for the load", _set(widths, "is_up", lambda server: True))


def _price(change: Callable[[float], float]) -> Patch:
    def wrap(of: Callable[[Price, float], float]) -> Callable[[Price, float], float]:
        return lambda price, load: of(price, change(load))

    return _around(Price, "of", wrap)


def mutants() -> list[Mutant]:
    """All of them."""
    return [
        *_order_mutants(),
        *_arithmetic_mutants(),
        *_device_mutants(),
        *_scheduler_mutants(),
        *_router_mutants(),
        *_cluster_mutants(),
        *price_mutants(),
    ]


MOST_EVENTS = 100_000


def stop_when_stuck(patch: pytest.MonkeyPatch) -> None:
    """A broken engine may go round in an instant for ever: after so many events of one run it fails."""
    step = Agenda.step
    counts: dict[int, int] = {}

    def counted(self: Agenda) -> None:
        counts[id(self)] = counts.get(id(self), 0) + 1
        assert counts[id(self)] < MOST_EVENTS, "the run is stuck"
        step(self)

    patch.setattr(Agenda, "step", counted)
