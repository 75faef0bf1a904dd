"""How much a cluster carries: the largest load, or the fewest nodes, at which waits stay below a limit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from jobs.case import JobsCase, NamedPolicy, read_case
from jobs.comparing import run_policy
from jobs.figures import figures
from kit.errors import InputError

SCHEMA: Final = "slimsched.jobscapacity/1"
LOADS: Final = (0.02, 3.0)
MOST_NODES: Final = 100_000


@dataclass(frozen=True, slots=True)
class Limit:
    """What is asked of waits: `key` of all of them (`mean`, `p50`, `p90`, `p99`) is at most so long."""

    key: str
    wait_s: float


@dataclass(frozen=True, slots=True)
class Tried:
    """A load, or a number of nodes of the first group, and the wait there; infinite where jobs were not done."""

    value: float
    wait_s: float


def largest_load(
    case: JobsCase, limit: Limit, precision: float = 0.02, told: Callable[[Tried], None] = lambda tried: None
) -> tuple[float | None, float | None]:
    """The largest load that keeps the limit, and the least that does not, a share of `precision` apart.

    Waits needn't grow with the load at every step; it is looked for between a load that keeps the limit and one that
    does not, by halving. None for the first where even the smallest breaks it, for the second where none does.
    """

    def keeps(load: float) -> bool:
        tried = Tried(load, _wait_s(_at_load(case, load), case.policies[0], limit.key))
        told(tried)
        return tried.wait_s <= limit.wait_s

    low, high = LOADS
    if not keeps(low):
        return None, low
    if keeps(high):
        return high, None
    while high / low > 1 + precision:
        middle = float(np.sqrt(low * high))
        low, high = (middle, high) if keeps(middle) else (low, middle)
    return low, high


def fewest_nodes(case: JobsCase, limit: Limit, told: Callable[[Tried], None] = lambda tried: None) -> int:
    """Of the first group of nodes, the others as they are; no job may be refused that is not refused now.

    Raises:
        InputError: no number is enough.
    """

    refused = figures(run_policy(case, case.policies[0]), case.scenario.cluster.gpus)["jobs"]["refused"]

    def keeps(nodes: int) -> bool:
        tried = Tried(nodes, _wait_s(_with_nodes(case, nodes), case.policies[0], limit.key, refused))
        told(tried)
        return tried.wait_s <= limit.wait_s

    high = max(case.scenario.cluster.nodes[0].count, 1)
    while not keeps(high):
        if high >= MOST_NODES:
            problem = f"even {high:,} nodes of {case.scenario.cluster.nodes[0].gpus} GPUs leave waits above it"
            raise InputError("--wait", "", f"{problem}: jobs wait for other nodes, or for ones that are larger")
        high = min(2 * high, MOST_NODES)
    low = 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if keeps(middle) else (middle, high)
    return high


def _at_load(case: JobsCase, load: float) -> JobsCase:
    return replace(case, jobs=case.jobs.at_load(load, case.scenario.cluster.gpus))


def _with_nodes(case: JobsCase, nodes: int) -> JobsCase:
    cluster = case.scenario.cluster
    groups = (cluster.nodes[0].model_copy(update={"count": nodes}), *cluster.nodes[1:])
    scenario = case.scenario.model_copy(update={"cluster": cluster.model_copy(update={"nodes": groups})})
    changed = read_case(scenario, case.source, case.images_s)
    return replace(changed, jobs=case.jobs)  # the same arrivals, whatever the load is of more nodes


def _wait_s(case: JobsCase, named: NamedPolicy, key: str, most_refused: int | None = None) -> float:
    """Infinite where jobs are not done, or more are refused than may be."""
    found = figures(run_policy(case, named), case.scenario.cluster.gpus)
    is_lost = found["jobs"]["unfinished"] > 0 or (most_refused is not None and found["jobs"]["refused"] > most_refused)
    wait_s: float | None = found["wait_s"][key]
    return float("inf") if is_lost or wait_s is None else wait_s


def capacity_document(case: JobsCase, limit: Limit, **found: Any) -> dict[str, Any]:
    """What was found."""
    return {
        "schema": SCHEMA,
        "scenario": case.scenario.name,
        "policy": case.policies[0].name,
        "load_now": case.load,
        "nodes_now": case.scenario.cluster.nodes[0].count,
        "limit": {"of": limit.key, "wait_s": limit.wait_s},
        **found,
    }
