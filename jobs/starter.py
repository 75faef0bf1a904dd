"""A first scenario for a trace: what a user edits, with a comment at each choice."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Final

from jinja2 import Environment, PackageLoader

from jobs.policies.cluster import NodeGroup
from jobs.site import Site
from jobs.trace import JobTrace
from kit.errors import InputError

_NODES: Final = re.compile(r"(?P<count>\d{1,7})x(?P<gpus>\d{1,4})(?::(?P<type>[^:=]+))?(?:=(?P<vc>.+))?")
_MAX_NAMED: Final = 5


def nodes_of(text: str) -> NodeGroup:
    """`64x8`, `64x8:v100`, `16x4:a100=prod`: nodes x GPUs of each, their type (empty: unknown), their virtual cluster.

    Raises:
        InputError: it is none of these.
    """
    match = _NODES.fullmatch(text)
    if match is None or not int(match["count"]) or not int(match["gpus"]):
        raise InputError("--nodes", "", f"{text!r:.80} is no group of nodes; such are 64x8, 64x8:v100, 16x4:a100=VC")
    return NodeGroup(int(match["count"]), int(match["gpus"]), match["type"] or "", match["vc"] or "")


def typed(nodes: tuple[NodeGroup, ...], trace: JobTrace) -> tuple[NodeGroup, ...]:
    """The groups with the only type that jobs of the trace ask for, where they name none.

    Raises:
        InputError: a group names no type and the trace has several; or no group has a type that jobs ask for, and no
            job does without.
    """
    kinds = sorted(trace.asked_types)
    if not kinds:
        return tuple(replace(group, gpu_type=group.gpu_type or "gpu") for group in nodes)
    first = nodes[0]
    such = ", ".join(f"--nodes {first.nodes}x{first.gpus}:{kind}" for kind in kinds[:_MAX_NAMED])
    such += " and so on" if len(kinds) > _MAX_NAMED else ""
    if len(kinds) > 1 and not all(group.gpu_type for group in nodes):
        raise InputError("--nodes", "", f"jobs ask for several types of GPUs: say which type the nodes have: {such}")
    groups = tuple(replace(group, gpu_type=group.gpu_type or kinds[0]) for group in nodes)
    named = {group.gpu_type for group in groups}
    if "" not in trace.gpu_types and not named & set(kinds):
        types = ", ".join(map(repr, sorted(named)))
        raise InputError("--nodes", "", f"no job asks for GPUs of type {types}, and each asks for some; write {such}")
    return groups


def starter(trace: JobTrace, path: Path, nodes: tuple[NodeGroup, ...], site: Site) -> str:
    """The scenario's text, with what the log says that its site runs as the baseline.

    Raises:
        InputError: the file's name makes no name of a scenario.
    """
    name = re.sub(r"[^A-Za-z0-9._-]", "-", path.name.partition(".")[0]).strip("-._")
    if not name:
        raise InputError(
            str(path), "", "its name makes no name of a scenario; rename it, such as cluster.jobtrace.parquet"
        )
    templates = Environment(loader=PackageLoader("jobs"), trim_blocks=True, lstrip_blocks=True, autoescape=False)  # noqa: S701
    templates.filters["quoted"] = _quoted
    facts = {"name": name, "trace": str(path), "nodes": nodes, "warmup": _warmup(trace), "site": site}
    return templates.get_template("starter.yaml.j2").render(facts) + "\n"


def _warmup(trace: JobTrace) -> str:
    """A tenth of the trace, a week at most."""
    tenth_s = min(float(trace.submit_s[-1]) / 10, 7 * 86400.0)
    for unit, unit_s in (("d", 86400), ("h", 3600), ("m", 60)):
        if tenth_s >= unit_s:
            return f"{round(tenth_s / unit_s)}{unit}"
    return f"{int(tenth_s)}s"


def _quoted(text: str) -> str:
    """As YAML takes it, whatever is in it."""
    return text if re.fullmatch(r"[A-Za-z][A-Za-z0-9._/-]*", text) else "'" + text.replace("'", "''") + "'"
