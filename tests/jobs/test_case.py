"""A scenario of training jobs: what it becomes, what is refused, and what is doubted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jobs.job_scenario import warnings_of
from jobs.learning.scoring_network import SIZES, JobNet, Learned, LearnedSpec, fresh_weights, write_learned
from jobs.policy_comparison import fingerprint, run_policy
from kit.errors import InputError
from tests.jobs.experiments import case_of, trace_of

FOUR = [(0, 100, 1), (10, 50, 2), (20, 50, 4), (30, 10, 1)]
MINE = "schema: slimsched.jobpolicy/1\n"


def test_a_window_and_what_had_ended_before(tmp_path: Path) -> None:
    """Jobs of the window are run; of the earlier ones only those are known that had ended, in the order of ends."""
    trace = trace_of([(0, 60, 1), (10, 20, 2), (40, 500, 1), (100, 5, 1), (150, 5, 1), (200, 5, 1)])
    experiment = case_of(tmp_path, trace, window={"from_s": 100, "until_s": "200s"}, policies=["qssf"])
    assert experiment.jobs.submit_s.tolist() == [100, 150]
    assert [(job.gpus, work_ns) for job, work_ns in experiment.past] == [(2, 20 * 10**9), (1, 60 * 10**9)]
    none = case_of(tmp_path, trace, window={"from_s": 100}, history="none")
    assert none.past == ()


def test_snapshot_includes_running_and_waiting_jobs_without_measuring_them(tmp_path: Path) -> None:
    """At 45 s one job runs and one waits: both are in the run, the one with what it had done, neither in figures."""
    trace = trace_of([(0, 100, 2), (40, 10, 4), (60, 10, 1)], recorded_start_s=[5.0, 105.0, 106.0])
    experiment = case_of(tmp_path, trace, begin="snapshot", window={"from_s": 45})
    assert experiment.snapshot is not None
    assert experiment.snapshot.done_ns.tolist() == [40 * 10**9, 0, 0]
    record = run_policy(experiment, experiment.policies[0])
    assert (record.is_measured.tolist(), record.end_ns[0]) == ([False, False, True], 105 * 10**9)


def test_a_policy_of_ones_own(tmp_path: Path) -> None:
    """It bears its file's name, and has its numbers; a restart costs what it does, unless the file says otherwise."""
    (tmp_path / "mine.jobpolicy.yaml").write_text(
        f"{MINE}order: srsf\nqueueing: first-fit\nestimate: oracle\npreemption: {{kind: by-index, round_s: 5m}}\n"
    )
    (tmp_path / "plain.jobpolicy.yaml").write_text(f"{MINE}order: smallest\nqueueing: first-fit\n")
    names = ["mine.jobpolicy.yaml", "plain.jobpolicy.yaml", "smallest"]
    cluster = {"nodes": [{"count": 1, "gpus": 4}], "restart_s": 7}
    experiment = case_of(tmp_path, trace_of(FOUR), policies=names, cluster=cluster, baseline="plain.jobpolicy.yaml")
    assert [named.name for named in experiment.policies] == ["mine-oracle", "plain", "smallest"]
    params = experiment.policies[0].policy.params
    assert (params.round_ns, params.restart_ns) == (300 * 10**9, 7 * 10**9)
    assert experiment.baseline.name == "plain"
    ends = [run_policy(experiment, named).end_ns.tolist() for named in experiment.policies]
    assert ends[1] == ends[2]


def test_outages_and_drawn_failures(tmp_path: Path) -> None:
    """A node that is away keeps its jobs waiting; the same seed draws the same failures."""
    cluster: dict[str, Any] = {"nodes": [{"count": 1, "gpus": 4}], "outages": [{"node": 0, "from_s": 0, "to_s": 500}]}
    record = run_policy(
        *(lambda experiment: (experiment, experiment.policies[0]))(case_of(tmp_path, trace_of(FOUR), cluster=cluster))
    )
    assert record.start_ns.min() == 500 * 10**9
    cluster = {"nodes": [{"count": 3, "gpus": 4}], "failures": {"up_s": "1d", "down_s": "1h"}}
    drawn = [case_of(tmp_path, trace_of(FOUR), cluster=cluster, seed=seed).cluster_model.outages for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert len(drawn[0]) > 100


def test_rounds_shorter_than_a_restart(tmp_path: Path) -> None:
    trace = trace_of([(0, 10, 1), (1000, 10, 1)])
    cluster = {"nodes": [{"count": 1, "gpus": 4}], "restart_s": 60, "checkpoint_s": 600}
    experiment = case_of(tmp_path, trace, policies=["fifo", "las"], cluster=cluster)
    assert [text.partition(":")[0] for text in warnings_of(experiment)] == ["las"]
    long = case_of(tmp_path, trace, policies=["las"], cluster=cluster, preemption={"min_run_s": 661})
    assert list(warnings_of(long)) == []


def test_virtual_clusters_and_types_that_do_not_meet(tmp_path: Path) -> None:
    trace = trace_of([(0, 10, 1), (1000, 10, 1)], vc=["a", "b"], gpu_types=["x|y", "z"])
    nodes = [{"count": 1, "gpus": 4, "vc": "a", "type": "x"}, {"count": 1, "gpus": 4, "vc": "aa", "type": "x"}]
    experiment = case_of(tmp_path, trace, cluster={"nodes": nodes})
    said = "\n".join(warnings_of(experiment))
    assert "no node has GPUs of type 'y', 'z', for which jobs ask; 1 jobs may run nowhere" in said
    assert "and are refused; write `type: y` in a new group of cluster.nodes" in said
    assert "1 jobs are of VC 'b', which has no nodes, and are refused" in said
    assert "no job is of VC 'aa', so its nodes stand idle; did you mean 'a'" in said
    assert run_policy(experiment, experiment.policies[0]).is_refused.tolist() == [False, True]


def test_classes_without_throughputs(tmp_path: Path) -> None:
    trace = trace_of([(0, 10, 1), (1000, 10, 1)], job_class=["a", "b"])
    (tmp_path / "t.csv").write_text("job_class,gpu\na,5\n")
    cluster = {"nodes": [{"count": 1, "gpus": 4}], "throughputs": "t.csv"}
    assert "no throughputs are known of 'b'" in "\n".join(warnings_of(case_of(tmp_path, trace, cluster=cluster)))
    (tmp_path / "t.csv").write_text("job_class,gpu\na,5\n*,1\n")
    assert list(warnings_of(case_of(tmp_path, trace, cluster=cluster))) == []


def test_speeds_of_a_table_and_of_profiles(tmp_path: Path) -> None:
    """A job that may only run on the second type takes as long as the ratio of throughputs says."""
    trace = trace_of([(0, 90, 1), (0, 90, 1)], job_class=["a", "b"], gpu_types=["fast", "fast"])
    (tmp_path / "t.yaml").write_text(
        "schema: slimsched.throughputs/1\nclasses: {a: {slow: 2, fast: 6}, b: {slow: 10, fast: 5}}\n"
    )
    nodes: list[dict[str, Any]] = [{"count": 1, "gpus": 1, "type": "slow"}, {"count": 1, "gpus": 2, "type": "fast"}]
    cluster: dict[str, Any] = {"nodes": nodes, "throughputs": "t.yaml"}
    experiment = case_of(tmp_path, trace, cluster=cluster)
    assert (run_policy(experiment, experiment.policies[0]).end_ns / 1e9).tolist() == [30, 180]
    back = case_of(tmp_path, trace, cluster={**cluster, "reference": "fast"})
    assert (run_policy(back, back.policies[0]).end_ns / 1e9).tolist() == [90, 90]
    nodes = [{**nodes[0], "profile": "gtx-980-ti"}, {**nodes[1], "profile": "rtx-2080-ti"}]
    profiled = case_of(tmp_path, trace, cluster={"nodes": nodes})
    ends_s = run_policy(profiled, profiled.policies[0]).end_ns / 1e9
    assert ends_s[0] == ends_s[1] < 90
    assert profiled.cluster_model.speeds.of("a", "fast") == pytest.approx(90 / ends_s[0])
    assert np.isfinite(ends_s).all()


def test_a_learned_policy_is_one_among_the_others_by_its_file(tmp_path: Path) -> None:
    """A network that is zero everywhere draws each waiting job alike, seeded by the scenario."""
    zero = {name: np.zeros_like(value) for name, value in fresh_weights(SIZES, 0, "actor").items()}
    learned = Learned(LearnedSpec("sjf", "oracle"), JobNet(zero))
    write_learned(tmp_path / "mine.safetensors", learned, {}, {})
    trace = trace_of([(row, 5, 4) for row in range(20)])
    experiment = case_of(tmp_path, trace, policies=["fifo", "mine.safetensors"])
    assert [policy.name for policy in experiment.policies] == ["fifo", "mine-oracle"]
    runs = [run_policy(experiment, each) for each in (*experiment.policies, experiment.policies[1])]
    assert runs[1].start_ns.tolist() == runs[2].start_ns.tolist() != runs[0].start_ns.tolist()
    assert sorted(runs[1].start_ns.tolist()) == sorted(runs[0].start_ns.tolist())
    assert fingerprint(experiment, experiment.policies[1]) == fingerprint(experiment, experiment.policies[1])
    other = replace(experiment.policies[1], learned=Learned(learned.spec, JobNet(fresh_weights(SIZES, 0, "actor"))))
    assert fingerprint(experiment, other) != fingerprint(experiment, experiment.policies[1])
    laid = "schema: slimsched.jobpolicy/1\nlearned: mine.safetensors\nplacement: program\n"
    (tmp_path / "laid.jobpolicy.yaml").write_text(laid)
    named = case_of(tmp_path, trace, policies=["laid.jobpolicy.yaml"]).policies[0]
    assert (named.name, named.policy) == ("laid-oracle", replace(learned.spec.policy, placement="program"))
    assert run_policy(experiment, named).is_done.all()
    for key, value in (("order", "sjf"), ("age_guard_s", "1h")):
        (tmp_path / "laid.jobpolicy.yaml").write_text(f"{laid}{key}: {value}\n")
        with pytest.raises(InputError, match=f"a learned policy brings its own {key}; leave it out"):
            case_of(tmp_path, trace, policies=["laid.jobpolicy.yaml"])
    (tmp_path / "mine.safetensors").write_bytes(b"damaged")
    with pytest.raises(InputError, match="not a safetensors file"):
        case_of(tmp_path, trace, policies=["mine.safetensors"])


def test_shares_that_hold_whole_gpus(tmp_path: Path) -> None:
    trace = trace_of([(0, 10, 1), (1000, 10, 1)], gpu_share=[0.5, 1.0])
    experiment = case_of(tmp_path, trace, policies=["fifo", "fifo-easy-oracle"])
    assert list(warnings_of(experiment)) == [
        "jobs that ask for a share of a GPU hold a whole one under 'fifo-easy-oracle'"
    ]
    cluster = {"nodes": [{"count": 1, "gpus": 4}], "variability": {"*": 0.1}}
    assert "under 'fifo'" in "".join(warnings_of(case_of(tmp_path, trace, policies=["fifo"], cluster=cluster)))


def test_gpus_that_differ(tmp_path: Path) -> None:
    """A class that is sensitive runs longer on all GPUs but the fastest; the seed draws which that is."""
    trace = trace_of([(0, 100, 1), (0, 100, 1)], job_class=["a", "b"])
    ends_s = {}
    for seed in (0, 1):
        cluster = {"nodes": [{"count": 1, "gpus": 2}], "variability": {"a": 0.0, "*": 0.5}}
        experiment = case_of(tmp_path, trace, cluster=cluster, seed=seed)
        ends_s[seed] = (run_policy(experiment, experiment.policies[0]).end_ns / 1e9).tolist()
        assert ends_s[seed][0] == 100
    assert max(ends_s[0][1], ends_s[1][1]) > 101
    assert ends_s[0] != ends_s[1]


def test_numbers_of_policies_by_name(tmp_path: Path) -> None:
    """`gavel` keeps its paper's rounds where the scenario says nothing; Slurm's weights are the scenario's."""
    keys: dict[str, Any] = {
        "policies": ["gavel", "las", "multifactor"],
        "multifactor": {"weight_age": 7, "shares": {"a": 2}},
    }
    experiment = case_of(tmp_path, trace_of(FOUR), **keys)
    assert [named.policy.params.round_ns / 1e9 for named in experiment.policies] == [360, 60, 60]
    params = experiment.policies[2].policy.multifactor
    assert (params.weight_age, params.weight_size, dict(params.shares)) == (7, 1000, {"a": 2})
    said = case_of(tmp_path, trace_of(FOUR), **keys, preemption={"round_s": 90})
    assert {named.policy.params.round_ns / 1e9 for named in said.policies} == {90}
    with pytest.raises(InputError, match=r"multifactor\.account"):
        case_of(tmp_path, trace_of(FOUR), multifactor={"account": "group"})
