"""What another router would have done with what was served, as text."""

from __future__ import annotations

from scenarios.runs.shadow import ACCURACY, LATENCIES, Shadow
from scenarios.show.numbers import number
from scenarios.show.table import Column, Table, to_text
from scenarios.terminal.screen import screen_width


def format_shadow(found: Shadow) -> str:
    """A row for each measure, and what can be claimed of it; then how often both decide alike."""
    worlds = (found["measured"], found["simulated"], found["shadow"])
    rows = [
        [f"{name} latency, ms", *(number(each[name], 1, 1e3) for each in worlds), found["claims"][name]]
        for name in LATENCIES
    ]
    rows.append(
        ["expected accuracy, %", *(number(each[ACCURACY], 2, 100) for each in worlds), found["claims"][ACCURACY]]
    )
    head = [
        Column("measure"), Column("measured", found["obeyed"]), Column("simulated", found["obeyed"]),
        Column("simulated", found["other"]), Column("claimed of it", is_text=True),
    ]  # fmt: skip
    title = f"{found['arrivals']} images in {found['duration_s']:.0f} s since {found['began']}"
    alike, count = found["alike"], max(1, found["alike"]["decisions"])
    parts = ", ".join(f"the same {name} {100 * alike[name] / count:.0f} %" for name in ("server", "width"))
    asked = f"asked about {alike['decisions']} recorded views, {found['other']} decides alike in"
    text = f"{asked} {100 * alike['both'] / count:.0f} % ({parts})"
    return f"{to_text([Table(head, rows, title)], screen_width())}\n{text}"
