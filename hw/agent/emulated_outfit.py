"""The outfit of an emulated device's agent: its model, and no torch."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from hw.agent.emulated import EmulatedDevice, EmulatedLanes, EmulatedSensor
from hw.agent.lanes import Tell, explain
from hw.agent.outfit import Fitting
from hw.host.waiting import Waker
from hw.transport.arena import Arena
from hw.transport.messages import BenchmarkMove, Done, FromAgent, Measurement, Warm


@dataclass(frozen=True, slots=True)
class EmulatedOutfit:
    """Travels to the agent's process.

    Attributes:
        device: to emulate.
        arenas: of all agents, by index.
        own: this agent's index among them.
    """

    device: EmulatedDevice
    arenas: tuple[Arena, ...]
    own: int

    def elsewhere(self, arenas: tuple[Arena, ...], model: Path | None) -> EmulatedOutfit:
        """See `FarOutfit`."""
        return replace(self, arenas=arenas)

    def fit(self, tell: Tell, clock_ns: Callable[[], int]) -> Fitting:
        """See `Outfit`."""
        if self.device.cores and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, self.device.cores)
        lanes = EmulatedLanes(self.device.model(), self.arenas, self.own, tell, clock_ns)

        def measure(message: Measurement) -> FromAgent:
            match message:
                case Warm(number):
                    return Done(number)  # no kernel is chosen here
                case BenchmarkMove(request, size_bytes):
                    lanes.keep(request, size_bytes)
                    return Done(request)
                case _:
                    raise ValueError(f"{type(message).__name__} is asked of a real device alone")

        return Fitting(
            lanes=lanes,
            sensor=lambda _: EmulatedSensor(lanes, clock_ns),
            measure=measure,
            explain=explain,
            context_bytes=lanes.model.context_bytes,
            execution=self.device.execution(),
            computes_here=False,
            waker=Waker(clock_ns),
        )
