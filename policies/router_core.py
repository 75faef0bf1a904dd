"""The router's core: the global FIFO, batch queues by key, and the ledger of requests in flight. It makes no choice
itself.

Events and the time go in, commands come out. If a request is waiting and a server can take a micro-batch, the core
wants its timer at once; at `RouterTimer`, which comes after all other events of the instant, it requests a decision
(`Decide`, with a frozen snapshot of the cluster and the candidate micro-batch). The answer `Decided` sends up to the
chosen number of the candidates; on `Delayed` their batch queue is delayed: they stay in the FIFO, and decisions skip
the queue. A `BatchingDelayRule` delays batch queues without a decision. One decision is in progress at a time. A
request is, at any moment, in exactly one place: the FIFO, a micro-batch, or done; its segment is one more than its
number of widths. States, events and invariants: `docs/theory-of-operation.md`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Final

import msgspec

from policies.interfaces import RouterConfig
from policies.router_queue import (
    MAX_BATCHING_DELAYS,
    REFUSED,
    BatchingDelays,
    BatchingDelaysState,
    KeyedFifo,
    has_room,
    note_arrival,
    note_end,
    sampled_servers,
)
from policies.vocabulary import (
    ANYWHERE,
    CANARY,
    FOLLOW_NS,
    IMAGE,
    NOTHING_RESIDENT,
    NS_PER_S,
    ROUTER,
    STABLE,
    VERSIONS,
    ArrivalsEnded,
    BatchingDelayBegun,
    BatchingDelayRule,
    Choice,
    ClusterView,
    Decide,
    Decided,
    Delayed,
    GoalSet,
    HeadKey,
    MicroBatch,
    MicroBatchFinished,
    ModelChanged,
    OwnLimit,
    ReleaseActivations,
    RequestArrived,
    RequestCompleted,
    RequestFailed,
    RequestsCancelled,
    RequestsRejected,
    RequestsReturned,
    Residency,
    RouterCommand,
    RouterEvent,
    RouterTimer,
    SendMicroBatch,
    ServerDown,
    ServerDraining,
    ServerReport,
    ServerUp,
    ServerView,
    TransferFailed,
    TransferFinished,
    WorkKey,
)

_TOGETHER: Final = -1
CANCELLED: Final = "cancelled"
ALONE_AFTER: Final = 2  # retries after which a request shares no micro-batch, so that its failures affect it alone


class _QueueKey(msgspec.Struct, frozen=True, cache_hash=True):
    """Requests that may share a micro-batch: those with one head, except for a request that goes `alone`."""

    head: HeadKey
    alone: int = _TOGETHER


class _ClassStats(msgspec.Struct):
    """Counts of a class's requests at one version, and the operator's goals for it."""

    goal: GoalSet = GoalSet()
    completed: int = 0
    accuracy_sum: float = 0.0
    late: int = 0
    rank: float = 0.0


class _Room(msgspec.Struct):
    """See `policies.router_queue.Room`."""

    images: float = 0.0
    scale: float = 1.0


class _Request(msgspec.Struct):
    """One request's entry in the router's ledger; `micro_batch` is the decision of its micro-batch, None in the FIFO.

    `delayed_ns` covers all segments; `batching_delays` counts batching delays by decisions, with it as the oldest,
    since its last micro-batch.
    """

    deadline_ns: int | None
    arrived_ns: int
    entered_ns: int
    widths: tuple[float, ...] = ()
    location: int = ROUTER
    location_incarnation: int = 0
    retries: int = 0
    micro_batch: int | None = None
    delayed_ns: int = 0
    batching_delays: int = 0
    is_cancelled: bool = False
    service_class: int = 0
    version: int = STABLE


class _Question(msgspec.Struct, frozen=True):
    """The subject of a decision, frozen: the length of the batch queue; `may_delay` is whether the answer may be a
    batching delay."""

    queue_key: _QueueKey
    requests: tuple[int, ...]
    in_line: int
    may_delay: bool


class _Members(msgspec.Struct, frozen=True):
    """The ends of some members of a micro-batch, all at one time; columns, one entry for each member."""

    requests: tuple[int, ...]
    entered_ns: tuple[int, ...]
    ended_ns: int
    widths: tuple[tuple[float, ...], ...]
    correct: tuple[bool, ...]
    failed: bool


class _OpenMicroBatch(msgspec.Struct):
    """A micro-batch in progress: the number of members that have not ended, and how the others ended."""

    micro_batch: MicroBatch
    remaining: int
    ended: list[_Members]


@dataclass(slots=True)
class _Server:
    """One server's entry in the router's ledger, its last report, and the router's views of it.

    `views` has a view for each place and version that was asked for since the entry changed. `is_draining` and
    `version` outlive incarnations.
    """

    up: bool = False
    is_draining: bool = False
    version: int = STABLE
    incarnation: int = 0
    requests: int = 0
    micro_batches: int = 0
    by_key: dict[WorkKey, int] = field(default_factory=dict)
    report: ServerReport | None = None
    residency: Residency = NOTHING_RESIDENT
    views: dict[tuple[int, int], ServerView] = field(default_factory=dict)

    def add(self, keys: Iterable[WorkKey], requests: int, micro_batches: int) -> None:
        """Add to the outstanding requests and micro-batches of these keys, of one micro-batch (or subtract)."""
        self.requests += requests
        self.micro_batches += micro_batches
        for key in keys:
            remaining = self.by_key.get(key, 0) + requests
            if remaining:
                self.by_key[key] = remaining
            else:
                del self.by_key[key]
        self.views.clear()

    def hear(self, report: ServerReport) -> None:
        """Store the server's last report."""
        self.report, self.residency = report, report.residency
        self.views.clear()

    def reset(self, incarnation: int, up: bool) -> None:
        """Begin a new incarnation, or end one."""
        self.up, self.incarnation = up, incarnation
        self.requests = self.micro_batches = 0
        self.by_key.clear()
        self.report, self.residency = None, NOTHING_RESIDENT
        self.views.clear()

    def view(self, config: RouterConfig, segment: int, widths: tuple[bool, ...], *, is_spared: bool) -> ServerView:
        """Return the server's view for a head at whose segment it can hold `widths`; if spared, it takes no
        micro-batch."""
        report = self.report
        first = (segment - 1) * len(widths)
        every = (1 << len(widths)) - 1
        asked_for = 0
        for key in self.by_key:
            if key.segment == segment:
                asked_for |= 1 << config.widths.index(key.width)
        return ServerView(
            self.up and self.micro_batches < config.outstanding_micro_batches and any(widths) and not is_spared,
            widths,
            self.requests,
            self.micro_batches,
            dict(self.by_key),
            report.utilization if report else 0.0,
            report.power_w if report else 0.0,
            report.vram_used_bytes if report else 0,
            flags(self.residency.loaded >> first & every, len(widths)),
            flags((self.residency.loading >> first | asked_for) & every, len(widths)),
        )


class _State(msgspec.Struct, frozen=True, array_like=True):
    """The complete state of a router's core; `waiting` is the FIFO, oldest first; `accuracies`: by version."""

    arrived: int
    completed: int
    failed: int
    class_stats: list[_ClassStats]
    next_wake_ns: int | None
    own_limit_ns: int
    room: _Room
    requests: dict[int, _Request]
    waiting: list[tuple[_QueueKey, int]]
    micro_batches: dict[int, _OpenMicroBatch]
    servers: list[_Server]
    batching_delays: BatchingDelaysState[_QueueKey]
    question: _Question | None
    decision: int
    all_at_cap: bool
    accuracies: list[tuple[float, ...]]
    freed: list[int]


_decode_state = msgspec.msgpack.Decoder(_State).decode


class RouterCore:
    """The router without its policy: `handle` each event with its time and execute the commands.

    Servers are down until their first `ServerUp`. Events of a server's earlier incarnation are stale and change
    nothing.
    """

    def __init__(self, config: RouterConfig) -> None:
        self.config = config
        self.next_wake_ns: int | None = None
        self.completed = self.failed = self.arrived = 0
        self._class_stats = [_ClassStats() for _ in VERSIONS for _ in range(config.class_count)]
        self._room = _Room()
        self._own_limit_ns = FOLLOW_NS
        self._accuracies = [self._by_tuple(config.accuracies), None]  # by version
        self._requests: dict[int, _Request] = {}
        self._fifo: KeyedFifo[_QueueKey] = KeyedFifo()
        self._micro_batches: dict[int, _OpenMicroBatch] = {}
        self._servers = [_Server() for _ in range(config.servers)]
        self._masks = config.masks()  # (servers, places, widths); a place is a segment of a model
        self._first_places = [model * config.segments - 1 for model in config.class_models]
        # one object each: faster to find in the FIFO
        self._queue_keys: dict[tuple[int, float, int, int, int], _QueueKey] = {}
        self._lines_of_images = [
            [
                self._queue_key(ROUTER, _Request(None, 0, 0, service_class=number, version=version))
                for version in VERSIONS
            ]
            for number in range(config.class_count)
        ]
        self._stand_ins: tuple[int, ...] = ()  # for each version, the one that serves requests which begin now
        self._find_stand_ins()
        self._batching_delays: BatchingDelays[_QueueKey] = BatchingDelays(
            config.max_batching_delay_ns, config.micro_batch_sizes[-1]
        )
        self._question: _Question | None = None
        self._decision = 0
        self._all_at_cap = False  # no server could take the head's micro-batch at the last check
        self._freed: deque[int] = deque(maxlen=config.samples)  # servers where micro-batches ended, the last one last
        self._take: dict[type, Callable[[Any, int, list[RouterCommand]], None]] = {
            RequestArrived: self._admit,
            Decided: self._send,
            Delayed: self._batching_delay,
            BatchingDelayRule: self._set_batching_delay_rule,
            GoalSet: self._set_goal,
            OwnLimit: self._set_limit,
            ModelChanged: self._change_model,
            ArrivalsEnded: self._end_holding,
            TransferFinished: self._move,
            TransferFailed: self._return_unmoved,
            RequestsReturned: self._advance,
            RequestsRejected: self._return_rejected,
            RequestsCancelled: self._cancel,
            ServerReport: self._hear,
            ServerDraining: self._drain,
            ServerUp: self._gain,
            ServerDown: self._lose,
            RouterTimer: self._ask,
        }

    # ------------------------------------------------------------------------------------------------- questions

    @property
    def fifo_length(self) -> int:
        """Requests in the global FIFO, those of the candidate micro-batch included."""
        return self._fifo.waiting

    @property
    def in_flight(self) -> int:
        """Requests that have arrived and are neither completed nor failed."""
        return len(self._requests)

    def widths_before_last(self, request: int) -> tuple[float, ...]:
        """Return the widths that a request in flight, which is past its last segment, has run at before it."""
        entry = self._requests[request]
        if len(entry.widths) == self.config.segments - 1 or entry.micro_batch is None:
            return entry.widths
        sent = self._micro_batches[entry.micro_batch].micro_batch
        return (*entry.widths, sent.key.width, *sent.then[:-1])

    def is_empty(self, server: int) -> bool:
        """Return whether a server has no micro-batches, no micro-batches in transfer, and no activations of requests in
        flight."""
        has_micro_batch = self._servers[server].micro_batches > 0
        return not has_micro_batch and all(entry.location != server for entry in self._requests.values())

    def is_needed(self, server: int) -> bool:
        """Return whether micro-batches go to a server when it is up: a server to be drained is needed if no other can
        take them."""
        state, masks = self._servers[server], self._masks[server]
        return any(
            any(widths) and not (state.is_draining and self._is_spared(place)) for place, widths in enumerate(masks)
        )

    # ------------------------------------------------------------------------------------------------- snapshots

    def snapshot(self) -> bytes:
        """Return the core's state as msgpack: about a hundred bytes for each request in flight."""
        servers = [replace(server, views={}) for server in self._servers]  # they can be recreated
        return msgspec.msgpack.encode(
            _State(
                self.arrived, self.completed, self.failed, self._class_stats, self.next_wake_ns, self._own_limit_ns,
                self._room, self._requests, self._fifo.in_order(), self._micro_batches, servers,
                self._batching_delays.state(), self._question, self._decision, self._all_at_cap,
                [tuple((table or {}).values()) for table in self._accuracies], list(self._freed),
            )
        )  # fmt: skip

    def resume(self, snapshot: bytes) -> None:
        """Resume as the core of the snapshot, which has the same settings: the same commands for each event.

        Raises:
            msgspec.DecodeError: it is not a snapshot.
        """
        state = _decode_state(snapshot)
        self.arrived = state.arrived
        self.completed = state.completed
        self.failed = state.failed
        self._class_stats = state.class_stats
        self.next_wake_ns = state.next_wake_ns
        self._own_limit_ns = state.own_limit_ns
        self._room = state.room
        self._requests = state.requests
        self._micro_batches = state.micro_batches
        self._servers = state.servers
        self._fifo.clear()
        for queue_key, request in state.waiting:
            self._fifo.push(queue_key, (request,))
        self._batching_delays.resume(state.batching_delays)
        self._question = state.question
        self._decision = state.decision
        self._all_at_cap = state.all_at_cap
        self._freed.extend(state.freed)
        self._accuracies = list(map(self._by_tuple, state.accuracies))
        self._find_stand_ins()

    # ---------------------------------------------------------------------------------------------------- events

    def handle(self, event: RouterEvent, now_ns: int) -> list[RouterCommand]:
        """Process one event at its time; returns what to do, in order."""
        commands: list[RouterCommand] = []
        take = self._take.get(type(event))
        if take is not None:  # started transfers and stragglers change no entry
            take(event, now_ns, commands)
        if self._question is not None or not self._fifo.waiting:
            self.next_wake_ns = None
        elif not self._all_at_cap and not self._batching_delays.is_on:
            self.next_wake_ns = now_ns
        else:
            self.next_wake_ns = self._next_wake_ns(now_ns)
        return commands

    def _next_wake_ns(self, now_ns: int) -> int | None:
        """Return now, if a decision can be asked for; otherwise the end of a batching delay, or the deadline of a head
        that can only be shed."""
        if not self._all_at_cap and not self._is_all_delayed():
            return now_ns
        wake_ns = self._batching_delays.next_ns
        if self._all_at_cap and self.config.shed_expired:
            head = self._fifo.head()
            assert head is not None, "nobody waits"
            deadline_ns = self._requests[self._fifo.peek(head, 1)[0]].deadline_ns
            wake_ns = min((at for at in (wake_ns, deadline_ns) if at is not None), default=None)
        return None if wake_ns is None else max(now_ns, wake_ns)

    def _is_all_delayed(self) -> bool:
        held = self._batching_delays.queue_keys
        return bool(held) and self._fifo.waiting == sum(self._fifo.length(queue_key) for queue_key in held)

    def _is_current(self, server: int, incarnation: int) -> bool:
        state = self._servers[server]
        return state.up and state.incarnation == incarnation

    # --------------------------------------------------------------------------------------- the FIFO and micro-batches

    def _admit(self, event: RequestArrived, now_ns: int, commands: list[RouterCommand]) -> None:
        self.arrived += 1
        if not has_room(self._room, len(self._requests), self._class_stats[event.service_class].rank):
            self.failed += 1
            commands.append(RequestFailed(event.request, REFUSED, 0))
            return
        note_arrival(self._batching_delays, now_ns)
        version = self._stand_ins[event.version]
        entry = _Request(event.deadline_ns, now_ns, now_ns, service_class=event.service_class, version=version)
        self._requests[event.request] = entry
        self._queue(self._lines_of_images[event.service_class][version], (event.request,), (entry,), now_ns)

    def _enter(self, requests: tuple[int, ...], entries: Sequence[_Request], now_ns: int) -> None:
        """Append requests to the FIFO under the key of their place and activations: one for all of them."""
        for entry in entries:
            entry.entered_ns = now_ns
            entry.micro_batch = None
        self._queue(self._queue_key(requests[0], entries[0]), requests, entries, now_ns)

    def _queue(self, queue_key: _QueueKey, requests: tuple[int, ...], entries: Sequence[_Request], now_ns: int) -> None:
        if not self._batching_delays.is_on or queue_key.alone != _TOGETHER:
            self._fifo.push(queue_key, requests)
            return
        for request, entry in zip(requests, entries, strict=True):
            self._fifo.push(queue_key, (request,))
            if self._batching_delays.join(
                queue_key, entry, queue_key.head.segment, self._fifo.length(queue_key), now_ns
            ):
                self._end_batching_delay(queue_key, now_ns)

    def _queue_key(self, request: int, entry: _Request) -> _QueueKey:
        """Return the batch queue of requests that this one may share a micro-batch with."""
        location = entry.location if self.config.micro_batch_key == "location" else ANYWHERE
        place = (len(entry.widths) + 1, entry.widths[-1] if entry.widths else IMAGE, location)
        head = (*place, entry.service_class, entry.version)
        if entry.retries >= ALONE_AFTER:
            return _QueueKey(HeadKey(*head), request)
        queue_key = self._queue_keys.get(head)
        if queue_key is None:
            queue_key = self._queue_keys[head] = _QueueKey(HeadKey(*head))
        return queue_key

    def _ask(self, event: RouterTimer, now_ns: int, commands: list[RouterCommand]) -> None:
        """Ask for a decision if none is in progress, a request is waiting, and a server can take a micro-batch."""
        if self._question is not None or not self._fifo.waiting:
            return
        if self._batching_delays.is_on:
            for queue_key in self._batching_delays.due(now_ns):
                self._end_batching_delay(queue_key, now_ns)
        if self.config.shed_expired:
            self._shed(now_ns, commands)
            if not self._fifo.waiting:
                return
        head = self._oldest_servable()
        if head is None:
            self._all_at_cap = not self._is_all_delayed()
            return
        queue_key, servers = head
        requests = self._fifo.peek(queue_key, self.config.micro_batch_sizes[-1])
        left_ns = self._batching_delay_left_ns(queue_key, requests, now_ns)
        self._question = _Question(queue_key, requests, self._fifo.length(queue_key), left_ns > 0)
        self._decision += 1
        entered_ns, waiting = self._requests[requests[0]].entered_ns, self._fifo.waiting
        stats = self._stats_of(queue_key.head)
        goal, others = stats.goal, self.completed - stats.completed
        queue_facts = (len(requests), entered_ns, waiting, self.completed, servers, left_ns)
        goal_facts = (stats.accuracy_sum, goal.floor, stats.late, goal.limit_ns, goal.energy_weight, others)
        can_take, samples = (lambda index: servers[index].valid), self.config.samples
        sample = sampled_servers(
            self._decision, queue_key.head.location, reversed(self._freed), can_take, len(servers), samples
        )
        commands.append(Decide(self._decision, ClusterView(now_ns, queue_key.head, *queue_facts, *goal_facts, sample)))

    def _oldest_servable(self) -> tuple[_QueueKey, tuple[ServerView, ...]] | None:
        """Return the head's batch queue or, if it is delayed or no free server can hold its segment, the oldest one
        that can go."""
        head = self._fifo.head()
        if head is None:
            return None
        if head not in self._batching_delays:
            servers = self._server_views(head.head)
            if _can_any(servers):
                return head, servers
        cap = self.config.outstanding_micro_batches
        if any(state.up and state.micro_batches < cap for state in self._servers):
            for queue_key in self._fifo.by_age():
                if queue_key in self._batching_delays:
                    continue
                servers = self._server_views(queue_key.head)
                if _can_any(servers):
                    return queue_key, servers
        return None

    def _place(self, head: HeadKey) -> int:
        """Return the number of a head's segment among those of all models."""
        return self._first_places[head.service_class] + head.segment

    def _server_views(self, head: HeadKey) -> tuple[ServerView, ...]:
        """Return a head's views of the servers; recreated if their entries have changed."""
        views: list[ServerView] = []
        place, version = at = self._place(head), head.version
        for state in self._servers:
            view = state.views.get(at)
            if view is None:
                widths = self._masks[len(views)][place]
                if state.version != version:
                    widths = (False,) * len(widths)
                is_spared = state.is_draining and self._is_spared(place, version)
                view = state.views[at] = state.view(self.config, head.segment, widths, is_spared=is_spared)
            views.append(view)
        return tuple(views)

    def _shed(self, now_ns: int, commands: list[RouterCommand]) -> None:
        """Give up the requests at the FIFO's head whose deadline has passed."""
        while (queue_key := self._fifo.head()) is not None:
            request = self._fifo.peek(queue_key, 1)[0]
            deadline_ns = self._requests[request].deadline_ns
            if deadline_ns is None or deadline_ns > now_ns:
                return
            self._fifo.take(queue_key, 1)
            self._give_up(request, "deadline", commands)

    def _send(self, event: Decided, now_ns: int, commands: list[RouterCommand]) -> None:
        """Form the chosen micro-batch from the candidates; the rest keep their place.

        Between question and answer the server may have failed, or be drained: then nothing is sent and the core asks
        again.
        """
        question, choice = self._answered(event.decision), event.choice
        queue_key = question.queue_key
        candidates = question.requests
        head = question.queue_key.head
        server = self._servers[choice.server]
        if not server.up or (server.is_draining and self._is_spared(self._place(head), head.version)):
            return
        if self._fifo.peek(queue_key, len(candidates)) != candidates:
            return
        self._require_legal(choice, head)
        requests = self._fifo.take(queue_key, min(choice.micro_batch_size, len(candidates)))
        key = WorkKey(head.segment, choice.width, head.previous_width)
        micro_batch = MicroBatch(event.decision, choice.server, server.incarnation, key, requests, choice.then)
        self._micro_batches[event.decision] = _OpenMicroBatch(micro_batch, len(requests), [])
        entries = list(map(self._requests.__getitem__, requests))
        for entry in entries:
            entry.micro_batch, entry.batching_delays = event.decision, 0
        server.add(micro_batch.keys, len(requests), micro_batches=1)
        if len(requests) == question.in_line:
            self._delay_late_comers(queue_key, now_ns)
        commands.append(
            SendMicroBatch(micro_batch, _moves(choice.server, requests, [entry.location for entry in entries]))
        )

    def _delay_late_comers(self, queue_key: _QueueKey, now_ns: int) -> None:
        """Apply the batching delay rule to requests that arrived during the decision as to a new batch queue: a driver
        receives them only now."""
        count = self._fifo.length(queue_key)
        if count and self._batching_delays.is_on and queue_key.alone == _TOGETHER:
            members = [self._requests[request] for request in self._fifo.peek(queue_key, count)]
            self._batching_delays.begin_by_rule(queue_key, members, queue_key.head.segment, now_ns)

    def _answered(self, decision: int) -> _Question:
        """Return the subject of the decision that has been answered."""
        request, self._question = self._question, None
        assert request is not None, "an answer to no question"
        assert decision == self._decision, "an answer to another question"
        return request

    def _require_legal(self, choice: Choice, head: HeadKey) -> None:
        assert choice.micro_batch_size >= 1, f"an empty micro-batch: {choice}"
        for place, width in enumerate((choice.width, *choice.then), start=self._place(head)):
            held = self._masks[choice.server][place]
            assert held[self.config.widths.index(width)], f"the policy chose a masked width: {choice}"
        assert head.segment + len(choice.then) <= self.config.segments, f"the path is too long: {choice}"
        assert self._servers[choice.server].version == head.version, f"the policy chose another version: {choice}"
        micro_batches = self._servers[choice.server].micro_batches
        assert micro_batches < self.config.outstanding_micro_batches, f"the policy chose a server at its cap: {choice}"

    def _move(self, event: TransferFinished, now_ns: int, commands: list[RouterCommand]) -> None:
        incarnation = self._servers[event.destination].incarnation
        for request in event.requests:
            entry = self._requests.get(request)
            if entry is not None and entry.micro_batch == event.micro_batch:
                entry.location, entry.location_incarnation = event.destination, incarnation

    # -------------------------------------------------------------------------------------------------- batching delays

    def _batching_delay_left_ns(self, queue_key: _QueueKey, candidates: tuple[int, ...], now_ns: int) -> int:
        """Return the longest batching delay of the candidates; 0 if they are the largest micro-batch, alone, or were
        delayed too often."""
        if (
            not self._batching_delays.is_on
            or len(candidates) == self.config.micro_batch_sizes[-1]
            or queue_key.alone != _TOGETHER
        ):
            return 0
        entries = [self._requests[request] for request in candidates]
        return self._batching_delays.left_ns(entries, now_ns) if entries[0].batching_delays < MAX_BATCHING_DELAYS else 0

    def _batching_delay(self, event: Delayed, now_ns: int, commands: list[RouterCommand]) -> None:
        """Delay the candidates' batch queue. If that is impossible by now, or enough requests wait, ask again."""
        batching_delay, question = event.batching_delay, self._answered(event.decision)
        queue_key, candidates = question.queue_key, question.requests
        assert question.may_delay, "the policy delayed requests that may not be delayed"
        is_one = (
            batching_delay.wait_ns > 0
            and len(candidates) < batching_delay.requests <= self.config.micro_batch_sizes[-1]
        )
        assert is_one, f"no such batching delay: {batching_delay}"
        waiting = self._fifo.length(queue_key)
        is_in_time = self._batching_delays.is_on and waiting < batching_delay.requests
        if not is_in_time or self._fifo.peek(queue_key, len(candidates)) != candidates:
            return
        members = [self._requests[request] for request in self._fifo.peek(queue_key, waiting)]
        until_ns = self._batching_delays.begin(
            queue_key, members, batching_delay.requests, batching_delay.wait_ns, now_ns
        )
        members[0].batching_delays += 1
        commands.append(BatchingDelayBegun(event.decision, candidates[0], members[0].entered_ns, until_ns))

    def _set_batching_delay_rule(self, event: BatchingDelayRule, now_ns: int, commands: list[RouterCommand]) -> None:
        assert event.counts == {self.config.segments}, f"not one a segment: {event}"
        self._batching_delays.set_rule(event)

    def _set_goal(self, event: GoalSet, now_ns: int, commands: list[RouterCommand]) -> None:
        for stats in self._class_stats[event.service_class :: self.config.class_count]:
            stats.goal = event
        self._set_room()

    def _set_room(self) -> None:
        """Set the number of images that fit within the strictest limit, and the order in which classes are refused."""
        goals = [stats.goal for stats in self._class_stats[: self.config.class_count]]
        limit_ns = min((goal.limit_ns for goal in goals if goal.limit_ns), default=0)
        self._room.images = self.config.sustained_img_s * limit_ns / NS_PER_S
        for stats in self._class_stats:
            better = sum(goal.floor > stats.goal.floor for goal in goals)
            stats.rank = better / max(1, len(goals) - 1)

    def _set_limit(self, event: OwnLimit, now_ns: int, commands: list[RouterCommand]) -> None:
        self._own_limit_ns = event.limit_ns

    def _change_model(self, event: ModelChanged, now_ns: int, commands: list[RouterCommand]) -> None:
        self._accuracies = [self._by_tuple(event.accuracies), self._by_tuple(event.canary_accuracies)]
        count = self.config.class_count
        self._class_stats[count:] = [_ClassStats(stats.goal) for stats in self._class_stats[:count]]
        for index, state in enumerate(self._servers):
            state.version = CANARY if index in event.canary else STABLE
        self._look_anew(now_ns)

    def _by_tuple(self, accuracies: tuple[float, ...]) -> dict[tuple[float, ...], float] | None:
        """Return the accuracy of each width tuple, by which completed requests are counted."""
        return dict(zip(self.config.width_tuples(), accuracies, strict=True)) if accuracies else None

    def _stats_of(self, request: _Request | HeadKey) -> _ClassStats:
        return self._class_stats[request.version * self.config.class_count + request.service_class]

    def _limit_ns_of(self, stats: _ClassStats) -> int:
        """Return a class's limit of p99 latency in force: the router's own, or the operator's; 0 for none."""
        return stats.goal.limit_ns if self._own_limit_ns == FOLLOW_NS else self._own_limit_ns

    def _end_holding(self, event: ArrivalsEnded, now_ns: int, commands: list[RouterCommand]) -> None:
        self._batching_delays.is_on = False
        self._end_batching_delays(now_ns)

    def _end_batching_delays(self, now_ns: int) -> None:
        for queue_key in self._batching_delays.queue_keys:
            self._end_batching_delay(queue_key, now_ns)

    def _end_batching_delay(self, queue_key: _QueueKey, now_ns: int) -> None:
        """Make a batch queue's requests eligible for decisions again."""
        members = self._fifo.peek(queue_key, self._fifo.length(queue_key))
        self._batching_delays.end(queue_key, [self._requests[request] for request in members], now_ns)
        self._all_at_cap = False

    # ------------------------------------------------------------------------------------------------ what comes back

    def _advance(self, event: RequestsReturned, now_ns: int, commands: list[RouterCommand]) -> None:
        """Add one width to each; its next segment's FIFO entry follows, or its end. Members of one micro-batch go
        together."""
        if not self._is_current(event.server, event.incarnation):
            return
        self._servers[event.server].residency = event.residency
        entries = list(map(self._requests.__getitem__, event.requests))
        correct = event.correct or (False,) * len(entries)
        micro_batches = [entry.micro_batch for entry in entries]
        if micro_batches.count(micro_batches[0]) == len(micro_batches):
            self._pass(event, event.requests, entries, correct, now_ns, commands)
            return
        edges = [
            0,
            *[at for at in range(1, len(micro_batches)) if micro_batches[at] != micro_batches[at - 1]],
            len(micro_batches),
        ]
        for part in map(slice, edges, edges[1:]):
            self._pass(event, event.requests[part], entries[part], correct[part], now_ns, commands)

    def _pass(
        self,
        event: RequestsReturned,
        requests: tuple[int, ...],
        entries: Sequence[_Request],
        correct: tuple[bool, ...],
        now_ns: int,
        commands: list[RouterCommand],
    ) -> None:
        """Advance some members of one micro-batch past their segment."""
        micro_batch = entries[0].micro_batch
        server = event.server
        incarnation = event.incarnation
        before: tuple[float, ...] | None = None
        after: tuple[float, ...] = ()
        on_path: tuple[float, ...] = ()  # before the segment
        if event.segment > len(entries[0].widths) + 1 and micro_batch is not None:
            sent = self._micro_batches[micro_batch].micro_batch
            on_path = (sent.key.width, *sent.then)[: event.segment - sent.key.segment]
        is_together = True
        entered_ns = tuple([entry.entered_ns for entry in entries])
        for entry in entries:
            if entry.widths is not before:
                before = entry.widths
                after = (*before, *on_path, event.width)
            entry.widths = after
            entry.location = server
            entry.location_incarnation = incarnation
            if entry.retries >= ALONE_AFTER or entry.is_cancelled:
                is_together = False
        if event.segment == self.config.segments:
            self._complete(requests, entries, correct, now_ns, commands)
        elif is_together:
            self._enter(requests, entries, now_ns)
        else:
            for request, entry in zip(requests, entries, strict=True):
                if entry.is_cancelled:
                    self._give_up(request, CANCELLED, commands)
                else:
                    self._enter((request,), [entry], now_ns)
        widths = tuple([entry.widths for entry in entries])
        self._leave_micro_batch(
            micro_batch, _Members(requests, entered_ns, now_ns, widths, correct, failed=False), commands
        )

    def _complete(
        self,
        requests: tuple[int, ...],
        entries: Sequence[_Request],
        correct: tuple[bool, ...],
        now_ns: int,
        commands: list[RouterCommand],
    ) -> None:
        first = entries[0]  # a micro-batch is of one class and version
        stats, accuracies = self._stats_of(first), self._accuracies[first.version]
        limit_ns = self._limit_ns_of(stats)
        self.completed += len(requests)
        stats.completed += len(requests)
        for request, entry, is_right in zip(requests, entries, correct, strict=True):
            if accuracies is not None:
                stats.accuracy_sum += accuracies[entry.widths]
            if 0 < limit_ns < now_ns - entry.arrived_ns:
                stats.late += 1
            note_end(self._room, len(self._requests), 0 < stats.goal.limit_ns < now_ns - entry.arrived_ns)
            del self._requests[request]
            commands.append(RequestCompleted(request, entry.widths, is_right, entry.retries, entry.version))

    def _return_unmoved(self, event: TransferFailed, now_ns: int, commands: list[RouterCommand]) -> None:
        if event.micro_batch in self._micro_batches:
            self._retry(event.requests, event.reason, now_ns, commands)

    def _return_rejected(self, event: RequestsRejected, now_ns: int, commands: list[RouterCommand]) -> None:
        if self._is_current(event.server, event.incarnation):
            self._retry(event.requests, event.reason, now_ns, commands)

    def _retry(self, requests: Iterable[int], reason: str, now_ns: int, commands: list[RouterCommand]) -> None:
        """Requeue at the FIFO's tail; from segment 1, perhaps at the other version, if the activations were lost with
        their server (the image is here)."""
        for request in requests:
            entry = self._requests[request]
            member = _Members((request,), (entry.entered_ns,), now_ns, ((),), (False,), failed=True)
            micro_batch = entry.micro_batch
            entry.retries += 1
            if entry.location != ROUTER and not self._is_current(entry.location, entry.location_incarnation):
                entry.widths, entry.location = (), ROUTER
            if not entry.widths:
                entry.version = self._stand_ins[entry.version]
            if entry.is_cancelled or entry.retries > self.config.max_retries:
                self._give_up(request, CANCELLED if entry.is_cancelled else reason, commands)
            else:
                self._enter((request,), [entry], now_ns)
            self._leave_micro_batch(micro_batch, member, commands)

    def _cancel(self, event: RequestsCancelled, now_ns: int, commands: list[RouterCommand]) -> None:
        """Give up cancelled requests: in the FIFO now, in a micro-batch when it has passed its segment.

        At the last segment a request is completed all the same.
        """
        cancelled = {request: entry for request in event.requests if (entry := self._requests.get(request)) is not None}
        for entry in cancelled.values():
            entry.is_cancelled = True
        waiting = [request for request, entry in cancelled.items() if entry.micro_batch is None]
        for queue_key in {self._queue_key(request, cancelled[request]): None for request in waiting}:
            self._fifo.remove(queue_key, set(waiting))
        for request in waiting:
            self._give_up(request, CANCELLED, commands)
        self._all_at_cap = False  # the head may have changed

    def _give_up(self, request: int, reason: str, commands: list[RouterCommand]) -> None:
        entry = self._requests.pop(request)
        self.failed += 1
        stats = self._stats_of(entry)
        if self._limit_ns_of(stats) > 0:
            stats.late += 1
        note_end(self._room, len(self._requests), stats.goal.limit_ns > 0)
        commands.append(RequestFailed(request, reason, entry.retries))
        if entry.location != ROUTER:
            commands.append(ReleaseActivations(entry.location, (request,)))

    def _leave_micro_batch(self, micro_batch: int | None, members: _Members, commands: list[RouterCommand]) -> None:
        """Record the end of members of a micro-batch; the micro-batch ends with its last one."""
        if micro_batch is None:
            return
        open_micro_batch, count = self._micro_batches[micro_batch], len(members.requests)
        open_micro_batch.ended.append(members)
        open_micro_batch.remaining -= count
        sent, has_ended = open_micro_batch.micro_batch, not open_micro_batch.remaining
        self._servers[sent.server].add(sent.keys, -count, micro_batches=-1 if has_ended else 0)
        if has_ended:
            self._all_at_cap = False
            self._freed.append(sent.server)
            del self._micro_batches[micro_batch]
            commands.append(_micro_batch_finished(sent, open_micro_batch.ended))

    # -------------------------------------------------------------------------------------------------- the servers

    def _hear(self, event: ServerReport, now_ns: int, commands: list[RouterCommand]) -> None:
        if self._is_current(event.server, event.incarnation):
            self._servers[event.server].hear(event)

    def _gain(self, event: ServerUp, now_ns: int, commands: list[RouterCommand]) -> None:
        self._servers[event.server].reset(event.incarnation, up=True)
        self._look_anew(now_ns)

    def _drain(self, event: ServerDraining, now_ns: int, commands: list[RouterCommand]) -> None:
        self._servers[event.server].is_draining = event.is_draining
        self._look_anew(now_ns)

    def _look_anew(self, now_ns: int) -> None:
        """End all batching delays and drop all views: other servers can take micro-batches than before, so any waiting
        request may go there, and to the other version if it has not begun."""
        self._end_batching_delays(now_ns)
        self._all_at_cap = False
        for state in self._servers:
            state.views.clear()  # whether a server is spared depends on the others
        self._find_stand_ins()
        moving = {
            request: entry
            for request, entry in self._requests.items()
            if entry.micro_batch is None and not entry.widths and self._stand_ins[entry.version] != entry.version
        }
        for queue_key in {self._queue_key(request, entry): None for request, entry in moving.items()}:
            self._fifo.remove(queue_key, moving)
        for request, entry in moving.items():
            entry.version = self._stand_ins[entry.version]
            self._fifo.push(self._queue_key(request, entry), (request,))

    def _find_stand_ins(self) -> None:
        """Let the other version replace one without a server that is up and not to be drained, if it has one."""
        free = {state.version for state in self._servers if state.up and not state.is_draining}
        held = free or {state.version for state in self._servers}
        self._stand_ins = tuple([version if version in held else 1 - version for version in VERSIONS])

    def _is_spared(self, place: int, version: int | None = None) -> bool:
        """Return whether a server to be drained is spared: another one that is up, and isn't, can hold the place's
        segment (of this version, if its requests may not go to the other)."""
        return any(
            other.up and not other.is_draining and version in (None, other.version) and any(masks[place])
            for other, masks in zip(self._servers, self._masks, strict=True)
        )

    def _lose(self, event: ServerDown, now_ns: int, commands: list[RouterCommand]) -> None:
        """Handle a server's failure: retry what was sent there, and what waits here for activations that were there.

        Requests in transfer to it keep the activations at their source. Transfers *from* it are the driver's to report,
        as `TransferFailed`.
        """
        server = event.server
        if not self._is_current(server, event.incarnation):
            return
        state = self._servers[server]
        state.up = False
        self._look_anew(now_ns)
        members = [
            request
            for open_micro_batch in self._micro_batches.values()
            if open_micro_batch.micro_batch.server == server
            for request in _left_of(open_micro_batch)
        ]
        waiting = [
            request
            for request, entry in self._requests.items()
            if entry.micro_batch is None and entry.location == server
        ]
        doomed = set(waiting)
        for queue_key in {self._queue_key(request, self._requests[request]): None for request in waiting}:
            self._fifo.remove(queue_key, doomed)
        self._retry((*members, *waiting), "server_down", now_ns, commands)
        state.reset(state.incarnation, up=False)
        self._all_at_cap = False  # the head may have changed


def _moves(server: int, requests: tuple[int, ...], locations: Sequence[int]) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Return (source, requests) for requests that are elsewhere, in order of the source."""
    if locations.count(server) == len(locations):
        return ()
    return tuple(
        [
            (source, tuple([request for request, at in zip(requests, locations, strict=True) if at == source]))
            for source in sorted(set(locations))
            if source != server
        ]
    )


@cache
def flags(bits: int, count: int) -> tuple[bool, ...]:
    """Return whether each of the lowest bits is 1."""
    return tuple(bool(bits >> bit & 1) for bit in range(count))


def _left_of(open_micro_batch: _OpenMicroBatch) -> list[int]:
    """Return the members of a micro-batch that have not ended."""
    ended = {request for members in open_micro_batch.ended for request in members.requests}
    return [request for request in open_micro_batch.micro_batch.requests if request not in ended]


def _micro_batch_finished(micro_batch: MicroBatch, ended: Sequence[_Members]) -> MicroBatchFinished:
    """Return the results of a micro-batch's members, in the order of sending."""
    if len(ended) == 1 and ended[0].requests == micro_batch.requests:
        members, count = ended[0], len(micro_batch.requests)
        columns: tuple[Any, ...] = (
            members.entered_ns, (members.ended_ns,) * count, members.widths, members.correct, (members.failed,) * count
        )  # fmt: skip
    else:
        rows = {
            request: (entered_ns, members.ended_ns, widths, is_right, members.failed)
            for members in ended
            for request, entered_ns, widths, is_right in zip(
                members.requests, members.entered_ns, members.widths, members.correct, strict=True
            )
        }
        columns = tuple(zip(*[rows[request] for request in micro_batch.requests], strict=True))
    return MicroBatchFinished(
        micro_batch.micro_batch, micro_batch.server, micro_batch.key.segment, micro_batch.requests, *columns
    )


def _can_any(servers: Iterable[ServerView]) -> bool:
    """Return whether some server can take the micro-batch (a plain loop, as it runs at every decision)."""
    for server in servers:  # noqa: SIM110 - a generator costs three times as much
        if server.valid:
            return True
    return False
