"""The Open Inference Protocol, version 2, with Triton's extensions: bytes to images, answers to bytes.

The module does no I/O and uses no clock.

Requests and answers: JSON, or Triton's binary extension, which puts tensors behind the JSON, whose length a header
states. https://github.com/kserve/open-inference-protocol

Triton's extensions for a model's configuration, its statistics and the list of models: Triton's own tools
(`perf_analyzer`, `image_client`) request these before they send an image.
https://github.com/triton-inference-server/server/tree/main/docs/protocol
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from math import inf, prod
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

INPUT: Final = "image"
OUTPUTS: Final = ("prediction", "scores", "widths")
JSON_BYTES: Final = 1 << 20  # of JSON: it is parsed in one go, while all other requests wait
US_NS: Final = 1_000
MOST_US: Final = 10**12  # of a timeout: eleven days
_MOST_UINT8: Final = 255
_TENSOR_PARAMETERS: Final = ("binary_data", "binary_data_size")  # others would change the answer
_DATATYPES: Final[Mapping[str, np.dtype[Any]]] = {"FP32": np.dtype("<f4"), "UINT8": np.dtype("u1")}


class RequestError(Exception):
    """A request that can't be served; `status` is HTTP's."""

    def __init__(self, problem: str, status: int = 400) -> None:
        super().__init__(problem)
        self.status = status


@dataclass(frozen=True, slots=True)
class RequestClass:
    """The targets of a class of requests: a deadline for each answer, and a p99 latency; infinite for none."""

    name: str = ""
    deadline_s: float = inf
    p99_limit_s: float = inf


@dataclass(frozen=True, slots=True)
class Served:
    """The model and settings that are served.

    Attributes:
        shape: of an image, channels first.
        classes: 0 if devices are emulated: then scores are absent, and every label is -1.
        mean, deviation: (C,) of the data set's pixels, by which UINT8 images are normalised; empty if there are none.
        most: images in a request.
        version: of the model: the hash of its weights; 1 if devices are emulated.
        request_classes: that requests may name; a single nameless one if all requests are of one class.
        top1: the accuracy table, by width tuple; each class's accuracy is computed from it.
    """

    name: str
    shape: tuple[int, ...]
    segments: int
    classes: int
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    most: int
    version: str = "1"
    request_classes: tuple[RequestClass, ...] = (RequestClass(),)
    accuracies: Mapping[tuple[float, ...], float] = field(default_factory=dict)

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes; empty if all requests are of one."""
        return tuple(each.name for each in self.request_classes if each.name)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs."""
        return tuple(name for name in OUTPUTS if self.classes or name != "scores")

    def by_model(self, version: str, accuracies: Sequence[float]) -> Served:
        """Return the same with other weights; `accuracies` in the order of the other model's table."""
        return replace(self, version=version, accuracies=dict(zip(self.accuracies, accuracies, strict=False)))

    def metadata(self) -> dict[str, Any]:
        """Return the model's metadata in the protocol's form."""
        columns = {"prediction": [-1], "scores": [-1, self.classes], "widths": [-1, self.segments]}
        return {
            "name": self.name,
            "versions": [self.version],
            "platform": "slimsched",
            "inputs": [{"name": INPUT, "datatype": "FP32", "shape": [-1, *self.shape]}],
            "outputs": [
                {"name": name, "datatype": "INT64" if name == "prediction" else "FP32", "shape": columns[name]}
                for name in self.outputs
            ],
        }


class Input(msgspec.Struct):
    """A tensor's header, and its values if they are JSON."""

    name: str
    shape: list[int]
    datatype: str
    parameters: dict[str, Any] = {}
    data: list[Any] | None = None


class Output(msgspec.Struct):
    """A requested output."""

    name: str
    parameters: dict[str, Any] = {}


class Infer(msgspec.Struct):
    """A request without its tensors."""

    inputs: list[Input]
    id: str = ""
    parameters: dict[str, Any] = {}
    outputs: list[Output] = []


Values = Callable[[np.dtype[Any], int], NDArray[Any]]
_decoder = msgspec.json.Decoder(Infer)
encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Request:
    """Some images, and the requested outputs.

    Attributes:
        images: (n, values of an image) float32, normalised.
        outputs: their names, and whether each is requested in binary.
        timeout_ns: None if the client names none.
        service_class: the index of its class in `Served.request_classes`; 0 if it names none.
    """

    identity: str
    images: NDArray[np.float32]
    outputs: Mapping[str, bool]
    timeout_ns: int | None
    service_class: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer for one image; see `hw.frontend.router_link.Answered`.

    Attributes:
        version: of the model that answered.
        expected: the probability that it is right, by that model's accuracy table; 0 without a table.
    """

    prediction: int
    widths: tuple[float, ...]
    scores: bytes
    version: str
    took_ns: int
    expected: float = 0.0


# ------------------------------------------------------------------------------------------------------------- requests


def read_request(body: bytes, header: str | None, served: Served) -> Request:
    """Parse a request's body.

    Args:
        header: the value of `Inference-Header-Content-Length`; None if it is absent, and all is JSON.

    Raises:
        RequestError: it is not a valid request for this model.
    """
    length = len(body)
    if header is not None:
        if not (header.isascii() and header.isdigit() and len(header) < 20 and int(header) <= length):
            raise RequestError(f"Inference-Header-Content-Length: found {header!r:.40}, expected 0 to {length}")
        length = int(header)
    if length > JSON_BYTES:
        raise RequestError(f"{length} bytes of JSON, expected at most {JSON_BYTES}; send the image as binary data", 413)
    try:
        json_header = _decoder.decode(memoryview(body)[:length])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(f"the body is not an inference request: {error}") from None
    return request_of(
        json_header, lambda *layout: _values(json_header.inputs[0], memoryview(body)[length:], *layout), served
    )


def request_of(json_header: Infer, values: Values, served: Served) -> Request:
    """Build a request whose header is parsed.

    Args:
        values: returns those of its tensor, of a datatype and number; may raise `RequestError`.

    Raises:
        RequestError: it is not a valid request for this model.
    """
    if [each.name for each in json_header.inputs] != [INPUT]:
        raise RequestError(f"inputs: found {[each.name for each in json_header.inputs]!r:.80}, expected one, {INPUT!r}")
    tensors: list[Input | Output] = [*json_header.inputs, *json_header.outputs]
    for tensor in tensors:
        if unknown := [name for name in tensor.parameters if name not in _TENSOR_PARAMETERS]:
            expected = " or ".join(_TENSOR_PARAMETERS)
            raise RequestError(f"{tensor.name:.40}.parameters: found {unknown[0]!r:.40}, expected {expected}")
    images = _images(json_header.inputs[0], values, served)
    timeout_ns, service_class = (
        _timeout_ns(json_header.parameters.get("timeout")),
        _service_class(json_header.parameters, served),
    )
    return Request(json_header.id, images, _outputs(json_header, served), timeout_ns, service_class)


def _images(tensor: Input, values: Values, served: Served) -> NDArray[np.float32]:
    count = tensor.shape[0] if tensor.shape else 0
    if tuple(tensor.shape[1:]) != served.shape or not 1 <= count <= served.most:
        sizes = ", ".join(map(str, served.shape))
        raise RequestError(f"{INPUT}.shape: found {tensor.shape!r:.80}, expected [1 to {served.most}, {sizes}]")
    datatype = _DATATYPES.get(tensor.datatype)
    if datatype is None or (tensor.datatype == "UINT8" and not served.mean):
        allowed = "FP32 or UINT8" if served.mean else "FP32 (there is no data set whose pixels UINT8 could be)"
        raise RequestError(f"{INPUT}.datatype: found {tensor.datatype!r:.40}, expected {allowed}")
    raw = values(datatype, count * prod(served.shape)).reshape(count, -1)
    if tensor.datatype == "FP32":
        if not np.isfinite(raw).all():
            raise RequestError(f"{INPUT}.data: holds values that are not finite numbers")
        return raw
    pixels = raw.reshape(count, len(served.mean), -1).astype(np.float32)
    mean, deviation = (np.asarray(each, np.float32)[:, None] for each in (served.mean, served.deviation))
    return ((pixels - mean) / deviation).reshape(count, -1)


def _values(tensor: Input, binary: memoryview, datatype: np.dtype[Any], values: int) -> NDArray[Any]:
    """Return all values of the tensor, from behind the JSON or from within it."""
    size_bytes = tensor.parameters.get("binary_data_size")
    if size_bytes is None:
        if len(binary):
            raise RequestError(f"{len(binary)} bytes behind the JSON, but {INPUT} has no binary_data_size")
        return _json_values(tensor.data, datatype, values)
    needed = values * datatype.itemsize
    if size_bytes != needed or len(binary) != needed or tensor.data is not None:
        sizes = f"{size_bytes!r:.40} is said, and {len(binary)} bytes stand behind the JSON"
        raise RequestError(f"{INPUT}.binary_data_size: {sizes}; its shape makes {needed}, and `data` must be left out")
    return np.frombuffer(binary, datatype)


def _json_values(data: list[Any] | None, datatype: np.dtype[Any], values: int) -> NDArray[Any]:
    """Return values from JSON: flat, or nested by the shape."""
    while data and isinstance(data[0], list):
        if not all(isinstance(row, list) for row in data):
            raise RequestError(f"{INPUT}.data: lists stand beside numbers")
        data = list(chain.from_iterable(data))
    if data is None or len(data) != values:
        raise RequestError(f"{INPUT}.data: found {len(data or ())} values, its shape makes {values}")
    is_whole = datatype.kind == "u"
    if not ({int} if is_whole else {int, float}).issuperset(map(type, data)):
        raise RequestError(f"{INPUT}.data: expected {'whole ' if is_whole else ''}numbers")
    if is_whole and not 0 <= min(data) <= max(data) <= _MOST_UINT8:
        raise RequestError(f"{INPUT}.data: expected 0 to {_MOST_UINT8}")
    try:
        with np.errstate(over="ignore"):  # infinity, which is refused
            return np.array(data, datatype)
    except OverflowError:
        raise RequestError(f"{INPUT}.data: holds a number that is too large") from None


def _outputs(json_header: Infer, served: Served) -> dict[str, bool]:
    """Return the requested outputs; all of them if none is named."""
    every = json_header.parameters.get("binary_data_output") is True
    outputs = {output.name: output.parameters.get("binary_data", every) is True for output in json_header.outputs}
    for name in outputs:
        if name not in served.outputs:
            raise RequestError(f"outputs: found {name!r:.40}, expected {', '.join(served.outputs)}")
    return outputs or dict.fromkeys(served.outputs, every)


def _timeout_ns(timeout_us: Any) -> int | None:
    """Return Triton's parameter `timeout`, which is in microseconds."""
    if timeout_us is None:
        return None
    if type(timeout_us) is not int or not 0 < timeout_us <= MOST_US:
        expected = f"whole microseconds from 1 to {MOST_US}"
        raise RequestError(f"parameters.timeout: found {timeout_us!r:.40}, expected {expected}")
    return timeout_us * US_NS


def _service_class(parameters: Mapping[str, Any], served: Served) -> int:
    """Return the class's index: the first if none is named; a model without classes refuses the parameter."""
    names = served.class_names
    name = parameters.get("class") if names else None
    if name is None:
        return 0
    if name not in names:
        raise RequestError(f"parameters.class: found {name!r:.40}, expected {', '.join(names)}")
    return names.index(name)


# -------------------------------------------------------------------------------------------------------------- answers


def outputs_of(answers: Sequence[Answer]) -> dict[str, tuple[str, NDArray[Any]]]:
    """Return datatype and values of each output, by its name."""
    return {
        "prediction": ("INT64", np.array([answer.prediction for answer in answers], "<i8")),
        "widths": ("FP32", np.array([answer.widths for answer in answers], "<f4")),
        "scores": (
            "FP32",
            np.frombuffer(b"".join([answer.scores for answer in answers]), "<f4").reshape(len(answers), -1),
        ),
    }


def write_answer(request: Request, answers: Sequence[Answer], served: Served) -> tuple[bytes, int | None]:
    """Return a response's body, and the length of its JSON if binary data follow (otherwise None)."""
    columns = outputs_of(answers)
    outputs, tail = [], list[bytes]()
    for name, is_binary in request.outputs.items():
        datatype, values = columns[name]
        output: dict[str, Any] = {"name": name, "datatype": datatype, "shape": values.shape}
        if is_binary:
            tail.append(values.tobytes())
            output["parameters"] = {"binary_data_size": len(tail[-1])}
        else:
            output["data"] = values.ravel().tolist()
        outputs.append(output)
    json_header = {"model_name": served.name, "model_version": answers[0].version, "outputs": outputs}
    if request.identity:
        json_header["id"] = request.identity
    body = encode(json_header)
    return (body + b"".join(tail), len(body)) if tail else (body, None)


def error_body(problem: str) -> bytes:
    """Return an error's body in the protocol's form."""
    return encode({"error": problem})


# -------------------------------------------------------------------------------------------------- Triton's extensions


EXTENSIONS: Final = ("binary_tensor_data", "model_configuration", "statistics", "model_repository")


@dataclass(frozen=True, slots=True)
class RequestTotals:
    """Totals since the start.

    Attributes:
        answered_s: the answered requests' latencies, summed.
        router_s: the part of that in the router: waiting, and passes.
        last_ms: when the last one was answered, in milliseconds of the epoch; 0 before the first.
    """

    answered: int
    answered_s: float
    router_s: float
    failed: int
    images: int
    last_ms: int


def configuration(served: Served) -> dict[str, Any]:
    """Return the fields of Triton's `ModelConfig` that this server has."""
    described = served.metadata()
    return {
        "name": served.name,
        "platform": described["platform"],
        "backend": described["platform"],
        "max_batch_size": served.most,
        "input": [_tensor(each) for each in described["inputs"]],
        "output": [_tensor(each) for each in described["outputs"]],
        "dynamic_batching": {},
    }


def _tensor(described: dict[str, Any]) -> dict[str, Any]:
    """Return it without the batch's dimension, which `max_batch_size` stands for; Triton's tensors have another one."""
    tensor = {"name": described["name"], "data_type": f"TYPE_{described['datatype']}"}
    if dims := described["shape"][1:]:
        return {**tensor, "dims": dims}
    return {**tensor, "dims": [1], "reshape": {"shape": []}}


def statistics(served: Served, totals: RequestTotals) -> dict[str, Any]:
    """Return Triton's statistics; `queue` is all of a request's time in the router, its passes included.

    A request's segments are batched with others' on several devices, so `compute_infer` is not known for one request.
    """
    return {
        "model_stats": [
            {
                "name": served.name,
                "version": served.version,
                "last_inference": totals.last_ms,
                "inference_count": totals.images,
                "inference_stats": {
                    "success": {"count": totals.answered, "ns": round(totals.answered_s * 1e9)},
                    "fail": {"count": totals.failed, "ns": 0},
                    "queue": {"count": totals.answered, "ns": round(totals.router_s * 1e9)},
                },
            }
        ]
    }


def repository_index(served: Served, *, is_ready: bool) -> list[dict[str, str]]:
    """Return the one model that is served."""
    state = "READY" if is_ready else "UNAVAILABLE"
    return [{"name": served.name, "version": served.version, "state": state, "reason": ""}]
