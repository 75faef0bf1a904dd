"""Texts of a log as numbers, times and words, a column at a time; what is none of them becomes not-a-number."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np
import pyarrow
from numpy.typing import NDArray
from pyarrow import compute

Numbers = NDArray[np.float64]

_NUMBER: Final = r"^\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*$"
_DATE: Final = r"^\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}:\d{2}(\.\d{1,9})?$"
_WORDS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("completed", "pass", "passed", "succeeded", "success", "terminated", "done"), "completed"),
    **dict.fromkeys(("failed", "fail", "error", "out_of_memory", "oom"), "failed"),
    **dict.fromkeys(("cancelled", "canceled", "killed", "revoked", "preempted"), "cancelled"),
    **dict.fromkeys(("timeout", "deadline"), "timeout"),
    **dict.fromkeys(("node_fail", "boot_fail"), "node_fail"),
}


def numbers(texts: Any) -> Numbers:
    """Numbers; not-a-number for any other text, an infinite one among them."""
    try:
        found = texts.cast(pyarrow.float64())
    except pyarrow.ArrowInvalid:
        looks_so = compute.match_substring_regex(texts, _NUMBER)
        trimmed = compute.utf8_trim_whitespace(texts)
        found = compute.if_else(looks_so, trimmed, pyarrow.scalar(None, pyarrow.string())).cast(pyarrow.float64())
    values = _floats(found)
    return np.where(np.isfinite(values), values, np.nan)


def known(values: Numbers) -> Numbers:
    """Numbers where a negative one says that nothing is known, as SWF has it."""
    return np.where(values >= 0, values, np.nan)


def dates(texts: Any, timezone: str | None = None) -> Numbers:
    """Unix times in seconds of dates such as `2024-01-31T12:00:00`; not-a-number for any other text.

    Args:
        timezone: of dates that name none, such as `Europe/Berlin`; UTC by default.
    """
    try:
        stamps = texts.cast(pyarrow.timestamp("ms"))
    except pyarrow.ArrowInvalid:
        stamps = _possible(compute.if_else(compute.match_substring_regex(texts, _DATE), texts, None))
    if timezone is not None:
        stamps = compute.assume_timezone(stamps, timezone, ambiguous="earliest", nonexistent="earliest")
    return _floats(stamps.cast(pyarrow.int64())) / 1000


def times(texts: Any, timezone: str | None = None) -> tuple[Numbers, NDArray[np.bool_]]:
    """Times in seconds, and which of them were dates: numbers are seconds already, dates are Unix times.

    A date may have a zone of its own here (`2024-01-31T12:00:00+01:00`), and may lack its time.
    """
    found = numbers(texts)
    is_given = np.isfinite(found)
    if is_given.all():
        return found, ~is_given
    stamps = dates(texts, timezone)
    rest = ~is_given & np.isnan(stamps)
    if rest.any():
        stamps[rest] = mapped(texts.filter(pyarrow.array(rest)), _iso_s)
    return np.where(is_given, found, stamps), np.isfinite(stamps)


def _possible(texts: Any) -> Any:
    """Dates of the right form, of which some may not be in the calendar."""
    try:
        return texts.cast(pyarrow.timestamp("ms"))
    except pyarrow.ArrowInvalid:
        seconds = np.array([np.nan if text is None else _iso_s(text) for text in texts.to_pylist()])
        return (
            pyarrow.array((seconds * 1000).round(), from_pandas=True)
            .cast(pyarrow.int64())
            .cast(pyarrow.timestamp("ms"))
        )


def _iso_s(text: str) -> float:
    try:
        date = datetime.fromisoformat(text.strip())
    except ValueError:
        return np.nan
    return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()


def mapped(texts: Any, of: Callable[[str], float]) -> Numbers:
    """A number of each text, computed once for each that differs."""
    coded = texts.dictionary_encode()
    values = np.array([of(text) for text in coded.dictionary.to_pylist()], np.float64)
    return values[coded.indices.to_numpy(zero_copy_only=False)] if len(values) else np.empty(0)


def named(texts: Any, of: Callable[[str], str]) -> Any:
    """A word for each text, computed once for each that differs."""
    coded = texts.dictionary_encode()
    words = [of(text) for text in coded.dictionary.to_pylist()]
    return pyarrow.array(words, pyarrow.string()).take(coded.indices)


def truths(found: Any) -> NDArray[np.bool_]:
    """What Arrow found of each text."""
    values: NDArray[np.bool_] = found.to_numpy(zero_copy_only=False).astype(bool)
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


def _floats(found: Any) -> Numbers:
    """With nulls as not-a-number."""
    values: Numbers = found.to_numpy(zero_copy_only=False).astype(np.float64)
    return values
