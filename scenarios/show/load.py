"""What a load generator found, as a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scenarios.show.table import Column, Table, to_text


def format_load(found: Mapping[str, Any]) -> str:
    """Format one row: what was offered, what was answered and how soon, and what was not."""
    latencies = [Column(name, "ms", 1, 1e3) for name in ("mean", "p50", "p99", "max")]
    fates = ("answered", "refused", "late", "unanswered")
    head = [Column("offered", "img/s", 1), Column("goodput", "img/s", 1), *latencies]
    head += [Column("answered"), Column("refused", "429"), Column("late", "504"), Column("unanswered"), Column("other")]
    head += [Column("lag p99", "ms", 1, 1e3)]
    row = [found["offered_img_s"], found["goodput_img_s"], *(found["latency_s"][each.head] for each in latencies)]
    other = found["requests"] - sum(found[name] for name in fates)
    row += [*(found[name] for name in fates), other, found["lag_p99_s"]]
    of_classes = [
        [name, *(its["latency_s"][each.head] for each in latencies), its["answered"], its["requests"]]
        for name, its in found.get("classes", {}).items()
    ]
    tables = [Table(head, [row], f"{found['requests']} requests of {found['images']} to {found['url']}")]
    if of_classes:
        tables.append(Table([Column("class"), *latencies, Column("answered"), Column("requests")], of_classes))
    return to_text(tables)
