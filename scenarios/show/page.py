"""Pages of HTML: answers, and sections of tables and charts. Nothing in them is fetched from anywhere.

Looks: `templates/page.html.j2`.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files

from markupsafe import Markup, escape
from matplotlib.figure import Figure

from scenarios.show import charts
from scenarios.show.numbers import PLUS_MINUS
from scenarios.show.table import Answer, Table
from scenarios.show.wording import environment
from scenarios.terminal.screen import visible_text


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart, and what to see in it."""

    figure: Figure | Markup
    caption: str

    @property
    def svg(self) -> Markup:
        """The chart as an element; it may be drawn already."""
        return charts.to_svg(self.figure) if isinstance(self.figure, Figure) else self.figure


@dataclass(frozen=True, slots=True)
class Section:
    """A titled part of a page.

    Attributes:
        notes: sentences below its blocks; `warnings`: those above them.
        badge: a word behind the title, and how it is colored.
        is_folded: whether it is opened by a click.
    """

    title: str
    blocks: Sequence[Table | Chart | Section] = ()
    notes: Sequence[str | Markup] = ()
    warnings: Sequence[str] = ()
    badge: tuple[str, str] = ("", "")
    is_folded: bool = False


def page(
    title: str,
    sections: Sequence[Section],
    *,
    badges: Sequence[tuple[str, str]] = (),
    answers: Sequence[Answer] = (),
    top: Sequence[Table | Chart] = (),
) -> str:
    """Render a page: what HTML does not allow in a name is written out; the only program is allowed by its hash.

    Args:
        sections: those with nothing in them are left out.
        badges: below the title: how each is colored, and its words.
        top: what is below the answers.
    """
    script = files("scenarios.show").joinpath("templates/page.js").read_text(encoding="utf-8")
    templates = environment()
    templates.filters |= {
        "interval_small": _interval,
        "prose": _prose,
        "anchor": lambda title: title.lower().replace(" ", "-"),
        "sha256": lambda text: b64encode(sha256(text.encode()).digest()).decode(),
    }
    text = templates.get_template("page.html.j2").render(
        title=title,
        sections=[each for each in sections if each.blocks or each.notes],
        badges=badges,
        answers=answers,
        top=top,
        script=Markup(script),  # noqa: S704 - our own
    )
    return visible_text(text)


def _prose(text: str | Markup) -> Markup:
    """Return a sentence of the terminal's as HTML: its keys and commands as code."""
    escaped = str(escape(text)).replace(PLUS_MINUS, " \u00b1")
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", escaped))  # noqa: S704 - escaped


def _interval(cell: str) -> Markup:
    """Return a cell's text, with the half-width of its interval in small letters."""
    mean, sign, half = cell.partition(PLUS_MINUS)
    return Markup("{} <small>±{}</small>").format(mean, half) if sign else Markup("{}").format(mean)
