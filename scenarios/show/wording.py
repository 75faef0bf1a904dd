"""Templates of sentences and pages, and how they write what they are given.

A template of sentences (`NAME.j2`) is macros: each is called with facts, and gives them as text, for both the terminal
and the report. A line break in it is a blank; if a macro makes several lines, each begins with `|`. Templates of pages
(`NAME.html.j2`) escape every name.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from scenarios.show import tables


@cache
def environment() -> Environment:
    """Return the environment, in which a name without a value is an error."""
    templates = Environment(
        loader=PackageLoader("scenarios.show", "templates"),
        autoescape=lambda name: name is not None and name.endswith(".html.j2"),  # noqa: S701 - sentences are none
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    templates.filters |= {
        "number": tables.number,
        "interval": tables.interval,
        "share": tables.share,
        "duration": tables.duration,
        "milliseconds": lambda value_s: f"{value_s * 1000:.2f} ms",
        "plural": tables.plural,
        "objective": lambda slo: say("results", "objective", slo),
        "quoted": repr,
    }
    return templates


def say(template: str, macro: str, *facts: Any, **options: Any) -> str:
    """Return what a macro of a template of sentences makes of some facts, in one line."""
    return _in_a_line(_rendered(template, macro, *facts, **options))


def lines_of(template: str, macro: str, *facts: Any, **options: Any) -> list[str]:
    """Return what a macro makes of some facts, line by line."""
    lines = re.split(r"^\s*\| ", _rendered(template, macro, *facts, **options), flags=re.MULTILINE)
    return list(filter(None, map(_in_a_line, lines)))


def _rendered(template: str, macro: str, *facts: Any, **options: Any) -> str:
    render: Any = getattr(environment().get_template(f"{template}.j2").module, macro)
    return str(render(*facts, **options))


def _in_a_line(text: str) -> str:
    return re.sub(r" (?=[,.;:)]+(?: |$))|(?<=\() ", "", " ".join(text.split()))
