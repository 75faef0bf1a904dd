"""What serving costs, measured on hosts that are made slow on purpose: who waits has spent nothing."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time  # noqa: TID251 - a host is slowed in real time
from collections.abc import Iterator
from dataclasses import dataclass

import psutil
import pytest

from hw.networks.datasets import Dataset, load_dataset
from kit.errors import WorkError
from scenarios.executors.serving_measurement import FAR, ServingOverheads, measure_serving
from scenarios.experiment.resolved_scenario import Experiment
from scenarios.files.scenario_reading import load_scenario
from scenarios.job.job_stages import Run
from scenarios.job.network_stages import make_accuracy, make_model
from scenarios.job.profile_stages import make_profiles

pytestmark = [pytest.mark.workers, pytest.mark.release, pytest.mark.timeout(400)]

SCENARIO = """
schema: slimsched.scenario/1
name: slowed
model: {network: 'tests.scenarios.own_network:DigitsPerceptron', options: {features: 512}, dataset: digits}
cluster:
  greedy: {batch_limit: 8, preload: all}
  servers:
  - {name: large, device: {cores: [0]}}
  - {name: small, shares_device_with: large, greedy: {batch_limit: 4}}
router: {micro_batch_sizes: [1, 4]}
workload: {kind: poisson, rate_img_s: 30}
calibration: {budget: 10s, allow_busy: true}
"""
MOST = 3.0  # times what is spent on a quiet host: caches are colder where others compute
STOPPED_S = 0.004


@dataclass(frozen=True)
class Quiet:
    """A calibrated experiment, and what serving costs where nothing else runs."""

    job: Run
    experiment: Experiment
    data: Dataset
    overheads: ServingOverheads

    def measure(self) -> ServingOverheads:
        return measure_serving(self.experiment, self.job.model_to_serve, self.data, 0, allow_busy=True)


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Quiet:
    folder = tmp_path_factory.mktemp("slowed")
    (folder / "slowed.yaml").write_text(SCENARIO)
    job = Run(load_scenario(folder / "slowed.yaml"), folder / "run", say=lambda _: None, quiet=True)
    with job.folder.opened():
        make_model(job)
        make_accuracy(job)
        make_profiles(job)
    experiment, data = job.experiment(), load_dataset("digits")
    return Quiet(job, experiment, data, measure_serving(experiment, job.model_to_serve, data, 0, allow_busy=True))


def _compute() -> None:
    os.sched_setaffinity(0, {0})
    while True:
        pass


@contextlib.contextmanager
def a_competitor() -> Iterator[None]:
    """Another program that computes on the device's core all the time."""
    process = multiprocessing.get_context("fork").Process(target=_compute, daemon=True)
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()


@contextlib.contextmanager
def half_the_clock() -> Iterator[None]:
    """Workers that stand still for half of the time."""
    over = threading.Event()

    def stop_and_go() -> None:
        while not over.is_set():
            workers = psutil.Process().children(recursive=True)
            for what in (signal.SIGSTOP, signal.SIGCONT):
                for worker in workers:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        worker.send_signal(what)
                time.sleep(STOPPED_S)

    thread = threading.Thread(target=stop_and_go, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextlib.contextmanager
def one_core() -> Iterator[None]:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {0})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def spent_s(overheads: ServingOverheads) -> dict[str, float]:
    host, cpu_work = overheads.costs.router_host, overheads.costs.devices[0].cpu_work
    assert host is not None
    assert cpu_work is not None
    costs = {
        "decision": host.decision, "returned": host.returned, "taken": cpu_work.taken, "begun": cpu_work.begun,
        "ended": cpu_work.ended,
    }  # fmt: skip
    return {name: cost.micro_batch_s + 2 * cost.image_s for name, cost in costs.items()}


def test_on_a_quiet_host_simulation_agrees_with_what_was_measured(quiet: Quiet) -> None:
    assert max(abs(each.error) for each in quiet.overheads.apart) <= FAR


@pytest.mark.parametrize("slowed", [a_competitor, half_the_clock, one_core])
def test_waiting_is_booked_as_no_cost(slowed: type[contextlib.AbstractContextManager[None]], quiet: Quiet) -> None:
    try:
        with slowed():
            found = quiet.measure()
    except WorkError as error:
        found_words = str(error)
    else:
        found_words = ""
    if found_words:
        assert "no load was found" in found_words
        return
    print(slowed.__name__, *map(str, found.apart), spent_s(found), spent_s(quiet.overheads), sep="\n")
    for name, cost_s in spent_s(found).items():
        assert cost_s < MOST * spent_s(quiet.overheads)[name] + 20e-6, name
