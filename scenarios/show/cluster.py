"""What `slimsched cluster check` found: hosts, links, clocks, and what does not fit."""

from __future__ import annotations

from scenarios.files.spec import GB
from scenarios.metrics.cluster import CheckedCluster, CheckedHost, ClusterMeasurements
from scenarios.show.numbers import number
from scenarios.show.table import Column, Table, to_text
from scenarios.show.wording import lines_of
from scenarios.terminal.screen import screen_width


def format_cluster(checked: CheckedCluster) -> str:
    """Format tables, then a line for each thing that does not fit, or that all does."""
    head = [Column(name, is_text=True) for name in ("host", "servers", "devices", "python", "torch", "code")]
    head += [Column("cores"), Column("memory free", "GB"), Column("disk free", "GB")]
    tables = [Table(head, [_host(each) for each in checked.hosts], "Hosts")]
    if checked.measured is not None:
        tables += _between(checked.measured)
    return "\n".join([to_text(tables, screen_width()), *lines_of("check", "cluster", checked)])


def _host(each: CheckedHost) -> list[str]:
    facts = each.facts
    if facts is None:
        return [each.host, ", ".join(each.servers), *["-"] * 7]
    texts = [each.host, ", ".join(each.servers), "; ".join(facts.devices), facts.python, facts.torch, facts.code]
    return [*texts, str(facts.cores), number(facts.free_bytes / GB, 1), number(facts.disk_free_bytes / GB, 1)]


def _between(measured: ClusterMeasurements) -> list[Table]:
    clocks = [[each.host, number(each.offset_s, 3, 1e3), number(each.error_s, 3, 1e3)] for each in measured.clocks]
    links = [
        [each.source, each.destination, number(each.latency_s, 3, 1e3), number(each.bandwidth_bytes_s, 0, 1e-6)]
        for each in measured.links
    ]
    host, source, destination = (Column(name, is_text=True) for name in ("host", "from", "to"))
    title = "Links (measured; a move's command and answer are part of its latency)"
    return [
        Table([host, Column("ahead", "ms"), Column("error", "ms")], clocks, "Clocks beside the router's"),
        Table([source, destination, Column("latency", "ms"), Column("MB/s")], links, title),
    ]
