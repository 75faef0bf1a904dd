"""The messages between the ingress and the router's process; both are on one host, and read one monotonic clock.

Images travel in an arena of *slots*, one per image. A slot identifies its image: the ingress reuses it only when the
router has answered for it.
"""

from __future__ import annotations

import msgspec

from hw.transport.messages import Message
from hw.transport.port import Port


class Submit(Message, frozen=True):
    """Images of a class in these slots, complete since `received_ns`; their answers expire at `deadline_ns`."""

    slots: tuple[int, ...]
    received_ns: int
    deadline_ns: int
    service_class: int = 0


class Cancel(Message, frozen=True):
    """The answers for these slots are no longer wanted; some may have been sent meanwhile."""

    slots: tuple[int, ...]


class Alive(Message, frozen=True):
    """The ingress has received a `Status`."""


class Drained(Message, frozen=True):
    """All accepted images are answered, and no other image comes."""


class Answered(Message, frozen=True):
    """An image has passed all segments.

    Attributes:
        label: -1 if the device is emulated.
        widths: that it was served at.
        scores: its logits, float32; empty if the device is emulated.
        took_ns: from its arrival to its end, as the router counts latencies.
    """

    slot: int
    label: int
    widths: tuple[float, ...]
    scores: bytes
    took_ns: int


class Failed(Message, frozen=True):
    """An image was dropped."""

    slot: int
    reason: str


class Serving(Message, frozen=True):
    """Another model serves: each answer that comes later is of this version; `top1`: see `RouterConfig`."""

    version: str
    top1: tuple[float, ...]


class ServerState(msgspec.Struct, frozen=True, array_like=True):
    """A server's totals so far: image passes of a segment, and the time during which some pass ran."""

    name: str
    is_up: bool
    images: int
    busy_ns: int


class Status(Message, frozen=True):
    """The router's state, several times a second.

    Attributes:
        is_ready: whether every segment has a server that is up.
        queued: images inside that no server has.
        busy_ns: CPU time of its process.
        completed: images so far, and `accuracy_sum` the sum of their widths' values in the accuracy table.
        floor: the mean accuracy target; 0 for none.
        limit_ns: the p99 latency target; 0 for none.
        collections: of garbage in it, which took `collected_ns`.
    """

    is_ready: bool
    queued: int
    busy_ns: int
    completed: int
    accuracy_sum: float
    floor: float
    limit_ns: int
    servers: tuple[ServerState, ...]
    collections: int = 0
    collected_ns: int = 0


class Drain(Message, frozen=True):
    """Accept nothing more; `Drained` answers when all accepted images are answered."""


ToRouter = Submit | Cancel | Alive | Drained
ToIngress = Answered | Failed | Status | Serving | Drain
RouterPort = Port[ToIngress, ToRouter]
IngressPort = Port[ToRouter, ToIngress]
