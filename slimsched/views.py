"""What a command prints of its result."""

from __future__ import annotations

from functools import singledispatch

from slimsched.results import (
    Bound,
    Calibration,
    Capacity,
    Comparison,
    Document,
    Found,
    Job,
    RunResult,
    Training,
    Validation,
)


@singledispatch
def text_of(result: Document) -> str:
    """For people."""
    raise TypeError(f"no view of {type(result).__name__}")


@text_of.register
def _(result: Found) -> str:
    return result.text


@text_of.register
def _(result: RunResult) -> str:
    from scenarios.show.result import format_result

    return format_result(result.document)


@text_of.register
def _(result: Comparison) -> str:
    from scenarios.show.answers import format_answers
    from scenarios.show.comparison import format_all

    return _apart(format_answers(result.document, None), format_all(result.document))


@text_of.register
def _(result: Validation) -> str:
    from scenarios.show.validation import format_validation

    return format_validation(result.document)


@text_of.register
def _(result: Job) -> str:
    from scenarios.show.answers import format_answers
    from scenarios.show.comparison import format_comparison
    from scenarios.show.table import to_text
    from scenarios.show.validation import format_validation
    from scenarios.terminal.screen import screen_width

    comparison = result.comparison.document
    validation = None if result.validation is None else result.validation.document
    return _apart(
        format_answers(comparison, validation),
        format_comparison(comparison),
        "" if validation is None else format_validation(validation),
        to_text(["\n".join(result.endings)], screen_width()) + f"\nreport: {result.report}",
    )


@text_of.register
def _(result: Capacity) -> str:
    from scenarios.runs.capacity import GROWTH_LIMIT
    from scenarios.show.wording import lines_of

    return "\n  ".join(lines_of("capacity", "found", result.found, result.duration_s, GROWTH_LIMIT))


@text_of.register
def _(result: Bound) -> str:
    from scenarios.show.wording import lines_of

    return "\n  ".join(lines_of("capacity", "bound", result))


@text_of.register
def _(result: Training) -> str:
    from scenarios.show.result import format_score

    return "\n".join(f"{each.kind}: {format_score(each.score)}\nrouter: {each.path}" for each in result.routers)


@text_of.register
def _(result: Calibration) -> str:
    return "\n".join(f"profile: {path}" for path in result.profiles)


def _apart(*texts: str) -> str:
    return "\n\n".join(filter(None, texts))
