"""Results set side by side: routers against a baseline over seeds, and simulation against hardware.

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
from scenarios.result import Result

BASELINE = "random"
_FIGURES = (
    "images",
    "accuracy",
    "latency_s",
    "energy_j",
    "energy_per_image_j",
    "gpu_var",
    "throughput_img_s",
    "goodput_img_s",
    "censored",
    "decisions",
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
    baseline: str | None
    rows: list[dict[str, Any]]


class Pair(TypedDict):
    """One run in both worlds; errors are 100 (simulated - hardware) / hardware, null where the figure means nothing."""

    router: str
    seed: int
    simulated: Result
    hardware: Result
    error_pct: dict[str, float | None]
    not_applicable: dict[str, str]


class Validation(TypedDict):
    """`slimsched.validation/1`; `ranking_tau` is Kendall's tau of the routers' mean latencies."""

    schema: str
    scenario: str
    pairs: list[Pair]
    ranking_tau: float | None


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
        baseline=baseline if base else None,
        rows=[_row(router, runs, base) for router, runs in by_router.items()],
    )


def _weakest_accuracy(results: Sequence[Result]) -> AccuracyProvenance:
    """`paper` if any is; a stored result without the key is older than tables of the paper."""
    return PAPER if any(result.get("accuracy_provenance", MEASURED) == PAPER for result in results) else MEASURED


def _row(router: str, runs: Sequence[Result], base: Mapping[int, Result]) -> dict[str, Any]:
    row: dict[str, Any] = {"router": router, "seeds": [run["seed"] for run in runs]}
    for name in _FIGURES:
        row[name] = _fold([run[name] for run in runs])  # type: ignore[literal-required]
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


def validate_results(pairs: Sequence[tuple[Result, Result]], power: Provenance) -> Validation:
    """Set (simulated, hardware) results side by side; `power` says where the hardware's watts came from."""
    assert pairs, "nothing to validate"
    return Validation(
        schema="slimsched.validation/1",
        scenario=pairs[0][0]["scenario"],
        pairs=[_pair(simulated, hardware, power) for simulated, hardware in pairs],
        ranking_tau=_ranking_tau(pairs),
    )


def _pair(simulated: Result, hardware: Result, power: Provenance) -> Pair:
    assert simulated["router"] == hardware["router"], "a pair is of one router"
    error: dict[str, float | None] = {}
    for name in ("mean", "p50", "p95", "p99"):
        both = [result["latency_s"][name] for result in (simulated, hardware)]
        error[f"latency_{name}"] = change_pct(*both)
    error["throughput"] = change_pct(simulated["throughput_img_s"], hardware["throughput_img_s"])
    error["accuracy"] = change_pct(simulated["accuracy"], hardware["accuracy"])
    totals = [result["energy_per_image_j"]["total"] for result in (simulated, hardware)]
    error["energy_per_image"] = None if power in UNMETERED else change_pct(*totals)
    reason = f"the hardware's power is {power}, not metered: both sides would come from one formula"
    return Pair(
        router=simulated["router"],
        seed=simulated["seed"],
        simulated=simulated,
        hardware=hardware,
        error_pct=error,
        not_applicable={"energy_per_image": reason} if power in UNMETERED else {},
    )


def _ranking_tau(pairs: Sequence[tuple[Result, Result]]) -> float | None:
    """Over the routers whose latency is known in both worlds, each at its mean over seeds; null for fewer than two."""
    latencies: dict[str, list[tuple[float, float]]] = {}
    for simulated, hardware in pairs:
        both = (simulated["latency_s"]["mean"], hardware["latency_s"]["mean"])
        if both[0] is not None and both[1] is not None:
            latencies.setdefault(simulated["router"], []).append((both[0], both[1]))
    if len(latencies) < 2:
        return None
    means = np.array([np.mean(values, axis=0) for values in latencies.values()])  # (routers, worlds)
    tau = float(stats.kendalltau(means[:, 0], means[:, 1]).statistic)
    return None if np.isnan(tau) else tau
