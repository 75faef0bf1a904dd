"""What a screen shows: how wide it is, and names and messages as they are seen.

What a screen would obey, and no page may hold, is written out (`\\x1b`).
"""

from __future__ import annotations

import re
import shutil
import sys
from typing import Final

LEAST: Final = 40  # characters: no table can be read in less
PIPED: Final = 100  # if standard output is not a terminal: longer lines are hard to read
LONGEST: Final = 2000  # characters of a message
_UNSEEN: Final = (
    r"\x00-\x1f\x7f-\x9f"  # control characters: a terminal's escape sequences begin with one
    r"\u2028\u2029"  # line breaks by other names
    r"\u202a-\u202e\u2066-\u2069"  # they turn the order of adjacent characters
    r"\ud800-\udfff\ufffe\uffff"  # not characters: of bytes that are not text; neither UTF-8 nor XML has them
)
_IN_NAMES: Final = re.compile(f"[{_UNSEEN}]")
_IN_TEXT: Final = re.compile(f"(?![\n\t])[{_UNSEEN}]")


def screen_width() -> int:
    """Return characters of a line of standard output, a terminal or not: people read a log, programs take `--json`."""
    return max(LEAST, shutil.get_terminal_size().columns) if sys.stdout.isatty() else PIPED


def visible(name: str) -> str:
    """Return a name in one line."""
    return _IN_NAMES.sub(lambda found: _escaped(found[0]), name)


def visible_text(text: str) -> str:
    """Return lines of text, which stay lines."""
    return _IN_TEXT.sub(lambda found: _escaped(found[0]), text)


def one_line(text: str) -> str:
    """Return a message of any bytes in one line: unprintable bytes are written out, and a long one loses its middle."""
    shown = text if len(text) <= LONGEST else f"{text[: LONGEST // 2]} ... {text[-LONGEST // 2 :]}"
    return "".join(each if each.isprintable() else _escaped(each) for each in shown)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
