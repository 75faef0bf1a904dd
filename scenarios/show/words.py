"""Sentences about results that more than one table or page has."""

from __future__ import annotations

from collections.abc import Sequence

from hw.accuracy import MEASURED
from scenarios.metrics.comparison import Comparison
from scenarios.metrics.result import Result, Signature
from scenarios.metrics.signatures import tally_text
from scenarios.show.numbers import share


def provenance(of: Result | Comparison) -> str:
    """The weakest origin of the numbers, and the accuracy's where no network was measured."""
    accuracy = of.get("accuracy_provenance", MEASURED)
    return of["provenance"] if accuracy == MEASURED else f"{of['provenance']}; accuracy: {accuracy}"


def extrapolated(of_time: float) -> str:
    """What a share of extrapolated time means."""
    return f"{share(of_time)} of the time more batches ran at once than were measured together: slow-downs extrapolated"


def signature_texts(found: Sequence[Signature] | None) -> list[str]:
    """Each failure that a run shows, with its reason."""
    return [f"{signature['name']}: {signature['reason']}" for signature in found or ()]


def signature_lines(comparison: Comparison) -> list[str]:
    """Which routers show which failures, in how many of their runs."""
    rows = [row for row in comparison["rows"] if row.get("signatures")]
    return [f"{row['router']} shows {tally_text(row['signatures'], len(row['seeds']))}" for row in rows]
