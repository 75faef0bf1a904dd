"""Reading of a `slurm.conf`: the nodes, priorities and backfilling settings that a scenario has keys for.

Lines and their words: slurm.schedmd.com/slurm.conf.html. Other settings are reported, as they are not simulated.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, product
from pathlib import Path
from typing import Any, Final

from jobs.policies.job_cluster import NodeGroup
from jobs.policies.job_orders import MULTIFACTOR
from jobs.policies.named_policies import NONE, JobPolicy, shown_name
from jobs.policies.run_times import REQUESTED
from kit.documents import read_text
from kit.errors import InputError

MOST_NODES: Final = 100_000
_PAIR: Final = re.compile(r'(\w+)\s*=\s*("[^"]*"|\S+)')
_NAMES: Final = re.compile(r"(?:[^,\[]|\[[^\]]*\])+")  # items of a host list; commas within brackets don't separate
_WEIGHTS: Final = {
    "priorityweightage": "weight_age",
    "priorityweightjobsize": "weight_size",
    "priorityweightfairshare": "weight_fairshare",
}
_SPANS: Final = {
    "prioritymaxage": ("max_age_s", "7-0"),
    "prioritydecayhalflife": ("half_life_s", "7-0"),
    "prioritycalcperiod": ("period_s", "5"),
}
_OTHER_WEIGHTS: Final = ("PriorityWeightQOS", "PriorityWeightPartition", "PriorityWeightAssoc", "PriorityWeightTRES")
Settings = Mapping[str, str]  # by lower-case key


@dataclass(frozen=True, slots=True)
class SlurmConf:
    """Settings found in a `slurm.conf`.

    Attributes:
        nodes: nodes with GPUs; with a virtual cluster, if each node is in one partition and there are several.
        policy: the name of its policy; with `requested` if it uses time limits.
        multifactor: numbers of its priorities, by the scenario's keys; empty if it has none.
        bf_interval_s: interval of backfilling; 0 without backfilling.
        notes: settings that are not simulated.
    """

    nodes: tuple[NodeGroup, ...]
    policy: str
    multifactor: Mapping[str, Any]
    bf_interval_s: float
    notes: tuple[str, ...]


def read_slurm_conf(path: Path) -> SlurmConf:
    """Read a `slurm.conf`.

    Raises:
        InputError: it can't be read, or has no node with GPUs.
    """
    lines = [{key.lower(): value.strip('"') for key, value in _PAIR.findall(line)} for line in _lines(path)]
    others = (line for line in lines if not line.keys() & {"nodename", "partitionname", "nodeset", "downnodes"})
    settings = dict(chain.from_iterable(line.items() for line in others))
    notes: list[str] = []
    nodes = _nodes(lines, str(path), notes)
    parameters = dict(part.partition("=")[::2] for part in settings.get("schedulerparameters", "").split(","))
    backfills = settings.get("schedulertype", "sched/backfill").lower() != "sched/builtin"
    multifactor = _multifactor(settings, str(path), notes)
    queueing = "easy" if parameters.get("bf_job_part_count_reserve", "0") not in ("", "0") else "conservative"
    order = MULTIFACTOR if multifactor else "fifo"
    policy = JobPolicy(order, queueing, estimate=REQUESTED) if backfills else JobPolicy(order, "strict", estimate=NONE)
    if settings.get("preempttype", "preempt/none").lower() != "preempt/none":
        notes.append("PreemptType: jobs are stopped by their QOS or partition, which no log records")
    interval_s = _number(parameters.get("bf_interval") or "30", "SchedulerParameters", str(path)) if backfills else 0.0
    return SlurmConf(nodes, shown_name(policy), multifactor, interval_s, tuple(notes))


def _lines(path: Path, within: tuple[Path, ...] = ()) -> Iterator[str]:
    """Yield lines without comments; continued lines are joined, and included files inserted."""
    if path in within:
        raise InputError(str(path), "Include", "includes itself")
    for line in re.sub(r"\\\n", " ", read_text(path)).splitlines():
        text = line.partition("#")[0].strip()
        if text.lower().startswith("include "):
            yield from _lines(path.parent / text.split(None, 1)[1], (*within, path))
        elif text:
            yield text


# ---------------------------------------------------------------------------------------------------------------- nodes


@dataclass(frozen=True, slots=True)
class _Node:
    """A node: the types of its GPUs with the number of each, and the words that node sets use."""

    gpus: tuple[tuple[str, int], ...]
    features: frozenset[str]


def _nodes(lines: list[dict[str, str]], source: str, notes: list[str]) -> tuple[NodeGroup, ...]:
    present = _present(lines, source, notes)
    gpus = {name: node.gpus for name, node in present.items() if node.gpus}
    if not gpus:
        raise InputError(source, "NodeName", "no node has GPUs (Gres=gpu:...); give the nodes by --nodes")
    if any(len(kinds) > 1 for kinds in gpus.values()):
        notes.append("Gres: nodes with GPUs of several types are taken for several nodes, one of each type")
    partition_of = _partitions(lines, source, present, notes)
    groups = Counter((many, kind, partition_of.get(node, "")) for node, kinds in gpus.items() for kind, many in kinds)
    return tuple(NodeGroup(count, many, kind, vc) for (many, kind, vc), count in groups.items())


def _present(lines: list[dict[str, str]], source: str, notes: list[str]) -> dict[str, _Node]:
    """Return nodes by name; nodes that are planned or down are noted, and have no GPUs."""
    nodes: dict[str, _Node] = {}
    absent: dict[str, set[str]] = {"FUTURE": set(), "DOWN": set()}
    for line in _with_defaults(lines, "nodename"):
        names, state = hosts(line["nodename"], source), line.get("state", "").upper().partition("+")[0]
        if state in absent:
            absent[state] |= set(names)
        features = line.get("features", line.get("feature", "")).split(",")
        nodes |= dict.fromkeys(names, _Node(_gpus(line.get("gres", ""), source), frozenset(features)))
    for line in lines:
        if "downnodes" in line and line.get("state", "DOWN").upper() == "DOWN":
            absent["DOWN"] |= set(hosts(line["downnodes"], source))
    for state, absent_names in absent.items():
        if out := sorted(absent_names & nodes.keys()):
            notes.append(f"State={state}: {len(out)} nodes are left out ({out[0]}{', ...' if out[1:] else ''})")
            nodes |= dict.fromkeys(out, _Node((), frozenset()))
    return nodes


def _with_defaults(lines: list[dict[str, str]], kind: str) -> Iterator[dict[str, str]]:
    """Yield the lines of a kind with the defaults of DEFAULT lines before each, which accumulate; case is ignored."""
    defaults: dict[str, str] = {}
    for line in lines:
        if line.get(kind, "").upper() == "DEFAULT":
            defaults |= line
        elif kind in line:
            yield {**defaults, **line}


def _gpus(gres: str, source: str) -> tuple[tuple[str, int], ...]:
    """Parse (type, number) pairs of `gpu:a100:8(S:0-1),gpu:v100:2,nvme`."""
    kinds = []
    for part in re.sub(r"\([^)]*\)", "", gres).split(","):
        name, *rest = part.split(":")
        if name.lower() == "gpu":
            many = rest[-1] if rest and rest[-1].isdigit() else "1"
            kind = next((text for text in rest if not text.isdigit() and text != "no_consume"), "")
            kinds.append((kind, int(_number(many, "Gres", source))))
    return tuple(kinds)


def _partitions(
    lines: list[dict[str, str]], source: str, nodes: Mapping[str, _Node], notes: list[str]
) -> Mapping[str, str]:
    """Return the partition of each node with GPUs, if each has exactly one and there are several; otherwise none."""
    sets = _node_sets(lines, source, nodes)
    members = dict[str, set[str]]()
    unknown = dict[str, list[str]]()
    for line in _with_defaults(lines, "partitionname"):
        listed = set[str]()
        for name in hosts(line.get("nodes", ""), source):
            if name.upper() == "ALL":
                listed |= set(nodes)
            elif name in sets or name in nodes:
                listed |= sets.get(name, {name})
            else:
                unknown.setdefault(line["partitionname"], []).append(name)
        if with_gpus := {name for name in listed if nodes[name].gpus}:
            members[line["partitionname"]] = with_gpus
    for partition, names in unknown.items():
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        notes.append(f"PartitionName: {partition} names {names[0]}{more}, which is not a node")
    partition_of = {node: name for name, node_names in members.items() for node in node_names}
    if is_shared := sum(map(len, members.values())) > len(partition_of):
        notes.append(f"PartitionName: {', '.join(members)} share nodes, so every job may use every node here")
    return {} if is_shared or len(members) < 2 else partition_of


def _node_sets(lines: list[dict[str, str]], source: str, nodes: Mapping[str, _Node]) -> dict[str, set[str]]:
    """Return the nodes of each `NodeSet`, by its list and its feature."""
    sets: dict[str, set[str]] = {}
    for line in lines:
        if "nodeset" in line:
            feature = line.get("feature", "")
            by_feature = {name for name, node in nodes.items() if feature and feature in node.features}
            listed = {name for name in hosts(line.get("nodes", ""), source) if name in nodes}
            sets.setdefault(line["nodeset"], set()).update(by_feature, listed)
    return sets


def hosts(text: str, source: str) -> list[str]:
    """Expand names such as `n[1-3,07],login,r[1-2]n[1-4]`.

    Raises:
        InputError: the list is empty, or has more than `MOST_NODES`.
    """
    names: list[str] = []
    for part in _NAMES.findall(text):
        pieces = re.findall(r"\[[^\]]*\]|[^\[]+", part)
        ranges = (_range(piece[1:-1], text, source) if piece.startswith("[") else [piece] for piece in pieces)
        names += map("".join, product(*ranges))
        if len(names) > MOST_NODES:
            raise InputError(source, "NodeName", f"{text!r:.80} names more than {MOST_NODES:,} nodes")
    return names


def _range(text: str, whole: str, source: str) -> list[str]:
    numbers: list[str] = []
    for part in text.split(","):
        first, _, last = part.partition("-") if "-" in part else (part, "", part)
        if not (first.isdigit() and last.isdigit() and int(first) <= int(last) < int(first) + MOST_NODES):
            raise InputError(
                source, "NodeName", f"{whole!r:.80} is not a list of nodes; such are n[1-8] and n[01-03,7]"
            )
        numbers += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return numbers


# ----------------------------------------------------------------------------------------------------------- priorities


def _multifactor(settings: Settings, source: str, notes: list[str]) -> dict[str, Any]:
    """Return the numbers of the priorities; none if all jobs have the same."""
    if settings.get("prioritytype", "priority/multifactor").lower() != "priority/multifactor":
        return {}
    weights = {name: _number(settings.get(key, "0"), key, source) for key, name in _WEIGHTS.items()}
    if others := [key for key in _OTHER_WEIGHTS if settings.get(key.lower(), "0") != "0"]:
        notes.append(f"{', '.join(others)}: priorities by these are not simulated")
    if not any(weights.values()):
        return {}
    if weights["weight_fairshare"]:
        notes.append("PriorityWeightFairshare: all users are children of one root, whatever accounts they have")
    spans = {name: span_s(settings.get(key, usual), key, source) for key, (name, usual) in _SPANS.items()}
    return {
        **weights,
        **spans,
        "fair_tree": "NO_FAIR_TREE" not in settings.get("priorityflags", "").upper(),
        "favors_small": settings.get("priorityfavorsmall", "no").lower() in ("yes", "true", "1"),
        "damping": _number(settings.get("fairsharedampeningfactor", "1"), "FairShareDampeningFactor", source),
    }


def _number(text: str, key: str, source: str) -> float:
    if not re.fullmatch(r"\d+(\.\d+)?", text):
        raise InputError(source, key, f"{text!r:.80} is not a number")
    return float(text)


def span_s(text: str, key: str, source: str) -> float:
    """Parse minutes, `minutes:seconds`, `hours:minutes:seconds` or `days-hours:minutes:seconds`.

    Raises:
        InputError: it has none of these forms.
    """
    days, dash, rest = text.rpartition("-")
    parts = rest.split(":")
    units_s = (3600, 60, 1) if dash or len(parts) > 2 else (60, 1)
    if not all(part.isdigit() for part in (*parts, days or "0")) or len(parts) > len(units_s):
        raise InputError(source, key, f"{text!r:.80} is not a time; such are 5, 7-0 and 14-00:00:00")
    return 86400.0 * int(days or 0) + sum(unit_s * int(part) for unit_s, part in zip(units_s, parts, strict=False))
