"""The page of a comparison of training jobs: made of its `comparison.json` alone, and of the report's own parts.

Next to it is a chart of the price of a GPU-hour, as the bound has it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from jobs.policy_comparison import SCHEMA, Bound
from kit.documents import read_text, told_of, write_text
from scenarios.show.charts import COLORS, WIDTH, canvas, label_of, router_colors
from scenarios.show.report import Chart, Section
from scenarios.show.report import page as render
from slimsched.jobs.texts import DAY_S, answers, comparison_head, in_slurm_table, others_tables, say, waits_tables

_TICKS_S: Final = {0: "0", 60: "1 min", 600: "10 min", 3600: "1 h", 36_000: "10 h", 345_600: "4 d", 3_456_000: "40 d"}


def is_of_jobs(folder: Path) -> bool:
    """Return whether a folder holds a comparison of training jobs."""
    try:
        return bool(json.loads((folder / "comparison.json").read_bytes())["schema"] == SCHEMA)
    except (OSError, ValueError, LookupError, TypeError):
        return False


def build_report(folder: Path) -> Path:
    """Write `report.html` next to a folder's `comparison.json`; returns its path.

    Raises:
        InputError: that is of another form than this version's.
    """
    source = folder / "comparison.json"
    with told_of(source, "make it again with `slimsched jobs compare SCENARIO --out`"):
        write_text(folder / "report.html", page(json.loads(read_text(source))))
    return folder / "report.html"


def page(comparison: Mapping[str, Any]) -> str:
    """Return the answers, the table of policies, waits over days, Slurm's terms, and which groups win and lose."""
    waits, *others = waits_tables(comparison)
    cluster, *groups = others_tables(comparison)
    notes = [comparison_head(comparison), *waits.notes, say("lost", comparison["policies"])]
    sections = [
        Section("Waits over days", [Chart(waits_chart(comparison), say("days", comparison)), *others]),
        Section("In Slurm", [in_slurm_table(comparison)]),
        Section("Who wins and who loses", groups),
        Section("The cluster", [cluster]),
    ]
    summary = replace(waits, title="", notes=list(filter(None, notes)))
    return render(comparison["scenario"], sections, answers=answers(comparison), top=[summary])


def waits_chart(comparison: Mapping[str, Any]) -> Figure:
    """Draw the mean wait by day of submission: a line for each policy, and the log's own dashed."""
    lines = {row["policy"]: row["daily_wait_s"] for row in comparison["policies"]}
    looks: dict[str, dict[str, Any]] = {name: {"color": color} for name, color in router_colors(list(lines)).items()}
    if any(wait_s is not None for wait_s in comparison["recorded_daily_wait_s"]):
        lines["the log"] = comparison["recorded_daily_wait_s"]
        looks["the log"] = {"color": "black", "linestyle": "--", "zorder": 3}
    with canvas(WIDTH, 4.4) as (figure, axes):
        for name, waits_s in lines.items():
            days = comparison["first_day"] + np.arange(len(waits_s))
            axes.plot(days, np.array(waits_s, float), label=label_of(name), marker=".", **looks[name])
        axes.set_yscale("symlog", linthresh=60, linscale=0.5)
        axes.set_yticks(list(_TICKS_S), list(_TICKS_S.values()))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        most_s = max((wait_s for waits_s in lines.values() for wait_s in waits_s if wait_s is not None), default=0.0)
        axes.set(xlabel="submitted on day of the trace", ylabel="mean wait", ylim=(0, max(1.2 * most_s, 60)))
        figure.legend(loc="outside lower center", ncols=2)
    return figure


def prices_chart(bounds: Sequence[Bound]) -> Figure:
    """Draw a GPU-hour's price over time: a panel for each bound, a line for each pool: when more GPUs had helped."""
    with canvas(8.0, 2.4 * len(bounds) + 0.5, rows=len(bounds), sharex=True, squeeze=False) as (figure, axes):
        for panel, bound in zip(axes[:, 0], bounds, strict=True):
            for pool, (name, prices) in enumerate(bound["prices"].items()):
                days = (bound["begins_s"] + np.arange(len(prices) + 1) * bound["cell_s"]) / DAY_S
                panel.stairs(prices, days, color=COLORS[pool % len(COLORS)], label=label_of(name), linewidth=1.0)
            panel.set_title(f"who {'may preempt' if bound['is_preemptive'] else 'does not preempt'}", loc="left")
            panel.set_ylabel("price of a GPU-hour, h")
            panel.set_ylim(bottom=0)
            if len(bound["prices"]) > 1:
                panel.legend(loc="upper right")
        axes[-1, 0].set_xlabel("time since the trace's start, days")
    return figure
