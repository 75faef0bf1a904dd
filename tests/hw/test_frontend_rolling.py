"""A new model takes over while clients are served by real processes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hw.networks.architectures import SlimResNet
from hw.networks.network_files import ModelFile, save_model
from hw.router.interventions import NewModel
from hw.router.local_cluster import HardwareCluster
from hw.router.server_port import HardwareServer
from policies.faults import Supervision
from policies.vocabulary import NS_PER_S, ModelChanged
from tests.hw.frontends import IMAGES, LIMITS, PATIENCE_S, WIDTHS, Frontend, open_frontend
from tests.hw.tiny import TINY, device, params

pytestmark = pytest.mark.workers

FIRST, NEXT = "1", "next"


@pytest.fixture(scope="module")
def frontend(path: Path) -> Iterator[Frontend]:
    servers = [HardwareServer(f"server{i}", device(2 * i), params(), 1.0, 2.0, sensor_period_s=0.05) for i in range(2)]
    rules = Supervision(backoff_ns=NS_PER_S // 2)
    limits = replace(LIMITS, body_s=PATIENCE_S)  # on a busy host a body waits longer than 0.5 s for room: 429
    with (
        HardwareCluster(ModelFile(path), servers, supervision=rules) as running,
        open_frontend(running, limits=limits) as opened,
    ):
        yield opened


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> tuple[SlimResNet, Path]:
    torch.manual_seed(77)
    model, path = SlimResNet(TINY).eval(), tmp_path_factory.mktemp("new") / "next.safetensors"
    save_model(path, model, "tiny", {})
    return model, path


class Client(threading.Thread):
    """Asks for two images at a time, until it is stopped."""

    def __init__(self, frontend: Frontend, place: int) -> None:
        super().__init__()
        self.frontend, self.place = frontend, place
        self.stops = threading.Event()
        self.heard: list[tuple[int, dict[str, Any]]] = []

    def run(self) -> None:
        while not self.stops.is_set():
            status, _, answer = self.frontend.infer(IMAGES[self.place : self.place + 2])
            self.heard.append((status, answer))


def order(frontend: Frontend, path: Path, told: list[str], version: str = NEXT) -> NewModel:
    def took_over() -> None:
        frontend.ingress.serve_model(version, ())
        told.append("took over")

    starts = dict(enumerate(frontend.cluster.starts_of(ModelFile(path))))
    return NewModel(starts, ModelChanged(()), took_over, told.append)


def test_model_that_cannot_start_leaves_workers_and_version_unchanged(frontend: Frontend, tmp_path: Path) -> None:
    broken, told = tmp_path / "broken.safetensors", list[str]()
    broken.write_bytes(b"no model")
    pids = [slot.worker.pid for slot in frontend.cluster.slots]
    frontend.orders.append(order(frontend, broken, told))
    frontend.until(lambda: bool(told))
    assert "broken.safetensors" in told[0]
    assert [slot.worker.pid for slot in frontend.cluster.slots] == pids
    assert frontend.infer(IMAGES)[2]["model_version"] == FIRST


def test_a_new_model_takes_over_and_nobody_is_lost(
    frontend: Frontend, model: SlimResNet, other: tuple[SlimResNet, Path]
) -> None:
    """Every answer is all of the model that it names, both were heard, and who restarts has the new one."""
    wanted = {FIRST: model(IMAGES, WIDTHS).detach().numpy(), NEXT: other[0](IMAGES, WIDTHS).detach().numpy()}
    assert np.abs(wanted[FIRST] - wanted[NEXT]).max(1).min() > 0.01
    told = list[str]()
    clients = [Client(frontend, 2 * place) for place in range(8)]
    for client in clients:
        client.start()
    frontend.until(lambda: all(client.heard for client in clients))
    frontend.orders.append(order(frontend, other[1], told))
    frontend.until(lambda: bool(told))
    after = [len(client.heard) for client in clients]
    frontend.until(lambda: all(len(client.heard) > count + 1 for client, count in zip(clients, after, strict=True)))
    killed = frontend.cluster.slots[0].worker
    killed.kill()
    frontend.until(lambda: frontend.cluster.slots[0].worker is not killed)
    frontend.until(lambda: frontend.metrics()["slimsched_server_up", "server0"] == 1)
    for client in clients:
        client.stops.set()
        client.join(PATIENCE_S)
    assert told == ["took over"]
    assert {status for client in clients for status, _ in client.heard} == {200}
    for client in clients:
        versions = [answer["model_version"] for _, answer in client.heard]
        assert versions == sorted(versions, key=[FIRST, NEXT].index)
        for version, (_, answer) in zip(versions, client.heard, strict=True):
            scores = next(each for each in answer["outputs"] if each["name"] == "scores")
            found = np.array(scores["data"]).reshape(scores["shape"])
            assert np.allclose(found, wanted[version][client.place : client.place + 2], atol=1e-4)
    assert {answer["model_version"] for client in clients for _, answer in client.heard} == {FIRST, NEXT}


def test_a_version_that_is_gone_is_not_there(frontend: Frontend) -> None:
    for version, status in ((FIRST, 404), (NEXT, 200)):
        assert frontend.ask("GET", f"/v2/models/tiny/versions/{version}")[0] == status
