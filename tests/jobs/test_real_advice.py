"""`jobs advise` on a real Slurm: the order is as wanted, nobody starves, and what was written is put back."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time  # noqa: TID251 - waits for a real Slurm
from collections.abc import Callable
from pathlib import Path

import pytest

from slimsched.cli import main
from tests.jobs.experiments import trace_of, write_case
from tests.jobs.real_slurm import RealSlurm, real_slurm, why_not

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.release,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(why_not()), reason=f"no Slurm can be started here: {why_not()}"),
]
QUICK = "SchedulerParameters=sched_interval=2,sched_min_interval=0,bf_interval=2,bf_resolution=1,bf_continue"


def submit(slurm: RealSlurm, gpus: int, limit_min: int, run_s: int, *more: str) -> int:
    each = min(gpus, 8)
    size = (f"-N{max(gpus // 8, 1)}", "--ntasks-per-node=1", f"-c{8 * each}", f"--gres=gpu:{each}", f"-t{limit_min}")
    quiet = ("--parsable", "--uid=games", "--chdir=/", "-o", "/dev/null")
    return int(slurm.ask("sbatch", *quiet, *size, *more, f"--wrap=exec sleep {run_s}"))


def until(is_so: Callable[[], object], most_s: float = 90.0) -> None:
    for _ in range(round(5 * most_s)):
        if is_so():
            return
        time.sleep(0.2)
    raise AssertionError("it never came to be so")


def weighed(slurm: RealSlurm) -> dict[int, tuple[int, int]]:
    rows = [line.split("|") for line in slurm.ask("sprio", "-h", "-o", "%i|%S|%Y").split()]
    return {int(job): (int(factor), int(priority)) for job, factor, priority in rows}


def test_a_running_slurm_is_advised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = trace_of([(60.0 * row, 60.0, 1) for row in range(20)], requested_s=[120.0] * 20)
    nodes = {"nodes": [{"count": 4, "gpus": 8}]}
    scenario = str(write_case(tmp_path, log, cluster=nodes, policies=["fifo-requested-conservative"]))
    journal = tmp_path / "s.advice.jsonl"

    def advise(*flags: str) -> dict:  # type: ignore[type-arg]
        assert main(["jobs", "advise", scenario, *flags, "--json", "-", "--quiet"]) == 0
        return dict(json.loads(capsys.readouterr().out))

    with real_slurm(QUICK, "PriorityType=priority/multifactor", "PriorityWeightAge=1000") as slurm:
        monkeypatch.setenv("SLURM_CONF", str(slurm.conf))
        begun_s = time.monotonic()
        for _ in range(4):
            submit(slurm, 8, 10, 75)
        until(lambda: slurm.ask("squeue", "-h", "-t", "R", "-o", "%i").count("\n") == 4)
        everything, half, one = submit(slurm, 32, 3, 5), submit(slurm, 4, 5, 5), submit(slurm, 1, 2, 5)
        node, foreign = submit(slurm, 8, 9, 5), submit(slurm, 2, 2, 5)
        array = submit(slurm, 1, 1, 1, "-a1-3%1")
        submit(slurm, 1, 1, 1, "-H")
        submit(slurm, 1, 1, 1, f"--dependency=afterok:{one}")
        slurm.ask("scontrol", "update", f"JobId={foreign}", "SiteFactor=7")
        mine = [one, half, node, everything]

        def looked_at() -> bool:
            reasons = slurm.ask("squeue", "-h", "-t", "PD", "-o", "%r").split()
            return "None" not in reasons

        until(looked_at)
        found = advise()
        assert {job for job, (factor, _) in weighed(slurm).items() if factor} == {foreign}
        assert found["left"] == {
            "array, or part of a job": 3,
            "JobHeldUser": 1,
            "Dependency": 1,
            "SiteFactor set by others": 1,
        }
        assert found["expected"][1]["mean_s"]["value"] < found["expected"][0]["mean_s"]["value"]

        assert advise("--apply")["written"] >= 3
        there = weighed(slurm)
        assert sorted(mine, key=lambda job: -there[job][1]) == mine
        assert there[foreign][0] == 7
        assert there[array][0] == 0
        until(looked_at)
        assert advise("--apply")["written"] == 0
        newcomer = submit(slurm, 1, 1, 5)  # first by the policy; last until the next pass: of equals the older is first
        there = weighed(slurm)
        assert there[newcomer][1] <= min(there[job][1] for job in mine)

        lines = len(journal.read_text())
        words = [sys.executable, "-m", "slimsched.cli", "jobs", "advise", scenario, "--policy", "fifo", "--apply"]
        with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as killed:
            until(lambda: len(journal.read_text()) > lines)
            killed.send_signal(signal.SIGKILL)
        assert killed.returncode == -signal.SIGKILL
        assert main(["jobs", "advise", scenario, "--undo", str(journal)]) == 0
        assert {job: factor for job, (factor, _) in weighed(slurm).items() if factor} == {foreign: 7}

        capsys.readouterr()
        slurm.ask("scancel", str(foreign))
        until(looked_at)
        assert time.monotonic() - begun_s < 70, "too slow to see who is first"
        advise("--apply", "--age-guard", "1s")  # all have waited longer: the oldest first, however large
        there = weighed(slurm)
        assert max(there, key=lambda job: there[job][1]) == everything
        until(lambda: slurm.ask("squeue", "-h", "-t", "R", "-o", "%i").split() == [str(everything)])
        until(lambda: not set(slurm.ask("squeue", "-h", "-o", "%A").split()) & set(map(str, mine)))
