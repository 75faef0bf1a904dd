"""The Open Inference Protocol without any network: what is read, what is written, what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hw.frontend.connections import SHORTEST_TOKEN, read_tokens
from hw.frontend.inference_protocol import (
    JSON_BYTES,
    Answer,
    Canary,
    Outcome,
    Request,
    RequestClass,
    RequestError,
    Served,
    outputs_of,
    read_request,
    version_of,
    write_answer,
)
from kit.errors import InputError

SHAPE = (3, 2, 2)
SERVED = Served("m", SHAPE, 2, 4, (10.0, 20.0, 30.0), (2.0, 4.0, 8.0), most=8)
EMULATED = Served("m", (5,), 2, 0, (), (), most=8)
IMAGES = np.arange(24, dtype=np.float32).reshape(2, *SHAPE)


def tensor(**changes: Any) -> dict[str, Any]:
    """An input, with some of its keys changed; those of None are left out."""
    made = {"name": "image", "shape": [2, *SHAPE], "datatype": "FP32", "data": IMAGES.ravel().tolist(), **changes}
    return {key: value for key, value in made.items() if value is not None}


def body(*inputs: dict[str, Any], **more: Any) -> bytes:
    return json.dumps({"inputs": inputs or [tensor()], **more}).encode()


def binary(data: bytes, **changes: Any) -> tuple[bytes, str]:
    """A body whose tensor stands behind the JSON, and the header that says so."""
    head = body(tensor(data=None, parameters={"binary_data_size": len(data)}, **changes))
    return head + data, str(len(head))


@pytest.mark.parametrize("data", [IMAGES.ravel().tolist(), IMAGES.tolist(), IMAGES.astype(int).tolist()])
def test_json_flat_or_nested_and_binary_are_the_same_images(data: Any) -> None:
    read = read_request(body(tensor(data=data)), None, SERVED)
    other = read_request(*binary(IMAGES.tobytes()), SERVED)
    assert read.images.dtype == other.images.dtype == np.float32
    assert np.array_equal(read.images, IMAGES.reshape(2, -1))
    assert np.array_equal(other.images, IMAGES.reshape(2, -1))


@pytest.mark.parametrize("is_binary", [False, True])
def test_uint8_is_normalised_per_channel(is_binary: bool) -> None:
    pixels, header = IMAGES.astype(np.uint8), None
    sent = body(tensor(datatype="UINT8", data=pixels.tolist()))
    if is_binary:
        sent, header = binary(pixels.tobytes(), datatype="UINT8")
    mean, deviation = (np.array(each)[:, None, None] for each in (SERVED.mean, SERVED.deviation))
    wanted = (IMAGES - mean) / deviation
    assert np.allclose(read_request(sent, header, SERVED).images, wanted.reshape(2, -1))


WRONG: dict[str, tuple[bytes, str | None]] = {
    "inference request": (b"", None),
    "is not an inference request: JSON is malformed": (b"\xff\xfe", None),
    "Object missing required field `inputs`": (b"{}", None),
    "inputs: found []": (b'{"inputs": []}', None),
    "inputs: found ['image', 'image']": (body(tensor(), tensor()), None),
    "inputs: found ['x']": (body(tensor(name="x")), None),
    "image.shape: found [2, 3, 2]": (body(tensor(shape=[2, 3, 2])), None),
    "image.shape: found []": (body(tensor(shape=[])), None),
    "image.shape: found [0, 3, 2, 2]": (body(tensor(shape=[0, *SHAPE], data=[])), None),
    "image.shape: found [-1, 3, 2, 2]": (body(tensor(shape=[-1, *SHAPE])), None),
    "image.shape: found [9, 3, 2, 2], expected [1 to 8, 3, 2, 2]": (body(tensor(shape=[9, *SHAPE])), None),
    "Expected `int`, got `str`": (body(tensor(shape=["2", *SHAPE])), None),
    "image.datatype: found 'FP64', expected FP32 or UINT8": (body(tensor(datatype="FP64")), None),
    "image.data: found 23 values, its shape makes 24": (body(tensor(data=[0.0] * 23)), None),
    "image.data: found 0 values": (body(tensor(data=None)), None),
    "lists next to numbers": (body(tensor(data=[[1.0], 2.0])), None),
    "image.data: expected numbers": (body(tensor(data=["a"] * 24)), None),
    "image.data: expected whole numbers": (body(tensor(datatype="UINT8", data=[0.5] * 24)), None),
    "image.data: expected 0 to 255": (body(tensor(datatype="UINT8", data=[256] * 24)), None),
    "image.data: holds a number that is too large": (body(tensor(data=[10**400] * 24)), None),
    "not finite numbers": (body(tensor(data=[1e39] * 24)), None),
    "holds values that are not finite numbers": binary(np.full(24, np.nan, np.float32).tobytes()),
    "image.binary_data_size: found 92 bytes, its shape makes 96": binary(bytes(92)),
    "1 bytes behind the JSON are in no tensor's binary_data_size": (body() + b"x", str(len(body()))),
    "Content-Length: found '-1'": (body(), "-1"),
    "Content-Length: found '1e2'": (body(), "1e2"),
    "Content-Length: found '999999'": (body(), "999999"),
    "JSON is malformed: trailing": (body() + b"x", None),
    "Input data was truncated": (body(), "20"),
    "outputs: found 'x', expected prediction, scores, widths": (body(outputs=[{"name": "x"}]), None),
    "parameters.timeout: found 0": (body(parameters={"timeout": 0}), None),
    "parameters.timeout: found 1000000000000000000000000000": (body(parameters={"timeout": 10**308}), None),
    "image.parameters: found 'shared_memory_region', expected binary_data or": (
        body(tensor(parameters={"shared_memory_region": "x"})),
        None,
    ),
    "prediction.parameters: found 'classification'": (
        body(outputs=[{"name": "prediction", "parameters": {"classification": 2}}]),
        None,
    ),
    "parameters.timeout: found True": (body(parameters={"timeout": True}), None),
    "got `array`": (b'{"inputs": ' + b"[" * 100_000, None),
    f"bytes of JSON, expected at most {JSON_BYTES}": (b" " * (JSON_BYTES + 1), None),
}


@pytest.mark.parametrize("problem", WRONG)
def test_invalid_request_is_refused_with_its_problem(problem: str) -> None:
    with pytest.raises(RequestError) as found:
        read_request(*WRONG[problem], SERVED)
    assert problem in str(found.value)
    assert len(str(found.value)) < 400


def test_an_emulated_device_has_no_scores_and_no_pixels() -> None:
    images = {"name": "image", "shape": [1, 5], "data": [0] * 5}
    assert list(read_request(body({**images, "datatype": "FP32"}), None, EMULATED).outputs) == ["prediction", "widths"]
    for wrong in (
        body({**images, "datatype": "UINT8"}),
        body({**images, "datatype": "FP32"}, outputs=[{"name": "scores"}]),
    ):
        with pytest.raises(RequestError):
            read_request(wrong, None, EMULATED)


def test_a_request_names_its_class() -> None:
    """Where there are some; who names none is of the first, and what is none of them is told with those that are."""
    served = replace(SERVED, request_classes=(RequestClass("gold"), RequestClass("bronze")))
    for name, place in (("gold", 0), ("bronze", 1), (None, 0)):
        parameters = {} if name is None else {"class": name}
        assert read_request(body(parameters=parameters), None, served).service_class == place
    for wrong in ("silver", "", 0, ["gold"], {"gold": 1}, True):
        with pytest.raises(RequestError, match=r"^parameters\.class: found .*, expected gold, bronze$") as found:
            read_request(body(parameters={"class": wrong}), None, served)
        assert found.value.status == 400
    assert read_request(body(parameters={"class": "silver"}), None, SERVED).service_class == 0  # it has none


@given(st.binary(max_size=300), st.none() | st.integers(0, 300).map(str))
def test_any_bytes_are_read_or_refused(data: bytes, header: str | None) -> None:
    with pytest.raises(RequestError):
        read_request(data, header, SERVED)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)
KEYS = ("name", "shape", "datatype", "data", "parameters")


@given(st.sampled_from([*KEYS, "inputs", "outputs", "id", "top"]), JSON, st.binary(max_size=100))
def test_any_value_of_a_key_is_read_or_refused(key: str, value: Any, tail: bytes) -> None:
    """Whatever stands where, the answer is a request that fits the model, or words."""
    request: dict[str, Any] = {"inputs": [tensor()]}
    if key in KEYS:
        request["inputs"][0][key] = value
    else:
        request["parameters" if key == "top" else key] = value
    head = json.dumps(request).encode()
    with suppress(RequestError):
        read = read_request(head + tail, str(len(head)) if tail else None, SERVED)
        assert read.images.shape == (2, 12)
        assert np.isfinite(read.images).all()


@pytest.mark.parametrize("wanted", list(product([None, False, True], repeat=3)))
def test_answers_come_as_they_were_wanted(wanted: tuple[bool | None, ...]) -> None:
    """Each output in JSON, in binary, or not at all; binary ones in their order."""
    names = [name for name, how in zip(SERVED.outputs, wanted, strict=True) if how is not None]
    outputs = [
        {"name": name, "parameters": {"binary_data": how}}
        for name, how in zip(SERVED.outputs, wanted, strict=True)
        if how is not None
    ]
    request = read_request(body(outputs=outputs, id="me"), None, SERVED)
    scores = np.random.default_rng(0).standard_normal((2, 4)).astype(np.float32)
    answers = [
        Answer(prediction, (0.5, 1.0), row.tobytes(), "v", 7) for prediction, row in zip((3, 1), scores, strict=True)
    ]
    written, length = write_answer(request, Outcome(outputs_of(answers, SERVED), "v", 7), SERVED)
    head, tail = json.loads(written[:length]), written[length:] if length else b""
    assert (head["id"], head["model_name"], head["model_version"]) == ("me", "m", "v")
    assert [each["name"] for each in head["outputs"]] == (names or list(SERVED.outputs))
    columns = {"prediction": np.array([3, 1]), "scores": scores, "widths": np.array([[0.5, 1.0]] * 2, np.float32)}
    for each in head["outputs"]:
        if "parameters" in each:
            size = each["parameters"]["binary_data_size"]
            kind = {"INT64": "<i8", "FP32": "<f4"}[each["datatype"]]
            values, tail = np.frombuffer(tail[:size], kind), tail[size:]
        else:
            values = np.array(each["data"])
        assert np.allclose(values.reshape(each["shape"]), columns[each["name"]])
    assert tail == b""


def test_binary_data_output_parameter_applies_to_all_outputs() -> None:
    request = read_request(body(parameters={"binary_data_output": True, "timeout": 5}), None, SERVED)
    assert request.outputs == dict.fromkeys(SERVED.outputs, True)
    assert request.timeout_ns == 5_000
    assert isinstance(request, Request)


def test_the_ingress_opens_neither_torch_nor_numba() -> None:
    heavy = ("torch", "numba", "scipy", "sklearn", "pydantic", "pyarrow")
    opened = "import sys, hw.frontend.ingress, hw.frontend.grpc_service"
    code = f"{opened}; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_line_of_tokens_may_say_how_many_images(tmp_path: Path) -> None:
    path, (one, other) = tmp_path / "tokens", (b"a" * SHORTEST_TOKEN, b"b" * SHORTEST_TOKEN)
    path.touch(0o600)
    path.write_bytes(one + b" 3\n\n" + other + b"\n")
    assert read_tokens(path) == {one: 3, other: sys.maxsize}
    for wrong, said in ((one + b" 0", "a whole number"), (one + b" 1 2", "a whole number"), (one[1:], "16 characters")):
        path.write_bytes(wrong)
        with pytest.raises(InputError, match=said):
            read_tokens(path)


def test_a_canary_gets_its_share_of_the_requests_or_of_a_class() -> None:
    """Within four standard deviations; the same numbers are drawn each time, and more of them for a larger share."""
    numbers = range(20_000)
    drawn = {share: {number for number in numbers if Canary("b", (), share).takes(number, 0)} for share in (0.1, 0.3)}
    for share, taken in drawn.items():
        assert abs(len(taken) - share * len(numbers)) < 4 * (share * (1 - share) * len(numbers)) ** 0.5
    assert drawn[0.1] < drawn[0.3]
    of_class = Canary("b", (), 1.0, 1)
    assert [of_class.takes(7, number) for number in range(3)] == [False, True, False]


def test_an_answer_whose_images_two_versions_served_names_both() -> None:
    answers = [Answer(1, (1.0,), b"", version, 1) for version in ("b", "a", "b")]
    assert (version_of(answers), version_of(answers[:1])) == ("a+b", "b")
