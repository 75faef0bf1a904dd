"""A page as data, and how it becomes HTML: one file that asks nothing of the network. Looks: the template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from scenarios.show.answers import Answer
from scenarios.show.charts import to_svg
from scenarios.show.numbers import PLUS_MINUS
from scenarios.show.table import Table
from scenarios.terminal.visible import visible_text


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
class Links:
    """A sentence that ends in links: words, and where they lead."""

    text: str
    links: Sequence[tuple[str, str]]


Block = Table | Heading | Note | Chart | Grid | Links


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


def render(page: Page) -> str:
    """The whole page; what HTML does not allow in a name is written out."""
    return visible_text(_environment().get_template("page.html.j2").render(page=page))


@cache
def _environment() -> Environment:
    """Every name is escaped, and one that a template has no value for is an error."""
    loader = PackageLoader("scenarios.show", "templates")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["interval"] = interval_html
    environment.filters["sign"] = lambda text: text.replace(PLUS_MINUS, " \u00b1")
    environment.filters["kind"] = lambda block: type(block).__name__.lower()
    return environment
