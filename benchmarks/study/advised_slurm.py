"""A real Slurm with advice against one without, on the same jobs, and the simulation's predictions of both.

`python -m benchmarks advised-slurm`; some twelve minutes, as root, with Debian's packages (`tests.jobs.real_slurm`).
"""

from __future__ import annotations

import csv
import gzip
import json
import os
import shutil
import subprocess
import sys
import time  # noqa: TID251 - waits for a real Slurm
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import yaml
from numpy.typing import NDArray
from scipy.stats import spearmanr

from jobs.job_records import by_job
from jobs.job_scenario import read_case, read_scenario
from jobs.job_traces import read_trace
from jobs.logs.log_import import import_log
from jobs.policy_comparison import band, jittered_waits_s, run_policy
from kit.errors import InputError
from scenarios.show.charts import COLORS, canvas
from tests.jobs.real_slurm import RealSlurm, real_slurm, why_not

LOGS: Final = Path(__file__).parents[2] / "tests" / "jobs" / "slurm_logs"
CONF: Final = (
    "SchedulerParameters=sched_interval=2,sched_min_interval=0,bf_interval=2,bf_resolution=1,bf_continue",
    "PriorityType=priority/multifactor",
    "PriorityWeightAge=1000",
)
SITE: Final = "fifo-requested-conservative-lowest"
BURST: Final = 40  # jobs submitted at once
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Waits:
    """(jobs,) waits of one Slurm's jobs, by the number of each job."""

    job: NDArray[np.object_]
    gpus: NDArray[np.int64]
    wait_s: NDArray[np.float64]

    def of(self, jobs: Sequence[str] | NDArray[np.object_]) -> NDArray[np.float64]:
        """Return the waits of some jobs."""
        row_of = {job: number for number, job in enumerate(self.job)}
        return self.wait_s[[row_of[job] for job in jobs]]


def measure(out: Path, guard_s: float, every_s: float) -> dict[str, Any]:
    """Measure once and return the document.

    Args:
        out: a new folder, for logs, journals and scenarios.
        guard_s: jobs that have waited longer go first.
        every_s: interval of advice.

    Raises:
        InputError: no Slurm can be started here.
    """
    if why := why_not():
        raise InputError("advised-slurm", "", f"no Slurm can be started here: {why}")
    out.mkdir(parents=True)
    with (LOGS / "submitted.csv").open() as file:
        rows = list(csv.DictReader(file))
    scenario = _scenario(out, guard_s)
    burst = [{**row, "submit_s": "0"} for row in rows[:BURST]]
    with ExitStack() as stack, ThreadPoolExecutor(4) as pool:
        first, second, *others = [stack.enter_context(real_slurm(*CONF)) for _ in range(4)]
        own = pool.submit(_live, first, out / "own", rows, None, every_s)
        advised = pool.submit(_live, second, out / "advised", rows, scenario, every_s)
        bursts = [
            pool.submit(_burst, slurm, out / f"burst{number}", burst, scenario, flags)
            for number, (slurm, flags) in enumerate(zip(others, ((), ("--apply",)), strict=True))
        ]
        live = _live_rows(scenario, own.result(), advised.result())
        at_once = [_burst_row(*task.result(), number) for number, task in enumerate(bursts)]
    _picture(out / "jobs.png", own.result(), advised.result())
    return {"guard_s": guard_s, "every_s": every_s, "live": live, "burst": at_once}


def _scenario(out: Path, guard_s: float) -> Path:
    """Write a scenario of the jobs' log by another Slurm on another day, with the site's and the advised policy."""
    with gzip.open(LOGS / "backfill1.log.gz") as packed, (out / "before.log").open("wb") as plain:
        shutil.copyfileobj(packed, plain)
    import_log(out / "before.log", out / "before.jobtrace.parquet", "auto", None)
    parts = {"order": "saf", "estimate": "requested", "queueing": "conservative", "placement": "lowest"}
    policy = {"schema": "slimsched.jobpolicy/1", **parts, "age_guard_s": guard_s}
    (out / "advised.jobpolicy.yaml").write_text(yaml.safe_dump(policy))
    text = {
        "schema": "slimsched.jobs/1",
        "name": "tiny",
        "trace": "before.jobtrace.parquet",
        "cluster": {"nodes": [{"count": 4, "gpus": 8}]},
        "slurm": {"bf_interval_s": 2, "start_delay_s": 1.5},
        "jitter_s": 1,
        "policies": [SITE, "advised.jobpolicy.yaml"],
        "bound": {"passes": 0},
    }
    (out / "tiny.yaml").write_text(yaml.safe_dump(text))
    return out / "tiny.yaml"


# ------------------------------------------------------------------------------------------------------------- measured


def _live(
    slurm: RealSlurm, folder: Path, rows: Sequence[Mapping[str, str]], scenario: Path | None, every_s: float
) -> Waits:
    """Run all jobs at their times; with repeated advice, if there is a scenario."""
    folder.mkdir()
    with _advising(slurm, folder, scenario, every_s) if scenario else nullcontext():
        slurm.play(rows)
    return _waits(slurm, folder)


@contextmanager
def _advising(slurm: RealSlurm, folder: Path, scenario: Path, every_s: float) -> Iterator[None]:
    command = (*_advise(scenario, folder), "--apply", "--every", f"{every_s:g}s")
    with (folder / "advice.txt").open("w") as file:
        process = subprocess.Popen(command, env=_environment(slurm), stdout=file, stderr=file)
        yield
        process.terminate()
        process.wait(30)


def _burst(
    slurm: RealSlurm, folder: Path, rows: Sequence[Mapping[str, str]], scenario: Path, flags: Sequence[str]
) -> tuple[Row, Waits]:
    """Submit all jobs at once, and give advice once when all are there; returns predictions and results."""
    folder.mkdir()
    with ThreadPoolExecutor(1) as pool:
        playing = pool.submit(slurm.play, rows)
        while len(slurm.ask("squeue", "-h").splitlines()) < 3 * len(rows) // 4:
            time.sleep(0.2)
        time.sleep(3)  # until Slurm has considered all
        command = (*_advise(scenario, folder), *flags, "--json", "-", "--quiet")
        done = subprocess.run(command, env=_environment(slurm), capture_output=True, text=True, check=True)
        playing.result()
    return json.loads(done.stdout), _waits(slurm, folder)


def _advise(scenario: Path, folder: Path) -> Sequence[str]:
    policy, journal = scenario.with_name("advised.jobpolicy.yaml"), folder / "advice.jsonl"
    arguments = ("jobs", "advise", str(scenario), "--policy", str(policy), "--journal", str(journal))
    return sys.executable, "-m", "slimsched.cli", *arguments


def _environment(slurm: RealSlurm) -> Mapping[str, str]:
    return {**os.environ, "SLURM_CONF": str(slurm.conf)}


def _waits(slurm: RealSlurm, folder: Path) -> Waits:
    slurm.export(folder / "slurm.log")
    import_log(folder / "slurm.log", folder / "slurm.jobtrace.parquet", "auto", None)
    trace = read_trace(folder / "slurm.jobtrace.parquet")
    return Waits(trace.job_id, trace.gpus, trace.recorded_wait_s)


# ---------------------------------------------------------------------------------------------- compared with simulated


def _live_rows(scenario: Path, own: Waits, advised: Waits) -> Sequence[Row]:
    """Return for both orders mean and longest wait, as simulated from the other day's log, and as measured."""
    case = read_case(read_scenario(scenario), str(scenario))
    means_s = jittered_waits_s(case, 1)
    rows = []
    for column, (policy, waits) in enumerate(zip(case.policies, (own, advised), strict=True)):
        longest_s = by_job(run_policy(case, policy), case.scenario.cluster.gpus)["wait_s"].max()
        simulated = {"mean_s": means_s[:, column].mean(), "band_s": band(means_s[:, column]), "longest_s": longest_s}
        measured = {"mean_s": waits.wait_s.mean(), "longest_s": waits.wait_s.max()}
        rows.append({"order": policy.name, "simulated": simulated, "measured": measured})
    return rows


def _burst_row(advice: Row, waits: Waits, column: int) -> Row:
    """Compare for the jobs that waited during the advice the expected waits of their order with the measured ones."""
    jobs = [row["job"] for row in advice["jobs"]]
    expected_s, wait_s = np.array([row["wait_s"][column] for row in advice["jobs"]]), waits.of(jobs)
    expected = advice["expected"][column]
    return {
        "jobs": len(jobs),
        "simulated": {"mean_s": expected["mean_s"]["value"], "band_s": expected["mean_s"]["band"]},
        "measured": {"mean_s": wait_s.mean(), "longest_s": wait_s.max()},
        "longest_s": expected["longest_s"]["value"],
        "mae_s": np.abs(expected_s - wait_s).mean(),
        "rho": spearmanr(expected_s, wait_s).statistic,
    }


def _picture(path: Path, own: Waits, advised: Waits) -> None:
    """Draw each job's wait in one Slurm and in the other; a dot's area is its GPUs."""
    with canvas(5.0, 4.6) as (figure, axes):
        axes.plot([0, 500], [0, 500], color="#999", linewidth=0.8)
        axes.scatter(own.wait_s, advised.of(own.job), s=10.0 * own.gpus, color=COLORS[0], alpha=0.5, edgecolors="none")
        most_s = 1.05 * max(own.wait_s.max(), advised.wait_s.max())
        axes.set(xlim=(-5, most_s), ylim=(-5, most_s), xlabel="wait, s: Slurm alone", ylabel="wait, s: advised")
    figure.savefig(path, dpi=110)
