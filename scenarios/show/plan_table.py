"""A plan, for a terminal: labelled answers, then what each server does, and all routers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from scenarios.metrics.result_documents import Plan, PlannedServer
from scenarios.metrics.router_comparison import ComparisonDocument, compared
from scenarios.metrics.run_result import Result
from scenarios.show.answers import NEXT, TRUSTED
from scenarios.show.tables import Answer, Cell, Column, Table, number, to_text
from scenarios.show.wording import lines_of, say

RUN: Final = "Run"


def format_plan(plan: Plan) -> str:
    """Format all of it; below it what to type next."""
    choice = plan.of(plan.choice)
    plain = [router for router in plan.routers if router.role != "candidate"]
    parts = [Answer(RUN, lines_of("plan", "choice", plan, choice))]
    if choice is not None:
        parts.append(Answer("Replication", lines_of("plan", "beside", plan, choice, plain)))
        parts.append(Answer("Changes", lines_of("plan", "changes", plan, choice)))
    parts += [Answer(TRUSTED, plan.trusted), Answer(NEXT, lines_of("plan", "next", plan, choice))]
    text = to_text([parts, *([servers_table(plan)] if plan.servers else []), routers_table(plan)])
    if plan.commands:  # to be copied: never broken
        text += "\n\n" + "\n  ".join([say("plan", "commands", plan), *plan.commands])
    return text


def short_plan(comparison: ComparisonDocument, results: Sequence[Result]) -> list[Answer]:
    """Return a comparison's part of it: the best router, and where its passes run; nothing if none can win."""
    ranking = compared(comparison)
    if not ranking.able:
        return []
    best, tied = ranking.able[0], [each.router for each in ranking.tied]
    runs = [result for result in results if result["router"] == best.router]
    row = next(row for row in comparison["rows"] if row["router"] == best.router)
    passes: Counter[str] = Counter()
    for result in runs:
        passes.update({server["name"]: server["images"] for server in result["servers"]})
    shares = {server: count / (passes.total() or 1) for server, count in passes.items()}
    measured_s = [p99_s for result in runs if (p99_s := result["latency_s"]["p99"]) is not None]
    p99s_s = sorted(measured_s) if len(measured_s) == len(runs) else []
    return [Answer(RUN, lines_of("plan", "short", row, best.accuracy, tied, shares, p99s_s))]


def servers_table(plan: Plan) -> Table:
    """Return what the choice has each server do."""
    header = [Column("server"), Column("device", is_text=True), Column("of the passes", "%", 1, 100)]
    header += [Column("busy", "%", 1, 100), Column("power", "W", 0), Column("mean batch", "", 1)]
    widths = "of its passes" if any(each.names for each in plan.servers) else "mean width, by segment"
    header.append(Column(widths, is_text=True))
    if any(each.working_set for each in plan.servers):
        header.append(Column("holds", is_text=True, meaning="The instances that its memory is to hold together."))
    rows: list[list[Cell]] = []
    for server in plan.servers:
        row: list[Cell] = [server.server, server.device, server.share, server.utilization, server.mean_power_w]
        row += [server.mean_batch, _widths(server), working_set_text(server)]
        rows.append(row[: len(header)])
    return Table(header, rows, f"{plan.choice}: what each server does")


def _widths(server: PlannedServer) -> str:
    if server.names:
        shares = sorted(server.widths[0].items(), key=lambda item: -item[1])
        return ", ".join(f"{server.names[width]} {100 * share:.0f} %" for width, share in shares)
    means = [sum(width * share for width, share in each.items()) if each else None for each in server.widths]
    return " ".join(number(mean, 2) for mean in means)


def working_set_text(server: PlannedServer) -> str:
    """Format the widths that it holds, segment by segment, or a family's members; `all` if memory holds all."""
    if not server.working_set:
        return "all"
    if server.names:
        return ", ".join(server.names[width] for width in server.working_set[0])
    return " ".join("+".join(f"{width:g}" for width in each) for each in server.working_set)


def routers_table(plan: Plan) -> Table:
    """Return all that was tried, by descending sustained rate."""
    header = [Column("router"), Column("sustains", "images/s", 0), Column("of that, least", "", 0)]
    header += [Column("and most", "", 0), Column("J/image there"), Column("p99 here", "ms", 2, 1000)]
    header += [Column("accuracy here", "%", 2, 100), Column("J/image here"), Column("kept here")]
    rows: list[list[Cell]] = []
    for router in sorted(plan.routers, key=lambda router: -router.sustained.mean_img_s if router.sustained else 0.0):
        rate, outcome = router.sustained, router.outcome
        sustained = [rate.mean_img_s, rate.low_img_s, rate.high_img_s, rate.energy_per_image_j] if rate else [None] * 4
        reached = [outcome.latency_p99_s, outcome.accuracy, outcome.energy_per_image_j]
        rows.append([router.router, *sustained, *reached, "yes" if outcome.keeps else "no"])
    notes = ["Who sustains nothing (-) keeps what is asked at no rate."]
    return Table(header, rows, "routers: what they sustain, and what they reach under the scenario's load", notes)
