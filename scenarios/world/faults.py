"""A scenario's faults, as the worlds play them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from kit.chance import stream
from policies.faults import Crash, Fault, Hang, Poison
from policies.vocabulary import nanoseconds
from scenarios.files.reading import check_fault_server
from scenarios.files.spec import (
    ChaosFault,
    MomentFault,
    PoisonedFault,
    Scenario,
    SpanFault,
)


def faults_of(
    scenario: Scenario, servers: Sequence[str], seed: int, start_s: float, horizon_s: float, requests: int
) -> tuple[Fault, ...]:
    """What the scenario plans, and what it leaves to chance, for one run.

    Args:
        servers: their names.
        start_s: where in the scenario the run begins.
        requests: how many arrive.

    Raises:
        InputError: a fault is of a server that there is not.
    """
    poison, chaos = stream(seed, "poison"), stream(seed, "chaos")
    faults: list[Fault] = []
    for index, fault in enumerate(scenario.faults):
        match fault:
            case PoisonedFault(share=share):
                drawn = np.flatnonzero(poison.random(requests) < share)
                faults.append(Poison(frozenset(drawn.tolist())))
            case ChaosFault():
                faults.extend(chaos_of(fault, len(servers), nanoseconds(horizon_s), chaos))
            case _:
                check_fault_server(fault.server, servers, scenario.name, index)
                if (met := shifted(fault, start_s)) is not None:
                    faults.append(met.planned(servers.index(fault.server)))
    return tuple(faults)


def shifted(fault: SpanFault | MomentFault, start_s: float) -> SpanFault | MomentFault | None:
    """A fault as a run that begins at `start_s` meets it; None where it is over by then."""
    if isinstance(fault, MomentFault):
        return fault.model_copy(update={"at_s": fault.at_s - start_s}) if fault.at_s >= start_s else None
    end_s = None if fault.end_s is None else fault.end_s - start_s
    if end_s is not None and end_s <= 0:
        return None
    return fault.model_copy(update={"start_s": max(0.0, fault.start_s - start_s), "end_s": end_s})


def chaos_of(fault: ChaosFault, servers: int, horizon_ns: int, rng: np.random.Generator) -> Iterator[Fault]:
    """Deaths and hangs with exponential gaps until the horizon."""
    at_ns = 0
    while (at_ns := at_ns + nanoseconds(rng.exponential(fault.mean_gap_s))) < horizon_ns:
        server = int(rng.integers(servers))
        kind = fault.kinds[int(rng.integers(len(fault.kinds)))]
        yield Crash(server, at_ns) if kind == "worker_killed" else Hang(server, at_ns)
