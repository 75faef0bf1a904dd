"""Tiny worlds for the hardware's tests: a network of three segments and two widths, its servers and its routers."""

from __future__ import annotations

import numpy as np
import torch

from hw.device_settings import DeviceSpec
from hw.networks.architectures import SlimResNet, SlimResNetConfig
from hw.networks.network_files import Network
from hw.networks.slimmable import Shape, Weights, slice_weights
from hw.router.run_requests import HardwareRun
from hw.telemetry import usable_cores
from policies.greedy_scheduler import GreedyParams
from policies.interfaces import RouterConfig
from policies.vocabulary import NS_PER_S, Choice, ClusterView

TINY = SlimResNetConfig(1, 8, 10, 8, 1, 4, widths=(0.5, 1.0), strides=(1, 2, 1))
TINY_SPEC = TINY.spec


class TinyNet(SlimResNet):
    """The tiny network as a user's own class would be."""

    def __init__(self, shape: str = "tiny") -> None:
        super().__init__({"tiny": TINY}[shape])


TINY_NETWORK = Network("tests.hw.tiny:TinyNet")
_HEAD = f"segments.{TINY.segments - 1}.head"


def tiny_model(seed: int = 0) -> SlimResNet:
    """Random weights in every tensor (a fresh model has zeros that would hide mistakes), and labels that differ.

    A random network says one label for nearly everything; so the head is made blind to the mean features of the width
    tuples that end at full width.
    """
    torch.manual_seed(seed)
    model = SlimResNet(TINY)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
        head = model.get_parameter(_HEAD)
        means = _mean_features(model)  # (tuples, channels)
        head.sub_(head @ torch.linalg.pinv(means) @ means)
        model.get_parameter(f"{_HEAD}_bias").zero_()
    return model


def _mean_features(model: SlimResNet) -> torch.Tensor:
    """(tuples, channels) what reaches the head, by width tuple that ends at full width, over some images."""
    channels = model.get_parameter(_HEAD).shape[1]
    bare = {_HEAD: torch.eye(channels), f"{_HEAD}_bias": torch.zeros(channels)}
    rows = []
    for first, second, _ in (widths for widths in TINY_SPEC.tuples() if widths[-1] == 1.0):
        x = model.forward_segment(torch.randn(64, 1, 8, 8), 1, first, 0.0)
        x = model.forward_segment(x, 2, second, first)
        weights = slice_weights(dict(model.named_parameters()), model.weight_shapes(3, 1.0, second))
        rows.append(model.run_segment(3, {**weights, **bare}, x).mean(0))
    return torch.stack(rows)


def device(number: int = 0) -> DeviceSpec:
    """A CPU device on one core; odd ones do without oneDNN."""
    cores = usable_cores()
    return DeviceSpec(cores=(cores[number % len(cores)],), onednn=number % 2 == 0, channels_last=False)


def params(preload: bool = True) -> GreedyParams:
    model = SlimResNet(TINY)
    sizes = {(s, w): model.instance_bytes(s, w) for s in range(1, TINY.segments + 1) for w in TINY.widths}
    loaded = tuple((segment, 1.0) for segment in range(1, TINY.segments + 1)) if preload else ()
    return GreedyParams(TINY.widths, sizes, 0, 8, 1 << 24, preload=loaded)


def router(servers: int) -> RouterConfig:
    held = tuple(tuple(tuple(True for _ in TINY.widths) for _ in range(TINY.segments)) for _ in range(servers))
    return RouterConfig(TINY.segments, TINY.widths, held, micro_batch_sizes=(1, 2, 4, 8))


def true_run(
    model: SlimResNet, widths: tuple[float, ...], seconds: float = 1.0, rate_per_s: float = 150.0
) -> HardwareRun:
    """Labels are what the model itself says at these widths: with true executors every image is correct."""
    images = torch.randn(50, 1, 8, 8, generator=torch.Generator().manual_seed(2)).numpy()
    labels = model(torch.from_numpy(images), widths).argmax(1).numpy().astype(np.int64)
    assert len(set(labels.tolist())) > 5
    between_ns = np.random.default_rng(0).exponential(NS_PER_S / rate_per_s, int(rate_per_s * seconds))
    arrivals_ns = np.cumsum(between_ns).astype(np.int64)
    return HardwareRun(arrivals_ns, images, labels, round(seconds * NS_PER_S), keep_log=True)


class Wanderer:
    """Moves work about: the server that holds the activations is taken last; fixed widths by segment."""

    def __init__(self, widths: tuple[float, ...] = (1.0, 0.5, 1.0)) -> None:
        self.widths = widths

    def choose(self, view: ClusterView, rng: np.random.Generator) -> Choice:
        valid = [index for index, server in enumerate(view.servers) if server.valid]
        elsewhere = [index for index in valid if index != view.head.location]
        return Choice(int(rng.choice(elsewhere or valid)), self.widths[view.head.segment - 1], 4)


POISON = 666.0


class MoodyNet(TinyNet):
    """The tiny network, but an image of `POISON` breaks a batch with these words, and more than `most` are too many."""

    def __init__(self, most: int = 3, words: str = "a broken image") -> None:
        super().__init__()
        self.most = most
        self.words = words
        self.passes = 0

    def run_segment(self, segment: int, weights: Weights, x: torch.Tensor) -> torch.Tensor:
        self.passes += 1
        if bool((x == POISON).any()):
            raise RuntimeError(self.words)
        if len(x) > self.most:
            raise torch.OutOfMemoryError(f"{len(x)} images")
        return super().run_segment(segment, weights, x)


class IdleNet(TinyNet):
    """The tiny network, but its second segment gives back its very input."""

    def weight_shapes(self, segment: int, width: float, previous_width: float) -> dict[str, Shape]:
        return {} if segment == 2 else super().weight_shapes(segment, width, 1.0 if segment == 3 else previous_width)

    def run_segment(self, segment: int, weights: Weights, x: torch.Tensor) -> torch.Tensor:
        return x if segment == 2 else super().run_segment(segment, weights, x)
