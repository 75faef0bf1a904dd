"""A table, and two ways to write it in plain characters: for a terminal, as wide as that is, and as Markdown.

A row is a sequence of cells, which are text already. The first column identifies a row. In HTML it is written by the
page's template.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from io import StringIO
from textwrap import fill
from typing import Final

from rich.box import Box
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.table import Table as Grid
from rich.text import Text

from scenarios.metrics.catalogue import Measure
from scenarios.show.numbers import PLUS_MINUS
from scenarios.terminal.screen import visible

ENDLESS: Final = 10_000  # characters of a line, if there is no terminal
NAME_SHARE: Final = 0.375  # of a line, for the words of one column
GAP: Final = 2  # between columns
LABEL: Final = 11  # characters of the longest label
_RULED: Final = Box("\n".join(["    ", "    ", " -  ", *["    "] * 5]), ascii=True)


@dataclass(frozen=True, slots=True)
class Column:
    """One column.

    Attributes:
        unit: of its numbers.
        is_text: words, so aligned to the left; the first column always is.
        meaning: of its numbers; provenance: the weakest origin of them. A page shows both on the head.
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
        notes: sentences below it; `warnings`: those that must not be missed.
        base: first cell of the row that the others are set against.
        marks: by first cell, a word that a page sets behind it, for the winner.
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    title: str = ""
    notes: Sequence[str] = ()
    warnings: Sequence[str] = ()
    base: str | None = None
    marks: Mapping[str, str] = field(default_factory=dict)


def column(measure: Measure, head: str = "", provenance: str = "") -> Column:
    """Return the column of a measure, as the catalogue heads it or under another head."""
    return Column(head or measure.head, measure.unit, meaning=measure.meaning, provenance=provenance)


def columns(*heads: str) -> list[Column]:
    """Return columns with nothing but a head."""
    return [Column(head) for head in heads]


# ------------------------------------------------------------------------------------------------------- for terminals


def to_text(parts: Iterable[Table | str], width: int | None = None) -> str:
    """Format tables and paragraphs, an empty line between them.

    Args:
        width: characters of a line. Lines are broken there, and a table that is wider is shown in several blocks, each
            with the first column. Without it nothing is broken.
    """
    return "\n\n".join(
        _written(_drawn(part, width or ENDLESS) if isinstance(part, Table) else [part], width or ENDLESS)
        for part in parts
        if part
    )


def _written(parts: Iterable[RenderableType], width: int) -> str:
    console = Console(file=StringIO(), width=width, color_system=None, markup=False, highlight=False, emoji=False)
    with console.capture() as written:
        for part in parts:
            console.print(part)
    return "\n".join(line.rstrip() for line in written.get().splitlines())


def _drawn(table: Table, width: int) -> list[RenderableType]:
    """Draw its title, as few blocks of columns as there is room for, and the sentences below."""
    heads = [column.title for column in table.columns]
    cells = [max([1, *(cell_len(visible(row[place])) for row in table.rows)]) for place in range(len(heads))]
    widths = [max(cell_len(head), cell) for head, cell in zip(heads, cells, strict=True)]
    every = list(range(len(heads)))
    blocks = [every]
    if sum(widths) + GAP * len(every[1:]) > width:
        widths = [max([cell, *map(cell_len, head.split())]) for head, cell in zip(heads, cells, strict=True)]
        blocks = _blocks([_least(widths[place], table, place, width) for place in every], width)
    drawn: list[RenderableType] = [_block(table, chosen, widths) for chosen in blocks]
    spaced = [part for block in drawn for part in ("", block)][1:]
    return [*filter(None, [table.title]), *spaced, *table.notes, *table.warnings]


def _least(wanted: int, table: Table, place: int, width: int) -> int:
    """Return a column's least width: words may be broken, numbers may not."""
    return min(wanted, int(NAME_SHARE * width)) if _is_text(table, place) else wanted


def _is_text(table: Table, place: int) -> bool:
    return place == 0 or table.columns[place].is_text


def _blocks(widths: Sequence[int], width: int) -> list[list[int]]:
    """Return which columns are in each block, each with the first one and at least one more."""
    blocks, left = [[0]], width - widths[0]
    for place in range(1, len(widths)):
        needed = GAP + widths[place]
        if needed > left and len(blocks[-1]) > 1:
            blocks.append([0])
            left = width - widths[0]
        blocks[-1].append(place)
        left -= needed
    return blocks


def _block(table: Table, chosen: Sequence[int], widths: Sequence[int]) -> Grid:
    """Format a block; columns of words are narrower if there is no room for the widest."""
    grid = Grid(box=_RULED, show_edge=False, pad_edge=False, padding=(0, GAP - 1, 0, 0))
    for place in chosen:
        if _is_text(table, place):
            grid.add_column(table.columns[place].title, overflow="fold")
        else:
            grid.add_column(table.columns[place].title, justify="right", width=widths[place])
    for row in table.rows:
        grid.add_row(*(Text(visible(row[place])) for place in chosen))
    return grid


def facts_text(lines: Iterable[str], width: int | None = None) -> str:
    """Return lines of `name: text` with the names in a column."""
    parts = (line.partition(": ") for line in lines)
    return labelled(((name, [text]) for name, _, text in parts), width)


def labelled(parts: Iterable[tuple[str, Sequence[str]]], width: int | None = None) -> str:
    """Return labels in a column, and the lines of each next to it; with a width, long lines are broken."""
    lines = [(line, "" if place else label) for label, texts in parts for place, line in enumerate(texts)]
    wide = width or ENDLESS
    return "\n".join(
        fill(visible(text), wide, initial_indent=f"  {label:<{LABEL}} ", subsequent_indent=" " * (LABEL + 3),
             break_on_hyphens=False)
        for text, label in lines
    )  # fmt: skip


# -------------------------------------------------------------------------------------------------------- for Markdown


def to_markdown(table: Table) -> str:
    """Format a pipe table; a `|` in a cell would end it, so it becomes `/`."""
    lines = [[head.title for head in table.columns], ["---"] * len(table.columns), *table.rows]
    return "\n".join(f"| {' | '.join(_markdown_cell(cell) for cell in line)} |" for line in lines)


def _markdown_cell(cell: str) -> str:
    return cell.replace("|", "/").replace(PLUS_MINUS, " ± ")
