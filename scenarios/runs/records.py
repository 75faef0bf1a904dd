"""A run's record in its folder: tables of requests, batches and readings, and the result."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from msgspec import to_builtins

from kit.documents import write_json, write_text
from kit.errors import InputError, in_a_line, nearest
from kit.files import atomic_path, require_file
from policies.records import RunRecord
from scenarios.metrics.result import Result
from scenarios.runs.folder import RunFolder
from scenarios.runs.logs import write_logs

RECORD_FILES = ("requests.parquet", "blocks.parquet", "batches.parquet", "telemetry.parquet", "timeline.json")
MAX_TABLE_BYTES: Final = 4_000_000_000
MAX_VALUES: Final = 500_000_000  # of a table
_PLACE = re.compile(r"-(?:(load[0-9.e-]+|saturated|near)-)?seed\d+(?:-rep(\d+))?$")


def _write_record(path: Path, record: RunRecord) -> list[Path]:
    """Write everything of a run: Parquet tables, a timeline, and the event logs if the run kept them."""
    tables: dict[str, Iterable[Any]] = {
        "requests": record.requests,
        "blocks": record.blocks,
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

    def columns(self, name: str, *wanted: str) -> dict[str, list[Any]]:
        """Return columns of a table of its record (`requests`, `blocks`, `batches`, `telemetry`), by default all.

        It is empty if it was not kept.

        Raises:
            InputError: it is damaged.
        """
        path = self.path / f"{name}.parquet"
        if not path.exists():
            return {}
        with self.folder.mending(str(path.relative_to(self.folder.path))):
            return read_table(path, *wanted)


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
    written = [write_table(path / "requests.parquet", record.requests)] if repeat else _write_record(path, record)
    if record.references:
        readings = [dict(zip(("server", "read_ns", "reference_s"), each, strict=True)) for each in record.references]
        written.append(write_table(path / "speed.parquet", readings))
    write_json(path / "result.json", result)
    return [*written, path / "result.json"]


def read_runs(folder: RunFolder) -> list[StoredRun]:
    """Return all runs of a folder, simulated ones first, by name.

    Raises:
        InputError: a result is damaged.
    """
    paths = sorted((folder / "simulation").glob("*/result.json")) + sorted((folder / "hardware").glob("*/result.json"))
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
    """Records of one kind as a Parquet table; returns its path."""
    import pyarrow
    from pyarrow import parquet

    with atomic_path(path) as temporary:
        parquet.write_table(pyarrow.Table.from_pylist([_flat(to_builtins(row)) for row in rows]), temporary)
    return path


def read_table(path: Path, *wanted: str) -> dict[str, list[Any]]:
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
                allowed = f"allowed are {MAX_VALUES:,} values in all: no record of a run is so large"
                raise InputError(str(path), "", f"{problem}; {allowed}")
            if not file.metadata.num_columns:  # what was written had no rows, so its columns are unknown
                return {name: [] for name in wanted}
            missing = [name for name in wanted if name not in file.schema_arrow.names]
            if missing:
                known = nearest(missing[0], file.schema_arrow.names)
                raise InputError(str(path), "", f"has no column {missing[0]!r}; {known}: no record of this version")
            columns: dict[str, list[Any]] = file.read(list(wanted) or None).to_pydict()
    except (ArrowException, OSError) as error:
        problem = f"not a Parquet table, or damaged ({in_a_line(str(error))}); make the run anew"
        raise InputError(str(path), "", problem) from None
    for name in wanted:
        if name != "status" and not all(isinstance(value, int | float | None) for value in columns[name]):
            raise InputError(str(path), name, "holds something that is no number: no record of this version")
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
    for block in record.blocks:
        label = f"segment {block.head.segment} -> {names[block.server]} at width {block.width:g}, {block.size} images"
        args = {"decision": block.decision, "reward": block.reward.total, "latency_s": block.latency_s}
        events.append(_span(label, router, 0, block.snapshot_ns, block.sent_ns, args))
    return {"displayTimeUnit": "ms", "traceEvents": events}


def _span(name: str, pid: int, tid: int, start_ns: int, end_ns: int, args: dict[str, Any]) -> dict[str, Any]:
    times = {"ts": start_ns / 1000, "dur": (end_ns - start_ns) / 1000}  # the format counts microseconds
    return {"ph": "X", "name": name, "pid": pid, "tid": tid, **times, "args": args}
