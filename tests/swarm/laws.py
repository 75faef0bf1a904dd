"""What must hold at every step, whoever dies; each law knows only what was said, and who has what by that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from hw.clock import NEVER_NS
from hw.transport.messages import ComeUp, Deliver, Pong, Rejected, Returned, Start
from hw.transport.peers import OffsetEstimate
from policies.faults import PLANNED, WORKER_HUNG, Outage
from policies.replay import replay_run
from policies.run_ledger import Ledger
from policies.run_records import RunRecord
from policies.vocabulary import (
    NS_PER_S,
    MicroBatch,
    RequestArrived,
    RequestCompleted,
    RequestFailed,
    RequestsRejected,
    RequestsReturned,
    RouterCommand,
    RouterEvent,
    SendMicroBatch,
    ServerDown,
    ServerUp,
    TransferFailed,
)

if TYPE_CHECKING:
    from hw.router.router_loop import RouterLoop
    from hw.transport.shared_memory import Slab
    from tests.swarm.mix import Mix
    from tests.swarm.wires import EventQueue

FIFO: Final = None
FIRST_PING: Final = -1_000_000  # the world's own count down from here
FEW_LOOKS: Final = 3  # in a row that find nothing, where no word is due and nothing was done in between
READY_IN_NS: Final = 30 * NS_PER_S
DRAINED_IN_NS: Final = 60 * NS_PER_S


class BrokenLawError(AssertionError):
    """What a seed is kept for."""


def _require(holds: bool, law: str, *facts: object) -> None:
    if not holds:
        raise BrokenLawError(f"{law}: {', '.join(map(str, facts))}")


class Laws:
    """Of one world; they look on, and change nothing in it.

    Attributes:
        may_blame: whether a server that is told to hang may do so.
        drained_in_ns: how soon after the last fault nobody is inside.
    """

    def __init__(self, event_queue: EventQueue) -> None:
        self._event_queue = event_queue
        self.steps = self._looked_at = self._idle_looks = 0
        self._up: dict[int, int] = {}  # the incarnation of each server that is up for the router
        self._held: dict[int, set[int]] = {}  # by incarnation: what it was given and has not given back
        self._wrong_ns: dict[
            int, int
        ] = {}  # by incarnation: how wrong its clock may be by what it was told of the run's
        self._pongs: dict[int, int] = {}  # by incarnation: the last of the pings that the world itself posts
        self._loop: RouterLoop | None = None
        self.drained_in_ns = DRAINED_IN_NS
        self.may_wait = False  # arrivals, for a model's turn
        self.may_blame: Callable[[int], bool] = lambda server: True
        self._begin()

    def _begin(self) -> None:
        self._place: dict[int, MicroBatch | None] = {}
        self._accepted = self._completed = self._failed = 0
        self._incarnations: dict[int, int] = {}
        self._out_until_ns: dict[int, int] = {}  # by server
        self._last_ns = 0
        self._up.clear()
        self._held.clear()

    def attach(self, loop: RouterLoop, mix: Mix) -> None:
        """A run begins: from here on its core is looked at."""
        self._begin()
        self._loop, core = loop, loop._router
        handle = core.handle

        def watched(event: RouterEvent, now_ns: int) -> list[RouterCommand]:
            commands = handle(event, now_ns)
            self._step(event, commands, now_ns, mix)
            _require(core.in_flight == len(self._place), "accepted = completed + failed + inside", core.in_flight)
            return commands

        core.handle = watched  # type: ignore[method-assign]

    def readied(self, took_ns: int) -> None:
        """All workers were made ready, and none of them hangs."""
        _require(took_ns < READY_IN_NS, "who is gone is not waited for", took_ns)

    # -------------------------------------------------------------------------------------------- the router's core

    def _step(self, event: RouterEvent, commands: Sequence[RouterCommand], now_ns: int, mix: Mix) -> None:
        self.steps += 1
        _require(now_ns >= self._last_ns, "a core's time goes on", self._last_ns, now_ns)
        self._last_ns = now_ns
        match event:
            case RequestArrived(request):
                late_ns = now_ns - mix.arrivals_ns[request]
                is_due = late_ns >= 0 if self.may_wait else late_ns == 0
                _require(is_due, "arrivals are at their plan's times", request, now_ns)
                _require(request == self._accepted, "each arrives once, in order", request)
                self._accepted += 1
                self._place[request] = FIFO
            case RequestsReturned(server, incarnation, requests) | RequestsRejected(server, incarnation, requests):
                if self._incarnations.get(server) == incarnation:
                    for request in requests:
                        micro_batch = self._place.get(request)
                        is_there = micro_batch is not None and (micro_batch.server, micro_batch.incarnation) == (
                            server,
                            incarnation,
                        )
                        _require(is_there, "who gives back has it", type(event).__name__, server, request, micro_batch)
                        has_room = self._loop is not None and request in self._loop._servers[server].inbox._slab_of
                        _require(not has_room, "who waits keeps no room in an arena", server, request)
                        self._place[request] = FIFO
            case TransferFailed(number, _, _, requests):
                for request in requests:
                    micro_batch = self._place.get(request)
                    if micro_batch is not None and micro_batch.micro_batch == number:
                        self._place[request] = FIFO
            case ServerUp(server, incarnation):
                _require(
                    now_ns >= self._out_until_ns.get(server, 0), "an outage lasts as long as planned", server, now_ns
                )
                self._incarnations[server] = incarnation
            case ServerDown(server, _, reason):
                if reason == PLANNED:
                    outages = (fault for fault in mix.faults if isinstance(fault, Outage) and fault.server == server)
                    ends_ns = (
                        NEVER_NS if outage.end_ns is None else outage.end_ns
                        for outage in outages
                        if outage.start_ns <= now_ns
                    )
                    self._out_until_ns[server] = max(ends_ns, default=0)  # none where another worker took over
                if reason == WORKER_HUNG:
                    _require(self.may_blame(server), "nobody is blamed for what another did", server, now_ns)
                self._incarnations.pop(server, None)
                self._held.pop(self._up.pop(server, 0), None)
                for request, micro_batch in self._place.items():
                    if micro_batch is not None and micro_batch.server == server:
                        self._place[request] = FIFO
        for command in commands:
            self._follow(command)

    def _follow(self, command: RouterCommand) -> None:
        match command:
            case SendMicroBatch(micro_batch):
                _require(
                    self._incarnations.get(micro_batch.server) == micro_batch.incarnation,
                    "blocks go to who is up",
                    micro_batch,
                )
                for request in micro_batch.requests:
                    _require(
                        self._place.get(request, micro_batch) is FIFO, "a request is in one place", request, micro_batch
                    )
                    self._place[request] = micro_batch
            case RequestCompleted(request) | RequestFailed(request):
                _require(self._place.pop(request, command) is FIFO, "each ends once, and is nowhere then", request)
                self._completed += isinstance(command, RequestCompleted)
                self._failed += isinstance(command, RequestFailed)

    # ---------------------------------------------------------------------------------------------------- the ports

    def posted(self, server: int, worker_id: int, message: Any) -> None:
        match message:
            case ComeUp():
                self._up[server], self._held[worker_id] = worker_id, set()
            case Start() if self._loop is not None:
                error_ns = self._loop._servers[server].slot.worker.offset.error_ns
                self._wrong_ns[worker_id] = max(self._wrong_ns.get(worker_id, 0), error_ns)
            case Deliver(micro_batch):
                for request in micro_batch.requests:
                    holder = [each for each in self._up.values() if request in self._held[each]]
                    _require(not holder, "a request is at one server", request, holder, server)
                _require(self._up.get(server) == worker_id, "blocks are given to who has come up", server, micro_batch)
                self._held[worker_id].update(micro_batch.requests)

    def heard(self, server: int, worker_id: int, message: Any) -> None:
        if isinstance(message, Pong) and message.number <= FIRST_PING:
            last = self._pongs.get(worker_id, FIRST_PING + 1)
            _require(message.number == last - 1, "what is posted comes in order", worker_id, last, message.number)
            self._pongs[worker_id] = message.number
        if isinstance(message, Returned | Rejected) and self._up.get(server) == worker_id:
            held = self._held[worker_id]
            _require(held.issuperset(message.requests), "a worker gives back what it was given", server, message)
            held.difference_update(message.requests)
            if isinstance(message, Returned) and self._loop is not None:
                heard_ns = self._loop._clock.of(self._event_queue.now_ns)
                wrong_ns = self._wrong_ns.get(worker_id, 0) + round(OffsetEstimate.DRIFT * heard_ns)
                stamps_ns = [(batch.started_ns, batch.ended_ns) for batch in message.batches]
                _require(
                    max(map(max, stamps_ns), default=0) <= heard_ns + wrong_ns,
                    "no stamp is of the future",
                    server,
                    heard_ns,
                    message,
                )
            if isinstance(message, Rejected):
                _require(
                    message.reason != "bad_input", "whoever gets a micro-batch has its activations", server, message
                )

    def broken(self, server: int, why: str) -> None:
        """What came at a router's end is not a message, and no end of one."""
        _require("in the middle" in why, "a stream is whole", server, why)

    def looked(self, found: bool, wait_s: float) -> None:
        """The router has looked out for something to come."""
        has_done = found or wait_s > 0 or self.steps != self._looked_at
        self._looked_at = self.steps
        self._idle_looks = 0 if has_done else self._idle_looks + 1
        is_due = any(self._held.values())
        _require(self._idle_looks <= FEW_LOOKS or is_due, "nobody waits busily for nothing", self._idle_looks)

    # ---------------------------------------------------------------------------------------------------- the arenas

    def landed(self, writer: int, owner: int, destination: int, offset: int, size_bytes: int) -> None:
        """An incarnation has written to another's arena on another host."""
        if self._loop is None or self._up.get(destination) != owner:
            return  # an arena that nobody will read
        loop = self._loop
        writing = [
            slab
            for source, place, slab in loop._transfers._writing.values()
            if place == destination and self._up.get(source) == writer
        ]
        fenced = [slab for slabs in loop._servers[destination]._fences.values() for slab in slabs]
        is_its = any(slab.offset <= offset < slab.offset + slab.size_bytes for slab in (*writing, *fenced))
        _require(is_its, "nobody writes where he may not", writer, destination, offset, size_bytes)

    def _slabs(self, loop: RouterLoop, server: int) -> list[Slab]:
        """Of a server's arena, that somebody may still write to."""
        transfers = loop._transfers
        return [
            *(slab for _, place, slab in transfers._writing.values() if place == server),
            *(slab for slabs in loop._servers[server]._fences.values() for slab in slabs),
        ]

    # ------------------------------------------------------------------------------------------------------ the end

    def ended(self, loop: RouterLoop, record: RunRecord, mix: Mix) -> None:
        """A run is over, and its faults were before."""
        counts = (len(record.requests), self._completed, self._failed, self._accepted)
        inside = [request.request for request in record.requests if request.status == "in_flight"]
        _require(self._accepted == len(mix.arrivals_ns), "all arrive", *counts)
        _require(
            sorted(request.request for request in record.requests) == list(range(self._accepted)),
            "all end once",
            *counts,
        )
        _require(len(inside) == self._accepted - self._completed - self._failed, "the record tells the truth", *counts)
        arrived_ns = [request.arrived_ns for request in sorted(record.requests, key=lambda each: each.request)]
        _require(self.may_wait or arrived_ns == mix.arrivals_ns.tolist(), "latencies count from when an image was due")
        is_gone = not any(server.is_up or server.will_return for server in loop._servers)
        if mix.ends == "drain" and not is_gone:
            _require(not inside, "after the last fault all drain", inside, record.ended_ns)
            took_ns = record.ended_ns - mix.horizon_ns
            _require(took_ns <= self.drained_in_ns, "after the last fault all drain soon", took_ns)
            self._require_memory(loop)
        ledger = loop._ledger.ledger
        _require(isinstance(ledger, Ledger) and not ledger.take_credits(), "nothing grows for ever")
        if mix.seed % 3:  # it takes as long as all else
            return
        wrong = replay_run(record.log, record.worker_logs, mix.router, loop.params)  # type: ignore[attr-defined]
        _require(not wrong, "the log replays", *wrong[:3])

    def _require_memory(self, loop: RouterLoop) -> None:
        """Arenas' bytes come back: nobody is inside, so only what may still be written to is taken."""
        for server in loop._servers:
            inbox = server.inbox
            taken = sum(slab.size_bytes for slab in self._slabs(loop, server.index))
            _require(
                inbox.free_bytes + taken == inbox.arena.size_bytes,
                "an arena's bytes come back", server.index, inbox.free_bytes, taken, inbox.arena.size_bytes,
            )  # fmt: skip
