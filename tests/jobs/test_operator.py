"""What an operator asks: what if, what it carries, the log's own waits, tuned numbers; as library and as commands."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jobs import what_if
from jobs.generated_traces import ARRIVALS, DURATIONS, Drawing, draw, law
from jobs.job_records import Blocks, chance_explains, figures
from jobs.job_scenario import JobExperiment
from jobs.job_traces import JobTrace
from jobs.learning.training import Windows
from jobs.policy_comparison import comparison_document, run_all, run_policy
from jobs.what_if import CHECKS, capacity_document, validation_document, whatif_document
from kit.errors import InputError
from slimsched.cli import main
from slimsched.jobs import verbs
from slimsched.jobs.texts import answers, capacity_text, validation_text, whatif_text
from tests.jobs.experiments import case_of, trace_of, write_case

pytestmark = pytest.mark.usefixtures("one_process")

WAIT_S = 300.0
SIZES = {1: 0.7, 2: 0.2, 4: 0.1}


def drawn(seed: int = 0, jobs: int = 300, load: float = 0.85) -> JobTrace:
    laws = law("lognormal", DURATIONS, ""), law("poisson", ARRIVALS, "")
    return draw(Drawing(jobs, 16, load, *laws, SIZES, seed=seed))


def on_nodes(folder: Path, trace: JobTrace, nodes: int = 4, **keys: Any) -> JobExperiment:
    return case_of(folder, trace, **{"cluster": {"nodes": [{"count": nodes, "gpus": 4}]}, **keys})


def test_more_nodes_mean_shorter_waits(tmp_path: Path) -> None:
    trace = drawn()
    now, then = on_nodes(tmp_path, trace, 4), on_nodes(tmp_path, trace, 5)
    row = whatif_document(now, then, 1)["policies"][0]
    change, means_s = (
        row["change"]["wait_s"],
        [row[cluster_model]["wait_s"]["mean"] for cluster_model in ("now", "then")],
    )
    assert change["difference"] == pytest.approx(means_s[1] - means_s[0])
    assert change["share"]["value"] == pytest.approx(means_s[1] / means_s[0] - 1)
    assert change["share"]["low"] < change["share"]["value"] < change["share"]["high"]


def test_the_share_judges(tmp_path: Path) -> None:
    """Crises of unequal size, each of which falls to about a tenth: the seconds are those of one crisis, so that an
    interval of the difference holds 0; the share is the same in all of them, and clear. Text and figures go by it."""
    crisis_s = np.repeat([10.0, 20, 30, 20, 10, 3000, 20, 10, 30, 20, 10, 20, 30, 10, 20, 10], 10)
    before_s, after_s = crisis_s, crisis_s * np.resize([0.11, 0.1, 0.09], 160)
    changes_s = (after_s - before_s).reshape(16, 10).mean(axis=1)
    half_s = 2.13 * changes_s.std(ddof=1) / 4  # Student's t of 15
    assert changes_s.mean() - half_s < 0 < changes_s.mean() + half_s
    blocks, everybody = Blocks.of(np.linspace(0, 1e6, 160)), np.ones(160, bool)
    share = blocks.share(after_s, before_s, everybody)
    assert not chance_explains(share)
    experiment = on_nodes(tmp_path, drawn(jobs=50))
    found = whatif_document(experiment, experiment, 1)
    assert "That is not statistically significant: no interval is known." in whatif_text(found, ["load=1"])
    found["policies"][0]["change"]["wait_s"] = {"share": share, "difference": float(changes_s.mean())}
    said = whatif_text(found, ["load=1"])
    assert "chance" not in said
    assert f"fifo: the mean wait changes by {100 * share['value']:+.1f} % (" in said  # type: ignore[operator]
    assert ", that is -3.1 min; " in said


@pytest.mark.release
@pytest.mark.slow
@pytest.mark.parametrize(
    "durations, least",
    [
        ("exponential", 90),
        ("lognormal:mean_s=3600,cv2=4", 80),
        ("lognormal:mean_s=3600,cv2=10", 75),
        ("hyperexponential:mean_s=3600,cv2=10", 60),
    ],
)
def test_the_interval_holds_the_truth(durations: str, least: int, tmp_path: Path) -> None:
    """Of 100 drawn histories of one law, so many intervals of a change hold its mean over all (95 are asked for).

    A history of 1,500 jobs has few busy times, and a few of them make the mean: the more so, the heavier the tail.
    """
    found = []
    laws = law(durations, DURATIONS, ""), law("poisson", ARRIVALS, "")
    for seed in range(100):
        trace = draw(Drawing(1500, 16, 0.8, *laws, {1: 0.8, 2: 0.2}, seed=seed))
        now, then = (on_nodes(tmp_path, trace, nodes, seed=seed) for nodes in (4, 5))
        found.append(whatif_document(now, then, 1)["policies"][0])
    means_s = [np.mean([row[cluster_model]["wait_s"]["mean"] for row in found]) for cluster_model in ("now", "then")]
    truth = means_s[1] / means_s[0] - 1
    shares = [row["change"]["wait_s"]["share"] for row in found]
    held = sum(share["low"] <= truth <= share["high"] for share in shares)
    assert held >= least, held


@pytest.mark.parametrize(
    "words",
    [["compare", "--against-log"], ["whatif", "--change", "seed=2"], ["capacity", "--wait", "1h"], ["bound"]],
    ids=lambda words: words[0],
)
@pytest.mark.parametrize(
    "types, gpus, said",
    [
        ("a100", 1, "they ask for GPUs of type 'a100': write `type: a100` in cluster.nodes.0"),
        ("", 8, "the smallest requests 8 GPUs, and 4 is the most that one may have"),
    ],
)
def test_no_job_fits(
    words: list[str], types: str, gpus: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = trace_of([(0, 10, gpus), (1000, 10, gpus)], gpu_types=[types, types], recorded_wait_s=[1.0, 2.0])
    assert main(["jobs", words[0], str(write_case(tmp_path, trace)), *words[1:]]) == 2
    streams = capsys.readouterr()
    assert f"cluster.nodes: no job of the trace fits into the cluster; {said}" in streams.err
    assert "done" not in streams.err


def test_no_job_fits_that_wants_so_many_nodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = trace_of([(0, 10, 4), (1000, 10, 4)], nodes=[2, 2])
    assert main(["jobs", "compare", str(write_case(tmp_path, trace))]) == 2
    assert "no type of node that a job may use has the GPUs, and the nodes, that it requests" in capsys.readouterr().err


def test_the_largest_load_keeps_the_limit_and_a_larger_one_does_not(tmp_path: Path) -> None:
    experiment = on_nodes(tmp_path, drawn())
    tried: dict[float, float] = {}
    found = capacity_document(experiment, WAIT_S, on_trial=tried.__setitem__)
    low, high = found["load_kept"], found["load_broken"]
    assert low is not None
    assert high is not None
    assert 1 < high / low <= 1.02 + 1e-9
    kept = {load for load, wait_s in tried.items() if wait_s <= WAIT_S}
    assert low in kept
    assert high not in kept
    assert {share * low for share in CHECKS} <= tried.keys()
    assert [each["load"] for each in found["broken_below"]] == [
        low * check for check in CHECKS if low * check not in kept
    ]


def test_a_load_below_the_answer_that_breaks_the_limit_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = on_nodes(tmp_path, drawn())
    monkeypatch.setattr(what_if, "_at_load", lambda _, load: load)
    monkeypatch.setattr(what_if, "_wait_s", lambda load, *_: 9e9 if 0.88 < load < 0.92 or load > 1 else 0.0)
    found = capacity_document(experiment, WAIT_S)
    assert 0.98 < found["load_kept"] < 1
    assert [each["load"] / found["load_kept"] for each in found["broken_below"]] == [pytest.approx(0.9)]
    assert f"but a load of {found['broken_below'][0]['load']:.3g} breaks it" in capacity_text(found)


def test_the_fewest_nodes(tmp_path: Path) -> None:
    trace = drawn()
    nodes = capacity_document(on_nodes(tmp_path, trace, 3), WAIT_S, by="nodes")["nodes"]
    waits_s = []
    for count in (nodes - 1, nodes):
        experiment = on_nodes(tmp_path, trace, count)
        waits_s.append(figures(run_policy(experiment, experiment.policies[0]), 4 * count)["wait_s"]["mean"])
    assert waits_s[0] > WAIT_S >= waits_s[1]


def test_refusing_jobs_is_no_way_to_need_fewer_nodes(tmp_path: Path) -> None:
    trace = trace_of([(0, 100, 8), (1000, 10, 1), (2000, 10, 1)])
    assert capacity_document(on_nodes(tmp_path, trace, 4), WAIT_S, by="nodes")["nodes"] == 2


def test_a_log_that_was_made_by_the_policy_is_met(tmp_path: Path) -> None:
    """A log whose waits are those of a simulation agrees with it to the second, and with another policy it does not."""
    trace = drawn(load=1.0)
    experiment = on_nodes(tmp_path, trace)
    recorded_s = run_policy(experiment, experiment.policies[0]).wait_s
    logged = trace_of(
        list(zip(trace.submit_s.tolist(), trace.run_s.tolist(), trace.gpus.tolist(), strict=True)),
        recorded_wait_s=recorded_s.tolist(),
    )
    same = on_nodes(tmp_path, logged)
    found = validation_document(same, same.policies[0])
    assert found["error_s"] == pytest.approx(0, abs=1e-6)
    assert (found["near_share"], found["rank_correlation"]) == (1, pytest.approx(1))
    assert "waits as the log did" in validation_text(found)
    other = on_nodes(tmp_path, logged, policies=["sjf-oracle"])
    found = validation_document(other, other.policies[0])
    assert found["error_s"] < 0
    assert "not the recorded ones" in validation_text(found)


def test_a_large_error_is_told_as_a_factor_with_its_cause(tmp_path: Path) -> None:
    """From ten times on; more work than the GPUs can do is named, and else the flag to try."""
    trace = trace_of([(row * 50, 100, 4) for row in range(40)], recorded_wait_s=[1.0] * 40)
    experiment = on_nodes(tmp_path, trace, 1)
    found = validation_document(experiment, experiment.policies[0])
    said = " ".join(validation_text(found).split())
    assert "The simulated mean wait is 975 times as long (" in said
    assert "the log kept 8 GPUs busy at once, and the scenario has 4. Correct cluster.nodes first." in said
    assert "--policy" not in said
    less = {**found, "busy_gpus": 4.0, "error_share": {"value": 8.9, "low": 8.0, "high": 9.5}}
    assert "Mean error +890.0 % (+800.0 to +950.0)" in validation_text(less)
    assert "such as --policy fifo-easy-requested" in " ".join(validation_text(less).split())
    other = {**less, "policy": "fifo-easy-requested"}
    assert "such as --policy fifo, and" in " ".join(validation_text(other).split())


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_case(tmp_path, drawn(jobs=120), cluster={"nodes": [{"count": 4, "gpus": 4}]}, policies=["fifo", "las"])
    return tmp_path


def test_whatif_with_changed_cluster_reports_wait_change_per_policy(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--change", "cluster.nodes.0.count=6", "--change", "cluster.restart_s=5", "--json", "w.json"]
    assert main(["jobs", "whatif", "s.yaml", *flags]) == 0
    said = capsys.readouterr().out
    assert "GPUs 16 -> 24" in said
    assert re.search(r"fifo: the mean wait changes by -[\d.]+ % \(", said)
    found = json.loads((here / "w.json").read_text())
    assert found["changes"] == {"cluster.nodes.0.count": 6, "cluster.restart_s": 5}
    assert [row["policy"] for row in found["policies"]] == ["fifo", "las"]


def test_comparison_with_jitter_reports_a_band_for_each_mean(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Replays delay submissions and ends; the baseline's change against itself has a band of zero."""
    flags = ["--set", "jitter_s=30s", "--set", "bound.passes=0", "--quiet", "--out", "o"]
    assert main(["jobs", "compare", "s.yaml", *flags, "--json", "c.json"]) == 0
    for said in (capsys.readouterr().out, Path("o/report.html").read_text()):
        assert "If jobs came and ended up to 30.0 s later" in said
    found = json.loads((here / "c.json").read_text())
    for row, with_band in zip(found["policies"], found["jitter"]["policies"], strict=True):
        low, high = with_band["wait_s"]
        assert low < high
        assert 0.8 * low < row["wait_s"]["mean"] < 1.2 * high
    assert found["jitter"]["policies"][0]["share"] == [0, 0]
    assert main(["jobs", "compare", "s.yaml", "--set", "jitter_s=0", "--set", "bound.passes=0"]) == 0
    assert "later" not in capsys.readouterr().out
    text = Path("s.yaml").read_text()
    Path("j.yaml").write_text(f"{text}jitter_s: 30\n")
    assert main(["jobs", "whatif", "j.yaml", "--change", "cluster.nodes.0.count=5", "--policy", "fifo"]) == 0
    assert re.search(r"a little later, it were -[\d.]+ to -[\d.]+ %\.", " ".join(capsys.readouterr().out.split()))


def test_jitter_fits_no_snapshot(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["jobs", "compare", "s.yaml", "--set", "jitter_s=1", "--set", "begin=snapshot"]) == 2
    assert "leave out jitter_s, or begin empty" in capsys.readouterr().err


@pytest.mark.parametrize(
    "waits, refused, said",
    [
        (1.0, 0, "yes: waits under fifo are"),
        (0.7, 0, "yes, which policy is better; seconds, with care: waits"),
        (0.3, 0, "no, the site probably runs something else than fifo, or other nodes: waits"),
        (None, 2, "the log recorded no waits to compare with. 2 jobs can never fit here, and are in no mean."),
    ],
)
def test_whether_waits_can_be_believed(waits: float | None, refused: int, said: str, tmp_path: Path) -> None:
    rows = [(row * 50.0, 100.0, 4) for row in range(30)]
    trace = trace_of([*rows, *[(1500.0, 10.0, 99)] * refused])
    own = case_of(tmp_path, trace, policies=["fifo", "smallest"])
    wait_s = np.nan_to_num(run_policy(own, own.policies[0]).wait_s)
    recorded_s = np.full(len(trace), np.nan) if waits is None else waits * wait_s
    experiment = case_of(tmp_path, replace(trace, recorded_wait_s=recorded_s), policies=["fifo", "smallest"])
    document = comparison_document(experiment, run_all(experiment, 1), [])
    text = next(answer.lines[0] for answer in answers(document) if answer.label == "Trusted")
    assert said in text


def test_capacity_as_a_user_asks(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["jobs", "capacity", "s.yaml", "--wait", "10m"]) == 0
    said = capsys.readouterr().out
    assert "small, fifo: sustains a load of" in said
    assert "This is of this one log; other weeks may need more." in said
    assert main(["jobs", "capacity", "s.yaml", "--wait", "10m", "--by", "nodes", "--of", "p90"]) == 0
    said = capsys.readouterr().out
    assert "nodes of the first group are enough, at a p90 of waits of at most 10.0 min" in said
    assert re.search(r"\n  with these it is [\d.]+ (s|min)\n", said)
    assert "This is of this one log; other weeks may need more." in said


def test_trained_policy_runs_from_its_file_in_a_comparison(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The policy is trained for two epochs on short windows and compared with baselines."""
    found = verbs.train("s.yaml", epochs=2, episodes=4, window=16, judged=4, jobs=1)
    assert "| rltune |" in found.text
    assert found.document["windows"] == 4
    assert {"smallest", "qssf-24h", "rltune"} <= set(found.document["mean_wait_s"])
    assert main(["jobs", "compare", "s.yaml", "--policy", "rltune.safetensors"]) == 0
    assert "small: rltune, 120 jobs measured" in capsys.readouterr().out


def test_evaluation_windows_share_no_job_with_training_windows(tmp_path: Path) -> None:
    experiment = on_nodes(tmp_path, drawn(jobs=200))
    earlier, later = Windows.split(experiment.jobs, experiment.cluster_model, length=8, warm=8)
    assert earlier.last + 8 <= later.first - later.warm


@pytest.mark.parametrize(
    "words, said",
    [
        (["whatif", "--change", "cluster.nodes.9.count=1"], "no such item; the list has 1"),
        (["whatif", "--change", "cluster.nodez=1"], "did you mean 'nodes'"),
        (["whatif", "--change", "load"], "must be KEY=VALUE"),
        (["whatif", "--change", "window.from_s=100"], "no job could be set against itself"),
        (["whatif"], "--change"),
        (["whatif", "--policy", "las"], "slimsched jobs compare"),
        (["whatif", "--change", "policy=las"], "slimsched jobs compare"),
        (["whatif", "--change", "nodes=5"], "the first group's nodes are cluster.nodes.0.count"),
        (["compare", "--policy", "backfill"], "--policy: 'backfill' is Slurm's word; here it is fifo-requested"),
        (["whatif", "--change", "policies.0=las"], "slimsched jobs compare"),
        (["whatif", "--change", "cluster.nodes.0.count=+2"], "the new number, without +"),
        (["compare", "--set", "load=71"], "load: input should be less than or equal to 10"),
        (["capacity"], "--wait"),
        (["capacity", "--wait", "soon"], "no duration"),
        (["capacity", "--wait", "1s", "--of", "p98"], "did you mean"),
        (["compare", "--against-log"], "the log recorded no waits"),
        (["compare", "--policy", "no.safetensors"], "no.safetensors"),
    ],
)
def test_operator_command_with_invalid_flags_is_refused(
    words: list[str], said: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["jobs", words[0], "s.yaml", *words[1:]]) == 2
    streams = capsys.readouterr()
    assert said in streams.err
    assert "Traceback" not in streams.err


@pytest.mark.parametrize(
    "work, said",
    [
        (lambda: verbs.train("s.yaml", out="x.yaml"), r"\.safetensors"),
        (lambda: verbs.train("s.yaml", window=5000), "leave no window of 5000"),
        (lambda: verbs.train("s.yaml", base="sjf"), "sjf asks how long jobs run: take one of"),
    ],
)
def test_train_function_with_invalid_arguments_is_refused(work: Callable[[], object], said: str, here: Path) -> None:
    with pytest.raises(InputError, match=said):
        work()
