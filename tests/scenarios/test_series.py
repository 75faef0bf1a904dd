"""Series from CSV files: what a row may be, and how a file that is not one is told."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.errors import InputError
from scenarios.files.series_files import read_trace


def _file(folder: Path, text: str) -> Path:
    path = folder / "x.csv"
    path.write_bytes(text.encode())
    return path


@pytest.mark.parametrize(
    "text, times_s",
    [
        ("time_s\n0\n0.5\n1e0\n", [0, 0.5, 1]),
        ("\ufeffid,time_s\r\n1,0\r\n2,0.5\r\n\r\n\r\n", [0, 0.5]),
        ('id, time_s\n"a, b",0\n"say ""x""",0.5', [0, 0.5]),
        ("time_s\n2\n1\n", [2, 1]),  # the workload sorts them
        ("time_s\n2024-01-01\n2024-01-01T00:00:01.5", [1704067200, 1704067201.5]),
        ("time_s\n2024-01-01T00:00:00Z\n2024-01-01T02:00:00+01:00", [1704067200, 1704070800]),
        ("time_s\n0001-01-01\n9999-12-31", [-62135596800, 253402214400]),
        ("#id,time_s\n1,2\n", [2]),
        ("time_s,text\n1,a\x0bb\u2028c\n2,d\n", [1, 2]),  # only line ends end a line
    ],
)
def test_times(text: str, times_s: list[float], tmp_path: Path) -> None:
    assert read_trace(_file(tmp_path, text), "time_s").tolist() == times_s


def test_a_date_is_the_same_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A night in which clocks are set is as long as any, wherever the machine stands."""
    import time  # noqa: TID251 - the zone of this process

    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        first, second = read_trace(_file(tmp_path, "time_s\n2024-03-31T00:00\n2024-03-31T06:00"), "time_s")
    finally:
        monkeypatch.undo()
        time.tzset()
    assert second - first == 6 * 3600


def test_what_is_compressed_is_told(tmp_path: Path) -> None:
    (tmp_path / "x.csv.gz").write_bytes(gzip.compress(b"time_s\n1\n"))
    with pytest.raises(InputError, match="it is compressed: gunzip it first"):
        read_trace(tmp_path / "x.csv.gz", "time_s")


@given(st.text(alphabet='0123456789.,"\n\r -:TZ\0a', max_size=80))
def test_any_text_is_times_or_one_message(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    """As many times as lines, or `InputError`."""
    path = _file(tmp_path_factory.mktemp("series"), f"time_s\n{text}")
    try:
        found = read_trace(path, "time_s")
    except InputError:
        return
    assert len(found) == len(text.rstrip().replace("\r\n", "\n").replace("\r", "\n").split("\n"))
