"""What a calibration is about to do and what it costs, before it starts; and whether its budget is sensible."""

from __future__ import annotations

from itertools import count

from calibrate.log import Log
from calibrate.plan import CalibrationPlan, InstancePoints, PlannedStep, Steady
from calibrate.session import start_s
from kit.errors import InputError
from scenarios.show.wording import lines_of

TOO_LITTLE = 2.0  # times the budget: what needs more was not meant
SENSIBLE_STEP_S = 5.0


def announcement(
    plan: CalibrationPlan, log: Log, *, budget_s: float, kind: str = "cpu", reserved_s: float = 0.0
) -> list[str]:
    """Describe what is measured, how long it takes, and the log; `name: text` a line.

    Args:
        log: the one it resumes from.
        budget_s: for the start and for measuring.
        kind: of the device.
        reserved_s: what was taken off the budget that the user gave, for what serving costs.
    """
    left = _left(plan, log)
    usable_s = max(0.0, budget_s - start_s(kind, budget_s, metered=_is_metered(plan))) - log.spent_s
    required_s = sum(planned.estimated_s for planned in left if planned.required)
    least_s = min((planned.estimated_s for planned in left), default=0.0)
    points = [p for each in plan.steps if isinstance(each.step, InstancePoints) for p in each.step.points]
    return lines_of(
        "calibration", "announcement", plan, log,
        required=sum(planned.required for planned in plan.steps),
        keys=len({point.key for point in points}),
        left=len(left),
        is_too_little=least_s > usable_s and not required_s,
        is_all_required=required_s > budget_s - log.spent_s,
        needed=span(max(required_s, min(sum(planned.estimated_s for planned in left), budget_s - log.spent_s))),
        a_round=span(plan.round_s),
        budget=span(budget_s + reserved_s),
        spent=span(log.spent_s) if log.spent_s else "",
    )  # fmt: skip


def require_budget(plan: CalibrationPlan, log: Log, budget_s: float, source: str, key: str, kind: str = "cpu") -> None:
    """Check that what must be measured in any case fits; the time that it takes is a guess.

    Args:
        source, key: origin of the budget.
        kind: of the device.

    Raises:
        InputError: the budget is far too small; it names the smallest sensible one. The log is kept.
    """
    needed_s = sum(planned.estimated_s for planned in _left(plan, log) if planned.required)
    if needed_s > TOO_LITTLE * budget_s:
        budgets_s = (SENSIBLE_STEP_S * number for number in count(1))
        is_metered = _is_metered(plan)
        sensible_s = next(s for s in budgets_s if s - start_s(kind, s, metered=is_metered) >= needed_s)
        problem = f"{span(budget_s)} is too little: every combination of segment and widths must be measured, "
        problem += f"which takes about {span(needed_s)} here, {span(plan.round_s)} a round"
        raise InputError(source, key, f"{problem}; give {sensible_s:.0f}s or more, or lower the batch limit")


def _is_metered(plan: CalibrationPlan) -> bool:
    return any(isinstance(planned.step, Steady) for planned in plan.steps)


def _left(plan: CalibrationPlan, log: Log) -> list[PlannedStep]:
    return [planned for planned in plan.steps if planned.id not in log.results]


def span(duration_s: float) -> str:
    """Format a duration, in the two units that are usual for it."""
    seconds = round(duration_s)
    if seconds < 60:
        return f"{seconds if seconds >= 10 else round(duration_s, 1):g} s"
    big, small, units = (
        (*divmod(seconds, 60), "min s") if seconds < 3600 else (*divmod(round(seconds / 60), 60), "h min")
    )
    one, other = units.split()
    return f"{big} {one}" + (f" {small} {other}" if small else "")
