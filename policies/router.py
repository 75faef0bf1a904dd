"""The router's core: the global FIFO, blocks by key, and the books of what is in flight. It chooses nothing itself.

Events and the time go in, commands come out. When somebody waits and a server can take a block, it wants its timer at
once; at `RouterTimer`, which comes after all other events of the instant, it asks for a decision (`Decide`, with a
snapshot of the cluster and the candidate block frozen). The answer (`Decided`) sends up to the chosen number of the
candidates. One decision is under way at a time. A request is, at any moment, in exactly one place: the FIFO, a block,
or done; its segment is one more than the widths it has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from policies.fifo import KeyedFifo
from policies.routing import RouterConfig
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


@dataclass(frozen=True, slots=True)
class _Line:
    """Who may share a block: those with one head, but for a request that goes `alone`."""

    head: HeadKey
    alone: int = _TOGETHER


@dataclass(slots=True)
class _Request:
    """One request's books; `block` is the decision whose block it is in, None in the FIFO."""

    deadline_ns: int | None
    entered_ns: int
    widths: tuple[float, ...] = ()
    location: int = ROUTER
    location_epoch: int = 0
    retries: int = 0
    block: int | None = None


@dataclass(slots=True)
class _Member:
    """How one member of a block ended."""

    entered_ns: int
    ended_ns: int
    widths: tuple[float, ...]
    correct: bool
    failed: bool


@dataclass(slots=True)
class _OpenBlock:
    block: Block
    ended: dict[int, _Member] = field(default_factory=dict)


@dataclass(slots=True)
class _Server:
    """One server's books, and its last report."""

    up: bool = False
    epoch: int = 0
    requests: int = 0
    blocks: int = 0
    by_key: dict[WorkKey, int] = field(default_factory=dict)
    report: ServerReport | None = None
    outstanding: Mapping[WorkKey, int] | None = None  # a copy for the views; None when `by_key` has changed

    def add(self, key: WorkKey, count: int) -> None:
        self.requests += count
        left = self.by_key.get(key, 0) + count
        if left:
            self.by_key[key] = left
        else:
            del self.by_key[key]
        self.outstanding = None

    def reset(self, epoch: int, up: bool) -> None:
        self.up, self.epoch = up, epoch
        self.requests = self.blocks = 0
        self.by_key.clear()
        self.report = self.outstanding = None


class RouterCore:
    """The router without its policy: `handle` each event with its time and carry out the commands.

    Servers are down until their first `ServerUp`. Events of an earlier life of a server are stale and change nothing.
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
        self._candidates: tuple[_Line, tuple[int, ...]] | None = None
        self._decision = 0
        self._all_at_cap = False  # no server could take the head's block when it was last looked at

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
        match event:
            case RequestArrived(request, deadline_ns):
                self.arrived += 1
                self._requests[request] = _Request(deadline_ns, now_ns)
                self._enter(request, now_ns)
            case Decided(decision, choice):
                self._send(decision, choice, commands)
            case TransferFinished(requests=requests, destination=destination):
                self._moved(event.block, requests, destination)
            case TransferFailed(requests=requests, reason=reason):
                if event.block in self._blocks:
                    self._retry(requests, reason, now_ns, commands)
            case RequestsReturned():
                if self._is_current(event.server, event.epoch):
                    self._advance(event, now_ns, commands)
            case RequestsRejected(requests=requests, reason=reason):
                if self._is_current(event.server, event.epoch):
                    self._retry(requests, reason, now_ns, commands)
            case ServerReport():
                if self._is_current(event.server, event.epoch):
                    self._servers[event.server].report = event
            case ServerUp(server, epoch):
                self._servers[server].reset(epoch, up=True)
                self._all_at_cap = False
            case ServerDown(server, epoch):
                if self._is_current(server, epoch):
                    self._lose(server, now_ns, commands)
            case RouterTimer():
                self._ask(now_ns, commands)
            case _:  # transfers that started and stragglers change no books
                pass
        self.next_wake_ns = self._next_wake_ns(now_ns)
        return commands

    def _next_wake_ns(self, now_ns: int) -> int | None:
        """Now, if a decision can be asked for; at the head's deadline, if all that can be done is to shed it."""
        line = self._fifo.head()
        if self._candidates is not None or line is None:
            return None
        if not self._all_at_cap:
            return now_ns
        return self._requests[self._fifo.peek(line, 1)[0]].deadline_ns if self.config.shed_expired else None

    def _is_current(self, server: int, epoch: int) -> bool:
        state = self._servers[server]
        return state.up and state.epoch == epoch

    # ------------------------------------------------------------------------------------------- the FIFO and blocks

    def _enter(self, request: int, now_ns: int) -> None:
        """To the FIFO's tail, under the key that its place and activations give it."""
        books = self._requests[request]
        books.entered_ns = now_ns
        books.block = None
        self._fifo.push(self._line(request), (request,))

    def _line(self, request: int) -> _Line:
        books = self._requests[request]
        location = books.location if self.config.block_key == "location" else ANYWHERE
        head = HeadKey(len(books.widths) + 1, books.widths[-1] if books.widths else IMAGE, location)
        return _Line(head, request if books.retries >= ALONE_AFTER else _TOGETHER)

    def _ask(self, now_ns: int, commands: list[RouterCommand]) -> None:
        """Ask for a decision if none is under way, somebody waits, and a server can take a block."""
        if self._candidates is not None or not len(self._fifo):
            return
        if self.config.shed_expired:
            self._shed(now_ns, commands)
        found = self._oldest_servable()
        if found is None:
            self._all_at_cap = True
            return
        line, servers = found
        requests = self._fifo.peek(line, self.config.groups[-1])
        self._candidates = (line, requests)
        self._decision += 1
        entered_ns = self._requests[requests[0]].entered_ns
        view = ClusterView(now_ns, line.head, len(requests), entered_ns, len(self._fifo), self.completed, servers)
        commands.append(Decide(self._decision, view))

    def _oldest_servable(self) -> tuple[_Line, tuple[ServerView, ...]] | None:
        """The head's line; where no free server can hold its segment, the oldest line that one can."""
        if all(state.blocks >= self.config.outstanding_blocks for state in self._servers if state.up):
            return None
        for line in self._lines():
            segment = line.head.segment - 1
            servers = tuple(self._server_view(state, masks[segment]) for state, masks in self._with_masks())
            if any(server.valid for server in servers):
                return line, servers
        return None

    def _lines(self) -> Iterator[_Line]:
        """By age; they are sorted only if the head's own does not do."""
        head = self._fifo.head()
        if head is not None:
            yield head
            yield from self._fifo.by_age()

    def _with_masks(self) -> Iterable[tuple[_Server, list[tuple[bool, ...]]]]:
        return zip(self._servers, self._masks, strict=True)

    def _server_view(self, state: _Server, widths: tuple[bool, ...]) -> ServerView:
        if state.outstanding is None:
            state.outstanding = dict(state.by_key)
        report = state.report
        return ServerView(
            valid=state.up and state.blocks < self.config.outstanding_blocks and any(widths),
            widths=widths,
            outstanding_requests=state.requests,
            outstanding_blocks=state.blocks,
            outstanding=state.outstanding,
            utilization=report.utilization if report else 0.0,
            power_w=report.power_w if report else 0.0,
            vram_used_bytes=report.vram_used_bytes if report else 0,
        )

    def _shed(self, now_ns: int, commands: list[RouterCommand]) -> None:
        """Give up those at the FIFO's head whose deadline has passed."""
        while (line := self._fifo.head()) is not None:
            request = self._fifo.peek(line, 1)[0]
            deadline_ns = self._requests[request].deadline_ns
            if deadline_ns is None or deadline_ns > now_ns:
                return
            self._fifo.take(line, 1)
            self._give_up(request, "deadline", commands)

    def _send(self, decision: int, choice: Choice, commands: list[RouterCommand]) -> None:
        """Form the chosen block from the candidates; those that are left keep their place.

        Between question and answer the server may have died: then nothing is sent and the question is asked anew.
        """
        assert self._candidates is not None, "an answer to no question"
        assert decision == self._decision, "an answer to another question"
        line, candidates = self._candidates
        head = line.head
        self._candidates = None
        server = self._servers[choice.server]
        still_there = self._fifo.peek(line, len(candidates)) == candidates
        if not server.up or not still_there:
            return
        self._require_legal(choice, head)
        requests = self._fifo.take(line, min(choice.group, len(candidates)))
        key = WorkKey(head.segment, choice.width, head.previous_width)
        block = Block(decision, choice.server, server.epoch, key, requests)
        self._blocks[decision] = _OpenBlock(block)
        for request in requests:
            self._requests[request].block = decision
        server.blocks += 1
        server.add(key, len(requests))
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
        return tuple((source, tuple(moving)) for source, moving in sorted(elsewhere.items()))

    def _moved(self, block: int, requests: tuple[int, ...], destination: int) -> None:
        for request in requests:
            books = self._requests.get(request)
            if books is not None and books.block == block:
                books.location, books.location_epoch = destination, self._servers[destination].epoch

    # ------------------------------------------------------------------------------------------------ what comes back

    def _advance(self, event: RequestsReturned, now_ns: int, commands: list[RouterCommand]) -> None:
        """One width more for each; the next segment's FIFO entry, or the end."""
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
                self._enter(request, now_ns)
            member = _Member(entered_ns, now_ns, books.widths, correct, failed=False)
            self._leave_block(block, request, member, commands)

    def _retry(self, requests: Iterable[int], reason: str, now_ns: int, commands: list[RouterCommand]) -> None:
        """Back to the FIFO's tail; from segment 1 where the activations died with their server (the image is here)."""
        for request in requests:
            books = self._requests[request]
            member = _Member(books.entered_ns, now_ns, (), correct=False, failed=True)
            block = books.block
            books.retries += 1
            if books.location != ROUTER and not self._is_current(books.location, books.location_epoch):
                books.widths, books.location = (), ROUTER
            if books.retries > self.config.max_retries:
                self._give_up(request, reason, commands)
            else:
                self._enter(request, now_ns)
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
        server = self._servers[sent.server]
        server.add(sent.key, -1)
        if len(open_block.ended) == len(sent.requests):
            server.blocks -= 1
            self._all_at_cap = False
            del self._blocks[block]
            commands.append(_block_finished(sent, open_block.ended))

    def _lose(self, server: int, now_ns: int, commands: list[RouterCommand]) -> None:
        """A server died: what was sent there, and what waits here for activations that were there, is tried again.

        What was still on its way there keeps what its source holds. What was on its way *from* there is the driver's
        to report, as `TransferFailed`.
        """
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
        for line in {self._line(request): None for request in waiting}:
            self._fifo.remove(line, doomed)
        self._retry((*members, *waiting), "server_down", now_ns, commands)
        state.reset(state.epoch, up=False)
        self._all_at_cap = False  # the head may be another one now


def _block_finished(block: Block, ended: Mapping[int, _Member]) -> BlockFinished:
    members = [ended[request] for request in block.requests]
    return BlockFinished(
        decision=block.block,
        server=block.server,
        segment=block.key.segment,
        requests=block.requests,
        entered_ns=tuple(member.entered_ns for member in members),
        ended_ns=tuple(member.ended_ns for member in members),
        widths=tuple(member.widths for member in members),
        correct=tuple(member.correct for member in members),
        failed=tuple(member.failed for member in members),
    )
