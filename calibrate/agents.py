"""The real bench: an agent process on a device, a second one to send activations to, and the device's power sensor.

It only translates; the plan decides what to measure.
"""

from __future__ import annotations

import time  # noqa: TID251 - what others use of the cores is a share of real time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import psutil

from calibrate.bench import Loop, SharedLoop, SteadyLoad
from calibrate.meter import Meter, sampled
from calibrate.plan import LEAD_S, PAUSE_S, QUIET_S
from hw.router.agents import transfer_round
from hw.router.local_agents import AgentProcess
from hw.telemetry import process_cpu_s
from hw.transport.messages import (
    Benchmark,
    BenchmarkBesideLoad,
    BenchmarkDispatch,
    BenchmarkInstance,
    BenchmarkLoad,
    BenchmarkPaths,
    BenchmarkResult,
    BenchmarkTogether,
    BenchmarkUnload,
    BesideLoadResult,
    InstanceResult,
    Point,
    Timed,
    TogetherResult,
)
from policies.vocabulary import NS_PER_S

GPU_LEAD_S: Final = 0.4  # before processes begin together: instances choose kernels and capture passes first
LEAD_TIMES: Final = (1, 4, 16)  # the usual lead, before processes begin together
MAX_APART: Final = 0.05  # share of a set's time in which not all processes ran; above it, repeat with more lead


def apart_share(results: Sequence[TogetherResult]) -> float:
    """Return the share of the time from the first begin to the last end in which not all processes ran."""
    whole_ns = max(each.ended_ns for each in results) - min(each.began_ns for each in results)
    all_ns = min(each.ended_ns for each in results) - max(each.began_ns for each in results)
    return 1.0 - max(0, all_ns) / whole_ns if whole_ns > 0 else 0.0


@dataclass(frozen=True, slots=True)
class AgentBench:
    """`calibrate.bench.Bench` on an agent.

    Attributes:
        peer: index of the arena of another server's agent, to move activations to; None if no link is measured.
        sibling: a second process on the same device, for sets across processes; None without such sets.
        cores: cores of a CPU device.
        receiver: that other server's agent, if it copies received activations onto a GPU.
    """

    agent: AgentProcess
    peer: int | None
    meter: Meter
    sibling: AgentProcess | None = None
    cores: tuple[int, ...] = ()
    receiver: AgentProcess | None = None

    def load(self, instance: int, segment: int, width: float, from_disk: bool) -> tuple[float, int]:
        """See `Bench`."""
        timed = self.agent.ask(BenchmarkLoad(instance, segment, width, from_disk), Timed)
        return timed.samples_s[0], timed.vram_bytes

    def unload(self, instance: int) -> float:
        """See `Bench`."""
        return self.agent.ask(BenchmarkUnload(instance), Timed).samples_s[0]

    def solo(self, point: Point, warmup: int, repeats: int, min_s: float, *, paused: bool = True) -> Loop:
        """See `Bench`."""
        return self._loop(self.timed(point, warmup, repeats, min_s, self._pause_s if paused else 0.0))

    @property
    def _pause_s(self) -> float:
        """In serving, a batch finds its thread asleep and its caches evicted; on a GPU a cold host is a cost of it."""
        return PAUSE_S if self.cores else 0.0

    def _loop(self, result: BenchmarkResult) -> Loop:
        """Convert a result for storage, with a GPU's clocks before they fall."""
        clock_mhz = self.meter.sensor.details().sm_clock_mhz
        return Loop(result.samples_s, result.wall_s, result.cpu_s, result.waited_s, result.references_s, clock_mhz)

    def points(
        self, instance: int, points: Sequence[Point], warmup: int, repeats: int, min_s: float
    ) -> tuple[list[Loop], int]:
        """See `Bench`."""
        message = BenchmarkInstance(instance, tuple(points), warmup, repeats, min_s, self._pause_s)
        result = self.agent.ask(message, InstanceResult)
        return [self._loop(loop) for loop in result.loops], result.captured

    def paths(self, paths: Sequence[tuple[Point, ...]], repeats: int) -> Sequence[float]:
        """See `Bench`."""
        return self.agent.ask(BenchmarkPaths(tuple(paths), repeats), Timed).samples_s

    def beside_load(self, point: Point, segment: int, width: float) -> tuple[float, float]:
        """See `Bench`."""
        result = self.agent.ask(BenchmarkBesideLoad(point, segment, width, QUIET_S), BesideLoadResult)
        return result.quiet_s, result.beside_s

    def timed(self, point: Point, warmup: int, repeats: int, min_s: float, pause_s: float = 0.0) -> BenchmarkResult:
        """Time forward passes of a point alone in the agent's process."""
        return self.agent.ask(Benchmark(point, warmup, repeats, min_s, pause_s), BenchmarkResult)

    def together(self, points: Sequence[Point], duration_s: float, *, across: bool = False) -> SharedLoop:
        """See `Bench`."""
        agents = [self.agent]
        if across:
            assert self.sibling is not None, "a plan without a second process asks for no set across processes"
            agents.append(self.sibling)
        first_s = LEAD_S if self.cores else GPU_LEAD_S
        for times in LEAD_TIMES if across else (0,):
            before, begin_ns = _CoreUse.of(self.cores, agents), time.monotonic_ns() + round(times * first_s * NS_PER_S)
            for index, agent in enumerate(agents):
                mine = tuple(points[index :: len(agents)])
                agent.send(BenchmarkTogether(mine, duration_s, begin_ns if across else 0))
            results = [agent.expect(TogetherResult) for agent in agents]
            if (apart := apart_share(results)) <= MAX_APART:
                break
        background_share = max(_CoreUse.of(self.cores, agents).background_share(before), apart if across else 0.0)
        members = [results[index % len(agents)].results[index // len(agents)] for index in range(len(points))]
        return SharedLoop(members, background_share)

    def dispatch(self, point: Point, number: int) -> Sequence[float]:
        """See `Bench`."""
        return self.agent.ask(BenchmarkDispatch(point, number, PAUSE_S), Timed).samples_s

    def transfer(self, size_bytes: int, number: int) -> Sequence[float]:
        """See `Bench`."""
        assert self.peer is not None, "a plan without a peer asks for no transfer"
        return transfer_round(self.agent, self.peer, size_bytes, number, PAUSE_S, receiver=self.receiver)

    def steady(self, point: Point, duration_s: float, duty: float = 1.0) -> SteadyLoad:
        """See `Bench`."""
        pause_s = self.pause_s(point, duty)
        with sampled(self.meter.sensor) as take:
            result = self.timed(point, 5, 2, duration_s, pause_s)
            watched = take()
        power = self.meter.mean(watched, self.meter.rise_s)
        return SteadyLoad(
            images=len(result.samples_s) * point.batch,
            elapsed_s=result.wall_s,
            power_w=power.power_w,
            utilization=power.utilization,
            provenance=power.provenance,
            sm_utilization=power.sm_utilization,
            busy_s=sum(result.samples_s),
            sm_clock_mhz=power.sm_clock_mhz,
        )

    def pause_s(self, point: Point, duty: float) -> float:
        """Return the pause after each pass for which passes take `duty` of the time."""
        if duty >= 1.0:
            return 0.0
        seen = self.timed(point, 5, 5, 0.0)
        return (1 / duty - 1) * sorted(seen.samples_s)[len(seen.samples_s) // 2]


@dataclass(frozen=True, slots=True)
class _CoreUse:
    """CPU time of a CPU device's cores at one moment, used by all and by our agents."""

    cores: int
    at_s: float
    busy_s: float
    own_s: float

    @classmethod
    def of(cls, cores: Sequence[int], agents: Sequence[AgentProcess]) -> _CoreUse:
        everywhere = psutil.cpu_times(percpu=True)
        times = [everywhere[core] for core in cores]
        idle_s = sum(used.idle + getattr(used, "iowait", 0.0) for used in times)
        own_s = sum(process_cpu_s(agent.pid) for agent in agents)
        return cls(len(cores), time.monotonic_ns() / NS_PER_S, sum(map(sum, times)) - idle_s, own_s)

    def background_share(self, before: _CoreUse) -> float:
        """Return the share of the cores that other programs have used since `before`; 0 if the device has none."""
        foreign_s = self.busy_s - before.busy_s - (self.own_s - before.own_s)
        return max(0.0, foreign_s) / (self.cores * (self.at_s - before.at_s)) if self.cores else 0.0
