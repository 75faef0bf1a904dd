"""Time as people write it, and as the project stores it."""

from __future__ import annotations

import re
from math import ceil
from typing import Final

NS_PER_S: Final = 1_000_000_000
_UNITS_S = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*(ms|s|m|h|d)")
_LONG_UNIT = re.compile(r"(\d+(?:\.\d+)?)\s*(millisec\w*|sec\w*|min\w*|hour\w*|hr\w*|days?)")


def nanoseconds(duration_s: float) -> int:
    """Return a duration in integer nanoseconds, rounded up."""
    return ceil(duration_s * NS_PER_S)


def parse_duration(text: str) -> float:
    """Return seconds of `45s`, `5m`, `1.5h`, `2d`, `200ms` or a plain number of seconds; raises ValueError
    otherwise."""
    match = _DURATION.fullmatch(text.strip())
    try:
        return float(match[1]) * _UNITS_S[match[2]] if match else float(text)
    except ValueError:
        problem = f"no duration: {text!r:.40}; expected seconds as a number, or 45s, 5m, 1h, 2d, 200ms"
        near = _LONG_UNIT.fullmatch(text.strip()[:40].lower())
        unit = "ms" if near and near[2].startswith("milli") else near[2][0] if near else ""
        raise ValueError(f"{problem}; write {near[1]}{unit}" if near else problem) from None


def seconds(value: object) -> object:
    """Return the value of a key in seconds: a text's duration, any other value unchanged; raises as `parse_duration`
    does."""
    return parse_duration(value) if isinstance(value, str) else value
