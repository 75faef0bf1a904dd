"""The Open Inference Protocol over gRPC, admitted by the same `Admission` as requests over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Mapping
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from importlib.resources import files
from math import prod
from pathlib import Path
from typing import Any, Final

import grpc
import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError, Message
from grpc.aio import ServicerContext as Context
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from numpy.typing import NDArray

from hw.frontend.admission import DEADLINE, Admission, Limits, ReadingRoom, trace_of
from hw.frontend.inference_protocol import (
    EXTENSIONS,
    JSON_BYTES,
    Infer,
    Input,
    Outcome,
    Output,
    Request,
    RequestError,
    Served,
    configuration,
    repository_index,
    request_of,
    statistics,
)
from hw.frontend.tensors import TensorError, datatype_of, from_json, from_raw, raw_of
from hw.frontend.traffic_metrics import Metrics
from kit.plugins import own_version

SERVICE: Final = "inference.GRPCInferenceService"
_CODES: Final = {
    HTTPStatus.BAD_REQUEST: grpc.StatusCode.INVALID_ARGUMENT,
    HTTPStatus.UNAUTHORIZED: grpc.StatusCode.UNAUTHENTICATED,
    HTTPStatus.NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    HTTPStatus.REQUEST_TIMEOUT: grpc.StatusCode.DEADLINE_EXCEEDED,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: grpc.StatusCode.RESOURCE_EXHAUSTED,
    HTTPStatus.TOO_MANY_REQUESTS: grpc.StatusCode.RESOURCE_EXHAUSTED,
    HTTPStatus.INTERNAL_SERVER_ERROR: grpc.StatusCode.INTERNAL,
    HTTPStatus.SERVICE_UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT: grpc.StatusCode.DEADLINE_EXCEEDED,
}
_SOON: Final = (("grpc-retry-pushback-ms", "1000"),)
_CONTENTS: Final = {
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "UINT8": "uint_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "BOOL": "bool_contents",
    "BYTES": "bytes_contents",
}
_UNCOMPRESSED: Final = 1  # a bit for each algorithm: no client may send a message that grows when it is read
_IDLE_MS: Final = 75_000
_HANDSHAKE_MS: Final = 5_000
_STREAMS: Final = 256  # calls at a time of one connection; a client's library queues the others

Call = Callable[[Any, Context], Awaitable[Any]]


# Of this project's own messages: clients' packages have others of the same names in the default pool.
_POOL: Final = descriptor_pool.DescriptorPool()


def _read_messages() -> dict[str, type[Message]]:
    """Return the classes of open_inference.proto, by name."""
    described = files("hw.frontend").joinpath("open_inference.binpb").read_bytes()
    (file,) = descriptor_pb2.FileDescriptorSet.FromString(described).file
    _POOL.Add(file)
    _POOL.AddSerializedFile(health_pb2.DESCRIPTOR.serialized_pb)  # for reflection
    classes = message_factory.GetMessageClassesForFiles([file.name], _POOL)
    return {name.rpartition(".")[2]: message_class for name, message_class in classes.items()}


MESSAGES: Final[Mapping[str, Any]] = _read_messages()


def read_call(message: Any, size_bytes: int, served: Served) -> Request:
    """Parse a `ModelInferRequest`; its answers have the image's encoding, raw or not.

    Args:
        size_bytes: of the whole message.

    Raises:
        RequestError: it is not a valid request for this model.
    """
    raw = message.raw_input_contents
    if not raw and size_bytes > JSON_BYTES:
        problem = f"{size_bytes} bytes without raw_input_contents, expected at most {JSON_BYTES}; send the image there"
        raise RequestError(problem, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
    header = Infer(
        [Input(each.name, list(each.shape), each.datatype, _parameters(each)) for each in message.inputs],
        message.id,
        _parameters(message) | {"binary_data_output": bool(raw)},
        [Output(output.name, _parameters(output)) for output in message.outputs],
    )
    return request_of(header, partial(_values, message), served)


def _parameters(message: Any) -> dict[str, Any]:
    kinds = {name: parameter.WhichOneof("parameter_choice") for name, parameter in message.parameters.items()}
    return {name: kind and getattr(message.parameters[name], kind) for name, kind in kinds.items()}


def _values(message: Any, place: int, datatype: np.dtype[Any], count: int) -> NDArray[Any]:
    raw, tensor = message.raw_input_contents, message.inputs[place]
    name = f"contents.{_CONTENTS[tensor.datatype]}"
    try:
        if not raw:
            return from_json([*getattr(tensor.contents, _CONTENTS[tensor.datatype])], datatype, count)
        name = "raw_input_contents"
        if len(raw) != len(message.inputs) or tensor.HasField("contents"):
            raise TensorError(f"found {len(raw)}, expected one for each input, and that `contents` is left out")
        return from_raw(raw[place], datatype, count)
    except TensorError as error:
        raise RequestError(f"{tensor.name:.40}.{name}: {error}") from None


def write_reply(request: Request, outcome: Outcome, served: Served) -> Message:
    """Build a `ModelInferResponse`."""
    about = {"model_name": served.name, "model_version": outcome.version, "id": request.identity}
    reply = MESSAGES["ModelInferResponse"](**about)
    for name, is_raw in request.outputs.items():
        values = outcome.outputs[name]
        datatype = datatype_of(values)
        output = reply.outputs.add(name=name, datatype=datatype, shape=values.shape)
        if is_raw:
            reply.raw_output_contents.append(raw_of(values))
        else:
            getattr(output.contents, _CONTENTS[datatype]).extend(values.ravel().tolist())
    return reply


class Calls:
    """The answers to each call.

    gRPC reports a message's size only after reading it. So each call holds room for the largest while it is read.
    Others wait, and may send 64 KiB meanwhile.

    Attributes:
        largest_bytes: of a message.
    """

    def __init__(self, admission: Admission, metrics: Metrics, limits: Limits) -> None:
        self.health = Health(admission)
        self._admission = admission
        self._metrics = metrics
        self._limits = limits
        served = admission.served
        most_bytes = limits.body_bytes if served.own_inputs else JSON_BYTES + 4 * prod(served.shape) * served.most
        self.largest_bytes = min(limits.body_bytes, most_bytes)
        self._room = ReadingRoom(limits.held_bytes)

    @property
    def _served(self) -> Served:
        return self._admission.served

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the calls as a server takes them."""
        unary = {
            "ServerLive": self._live,
            "ServerReady": self._ready,
            "ModelReady": self._model_ready,
            "ServerMetadata": self._metadata,
            "ModelMetadata": self._model_metadata,
            "ModelConfig": self._model_config,
            "ModelStatistics": self._model_statistics,
            "RepositoryIndex": self._repository_index,
        }
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(
                self._refusing(call),
                MESSAGES[f"{name}Request"].FromString,
                MESSAGES[f"{name}Response"].SerializeToString,
            )
            for name, call in unary.items()
        }
        # One message comes, as in the other calls; it is read as a stream, once its sender's token is known.
        handlers["ModelInfer"] = grpc.stream_unary_rpc_method_handler(
            self._refusing(self._infer, self._count), None, MESSAGES["ModelInferResponse"].SerializeToString
        )
        return grpc.method_handlers_generic_handler(SERVICE, handlers)

    def _refusing(self, call: Call, count: Callable[[grpc.StatusCode], None] = lambda _: None) -> Call:
        """Return the call with a status for refusals; `count` is called for every one."""

        async def answer(request: Any, context: Context) -> Any:
            code = grpc.StatusCode.INTERNAL
            try:
                reply = await call(request, context)
                code = grpc.StatusCode.OK
                return reply
            except RequestError as error:
                code, refusal = _CODES[HTTPStatus(error.status)], error
            except asyncio.CancelledError as error:  # the client left, or gRPC has ended it a moment before `Admission`
                is_over = DEADLINE in error.args or context.time_remaining() == 0
                code = grpc.StatusCode.DEADLINE_EXCEEDED if is_over else grpc.StatusCode.CANCELLED
                raise
            except Exception as error:  # a fault of ours ends one call
                refusal = self._admission.fault(error)
            finally:
                count(code)
            may_retry = refusal.status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
            await context.abort(code, str(refusal), _SOON if may_retry else ())

        return answer

    async def _live(self, _: Message, __: Context) -> Message:
        return MESSAGES["ServerLiveResponse"](live=True)

    async def _ready(self, _: Message, __: Context) -> Message:
        return MESSAGES["ServerReadyResponse"](ready=self._admission.is_ready)

    async def _model_ready(self, request: Any, _: Context) -> Message:
        self._admission.require_model(request.name, request.version)
        return MESSAGES["ModelReadyResponse"](ready=self._admission.is_ready)

    async def _metadata(self, _: Message, context: Context) -> Message:
        self._token_in(context)
        return MESSAGES["ServerMetadataResponse"](name="slimsched", version=own_version(), extensions=EXTENSIONS)

    async def _model_metadata(self, request: Any, context: Context) -> Message:
        self._token_in(context)
        self._admission.require_model(request.name, request.version)
        return MESSAGES["ModelMetadataResponse"](**self._served.metadata())

    async def _model_config(self, request: Any, context: Context) -> Message:
        self._token_in(context)
        self._admission.require_model(request.name, request.version)
        return MESSAGES["ModelConfigResponse"](config=configuration(self._served))

    async def _model_statistics(self, request: Any, context: Context) -> Message:
        self._token_in(context)
        self._admission.require_model(request.name or self._served.name, request.version)
        return MESSAGES["ModelStatisticsResponse"](**statistics(self._served, self._metrics.totals()))

    async def _repository_index(self, request: Any, context: Context) -> Message:
        self._token_in(context)
        models = repository_index(self._served, is_ready=self._admission.is_ready)
        listed = [model for model in models if model["state"] == "READY" or not request.ready]
        return MESSAGES["RepositoryIndexResponse"](models=listed)

    async def _infer(self, _: object, context: Context) -> Message:
        token = self._token_in(context)
        message, size_bytes = await self._read(context, token or context.peer())
        self._admission.require_model(message.model_name, message.model_version)
        request = read_call(message, size_bytes, self._served)
        if (left_s := context.time_remaining()) is not None:  # the call's deadline holds, too
            left_ns = max(0, round(left_s * 1e9))
            request = replace(request, timeout_ns=min(left_ns, request.timeout_ns or left_ns))
        trace = trace_of(_metadata_of(context))
        outcome = await self._admission.answers(request, token, trace, message.model_version)
        return write_reply(request, outcome, self._served)

    def _count(self, code: grpc.StatusCode) -> None:
        self._metrics.requests.labels(code.name).inc()

    async def _read(self, context: Context, client: Hashable) -> tuple[Any, int]:
        """Read the call's one message; return it and its size. gRPC refuses one that is too large."""
        try:
            async with self._room.place(client, self.largest_bytes, self._limits.body_s):
                body = await context.read()
            return MESSAGES["ModelInferRequest"].FromString(body), len(body)
        except (DecodeError, TypeError):  # grpc.aio.EOF isn't bytes
            raise RequestError("the message is not a ModelInferRequest") from None

    def _token_in(self, context: Context) -> bytes:
        return self._admission.token_in(_metadata_of(context).get("authorization", ""))


class Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # the package has no types
    """`grpc.health.v1`, which Kubernetes' probes call; without `Watch`, as its specification allows."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission

    async def Check(self, request: Any, context: Context) -> Any:  # noqa: N802 - gRPC's name
        """Return whether requests are accepted; the empty service is the whole server."""
        if request.service not in ("", SERVICE):
            await context.abort(grpc.StatusCode.NOT_FOUND, f"unknown service {request.service!r:.80}")
        states = health_pb2.HealthCheckResponse
        return states(status=states.SERVING if self._admission.is_ready else states.NOT_SERVING)


def _metadata_of(context: Context) -> dict[str, str]:
    return {name: str(value) for name, value in context.invocation_metadata() or ()}


async def start_grpc(calls: Calls, address: str, certificate: Path | None, limits: Limits) -> Any:
    """Start a server, and return it listening.

    Args:
        address: its port is reserved for this user (`hw.frontend.connections.listen`).
    """
    options = (
        ("grpc.max_allowed_incoming_connections", limits.connections),
        ("grpc.max_receive_message_length", calls.largest_bytes),
        ("grpc.http2.bdp_probe", 0),  # otherwise a call may send 4 MiB before it is read, and not 64 KiB
        ("grpc.compression_enabled_algorithms_bitset", _UNCOMPRESSED),
        ("grpc.max_connection_idle_ms", _IDLE_MS),
        ("grpc.max_concurrent_streams", _STREAMS),
        ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MS),
    )
    server = grpc.aio.server(options=options, maximum_concurrent_rpcs=limits.connections)
    server.add_generic_rpc_handlers((calls.handler(),))
    health_pb2_grpc.add_HealthServicer_to_server(calls.health, server)
    reflection.enable_server_reflection(
        (SERVICE, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name), server, _POOL
    )
    if certificate is None:
        server.add_insecure_port(address)
    else:
        pem = certificate.read_bytes()  # both are in it
        server.add_secure_port(address, grpc.ssl_server_credentials([(pem, pem)]))
    await server.start()
    return server
