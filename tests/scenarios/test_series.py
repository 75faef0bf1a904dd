"""Series from CSV files: what a row may be, and how a file that is not one is told."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.errors import InputError
from scenarios.files.series import read_rates, read_trace


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


REFUSED = {
    "a stray quote": ('a,time_s\n1,"2\n3,4\n5,"6\n', "", "2 of 3 rows", "line 2 (unexpected end of data)"),
    "a quote that closes later": ('time_s,a\n1,"x\n2,y\n3,z"\n4,w\n', "", "1 of 4 rows", "line 2 (unexpected end"),
    "a quote that closes early": ('a,time_s\n"x"y,2\n3,4\n', "", "1 of 2 rows", "line 2 (',' expected after '\"')"),
    "too few fields": ("a,time_s\n" + "1,2\n" * 10 + "3\n" * 7, "", "7 of 17 rows", "line 12 (1 fields)"),
    "too many fields": ("a,time_s\n1,2,3\n", "", "1 of 1 rows", "2 fields, the first is line 2 (3 fields)"),
    "an empty line": ("a,time_s\n1,2\n\n3,4\n", "", "1 of 3 rows", "line 3"),
    "dates beside seconds": ("time_s\n0\n1\n2024-01-01\n", "", "mixes seconds (line 2: '0') and dates", "line 4"),
    "dates of two forms": (
        "time_s\n2024-01-01\n2024-01-01T00:00Z\n",
        "",
        "dates without a zone (line 2: '2024-01-01') and dates with a zone (line 3",
        "one form",
    ),
    "a column twice": ("time_s,a,time_s\n1,2,3\n", "line 1", "2 columns 'time_s'", "name each once"),
    "no such column": ("time,a\n1,2\n", "line 1", "no column 'time_s'", "did you mean 'time'"),
    "a value a line in JSON": ('{"time_s": 0}\n{"time_s": 1}\n', "line 1", "is JSON; allowed is CSV", "to_csv"),
    "comments": ("# made by me\ntime_s\n1\n", "line 1", "is a comment, and the first line must name", "begin with #"),
    "a quote in the header": ('"time_s\n1\n', "line 1", "no header line", "unexpected end"),
    "not a number": ("time_s\n1\nnan\n", "line 3", "'nan' is no time", "finite"),
    "beyond all numbers": ("time_s\n1e400\n", "line 2", "'1e400' is no time", "finite"),
    "beyond all dates": ("time_s\n1\n-1e300\n", "line 3", "'-1e300' is no time", "finite"),
    "a long field": ("time_s\n" + "x" * 1_000_000, "line 2", "is no time", "ISO 8601"),
    "a long quoted field": ('a,time_s\n"' + "x" * 1_000_000 + '",1', "", "1 of 1 rows", "field larger"),
    "nothing": ("", "", "is empty", "header"),
    "a header alone": ("time_s\n\n", "", "no arrival", "at least one"),
}


@pytest.mark.parametrize("text, key, problem, more", REFUSED.values(), ids=REFUSED)
def test_what_is_no_trace(text: str, key: str, problem: str, more: str, tmp_path: Path) -> None:
    path = _file(tmp_path, text)
    with pytest.raises(InputError) as caught:
        read_trace(path, "time_s")
    assert (caught.value.source, caught.value.key) == (str(path), key)
    assert problem in caught.value.problem
    assert more in caught.value.problem
    assert len(caught.value.problem) < 300


def test_what_is_compressed_is_told(tmp_path: Path) -> None:
    (tmp_path / "x.csv.gz").write_bytes(gzip.compress(b"time_s\n1\n"))
    with pytest.raises(InputError, match="it is compressed: gunzip it first"):
        read_trace(tmp_path / "x.csv.gz", "time_s")


@pytest.mark.parametrize("text", ["count\n1\n\n2\n", "count\n-1\n", "count\ninf\n", "count\n0\n", 'count\n"1\n'])
def test_what_is_no_curve(text: str, tmp_path: Path) -> None:
    with pytest.raises(InputError):
        read_rates(_file(tmp_path, text), "count")


@given(st.text(alphabet='0123456789.,"\n\r -:TZ\0a', max_size=80))
def test_any_text_is_times_or_one_message(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    """As many times as lines, or `InputError`."""
    path = _file(tmp_path_factory.mktemp("series"), f"time_s\n{text}")
    try:
        found = read_trace(path, "time_s")
    except InputError:
        return
    assert len(found) == len(text.rstrip().replace("\r\n", "\n").replace("\r", "\n").split("\n"))
