"""A canary begins, is compared, promoted and taken back while clients are served by real processes."""

from __future__ import annotations

import json
import time  # noqa: TID251 - a real frontend
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import torch

from hw.frontend.inference_protocol import Canary
from hw.networks.architectures import SlimResNet
from hw.networks.network_files import ModelFile
from hw.router.interventions import NewModel
from policies.vocabulary import ModelChanged
from tests.hw.frontends import IMAGES, PATIENCE_S, WIDTHS, Frontend
from tests.hw.test_frontend_rolling import FIRST, NEXT, Client, frontend, other

pytestmark = pytest.mark.workers
__all__ = ["frontend", "other"]  # fixtures

SHARE = 0.4


def change(frontend: Frontend, path: Path, servers: Iterable[int], stable: str, canary: str = "") -> None:
    """Give these servers other weights; with a canary it is the last one."""
    told, trial = list[str](), Canary(canary, (), SHARE) if canary else None

    def took_over() -> None:
        frontend.ingress.serve_model(stable, (), trial)
        told.append("took over")

    starts = frontend.cluster.starts_of(ModelFile(path))
    changed = ModelChanged((), (1,) if canary else ())
    frontend.orders.append(NewModel({index: starts[index] for index in servers}, changed, took_over, told.append))
    frontend.until(lambda: bool(told))
    assert told == ["took over"]


def ask(frontend: Frontend, place: int, version: str) -> tuple[int, str]:
    """Return the status and the version that has answered a request for this one."""
    image = {"name": "image", "shape": [1, 1, 8, 8], "datatype": "FP32", "data": IMAGES[place].flatten().tolist()}
    body = json.dumps({"inputs": [image]}).encode()
    status, _, answer = frontend.ask("POST", f"/v2/models/tiny/versions/{version}/infer", body)
    return status, json.loads(answer).get("model_version", "")


def versions(frontend: Frontend) -> list[str]:
    found: list[str] = json.loads(frontend.ask("GET", "/v2/models/tiny")[2])["versions"]
    return found


def test_a_canary_serves_its_share_until_it_is_promoted_or_taken_back(
    frontend: Frontend, model: SlimResNet, other: tuple[SlimResNet, Path], path: Path
) -> None:
    """Every answer is all of the version that it names, also while the canary's only server restarts."""
    wanted = {FIRST: model(IMAGES, WIDTHS).detach().numpy(), NEXT: other[0](IMAGES, WIDTHS).detach().numpy()}
    clients = [Client(frontend, 2 * place) for place in range(8)]
    for client in clients:
        client.start()
    change(frontend, other[1], (1,), FIRST, NEXT)
    assert versions(frontend) == [FIRST, NEXT]
    began = [len(client.heard) for client in clients]
    frontend.until(lambda: sum(len(client.heard) for client in clients) > sum(began) + 300)
    drawn = [answer["model_version"] for client, count in zip(clients, began, strict=True)
             for _, answer in client.heard[count + 1 :]]  # fmt: skip
    share = drawn.count(NEXT) / len(drawn)
    assert abs(share - SHARE) < 4 * (SHARE * (1 - SHARE) / len(drawn)) ** 0.5
    killed = frontend.cluster.slots[1].worker
    killed.kill()
    frontend.until(lambda: frontend.cluster.slots[1].worker is not killed)
    frontend.until(lambda: frontend.metrics()["slimsched_server_up", "server1"] == 1)
    assert ask(frontend, 0, NEXT) == (200, NEXT)
    change(frontend, other[1], (0,), NEXT)
    ended = [len(client.heard) for client in clients]
    frontend.until(lambda: all(len(each.heard) > count + 2 for each, count in zip(clients, ended, strict=True)))
    for client in clients:
        client.stops.set()
        client.join(PATIENCE_S)
    assert {status for client in clients for status, _ in client.heard} == {200}
    for client, count in zip(clients, ended, strict=True):
        assert {answer["model_version"] for _, answer in client.heard[count + 1 :]} == {NEXT}
        for _, answer in client.heard:
            if (version := answer["model_version"]) in wanted:  # both only if one server died in between
                scores = next(each for each in answer["outputs"] if each["name"] == "scores")
                found = np.array(scores["data"]).reshape(scores["shape"])
                assert np.allclose(found, wanted[version][client.place : client.place + 2], atol=1e-4)
    change(frontend, path, (1,), NEXT, FIRST)
    assert [ask(frontend, 0, version)[1] for version in (FIRST, NEXT)] == [FIRST, NEXT]
    change(frontend, other[1], (1,), NEXT)
    assert [ask(frontend, 0, version)[0] for version in (FIRST, NEXT)] == [404, 200]


def test_a_sample_of_the_canarys_images_is_compared(
    frontend: Frontend, model: SlimResNet, other: tuple[SlimResNet, Path], path: Path
) -> None:
    """At most one in ten is served by both versions; the page and the metrics show how many are predicted alike."""
    with torch.no_grad():
        alike = (model(IMAGES, WIDTHS).argmax(1) == other[0](IMAGES, WIDTHS).argmax(1)).tolist()
    change(frontend, other[1], (0, 1), NEXT)
    change(frontend, path, (1,), NEXT, FIRST)
    names = [f"slimsched_canary_images_{name}_total" for name in ("compared", "agreed")]

    def settled() -> dict[tuple[str, ...], float]:
        """Return the metrics once no comparison is in flight: it is counted after its images have left."""
        seen, now = dict[str, float](), {"": 0.0}
        while now != seen:
            frontend.until_inside(0)
            seen, metrics = now, frontend.metrics()
            now = {name: metrics.get((name, FIRST), 0.0) for name in names}
            time.sleep(0.2)
        return metrics

    for place, agrees in ((alike.index(True), 1), (alike.index(False), 0)):
        frontend.before, asked = settled(), 0
        while frontend.counted(names[0], FIRST) < 3:
            assert ask(frontend, place, FIRST) == (200, FIRST)
            asked += 1
        assert asked > 20
        now = settled()
        compared, agreed = (now.get((name, FIRST), 0.0) - frontend.before.get((name, FIRST), 0.0) for name in names)
        assert agreed == agrees * compared
    total = now[names[0], FIRST]
    frontend.until(lambda: len(frontend.ingress.versions) == 2 and frontend.ingress.versions[1].compared == total)
    page, state = frontend.ask("GET", "/")[2].decode(), frontend.ingress.versions[1]
    assert f"{FIRST} (canary)" in page
    assert (state.version, state.role, 0 < state.agreed < state.compared) == (FIRST, "canary", True)
    assert f"of {state.compared}</td>" in page
    change(frontend, other[1], (1,), NEXT)
    assert "canary" not in frontend.ask("GET", "/")[2].decode()
