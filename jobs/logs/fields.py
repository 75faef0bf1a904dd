"""Parsing of a log's texts as numbers, times and words, column by column; unparseable texts become not-a-number."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np
import pyarrow
from numpy.typing import NDArray
from pyarrow import compute

from kit.units import parse_duration

Numbers = NDArray[np.float64]
Mask = NDArray[np.bool_]

# Forms of a time.
SECONDS = 1
NAIVE = 2
ZONED = 4
UNREAD = 8
FORMS: Final = {SECONDS: "seconds", NAIVE: "dates without a zone", ZONED: "dates with a zone"}
_KINDS: Final = {NAIVE: pyarrow.timestamp("us"), ZONED: pyarrow.timestamp("us", "UTC"), SECONDS: pyarrow.float64()}
_NUMBER: Final = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", re.ASCII)
_WORDS_FOR_NOTHING: Final = frozenset(
    ("", "-", "unknown", "none", "null", "nan", "nat", "na", "n/a", "unlimited", "partition_limit")
)
_NOTHING: Final = pyarrow.array(
    sorted({form(word) for word in _WORDS_FOR_NOTHING for form in (str.lower, str.upper, str.title)} | {"NaT", "NaN"})
)
_PLAIN_DATES: Final = (  # as `datetime` parses them
    (re.compile(r"^(\d{4})/(\d\d)/(\d\d)"), r"\1-\2-\3"),
    (re.compile(r" ?(UTC|GMT|Z)$"), "+00:00"),
    (re.compile(r" (?=[-+]\d\d:?\d\d$)"), ""),
)
_PARTS: Final = re.compile(r"(?=\d)(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?", re.ASCII)  # 2d3h, 2h5m10s
_CLOCK: Final = re.compile(r"(?:(\d+)(?:-| days?,? ))?(\d+):([0-5]\d):([0-5]\d(?:\.\d+)?)", re.ASCII)
_STATUSES: Final = {
    word: status
    for status, words in {
        "completed": "completed complete pass passed succeeded success terminated done",
        "failed": "failed fail error exit out_of_memory oom oomkilled",
        "cancelled": "cancelled canceled killed revoked preempted stopped evicted",
        "timeout": "timeout deadline deadlineexceeded",
        "node_fail": "node_fail boot_fail",
    }.items()
    for word in words.split()
}


@dataclass(frozen=True, slots=True)
class Cells:
    """A column of a log that contains a quantity.

    Attributes:
        values: not-a-number for empty or unparseable cells.
        forms: for times, one of `FORMS` each; `UNREAD` for unparseable cells; otherwise 0.
        texts: the cells' texts; None for computed columns.
        allowed: description of what can be parsed.
    """

    values: Numbers
    forms: NDArray[np.int64] | int = 0
    texts: Any = None
    allowed: str = ""

    @property
    def is_unread(self) -> Mask:
        """Mask of unparseable cells."""
        return np.broadcast_to(self.forms == np.int64(UNREAD), self.values.shape)

    @property
    def is_missing(self) -> Mask:
        """Mask of empty cells."""
        return np.isnan(self.values) & ~self.is_unread


def numbers(texts: Any) -> Cells:
    """Parse finite numbers."""
    return _quantities(texts, 1.0, lambda text: None, "a number")


def durations(texts: Any, unit_s: float = 1.0) -> Cells:
    """Parse durations in seconds; plain numbers are in this unit."""
    return _quantities(texts, unit_s, _duration, "seconds, 02:00:00, 1-02:00:00, 90m, 2h or 2h5m10s")


def _quantities(texts: Any, unit: float, other: Callable[[str], float | None], allowed: str) -> Cells:
    """Parse numbers times their unit; other texts by `other`."""

    def one(text: str) -> float:
        text = text.strip()
        if text.lower() in _WORDS_FOR_NOTHING:
            return np.nan
        value = unit * float(text) if _NUMBER.fullmatch(text) else other(text)
        return np.inf if value is None else value

    if (plain := _plain(texts)) is None:
        plain = _plain(_given(texts))
    values = mapped(texts, one) if plain is None else unit * plain
    if not (is_odd := np.isinf(values)).any():
        return Cells(values, 0, texts, allowed)
    return Cells(np.where(is_odd, np.nan, values), UNREAD * is_odd, texts, allowed)


def times(texts: Any, timezone: str | None = None, unit_s: float = 1.0, *, zero_is_nothing: bool = False) -> Cells:
    """Parse times in seconds: dates as Unix times, numbers unchanged.

    A text's value depends only on itself (`_time`); Arrow parses whole columns of one form for speed.

    Args:
        timezone: zone of dates without one, such as `Europe/Berlin`; UTC by default.
        unit_s: unit of numbers, in seconds.
    """
    given = _given(texts)
    first = given.is_valid().index(True).as_py()
    form = _time(texts[first].as_py())[1] if first >= 0 else NAIVE
    try:
        column = given.cast(_KINDS[form])  # trying wrong kinds would be slow
        values = _floats(column) if form == SECONDS else _unix_s(column, timezone if form == NAIVE else None)
        forms = np.where(np.isnan(values), 0, np.where(np.isinf(values), UNREAD, form))
    except (pyarrow.ArrowInvalid, KeyError):
        values, forms = mapped(texts, _time).reshape(-1, 2).T
        forms = forms.astype(np.int64)
        if timezone is not None:
            stamps = pyarrow.array(np.round(1e6 * np.where(forms == NAIVE, values, 0))).cast(pyarrow.int64())
            values = np.where(forms == NAIVE, _unix_s(stamps.cast(pyarrow.timestamp("us")), timezone), values)
    if (is_seconds := forms == SECONDS).any():
        values = np.where(is_seconds, unit_s * values, values)
        forms = np.where(is_seconds & (values == 0) & zero_is_nothing, 0, forms)
    values = np.where((forms == 0) | (forms == UNREAD), np.nan, values)
    return Cells(values, forms, texts, "2024-01-31T12:00:00, also with a zone (+01:00), or seconds")


def _plain(texts: Any) -> Numbers | None:
    """Parse plain numbers; None if any text is not one."""
    with suppress(pyarrow.ArrowInvalid):
        return _floats(texts.cast(pyarrow.float64()))
    return None


def _given(texts: Any) -> Any:
    """Replace empty cells with nulls."""
    is_nothing = compute.is_in(texts, value_set=_NOTHING)
    return compute.if_else(is_nothing, None, texts) if is_nothing.true_count else texts


def _unix_s(stamps: Any, timezone: str | None) -> Numbers:
    if timezone is not None:
        stamps = compute.assume_timezone(stamps, timezone, ambiguous="earliest", nonexistent="earliest")
    return _floats(stamps.cast(pyarrow.int64())) / 1e6


def _time(text: str) -> tuple[float, int]:
    """Parse one time and its form; a date without a zone is in UTC."""
    text = text.strip()
    if text.lower() in _WORDS_FOR_NOTHING:
        return np.nan, 0
    if _NUMBER.fullmatch(text) and np.isfinite(value := float(text)):
        return value, SECONDS
    for pattern, plain in _PLAIN_DATES:
        text = pattern.sub(plain, text)
    try:
        date = datetime.fromisoformat(text)
        return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp(), ZONED if date.tzinfo else NAIVE
    except (ValueError, OverflowError):
        return np.nan, UNREAD


def _duration(text: str) -> float | None:
    """Parse the seconds of a clock time or a number with a unit; None for anything else."""
    if (clock := _CLOCK.fullmatch(text) or _PARTS.fullmatch(text)) is not None:
        days, hours, minutes, seconds = (float(part or 0) for part in clock.groups())
        return 86400 * days + 3600 * hours + 60 * minutes + seconds
    with suppress(ValueError):
        return parse_duration(text) if text[0].isdigit() and text[-1].isalpha() else None
    return None


def mapped(texts: Any, of: Callable[[str], float | tuple[float, ...]]) -> Numbers:
    """Map each text to a number (or some), computed once per distinct text."""
    coded = texts.dictionary_encode()
    values = np.array([of(text) for text in coded.dictionary.to_pylist()], np.float64)
    return values[coded.indices.to_numpy(zero_copy_only=False)] if len(values) else np.empty(0)


def named(texts: Any, of: Callable[[str], str]) -> Any:
    """Map each text to a word, computed once per distinct text."""
    coded = texts.dictionary_encode()
    words = [of(text) for text in coded.dictionary.to_pylist()]
    return pyarrow.array(words, pyarrow.string()).take(coded.indices)


def truths(mask: Any) -> Mask:
    """Convert an Arrow mask."""
    values: Mask = mask.to_numpy(zero_copy_only=False).astype(bool)
    return values


def status_of(word: str) -> str:
    """Return the normal form of a log's status (`CANCELLED by 1000`, `Pass`); `unknown` if it is not known."""
    return _STATUSES.get(word.partition(" ")[0].lower().rstrip("+"), "unknown")


def _floats(column: Any) -> Numbers:
    """Convert to floats, nulls to not-a-number."""
    values: Numbers = column.to_numpy(zero_copy_only=False).astype(np.float64)
    return values
