"""Images of one's own: noisy stripes; the class is their direction, one of eight."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Part = tuple[NDArray[np.float32], NDArray[np.int64]]
NOISE = 1.4  # standard deviation; the stripes go from -1 to 1


class Stripes:
    """`train` and `test`, each (images (n, 1, 16, 16), labels (n,)): the same ones at every call."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.train, self.test = drawn(rng, 2000), drawn(rng, 500)


def drawn(rng: np.random.Generator, images: int) -> Part:
    """So many images, each of a direction, a phase and noise of its own."""
    labels = rng.integers(8, size=images)
    angles = (labels * np.pi / 8)[:, None, None]
    phases = rng.uniform(0, 2 * np.pi, size=(images, 1, 1))
    y, x = np.mgrid[:16, :16]
    stripes = np.sin(1.2 * (x * np.cos(angles) + y * np.sin(angles)) + phases)
    noisy = stripes + rng.normal(0, NOISE, stripes.shape)
    return noisy[:, None].astype(np.float32), labels
