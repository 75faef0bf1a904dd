"""What a command prints of its result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from kit.results import Document
    from scenarios.metrics.limits import Bound, Capacity
    from scenarios.metrics.plan import Plan
    from scenarios.metrics.suite import SuiteScore
    from slimsched.results import Calibration, Comparison, Job, RunResult, Training, Validation


def _run(result: RunResult) -> str:
    from scenarios.show.result import format_result

    return format_result(result.document)


def _comparison(result: Comparison) -> str:
    from scenarios.show.answers import format_answers
    from scenarios.show.summary import format_summary

    return _apart(format_answers(result.document, None), format_summary(result.document, None), _rest(result.folder))


def _validation(result: Validation) -> str:
    from scenarios.show.answers import format_answers
    from scenarios.show.summary import format_summary

    return _apart(format_answers(None, result.document), format_summary(None, result.document), _rest(result.folder))


def _job(result: Job) -> str:
    from scenarios.show.answers import format_answers
    from scenarios.show.plan import short_plan
    from scenarios.show.summary import format_summary
    from scenarios.show.table import to_text
    from scenarios.terminal.screen import screen_width

    comparison = result.comparison.document
    validation = None if result.validation is None else result.validation.document
    return _apart(
        format_answers(comparison, validation, short_plan(comparison, result.comparison.results)),
        format_summary(comparison, validation),
        to_text(["\n".join(result.endings)], screen_width()),
    )


def _rest(folder: Path) -> str:
    return f"all other numbers, and charts: slimsched report {folder}"


def _capacity(result: Capacity) -> str:
    from scenarios.runs.capacity import GROWTH_LIMIT
    from scenarios.show.wording import lines_of

    return "\n  ".join(lines_of("capacity", "found", result, GROWTH_LIMIT))


def _bound(result: Bound) -> str:
    from scenarios.show.wording import lines_of

    return "\n  ".join(lines_of("capacity", "bound", result))


def _suite(result: SuiteScore) -> str:
    from scenarios.show.suite import suite_table
    from scenarios.show.table import to_text
    from scenarios.terminal.screen import screen_width

    return to_text([suite_table(result, name) for name in result.entrants], screen_width())


def _plan(result: Plan) -> str:
    from scenarios.show.plan import format_plan

    return format_plan(result)


def _training(result: Training) -> str:
    from scenarios.show.result import format_score

    return "\n".join(f"{each.kind}: {format_score(each.score)}\nrouter: {each.path}" for each in result.routers)


def _calibration(result: Calibration) -> str:
    return "\n".join(f"profile: {path}" for path in result.profiles)


def _apart(*texts: str) -> str:
    return "\n\n".join(filter(None, texts))


_VIEWS: Final[Mapping[str, Callable[[Any], str]]] = {
    "CommandResult": lambda result: result.text,
    "RunResult": _run,
    "Comparison": _comparison,
    "Validation": _validation,
    "Job": _job,
    "Capacity": _capacity,
    "SuiteScore": _suite,
    "Bound": _bound,
    "Plan": _plan,
    "Training": _training,
    "Calibration": _calibration,
}  # by name: this module opens none of what makes them


def text_of(result: Document) -> str:
    """Return a result as text."""
    return _VIEWS[type(result).__name__](result)
