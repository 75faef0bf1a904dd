"""What single commands found, for a terminal: a run, a profile, a cluster, a load, a replay."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from policies.vocabulary import Provenance
from scenarios.files.scenario_keys import GB
from scenarios.metrics.failure_signs import leaves_many, served
from scenarios.metrics.metric_catalogue import OF_SERVERS
from scenarios.metrics.result_documents import CheckedCluster, CheckedHost, ClusterMeasurements
from scenarios.metrics.run_result import MAX_LATE, MOST_CPU, ClustersScore, Result, Score, cpu_share, lateness_share
from scenarios.runs.run_store import ReplayedLog, ReplayedRun
from scenarios.show.result_words import classes_table, downtime_table, provenance, slo_text, unserved_lines
from scenarios.show.tables import Cell, Column, Table, column, columns, facts, number, to_text
from scenarios.show.wording import lines_of, say
from sim.device_profile import Profile

if TYPE_CHECKING:
    from calibrate.fresh_points import CheckedMetric

SCHEMA = "slimsched.check/1"
_ERRORS = ("median_abs_pct", "mean_abs_pct", "max_abs_pct", "bias_pct", "bias_interval_pct", "size_interval_pct")


def format_check(profile: Profile, checked: Sequence[CheckedMetric]) -> str:
    """Format a row a quantity; then what has drifted, in words, and what to do."""
    return to_text([check_table(profile, checked)])


def check_table(profile: Profile, checked: Sequence[CheckedMetric]) -> Table:
    """Return how far each quantity is off, and what is allowed; what could not be measured has no row, but a note."""
    from calibrate.fresh_points import holds, is_judged, is_narrow  # with scipy, which is slow to import

    errors = (Column("error", "%", 1), Column("largest", "%", 1), Column("bias", "%", 1, signed=True))
    allowed = (Column("95 % of it"), Column("allowed", "%", 1), Column("allowed bias", "%", 1))
    header = [Column("checked"), Column("measured"), *errors, *allowed, Column("verdict", is_text=True)]
    vague = [each for each in checked if not is_narrow(each) and not each.not_judged]
    notes = lines_of("check", "notes", profile, checked, vague, holds(checked), is_judged(checked))
    return Table(header, [_row(each) for each in checked if each.pairs], notes=notes)


def _row(metric: CheckedMetric) -> list[Cell]:
    low, high = (number(end, 1, signed=True) for end in metric.bias_interval_pct)
    errors = metric.median_abs_pct, metric.max_abs_pct, metric.bias_pct, f"{low} to {high}"
    allowed = metric.allowed
    return [metric.metric, len(metric.pairs), *errors, allowed.size_pct, allowed.bias_pct, metric.verdict]


def check_document(profile: Profile, warnings: Sequence[str], checked: Sequence[CheckedMetric]) -> dict[str, Any]:
    """Return `slimsched.check/1`: errors in per cent, predicted and measured values in the quantity's own unit."""
    from calibrate.fresh_points import holds, is_judged  # with scipy

    return {
        "schema": SCHEMA,
        "profile": profile.name,
        "device": profile.device.name,
        "holds": holds(checked),
        "judged": is_judged(checked),
        "warnings": list(warnings),
        "metrics": [_entry(each) for each in checked],
    }


def _entry(metric: CheckedMetric) -> dict[str, Any]:
    return {
        **{key: getattr(metric, key) for key in ("metric", "verdict", "not_judged", "finding", "looks")},
        "allowed_size_pct": metric.allowed.size_pct,
        "allowed_bias_pct": metric.allowed.bias_pct,
        **({key: getattr(metric, key) for key in _ERRORS} if metric.pairs else {}),
        "pairs": [asdict(pair) for pair in metric.pairs],
    }


DISTURBED = "disturbed"  # the stamp of steps that were disturbed
UNRELIABLE_SHARE = 0.05  # of the steps may have stayed so
PROMISES_NOTHING = (
    "DERIVED FROM A DATASHEET: nothing was measured, no error is promised. Good for trying things out; `slimsched "
    "calibrate` measures a device"
)


def described(profile: Profile) -> str:
    """Describe all of a profile but its curves."""
    stamps = {key: value for key, value in profile.device.stamps.items() if key != DISTURBED}
    disturbed = unreliable(profile) or profile.device.stamps.get(DISTURBED, "")
    header = f"{profile.name}: {profile.device.name} ({profile.device.kind}), {profile.origin}"
    parts = [f"{header}\n{to_text([facts(lines_of('profile', 'facts', profile, stamps, disturbed))])}"]
    if profile.provenance == Provenance.DATASHEET:
        parts.append(f"{PROMISES_NOTHING}.")
    return to_text([*parts, *tables_of(profile)])


def tables_of(profile: Profile) -> list[Table]:
    """Return tables of a profile's errors, and of the ranges where they hold; none of what it lacks."""
    return [table for table in (error_table(profile), range_table(profile)) if table.rows]


def error_table(profile: Profile) -> Table:
    """Return how far each quantity of the profile may be off."""
    percents = (Column(header, "%", 2) for header in ("median", "mean", "90th percentile", "largest"))
    rows = [
        [of.metric, of.kind, of.median_abs_pct, of.mean_abs_pct, of.p90_abs_pct, of.max_abs_pct, of.points]
        for of in profile.errors
    ]
    return Table([Column("error of"), Column("kind", is_text=True), *percents, Column("points")], rows)


def range_table(profile: Profile) -> Table:
    """Return where errors hold; beyond that everything is extrapolated."""
    rows = [[stated.metric, stated.quantity, f"{stated.low:g}", f"{stated.high:g}"] for stated in profile.ranges]
    return Table([Column("holds for"), Column("quantity", is_text=True), *columns("from", "to")], rows)


def unreliable(profile: Profile) -> str:
    """Describe a calibration of which many steps stayed disturbed, and by what; empty for a good one."""
    text = profile.device.stamps.get(DISTURBED, "")
    if match := re.search(r"of (\d+) points and sets, (\d+) stayed disturbed: (\d+) by .*, (\d+) below", text):
        steps, still, by_others, slow = map(int, match.groups())
        if still > UNRELIABLE_SHARE * steps:
            return say("profile", "unreliable", still, steps, by_others, slow)
    return ""


MAX_UNMETERED: Final = 0.01  # of the time: a run's first moments, before a sensor's second look


def format_result(result: Result) -> str:
    """Format one run: its numbers, then its servers."""
    header = say("run", "header", result)
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
    return to_text([f"{header}\n{to_text([facts(lines)])}", *tables])


def servers_table(result: Result) -> Table:
    """Return what each server did."""
    rows = [[server["name"], *(each.of(server) for each in OF_SERVERS)] for server in result["servers"]]
    return Table([Column("server"), *map(column, OF_SERVERS)], rows)


def format_score(score: Score | ClustersScore) -> str:
    """Format what a trained router was scored."""
    if "change" in score:
        return "\n".join(lines_of("run", "clusters_score", score))
    return "\n".join(lines_of("run", "score", score, leaves_many(score["shares"])))


def format_cluster(checked: CheckedCluster) -> str:
    """Format tables, then a line for each thing that does not fit, or that all does."""
    header = [Column(name, is_text=True) for name in ("host", "servers", "devices", "python", "torch", "code")]
    header += [Column("cores"), Column("memory free", "GB", 1, 1 / GB), Column("disk free", "GB", 1, 1 / GB)]
    tables = [Table(header, [_host(host) for host in checked.hosts], "Hosts")]
    if checked.measured is not None:
        tables += _between(checked.measured)
    return "\n".join([to_text(tables), *lines_of("check", "cluster", checked)])


def _host(host: CheckedHost) -> list[Cell]:
    facts = host.facts
    if facts is None:
        return [host.host, ", ".join(host.servers), *[None] * 7]
    texts = [host.host, ", ".join(host.servers), "; ".join(facts.devices), facts.python, facts.torch, facts.code]
    return [*texts, facts.cores, facts.free_bytes, facts.disk_free_bytes]


def _between(measured: ClusterMeasurements) -> list[Table]:
    clocks = [[clock.host, clock.offset_s, clock.error_s] for clock in measured.clocks]
    links = [[link.source, link.destination, link.latency_s, link.bandwidth_bytes_s] for link in measured.links]
    title = "Links (measured; a move's command and answer are part of its latency)"
    between = [Column("from"), Column("to", is_text=True), Column("latency", "ms", 3, 1e3), Column("MB/s", "", 0, 1e-6)]
    return [
        Table(
            [Column("host"), Column("ahead", "ms", 3, 1e3), Column("error", "ms", 3, 1e3)],
            clocks,
            "Clocks compared with the router's",
        ),
        Table(between, links, title),
    ]


MAX_PROBLEMS: Final = 5  # that are listed for a run


def format_replay(runs: Mapping[str, ReplayedRun]) -> str:
    """Describe what is wrong with each run; of one that replays, a line, and one for each log, unless one holds all."""
    return "\n".join(_run_text(path, run) for path, run in runs.items())


def _run_text(path: str, run: ReplayedRun) -> str:
    if problems := run["problems"]:
        extra = len(problems) - MAX_PROBLEMS
        return "\n".join([*problems[:MAX_PROBLEMS], *([f"{path}: and {extra:,} more"] if extra > 0 else [])])
    steps = sum(log["steps"] for log in run["logs"])
    text = f"{path}: identical commands in {steps:,} steps"
    if run["micro_batches"]:
        micro_batches = (
            ", ".join(f"{count:,} {fate}" for fate, count in run["micro_batches"].items() if count) or "none"
        )
        text = f"{text}; micro-batches: {micro_batches}"
    return text if len(run["logs"]) == 1 and run["micro_batches"] else "\n".join([text, *map(_log_text, run["logs"])])


def _log_text(log: ReplayedLog) -> str:
    if log["ended"] is None:
        return f"  {log['file']}: {log['of']}, {log['steps']:,} steps"
    end = f"{log['ended']} ({log['heard']:,} heard of)" if log["ended"] else "to the run's end"
    return f"  {log['file']}: {log['of']}, {log['steps']:,} steps, {end}"


def format_versions(versions: Sequence[Mapping[str, Any]]) -> str:
    """Format a row for each version that serves while a canary is on."""
    header = [Column("version"), Column("is"), Column("requests", "%", 1, 100), Column("p50", "ms", 1)]
    header += [Column("p99", "ms", 1), Column("accuracy", "%", 2, 100), Column("images"), Column("failed")]
    header += [Column("compared"), Column("agreed", "%", 1, 100)]
    names = ("version", "role", "share", "p50_ms", "p99_ms", "accuracy", "answered", "failed", "compared")
    rows = [
        [*(version[name] for name in names), version["agreed"] / version["compared"] if version["compared"] else None]
        for version in versions
    ]
    title = "in the last minute: requests, latencies, accuracy by the tables; in all: the other columns"
    return to_text([Table(header, rows, title)])


def format_load(document: Mapping[str, Any]) -> str:
    """Format one row: what was offered, what was answered and how soon, and what was not."""
    latencies = [Column(name, "ms", 1, 1e3) for name in ("mean", "p50", "p99", "max")]
    fates = ("answered", "refused", "late", "unanswered")
    header = [Column("offered", "img/s", 1), Column("goodput", "img/s", 1), *latencies]
    header += [
        Column("answered"),
        Column("refused", "429"),
        Column("late", "504"),
        Column("unanswered"),
        Column("other"),
    ]
    header += [Column("lag p99", "ms", 1, 1e3)]
    row = [document[name] for name in ("offered_img_s", "goodput_img_s")]
    row += [document["latency_s"][latency.header] for latency in latencies]
    other = document["requests"] - sum(document[name] for name in fates)
    row += [*(document[name] for name in fates), other, document["lag_p99_s"]]
    of_classes = [
        [
            name,
            *(metrics["latency_s"][latency.header] for latency in latencies),
            metrics["answered"],
            metrics["requests"],
        ]
        for name, metrics in document.get("classes", {}).items()
    ]
    tables = [Table(header, [row], f"{document['requests']} requests of {document['images']} to {document['url']}")]
    if of_classes:
        tables.append(Table([Column("class"), *latencies, Column("answered"), Column("requests")], of_classes))
    return to_text(tables)
