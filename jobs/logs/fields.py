"""Texts of a log as numbers, times and words, a column at a time; what is none of them becomes not-a-number."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np
import pyarrow
from numpy.typing import NDArray
from pyarrow import compute

from kit.units import parse_duration

Numbers = NDArray[np.float64]

_NUMBER: Final = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", re.ASCII)
SECONDS, NAIVE, ZONED, UNREAD = 1, 2, 4, 8  # forms of a time
FORMS: Final = {SECONDS: "seconds", NAIVE: "dates without a zone", ZONED: "dates with a zone"}
_KINDS: Final = {NAIVE: pyarrow.timestamp("us"), ZONED: pyarrow.timestamp("us", "UTC"), SECONDS: pyarrow.float64()}
TIME: Final = "2024-01-31T12:00:00, also with a zone (+01:00), or seconds"
DURATION: Final = "seconds, 02:00:00, 1-02:00:00, 90m or 2h"
_WORDS_FOR_NOTHING: Final = frozenset(
    ("", "-", "unknown", "none", "null", "nan", "nat", "na", "n/a", "unlimited", "partition_limit")
)
_NOTHING: Final = pyarrow.array(
    sorted({form(word) for word in _WORDS_FOR_NOTHING for form in (str.lower, str.upper, str.title)} | {"NaT", "NaN"})
)
_PLAIN_DATES: Final = (  # as `datetime` reads them
    (re.compile(r"^(\d{4})/(\d\d)/(\d\d)"), r"\1-\2-\3"),
    (re.compile(r" ?(UTC|GMT|Z)$"), "+00:00"),
    (re.compile(r" (?=[-+]\d\d:?\d\d$)"), ""),
)
_CLOCK: Final = re.compile(r"(?:(\d+)(?:-| days?,? ))?(\d+):([0-5]\d):([0-5]\d(?:\.\d+)?)", re.ASCII)
_WORDS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("completed", "pass", "passed", "succeeded", "success", "terminated", "done"), "completed"),
    **dict.fromkeys(("failed", "fail", "error", "out_of_memory", "oom"), "failed"),
    **dict.fromkeys(("cancelled", "canceled", "killed", "revoked", "preempted"), "cancelled"),
    **dict.fromkeys(("timeout", "deadline"), "timeout"),
    **dict.fromkeys(("node_fail", "boot_fail"), "node_fail"),
}


@dataclass(frozen=True, slots=True)
class Cells:
    """A column of a log that holds a quantity.

    Attributes:
        texts: what stands there.
        values: what it says; not-a-number where nothing stands there, or nothing that can be read.
        forms: of each one of `FORMS` or `UNREAD`; 0 where nothing stands there, or the form is of no matter.
        allowed: what can be read.
    """

    texts: Any
    values: Numbers
    forms: NDArray[np.int64]
    allowed: str

    @property
    def is_unread(self) -> NDArray[np.bool_]:
        """Where something stands that can't be read."""
        return np.asarray(self.forms == UNREAD)

    @property
    def is_missing(self) -> NDArray[np.bool_]:
        """Where nothing stands."""
        return np.asarray(np.isnan(self.values) & (self.forms != UNREAD))


def numbers(texts: Any) -> Numbers:
    """Numbers; not-a-number for any other text, an infinite one among them."""
    try:
        column = texts.cast(pyarrow.float64())
    except pyarrow.ArrowInvalid:
        trimmed = compute.utf8_trim_whitespace(texts)
        looks_so = compute.match_substring_regex(trimmed, f"^({_NUMBER.pattern})$")
        column = compute.if_else(looks_so, trimmed, pyarrow.scalar(None, pyarrow.string())).cast(pyarrow.float64())
    values = _floats(column)
    return np.where(np.isfinite(values), values, np.nan)


def known(values: Numbers) -> Numbers:
    """Numbers where a negative one says that nothing is known, as SWF has it."""
    return np.where(values >= 0, values, np.nan)


def dates(texts: Any, timezone: str | None = None) -> Cells:
    """As `times` has them, of a log in which 0 says that nothing is known."""
    values = times(texts, timezone)
    is_none = (values.forms == SECONDS) & (values.values == 0)
    return replace(values, values=np.where(is_none, np.nan, values.values), forms=np.where(is_none, 0, values.forms))


def times(texts: Any, timezone: str | None = None, unit_s: float = 1.0) -> Cells:
    """Times in seconds: of dates Unix times, of numbers as they are.

    What a text says hangs on itself alone (`_time`); that Arrow reads whole columns of one form is for speed.

    Args:
        timezone: of dates that name none, such as `Europe/Berlin`; UTC by default.
        unit_s: how many seconds 1 is.
    """
    given = _given(texts)
    first = given.is_valid().index(True).as_py()
    form = _time(texts[first].as_py())[1] if first >= 0 else NAIVE
    with suppress(pyarrow.ArrowInvalid, KeyError):
        column = given.cast(_KINDS[form])  # trying wrong kinds would be slow
        values = unit_s * _floats(column) if form == SECONDS else _unix_s(column, timezone if form == NAIVE else None)
        if not np.isinf(values).any():
            return Cells(texts, values, np.where(np.isnan(values), 0, form), TIME)
    values, forms = mapped(texts, _time).reshape(-1, 2).T
    if timezone is not None:
        stamps = pyarrow.array(np.round(1e6 * np.where(forms == NAIVE, values, 0))).cast(pyarrow.int64())
        values = np.where(forms == NAIVE, _unix_s(stamps.cast(pyarrow.timestamp("us")), timezone), values)
    return Cells(texts, np.where(forms == SECONDS, unit_s * values, values), forms.astype(np.int64), TIME)


def durations(texts: Any, unit_s: float = 1.0) -> Cells:
    """Seconds of `7200`, `02:00:00`, `1-02:00:00`, `90m` and the like.

    Args:
        unit_s: how many seconds 1 is, of a plain number.
    """
    try:
        values = unit_s * _floats(_given(texts).cast(pyarrow.float64()))
        forms = np.zeros(len(texts))
    except pyarrow.ArrowInvalid:
        values, forms = mapped(texts, lambda text: _duration(text, unit_s)).reshape(-1, 2).T
    return Cells(texts, values, np.where(np.isinf(values), UNREAD, forms).astype(np.int64), DURATION)


def _given(texts: Any) -> Any:
    """With nulls where nothing stands."""
    is_nothing = compute.is_in(texts, value_set=_NOTHING)
    return compute.if_else(is_nothing, None, texts) if is_nothing.true_count else texts


def _unix_s(stamps: Any, timezone: str | None) -> Numbers:
    if timezone is not None:
        stamps = compute.assume_timezone(stamps, timezone, ambiguous="earliest", nonexistent="earliest")
    return _floats(stamps.cast(pyarrow.int64())) / 1e6


def _time(text: str) -> tuple[float, int]:
    """One time and its form; of a date without a zone, what it is in UTC."""
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


def _duration(text: str, unit_s: float) -> tuple[float, int]:
    """One duration, and `UNREAD` where it is none."""
    text = text.strip()
    if text.lower() in _WORDS_FOR_NOTHING:
        return np.nan, 0
    if _NUMBER.fullmatch(text):
        return unit_s * float(text), 0
    if (clock := _CLOCK.fullmatch(text)) is not None:
        days, hours, minutes, seconds = (float(part or 0) for part in clock.groups())
        return 86400 * days + 3600 * hours + 60 * minutes + seconds, 0
    try:
        return (parse_duration(text), 0) if text[0].isdigit() and text[-1].isalpha() else (np.nan, UNREAD)
    except ValueError:
        return np.nan, UNREAD


def mapped(texts: Any, of: Callable[[str], float | tuple[float, ...]]) -> Numbers:
    """A number (or some) of each text, computed once for each that differs."""
    coded = texts.dictionary_encode()
    values = np.array([of(text) for text in coded.dictionary.to_pylist()], np.float64)
    return values[coded.indices.to_numpy(zero_copy_only=False)] if len(values) else np.empty(0)


def named(texts: Any, of: Callable[[str], str]) -> Any:
    """A word for each text, computed once for each that differs."""
    coded = texts.dictionary_encode()
    words = [of(text) for text in coded.dictionary.to_pylist()]
    return pyarrow.array(words, pyarrow.string()).take(coded.indices)


def truths(mask: Any) -> NDArray[np.bool_]:
    """What Arrow found of each text."""
    values: NDArray[np.bool_] = mask.to_numpy(zero_copy_only=False).astype(bool)
    return values


def name_of(number: str) -> str:
    """A name that is a number; -1 says that nothing is known."""
    return "" if number.startswith("-") else number


def is_number(text: str) -> bool:
    """Whether a text is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def status_of(word: str) -> str:
    """The normal form's word for a log's (`CANCELLED by 1000`, `Pass`); `unknown` for one that is not known."""
    return _WORDS.get(word.partition(" ")[0].lower().rstrip("+"), "unknown")


def _floats(column: Any) -> Numbers:
    """With nulls as not-a-number."""
    values: Numbers = column.to_numpy(zero_copy_only=False).astype(np.float64)
    return values
