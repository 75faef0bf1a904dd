"""The source of a run's requests, and the receiver of their results: a plan, or clients (`hw.door.clients`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from hw.host.clock import NEVER_NS, RunClock
from hw.router.run_spec import HardwareRun
from hw.router.transfers import Images, ImageSource
from policies.faults import Poison
from policies.router import RouterCore
from policies.vocabulary import RequestArrived, RequestCompleted, RequestFailed


class Traffic(Protocol):
    """The requests of one run. Times are the run's.

    Attributes:
        images: of the requests that are in flight.
        next_ns: when the next one is due; never, while none is known.
        horizon_ns: arrivals end here; never, while they continue.
        has_ended: whether no more will come.
        descriptors: to select on now, next to the agents' ports.
    """

    images: Images
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
            labels, scores: the agent's; see `hw.transport.messages.Returned`.
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
        self.images: Images = ImageSource(run.images, run.images_shown, poisoned)
        self.horizon_ns = run.horizon_ns
        self.lags_ns: list[int] = []
        self._deadlines_ns = run.deadlines_ns
        self._arrivals_ns: list[int] = run.arrivals_ns.tolist()
        self._classes: list[int] = [0] * len(self._arrivals_ns) if run.classes is None else run.classes.tolist()
        self._taken = 0
        self.next_ns = self._arrivals_ns[0] if self._arrivals_ns else NEVER_NS
        self.has_ended = not self._arrivals_ns
        self._right: list[int] = run.labels[run.images_shown].tolist()
        self._is_correct = run.is_correct
        self._widths_of = router.widths_of

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
            return tuple([is_correct(request, (*self._widths_of(request), width)) for request in requests])
        right, count = self._right, len(self._right)
        return tuple([label == right[request % count] for request, label in zip(requests, labels, strict=True)])

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
