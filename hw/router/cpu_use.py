"""How full the host's cores were of a run's own processes: of one that needs more than there is, the host is measured.

A router or an emulated device that waits for a core is late, and no simulation knows of it. What a real CPU device
computes is what it is there for: its agent is no part of this, and neither are the cores that it is pinned to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from policies.records import CpuUse

if TYPE_CHECKING:
    from hw.agent.emulated import EmulatedDevice
    from hw.device import DeviceSpec


@dataclass(frozen=True, slots=True)
class Taker:
    """A process that takes CPU time.

    Attributes:
        busy_ns: in the run, without looking out for messages.
        cores: where it may run.
    """

    busy_ns: int
    cores: frozenset[int]


def cpu_use(
    router: Taker, agents: Sequence[tuple[DeviceSpec | EmulatedDevice, int]], cores: Sequence[int], lasted_ns: int
) -> CpuUse:
    """Shares of the cores' time over a run.

    An emulated device's agent is one thread, so it has one core at most. That of a GPU has a thread for every instance,
    and one that waits for the device may spin: alone that is no need.

    Args:
        router: which is one thread.
        agents: the device and the CPU time of each, in ns.
        cores: of the host.
    """
    lasted_ns = max(1, lasted_ns)
    computing = {core for device, _ in agents if device.physical[0] == "cpu" for core in device.cores}
    shared = frozenset(cores) - computing or frozenset(cores)
    takers = [router if router.cores else Taker(router.busy_ns, shared)]
    takers += [
        Taker(busy_ns, frozenset(device.cores) or shared) for device, busy_ns in agents if device.physical[0] != "cpu"
    ]
    emulated_ns = [busy_ns for device, busy_ns in agents if device.physical[0] == "emulated"]
    return CpuUse(
        router=router.busy_ns / lasted_ns,
        agent=max(emulated_ns, default=0) / lasted_ns,
        cores=_fullest(takers, lasted_ns),
    )


def _fullest(takers: Sequence[Taker], lasted_ns: int) -> float:
    """Who is confined to some cores competes for them with all who are confined to a part of them: so each set of cores
    that somebody is confined to is looked at."""
    return max(
        sum(taker.busy_ns for taker in takers if taker.cores <= cores) / (lasted_ns * len(cores))
        for cores in {taker.cores for taker in takers}
    )
