"""The router's core: the global FIFO, blocks by key, and the books of what is in flight. It chooses nothing itself.

Events and the time go in, commands come out. When somebody waits and a server can take a block, it wants its timer at
once; at `RouterTimer`, which comes after all other events of the instant, it asks for a decision (`Decide`, with a
snapshot of the cluster and the candidate block frozen). The answer (`Decided`) sends up to the chosen number of the
candidates. One decision is under way at a time. A request is, at any moment, in exactly one place: the FIFO, a block,
or done; its segment is one more than the widths it has. States, events and invariants: `docs/theory-of-operation.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import msgspec

from policies.fifo import KeyedFifo
from policies.interfaces import RouterConfig
from policies.vocabulary import (
    ANYWHERE,
    IMAGE,
    ROUTER,
    Block,
    BlockFinished,
    Choice,
    ClusterView,
    Decide,
    Decided,
    HeadKey,
    ReleaseActivations,
    RequestArrived,
    RequestCompleted,
    RequestFailed,
    RequestsRejected,
    RequestsReturned,
    RouterCommand,
    RouterEvent,
    RouterTimer,
    SendBlock,
    ServerDown,
    ServerReport,
    ServerUp,
    ServerView,
    TransferFailed,
    TransferFinished,
    WorkKey,
)

_TOGETHER: Final = -1
ALONE_AFTER: Final = 2  # retries after which a request shares no block: what it breaks, it breaks alone


class _Line(msgspec.Struct, frozen=True, cache_hash=True):
    """Who may share a block: those with one head, but for a request that goes `alone`."""

    head: HeadKey
    alone: int = _TOGETHER


class _Request(msgspec.Struct):
    """One request's books; `block` is the decision whose block it is in, None in the FIFO."""

    deadline_ns: int | None
    entered_ns: int
    widths: tuple[float, ...] = ()
    location: int = ROUTER
    location_epoch: int = 0
    retries: int = 0
    block: int | None = None


class _Member(NamedTuple):
    """How one member of a block ended."""

    entered_ns: int
    ended_ns: int
    widths: tuple[float, ...]
    correct: bool
    failed: bool


class _OpenBlock(msgspec.Struct):
    """A block under way, and how its members ended so far."""

    block: Block
    ended: dict[int, _Member]


@dataclass(slots=True)
class _Server:
    """One server's books, its last report, and what the router's views show of it.

    `views` has a view for each segment that was asked about since the books changed.
    """

    up: bool = False
    epoch: int = 0
    requests: int = 0
    blocks: int = 0
    by_key: dict[WorkKey, int] = field(default_factory=dict)
    report: ServerReport | None = None
    views: dict[int, ServerView] = field(default_factory=dict)

    def add(self, key: WorkKey, requests: int, blocks: int) -> None:
        """So many more of a key are outstanding (or fewer)."""
        self.requests += requests
        self.blocks += blocks
        left = self.by_key.get(key, 0) + requests
        if left:
            self.by_key[key] = left
        else:
            del self.by_key[key]
        self.views.clear()

    def hear(self, report: ServerReport) -> None:
        """Its last report is this."""
        self.report = report
        self.views.clear()

    def reset(self, epoch: int, up: bool) -> None:
        """A new epoch, or the end of one."""
        self.up, self.epoch = up, epoch
        self.requests = self.blocks = 0
        self.by_key.clear()
        self.report = None
        self.views.clear()

    def view(self, widths: tuple[bool, ...], cap: int) -> ServerView:
        """What a view shows of it to a head of whose segment it can hold `widths`."""
        report = self.report
        return ServerView(
            self.up and self.blocks < cap and any(widths),
            widths,
            self.requests,
            self.blocks,
            dict(self.by_key),
            report.utilization if report else 0.0,
            report.power_w if report else 0.0,
            report.vram_used_bytes if report else 0,
        )


class RouterCore:
    """The router without its policy: `handle` each event with its time and carry out the commands.

    Servers are down until their first `ServerUp`. Events of an earlier epoch of a server are stale and change nothing.
    """

    def __init__(self, config: RouterConfig) -> None:
        self.config = config
        self.next_wake_ns: int | None = None
        self.completed = self.failed = self.arrived = 0
        self._requests: dict[int, _Request] = {}
        self._fifo: KeyedFifo[_Line] = KeyedFifo()
        self._blocks: dict[int, _OpenBlock] = {}
        self._servers = [_Server() for _ in range(config.servers)]
        self._masks = [[tuple(widths) for widths in segments] for segments in config.holds]
        self._lines: dict[tuple[int, float, int], _Line] = {}  # one object each: it is cheaper to find in the FIFO
        self._candidates: tuple[_Line, tuple[int, ...]] | None = None
        self._decision = 0
        self._all_at_cap = False  # no server could take the head's block when it was last looked at
        self._take: dict[type, Callable[[Any, int, list[RouterCommand]], None]] = {
            RequestArrived: self._admit,
            Decided: self._send,
            TransferFinished: self._move,
            TransferFailed: self._return_unmoved,
            RequestsReturned: self._advance,
            RequestsRejected: self._return_rejected,
            ServerReport: self._hear,
            ServerUp: self._gain,
            ServerDown: self._lose,
            RouterTimer: self._ask,
        }

    # ------------------------------------------------------------------------------------------------- questions

    @property
    def fifo_length(self) -> int:
        """Requests in the global FIFO, those of the candidate block included."""
        return len(self._fifo)

    @property
    def in_flight(self) -> int:
        """Requests that have arrived and are neither completed nor failed."""
        return len(self._requests)

    def widths_of(self, request: int) -> tuple[float, ...]:
        """The widths that a request in flight has run at so far."""
        return self._requests[request].widths

    def location_of(self, request: int) -> int:
        """Where the activations of a request in flight are."""
        return self._requests[request].location

    # ---------------------------------------------------------------------------------------------------- events

    def handle(self, event: RouterEvent, now_ns: int) -> list[RouterCommand]:
        """Take one event at its time; returns what to do, in order."""
        commands: list[RouterCommand] = []
        take = self._take.get(type(event))
        if take is not None:  # transfers that started and stragglers change no books
            take(event, now_ns, commands)
        self.next_wake_ns = self._next_wake_ns(now_ns)
        return commands

    def _next_wake_ns(self, now_ns: int) -> int | None:
        """Now, if a decision can be asked for; at the head's deadline, if all that can be done is to shed it."""
        if self._candidates is not None or not self._fifo.waiting:
            return None
        if not self._all_at_cap:
            return now_ns
        return self._requests[self._oldest()].deadline_ns if self.config.shed_expired else None

    def _oldest(self) -> int:
        """The request at the FIFO's head."""
        line = self._fifo.head()
        assert line is not None, "nobody waits"
        return self._fifo.peek(line, 1)[0]

    def _is_current(self, server: int, epoch: int) -> bool:
        state = self._servers[server]
        return state.up and state.epoch == epoch

    # ------------------------------------------------------------------------------------------- the FIFO and blocks

    def _admit(self, event: RequestArrived, now_ns: int, commands: list[RouterCommand]) -> None:
        self.arrived += 1
        books = self._requests[event.request] = _Request(event.deadline_ns, now_ns)
        self._enter(event.request, books, now_ns)

    def _enter(self, request: int, books: _Request, now_ns: int) -> None:
        """To the FIFO's tail, under the key that its place and activations give it."""
        books.entered_ns = now_ns
        books.block = None
        self._fifo.push(self._line(request, books), (request,))

    def _line(self, request: int, books: _Request) -> _Line:
        location = books.location if self.config.block_key == "location" else ANYWHERE
        place = (len(books.widths) + 1, books.widths[-1] if books.widths else IMAGE, location)
        if books.retries >= ALONE_AFTER:
            return _Line(HeadKey(*place), request)
        line = self._lines.get(place)
        if line is None:
            line = self._lines[place] = _Line(HeadKey(*place))
        return line

    def _ask(self, event: RouterTimer, now_ns: int, commands: list[RouterCommand]) -> None:
        """Ask for a decision if none is under way, somebody waits, and a server can take a block."""
        if self._candidates is not None or not self._fifo.waiting:
            return
        if self.config.shed_expired:
            self._shed(now_ns, commands)
            if not self._fifo.waiting:
                return
        found = self._oldest_servable()
        if found is None:
            self._all_at_cap = True
            return
        line, servers = found
        requests = self._fifo.peek(line, self.config.groups[-1])
        self._candidates = (line, requests)
        self._decision += 1
        entered_ns = self._requests[requests[0]].entered_ns
        view = ClusterView(now_ns, line.head, len(requests), entered_ns, self._fifo.waiting, self.completed, servers)
        commands.append(Decide(self._decision, view))

    def _oldest_servable(self) -> tuple[_Line, tuple[ServerView, ...]] | None:
        """The head's line; where no free server can hold its segment, the oldest line that one can."""
        head = self._fifo.head()
        if head is None:
            return None
        servers = self._server_views(head.head.segment)
        if _can_any(servers):
            return head, servers
        cap = self.config.outstanding_blocks
        if any(state.up and state.blocks < cap for state in self._servers):
            for line in self._fifo.by_age():
                servers = self._server_views(line.head.segment)
                if _can_any(servers):
                    return line, servers
        return None

    def _server_views(self, segment: int) -> tuple[ServerView, ...]:
        """What a head of this segment sees of the servers; made anew where their books have changed."""
        views: list[ServerView] = []
        for state, masks in zip(self._servers, self._masks, strict=True):
            view = state.views.get(segment)
            if view is None:
                view = state.views[segment] = state.view(masks[segment - 1], self.config.outstanding_blocks)
            views.append(view)
        return tuple(views)

    def _shed(self, now_ns: int, commands: list[RouterCommand]) -> None:
        """Give up those at the FIFO's head whose deadline has passed."""
        while (line := self._fifo.head()) is not None:
            request = self._fifo.peek(line, 1)[0]
            deadline_ns = self._requests[request].deadline_ns
            if deadline_ns is None or deadline_ns > now_ns:
                return
            self._fifo.take(line, 1)
            self._give_up(request, "deadline", commands)

    def _send(self, event: Decided, now_ns: int, commands: list[RouterCommand]) -> None:
        """Form the chosen block from the candidates; those that are left keep their place.

        Between question and answer the server may have died: then nothing is sent and the question is asked anew.
        """
        assert self._candidates is not None, "an answer to no question"
        assert event.decision == self._decision, "an answer to another question"
        choice, (line, candidates) = event.choice, self._candidates
        head = line.head
        self._candidates = None
        server = self._servers[choice.server]
        still_there = self._fifo.peek(line, len(candidates)) == candidates
        if not server.up or not still_there:
            return
        self._require_legal(choice, head)
        requests = self._fifo.take(line, min(choice.group, len(candidates)))
        key = WorkKey(head.segment, choice.width, head.previous_width)
        block = Block(event.decision, choice.server, server.epoch, key, requests)
        self._blocks[event.decision] = _OpenBlock(block, {})
        for request in requests:
            self._requests[request].block = event.decision
        server.add(key, len(requests), blocks=1)
        commands.append(SendBlock(block, self._moves(choice.server, requests)))

    def _require_legal(self, choice: Choice, head: HeadKey) -> None:
        widths = self.config.widths
        held = self._masks[choice.server][head.segment - 1]
        assert choice.group >= 1, f"an empty group: {choice}"
        assert held[widths.index(choice.width)], f"the policy chose a masked width: {choice}"
        blocks = self._servers[choice.server].blocks
        assert blocks < self.config.outstanding_blocks, f"the policy chose a server at its cap: {choice}"

    def _moves(self, server: int, requests: tuple[int, ...]) -> tuple[tuple[int, tuple[int, ...]], ...]:
        elsewhere: dict[int, list[int]] = {}
        for request in requests:
            location = self._requests[request].location
            if location != server:
                elsewhere.setdefault(location, []).append(request)
        if not elsewhere:
            return ()
        return tuple([(source, tuple(moving)) for source, moving in sorted(elsewhere.items())])

    def _move(self, event: TransferFinished, now_ns: int, commands: list[RouterCommand]) -> None:
        epoch = self._servers[event.destination].epoch
        for request in event.requests:
            books = self._requests.get(request)
            if books is not None and books.block == event.block:
                books.location, books.location_epoch = event.destination, epoch

    # ------------------------------------------------------------------------------------------------ what comes back

    def _advance(self, event: RequestsReturned, now_ns: int, commands: list[RouterCommand]) -> None:
        """One width more for each; the next segment's FIFO entry, or the end."""
        if not self._is_current(event.server, event.epoch):
            return
        for position, request in enumerate(event.requests):
            books = self._requests[request]
            entered_ns, block = books.entered_ns, books.block
            books.widths += (event.width,)
            books.location, books.location_epoch = event.server, event.epoch
            correct = bool(event.correct) and event.correct[position]
            if event.segment == self.config.segments:
                self.completed += 1
                del self._requests[request]
                commands.append(RequestCompleted(request, books.widths, correct, books.retries))
            else:
                self._enter(request, books, now_ns)
            self._leave_block(block, request, _Member(entered_ns, now_ns, books.widths, correct, False), commands)

    def _return_unmoved(self, event: TransferFailed, now_ns: int, commands: list[RouterCommand]) -> None:
        if event.block in self._blocks:
            self._retry(event.requests, event.reason, now_ns, commands)

    def _return_rejected(self, event: RequestsRejected, now_ns: int, commands: list[RouterCommand]) -> None:
        if self._is_current(event.server, event.epoch):
            self._retry(event.requests, event.reason, now_ns, commands)

    def _retry(self, requests: Iterable[int], reason: str, now_ns: int, commands: list[RouterCommand]) -> None:
        """Back to the FIFO's tail; from segment 1 where the activations died with their server (the image is here)."""
        for request in requests:
            books = self._requests[request]
            member = _Member(books.entered_ns, now_ns, widths=(), correct=False, failed=True)
            block = books.block
            books.retries += 1
            if books.location != ROUTER and not self._is_current(books.location, books.location_epoch):
                books.widths, books.location = (), ROUTER
            if books.retries > self.config.max_retries:
                self._give_up(request, reason, commands)
            else:
                self._enter(request, books, now_ns)
            self._leave_block(block, request, member, commands)

    def _give_up(self, request: int, reason: str, commands: list[RouterCommand]) -> None:
        books = self._requests.pop(request)
        self.failed += 1
        commands.append(RequestFailed(request, reason, books.retries))
        if books.location != ROUTER:
            commands.append(ReleaseActivations(books.location, (request,)))

    def _leave_block(self, block: int | None, request: int, member: _Member, commands: list[RouterCommand]) -> None:
        """A member of a block has ended; the block ends with its last one."""
        if block is None:
            return
        open_block = self._blocks[block]
        open_block.ended[request] = member
        sent = open_block.block
        has_ended = len(open_block.ended) == len(sent.requests)
        self._servers[sent.server].add(sent.key, -1, blocks=-has_ended)
        if has_ended:
            self._all_at_cap = False
            del self._blocks[block]
            commands.append(_block_finished(sent, open_block.ended))

    # -------------------------------------------------------------------------------------------------- the servers

    def _hear(self, event: ServerReport, now_ns: int, commands: list[RouterCommand]) -> None:
        if self._is_current(event.server, event.epoch):
            self._servers[event.server].hear(event)

    def _gain(self, event: ServerUp, now_ns: int, commands: list[RouterCommand]) -> None:
        self._servers[event.server].reset(event.epoch, up=True)
        self._all_at_cap = False

    def _lose(self, event: ServerDown, now_ns: int, commands: list[RouterCommand]) -> None:
        """A server died: what was sent there, and what waits here for activations that were there, is tried again.

        What was still on its way there keeps what its source holds. What was on its way *from* there is the driver's
        to report, as `TransferFailed`.
        """
        server = event.server
        if not self._is_current(server, event.epoch):
            return
        state = self._servers[server]
        state.up = False
        members = [
            request
            for open_block in self._blocks.values()
            if open_block.block.server == server
            for request in open_block.block.requests
            if request not in open_block.ended
        ]
        waiting = [
            request for request, books in self._requests.items() if books.block is None and books.location == server
        ]
        doomed = set(waiting)
        for line in {self._line(request, self._requests[request]): None for request in waiting}:
            self._fifo.remove(line, doomed)
        self._retry((*members, *waiting), "server_down", now_ns, commands)
        state.reset(state.epoch, up=False)
        self._all_at_cap = False  # the head may be another one now


def _block_finished(block: Block, ended: Mapping[int, _Member]) -> BlockFinished:
    """All that a block's members are asked for, in the order in which they were sent."""
    entered_ns, ended_ns, widths, correct, failed = zip(*[ended[request] for request in block.requests], strict=True)
    return BlockFinished(
        block.block, block.server, block.key.segment, block.requests, entered_ns, ended_ns, widths, correct, failed
    )


def _can_any(servers: Iterable[ServerView]) -> bool:
    """Whether one of them can take the block (a plain loop: this is asked at every decision)."""
    for server in servers:  # noqa: SIM110 - a generator costs three times as much
        if server.valid:
            return True
    return False
