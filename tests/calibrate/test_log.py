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

from calibrate.bench import (
    HoldResult,
    Result,
    SoloResult,
    SteadyLoad,
    SteadyResult,
    TimesResult,
    TogetherResult,
    WatchResult,
    from_jsonable,
    to_jsonable,
)
from calibrate.log import Log, require_log
from calibrate.samples import Samples
from calibrate.slowdown import SlowdownLook
from kit.errors import InputError, WorkError
from policies.vocabulary import Provenance

STAMP = {"device": "cpu", "model": "abc"}
RESULTS: list[Result] = [
    SoloResult(Samples(3, (0.1, 0.2, 0.3)), 0.6, 0.5),
    TogetherResult((0.1, 0.2), (0.2, 0.0)),
    HoldResult((0.3, 0.1), (0.01, 0.01), 4096),
    TimesResult(Samples(1, (1e-4,))),
    WatchResult(SlowdownLook(0.02, 0.3, 0.1, 1.4, 0.02)),
    SteadyResult(SteadyLoad(100, 2.0, 55.5, None, Provenance.POLLED, 1.5)),
]


def written(path: Path) -> bytes:
    with Log(path, STAMP) as log:
        for number, result in enumerate(RESULTS):
            log.append(f"step {number}", 1.5, result)
    return path.read_bytes()


@pytest.mark.parametrize("result", RESULTS)
def test_a_result_reads_back(result: Result) -> None:
    """Plain data and back."""
    assert from_jsonable(to_jsonable(result)) == result


def test_a_log_reads_back(tmp_path: Path) -> None:
    """All steps and the time that they took."""
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


@pytest.mark.parametrize("stamp", [{**STAMP, "model": "xyz"}, {"device": "cpu"}, {**STAMP, "dtype": "float16"}])
def test_a_foreign_log_is_refused_and_left_alone(tmp_path: Path, stamp: dict[str, str]) -> None:
    """Another model, a stamp with less or more: the message names the key, the file is not touched."""
    text = written(tmp_path / "log")
    with pytest.raises(InputError, match=r"stamp\.(model|dtype): the log is of .* remove the log"):
        Log(tmp_path / "log", stamp)
    assert (tmp_path / "log").read_bytes() == text


def test_a_stamp_that_the_log_does_not_have_is_called_unknown(tmp_path: Path) -> None:
    """As of a log from before the driver was stamped."""
    written(tmp_path / "log")
    with pytest.raises(InputError, match=r"stamp\.driver: the log is of an unknown one, this calibration of '999\.10'"):
        Log(tmp_path / "log", {**STAMP, "driver": "999.10"})


@pytest.mark.parametrize(
    "damage", [b"not json\n", b"[1]\n", b'{"step": "x"}\n', b'{"step": "x", "elapsed_s": 1, "result": {"kind": "?"}}\n']
)
def test_damage_before_the_last_line_is_refused(tmp_path: Path, damage: bytes) -> None:
    """A whole line that is no step is an error that names the line."""
    text = written(tmp_path / "log")
    (tmp_path / "log").write_bytes(text + damage)
    with pytest.raises(InputError, match=f"line {len(RESULTS) + 2}: damaged"):
        Log(tmp_path / "log", STAMP)


@pytest.mark.parametrize(
    "text",
    [
        b'{"schema": "other/1"}\n',
        b'{"schema": "other/1"}\nno newline at the end',
        b"one line without an end",
        b"a table\nof text, torn",
        b"\x00\xff\n\x80 bytes",
        b'{"schema": "slimsched.calibration-log/1", "stamp": {"device": "cu',
    ],
)
def test_another_kind_of_file_is_refused_and_left_as_it_was(tmp_path: Path, text: bytes) -> None:
    """JSON that is no calibration log, no JSON at all, with or without an end of its last line: byte for byte."""
    (tmp_path / "log").write_bytes(text)
    with pytest.raises(InputError, match=r"no calibration log .* choose another path"):
        Log(tmp_path / "log", STAMP)
    assert (tmp_path / "log").read_bytes() == text


@pytest.mark.parametrize("damage", [b'{"step": "x"}\n', b'{"step": "x"}\n{"step": "torn'])
def test_a_damaged_log_is_left_as_it_was(tmp_path: Path, damage: bytes) -> None:
    """What is refused is not shortened either."""
    text = written(tmp_path / "log") + damage
    (tmp_path / "log").write_bytes(text)
    with pytest.raises(InputError, match=f"line {len(RESULTS) + 2}: damaged"):
        Log(tmp_path / "log", STAMP)
    assert (tmp_path / "log").read_bytes() == text


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
    """In the middle of the last line: the message says what is kept, and the log goes on once there is room."""
    path, kept = tmp_path / "log", len(RESULTS) - 1
    whole_bytes = len(written(path))
    path.unlink()
    with files_of_at_most(whole_bytes - 20), pytest.raises(WorkError, match=r"cannot be written .*make room") as full:
        written(path)
    assert f"{kept} finished steps are kept in {path}: the same command goes on from there" in str(full.value)
    assert str(full.value).count("finished steps") == 1
    assert path.read_bytes().endswith(b"\n")
    with Log(path, STAMP) as log:
        assert list(log.results.values()) == RESULTS[:kept]
        log.append("after", 1.0, RESULTS[0])
    with Log(path, STAMP) as log:
        assert len(log.results) == kept + 1


def test_a_disk_that_was_full_before_is_work_that_failed(tmp_path: Path) -> None:
    """Nothing measured yet, nothing kept; the remedy is the same."""
    with files_of_at_most(5), pytest.raises(WorkError, match="make room: 0 finished steps"):
        Log(tmp_path / "log", STAMP)
    written(tmp_path / "log")


def test_work_that_fails_is_told_with_the_log_that_is_kept(tmp_path: Path) -> None:
    """As when a device is lost in the middle."""

    def lose() -> None:
        with Log(tmp_path / "log", STAMP) as log:
            log.append("step", 1.0, RESULTS[0])
            raise WorkError("cuda:0 is lost")

    with pytest.raises(WorkError, match=r"^cuda:0 is lost; 1 finished steps are kept in .*log: the same command"):
        lose()


def test_a_path_that_cannot_be_a_log_is_refused(tmp_path: Path) -> None:
    """A folder, or below a file."""
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "file" / "log"):
        with pytest.raises(InputError, match="cannot be a log"):
            Log(path, STAMP)


def test_two_calibrations_do_not_share_a_log(tmp_path: Path) -> None:
    """The second one is refused while the first one writes, and goes on when it has ended."""
    with Log(tmp_path / "log", STAMP), pytest.raises(InputError, match="another calibration is writing"):
        Log(tmp_path / "log", STAMP)
    Log(tmp_path / "log", STAMP).close()


def test_a_second_calibration_leaves_the_line_that_the_first_one_is_writing(tmp_path: Path) -> None:
    """Half a line is no rest of a crash while its writer holds the lock."""
    path = tmp_path / "log"
    with Log(path, STAMP), path.open("ab") as half:
        half.write(b'{"step": "half')
        half.flush()
        before = path.read_bytes()
        with pytest.raises(InputError, match="another calibration is writing"):
            Log(path, STAMP)
        assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", None),
        ('{"schema": "slims', None),
        ('{"schema": "slimsched.calibration-log/1", "stamp": {}}\n{"torn', None),
        ('{"schema": "slimsched.calibration-log/1", "stamp": {}}\njunk\n', "line 2: damaged"),
        ('{"schema": "slimsched.calibration-log/1", "stamp": {}}\n[]\n', "line 2: damaged"),
        ("[]\n", "no calibration log"),
        ("junk", "no calibration log"),
    ],
)
def test_a_log_that_cant_be_gone_on_from_is_known(text: str, said: str | None, tmp_path: Path) -> None:
    """What a crash tore can be."""
    path = tmp_path / "a.jsonl"
    path.write_text(text)
    if said is None:
        require_log(path)
        return
    with pytest.raises(InputError, match=said):
        require_log(path)
