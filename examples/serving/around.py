"""Custom code around the network: JPEG or PNG of any size in, a text and its probability out.

slimsched serve SCENARIO --transform around:AnySize      (in this folder; docs/how-to/serve.md)
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from hw.frontend.inference_protocol import Served
from hw.frontend.transform_process import decode


class AnySize:
    """Resizes what clients send, and names the class of each image."""

    def __init__(self, served: Served) -> None:
        self.channels, self.height, self.width = served.shape

    def before(self, inputs: Mapping[str, NDArray[Any]]) -> NDArray[np.uint8]:
        """Return raw pixels (n, C, H, W), which the server normalises."""
        images = [Image.fromarray(decode(data, self.channels).squeeze()) for data in inputs["image"]]
        pixels = np.stack([np.asarray(image.resize((self.width, self.height))) for image in images])
        return pixels.reshape(len(images), self.height, self.width, self.channels).transpose(0, 3, 1, 2)

    def after(self, outputs: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
        """Return the answer's outputs, a row for each image."""
        odds = np.exp(outputs["scores"] - outputs["scores"].max(1, keepdims=True))
        label = np.array([f"class {prediction}" for prediction in outputs["prediction"]])
        return {"label": label, "probability": odds.max(1) / odds.sum(1)}
