"""What slimming gains on a device, as plain text: three tables and what is absent from them. It computes nothing."""

from __future__ import annotations

from collections.abc import Sequence

from calibrate.slimming import COMPILED, GRAPH, ONE_PIECE, PACKED, PLAIN, SERVED, VIEWS, Point, Rival, Slimming, Spread
from scenarios.show.numbers import NONE, number
from scenarios.show.table import Column, Table, columns, to_text
from scenarios.terminal.screen import screen_width

_RIVALS = (PLAIN, ONE_PIECE, COMPILED, GRAPH)
_NOTES = f"""\
Milliseconds are medians of a batch; [ ] are quartiles over rounds. `ideal` and every `/full` are to the full width as
it is served: ideal by operations, the others by time. `saved` is the share of the ideal saving that was reached.
{SERVED}: an instance of that width. {VIEWS}: an instance of full width, running narrower. {PACKED}: weights copied for
that very width and previous width. {ONE_PIECE}: all segments in one call."""


def format_slimming(found: Slimming) -> str:
    """The whole network, then the full width beside its rivals, then the segments."""
    execution = ", ".join(f"{key} {value}" for key, value in found.execution.items())
    network = [point for point in found.points if point.segment is None]
    segments = [point for point in found.points if point.segment is not None]
    parts: list[Table | str] = [
        f"{found.network} on {found.device} ({execution})",
        points_table("The whole network", network),
        rivals_table(found),
        points_table("Segments", segments),
        "\n".join([_NOTES, *(f"{NONE} {name}: {why}" for name, why in found.absent.items())]),
    ]
    return to_text(parts, screen_width())


def points_table(title: str, points: Sequence[Point]) -> Table:
    """A row a batch size and width: what is ideal, what is served, and other ways to run that width."""
    ways = list(dict.fromkeys(way for point in points for way in point.timings if way != SERVED))
    head = columns("batch", "width", "ideal", f"{SERVED} ms", "/full", "", "saved", *(f"{way}/full" for way in ways))
    rows = [_point_row(point, ways) for point in points]
    if any(point.segment is not None for point in points):
        head, rows = [Column("segment"), *head], [[str(p.segment), *row] for p, row in zip(points, rows, strict=True)]
    return Table([*head, Column("rounds")], rows, title)


def _point_row(point: Point, ways: Sequence[str]) -> list[str]:
    served = point.timings[SERVED]
    saved = NONE if served.saved_share is None else f"{100 * served.saved_share:.0f} %"
    others = [number(point.timings[way].ratio.median, 2) if way in point.timings else NONE for way in ways]
    ideal, latency = number(point.ideal_ratio, 2), number(1000 * served.latency_s, 3)
    row = [str(point.batch), f"{point.width:g}", ideal, latency, number(served.ratio.median, 2)]
    return [*row, _quartiles(served.ratio), saved, *others, str(point.rounds)]


def rivals_table(found: Slimming) -> Table:
    """The full width as it is served, and how many times as long as each rival that takes."""
    names = [name for name in _RIVALS if any(name in full.rivals for full in found.full_width)]
    head = columns("batch", f"{SERVED} ms", *(text for name in names for text in (f"{name} ms", f"{SERVED}/", "")))
    rows = []
    for full in found.full_width:
        cells = [cell for name in names for cell in _rival_cells(full.rivals.get(name))]
        rows.append([str(full.batch), number(full.latency_s, 3, 1000), *cells, str(full.rounds)])
    title = "Full width: served, and how many times as long as each rival it takes"
    return Table([*head, Column("rounds")], rows, title)


def _rival_cells(rival: Rival | None) -> list[str]:
    if rival is None:
        return [NONE, NONE, ""]
    ratio = rival.served_ratio
    return [number(1000 * rival.latency_s, 3), number(ratio.median, 2), _quartiles(ratio)]


def _quartiles(spread: Spread) -> str:
    return f"[{spread.q1:.2f} {spread.q3:.2f}]"
