"""Replay of a run's logs through fresh cores, and the check that all logs of a run agree on every micro-batch's end.

The check (`Books`) follows each log as it is read, and compares the logs at the end. An *incarnation* is one life of a
server's worker. The check requires that a micro-batch arrives once, at the incarnation to which the router sent it;
that any answer in the router's log is in the incarnation's log; and that any answer in an incarnation's log is in the
router's, unless the incarnation or the run ends before. The check does not examine whether each log is correct alone
(no request is sent twice, or returned without being there): the replay shows that.

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
from policies.greedy_scheduler import GreedyParams, GreedyScheduler
from policies.interfaces import RouterConfig
from policies.router_core import RouterCore
from policies.run_records import LoggedStep, WorkerLog
from policies.vocabulary import (
    MicroBatch,
    MicroBatchArrived,
    RejectRequests,
    RequestArrived,
    RequestCompleted,
    RequestFailed,
    RequestsRejected,
    RequestsReturned,
    ReturnRequests,
    SendMicroBatch,
    ServerDown,
    ServerUp,
    TransferFailed,
)

# ------------------------------------------------------------------------------------------------ the check of all logs


ROUTER_LOG = "router"


class Fate(IntEnum):
    """The end of a micro-batch; the last of these among its members' ends."""

    RETURNED = 0
    REJECTED = 1  # by the server
    NOT_MOVED = 2  # its inputs could not be moved there
    LOST = 3  # with the server's incarnation
    UNDER_WAY = 4  # when the run ended

    @property
    def word(self) -> str:
        """The fate as text for people."""
        return self.name.lower().replace("_", " ")


@dataclass(frozen=True, slots=True)
class Violation:
    """A contradiction: `log` is `router` or an incarnation's, `step` counts from 0, None if of no single step."""

    log: str
    step: int | None
    problem: str

    def __str__(self) -> str:
        return f"{self.log}{'' if self.step is None else f', step {self.step}'}: {self.problem}"


@dataclass(frozen=True, slots=True)
class Account:
    """The result of the comparison: `micro_batches` by fate, and all contradictions."""

    micro_batches: dict[Fate, int]
    violations: tuple[Violation, ...]


@dataclass(frozen=True, order=True, slots=True)
class _ServerIncarnation:
    server: int
    incarnation: int

    def __str__(self) -> str:
        return f"server:{self.server}, incarnation {self.incarnation}"


_Answer = ReturnRequests | RejectRequests
_Answers = dict[_Answer, list[tuple[int, tuple[int, ...]]]]  # each with its step and its micro-batches


class Books:
    """The logs of one run as they are read. Every method that takes steps passes them on."""

    def __init__(self) -> None:
        self._router = _RouterBook()
        self._server_incarnations: dict[_ServerIncarnation, _IncarnationBook] = {}

    def whole(self, steps: Iterable[LoggedStep]) -> Iterator[LoggedStep]:
        """Read a log with the steps of all cores, as a simulation writes it."""
        current: dict[str, _IncarnationBook] = {}
        for number, step in enumerate(steps):
            if step.core == ROUTER_LOG:
                self._router.observe(number, step)
            elif isinstance(step.event, ServerUp):
                current[step.core] = self._open(
                    _ServerIncarnation(step.event.server, step.event.incarnation), heard=0, ended=None
                )
            elif step.core in current:  # a server that is down does nothing
                current[step.core].observe(number, step)
            yield step

    def router(self, steps: Iterable[LoggedStep]) -> Iterator[LoggedStep]:
        """Read the router's log."""
        for number, step in enumerate(steps):
            if step.core == ROUTER_LOG:
                self._router.observe(number, step)
            else:
                self._router.note(number, f"is of {step.core}, whose incarnations have separate logs")
            yield step

    def server_incarnation(
        self, steps: Iterable[LoggedStep], *, server: int, incarnation: int, heard: int, ended: str
    ) -> Iterator[LoggedStep]:
        """Read the log of one incarnation; for the others see `policies.run_records.WorkerLog`."""
        book = self._open(_ServerIncarnation(server, incarnation), heard, ended)
        for number, step in enumerate(steps):
            if step.core == f"server:{server}":
                book.observe(number, step)
            else:
                book.note(number, f"is of {step.core}")
            yield step

    def _open(self, server_incarnation: _ServerIncarnation, heard: int, ended: str | None) -> _IncarnationBook:
        book = _IncarnationBook(server_incarnation, heard, ended)
        if server_incarnation in self._server_incarnations:
            book.note(None, "there are two of it")
        self._server_incarnations[server_incarnation] = book
        return book

    def close(self) -> Account:
        """Compare all logs, once they are read; returns the account."""
        router, violations = self._router, list(self._router.violations)
        for server_incarnation in sorted(router.born - self._server_incarnations.keys()):
            violations.append(
                Violation(str(server_incarnation), None, "it has no log, and by the router's log it served")
            )
        for _, book in sorted(self._server_incarnations.items(), key=lambda entry: entry[0]):
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
        born: every incarnation that served; `ended` has the reasons of those that ended.
        sent: every micro-batch.
        answers: what came back, in the form of the incarnation's answer.
        is_drained: whether all requests that arrived have ended.
    """

    def __init__(self) -> None:
        super().__init__(ROUTER_LOG)
        self.born: set[_ServerIncarnation] = set()
        self.ended: dict[_ServerIncarnation, str] = {}
        self.sent: dict[int, MicroBatch] = {}
        self.answers: dict[_ServerIncarnation, _Answers] = {}
        self._fates: dict[int, Fate] = {}
        self._last: dict[int, MicroBatch] = {}  # of each request
        self._under_way: set[int] = set()
        self._open_requests = 0

    @property
    def is_drained(self) -> bool:
        return not self._open_requests

    def fates(self) -> dict[int, Fate]:
        """Return the fate of every micro-batch."""
        return self._fates | {self._last[request].micro_batch: Fate.UNDER_WAY for request in self._under_way}

    def observe(self, number: int, step: LoggedStep) -> None:
        self.steps = number + 1
        match step.event:
            case RequestArrived():
                self._open_requests += 1
            case ServerUp(server, incarnation):
                self.born.add(_ServerIncarnation(server, incarnation))
            case ServerDown(server, incarnation, reason):
                server_incarnation = _ServerIncarnation(server, incarnation)
                self.ended.setdefault(server_incarnation, reason)
                self._close(self._of_incarnation(self._under_way, server_incarnation), Fate.LOST)
            case TransferFailed(micro_batch, _, _, requests):  # stale for one that has ended already
                if micro_batch not in self.sent:
                    self.note(number, f"a transfer failed of micro-batch {micro_batch}, which was never sent")
                affected = [
                    request for request in self._sent_with(requests) if self._last[request].micro_batch == micro_batch
                ]
                self._close(affected, Fate.NOT_MOVED)
            case RequestsReturned(server, incarnation, requests, segment, width, residency=residency):
                returned = ReturnRequests(incarnation, requests, segment, width, residency)
                self._hear(_ServerIncarnation(server, incarnation), returned, Fate.RETURNED)
            case RequestsRejected(server, incarnation, requests, reason):
                self._hear(
                    _ServerIncarnation(server, incarnation),
                    RejectRequests(incarnation, requests, reason),
                    Fate.REJECTED,
                )
        for command in step.commands:
            if isinstance(command, SendMicroBatch):
                self._send(command.micro_batch)
            elif isinstance(command, RequestCompleted | RequestFailed):
                self._open_requests -= 1

    def _send(self, micro_batch: MicroBatch) -> None:
        self._last |= dict.fromkeys(micro_batch.requests, micro_batch)
        self._under_way.update(micro_batch.requests)
        self.sent[micro_batch.micro_batch] = micro_batch
        self._fates[micro_batch.micro_batch] = Fate.RETURNED

    def _hear(self, server_incarnation: _ServerIncarnation, answer: _Answer, fate: Fate) -> None:
        """Note an answer; from an incarnation that has ended it is stale, as its requests are lost already."""
        _note_answer(self.answers.setdefault(server_incarnation, {}), answer, self.steps - 1, self._last)
        self._close(self._of_incarnation(self._sent_with(answer.requests), server_incarnation), fate)

    def _of_incarnation(self, requests: Iterable[int], server_incarnation: _ServerIncarnation) -> list[int]:
        micro_batches = ((request, self._last[request]) for request in requests)
        return [
            request
            for request, micro_batch in micro_batches
            if _ServerIncarnation(micro_batch.server, micro_batch.incarnation) == server_incarnation
        ]

    def _sent_with(self, requests: Iterable[int]) -> list[int]:
        return [request for request in requests if request in self._under_way]

    def _close(self, requests: Iterable[int], fate: Fate) -> None:
        for request in requests:
            self._under_way.discard(request)
            micro_batch = self._last[request].micro_batch
            self._fates[micro_batch] = max(self._fates[micro_batch], fate)


class _IncarnationBook(_Book):
    """The log of one incarnation.

    Attributes:
        heard, ended: see `policies.run_records.WorkerLog`; `ended` is None if it was not recorded.
        arrived: every micro-batch, and the step of its arrival.
        answers: what was returned.
    """

    def __init__(self, server_incarnation: _ServerIncarnation, heard: int, ended: str | None) -> None:
        super().__init__(str(server_incarnation))
        self.server_incarnation = server_incarnation
        self.heard = heard
        self.ended = ended
        self.arrived: dict[int, tuple[int, MicroBatch]] = {}
        self.answers: _Answers = {}
        self._last: dict[int, MicroBatch] = {}  # of each request

    def observe(self, number: int, step: LoggedStep) -> None:
        self.steps = number + 1
        if isinstance(step.event, MicroBatchArrived):
            micro_batch = step.event.micro_batch
            if micro_batch.micro_batch in self.arrived:
                self.note(number, f"micro-batch {micro_batch.micro_batch} arrived twice")
            self.arrived[micro_batch.micro_batch] = (number, micro_batch)
            self._last |= dict.fromkeys(micro_batch.requests, micro_batch)
        for command in step.commands:
            if isinstance(command, ReturnRequests | RejectRequests):
                _note_answer(self.answers, command, number, self._last)


def _note_answer(answers: _Answers, answer: _Answer, step: int, micro_batch_of: Mapping[int, MicroBatch]) -> None:
    micro_batches = {micro_batch_of[request].micro_batch for request in answer.requests if request in micro_batch_of}
    answers.setdefault(answer, []).append((step, tuple(sorted(micro_batches))))


def _compare(router: _RouterBook, book: _IncarnationBook) -> Iterator[Violation]:
    """Compare one incarnation in the router's log with the incarnation's log."""
    server_incarnation = book.server_incarnation
    if server_incarnation not in router.born:
        yield Violation(book.name, None, "it has a log, and the router's log does not mention it")
        return
    ended = router.ended.get(server_incarnation, "")
    if book.ended not in (None, ended):
        problem = f"ended by its note: {_end_text(book.ended)}; by the router's log: {_end_text(ended)}"
        yield Violation(book.name, None, problem)
    for step, micro_batch in book.arrived.values():
        if router.sent.get(micro_batch.micro_batch) != micro_batch:
            yield Violation(
                book.name, step, f"micro-batch {micro_batch.micro_batch} arrived, which the router never sent there"
            )
    if book.steps < book.heard:
        problem = f"its log ends after {book.steps} steps, and the router had received {book.heard}"
        yield Violation(book.name, None, problem)
        return  # the rest of the log is missing
    heard = router.answers.get(server_incarnation, {})
    for answer, times in heard.items():
        for step, micro_batches in times[len(book.answers.get(answer, ())) :]:
            yield Violation(
                ROUTER_LOG, step, f"{_text(answer, micro_batches)} by {book.name}, in whose log that is not"
            )
    in_time = _heard_in_time(book, heard, is_drained=router.is_drained and not ended)
    for answer, times in book.answers.items():
        for step, micro_batches in times[len(heard.get(answer, ())) :]:
            if step < in_time:
                yield Violation(book.name, step, f"{_text(answer, micro_batches)}, and the router did not receive it")


def _heard_in_time(book: _IncarnationBook, heard: _Answers, *, is_drained: bool) -> int:
    """Return the step before which all answers of an incarnation reached the router: a worker's messages keep their
    order.

    Of several answers of one step, a killed incarnation's first may be the last that arrived.
    """
    if is_drained:
        return book.steps
    if book.ended is None:
        return 0  # simulated messages may overtake each other
    times = [times[:count] for answer, times in book.answers.items() if (count := len(heard.get(answer, ())))]
    last = max((step for heard_times in times for step, _ in heard_times), default=0)
    return max(last, book.heard - 1) if book.ended else last


def _text(answer: _Answer, micro_batches: tuple[int, ...]) -> str:
    requests = f"request{'' if len(answer.requests) == 1 else 's'} {_listed(answer.requests)}"
    of = f" of micro-batch{'s' if len(micro_batches) > 1 else ''} {_listed(micro_batches)}" if micro_batches else ""
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


def replay(log: Iterable[LoggedStep], router: RouterConfig, servers: Sequence[GreedyParams]) -> Divergence | None:
    """Give every logged event to fresh cores; returns None if every command is as logged.

    Raises:
        InputError: the log names a server that the cluster does not have.
    """
    cores: dict[str, RouterCore | GreedyScheduler] = {"router": RouterCore(router)}
    cores |= {f"server:{index}": GreedyScheduler(params, index) for index, params in enumerate(servers)}
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
    log: Sequence[LoggedStep], worker_logs: Sequence[WorkerLog], router: RouterConfig, servers: Sequence[GreedyParams]
) -> list[str]:
    """Replay each log of a run (see `policies.run_records.RunRecord`) alone, then compare the logs.

    Returns:
        The problems, one line each: where each log differs from fresh cores, and where the logs disagree on a
            micro-batch.
    """
    books = Books()
    problems: list[str] = []
    parts = {"router": books.router(log) if worker_logs else books.whole(log)}
    for entry in worker_logs:
        parts[f"server:{entry.server}, incarnation {entry.incarnation}"] = books.server_incarnation(
            entry.steps, server=entry.server, incarnation=entry.incarnation, heard=entry.heard, ended=entry.ended
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
} | {"RouterConfig": RouterConfig, "GreedyParams": GreedyParams}


def to_jsonable(value: Any) -> Any:
    """Convert an event, a command or a part of one to plain data; a word is a dict with its class name under `is`."""
    if isinstance(value, msgspec.Struct | RouterConfig | GreedyParams):
        names = (
            value.__struct_fields__ if isinstance(value, msgspec.Struct) else [field.name for field in fields(value)]
        )
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
