"""Two engines side by side: every decision, every credit and every record must be the same, to the last bit.

There is no tolerance: numbers must be of one type and one value, -0.0 is not 0.0, and mappings must have one order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from itertools import zip_longest
from math import copysign
from typing import Any, Protocol, TypeVar, cast

from kit.random_streams import stream
from policies.interfaces import RewardTerms
from policies.run_records import RunRecord
from policies.vocabulary import BatchingDelay, BatchingDelayRule, Choice, Decide, OwnLimit
from sim.simulated_cluster import ClusterSpec, RunSpec, Simulation
from tests.parity.scenarios import Scenario

Word = TypeVar("Word")

MAX_DECISIONS = 20_000  # a run with more is stuck


class Engine(Protocol):
    @property
    def now_ns(self) -> int: ...

    @property
    def pending(self) -> Decide | None: ...

    def advance(self) -> Decide | None: ...

    def set_batching_delay_rule(self, rule: BatchingDelayRule) -> None: ...

    def set_limit(self, limit: OwnLimit) -> None: ...

    def decide(self, choice: Choice | BatchingDelay) -> None: ...

    def take_credits(self) -> list[tuple[int, RewardTerms]]: ...

    def record(self) -> RunRecord: ...


MakeEngine = Callable[[ClusterSpec, RunSpec], Engine]


@dataclass(frozen=True)
class Moment:
    """What an engine shows when it stops: for a decision, or (with a record instead of a question) at its end."""

    now_ns: int
    asked: Decide | None
    credits: list[tuple[int, RewardTerms]]
    record: RunRecord | None = None


def reference(cluster: ClusterSpec, run: RunSpec) -> Engine:
    """The SimPy model; it keeps its log, which shows what happened, and is not a part of the comparison."""
    return Simulation(cluster, replace(run, keep_log=True))


def play(make: MakeEngine, scenario: Scenario) -> Iterator[Moment]:
    """Run a scenario with its own policy, moment by moment."""
    engine = make(scenario.cluster, scenario.run)
    policy, rng = scenario.policy(), stream(scenario.run.seed, "parity")
    if scenario.batching_delay_rule is not None:
        engine.set_batching_delay_rule(scenario.batching_delay_rule)
    engine.set_limit(OwnLimit(scenario.own_limit_ns))
    while (asked := engine.advance()) is not None:
        assert engine.pending is asked or engine.pending == asked, "pending is not what was asked"
        yield Moment(engine.now_ns, asked, engine.take_credits())
        assert asked.decision < MAX_DECISIONS, "the run is stuck"
        engine.decide(policy.choose(asked.view, rng))
    assert engine.pending is None, "something is asked at the end"
    yield Moment(engine.now_ns, None, engine.take_credits(), engine.record())


def compare(scenario: Scenario, make: MakeEngine, expected: list[Moment] | None = None) -> str | None:
    """The first difference between an engine and the reference (or what it showed before), in words; None for none."""
    numbered = enumerate(zip_longest(expected or play(reference, scenario), _guarded(make, scenario)))
    for position, (ours, theirs) in numbered:
        if isinstance(theirs, str):
            return f"moment {position}: {theirs}"
        found = moments_differ(ours, theirs)
        if found is not None:
            return f"moment {position}: {found}"
    return None


def _guarded(make: MakeEngine, scenario: Scenario) -> Iterator[Moment | str]:
    """An engine's moments; one that breaks says so instead."""
    try:
        yield from play(make, scenario)
    except Exception as error:
        yield f"raised {type(error).__name__}: {error}"


def moments_differ(ours: Moment | None, theirs: Moment | None) -> str | None:
    """The first difference of two moments: what was credited before, when and what was asked, the record."""
    if ours is None or theirs is None:
        return "one engine has ended, the other has not"
    names = ("credits", "asked") if ours.asked is None else ("credits", "now_ns", "asked")
    for name in names:  # when the last event was is nobody's business: the reference has stale ones, too
        found = difference(getattr(ours, name), getattr(theirs, name), name)
        if found is not None:
            return found
    if ours.record is None or theirs.record is None:
        return difference(ours.record is None, theirs.record is None, "ended")
    return difference(changed(ours.record, log=()), theirs.record, "record")


def difference(ours: Any, theirs: Any, where: str) -> str | None:
    """Where two values differ first, and how; None if they are the same."""
    if ours is theirs:
        return None
    kind = type(ours)
    if kind is float:
        same = type(theirs) is float and ours == theirs and copysign(1.0, ours) == copysign(1.0, theirs)
        return None if same else f"{where}: {ours!r} != {theirs!r}{_in_hex(ours, theirs)}"
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        return _sequences_differ(list(ours.items()), list(theirs.items()), where)
    if kind is not type(theirs):
        return f"{where}: {ours!r} ({kind.__name__}) != {theirs!r} ({type(theirs).__name__})"
    if kind in (tuple, list):
        return _sequences_differ(ours, theirs, where)
    names = names_of(cast(Any, kind))
    for name in names:
        one, other = getattr(ours, name), getattr(theirs, name)
        if one is not other and (found := difference(one, other, f"{where}.{name}")) is not None:
            return found
    return None if names or ours == theirs else f"{where}: {ours!r} != {theirs!r}"


def _sequences_differ(ours: Any, theirs: Any, where: str) -> str | None:
    for index, (one, other) in enumerate(zip(ours, theirs, strict=False)):
        if (found := difference(one, other, f"{where}[{index}]")) is not None:
            return found
    if len(ours) != len(theirs):
        longer, name = (ours, "reference") if len(ours) > len(theirs) else (theirs, "other engine")
        extra = longer[min(len(ours), len(theirs))]
        return f"{where}: {len(ours)} != {len(theirs)} entries; the {name} has {extra!r} next"
    return None


def _in_hex(ours: float, theirs: Any) -> str:
    return f" ({ours.hex()}, {theirs.hex()})" if type(theirs) is float else f" ({type(theirs).__name__})"


def changed(word: Word, **changes: Any) -> Word:
    """A record or another word with some of its fields replaced."""
    return type(word)(**{name: getattr(word, name) for name in names_of(cast(Any, type(word)))} | changes)


@lru_cache(maxsize=64)
def names_of(kind: Any) -> tuple[str, ...]:
    """The fields of a record, dataclass or struct; none of anything else."""
    if hasattr(kind, "__struct_fields__"):
        return tuple(kind.__struct_fields__)
    return tuple(field.name for field in fields(kind)) if hasattr(kind, "__dataclass_fields__") else ()
