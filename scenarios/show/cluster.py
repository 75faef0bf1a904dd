"""What `slimsched cluster check` found: hosts, links, clocks, and what does not fit."""

from __future__ import annotations

from scenarios.files.spec import GB
from scenarios.metrics.cluster import CheckedCluster, CheckedHost, HostLink, Measured
from scenarios.show.numbers import number
from scenarios.show.table import Column, Table, to_text
from scenarios.show.wording import lines_of
from scenarios.terminal.screen import screen_width


def format_cluster(found: CheckedCluster) -> str:
    """Tables, then a line for each thing that does not fit, or that all does."""
    tables = [_hosts(found)]
    if found.measured is not None:
        tables += [_clocks(found.measured), _links(found.measured)]
    return "\n".join([to_text(tables, screen_width()), *lines_of("check", "cluster", found)])


def _hosts(found: CheckedCluster) -> Table:
    head = [Column(name, is_text=True) for name in ("host", "servers", "devices", "python", "torch", "code")]
    head += [Column("cores"), Column("memory free", "GB"), Column("disk free", "GB")]
    return Table(head, [_host(each) for each in found.hosts], "Hosts")


def _host(each: CheckedHost) -> list[str]:
    facts = each.facts
    if facts is None:
        return [each.host, ", ".join(each.servers), *["-"] * 7]
    texts = [each.host, ", ".join(each.servers), "; ".join(facts.devices), facts.python, facts.torch, facts.code]
    return [*texts, str(facts.cores), number(facts.free_bytes / GB, 1), number(facts.disk_free_bytes / GB, 1)]


def _clocks(found: Measured) -> Table:
    head = [Column("host", is_text=True), Column("ahead", "ms"), Column("error", "ms")]
    rows = [[c.host, number(1e3 * c.offset_s, 3), number(1e3 * c.error_s, 3)] for c in found.clocks]
    return Table(head, rows, "Clocks beside the router's")


def _links(found: Measured) -> Table:
    head = [Column("from", is_text=True), Column("to", is_text=True), Column("latency", "ms"), Column("MB/s")]
    rows = [_link(each) for each in found.links]
    return Table(head, rows, "Links (measured; a move's command and answer are part of its latency)")


def _link(each: HostLink) -> list[str]:
    return [each.source, each.destination, number(each.latency_s, 3, 1e3), number(each.bandwidth_bytes_s, 0, 1e-6)]
