"""What `slimsched profile check` found, as a table with what follows from it, and as a document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from calibrate.check import CheckedMetric, holds, is_judged, is_narrow
from scenarios.show.numbers import number
from scenarios.show.table import Cell, Column, Table, to_text
from scenarios.show.wording import lines_of
from sim.profile import Profile

SCHEMA = "slimsched.check/1"
_ERRORS = ("median_abs_pct", "mean_abs_pct", "max_abs_pct", "bias_pct", "bias_interval_pct", "size_interval_pct")


def format_check(profile: Profile, checked: Sequence[CheckedMetric]) -> str:
    """Format a row a quantity; then what has drifted, in words, and what to do."""
    return to_text([check_table(profile, checked)])


def check_table(profile: Profile, checked: Sequence[CheckedMetric]) -> Table:
    """Return how far each quantity is off, and what is allowed; what could not be measured has no row, but a note."""
    errors = (Column("error", "%", 1), Column("largest", "%", 1), Column("bias", "%", 1, signed=True))
    allowed = (Column("95 % of it"), Column("allowed", "%", 1), Column("allowed bias", "%", 1))
    head = [Column("checked"), Column("measured"), *errors, *allowed, Column("verdict", is_text=True)]
    vague = [each for each in checked if not is_narrow(each) and not each.not_judged]
    notes = lines_of("check", "notes", profile, checked, vague, holds(checked), is_judged(checked))
    return Table(head, [_row(each) for each in checked if each.pairs], notes=notes)


def _row(metric: CheckedMetric) -> list[Cell]:
    low, high = (number(end, 1, signed=True) for end in metric.bias_interval_pct)
    errors = metric.median_abs_pct, metric.max_abs_pct, metric.bias_pct, f"{low} to {high}"
    allowed = metric.allowed
    return [metric.metric, len(metric.pairs), *errors, allowed.size_pct, allowed.bias_pct, metric.verdict]


def check_document(profile: Profile, warnings: Sequence[str], checked: Sequence[CheckedMetric]) -> dict[str, Any]:
    """Return `slimsched.check/1`: errors in per cent, predicted and measured values in the quantity's own unit."""
    return {
        "schema": SCHEMA,
        "profile": profile.name,
        "device": profile.device.name,
        "holds": holds(checked),
        "judged": is_judged(checked),
        "warnings": list(warnings),
        "metrics": [_entry(each) for each in checked],
    }


def _entry(metric: CheckedMetric) -> dict[str, Any]:
    return {
        **{key: getattr(metric, key) for key in ("metric", "verdict", "not_judged", "finding", "looks")},
        "allowed_size_pct": metric.allowed.size_pct,
        "allowed_bias_pct": metric.allowed.bias_pct,
        **({key: getattr(metric, key) for key in _ERRORS} if metric.pairs else {}),
        "pairs": [asdict(pair) for pair in metric.pairs],
    }
