"""A table, and two ways to write it in plain characters: for a terminal, as wide as that is, and as Markdown.

The first column identifies a row. In HTML a table is written by the page's template.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from io import StringIO
from textwrap import fill
from typing import Any, Final, Literal

from rich.box import Box
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.table import Table as Grid
from rich.text import Text

from scenarios.metrics.catalogue import Measure
from scenarios.show.numbers import PLUS_MINUS, interval, number
from scenarios.terminal.screen import PIPED, screen_width, visible

NAME_SHARE: Final = 0.375  # of a line, for the words of one column
GAP: Final = 2  # between columns
UNBROKEN: Final = 10_000  # characters of a line, for what is to be copied
LABEL: Final = 11  # characters of the longest label
Cell = str | float | Mapping[str, Any] | None  # a text, a number, or a mean with the half-width of its interval
_RULED: Final = Box("\n".join(["    ", "    ", " -  ", *["    "] * 5]), ascii=True)


@dataclass(frozen=True, slots=True)
class Column:
    """One column.

    Attributes:
        unit: of its numbers, which are shown `scale` times as large with `digits` after the point (None: three that
            count), and a sign if they are `signed`.
        is_text: words, so aligned to the left; the first column always is.
        meaning: of its numbers; provenance: the weakest origin of them. A page shows both on the head.
    """

    head: str
    unit: str = ""
    digits: int | None = None
    scale: float = 1.0
    signed: bool = False
    is_text: bool = False
    meaning: str = ""
    provenance: str = ""

    @property
    def title(self) -> str:
        """Head and unit."""
        return f"{self.head} {self.unit}".strip()

    def text(self, value: Cell) -> str:
        """Return a cell's text: `-` for none, and for an estimate its mean and half-width."""
        if isinstance(value, str):
            return value
        if isinstance(value, int) and self.digits is None:
            return str(value)
        write: Any = interval if isinstance(value, Mapping) else number
        return str(write(value, self.digits, self.scale, signed=self.signed))


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under columns.

    Attributes:
        rows: what is given as values is kept as texts.
        notes: sentences below it; `warnings`: those that must not be missed.
        base: first cell of the row that the others are set against.
        marks: by first cell, a word that a page sets behind it, for the winner.
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[Any]]
    title: str = ""
    notes: Sequence[str] = ()
    warnings: Sequence[str] = ()
    base: str | None = None
    marks: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Format all values."""
        texts = [[of.text(cell) for of, cell in zip(self.columns, row, strict=True)] for row in self.rows]
        object.__setattr__(self, "rows", texts)


def column(measure: Measure, head: str = "", provenance: str = "") -> Column:
    """Return the column of a measure, as the catalogue heads it or under another head."""
    named, digits = head or measure.head, measure.digits
    return Column(named, measure.unit, digits, measure.scale, meaning=measure.meaning, provenance=provenance)


def columns(*heads: str) -> list[Column]:
    """Return columns with nothing but a head."""
    return [Column(head) for head in heads]


@dataclass(frozen=True, slots=True)
class Answer:
    """A label with its lines; the mood is how a page colors it: a good answer, a bad one, or none."""

    label: str
    lines: Sequence[str]
    mood: Literal["yes", "no", "open"] = "open"


def facts(lines: Iterable[str]) -> list[Answer]:
    """Return lines of `name: text` as labels with a line each."""
    return [Answer(name, [text]) for name, _, text in (line.partition(": ") for line in lines)]


# ------------------------------------------------------------------------------------------------------- for terminals


def to_text(parts: Iterable[Table | str | Sequence[Answer]], width: int | None = None) -> str:
    """Format tables, paragraphs and answers, an empty line between them.

    Args:
        width: characters of a line; the terminal's by default. Lines are broken there, and a table that is wider is
            shown in several blocks, each with the first column.
    """
    wide = width or screen_width()
    return "\n\n".join(_written(part, wide) for part in parts if part)


def _written(part: Table | str | Sequence[Answer], width: int) -> str:
    if not isinstance(part, Table | str):
        return _labelled(part, min(width, PIPED))  # no wider than is good to read
    drawn = [part] if isinstance(part, str) else _drawn(part, width)
    console = Console(file=StringIO(), width=width, color_system=None, markup=False, highlight=False, emoji=False)
    with console.capture() as written:
        for each in drawn:
            console.print(each)
    return "\n".join(line.rstrip() for line in written.get().splitlines())


def _labelled(answers: Sequence[Answer], width: int) -> str:
    """Return labels in a column, and the lines of each next to it."""
    lines = [(line, "" if place else each.label) for each in answers for place, line in enumerate(each.lines)]
    return "\n".join(
        fill(visible(text), width, initial_indent=f"  {label:<{LABEL}} ", subsequent_indent=" " * (LABEL + 3),
             break_on_hyphens=False)
        for text, label in lines
    )  # fmt: skip


def _drawn(table: Table, width: int) -> list[RenderableType]:
    """Draw its title, as few blocks of columns as there is room for, and the sentences below."""
    blocks = _blocks(table, width)
    spaced = [part for block in blocks for part in ("", block)][1:]
    return [*filter(None, [table.title]), *spaced, *table.notes, *table.warnings]


def _blocks(table: Table, width: int) -> list[Grid]:
    """Draw columns side by side; those for which there is no room in further blocks, which begin with the first one.

    First heads are broken, then words, which take a share of the line at most; numbers are whole.
    """
    heads = [column.title for column in table.columns]
    cells = [max([1, *(cell_len(visible(row[place])) for row in table.rows)]) for place in range(len(heads))]
    are_words = [place == 0 or column.is_text for place, column in enumerate(table.columns)]
    widths = [max(cell_len(head), cell) for head, cell in zip(heads, cells, strict=True)]
    if sum(widths) + GAP * (len(heads) - 1) > width:
        widths = [max([cell, *map(cell_len, head.split())]) for head, cell in zip(heads, cells, strict=True)]
    least = [
        min(wide, int(NAME_SHARE * width)) if words else wide for wide, words in zip(widths, are_words, strict=True)
    ]
    blocks, left = [[0]], width - least[0]
    for place in range(1, len(heads)):
        if GAP + least[place] > left and len(blocks[-1]) > 1:
            blocks.append([0])
            left = width - least[0]
        blocks[-1].append(place)
        left -= GAP + least[place]
    grids = []
    for places in blocks:
        grids.append(Grid(box=_RULED, show_edge=False, pad_edge=False, padding=(0, GAP - 1, 0, 0)))
        for place in places:
            style: Any = {"overflow": "fold"} if are_words[place] else {"justify": "right", "width": widths[place]}
            grids[-1].add_column(heads[place], **style)
        for row in table.rows:
            grids[-1].add_row(*(Text(visible(row[place])) for place in places))
    return grids


# -------------------------------------------------------------------------------------------------------- for Markdown


def to_markdown(table: Table) -> str:
    """Format a pipe table; a `|` in a cell would end it, so it becomes `/`."""
    lines = [[head.title for head in table.columns], ["---"] * len(table.columns), *table.rows]
    return "\n".join(f"| {' | '.join(_markdown_cell(cell) for cell in line)} |" for line in lines)


def _markdown_cell(cell: str) -> str:
    return cell.replace("|", "/").replace(PLUS_MINUS, " ± ")
