"""Policies set against each other and against the bound: laws, what is kept, and the commands as a user gives them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from jobs.generated_traces import ARRIVALS, DURATIONS, Drawing, draw, law
from jobs.job_scenario import JobExperiment, read_case, read_scenario
from jobs.learning.scoring_network import NamedPolicy
from jobs.policy_comparison import bounds_of, comparison_document, fingerprint, result_document, run_all
from kit.errors import InputError
from scenarios.files.bundled_files import SHIPPED
from slimsched.cli import main
from slimsched.jobs.texts import answers, comparison_text, result_text, share_text, time_text
from tests.jobs.experiments import case_of, trace_of, write_case

DRAWN = SHIPPED / "jobtraces" / "drawn-64-gpus.jobtrace.parquet"
POLICIES = ["fifo", "fifo-easy-requested", "smallest", "srsf-oracle", "las"]


def drawn_case(folder: Path, **keys: Any) -> JobExperiment:
    trace = draw(Drawing(150, 8, 0.9, law("lognormal", DURATIONS, ""), law("poisson", ARRIVALS, ""), {1: 0.7, 2: 0.3}))
    cluster = {"nodes": [{"count": 2, "gpus": 4}], "restart_s": 30}
    return case_of(folder, trace, **{"cluster": cluster, "policies": POLICIES, "bound": {"passes": 60}, **keys})


def test_no_policy_is_below_its_bound(tmp_path: Path) -> None:
    experiment = drawn_case(tmp_path, warmup_s="2h")
    found = comparison_document(experiment, run_all(experiment, 1), bounds_of(experiment))
    assert [bound["is_preemptive"] for bound in found["bounds"]] == [False, True]
    assert found["bounds"][1]["jct_mean_s"] <= found["bounds"][0]["jct_mean_s"]
    for row in found["policies"]:
        assert row["above_bound"]["wait_mean_s"] >= 0
        bound = found["bounds"][row["is_preemptive"]]
        assert row["jct_s"]["mean"] == pytest.approx(bound["jct_mean_s"] * (1 + row["above_bound"]["jct_share"]))
        assert row["above_bound"]["wait_mean_s"] == pytest.approx(row["jct_s"]["mean"] - bound["jct_mean_s"])


def test_pools_that_differ_in_their_nodes_alone_have_prices_of_their_own(tmp_path: Path) -> None:
    experiment = drawn_case(tmp_path, cluster={"nodes": [{"count": 2, "gpus": 4}, {"count": 4, "gpus": 2}]})
    assert list(bounds_of(experiment)[0]["prices"]) == ["8 gpu, 4 a node", "8 gpu, 2 a node"]


def test_differences_are_those_of_the_means(tmp_path: Path) -> None:
    experiment = drawn_case(tmp_path)
    found = comparison_document(experiment, run_all(experiment, 1), [])
    base, *others = found["policies"]
    assert "against_baseline" not in base
    for row in others:
        for key in ("wait_s", "jct_s", "slowdown"):
            against = row["against_baseline"][key]
            assert against["difference"] == pytest.approx(row[key]["mean"] - base[key]["mean"])
            assert against["share"]["value"] == pytest.approx(row[key]["mean"] / base[key]["mean"] - 1)
            assert against["share"]["low"] <= against["share"]["value"] <= against["share"]["high"]
        sizes = [group for group in row["groups"] if group["kind"] == "size"]
        assert sum(group["jobs"] for group in sizes) == row["jobs"]["measured"]
        mean_s = sum(group["wait_mean_s"] * group["jobs"] for group in sizes) / row["jobs"]["measured"]
        assert mean_s == pytest.approx(row["wait_s"]["mean"])
        assert 0 <= row["against_baseline"]["less_wait_share"] + row["against_baseline"]["more_wait_share"] <= 1


def test_a_run_alone_is_told_its_distance_to_the_bound(tmp_path: Path) -> None:
    experiment = drawn_case(tmp_path, policies=["fifo", "las"])
    bounds, runs = bounds_of(experiment), run_all(experiment, 1)
    rows = comparison_document(experiment, runs, bounds)["policies"]
    for named, row, whom in zip(experiment.policies, rows, ("that stops no job", "that may stop jobs"), strict=True):
        found = result_document(experiment, named, runs[named.name], bounds)
        assert found["above_bound"] == row["above_bound"]
        said = " ".join(result_text(found).split())
        assert f"No policy {whom} can have a mean wait below" in said
        assert f"Completion times under {named.name} are {share_text(row['above_bound']['jct_share'])} above" in said
    assert "No policy" not in result_text(result_document(experiment, experiment.policies[0], runs["fifo"]))


def test_the_answers_name_who_waits_least_and_who_pays(tmp_path: Path) -> None:
    """Both small jobs pass the long one, which waits for them; the first is there already."""
    trace = trace_of([(0, 100, 4), (10, 300, 4), (20, 10, 2), (30, 10, 2)])
    experiment = case_of(tmp_path, trace, policies=["fifo", "smallest", "sjf-oracle"])
    found = comparison_document(experiment, run_all(experiment, 1), bounds_of(experiment))
    least, pays, room, *_ = (answer.lines[0] for answer in answers(found))
    waits = {row["policy"]: row["wait_s"]["mean"] for row in found["policies"]}
    assert waits["smallest"] < waits["fifo"]
    assert least.startswith(f"smallest, {time_text(waits['smallest'])} on average; fifo has ")
    assert pays.startswith("25.0 % of the jobs wait longer than under fifo, 50.0 % wait less; ")
    assert pays.endswith("; jobs of 3-4 GPUs pay most: their mean wait rises from 45.0 s to 50.0 s")
    longest = {row["policy"]: time_text(row["wait_s"]["max"]) for row in found["policies"]}
    assert f"its longest wait is {longest['smallest']}, that of fifo {longest['fifo']}" in least
    assert "Completion times under smallest are" in room
    assert "Least wait" in comparison_text(found)


def test_comparison_with_only_oracle_or_unfinished_rivals_has_no_answer(tmp_path: Path) -> None:
    experiment = case_of(tmp_path, trace_of([(0, 100, 4), (10, 300, 4), (20, 10, 2)]), policies=["fifo", "sjf-oracle"])
    assert not answers(comparison_document(experiment, run_all(experiment, 1), []))
    experiment = case_of(tmp_path, trace_of([(0, 10, 1), (0, 1000, 4)]), policies=["fifo", "smallest"], longest_s=100)
    assert not answers(comparison_document(experiment, run_all(experiment, 1), []))


def test_comparison_names_policies_whose_gap_is_not_significant(tmp_path: Path) -> None:
    """A gap is not significant if its paired interval includes zero; line two compares policies that stop no job."""
    experiment = drawn_case(tmp_path, policies=["fifo", "smallest", "las"])
    found = comparison_document(experiment, run_all(experiment, 1), [])
    best, staying = found["least"]
    assert (best, staying) == ("las", "smallest")
    waits = {row["policy"]: row["wait_s"]["mean"] for row in found["policies"]}
    rows = {row["policy"]: row for row in found["policies"]}
    assert rows["fifo"]["behind"][best]["value"] == pytest.approx(waits[best] / waits["fifo"] - 1)
    for row in found["policies"]:
        row["behind"] = {name: {"value": -0.5, "low": -0.8, "high": -0.1} for name in row["behind"]}
    assert "its lead" not in answers(found)[0].lines[0]
    rows["fifo"]["behind"]["las"] = rows["las"]["behind"]["smallest"] = {"value": -0.5, "low": -0.9, "high": 0.1}
    first, second = answers(found)[0].lines
    assert "its lead over fifo is not statistically significant; it stops running jobs" in first
    assert second.startswith("of those that stop no job: ")
    assert "its lead" not in second


def test_runs_are_kept_and_not_made_twice(tmp_path: Path) -> None:
    experiment = drawn_case(tmp_path, policies=["fifo", "las"])
    told: list[tuple[str, bool]] = []
    first = run_all(experiment, 1, tmp_path / "out", lambda *said: told.append(said))
    again = run_all(experiment, 1, tmp_path / "out", lambda *said: told.append(said))
    assert told == [("fifo", False), ("las", False), ("fifo", True), ("las", True)]
    for policy, record in first.items():
        for name in record.__slots__:
            assert np.array_equal(getattr(record, name), getattr(again[policy], name)), name


@pytest.mark.parametrize(
    "keys",
    [
        {"seed": 1}, {"load": 0.5}, {"warmup_s": 5}, {"window": {"from_s": 1}}, {"history": "none"}, {"longest_s": 9e6},
        {"cluster": {"nodes": [{"count": 3, "gpus": 4}]}}, {"preemption": {"hysteresis": 2}},
    ],
)  # fmt: skip
def test_fingerprint_changes_with_each_key_that_the_run_reads(keys: dict[str, Any], tmp_path: Path) -> None:
    before, after = (drawn_case(tmp_path, **more) for more in ({}, keys))
    marks = [fingerprint(experiment, experiment.policies[-1]) for experiment in (before, after)]
    assert marks[0] != marks[1]


def test_fingerprint_ignores_other_policies_bound_name_and_folder(tmp_path: Path) -> None:
    """Another policy under the same name has another fingerprint."""
    before = drawn_case(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    after = drawn_case(tmp_path / "elsewhere", name="other", policies=["fifo", "las"], bound={"passes": 3})
    assert fingerprint(before, before.policies[0]) == fingerprint(after, after.policies[0])
    other = NamedPolicy("fifo", before.policies[1].policy)
    assert fingerprint(before, other) != fingerprint(before, before.policies[0])


def test_a_trace_in_the_place_of_a_run_is_refused(tmp_path: Path) -> None:
    experiment = drawn_case(tmp_path, policies=["fifo"])
    (tmp_path / "fifo.jobsrun.parquet").write_bytes((tmp_path / "t.jobtrace.parquet").read_bytes())
    with pytest.raises(InputError, match="was not made by `slimsched jobs`"):
        run_all(experiment, 1, tmp_path)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_from_a_trace_to_an_answer(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`init` writes what `compare` takes; what it kept is not made again; the bound is told and drawn."""
    assert main(["jobs", "init", str(DRAWN), "--nodes", "8x8", "--out", "s.yaml"]) == 0
    document = yaml.safe_load((here / "s.yaml").read_text())
    assert document["cluster"]["nodes"] == [{"count": 8, "gpus": 8, "type": "gpu"}]
    assert "fifo-easy-requested" in document["policies"]
    flags = ["--policy", "fifo", "--policy", "fifo-easy-requested", "--out", "o"]
    assert main(["jobs", "compare", "s.yaml", *flags, "--json", "c.json"]) == 0
    streams = capsys.readouterr()
    assert "fifo-easy-requested: done" in streams.err
    assert "warning" not in streams.err
    for said in ("Waits", "bound: who does not preempt", "Who wins and who loses, by virtual cluster", "against fifo"):
        assert said in streams.out
    assert json.loads((here / "c.json").read_text()) == json.loads((here / "o" / "comparison.json").read_text())
    assert (here / "o" / "prices.svg").stat().st_size > 5000
    assert main(["jobs", "compare", "s.yaml", *flags, "--set", "bound.passes=0"]) == 0
    assert "fifo: skipped, its run exists" in capsys.readouterr().err
    assert main(["jobs", "bound", "s.yaml", "--json", "-", "--quiet"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["bounds"][0]["price_max"] > 0
    assert len(found["bounds"][0]["prices"]["64 gpu"]) > 24


def test_a_longest_wait_that_grows_gets_a_guard_that_bounds_it(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Behind a stream of small jobs the second large one waits for the stream's end where small ones overtake."""
    tiny = [(6100 + number, 1, 1) for number in range(200)]  # these it keeps waiting in order of submission
    stream = [(600 + 3600 * number, 6000, 2) for number in range(60)]
    rows = sorted([(0, 6000, 4), (60, 6000, 4), *stream, *tiny])
    policies = ["fifo-easy-requested", "smallest"]
    trace = trace_of(rows, requested_s=[run_s for _, run_s, _ in rows])
    write_case(here, trace, policies=policies, bound={"passes": 0})
    assert main(["jobs", "compare", "s.yaml", "--out", "o", "--json", "c.json"]) == 0
    document = json.loads((here / "c.json").read_text())
    longest_s = {row["policy"]: row["wait_s"]["max"] for row in document["policies"]}
    base_s, starved_s, guarded_s = longest_s.values()
    assert starved_s > 10 * base_s
    assert document["guarded"] == list(longest_s)[-1] == "smallest-requested-easy-66m"
    assert base_s / 3 < guarded_s < 2 * base_s
    said = " ".join(capsys.readouterr().out.split())
    assert f"to bound the longest wait: {document['guarded']}" in said
    assert main(["jobs", "compare", "s.yaml", "--out", "o", "--policy", "fifo-easy-requested", "--policy", "fifo"]) == 0
    assert "to bound" not in capsys.readouterr().out


def test_compare_with_one_policy_writes_its_run_and_figures(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["jobs", "init", str(DRAWN), "--nodes", "8x8", "--out", "s.yaml"]) == 0
    flags = ["--policy", "smallest", "--set", "load=1.2", "--out", "r"]
    assert main(["jobs", "compare", "s.yaml", *flags, "--json", "r.json"]) == 0
    streams = capsys.readouterr()
    assert "warning: the load is 1.20" in streams.err
    assert "smallest, 1,659 jobs measured, load 1.20" in streams.out
    experiment = read_case(read_scenario(here / "s.yaml"), "s.yaml")  # its load moves no job past another
    from pyarrow import parquet

    table = parquet.read_table(here / "r" / "smallest.jobsrun.parquet")
    assert table["job_id"].to_pylist() == experiment.jobs.job_id.tolist()
    waits = (table["end_ns"].to_numpy() - table["submit_ns"].to_numpy() - table["best_ns"].to_numpy()) / 1e9
    mean_s = waits[table["is_measured"].to_numpy()].mean()
    assert json.loads((here / "r.json").read_text())["wait_s"]["mean"] == pytest.approx(mean_s)


@pytest.mark.parametrize(
    "words, said",
    [
        (["compare", "s.yaml", "--policy", "fitgins"], "did you mean"),
        (["compare", "s.yaml", "--policy", "fifo", "--policy", "fifo"], "given twice"),
        (["compare", "s.yaml", "--set", "load=0"], "load"),
        (["compare", "s.yaml", "--json", "s.yaml"], "the command reads this file"),
    ],
)
def test_compare_with_invalid_flags_is_refused(
    words: list[str], said: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["jobs", "init", str(DRAWN), "--nodes", "8x8", "--out", "s.yaml"]) == 0
    capsys.readouterr()
    assert main(["jobs", *words]) == 2
    streams = capsys.readouterr()
    assert said in streams.err
    assert "Traceback" not in streams.err


def test_nodes_with_types_and_virtual_clusters(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--nodes", "2x8:a100=prod", "--nodes", "4x4:2080 ti", "--out", "s.yaml"]
    assert main(["jobs", "init", str(DRAWN), *flags]) == 0
    nodes = yaml.safe_load((here / "s.yaml").read_text())["cluster"]["nodes"]
    assert nodes == [{"count": 2, "gpus": 8, "type": "a100", "vc": "prod"}, {"count": 4, "gpus": 4, "type": "2080 ti"}]
    assert read_scenario(here / "s.yaml").cluster.gpus == 32


@pytest.mark.parametrize(
    "types, flag, found",
    [
        (["a100", "a100"], "4x8", "a100"),
        (["a100", ""], "4x8", "a100"),
        (["", ""], "4x8", "gpu"),
        (["a100", ""], "4x8:v100", "v100"),
        (["a100|v100", "a100"], "4x8:v100", "v100"),
        (["a100", "v100"], "4x8", "jobs request several types of GPUs: .* --nodes 4x8:a100, --nodes 4x8:v100"),
        (["a100", "a100"], "4x8:A100", "no job requests GPUs of type 'A100', .*; write --nodes 4x8:a100"),
    ],
)
def test_nodes_have_the_type_that_jobs_ask_for(
    types: list[str], flag: str, found: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The only type is taken; several, or one that nobody asks for, are refused with the flag to write."""
    write_case(here, trace_of([(0, 10, 1), (1000, 10, 1)], gpu_types=types))
    words = ["jobs", "init", "t.jobtrace.parquet", "--nodes", flag, "--out", "i.yaml"]
    if "--nodes" in found:
        assert main(words) == 2
        assert re.search(found, capsys.readouterr().err)
    else:
        assert main(words) == 0
        assert [group.type for group in read_scenario(here / "i.yaml").cluster.nodes] == [found]


@pytest.mark.parametrize(
    "requested_s, said",
    [
        ([np.nan, np.nan], "fifo-easy-history +# backfilling; the trace has no time limits"),
        ([60.0, np.nan], "fifo-easy-history +# backfilling; not all jobs have time limits \\(50 % have\\)"),
        ([60.0, 60.0], "fifo-easy-requested +# backfilling, by the time limits"),
    ],
)
def test_backfilling_goes_by_what_the_trace_has(requested_s: list[float], said: str, here: Path) -> None:
    write_case(here, trace_of([(0, 10, 1), (1000, 10, 1)], requested_s=requested_s))
    assert main(["jobs", "init", "t.jobtrace.parquet", "--nodes", "1x8", "--out", "i.yaml"]) == 0
    assert re.search(said, (here / "i.yaml").read_text())


def test_comparison_text_states_measured_jobs_and_warns_of_narrow_intervals(tmp_path: Path) -> None:
    """Run times of (1, 3) have a C^2 of 1/4; one of 101 that is 100 times as long, far above 4."""
    often = [(row * 86400.0, 1.0 + 2 * (row % 2), 1) for row in range(30)]
    warm = case_of(tmp_path, trace_of(often), warmup_s="2d")
    found = comparison_document(warm, run_all(warm, 1), [])
    assert (found["days"], found["run_cv2"]) == (29, 0.25)
    said = " ".join(comparison_text(found).split())
    assert "30 jobs, 28 measured after a warm-up of 2.0 d, on 4 GPUs" in said
    assert "Utilization is of the whole time" in said
    assert "hold less than they say" not in said
    few = case_of(tmp_path, trace_of([*often[:20], (20 * 86400.0, 1000.0, 1)]))
    said = " ".join(comparison_text(comparison_document(few, run_all(few, 1), [])).split())
    assert "21 jobs on 4 GPUs" in said
    assert re.search(
        r"hold less than they say \(docs/jobs.md\): run .* \(C\^2 1\d.\d\), and the log has 20.0 days", said
    )
