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
    from scenarios.show.capacity import capacity_text

    return capacity_text(result.found, result.duration_s)


@text_of.register
def _(result: Bound) -> str:
    from scenarios.show.numbers import number

    rate = f"at {number(result.rate_img_s, 1)} images/s" if result.rate_img_s else "at the trace's own rate"
    least = ", the least there is (`--accuracy` asks for more)" if result.is_least else ""
    lines = [
        f"at a mean accuracy of at least {100 * result.accuracy:.2f} %{least}, no router can",
        f"  serve more than {result.capacity_img_s:.1f} images/s",
        f"  have a mean latency below {1000 * result.latency_mean_s:.2f} ms",
    ]
    if result.energy_dynamic_j is not None:
        above, whole = (number(joules, None) for joules in (result.energy_dynamic_j, result.energy_per_image_j))
        lines.append(f"  spend less than {above} J/image above idle, or {whole} with it, {rate}")
    if (oracle := result.oracle) is not None:
        lines += [
            f"the load moves, to {oracle.peak_img_s:.0f} images/s in {oracle.window_s:g} s: a router that knew it,",
            f"and carried each window's images within it, would have {100 * oracle.accuracy:.2f} % (an estimate)",
        ]
    return "\n".join(lines)


@text_of.register
def _(result: Training) -> str:
    from scenarios.show.result import format_score

    return "\n".join(f"{each.kind}: {format_score(each.score)}\nrouter: {each.path}" for each in result.routers)


@text_of.register
def _(result: Calibration) -> str:
    return "\n".join(f"profile: {path}" for path in result.profiles)


def _apart(*texts: str) -> str:
    return "\n\n".join(filter(None, texts))
