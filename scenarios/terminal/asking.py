"""Questions on a terminal, each with an answer that Enter takes; standard output stays free for results."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TypeVar

from scenarios.terminal.screen import visible_text

Answer = TypeVar("Answer")


def can_ask() -> bool:
    """Check for an interactive user: both the questions and the answers go by a terminal."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def ask(question: str, default: str, read: Callable[[str], Answer]) -> Answer:
    """Return the answer as `read` makes it of a line; what it refuses is reported, and asked again.

    Args:
        read: raises `ValueError` for an invalid one.
    """
    while True:
        sys.stderr.write(f"{question} [{default}]: ")
        sys.stderr.flush()
        line = sys.stdin.readline()
        if not line:  # the end of what is typed: as an interruption
            raise KeyboardInterrupt
        try:
            return read(line.strip() or default)
        except ValueError as error:
            sys.stderr.write(f"  {visible_text(str(error))}\n")
