"""How far simulated waits are from those that the log recorded: what to know before anything else is believed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr

from jobs.case import JobsCase, NamedPolicy
from jobs.comparing import run_policy
from jobs.figures import groups_of, job_columns
from jobs.resampling import Blocks
from kit.errors import InputError

SCHEMA: Final = "slimsched.jobsvalidation/1"
NEAR_S: Final = 60.0  # waits that differ by less are near each other, whatever their ratio
FACTOR: Final = 2.0
QUANTILES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
Numbers = NDArray[np.float64]


def validation_document(case: JobsCase, named: NamedPolicy) -> dict[str, Any]:
    """One policy's waits beside the recorded ones, of jobs that have both.

    Raises:
        InputError: the log recorded no waits, or too few.
    """
    recorded_s = case.jobs.recorded_wait_s
    record = run_policy(case, named)
    columns = job_columns(record, case.scenario.cluster.gpus)
    both = columns.is_done & np.isfinite(recorded_s)
    if both.sum() < 2:
        problem = "the log recorded no waits that could be compared; import it with the columns of its starts"
        raise InputError(case.source, "trace", problem)
    blocks = Blocks.of(columns.submit_s)
    simulated, recorded = columns.wait_s, np.maximum(recorded_s, 0.0)
    return {
        "schema": SCHEMA,
        "scenario": case.scenario.name,
        "policy": named.name,
        "load": case.load,
        "jobs": int(both.sum()),
        "left_out": int(len(case.jobs) - both.sum()),
        "simulated_s": _spread(simulated[both]),
        "recorded_s": _spread(recorded[both]),
        "error_share": blocks.share(simulated, np.nan_to_num(recorded), both),
        "error_s": float((simulated - recorded)[both].mean()),
        **_closeness(simulated[both], recorded[both]),
        "groups": list(_groups(case, simulated, recorded, both, record)),
    }


def _spread(values: Numbers) -> dict[str, float]:
    quantiles = np.quantile(values, list(QUANTILES.values())).tolist()
    return {"mean": float(values.mean()), **dict(zip(QUANTILES, quantiles, strict=True))}


def _closeness(simulated: Numbers, recorded: Numbers) -> dict[str, float | None]:
    """Job by job: near each other, waiting in one world alone, and whether the same jobs wait long (Spearman's rho)."""
    low, high = np.minimum(simulated, recorded), np.maximum(simulated, recorded)
    near = (high - low <= NEAR_S) | (high <= FACTOR * low)
    constant = np.ptp(simulated) == 0 or np.ptp(recorded) == 0
    return {
        "near_share": float(near.mean()),
        "only_simulated_share": float(((simulated > NEAR_S) & (recorded <= NEAR_S)).mean()),
        "only_recorded_share": float(((recorded > NEAR_S) & (simulated <= NEAR_S)).mean()),
        "rank_correlation": None if constant else float(spearmanr(simulated, recorded).statistic),
    }


def _groups(
    case: JobsCase, simulated: Numbers, recorded: Numbers, both: NDArray[np.bool_], record: Any
) -> Iterator[dict[str, Any]]:
    for group in groups_of(record):
        members = both & group.members
        if members.any():
            yield {
                "kind": group.kind,
                "name": group.name,
                "jobs": int(members.sum()),
                "simulated_mean_s": float(simulated[members].mean()),
                "recorded_mean_s": float(recorded[members].mean()),
            }
