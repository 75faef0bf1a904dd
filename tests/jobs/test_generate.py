"""Drawn traces: what was asked for, within what chance allows; the same seed the same bytes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jobs.generated_traces import ARRIVALS, DURATIONS, SIZES, Drawing, draw, law, sizes
from jobs.job_traces import read_trace, write_trace
from kit.errors import InputError

JOBS = 20_000


def drawing(durations: str = "exponential:mean_s=600", arrivals: str = "poisson", **changes: Any) -> Drawing:
    given: Mapping[str, Any] = {"jobs": JOBS, "gpus": 64, "load": 0.7, "sizes": SIZES, "alike": 0.0, **changes}
    return Drawing(
        durations=law(durations, DURATIONS, "--durations"), arrivals=law(arrivals, ARRIVALS, "--arrivals"), **given
    )


@pytest.mark.parametrize(
    "text, cv2",
    [
        ("exponential:mean_s=600", 1.0),
        ("weibull:mean_s=600,shape=0.5", 5.0),  # Gamma(5) / Gamma(3)^2 - 1
        ("weibull:mean_s=600,shape=1", 1.0),
        ("lognormal:mean_s=600,cv2=4", 4.0),
        ("hyperexponential:mean_s=600,cv2=6", 6.0),
        ("hyperexponential:mean_s=600,cv2=1", 1.0),
    ],
)
def test_durations_have_their_mean_and_variance(text: str, cv2: float) -> None:
    """Within four standard errors of the mean; the second moment within what tails allow."""
    run_s = draw(drawing(text, jobs=200_000)).run_s
    assert run_s.mean() == pytest.approx(600, rel=4 * np.sqrt(cv2 / 200_000))
    assert run_s.var() / run_s.mean() ** 2 == pytest.approx(cv2, rel=0.15)


@pytest.mark.parametrize("arrivals", ["poisson", "mmpp:burst_factor=5,burst_share=0.1,burst_s=30"])
@pytest.mark.parametrize("load", [0.3, 1.5])
def test_the_load_is_what_was_asked_for(arrivals: str, load: float) -> None:
    trace = draw(drawing(arrivals=arrivals, load=load))
    assert trace.gpu_s.sum() / trace.submit_s[-1] / 64 == pytest.approx(load, rel=0.1)


def test_sizes_and_users_have_their_shares() -> None:
    trace = draw(drawing(sizes={1: 3.0, 8: 1.0}, users=10, vcs=3))
    assert (trace.gpus == 8).mean() == pytest.approx(0.25, abs=0.015)
    names, codes = trace.codes("user")
    shares = dict(zip(names, np.bincount(codes) / JOBS, strict=True))
    assert shares["u0"] / shares["u3"] == pytest.approx(4, rel=0.15)  # the k-th goes with 1/k
    pairs = set(zip(trace.user.tolist(), trace.vc.tolist(), strict=True))
    assert len(pairs) == 10  # a user belongs to one
    assert (trace.requested_s >= trace.run_s).all()


def test_the_same_seed_is_the_same_bytes_and_another_is_not(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        write_trace(tmp_path / name, draw(drawing(jobs=500, seed=seed)))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert (tmp_path / "a").read_bytes() != (tmp_path / "c").read_bytes()
    assert len(read_trace(tmp_path / "c")) == 500


@pytest.mark.parametrize(
    "text, known, problem",
    [
        ("weibul", DURATIONS, "unknown 'weibul'; did you mean 'weibull'"),
        ("weibull:form=2", DURATIONS, "weibull: unknown parameter 'form'"),
        ("weibull:shape=0.01", DURATIONS, "weibull.shape: 0.01: must be from 0.1"),
        ("exponential:mean_s=0", DURATIONS, "exponential.mean_s: '0': must be a number above 0"),
        ("hyperexponential:cv2=0.5", DURATIONS, "at least 1; lognormal can have less"),
        ("mmpp:burst_factor=10,burst_share=0.1", ARRIVALS, "must be below 1"),
        ("poisson:rate=1", ARRIVALS, "it has no parameters"),
    ],
)
def test_laws_that_there_are_not(text: str, known: Any, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        law(text, known, "--flag")


@pytest.mark.parametrize("text", ["", "1", "0:1", "x:1", "1:0", "1:-1", "1:nan", "1:1,1:2", "1.5:1", "99999999:1"])
def test_sizes_that_there_are_not(text: str) -> None:
    with pytest.raises(InputError, match="--sizes"):
        sizes(text, "--sizes")


def test_a_trace_of_centuries_is_refused() -> None:
    with pytest.raises(InputError, match=r"--load.*years"):
        draw(drawing(load=1e-6))
