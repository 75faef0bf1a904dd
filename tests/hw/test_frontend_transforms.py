"""Clients that send JPEG and PNG, or whatever custom code takes, to a real network over HTTP and gRPC."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from hw.frontend.transform_process import decode
from hw.networks.network_files import ModelFile
from hw.router.local_cluster import HardwareCluster
from hw.router.server_port import HardwareServer
from tests.hw.frontends import Frontend, open_frontend
from tests.hw.own_transforms import encoded
from tests.hw.test_frontend_grpc import call, refusal
from tests.hw.tiny import device, params

pytestmark = pytest.mark.workers

INFER = "/v2/models/tiny/infer"
PIXELS: NDArray[np.uint8] = np.random.default_rng(5).integers(0, 256, (3, 8, 8), np.uint8)


@pytest.fixture(scope="module")
def cluster(path: Path) -> Iterator[HardwareCluster]:
    server = HardwareServer("server", device(0), params(), 1.0, 2.0, sensor_period_s=0.05)
    with HardwareCluster(ModelFile(path), [server]) as running:
        yield running


@pytest.fixture(scope="module")
def plain(cluster: HardwareCluster) -> Iterator[Frontend]:
    """Without custom code."""
    with open_frontend(cluster) as frontend:
        yield frontend


def raw(frontend: Frontend, pixels: NDArray[np.uint8]) -> dict[str, list[Any]]:
    """Outputs for pixels as numbers."""
    tensor = {"name": "image", "datatype": "UINT8", "shape": [len(pixels), 1, 8, 8], "data": pixels.tolist()}
    return outputs(frontend.ask("POST", INFER, json.dumps({"inputs": [tensor]}).encode()))


def outputs(answer: tuple[int, dict[str, str], bytes]) -> dict[str, list[Any]]:
    status, _, body = answer
    assert status == 200, body
    return {each["name"]: each["data"] for each in json.loads(body)["outputs"]}


def binary(name: str, shape: list[int], *values: bytes) -> tuple[bytes, dict[str, str]]:
    """A body and headers as Triton's client sends `BYTES`."""
    tail = b"".join(struct.pack("<I", len(value)) + value for value in values)
    tensor = {"name": name, "datatype": "BYTES", "shape": shape, "parameters": {"binary_data_size": len(tail)}}
    head = json.dumps({"inputs": [tensor]}).encode()
    return head + tail, {"inference-header-content-length": str(len(head))}


def test_an_encoded_image_is_answered_as_its_pixels(plain: Frontend) -> None:
    """A body of its own, and tensors of `BYTES`, over HTTP and gRPC."""
    files, wanted = [encoded(pixel) for pixel in PIXELS], raw(plain, PIXELS)
    for file, pixels in zip(files, PIXELS, strict=True):
        sent = plain.ask("POST", INFER, file, {"content-type": "image/png"})
        assert outputs(sent) == raw(plain, pixels[None])
    jpeg = encoded(PIXELS[0], "JPEG")
    sent = plain.ask("POST", INFER, jpeg, {"content-type": "Image/JPEG; charset=binary"})
    assert outputs(sent) == raw(plain, decode(jpeg, 1).transpose(2, 0, 1))
    for shape in ([3], [3, 1]):
        body, headers = binary("image", shape, *files)
        assert np.allclose(outputs(plain.ask("POST", INFER, body, headers))["scores"], wanted["scores"], atol=1e-4)
    tensor = {"name": "image", "datatype": "BYTES", "shape": [3]}
    packed = b"".join(struct.pack("<I", len(file)) + file for file in files)
    with grpc.insecure_channel(plain.grpc) as channel:
        for asked in (
            {"inputs": [tensor], "raw_input_contents": [packed]},
            {"inputs": [{**tensor, "contents": {"bytes_contents": files}}]},
        ):
            reply = call(channel, "ModelInfer", model_name="tiny", outputs=[{"name": "prediction"}], **asked)
            (data,) = reply.raw_output_contents or [np.array(reply.outputs[0].contents.int64_contents).tobytes()]
            assert np.frombuffer(data, "<i8").tolist() == wanted["prediction"]
        code, words, _ = refusal(
            channel, model_name="tiny", inputs=[{**tensor, "shape": [1]}], raw_input_contents=[b""]
        )
        assert (code, "expected 1 values of BYTES" in words) == ("INVALID_ARGUMENT", True)


def test_an_image_that_is_none_is_refused_and_harms_nobody(plain: Frontend) -> None:
    large = encoded(np.zeros((9, 8), np.uint8))
    for body, problem in (
        (large, "image 0: found 8 x 9 pixels, at most 64 are decoded; expected 8 x 8 pixels (images are not resized)"),
        (b"GIF89a", "image 0: found no JPEG or PNG; expected 8 x 8 pixels (images are not resized)"),
    ):
        status, _, answer = plain.ask("POST", INFER, body, {"content-type": "image/png"})
        assert (status, json.loads(answer)) == (400, {"error": problem})
    for shape, values in (([25], [large] * 25), ([1, 2], [large] * 2), ([], [large])):
        body, headers = binary("image", shape, *values)
        status, _, answer = plain.ask("POST", INFER, body, headers)
        assert (status, b"image.shape: found" in answer) == (400, True)
    assert raw(plain, PIXELS)


def test_custom_code_is_around_the_network(plain: Frontend, path: Path) -> None:
    """Images of any size go in, and texts come out; what clients send and get is in the model's description."""
    large = Image.fromarray(PIXELS[0]).resize((50, 40))
    small = np.asarray(large.resize((8, 8)))
    wanted = raw(plain, small[None])
    server = HardwareServer("server", device(0), params(), 1.0, 2.0, sensor_period_s=0.05)
    with (
        HardwareCluster(ModelFile(path), [server]) as running,
        open_frontend(running, "examples.serving.around:AnySize") as frontend,
    ):
        found = outputs(frontend.ask("POST", INFER, encoded(large), {"content-type": "image/png"}))
        odds = np.exp(np.array(wanted["scores"]) - max(wanted["scores"]))
        assert found["label"] == [f"class {wanted['prediction'][0]}"]
        assert np.allclose(found["probability"], 1 / odds.sum(), atol=1e-4)
        body, headers = binary("image", [2], encoded(large), encoded(large))
        assert outputs(frontend.ask("POST", INFER, body, headers))["label"] == found["label"] * 2
        described = json.loads(frontend.ask("GET", "/v2/models/tiny")[2])
        assert described["inputs"] == [{"name": "image", "datatype": "BYTES", "shape": [-1]}]
        assert [each["datatype"] for each in described["outputs"]] == ["BYTES", "FP32"]
        config = json.loads(frontend.ask("GET", "/v2/models/tiny/config")[2])
        assert config["input"][0]["data_type"] == "TYPE_STRING"
        with grpc.insecure_channel(frontend.grpc) as channel:
            tensor = {
                "name": "image",
                "datatype": "BYTES",
                "shape": [1],
                "contents": {"bytes_contents": [encoded(large)]},
            }
            reply = call(channel, "ModelInfer", model_name="tiny", inputs=[tensor])
            assert reply.outputs[0].contents.bytes_contents == [found["label"][0].encode()]
        tensor = {"name": "image", "datatype": "FP32", "shape": [1, 1, 8, 8], "data": [0.0] * 64}
        status, _, answer = frontend.ask("POST", INFER, json.dumps({"inputs": [tensor]}).encode())
        assert (status, b"expected BYTES of 1 dimensions" in answer) == (400, True)


def test_a_fault_of_custom_code_is_counted_and_fails_one_request(path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The client sees no line of it; who asks meanwhile is answered; nothing is left in the router."""
    server = HardwareServer("server", device(0), params(), 1.0, 2.0, sensor_period_s=0.05)

    def ask(text: str, **more: Any) -> tuple[int, dict[str, str], bytes]:
        texts = {"name": "text", "datatype": "BYTES", "shape": [1], "data": [text]}
        numbers = {"name": "numbers", "datatype": "FP64", "shape": [1, 2], "data": [1, 2]}
        return frontend.ask("POST", INFER, json.dumps({"inputs": [numbers, texts], **more}).encode())

    with (
        HardwareCluster(ModelFile(path), [server]) as running,
        open_frontend(running, "tests.hw.own_transforms:Obeying") as frontend,
        ThreadPoolExecutor(1) as others,
    ):
        hanging = others.submit(ask, "hang", parameters={"timeout": 200_000})
        assert ask("numbers")[0] == 200
        assert hanging.result()[0] == 504
        assert (ask("refuse")[0], ask("raise")[0], ask("exit")[0], ask("numbers")[0]) == (400, 500, 500, 200)
        assert json.loads(ask("raise")[2]) == {"error": "the server's own code around the network failed; see its log"}
        assert frontend.counted("slimsched_images_failed_total", "transform") == 3
        answered = frontend.counted("slimsched_images_answered_total")
        assert frontend.counted("slimsched_images_arrived_total") == answered + 3
        assert frontend.counted("slimsched_requests_total", "500") == 3
        frontend.until_inside(0)
    said = capfd.readouterr().err
    assert said.count("serve: tests.hw.own_transforms:Obeying: KeyError: 'secret' (") == 2
    assert "Traceback" not in said
