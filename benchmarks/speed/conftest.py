"""Benchmarks that print figures of their own: a table below pytest-benchmark's, with the machine and the versions."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.speed.harness import machine

_tables: dict[str, list[tuple[str, ...]]] = {}


class Figures:
    """Rows of a table; the first is its head."""

    def __init__(self, title: str, head: tuple[str, ...]) -> None:
        self._rows = _tables.setdefault(title, [head])

    def add(self, *cells: object) -> None:
        """One row."""
        self._rows.append(tuple(f"{each:,}" if isinstance(each, int) else str(each) for each in cells))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """The tables, in Markdown."""
    for title, rows in _tables.items():
        terminalreporter.write_sep("-", title)
        terminalreporter.write_line(machine())
        terminalreporter.write_line("")
        for number, row in enumerate(rows):
            terminalreporter.write_line("| " + " | ".join(row) + " |")
            if number == 0:
                terminalreporter.write_line("|" + "---|" * len(row))


@pytest.fixture(scope="module")
def figures(request: pytest.FixtureRequest) -> Figures:
    """The module's table: `TITLE` and `HEAD`."""
    return Figures(request.module.TITLE, request.module.HEAD)
