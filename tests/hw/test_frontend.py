"""Clients through the front end, on a real loopback port: the network's answers, bad clients, overload, deaths, the
end."""

from __future__ import annotations

import json
import multiprocessing
import re
import signal
import socket
import time  # noqa: TID251 - a client waits
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import numpy as np
import pytest
import torch

from hw.frontend.connections import listen
from hw.frontend.ingress import WaitingRoom
from hw.networks.architectures import SlimResNet
from hw.networks.network_files import ModelFile
from hw.router.local_cluster import HardwareCluster
from hw.router.server_port import HardwareServer
from policies.faults import Supervision
from policies.vocabulary import NS_PER_S
from tests.hw.frontends import IMAGES, LIMITS, MODEST, PATIENCE_S, SLOTS, TOKEN, WIDTHS, Frontend, open_frontend
from tests.hw.tiny import device, params

pytestmark = pytest.mark.workers

RULES = Supervision(backoff_ns=NS_PER_S // 2)  # the ingress hears five times a second who is up


@pytest.fixture(scope="module")
def cluster(path: Path) -> Iterator[HardwareCluster]:
    servers = [HardwareServer(f"server{i}", device(i), params(), 1.0, 2.0, sensor_period_s=0.05) for i in range(2)]
    with HardwareCluster(ModelFile(path), servers, supervision=RULES) as running:
        yield running


@pytest.fixture(scope="module")
def opened(cluster: HardwareCluster) -> Iterator[Frontend]:
    """For all tests; the last one closes it."""
    with open_frontend(cluster) as frontend:
        yield frontend


@pytest.fixture
def frontend(opened: Frontend) -> Iterator[Frontend]:
    """The same for every test, with what it has counted since the test began."""
    opened.before = opened.metrics()
    yield opened
    opened.gate.open()


# ----------------------------------------------------------------------------------------------------------- answers


def test_answers_are_the_models_own(frontend: Frontend, model: SlimResNet) -> None:
    """Labels, scores and widths of each image, and the router's time; several images in one request, in their order."""
    logits = model(IMAGES, WIDTHS).detach()
    for images, wanted in ((IMAGES[:1], logits[:1]), (IMAGES, logits)):
        began_s = time.perf_counter()
        status, headers, answer = frontend.infer(images, id="mine")
        took_ms = 1e3 * (time.perf_counter() - began_s)
        assert 0 < float(headers["server-timing"].removeprefix("router;dur=")) < took_ms
        assert (status, answer["id"], answer["model_name"]) == (200, "mine", "tiny")
        outputs = {each["name"]: np.array(each["data"]).reshape(each["shape"]) for each in answer["outputs"]}
        assert np.allclose(outputs["scores"], wanted.numpy(), atol=1e-4)
        assert outputs["prediction"].tolist() == wanted.argmax(1).tolist()
        assert outputs["widths"].tolist() == [list(WIDTHS)] * len(images)


def test_pixels_are_normalised_as_the_data_set(frontend: Frontend, model: SlimResNet) -> None:
    """In binary, both ways."""
    pixels = np.random.default_rng(5).integers(0, 16, (3, 1, 8, 8), np.uint8)
    tensor = {"name": "image", "shape": [3, 1, 8, 8], "datatype": "UINT8", "parameters": {"binary_data_size": 192}}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    length = {"inference-header-content-length": str(len(head))}
    status, headers, body = frontend.ask("POST", "/v2/models/tiny/versions/1/infer", head + pixels.tobytes(), length)
    told = json.loads(body[: int(headers["inference-header-content-length"])])
    assert status == 200
    assert [each["parameters"]["binary_data_size"] for each in told["outputs"]] == [24, 120, 36]
    found = np.frombuffer(body[-36 - 120 : -36], "<f4").reshape(3, 10)
    wanted = model(torch.from_numpy((pixels.astype(np.float32) - 2) / 4), WIDTHS).detach()
    assert np.allclose(found, wanted.numpy(), atol=1e-4)


def test_frontend_metadata_describes_the_server_and_the_model(frontend: Frontend) -> None:
    assert frontend.ask("GET", "/v2/health/live")[0] == frontend.ask("GET", "/v2/models/tiny/ready")[0] == 200
    assert 0.0 <= frontend.metrics()["slimsched_router_heard_seconds",] < 2.0
    assert "statistics" in json.loads(frontend.ask("GET", "/v2")[2])["extensions"]
    found = json.loads(frontend.ask("GET", "/v2/models/tiny")[2])
    assert found["inputs"] == [{"name": "image", "datatype": "FP32", "shape": [-1, 1, 8, 8]}]
    assert [(each["name"], each["shape"]) for each in found["outputs"]] == [
        ("prediction", [-1]),
        ("scores", [-1, 10]),
        ("widths", [-1, 3]),
    ]
    assert "error" in json.loads(frontend.ask("GET", "/v2/models/other")[2])


def test_tritons_tools_get_what_they_ask_first(frontend: Frontend) -> None:
    """Configuration, statistics before and after a request of three images and a failed one, and the repository."""
    config = json.loads(frontend.ask("GET", "/v2/models/tiny/config")[2])
    assert (config["max_batch_size"], config["input"]) == (
        SLOTS,
        [{"name": "image", "data_type": "TYPE_FP32", "dims": [1, 8, 8]}],
    )
    assert config["output"][0] == {
        "name": "prediction",
        "data_type": "TYPE_INT64",
        "dims": [1],
        "reshape": {"shape": []},
    }
    (before,) = json.loads(frontend.ask("GET", "/v2/models/tiny/versions/1/stats")[2])["model_stats"]
    began_ms = time.time() * 1e3
    assert frontend.infer(IMAGES[:3])[0] == 200
    assert frontend.ask("POST", "/v2/models/tiny/infer", b"{}")[0] == 400
    (after,) = json.loads(frontend.ask("GET", "/v2/models/stats")[2])["model_stats"]
    assert after["inference_count"] - before["inference_count"] == 3
    success, fail = (after["inference_stats"][each] for each in ("success", "fail"))
    assert success["count"] - before["inference_stats"]["success"]["count"] == 1
    assert success["ns"] > before["inference_stats"]["success"]["ns"]
    queue_ns = after["inference_stats"]["queue"]["ns"] - before["inference_stats"]["queue"]["ns"]
    assert 0 < queue_ns < success["ns"] - before["inference_stats"]["success"]["ns"]
    assert fail["count"] - before["inference_stats"]["fail"]["count"] == 1
    assert began_ms - 1 < after["last_inference"] < time.time() * 1e3 + 1
    index = json.loads(frontend.ask("POST", "/v2/repository/index", b"{}")[2])
    assert index == [{"name": "tiny", "version": "1", "state": "READY", "reason": ""}]
    assert frontend.ask("GET", "/v2/repository/index")[0] == 405


def test_each_path_of_the_schema_is_answered(frontend: Frontend) -> None:
    """By a status that the schema names, and never by 404 or 500."""
    schema = json.loads(frontend.ask("GET", "/openapi.json")[2])
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            status = frontend.ask(method.upper(), path.format(model="tiny", version="1"))[0]
            assert str(status) in operation["responses"], path
            assert status not in (404, 500), path


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
    "a compressed body": (HEAD + b"content-encoding: gzip\r\ncontent-length: 3\r\n\r\n\x1f\x8b\x08", 415),
    "another method where there is only to be read": (b"DELETE /metrics HTTP/1.1\r\nhost: x\r\n\r\n", 401),
    "another method for health": (b"OPTIONS /v2/health/ready HTTP/1.1\r\nhost: x\r\n\r\n", 405),
    "another method, with a token": (HEAD.replace(b"POST /v2/models/tiny/infer", b"PUT /metrics") + b"\r\n", 405),
    "a token without a scheme": (HEAD.replace(b"Bearer ", b"") + b"content-length: 0\r\n\r\n", 401),
    "a scheme in small letters": (HEAD.replace(b"Bearer", b"bearer") + b"content-length: 3\r\n\r\n{}}", 400),
    "an unknown token": (HEAD.replace(TOKEN, b"guessed") + b"content-length: 0\r\n\r\n", 401),
    "a head without an end": (HEAD + b"x: " + b"a" * (1 << 20), 0),
    "an odd path": (b"GET /%ff%00/\xc3\xa4 HTTP/1.1\r\nhost: x\r\n\r\n", 400),
}


CUT_OFF = ("a huge body, in pieces",)


@pytest.mark.parametrize("what", HOSTILE)
def test_bad_clients_hear_what_is_wrong_and_harm_nobody(frontend: Frontend, what: str) -> None:
    """`{"error": ...}`, even where what came was no HTTP; 0: its connection is ended. Others are served as before.

    Who is still sending as the connection ends may not hear why.
    """
    sent, status = HOSTILE[what]
    with socket.create_connection(("127.0.0.1", frontend.port), PATIENCE_S) as client:
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
    if heard:
        assert list(json.loads(heard.partition(b"\r\n\r\n")[2])) == ["error"]
    assert frontend.infer(IMAGES[:2])[0] == 200
    frontend.until_inside(0)


def test_connection_above_the_limit_gets_503_until_others_are_closed(frontend: Frontend) -> None:
    """The answer follows the protocol, and health and metrics stay reachable."""
    with ExitStack() as stack:
        for _ in range(LIMITS.connections):
            stack.enter_context(socket.create_connection(("127.0.0.1", frontend.port), PATIENCE_S))
        status, headers, answer = frontend.infer(IMAGES[:1])
        assert (status, headers["connection"], headers["retry-after"]) == (503, "close", "1")
        assert answer == {"error": "full: too many connections are open"}
        for path in ("/v2/health/live", "/v2/health/ready", "/metrics"):
            assert frontend.ask("GET", path)[0] == 200
    frontend.until(lambda: frontend.infer(IMAGES[:1])[0] == 200)


def request_of(images: int) -> bytes:
    tensor = {"name": "image", "shape": [images, 1, 8, 8], "datatype": "FP32", "data": [0.0] * 64 * images}
    body = json.dumps({"inputs": [tensor]}).encode()
    return HEAD + f"content-length: {len(body)}\r\n\r\n".encode() + body


def test_a_client_that_leaves_frees_its_place(frontend: Frontend) -> None:
    whole = request_of(1)
    for sent in (HEAD[:20], whole[:-5], whole):
        for _ in range(SLOTS + 1):
            with socket.create_connection(("127.0.0.1", frontend.port), PATIENCE_S) as client:
                client.sendall(sent)
    frontend.until(lambda: frontend.infer(IMAGES)[0] == 200)  # the last ones may still be read
    assert frontend.infer(IMAGES)[0] == 200


def test_request_of_a_disconnected_client_runs_at_most_one_segment(frontend: Frontend) -> None:
    passes = frontend.passes()
    frontend.gate.close()
    with socket.create_connection(("127.0.0.1", frontend.port), PATIENCE_S) as client:
        client.sendall(request_of(8))
        frontend.until_inside(8)
    frontend.until(lambda: frontend.counted("slimsched_images_failed_total", "client_left") == 8)
    frontend.gate.open()
    frontend.until_inside(0)
    assert frontend.passes() - passes <= 8
    assert frontend.infer(IMAGES)[0] == 200
    (clients,) = frontend.traffic
    assert not clients._request_in


# ---------------------------------------------------------------------------------------------------------- overload


def test_no_more_are_let_in_than_fit(frontend: Frontend) -> None:
    """The rest is refused at once, with when to come again; who is inside is answered, and then there is room."""
    frontend.gate.close()
    with ThreadPoolExecutor(SLOTS) as clients:
        inside = [clients.submit(frontend.infer, IMAGES[place : place + 4]) for place in range(0, SLOTS - 4, 4)]
        frontend.until_inside(SLOTS - 4)
        status, headers, answer = frontend.infer(IMAGES[:5])
        assert (status, headers["retry-after"], answer) == (429, "1", {"error": "full: 20 images are inside"})
        inside.append(clients.submit(frontend.infer, IMAGES[-4:]))  # four more fit
        frontend.until_inside(SLOTS)
        assert frontend.infer(IMAGES[:1])[0] == 429
        frontend.gate.open()
        assert [each.result()[0] for each in inside] == [200] * 6
    assert frontend.infer(IMAGES)[0] == 200
    assert frontend.counted("slimsched_images_refused_total", "full") == 6
    assert frontend.counted("slimsched_images_arrived_total") == 6 + 2 * SLOTS
    assert frontend.counted("slimsched_images_answered_total") == 2 * SLOTS
    assert frontend.counted("slimsched_requests_total", "429") == 2


def test_request_that_cannot_meet_its_timeout_is_refused(frontend: Frontend) -> None:
    """Half of the images inside take at least 0.1 s."""
    frontend.gate.close()
    with ThreadPoolExecutor(1) as clients:
        inside = clients.submit(frontend.infer, IMAGES[:20])
        frontend.until_inside(20)
        status, headers, answer = frontend.infer(IMAGES[:2], parameters={"timeout": 90_000})
        assert (status, headers["retry-after"]) == (429, "1")
        assert answer == {"error": "full: what is inside takes more than 0.09 s"}
        assert frontend.infer(IMAGES[:2], parameters={"timeout": 110_000})[0] == 504
        frontend.gate.open()
        assert inside.result()[0] == 200
    assert frontend.counted("slimsched_images_refused_total", "deadline") == 2


def test_a_token_has_no_more_inside_than_it_may(frontend: Frontend) -> None:
    """Others have their room; and there is room again when its images are answered."""
    by_modest = {"authorization": f"Bearer {MODEST.decode()}"}
    frontend.gate.close()
    with ThreadPoolExecutor(2) as clients:
        inside = [clients.submit(frontend.infer, IMAGES[:2], by_modest)]
        frontend.until_inside(2)
        status, headers, answer = frontend.infer(IMAGES[:2], by_modest)
        assert (status, headers["retry-after"]) == (429, "1")
        assert answer == {"error": "full: 2 images of this token are inside, expected at most 3"}
        inside.append(clients.submit(frontend.infer, IMAGES[:9]))
        frontend.until_inside(11)
        frontend.gate.open()
        assert [each.result()[0] for each in inside] == [200, 200]
    assert frontend.infer(IMAGES[:3], by_modest)[0] == 200
    assert frontend.infer(IMAGES[:4], by_modest)[0] == 429
    assert frontend.counted("slimsched_images_refused_total", "token") == 6


def test_after_its_deadline_nobody_waits(frontend: Frontend) -> None:
    """The client hears so, whatever the router does; what still waits is given up, and its place freed."""
    frontend.gate.close()
    passes = frontend.passes()
    status, _, answer = frontend.infer(IMAGES[:8], parameters={"timeout": 50_000})
    assert (status, answer) == (504, {"error": "no answer within 0.05 s"})
    assert frontend.metrics()["slimsched_images_inside",] == 8  # nobody may write there before the router has answered
    frontend.gate.open()
    frontend.until_inside(0)
    assert frontend.counted("slimsched_images_failed_total", "deadline") == 8
    assert frontend.passes() - passes < 8 * len(WIDTHS)
    assert frontend.infer(IMAGES[:8])[0] == 200


# ------------------------------------------------------------------------------------------------- deaths and the end


def test_an_workers_death_loses_nobody(frontend: Frontend) -> None:
    with ThreadPoolExecutor(8) as clients:
        asked = [clients.submit(frontend.infer, IMAGES[place % SLOTS][None]) for place in range(300)]
        frontend.until(lambda: sum(each.done() for each in asked) > 30)
        killed = frontend.cluster.slots[0].worker
        killed.send_signal(signal.SIGKILL)
        assert [each.result()[0] for each in asked] == [200] * len(asked)
    frontend.until(lambda: frontend.cluster.slots[0].worker is not killed)
    frontend.until(lambda: frontend.metrics()["slimsched_server_up", "server0"] == 1)
    assert frontend.counted("slimsched_request_seconds_count") == len(asked)
    assert frontend.counted("slimsched_server_images_total", "server1") > 0


def test_of_those_whose_ingress_died_nothing_is_left(frontend: Frontend) -> None:
    """Their images take nobody's time, and their slots are free; another ingress serves who comes next."""
    (clients,) = frontend.traffic
    passes = frontend.passes()
    frontend.gate.close()
    with ThreadPoolExecutor(1) as client:
        asked = client.submit(frontend.infer, IMAGES[:8])
        frontend.until_inside(8)
        clients._ingress._process.kill()
        with pytest.raises((ConnectionError, HTTPException)):
            asked.result(PATIENCE_S)
    frontend.gate.open()
    frontend.until(lambda: frontend.ask("GET", "/v2/health/ready")[0] == 200)
    assert frontend.passes() - passes <= 8
    assert frontend.infer(IMAGES)[0] == 200
    frontend.until_inside(0)
    assert not clients._slot_of
    assert not clients._request_in


def test_people_see_what_was_served(frontend: Frontend) -> None:
    assert frontend.infer(IMAGES[:5])[0] == 200
    frontend.until(lambda: b"ms (half of them)" in frontend.ask("GET", "/")[2])
    status, headers, body = frontend.ask("GET", "/")
    page = body.decode()
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "default-src 'none'" in headers["content-security-policy"]
    assert all(each in page for each in ("It serves.", f"0 of {SLOTS} places", "server0", "server1", "<polyline"))
    assert not re.search(r"<script|src=|https?://", page)
    answered = re.search(r"<td>10 s</td><td>([\d.]+)</td>", page)
    assert answered
    assert float(answered[1]) > 0


def test_while_no_server_is_up_it_is_not_ready(frontend: Frontend) -> None:
    for slot in frontend.cluster.slots:
        slot.worker.send_signal(signal.SIGKILL)
    frontend.until(lambda: frontend.ask("GET", "/v2/health/ready")[0] == 503)
    status, headers, _ = frontend.infer(IMAGES[:1])
    assert (status, headers["retry-after"]) == (503, "1")
    frontend.until(lambda: frontend.ask("GET", "/v2/health/ready")[0] == 200)
    assert frontend.infer(IMAGES[:1])[0] == 200


def test_completed_requests_leave_no_state_in_the_frontend(frontend: Frontend) -> None:
    for _ in range(5):
        assert frontend.infer(IMAGES)[0] == 200
    frontend.until_inside(0)
    (clients,) = frontend.traffic
    assert not clients._answers
    assert not clients._slot_of
    assert not clients._arrivals


def test_at_the_end_all_that_were_accepted_are_answered(frontend: Frontend) -> None:
    """No other is accepted from then on, and nobody's answer is cut off."""
    frontend.gate.close()
    with ThreadPoolExecutor(SLOTS) as clients:
        accepted = [clients.submit(frontend.infer, image[None]) for image in IMAGES]
        frontend.until_inside(SLOTS)
        frontend.stop.set()
        frontend.until(frontend.decides_and_is_not_ready)
        status, headers, _ = frontend.infer(IMAGES[:1])
        assert (status, headers["connection"]) == (503, "close")
        frontend.gate.open()
        assert [each.result()[0] for each in accepted] == [200] * SLOTS
    end = frontend.end.result(PATIENCE_S)
    assert end.in_flight == 0


# -------------------------------------------------------------------------------------------------------- before it


def test_request_before_the_frontend_is_ready_gets_503_with_retry_after() -> None:
    """Each inference is refused at once, and the process that answers ends when the waiting room is closed."""
    before = {*multiprocessing.active_children()}
    with listen("127.0.0.1", 0, is_safe=False) as listening:
        room = WaitingRoom(listening, None)
        url = f"http://{listening.address}"
        with pytest.raises(HTTPError, match="503") as refused:
            urlopen(f"{url}/v2/models/tiny/infer", b"{}", timeout=PATIENCE_S)
        assert refused.value.headers["retry-after"] == "1"
        assert json.load(refused.value) == {"error": "not_ready: it starts"}
        assert urlopen(f"{url}/v2/health/live", timeout=PATIENCE_S).status == 200
        for _ in range(2):
            room.close()
        assert {*multiprocessing.active_children()} <= before
