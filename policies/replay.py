"""Replay of a run's logs through fresh cores, and the check that all logs of a run agree on every block's end.

The check (`Books`) follows each log as it is read, and compares the logs at the end. An *epoch* is one life of a
server's agent. The check requires that a block arrives once, at the epoch to which the router sent it; that any answer
in the router's log is in the epoch's log; and that any answer in an epoch's log is in the router's, unless the epoch or
the run ends before. The check does not examine whether each log is correct alone (no request is sent twice, or returned
without being there): the replay shows that.

The replay (`replay`) gives fresh cores the logged events at the same times, and compares their commands with the logged
ones. `replay_run` does both for all logs of a run.

`to_jsonable` and `from_jsonable` convert events, commands and the settings of cores to plain JSON data and back, for
stored runs and replays.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any

import msgspec

from kit.errors import InputError
from policies import vocabulary
from policies.greedy_scheduler import GreedyKnobs, GreedyScheduler
from policies.interfaces import RouterConfig
from policies.router_core import RouterCore
from policies.run_records import AgentLog, LoggedStep
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
    SendBlock,
    ServerDown,
    ServerUp,
    TransferFailed,
)

# ------------------------------------------------------------------------------------------------ the check of all logs


ROUTER_LOG = "router"


class Fate(IntEnum):
    """The end of a block; the last of these among its members' ends."""

    RETURNED = 0
    REJECTED = 1  # by the server
    NOT_MOVED = 2  # its inputs could not be moved there
    LOST = 3  # with the server's epoch
    UNDER_WAY = 4  # when the run ended

    @property
    def word(self) -> str:
        """The fate as text for people."""
        return self.name.lower().replace("_", " ")


@dataclass(frozen=True, slots=True)
class Violation:
    """A contradiction: `log` is `router` or an epoch's, `step` counts from 0; None if it isn't of a single step."""

    log: str
    step: int | None
    problem: str

    def __str__(self) -> str:
        return f"{self.log}{'' if self.step is None else f', step {self.step}'}: {self.problem}"


@dataclass(frozen=True, slots=True)
class Account:
    """The result of the comparison: `blocks` by fate, and all contradictions."""

    blocks: dict[Fate, int]
    violations: tuple[Violation, ...]


@dataclass(frozen=True, order=True, slots=True)
class _ServerEpoch:
    server: int
    epoch: int

    def __str__(self) -> str:
        return f"server:{self.server}, epoch {self.epoch}"


_Answer = ReturnRequests | RejectRequests
_Answers = dict[_Answer, list[tuple[int, tuple[int, ...]]]]  # each with its step and its blocks


class Books:
    """The logs of one run as they are read. Every method that takes steps passes them on."""

    def __init__(self) -> None:
        self._router = _RouterBook()
        self._server_epochs: dict[_ServerEpoch, _EpochBook] = {}

    def whole(self, steps: Iterable[LoggedStep]) -> Iterator[LoggedStep]:
        """Read a log with the steps of all cores, as a simulation writes it."""
        current: dict[str, _EpochBook] = {}
        for number, step in enumerate(steps):
            if step.core == ROUTER_LOG:
                self._router.observe(number, step)
            elif isinstance(step.event, ServerUp):
                current[step.core] = self._open(_ServerEpoch(step.event.server, step.event.epoch), heard=0, ended=None)
            elif step.core in current:  # a server that is down does nothing
                current[step.core].observe(number, step)
            yield step

    def router(self, steps: Iterable[LoggedStep]) -> Iterator[LoggedStep]:
        """Read the router's log."""
        for number, step in enumerate(steps):
            if step.core == ROUTER_LOG:
                self._router.observe(number, step)
            else:
                self._router.note(number, f"is of {step.core}, whose epochs have logs of their own")
            yield step

    def server_epoch(
        self, steps: Iterable[LoggedStep], *, server: int, epoch: int, heard: int, ended: str
    ) -> Iterator[LoggedStep]:
        """Read the log of one epoch; for the others see `policies.run_records.AgentLog`."""
        book = self._open(_ServerEpoch(server, epoch), heard, ended)
        for number, step in enumerate(steps):
            if step.core == f"server:{server}":
                book.observe(number, step)
            else:
                book.note(number, f"is of {step.core}")
            yield step

    def _open(self, server_epoch: _ServerEpoch, heard: int, ended: str | None) -> _EpochBook:
        book = _EpochBook(server_epoch, heard, ended)
        if server_epoch in self._server_epochs:
            book.note(None, "there are two of it")
        self._server_epochs[server_epoch] = book
        return book

    def close(self) -> Account:
        """Compare all logs, once they are read; returns the account."""
        router, violations = self._router, list(self._router.violations)
        for server_epoch in sorted(router.born - self._server_epochs.keys()):
            violations.append(
                Violation(str(server_epoch), None, "there is no log of it, and the router says that it served")
            )
        for _, book in sorted(self._server_epochs.items(), key=lambda entry: entry[0]):
            violations += [*book.violations, *_compare(router, book)]
        fates = list(router.fates().values())
        return Account({fate: fates.count(fate) for fate in Fate}, tuple(violations))


class _Book:
    """One log: its contradictions, its number of steps, and the answers by step."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.steps = 0
        self.violations: list[Violation] = []

    def note(self, step: int | None, problem: str) -> None:
        self.violations.append(Violation(self.name, step, problem))


class _RouterBook(_Book):
    """The router's log.

    Attributes:
        born: every epoch that served; `ended` has the reasons of those that ended.
        sent: every block.
        answers: what came back, in the form of the epoch's answer.
        is_drained: whether all requests that arrived have ended.
    """

    def __init__(self) -> None:
        super().__init__(ROUTER_LOG)
        self.born: set[_ServerEpoch] = set()
        self.ended: dict[_ServerEpoch, str] = {}
        self.sent: dict[int, Block] = {}
        self.answers: dict[_ServerEpoch, _Answers] = {}
        self._fates: dict[int, Fate] = {}
        self._last: dict[int, Block] = {}  # of each request
        self._under_way: set[int] = set()
        self._open_requests = 0

    @property
    def is_drained(self) -> bool:
        return not self._open_requests

    def fates(self) -> dict[int, Fate]:
        """Return the fate of every block."""
        return self._fates | {self._last[request].block: Fate.UNDER_WAY for request in self._under_way}

    def observe(self, number: int, step: LoggedStep) -> None:
        self.steps = number + 1
        match step.event:
            case RequestArrived():
                self._open_requests += 1
            case ServerUp(server, epoch):
                self.born.add(_ServerEpoch(server, epoch))
            case ServerDown(server, epoch, reason):
                server_epoch = _ServerEpoch(server, epoch)
                self.ended.setdefault(server_epoch, reason)
                self._close(self._of_epoch(self._under_way, server_epoch), Fate.LOST)
            case TransferFailed(block, _, _, requests):  # stale for one that has ended already
                if block not in self.sent:
                    self.note(number, f"a transfer failed of block {block}, which was never sent")
                affected = [request for request in self._sent_with(requests) if self._last[request].block == block]
                self._close(affected, Fate.NOT_MOVED)
            case RequestsReturned(server, epoch, requests, segment, width, residency=residency):
                returned = ReturnRequests(epoch, requests, segment, width, residency)
                self._hear(_ServerEpoch(server, epoch), returned, Fate.RETURNED)
            case RequestsRejected(server, epoch, requests, reason):
                self._hear(_ServerEpoch(server, epoch), RejectRequests(epoch, requests, reason), Fate.REJECTED)
        for command in step.commands:
            if isinstance(command, SendBlock):
                self._send(command.block)
            elif isinstance(command, RequestCompleted | RequestFailed):
                self._open_requests -= 1

    def _send(self, block: Block) -> None:
        self._last |= dict.fromkeys(block.requests, block)
        self._under_way.update(block.requests)
        self.sent[block.block] = block
        self._fates[block.block] = Fate.RETURNED

    def _hear(self, server_epoch: _ServerEpoch, answer: _Answer, fate: Fate) -> None:
        """Note an answer; from an epoch that has ended it is stale, as its requests are lost already."""
        _note_answer(self.answers.setdefault(server_epoch, {}), answer, self.steps - 1, self._last)
        self._close(self._of_epoch(self._sent_with(answer.requests), server_epoch), fate)

    def _of_epoch(self, requests: Iterable[int], server_epoch: _ServerEpoch) -> list[int]:
        blocks = ((request, self._last[request]) for request in requests)
        return [request for request, block in blocks if _ServerEpoch(block.server, block.epoch) == server_epoch]

    def _sent_with(self, requests: Iterable[int]) -> list[int]:
        return [request for request in requests if request in self._under_way]

    def _close(self, requests: Iterable[int], fate: Fate) -> None:
        for request in requests:
            self._under_way.discard(request)
            block = self._last[request].block
            self._fates[block] = max(self._fates[block], fate)


class _EpochBook(_Book):
    """The log of one epoch.

    Attributes:
        heard, ended: see `policies.run_records.AgentLog`; `ended` is None if it was not recorded.
        arrived: every block, and the step of its arrival.
        answers: what was returned.
    """

    def __init__(self, server_epoch: _ServerEpoch, heard: int, ended: str | None) -> None:
        super().__init__(str(server_epoch))
        self.server_epoch = server_epoch
        self.heard = heard
        self.ended = ended
        self.arrived: dict[int, tuple[int, Block]] = {}
        self.answers: _Answers = {}
        self._last: dict[int, Block] = {}  # of each request

    def observe(self, number: int, step: LoggedStep) -> None:
        self.steps = number + 1
        if isinstance(step.event, BlockArrived):
            block = step.event.block
            if block.block in self.arrived:
                self.note(number, f"block {block.block} arrived twice")
            self.arrived[block.block] = (number, block)
            self._last |= dict.fromkeys(block.requests, block)
        for command in step.commands:
            if isinstance(command, ReturnRequests | RejectRequests):
                _note_answer(self.answers, command, number, self._last)


def _note_answer(answers: _Answers, answer: _Answer, step: int, block_of: Mapping[int, Block]) -> None:
    blocks = {block_of[request].block for request in answer.requests if request in block_of}
    answers.setdefault(answer, []).append((step, tuple(sorted(blocks))))


def _compare(router: _RouterBook, book: _EpochBook) -> Iterator[Violation]:
    """Compare one epoch in the router's log with the epoch's log."""
    server_epoch = book.server_epoch
    if server_epoch not in router.born:
        yield Violation(book.name, None, "there is a log of it, and the router says nothing of it")
        return
    ended = router.ended.get(server_epoch, "")
    if book.ended not in (None, ended):
        problem = f"ended by its note: {_end_text(book.ended)}; by the router's log: {_end_text(ended)}"
        yield Violation(book.name, None, problem)
    for step, block in book.arrived.values():
        if router.sent.get(block.block) != block:
            yield Violation(book.name, step, f"block {block.block} arrived, which the router never sent there")
    if book.steps < book.heard:
        problem = f"its log ends after {book.steps} steps, and the router had heard of {book.heard}"
        yield Violation(book.name, None, problem)
        return  # the rest of the log is missing
    heard = router.answers.get(server_epoch, {})
    for answer, times in heard.items():
        for step, blocks in times[len(book.answers.get(answer, ())) :]:
            yield Violation(ROUTER_LOG, step, f"{_text(answer, blocks)} by {book.name}, in whose log that is not")
    in_time = _heard_in_time(book, heard, is_drained=router.is_drained and not ended)
    for answer, times in book.answers.items():
        for step, blocks in times[len(heard.get(answer, ())) :]:
            if step < in_time:
                yield Violation(book.name, step, f"{_text(answer, blocks)}, and the router did not hear of it")


def _heard_in_time(book: _EpochBook, heard: _Answers, *, is_drained: bool) -> int:
    """Return the step before which all answers of an epoch reached the router: an agent's messages keep their order.

    Of several answers of one step, a killed epoch's first may be the last that arrived.
    """
    if is_drained:
        return book.steps
    if book.ended is None:
        return 0  # simulated messages may overtake each other
    times = [times[:count] for answer, times in book.answers.items() if (count := len(heard.get(answer, ())))]
    last = max((step for heard_times in times for step, _ in heard_times), default=0)
    return max(last, book.heard - 1) if book.ended else last


def _text(answer: _Answer, blocks: tuple[int, ...]) -> str:
    requests = f"request{'' if len(answer.requests) == 1 else 's'} {_listed(answer.requests)}"
    of = f" of block{'s' if len(blocks) > 1 else ''} {_listed(blocks)}" if blocks else ""
    if isinstance(answer, ReturnRequests):
        return f"{requests}{of} returned from segment {answer.segment} at width {answer.width:g}"
    return f"{requests}{of} rejected ({answer.reason})"


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))


def _end_text(ended: str | None) -> str:
    return ended or "with the run"


# ----------------------------------------------------------------------------------------------------------- the replay


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first step at which a fresh core gave another answer."""

    step: int
    logged: LoggedStep
    replayed: tuple[Any, ...]


def replay(log: Iterable[LoggedStep], router: RouterConfig, servers: Sequence[GreedyKnobs]) -> Divergence | None:
    """Give every logged event to fresh cores; returns None if every command is as logged.

    Raises:
        InputError: the log names a server that the cluster does not have.
    """
    cores: dict[str, RouterCore | GreedyScheduler] = {"router": RouterCore(router)}
    cores |= {f"server:{index}": GreedyScheduler(knobs, index) for index, knobs in enumerate(servers)}
    return replay_through(cores, log)


def replay_through(cores: Mapping[str, Any], log: Iterable[LoggedStep]) -> Divergence | None:
    """Replay through these cores, by name, which continue from their state."""
    for number, step in enumerate(log):
        if step.core not in cores:
            problem = f"{step.core} is not one of {', '.join(cores)}; replay with the settings that the run had"
            raise InputError("event log", f"step {number}", problem)
        commands = tuple(cores[step.core].handle(step.event, step.now_ns))
        if commands != step.commands:
            return Divergence(number, step, commands)
    return None


def replay_run(
    log: Sequence[LoggedStep], agent_logs: Sequence[AgentLog], router: RouterConfig, servers: Sequence[GreedyKnobs]
) -> list[str]:
    """Replay each log of a run (see `policies.run_records.RunRecord`) alone, then compare the logs.

    Returns:
        The problems, one line each: where each log differs from fresh cores, and where the logs disagree on a block.
    """
    books = Books()
    problems: list[str] = []
    parts = {"router": books.router(log) if agent_logs else books.whole(log)}
    for entry in agent_logs:
        parts[f"server:{entry.server}, epoch {entry.epoch}"] = books.server_epoch(
            entry.steps, server=entry.server, epoch=entry.epoch, heard=entry.heard, ended=entry.ended
        )
    for name, steps in parts.items():
        divergence = replay(steps, router, servers)
        for _ in steps:  # later steps are bookkeeping
            pass
        if divergence is not None:
            problems.append(f"{name}, step {divergence.step}: {divergence.logged} is now {list(divergence.replayed)}")
    return [*problems, *map(str, books.close().violations)]


# ----------------------------------------------------------------------------------------------------------- plain data


_WORDS: dict[str, type[Any]] = {
    name: kind for name, kind in vars(vocabulary).items() if isinstance(kind, type) and issubclass(kind, msgspec.Struct)
} | {"RouterConfig": RouterConfig, "GreedyKnobs": GreedyKnobs}


def to_jsonable(value: Any) -> Any:
    """Convert an event, a command or a part of one to plain data; a word is a dict with its class name under `is`."""
    if isinstance(value, msgspec.Struct | RouterConfig | GreedyKnobs):
        names = value.__struct_fields__ if isinstance(value, msgspec.Struct) else [each.name for each in fields(value)]
        return {"is": type(value).__name__, **{name: to_jsonable(getattr(value, name)) for name in names}}
    if isinstance(value, tuple | list):
        return [to_jsonable(item) for item in value]
    if isinstance(value, Mapping):
        return {"is": "mapping", "items": [[to_jsonable(key), to_jsonable(item)] for key, item in value.items()]}
    return value


def from_jsonable(data: Any) -> Any:
    """Rebuild the word that `to_jsonable` converted.

    Raises:
        ValueError: the data names no known word, or its fields are not those of the word.
    """
    if isinstance(data, list):
        return tuple(from_jsonable(item) for item in data)
    if not isinstance(data, dict):
        return data
    if data.get("is") == "mapping":
        return {from_jsonable(key): from_jsonable(item) for key, item in data["items"]}
    kind = _WORDS.get(str(data.get("is")))
    if kind is None:
        raise ValueError(f"unknown event or command {data.get('is')!r}")
    try:
        return kind(**{name: from_jsonable(item) for name, item in data.items() if name != "is"})
    except TypeError as error:
        raise ValueError(f"{data['is']}: {error}") from None
