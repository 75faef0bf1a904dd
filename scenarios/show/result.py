"""One run, and a trained router's score, for a terminal."""

from __future__ import annotations

from typing import Final

from scenarios.metrics.catalogue import OF_SERVERS
from scenarios.metrics.result import MAX_LATE, MOST_CPU, ClustersScore, Result, Score, cpu_share, lateness_share
from scenarios.metrics.served import leaves_many, served
from scenarios.show.classes import classes_table
from scenarios.show.table import Column, Table, column, facts, to_text
from scenarios.show.wording import lines_of, say
from scenarios.show.words import downtime_table, provenance, slo_text, unserved_lines

MAX_UNMETERED: Final = 0.01  # of the time: a run's first moments, before a sensor's second look


def format_result(result: Result) -> str:
    """Format one run: its numbers, then its servers."""
    head = say("run", "head", result)
    few, many = unserved_lines([(result["router"], "", served([result]))])
    late, cpu = result["lateness_s"], result["cpu"]
    lines = lines_of(
        "run", "facts", result,
        kept=slo_text(result),
        unserved=[*few, *many],
        provenance=provenance(result),
        late_share=late and lateness_share(late),
        is_late=late is not None and lateness_share(late) > MAX_LATE,
        is_starved=cpu is not None and cpu_share(cpu) > MOST_CPU,
        is_unmetered=result["unmetered_share"] > MAX_UNMETERED,
    )  # fmt: skip
    downtimes = downtime_table([(f"{result['mode']}, seed {result['seed']}", result)])
    classes = classes_table(result["slo"], [((), result.get("classes", {}))])
    tables = [*([classes] if classes else []), servers_table(result), *([downtimes] if downtimes else [])]
    return to_text([f"{head}\n{to_text([facts(lines)])}", *tables])


def servers_table(result: Result) -> Table:
    """Return what each server did."""
    rows = [[server["name"], *(each.of(server) for each in OF_SERVERS)] for server in result["servers"]]
    return Table([Column("server"), *map(column, OF_SERVERS)], rows)


def format_score(score: Score | ClustersScore) -> str:
    """Format what a trained router was scored."""
    if "change" in score:
        return "\n".join(lines_of("run", "clusters_score", score))
    return "\n".join(lines_of("run", "score", score, leaves_many(score["shares"])))
