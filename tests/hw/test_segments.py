"""The log of a server that goes on for days: bounded, each segment by itself, and no business of those it serves."""

from __future__ import annotations

import contextlib
import errno
import os
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from hw.frontend import log_segments
from hw.frontend.log_segments import LogBounds, Segment, SegmentLog, segments_in
from kit.errors import InputError
from policies.replay import replay_through
from policies.router_core import RouterCore
from policies.run_records import LoggedStep
from policies.vocabulary import RequestArrived
from scenarios.files.series_files import read_trace
from scenarios.runs.folder import SERVED, RunFolder
from scenarios.runs.run_store import replay_served, write_arrivals
from tests import tiny

SPEC = tiny.cluster()


@pytest.fixture(scope="module")
def steps() -> list[LoggedStep]:
    """A router's, of a server that is never idle: more comes than it carries."""
    _, record = tiny.simulate(SPEC, tiny.run(SPEC, tiny.poisson_s(1000, 2.0), 2.0, end="cut", keep_log=True))
    found = [step for step in record.log if step.core == "router"]
    assert len(found) > 3000
    return found


@pytest.fixture
def no_segment_ages(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow this host is: a segment of a twentieth of a second goes with an age of 16 times as much."""
    monkeypatch.setattr(log_segments, "time", SimpleNamespace(time=lambda: 0.0))


class Server:
    def __init__(self, folder: Path, total_bytes: float = 1e9, age_s: float = 1e6) -> None:
        self.said: list[str] = []
        self.core = RouterCore(SPEC.router)
        self.log = SegmentLog(folder / SERVED, LogBounds(total_bytes, age_s), self.said.append)
        self.log.watch(self.core)

    def serve(self, steps: Sequence[LoggedStep]) -> None:
        for number, step in enumerate(steps):
            event: Any = step.event
            commands = self.core.handle(event, step.now_ns)
            assert tuple(commands) == step.commands
            self.log.append(step.now_ns, event, commands)
            if number % 5 == 0:
                self.log.caught_up()
            if number % 50 == 0:
                self.let_write()
        self.log.caught_up()

    def let_write(self) -> None:
        done = Event()
        self.log._jobs.put(done.set)
        assert done.wait(60)


def logged(folder: Path) -> list[Segment]:
    return [Segment(path) for path in segments_in(folder / SERVED)]


@pytest.mark.usefixtures("no_segment_ages")
def test_every_segment_replays_by_itself_and_all_of_them_make_the_log(tmp_path: Path, steps: list[LoggedStep]) -> None:
    server = Server(tmp_path, age_s=16 * 0.1)
    server.serve(steps)
    server.log.close()
    found = logged(tmp_path)
    assert len(found) > 10
    assert [step for segment in found for step in segment.steps()] == steps
    assert min(len(segment.core()._requests) for segment in found[1:]) > 0
    for segment in reversed(found):
        assert replay_through({"router": segment.core()}, segment.steps()) is None
        assert segment.is_whole
    (run,) = replay_served(RunFolder(tmp_path)).values()
    assert (run["problems"], sum(log["steps"] for log in run["logs"])) == ([], len(steps))
    found[1].path.write_bytes(found[2].path.read_bytes())
    (run,) = replay_served(RunFolder(tmp_path)).values()
    assert run["problems"] == [
        f"{SERVED}/{found[place].path.name}: it begins with another core than the segment before has left"
        for place in (1, 2)
    ]


@pytest.mark.usefixtures("no_segment_ages")
def test_arrivals_at_the_last_server_are_written_as_a_trace(tmp_path: Path, steps: list[LoggedStep]) -> None:
    """Times are exact to the nanosecond wherever the log was cut, and a log without arrivals writes no trace."""
    trace, folder = tmp_path / "trace.csv", RunFolder(tmp_path)
    with pytest.raises(InputError, match=r"holds no image of the last `slimsched serve`"):
        write_arrivals(folder, trace)
    assert not trace.exists()
    for left_out in (0, 20):
        server = Server(tmp_path, age_s=16 * 0.1)
        server.serve(steps[: len(steps) - left_out])
        server.log.close()
    assert len({segment.header.served for segment in logged(tmp_path)}) == 2
    came_ns = [step.now_ns for step in steps[:-20] if isinstance(step.event, RequestArrived)]
    assert write_arrivals(folder, trace) == (len(came_ns), (came_ns[-1] - came_ns[0]) / 1e9)
    assert read_trace(trace, "time_s").tolist() == [at_ns / 1e9 for at_ns in came_ns]


def test_old_segments_go_by_bytes_and_by_age(tmp_path: Path, steps: list[LoggedStep]) -> None:
    server = Server(tmp_path, total_bytes=40_000)
    server.serve(steps)
    server.log.close()
    found = segments_in(tmp_path / SERVED)
    frame_bytes = max(path.stat().st_size for path in found)  # a segment ends with the frame that fills it
    assert 20_000 < sum(path.stat().st_size for path in found) <= 40_000 + frame_bytes
    assert int(found[0].stem) > 1
    assert next(iter(Segment(found[-1]).steps())) in steps
    os.utime(found[0], (0, 0))
    Server(tmp_path, age_s=3600.0).log.close()
    assert [path.name for path in segments_in(tmp_path / SERVED)][:-1] == [path.name for path in found[1:]]


@pytest.mark.usefixtures("no_segment_ages")
def test_a_full_disk_stops_the_log_and_nothing_else(
    tmp_path: Path, steps: list[LoggedStep], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line is said when it stops and one when it goes on; what was written until then replays."""
    left, write = [9000], os.write

    def full(fd: int, data: memoryview) -> int:
        if not left[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = write(fd, data[: left[0]])
        left[0] -= written
        return written

    server, half = Server(tmp_path, age_s=16 * 0.4), len(steps) // 2
    monkeypatch.setattr(os, "write", full)
    monkeypatch.setattr(log_segments, "FRAME_BYTES", 4000)
    server.serve(steps[:half])
    (line,) = server.said
    assert line.startswith(f"{tmp_path / SERVED}: No space left on device: nothing is logged; it is tried again in ")
    left[0] = 1 << 30
    server.serve(steps[half:])
    server.log.close()
    assert server.said[1:] == [f"{tmp_path / SERVED}: what is served is logged again"]
    (run,) = replay_served(RunFolder(tmp_path)).values()
    assert run["problems"] == []
    assert [log["of"].endswith("cut off at its end") for log in run["logs"][:2]] == [True, False]
    assert 100 < run["logs"][0]["steps"] < half
    assert sum(log["steps"] for log in run["logs"][1:]) > half / 2


def test_a_disk_that_is_too_slow_stops_the_log(
    tmp_path: Path, steps: list[LoggedStep], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, may_write = Server(tmp_path), Event()
    monkeypatch.setattr(log_segments, "FRAME_BYTES", 4000)
    monkeypatch.setattr(log_segments, "BACKLOG_BYTES", 100_000)
    monkeypatch.setattr(Server, "let_write", lambda self: None)
    server.log._jobs.put(may_write.wait)  # type: ignore[arg-type]
    server.serve(steps)
    assert [": the disk is too slow: nothing is logged" in line for line in server.said] == [True]
    may_write.set()
    server.log.close()
    (segment,) = logged(tmp_path)
    assert replay_through({"router": segment.core()}, segment.steps()) is None
    assert not segment.is_whole


def open_files() -> Iterator[Path]:
    """Of this process; what other tests have left may be closed meanwhile."""
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            yield descriptor.readlink()


@pytest.mark.usefixtures("no_segment_ages")
def test_a_disk_that_hangs_is_given_no_more_until_it_has_written_all(
    tmp_path: Path, steps: list[LoggedStep], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many segments would be due meanwhile; then the log goes on, and no file stays open."""
    may_write, write, behind = Event(), os.write, [0]

    def hang(fd: int, data: memoryview) -> int:
        assert may_write.wait(60)
        return write(fd, data)

    def follow(self: Server) -> None:
        behind.append(self.log._behind)

    half = len(steps) // 2
    server = Server(tmp_path, age_s=16 * 0.05)
    monkeypatch.setattr(os, "write", hang)
    monkeypatch.setattr(log_segments, "FRAME_BYTES", 4000)
    monkeypatch.setattr(log_segments, "BACKLOG_BYTES", 20_000)
    with monkeypatch.context() as hanging:
        hanging.setattr(Server, "let_write", follow)
        server.serve(steps[:half])
    due = (steps[half].now_ns - steps[0].now_ns) / (0.05 * 1e9)
    assert due > 10
    assert [": the disk is too slow: nothing is logged" in line for line in server.said] == [True]
    assert 20_000 < max(behind) < 20_000 + 2 * 4000
    may_write.set()
    server.let_write()
    server.serve(steps[half:])
    server.log.close()
    assert server.said[1:] == [f"{tmp_path / SERVED}: what is served is logged again"]
    assert [path for path in open_files() if path.is_relative_to(tmp_path)] == []
    found = logged(tmp_path)
    whole = [segment.is_whole for segment in found]
    assert whole == [place != whole.index(False) for place in range(len(whole))]
    for segment in found:
        assert replay_through({"router": segment.core()}, segment.steps()) is None
    assert sum(len(list(segment.steps())) for segment in found) > half - 100


def test_a_frame_that_grows_without_end_is_told(
    tmp_path: Path, steps: list[LoggedStep], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some bytes that make gigabytes take no memory."""
    server = Server(tmp_path)
    server.serve(steps)
    server.log.close()
    monkeypatch.setattr(log_segments, "BACKLOG_BYTES", 1 << 18)
    (path,) = segments_in(tmp_path / SERVED)
    assert len(list(Segment(path).steps())) == len(steps)
    bomb = zlib.compress(bytes(1 << 20))
    with path.open("ab") as file:
        file.write(len(bomb).to_bytes(4, "little") + bomb)
    with pytest.raises(InputError, match=r"a frame is incomplete, or has more than 262144 bytes; remove it"):
        list(Segment(path).steps())


@pytest.mark.parametrize("place", [0.0, 0.01, 0.3, 0.7])
def test_a_damaged_segment_is_told(tmp_path: Path, steps: list[LoggedStep], place: float) -> None:
    server = Server(tmp_path)
    server.serve(steps)
    server.log.close()
    (path,) = segments_in(tmp_path / SERVED)
    data = bytearray(path.read_bytes())
    at = 6 + int(place * len(data))
    data[at : at + 40] = bytes(40)
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"00000001\.segment: is not a segment of a log, or damaged: .*; remove it"):
        list(Segment(path).steps())
