"""What is served in a run, the source of its requests and the receiver of results, and its devices' sensors.

`RunDevice`: a device that several servers share has one reader among their workers. If that worker dies, another one
becomes the reader, and the energy count continues.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from hw.clock import NEVER_NS, RunClock
from hw.networks.datasets import Images
from hw.networks.network_files import ModelFile
from hw.router.transfers import ELEMENT_BYTES, ImageSource, LinkModel, RequestImages
from hw.transport.messages import Sample
from policies.faults import Fault, Poison
from policies.router_core import RouterCore
from policies.run_records import DeviceTotals
from policies.vocabulary import IMAGE, NS_PER_S, GoalSet, RequestArrived, RequestCompleted, RequestFailed

if TYPE_CHECKING:
    from hw.router.server_port import HardwareServer, RemoteServer


@dataclass(frozen=True, slots=True)
class ServedNetwork:
    """The part of a network's description that its router needs.

    Attributes:
        input_shape: of an image.
        shape_after: (segment, width) -> of one activation after it; segment 0 is the image.
    """

    segments: int
    widths: tuple[float, ...]
    input_shape: tuple[int, ...]
    shape_after: Callable[[int, float], tuple[int, ...]]

    @property
    def largest_input_bytes(self) -> int:
        """The most that an image takes before a segment; of several models the last width need not be the largest."""
        shapes = [self.shape_after(segment, width) for segment in range(1, self.segments) for width in self.widths]
        return ELEMENT_BYTES * max(prod(shape) for shape in (self.input_shape, *shapes))

    @classmethod
    def of(cls, file: ModelFile) -> ServedNetwork:
        """Return the description of a network in a file; raises `InputError` if it cannot be read."""
        model, _ = file.load()
        return cls(model.spec.segments, model.spec.widths, model.spec.input_shape, model.activation_shape)

    @classmethod
    def of_sizes(
        cls, widths: tuple[float, ...], input_bytes: int, activation_bytes: Sequence[Sequence[int]]
    ) -> ServedNetwork:
        """Return the description of a network with known sizes only: of an image, and after (segment, width)."""

        def shape_after(segment: int, width: float) -> tuple[int, ...]:
            size_bytes = activation_bytes[segment - 1][widths.index(width)] if segment else input_bytes
            return (-(-size_bytes // ELEMENT_BYTES),)

        return cls(len(activation_bytes), widths, shape_after(0, IMAGE), shape_after)


@dataclass(frozen=True)
class HardwareRun:
    """The events of a run of the cluster.

    Attributes:
        arrivals_ns: (n,) ascending; request i arrives at arrivals_ns[i].
        images: (n, C, H, W), and labels (n,).
        horizon_ns: arrivals end here; so does the run under `end: cut`.
        end: `drain` continues until nothing is in flight, `drain_limit_ns` at most.
        deadlines_ns: after its arrival, for every request of each class; None for no deadline.
        classes: (n,) the class of each request; None if all are of one.
        keep_log: keep every event and command for replay.
        faults: planned for the workers, with their times.
        goals: the operator's targets with their times, ascending.
        shown: (m,) request i shows image `shown[i modulo m]`; None for all images in turn.
        links: an emulated network between the servers; None for this machine's own. Of this run alone.
        is_correct: (request, its widths) -> whether it is right, if workers return no labels; None compares their
            labels with `labels`.
        measures_costs: whether to measure the costs of the router's process and the port.
    """

    arrivals_ns: NDArray[np.int64]
    images: Images
    labels: NDArray[np.int64]
    horizon_ns: int
    end: Literal["drain", "cut"] = "drain"
    deadlines_ns: tuple[int | None, ...] = (None,)
    classes: NDArray[np.int64] | None = None
    drain_limit_ns: int = 60 * NS_PER_S
    keep_log: bool = False
    faults: tuple[Fault, ...] = ()
    goals: tuple[tuple[int, GoalSet], ...] = ()
    links: LinkModel | None = None
    is_correct: Callable[[int, tuple[float, ...]], bool] | None = None
    measures_costs: bool = False
    shown: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        if len(self.labels) != len(self.images) or not len(self.images):
            raise ValueError(f"{len(self.images)} images with {len(self.labels)} labels")
        if np.any(np.diff(self.arrivals_ns) < 0):
            raise ValueError("arrivals must ascend")

    @property
    def images_shown(self) -> NDArray[np.int64]:
        """(m,); see `shown`."""
        return np.arange(len(self.images)) if self.shown is None else self.shown


# ------------------------------------------------------------------------------------------------- requests and results


class Traffic(Protocol):
    """The requests of one run. Times are the run's.

    Attributes:
        images: of the requests that are in flight.
        next_ns: when the next one is due; never, while none is known.
        horizon_ns: arrivals end here; never, while they continue.
        has_ended: whether no more will come.
        descriptors: to select on now, next to the workers' ports.
    """

    images: RequestImages
    next_ns: int
    horizon_ns: int
    has_ended: bool
    descriptors: Sequence[int]

    def take(self, now_ns: int) -> tuple[RequestArrived, int]:
        """Return the next request, which is due now, and its arrival time."""
        ...

    def judge(
        self, requests: tuple[int, ...], width: float, labels: tuple[int, ...], scores: bytes
    ) -> tuple[bool, ...]:
        """Return which labels are right; empty if that is unknown.

        Args:
            width: of the last segment.
            labels, scores: the worker's; see `hw.transport.messages.Returned`.
        """
        ...

    def end(self, command: RequestCompleted | RequestFailed) -> None:
        """Process a request's end."""
        ...

    def hear(self) -> None:
        """Process input at a descriptor."""
        ...

    def take_cancelled(self) -> tuple[int, ...]:
        """Return the requests cancelled since the last call; all of them have arrived before."""
        ...

    def flush(self) -> bool:
        """Send what is pending, without a wait; return whether all of it is sent."""
        ...


class PlannedTraffic:
    """Open-loop arrivals that were drawn before the run.

    Attributes:
        lags_ns: how late each was noticed.
    """

    descriptors: Sequence[int] = ()

    def __init__(self, run: HardwareRun, router: RouterCore, clock: RunClock) -> None:
        poisoned = frozenset[int]().union(*(fault.requests for fault in run.faults if isinstance(fault, Poison)))
        self.images: RequestImages = ImageSource(run.images, run.images_shown, poisoned)
        self.horizon_ns = run.horizon_ns
        self.lags_ns: list[int] = []
        self._deadlines_ns = run.deadlines_ns
        self._arrivals_ns: list[int] = run.arrivals_ns.tolist()
        self._classes: list[int] = [0] * len(self._arrivals_ns) if run.classes is None else run.classes.tolist()
        self._taken = 0
        self.next_ns = self._arrivals_ns[0] if self._arrivals_ns else NEVER_NS
        self.has_ended = not self._arrivals_ns
        self._labels: list[int] = run.labels[run.images_shown].tolist()
        self._is_correct = run.is_correct
        self._widths_before_last = router.widths_before_last

    def take(self, now_ns: int) -> tuple[RequestArrived, int]:
        """See `Traffic`: each at its own time, so that waits at a busy router are included."""
        planned_ns, service_class = self.next_ns, self._classes[self._taken]
        relative_ns = self._deadlines_ns[service_class]
        deadline_ns = None if relative_ns is None else planned_ns + relative_ns
        event = RequestArrived(self._taken, deadline_ns, service_class)
        self._taken += 1
        self.has_ended = self._taken == len(self._arrivals_ns)
        self.next_ns = NEVER_NS if self.has_ended else self._arrivals_ns[self._taken]
        self.lags_ns.append(now_ns - planned_ns)
        return event, planned_ns

    def judge(
        self, requests: tuple[int, ...], width: float, labels: tuple[int, ...], scores: bytes
    ) -> tuple[bool, ...]:
        """See `Traffic`: compares with the images' labels, or with the given results of each request at its widths."""
        if (is_correct := self._is_correct) is not None:
            return tuple([is_correct(request, (*self._widths_before_last(request), width)) for request in requests])
        expected, count = self._labels, len(self._labels)
        return tuple([label == expected[request % count] for request, label in zip(requests, labels, strict=True)])

    def end(self, command: RequestCompleted | RequestFailed) -> None:
        """See `Traffic`: does nothing."""

    def hear(self) -> None:
        """See `Traffic`: nothing comes."""

    def take_cancelled(self) -> tuple[int, ...]:
        """See `Traffic`: all are waited for."""
        return ()

    def flush(self) -> bool:
        """See `Traffic`: nothing is sent."""
        return True


# -------------------------------------------------------------------------------------------------------------- devices


@dataclass
class RunDevice:
    """A device during a run.

    Attributes:
        servers: on it, by index.
        period_ns: of its sensor's readings.
        unmetered_s: time with a reader that reported neither; it counts no energy.
    """

    name: str
    servers: tuple[int, ...]
    period_ns: int
    bare_idle_w: float
    context_idle_w: float
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
        pids = tuple(server.slot.worker.pid for server in up)
        for server in up:
            server.sense(self.period_ns if server.index == self._reader else 0, pids)

    def heard(self, sample: Sample) -> None:
        """Process the reader's next sample: its energy counter is preferred to its power, integrated."""
        elapsed_s = max(0, sample.sampled_ns - self._at_ns) / NS_PER_S
        self._at_ns = max(self._at_ns, sample.sampled_ns)
        self.busy_s += (sample.utilization or 0.0) * elapsed_s
        before_j, self._counter_j = self._counter_j, sample.energy_j
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

    def totals(self) -> DeviceTotals:
        """Return this device's row of the record."""
        return DeviceTotals(
            self.name, self.energy_j, self.bare_idle_w, self.context_idle_w, unmetered_s=self.unmetered_s
        )

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
        )
        for indexes in members.values()
    ]
