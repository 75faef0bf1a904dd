"""A race of routers at equal accuracy over a fixed suite of cases: one run's figures, and which router leads where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from kit.results import OwnDocument
from scenarios.metrics.served import LIMIT
from scenarios.metrics.statistics import PairedRatio, paired_ratio

Figure = Literal["mean_s", "p99_s"]


@dataclass(frozen=True, slots=True)
class Run:
    """What a router has in one run: mean accuracy by the table, latencies, energy an image, share that is unserved."""

    seed: int
    accuracy: float
    mean_s: float
    p99_s: float
    image_j: float
    unserved: float


@dataclass(frozen=True, slots=True)
class Equal:
    """A router's runs of one case, at the dial where its mean accuracy is the floor.

    Attributes:
        by: its dial; None if it has none, and is as it is.
        is_kept: whether it has the floor, and at most `CLOSE` above it if its dial allows.
    """

    by: float | None
    is_kept: bool
    runs: tuple[Run, ...]

    def mean(self, name: str) -> float:
        """Return the mean of a figure of `Run`, over its runs."""
        return float(np.mean([getattr(run, name) for run in self.runs]))

    @property
    def counts(self) -> bool:
        """Whether it may be compared: it keeps the floor, and serves."""
        return self.is_kept and self.mean("unserved") <= LIMIT

    def against(self, other: Equal, figure: Figure) -> PairedRatio:
        """Return the ratio of a figure to another router's, seed by seed."""
        return paired_ratio(*([getattr(run, figure) for run in each.runs] for each in (self, other)))


@dataclass(frozen=True, slots=True)
class Case:
    """One case of the suite.

    Attributes:
        floor: mean accuracy that every router has.
        bound_s: the mean latency that no router can beat there.
        routers: those built into the suite, and those that entered, by name.
    """

    name: str
    floor: float
    bound_s: float
    routers: Mapping[str, Equal]

    def best(self, among: Sequence[str], figure: Figure = "p99_s") -> str | None:
        """Return the router with the least mean figure of those that count."""
        able = [name for name in among if name in self.routers and self.routers[name].counts]
        return min(able, key=lambda name: self.routers[name].mean(figure), default=None)


@dataclass(frozen=True, kw_only=True)
class SuiteScore(OwnDocument):
    """What `slimsched suite` found: `slimsched.suite-score/1`.

    Attributes:
        published: routers whose figures ship with the suite; entrants: those that were run now.
    """

    schema: str = "slimsched.suite-score/1"
    published: tuple[str, ...]
    entrants: tuple[str, ...]
    cases: tuple[Case, ...]

    def rows(self) -> list[dict[str, Any]]:
        """Return a row a case, router and run."""
        return rows_of(self.cases)


def rows_of(cases: Sequence[Case]) -> list[dict[str, Any]]:
    """Return a row a case, router and run, as the suite's file of published figures has them."""
    return [
        {
            "case": case.name, "floor": case.floor, "bound_s": case.bound_s, "router": name, "dial": equal.by,
            "is_kept": equal.is_kept, **{field: getattr(run, field) for field in Run.__slots__},
        }
        for case in cases
        for name, equal in case.routers.items()
        for run in equal.runs
    ]  # fmt: skip


def cases_of(rows: Sequence[Mapping[str, Any]]) -> tuple[Case, ...]:
    """Return the cases of `rows_of`'s rows."""
    cases: dict[str, Case] = {}
    for row in rows:
        case = cases.setdefault(row["case"], Case(row["case"], row["floor"], row["bound_s"], {}))
        run = Run(**{field: row[field] for field in Run.__slots__})
        before = case.routers.get(row["router"])
        equal = Equal(row["dial"], row["is_kept"], (*(before.runs if before else ()), run))
        cases[case.name] = Case(case.name, case.floor, case.bound_s, {**case.routers, row["router"]: equal})
    return tuple(cases.values())
