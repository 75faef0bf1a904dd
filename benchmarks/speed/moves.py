"""Who copies activations that move: the source when it is asked, or every output when it is produced.

    python -m benchmarks.speed.moves

As it is, outputs stay where the pass has left them. One that moves costs a message to its source, a copy into the
destination's arena, and an answer. The other way every output is written into its own agent's arena at once: so the
destination can use it there, or copy it from there, and nobody has to be asked; but all outputs pay that copy, in the
lane, before the next pass. That other way would also need arenas as large as all that waits at the router, and with
open arrivals nothing bounds that: beyond it requests would have to be refused, or the first way kept beside it.
"""

from __future__ import annotations

import argparse
import contextlib
import time  # noqa: TID251 - it measures
from collections.abc import Callable

import numpy as np
import torch

from benchmarks.speed.peers.forwards import MODEL
from benchmarks.speed.tables import show
from hw.agent.torch_outfit import ARENA_BYTES, torch_agents
from hw.device import DeviceSpec
from hw.devices.activations import tensor_in
from hw.networks.registry import ModelFile
from hw.router.agents import transfer_round
from hw.router.local_agents import AgentProcess, start_agents
from hw.telemetry import usable_cores
from hw.transport.arena import Arena
from hw.transport.messages import Pong

SIZES = (12_288, 262_144, 1 << 20)
HEAD = (
    "bytes", "as it is: a move", "of it: message and answer", "of it: the copy", "an output that stays",
    "written at once: a move, used there", "a move, copied by the destination", "an output that stays",
    "as it is is cheaper up to so many moves an output",
)  # fmt: skip


def main() -> None:
    """See above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--pause-ms", type=float, default=1.0, help="before each move: the source sleeps, as it would")
    asked = parser.parse_args()
    cores, rows = usable_cores(), []
    devices = [("source", DeviceSpec(cores=cores[-1:])), ("destination", DeviceSpec(cores=cores[:1]))]
    with torch_agents(devices, ModelFile(MODEL)) as specs, start_agents(specs) as (source, _):
        for size_bytes in SIZES:
            move_us = 1e6 * float(np.median(transfer_round(source, 1, size_bytes, asked.count, asked.pause_ms / 1e3)))
            asking_us = _pings_us(source, asked.count, asked.pause_ms / 1e3)
            produced_us, taken_us = _copies_us(size_bytes, asked.count)
            most = min(1.0, produced_us / move_us)
            rows.append((size_bytes, move_us, asking_us, produced_us, 0, 0, taken_us, produced_us, most))
    show(f"Moved activations, p50 in us; a core for each agent, {asked.count} times", HEAD, rows)


def _pings_us(agent: AgentProcess, count: int, pause_s: float) -> float:
    found = []
    for number in range(1, count + 1):
        time.sleep(pause_s)
        begun_ns = time.monotonic_ns()
        agent.send(agent.ping(-number))
        agent.expect(Pong)
        found.append(time.monotonic_ns() - begun_ns)
    return float(np.median(found)) / 1e3


def _copies_us(size_bytes: int, count: int) -> tuple[float, float]:
    """Of an output that a pass has just made, into an arena, each time to another place; and from there, later."""
    with contextlib.closing(Arena(ARENA_BYTES)) as arena:
        places = ARENA_BYTES // size_bytes
        views = [tensor_in(arena, place * size_bytes, (1, size_bytes // 4), torch.float32) for place in range(places)]
        for view in views:
            view.zero_()  # its pages are there
        made, own = torch.randn(1, size_bytes // 4), torch.empty(1, size_bytes // 4)

        def produced(place: int) -> None:
            views[place % places].copy_(made)

        def taken(place: int) -> None:
            own.copy_(views[place % places])

        return _median_us(produced, count), _median_us(taken, count)


def _median_us(copy: Callable[[int], None], count: int) -> float:
    found = []
    for place in range(count):
        begun_ns = time.perf_counter_ns()
        copy(place)
        found.append(time.perf_counter_ns() - begun_ns)
    return float(np.median(found)) / 1e3


if __name__ == "__main__":
    main()
