"""What a calibration is about to do and what it costs, before it begins; and whether its budget makes any sense.

It reads the log that it will go on with; it measures nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Set
from itertools import count
from pathlib import Path
from typing import Any

from calibrate.plan import LEAST, USABLE_SHARE, Plan, Planned, Solo, Steady
from calibrate.session import start_s
from kit.errors import InputError

TOO_LITTLE = 2.0  # times the budget: what needs more was not meant
SENSIBLE_STEP_S = 5.0


def announcement(
    plan: Plan, *, name: str, device: str, budget_s: float, log_path: Path, kind: str = "cpu", reserved_s: float = 0.0
) -> str:
    """A few lines for people: what is measured, how long it takes, the log, and what the budget leaves out.

    Args:
        budget_s: for the start and for measuring.
        kind: of the device.
        reserved_s: what was taken off the budget that the user gave, for what serving costs.
    """
    finished, spent_s = read_log(log_path)
    required = sum(planned.required for planned in plan.steps)
    keys = {planned.step.point.key for planned in plan.steps if isinstance(planned.step, Solo)}
    done = sum(planned.id in finished for planned in plan.steps)
    usable_s = max(0.0, budget_s - start_s(kind, budget_s, metered=_is_metered(plan))) - spent_s
    lines = [
        f"calibrate {name}: {device}",
        f"  steps       {required} in any case, {len(plan.steps) - required} more while time is left: "
        f"{len(keys)} keys x {len(plan.batches)} batch sizes ({', '.join(map(str, plan.batches))}) and more",
        f"  time        {_time(_left(plan, finished), budget_s - spent_s, usable_s)}; the budget is "
        f"{span(budget_s + reserved_s)}" + (f", of which the log has used {span(spent_s)}" if spent_s else ""),
        f"  log         {log_path}, {done} of {len(plan.steps)} steps are done; an interrupted one goes on from there",
    ]
    return "\n".join([*lines, *(f"  left out    {text}" for text in plan.omitted)])


def _time(left: list[Planned], budget_s: float, usable_s: float) -> str:
    """What is not required stops with the budget; what is required does not."""
    required_s = sum(planned.estimated_s for planned in left if planned.required)
    if not left:
        return "finished already; nothing is left to do"
    if min(planned.estimated_s for planned in left) > usable_s and not required_s:
        return "nothing more fits: give more to go on"
    if required_s > budget_s:
        return f"about {span(required_s)}, all of which is required"
    return f"about {span(max(required_s, min(sum(planned.estimated_s for planned in left), budget_s)))}"


def require_budget(plan: Plan, budget_s: float, log_path: Path, source: str, key: str, kind: str = "cpu") -> None:
    """What must be measured in any case has to fit somehow; the time that it takes is a guess.

    Args:
        source, key: who gave the budget.
        kind: of the device.

    Raises:
        InputError: the budget is far too small; it names the smallest sensible one. The log is kept.
    """
    required = [planned for planned in _left(plan, read_log(log_path)[0]) if planned.required]
    needed_s = sum(planned.estimated_s for planned in required)
    if plan.effort == LEAST and needed_s > TOO_LITTLE * budget_s:
        sensible_s = _sensible_s(plan, needed_s / USABLE_SHARE, kind)
        problem = f"{span(budget_s)} is too little: every combination of segment and widths must be measured, "
        problem += f"which takes about {span(needed_s)}"
        raise InputError(source, key, f"{problem} here; give {sensible_s:.0f}s or more, or lower the batch limit")


def _sensible_s(plan: Plan, needed_s: float, kind: str) -> float:
    """The smallest round budget that leaves so much once all is open."""
    budgets_s = (SENSIBLE_STEP_S * number for number in count(1))
    return next(s for s in budgets_s if s - start_s(kind, s, metered=_is_metered(plan)) >= needed_s)


def _is_metered(plan: Plan) -> bool:
    return any(isinstance(planned.step, Steady) for planned in plan.steps)


def _left(plan: Plan, finished: Set[str]) -> list[Planned]:
    return [planned for planned in plan.steps if planned.id not in finished]


def read_log(log_path: Path) -> tuple[Set[str], float]:
    """The finished steps that a calibration's log holds, and the seconds that they took; a torn line holds nothing."""
    records = list(_records(log_path)) if log_path.is_file() else []
    elapsed_s = (record.get("elapsed_s") for record in records)
    return {record["step"] for record in records}, sum(s for s in elapsed_s if isinstance(s, int | float))


def _records(log_path: Path) -> Iterator[dict[str, Any]]:
    for line in log_path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict) and isinstance(record.get("step"), str):
            yield record


def span(duration_s: float) -> str:
    """A while, in the two units that people would take."""
    seconds = round(duration_s)
    if seconds < 60:
        return f"{seconds if seconds >= 10 else round(duration_s, 1):g} s"
    big, small, units = (
        (*divmod(seconds, 60), "min s") if seconds < 3600 else (*divmod(round(seconds / 60), 60), "h min")
    )
    one, other = units.split()
    return f"{big} {one}" + (f" {small} {other}" if small else "")
