"""Tables in plain characters, for a terminal or as Markdown, and numbers as text.

Numbers: the catalogue of measures has the digits and the unit of each measure.

Tables: the first column identifies a row. In HTML, the page's template writes the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from io import StringIO
from math import floor, log10
from textwrap import fill
from typing import TYPE_CHECKING, Any, Final, Literal

from rich.box import Box
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.table import Table as Grid
from rich.text import Text

from scenarios.metrics.metric_catalogue import Measure
from scenarios.terminal.screen import PIPED, screen_width, visible

if TYPE_CHECKING:
    from scenarios.metrics.statistics import MeanInterval, PairedRatio


NONE = "-"
PLUS_MINUS = " +-"  # plain ASCII; pages write ± instead
COUNTING = 3  # digits, if a measure has no number of digits


def number(
    value: float | None, digits: int | None, scale: float = 1.0, *, signed: bool = False, grouped: bool = False
) -> str:
    """Format a number with `digits` after the point, or with three significant ones; `-` for none."""
    if value is None:
        return NONE
    after = places(value * scale, COUNTING) if digits is None else digits
    return f"{value * scale:{'+' if signed else ''}{',' if grouped else ''}.{after}f}"


def interval(
    estimate: MeanInterval | Mapping[str, Any],
    digits: int | None,
    scale: float = 1.0,
    *,
    signed: bool = False,
    unit: str = "",
) -> str:
    """Format `mean +-half-width`, or the mean alone without an interval; `-` for no mean."""
    mean, half = estimate["mean"], estimate["ci95"]
    if mean is None:
        return NONE
    after = places(mean * scale, COUNTING) if digits is None else digits
    text = number(mean, after, scale, signed=signed)
    text += "" if half is None else f"{PLUS_MINUS}{number(half, after, scale)}"
    return f"{text} {unit}".rstrip()


def ratio_change(ratio: PairedRatio) -> str:
    """Format a ratio and its interval as `-10.3 (-14.1 to -6.3) %`, which never passes -100 %; `-` for none."""
    if ratio["ratio"] is None:
        return NONE
    values = [each for each in (ratio["ratio"], ratio["low"], ratio["high"]) if each is not None]
    mean, *ends = (number(value - 1, 1, 100, signed=True) for value in values)
    return f"{mean} ({' to '.join(ends)}) %" if ends else f"{mean} %"


def places(value: float, counting: int) -> int:
    """Count the digits after the point of which this many count; 0 has none."""
    return max(0, counting - 1 - floor(log10(abs(value)))) if value else 0


def share(value: float | None) -> str:
    """Format a share in percent, with the sign: for sentences."""
    return NONE if value is None else f"{number(value, 2, 100)} %"


def duration(value_s: float | None) -> str:
    """Format seconds, or milliseconds below one."""
    return NONE if value_s is None else f"{value_s:.3f} s" if value_s >= 1 else f"{value_s * 1000:.2f} ms"


def plural(count: int, noun: str) -> str:
    """Format a count with its word: `1 seed`, `2 seeds`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


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

    header: str
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
        return f"{self.header} {self.unit}".strip()

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


def column(measure: Measure, header: str = "", provenance: str = "") -> Column:
    """Return the column of a measure, as the catalogue heads it or under another head."""
    number_format = measure.unit, measure.digits, measure.scale
    return Column(header or measure.header, *number_format, meaning=measure.meaning, provenance=provenance)


def columns(*headers: str) -> list[Column]:
    """Return columns with nothing but a head."""
    return [Column(header) for header in headers]


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
    return "\n\n".join(_part_text(part, wide) for part in parts if part)


def _part_text(part: Table | str | Sequence[Answer], width: int) -> str:
    if not isinstance(part, Table | str):
        return _labelled(part, min(width, PIPED))  # no wider than is good to read
    blocks = [part] if isinstance(part, str) else _drawn(part, width)
    console = Console(file=StringIO(), width=width, color_system=None, markup=False, highlight=False, emoji=False)
    with console.capture() as capture:
        for block in blocks:
            console.print(block)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def _labelled(answers: Sequence[Answer], width: int) -> str:
    """Return labels in a column, and the lines of each next to it."""
    lines = [(line, "" if index else answer.label) for answer in answers for index, line in enumerate(answer.lines)]
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
    """Draw columns side by side; those that do not fit are in further blocks, which begin with the first one.

    First heads are broken, then words, which take a share of the line at most; numbers are whole.
    """
    headers = [column.title for column in table.columns]
    cells = [max([1, *(cell_len(visible(row[index])) for row in table.rows)]) for index in range(len(headers))]
    are_words = [index == 0 or column.is_text for index, column in enumerate(table.columns)]
    widths = [max(cell_len(header), cell) for header, cell in zip(headers, cells, strict=True)]
    if sum(widths) + GAP * (len(headers) - 1) > width:
        widths = [max([cell, *map(cell_len, header.split())]) for header, cell in zip(headers, cells, strict=True)]
    longest = int(NAME_SHARE * width)
    least = [min(wide, longest) if is_words else wide for wide, is_words in zip(widths, are_words, strict=True)]
    blocks, room = [[0]], width - least[0]
    for index in range(1, len(headers)):
        if GAP + least[index] > room and len(blocks[-1]) > 1:
            blocks.append([0])
            room = width - least[0]
        blocks[-1].append(index)
        room -= GAP + least[index]
    grids = []
    for block in blocks:
        grids.append(Grid(box=_RULED, show_edge=False, pad_edge=False, padding=(0, GAP - 1, 0, 0)))
        for index in block:
            style: Any = {"overflow": "fold"} if are_words[index] else {"justify": "right", "width": widths[index]}
            grids[-1].add_column(headers[index], **style)
        for row in table.rows:
            grids[-1].add_row(*(Text(visible(row[index])) for index in block))
    return grids


# -------------------------------------------------------------------------------------------------------- for Markdown


def to_markdown(table: Table) -> str:
    """Format a pipe table; a `|` in a cell would end it, so it becomes `/`."""
    lines = [[header.title for header in table.columns], ["---"] * len(table.columns), *table.rows]
    texts = [[cell.replace("|", "/").replace(PLUS_MINUS, " ± ") for cell in line] for line in lines]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in texts)
