"""What a command prints of its result."""

from __future__ import annotations

from typing import Any


def text_of(result: Any) -> str:
    """Return a result as text; by its class's name: this module opens none of what makes results."""
    kind = type(result).__name__
    if kind == "CommandResult":
        return str(result.text)
    if kind == "Calibration":
        return "\n".join(f"profile: {path}" for path in result.profiles)
    from scenarios.show.plan import format_plan, short_plan
    from scenarios.show.result import format_result, format_score
    from scenarios.show.suite import suite_table
    from scenarios.show.summary import format_summary
    from scenarios.show.table import to_text
    from scenarios.show.wording import lines_of

    match kind:
        case "RunResult":
            return format_result(result.document)
        case "Comparison":
            return format_summary(result.document, None, rest=_rest(result.folder))
        case "Validation":
            return format_summary(None, result.document, rest=_rest(result.folder))
        case "Job":
            comparison = result.comparison.document
            validation = None if result.validation is None else result.validation.document
            more = short_plan(comparison, result.comparison.results)
            return format_summary(comparison, validation, more, to_text(["\n".join(result.endings)]))
        case "Capacity":
            from scenarios.runs.capacity import GROWTH_LIMIT

            return "\n  ".join(lines_of("capacity", "found", result, GROWTH_LIMIT))
        case "Bound":
            return "\n  ".join(lines_of("capacity", "bound", result))
        case "SuiteScore":
            return to_text(suite_table(result, name) for name in result.entrants)
        case "Plan":
            return format_plan(result)
        case _:
            scores = ((each, format_score(each.score)) for each in result.routers)
            return "\n".join(f"{each.kind}: {score}\nrouter: {each.path}" for each, score in scores)


def _rest(folder: object) -> str:
    return f"all other numbers, and charts: slimsched report {folder}"
