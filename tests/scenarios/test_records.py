"""Records and logs of runs come back from their files as they were."""

from __future__ import annotations

import gzip
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from kit.errors import InputError
from policies.replay import replay
from policies.run_records import RunRecord
from scenarios.runs import run_store
from scenarios.runs.folder import RunFolder
from scenarios.runs.run_store import (
    LOG_FILE,
    read_cores,
    read_log,
    read_runs,
    read_table,
    timeline,
    write_cores,
    write_run,
)
from tests import tiny
from tests.scenarios.folders import simulated


@pytest.fixture(scope="module")
def run() -> tuple[object, RunRecord]:
    """One short run with its log."""
    return simulated("fixed:1,1@jsq", 3, rate=100, keep_log=True)


def test_records_come_back(tmp_path: Path, run: tuple[object, RunRecord]) -> None:
    """Every table has the record's rows and values; nested parts are columns."""
    result, record = run
    record = replace(record, references=((0, 7, 4e-5), (1, 9, 6e-5)))
    write_run(RunFolder(tmp_path), result, record)  # type: ignore[arg-type]
    (stored,) = read_runs(RunFolder(tmp_path))
    assert stored.result == result
    assert stored.columns("speed") == {"server": [0, 1], "read_ns": [7, 9], "reference_s": [4e-5, 6e-5]}
    requests = stored.columns("requests")
    assert requests["widths"] == [list(request.widths) for request in record.requests]
    assert requests["finished_ns"] == [request.finished_ns for request in record.requests]
    assert stored.columns("micro_batches")["reward_latency"] == [
        micro_batch.reward.latency for micro_batch in record.micro_batches
    ]
    assert len(stored.columns("batches")["batch"]) == len(record.batches)
    assert stored.columns("nothing") == {}


def test_a_log_comes_back_and_replays(tmp_path: Path, run: tuple[object, RunRecord]) -> None:
    """A stored log is equal to the run's, and fresh cores answer it with the same commands."""
    result, record = run
    write_run(RunFolder(tmp_path), result, record)  # type: ignore[arg-type]
    (path,) = tmp_path.glob(f"*/*/{LOG_FILE}")
    steps = tuple(read_log(path))
    assert steps == record.log
    cluster = tiny.cluster()
    write_cores(RunFolder(tmp_path), cluster.router, [server.params for server in cluster.servers])
    router, params = read_cores(RunFolder(tmp_path))
    assert (router, params) == (cluster.router, [server.params for server in cluster.servers])
    assert replay(steps, router, params) is None


@pytest.mark.parametrize("text, line", [("{\n", 1), ('{"now_ns": 1, "core": "router"}\n', 1)])
def test_a_broken_log_names_its_line(tmp_path: Path, text: str, line: int) -> None:
    """What is not a step is refused with its line."""
    with gzip.open(tmp_path / "x.gz", "wt") as file:
        file.write(text)
    with pytest.raises(InputError, match=f"line {line}"):
        list(read_log(tmp_path / "x.gz"))


def test_the_timeline_has_a_track_for_each_instance(run: tuple[object, RunRecord]) -> None:
    """Each batch is a span of its server and instance, each decision of the router's; no instance runs two at once."""
    _, record = run
    spans = [event for event in timeline(record)["traceEvents"] if event["ph"] == "X"]
    router = len(record.servers)
    assert sum(span["pid"] == router for span in spans) == len(record.micro_batches)
    tracks: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for span in spans:
        if span["pid"] != router:
            tracks.setdefault((span["pid"], span["tid"]), []).append((span["ts"], span["ts"] + span["dur"]))
    assert sum(map(len, tracks.values())) == len(record.batches)
    for times in tracks.values():
        ordered = sorted(times)
        assert all(end <= start + 1e-3 for (_, end), (start, _) in pairwise(ordered))


def test_tables_of_any_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not a table of a record is told, and a table that says it is endless is not read."""
    import pyarrow
    from pyarrow import parquet

    path = tmp_path / "requests.parquet"
    for content in (b"", b"PAR1", b"PAR1" + bytes(1000) + b"PAR1", bytes(5000)):
        path.write_bytes(content)
        with pytest.raises(InputError, match="not a Parquet table, or damaged"):
            read_table(path, "arrived_ns")
    parquet.write_table(pyarrow.table({"arrived": [1]}), path)
    with pytest.raises(InputError, match="no column 'arrived_ns'; did you mean 'arrived'"):
        read_table(path, "arrived_ns")
    parquet.write_table(pyarrow.table({"arrived_ns": ["now"]}), path)
    with pytest.raises(InputError, match="arrived_ns: holds something that is not a number"):
        read_table(path, "arrived_ns")
    parquet.write_table(pyarrow.table({"arrived_ns": range(11)}), path)
    monkeypatch.setattr(run_store, "MAX_VALUES", 10)
    with pytest.raises(InputError, match=r"11 rows of 1 columns; expected at most 10 values"):
        read_table(path, "arrived_ns")
    parquet.write_table(pyarrow.table({"arrived_ns": [1, None], "status": ["a", "b"]}), path)
    assert read_table(path, "arrived_ns", "status") == {"arrived_ns": [1, None], "status": ["a", "b"]}
