"""The log survives a kill, and is never mistaken for another device's."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from calibrate.calibration_log import Log
from calibrate.measurement_bench import (
    BesideLoadResult,
    LoadResult,
    Loop,
    PathsResult,
    Result,
    SlowdownLook,
    SteadyLoad,
    SteadyResult,
    TimesResult,
    TogetherResult,
    WatchResult,
    from_jsonable,
    to_jsonable,
)
from kit.errors import InputError, WorkError
from policies.vocabulary import Provenance

STAMP = {"device": "cpu", "model": "abc"}
RESULTS: list[Result] = [
    LoadResult(0.3, 0.01, 4096, (Loop((0.1, 0.2), 0.6, 0.5, 0.1, (1e-4, 2e-4)), Loop((0.1,), 0.2, 0.1)), 2),
    TogetherResult((0.1, 0.2), (0.2, 0.0), (1e-4, 1e-4), (2e-4, 0.0)),
    PathsResult((0.3, 0.1)),
    TimesResult((1e-4,)),
    BesideLoadResult(0.1, 0.2),
    WatchResult(SlowdownLook(0.02, 0.03, 0.1)),
    SteadyResult(SteadyLoad(100, 2.0, 55.5, None, Provenance.POLLED, 1.5)),
]


def written(path: Path) -> bytes:
    with Log(path, STAMP) as log:
        for number, result in enumerate(RESULTS):
            log.append(f"step {number}", 1.5, result)
    return path.read_bytes()


@pytest.mark.parametrize("result", RESULTS)
def test_a_result_reads_back(result: Result) -> None:
    assert from_jsonable(to_jsonable(result)) == result


def test_a_log_reads_back(tmp_path: Path) -> None:
    written(tmp_path / "log")
    with Log(tmp_path / "log", STAMP) as log:
        assert list(log.results.values()) == RESULTS
        assert log.spent_s == 1.5 * len(RESULTS)


@given(st.integers(0, 2000))
@example(1)
def test_a_torn_log_continues_at_its_last_whole_line(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    """Cut anywhere: the whole lines are kept, the rest is dropped, and appending goes on cleanly."""
    path = tmp_path_factory.mktemp("logs") / "log"
    text = written(path)
    kept = text[: max(0, len(text) - cut)]
    path.write_bytes(kept)
    whole = max(0, kept.count(b"\n") - 1)
    with Log(path, STAMP) as log:
        assert list(log.results.values()) == RESULTS[:whole]
        log.append("n", 0, RESULTS[3])  # shorter than what may have been torn
    with Log(path, STAMP) as log:
        assert list(log.results) == [*(f"step {number}" for number in range(whole)), "n"]
    assert path.read_bytes().count(b"\n") == whole + 2
    assert path.read_bytes().endswith(b"\n")


@pytest.mark.parametrize(
    ("stamp", "said"),
    [
        ({**STAMP, "model": "xyz"}, r"stamp\.model: the log is of 'abc', this calibration of 'xyz'"),
        ({"device": "cpu"}, r"stamp\.model: the log is of 'abc', this calibration of an unknown one"),
        ({**STAMP, "dtype": "float16"}, r"stamp\.dtype: the log is of an unknown one, this calibration of 'float16'"),
    ],
)
def test_a_foreign_log_is_refused_and_left_alone(tmp_path: Path, stamp: dict[str, str], said: str) -> None:
    """Another model, a stamp with less or more: the message names the key, the file is not touched."""
    text = written(tmp_path / "log")
    with pytest.raises(InputError, match=rf"{said}; choose another path, or remove the log"):
        Log(tmp_path / "log", stamp)
    assert (tmp_path / "log").read_bytes() == text


HEADER = b'{"schema": "slimsched.calibration-log/2", "stamp": {"device": "cpu", "model": "abc"}}\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (HEADER + b"not json\n", "line 2: damaged"),
        (HEADER + b"[1]\n", "line 2: damaged"),
        (HEADER + b'{"step": "x"}\n{"step": "torn', "line 2: damaged"),
        (HEADER + b'{"step": "x", "elapsed_s": 1, "result": {"kind": "?"}}\n', "line 2: damaged"),
        (HEADER + b'{"step": "x", "elapsed_s": 1, "result": {"kind": "TimesResult"}}\n', "line 2: damaged"),
        (b'{"schema": "other/1"}\n', "no calibration log"),
        (b"one line without an end", "no calibration log"),
        (b"a table\nof text, torn", "no calibration log"),
        (b"\x00\xff\n\x80 bytes", "no calibration log"),
    ],
)
def test_file_that_is_not_a_calibration_log_is_refused_and_left_unchanged(
    tmp_path: Path, text: bytes, said: str
) -> None:
    """The file holds a whole line that is not a step, JSON of another schema, or no JSON at all."""
    path = tmp_path / "log"
    path.write_bytes(text)
    with pytest.raises(InputError, match=said):
        Log(path, STAMP)
    assert path.read_bytes() == text


@pytest.mark.parametrize("text", [b"", HEADER[:16], HEADER + b'{"torn'])
def test_log_torn_by_a_crash_is_accepted(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "log"
    path.write_bytes(text)
    Log(path, STAMP).close()
    path.write_bytes(HEADER.replace(b"cpu", b"cuda:0")[:70])
    with pytest.raises(InputError, match="no calibration log"):
        Log(path, STAMP)


# ------------------------------------------------------------------------------------------------------- full disk


@contextmanager
def files_of_at_most(size_bytes: int) -> Iterator[None]:
    """A limit on the size of files stands for a full disk."""
    limits, ignored = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)


def test_a_full_disk_keeps_what_was_measured(tmp_path: Path) -> None:
    """In the middle of the last line: the message shows what is kept, and the log goes on once there is room."""
    path, kept = tmp_path / "log", len(RESULTS) - 1
    whole_bytes = len(written(path))
    path.unlink()
    with files_of_at_most(whole_bytes - 20), pytest.raises(WorkError, match=r"cannot be written .*make room") as full:
        written(path)
    assert f"{kept} finished steps are kept in {path}: the same command resumes there" in str(full.value)
    assert str(full.value).count("finished steps") == 1
    assert path.read_bytes().endswith(b"\n")
    with Log(path, STAMP) as log:
        assert list(log.results.values()) == RESULTS[:kept]
        log.append("after", 1.0, RESULTS[0])
    with Log(path, STAMP) as log:
        assert len(log.results) == kept + 1


def test_a_disk_that_was_full_before_is_work_that_failed(tmp_path: Path) -> None:
    with files_of_at_most(5), pytest.raises(WorkError, match="make room: 0 finished steps"):
        Log(tmp_path / "log", STAMP)
    written(tmp_path / "log")


def test_work_that_fails_is_told_with_the_log_that_is_kept(tmp_path: Path) -> None:
    def lose() -> None:
        with Log(tmp_path / "log", STAMP) as log:
            log.append("step", 1.0, RESULTS[0])
            raise WorkError("cuda:0 is lost")

    with pytest.raises(WorkError, match=r"^cuda:0 is lost; 1 finished steps are kept in .*log: the same command"):
        lose()


def test_a_path_that_cannot_be_a_log_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "file" / "log"):
        with pytest.raises(InputError, match="cannot be a log"):
            Log(path, STAMP)


def test_two_calibrations_do_not_share_a_log(tmp_path: Path) -> None:
    """While the first one writes the second is refused: half a line is not a rest of a crash. Then it goes on."""
    path = tmp_path / "log"
    with Log(path, STAMP), path.open("ab") as half:
        half.write(b'{"step": "half')
        half.flush()
        before = path.read_bytes()
        with pytest.raises(InputError, match="another calibration is writing"):
            Log(path, STAMP)
        assert path.read_bytes() == before
    Log(path, STAMP).close()
