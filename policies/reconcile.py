"""Whether the logs of a run agree on what became of every block: the router's, and that of every life of a server.

Each log is followed as it is read; what they say of each other is compared in the end. A *life* is a server's epoch.
What must hold: a request is in one block at a time. It comes back from it once: from the life that the block was sent
to, and that handed it back; or with a transfer that failed, or with that life's end. What a life hands back it had from
a block that the router sent there; and the router hears of it, unless the life or the run ends before. Nothing is
replayed here (`policies.replay` does that).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from policies.records import LoggedStep
from policies.vocabulary import (
    Block,
    BlockArrived,
    RejectRequests,
    RequestArrived,
    RequestCompleted,
    RequestFailed,
    RequestsRejected,
    RequestsReturned,
    ReturnRequests,
    RouterCommand,
    RouterEvent,
    SendBlock,
    ServerDown,
    ServerUp,
    TransferFailed,
)

ROUTER_LOG = "router"


class Fate(IntEnum):
    """How a block ended; of its members' ends the last of these."""

    RETURNED = 0
    REJECTED = 1  # by the server
    NOT_MOVED = 2  # its inputs could not be brought there
    LOST = 3  # with the server's life
    UNDER_WAY = 4  # when the run ended

    @property
    def word(self) -> str:
        """For people."""
        return self.name.lower().replace("_", " ")


@dataclass(frozen=True, slots=True)
class Violation:
    """What can't be: `log` is `router` or a life's, `step` counts from 0; None where it is of no single step."""

    log: str
    step: int | None
    problem: str

    def __str__(self) -> str:
        return f"{self.log}{'' if self.step is None else f', step {self.step}'}: {self.problem}"


@dataclass(frozen=True, slots=True)
class Account:
    """What the logs come to: `blocks` by fate, and all that does not fit together."""

    blocks: dict[Fate, int]
    violations: tuple[Violation, ...]


@dataclass(frozen=True, order=True, slots=True)
class _Life:
    server: int
    epoch: int

    def __str__(self) -> str:
        return f"server:{self.server}, life {self.epoch}"


_Answer = ReturnRequests | RejectRequests
_Answers = dict[_Answer, list[tuple[int, tuple[int, ...]]]]  # each with its step and its blocks


class Books:
    """Follows the logs of one run. Every method that takes steps hands them on."""

    def __init__(self) -> None:
        self._router = _RouterBook()
        self._lives: dict[_Life, _LifeBook] = {}

    def whole(self, steps: Iterable[LoggedStep]) -> Iterator[LoggedStep]:
        """A log that holds the steps of all cores, as a simulation writes it."""
        current: dict[str, _LifeBook] = {}
        for number, step in enumerate(steps):
            if step.core == ROUTER_LOG:
                self._router.observe(number, step)
            elif isinstance(step.event, ServerUp):
                current[step.core] = self._open(_Life(step.event.server, step.event.epoch), heard=0, ended=None)
            elif step.core in current:  # a server that is down does nothing
                current[step.core].observe(number, step)
            yield step

    def router(self, steps: Iterable[LoggedStep]) -> Iterator[LoggedStep]:
        """The router's own log."""
        for number, step in enumerate(steps):
            if step.core == ROUTER_LOG:
                self._router.observe(number, step)
            else:
                self._router.note(number, f"is of {step.core}, whose lives have logs of their own")
            yield step

    def life(
        self, steps: Iterable[LoggedStep], *, server: int, epoch: int, heard: int, ended: str
    ) -> Iterator[LoggedStep]:
        """The log of one life; for the others see `policies.records.AgentLog`."""
        book = self._open(_Life(server, epoch), heard, ended)
        for number, step in enumerate(steps):
            if step.core == f"server:{server}":
                book.observe(number, step)
            else:
                book.note(number, f"is of {step.core}")
            yield step

    def _open(self, life: _Life, heard: int, ended: str | None) -> _LifeBook:
        book = _LifeBook(life, heard, ended)
        if life in self._lives:
            book.note(None, "there are two of it")
        self._lives[life] = book
        return book

    def close(self) -> Account:
        """All logs have been read: what they come to."""
        router, violations = self._router, list(self._router.violations)
        for life in sorted(router.born - self._lives.keys()):
            violations.append(Violation(str(life), None, "there is no log of it, and the router says that it served"))
        for _, book in sorted(self._lives.items(), key=lambda each: each[0]):
            violations += [*book.violations, *_compare(router, book)]
        fates = list(router.fates().values())
        return Account({fate: fates.count(fate) for fate in Fate}, tuple(violations))


class _Book:
    """One log: what is wrong with it alone, and where it is being read."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.steps = 0
        self.violations: list[Violation] = []

    def note(self, step: int | None, problem: str) -> None:
        self.violations.append(Violation(self.name, step, problem))

    def here(self, problem: str) -> None:
        """In the step that is being read."""
        self.note(self.steps - 1, problem)


class _RouterBook(_Book):
    """The router's log.

    Attributes:
        born: every life that served; `ended` says how the dead ones did.
        sent: every block.
        heard: what came back, as what the life must have said.
        is_drained: whether all that arrived has ended.
    """

    def __init__(self) -> None:
        super().__init__(ROUTER_LOG)
        self.born: set[_Life] = set()
        self.ended: dict[_Life, str] = {}
        self.sent: dict[int, Block] = {}
        self.heard: dict[_Life, _Answers] = {}
        self._fates: dict[int, Fate] = {}
        self._last: dict[int, Block] = {}  # of each request
        self._under_way: set[int] = set()
        self._open_requests = 0
        self._take: dict[type, Callable[[Any], None]] = {
            RequestArrived: self._arrive,
            RequestCompleted: self._end,
            RequestFailed: self._end,
            ServerUp: self._gain,
            ServerDown: self._lose,
            SendBlock: self._send,
            TransferFailed: self._return_unmoved,
            RequestsReturned: self._hear,
            RequestsRejected: self._hear,
        }

    @property
    def is_drained(self) -> bool:
        return not self._open_requests

    def fates(self) -> dict[int, Fate]:
        """Of every block."""
        waiting = {self._last[request].block: Fate.UNDER_WAY for request in self._under_way}
        return self._fates | waiting

    def observe(self, number: int, step: LoggedStep) -> None:
        self.steps = number + 1
        told: list[RouterEvent | RouterCommand] = [step.event, *step.commands]  # type: ignore[list-item]
        for word in told:
            take = self._take.get(type(word))
            if take is not None:
                take(word)

    def _arrive(self, event: RequestArrived) -> None:
        self._open_requests += 1

    def _end(self, command: RequestCompleted | RequestFailed) -> None:
        self._open_requests -= 1

    def _gain(self, event: ServerUp) -> None:
        self.born.add(_Life(event.server, event.epoch))

    def _lose(self, event: ServerDown) -> None:
        life = _Life(event.server, event.epoch)
        self.ended.setdefault(life, event.reason)
        self._close([each for each in self._under_way if _life_of(self._last[each]) == life], Fate.LOST)

    def _send(self, command: SendBlock) -> None:
        block = command.block
        life = _life_of(block)
        if not self._is_up(life):
            self.here(f"block {block.block} was sent to {life}, which was not up")
        if block.block in self.sent:
            self.here(f"block {block.block} was sent twice")
        for request in block.requests:
            if request in self._under_way:
                before = self._which(request)
                self.here(f"request {request} was sent in block {block.block}, and was under way in block {before}")
            self._last[request] = block
        self._under_way.update(block.requests)
        self.sent[block.block] = block
        self._fates[block.block] = Fate.RETURNED

    def _return_unmoved(self, event: TransferFailed) -> None:
        """It gives the block back whole; one that has ended already is stale."""
        if event.block not in self.sent:
            self.here(f"a transfer failed of block {event.block}, which was never sent")
        members = [each for each in event.requests if each in self._under_way and self._which(each) == event.block]
        if members and len(members) < len(event.requests):
            self.here(f"block {event.block} was given back after some of its requests had come back")
        self._close(members, Fate.NOT_MOVED)

    def _hear(self, event: RequestsReturned | RequestsRejected) -> None:
        """From a life that has ended it is stale: what was there is lost already."""
        life = _Life(event.server, event.epoch)
        _note_answer(self.heard.setdefault(life, {}), _answer_of(event), self.steps - 1, self._last)
        if not self._is_up(life):
            return
        for request in event.requests:
            block = self._last.get(request)
            if block is None or _life_of(block) != life:
                sent = "nowhere" if block is None else f"in block {block.block} to {_life_of(block)}"
                self.here(f"request {request} came back from {life}, but was last sent {sent}")
            elif request not in self._under_way:
                self.here(f"request {request} of block {block.block} came back from {life} after it had ended there")
            elif isinstance(event, RequestsReturned) and block.key.segment != event.segment:
                done = f"came back from segment {event.segment}, but was sent for {block.key.segment}"
                self.here(f"request {request} of block {block.block} {done}")
        there = [r for r in event.requests if r in self._under_way and _life_of(self._last[r]) == life]
        self._close(there, Fate.RETURNED if isinstance(event, RequestsReturned) else Fate.REJECTED)

    def _is_up(self, life: _Life) -> bool:
        return life in self.born and life not in self.ended

    def _which(self, request: int) -> int:
        return self._last[request].block

    def _close(self, requests: Iterable[int], fate: Fate) -> None:
        for request in requests:
            self._under_way.discard(request)
            block = self._which(request)
            self._fates[block] = max(self._fates[block], fate)


class _LifeBook(_Book):
    """The log of one life.

    Attributes:
        heard, ended: see `policies.records.AgentLog`; `ended` is None where no note was made of it.
        arrived: every block, and in which step.
        answers: what was handed back.
    """

    def __init__(self, life: _Life, heard: int, ended: str | None) -> None:
        super().__init__(str(life))
        self.life, self.heard, self.ended = life, heard, ended
        self.arrived: dict[int, tuple[int, Block]] = {}
        self.answers: _Answers = {}
        self._held: dict[int, Block] = {}

    def observe(self, number: int, step: LoggedStep) -> None:
        self.steps = number + 1
        if isinstance(step.event, BlockArrived):
            self._take(step.event.block)
        for command in step.commands:
            if isinstance(command, ReturnRequests | RejectRequests):
                self._answer(command)

    def _take(self, block: Block) -> None:
        if block.block in self.arrived:
            self.here(f"block {block.block} arrived twice")
        self.arrived[block.block] = (self.steps - 1, block)
        for request in block.requests:
            if request in self._held:
                which = self._held[request].block
                self.here(f"request {request} arrived in block {block.block}, and was there in block {which}")
            self._held[request] = block

    def _answer(self, command: _Answer) -> None:
        _note_answer(self.answers, command, self.steps - 1, self._held)
        for request in command.requests:
            block = self._held.pop(request, None)
            if block is None:
                self.here(f"request {request} was handed back, and was not there (any more)")
            elif isinstance(command, ReturnRequests) and block.key.segment != command.segment:
                done = f"was handed back from segment {command.segment}, but had come for {block.key.segment}"
                self.here(f"request {request} of block {block.block} {done}")


def _life_of(block: Block) -> _Life:
    return _Life(block.server, block.epoch)


def _answer_of(event: RequestsReturned | RequestsRejected) -> _Answer:
    """What a life said, from what the router heard."""
    if isinstance(event, RequestsReturned):
        return ReturnRequests(event.epoch, event.requests, event.segment, event.width)
    return RejectRequests(event.epoch, event.requests, event.reason)


def _note_answer(answers: _Answers, answer: _Answer, step: int, block_of: Mapping[int, Block]) -> None:
    blocks = {block_of[request].block for request in answer.requests if request in block_of}
    answers.setdefault(answer, []).append((step, tuple(sorted(blocks))))


def _compare(router: _RouterBook, book: _LifeBook) -> Iterator[Violation]:
    """One life as the router knows it, and as it is by its own log."""
    life = book.life
    if life not in router.born:
        yield Violation(book.name, None, "there is a log of it, and the router says nothing of it")
        return
    ended = router.ended.get(life, "")
    if book.ended not in (None, ended):
        problem = f"ended by its note: {_end_text(book.ended)}; by the router's log: {_end_text(ended)}"
        yield Violation(book.name, None, problem)
    for step, block in book.arrived.values():
        if router.sent.get(block.block) != block:
            yield Violation(book.name, step, f"block {block.block} arrived, which the router never sent there")
    if book.steps < book.heard:
        problem = f"its log ends after {book.steps} steps, and the router had heard of {book.heard}"
        yield Violation(book.name, None, problem)
        return  # what is missing is missing
    heard = router.heard.get(life, {})
    for answer, times in heard.items():
        for step, blocks in times[len(book.answers.get(answer, ())) :]:
            yield Violation(ROUTER_LOG, step, f"{_text(answer, blocks)} by {book.name}, in whose log that is not")
    in_time = _heard_in_time(book, heard, is_drained=router.is_drained and not ended)
    for answer, times in book.answers.items():
        for step, blocks in times[len(heard.get(answer, ())) :]:
            if step < in_time:
                yield Violation(book.name, step, f"{_text(answer, blocks)}, and the router did not hear of it")


def _heard_in_time(book: _LifeBook, heard: _Answers, *, is_drained: bool) -> int:
    """The step before which the router heard of all that a life handed back: an agent's words come in their order.

    Of several answers of one step, a killed life's first may be the last that was heard.
    """
    if is_drained:
        return book.steps
    if book.ended is None:
        return 0  # simulated words may overtake each other
    times = [times[:count] for answer, times in book.answers.items() if (count := len(heard.get(answer, ())))]
    last = max((step for each in times for step, _ in each), default=0)
    return max(last, book.heard - 1) if book.ended else last


def _text(answer: _Answer, blocks: tuple[int, ...]) -> str:
    requests = f"request{'s' * (len(answer.requests) != 1)} {_listed(answer.requests)}"
    of = f" of block{'s' * (len(blocks) > 1)} {_listed(blocks)}" if blocks else ""
    if isinstance(answer, ReturnRequests):
        return f"{requests}{of} returned from segment {answer.segment} at width {answer.width:g}"
    return f"{requests}{of} rejected ({answer.reason})"


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))


def _end_text(ended: str | None) -> str:
    return ended or "with the run"
