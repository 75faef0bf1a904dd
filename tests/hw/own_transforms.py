"""Custom code around the network as users write it: right, and wrong in every way."""

from __future__ import annotations

import os
import time  # noqa: TID251 - it hangs
from collections.abc import Mapping
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from hw.frontend.inference_protocol import Served

Arrays = Mapping[str, NDArray[Any]]


def encoded(pixels: NDArray[Any] | Image.Image, kind: str = "PNG") -> bytes:
    """An image, or pixels (H, W) or (H, W, C), as a file."""
    file = BytesIO()
    (pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)).save(file, kind)
    return file.getvalue()


class Labels:
    """Other answers for the network's own images."""

    def __init__(self, served: Served) -> None:
        self.served = served

    def after(self, outputs: Arrays) -> Arrays:
        print("custom code prints what it likes")
        return {"label": np.array([f"class {prediction}" for prediction in outputs["prediction"]])}


class Obeying:
    """Does what the client's text says."""

    example = {"text": np.array(["zeros"]), "numbers": np.zeros((1, 2), np.float64)}  # noqa: RUF012

    def __init__(self, served: Served) -> None:
        self.shape = served.shape
        self.wrong_after = False

    def before(self, inputs: Arrays) -> NDArray[Any]:
        images: dict[str, NDArray[Any]] = {
            "zeros": np.zeros((1, *self.shape), np.float32),
            "numbers": np.full((1, *self.shape), inputs["numbers"].sum(), np.float32),
            "another shape": np.zeros((1, 3, *self.shape[1:]), np.float32),
            "another kind": np.zeros((1, *self.shape), np.float64),
            "no array": np.array([print]),
            "not finite": np.full((1, *self.shape), np.nan, np.float32),
            "too many": np.zeros((1000, *self.shape), np.float32),
        }
        (text,) = inputs["text"]
        match text.decode():
            case "refuse":
                raise ValueError("this\nis no digit")
            case "raise":
                raise KeyError("secret")
            case "exit":
                os._exit(3)
            case "hang":
                time.sleep(600)
            case "wrong after":
                self.wrong_after = True
        return images.get(text.decode(), images["zeros"])

    def after(self, outputs: Arrays) -> Arrays:
        if self.wrong_after:
            self.wrong_after = False
            return {"prediction": outputs["prediction"].astype(np.float32)}
        return {"prediction": outputs["prediction"]}


class Neither:
    def __init__(self, served: Served) -> None:
        pass


class WithoutModel:
    def before(self, inputs: Arrays) -> NDArray[Any]:
        raise AssertionError("it can't be made")


class AnotherCall(Neither):
    def before(self) -> NDArray[Any]:
        raise AssertionError("it is called otherwise")


class Refusing(Neither):
    def before(self, inputs: Arrays) -> NDArray[Any]:
        raise ValueError("too dark")


class Misshapen(Neither):
    def before(self, inputs: Arrays) -> NDArray[Any]:
        return np.zeros((2, 2))


class NoDict(Neither):
    def after(self, outputs: Arrays) -> Any:
        return outputs["prediction"]


class NoOutputs(Neither):
    def after(self, outputs: Arrays) -> Arrays:
        return {}


class NoNumbers(Neither):
    def after(self, outputs: Arrays) -> Arrays:
        return {"odd": np.array([{}])}


class NoExample(Neither):
    example = {"text": object()}  # noqa: RUF012

    def before(self, inputs: Arrays) -> NDArray[Any]:
        raise AssertionError("there is no example")


class Exiting(Neither):
    def __init__(self, served: Served) -> None:
        raise SystemExit(0)
