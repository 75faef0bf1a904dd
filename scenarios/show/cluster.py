"""What `slimsched cluster check` found: hosts, links, clocks, and what does not fit."""

from __future__ import annotations

from scenarios.files.spec import GB
from scenarios.metrics.cluster import CheckedCluster, CheckedHost, HostLink, Measured
from scenarios.show.numbers import number
from scenarios.show.table import Column, Table, to_text
from scenarios.terminal.screen import screen_width


def format_cluster(found: CheckedCluster) -> str:
    """Tables, then a line for each thing that does not fit, or that all does."""
    tables = [_hosts(found)]
    if found.measured is not None:
        tables += [_clocks(found.measured), _links(found.measured)]
    return "\n".join([to_text(tables, screen_width()), *_conclusion(found)])


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
    latency_s, bandwidth_bytes_s = each.link.latency_s, each.link.bandwidth_bytes_s
    return [each.source, each.destination, number(1e3 * latency_s, 3), number(bandwidth_bytes_s / 1e6, 0)]


def _conclusion(found: CheckedCluster) -> list[str]:
    lines = [f"{each.host}: {problem}" for each in found.hosts for problem in each.problems]
    if found.others:
        lines.append(f"not used by this scenario: {', '.join(found.others)}")
    if found.fits:
        lines.append("all fits: `slimsched run` may begin")
    return lines
