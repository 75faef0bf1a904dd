"""Work in processes in parallel: the same as in one, its errors the same, and nobody is left behind."""

from __future__ import annotations

import copy
import os
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import closing
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import joblib
import psutil
import pytest

from kit.errors import InputError, WorkError
from kit.parallel import ONE_THREAD, each
from scenarios.metrics.router_comparison import compare_results
from scenarios.runs.simulated_runs import default_jobs, simulate_all, simulate_experiment, simulate_metrics
from sim.compiled.row_layout import UnsupportedScenario
from tests.scenarios.tasks import answer
from tests.scenarios.test_engines import SIDES, experiment_of, save_router


def test_runs_are_the_same_whatever_the_processes(tmp_path: Path) -> None:
    """Two processes give what one gives, in the same order, and simulate only what is not finished yet."""
    experiment = experiment_of(tmp_path, SIDES["bursts"])
    told: list[tuple[str, int]] = []
    alone = simulate_all(experiment, ["random", "jsq"], [3, 1])
    beside = simulate_all(
        experiment, ["random", "jsq"], [3, 1], jobs=2, finished=alone[:1],
        on_result=lambda result: told.append((result["router"], result["seed"])),
    )  # fmt: skip
    assert [{**result, "wall_s": 0} for result in beside] == [{**result, "wall_s": 0} for result in alone]
    assert [result["wall_s"] for result in beside][1:] != [result["wall_s"] for result in alone][1:]  # made again
    assert told[0] == ("random", 3)
    assert sorted(told) == [("jsq", 1), ("jsq", 3), ("random", 1), ("random", 3)]
    assert compare_results(alone) == compare_results(beside)


def test_tasks_have_what_is_common_and_one_thread() -> None:
    """Each task once, by its place; and this process' own settings are untouched."""
    before = {name: os.environ.get(name) for name in ONE_THREAD}
    tasks = ["a", "b", "c"]
    made = dict(each(answer, 7, tasks, 2))
    assert made == {place: (7, task, ONE_THREAD) for place, task in enumerate(tasks)}
    assert {name: os.environ.get(name) for name in ONE_THREAD} == before


def test_a_backend_of_joblib_does_the_work_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the `parallel_config` around; what the work raises comes through."""
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "2")  # a process of ours would have one
    with joblib.parallel_config(backend="threading"):
        made = list(each(answer, 7, ["a", "b", "c"], 2))
        with pytest.raises(InputError, match="is wrong; write another"):
            list(each(answer, 7, ["wrong", "a"], 2))
    own = {name: os.environ.get(name) for name in ONE_THREAD}
    assert made == [(place, (7, task, own)) for place, task in enumerate("abc")]


@pytest.mark.parametrize("workload", ["{kind: trace, file: series.csv}", "{kind: rates, file: series.csv, load: 0.5}"])
def test_experiment_sent_to_another_process_needs_no_file(workload: str, tmp_path: Path) -> None:
    """Processes may be on other machines, without the files of the workload and of the router."""
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "series.csv").write_text("\n".join(["time_s,count", *(f"{i / 200},{i % 3}" for i in range(200))]))
    experiment, file = experiment_of(folder, f"workload: {workload}"), folder / "drawn.safetensors"
    save_router(experiment, file, deterministic=False)
    here = simulate_experiment(experiment, str(file), 3)
    packed = bytes(ForkingPickler.dumps((experiment.with_series(), experiment.router_maker(str(file)))))
    shutil.rmtree(folder)
    there, maker = ForkingPickler.loads(packed)
    made = simulate_metrics(there, maker.make(there.context), "drawn", 3)
    assert {**made, "wall_s": 0} == {**here, "wall_s": 0}


def left_behind() -> list[int]:
    found = psutil.Process().children(recursive=True)
    return [process.pid for process in found if any("LokyProcess" in word for word in process.cmdline())]


def test_errors_come_through() -> None:
    """With their parts, from a process as from here; a killed process says so, with a remedy."""
    for jobs in (1, 2):
        with pytest.raises(InputError) as wrong:
            list(each(answer, 0, ["wrong", "endless"], jobs))
        assert (wrong.value.source, wrong.value.key) == ("a file", "a.key")
        assert wrong.value.problem == "is wrong; write another"
    again = copy.copy(UnsupportedScenario("a log of every step"))  # made again from its parts, as from a process
    assert (again.feature, str(again)) == ("a log of every step", str(UnsupportedScenario("a log of every step")))
    with pytest.raises(WorkError, match="fewer --jobs"):
        list(each(answer, 0, ["killed", "endless"], 2))
    assert left_behind() == []


SCRIPT = """\
import sys
from kit.parallel import each
from tests.scenarios.tasks import wait_marked
if __name__ == "__main__":
    list(each(wait_marked, sys.argv[1], range(1000), 2))
"""


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.usefixtures("usual_interrupts")
def test_processes_end_with_this_one(end: signal.Signals, tmp_path: Path) -> None:
    """However that ends, and without a word of their own where a user interrupts all of them from his terminal."""
    (tmp_path / "script.py").write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, str(tmp_path / "script.py"), str(tmp_path)]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True)
    while len({path.name.partition("-")[2] for path in tmp_path.glob("*-*")}) < 2:
        assert process.poll() is None
        threading.Event().wait(0.1)
    workers = {int(path.name.partition("-")[2]) for path in tmp_path.glob("*-*")}
    os.killpg(process.pid, end) if end == signal.SIGINT else process.send_signal(end)
    _, told = process.communicate(timeout=60)
    assert told.count("Traceback") == (end == signal.SIGINT)
    _, alive = psutil.wait_procs([psutil.Process(pid) for pid in workers if psutil.pid_exists(pid)], timeout=10)
    assert alive == []


def test_an_interruption_ends_what_runs() -> None:
    with closing(each(answer, 0, ["a", "endless", "endless"], 2)) as made:
        assert next(made)[0] == 0
    assert left_behind() == []


def test_little_work_stays_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Starting processes takes seconds: for fewer images than a process does in that time there is one."""
    experiment = experiment_of(tmp_path)  # 200 images/s, for a second
    monkeypatch.setattr("scenarios.runs.simulated_runs.core_count", lambda: 3)
    assert default_jobs(experiment, 10, 0, "simpy") == default_jobs(experiment, 1000, 0, "compiled") == 1
    assert default_jobs(experiment, 1000, 0, "simpy") == default_jobs(experiment, 10_000, 0, "compiled") == 3
