"""An agent's parts: lanes, a sensor and measurements, and the settings of its scheduler. Types only."""

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
    """The parts of an agent.

    Attributes:
        sensor: of the device, for these processes.
        measure: runs a measurement while nothing else is in progress; raises its error.
        explain: returns a failure in the protocol's terms.
        computes_here: whether lanes take the cores that the agent runs on.
        activation_bytes: device memory that activations hold at the moment, beyond `context_bytes`.
        has_own_memory: whether instances are in separate device memory, so that a load takes just its `vram_bytes`: the
            scheduler books them, and its cap applies to them.
        reads_apart: whether the sensor takes so long that blocks must not wait for it.
        waker: waits until the lanes' next end if they need it to the microsecond; None if any time will do.
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
    """The argument with which an agent's process starts; it opens the device there."""

    def fit(self, tell: Tell, clock_ns: Callable[[], int]) -> Fitting:
        """Return lanes that report every end to `tell`, in times of this clock; raises its error."""
        ...


@runtime_checkable
class FarOutfit(Outfit, Protocol):
    """An outfit that can be moved to another host."""

    def elsewhere(self, arenas: tuple[Arena, ...], model: Path | None) -> FarOutfit:
        """Return the same for another host: with its arenas of all agents, and its path of the model's file (None: as
        before)."""
        ...


@dataclass(frozen=True, slots=True)
class SchedulerSpec:
    """The settings of an agent's scheduler; none, if the agent is only measured.

    `has_core`: whether the agent has a core to itself, so that it may poll for messages for a while before it sleeps.
    """

    knobs: GreedyKnobs
    segments: int
    supervision: Supervision
    has_core: bool = False


@dataclass(frozen=True, slots=True)
class AgentSpec:
    """The description of an agent: its name, outfit and scheduler's settings (none if it is only measured).

    `worker`: agents of one host that name the same one, and start together, share a process and its thread; there are
    `worker_agents` of that name.
    """

    name: str
    outfit: Outfit
    service: SchedulerSpec | None = None
    worker: str = ""
    worker_agents: int = 1
