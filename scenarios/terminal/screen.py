"""How wide the screen is that results are written to."""

from __future__ import annotations

import shutil
import sys

LEAST = 40  # characters: no table can be read in less


def screen_width() -> int | None:
    """Characters of a line; None where standard output is no terminal, so that nothing there needs to be broken."""
    return max(LEAST, shutil.get_terminal_size().columns) if sys.stdout.isatty() else None
