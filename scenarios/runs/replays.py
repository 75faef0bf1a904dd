"""Replay of the logs that a run folder has kept: each through fresh cores, and all of a run held against each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
from msgspec.structs import replace

from hw.door.segments import Segment, SegmentHead, segments_in
from kit.documents import told_of
from kit.errors import InputError
from kit.files import atomic_path
from policies.greedy import GreedyKnobs
from policies.interfaces import RouterConfig
from policies.reconcile import Books
from policies.records import LoggedStep
from policies.replay import Divergence, replay, replay_through
from policies.vocabulary import NS_PER_S, RequestArrived
from scenarios.runs.folder import SERVED, RunFolder
from scenarios.runs.logs import LOG_FILE, StoredEpoch, logged_places, read_epochs, read_log

SHOWN = 400  # characters of an event or of a step's commands
_Steps = Iterable[LoggedStep]


class ReplayedLog(TypedDict):
    """One log.

    Attributes:
        of: whose steps it holds: `all cores`, `router`, or `server:0, epoch 1`.
        steps: that could be read.
        heard: how many of them the router had received; null but for an epoch.
        ended: what ended the epoch, empty for the run's end; null but for an epoch.
    """

    file: str
    of: str
    steps: int
    heard: int | None
    ended: str | None


class ReplayedRun(TypedDict):
    """One run; `blocks` by their fate, and a text for all that is wrong, which names the log."""

    logs: list[ReplayedLog]
    blocks: dict[str, int]
    problems: list[str]


@dataclass(frozen=True, slots=True)
class _Log:
    """A log to be read; `follow` keeps the books by it."""

    file: str
    of: str
    follow: Callable[[_Steps], Iterator[LoggedStep]]
    server_epoch: StoredEpoch | None = None


def replay_folder(folder: RunFolder, router: RouterConfig, servers: Sequence[GreedyKnobs]) -> dict[str, ReplayedRun]:
    """Replay every run that has kept logs; returns the results by its place.

    Raises:
        InputError: a log is whole and no log of such cores; a list of epochs is missing or damaged.
    """
    return {place: _Replay(folder, place, router, servers).carry_out() for place in logged_places(folder)}


def replay_served(folder: RunFolder) -> dict[str, ReplayedRun]:
    """Replay each segment of what was served, from its snapshot; the core at its end must be the next one's first.

    Returns nothing if none was kept.

    Raises:
        InputError: one is damaged.
    """
    logs, problems = list[ReplayedLog](), list[str]()
    before: SegmentHead | None = None  # of the next one, as the one before has left the core
    for path in segments_in(folder / SERVED):
        segment, steps = Segment(path), 0
        head, core = segment.head, segment.core()
        if before is not None and before.served == head.served and before.snapshot != head.snapshot:
            problems.append(f"{SERVED}/{path.name}: it begins with another core than the segment before has left")

        def counted(segment: Segment = segment) -> Iterator[LoggedStep]:
            nonlocal steps
            for step in segment.steps():
                yield step
                steps += 1

        with told_of(path, "remove it"):
            divergence = replay_through({"router": core}, counted())
        if divergence is not None:
            problems.append(f"{SERVED}/{path.name}: {_divergence_text(divergence)}")
        of = f"router since {head.began}{'' if segment.is_whole else ', cut off at its end'}"
        logs.append({"file": path.name, "of": of, "steps": steps, "heard": None, "ended": None})
        before = replace(head, snapshot=core.snapshot()) if segment.is_whole else None
    return {SERVED: {"logs": logs, "blocks": {}, "problems": problems}} if logs else {}


def write_arrivals(folder: RunFolder, path: Path) -> tuple[int, float]:
    """Write when each image came to the last `serve`, as CSV for a `trace` workload.

    Returns:
        How many came, and the seconds from the first to the last one.

    Raises:
        InputError: the log holds none, or is damaged.
    """
    came_ns = np.fromiter(_arrivals_ns(folder), np.int64)
    if not len(came_ns):
        problem = "holds no image of the last `slimsched serve`, which keeps a log where `serve.log_gb` is above 0"
        raise InputError(str(folder / SERVED), "", problem)
    with atomic_path(path) as temporary:
        np.savetxt(temporary, came_ns / NS_PER_S, "%.9f", header="time_s", comments="")
    return len(came_ns), float(came_ns[-1] - came_ns[0]) / NS_PER_S


def _arrivals_ns(folder: RunFolder) -> Iterator[int]:
    """Yield arrivals by the clock of the last `serve`; segments of others have separate clocks."""
    logged = [Segment(path) for path in segments_in(folder / SERVED)]
    for segment in logged:
        if segment.head.served == logged[-1].head.served:
            yield from (step.now_ns for step in segment.steps() if isinstance(step.event, RequestArrived))


class _Replay:
    def __init__(self, folder: RunFolder, place: str, router: RouterConfig, servers: Sequence[GreedyKnobs]) -> None:
        self._folder = folder
        self._place = place
        self._cores = (router, servers)
        self._books = Books()

    def carry_out(self) -> ReplayedRun:
        logs, problems = list[ReplayedLog](), list[str]()
        for log in self._logs():
            steps, problem = self._replayed(log)
            server_epoch = log.server_epoch
            heard, ended = (None, None) if server_epoch is None else (server_epoch.heard, server_epoch.ended)
            logs.append({"file": log.file, "of": log.of, "steps": steps, "heard": heard, "ended": ended})
            if problem:
                problems.append(f"{self._place}/{log.file}: {problem}")
        if problems:  # what is missing in a log is missing in the books
            return {"logs": logs, "blocks": {}, "problems": problems}
        with self._told(LOG_FILE):
            account = self._books.close()
            wrong = [f"{self._place}: {violation}" for violation in account.violations]
        return {"logs": logs, "blocks": {fate.word: n for fate, n in account.blocks.items()}, "problems": wrong}

    def _logs(self) -> Iterator[_Log]:
        server_epochs = read_epochs(self._folder, self._place)
        if server_epochs is None:
            yield _Log(LOG_FILE, "all cores", self._books.whole)
            return
        yield _Log(LOG_FILE, "router", self._books.router)
        for server_epoch in server_epochs:
            yield _Log(
                server_epoch.file,
                f"server:{server_epoch.server}, epoch {server_epoch.epoch}",
                self._follower(server_epoch),
                server_epoch,
            )

    def _follower(self, server_epoch: StoredEpoch) -> Callable[[_Steps], Iterator[LoggedStep]]:
        def follow(steps: _Steps) -> Iterator[LoggedStep]:
            return self._books.server_epoch(
                steps,
                server=server_epoch.server,
                epoch=server_epoch.epoch,
                heard=server_epoch.heard,
                ended=server_epoch.ended,
            )

        return follow

    def _replayed(self, log: _Log) -> tuple[int, str]:
        """Return how many steps there are, and what is wrong with them, or with fresh cores' answers to them."""
        name = f"{self._place}/{log.file}"
        read, problem = 0, ""

        def steps() -> Iterator[LoggedStep]:
            nonlocal read, problem
            try:
                for step in read_log(self._folder / name):
                    yield step
                    read += 1
            except InputError as error:
                problem = f"{error.key}: {error.problem}"

        if not (self._folder / name).exists():
            problem = "the file is missing"
        with self._told(log.file):
            divergence = None if problem else replay(log.follow(steps()), *self._cores)
        if divergence is not None:
            return read, _divergence_text(divergence)
        return read, self._count_text(log, read, problem)

    def _count_text(self, log: _Log, read: int, problem: str) -> str:
        """Describe what is wrong with the number of steps; empty if all are there."""
        name = f"{self._place}/{log.file}"
        length = None if log.server_epoch is None else log.server_epoch.steps
        if read and not problem and length in (None, read):
            return ""
        of = "" if length is None else f" of {length}"
        word = "incomplete" if length is None or read < length else "too long"
        remedy = self._folder.remedy(name)
        return f"{word}: {read}{of} steps{f' ({problem})' if problem else ''}, with identical commands; {remedy}"

    def _told(self, file: str) -> Any:
        return told_of(self._folder / self._place / file, self._folder.remedy(f"{self._place}/{file}"))


def _divergence_text(divergence: Divergence) -> str:
    """Describe where the cores part, and what each reported there, each part on a line."""
    step = divergence.logged
    return "\n".join(
        [
            f"step {divergence.step} at {step.now_ns / 1e9:.6f} s, {step.core}, differs",
            f"  event     {_shortened(step.event)}",
            f"  logged    {_shortened(list(step.commands))}",
            f"  replayed  {_shortened(list(divergence.replayed))}",
        ]
    )


def _shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}... ({len(text)} characters)"
