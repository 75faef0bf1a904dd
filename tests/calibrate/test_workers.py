"""A real worker can be calibrated end to end."""

from __future__ import annotations

import json
import os
import time  # noqa: TID251 - processes begin together in real time
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from calibrate import CalibrationObserver, CalibrationRequest, calibrate, check_profile
from calibrate.device_opening import GPU_LEAD_S, LEAD_TIMES, WorkerBench
from calibrate.plan_execution import DISTURBED, CalibrationProgress
from calibrate.profile_fit import CONCURRENCY_ERROR, REPEATABILITY, SOLO_ERROR
from hw.device_settings import DeviceSpec
from hw.networks.architectures import SlimResNet, SlimResNetConfig
from hw.networks.network_files import ModelFile, save_model
from hw.telemetry import usable_cores
from hw.transport.messages import BenchmarkTogether, ConcurrentResult, Point, TogetherResult
from kit.errors import InputError
from sim.device_profile import Profile

pytestmark = pytest.mark.workers


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network of two segments and two widths, random weights."""
    torch.manual_seed(0)
    config = SlimResNetConfig(1, 8, 10, 8, 1, 2, widths=(0.5, 1.0), strides=(1, 2))
    path = tmp_path_factory.mktemp("model") / "two.safetensors"
    save_model(path, SlimResNet(config), "two", {})
    return path


@pytest.mark.slow
def test_a_real_worker_is_calibrated_and_resumes(model: Path, tmp_path: Path) -> None:
    """A whole profile of this CPU with stated errors; a second sitting repeats nothing; a check runs."""
    device, log = DeviceSpec(cores=usable_cores()[:1]), tmp_path / "log"
    seen: list[CalibrationProgress] = []

    def run(device: DeviceSpec) -> Profile:
        wanted = CalibrationRequest(
            ModelFile(model), device, budget_s=12.0, batch_limit=8, log_path=log, peer=device, allow_busy=True
        )
        return calibrate(wanted, CalibrationObserver(on_progress=seen.append))

    profile = run(device)
    assert {SOLO_ERROR, CONCURRENCY_ERROR, REPEATABILITY} <= {error.metric for error in profile.errors}
    assert profile.batch_limit == 8
    assert profile.link is not None
    assert all(a.load_s > 0 for a in profile.memory.instances)
    assert Profile.from_yaml(profile.to_yaml(), "profile.yaml") == profile
    assert [progress.done for progress in seen] == list(range(len(seen)))
    lines = log.read_text().splitlines()
    run(device)  # what is left of the budget may have room for a further round
    later = log.read_text().splitlines()
    assert later[: len(lines)] == lines
    steps = [json.loads(line)["step"] for line in later[1:]]
    assert len(set(steps)) == len(steps)  # nothing that was finished is measured again
    checked = {f.metric: f for f in check_profile(ModelFile(model), device, profile, points=3)}
    assert len(checked[SOLO_ERROR].pairs) == 3
    assert len(checked[CONCURRENCY_ERROR].pairs) == 1
    with pytest.raises(InputError, match=r"stamp\.execution\.onednn"):
        run(DeviceSpec(cores=device.cores, onednn=False))


class Process:
    """A worker that is ready a while after it was asked, and then runs for as long as was asked."""

    def __init__(self, ready_s: float, asked_s: list[float]) -> None:
        self.pid = os.getpid()
        self._ready_s = ready_s
        self._asked_s = asked_s
        self._asked = (0, 0.0, 0)

    def send(self, message: BenchmarkTogether) -> None:
        begin_ns, now_ns = message.begin_ns, time.monotonic_ns()
        self._asked_s.append((begin_ns - now_ns) / 1e9 if begin_ns else 0.0)
        self._asked = (len(message.points), message.duration_s, max(begin_ns, now_ns + round(self._ready_s * 1e9)))

    def expect(self, kind: type[TogetherResult]) -> TogetherResult:
        count, duration_s, began_ns = self._asked
        result = ConcurrentResult(9, duration_s)
        return TogetherResult((result,) * count, 0.0, began_ns, began_ns + round(duration_s * 1e9))


@pytest.mark.parametrize(
    ("ready_s", "tries", "is_disturbed"),
    [(0.0, 1, False), (0.3, 1, False), (0.5, 2, False), (2.0, 3, False), (50.0, 3, True)],
)
def test_processes_begin_together_or_the_set_is_no_good(ready_s: float, tries: int, is_disturbed: bool) -> None:
    """With as much lead as the slower one needs; where none is enough the set counts as disturbed.

    A GPU's instances choose kernels first, so the first lead is long (a bench without cores is a GPU's).
    """
    asked_s: list[float] = []
    workers = [Process(0.0, asked_s), Process(ready_s, asked_s)]
    bench = WorkerBench(cast(Any, workers[0]), None, cast(Any, None), cast(Any, workers[1]))
    found = bench.together([Point(1, 1.0, 0.0, 1)] * 3, 1.0, across=True)
    assert len(found.members) == 3
    assert len(asked_s[::2]) == tries
    assert all(asked <= GPU_LEAD_S * times for asked, times in zip(asked_s[::2], LEAD_TIMES, strict=False))
    assert (found.background_share > DISTURBED) == is_disturbed
    asked_s.clear()
    bench.together([Point(1, 1.0, 0.0, 1)] * 2, 1.0)
    assert asked_s == [0.0]  # one process waits for nobody


def test_senseless_requests_are_refused(model: Path, tmp_path: Path) -> None:
    for budget_s, limit, key in ((0.0, 8, "budget"), (float("nan"), 8, "budget"), (10.0, 0, "batch_limit")):
        with pytest.raises(InputError) as refused:
            CalibrationRequest(
                ModelFile(model), DeviceSpec(), budget_s=budget_s, batch_limit=limit, log_path=tmp_path / "log"
            )
        assert refused.value.key == key
    with pytest.raises(InputError):
        calibrate(CalibrationRequest(ModelFile(tmp_path / "none"), DeviceSpec(), 1.0, 1, tmp_path / "log"))
    assert not (tmp_path / "log").exists()
