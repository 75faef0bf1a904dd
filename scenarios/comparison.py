"""Results set side by side: routers against a baseline over seeds.

It computes from finished results alone; how they came about is none of its business.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Any, TypedDict

import numpy as np
from scipy import stats

from hw.accuracy import MEASURED, PAPER, AccuracyProvenance
from policies.vocabulary import Provenance
from scenarios.result import Engine, Result

BASELINE = "random"
_FIGURES = (
    "images",
    "accuracy",
    "latency_s",
    "energy_j",
    "energy_per_image_j",
    "gpu_var",
    "throughput_img_s",
    "extrapolated_share",
    "goodput_img_s",
    "censored",
    "decisions",
    "expected_accuracy",
    "moves_per_image",
)
UNMETERED = (Provenance.MODELLED, Provenance.DATASHEET)


class Estimate(TypedDict):
    """A mean over seeds and the half-width of its 95 % interval (Student's t); null where there is too little."""

    mean: float | None
    ci95: float | None


class Comparison(TypedDict):
    """`slimsched.comparison/1`; a row has `router`, `seeds`, a result's figures as estimates, and the changes."""

    schema: str
    scenario: str
    provenance: str
    accuracy_provenance: AccuracyProvenance
    engine: Engine
    baseline: str | None
    rows: list[dict[str, Any]]


def estimate(values: Sequence[float | None]) -> Estimate:
    """Mean and 95 % half-width; both null if a value is missing, the half-width for fewer than two values."""
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return Estimate(mean=None, ci95=None)
    if len(known) == 1:
        return Estimate(mean=float(known[0]), ci95=None)
    t = float(stats.t.ppf(0.975, len(known) - 1))
    return Estimate(mean=float(np.mean(known)), ci95=t * float(np.std(known, ddof=1)) / sqrt(len(known)))


def compare_results(results: Sequence[Result], baseline: str = BASELINE) -> Comparison:
    """One row a router, in the order of first appearance; changes are against the baseline's run of the same seed."""
    assert results, "nothing to compare"
    by_router: dict[str, list[Result]] = {}
    for result in results:
        by_router.setdefault(result["router"], []).append(result)
    base = {result["seed"]: result for result in by_router.get(baseline, [])}
    return Comparison(
        schema="slimsched.comparison/1",
        scenario=results[0]["scenario"],
        provenance=str(Provenance.weakest(*(Provenance(result["provenance"]) for result in results))),
        accuracy_provenance=_weakest_accuracy(results),
        engine=results[0]["engine"],
        baseline=baseline if base else None,
        rows=[_row(router, runs, base) for router, runs in by_router.items()],
    )


def _weakest_accuracy(results: Sequence[Result]) -> AccuracyProvenance:
    """`paper` if any is; a stored result without the key is older than tables of the paper."""
    return PAPER if any(result.get("accuracy_provenance", MEASURED) == PAPER for result in results) else MEASURED


def _row(router: str, runs: Sequence[Result], base: Mapping[int, Result]) -> dict[str, Any]:
    row: dict[str, Any] = {"router": router, "seeds": [run["seed"] for run in runs]}
    for name in _FIGURES:
        row[name] = _fold([run.get(name) for run in runs])
    paired = [(run, base[run["seed"]]) for run in runs if run["seed"] in base]
    latency = [change_pct(run["latency_s"]["mean"], other["latency_s"]["mean"]) for run, other in paired]
    energy = [change_pct(run["energy_j"]["mean"], other["energy_j"]["mean"]) for run, other in paired]
    row["latency_change_pct"], row["energy_change_pct"] = estimate(latency), estimate(energy)
    return row


def _fold(values: Sequence[Any]) -> Any:
    """The same figure of several runs, leaf by leaf."""
    if isinstance(values[0], Mapping):
        return {key: _fold([value[key] for value in values]) for key in values[0]}
    return estimate(values)


def change_pct(value: float | None, reference: float | None) -> float | None:
    """100 (value - reference) / reference; null where either is missing or the reference is 0."""
    return None if value is None or not reference else 100 * (value - reference) / reference
