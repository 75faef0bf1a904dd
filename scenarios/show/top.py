"""What a server does now, as two tables; and as it changes, on a terminal."""

from __future__ import annotations

import sys
import time  # noqa: TID251 - it looks every second
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from rich.console import Console
from rich.live import Live
from rich.text import Text

from kit.errors import WorkError
from scenarios.show.numbers import number
from scenarios.show.table import Column, Table, to_text
from scenarios.terminal.screen import screen_width

_EVERY_S: Final = 1.0


def follow(look: Callable[[], dict[str, Any]], *, once: bool) -> dict[str, Any]:
    """What was seen last: after a second, or (drawn on standard error meanwhile) at Ctrl-C.

    Raises:
        WorkError: nothing was to be seen in that second; later a server may be away for a while.
    """
    look()
    time.sleep(_EVERY_S)
    found = look()
    if once:
        return found
    text = format_top(found)
    with (
        suppress(KeyboardInterrupt),
        Live(console=Console(file=sys.stderr), auto_refresh=False, transient=True) as drawn,
    ):
        while True:
            drawn.update(Text(text), refresh=True)
            time.sleep(_EVERY_S)
            try:
                text = format_top(found := look())
            except WorkError as error:
                text = str(error)
    return found


def format_top(found: Mapping[str, Any]) -> str:
    """All of it, and each server."""
    latency_s, goal = found["latency_s"], found["goal"]
    rows = [
        *([f"{name}, img/s", number(found[f"{name}_img_s"], 1), ""] for name in ("answered", "refused", "failed")),
        ["p50, ms", number(latency_s["p50"], 1, 1e3), ""],
        ["p99, ms", number(latency_s["p99"], 1, 1e3), number(goal["p99_s"] or None, 1, 1e3)],
        ["accuracy, %", number(found["accuracy"], 2, 100), number(goal["floor"] or None, 2, 100)],
        *([f"images {name}", str(found[name]), ""] for name in ("inside", "queued")),
        ["router busy, %", number(found["router_share"], 0, 100), ""],
    ]
    servers = [
        [each["name"], "yes" if each["is_up"] else "NO", number(each["img_s"], 1), number(each["share"], 0, 100)]
        for each in found["servers"]
    ]
    state = "ready" if found["is_ready"] else "NOT READY"
    title = f"{found['url']}: {state}; in the last {found['span_s']:.0f} s"
    tables = [
        Table([Column(""), Column("now"), Column("asked for")], rows, title),
        Table([Column("server"), Column("up"), Column("passes", "img/s"), Column("busy", "%")], servers),
    ]
    return to_text(tables, screen_width())
