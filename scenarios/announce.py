"""What a calibration is about to do and what it costs, before it begins; and whether its budget makes any sense.

It reads the log that it will go on with; it measures nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence, Set
from itertools import count
from pathlib import Path

from calibrate.plan import LEAST, USABLE_SHARE, Dispatch, Hold, Plan, Planned, Solo, Steady, Step, Together, Transfer
from calibrate.session import start_s
from policies.errors import InputError

TOO_LITTLE = 2.0  # times the budget: what needs more was not meant
SENSIBLE_STEP_S = 5.0
_FEWER = (  # how a kind of step is counted: of one, and of several
    (Together, "concurrency set", "concurrency sets"),
    (Steady, "power point", "power points"),
    (Hold, "instance loaded", "instances loaded"),
    (Dispatch, "dispatch", "dispatches"),
    (Transfer, "transfer size", "transfer sizes"),
)


def announcement(plan: Plan, *, name: str, device: str, budget_s: float, log_path: Path) -> str:
    """A few lines for people: what is measured, how long it takes, the log, and what the budget leaves out."""
    left = _left(plan, finished_steps(log_path))
    lines = [
        f"calibrate {name}: {device}",
        f"  to measure  {_grid(plan)}",
        f"              {', '.join(_others(planned.step for planned in plan.steps))}",
        f"  time        {_time(left, budget_s)}",
        f"  log         {log_path}, {_done(len(plan.steps), len(left))}",
    ]
    return "\n".join([*lines, *(f"  left out    {text}" for text in plan.omitted)])


def require_budget(plan: Plan, budget_s: float, log_path: Path, source: str, key: str, kind: str = "cpu") -> None:
    """What must be measured in any case has to fit somehow; the time that it takes is a guess.

    Args:
        source, key: who gave the budget.
        kind: of the device.

    Raises:
        InputError: the budget is far too small; it names the smallest sensible one. The log is kept.
    """
    required = [planned for planned in _left(plan, finished_steps(log_path)) if planned.required]
    needed_s = sum(planned.estimated_s for planned in required)
    if plan.effort == LEAST and needed_s > TOO_LITTLE * budget_s:
        sensible_s = _sensible_s(plan, needed_s / USABLE_SHARE, kind)
        problem = f"{span(budget_s)} is too little: every key must be measured, which takes about {span(needed_s)}"
        raise InputError(source, key, f"{problem} here; give {sensible_s:.0f}s or more, or lower the batch limit")


def _sensible_s(plan: Plan, needed_s: float, kind: str) -> float:
    """The smallest round budget that leaves so much once all is open."""
    metered = any(isinstance(planned.step, Steady) for planned in plan.steps)
    budgets_s = (SENSIBLE_STEP_S * number for number in count(1))
    return next(s for s in budgets_s if s - start_s(kind, s, metered=metered) >= needed_s)


def finished_steps(log_path: Path) -> Set[str]:
    """The steps that a calibration's log holds; a torn line holds none."""
    if not log_path.is_file():
        return frozenset()
    found = set()
    for line in log_path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict) and isinstance(record.get("step"), str):
            found.add(record["step"])
    return found


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


def _time(left: Sequence[Planned], budget_s: float) -> str:
    """What is not required stops with the budget; what is required does not."""
    left_s = sum(planned.estimated_s for planned in left)
    required_s = sum(planned.estimated_s for planned in left if planned.required)
    if required_s > budget_s:
        return f"about {span(required_s)}: more than the budget of {span(budget_s)}, nothing more can be left out"
    return f"about {span(min(left_s, budget_s))} of a budget of {span(budget_s)}"


def _left(plan: Plan, finished: Set[str]) -> list[Planned]:
    return [planned for planned in plan.steps if planned.id not in finished]


def _done(steps: int, left: int) -> str:
    if left == steps:
        return f"{steps} steps; an interrupted one goes on from there"
    return f"{steps - left} of {steps} steps are done already"


def _grid(plan: Plan) -> str:
    keys = {planned.step.point.key for planned in plan.steps if isinstance(planned.step, Solo)}
    sizes = ", ".join(map(str, plan.batches))
    rounds = f"{plan.effort.rounds} round{'s' if plan.effort.rounds > 1 else ''}"
    return f"{len(keys)} keys x {len(plan.batches)} batch sizes ({sizes}) x {rounds}"


def _others(steps: Iterable[Step]) -> list[str]:
    distinct = set(steps)
    held_out = sum(isinstance(step, Solo) and step.held_out for step in distinct)
    counts = [(held_out, "held-out point", "held-out points")]
    counts += [(sum(isinstance(step, kind) for step in distinct), one, many) for kind, one, many in _FEWER]
    return [f"{count} {one if count == 1 else many}" for count, one, many in counts if count]
