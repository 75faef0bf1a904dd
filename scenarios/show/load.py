"""What a load generator found, as a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scenarios.show.numbers import number
from scenarios.show.table import Column, Table, to_text
from scenarios.terminal.screen import screen_width


def format_load(found: Mapping[str, Any]) -> str:
    """Format one row: what was offered, what was answered and how soon, and what was not."""
    latency_s = found["latency_s"]
    other = found["requests"] - sum(found[name] for name in ("answered", "refused", "late", "unanswered"))
    row = [
        number(found["offered_img_s"], 1),
        number(found["goodput_img_s"], 1),
        *(number(latency_s[name], 1, 1e3) for name in ("mean", "p50", "p99", "max")),
        *(str(found[name]) for name in ("answered", "refused", "late", "unanswered")),
        str(other),
        number(found["lag_p99_s"], 1, 1e3),
    ]
    head = [Column("offered", "img/s"), Column("goodput", "img/s")]
    head += [Column(name, "ms") for name in ("mean", "p50", "p99", "max")]
    head += [Column("answered"), Column("refused", "429"), Column("late", "504"), Column("unanswered"), Column("other")]
    head += [Column("lag p99", "ms")]
    tables = [Table(head, [row], f"{found['requests']} requests of {found['images']} to {found['url']}")]
    if classes := found.get("classes"):
        percentiles = ("mean", "p50", "p99", "max")
        head = [Column("class"), *(Column(name, "ms") for name in percentiles), Column("answered"), Column("requests")]
        rows = [
            [
                name,
                *(number(its["latency_s"][each], 1, 1e3) for each in percentiles),
                str(its["answered"]),
                str(its["requests"]),
            ]
            for name, its in classes.items()
        ]
        tables.append(Table(head, rows))
    return to_text(tables, screen_width())
