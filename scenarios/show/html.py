"""A page as data, and how it becomes HTML: one file that asks nothing of the network. Looks: the template."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from hashlib import sha256
from importlib.resources import files
from math import ceil
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from scenarios.show.answers import Answer
from scenarios.show.charts import to_svg
from scenarios.show.colors import DARK, colors_of, on_dark, variable
from scenarios.show.numbers import PLUS_MINUS
from scenarios.show.table import Table
from scenarios.terminal.screen import visible_text

ROOM_PX, MARGIN_PX = 1160, 36  # of the page (page.css: the body), and what is on both its sides
LETTER_PX, PADDING_PX, SMALL = 7.6, 16, 0.85  # of a table's cell, in a wide font
STEP_PX: Final = 20
ENDLESS: Final = 9999  # pixels: no screen has room


@dataclass(frozen=True, slots=True)
class Heading:
    """Above what follows; `badge` is a provenance, `words` what it says where that is more."""

    text: str
    badge: str = ""
    words: str = ""


@dataclass(frozen=True, slots=True)
class Note:
    """A paragraph; its kind decides how it looks: `note` or `warning`."""

    text: str
    kind: str = "note"


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart with what it shows."""

    svg: Markup
    caption: str


@dataclass(frozen=True, slots=True)
class Grid:
    """Charts beside each other, as many as there is room for."""

    charts: Sequence[Chart]


@dataclass(frozen=True, slots=True)
class Trace:
    """A run's timeline: the file beside the page, and its bytes, packed (gzip, base64), where the page holds them."""

    title: str
    file: str
    packed: str = ""


@dataclass(frozen=True, slots=True)
class Traces:
    """Timelines that a page elsewhere can show: handed to it by a click, else by who drops the file on it."""

    text: str
    otherwise: str
    viewer: str
    traces: Sequence[Trace]


Block = Table | Heading | Note | Chart | Grid | Traces


@dataclass(frozen=True, slots=True)
class Page:
    """One page.

    Attributes:
        badges: a provenance (which colors it) and words.
        answers: what a reader asks first, in a frame.
        leads: sentences below that.
        sections: what stands under each heading; one with nothing in it is told to be missing.
        environment: name and value of each line at the end.
    """

    title: str
    sections: Mapping[str, Sequence[Block]]
    badges: Sequence[tuple[str, str]] = ()
    answers: Sequence[Answer] = ()
    leads: Sequence[Markup] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


def chart(figure: Figure, caption: str) -> Chart:
    """A chart as it stands in the page."""
    return Chart(Markup(to_svg(figure)), caption)  # noqa: S704 - it is drawn here, of escaped text


def interval_html(cell: str) -> Markup:
    """A cell's text, with the half-width of its interval in small letters."""
    mean, sign, half = cell.partition(PLUS_MINUS)
    return Markup("{} <small>±{}</small>").format(mean, half) if sign else Markup("{}").format(mean)


def parts(table: Table) -> list[Table]:
    """The table, or several of some of its columns each where no screen has room for all; never more than that."""
    widths = _widths(table)
    if min(sum(widths), sum(_turned_widths(table))) <= ROOM_PX:
        return [table]
    found: list[list[int]] = [[0]]
    for index in range(1, len(widths)):
        if sum(widths[each] for each in (*found[-1], index)) > ROOM_PX and len(found[-1]) > 1:
            found.append([0])
        found[-1].append(index)
    return [
        replace(table, columns=[table.columns[i] for i in of], rows=[[row[i] for i in of] for row in table.rows])
        for of in found
    ]


def layout(table: Table) -> tuple[int, int]:
    """Up to which widths of the screen a table is cards, and is turned (a column a row): the second is no less."""
    plain, turned = (_screen_for(sum(widths)) for widths in (_widths(table), _turned_widths(table)))
    return min(plain, turned), plain


def _widths(table: Table) -> list[float]:
    """Pixels that each column needs at least: heads may be broken between words, cells may not."""
    heads = [column.title.split() for column in table.columns]
    return [_px([*head, *(row[place] for row in table.rows)]) for place, head in enumerate(heads)]


def _turned_widths(table: Table) -> list[float]:
    """The same of a table whose columns are rows."""
    return [_px(column.title for column in table.columns), *(_px([*row[0].split(), *row[1:]]) for row in table.rows)]


def _px(cells: Iterable[str]) -> float:
    """Of the widest of them; intervals are written small."""
    parts = (cell.partition(PLUS_MINUS) for cell in cells)
    return PADDING_PX + LETTER_PX * max((len(mean) + SMALL * len(sign + half) for mean, sign, half in parts), default=0)


def _screen_for(width_px: float) -> int:
    """The widest screen that has no room for it, in steps: the page has few rules of style then."""
    return ENDLESS if width_px > ROOM_PX else STEP_PX * ceil((width_px + MARGIN_PX) / STEP_PX)


def render(page: Page) -> str:
    """The whole page; what HTML does not allow in a name is written out."""
    blocks = [block for blocks in page.sections.values() for block in blocks]
    drawn = [each for block in blocks for each in (block.charts if isinstance(block, Grid) else [block])]
    text = (
        _environment()
        .get_template("page.html.j2")
        .render(
            page=page,
            script=_script(),
            colors=list(colors_of("".join(each.svg for each in drawn if isinstance(each, Chart)))),
            dark=DARK,
            endless=ENDLESS,
            layouts=sorted({layout(part) for block in blocks if isinstance(block, Table) for part in parts(block)}),
        )
    )
    return visible_text(text)


@cache
def _script() -> Markup:
    """The page's only program: who reads the page may let it run, for its policy names it by its hash."""
    return Markup(files("scenarios.show").joinpath("templates/page.js").read_text(encoding="utf-8"))  # noqa: S704


@cache
def _environment() -> Environment:
    """Every name is escaped, and one that a template has no value for is an error."""
    loader = PackageLoader("scenarios.show", "templates")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["interval"] = interval_html
    environment.filters["sign"] = lambda text: text.replace(PLUS_MINUS, " \u00b1")
    environment.filters |= {"parts": parts, "layout": layout, "variable": variable, "on_dark": on_dark}
    environment.filters["sha256"] = lambda text: b64encode(sha256(text.encode()).digest()).decode()
    environment.filters["kind"] = lambda block: type(block).__name__.lower()
    return environment
