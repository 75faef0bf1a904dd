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
from math import inf, prod
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from hw.frontend.tensors import BYTES, DATATYPES, Arrays, TensorError, datatype_of, from_json, from_raw, raw_of, to_json
from kit.random_streams import derived_seed, hashed_share
from policies.vocabulary import CANARY, STABLE

INPUT: Final = "image"
OUTPUTS: Final = ("prediction", "scores", "widths")
JSON_BYTES: Final = 1 << 20  # of JSON: it is parsed in one go, while all other requests wait
US_NS: Final = 1_000
MOST_US: Final = 10**12  # of a timeout: eleven days
_TENSOR_PARAMETERS: Final = ("binary_data", "binary_data_size")  # others would change the answer
_COLOURS: Final = (1, 3)  # channels that an encoded image can have

Kinds = Mapping[str, tuple[str, int]]  # datatype and number of dimensions of tensors, by name


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


_SALT: Final = derived_seed(0, "canary")


class Canary(msgspec.Struct, frozen=True):
    """A second version of the model, which serves a share of the requests, or of a class of them.

    Attributes:
        version: the hash of its weights.
        accuracies: see `RouterConfig`.
        service_class: None for all classes.
    """

    version: str
    accuracies: tuple[float, ...]
    share: float
    service_class: int | None = None

    def takes(self, number: int, service_class: int) -> bool:
        """Return whether it serves the request of this number: a hash, so that a repetition draws the same."""
        return self.service_class in (None, service_class) and hashed_share(_SALT, number, 0) < self.share


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
        accuracies, canary_accuracies: by width tuple, of each version; classes' accuracies are computed from them.
        transform: custom code around the network, `module:Class`; empty for none.
        own_inputs, own_outputs: what clients send to it, and get of it; empty if it has no such step.
        canary: the second version, if there is one.
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
    transform: str = ""
    own_inputs: Kinds = field(default_factory=dict)
    own_outputs: Kinds = field(default_factory=dict)
    canary: Canary | None = None
    canary_accuracies: Mapping[tuple[float, ...], float] = field(default_factory=dict)

    @property
    def takes_encoded(self) -> bool:
        """Whether the network itself can be sent JPEG and PNG: its images have colours, and known pixels."""
        return len(self.shape) == 3 and self.shape[0] in _COLOURS and bool(self.mean)

    @property
    def versions(self) -> tuple[str, ...]:
        """The stable version, and the canary's if there is one."""
        return (self.version,) if self.canary is None else (self.version, self.canary.version)

    def drawn(self, number: int, service_class: int) -> int:
        """Return which of the versions serves a request that asks for none."""
        return CANARY if self.canary is not None and self.canary.takes(number, service_class) else STABLE

    def expected(self, version: int, widths: tuple[float, ...]) -> float:
        """Return the accuracy of a version at these widths; 0 without a table."""
        return (self.accuracies if version == STABLE else self.canary_accuracies).get(widths, 0.0)

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes; empty if all requests are of one."""
        return tuple(each.name for each in self.request_classes if each.name)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs."""
        return tuple(self.own_outputs) or tuple(name for name in OUTPUTS if self.classes or name != "scores")

    def by_model(self, version: str, accuracies: Sequence[float], canary: Canary | None = None) -> Served:
        """Return the same with other weights; `accuracies` in the order of the other model's table."""
        tables = [
            dict(zip(self.accuracies, each, strict=False)) for each in (accuracies, canary.accuracies if canary else ())
        ]
        return replace(self, version=version, accuracies=tables[0], canary=canary, canary_accuracies=tables[1])

    def metadata(self) -> dict[str, Any]:
        """Return the model's metadata in the protocol's form."""
        columns = {"prediction": [-1], "scores": [-1, self.classes], "widths": [-1, self.segments]}
        return {
            "name": self.name,
            "versions": list(self.versions),
            "platform": "slimsched",
            "inputs": _described(self.own_inputs) or [{"name": INPUT, "datatype": "FP32", "shape": [-1, *self.shape]}],
            "outputs": _described(self.own_outputs)
            or [
                {"name": name, "datatype": "INT64" if name == "prediction" else "FP32", "shape": columns[name]}
                for name in self.outputs
            ],
        }


def _described(kinds: Kinds) -> list[dict[str, Any]]:
    return [{"name": name, "datatype": datatype, "shape": [-1] * rank} for name, (datatype, rank) in kinds.items()]


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


Values = Callable[[int, np.dtype[Any], int], NDArray[Any]]
_decoder = msgspec.json.Decoder(Infer)
encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Request:
    """Some images, and the requested outputs.

    Attributes:
        images: (n, values of an image) float32, normalised; none if they must be made of `inputs`.
        inputs: encoded images, or tensors for custom code; empty if images were sent as numbers.
        outputs: their names, and whether each is requested in binary.
        timeout_ns: None if the client names none.
        service_class: the index of its class in `Served.request_classes`; 0 if it names none.
    """

    identity: str
    images: NDArray[np.float32]
    outputs: Mapping[str, bool]
    timeout_ns: int | None
    service_class: int = 0
    inputs: Arrays = field(default_factory=dict)


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


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outputs for a request, and the model that answered; `took_ns`: see `Answer`, of the slowest image."""

    outputs: Arrays
    version: str
    took_ns: int


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
    return request_of(json_header, _values_in(json_header, memoryview(body)[length:]), served)


def encoded_request(body: bytes, served: Served) -> Request:
    """Return the request of a body that is one encoded image; raises `RequestError` if the model takes none."""
    name, (_, rank) = next(iter(served.own_inputs.items()), (INPUT, (BYTES, 1)))
    return request_of(Infer([Input(name, [1] * rank, BYTES)]), lambda *_: np.array([body], object), served)


def request_of(json_header: Infer, values: Values, served: Served) -> Request:
    """Build a request whose header is parsed.

    Args:
        values: returns those of a tensor by its place, in order, of a datatype and number; may raise `RequestError`.

    Raises:
        RequestError: it is not a valid request for this model.
    """
    names, expected = [each.name for each in json_header.inputs], sorted(served.own_inputs) or [INPUT]
    if sorted(names) != expected:
        raise RequestError(f"inputs: found {names!r:.80}, expected {', '.join(expected)}")
    tensors: list[Input | Output] = [*json_header.inputs, *json_header.outputs]
    for tensor in tensors:
        if unknown := [name for name in tensor.parameters if name not in _TENSOR_PARAMETERS]:
            allowed = " or ".join(_TENSOR_PARAMETERS)
            raise RequestError(f"{tensor.name:.40}.parameters: found {unknown[0]!r:.40}, expected {allowed}")
    timeout_ns, service_class = (
        _timeout_ns(json_header.parameters.get("timeout")),
        _service_class(json_header.parameters, served),
    )
    inputs = _inputs(json_header, values, served)
    images = np.empty((0, 0), np.float32) if inputs else _images(json_header.inputs[0], values, served)
    return Request(json_header.id, images, _outputs(json_header, served), timeout_ns, service_class, inputs)


def _inputs(json_header: Infer, values: Values, served: Served) -> Arrays:
    """Return tensors for custom code, or encoded images; empty if images are sent as numbers."""
    kinds, tensor = served.own_inputs, json_header.inputs[0]
    if not kinds and tensor.datatype == BYTES and served.takes_encoded:
        _require_count(tensor, served, () if tensor.shape[1:] == [] else (1,))
        kinds = {INPUT: (BYTES, len(tensor.shape))}
    arrays = {}
    for place, tensor in enumerate(json_header.inputs if kinds else ()):
        datatype, rank = kinds[tensor.name]
        if tensor.datatype != datatype or len(tensor.shape) != rank or min(tensor.shape, default=1) < 1:
            found = f"{tensor.datatype:.20} of shape {tensor.shape!r:.80}"
            raise RequestError(f"{tensor.name:.40}: found {found}, expected {datatype} of {rank} dimensions")
        arrays[tensor.name] = values(place, DATATYPES[datatype], prod(tensor.shape)).reshape(tensor.shape)
    return arrays


def _require_count(tensor: Input, served: Served, shape: tuple[int, ...]) -> None:
    """Raise `RequestError` unless it has from 1 to the most images of this shape."""
    if tuple(tensor.shape[1:]) != shape or not 1 <= (tensor.shape[0] if tensor.shape else 0) <= served.most:
        allowed = ", ".join([f"1 to {served.most}", *map(str, shape)])
        raise RequestError(f"{INPUT}.shape: found {tensor.shape!r:.80}, expected [{allowed}]")


def _images(tensor: Input, values: Values, served: Served) -> NDArray[np.float32]:
    allowed = ["FP32", *(["UINT8"] if served.mean else []), *([BYTES] if served.takes_encoded else [])]
    if tensor.datatype not in allowed:
        expected = " or ".join(allowed) if served.mean else "FP32 (there is no data set whose pixels UINT8 could be)"
        raise RequestError(f"{INPUT}.datatype: found {tensor.datatype!r:.40}, expected {expected}")
    _require_count(tensor, served, served.shape)
    try:
        return images_of(values(0, DATATYPES[tensor.datatype], prod(tensor.shape)).reshape(tensor.shape), served)
    except TensorError as error:
        raise RequestError(f"{INPUT}.data: {error}") from None


def images_of(values: NDArray[Any], served: Served) -> NDArray[np.float32]:
    """Return images as (n, values of an image), normalised if they are pixels (uint8); raises `TensorError`."""
    flat = values.reshape(len(values), -1)
    if values.dtype != np.uint8:
        if not np.isfinite(flat).all():
            raise TensorError("holds values that are not finite numbers")
        return flat
    pixels = flat.reshape(len(values), len(served.mean), -1).astype(np.float32)
    mean, deviation = (np.asarray(each, np.float32)[:, None] for each in (served.mean, served.deviation))
    return ((pixels - mean) / deviation).reshape(len(values), -1)


def _values_in(json_header: Infer, binary: memoryview) -> Values:
    """Return a reader of tensors' values, from behind the JSON or from within it."""
    rest = binary

    def values(place: int, datatype: np.dtype[Any], count: int) -> NDArray[Any]:
        nonlocal rest
        tensor = json_header.inputs[place]
        key, size_bytes = f"{tensor.name:.40}.data", tensor.parameters.get("binary_data_size")
        try:
            if size_bytes is None:
                found = from_json(tensor.data, datatype, count)
            else:
                key = f"{tensor.name:.40}.binary_data_size"
                if tensor.data is not None or type(size_bytes) is not int or not 0 <= size_bytes <= len(rest):
                    said = f"found {size_bytes!r:.40}, and {len(rest)} bytes behind the JSON"
                    raise TensorError(f"{said}; it must be their number, and `data` be left out")
                part, rest = rest[:size_bytes], rest[size_bytes:]
                found = from_raw(part, datatype, count)
        except TensorError as error:
            raise RequestError(f"{key}: {error}") from None
        if len(rest) and place == len(json_header.inputs) - 1:
            raise RequestError(f"{len(rest)} bytes behind the JSON are in no tensor's binary_data_size")
        return found

    return values


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


def outputs_of(answers: Sequence[Answer], served: Served) -> Arrays:
    """Return the network's own outputs, by name."""
    outputs = {
        "prediction": np.array([answer.prediction for answer in answers], "<i8"),
        "widths": np.array([answer.widths for answer in answers], "<f4"),
    }
    if served.classes:
        outputs["scores"] = np.frombuffer(b"".join([answer.scores for answer in answers]), "<f4").reshape(
            len(answers), -1
        )
    return outputs


def version_of(answers: Sequence[Answer]) -> str:
    """Return the version that has answered; both if the images of a request outlived one version's servers."""
    return "+".join(sorted({answer.version for answer in answers}))


def write_answer(request: Request, outcome: Outcome, served: Served) -> tuple[bytes, int | None]:
    """Return a response's body, and the length of its JSON if binary data follow (otherwise None)."""
    outputs, tail = [], list[bytes]()
    for name, is_binary in request.outputs.items():
        values = outcome.outputs[name]
        output: dict[str, Any] = {"name": name, "datatype": datatype_of(values), "shape": values.shape}
        if is_binary:
            tail.append(raw_of(values))
            output["parameters"] = {"binary_data_size": len(tail[-1])}
        else:
            output["data"] = to_json(values)
        outputs.append(output)
    json_header = {"model_name": served.name, "model_version": outcome.version, "outputs": outputs}
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
    datatype = "STRING" if described["datatype"] == BYTES else described["datatype"]
    tensor = {"name": described["name"], "data_type": f"TYPE_{datatype}"}
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
    """Return the versions of the one model that is served."""
    state = "READY" if is_ready else "UNAVAILABLE"
    return [{"name": served.name, "version": version, "state": state, "reason": ""} for version in served.versions]
