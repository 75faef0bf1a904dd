"""Encoded images and custom code around the network, in their processes: what is decoded, refused, and survived."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import re
import struct
import zlib
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from hw.frontend.inference_protocol import RequestError, Served
from hw.frontend.tensors import DATATYPES, Tensor, TensorError, from_json, from_raw, to_json
from hw.frontend.transform_process import decode
from hw.frontend.transforms import PROCESSES, TransformError, Transforms, tried
from kit.errors import InputError
from tests.hw.own_transforms import encoded

pytestmark = pytest.mark.workers

GREY = Served("m", (1, 8, 8), 3, 10, (2.0,), (4.0,), most=24)
RGB = replace(GREY, shape=(3, 6, 8), mean=(1.0, 2.0, 3.0), deviation=(2.0, 4.0, 8.0))
PIXELS: NDArray[np.uint8] = np.random.default_rng(1).integers(0, 256, (6, 8, 3), np.uint8)
OWN = "tests.hw.own_transforms"
HELD_BYTES = 1 << 20
Result = TypeVar("Result")


def bytes_of(*images: bytes) -> dict[str, NDArray[Any]]:
    return {"image": np.array(images, object)}


def ask(text: str, numbers: float = 0.0) -> dict[str, NDArray[Any]]:
    """A request to `Obeying`."""
    return {"text": np.array([text.encode()], object), "numbers": np.full((1, 2), numbers)}


def run(served: Served, work: Callable[[Transforms], Awaitable[Result]], held_bytes: int = HELD_BYTES) -> Result:
    async def main() -> Result:
        with contextlib.closing(Transforms(served, held_bytes)) as transforms:
            return await work(transforms)

    return asyncio.run(main())


@pytest.fixture(scope="module")
def obeying() -> Served:
    return tried(replace(GREY, transform=f"{OWN}:Obeying"))


# ------------------------------------------------------------------------------------------------------------ tensors


@pytest.mark.parametrize("datatype", DATATYPES)
def test_a_tensor_is_the_same_after_each_of_its_forms(datatype: str) -> None:
    array = np.arange(6).reshape(2, 3).astype(DATATYPES[datatype])
    if datatype == "BYTES":
        array = np.array([[b"", b"\0\0", b"a"], [b"bc", "ä".encode(), b"d" * 300]], object)
    tensor = Tensor.of(array)
    assert (tensor.datatype, tensor.shape) == (datatype, (2, 3))
    assert tensor.array.tolist() == array.tolist()
    assert from_json(to_json(array), DATATYPES[datatype], 6).tolist() == array.ravel().tolist()


@given(st.binary(max_size=40), st.sampled_from(list(DATATYPES)), st.integers(0, 9))
def test_any_bytes_are_that_many_values_or_refused(raw: bytes, datatype: str, count: int) -> None:
    try:
        found = from_raw(raw, DATATYPES[datatype], count)
    except TensorError:
        return
    assert len(found) == count
    assert Tensor.of(found).raw == raw


# ------------------------------------------------------------------------------------------------------ encoded images


def test_decoded_pixels_are_normalised_as_raw_ones() -> None:
    """Grey images are taken for coloured ones, and the other way round; palettes and transparency are dissolved."""
    palette = Image.fromarray(PIXELS).convert("P", palette=Image.Palette.ADAPTIVE, colors=9)
    transparent = np.dstack([PIXELS, np.full((6, 8), 9, np.uint8)])
    sent = [encoded(PIXELS), encoded(PIXELS[:, :, 0]), encoded(transparent), encoded(palette)]
    wanted = [PIXELS, np.repeat(PIXELS[:, :, :1], 3, 2), PIXELS, np.asarray(palette.convert("RGB"))]
    found = run(RGB, lambda transforms: transforms.before(bytes_of(*sent)))
    normalised = [(each - np.array(RGB.mean)) / np.array(RGB.deviation) for each in wanted]
    assert np.allclose(found, np.stack(normalised).transpose(0, 3, 1, 2).reshape(4, -1))
    plain = np.full((6, 8, 3), (200, 100, 50), np.uint8)
    assert np.abs(decode(encoded(plain, "JPEG"), 3).astype(int) - plain).max() < 4
    assert decode(encoded(PIXELS), 1).shape == (6, 8, 1)


def png(width: int, height: int, *chunks: tuple[bytes, bytes]) -> bytes:
    """A PNG that declares a size, and has nothing but these chunks."""
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    made = b"\x89PNG\r\n\x1a\n"
    for name, data in ((b"IHDR", head), *chunks, (b"IEND", b"")):
        made += struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
    return made


WHOLE, JPEG = encoded(PIXELS), encoded(PIXELS, "JPEG")
WRONG = {
    "a bomb": (png(50_000, 50_000), "exceeds limit"),
    "a bomb with pixels": (png(50_000, 50_000, (b"IDAT", zlib.compress(bytes(10**7)))), "exceeds limit"),
    "a large one": (png(2000, 2000), "found 2000 x 2000 pixels, at most 48 are decoded"),
    "a small one": (encoded(PIXELS[:2, :2]), "found 2 x 2 pixels"),
    "one on its side": (encoded(PIXELS.transpose(1, 0, 2)), "found 6 x 8 pixels"),
    "a truncated JPEG": (JPEG[:-40], "truncated"),
    "a truncated PNG": (WHOLE[:-40], "truncated"),
    "a JPEG's head alone": (JPEG[:20], "no JPEG or PNG"),
    "a text bomb": (png(8, 6, (b"zTXt", b"a\0\0" + zlib.compress(bytes(10**8)))), "Decompressed data too large"),
    "16 bits": (encoded(np.zeros((6, 8), np.uint16)), "16 bits"),
    "another format": (encoded(PIXELS, "BMP"), "no JPEG or PNG"),
    "nothing": (b"", "no JPEG or PNG"),
    "text": (b"hello", "no JPEG or PNG"),
}


def test_undecodable_image_is_refused_with_the_expected_size() -> None:
    """Nothing large is decoded before the refusal, and the process then serves the next request."""

    async def told(transforms: Transforms) -> dict[str, str]:
        found = {}
        for name, (data, _) in WRONG.items():
            with pytest.raises(RequestError) as error:
                await transforms.before(bytes_of(WHOLE, data))
            assert error.value.status == 400
            found[name] = str(error.value)
            assert len(await transforms.before(bytes_of(WHOLE))) == 1
        return found

    found = run(RGB, told)
    assert [name for name, (_, problem) in WRONG.items() if problem not in found[name]] == []
    assert all(text.startswith("image 1: found ") for text in found.values())
    assert all(text.endswith("; expected 8 x 6 pixels (images are not resized)") for text in found.values())


@given(st.binary(max_size=60), st.integers(0, len(WHOLE)), st.booleans())
def test_any_bytes_are_decoded_or_refused(noise: bytes, at: int, is_png: bool) -> None:
    whole = WHOLE if is_png else JPEG
    with contextlib.suppress(ValueError):
        assert decode(whole[:at] + noise + whole[at + len(noise) :], 3, 48).shape[2] == 3


# -------------------------------------------------------------------------------------------------------- custom code


def test_inputs_and_outputs_of_clients_are_those_of_the_custom_class(obeying: Served) -> None:
    assert obeying.own_inputs == {"text": ("BYTES", 1), "numbers": ("FP64", 2)}
    assert obeying.own_outputs == {"prediction": ("INT64", 1)}
    resizing = tried(replace(GREY, transform="examples.serving.around:AnySize"))
    assert resizing.metadata()["inputs"] == [{"name": "image", "datatype": "BYTES", "shape": [-1]}]
    assert resizing.outputs == ("label", "probability")
    labels = tried(replace(GREY, classes=0, mean=(), deviation=(), transform=f"{OWN}:Labels"))
    assert (labels.own_inputs, labels.own_outputs) == ({}, {"label": ("BYTES", 1)})


UNFIT = {
    "Missing": "could not be made: AttributeError",
    "Neither": "has neither before(inputs) nor after(outputs)",
    "WithoutModel": "it is called as WithoutModel(served)",
    "AnotherCall": "it is called as before(inputs)",
    "Refusing": "before refuses its example (too dark); an attribute `example` sets another one",
    "Misshapen": "before returned float64 of shape (2, 2), expected float32 or uint8 of shape (n, 1, 8, 8)",
    "NoDict": "after must return a dict of arrays",
    "NoOutputs": "after returned no outputs",
    "NoNumbers": "after must return a dict of arrays: found an array of Python's objects",
    "NoExample": "could not be made: TensorError",
    "Exiting": "could not be made: SystemExit: 0",
}


@pytest.mark.parametrize("name", UNFIT)
def test_custom_code_that_does_not_fit_is_refused_at_the_start(name: str) -> None:
    with pytest.raises(InputError) as error:
        tried(replace(GREY, transform=f"{OWN}:{name}"))
    assert str(error.value).startswith(f"--transform: '{OWN}:{name}'")
    assert UNFIT[name] in str(error.value)


async def outcome(work: Awaitable[Any]) -> str:
    try:
        return f"{np.asarray(await work).ravel()[0]:g}"
    except RequestError as error:
        return f"{error.status}: {error}"
    except TransformError as error:
        return str(error)


FAULTS = {
    "refuse": "400: this is no digit",
    "raise": "KeyError: 'secret' (tests/hw/own_transforms.py, line ...)",
    "exit": "ended its process (3)",
    "another shape": "before returned float32 of shape (1, 3, 8, 8), expected float32 or uint8 of shape (n, 1, 8, 8)",
    "another kind": "before returned float64 of shape (1, 1, 8, 8), expected float32 or uint8 of shape (n, 1, 8, 8)",
    "no array": "before must return an array: found an array of Python's objects, expected text or bytes",
    "not finite": "400: the images: holds values that are not finite numbers",
    "too many": "400: the request makes 1000 images, expected 1 to 24",
}


def test_a_fault_of_custom_code_fails_its_own_request_alone(obeying: Served) -> None:
    """Whatever it does, the next ones are served, also by a process that is started again."""

    async def told(transforms: Transforms) -> list[str]:
        found = []
        for text in FAULTS:
            found.append(await outcome(transforms.before(ask(text))))
            assert await outcome(transforms.before(ask("numbers", 3.0))) == "6"
        return found

    assert [re.sub(r"line \d+", "line ...", each) for each in run(obeying, told)] == list(FAULTS.values())


def test_outputs_of_another_kind_than_at_the_start_are_a_fault(obeying: Served) -> None:
    async def told(transforms: Transforms) -> str:
        await transforms.before(ask("wrong after"))
        return await outcome(transforms.after({"prediction": np.array([1])}))

    found = "after returned {'prediction': ('FP32', 1)}, at the start {'prediction': ('INT64', 1)}"
    assert run(obeying, told) == found


def test_a_request_that_hangs_is_ended_and_holds_up_no_other(obeying: Served) -> None:
    async def told(transforms: Transforms) -> str:
        hanging = asyncio.ensure_future(outcome(transforms.before(ask("hang"))))
        for number in range(5):
            assert await outcome(transforms.before(ask("numbers", number))) == f"{2 * number}"
        assert not hanging.done()
        found = await hanging
        assert await outcome(transforms.before(ask("numbers", 1.0))) == "2"
        return found

    assert run(obeying, told) == "took more than 5 s"


def test_a_step_that_fails_after_its_client_left_logs_nothing(obeying: Served) -> None:
    logged: list[dict[str, Any]] = []

    async def leave(transforms: Transforms) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: logged.append(context))
        await transforms.starting
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(transforms.before(ask("hang")), 0.1)
        transforms.close()
        while transforms._idle.qsize() < PROCESSES:
            await asyncio.sleep(0.01)

    run(obeying, leave)
    gc.collect()
    assert logged == []


def test_a_client_that_leaves_gets_nobody_elses_answer(obeying: Served) -> None:
    """Its step is finished first; who waited for a process is not run at all."""

    async def told(transforms: Transforms) -> list[str]:
        leaving = [asyncio.ensure_future(transforms.before(ask("numbers", 100.0 + place))) for place in range(20)]
        await asyncio.sleep(0)
        await transforms.before(ask("zeros"))
        for each in leaving:
            each.cancel()
        return [await outcome(transforms.before(ask("numbers", float(number)))) for number in range(4)]

    assert run(obeying, told) == ["0", "2", "4", "6"]


def test_a_process_that_was_killed_while_it_was_idle_is_replaced(obeying: Served) -> None:
    async def told(transforms: Transforms) -> str:
        await transforms.starting
        for process in transforms._processes:
            process.kill()
            process.wait()
        found = await outcome(transforms.before(ask("numbers", 4.0)))
        assert [process.poll() for process in transforms._processes] == [None]
        return found

    assert run(obeying, told) == "8"


def test_no_more_bytes_wait_than_have_room(obeying: Served) -> None:
    async def told(transforms: Transforms) -> list[str]:
        waiting = [asyncio.ensure_future(outcome(transforms.before(ask("zeros" * 40)))) for _ in range(9)]
        return [*await asyncio.gather(*waiting), await outcome(transforms.before(ask("zeros")))]

    found = run(obeying, told, held_bytes=1000)
    assert set(found) == {"0", "429: full: too many images are to be decoded or transformed"}
    assert found[-1] == "0"


def test_custom_code_has_all_its_processes_at_once(obeying: Served) -> None:
    """Without it none is started before an image comes."""

    def idle(transforms: Transforms) -> list[bool]:
        return [transforms._idle.get_nowait() is not None for _ in range(PROCESSES)]

    async def warm(transforms: Transforms) -> list[bool]:
        await transforms.starting
        return idle(transforms)

    async def cold(transforms: Transforms) -> list[bool]:
        return idle(transforms)

    assert run(obeying, warm) == [True] * PROCESSES
    assert run(GREY, cold) == [False] * PROCESSES


@pytest.fixture(autouse=True)
def _in_the_project(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """A fault's place is told as seen from the current folder."""
    monkeypatch.chdir(request.config.rootpath)
