"""A first scenario for a trace: what a user edits, with a comment at each choice."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from policies.errors import InputError
from scenarios.training_jobs.trace import JobTrace

_NODES: Final = re.compile(r"(?P<count>\d{1,7})x(?P<gpus>\d{1,4})(?::(?P<type>[^:=]+))?(?:=(?P<vc>.+))?")


@dataclass(frozen=True, slots=True)
class Nodes:
    """Some equal nodes."""

    count: int
    gpus: int
    type: str
    vc: str

    @property
    def line(self) -> str:
        """In the scenario."""
        vc = f", vc: {_quoted(self.vc)}" if self.vc else ""
        return f"    - {{count: {self.count}, gpus: {self.gpus}, type: {_quoted(self.type)}{vc}}}"


def nodes_of(text: str) -> Nodes:
    """`64x8`, `64x8:v100`, `16x4:a100=prod`: nodes x GPUs of each, their type, their virtual cluster.

    Raises:
        InputError: it is none of these.
    """
    match = _NODES.fullmatch(text)
    if match is None or not int(match["count"]) or not int(match["gpus"]):
        raise InputError("--nodes", "", f"{text!r:.80} is no group of nodes; such are 64x8, 64x8:v100, 16x4:a100=VC")
    return Nodes(int(match["count"]), int(match["gpus"]), match["type"] or "gpu", match["vc"] or "")


def starter(trace: JobTrace, path: Path, nodes: tuple[Nodes, ...]) -> str:
    """The scenario's text.

    Raises:
        InputError: the file's name makes no name of a scenario.
    """
    name = re.sub(r"[^A-Za-z0-9._-]", "-", path.name.partition(".")[0]).strip("-._")
    if not name:
        raise InputError(
            str(path), "", "its name makes no name of a scenario; rename it, such as cluster.jobtrace.parquet"
        )
    has_requests = bool(np.isfinite(trace.requested_s).all())
    easy = ("fifo-easy-requested", "backfilling, by the time limits that users asked for")
    without = ("fifo-easy-history", "backfilling; the trace has no time limits, so by what past jobs foretell")
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
        _line("  least_run_s: 1800", "no job is stopped earlier; more than restart_s and checkpoint_s together"),
        "policies:",
        _line("  - fifo", "first come first served: the baseline"),
        _line(f"  - {easy[0]}" if has_requests else f"  - {without[0]}", easy[1] if has_requests else without[1]),
        _line("  - smallest", "fewest GPUs first; whoever fits may start"),
        _line("  - qssf", "smallest GPU time first, as past jobs of the same user and size foretell it"),
        _line("  - gittins", "the same with preemption: who is likely to end soon goes first"),
        _line("  - srsf-oracle", "knows true run times: no scheduler does, but it shows what knowing is worth"),
    ]
    return "\n".join(lines) + "\n"


def _line(said: str, comment: str) -> str:
    return f"{said.ljust(25)} # {comment}"


def _warmup(trace: JobTrace) -> str:
    """A tenth of the trace, a week at most."""
    days = min(float(trace.submit_s[-1]) / 86400 / 10, 7.0)
    return f"{round(days)}d" if days >= 1 else f"{max(round(days * 24), 1)}h"


def _quoted(text: str) -> str:
    """As YAML takes it, whatever is in it."""
    return text if re.fullmatch(r"[A-Za-z][A-Za-z0-9._/-]*", text) else "'" + text.replace("'", "''") + "'"
