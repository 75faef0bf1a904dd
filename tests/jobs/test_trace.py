"""The normal form on disk: what is written is read, the same trace is the same bytes, and what is wrong is told."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from jobs.generated_traces import ARRIVALS, DURATIONS, SIZES, Drawing, draw, law
from jobs.job_traces import COLUMNS, JobTrace, read_trace, write_trace
from kit.errors import InputError
from tests.jobs.experiments import trace_of


def small(**changes: Any) -> JobTrace:
    known = {"requested_s": [np.nan, 60, 60], "status": ["completed", "failed", "unknown"], "gpu_share": [0.25, 1, 1]}
    trace = trace_of([(0, 10, 1), (1.5, 20, 2), (1.5, 30, 4)], job_id=["a", "b", "c"], nodes=[1, 1, 2], **known)
    return replace(trace, **changes)


def test_trace_read_back_equals_the_trace_written(tmp_path: Path) -> None:
    trace = small(user=np.array(["é", "|", ""], object))
    write_trace(tmp_path / "t.parquet", trace)
    found = read_trace(tmp_path / "t.parquet")
    for name in COLUMNS:
        assert np.array_equal(
            getattr(found, name), getattr(trace, name), equal_nan=getattr(trace, name).dtype != object
        )
        assert getattr(found, name).dtype == getattr(trace, name).dtype
    assert found.provenance == trace.provenance


NOT_UTF_8 = pyarrow.Array.from_buffers(pyarrow.string(), 3, pyarrow.array([b"a", b"\xff", b"c"]).buffers())
WRONG: dict[str, tuple[dict[str, Any] | Callable[[Any], Any], str]] = {
    "no job": ({name: getattr(small(), name)[:0] for name in COLUMNS}, "holds no job"),
    "a time below 0": ({"submit_s": np.array([-1.0, 0, 1])}, "submit_s: row 0"),
    "no time": ({"submit_s": np.array([0, np.nan, 1])}, "submit_s: row 1"),
    "not sorted": ({"submit_s": np.array([0.0, 2, 1])}, "submit_s: row 2.*sort by submit_s"),
    "no run time": ({"run_s": np.array([1.0, 0, 1])}, "run_s: row 1.*above 0"),
    "endless": ({"run_s": np.array([1.0, np.inf, 1])}, "run_s: row 1"),
    "no GPU": ({"gpus": np.array([1, 1, 0], np.int32)}, "gpus: row 2.*1 or more"),
    "never begun": ({"attempts": np.array([0, 1, 1], np.int32)}, "attempts: row 0"),
    "a wait below 0": ({"recorded_wait_s": np.array([0.0, -1, 1])}, "recorded_wait_s: row 1"),
    "no share": ({"gpu_share": np.array([0.0, 1, 1])}, "gpu_share: row 0.*0.001 to 1"),
    "more than all of it": ({"gpu_share": np.array([1, 1.5, 1])}, "gpu_share: row 1"),
    "a share of several": ({"gpu_share": np.array([1, 0.5, 1])}, "gpu_share: row 1.*of one GPU alone"),
    "nowhere": ({"nodes": np.array([0, 1, 1], np.int32)}, "nodes: row 0: 0; expected 1 to the job's GPUs"),
    "on more nodes than it has GPUs": ({"nodes": np.array([1, 3, 1], np.int32)}, "nodes: row 1: 3"),
    "an unknown status": ({"status": np.array(["failed", "x", "failed"], object)}, "status: row 1: 'x'; expected"),
    "an id twice": ({"job_id": np.array(["a", "b", "a"], object)}, "job_id: 'a' occurs more than once"),
    "no schema": (lambda table: table.replace_schema_metadata({}), "schema: None; expected 'slimsched.jobtrace/1'"),
    "a later schema": (
        lambda table: table.replace_schema_metadata({b"slimsched": b'{"schema": "x/2"}'}), "schema: 'x/2'; expected"),
    "a schema that is not JSON": (lambda table: table.replace_schema_metadata({b"slimsched": b"{"}), "schema: None"),
    "no such column": (lambda table: table.drop_columns(["vc"]), "vc: no such column"),
    "another order": (lambda table: table.select([*list(COLUMNS)[::-1]]), "columns in the order nodes"),
    "int64": (lambda table: table.set_column(3, "gpus", pyarrow.array([1, 2, 4])), "gpus: holds int64, not int32"),
    "a hole": (lambda table: table.set_column(4, "user", pyarrow.array(["a", None, "b"])), "user: 1 rows hold nothing"),
    "a text that is not UTF-8": (lambda table: table.set_column(4, "user", NOT_UTF_8), "or damaged"),
}  # fmt: skip


@pytest.mark.parametrize("change, problem", WRONG.values(), ids=WRONG)
def test_damaged_trace_is_refused_with_its_column(change: Any, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    write_trace(path, small(**change) if isinstance(change, dict) else small())
    if callable(change):
        parquet.write_table(change(parquet.read_table(path)), path)
    with pytest.raises(InputError, match=problem):
        read_trace(path)


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
