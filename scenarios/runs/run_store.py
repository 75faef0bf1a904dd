"""A run in its folder: event logs and their replay, tables of requests, batches and readings, and the result.

Event logs: a simulation writes one log. Real executors write the router's log, and one log for each incarnation of each
server's worker. A list of the incarnations records, for each of the workers' logs, its number of steps, how many of
them the router had received, and how the incarnation ended.

Replay (`replay_folder`, `replay_served`): fresh cores process the events of each log, and all logs of a run are
compared with each other.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, TypedDict

import msgspec
import numpy as np
from msgspec import to_builtins
from msgspec.structs import replace

from hw.frontend.log_segments import Segment, SegmentHeader, segments_in
from kit.documents import told_of, write_json, write_text
from kit.errors import InputError, in_a_line, nearest
from kit.files import atomic_path, require_file
from kit.strict import NAME
from policies.greedy_scheduler import GreedyParams
from policies.interfaces import RouterConfig
from policies.replay import Books, Divergence, from_jsonable, replay, replay_through, to_jsonable
from policies.run_records import LoggedStep, RunRecord, WorkerLog
from policies.vocabulary import NS_PER_S, RequestArrived
from scenarios.metrics.run_result import Result
from scenarios.runs.folder import SERVED, RunFolder

LOG_FILE: Final = "events.jsonl.gz"
INCARNATIONS_FILE: Final = "incarnations.json"
CORES_FILE: Final = "cores.json"
LONGEST_LINE: Final = 50_000_000  # characters of a log's step
_SCHEMA: Final = "slimsched.incarnations/1"
_INCARNATION_FILES: Final = "events-*-incarnation*.jsonl.gz"
_MALFORMED = (LookupError, TypeError, AttributeError, ValueError, RecursionError)  # data of another form

_Count = Annotated[int, msgspec.Meta(ge=0)]


class StoredEpoch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One incarnation of a server's worker, as the list of incarnations has it; `steps` are of its log, the rest as in
    `WorkerLog`."""

    server: _Count
    name: Annotated[str, msgspec.Meta(pattern=NAME)]
    incarnation: _Count
    steps: _Count
    heard: _Count
    ended: str

    @property
    def file(self) -> str:
        """Its log."""
        return f"events-{self.name}-incarnation{self.incarnation}.jsonl.gz"

    @classmethod
    def of(cls, log: WorkerLog, record: RunRecord) -> StoredEpoch:
        """Return an incarnation of a run."""
        name = record.servers[log.server].name
        return cls(log.server, name, log.incarnation, len(log.steps), log.heard, log.ended)


class _Incarnations(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    schema: str
    server_incarnations: tuple[StoredEpoch, ...]


# ------------------------------------------------------------------------------------------------------------ a run's


def write_logs(path: Path, record: RunRecord) -> list[Path]:
    """Write the logs that a run has kept, in its place, and remove those of an earlier one. Returns the files."""
    for former in (path / LOG_FILE, *path.glob(_INCARNATION_FILES), path / INCARNATIONS_FILE):
        former.unlink(missing_ok=True)
    logs = {LOG_FILE: record.log} if record.log else {}
    server_incarnations = [StoredEpoch.of(log, record) for log in record.worker_logs]
    logs |= {
        server_incarnation.file: log.steps
        for server_incarnation, log in zip(server_incarnations, record.worker_logs, strict=True)
    }
    for name, steps in logs.items():
        write_log(path / name, steps)
    paths = [path / name for name in logs]
    if server_incarnations:
        write_json(path / INCARNATIONS_FILE, msgspec.to_builtins(_Incarnations(_SCHEMA, tuple(server_incarnations))))
        paths.append(path / INCARNATIONS_FILE)
    return paths


def logged_places(folder: RunFolder) -> list[str]:
    """Return the places of runs that have kept logs."""
    return sorted(path.parent.relative_to(folder).as_posix() for path in folder.path.glob(f"*/*/{LOG_FILE}"))


def read_incarnations(folder: RunFolder, place: str) -> tuple[StoredEpoch, ...] | None:
    """Return the incarnations of a run; None if one log holds the steps of all cores.

    Raises:
        InputError: the list is missing or damaged.
    """
    name = f"{place}/{INCARNATIONS_FILE}"
    if not (folder / name).exists() and not any((folder / place).glob(_INCARNATION_FILES)):
        return None
    document = folder.read_json(name)
    with folder.mending(name):
        try:
            incarnations = msgspec.convert(document, _Incarnations)
        except msgspec.ValidationError as error:
            raise InputError(str(folder / name), "", f"no list of incarnations: {error}") from None
        if incarnations.schema != _SCHEMA:
            raise InputError(str(folder / name), "schema", f"expected {_SCHEMA!r} (found {incarnations.schema!r:.80})")
    return incarnations.server_incarnations


# ------------------------------------------------------------------------------------------------------------ one log


def write_log(path: Path, log: Iterable[LoggedStep]) -> None:
    """Write the event log, one step a line."""
    with atomic_path(path) as temporary, gzip.open(temporary, "wt", encoding="utf-8", compresslevel=5) as file:
        for step in log:
            commands = [to_jsonable(command) for command in step.commands]
            line = {"now_ns": step.now_ns, "core": step.core, "event": to_jsonable(step.event), "commands": commands}
            file.write(json.dumps(line, separators=(",", ":")) + "\n")


def read_log(path: Path) -> Iterator[LoggedStep]:
    """Yield the steps of an event log; raises `InputError` naming the line if it is broken."""
    number = 0
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            while line := file.readline(LONGEST_LINE):
                number += 1
                yield _step(json.loads(line))
    except FileNotFoundError:
        raise InputError(str(path), "", "no event log here; run with one kept") from None
    except (OSError, EOFError, zlib.error, *_MALFORMED) as error:
        raise InputError(str(path), f"line {number}", f"no event log: {error}") from None


def _step(data: Mapping[str, Any]) -> LoggedStep:
    commands = tuple(from_jsonable(command) for command in data["commands"])
    return LoggedStep(int(data["now_ns"]), str(data["core"]), from_jsonable(data["event"]), commands)


# ------------------------------------------------------------------------------------------------------------ cores


def write_cores(folder: RunFolder, router: RouterConfig, servers: Sequence[GreedyParams]) -> None:
    """Write the settings of the real runs' cores, for their replay: the scenario may be another one by then."""
    write_json(folder / CORES_FILE, {"router": to_jsonable(router), "servers": [*map(to_jsonable, servers)]})


def read_cores(folder: RunFolder) -> tuple[RouterConfig, list[GreedyParams]]:
    """Return what `write_cores` wrote; raises `InputError` if it is missing or broken."""
    path = folder / CORES_FILE
    if not path.is_file():
        raise InputError(str(path), "", "no such file, so the logs can't be replayed; `slimsched validate` writes it")
    document = folder.read_json(CORES_FILE)
    try:
        return from_jsonable(document["router"]), [from_jsonable(params) for params in document["servers"]]
    except _MALFORMED as error:
        raise InputError(str(path), "", f"no settings of cores: {error}; `slimsched validate` writes them") from None


# --------------------------------------------------------------------------------------------------------------- replay


SHOWN = 400  # characters of an event or of a step's commands
_Steps = Iterable[LoggedStep]


class ReplayedLog(TypedDict):
    """One log.

    Attributes:
        of: whose steps it holds: `all cores`, `router`, or `server:0, incarnation 1`.
        steps: that could be read.
        heard: how many of them the router had received; null but for an incarnation.
        ended: what ended the incarnation, empty for the run's end; null but for an incarnation.
    """

    file: str
    of: str
    steps: int
    heard: int | None
    ended: str | None


class ReplayedRun(TypedDict):
    """One run; `micro_batches` by their fate, and a text for all that is wrong, which names the log."""

    logs: list[ReplayedLog]
    micro_batches: dict[str, int]
    problems: list[str]


@dataclass(frozen=True, slots=True)
class _Log:
    """A log to be read; `follow` keeps the books by it."""

    file: str
    of: str
    follow: Callable[[_Steps], Iterator[LoggedStep]]
    server_incarnation: StoredEpoch | None = None


def replay_folder(folder: RunFolder, router: RouterConfig, servers: Sequence[GreedyParams]) -> dict[str, ReplayedRun]:
    """Replay every run that has kept logs; returns the results by its place.

    Raises:
        InputError: a log is whole and no log of such cores; a list of incarnations is missing or damaged.
    """
    return {place: _Replay(folder, place, router, servers).carry_out() for place in logged_places(folder)}


def replay_served(folder: RunFolder) -> dict[str, ReplayedRun]:
    """Replay each segment of what was served, from its snapshot; the core at its end must be the next one's first.

    Returns nothing if none was kept.

    Raises:
        InputError: one is damaged.
    """
    logs, problems = list[ReplayedLog](), list[str]()
    before: SegmentHeader | None = None  # of the next one, as the one before has left the core
    for path in segments_in(folder / SERVED):
        segment, steps = Segment(path), 0
        head, core = segment.header, segment.core()
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
    return {SERVED: {"logs": logs, "micro_batches": {}, "problems": problems}} if logs else {}


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
        if segment.header.served == logged[-1].header.served:
            yield from (step.now_ns for step in segment.steps() if isinstance(step.event, RequestArrived))


class _Replay:
    def __init__(self, folder: RunFolder, place: str, router: RouterConfig, servers: Sequence[GreedyParams]) -> None:
        self._folder = folder
        self._place = place
        self._cores = (router, servers)
        self._books = Books()

    def carry_out(self) -> ReplayedRun:
        logs, problems = list[ReplayedLog](), list[str]()
        for log in self._logs():
            steps, problem = self._replayed(log)
            server_incarnation = log.server_incarnation
            heard, ended = (
                (None, None) if server_incarnation is None else (server_incarnation.heard, server_incarnation.ended)
            )
            logs.append({"file": log.file, "of": log.of, "steps": steps, "heard": heard, "ended": ended})
            if problem:
                problems.append(f"{self._place}/{log.file}: {problem}")
        if problems:  # what is missing in a log is missing in the books
            return {"logs": logs, "micro_batches": {}, "problems": problems}
        with self._reporting(LOG_FILE):
            account = self._books.close()
            wrong = [f"{self._place}: {violation}" for violation in account.violations]
        return {
            "logs": logs,
            "micro_batches": {fate.word: count for fate, count in account.micro_batches.items()},
            "problems": wrong,
        }

    def _logs(self) -> Iterator[_Log]:
        server_incarnations = read_incarnations(self._folder, self._place)
        if server_incarnations is None:
            yield _Log(LOG_FILE, "all cores", self._books.whole)
            return
        yield _Log(LOG_FILE, "router", self._books.router)
        for server_incarnation in server_incarnations:
            yield _Log(
                server_incarnation.file,
                f"server:{server_incarnation.server}, incarnation {server_incarnation.incarnation}",
                self._follower(server_incarnation),
                server_incarnation,
            )

    def _follower(self, server_incarnation: StoredEpoch) -> Callable[[_Steps], Iterator[LoggedStep]]:
        def follow(steps: _Steps) -> Iterator[LoggedStep]:
            return self._books.server_incarnation(
                steps,
                server=server_incarnation.server,
                incarnation=server_incarnation.incarnation,
                heard=server_incarnation.heard,
                ended=server_incarnation.ended,
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
        with self._reporting(log.file):
            divergence = None if problem else replay(log.follow(steps()), *self._cores)
        if divergence is not None:
            return read, _divergence_text(divergence)
        return read, self._count_text(log, read, problem)

    def _count_text(self, log: _Log, read: int, problem: str) -> str:
        """Describe what is wrong with the number of steps; empty if all exist."""
        name = f"{self._place}/{log.file}"
        length = None if log.server_incarnation is None else log.server_incarnation.steps
        if read and not problem and length in (None, read):
            return ""
        of = "" if length is None else f" of {length}"
        deviation = "incomplete" if length is None or read < length else "too long"
        remedy = self._folder.remedy(name)
        return f"{deviation}: {read}{of} steps{f' ({problem})' if problem else ''}, with identical commands; {remedy}"

    def _reporting(self, file: str) -> Any:
        return told_of(self._folder / self._place / file, self._folder.remedy(f"{self._place}/{file}"))


def _divergence_text(divergence: Divergence) -> str:
    """Describe where the cores diverge, and what each reported there, each part on a line."""
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


# -------------------------------------------------------------------------------------------------------------- records


RECORD_FILES = ("requests.parquet", "micro_batches.parquet", "batches.parquet", "telemetry.parquet", "timeline.json")
MAX_TABLE_BYTES: Final = 4_000_000_000
MAX_VALUES: Final = 500_000_000  # of a table
_PLACE = re.compile(r"-(?:(load[0-9.e-]+|saturated|near)-)?seed\d+(?:-rep(\d+))?$")


def _write_record(path: Path, record: RunRecord) -> list[Path]:
    """Write everything of a run: Parquet tables, a timeline, and the event logs if the run kept them."""
    tables: dict[str, Iterable[Any]] = {
        "requests": record.requests,
        "micro_batches": record.micro_batches,
        "batches": record.batches,
        "telemetry": record.telemetry,
    }
    for name, rows in tables.items():
        write_table(path / f"{name}.parquet", rows)
    write_text(path / "timeline.json", json.dumps(timeline(record)))
    return [*(path / name for name in RECORD_FILES), *write_logs(path, record)]


@dataclass(frozen=True, slots=True)
class StoredRun:
    """One run as stored in a run folder."""

    result: Result
    path: Path
    folder: RunFolder

    @property
    def point(self) -> str:
        """The point it was run at: `load0.8`, `saturated`, `near`, or empty for the workload's own rate."""
        match = _PLACE.search(self.path.name)
        return (match[1] or "") if match else ""

    @property
    def repeat(self) -> int:
        """Which repeat of the same arrivals it is, from 0."""
        match = _PLACE.search(self.path.name)
        return int(match[2] or 0) if match else 0

    def columns(self, name: str, *names: str) -> dict[str, list[Any]]:
        """Return columns of a table of its record (`requests`, `micro_batches`, `batches`, `telemetry`), by default
        all.

        It is empty if it was not kept.

        Raises:
            InputError: it is damaged.
        """
        path = self.path / f"{name}.parquet"
        if not path.exists():
            return {}
        with self.folder.mending(str(path.relative_to(self.folder.path))):
            return read_table(path, *names)


def load_point(load: float | None) -> str:
    """Return the point of a load, as in names of folders."""
    return "" if load is None else f"load{load:g}"


def plain_name(router: str) -> str:
    """Return a router's name as part of a file's."""
    return re.sub(r"[^A-Za-z0-9.,@=_-]", "_", router)


def run_place(mode: str, router: str, seed: int, point: str = "", repeat: int | None = None) -> str:
    """Return a run's place in its folder: `simulation/ROUTER-seedN`, with its point and repeat if it has some."""
    parts = [plain_name(router), *([point] if point else []), f"seed{seed}"]
    return f"{mode}/{'-'.join(parts if repeat is None else [*parts, f'rep{repeat}'])}"


def write_run(
    folder: RunFolder, result: Result, record: RunRecord, *, point: str = "", repeat: int | None = None
) -> list[Path]:
    """Write a run's result and record to the place that `read_runs` reads; returns the files.

    Of later repeats only the requests are kept: their events differ in nothing but noise. How fast CPU devices were is
    kept of all, because a paired simulation replays it.
    """
    path = folder / run_place(result["mode"], result["router"], result["seed"], point, repeat)
    paths = [write_table(path / "requests.parquet", record.requests)] if repeat else _write_record(path, record)
    if record.references:
        readings = [dict(zip(("server", "read_ns", "reference_s"), each, strict=True)) for each in record.references]
        paths.append(write_table(path / "speed.parquet", readings))
    write_json(path / "result.json", result)
    return [*paths, path / "result.json"]


def read_runs(folder: RunFolder) -> list[StoredRun]:
    """Return all runs of a folder, simulated ones first, by name.

    Raises:
        InputError: a result is damaged.
    """
    paths = sorted((folder / "simulation").glob("*/result.json")) + sorted((folder / "executors").glob("*/result.json"))
    return [StoredRun(folder.read_json(str(path.relative_to(folder))), path.parent, folder) for path in paths]


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten nested parts into separate columns: `reward.latency` is `reward_latency`."""
    flat: dict[str, Any] = {}
    for key, value in row.items():
        if isinstance(value, Mapping):
            flat |= {f"{key}_{name}": inner for name, inner in _flat(value).items()}
        else:
            flat[key] = list(value) if isinstance(value, tuple) else value
    return flat


def write_table(path: Path, rows: Iterable[Any]) -> Path:
    """Write records of one kind as a Parquet table; returns its path."""
    import pyarrow
    from pyarrow import parquet

    with atomic_path(path) as temporary:
        parquet.write_table(pyarrow.Table.from_pylist([_flat(to_builtins(row)) for row in rows]), temporary)
    return path


def read_table(path: Path, *names: str) -> dict[str, list[Any]]:
    """Return a Parquet table's columns: those that are named, or all.

    Raises:
        InputError: it is not a Parquet file, or is damaged, declares too large a size, or has other columns.
    """
    from pyarrow import ArrowException, parquet

    require_file(path, MAX_TABLE_BYTES)
    try:
        with parquet.ParquetFile(path) as file:
            if file.metadata.num_rows * max(1, file.metadata.num_columns) > MAX_VALUES:
                problem = f"{file.metadata.num_rows:,} rows of {file.metadata.num_columns} columns"
                allowed = f"expected at most {MAX_VALUES:,} values in all: no record of a run is so large"
                raise InputError(str(path), "", f"{problem}; {allowed}")
            if not file.metadata.num_columns:  # what was written had no rows, so its columns are unknown
                return {name: [] for name in names}
            missing = [name for name in names if name not in file.schema_arrow.names]
            if missing:
                hint = nearest(missing[0], file.schema_arrow.names)
                raise InputError(str(path), "", f"has no column {missing[0]!r}; {hint}: no record of this version")
            columns: dict[str, list[Any]] = file.read(list(names) or None).to_pydict()
    except (ArrowException, OSError) as error:
        problem = f"not a Parquet table, or damaged ({in_a_line(str(error))}); make the run again"
        raise InputError(str(path), "", problem) from None
    for name in names:
        if name != "status" and not all(isinstance(value, int | float | None) for value in columns[name]):
            raise InputError(str(path), name, "holds something that is not a number: no record of this version")
    return columns


def timeline(record: RunRecord) -> dict[str, Any]:
    """Return a Chrome trace (opens in Perfetto): one process a server with a track an instance, one for the router."""
    router = len(record.servers)
    names = [*(server.name for server in record.servers), "router"]
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}}
        for pid, name in enumerate(names)
    ]
    for batch in record.batches:
        label = f"segment {batch.segment}, width {batch.width:g}, {batch.size} images"
        args = {"batch": batch.batch, "previous_width": batch.previous_width, "commanded_us": batch.commanded_ns / 1000}
        events.append(_span(label, batch.server, batch.instance, batch.started_ns, batch.ended_ns, args))
    for micro_batch in record.micro_batches:
        served = f"{names[micro_batch.server]} at width {micro_batch.width:g}"
        label = f"segment {micro_batch.head.segment} -> {served}, {micro_batch.size} images"
        args = {
            "decision": micro_batch.decision,
            "reward": micro_batch.reward.total,
            "latency_s": micro_batch.latency_s,
        }
        events.append(_span(label, router, 0, micro_batch.snapshot_ns, micro_batch.sent_ns, args))
    return {"displayTimeUnit": "ms", "traceEvents": events}


def _span(name: str, pid: int, tid: int, start_ns: int, end_ns: int, args: dict[str, Any]) -> dict[str, Any]:
    times = {"ts": start_ns / 1000, "dur": (end_ns - start_ns) / 1000}  # the format counts microseconds
    return {"ph": "X", "name": name, "pid": pid, "tid": tid, **times, "args": args}
