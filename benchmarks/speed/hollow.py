"""Clusters whose passes take no time, to measure the router, the workers, and the port between them."""

from __future__ import annotations

import os
import time  # noqa: TID251 - lanes report real times
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hw.networks.network_files import ModelFile
from hw.router.local_cluster import HardwareCluster
from hw.router.router_loop import Routing
from hw.router.run_requests import HardwareRun, ServedNetwork
from hw.router.server_port import HardwareServer
from hw.telemetry import Sensor, usable_cores
from hw.transport.messages import Input, Measurement, Move, Moved, Refused
from hw.worker.emulated_lanes import EmulatedDevice
from hw.worker.lanes import BatchEnded, Fitting, LaneEvent, LoadEnded, Outfit, Tell, UnloadEnded
from kit.random_streams import stream
from policies.faults import Impairment
from policies.greedy_scheduler import GreedyParams, Spec
from policies.interfaces import MICRO_BATCH_SIZES, AccuracyPrior, RewardWeights, RouterConfig
from policies.router_names import make_router
from policies.rules.rule_context import RouterContext
from policies.vocabulary import NS_PER_S, RunBatch, WorkKey

SEGMENTS: Final = 4
WIDTHS: Final = (0.25, 0.5, 0.75, 1.0)
BATCH_LIMIT: Final = 32
SHAPES: Final = {12_288: (3, 32, 32), 262_144: (16, 64, 64)}  # of an image and of activations; float32
_IMAGES: Final = 64
_DRAIN_S: Final = 10


class HollowLanes:
    """`hw.worker.lanes.Lanes` that end all work at once."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._due: list[LaneEvent] = []

    @property
    def next_ns(self) -> int | None:
        """Now, if anything is due."""
        return 0 if self._due else None

    def ring(self, now_ns: int) -> None:
        """Report finished work; what follows is due next time."""
        due, self._due = self._due, []
        for event in due:
            self._tell(event)

    def load(self, instance: int, segment: int, width: float, from_disk: bool) -> None:
        self._due.append(LoadEnded(instance, 1))

    def unload(self, instance: int) -> None:
        self._due.append(UnloadEnded(instance))

    def run(self, command: RunBatch) -> None:
        now_ns = time.monotonic_ns()
        predictions = (0,) * len(command.requests) if command.segment == SEGMENTS else ()
        self._due.append(BatchEnded(command.batch, predictions, now_ns, now_ns))

    def take(self, inputs: Sequence[Input]) -> None: ...

    def retain(self, requests: Sequence[int]) -> None: ...

    def forget(self, requests: Iterable[int]) -> None: ...

    def move(self, message: Move) -> Moved:
        return Moved(message.transfer, (1,), "float32", False)

    def impair(self, impairment: Impairment) -> None: ...

    def reset(self, keeps: Collection[Spec] = ()) -> int:
        self._due.clear()
        return 0


@dataclass(frozen=True, slots=True)
class HollowOutfit:
    """Factory of lanes, sent to the worker's process, which uses only these cores."""

    cores: tuple[int, ...]

    def fit(self, tell: Tell, *_: object) -> Fitting:
        if self.cores:
            os.sched_setaffinity(0, self.cores)
        return Fitting(
            lanes=HollowLanes(tell),
            sensor=lambda _: Sensor(),
            measure=_refuse,
            explain=lambda error: ("internal_error", str(error)),
            context_bytes=0,
            execution={},
            computes_here=False,
        )


def _refuse(asked: Measurement) -> Refused:
    return Refused("bad_input", f"nothing to measure: {asked}")


class HollowCluster(HardwareCluster):
    """A cluster whose workers have hollow lanes, whatever their devices."""

    def _outfit(self, index: int, file: ModelFile | None) -> Outfit:
        return HollowOutfit(self.servers[index].device.cores)


def devices(count: int) -> list[EmulatedDevice]:
    """Return devices: the first core is the router's; workers have one each or share the last."""
    cores = usable_cores()
    worker_cores = cores[1 : count + 1] if len(cores) > count else cores[-1:] * count
    return [EmulatedDevice("", b"", "hollow", cores=(core,)) for core in worker_cores]


def served(shape: tuple[int, ...]) -> ServedNetwork:
    """Return a network of four segments, whose activations all have one shape."""
    return ServedNetwork(SEGMENTS, WIDTHS, shape, lambda segment, width: shape)


def servers(of: Sequence[EmulatedDevice]) -> list[HardwareServer]:
    """Return servers with everything loaded from the start, at full width."""
    sizes = {(segment, width): 1 for segment in range(1, SEGMENTS + 1) for width in WIDTHS}
    preload = tuple((segment, 1.0) for segment in range(1, SEGMENTS + 1))
    params = GreedyParams(WIDTHS, sizes, 0, BATCH_LIMIT, 1 << 30, preload=preload)
    return [
        HardwareServer(f"server{index}", device, params, 1.0, 2.0, sensor_period_s=0.05)
        for index, device in enumerate(of)
    ]


class EvenCosts:
    """Equal costs of all servers."""

    alike = None

    def batch_s(self, server: int, key: WorkKey, batch: int) -> float:
        return 1e-3

    def image_s(self, server: int, key: WorkKey) -> float:
        return 1e-4

    def energy_j(self, server: int, key: WorkKey) -> float:
        return 1e-2

    def transfer_s(self, source: int, server: int, segment: int, previous_width: float, images: int) -> float:
        return 1e-3

    def load_s(self, server: int, segment: int, width: float) -> float:
        return 1e-2


@dataclass(frozen=True, slots=True)
class MicroBatchLoad:
    """Arrivals: `micro_batch` images at a time, so that a micro-batch has this size; `micro_batches_s` are of all hops
    together."""

    micro_batch: int
    micro_batches_s: float
    seconds: float

    @property
    def arrivals_ns(self) -> NDArray[np.int64]:
        """Return Poisson arrivals of groups; each group makes a micro-batch a segment."""
        rate = self.micro_batches_s / SEGMENTS
        gaps_s = stream(0, "arrivals").exponential(1 / rate, size=round(rate * self.seconds))
        return np.repeat((np.cumsum(gaps_s) * NS_PER_S).astype(np.int64), self.micro_batch)

    def run(self, shape: tuple[int, ...], **changes: Any) -> HardwareRun:
        """Build the executors' run, without a log."""
        images, predictions = np.zeros((_IMAGES, *shape), np.float32), np.zeros(_IMAGES, np.int64)
        arrivals_ns = self.arrivals_ns
        horizon_ns = int(max(self.seconds * NS_PER_S, arrivals_ns[-1] + 1))
        return HardwareRun(
            arrivals_ns, images, predictions, horizon_ns, **{"drain_limit_ns": _DRAIN_S * NS_PER_S, **changes}
        )


def routing(
    name: str,
    count: int,
    micro_batch_sizes: tuple[int, ...] = MICRO_BATCH_SIZES,
    segments: int = SEGMENTS,
    widths: tuple[float, ...] = WIDTHS,
    seed: int = 0,
) -> tuple[RouterConfig, Routing]:
    """Build a router by its name over equal servers that hold every instance."""
    config = RouterConfig(segments, widths, (((True,) * len(widths),) * segments,) * count, micro_batch_sizes)
    prior = AccuracyPrior({(widths[-1],) * segments: 0.5})
    policy = make_router(name, RouterContext(config, EvenCosts(), prior, (1.0,) * count))
    return config, Routing(policy, stream(seed, f"router:{name}"), RewardWeights(), prior)
