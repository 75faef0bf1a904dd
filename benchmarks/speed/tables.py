"""A benchmark's figures, in Markdown, with the machine that they are of."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.speed.machine import machine


def show(title: str, head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table; numbers get three significant digits."""
    print(f"\n{title}\n{machine()}\n")
    print("| " + " | ".join(head) + " |")
    print("|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(map(_cell, row)) + " |", flush=True)


def _cell(value: object) -> str:
    if not isinstance(value, float):
        return f"{value:,}" if isinstance(value, int) else str(value)
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
