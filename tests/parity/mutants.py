"""The rules of the engines, each broken on purpose: what parity has to notice.

Most stand in `mutants.yaml`, as a piece of a function's source and what it becomes. Here are those that break the order
of simultaneous events: all events go through `EventQueue.at` and `EventQueue.until`.
"""

from __future__ import annotations
import __future__

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import yaml

from sim.event_queue import ARRIVAL, HOST, EventQueue, Kind, rank

Patch = Callable[[pytest.MonkeyPatch], None]
ROWS: dict[str, dict[str, list[str]]] = yaml.safe_load(Path(__file__).with_name("mutants.yaml").read_text())
_NUMBER = (1 << 32) - 1
_LAST = HOST + 1


@dataclass(frozen=True)
class Mutant:
    name: str
    break_it: Patch


def _replace_source(where: str, old: str, new: str, patch: pytest.MonkeyPatch) -> None:
    """A function, method or property (`module:name`) has another source from now on."""
    module, _, path = where.partition(":")
    owner: Any = import_module(module)
    *classes, name = path.split(".")
    for each in classes:
        owner = getattr(owner, each)
    member = inspect.getattr_static(owner, name)
    function: Any = member.fget if isinstance(member, property) else member
    source = dedent(inspect.getsource(function))
    assert source.count(old) == 1, f"{where} has {old!r} {source.count(old)} times: say again what to break"
    code = compile(source.replace(old, new), where, "exec", __future__.annotations.compiler_flag)
    made: dict[str, Any] = {}
    exec(code, function.__globals__, made)
    patch.setattr(owner, name, made[name])


# -------------------------------------------------------------------------------------------------------------- order


def _reordered(order_of: Callable[[int, str], int]) -> Patch:
    """Every event gets another place among those of its instant: (order, what is called, if anything is) -> order."""

    def break_it(patch: pytest.MonkeyPatch) -> None:
        at, until = EventQueue.at, EventQueue.until

        def called(self: EventQueue, when_ns: int, order: int, act: Callable[..., None], *arguments: Any) -> None:
            at(self, when_ns, order_of(order, getattr(act, "__name__", "")), act, *arguments)

        patch.setattr(EventQueue, "at", called)
        patch.setattr(EventQueue, "until", lambda self, when_ns, order: until(self, when_ns, order_of(order, "")))

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
# comes after all that was handed over before; a micro-batch's arrival is its scheduler's alone. A timer and an unload's
# end
# both lead to a pass of the scheduler over one state: what expired goes in the first, the freed memory goes out in the
# second. So do a load's end and an unload's: they differ only if what was loaded is idle at once and an older key
# evicts it, and only a preload after a death has no key that waits for it. A fault and a change of slowdown both rate
# the running set again, at one time, from the same work.
_COMMUTE = (
    (Kind.TRANSFER_END, Kind.MICRO_BATCH_ARRIVAL),
    (Kind.LOAD_END, Kind.UNLOAD_END),
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
        "arrivals after the servers' events", _reordered(lambda order, _: HOST - 1 if order == ARRIVAL else order)
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
    patch.setattr(EventQueue, "is_instant_over", property(lambda self: True))


def source_mutants(where: str = "") -> list[Mutant]:
    """The rows of functions whose places begin so."""
    rows = ROWS["reference"].items()
    return [
        Mutant(name, partial(_replace_source, place, old, new))
        for name, (place, old, new) in rows
        if place.startswith(where)
    ]


def mutants() -> list[Mutant]:
    return [*_order_mutants(), *source_mutants()]


MAX_EVENTS = 100_000


def stop_when_stuck(patch: pytest.MonkeyPatch) -> None:
    """A broken engine may go round in an instant for ever: after so many events of one run it fails."""
    step = EventQueue.step
    counts: dict[int, int] = {}

    def counted(self: EventQueue) -> None:
        counts[id(self)] = counts.get(id(self), 0) + 1
        assert counts[id(self)] < MAX_EVENTS, "the run is stuck"
        step(self)

    patch.setattr(EventQueue, "step", counted)
