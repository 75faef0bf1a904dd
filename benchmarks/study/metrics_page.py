"""The page of the meaning of all metrics: the catalogue's tables, with the prose of a template around them.

`python -m benchmarks.study.metrics_page > docs/metrics.md` regenerates it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from benchmarks.study.pages import render
from scenarios.metrics.metric_catalogue import COSTS, MEASURES, OF_CLASSES, OF_SERVERS, PAIRED, VALIDATED, Measure
from scenarios.show.tables import Table, columns, to_markdown


def metrics_page() -> str:
    """Return the whole page."""
    return render(
        "metrics.md.j2",
        of_results=_table(MEASURES.values()),
        of_servers=_table(OF_SERVERS, "servers[]."),
        of_classes=_table(OF_CLASSES, "classes{}."),
        paired=_names(PAIRED),
        costs=" and ".join(_names(COSTS).rsplit(", ", 1)),
        validated=", ".join(f"`{measure.stem}`" for measure in VALIDATED),
    )


def _table(measures: Iterable[Measure], prefix: str = "") -> str:
    rows = [
        [f"`{prefix}{'.'.join(measure.keys)}`", _shown_as(measure), measure.better or "", measure.meaning]
        for measure in measures
    ]
    return to_markdown(Table(columns("key", "shown as", "better", "meaning"), rows))


def _shown_as(measure: Measure) -> str:
    """Return its title, and the short column head if it has one."""
    short = "" if measure.header == measure.title else f" ({measure.header})"
    return f"{measure.title}{short} {measure.unit}".strip()


def _names(measures: Iterable[Measure]) -> str:
    return ", ".join(f"`{measure.name}` ({measure.title})" for measure in measures)


if __name__ == "__main__":
    sys.stdout.write(metrics_page())
