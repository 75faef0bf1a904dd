"""Real faults on real agents: nothing is lost, nothing ends twice, what fails has a name, and servers come back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from hw.networks.registry import ModelFile
from hw.networks.slimresnet import SlimResNet
from hw.router.cluster import HardwareCluster
from hw.router.loop import Routing
from hw.router.run_spec import HardwareRun
from hw.router.server import HardwareServer
from policies.faults import (
    WORKER_DIED,
    Crash,
    Fault,
    Supervision,
)
from policies.records import RunRecord
from policies.replay import replay_run
from policies.reward import AccuracyPrior, RewardWeights
from policies.vocabulary import (
    NS_PER_S,
    BatchFinished,
    RequestArrived,
    ServerDown,
    ServerUp,
)
from tests.hw.worlds import Wanderer, device, knobs, router

pytestmark = pytest.mark.workers

WIDTHS = (1.0, 0.5, 1.0)
PRIOR = AccuracyPrior({(1.0,) * 3: 0.9})
WAIT_S = 60.0
QUICK = Supervision(hang_ns=NS_PER_S, backoff_ns=NS_PER_S // 20)


def _cluster(path: Path, servers: int) -> HardwareCluster:
    named = [HardwareServer(f"server{i}", device(i), knobs(), 1.0, 2.0) for i in range(servers)]
    return HardwareCluster(ModelFile(path), named, sensor_period_s=0.05, supervision=QUICK)


@pytest.fixture(scope="module")
def single(path: Path) -> Iterator[HardwareCluster]:
    """One server: whatever happens to it, everybody waits for its return, however long that takes."""
    with _cluster(path, 1) as running:
        yield running


def _run(
    cluster: HardwareCluster,
    model: SlimResNet,
    faults: Sequence[Fault],
    seconds: float = 1.0,
    rate: float = 150.0,
    **heard: Any,
) -> RunRecord:
    """A run under faults, drained; conservation, names of failures and replay are checked on every one."""
    images = torch.randn(50, 1, 8, 8, generator=torch.Generator().manual_seed(2)).numpy()
    labels = model(torch.from_numpy(images), WIDTHS).argmax(1).numpy().astype(np.int64)
    arrivals_ns = np.cumsum(np.random.default_rng(0).exponential(NS_PER_S / rate, int(rate * seconds)))
    plan = HardwareRun(
        arrivals_ns.astype(np.int64), images, labels, round(seconds * NS_PER_S), keep_log=True, faults=tuple(faults)
    )
    servers = len(cluster.servers)
    routing = Routing(Wanderer(WIDTHS), np.random.default_rng(1), RewardWeights(), PRIOR)
    record = cluster.run(plan, router(servers), routing, **heard)
    arrived = [step.event.request for step in record.log if isinstance(step.event, RequestArrived)]
    assert sorted(request.request for request in record.requests) == sorted(arrived) == list(range(len(arrivals_ns)))
    assert all(request.reason for request in record.requests if request.status == "failed")
    assert "in_flight" not in {request.status for request in record.requests}
    assert all(request.correct for request in record.requests if request.status == "completed")
    assert replay_run(record.log, record.agent_logs, router(servers), [knobs()] * servers) == []
    return record


def _downs(record: RunRecord) -> list[tuple[int, str]]:
    return [(step.now_ns, step.event.reason) for step in record.log if isinstance(step.event, ServerDown)]


def _require_second_epoch(record: RunRecord, server: int) -> None:
    """It came back in a new epoch, and served."""
    ups = [step.event for step in record.log if isinstance(step.event, ServerUp)]
    assert [up.epoch for up in ups if up.server == server] == [1, 2]
    first, second = (life for life in record.agent_logs if life.server == server)
    assert (first.epoch, bool(first.ended), second.epoch, second.ended) == (1, True, 2, "")
    assert any(isinstance(step.event, BatchFinished) for step in second.steps)


def test_a_killed_worker_comes_back_under_a_new_epoch(single: HardwareCluster, model: SlimResNet) -> None:
    """The only server is killed: noticed at once, back after the back-off, and everybody who waited completes."""
    said: list[str] = []
    record = _run(single, model, [Crash(0, NS_PER_S // 4)], seconds=0.5, say=said.append)
    ((_, reason),) = _downs(record)
    assert reason == WORKER_DIED
    assert {request.status for request in record.requests} == {"completed"}
    (down,) = record.downtimes
    assert (down.server, down.reason, down.is_planned) == (0, WORKER_DIED, True)
    assert down.up_ns is not None
    assert down.up_ns - down.down_ns > QUICK.backoff_ns
    assert max(request.finished_ns for request in record.requests) > down.up_ns
    down_s, up_s, after_s = (f"{ns / NS_PER_S:.2f} s" for ns in (down.down_ns, down.up_ns, down.up_ns - down.down_ns))
    assert said == [
        f"server0: its worker died at {down_s}, as planned; a new worker starts in 0.05 s",
        f"server0: serves again since {up_s}, after {after_s}",
    ]
    _require_second_epoch(record, 0)


# --------------------------------------------------------------------------------------------- nothing is left behind


_SERVE = """
import time
if __name__ == "__main__":  # agents read this file, too
    from hw.router.cluster import HardwareCluster
    from hw.router.run_spec import Served
    from hw.router.server import HardwareServer
    from policies.greedy import GreedyKnobs
    from tests.hw.test_emulated_cluster import device, profile
    of = profile()
    knobs = GreedyKnobs(of.model.widths, {}, 0, 8, 1 << 30)
    servers = [HardwareServer(f"server{i}", device(of), knobs, 1.0, 2.0) for i in range(2)]
    served = Served.of_sizes(of.model.widths, of.model.input_bytes, of.model.activation_bytes)
    with HardwareCluster(served, servers) as cluster:
        print(*[slot.agent.pid for slot in cluster.slots], flush=True)
        time.sleep(60)
"""


def _segments() -> set[Path]:
    return set(Path("/dev/shm").iterdir())


@pytest.mark.usefixtures("usual_interrupts")
@pytest.mark.parametrize("victim", ["stopped", "helpers"])
def test_nothing_survives_a_kill(victim: str, tmp_path: Path) -> None:
    """kill -9 of the router, an agent or Python's resource tracker, or Ctrl-C: no process, no shared memory is left."""
    segments = _segments()
    script = tmp_path / "serve.py"
    script.write_text(_SERVE, encoding="utf-8")
    parent = subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path.cwd())},
    )
    assert parent.stdout is not None
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    family = psutil.Process(parent.pid).children(recursive=True)
    assert len(pids) == 2
    assert set(pids) < {process.pid for process in family}
    helpers = [process.pid for process in family if process.pid not in pids[1:]]  # an agent, and what Python started
    kills = {"router": [parent.pid], "stopped": [parent.pid], "helpers": helpers, "interrupt": []}
    if victim == "stopped":
        os.kill(pids[0], signal.SIGSTOP)  # it will not see the end of its pipe
    for pid in kills[victim]:
        os.kill(pid, signal.SIGKILL)
    if parent.pid not in kills[victim]:
        os.kill(parent.pid, signal.SIGINT)
    parent.wait(WAIT_S)
    parent.stdout.close()
    _, alive = psutil.wait_procs(family, timeout=WAIT_S)
    assert not alive
    assert not _segments() - segments
