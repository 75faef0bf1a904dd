"""Random images as a custom data set, for networks of random weights without an available data set."""

from __future__ import annotations

import numpy as np

from benchmarks.gpu.stand import NETWORKS, SEED
from hw.networks.architectures import SLIMRESNETS, SlimResNet
from kit.random_streams import stream

IMAGES = 256


class Noise:
    """See `hw.networks.datasets.OwnDataset`; the shape and the classes are those of a stand's network."""

    kind = "cpu"

    def __init__(self) -> None:
        spec, chance = SlimResNet(SLIMRESNETS[NETWORKS[self.kind]]).spec, stream(SEED, "gpu checks, images")
        shape, labels = (IMAGES, *spec.input_shape), np.arange(IMAGES) % spec.classes
        self.train = chance.standard_normal(shape, np.float32), labels
        self.test = chance.standard_normal(shape, np.float32), labels


class LargeNoise(Noise):
    """Random images for a GPU's network."""

    kind = "cuda"
