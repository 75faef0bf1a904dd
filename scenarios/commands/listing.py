"""`slimsched list`."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import asdict
from textwrap import shorten

from scenarios.show.table import GAP, Column, Table, to_text
from scenarios.tasks.listing import what_is_here
from scenarios.terminal.output import Output
from scenarios.terminal.screen import screen_width

_NONE = {"runs": "no run lies in this folder, nor in ./runs"}


def list(arguments: Namespace) -> int:
    """What can be named, of one kind or of all; on a terminal each in a line of it."""
    found, width, texts = asdict(what_is_here()), screen_width(), []
    chosen = {kind: entries for kind, entries in found.items() if arguments.kind in (None, kind)}
    for kind, entries in chosen.items():
        room = None if width is None else width - GAP - max((len(each["name"]) for each in entries), default=0)
        rows = []
        for each in entries:
            about = each["about"] if each["ships"] else f"here: {each['about']}"
            rows.append([each["name"], about if room is None else shorten(about, max(room, 20), placeholder=" ...")])
        texts.append(to_text([Table([Column(kind), Column("", is_text=True)], rows)], width) if rows else _NONE[kind])
    return Output(arguments).result("\n\n".join(texts), {"schema": "slimsched.list/1", **chosen})
