"""A first scenario for a trace: what a user edits, with a comment at each choice."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from jobs.trace import JobTrace
from kit.errors import InputError

_NODES: Final = re.compile(r"(?P<count>\d{1,7})x(?P<gpus>\d{1,4})(?::(?P<type>[^:=]+))?(?:=(?P<vc>.+))?")
_MAX_NAMED: Final = 5


@dataclass(frozen=True, slots=True)
class StarterNodes:
    """Some equal nodes; an empty type is not known yet."""

    count: int
    gpus: int
    type: str
    vc: str

    @property
    def line(self) -> str:
        """In the scenario."""
        vc = f", vc: {_quoted(self.vc)}" if self.vc else ""
        return f"    - {{count: {self.count}, gpus: {self.gpus}, type: {_quoted(self.type)}{vc}}}"


def nodes_of(text: str) -> StarterNodes:
    """`64x8`, `64x8:v100`, `16x4:a100=prod`: nodes x GPUs of each, their type, their virtual cluster.

    Raises:
        InputError: it is none of these.
    """
    match = _NODES.fullmatch(text)
    if match is None or not int(match["count"]) or not int(match["gpus"]):
        raise InputError("--nodes", "", f"{text!r:.80} is no group of nodes; such are 64x8, 64x8:v100, 16x4:a100=VC")
    return StarterNodes(int(match["count"]), int(match["gpus"]), match["type"] or "", match["vc"] or "")


def typed(nodes: tuple[StarterNodes, ...], trace: JobTrace) -> tuple[StarterNodes, ...]:
    """The groups with the only type that jobs of the trace ask for, where they name none.

    Raises:
        InputError: a group names no type and the trace has several; or no group has a type that jobs ask for, and no
            job does without.
    """
    asked = set(trace.codes("gpu_types")[0].tolist())
    kinds = sorted({kind for text in asked for kind in text.split("|") if kind})
    if not kinds:
        return tuple(replace(group, type=group.type or "gpu") for group in nodes)
    first = nodes[0]
    such = ", ".join(f"--nodes {first.count}x{first.gpus}:{kind}" for kind in kinds[:_MAX_NAMED])
    such += " and so on" if len(kinds) > _MAX_NAMED else ""
    if len(kinds) > 1 and not all(group.type for group in nodes):
        raise InputError("--nodes", "", f"jobs ask for several types of GPUs: say which type the nodes have: {such}")
    found = tuple(replace(group, type=group.type or kinds[0]) for group in nodes)
    named = {group.type for group in found}
    if "" not in asked and not named & set(kinds):
        types = ", ".join(map(repr, sorted(named)))
        raise InputError("--nodes", "", f"no job asks for GPUs of type {types}, and each asks for some; write {such}")
    return found


def starter(trace: JobTrace, path: Path, nodes: tuple[StarterNodes, ...]) -> str:
    """The scenario's text.

    Raises:
        InputError: the file's name makes no name of a scenario.
    """
    name = re.sub(r"[^A-Za-z0-9._-]", "-", path.name.partition(".")[0]).strip("-._")
    if not name:
        raise InputError(
            str(path), "", "its name makes no name of a scenario; rename it, such as cluster.jobtrace.parquet"
        )
    have_limits = float(np.isfinite(trace.requested_s).mean())
    easy = ("fifo-easy-requested", "backfilling, by the time limits that users asked for")
    without = ("fifo-easy-history", f"backfilling; {_limits_text(have_limits)}, so by what past jobs foretell")
    lines = [
        "schema: slimsched.jobs/1",
        f"name: {name}",
        f"trace: {_quoted(str(path))}",
        "cluster:",
        "  nodes:",
        *(group.line for group in nodes),
        _line("  restart_s: 60", "to go on after a stop: loading the model and its data again"),
        _line("  checkpoint_s: 600", "jobs keep their work so often; what came after that is lost at a stop"),
        _line(f"warmup_s: {_warmup(trace)}", "the cluster begins empty: jobs of this time are run, not measured"),
        "preemption:",
        _line("  round_s: 600", "how often running and waiting jobs are compared"),
        _line("  min_run_s: 1800", "no job is stopped earlier; more than restart_s and checkpoint_s together"),
        "policies:",
        _line("  - fifo", "first come first served: the baseline"),
        _line(f"  - {easy[0]}", easy[1]) if have_limits == 1 else _line(f"  - {without[0]}", without[1]),
        _line("  - smallest", "fewest GPUs first; whoever fits may start"),
        _line("  - qssf", "smallest GPU time first, as past jobs of the same user and size foretell it"),
        _line("  - gittins", "the same with preemption: who is likely to end soon goes first"),
        _line("  - srsf-oracle", "knows true run times: no scheduler does, but it shows what knowing is worth"),
    ]
    return "\n".join(lines) + "\n"


def _line(said: str, comment: str) -> str:
    return f"{said.ljust(25)} # {comment}"


def _limits_text(share: float) -> str:
    """Never rounded to none or all."""
    if not share:
        return "the trace has no time limits"
    percent = min(max(round(100 * share), 1), 99)
    return f"not all jobs have time limits ({percent} % have)"


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
