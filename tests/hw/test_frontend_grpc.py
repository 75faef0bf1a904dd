"""Clients that speak gRPC through the same front end: the network's answers, bad clients, overload, the end."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import torch
from google.protobuf.json_format import MessageToDict
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from hypothesis import given
from hypothesis import strategies as st

from hw.frontend import grpc_service
from hw.frontend.grpc_service import MESSAGES, SERVICE, read_call
from hw.frontend.inference_protocol import JSON_BYTES, RequestClass, RequestError, Served
from hw.networks.network_files import ModelFile
from hw.router.local_cluster import HardwareCluster
from hw.router.server_port import HardwareServer
from policies.faults import Supervision
from policies.vocabulary import NS_PER_S
from tests.hw.frontends import IMAGES, MODEST, PATIENCE_S, SLOTS, TOKEN, WIDTHS, Frontend, open_frontend
from tests.hw.tiny import device, params

pytestmark = pytest.mark.workers

ONE = IMAGES[:1]
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture(scope="module")
def opened(path: Path) -> Iterator[Frontend]:
    servers = [
        HardwareServer(f"server{i}", device(2 * i), params(), 1.0, 2.0, sensor_period_s=0.05) for i in range(2)
    ]  # the same kernels
    rules = Supervision(backoff_ns=NS_PER_S // 2)
    with HardwareCluster(ModelFile(path), servers, supervision=rules) as running, open_frontend(running) as frontend:
        yield frontend


@pytest.fixture(scope="module")
def channel(opened: Frontend) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(opened.grpc) as found:
        yield found


@pytest.fixture
def frontend(opened: Frontend) -> Iterator[Frontend]:
    """The same for every test, with what it has counted since the test began."""
    opened.before = opened.metrics()
    yield opened
    opened.gate.open()


def call(
    channel: grpc.Channel, name: str, token: bytes | None = TOKEN, /, timeout: float = PATIENCE_S, **asked: Any
) -> Any:
    """Its answer; of `ModelInfer`, a request may be given as bytes."""
    body = asked.pop("body", None) or MESSAGES[f"{name}Request"](**asked).SerializeToString()
    stub = channel.unary_unary(f"/{SERVICE}/{name}", None, MESSAGES[f"{name}Response"].FromString)
    return stub(body, timeout=timeout, metadata=() if token is None else bearing(token))


def bearing(token: bytes) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {token.decode()}"),)


def asked(images: torch.Tensor, *, is_raw: bool = True, **more: Any) -> dict[str, Any]:
    tensor: dict[str, Any] = {"name": "image", "datatype": "FP32", "shape": list(images.shape)}
    if is_raw:
        more["raw_input_contents"] = [images.numpy().tobytes()]
    else:
        tensor["contents"] = {"fp32_contents": images.flatten().tolist()}
    return {"model_name": "tiny", "inputs": [tensor], **more}


def refusal(
    channel: grpc.Channel, name: str = "ModelInfer", token: bytes | None = TOKEN, /, **wanted: Any
) -> tuple[str, str, str | None]:
    """Of a call that is refused: status, words, and when to come again."""
    with pytest.raises(grpc.RpcError) as found:
        call(channel, name, token, **wanted)
    error: Any = found.value
    return error.code().name, error.details(), dict(error.trailing_metadata()).get("grpc-retry-pushback-ms")


# ----------------------------------------------------------------------------------------------------------- answers


@pytest.mark.parametrize("is_raw", [False, True])
def test_answers_are_those_over_http_bit_for_bit(frontend: Frontend, channel: grpc.Channel, is_raw: bool) -> None:
    """In the form of the question; of an image that runs alone, for a batch of others may round it otherwise."""
    reply = call(channel, "ModelInfer", **asked(ONE, is_raw=is_raw, id="mine"))
    outputs = {each["name"]: each for each in frontend.infer(ONE)[2]["outputs"]}
    assert (reply.model_name, reply.model_version, reply.id) == ("tiny", "1", "mine")
    assert [each.name for each in reply.outputs] == list(outputs)
    assert len(reply.raw_output_contents) == (len(outputs) if is_raw else 0)
    for place, output in enumerate(reply.outputs):
        wanted = outputs[output.name]
        kind, name = ("<i8", "int64_contents") if output.datatype == "INT64" else ("<f4", "fp32_contents")
        assert (output.datatype, list(output.shape)) == (wanted["datatype"], wanted["shape"])
        given = reply.raw_output_contents[place] if is_raw else np.array(getattr(output.contents, name), kind).tobytes()
        assert given == np.array(wanted["data"], kind).tobytes()
    assert frontend.counted("slimsched_requests_total", "OK") == 1


def test_tritons_calls_are_answered_as_over_http(frontend: Frontend, channel: grpc.Channel) -> None:
    config = MessageToDict(call(channel, "ModelConfig", name="tiny").config, preserving_proto_field_name=True)
    wanted = json.loads(frontend.ask("GET", "/v2/models/tiny/config")[2])
    for tensor in (*config["input"], *config["output"]):  # int64 is text in protobuf's JSON
        tensor["dims"] = [int(each) for each in tensor["dims"]]
    wanted["output"][0]["reshape"] = {}
    assert config == wanted
    (counts,) = call(channel, "ModelStatistics", name="tiny").model_stats
    assert counts.inference_count == frontend.metrics()["slimsched_images_answered_total",]
    (model,) = call(channel, "RepositoryIndex", ready=True).models
    assert (model.name, model.version, model.state) == ("tiny", "1", "READY")
    assert refusal(channel, "ModelConfig", name="other")[0] == "NOT_FOUND"
    for name in ("ModelConfig", "ModelStatistics", "RepositoryIndex"):
        assert refusal(channel, name, None)[0] == "UNAUTHENTICATED"


def test_kubernetes_and_grpcurl_find_their_services(channel: grpc.Channel) -> None:
    """`grpc.health.v1` and reflection, without a token; a service of another name is not known."""
    health = health_pb2_grpc.HealthStub(channel)
    for service in ("", SERVICE):
        assert health.Check(health_pb2.HealthCheckRequest(service=service)).status == SERVING
    with pytest.raises(grpc.RpcError, match="unknown service"):
        health.Check(health_pb2.HealthCheckRequest(service="other"))
    ask = reflection_pb2.ServerReflectionRequest
    names = {SERVICE: b"ModelInferRequest", "grpc.health.v1.Health": b"HealthCheckRequest"}
    asked = [ask(list_services=""), *(ask(file_containing_symbol=name) for name in names)]
    listed, *described = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(iter(asked))
    assert [each.name for each in listed.list_services_response.service] == sorted(names)
    for message, reply in zip(names.values(), described, strict=True):
        (file,) = reply.file_descriptor_response.file_descriptor_proto
        assert message in file


def test_pixels_are_normalised_as_over_http(frontend: Frontend, channel: grpc.Channel) -> None:
    pixels = np.random.default_rng(5).integers(0, 16, (3, 1, 8, 8), np.uint8)
    tensor = {"name": "image", "datatype": "UINT8", "shape": [3, 1, 8, 8]}
    wanted = frontend.infer(torch.from_numpy((pixels.astype(np.float32) - 2) / 4))[2]["outputs"][1]["data"]
    for sent in (
        {"inputs": [tensor], "raw_input_contents": [pixels.tobytes()]},
        {"inputs": [{**tensor, "contents": {"uint_contents": pixels.ravel().tolist()}}]},
    ):
        reply = call(channel, "ModelInfer", model_name="tiny", outputs=[{"name": "scores"}], **sent)
        (raw,) = reply.raw_output_contents or [np.array(reply.outputs[0].contents.fp32_contents, "<f4").tobytes()]
        assert np.allclose(np.frombuffer(raw, "<f4"), wanted, atol=1e-4)


def test_grpc_metadata_describes_the_server_and_needs_a_token(channel: grpc.Channel) -> None:
    assert call(channel, "ServerLive", None).live
    assert call(channel, "ServerReady", None).ready
    assert call(channel, "ModelReady", None, name="tiny", version="1").ready
    assert call(channel, "ServerMetadata").name == "slimsched"
    about = call(channel, "ModelMetadata", name="tiny")
    assert [(output.name, output.datatype, list(output.shape)) for output in about.outputs] == [
        ("prediction", "INT64", [-1]),
        ("scores", "FP32", [-1, 10]),
        ("widths", "FP32", [-1, 3]),
    ]
    for name in ("ServerMetadata", "ModelMetadata", "ModelInfer"):
        for token in (None, b"guessed"):
            assert refusal(channel, name, token)[0] == "UNAUTHENTICATED"


def test_the_classes_are_those_of_the_text() -> None:
    """Each field of each message has the number that open_inference.proto says."""
    folder = Path(grpc_service.__file__).parent
    text = re.sub(r"//.*", "", (folder / "open_inference.proto").read_text(encoding="utf-8"))
    text = re.sub(r"^enum (?s:.*?)^}", "", text, flags=re.MULTILINE)
    fields = sorted((name, int(number)) for name, number in re.findall(r"(\w+) = (\d+);", text))

    def described(message: Any) -> Iterator[tuple[str, int]]:
        if not message.GetOptions().map_entry:
            yield from ((field.name, field.number) for field in message.fields)
            for nested in message.nested_types:
                yield from described(nested)

    assert sorted(pair for each in MESSAGES.values() for pair in described(each.DESCRIPTOR)) == fields
    assert re.findall(r"^message (\w+)", text, re.MULTILINE) == list(MESSAGES)


# ------------------------------------------------------------------------------------------------------- bad clients

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "image.shape: found [1, 1, 8, 9]": (asked(torch.zeros(1, 1, 8, 9)), "INVALID_ARGUMENT"),
    "image.raw_input_contents: found 4 bytes, its shape makes 256": (
        {**asked(ONE), "raw_input_contents": [bytes(4)]}, "INVALID_ARGUMENT",
    ),
    "image.raw_input_contents: found 2, expected one for each input": (
        {**asked(ONE), "raw_input_contents": [bytes(256)] * 2}, "INVALID_ARGUMENT",
    ),
    "that `contents` is left out": (
        {**asked(ONE, is_raw=False), "raw_input_contents": [bytes(256)]}, "INVALID_ARGUMENT",
    ),
    "image.contents.fp32_contents: found 0 values": ({**asked(ONE), "raw_input_contents": []}, "INVALID_ARGUMENT"),
    "image.contents.uint_contents: expected 0 to 255": (
        {"model_name": "tiny", "inputs": [{"name": "image", "datatype": "UINT8", "shape": [1, 1, 8, 8],
                                           "contents": {"uint_contents": [256] * 64}}]}, "INVALID_ARGUMENT",
    ),
    "is not a ModelInferRequest": ({"body": b"\xff"}, "INVALID_ARGUMENT"),
    "nothing is at other/; the model is tiny": (asked(ONE) | {"model_name": "other"}, "NOT_FOUND"),
    "nothing is at tiny/7": (asked(ONE, model_version="7"), "NOT_FOUND"),
    "arger": (asked(ONE) | {"body": bytes(1 << 20)}, "RESOURCE_EXHAUSTED"),
}  # fmt: skip


@pytest.mark.parametrize("problem", WRONG)
def test_bad_clients_hear_what_is_wrong_and_harm_nobody(
    frontend: Frontend, channel: grpc.Channel, problem: str
) -> None:
    wanted, status = WRONG[problem]
    code, words, _ = refusal(channel, **wanted)
    assert code == status
    assert problem in words
    assert len(call(channel, "ModelInfer", **asked(ONE)).outputs) == 3
    frontend.until_inside(0)


def test_compressed_or_unfinished_grpc_request_is_refused(opened: Frontend) -> None:
    with grpc.insecure_channel(opened.grpc, compression=grpc.Compression.Gzip) as zipping:
        assert refusal(zipping, **asked(torch.zeros(4, 1, 8, 8)))[0] in ("UNIMPLEMENTED", "INTERNAL")
    waits = threading.Event()

    def nothing() -> Iterator[bytes]:
        waits.wait(PATIENCE_S)
        yield from ()

    with grpc.insecure_channel(opened.grpc) as slow:
        told = slow.stream_unary(f"/{SERVICE}/ModelInfer").future(nothing(), metadata=bearing(TOKEN)).exception()
        waits.set()
    assert (told.code().name, told.details()) == ("DEADLINE_EXCEEDED", "the request took more than 0.5 s")


SERVED = Served("m", (3, 2, 2), 2, 4, (10.0, 20.0, 30.0), (2.0, 4.0, 8.0), most=8)


@given(st.binary(max_size=300), st.sampled_from(["FP32", "UINT8", "x"]), st.lists(st.integers(-9, 9), max_size=5))
def test_any_tensor_is_read_or_refused(raw: bytes, datatype: str, shape: list[int]) -> None:
    tensor = {"name": "image", "datatype": datatype, "shape": shape}
    for sent in ({"raw_input_contents": [raw]}, {}, {"raw_input_contents": [raw, raw]}):
        with suppress(RequestError):
            read = read_call(MESSAGES["ModelInferRequest"](inputs=[tensor], **sent), 1, SERVED)
            assert read.images.shape[1] == 12


def test_a_class_is_named_as_over_http() -> None:
    served, tensor = (
        replace(SERVED, request_classes=(RequestClass("gold"), RequestClass("silver"))),
        asked(torch.zeros(1, 3, 2, 2)),
    )
    for more, number in (({}, 0), ({"parameters": {"class": {"string_param": "silver"}}}, 1)):
        assert read_call(MESSAGES["ModelInferRequest"](**tensor, **more), 1, served).service_class == number
    wrong = MESSAGES["ModelInferRequest"](**tensor, parameters={"class": {"string_param": "lead"}})
    with pytest.raises(RequestError, match=r"parameters\.class: found 'lead', expected gold, silver"):
        read_call(wrong, 1, served)


def test_large_images_come_raw() -> None:
    message = MESSAGES["ModelInferRequest"](inputs=[{"name": "image"}])
    with pytest.raises(RequestError, match=f"without raw_input_contents, expected at most {JSON_BYTES}"):
        read_call(message, JSON_BYTES + 1, SERVED)


# ---------------------------------------------------------------------------------------------------------- overload


def test_no_more_are_let_in_than_fit(frontend: Frontend, channel: grpc.Channel) -> None:
    frontend.gate.close()
    with ThreadPoolExecutor(2) as clients:
        inside = clients.submit(frontend.infer, IMAGES[:20])
        frontend.until_inside(20)
        assert refusal(channel, **asked(IMAGES[:5])) == ("RESOURCE_EXHAUSTED", "full: 20 images are inside", "1000")
        by_modest = clients.submit(call, channel, "ModelInfer", MODEST, **asked(IMAGES[:3]))
        frontend.until_inside(23)
        told = refusal(channel, "ModelInfer", MODEST, **asked(ONE))
        assert told == ("RESOURCE_EXHAUSTED", "full: 3 images of this token are inside, expected at most 3", "1000")
        frontend.gate.open()
        assert inside.result()[0] == 200
        assert len(by_modest.result().outputs) == 3
    assert frontend.counted("slimsched_images_refused_total", "full") == 5
    assert frontend.counted("slimsched_images_refused_total", "token") == 1
    assert frontend.counted("slimsched_requests_total", "RESOURCE_EXHAUSTED") == 2


def test_the_calls_deadline_is_the_requests(frontend: Frontend, channel: grpc.Channel) -> None:
    """Or the parameter's, where that is sooner; what still waits is given up."""
    frontend.gate.close()
    passes = frontend.passes()
    assert refusal(channel, timeout=0.1, **asked(IMAGES[:8]))[0] == "DEADLINE_EXCEEDED"
    frontend.until(lambda: frontend.counted("slimsched_images_failed_total", "deadline") == 8)
    sooner = asked(IMAGES[:8], parameters={"timeout": {"int64_param": 150_000}})
    assert refusal(channel, **sooner)[:2] == ("DEADLINE_EXCEEDED", "no answer within 0.15 s")
    assert frontend.counted("slimsched_requests_total", "DEADLINE_EXCEEDED") == 2
    told = refusal(channel, timeout=0.05, **asked(ONE))
    assert told[0] == "RESOURCE_EXHAUSTED", "what is inside takes longer"
    frontend.gate.open()
    frontend.until_inside(0)
    assert frontend.passes() - passes < 16 * len(WIDTHS)
    assert len(call(channel, "ModelInfer", **asked(IMAGES[:8])).outputs) == 3


def test_request_of_a_disconnected_client_runs_at_most_one_segment(frontend: Frontend, channel: grpc.Channel) -> None:
    passes = frontend.passes()
    frontend.gate.close()
    body = MESSAGES["ModelInferRequest"](**asked(IMAGES[:8])).SerializeToString()
    stub = channel.unary_unary(f"/{SERVICE}/ModelInfer")
    leaving = stub.future(body, metadata=bearing(TOKEN))
    frontend.until_inside(8)
    leaving.cancel()
    frontend.until(lambda: frontend.counted("slimsched_images_failed_total", "client_left") == 8)
    frontend.gate.open()
    frontend.until_inside(0)
    assert frontend.passes() - passes <= 8
    assert frontend.counted("slimsched_requests_total", "CANCELLED") == 1
    (clients,) = frontend.traffic
    assert not clients._request_in


# ------------------------------------------------------------------------------------------------- deaths and the end


def test_another_ingress_listens_at_the_same_port(frontend: Frontend, channel: grpc.Channel) -> None:
    (clients,) = frontend.traffic
    clients._ingress._process.kill()
    frontend.until(lambda: frontend.ask("GET", "/v2/health/ready")[0] == 200)
    frontend.until(lambda: _is_ready(channel))
    assert len(call(channel, "ModelInfer", **asked(IMAGES)).outputs) == 3


def _is_ready(channel: grpc.Channel) -> bool:
    try:
        return bool(call(channel, "ServerReady").ready)
    except grpc.RpcError:
        return False


def test_at_the_end_all_that_were_accepted_are_answered(frontend: Frontend, channel: grpc.Channel) -> None:
    """No other is accepted from then on, and nobody's answer is cut off."""
    frontend.gate.close()
    with ThreadPoolExecutor(SLOTS) as clients:
        accepted = [clients.submit(call, channel, "ModelInfer", **asked(image[None])) for image in IMAGES]
        frontend.until_inside(SLOTS)
        frontend.stop.set()
        frontend.until(frontend.decides_and_is_not_ready)
        assert refusal(channel, **asked(ONE)) == ("UNAVAILABLE", "draining: nothing is accepted now", "1000")
        probe = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
        assert probe.status == NOT_SERVING
        frontend.gate.open()
        assert [len(each.result().outputs) for each in accepted] == [3] * SLOTS
    assert frontend.end.result(PATIENCE_S).in_flight == 0
