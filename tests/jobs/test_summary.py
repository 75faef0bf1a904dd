"""What `jobs inspect` tells: sums that must hold, and figures by hand."""

from __future__ import annotations

import numpy as np
import pytest

from jobs.generated_traces import ARRIVALS, DURATIONS, SIZES, Drawing, draw, law
from jobs.job_traces import DAY_S, JobTrace, summarize
from kit.documents import json_text
from slimsched.jobs.texts import summary_text
from tests.jobs.test_trace import small


def drawn() -> JobTrace:
    durations, arrivals = law("lognormal", DURATIONS, ""), law("poisson", ARRIVALS, "")
    return draw(Drawing(500, 64, 0.7, durations, arrivals, SIZES))


def test_the_load_of_the_days_is_the_work() -> None:
    """GPU-days by day add up to all GPU-hours; the load is their share of the cluster over the time of submits."""
    trace = drawn()
    found = summarize(trace, 64)
    assert sum(found["load"]["busy_gpus_by_day"]) * 24 == pytest.approx(found["gpu_hours"])
    assert found["load"]["busy_gpus"] * found["days"] * 24 == pytest.approx(found["gpu_hours"])
    assert found["load"]["load"] == found["load"]["busy_gpus"] / 64


def test_figures_by_hand() -> None:
    trace = small(
        submit_s=np.array([0.0, DAY_S, 2 * DAY_S]),
        run_s=np.array([10.0, 20.0, 30.0]),
        gpus=np.array([1, 1, 8], np.int32),
        user=np.array(["a", "b", "b"], object),
        recorded_wait_s=np.array([np.nan, 5.0, 15.0]),
        attempts=np.array([1, 1, 3], np.int32),
    )
    found = summarize(trace, 1)
    assert (found["durations"]["mean_s"], found["durations"]["cv2"]) == (20, pytest.approx(200 / 3 / 400))
    assert [each["gpus"] for each in found["sizes"]] == [0.25, 1, 8]
    assert found["sizes"][2] == {"gpus": 8, "jobs": 1, "gpu_time_share": 240 / 262.5, "run_mean_s": 30, "run_p50_s": 30}
    assert [each["name"] for each in found["users"]] == ["b", "a"]
    assert (found["recorded_waits"]["known_share"], found["recorded_waits"]["mean_s"]) == (2 / 3, 10)
    assert (found["more_than_one_attempt_share"], found["load"]["days_quantiles"]["max"]) == (1 / 3, 20 / DAY_S)
    assert found["load"]["days_above_capacity_share"] == 0


def test_trace_summary_is_valid_json_and_readable_text() -> None:
    found = summarize(drawn(), 64)
    assert "NaN" not in json_text(found)
    text = summary_text(found, "drawn")
    for said in ("500 jobs", "of 64", "GPU-hours", "median factor", "history", "vc0"):
        assert said in text
