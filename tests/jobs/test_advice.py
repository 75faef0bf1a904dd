"""`jobs advise` on texts as Slurm 22.05 writes them (`SLURM_TIME_FORMAT=%s`); a real one: test_real_advice.py."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from fcntl import LOCK_EX, flock
from pathlib import Path
from typing import Any

import pytest

from jobs.advice import (
    BAND,
    SLACK,
    Change,
    LiveJob,
    advice_document,
    doubts_of,
    factors_of,
    live_jobs,
    read_journal,
    undoing,
)
from jobs.job_scenario import JobExperiment
from jobs.learning.scoring_network import NamedPolicy
from jobs.policies.named_policies import policy_of
from kit.errors import InputError
from kit.units import NS_PER_S
from slimsched.cli import main
from slimsched.jobs import slurm_commands
from tests.jobs.experiments import case_of, trace_of, write_case

NOW_S = 1_000_000.0
DAY_S = 86_400.0
QUEUE = """\
1|1|games|train|normal|RUNNING|None|999959|1:40|0:40|cpu=32,node=1,billing=32,gres/gpu=4|
2|2|man|train|normal|PENDING|Resources|999900|10:00|0:00|cpu=32,mem=62.50G,node=1,billing=32,gres/gpu=4|
3|3|games|train|normal|PENDING|Priority|999950|2:00|0:00|cpu=8,mem=62.50G,node=1,billing=8,gres/gpu=1|
4|4|lp|train|normal|PENDING|Priority|999990|1-00:00:00|0:00|cpu=8,mem=62.50G,node=1,billing=8,gres/gpu:a100=1|
7|7|lp|train|normal|PENDING|JobHeldUser|N/A|2:00|0:00|cpu=8,mem=62.50G,node=1,billing=8,gres/gpu=1|
8|8|lp|train|normal|PENDING|Dependency|N/A|UNLIMITED|0:00|cpu=8,mem=62.50G,node=1,billing=8,gres/gpu=1|
9|9_1|lp|train|normal|PENDING|Priority|999960|1:00|0:00|cpu=8,mem=62.50G,node=1,billing=8,gres/gpu=1|
9|9_2|lp|train|normal|PENDING|Priority|999960|1:00|0:00|cpu=8,mem=62.50G,node=1,billing=8,gres/gpu=1|
12|12|man|train|normal|PENDING|Priority|999960|3:00|0:00|cpu=1,mem=62.50G,node=1,billing=1|
"""
FACTORS = "2|0|1\n3|0|1\n4|0|1\n9|0|1\n12|0|1\n"
LOG = trace_of([(0, 10, 1), (20, 10, 1)], requested_s=[10.0, 10.0])  # jobs run for all of their limits
CONFIG = "PriorityParameters      = (null)\nPriorityType            = priority/multifactor\n"


def job(number: int, own: int = 1000, **others: Any) -> LiveJob:
    """Of one GPU and an hour, that waits; the later its number, the younger."""
    factor = others.get("factor", 0)
    given = {
        "name": str(number), "user": "u", "partition": "p", "qos": "q", "state": "PENDING", "reason": "Priority",
        "since_s": NOW_S - 3600 + number, "limit_s": 3600.0, "used_s": 0.0, "gpus": 1, "gpu_types": "",
    }  # fmt: skip
    return LiveJob(number, **{**given, "priority": max(own + (factor or 0), 1), "factor": 0, **others})


@pytest.fixture
def experiment(tmp_path: Path) -> JobExperiment:
    """One node of 4 GPUs."""
    return case_of(tmp_path, LOG, policies=["fifo-easy-requested"])


def advised(
    experiment: JobExperiment, jobs: Sequence[LiveJob], policy: str = "saf-requested", **given: Any
) -> dict[str, Any]:
    words = replace(policy_of(policy), age_guard_ns=round(given.get("age_guard_s", DAY_S) * NS_PER_S))
    return advice_document(experiment, NamedPolicy(policy, words), jobs, given.get("journal", ()), NOW_S)


def order_of(document: dict[str, Any]) -> list[str]:
    return [row["job"] for row in sorted(document["jobs"], key=lambda row: row["place"][1])]


def made(jobs: Sequence[LiveJob], changes: Sequence[Change]) -> list[LiveJob]:
    after = {change.job: change.after for change in changes}
    return [
        replace(job, factor=after[job.job_id], priority=max(job.own_priority + after[job.job_id], 1))
        if job.job_id in after
        else job
        for job in jobs
    ]


def changes_in(document: dict[str, Any]) -> list[Change]:
    return [Change(**each) for each in document["changes"]]


def test_a_queue_is_read() -> None:
    jobs = {job.name: job for job in live_jobs(QUEUE, FACTORS)}
    assert (jobs["1"].used_s, jobs["1"].limit_s, jobs["1"].gpus, jobs["1"].factor) == (40.0, 100.0, 4, None)
    assert (jobs["4"].limit_s, jobs["4"].gpu_types, jobs["4"].since_s) == (DAY_S, "a100", 999_990.0)
    assert (jobs["8"].limit_s, jobs["8"].since_s) == (365 * DAY_S, float("inf"))
    assert (jobs["9_2"].job_id, jobs["9_2"].priority, jobs["12"].gpus) == (9, 1, 0)


def test_live_job_with_several_priorities_has_no_site_factor() -> None:
    assert live_jobs(QUEUE, "2|0|7\n2|0|9\n")[1].factor is None


@pytest.mark.parametrize(
    "queue, factors",
    [
        ("1|1|games|train|normal|RUNNING|None|999959|1:40|0:40|\n", ""),
        (QUEUE.replace("999959", "2026-11-27T10:59:06"), ""),
        (QUEUE.replace("1:40", "soon"), ""),
        ('{"jobs": []}', ""),
        ("", "CLUSTER: tiny\n"),
        ("", "2|x|1\n"),
    ],
)
def test_slurm_output_of_unknown_form_is_refused(queue: str, factors: str) -> None:
    with pytest.raises(InputError, match="is not understood: Slurm"):
        live_jobs(queue, factors)


@pytest.mark.parametrize(
    "line, doubt",
    [
        ("PriorityWeightFairShare = 0\nPreemptType             = (null)\n", []),
        ("PreemptType             = preempt/none\n", []),
        ("PriorityWeightFairShare = 10000\n", ["PriorityWeightFairShare=10000: fair share moves priorities"]),
        ("PreemptParameters       = \nPreemptType             = preempt/qos\n", ["PreemptType=preempt/qos: jobs are"]),
    ],
)
def test_advice_on_site_with_unsimulated_settings_prints_doubts(
    line: str, doubt: list[str], slurm: SlurmOfTexts, capsys: pytest.CaptureFixture[str]
) -> None:
    assert [each[: len(start)] for each, start in zip(doubts_of(CONFIG + line), doubt, strict=True)] == doubt
    slurm.config += line
    assert main(["jobs", "advise", "s.yaml"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert all(each in out for each in doubt)


def test_a_queue_is_advised(experiment: JobExperiment) -> None:
    """By hand: job 1 ends in 60 s. Now 2 is first, and has all GPUs for 600 s; then 3 is, and 2 waits for its end."""
    found = advised(experiment, live_jobs(QUEUE, FACTORS))
    assert found["left"] == {"array, or part of a job": 2, "JobHeldUser": 1, "Dependency": 1, "requests no GPU": 1}
    assert (found["running"], [row["job"] for row in found["jobs"]]) == (1, ["2", "3", "4", "9_1", "9_2"])
    assert order_of(found) == ["3", "2", "4", "9_1", "9_2"]
    assert (found["jobs"][0]["limit_s"], found["jobs"][0]["waited_s"]) == (600.0, 100.0)
    assert {row["job"]: row["wait_s"] for row in found["jobs"]}["2"] == [100.0 + 60, 100.0 + 60 + 120]
    assert {row["job"]: row["wait_s"] for row in found["jobs"]}["3"] == [50.0 + 60 + 600, 50.0 + 60]
    assert found["commands"] == ["scontrol update JobId=3 SiteFactor=4", "scontrol update JobId=2 SiteFactor=2"]


def test_jobs_are_simulated_in_the_order_that_slurm_has(tmp_path: Path) -> None:
    """Whatever the baseline's own order is; the log's failures are not those of today."""
    cluster = {"nodes": [{"count": 1, "gpus": 4}], "outages": [{"from_s": 0, "to_s": 100_000, "node": 0}]}
    experiment = case_of(tmp_path, LOG, policies=["smallest"], cluster=cluster)
    jobs = [job(1, 9, gpus=4, since_s=NOW_S, limit_s=100.0), job(2, 5, since_s=NOW_S)]
    assert [row["wait_s"] for row in advised(experiment, jobs, "fifo")["jobs"]] == [[0.0, 0.0], [100.0, 100.0]]


def test_a_long_queue_is_simulated_with_one_reservation(tmp_path: Path) -> None:
    experiment = case_of(tmp_path, LOG, policies=["fifo-requested-conservative"])
    assert advised(experiment, [job(number) for number in range(1, 4)])["site"] == "fifo-requested-conservative"
    assert advised(experiment, [job(number) for number in range(1, 60)])["site"] == "fifo-easy-requested"


def test_advice_with_array_task_keeps_its_queue_position(experiment: JobExperiment) -> None:
    jobs = [job(1, 5000, limit_s=9e3), job(2, 4000, name="2_1"), job(3, 3000, limit_s=60.0)]
    found = advised(experiment, jobs)
    assert (order_of(found), changes_in(found)) == (["3", "2_1", "1"], [Change(3, 0, 2000), Change(1, 0, -2000)])
    assert changes_in(advised(experiment, made(jobs, changes_in(found)), journal=changes_in(found))) == []


def test_partitions_and_qos_exchange_nothing(experiment: JobExperiment) -> None:
    jobs = [job(1, 9000, limit_s=9e3), job(2, 10, limit_s=60.0, qos="low"), job(3, 20, limit_s=90.0, partition="x")]
    assert changes_in(advised(experiment, jobs)) == []


def test_a_second_pass_changes_nothing(experiment: JobExperiment) -> None:
    jobs = [job(number, limit_s=3600.0 - 60 * number) for number in range(1, 30)]
    first = changes_in(advised(experiment, jobs))
    again = advised(experiment, made(jobs, first), journal=first)
    assert (len(first) > 20, changes_in(again)) == (True, [])
    assert order_of(again) == [str(number) for number in range(29, 0, -1)]


def test_little_drift_is_left_and_more_is_mended() -> None:
    assert factors_of([job(1, 1000), job(2, 1400)]) == {1: 400, 2: -400}
    drifted = job(2, 1400, factor=-400)
    assert factors_of([job(1, 1000, factor=400 + SLACK), drifted]) == {1: 400 + SLACK, 2: -400}
    assert factors_of([job(1, 1000, factor=401 + SLACK), drifted]) == {1: 400, 2: -400}


def test_site_factors_stay_in_their_band() -> None:
    assert factors_of([job(1, 1), job(2, 5 * BAND)]) == {1: BAND, 2: -BAND}


def test_job_past_the_age_guard_is_ordered_first(experiment: JobExperiment) -> None:
    jobs = [job(1, gpus=4, limit_s=9e4), job(2, limit_s=7e4), *(job(number) for number in range(100, 110))]
    assert order_of(advised(experiment, jobs))[-2:] == ["2", "1"]
    found = advised(experiment, jobs, age_guard_s=3550.0)
    assert (order_of(found)[:2], found["late"]) == (["1", "2"], 2)


def test_a_foreign_site_factor_is_left_alone(experiment: JobExperiment) -> None:
    jobs = [job(1, factor=7, limit_s=60.0), job(2, limit_s=9e3), job(3, limit_s=60.0)]
    found = advised(experiment, jobs)
    assert found["left"] == {"SiteFactor set by others": 1}
    assert {change.job for change in changes_in(found)} == {2, 3} - {2}
    assert advised(experiment, jobs, journal=[Change(1, 0, 7)])["left"] == {}
    assert advised(experiment, jobs, journal=[Change(1, 0, 6)])["left"] == {"SiteFactor set by others": 1}


def test_job_pending_for_another_reason_is_left_unchanged(experiment: JobExperiment) -> None:
    """The document lists only job 1 and the job that Slurm hasn't looked at yet."""
    others = [job(2, reason="None"), job(3, reason="BeginTime"), job(4, factor=None), job(5, gpus=16)]
    found = advised(experiment, [job(1), *others])
    assert [row["job"] for row in found["jobs"]] == ["1", "2"]
    assert found["left"] == {"not looked at yet": 1, "BeginTime": 1, "no single priority": 1, "fits on no node": 1}


def test_bands_come_from_the_logs_own_limits_and_jitter(tmp_path: Path) -> None:
    """Run times are drawn from the shares of their limits that jobs of the log had: a tenth or a half."""
    log = trace_of([(0, 10, 1), (20, 50, 1)], requested_s=[100.0, 100.0])
    experiment = case_of(tmp_path, log, policies=["fifo-easy-requested"])
    jobs = [job(1, state="RUNNING", gpus=4, used_s=60.0, limit_s=200.0), job(2, gpus=4, since_s=NOW_S)]
    wait = advised(experiment, jobs)["expected"][0]["mean_s"]
    assert (wait["value"], wait["band"]) == (pytest.approx(40.0), (pytest.approx(40.0), pytest.approx(40.0)))
    jittered = case_of(tmp_path, log, policies=["fifo-easy-requested"], jitter_s=10)
    low, high = advised(jittered, jobs)["expected"][0]["mean_s"]["band"]
    assert 40 < low < high < 50


def test_no_job_waits(experiment: JobExperiment) -> None:
    found = advised(experiment, [])
    assert (found["jobs"], found["expected"], found["changes"]) == ([], [], [])


def test_undo_restores_site_factors_unless_changed_by_others_or_started() -> None:
    journal = [Change(1, 0, 5), Change(2, 0, 9), Change(1, 5, 8), Change(3, 0, 4), Change(4, 0, 4)]
    jobs = [job(1, factor=8), job(2, factor=10), job(3, factor=4, state="RUNNING")]
    changes, left = undoing(journal, jobs)
    assert (changes, left) == ([Change(1, 8, 0)], {"SiteFactor set by others": 1, "started, gone or held": 2})
    assert undoing([*journal, *changes], made(jobs, changes))[0] == []


@pytest.mark.parametrize("factor", [5, 8])
def test_a_kill_between_journal_and_change_is_known(experiment: JobExperiment, factor: int) -> None:
    journal = [Change(1, 0, 5), Change(1, 5, 8)]
    jobs = [job(1, factor=factor, limit_s=60.0), job(2, limit_s=9e3)]
    assert undoing(journal, jobs)[0] == [Change(1, factor, 0)]
    assert advised(experiment, jobs, journal=journal)["left"] == {}


def test_a_line_that_was_cut_off_was_never_done() -> None:
    text = Change(1, 0, 5).line + Change(2, 0, 6).line
    for length in range(len(Change(1, 0, 5).line), len(text)):
        assert read_journal(text[:length], "x") == [Change(1, 0, 5)]
    for other in ("hello\n", "hello", '{"job":1}\n', '{"job":"1","before":0,"after":2}\n', "[1]\n"):
        with pytest.raises(InputError, match="is not a journal"):
            read_journal(other, "x")


class SlurmOfTexts(slurm_commands.Slurm):
    """Jobs 2, 3 and 4 of `QUEUE` with their SiteFactors.

    Attributes:
        patience: so many changes are made before it is killed.
    """

    def __init__(self) -> None:
        self.factors, self.patience, self.config, self.is_away = {2: 0, 3: 0, 4: 0}, 100, CONFIG, False
        self.journal, self.queue = Path("s.advice.jsonl"), QUEUE

    def ask(self, *words: str) -> str:
        if self.is_away:
            raise InputError("squeue", "", "the controller is away")
        rows = (f"{number}|{factor}|{1000 + factor}\n" for number, factor in self.factors.items())
        return {"scontrol": self.config, "squeue": self.queue, "sprio": "".join(rows)}[words[0]]

    def change(self, change: Change) -> bool:
        assert self.journal.read_text().endswith(change.line), "written down before it is made"
        if not self.patience:
            raise KeyboardInterrupt
        self.patience -= 1
        self.factors[change.job] = change.after
        return True


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SlurmOfTexts:
    write_case(tmp_path, LOG, policies=["fifo-easy-requested"])
    found = SlurmOfTexts()
    monkeypatch.setattr(slurm_commands, "Slurm", lambda: found)
    monkeypatch.setattr("time.time", lambda: NOW_S)
    monkeypatch.chdir(tmp_path)
    return found


def test_advice_without_apply_changes_no_site_factor(slurm: SlurmOfTexts, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["jobs", "advise", "s.yaml"]) == 0
    out = capsys.readouterr().out
    assert "\nscontrol update JobId=2 SiteFactor=2\n" in out
    assert "Nothing was changed. --apply writes this." in out
    assert (set(slurm.factors.values()), slurm.journal.exists()) == ({0}, False)


@pytest.mark.parametrize("killed_after", [0, 1, 2])
def test_apply_killed_midway_resumes_and_can_be_undone(slurm: SlurmOfTexts, killed_after: int) -> None:
    """A second `--apply` reaches the same order, and `--undo` restores the factors, even after a kill."""
    apply = ["jobs", "advise", "s.yaml", "--apply"]
    slurm.patience = killed_after
    assert main(apply) != 0 or killed_after == 2
    with slurm.journal.open("a") as file:
        file.write('{"job":4,"bef')
    slurm.patience = 100
    assert main(apply) == 0
    wanted = {2: 2, 3: 4, 4: 0}
    assert slurm.factors == wanted
    assert main(apply) == 0
    assert slurm.factors == wanted
    undo = ["jobs", "advise", "s.yaml", "--undo", "s.advice.jsonl"]
    slurm.patience = min(killed_after, 1)
    assert main(undo) != 0
    slurm.patience = 100
    slurm.factors[4] = 77
    assert main(undo) == 0
    assert slurm.factors == {2: 0, 3: 0, 4: 77}


def test_pass_follows_pass_until_it_is_interrupted(
    slurm: SlurmOfTexts, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between passes a job comes to wait, then another's SiteFactor is set by others, then the controller is away.

    What the first pass wrote is ours in the next: the new job goes between, and others are moved again.
    """
    sleeps: list[float] = []

    def sleep(time_s: float) -> None:
        sleeps.append(time_s)
        if len(sleeps) == 1:
            slurm.queue += QUEUE.splitlines()[2].replace("3|3|", "5|5|").replace("2:00", "1:00") + "\n"
            slurm.factors[5] = 0
        if len(sleeps) == 2:
            slurm.factors[3] = 77
        slurm.is_away = len(sleeps) == 3
        if len(sleeps) == 5:
            raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", sleep)
    assert main(["jobs", "advise", "s.yaml", "--every", "30s"]) == 2
    assert "--every: repeats what --apply writes; give that, too" in capsys.readouterr().err
    assert main(["jobs", "advise", "s.yaml", "--apply", "--every", "30s", "--json", "last.json"]) == 0
    assert sleeps == [30.0] * 5
    err = capsys.readouterr().err
    told = [line for line in err.splitlines() if "SiteFactors" in line or "away" in line]
    assert ["away" in line for line in told] == [False, False, False, True, False]
    assert [int(re.findall(r"(\d+) SiteFactors", line)[0]) > 0 for line in told[:2]] == [True, True]
    assert (slurm.factors[5] > slurm.factors[2] > slurm.factors[4], slurm.factors[3]) == (True, 77)
    last = json.loads(Path("last.json").read_text())
    assert last["left"]["SiteFactor set by others"] == 1


def test_apply_ends_with_an_error_after_ten_failed_rounds(
    slurm: SlurmOfTexts, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sleeps: list[float] = []

    def sleep(time_s: float) -> None:
        sleeps.append(time_s)
        slurm.is_away = True

    monkeypatch.setattr("time.sleep", sleep)
    assert main(["jobs", "advise", "s.yaml", "--apply", "--every", "30s", "--quiet"]) == 2
    assert (len(sleeps), "the controller is away" in capsys.readouterr().err) == (10, True)


@pytest.mark.parametrize(
    ("flags", "in_file", "late"),
    [((), None, 0), (("--age-guard", "30s"), None, 2), ((), "30s", 2), (("--age-guard", "1d"), "30s", 0)],
)
def test_whose_guard_of_age_holds(
    slurm: SlurmOfTexts, flags: tuple[str, ...], in_file: str | None, late: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """The flag's, or else the policy's own, or else a day: jobs 2, 3 and 4 have waited 100, 50 and 10 s."""
    words = "schema: slimsched.jobpolicy/1\norder: saf\nqueueing: first-fit\nestimate: requested\n"
    Path("mine.jobpolicy.yaml").write_text(words + (f"age_guard_s: {in_file}\n" if in_file else ""))
    assert main(["jobs", "advise", "s.yaml", "--policy", "mine.jobpolicy.yaml", *flags, "--json", "-", "--quiet"]) == 0
    assert json.loads(capsys.readouterr().out)["late"] == late


def test_two_at_once_are_one_too_many(slurm: SlurmOfTexts, capsys: pytest.CaptureFixture[str]) -> None:
    with slurm.journal.open("a") as file:
        flock(file, LOCK_EX)
        assert main(["jobs", "advise", "s.yaml", "--apply"]) == 2
    assert "another `jobs advise` writes to it" in capsys.readouterr().err


@pytest.mark.parametrize(
    "flags, line",
    [
        (
            ["--policy", "saf-oracle"],
            "--policy: saf-oracle needs true run times, which no scheduler has; expected saf-req",
        ),
        (["--policy", "las"], "--policy: las stops jobs, is learned, or is Slurm's own; expected"),
        (["--policy", "multifactor"], "is Slurm's own; expected"),
        (["--policy", "no"], "'no' is not a policy"),
        (["--age-guard", "0s"], "--age-guard: 0: must be a number from 1"),
        (["--undo", "none.jsonl"], "--undo: none.jsonl: no such file; name the journal"),
        (["--undo", "s.yaml"], "s.yaml: is not a journal of `slimsched jobs advise`"),
        (["--apply", "--journal", "notes"], "notes: is not a journal of `slimsched jobs advise`"),
    ],
)
def test_advise_with_invalid_flags_is_refused_and_changes_nothing(
    slurm: SlurmOfTexts, flags: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("notes").write_text("mine")
    before = Path("s.yaml").read_text()
    assert main(["jobs", "advise", "s.yaml", *flags]) == 2
    err = capsys.readouterr().err
    assert line in err
    assert "Traceback" not in err
    assert (Path("notes").read_text(), Path("s.yaml").read_text(), set(slurm.factors.values())) == ("mine", before, {0})


def test_a_scenario_that_is_not_near_its_log_advises_nobody(
    slurm: SlurmOfTexts, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = trace_of([(0, 10, 1), (20, 10, 1)], recorded_wait_s=[500.0, 900.0])
    write_case(tmp_path, log, policies=["fifo"])
    assert main(["jobs", "advise", "s.yaml", "--apply"]) == 2
    assert "baseline: fifo is 100% off the log, job by job, and at most 60% is near" in capsys.readouterr().err
    write_case(tmp_path, log, policies=["las"])
    assert main(["jobs", "advise", "s.yaml"]) == 2
    assert "las is nothing that Slurm runs" in capsys.readouterr().err


@pytest.mark.parametrize(
    "script, line",
    [
        (None, "scontrol: this host has no such command; run slimsched on a host with Slurm's commands"),
        ("echo 'slurm_load: Unable to contact slurm controller' >&2; exit 1", "`scontrol ping` shows whether"),
        ("exec sleep 60", "scontrol: Slurm does not answer within 0.2 s; `scontrol ping`"),
        ("echo 'PriorityType = priority/basic'", "only under priority/multifactor"),
        (
            'case "$0 $1" in *scontrol\\ show) echo "PriorityType = priority/multifactor";; *squeue*) cat queue;; '
            '*sprio*) cat factors;; *) echo "Access/permission denied for job 2" >&2; exit 1;; esac',
            "scontrol update: Access/permission denied for job 2; an operator may",
        ),
        (
            'case "$0 $1" in *scontrol\\ show) echo "PriorityType = priority/multifactor";; *squeue*) cat queue;; '
            "*sprio*) cat factors;; *) [ ! -e stopped ] || { echo 'Unable to contact slurm controller' >&2; exit 1; }; "
            "touch stopped;; esac",
            "scontrol update: Unable to contact slurm controller; `scontrol ping` shows whether",
        ),
    ],
    ids=["missing", "down", "silent", "basic", "no right", "stops in the middle"],
)
def test_a_slurm_that_can_not_be_advised_is_told_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], script: str | None, line: str
) -> None:
    write_case(tmp_path, LOG, policies=["fifo-easy-requested"])
    (tmp_path / "queue").write_text(QUEUE)
    (tmp_path / "factors").write_text(FACTORS)
    for name in ("scontrol", "squeue", "sprio") if script else ():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin" if script else str(tmp_path))
    monkeypatch.setattr(slurm_commands, "PATIENCE_S", 0.2 if script and "sleep" in script else 60.0)
    monkeypatch.chdir(tmp_path)
    assert main(["jobs", "advise", "s.yaml", "--apply", "--quiet"]) == 2
    err = capsys.readouterr().err.strip()
    assert line in err
    assert err.count("\n") == 0


def test_a_job_that_is_gone_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "scontrol").write_text("#!/bin/sh\necho 'Invalid job id specified for job 2' >&2; exit 1\n")
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    written: list[Change] = []
    assert slurm_commands.carry_out(slurm_commands.Slurm(), [Change(2, 0, 1)], written.append) == {
        "written": 0,
        "gone": 1,
    }
    assert written == [Change(2, 0, 1)]
