"""A table, and three ways to write it: for a terminal (as wide as that is), as Markdown, and for a page of HTML.

A row is a sequence of cells, which are text already. The first column says what a row is about. HTML is written by
`scenarios.show.html`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from textwrap import fill, wrap

from scenarios.metrics.catalogue import Measure
from scenarios.show.numbers import PLUS_MINUS
from scenarios.terminal.visible import visible

GAP = "  "
NAME_SHARE = 0.375  # of a line, for what a row is about


@dataclass(frozen=True, slots=True)
class Column:
    """One column.

    Attributes:
        unit: of its numbers.
        is_text: words, so aligned to the left; the first column always is.
        meaning: what its numbers say; provenance: the weakest origin of them. A page shows both on the head.
    """

    head: str
    unit: str = ""
    is_text: bool = False
    meaning: str = ""
    provenance: str = ""

    @property
    def title(self) -> str:
        """Head and unit."""
        return f"{self.head} {self.unit}".strip()


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under columns.

    Attributes:
        notes: sentences below it; `warnings`: those that nobody should miss.
        base: first cell of the row that the others are set against.
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    title: str = ""
    notes: Sequence[str] = ()
    warnings: Sequence[str] = ()
    base: str | None = None


def column(measure: Measure, head: str = "", provenance: str = "") -> Column:
    """The column of a measure, as the catalogue heads it or under another head."""
    return Column(head or measure.head, measure.unit, meaning=measure.meaning, provenance=provenance)


def columns(*heads: str) -> list[Column]:
    """Columns of which there is no more to say."""
    return [Column(head) for head in heads]


# ------------------------------------------------------------------------------------------------------- for terminals


def to_text(parts: Iterable[Table | str], width: int | None = None) -> str:
    """Tables and paragraphs, an empty line between them.

    Args:
        width: characters of a line. Lines are broken there, and a table that is wider is shown in several blocks, each
            with the first column. Without it nothing is broken.
    """
    written = (_table_text(part, width) if isinstance(part, Table) else _broken(part, width) for part in parts)
    return "\n\n".join(text for text in written if text)


def _table_text(table: Table, width: int | None) -> str:
    table = replace(table, rows=[[visible(cell) for cell in row] for row in table.rows])  # one line each
    if len(_blocks(table, width)) > 1:
        table = replace(table, rows=[line for row in table.rows for line in _lines(row, width)])
    blocks = [_block(table, chosen, width) for chosen in _blocks(table, width)]
    title = [_broken(table.title, width)] if table.title else []
    return "\n".join([*title, "\n\n".join(blocks), *(_broken(note, width) for note in (*table.notes, *table.warnings))])


def _lines(row: Sequence[str], width: int | None) -> list[list[str]]:
    """A row whose name and cells leave room for each other: a long one goes on in the lines below it."""
    if width is None:
        return [list(row)]
    of_name = int(NAME_SHARE * width)
    rooms = [of_name, *[width - of_name - len(GAP)] * (len(row) - 1)]
    parts = (wrap(cell, room, break_long_words=False) or [""] for cell, room in zip(row, rooms, strict=True))
    return [list(line) for line in zip_longest(*parts, fillvalue="")]


def _broken(text: str, width: int | None) -> str:
    return text if width is None else "\n".join(fill(line, width) for line in text.split("\n"))


def _blocks(table: Table, width: int | None) -> list[list[int]]:
    """Which columns stand beside each other: all, or in blocks, as few as there is room for and about as wide."""
    rest = list(range(1, len(table.columns)))
    if width is None or not rest:
        return [[0, *rest]]
    widths = [_width(table, index, width) for index in range(len(table.columns))]
    fewest = len(_filled(widths, width))
    even = next((room for room in range(width) if len(_filled(widths, room)) == fewest), width)
    return _filled(widths, even)


def _filled(widths: Sequence[int], width: int) -> list[list[int]]:
    """One block after the other, each with the first column and at least one more."""
    blocks: list[list[int]] = [[0]]
    left = width - widths[0]
    for index in range(1, len(widths)):
        needed = len(GAP) + widths[index]
        if needed > left and len(blocks[-1]) > 1:
            blocks.append([0])
            left = width - widths[0]
        blocks[-1].append(index)
        left -= needed
    return blocks


def _head(table: Table, index: int, width: int | None) -> list[str]:
    """The head in one line, or in lines no wider than cells and words are where room is short."""
    title = table.columns[index].title
    if width is None:
        return [title]
    return wrap(title, max([1, *map(len, title.split()), *(len(row[index]) for row in table.rows)])) or [""]


def _width(table: Table, index: int, width: int | None) -> int:
    return max(map(len, (*_head(table, index, width), *(row[index] for row in table.rows))))


def _block(table: Table, chosen: Sequence[int], width: int | None) -> str:
    widths = [_width(table, index, width) for index in chosen]
    is_left = [index == 0 or table.columns[index].is_text for index in chosen]

    def aligned(cells: Iterable[str]) -> str:
        placed = (
            cell.ljust(wide) if left else cell.rjust(wide)
            for cell, wide, left in zip(cells, widths, is_left, strict=True)
        )
        return GAP.join(placed).rstrip()

    heads = [_head(table, index, width) for index in chosen]
    upright = [lines[::-1] for lines in heads]  # the last line of each head is the lowest one
    head_lines = [aligned(line) for line in zip_longest(*upright, fillvalue="")][::-1]
    rows = (aligned(row[index] for index in chosen) for row in table.rows)
    return "\n".join([*head_lines, GAP.join("-" * wide for wide in widths), *rows])


# -------------------------------------------------------------------------------------------------------- for Markdown


def to_markdown(table: Table) -> str:
    """A pipe table; a `|` in a cell would end it, so it becomes `/`."""
    lines = [[found.title for found in table.columns], ["---"] * len(table.columns), *table.rows]
    return "\n".join(f"| {' | '.join(_markdown_cell(cell) for cell in line)} |" for line in lines)


def _markdown_cell(cell: str) -> str:
    return cell.replace("|", "/").replace(PLUS_MINUS, " ± ")
