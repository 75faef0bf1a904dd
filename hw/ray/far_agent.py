"""An agent's process on another host: it connects to the router, and listens for the other agents."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from dataclasses import dataclass, replace
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Final

from hw.agent.outfit import AgentSpec, FarOutfit
from hw.router.local_agents import die_with_parent, live
from hw.transport.arena import Arena
from hw.transport.landing import FarArena, Landing, Routes
from hw.transport.messages import ToAgent
from hw.transport.port import AgentEnd, SentLog
from hw.transport.tls import Encrypted, Hello, connected

CONNECT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class FarStart:
    """The arguments of an agent's process.

    Attributes:
        spec: of the agent; its outfit has no arenas yet.
        own, agents: its index among all of the cluster.
        arena_bytes: of each arena.
        incarnation: see `hw.router.agents.AgentHandle`.
        log: the file on its host for its output; None: its keeper's.
        model: the path on its host of the network's file; None if it needs none.
        router: the address that the router listens on.
        host: the address at which others reach this host.
        certificate: the cluster's.
    """

    spec: AgentSpec
    own: int
    agents: int
    arena_bytes: int
    incarnation: int
    router: str
    host: str
    certificate: bytes
    log: Path | None = None
    model: Path | None = None


def begin(start: FarStart) -> SpawnProcess:
    """Start the process, which ends with the calling thread."""
    process = multiprocessing.get_context("spawn").Process(
        target=_main, args=(start,), name=f"slimsched-{start.spec.name}", daemon=True
    )
    process.start()
    return process


def how_it_ended(process: SpawnProcess) -> str:
    """Describe in a few words how it ended, once it has."""
    code = process.exitcode
    return f"killed by {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"


def _main(start: FarStart) -> None:
    die_with_parent()
    with contextlib.suppress(OSError, AttributeError):  # Ray lowers its workers' priority; root may restore it
        os.setpriority(os.PRIO_PROCESS, 0, 0)
    if start.log is not None:
        with start.log.open("ab") as log:
            for standard in (1, 2):
                os.dup2(log.fileno(), standard)
    if not os.environ.get("CUDA_VISIBLE_DEVICES", "all"):
        del os.environ["CUDA_VISIBLE_DEVICES"]  # Ray hides GPUs from workers that request none; a scenario names ours
    arena, routes = Arena(start.arena_bytes), Routes(start.incarnation, start.certificate)
    landing = Landing(start.host, start.certificate, arena)
    end = connected(start.router, start.certificate, Hello(start.incarnation, landing.address), CONNECT_S)
    port = AgentEnd(ToAgent, Encrypted(end), arena)
    far = [FarArena(start.arena_bytes, routes) for _ in range(start.agents)]
    arenas = (*far[: start.own], arena, *far[start.own + 1 :])
    assert isinstance(start.spec.outfit, FarOutfit), "asked for one that can be taken elsewhere"
    spec = replace(start.spec, outfit=start.spec.outfit.elsewhere(arenas, start.model))
    live([(spec, port, SentLog(port))], landing.fence)
