"""What `slimsched cluster check` found: hosts, links, clocks, and what does not fit."""

from __future__ import annotations

from scenarios.files.spec import GB
from scenarios.metrics.cluster import CheckedCluster, CheckedHost, ClusterMeasurements
from scenarios.show.table import Cell, Column, Table, to_text
from scenarios.show.wording import lines_of


def format_cluster(checked: CheckedCluster) -> str:
    """Format tables, then a line for each thing that does not fit, or that all does."""
    head = [Column(name, is_text=True) for name in ("host", "servers", "devices", "python", "torch", "code")]
    head += [Column("cores"), Column("memory free", "GB", 1, 1 / GB), Column("disk free", "GB", 1, 1 / GB)]
    tables = [Table(head, [_host(each) for each in checked.hosts], "Hosts")]
    if checked.measured is not None:
        tables += _between(checked.measured)
    return "\n".join([to_text(tables), *lines_of("check", "cluster", checked)])


def _host(each: CheckedHost) -> list[Cell]:
    facts = each.facts
    if facts is None:
        return [each.host, ", ".join(each.servers), *[None] * 7]
    texts = [each.host, ", ".join(each.servers), "; ".join(facts.devices), facts.python, facts.torch, facts.code]
    return [*texts, facts.cores, facts.free_bytes, facts.disk_free_bytes]


def _between(measured: ClusterMeasurements) -> list[Table]:
    clocks = [[each.host, each.offset_s, each.error_s] for each in measured.clocks]
    links = [[each.source, each.destination, each.latency_s, each.bandwidth_bytes_s] for each in measured.links]
    title = "Links (measured; a move's command and answer are part of its latency)"
    between = [Column("from"), Column("to", is_text=True), Column("latency", "ms", 3, 1e3), Column("MB/s", "", 0, 1e-6)]
    return [
        Table(
            [Column("host"), Column("ahead", "ms", 3, 1e3), Column("error", "ms", 3, 1e3)],
            clocks,
            "Clocks beside the router's",
        ),
        Table(between, links, title),
    ]
