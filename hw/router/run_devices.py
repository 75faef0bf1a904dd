"""The devices of a run in the router's process: the reader of each sensor, and the integrals of its samples.

A device that several servers share has one reader among their agents. When that one dies another takes its place, and
the energy count continues.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hw.transport.messages import Sample
from policies.vocabulary import NS_PER_S

if TYPE_CHECKING:
    from hw.router.server import HardwareServer, RemoteServer


@dataclass
class RunDevice:
    """A device during a run.

    Attributes:
        servers: on it, by index.
        period_ns: of its sensor's readings.
        trusts_counter: whether its energy counter is preferred to its power, integrated.
        unmetered_s: time with a reader that reported neither; it counts no energy.
    """

    name: str
    servers: tuple[int, ...]
    period_ns: int
    bare_idle_w: float
    context_idle_w: float
    trusts_counter: bool = True
    busy_s: float = 0.0
    energy_j: float = 0.0
    unmetered_s: float = 0.0
    _reader: int | None = None
    _counter_j: float | None = None  # of this reader, at its last sample
    _at_ns: int = 0  # the time until which it is accounted for

    def settle(self, servers: Sequence[RemoteServer], now_ns: int) -> None:
        """Name a reader after servers came up or went down: one that is up reads, for all that are up."""
        up = [servers[index] for index in self.servers if servers[index].is_up]
        if not up:
            self._reader = None
            return
        if self._reader is None:  # it had no reader since
            self._rest_until(now_ns)
        if self._reader not in [server.index for server in up]:
            self._reader, self._counter_j = up[0].index, None
        pids = tuple(server.slot.agent.pid for server in up)
        for server in up:
            server.sense(self.period_ns if server.index == self._reader else 0, pids)

    def heard(self, sample: Sample) -> None:
        """Process the reader's next sample: the counter is preferred if it is trusted."""
        elapsed_s = max(0, sample.sampled_ns - self._at_ns) / NS_PER_S
        self._at_ns = max(self._at_ns, sample.sampled_ns)
        self.busy_s += (sample.utilization or 0.0) * elapsed_s
        before_j, self._counter_j = self._counter_j, sample.energy_j if self.trusts_counter else None
        if self._counter_j is not None and before_j is not None and self._counter_j >= before_j:
            self.energy_j += self._counter_j - before_j
        elif sample.power_w is not None:  # also if the counter restarted: its driver was loaded again
            self.energy_j += sample.power_w * elapsed_s
        else:
            self.unmetered_s += elapsed_s

    def close(self, ended_ns: int) -> None:
        """End the account at the end of the run; time without a reader is idle time."""
        if self._reader is None:
            self._rest_until(ended_ns)

    def _rest_until(self, now_ns: int) -> None:
        self.energy_j += self.bare_idle_w * max(0, now_ns - self._at_ns) / NS_PER_S
        self._at_ns = max(self._at_ns, now_ns)


def devices_of(servers: Sequence[HardwareServer]) -> list[RunDevice]:
    """Return a device for each physical one, in order of its first server."""
    members: dict[object, list[int]] = {}
    for index, server in enumerate(servers):
        members.setdefault(server.physical, []).append(index)
    return [
        RunDevice(
            "+".join(servers[index].name for index in indexes),
            tuple(indexes),
            round(min(servers[index].sensor_period_s for index in indexes) * NS_PER_S),
            servers[indexes[0]].bare_idle_w,
            servers[indexes[0]].context_idle_w,
            all(servers[index].trusts_counter for index in indexes),
        )
        for indexes in members.values()
    ]
