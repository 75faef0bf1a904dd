"""The vocabulary of decisions: requests, micro-batches, batches, events and commands.

Simulator and executors share it: both turn what happens into *events*, pass them to a decision core
(`policies.greedy_scheduler.GreedyScheduler`, `policies.router_core.RouterCore`) together with the time, and execute the
*commands* that it returns. Everything here is frozen and made of numbers, so that a log can be stored and replayed; and
a msgspec struct, which takes a fifth of a frozen dataclass's time to create (a simulated decision creates dozens).

Conventions
    segment          1..S, as in the paper
    width            a width ratio in (0, 1]; `IMAGE` (0.0) as the previous width of segment 1
    server           0..N-1; `ROUTER` (-1) is the location of an image that no server holds yet
    *_ns             integer nanoseconds since the start of the run
    utilization      a share in [0, 1]
    incarnation            counts how often a server came up; an event of an earlier incarnation is stale and is refused
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import msgspec

from kit.units import NS_PER_S as NS_PER_S
from kit.units import nanoseconds as nanoseconds

ROUTER: Final = -1
IMAGE: Final = 0.0
FOLLOW_NS: Final = -1  # instead of the router's separate limit: the operator's


class Provenance(StrEnum):
    """The source of a number (weakest last)."""

    MEASURED = "measured"  # event-timed, or a hardware counter
    POLLED = "polled"  # a sampled sensor
    MODELLED = "modelled"  # computed, e.g. CPU power from TDP and utilization
    EMULATED = "emulated"  # timed in real time, on a device that is played after a profile
    DATASHEET = "datasheet"  # derived from a published specification

    @staticmethod
    def weakest(first: Provenance, *others: Provenance) -> Provenance:
        """Return the provenance of a figure that depends on all of these."""
        order = list(Provenance)
        return max((first, *others), key=order.index)


# ---------------------------------------------------------------------------------------------------------- nouns


class WorkKey(msgspec.Struct, frozen=True, order=True, cache_hash=True, array_like=True):
    """What must agree for two requests to share a batch (Alg. 1 l. 5: `(s, w_req, w_prev)`)."""

    segment: int
    width: float
    previous_width: float


class Residency(msgspec.Struct, frozen=True, array_like=True):
    """The instances of a server: bit (segment - 1) x widths + width index is 1 if there is one of that kind.

    Attributes:
        loaded: those that run batches, or could.
        loading: those that are being loaded.
    """

    loaded: int = 0
    loading: int = 0

    @staticmethod
    def bit(segment: int, width_index: int, widths: int) -> int:
        """Return the bit of a kind of instance; 0 beyond the `MAX_INSTANCES`th."""
        place = (segment - 1) * widths + width_index
        return 1 << place if place < MAX_INSTANCES else 0


NOTHING_RESIDENT: Final = Residency()
MAX_INSTANCES: Final = 62  # kinds that a `Residency` distinguishes: its bits are in 64-bit numbers


class HeadKey(msgspec.Struct, frozen=True, order=True, cache_hash=True):
    """What must agree for two requests to share a micro-batch: their place, and the location of their activations.

    `location` is `ANYWHERE` under `micro_batch_key: any`, when a micro-batch may mix locations. `service_class` is the
    index of their class in `RouterConfig.classes`; 0 if there are none. `version` is `CANARY` if only the canary's
    servers may take them.
    """

    segment: int
    previous_width: float
    location: int
    service_class: int = 0
    version: int = 0


ANYWHERE: Final = -2
STABLE, CANARY = VERSIONS = range(2)  # of the weights: the one for all requests, and a second one for a part of them


class MicroBatch(msgspec.Struct, frozen=True, array_like=True):
    """A micro-batch that one decision sent to one server; its id is the decision's.

    `then`: its path, the widths of the following segments, which it passes there before it returns.
    """

    micro_batch: int
    server: int
    incarnation: int
    key: WorkKey
    requests: tuple[int, ...]
    then: tuple[float, ...] = ()

    def key_at(self, step: int) -> WorkKey:
        """Return the work key of a segment of its path; 0: that which it is sent for."""
        if not step:
            return self.key
        before = self.then[step - 2] if step > 1 else self.key.width
        return WorkKey(self.key.segment + step, self.then[step - 1], before)

    @property
    def keys(self) -> tuple[WorkKey, ...]:
        """The work keys of all its segments, in order."""
        return tuple(map(self.key_at, range(1 + len(self.then)))) if self.then else (self.key,)


class Choice(msgspec.Struct, frozen=True, array_like=True, repr_omit_defaults=True):
    """A router's decision for a micro-batch: the server, the width and the micro-batch size (Eq. 2-4).

    `then`: widths of the following segments, if it passes them on that server without another decision (a *path*).
    """

    server: int
    width: float
    micro_batch_size: int
    then: tuple[float, ...] = ()


class BatchingDelay(msgspec.Struct, frozen=True, array_like=True):
    """The alternative decision: the candidates wait, and so do requests that join their batch queue.

    Attributes:
        requests: the batching delay ends at this length of the batch queue: more than the view's candidates, at most
            the largest micro-batch.
        wait_ns: the longest batching delay, above 0.
    """

    requests: int
    wait_ns: int


class ServerView(msgspec.Struct, frozen=True, array_like=True):
    """The router's knowledge of one server at a decision.

    Attributes:
        valid: up, below its cap of outstanding micro-batches, able to run at least one width of the head's segment, and
            not to be drained, unless no other server that is up could take it.
        widths: for each width of the set, whether this server can hold an instance of the head's segment at it.
        outstanding_requests: sent there and not returned (queued, running or in transfer): q_i of Eq. 1.
        outstanding_micro_batches: the same, in micro-batches.
        outstanding: the same by work key.
        utilization, power_w, vram_used_bytes: the last report's; P_i and U_i of Eq. 1.
        loaded: for each width of the set, whether an instance of the head's segment at it was loaded there, by the last
            return or report. Kinds beyond `MAX_INSTANCES` are unknown: False.
        loading: the same for an instance that was being loaded, or that requests sent there require.
    """

    valid: bool
    widths: tuple[bool, ...]
    outstanding_requests: int
    outstanding_micro_batches: int
    outstanding: Mapping[WorkKey, int]
    utilization: float
    power_w: float
    vram_used_bytes: int
    loaded: tuple[bool, ...]
    loading: tuple[bool, ...]


class ClusterView(msgspec.Struct, frozen=True, array_like=True):
    """A snapshot taken at the start of a decision; the candidate micro-batch is frozen with it.

    Attributes:
        head: the key of the candidate micro-batch (that of the FIFO's oldest request).
        candidates: the size of the largest micro-batch possible now.
        head_entered_ns: when the oldest candidate entered the FIFO.
        fifo_length, completed: q_fifo and c_done of Eq. 1.
        batching_delay_left_ns: the longest batching delay of the candidates possible now; 0 if `BatchingDelay` is not
            allowed.
        accuracy_sum: the sum of the accuracy table's values for the completed width tuples; 0 without a table.
        goal_floor: the operator's floor of mean accuracy now; 0 for none.
        late: number of images completed later than the limit of p99 latency then in force, or failed under one.
        goal_limit_ns: the operator's limit of p99 latency now; 0 for none.
        goal_energy_weight: the price of a joule per image now, in points of accuracy (0.01); 0 for none.
        others_completed: the part of `completed` in other classes than the head's, or by the other version. Accuracy,
            goals and late images are those of the head's class and version alone.
        looked_at: the servers that a router needs to examine (`policies.router_queue`), that of the activations first;
        all
            if it is empty.
    """

    now_ns: int
    head: HeadKey
    candidates: int
    head_entered_ns: int
    fifo_length: int
    completed: int
    servers: tuple[ServerView, ...]
    batching_delay_left_ns: int = 0
    accuracy_sum: float = 0.0
    goal_floor: float = 0.0
    late: int = 0
    goal_limit_ns: int = 0
    goal_energy_weight: float = 0.0
    others_completed: int = 0
    looked_at: tuple[int, ...] = ()


# --------------------------------------------------------------------------------------- events into the router core


class RequestArrived(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """An image of some class entered the system; `deadline_ns` is absolute, if the scenario has deadlines; `version` is
    the one that is to serve it."""

    request: int
    deadline_ns: int | None = None
    service_class: int = 0
    version: int = STABLE


class Decided(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The policy has answered a `Decide`."""

    decision: int
    choice: Choice


class Delayed(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The policy has answered a `Decide` with a batching delay."""

    decision: int
    batching_delay: BatchingDelay


class BatchingDelayRule(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """From now on each new batch queue waits automatically, without a decision: by segment, for how many and how long.

    Attributes:
        requests: (S,) length of the batch queue that ends a batching delay, at most one more than arrive within
            `wait_ns` at the rate seen; 1 for no batching delay.
        wait_ns: (S,) longest batching delay; 0 for no batching delay.
        arrivals_ns: (S,) raises `requests` to the number of images that arrive within this time, at the rate seen; or
            empty.
    """

    requests: tuple[int, ...]
    wait_ns: tuple[int, ...]
    arrivals_ns: tuple[int, ...] = ()

    @property
    def counts(self) -> set[int]:
        """The lengths of the arrays: S alone if the rule fits a network of S segments."""
        return {len(self.requests), len(self.wait_ns), len(self.arrivals_ns or self.wait_ns)}


class GoalSet(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """From now on these are the operator's goals for a class, and replace all others. Routers with a control see them
    in views.

    Attributes:
        floor: mean accuracy; 0 for none.
        limit_ns: of the p99 latency; 0 for none.
        energy_weight: the price of a joule per image, in points of accuracy (0.01).
    """

    floor: float = 0.0
    limit_ns: int = 0
    energy_weight: float = 0.0
    service_class: int = 0


class OwnLimit(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """From now on the router has a separate limit of p99 latency, which determines late images; 0 for none.

    `FOLLOW_NS` for the operator's.
    """

    limit_ns: int


class ModelChanged(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Requests that begin from now on use other weights; none is in flight.

    Attributes:
        accuracies: see `RouterConfig`.
        canary: servers with a second version; each can hold all segments. Empty: none.
        canary_accuracies: that version's accuracies.
    """

    accuracies: tuple[float, ...]
    canary: tuple[int, ...] = ()
    canary_accuracies: tuple[float, ...] = ()


class ArrivalsEnded(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """No more images will arrive: no request is delayed from now on."""


class ServerDraining(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """From now on a server is drained: it gets no new micro-batch; or (False) it gets micro-batches again.

    The operator asks for it, so it outlives the server's incarnations. If no other server that is up can hold the
    segment of a micro-batch, a server to be drained still takes it, so that no request waits forever.
    """

    server: int
    is_draining: bool


class TransferStarted(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Activations (or images) of a micro-batch began to move."""

    micro_batch: int
    source: int
    destination: int
    requests: tuple[int, ...]


class TransferFinished(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The activations arrived: their location is now the destination."""

    micro_batch: int
    source: int
    destination: int
    requests: tuple[int, ...]


class TransferFailed(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The activations could not be moved; they are still at the source unless the source is what failed."""

    micro_batch: int
    source: int
    destination: int
    requests: tuple[int, ...]
    reason: str


class RequestsReturned(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A batch ended at a server: its requests have passed `segment` at `width`, and all of their path before it.

    `correct` is empty except at the last segment, when it has one entry for each request: whether the prediction was
    right. `residency` is the server's at the return.
    """

    server: int
    incarnation: int
    requests: tuple[int, ...]
    segment: int
    width: float
    correct: tuple[bool, ...] = ()
    residency: Residency = NOTHING_RESIDENT


class RequestsRejected(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A server could not run these; their inputs are still at that server."""

    server: int
    incarnation: int
    requests: tuple[int, ...]
    reason: str


class RequestsCancelled(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """These requests are cancelled; the router may have no entry of some, as they have ended."""

    requests: tuple[int, ...]


class ServerReport(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Telemetry as the router receives it: sampled then, received now. `residency` is that at forwarding."""

    server: int
    incarnation: int
    sampled_ns: int
    received_ns: int
    queue_length: int
    utilization: float
    power_w: float
    vram_used_bytes: int
    residency: Residency = NOTHING_RESIDENT


class RouterTimer(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The time that `RouterCore.next_wake_ns` asked for has come."""


# ----------------------------------------------------------------------------- events into both (faults are events)


class ServerDown(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A server failed: its instances, queue and activations are lost."""

    server: int
    incarnation: int
    reason: str


class ServerUp(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A server is (again) in service, empty, in a new incarnation."""

    server: int
    incarnation: int


class StragglerStarted(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A server runs `factor` times slower from now on. Recorded; no decision may use it (it is unannounced)."""

    server: int
    factor: float


class StragglerEnded(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The server runs at its normal speed again."""

    server: int


# ------------------------------------------------------------------------------------ events into a greedy scheduler


class MicroBatchArrived(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A micro-batch and all its inputs are at the server."""

    micro_batch: MicroBatch


class InstanceLoaded(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """`LoadInstance` is done; `vram_bytes`: what the device really allocated, 0 if it is as the parameters specify."""

    incarnation: int
    instance: int
    vram_bytes: int = 0


class LoadFailed(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """`LoadInstance` failed; nothing of it is left in memory."""

    incarnation: int
    instance: int
    reason: str


class InstanceUnloaded(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """`UnloadInstance` is done: its memory is free."""

    incarnation: int
    instance: int


class BatchStarted(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The forward pass of a batch began at `started_ns` (a driver may learn of it only when it has ended)."""

    incarnation: int
    batch: int
    started_ns: int


class BatchFinished(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The forward pass of a batch ended and its outputs are at the server.

    `failed` lists members that broke it, for `reason`: the others ran without them, and their inputs are still there.
    `ended_ns` is when the pass ended, if the driver learns of it later; None for now. The end of an emulated pass may
    be detected `late_ns` after that.
    """

    incarnation: int
    batch: int
    failed: tuple[int, ...] = ()
    reason: str = ""
    ended_ns: int | None = None
    late_ns: int = 0


class BatchFailed(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A batch broke; its inputs are still at the server."""

    incarnation: int
    batch: int
    reason: str


class TelemetrySampled(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A reading of the server's sensor: an average over its window, received after its lag (`util_metric` names it).

    `queue_length` counts the requests that waited or ran when it was sampled.
    """

    incarnation: int
    sampled_ns: int
    received_ns: int
    utilization: float
    power_w: float
    vram_used_bytes: int
    queue_length: int = 0


class TimerFired(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The time that `GreedyScheduler.next_wake_ns` asked for has come."""


# ------------------------------------------------------------------------------------------ commands of the router


class Decide(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Run the policy on this view; answer with `Decided`."""

    decision: int
    view: ClusterView


class BatchingDelayBegun(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The batching delay of a decision has begun; nothing is to be done. Its credit is that of the oldest request's
    next micro-batch.

    Attributes:
        request: the oldest one in the batching delay, and `entered_ns`, when it entered the FIFO.
        until_ns: when the batching delay ends, if nothing ends it earlier.
    """

    decision: int
    request: int
    entered_ns: int
    until_ns: int


class SendMicroBatch(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Bring these requests' inputs to the micro-batch's server, then hand the micro-batch to its scheduler.

    `moves` lists (source, requests) for those that are elsewhere, in order of the source.
    """

    micro_batch: MicroBatch
    moves: tuple[tuple[int, tuple[int, ...]], ...]


class RequestCompleted(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A request has passed its last segment, as all others on servers of one version."""

    request: int
    widths: tuple[float, ...]
    correct: bool
    retries: int
    version: int = STABLE


class RequestFailed(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A request was given up, for a named reason, after `retries` retries."""

    request: int
    reason: str
    retries: int


class MicroBatchFinished(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The last member of a micro-batch has returned: the decision gets its credit.

    Attributes:
        entered_ns: when each member entered the FIFO for this segment.
        ended_ns: when each member returned; for a failed one, when it was given up.
        widths: each member's width tuple after the segment; empty for a failed one.
        correct: whether the prediction was right, at the last segment; a failed member counts as wrong; empty elsewhere
            (except for failures, which are wrong at any segment: see `failed`).
    """

    decision: int
    server: int
    segment: int
    requests: tuple[int, ...]
    entered_ns: tuple[int, ...]
    ended_ns: tuple[int, ...]
    widths: tuple[tuple[float, ...], ...]
    correct: tuple[bool, ...]
    failed: tuple[bool, ...]


class ReleaseActivations(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Release these requests' activations, which are not needed any more."""

    server: int
    requests: tuple[int, ...]


# ------------------------------------------------------------------------------------- commands of a greedy scheduler


class LoadInstance(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Load a segment's weights at this width into device memory (charged from now on)."""

    incarnation: int
    instance: int
    segment: int
    width: float


class UnloadInstance(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Free an idle instance (its memory counts as used until `InstanceUnloaded`)."""

    incarnation: int
    instance: int


class RunBatch(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Run these requests through one instance.

    `served_width` is the width that runs (`served_width: requested | instance`); `padded` is the batch size that the
    device sees, at least `len(requests)`.
    """

    incarnation: int
    batch: int
    instance: int
    requests: tuple[int, ...]
    segment: int
    previous_width: float
    served_width: float
    padded: int


class ReturnRequests(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Return these requests to the router: they have passed `segment` at `width`, and all of their path before it.

    Their activations stay here.
    """

    incarnation: int
    requests: tuple[int, ...]
    segment: int
    width: float
    residency: Residency = NOTHING_RESIDENT


class RejectRequests(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Return these requests to the router: they could not run here."""

    incarnation: int
    requests: tuple[int, ...]
    reason: str


RouterEvent = (
    RequestArrived
    | Decided
    | Delayed
    | BatchingDelayRule
    | GoalSet
    | OwnLimit
    | ModelChanged
    | ArrivalsEnded
    | ServerDraining
    | TransferStarted
    | TransferFinished
    | TransferFailed
    | RequestsReturned
    | RequestsRejected
    | RequestsCancelled
    | ServerReport
    | ServerDown
    | ServerUp
    | StragglerStarted
    | StragglerEnded
    | RouterTimer
)
RouterCommand = (
    Decide
    | BatchingDelayBegun
    | SendMicroBatch
    | RequestCompleted
    | RequestFailed
    | MicroBatchFinished
    | ReleaseActivations
)
ServerEvent = (
    MicroBatchArrived
    | InstanceLoaded
    | LoadFailed
    | InstanceUnloaded
    | BatchStarted
    | BatchFinished
    | BatchFailed
    | TelemetrySampled
    | ServerDown
    | ServerUp
    | StragglerStarted
    | StragglerEnded
    | TimerFired
)
ServerCommand = LoadInstance | UnloadInstance | RunBatch | ReturnRequests | RejectRequests
