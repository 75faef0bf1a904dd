"""Benchmarks that print their own figures: a table below pytest-benchmark's, with the machine and the versions."""

from __future__ import annotations

import pytest

from benchmarks.speed.harness import show

Figures = list[tuple[object, ...]]
"""Rows of a table."""
_tables: dict[tuple[str, tuple[str, ...]], Figures] = {}


def pytest_terminal_summary() -> None:
    """Print the tables, in Markdown."""
    for (title, header), rows in _tables.items():
        show(title, header, rows)


@pytest.fixture(scope="module")
def figures(request: pytest.FixtureRequest) -> Figures:
    """Return the module's table: `TITLE` and `HEAD`."""
    return _tables.setdefault((request.module.TITLE, request.module.HEAD), [])
