"""A plan, for a terminal: labelled answers, then what each server does, and all routers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from scenarios.metrics.comparison import ComparisonDocument
from scenarios.metrics.plan import Plan, PlannedServer
from scenarios.metrics.ranking import compared
from scenarios.metrics.result import Result
from scenarios.show.answers import NEXT, TRUSTED, Answer, answers_text
from scenarios.show.numbers import NONE, interval, number
from scenarios.show.table import Column, Table, columns, to_text
from scenarios.show.wording import lines_of, say
from scenarios.terminal.screen import screen_width

RUN: Final = "Run"


def format_plan(plan: Plan) -> str:
    """Format all of it; below it what to type next."""
    one, width = plan.of(plan.choice), screen_width()
    plain = [each for each in plan.routers if each.role != "candidate"]
    parts = [Answer(RUN, lines_of("plan", "choice", plan, one))]
    if one is not None:
        parts.append(Answer("Replication", lines_of("plan", "beside", plan, one, plain)))
        parts.append(Answer("Changes", lines_of("plan", "changes", plan, one)))
    parts += [Answer(TRUSTED, plan.trusted), Answer(NEXT, lines_of("plan", "next", plan, one))]
    tables: list[Table | str] = [*([servers_table(plan)] if plan.servers else []), routers_table(plan)]
    blocks = [answers_text([each for each in parts if each.lines], width), to_text(tables, width)]
    if plan.commands:
        blocks.append("\n  ".join([say("plan", "commands", plan), *plan.commands]))
    return "\n\n".join(blocks)


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
    known = [p99_s for result in runs if (p99_s := result["latency_s"]["p99"]) is not None]
    p99s_s = sorted(known) if len(known) == len(runs) else []
    return [Answer(RUN, lines_of("plan", "short", row, best.accuracy, tied, shares, p99s_s))]


def servers_table(plan: Plan) -> Table:
    """Return what the choice has each server do."""
    numbers = [Column("of the passes", "%"), Column("busy", "%"), Column("power", "W"), Column("mean batch")]
    widths = "of its passes" if any(each.names for each in plan.servers) else "mean width, by segment"
    head = [Column("server"), Column("device", is_text=True), *numbers, Column(widths, is_text=True)]
    if any(each.working_set for each in plan.servers):
        head.append(Column("holds", is_text=True, meaning="The instances that its memory is to hold together."))
    return Table(head, [_server(each)[: len(head)] for each in plan.servers], f"{plan.choice}: what each server does")


def _server(of: PlannedServer) -> list[str]:
    if of.names:
        shares = sorted(of.widths[0].items(), key=lambda each: -each[1])
        widths = ", ".join(f"{of.names[width]} {100 * share:.0f} %" for width, share in shares)
    else:
        means = [sum(width * share for width, share in each.items()) if each else None for each in of.widths]
        widths = " ".join(number(mean, 2) for mean in means)
    numbers = [number(of.share, 1, 100), number(of.utilization, 1, 100), number(of.mean_power_w, 0)]
    return [of.server, of.device, *numbers, number(of.mean_batch, 1), widths, working_set_text(of)]


def working_set_text(of: PlannedServer) -> str:
    """Format the widths that it holds, segment by segment, or a family's members; `all` if memory holds all."""
    if not of.working_set:
        return "all"
    if of.names:
        return ", ".join(of.names[width] for width in of.working_set[0])
    return " ".join("+".join(f"{width:g}" for width in each) for each in of.working_set)


def routers_table(plan: Plan) -> Table:
    """Return all that was tried, by descending sustained rate."""
    head = [Column("router"), Column("carries", "images/s"), *columns("of that, least", "and most", "J/image there")]
    here = [Column("p99 here", "ms"), Column("accuracy here", "%"), Column("J/image here"), Column("kept here")]
    ranked = sorted(plan.routers, key=lambda each: -each.carried.mean_img_s if each.carried else 0.0)
    rows = [
        [
            each.router,
            *(
                [NONE] * 4
                if each.carried is None
                else [
                    *(number(getattr(each.carried, name), 0) for name in ("mean_img_s", "low_img_s", "high_img_s")),
                    number(each.carried.energy_per_image_j, None),
                ]
            ),
            interval(each.outcome.latency_p99_s, 2, 1000),
            interval(each.outcome.accuracy, 2, 100),
            interval(each.outcome.energy_per_image_j, None),
            "yes" if each.outcome.keeps else "no",
        ]
        for each in ranked
    ]
    notes = ["Who carries nothing (-) keeps what is asked at no rate."]
    return Table([*head, *here], rows, "routers: what they carry, and what they reach under the scenario's load", notes)
