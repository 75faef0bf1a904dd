"""What a log says that its site runs, and what a policy is in Slurm."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jobs import what_if as sites
from jobs.generated_traces import ARRIVALS, DURATIONS, Drawing, draw, law
from jobs.job_records import NEAR
from jobs.job_traces import JobTrace, write_trace
from jobs.policies.job_cluster import NodeGroup
from jobs.policies.job_orders import NEED_ESTIMATES
from jobs.policies.named_policies import KINDS, NONE, RESERVING, SLURM, in_slurm, policy_of
from jobs.policy_comparison import comparison_document, run_all, run_policy
from jobs.what_if import Site, site_of
from slimsched.cli import main
from slimsched.jobs.comparison_page import page, waits_chart
from slimsched.jobs.texts import say
from tests.jobs.experiments import case_of, trace_of

pytestmark = pytest.mark.usefixtures("one_process")

NODES = (NodeGroup(4, 4, "gpu"),)
DOCS = Path(__file__).parents[2] / "docs" / "jobs.md"


def logged(folder: Path, policy: str, jobs: int = 250) -> JobTrace:
    """A log whose waits are those of a policy's simulation on four nodes of four GPUs."""
    laws = law("lognormal", DURATIONS, ""), law("poisson", ARRIVALS, "")
    trace = draw(Drawing(jobs, 16, 0.95, *laws, {1: 0.6, 2: 0.2, 4: 0.1, 8: 0.1}, seed=3))
    case = case_of(folder, trace, cluster={"nodes": [{"count": 4, "gpus": 4}]}, policies=[policy])
    waits_s = run_policy(case, case.policies[0]).wait_s
    return replace(trace, recorded_wait_s=waits_s, recorded_start_s=trace.submit_s + waits_s)


def found(folder: Path, trace: JobTrace, nodes: tuple[NodeGroup, ...] = NODES) -> Site:
    path = folder / "log.jobtrace.parquet"
    write_trace(path, trace)
    return site_of(trace, path, nodes, 1)


@pytest.mark.parametrize("policy", SLURM)
def test_a_log_that_a_policy_made_is_told_as_it(policy: str, tmp_path: Path) -> None:
    site = found(tmp_path, logged(tmp_path, policy))
    assert (site.case, site.policy) == ("near", policy)
    assert site.errors[policy] == pytest.approx(0, abs=1e-6)
    assert min(error for name, error in site.errors.items() if name != policy) > 0.02


def test_of_a_long_log_the_end_is_run_from_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever ran and waited then makes the waits what they were; from an empty cluster on they are others."""
    monkeypatch.setattr(sites, "MOST_JOBS", 60)
    trace = logged(tmp_path, "fifo")
    without_starts = np.where(np.arange(len(trace)) < 150, np.nan, trace.recorded_start_s)
    empty = found(tmp_path, replace(trace, recorded_start_s=without_starts)).errors["fifo"]
    assert found(tmp_path, trace).errors["fifo"] < min(empty / 3, 0.05)
    monkeypatch.setattr(sites, "MOST_WAITING", 0.0)  # with a long queue, reservations for all would take minutes
    assert found(tmp_path, trace).errors.keys() == {"fifo", "fifo-easy-requested", "smallest"}


def test_busy_gpus_of_log_are_its_peak_after_the_given_time() -> None:
    """The peak is 8 GPUs in the whole log, and 4 in its last part, which `init` reads."""
    trace = trace_of([(0, 10, 8), (100, 10, 4)], recorded_wait_s=[0.0, 0.0])
    assert sites.busy_of(trace, 4) == (8, 0.5)
    assert sites.busy_of(trace, 4, from_s=50.0) == (4, 0)


def test_waits_that_no_policy_makes_are_near_to_none(tmp_path: Path) -> None:
    trace = logged(tmp_path, "fifo")
    shuffled_s = np.random.default_rng(0).permutation(trace.recorded_wait_s)
    site = found(tmp_path, replace(trace, recorded_wait_s=shuffled_s))
    assert (site.case, site.policy) == ("far", "fifo-easy-requested")
    assert min(site.errors.values()) > NEAR
    assert say("site", site, 16).startswith("No policy of Slurm's waits as the log did; the nearest,")
    assert "and there are" not in say("site", site, 16)
    assert "(The log kept 16 GPUs busy at most, and there are 320.)" in say("site", site, 320)


@pytest.mark.parametrize(
    "change, nodes, case, said",
    [
        ({"recorded_wait_s": 0.0}, "4x4", "nobody waited", "in the log no job waited"),
        ({"recorded_wait_s": np.nan, "recorded_start_s": np.nan}, "4x4", "no waits", "with the columns of its starts"),
        ({}, "2x4", "too few nodes", "The log kept 16 GPUs busy at once, and --nodes has 8, .* give all of its nodes"),
        ({}, "1x4=p0 30x4=vip", "", "no job of the trace fits .* the smallest requests 8 GPUs, and 4 is the most"),
    ],
)
def test_init_on_log_without_usable_waits_takes_backfilling_as_baseline(
    change: dict[str, float],
    nodes: str,
    case: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`init` prints the remedy in one line; it refuses a cluster on which no job fits."""
    monkeypatch.chdir(tmp_path)
    trace = logged(tmp_path, "fifo", 80)
    if not case:
        trace = replace(trace, gpus=np.full(80, 8), vc=np.full(80, "p0", object))
    changed: dict[str, Any] = {key: np.full(80, by) for key, by in change.items()}
    write_trace(Path("log.jobtrace.parquet"), replace(trace, **changed))
    flags = [word for group in nodes.split() for word in ("--nodes", group)]
    code = main(["jobs", "init", "log.jobtrace.parquet", *flags, "--quiet", "--json", "i.json"])
    streams = capsys.readouterr()
    assert re.search(said, " ".join((streams.out or streams.err).split()))
    assert "Traceback" not in streams.err
    if case:
        document = json.loads(Path("i.json").read_text())
        assert (code, document["case"], document["baseline"]) == (0, case, "fifo-easy-requested")
    else:
        assert (code, len(streams.err.splitlines()), Path("log.yaml").exists()) == (2, 1, False)


def test_the_baseline_stands_with_its_error_in_scenario_answer_and_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_trace(Path("log.jobtrace.parquet"), logged(tmp_path, "smallest"))
    assert main(["jobs", "init", "log.jobtrace.parquet", "--nodes", "4x4"]) == 0
    assert (
        "The log waits as under smallest: job by job, simulated waits are 0.0 % off (next: " in capsys.readouterr().out
    )
    assert "\nbaseline: smallest        # nearest to the log's own waits: 0.0 % off" in Path("log.yaml").read_text()
    assert main(["jobs", "compare", "log.yaml", "--set", "bound.passes=0", "--out", "o", "--quiet"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "job by job they are 0.0 % off." in printed
    assert "In Slurm" in printed
    document = json.loads(Path("o/comparison.json").read_text())
    text = Path("o/report.html").read_text()
    assert text == page(document)
    assert len(text) < 1_500_000
    assert "the log" in text
    assert ("http" in re.sub("http://www.w3.org|http-equiv", "", text), "src=" in text) == (False, False)
    for row in document["policies"]:
        assert text.count(row["policy"]) > 3, row["policy"]  # waits, completion, chart, Slurm
        assert row["slurm"]["settings"][0] in text
    Path("o/report.html").unlink()
    assert main(["report", "o"]) == 0
    assert Path("o/report.html").read_text() == text
    assert main(["jobs", "compare", "log.yaml", "--set", "bound.passes=0", "--set", "load=0.9"]) == 0
    assert "Baseline: smallest. " in " ".join(capsys.readouterr().out.split())


def test_waits_by_day_are_those_of_their_jobs(tmp_path: Path) -> None:
    """One GPU: of the second and third jobs of the first day each waits for the one before; nobody comes next day."""
    rows = [(0.0, 100.0, 4), (50.0, 100.0, 4), (60.0, 10.0, 4), (180_000.0, 10.0, 4)]
    case = case_of(tmp_path, trace_of(rows, recorded_wait_s=[1.0, np.nan, 3.0, 7.0]), policies=["fifo", "smallest"])
    document = comparison_document(case, run_all(case, 1), [])
    assert document["policies"][0]["daily_wait_s"] == [pytest.approx((0 + 50 + 140) / 3), None, 0]
    assert document["recorded_daily_wait_s"] == [2, None, 7]
    figure = waits_chart({**document, "first_day": 5})
    assert [line.get_label() for line in figure.axes[0].lines] == ["fifo", "smallest", "the log"]
    assert np.asarray(figure.axes[0].lines[2].get_xdata())[2] == 7


def test_every_kind_has_slurms_terms_and_the_page_has_them() -> None:
    rows = [line.split(" | ") for line in DOCS.read_text(encoding="utf-8").splitlines() if "SchedulerType" in line]
    for kind, parts in KINDS.items():
        asks = parts.estimate == NONE and (parts.order in NEED_ESTIMATES or parts.queueing in RESERVING)
        name = f"{kind}-requested" if asks else kind
        terms = in_slurm(policy_of(name))
        assert terms.is_same == (name in SLURM)
        assert ("PreemptMode=REQUEUE" in terms.settings) == terms.is_preemptive == policy_of(name).is_preemptive
        told = [row for row in rows if f"`{kind}`" in row[0] or f"`{name}`" in row[0]]
        assert len(told) == 1, kind
        assert told[0][1] == ("itself" if terms.is_same else f"`{terms.policy}`"), kind
        assert told[0][2].removesuffix(" |") == ", ".join(f"`{line}`" for line in terms.settings), kind
    assert in_slurm(policy_of("fifo-easy-history")).policy == "fifo-easy-requested"
    assert in_slurm(policy_of("fifo-easy-requested-lowest")).is_same
    assert "PriorityWeightAge=1000" in in_slurm(policy_of("multifactor")).settings
