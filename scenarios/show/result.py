"""One run, and a trained router's score, for a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from scenarios.metrics.catalogue import OF_SERVERS
from scenarios.metrics.result import MOST_CPU, MOST_LATE, Result, Score, cpu_share, lateness_share
from scenarios.metrics.served import leaves_many, served
from scenarios.show.numbers import duration, number, share, shown
from scenarios.show.table import Column, Table, column, to_text
from scenarios.show.wording import say
from scenarios.show.words import downtime_table, kept_text, provenance, signature_texts, unserved_lines
from scenarios.terminal.screen import screen_width

MOST_UNMETERED: Final = 0.01  # of the time: a run's first moments, before a sensor's second look


def format_result(result: Result) -> str:
    """One run: its numbers, then its servers."""
    ran = f"{result['mode']} ({result['engine']})"
    head = f"{result['scenario']}: router {result['router']}, seed {result['seed']}, {ran}"
    body = "\n".join(f"  {name:<11} {text}" for name, text in _facts(result))
    downtimes = downtime_table([(f"{result['mode']}, seed {result['seed']}", result)])
    tables = [servers_table(result), *([downtimes] if downtimes else [])]
    return f"{head}\n{body}\n\n{to_text(tables, screen_width())}"


def _facts(result: Result) -> Iterator[tuple[str, str]]:
    images, latency, joules = result["images"], result["latency_s"], result["energy_per_image_j"]
    found = served([result])
    if (kept := kept_text(result)) is not None:
        yield "kept", kept
    completed = f"{images['completed']} of {images['arrived']} completed ({share(found['completed'])})"
    yield "images", f"{completed}, {images['failed']} failed, {images['in_flight']} unfinished"
    yield from (("unserved", line) for lines in unserved_lines([(result["router"], "", found)]) for line in lines)
    shares = f"p95 {duration(latency['p95'])}, p50 {duration(latency['p50'])}"
    yield "latency", f"p99 {duration(latency['p99'])}, mean {duration(latency['mean'])}, {shares}"
    expected = result["expected_accuracy"]
    of_table = "" if expected is None else f" ({share(expected)} by the table, of the tuples that ran)"
    yield "accuracy", f"{share(result['accuracy'])}{of_table}"
    parts = ", ".join(f"{key} {number(joules[key], 4)}" for key in ("dynamic", "base", "idle"))
    yield "energy", f"{number(joules['total'], 4)} J/image ({parts})"
    yield "throughput", f"{number(result['throughput_img_s'], 1)} images/s"
    if result["goodput_img_s"] is not None:
        yield "goodput", f"{number(result['goodput_img_s'], 1)} images/s within the deadline"
    yield "paper's E", f"{number(result['energy_j']['mean'], 4)} J (mean power x latency)"
    yield "provenance", provenance(result)
    if (late := result["lateness_s"]) is not None:
        share_late = lateness_share(late)
        yield ("beware" if share_late > MOST_LATE else "lateness"), say("results", "late", late, share_late)
    if (cpu := result["cpu"]) is not None:
        yield ("beware" if cpu_share(cpu) > MOST_CPU else "CPU"), say("results", "cpu", cpu)
    if (of_time := result["extrapolated_share"]) > 0:
        yield "beware", say("results", "extrapolated", of_time)
    if (of_time := result["unmetered_share"]) > MOST_UNMETERED:
        yield "beware", say("results", "unmetered", of_time)
    yield from (("signature", text) for text in signature_texts(result["signatures"]))


def servers_table(result: Result) -> Table:
    """What each server did."""
    rows = [[server["name"], *(shown(each, each.of(server)) for each in OF_SERVERS)] for server in result["servers"]]
    return Table([Column("server"), *map(column, OF_SERVERS)], rows)


def format_score(score: Score) -> str:
    """What a trained router was scored."""
    lines = [say("results", "score", score)]
    if leaves_many(score["shares"]):
        lines.append(f"beware: it leaves {share(score['shares']['unserved'])} unserved")
    return "\n".join([*lines, *(f"signature: {sign}" for sign in signature_texts(score["signatures"]))])
