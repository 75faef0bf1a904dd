"""Runs over a Ray cluster: the same to the last bit, whoever dies meanwhile; what is wrong is told at once."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time  # noqa: TID251 - how long an answer takes
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from itertools import islice
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from kit.errors import InputError, WorkError
from kit.memo import rows_in
from kit.parallel import ONE_THREAD, each
from policies.rules.specs import LadderRule
from scenarios.files.reading import load_scenario
from scenarios.learn.tune import tune_world
from scenarios.metrics.comparison import compare_results
from scenarios.metrics.result import Result, Simulator
from scenarios.runs import ray_pool as pools
from scenarios.runs.ray_pool import RayPool, facts_here, ray_pool
from scenarios.runs.simulate import simulate_all, simulate_metrics, simulate_world
from scenarios.world.materials import load_world, make_world
from scenarios.world.scoring import SampledRun, Scorer
from slimsched.cli import main
from tests.ray_nodes import RayNodes, ray_nodes
from tests.scenarios.files import write_scenario
from tests.scenarios.tasks import answer, wait_marked
from tests.scenarios.test_engines import OLD, WORLDS, save_router, world_of
from tests.scenarios.test_own_router import FINE, write
from tests.scenarios.test_tune import KNOBS, SCENARIO

pytestmark = [pytest.mark.workers, pytest.mark.ray]
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def nodes(ray_hosts: RayNodes) -> Iterator[RayNodes]:
    """Three hosts, that every test leaves as they are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("RAY_ADDRESS", raising=False)
        yield ray_hosts


@pytest.fixture(autouse=True)
def _apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def without_time(results: list[Result]) -> list[Any]:
    return [{**result, "wall_s": 0, "engine": ""} for result in results]


# ------------------------------------------------------------------------------------------------ what needs no cluster


def test_ray_that_is_missing_is_told_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And nothing else needs it."""
    monkeypatch.setitem(sys.modules, "ray", None)
    path = write_scenario(tmp_path)
    command = ["compare", str(path), "--router", "random", "--seed", "0", "--quiet"]
    assert main([*command, "--ray", "auto"]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "pip install 'slim-scheduler[ray]'" in told
    assert main(command) == 0


@pytest.mark.parametrize("who", ["nobody", "deaf", "http"])
def test_whoever_is_no_cluster_is_told_within_seconds(
    who: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ray itself would try for more than a minute."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        if who == "nobody":
            server.close()
        elif who == "http":
            threading.Thread(target=_bad_request, args=(server,), daemon=True).start()
        began_s = time.monotonic()
        command = ["compare", str(write_scenario(tmp_path)), "--quiet", "--router", "random", "--ray", address]
        assert main(command) == 2
        assert time.monotonic() - began_s < 10
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert re.search(rf"(nobody|no Ray cluster) answers at {address} ", told)


def _bad_request(server: socket.socket) -> None:
    connection, _ = server.accept()
    with connection:
        connection.recv(1000)
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


@pytest.mark.parametrize("workload", ["{kind: trace, file: series.csv}", "{kind: rates, file: series.csv, load: 0.5}"])
def test_what_travels_needs_no_file(workload: str, tmp_path: Path) -> None:
    """Neither that of a workload nor a router's, also where tuning draws its runs."""
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "series.csv").write_text("\n".join(["time_s,count", *(f"{i / 200},{i % 3}" for i in range(200))]))
    world, file = world_of(folder, f"workload: {workload}"), folder / "drawn.safetensors"
    save_router(world, file, deterministic=False)
    run, tried = SampledRun(5, duration_s=0.5), LadderRule(rungs=((0.5, 0.5), (1.0, 1.0)), thresholds=(4.0,))
    here = simulate_world(world, str(file), 3), Scorer(world).score(tried, run)
    packed = bytes(ForkingPickler.dumps((world.with_series(), world.router_maker(str(file)), Scorer(world))))
    shutil.rmtree(folder)
    there, maker, scorer = ForkingPickler.loads(packed)
    made = simulate_metrics(there, maker.make(there.context), "drawn", 3)
    assert without_time([made]) == without_time([here[0]])
    assert scorer.score(tried, run) == here[1]


def test_a_users_class_that_is_another_elsewhere_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it is told by is its code."""
    monkeypatch.chdir(tmp_path)
    world = make_world(load_scenario(write(tmp_path, FINE)), tmp_path)
    maker = world.router_maker("mine:Mine")
    (tmp_path / "mine.py").write_text((tmp_path / "mine.py").read_text() + "ANOTHER = 1\n")
    with pytest.raises(InputError, match="'mine:Mine' is other code here"):
        maker.make(world.context)


def test_a_host_that_joins_later_must_be_alike() -> None:
    wanted = {**facts_here(), "numpy": "0.9"}
    with pytest.raises(WorkError, match=r"joined meanwhile, has numpy .*; here: numpy 0\.9"):
        pools._do("new", [], wanted, 1)


# ----------------------------------------------------------------------------------------------------------- on a pool


@pytest.fixture(scope="class")
def pool(nodes: RayNodes) -> Iterator[RayPool]:
    with ray_pool(nodes.address) as found:
        yield found


class TestPool:
    """Three hosts, joined once."""

    @pytest.mark.parametrize("engine", ["simpy", "compiled"])
    def test_runs_are_the_same_to_the_last_bit(self, engine: Simulator, pool: RayPool, tmp_path: Path) -> None:
        """In the same order, and those that are finished are not made again."""
        world = world_of(tmp_path, WORLDS["bursts"])
        save_router(world, tmp_path / "drawn.safetensors", deterministic=False)
        routers, told = ["random", str(tmp_path / "drawn.safetensors"), "jsq"], list[Result]()
        alone = simulate_all(world, routers, [3, 1], engine=engine)
        spread = simulate_all(
            world, routers, [3, 1], engine=engine, jobs=pool, finished=alone[:2], on_result=told.append
        )
        assert without_time(spread) == without_time(alone)
        assert compare_results(spread) == compare_results(alone)
        assert told[:2] == alone[:2]
        assert len(told) == len(alone)
        assert [result["wall_s"] for result in spread][2:] != [result["wall_s"] for result in alone][2:]  # made there

    def test_tuning_finds_the_same(self, pool: RayPool, tmp_path: Path) -> None:
        """Search, settings, accuracy matching and final evaluation."""
        (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(SCENARIO))
        world, knobs = load_world(tmp_path / "tiny.yaml"), replace(KNOBS, floor=0.75, decisions=8000, searches=2)
        alone, spread = (tune_world(world, "ladder", knobs, jobs=jobs) for jobs in (1, pool))
        assert (spread.spec, spread.figures, spread.spent) == (alone.spec, alone.figures, alone.spent)
        assert [each.told for each in spread.final_scores] == [each.told for each in alone.final_scores]

    def test_tasks_have_one_thread_and_their_errors_come_through(self, pool: RayPool) -> None:
        """What is wrong with the input there tells the host; a task that kills its process is not tried for ever."""
        assert dict(each(answer, 7, ["a", "b"], pool)) == {0: (7, "a", ONE_THREAD), 1: (7, "b", ONE_THREAD)}
        with pytest.raises(InputError) as wrong:
            list(each(answer, 7, ["wrong"], pool))
        assert (wrong.value.source, wrong.value.key) == ("a file", "a.key")
        assert re.fullmatch(r"is wrong; write another \(on host (alpha|beta|gamma)\)", wrong.value.problem)
        with pytest.raises(WorkError, match="killed 4 times"):
            list(each(answer, 7, ["killed"], pool))

    def test_a_class_that_is_missing_there_is_told(
        self, pool: RayPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It lies in the folder that the user is in, and that no other host has."""
        monkeypatch.chdir(tmp_path)
        world = make_world(load_scenario(write(tmp_path, FINE)), tmp_path)
        problem = r"'mine:Mine' could not be made: .*No module named 'mine'.* \(on host (alpha|beta|gamma)\)"
        with pytest.raises(InputError, match=problem):
            simulate_all(world, ["mine:Mine"], [0], jobs=pool)

    def test_a_host_that_dies_costs_time_alone(self, nodes: RayNodes, pool: RayPool, tmp_path: Path) -> None:
        """All tasks are returned, and no task is done twice but those that the dead host had in hand."""
        nodes.add("delta")
        tasks, cores = range(12), 8
        with closing(each(wait_marked, str(tmp_path), tasks, pool)) as ends:
            results = dict(islice(ends, 1))  # the first task waits for nothing
            while len(marks(tmp_path)) < 1 + cores:
                threading.Event().wait(0.05)
            pids = {process.pid for process in nodes.processes("delta")}
            lost = {task for task, pid in marks(tmp_path) if pid in pids and task not in results}
            nodes.kill("delta")
            (tmp_path / "go").touch()
            results |= dict(ends)
        assert results == {task: task for task in tasks}
        assert len(lost) == 2
        assert Counter(task for task, _ in marks(tmp_path)) == {task: 1 + (task in lost) for task in tasks}
        assert idle(nodes)


def marks(folder: Path) -> list[tuple[int, int]]:
    """Which task was begun by which process, once for each time."""
    names = [path.name.split("-") for path in folder.glob("*-*")]
    return [(int(task), int(pid)) for task, pid in names]


def idle(nodes: RayNodes) -> bool:
    """Whether no task runs on the nodes any more, within some seconds."""
    for _ in range(100):
        if not any(_tasks(nodes)):
            return True
        threading.Event().wait(0.1)
    return False


def _tasks(nodes: RayNodes) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.cmdline()[:1] != ["ray::_do"] or (parent := process.parent()) is None:
                continue
            if nodes.address in " ".join(parent.cmdline()):
                yield process


# -------------------------------------------------------------------------------------------------------- the commands


@pytest.mark.release
def test_a_host_of_another_version_is_refused_before_the_work(
    nodes: RayNodes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a line that names the host and both versions."""
    (tmp_path / "sitecustomize.py").write_text("import platform\nplatform.python_version = lambda: '3.0.1'\n")
    nodes.add("other", ["env", f"PYTHONPATH={tmp_path}{os.pathsep}{ROOT}"])
    try:
        path = write_scenario(tmp_path)
        assert main(["compare", str(path), "--out", str(tmp_path / "run"), "--ray", nodes.address, "--quiet"]) == 2
    finally:
        nodes.kill("other")
    told = capsys.readouterr().err
    assert re.fullmatch(rf".*host other .* has Python 3\.0\.1; here: Python {platform.python_version()}; .*\n", told)
    assert not (tmp_path / "run/results.json").exists()


COMPARISON = f"workload: {{kind: poisson, rate_img_s: 2000}}\ncompare: {{routers: [jsq], seeds: {list(range(24))}}}"


def begun(folder: Path, address: str) -> tuple[subprocess.Popen[str], Path]:
    """A comparison of two dozen runs, each of a quarter of a second, some of which are made."""
    path = write_scenario(folder, f"{OLD}\ncompare: {{routers: [random, jsq], seeds: [0, 1]}}", COMPARISON)
    command = [sys.executable, "-m", "slimsched", "compare", str(path), "--out", str(folder / "run")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "RAY_ADDRESS": address}
    process = subprocess.Popen([*command, "--ray", "auto"], stderr=subprocess.PIPE, text=True, env=environment)
    for _ in range(600):
        if len(kept(folder)) > 1:
            return process, path
        assert process.poll() is None, process.stderr and process.stderr.read()
        threading.Event().wait(0.1)
    raise AssertionError("nothing was made")


def kept(folder: Path) -> list[Any]:
    files = list((folder / "run").rglob("compare-*.jsonl"))
    return rows_in(files[0]) if files else []


def resumed(path: Path, folder: Path) -> list[int]:
    """The comparison finished on this machine; the seeds of the runs that were made now."""
    finished = kept(folder)
    assert main(["compare", str(path), "--out", str(folder / "run"), "--jobs", "1", "--quiet"]) == 0
    results = json.loads((folder / "run/results.json").read_text())
    assert len(results) == 24
    return [result["seed"] for result in results if result["wall_s"] not in {each["wall_s"] for each in finished}]


@pytest.mark.usefixtures("usual_interrupts")
def test_an_interruption_leaves_no_task_behind_and_keeps_what_is_done(nodes: RayNodes, tmp_path: Path) -> None:
    process, path = begun(tmp_path, nodes.address)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=30)
    assert process.returncode == 130, told
    assert told.strip().splitlines()[-1].startswith("slimsched: interrupted; the same command goes on")
    assert idle(nodes)
    assert 0 < len(resumed(path, tmp_path)) < 24


@pytest.mark.release
def test_a_cluster_that_dies_leaves_what_is_done(tmp_path: Path) -> None:
    """It is told within seconds."""
    with ray_nodes(["alone"], {"PYTHONPATH": str(ROOT)}) as nodes:
        process, path = begun(tmp_path, nodes.address)
        address = nodes.address
        nodes.kill("alone")
        _, told = process.communicate(timeout=20)
    assert process.returncode == 1
    assert f"slimsched: the Ray cluster at {address} is gone; what is finished is kept" in told
    assert "Traceback" not in told
    assert 0 < len(resumed(path, tmp_path)) < 24
