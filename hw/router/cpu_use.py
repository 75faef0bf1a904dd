"""The load that a run's own processes put on the host's cores: near saturation, a run measures the host.

A router or an emulated device that waits for a core is late, and no simulation includes that. A real CPU device's
computation is its purpose: its agent is not part of this, and neither are the cores that it is pinned to.
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
        busy_ns: in the run, without polling for messages.
        cores: that it may use.
    """

    busy_ns: int
    cores: frozenset[int]


def cpu_use(
    router: Taker, agents: Sequence[tuple[DeviceSpec | EmulatedDevice, int]], cores: Sequence[int], lasted_ns: int
) -> CpuUse:
    """Return shares of the cores' time over a run.

    An emulated device's agent is one thread, so it has one core at most. A GPU's agent has a thread for every instance,
    and one that waits for the device may spin: that alone does not mean it needs more.

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
    """Return the highest load of any set of cores: all processes confined to it, or to a part of it, compete."""
    return max(
        sum(taker.busy_ns for taker in takers if taker.cores <= cores) / (lasted_ns * len(cores))
        for cores in {taker.cores for taker in takers}
    )
