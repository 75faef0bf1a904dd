"""Predicting durations: from ended jobs alone, from the narrowest class that has any."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.job_traces import WINDOW, JobTrace, accuracies, predictions
from tests.jobs.experiments import trace_of
from tests.jobs.test_trace import small

Row = tuple[str, str, int, float, float]  # user, VC, GPUs, what is asked for, run time
ANN: Row = ("ann", "lab", 2, 600.0, 1.0)


def said_of_last(*rows: Row) -> float:
    """What is predicted of the last of some jobs, each of which is submitted when the one before has ended."""
    user, vc, gpus, requested_s, run_s = zip(*rows, strict=True)
    submit_s = np.cumsum([0.0, *run_s[:-1]])
    trace = trace_of(list(zip(submit_s, run_s, gpus, strict=True)), user=user, vc=vc, requested_s=requested_s)
    return float(predictions(trace)[-1])


def test_narrow_classes_shrink_to_their_parents() -> None:
    assert np.isnan(said_of_last(ANN))
    wider: list[Row] = [
        ("bob", "far", 8, 60.0, 1.0),
        ("bob", "far", 2, 60.0, 2.0),
        ("bob", "lab", 2, 60.0, 3.0),
        ("ann", "far", 2, 60.0, 4.0),
        ("ann", "far", 2, 600.0, 5.0),
        ("ann", "lab", 2, 600.0, 6.0),
    ]
    for job in wider:
        assert said_of_last(wider[0], job, ANN) == job[4]
    for many in range(1, len(wider) + 1):  # what is narrower counts, though it ended earlier
        assert said_of_last(*wider[::-1][:many], ANN) == 6.0


def test_the_median_of_the_last_ones_counts_and_no_more_than_was_asked_for() -> None:
    runs_s = (1.0, *[float(100 + i) for i in range(WINDOW)])
    assert said_of_last(*((*ANN[:4], run_s) for run_s in runs_s), ANN) == 100 + (WINDOW - 1) / 2
    assert said_of_last((*ANN[:4], 5000.0), ANN) == 600.0
    assert said_of_last((*ANN[:4], 5000.0), ("ann", "lab", 2, np.nan, 1.0)) == 5000.0


def _trace(submit: list[float], run: list[float]) -> JobTrace:
    return trace_of([(*each, 1) for each in zip(submit, run, strict=True)])


def test_a_job_knows_what_had_ended_at_its_submit() -> None:
    found = predictions(_trace([0, 5, 10, 11], [10, 1, 3, 4]))
    assert np.isnan(found[:2]).all()
    assert found[2:].tolist() == [5.5, 5.5]  # 10 and 1 had ended; 3 had not


@settings(max_examples=50)
@given(
    runs=st.lists(st.floats(1, 1000), min_size=2, max_size=30),
    gaps=st.lists(st.floats(0, 300), min_size=30, max_size=30),
    data=st.data(),
)
def test_no_prediction_depends_on_what_ends_later(runs: list[float], gaps: list[float], data: st.DataObject) -> None:
    """Change all runs that end after a job's submit: its prediction, and all before it, stay."""
    submit = np.cumsum(gaps[: len(runs)])
    job = data.draw(st.integers(0, len(runs) - 1))
    is_later = submit + np.array(runs) > submit[job]
    changed = np.where(is_later, submit[job] - submit + np.array(runs) * 7 + 1, runs).tolist()
    before, after = (predictions(_trace(submit.tolist(), each))[: job + 1] for each in (runs, changed))
    assert np.array_equal(before, after, equal_nan=True)


def test_factors_by_hand() -> None:
    trace = small(requested_s=np.array([np.nan, 40.0, 15.0]))  # of 20 and 30: both off by two
    requested, history = accuracies(trace)
    assert (requested["known_share"], requested["factor_median"]) == (pytest.approx(2 / 3), pytest.approx(2))
    assert requested["factor_p90"] == pytest.approx(2)
    assert (history["known_share"], history["factor_median"]) == (0, None)
