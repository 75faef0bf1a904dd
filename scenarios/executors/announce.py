"""What a calibration is about to do and what it costs, before it begins; and whether its budget makes any sense.

It reads the log that it will go on with; it measures nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from calibrate.plan import LEAST, USABLE_SHARE, Dispatch, Hold, Plan, Planned, Solo, Steady, Step, Together, Transfer
from calibrate.session import start_s
from kit.errors import InputError

TOO_LITTLE = 2.0  # times the budget: what needs more was not meant
SENSIBLE_STEP_S = 5.0
_FEWER = (  # how a kind of step is counted: of one, and of several
    (Together, "concurrency set", "concurrency sets"),
    (Steady, "power point", "power points"),
    (Hold, "instance loaded", "instances loaded"),
    (Dispatch, "dispatch", "dispatches"),
    (Transfer, "transfer size", "transfer sizes"),
)


@dataclass(frozen=True, slots=True)
class Logged:
    """What a calibration's log holds: finished steps, and the seconds that they took over all sittings."""

    steps: Set[str] = field(default_factory=frozenset)
    spent_s: float = 0.0


def announcement(
    plan: Plan,
    *,
    name: str,
    device: str,
    budget_s: float,
    log_path: Path,
    kind: str = "cpu",
    reserved_s: float = 0.0,
) -> str:
    """A few lines for people: what is measured, how long it takes, the log, and what the budget leaves out.

    Args:
        budget_s: for the start and for measuring.
        kind: of the device.
        reserved_s: what was taken off the budget that the user gave, for what serving costs.
    """
    logged = read_logged(log_path)
    left = _left(plan, logged.steps)
    measuring_s = max(0.0, budget_s - start_s(kind, budget_s, metered=_is_metered(plan)))
    lines = [
        f"calibrate {name}: {device}",
        f"  to measure  {_grid(plan)}",
        f"              {', '.join(_others(planned.step for planned in plan.steps))}",
        f"  steps       {_steps(plan)}",
        f"  time        {_time(left, budget_s, measuring_s, logged.spent_s, reserved_s)}",
        f"  log         {log_path}, {_done(plan, left, logged)}",
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
        problem = f"{span(budget_s)} is too little: every combination of segment and widths must be measured, "
        problem += f"which takes about {span(needed_s)}"
        raise InputError(source, key, f"{problem} here; give {sensible_s:.0f}s or more, or lower the batch limit")


def _sensible_s(plan: Plan, needed_s: float, kind: str) -> float:
    """The smallest round budget that leaves so much once all is open."""
    budgets_s = (SENSIBLE_STEP_S * number for number in count(1))
    return next(s for s in budgets_s if s - start_s(kind, s, metered=_is_metered(plan)) >= needed_s)


def _is_metered(plan: Plan) -> bool:
    return any(isinstance(planned.step, Steady) for planned in plan.steps)


def finished_steps(log_path: Path) -> Set[str]:
    """The steps that a calibration's log holds; a torn line holds none."""
    return read_logged(log_path).steps


def read_logged(log_path: Path) -> Logged:
    """What a calibration's log holds; a torn line holds nothing, nor does a log that is not there."""
    found = list(_records(log_path)) if log_path.is_file() else []
    elapsed_s = [record.get("elapsed_s") for record in found]
    spent_s = sum(value for value in elapsed_s if isinstance(value, int | float))
    return Logged(frozenset(record["step"] for record in found), float(spent_s))


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


def _time(left: Sequence[Planned], budget_s: float, measuring_s: float, spent_s: float, reserved_s: float) -> str:
    """What is not required stops with the budget, of which earlier sittings have used a part; what is required not."""
    left_s = sum(planned.estimated_s for planned in left)
    required_s = sum(planned.estimated_s for planned in left if planned.required)
    given = span(budget_s + reserved_s)
    if not left:
        return f"finished already; nothing is left to do of a budget of {given}"
    if required_s > budget_s:
        whole = f"the {span(budget_s)} to measure of a budget" if reserved_s else "the budget"
        return f"about {span(required_s)}. That is more than {whole} of {given}, but all of it is required"
    if min(planned.estimated_s for planned in left) > measuring_s - spent_s and spent_s > required_s:
        used = f"the log has used {span(spent_s)} of the budget of {given}"
        used += f" ({span(budget_s + reserved_s - measuring_s)} of it are for the start and for what serving costs)"
        rest = f"only what is required is measured, about {span(required_s)}" if required_s else "nothing is measured"
        return f"{used}: {rest}; give more to go on"
    return f"about {span(max(required_s, min(left_s, budget_s - spent_s)))} of a budget of {given}"


def _left(plan: Plan, finished: Set[str]) -> list[Planned]:
    return [planned for planned in plan.steps if planned.id not in finished]


def _steps(plan: Plan) -> str:
    required = sum(planned.required for planned in plan.steps)
    more = len(plan.steps) - required
    return f"{required} in any case" + (f", {more} more while time is left" if more else "")


def _done(plan: Plan, left: Sequence[Planned], logged: Logged) -> str:
    """How much of the log this plan takes up; one of another budget may ask for other points."""
    steps, planned = len(plan.steps), {planned.id for planned in plan.steps}
    others = sum(not name.endswith(" round 0") and name not in planned for name in logged.steps)
    apart = f"; {others} more in it are not of this plan" if others else ""
    if len(left) == steps:
        return f"{steps} steps; an interrupted one goes on from there{apart}"
    return f"{steps - len(left)} of {steps} steps are done already{apart}"


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
