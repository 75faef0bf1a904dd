"""Insertion of measurements into a page by a program, between two markers, with the measured commit."""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path

from kit.documents import write_text


def commit_here() -> str:
    """Return the checked-out commit; empty if git can't determine it."""
    with contextlib.suppress(OSError):
        command, folder = ["git", "rev-parse", "HEAD"], Path(__file__).parent
        return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False).stdout.strip()
    return ""


def fill(page: Path, name: str, text: str) -> None:
    """Replace what is between a page's markers of this name; raises `ValueError` if it has none."""
    write_text(page, filled(page.read_text(encoding="utf-8"), name, text))


def filled(page: str, name: str, text: str) -> str:
    """Return a page with this between its markers; raises `ValueError` if it has none."""
    begin, end = (f"<!-- {name}: {edge} -->" for edge in ("begin", "end"))
    before, begun, rest = page.partition(begin)
    _, ended, after = rest.partition(end)
    if not begun or not ended:
        raise ValueError(f"the page needs a line {begin} and one {end} behind it")
    return f"{before}{begin}\n\n{text}\n\n{end}{after}"
