"""The serving stage on a host that is itself simulated: which loads it takes, what it believes, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hw.networks.network_files import ModelFile
from kit.errors import InputError, WorkError
from policies.run_records import BackgroundLoad, CpuWorkCost, RunRecord
from scenarios.executors import serving_measurement
from scenarios.executors.executor_runs import RealRun
from scenarios.executors.serving_measurement import FULL, measure_serving, use_of, with_overheads
from scenarios.experiment.resolved_scenario import Experiment
from scenarios.experiment.scenario_building import load_experiment
from scenarios.metrics.run_result import Result
from scenarios.runs.simulated_runs import run_simulation
from tests.scenarios.files import write_scenario

Ran = tuple[Result, RunRecord]


class Host:
    """Its executors are simulated ones, `slower` than their profiles say; `changed` shows what is measured of them."""

    def __init__(
        self, experiment: Experiment, slower: float = 1.0, changed: Callable[[Ran], Ran] = lambda ran: ran
    ) -> None:
        self.experiment = experiment
        self._slower = slower
        self._changed = changed
        self.runs: list[tuple[RealRun, RunRecord]] = []

    def serve(self, experiment: Experiment, cluster: object, dataset: object, wanted: RealRun, observer: object) -> Ran:
        """As `run_on_hardware` would."""
        found = run_simulation(
            experiment, experiment.router(wanted.router), wanted.router, wanted.seed, duration_s=wanted.duration_s,
            warmup_s=wanted.warmup_s, scale=wanted.scale, engine="compiled",
            slowdowns=dict.fromkeys(range(len(experiment.cluster.devices)), ((0, self._slower),)),
        )  # fmt: skip
        result, record = self._changed(found)
        self.runs.append((wanted, record))
        return result, record


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    return load_experiment(write_scenario(tmp_path))


def measure(host: Host, monkeypatch: pytest.MonkeyPatch, **options: Any) -> serving_measurement.ServingOverheads:
    monkeypatch.setattr(serving_measurement, "real_cluster", lambda *_: nullcontext())
    monkeypatch.setattr(serving_measurement, "run_on_hardware", host.serve)
    return measure_serving(host.experiment, ModelFile(Path("model")), None, 0, **options)


@pytest.mark.parametrize("slower", [1.0, 4.0, 25.0])
def test_load_search_finds_light_and_busy_loads_at_any_host_speed(
    experiment: Experiment, slower: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = Host(experiment, slower)
    measure(host, monkeypatch, allow_busy=True)
    light, busy = (use_of(record, experiment.profiles) for _, record in host.runs[-2:])
    assert 0.05 < light < 0.3
    assert 0.3 < busy < FULL


def test_serving_costs_left_unexplained_are_measured_again_then_refused(
    experiment: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests take ten times as long as their recorded stages; waiting doesn't count as a cost."""

    def late(ran: Ran) -> Ran:
        result, record = ran
        latency = {**result["latency_s"], "mean": 10 * (result["latency_s"]["mean"] or 0.0)}
        stages = {**(result["stages_s"] or {}), "handover": 1.0}
        return {**result, "latency_s": latency, "stages_s": stages}, record  # type: ignore[typeddict-item]

    said: list[str] = []
    host = Host(experiment, changed=late)
    with pytest.raises(WorkError, match=r"in 3 tries: at .* ms simulated, .* measured; most apart is `handover`, .*"):
        measure(host, monkeypatch, say=said.append)
    assert len([line for line in said if "measured again" in line]) == 2
    said.clear()
    measure(host, monkeypatch, say=said.append, allow_busy=True)
    assert "does not explain" in said[0]


def test_a_try_that_agrees_ends_it(experiment: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    measure(Host(experiment), monkeypatch, say=said.append)
    assert not [line for line in said if "explain" in line]


def test_a_host_that_carries_nothing_is_told(experiment: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:

    def never(ran: Ran) -> Ran:
        result, record = ran
        late = tuple(replace_end(request, 10**12) for request in record.requests)
        return result, replace(record, requests=late)

    with pytest.raises(WorkError, match=r"no load was found that the executors sustain here: at .* images/s"):
        measure(Host(experiment, changed=never), monkeypatch)


def replace_end(request: Any, finished_ns: int) -> Any:
    return type(request)(**{**{name: getattr(request, name) for name in request.__struct_fields__},
                            "finished_ns": finished_ns})  # fmt: skip


@pytest.mark.parametrize(
    ("load", "allowed", "words"),
    [
        (BackgroundLoad(0.5, 0.1), True, "other programs use 50 % of the device, this virtual machine's host 10 %"),
        (BackgroundLoad(0.5), False, None),
        (BackgroundLoad(0.1, 0.25), False, None),
        (BackgroundLoad(0.2), False, "other programs use 20 % of the device"),
        (None, False, "other programs use an unknown share of the device"),
    ],
)
def test_serving_costs_under_high_background_load_are_refused(
    load: BackgroundLoad | None,
    allowed: bool,
    words: str | None,
    experiment: Experiment,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The limit is 30 % of a device, as in a calibration; the profile records a load that was allowed."""
    host = Host(experiment, changed=lambda ran: (ran[0], replace(ran[1], background_load=load)))
    if words is None:
        with pytest.raises(InputError, match=r"what serving costs: .* more than 30 %.*calibration\.allow_busy"):
            measure(host, monkeypatch, allow_busy=allowed)
        return
    profile = with_overheads(experiment.profiles[0], measure(host, monkeypatch, allow_busy=allowed), 0)
    assert profile.device.stamps["interference_serving"] == words


def test_a_device_without_cores_is_not_busy_with_what_its_workers_do(
    experiment: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread of a GPU's lane waits for the device, and takes all of a core meanwhile."""
    host = Host(experiment)
    measure(host, monkeypatch)
    _, record = host.runs[-1]
    at_work = replace(record, cpu_work=(CpuWorkCost(0, "begun", 0, 1, 1, record.ended_ns),))
    cpu = experiment.profiles[0]
    gpu = cpu.model_copy(update={"device": cpu.device.model_copy(update={"kind": "cuda"})})
    assert use_of(at_work, [gpu] * len(record.servers)) == use_of(record, [gpu] * len(record.servers)) < 1
    assert use_of(at_work, [cpu] * len(record.servers)) > 1


def test_no_request_is_given_up_while_it_is_measured(experiment: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    strict = experiment.scenario.model_copy(update={"deadline_s": 1e-6, "shed": True})
    host = Host(replace(experiment, scenario=strict))
    measure(host, monkeypatch)
    assert all(request.status == "completed" for _, record in host.runs for request in record.requests)
