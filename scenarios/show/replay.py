"""What replay has found, as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from scenarios.runs.replays import ReplayedLog, ReplayedRun

MAX_PROBLEMS: Final = 5  # that are listed for a run


def format_replay(runs: Mapping[str, ReplayedRun]) -> str:
    """Describe what is wrong with each run; of one that replays, a line, and one for each log, unless one holds all."""
    return "\n".join(_run_text(place, run) for place, run in runs.items())


def _run_text(place: str, run: ReplayedRun) -> str:
    if problems := run["problems"]:
        more = len(problems) - MAX_PROBLEMS
        return "\n".join([*problems[:MAX_PROBLEMS], *([f"{place}: and {more:,} more"] if more > 0 else [])])
    steps = sum(log["steps"] for log in run["logs"])
    text = f"{place}: identical commands in {steps:,} steps"
    if run["blocks"]:
        blocks = ", ".join(f"{count:,} {fate}" for fate, count in run["blocks"].items() if count) or "none"
        text = f"{text}; blocks: {blocks}"
    return text if len(run["logs"]) == 1 and run["blocks"] else "\n".join([text, *map(_log_text, run["logs"])])


def _log_text(log: ReplayedLog) -> str:
    if log["ended"] is None:
        return f"  {log['file']}: {log['of']}, {log['steps']:,} steps"
    end = f"{log['ended']} ({log['heard']:,} heard of)" if log["ended"] else "to the run's end"
    return f"  {log['file']}: {log['of']}, {log['steps']:,} steps, {end}"
