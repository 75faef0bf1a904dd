"""The same run with the same choices on either engine, each driven as fast as possible.

The choices are drawn in advance, so that an engine is measured and not a router.
"""

from __future__ import annotations

import time  # noqa: TID251 - it measures
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from kit.jit import singles
from policies.vocabulary import Choice, ClusterView
from sim.compiled.cluster_rows import program_of
from sim.compiled.compiled_run import RunRow
from sim.compiled.event_loop import advance, decide
from sim.compiled.row_access import code_of, request_at, write_observation
from sim.compiled.row_layout import ASKED, ENDED, Cluster, Parameters
from sim.simulated_cluster import ClusterSpec, RunSpec, Simulation
from tests import tiny

DRAWS = 1 << 14
RATE_IMG_S = 300  # a server
WIDTHS, MICRO_BATCH_SIZES = 4, (1, 2, 4, 8, 16, 32)


@lru_cache
def cluster(servers: int) -> ClusterSpec:
    """Build servers of four speeds in turn, each with its own link, and a router that is never the bottleneck.

    Devices of one speed share their tables: a thousand are made as soon as four.
    """
    four = tiny.cluster([tiny.profile(f"p{i}", speed=1.0 - 0.15 * i, per_image_s=5e-5) for i in range(4)])
    kinds = [number % 4 for number in range(servers)]
    return replace(
        four,
        decision_ns=150_000 // servers,
        devices=tuple(four.devices[kind] for kind in kinds),
        servers=tuple(
            replace(server, device=number, attachment=replace(server.attachment, medium=str(number)))
            for number, server in enumerate(four.servers[kind] for kind in kinds)
        ),
        router=replace(four.router, fits=tuple(four.router.fits[kind] for kind in kinds)),
    )


def scenario(servers: int, duration_s: float, seed: int = 0) -> tuple[ClusterSpec, RunSpec]:
    """Build a run below capacity: 300 images/s a server."""
    spec = cluster(servers)
    arrivals_s = tiny.poisson_s(RATE_IMG_S * servers, duration_s, seed)
    return spec, tiny.run(spec, arrivals_s, duration_s, detail=False, end="cut")


def draws(servers: int) -> NDArray[np.int64]:
    """Draw (DRAWS, 3): server, width index, group."""
    rng = np.random.default_rng(0)
    columns = rng.integers(servers, size=DRAWS), rng.integers(WIDTHS, size=DRAWS), rng.choice(MICRO_BATCH_SIZES, DRAWS)
    return np.ascontiguousarray(np.stack(columns, axis=1), np.int64)


class Drawn:
    """A router that reads its choices from a list; a server that can't take it passes it on to the next."""

    def __init__(self, spec: ClusterSpec) -> None:
        widths = spec.router.widths
        self._choices = [Choice(s, widths[w], g) for s, w, g in draws(spec.router.servers).tolist()]
        self._turn = 0

    def choose(self, view: ClusterView, rng: np.random.Generator) -> Choice:
        """Return the next choice."""
        choice = self._choices[self._turn % DRAWS]
        self._turn += 1
        server, servers = choice.server, view.servers
        if servers[server].valid:
            return choice
        while not servers[server].valid:
            server = (server + 1) % len(servers)
        return Choice(server, choice.width, choice.micro_batch_size)


def _drive(row: Any, parameters: Any, choices: Any, observes: bool, out: Any) -> Any:
    """Drive a cluster to its end, or until a pool must grow: (status, decisions)."""
    c, p = Cluster(row), Parameters(parameters)
    observation = singles(out)
    while True:
        if c.asked == 0:
            status = advance(c, p)
            c.credits = 0
            if status != ASKED:
                return status, c.decision
        if observes:
            write_observation(c, p, observation, 0)
        turn = (c.decision - 1) % len(choices)
        server = choices[turn, 0]
        segment = request_at(c, p, c.slot).segment
        while code_of(c, p, server, segment) == 0:
            server = server + 1 if server + 1 < p.servers else 0
        decide(c, p, server, choices[turn, 1], choices[turn, 2])


# Not `kit.jit.entry`: its disk cache is keyed by the sources of this folder, not of the engine.
_compiled: Any = numba.njit(nogil=True, error_model="numpy")(_drive)


@dataclass(frozen=True)
class Driven:
    """Cost of a run."""

    decisions: int
    cpu_s: float
    bytes: int = 0

    @property
    def rate(self) -> int:
        """Decisions a CPU-second."""
        return round(self.decisions / self.cpu_s)


def reference(spec: ClusterSpec, run: RunSpec) -> Driven:
    """Run on the SimPy model."""
    simulation, router = Simulation(spec, run), Drawn(spec)
    rng = np.random.default_rng(0)
    begun_s = time.process_time()
    decisions = simulation.run(router, rng).decisions
    return Driven(decisions, time.process_time() - begun_s)


class Clusters:
    """Runs on the compiled engine, one after the other; created before they are timed."""

    def __init__(self, spec: ClusterSpec, runs: list[RunSpec], observes: bool = False) -> None:
        self._rows = [RunRow(program_of(spec), run, keeps=False) for run in runs]
        self._choices, self._observes = draws(spec.router.servers), observes
        self._out = np.zeros(2 + 3 * spec.router.servers, np.float32)

    def drive(self) -> int:
        """Run all to their ends; returns the decisions."""
        return sum(self._to_end(row) for row in self._rows)

    def _to_end(self, row: RunRow) -> int:
        while True:
            status, decisions = _compiled(row.row, row.shape.parameters, self._choices, self._observes, self._out)
            if status == ENDED:
                return int(decisions)
            row.grow(status)

    @property
    def bytes(self) -> int:
        """Size of the largest row."""
        return max(row.row.nbytes for row in self._rows)


def compiled(spec: ClusterSpec, run: RunSpec, observes: bool = False) -> Driven:
    """Run on the compiled engine, in this thread's time."""
    clusters = Clusters(spec, [run], observes)
    begun_s = time.thread_time()
    decisions = clusters.drive()
    return Driven(decisions, time.thread_time() - begun_s, clusters.bytes)


def compile_now() -> None:
    """Compile in advance, so that nothing is compiled while it is timed."""
    spec, run = scenario(1, 0.05)
    assert compiled(spec, run).decisions == reference(spec, run).decisions
