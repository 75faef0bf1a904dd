"""One run, and a trained router's score, for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from scenarios.metrics.catalogue import OF_SERVERS
from scenarios.metrics.result import MOST_CPU, MOST_LATE, Result, Score, cpu_share, lateness_share
from scenarios.metrics.served import leaves_many, served
from scenarios.show.numbers import duration, number, share, shown
from scenarios.show.table import Column, Table, column, to_text
from scenarios.show.words import (
    MOST_UNMETERED,
    cpu_text,
    downtime_table,
    extrapolated,
    kept_text,
    late_text,
    provenance,
    signature_texts,
    unmetered,
    unserved_lines,
)
from scenarios.terminal.screen import screen_width


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
    expected = result.get("expected_accuracy")
    of_table = "" if expected is None else f" ({share(expected)} by the table, of the tuples that ran)"
    yield "accuracy", f"{share(result['accuracy'])}{of_table}"
    parts = ", ".join(f"{key} {number(joules[key], 4)}" for key in ("dynamic", "base", "idle"))
    yield "energy", f"{number(joules['total'], 4)} J/image ({parts})"
    yield "throughput", f"{number(result['throughput_img_s'], 1)} images/s"
    if result["goodput_img_s"] is not None:
        yield "goodput", f"{number(result['goodput_img_s'], 1)} images/s within the deadline"
    yield "paper's E", f"{number(result['energy_j']['mean'], 4)} J (mean power x latency)"
    yield "provenance", provenance(result)
    if (late := result.get("lateness_s")) is not None:
        yield ("beware" if lateness_share(late) > MOST_LATE else "lateness"), late_text(late)
    if (cpu := result.get("cpu")) is not None:
        yield ("beware" if cpu_share(cpu) > MOST_CPU else "CPU"), cpu_text(cpu)
    if (of_time := result.get("extrapolated_share", 0.0)) > 0:
        yield "beware", extrapolated(of_time)
    if (of_time := result.get("unmetered_share", 0.0)) > MOST_UNMETERED:
        yield "beware", unmetered(of_time)
    yield from (("signature", text) for text in signature_texts(result.get("signatures")))


def servers_table(result: Result) -> Table:
    """What each server did."""
    rows = [[server["name"], *(shown(each, each.of(server)) for each in OF_SERVERS)] for server in result["servers"]]
    return Table([Column("server"), *map(column, OF_SERVERS)], rows)


def format_score(score: Score) -> str:
    """What a trained router was scored."""
    found = f"reward {number(score['reward'], 4)}, latency {duration(score['latency_s'])}"
    if "shares" in score:
        found += f", completed {share(score['shares']['completed'])}"
    where = "both engines, bit for bit the same" if len(score["engines"]) > 1 else "the reference"
    text = f"{found}, accuracy {share(score['accuracy'])} on a run not trained on; scored on {where}"
    beware = [f"beware: it leaves {share(score['shares']['unserved'])} unserved"] if _is_marked(score) else []
    return "\n".join([text, *beware, *(f"signature: {sign}" for sign in signature_texts(score.get("signatures")))])


def _is_marked(score: Score) -> bool:
    return "shares" in score and leaves_many(score["shares"])
