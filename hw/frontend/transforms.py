"""Images are decoded, and custom code around the network runs, in processes apart from the ingress."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import replace
from subprocess import PIPE, Popen
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from hw.frontend.inference_protocol import Answer, Kinds, RequestError, Served, images_of, outputs_of
from hw.frontend.tensors import Arrays, Tensor, TensorError
from hw.frontend.transform_process import AFTER, BEFORE, FLAG, HEAD, IMAGES, STARTING_S, STEP_S, Job, Reply, frame
from kit.errors import InputError

PROCESSES: Final = 2  # while a step in one takes too long, other requests have the other one
_replies: Final = msgspec.msgpack.Decoder(Reply)

Process = Popen[bytes]


class TransformError(Exception):
    """A step failed, by no fault of the client."""


class Transforms:
    """The processes of one event loop: started at once for custom code, otherwise when an image is to be decoded; and
    again after they ended.

    Args:
        most_bytes: of requests that are in a process, or wait for one.
    """

    def __init__(self, served: Served, most_bytes: int) -> None:
        self._served = served
        self._most_bytes = most_bytes
        self._held_bytes = 0
        self._idle = asyncio.LifoQueue[Process | None]()
        self._processes: list[Process] = []
        is_custom = bool(served.transform)
        for _ in range(0 if is_custom else PROCESSES):
            self._idle.put_nowait(None)
        early = [self._exchange(None) for _ in range(PROCESSES if is_custom else 0)]
        self.starting = asyncio.gather(*early, return_exceptions=True)

    def close(self) -> None:
        """End all processes."""
        for process in self._processes:
            _end(process)

    async def before(self, inputs: Arrays) -> NDArray[np.float32]:
        """Return images, (n, values of an image), of what a client sent.

        Raises:
            RequestError: it is refused, or too much is waiting.
            TransformError: the step failed.
        """
        return _images(await self._run(BEFORE, inputs), self._served)

    async def after(self, outputs: Arrays) -> Arrays:
        """Return the answer's outputs, of the network's; raises as `before`."""
        result = await self._run(AFTER, outputs)
        if (found := _kinds(result)) != (expected := self._served.own_outputs):
            raise TransformError(f"{AFTER} returned {found!r:.200}, at the start {expected!r:.200}")
        return {name: tensor.array for name, tensor in result.items()}

    async def _run(self, step: str, arrays: Arrays) -> dict[str, Tensor]:
        """Run a step. If this is cancelled meanwhile, the process is busy until the step's end."""
        body = _job(step, arrays)
        if self._held_bytes + len(body) > self._most_bytes:
            raise RequestError("full: too many images are to be decoded or transformed", 429)
        self._held_bytes += len(body)
        try:
            exchange = asyncio.ensure_future(self._exchange(await self._idle.get(), body))
            exchange.add_done_callback(_retrieve)
            reply = await asyncio.shield(exchange)
        finally:
            self._held_bytes -= len(body)
        return reply.tensors

    async def _exchange(self, process: Process | None, body: bytes = b"") -> Reply:
        try:
            if process is None or process.poll() is not None:
                process = _process()
                self._processes = [*(each for each in self._processes if each.poll() is None), process]
                await asyncio.to_thread(_start, process, self._served)
            return await asyncio.to_thread(_ask, process, body, STEP_S) if body else Reply()
        finally:
            self._idle.put_nowait(process)


def _retrieve(exchange: asyncio.Future[Reply]) -> None:
    """Keep asyncio from logging the exception of a step whose request was cancelled."""
    if not exchange.cancelled():
        exchange.exception()


def tried(served: Served) -> Served:
    """Try a model's custom code in a process as it will have; return the model with what clients send and get.

    Raises:
        InputError: it can't be made, or fails with its example.
    """
    process = _process()
    try:
        return _tried(process, served)
    except RequestError as error:
        problem = f"{BEFORE} refuses its example ({error}); an attribute `example` sets another one"
        raise InputError(FLAG, "", f"{served.transform!r}: {problem}") from None
    except TransformError as error:
        raise InputError(FLAG, "", f"{served.transform!r}: {error}") from None
    finally:
        _end(process)


def _tried(process: Process, served: Served) -> Served:
    start, count, outputs = _start(process, served), 1, dict[str, Tensor]()
    if BEFORE in start.steps:
        made = _ask(process, frame(Job(BEFORE, start.tensors)), STEP_S)
        count = len(_images(made.tensors, served))
    if AFTER in start.steps:
        answer = Answer(0, (1.0,) * served.segments, bytes(4 * served.classes), served.version, 0)
        outputs = _ask(process, _job(AFTER, outputs_of([answer] * count, served)), STEP_S).tensors
        if not outputs:
            raise TransformError(f"{AFTER} returned no outputs")
    return replace(served, own_inputs=_kinds(start.tensors), own_outputs=_kinds(outputs))


def _process() -> Process:
    """Return a new process; it ends when its standard input does, and not by Ctrl-C."""
    return Popen(
        [sys.executable, "-P", "-m", "hw.frontend.transform_process"], stdin=PIPE, stdout=PIPE, start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )  # fmt: skip


def _start(process: Process, served: Served) -> Reply:
    try:
        return _ask(process, frame(replace(served, accuracies={}, request_classes=())), STARTING_S)
    except TransformError:
        _end(process)
        raise


def _end(process: Process) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):  # it has not read all
                pipe.close()


def _ask(process: Process, body: bytes, limit_s: float) -> Reply:
    """Send a frame, and wait for the reply.

    Raises:
        RequestError: the client's request is refused.
        TransformError: the step failed, or the process ended.
    """
    assert process.stdin is not None, "it is a pipe"
    assert process.stdout is not None, "it is a pipe"
    with contextlib.suppress(BrokenPipeError):  # it has ended, as its missing reply shows
        process.stdin.write(body)
        process.stdin.flush()
    length = int.from_bytes(process.stdout.read(HEAD), "little")
    data = process.stdout.read(length)
    if not data or len(data) < length:
        code = process.wait()
        _end(process)
        is_late = code == -signal.SIGALRM
        raise TransformError(f"took more than {limit_s:g} s" if is_late else f"ended its process ({code})")
    reply = _replies.decode(data)
    if reply.refused:
        raise RequestError(reply.refused)
    if reply.failed:
        raise TransformError(reply.failed)
    return reply


def _job(step: str, arrays: Arrays) -> bytes:
    return frame(Job(step, {name: Tensor.of(array) for name, array in arrays.items()}))


def _images(result: Mapping[str, Tensor], served: Served) -> NDArray[np.float32]:
    """Return the images of a `BEFORE`, (n, values of an image), normalised; raises as `_ask`."""
    images, kinds = result[IMAGES].array, ["float32", *(["uint8"] if served.mean else [])]
    if images.shape[1:] != served.shape or images.dtype.name not in kinds:
        expected = f"{' or '.join(kinds)} of shape {('n', *served.shape)}".replace("'", "")
        raise TransformError(f"{BEFORE} returned {images.dtype.name} of shape {images.shape}, expected {expected}")
    if not 1 <= len(images) <= served.most:
        raise RequestError(f"the request makes {len(images)} images, expected 1 to {served.most}")
    try:
        return images_of(images, served)
    except TensorError as error:
        raise RequestError(f"the images: {error}") from None


def _kinds(tensors: Mapping[str, Tensor]) -> Kinds:
    return {name: (tensor.datatype, len(tensor.shape)) for name, tensor in tensors.items()}
