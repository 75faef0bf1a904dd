"""The process that decodes images, and runs custom code around the network (`module:Class`), one request at a time.

It is apart from the ingress and the router: it may block, fail, or be ended. Its standard input has a `Served`, then
jobs; its standard output has the replies. What custom code prints goes to standard error.
"""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from io import BytesIO
from typing import Any, BinaryIO, Final

import msgspec
import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from hw.frontend.inference_protocol import INPUT, Served
from hw.frontend.tensors import Arrays, Tensor
from kit.errors import InputError, in_a_line
from kit.plugins import FAILURES, blaming, failure, own_class

FLAG: Final = "--transform"
BEFORE: Final = "before"
AFTER: Final = "after"
STARTING_S: Final = 60.0
STEP_S: Final = 5.0  # for one request's `before` or `after`
MOST_PIXELS: Final = 1 << 24  # of an image that custom code decodes
FORMATS: Final = ("JPEG", "PNG")
HEAD: Final = 8  # bytes of a frame's length
IMAGES: Final = "images"  # the name of what `BEFORE` returns

Steps = dict[str, Callable[[Any], Any]]


class Job(msgspec.Struct, frozen=True):
    """A step for a request: `BEFORE` or `AFTER`."""

    step: str
    tensors: dict[str, Tensor]


class Reply(msgspec.Struct, frozen=True):
    """The end of a job, and first of all of the start.

    Attributes:
        tensors: the result; of the start, an example of what clients send to custom code that has a `before`.
        steps: that custom code has.
        refused: why the client's request is not valid.
        failed: the error of custom code.
    """

    tensors: dict[str, Tensor] = {}
    steps: tuple[str, ...] = ()
    refused: str = ""
    failed: str = ""


def decode(data: bytes, channels: int, most_pixels: int = MOST_PIXELS) -> NDArray[np.uint8]:
    """Return the pixels (H, W, C) of a JPEG or PNG, grey (1 channel) or RGB (3).

    Args:
        most_pixels: the size is read, and more are refused, before anything is decoded.

    Raises:
        ValueError: it is too large, or no such image.
    """
    try:
        with Image.open(BytesIO(data), formats=FORMATS) as image:
            if image.width * image.height > most_pixels:
                raise ValueError(f"{image.width} x {image.height} pixels, at most {most_pixels} are decoded")
            if image.mode.startswith(("I", "F")):
                raise ValueError("pixels of 16 bits or more, expected 8")
            pixels = np.asarray(image.convert("L" if channels == 1 else "RGB"))
            return pixels.reshape(image.height, image.width, channels)
    except ValueError:
        raise
    except UnidentifiedImageError as error:  # its text has an address in memory
        raise ValueError("no JPEG or PNG") from error
    except Exception as error:  # Pillow's readers raise many kinds
        raise ValueError(f"no readable JPEG or PNG ({in_a_line(str(error), 80)})") from error


def example_of(served: Served) -> dict[str, NDArray[Any]]:
    """Return what clients may send to a network: an encoded black image if it takes images, otherwise zeros."""
    if not served.takes_encoded:
        return {INPUT: np.zeros((1, *served.shape), np.float32)}
    channels, height, width = served.shape
    file = BytesIO()
    Image.new("L" if channels == 1 else "RGB", (width, height)).save(file, "PNG")
    return {INPUT: np.array([file.getvalue()], object)}


class _Decoder:
    """The step `BEFORE` without custom code: encoded images of the network's own size."""

    def __init__(self, served: Served) -> None:
        self._shape = served.shape

    def before(self, inputs: Arrays) -> NDArray[Any]:
        """Return (n, C, H, W) of encoded images; raises `ValueError` for the first one that is not as it must be."""
        channels, height, width = self._shape
        images = []
        for index, data in enumerate(inputs[INPUT].flat):
            try:
                images.append(decode(data, channels, height * width))
                if images[-1].shape[:2] != (height, width):
                    raise ValueError("{1} x {0} pixels".format(*images[-1].shape))
            except ValueError as error:
                problem = f"image {index}: found {error}; expected {width} x {height} pixels (images are not resized)"
                raise ValueError(problem) from error
        return np.stack(images).transpose(0, 3, 1, 2)


def _made(served: Served) -> tuple[Steps, Reply]:
    """Return the steps, and the reply to the start; raises `InputError` for a class that can't be made."""
    decoding: Steps = {BEFORE: _Decoder(served).before}
    if not (name := served.transform):
        return decoding, Reply()
    own = own_class(name, FLAG, "")
    with blaming(name, FLAG, "", f"{name.partition(':')[2]}(served)"):
        instance = own(served)
        steps = {step: getattr(instance, step) for step in (BEFORE, AFTER) if callable(getattr(instance, step, None))}
        if not steps:
            raise InputError(FLAG, "", f"{name!r} has neither before(inputs) nor after(outputs)")
        example = getattr(instance, "example", None) or example_of(served)
        tensors = {str(key): Tensor.of(value) for key, value in example.items()} if BEFORE in steps else {}
    return {**decoding, **steps}, Reply(tensors, tuple(steps))


def _done(steps: Steps, job: Job) -> Reply:
    try:
        result = steps[job.step]({name: tensor.array.copy() for name, tensor in job.tensors.items()})
    except FAILURES as error:
        if job.step == BEFORE and isinstance(error, ValueError):
            return Reply(refused=in_a_line(str(error)) or "the image is refused")
        return Reply(failed=failure(error, f"{job.step}({'inputs' if job.step == BEFORE else 'outputs'})"))
    try:
        results = {IMAGES: result} if job.step == BEFORE else dict(result)
        return Reply({str(name): Tensor.of(value) for name, value in results.items()})
    except (TypeError, ValueError) as error:
        expected = "an array" if job.step == BEFORE else "a dict of arrays"
        return Reply(failed=f"{job.step} must return {expected}: {in_a_line(str(error))}")


def frame(message: object) -> bytes:
    """Return a message with its length in front."""
    body = msgspec.msgpack.encode(message)
    return len(body).to_bytes(HEAD, "little") + body


def _frames(source: BinaryIO) -> Iterator[bytes]:
    """Yield bodies until the other end is gone."""
    while len(header := source.read(HEAD)) == HEAD:
        yield source.read(int.from_bytes(header, "little"))


def main() -> None:
    """Do what is asked for; the kernel ends the process (SIGALRM) if a step takes longer than it may."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    sys.stdout = sys.stderr  # whose lines are written at once
    Image.MAX_IMAGE_PIXELS = MOST_PIXELS
    warnings.simplefilter("error", Image.DecompressionBombWarning)

    def answer(reply: Reply) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        answers.write(frame(reply))
        answers.flush()

    frames = _frames(sys.stdin.buffer)
    signal.setitimer(signal.ITIMER_REAL, STARTING_S)
    try:
        steps, reply = _made(msgspec.msgpack.decode(next(frames), type=Served))
    except InputError as error:
        answer(Reply(failed=error.problem))
        return
    answer(reply)
    jobs = msgspec.msgpack.Decoder(Job)
    for body in frames:
        signal.setitimer(signal.ITIMER_REAL, STEP_S)
        answer(_done(steps, jobs.decode(body)))


if __name__ == "__main__":
    main()
    os._exit(0)  # whatever threads custom code has started
