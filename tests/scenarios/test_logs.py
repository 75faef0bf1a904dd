"""The logs of a run on real executors in its folder: what is written is read, replayed, and held against each other."""

from __future__ import annotations

import dataclasses
import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kit.errors import InputError
from policies.faults import PLANNED, Outage
from policies.run_records import LoggedStep, RunRecord
from policies.vocabulary import RequestsReturned, ReturnRequests
from scenarios.metrics.run_result import Result
from scenarios.runs import run_store
from scenarios.runs.folder import RunFolder
from scenarios.runs.run_store import (
    INCARNATIONS_FILE,
    LOG_FILE,
    read_incarnations,
    read_log,
    read_runs,
    read_table,
    timeline,
    write_cores,
    write_run,
)
from sim.simulated_cluster import Simulation
from slimsched.cli import main
from tests import tiny
from tests.replay.logs import apart
from tests.scenarios.folders import simulated, summary

NS = 1_000_000_000
PLACE = "executors/random-seed0"
SPEC = tiny.cluster()
NAMES = [server.name for server in SPEC.servers]


@pytest.fixture(scope="module")
def made() -> tuple[Result, RunRecord]:
    """A run in which the first server dies for good, its logs as real executors keep them."""
    plan = tiny.run(
        SPEC,
        tiny.poisson_s(150, 0.3),
        0.3,
        keep_log=True,
        faults=(Outage(0, NS // 10, None),),
        drain_limit_ns=60 * NS,
    )
    record = Simulation(SPEC, plan).run(tiny.Uniform(), np.random.default_rng(0))
    logs = apart(record.log)
    record = dataclasses.replace(record, log=logs.router, worker_logs=logs.incarnations)
    return summary(record, mode="executors"), record


@pytest.fixture
def folder(tmp_path: Path, made: tuple[Result, RunRecord]) -> RunFolder:
    """With that run, as `validate` leaves it."""
    folder = RunFolder(tmp_path / "run")
    folder.finish("validate", "1", write_run(folder, *made))
    write_cores(folder, SPEC.router, [server.params for server in SPEC.servers])
    return folder


def _replay(folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = main(["replay", str(folder.path), "--quiet"])
    said = capsys.readouterr()
    return code, said.out + said.err


def _incarnation_file(number: int) -> str:
    return f"events-{NAMES[number]}-incarnation1.jsonl.gz"


def test_every_log_comes_back(folder: RunFolder, made: tuple[Result, RunRecord]) -> None:
    _, record = made
    assert tuple(read_log(folder / PLACE / LOG_FILE)) == record.log
    incarnations = read_incarnations(folder, PLACE)
    assert incarnations is not None
    assert [incarnation.ended for incarnation in incarnations] == [PLANNED, "", ""]
    for incarnation, log in zip(incarnations, record.worker_logs, strict=True):
        assert (incarnation.server, incarnation.name, incarnation.incarnation) == (
            log.server,
            NAMES[log.server],
            log.incarnation,
        )
        assert (incarnation.steps, incarnation.heard, incarnation.ended) == (len(log.steps), log.heard, log.ended)
        assert tuple(read_log(folder / PLACE / incarnation.file)) == log.steps


def test_replay_tells_of_every_log(
    folder: RunFolder, made: tuple[Result, RunRecord], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = _replay(folder, capsys)
    assert code == 0
    first, router, *incarnations = said.splitlines()
    assert first.startswith(f"{PLACE}: identical commands in ")
    assert " lost" in first
    assert router == f"  {LOG_FILE}: router, {len(made[1].log):,} steps"
    assert f"{_incarnation_file(0)}: server:0, incarnation 1" in incarnations[0]
    assert "steps, planned (" in incarnations[0]
    assert [line.endswith("to the run's end") for line in incarnations] == [False, True, True]
    assert main(["replay", str(folder.path), "--json", str(tmp_path / "said.json")]) == 0
    document = json.loads((tmp_path / "said.json").read_text())
    assert document["schema"] == "slimsched.replay/2"
    run = document["runs"][PLACE]
    assert [log["file"] for log in run["logs"]] == [LOG_FILE, *map(_incarnation_file, range(3))]
    assert run["problems"] == []
    assert sum(run["micro_batches"].values()) == len({micro_batch.decision for micro_batch in made[1].micro_batches})


def _rewritten(path: Path, change: Callable[[list[bytes]], list[bytes]]) -> None:
    path.write_bytes(gzip.compress(b"".join(change(gzip.decompress(path.read_bytes()).splitlines(keepends=True)))))


@pytest.mark.parametrize("number", [0, 1])
def test_a_log_of_a_life_that_is_not_whole_is_told(
    folder: RunFolder, number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """A step is missing at the end or in the middle, its compression is torn, or the file is gone."""
    path = folder / PLACE / _incarnation_file(number)
    whole = path.read_bytes()
    lines = len(gzip.decompress(whole).splitlines())
    silent = next(n for n, step in enumerate(read_log(path)) if n > 5 and not step.commands)
    damages: list[Callable[[], Any]] = [
        lambda: _rewritten(path, lambda steps: steps[:-1]),
        lambda: _rewritten(path, lambda steps: [*steps[:silent], *steps[silent + 1 :]]),
        lambda: path.write_bytes(whole[: len(whole) // 2]),
        path.unlink,
    ]
    for damage in damages:
        damage()
        code, said = _replay(folder, capsys)
        assert code == 1
        assert f"{PLACE}/{path.name}: incomplete: " in said
        assert f" of {lines} steps" in said
        assert (len(said.splitlines()), "(the file is missing)" in said) == (1, not path.exists())
        path.write_bytes(whole)
    assert _replay(folder, capsys)[0] == 0


def test_a_step_that_was_changed_is_told(folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / PLACE / _incarnation_file(1)
    _rewritten(path, lambda steps: [line.replace(b'"segment":2', b'"segment":3') for line in steps])
    code, said = _replay(folder, capsys)
    assert code == 1
    assert said.startswith(f"{PLACE}/{path.name}: step ")
    assert ", server:1, differs\n" in said


def _without_a_return(record: RunRecord) -> RunRecord:
    at = next(n for n, step in enumerate(record.log) if n > 50 and isinstance(step.event, RequestsReturned))
    return dataclasses.replace(record, log=(*record.log[:at], *record.log[at + 1 :]))


def _with_more_heard(record: RunRecord) -> RunRecord:
    first, *others = record.worker_logs
    return dataclasses.replace(record, worker_logs=(dataclasses.replace(first, heard=len(first.steps) + 1), *others))


def _with_a_step_twice(record: RunRecord) -> RunRecord:
    *others, last = record.worker_logs
    returned = next(
        step for step in last.steps if any(isinstance(command, ReturnRequests) for command in step.commands)
    )
    again: tuple[LoggedStep, ...] = (*last.steps, returned)
    return dataclasses.replace(record, worker_logs=(*others, dataclasses.replace(last, steps=again)))


@pytest.mark.parametrize(
    "broken, code, told",
    [
        (_with_more_heard, 1, f"{PLACE}: server:0, incarnation 1: its log ends after "),
        (_without_a_return, 1, f"{PLACE}/{LOG_FILE}: step "),
        (_with_a_step_twice, 2, f"{PLACE}/{_incarnation_file(2)}: holds what no version of this project writes"),
    ],
)
def test_logs_that_do_not_fit_are_told(
    folder: RunFolder,
    made: tuple[Result, RunRecord],
    broken: Callable[[RunRecord], RunRecord],
    code: int,
    told: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    result, record = made
    write_run(folder, result, broken(record))
    found, said = _replay(folder, capsys)
    assert (found, told in said) == (code, True)


def test_logs_of_an_earlier_run_in_its_place_go(folder: RunFolder, made: tuple[Result, RunRecord]) -> None:
    result, record = made
    elsewhere = "executors/random-load0.8-seed0"
    write_run(folder, result, record, point="load0.8")
    mine = folder / PLACE / "events-mine.jsonl.gz"
    mine.write_text("a user's own")
    write_run(folder, result, dataclasses.replace(record, worker_logs=record.worker_logs[:1]))
    assert (folder / elsewhere / _incarnation_file(2)).exists()
    left = sorted(path.name for path in (folder / PLACE).glob("events*"))
    assert left == sorted([LOG_FILE, mine.name, _incarnation_file(0)])
    write_run(folder, result, dataclasses.replace(record, log=(), worker_logs=()))
    assert [path.name for path in (folder / PLACE).glob("events*")] == [mine.name]
    assert not (folder / PLACE / INCARNATIONS_FILE).exists()


@pytest.fixture(scope="module")
def run() -> tuple[object, RunRecord]:
    """One short run with its log."""
    return simulated("fixed:1,1@jsq", 3, rate=100, keep_log=True)


def test_records_come_back(tmp_path: Path, run: tuple[object, RunRecord]) -> None:
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


@pytest.mark.parametrize("text, line", [("{\n", 1), ('{"now_ns": 1, "core": "router"}\n', 1)])
def test_a_broken_log_names_its_line(tmp_path: Path, text: str, line: int) -> None:
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
