"""What an agent works with: lanes, a sensor, and what measures them; and what its scheduler is to be. Nouns only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from hw.agent.lanes import Lanes, Tell
from hw.host.waiting import Waker
from hw.telemetry.port import Sensor
from hw.transport.arena import Arena
from hw.transport.messages import FromAgent, Measurement, Reason
from policies.faults import Supervision
from policies.greedy import GreedyKnobs


@dataclass(frozen=True, slots=True)
class Fitting:
    """What an agent works with.

    Attributes:
        sensor: for these processes, of the device.
        measure: carries out a measurement while nothing else is under way; raises what went wrong.
        explain: a failure in the protocol's words.
        computes_here: whether lanes take the cores that the agent runs on.
        activation_bytes: device memory that activations hold at the moment, beyond `context_bytes`.
        has_own_memory: whether instances lie in memory of the device's own, where a load's `vram_bytes` are all that it
            takes: the scheduler books them, and its cap holds for them.
        reads_apart: whether the sensor takes so long that blocks must not wait for it.
        waker: waits until the lanes' next end where they need it to the microsecond; None where any time will do.
    """

    lanes: Lanes
    sensor: Callable[[Sequence[int]], Sensor]
    measure: Callable[[Measurement], FromAgent]
    explain: Callable[[Exception], tuple[Reason, str]]
    context_bytes: int
    execution: Mapping[str, str]
    computes_here: bool = True
    activation_bytes: Callable[[], int] = lambda: 0
    has_own_memory: bool = False
    reads_apart: bool = False
    waker: Waker | None = None


class Outfit(Protocol):
    """What an agent's process is started with; it opens the device there."""

    def fit(self, tell: Tell, clock_ns: Callable[[], int]) -> Fitting:
        """Lanes that tell of every end, in times of this clock; raises what went wrong."""
        ...


@runtime_checkable
class FarOutfit(Outfit, Protocol):
    """One that can be taken to another host."""

    def elsewhere(self, arenas: tuple[Arena, ...], model: Path | None) -> FarOutfit:
        """The same on another host: with its arenas of all agents, and the model's file as it lies there (None: as
        before)."""
        ...


@dataclass(frozen=True, slots=True)
class SchedulerSpec:
    """What an agent's scheduler is to be; none, where it is there to be measured only.

    `has_core`: whether a core is its own, so that it may look out for messages for a while before it sleeps.
    """

    knobs: GreedyKnobs
    segments: int
    supervision: Supervision
    has_core: bool = False


@dataclass(frozen=True, slots=True)
class AgentSpec:
    """What an agent is: its name, what it works with, and its scheduler's settings (none where it is only measured).

    `worker`: agents of one host that name the same one, and start together, share a process and its thread; there are
    `worker_agents` of that name.
    """

    name: str
    outfit: Outfit
    service: SchedulerSpec | None = None
    worker: str = ""
    worker_agents: int = 1
