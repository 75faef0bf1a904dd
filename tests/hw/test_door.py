"""Clients through the door, on a real loopback port: the network's answers, bad clients, overload, deaths, the end."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import threading
import time  # noqa: TID251 - clients wait for a server
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families

from hw.door.app import Limits
from hw.door.clients import Clients
from hw.door.ingress import IngressSpec, ingress
from hw.door.listening import listen
from hw.door.protocol import Served
from hw.door.slots import SlotImages, slots_of
from hw.door.tally import Tally
from hw.door.words import Status
from hw.host.clock import RunClock
from hw.networks.registry import ModelFile
from hw.networks.slimresnet import SlimResNet
from hw.router.cluster import HardwareCluster
from hw.router.loop import Routing, RunProgress
from hw.router.server import HardwareServer
from policies.faults import Supervision
from policies.interfaces import RouterConfig
from policies.reward import AccuracyPrior, RewardWeights
from policies.vocabulary import NS_PER_S, Choice, ClusterView, GoalSet
from tests.hw.worlds import TINY, Wanderer, device, knobs, router

pytestmark = pytest.mark.workers

WIDTHS = (1.0, 0.5, 1.0)
SLOTS = 24
TOKEN = b"a token that nobody guesses"
LIMITS = Limits(body_bytes=1 << 16, body_s=0.5, timeout_s=60.0)
RULES = Supervision(backoff_ns=NS_PER_S // 20)
PATIENCE_S = 60.0
IMAGES = torch.randn(SLOTS, 1, 8, 8, generator=torch.Generator().manual_seed(3))


class Gate(Wanderer):
    """Decides as often as it is let to, where it is closed; a loop that decides nothing answers nobody."""

    def __init__(self) -> None:
        super().__init__(WIDTHS)
        self.allowed = threading.Semaphore(0)
        self.is_open = True

    def choose(self, view: ClusterView, rng: np.random.Generator) -> Choice:
        if not self.is_open:
            self.allowed.acquire()
        return super().choose(view, rng)

    def open(self) -> None:
        self.is_open = True
        self.allowed.release(1000)

    def close(self) -> None:
        self.allowed = threading.Semaphore(0)
        self.is_open = False


@dataclass
class Door:
    """A server that clients are connected to.

    Attributes:
        end: how far the router's loop was at its end.
    """

    port: int
    gate: Gate
    cluster: HardwareCluster
    stop: threading.Event
    end: Future[RunProgress]
    traffic: list[Clients]
    tally: Tally
    before: dict[tuple[str, ...], float] = field(default_factory=dict)

    def ask(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            connection.request(method, path, body, {"authorization": f"Bearer {TOKEN.decode()}", **(headers or {})})
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        finally:
            connection.close()

    def infer(self, images: torch.Tensor, **more: Any) -> tuple[int, dict[str, str], dict[str, Any]]:
        tensor = {"name": "image", "shape": list(images.shape), "datatype": "FP32", "data": images.flatten().tolist()}
        body = json.dumps({"inputs": [tensor], **more}).encode()
        status, headers, answer = self.ask("POST", "/v2/models/tiny/infer", body)
        return status, headers, json.loads(answer)

    def metrics(self) -> dict[tuple[str, ...], float]:
        """By name and values of labels."""
        families = text_string_to_metric_families(self.ask("GET", "/metrics")[2].decode())
        return {(s.name, *s.labels.values()): s.value for family in families for s in family.samples}

    def counted(self, *key: str) -> float:
        """Since the test began."""
        return self.metrics().get(key, 0.0) - self.before.get(key, 0.0)

    def until(self, is_so: Callable[[], bool]) -> None:
        until_s = time.monotonic() + PATIENCE_S
        while not is_so():
            assert time.monotonic() < until_s, "it never came"
            time.sleep(0.01)

    def decides_and_is_not_ready(self) -> bool:
        """Its loop goes on by one decision."""
        self.gate.allowed.release()
        return self.ask("GET", "/v2/health/ready")[0] == 503

    def until_inside(self, count: int) -> None:
        self.until(lambda: self.metrics()["slimsched_images_inside",] == count)


@pytest.fixture(scope="module")
def cluster(path: Path) -> Iterator[HardwareCluster]:
    servers = [HardwareServer(f"server{i}", device(i), knobs(), 1.0, 2.0) for i in range(2)]
    with HardwareCluster(ModelFile(path), servers, sensor_period_s=0.05, supervision=RULES) as running:
        yield running


@pytest.fixture(scope="module")
def opened(cluster: HardwareCluster) -> Iterator[Door]:
    """Open and ready; the last test closes it."""
    served = Served("tiny", (1, 8, 8), 3, TINY.classes, (2.0,), (4.0,), SLOTS)
    config: RouterConfig = replace(router(2), shed_expired=True)
    gate, stop, tally = Gate(), threading.Event(), Tally(["server0", "server1"], config)
    routing = Routing(gate, np.random.default_rng(1), RewardWeights(), AccuracyPrior({(1.0,) * 3: 0.9}))
    spec = IngressSpec(served, LIMITS, (b"another one of many", TOKEN))
    with (
        listen("127.0.0.1", 0, asks_for_token=True) as listening,
        ThreadPoolExecutor(1) as hands,
        ingress(spec, listening, SLOTS) as (port, arena),
    ):
        images, made = SlotImages(slots_of(arena, served.shape), served.shape), list[Clients]()

        def traffic(_: object, __: object, clock: RunClock) -> Clients:
            made.append(Clients(port, images, stop.is_set, clock))
            return made[0]

        def tell(progress: RunProgress) -> None:
            port.post(Status(tally.is_ready, progress.in_flight, progress.busy_ns, tally.servers))

        def serve() -> RunProgress:
            try:
                return cluster.serve(traffic, config, routing, GoalSet(), tally, tell, lambda _: None)
            finally:
                port.close()

        door = Door(listening.getsockname()[1], gate, cluster, stop, hands.submit(serve), made, tally)
        door.until(lambda: door.end.done() or door.ask("GET", "/v2/health/ready")[0] == 200)
        try:
            yield door
        finally:
            stop.set()
            door.end.result(PATIENCE_S)


@pytest.fixture
def door(opened: Door) -> Iterator[Door]:
    """The same for every test, with what it has counted since the test began."""
    opened.before = opened.metrics()
    yield opened
    opened.gate.open()


# ----------------------------------------------------------------------------------------------------------- answers


def test_answers_are_the_models_own(door: Door, model: SlimResNet) -> None:
    """Labels, scores and widths of each image, however it was sent; several images in one request, in their order."""
    logits = model(IMAGES, WIDTHS).detach()
    for images, wanted in ((IMAGES[:1], logits[:1]), (IMAGES, logits)):
        status, _, answer = door.infer(images, id="mine")
        assert (status, answer["id"], answer["model_name"]) == (200, "mine", "tiny")
        outputs = {each["name"]: np.array(each["data"]).reshape(each["shape"]) for each in answer["outputs"]}
        assert np.allclose(outputs["scores"], wanted.numpy(), atol=1e-4)
        assert outputs["label"].tolist() == wanted.argmax(1).tolist()
        assert outputs["widths"].tolist() == [list(WIDTHS)] * len(images)


def test_pixels_are_normalised_as_the_data_set(door: Door, model: SlimResNet) -> None:
    """In binary, both ways."""
    pixels = np.random.default_rng(5).integers(0, 16, (3, 1, 8, 8), np.uint8)
    tensor = {"name": "image", "shape": [3, 1, 8, 8], "datatype": "UINT8", "parameters": {"binary_data_size": 192}}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    length = {"inference-header-content-length": str(len(head))}
    status, headers, body = door.ask("POST", "/v2/models/tiny/versions/1/infer", head + pixels.tobytes(), length)
    told = json.loads(body[: int(headers["inference-header-content-length"])])
    assert status == 200
    assert [each["parameters"]["binary_data_size"] for each in told["outputs"]] == [24, 120, 36]
    found = np.frombuffer(body[-36 - 120 : -36], "<f4").reshape(3, 10)
    wanted = model(torch.from_numpy((pixels.astype(np.float32) - 2) / 4), WIDTHS).detach()
    assert np.allclose(found, wanted.numpy(), atol=1e-4)


def test_it_says_what_it_is(door: Door) -> None:
    assert door.ask("GET", "/v2/health/live")[0] == door.ask("GET", "/v2/models/tiny/ready")[0] == 200
    assert json.loads(door.ask("GET", "/v2")[2])["extensions"] == ["binary_tensor_data"]
    found = json.loads(door.ask("GET", "/v2/models/tiny")[2])
    assert found["inputs"] == [{"name": "image", "datatype": "FP32", "shape": [-1, 1, 8, 8]}]
    assert [(each["name"], each["shape"]) for each in found["outputs"]] == [
        ("label", [-1]),
        ("scores", [-1, 10]),
        ("widths", [-1, 3]),
    ]
    assert "error" in json.loads(door.ask("GET", "/v2/models/other")[2])


# ------------------------------------------------------------------------------------------------------- bad clients

HEAD = b"POST /v2/models/tiny/infer HTTP/1.1\r\nhost: x\r\nauthorization: Bearer " + TOKEN + b"\r\n"
HOSTILE: dict[str, tuple[bytes, int]] = {
    "no HTTP": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 30, 400),
    "a broken body": (HEAD + b"content-length: 3\r\n\r\n{}}", 400),
    "an empty body": (HEAD + b"content-length: 0\r\n\r\n", 400),
    "a length that is none": (HEAD + b"content-length: many\r\n\r\n", 400),
    "a huge body, as it says": (HEAD + b"content-length: 99999999999\r\n\r\n", 413),
    "a huge body, in pieces": (
        HEAD + b"transfer-encoding: chunked\r\n\r\n" + b"4000\r\n" + bytes(0x4000) + b"\r\n",
        413,
    ),
    "a body that never ends": (HEAD + b"content-length: 9\r\n\r\n{", 408),
    "another method": (HEAD.replace(b"POST", b"PUT") + b"content-length: 0\r\n\r\n", 405),
    "an unknown token": (HEAD.replace(TOKEN, b"guessed") + b"content-length: 0\r\n\r\n", 401),
    "a head without an end": (HEAD + b"x: " + b"a" * (1 << 20), 0),
    "an odd path": (b"GET /%ff%00/\xc3\xa4 HTTP/1.1\r\nhost: x\r\n\r\n", 400),
}


CUT_OFF = ("a huge body, in pieces",)


@pytest.mark.parametrize("what", HOSTILE)
def test_bad_clients_hear_what_is_wrong_and_harm_nobody(door: Door, what: str) -> None:
    """`{"error": ...}`, where what came was HTTP; 0: its connection is ended. Others are served as before.

    Who is still sending as the connection ends may not hear why.
    """
    sent, status = HOSTILE[what]
    with socket.create_connection(("127.0.0.1", door.port), PATIENCE_S) as client:
        heard = b""
        try:
            for _ in range(8 if "pieces" in what else 1):
                client.sendall(sent if not heard and _ == 0 else b"4000\r\n" + bytes(0x4000) + b"\r\n")
            while part := client.recv(1 << 16):
                heard += part
                if b"}" in heard:
                    break
        except (ConnectionError, BrokenPipeError):
            pass
    allowed = {str(status).encode() if status else b"", b"" if what in CUT_OFF else str(status).encode()}
    assert heard[9:12] in allowed
    if b"application/json" in heard:
        assert list(json.loads(heard.partition(b"\r\n\r\n")[2])) == ["error"]
    assert door.infer(IMAGES[:2])[0] == 200
    door.until_inside(0)


def test_a_client_that_leaves_frees_its_place(door: Door) -> None:
    """In the middle of its request, and after it."""
    body = json.dumps(
        {"inputs": [{"name": "image", "shape": [1, 1, 8, 8], "datatype": "FP32", "data": [0.0] * 64}]}
    ).encode()
    whole = HEAD + f"content-length: {len(body)}\r\n\r\n".encode() + body
    for sent in (HEAD[:20], whole[:-5], whole):
        for _ in range(SLOTS + 1):
            with socket.create_connection(("127.0.0.1", door.port), PATIENCE_S) as client:
                client.sendall(sent)
    door.until_inside(0)
    assert door.infer(IMAGES)[0] == 200


# ---------------------------------------------------------------------------------------------------------- overload


def test_no_more_are_let_in_than_fit(door: Door) -> None:
    """The rest is refused at once, with when to come again; who is inside is answered, and then there is room."""
    door.gate.close()
    with ThreadPoolExecutor(SLOTS) as clients:
        inside = [clients.submit(door.infer, IMAGES[place : place + 4]) for place in range(0, SLOTS - 4, 4)]
        door.until_inside(SLOTS - 4)
        status, headers, answer = door.infer(IMAGES[:5])
        assert (status, headers["retry-after"], answer) == (429, "1", {"error": "full: 20 images are inside"})
        inside.append(clients.submit(door.infer, IMAGES[-4:]))  # four more fit
        door.until_inside(SLOTS)
        assert door.infer(IMAGES[:1])[0] == 429
        door.gate.open()
        assert [each.result()[0] for each in inside] == [200] * 6
    assert door.infer(IMAGES)[0] == 200
    assert door.counted("slimsched_images_refused_total", "full") == 6
    assert door.counted("slimsched_images_arrived_total") == 6 + 2 * SLOTS
    assert door.counted("slimsched_images_answered_total") == 2 * SLOTS
    assert door.counted("slimsched_requests_total", "429") == 2


def test_after_its_deadline_nobody_waits(door: Door) -> None:
    """The client hears so, whatever the router does; what still waits is given up, and its place freed."""
    door.gate.close()
    passes = sum(server.images for server in door.tally.servers)
    status, _, answer = door.infer(IMAGES[:8], parameters={"timeout": 50_000})
    assert (status, answer) == (504, {"error": "no answer within 0.05 s"})
    assert door.metrics()["slimsched_images_inside",] == 8  # nobody may write there before the router has answered
    door.gate.open()
    door.until_inside(0)
    assert door.counted("slimsched_images_failed_total", "deadline") == 8
    assert sum(server.images for server in door.tally.servers) - passes < 8 * len(WIDTHS)
    assert door.infer(IMAGES[:8])[0] == 200


# ------------------------------------------------------------------------------------------------- deaths and the end


def test_an_agents_death_loses_nobody(door: Door) -> None:
    """Killed with images in it: all are answered, and it comes back."""
    with ThreadPoolExecutor(8) as clients:
        asked = [clients.submit(door.infer, IMAGES[place % SLOTS][None]) for place in range(300)]
        door.until(lambda: sum(each.done() for each in asked) > 30)
        killed = door.cluster.slots[0].agent
        killed.send_signal(signal.SIGKILL)
        assert [each.result()[0] for each in asked] == [200] * len(asked)
    door.until(lambda: door.cluster.slots[0].agent is not killed)
    door.until(lambda: door.metrics()["slimsched_server_up", "server0"] == 1)
    assert door.counted("slimsched_request_seconds_count") == len(asked)
    assert door.counted("slimsched_server_images_total", "server1") > 0


def test_while_no_server_is_up_it_is_not_ready(door: Door) -> None:
    for slot in door.cluster.slots:
        slot.agent.send_signal(signal.SIGKILL)
    door.until(lambda: door.ask("GET", "/v2/health/ready")[0] == 503)
    status, headers, _ = door.infer(IMAGES[:1])
    assert (status, headers["retry-after"]) == (503, "1")
    door.until(lambda: door.ask("GET", "/v2/health/ready")[0] == 200)
    assert door.infer(IMAGES[:1])[0] == 200


def test_nothing_is_left_of_those_who_were_served(door: Door) -> None:
    """As much is remembered after many images as after few."""
    for _ in range(5):
        assert door.infer(IMAGES)[0] == 200
    door.until_inside(0)
    (clients,) = door.traffic
    assert not clients._said
    assert not clients._slot_of
    assert not clients._came


def test_at_the_end_all_that_were_accepted_are_answered(door: Door) -> None:
    """No other is accepted from then on, and nobody's answer is cut off."""
    door.gate.close()
    with ThreadPoolExecutor(SLOTS) as clients:
        accepted = [clients.submit(door.infer, image[None]) for image in IMAGES]
        door.until_inside(SLOTS)
        door.stop.set()
        door.until(door.decides_and_is_not_ready)
        status, headers, _ = door.infer(IMAGES[:1])
        assert (status, headers["connection"]) == (503, "close")
        door.gate.open()
        assert [each.result()[0] for each in accepted] == [200] * SLOTS
    end = door.end.result(PATIENCE_S)
    assert (end.in_flight, end.completed) == (0, door.before["slimsched_images_answered_total",] + SLOTS)
