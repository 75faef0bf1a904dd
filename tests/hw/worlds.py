"""Tiny worlds for the hardware's tests: a network of three segments and two widths, its servers and its routers."""

from __future__ import annotations

import numpy as np
import torch

from hw.device import DeviceSpec
from hw.slimresnet import SlimResNet, SlimResNetConfig, instance_bytes, run_segment, slice_weights, tensor_shapes
from hw.telemetry import usable_cores
from policies.greedy import GreedyKnobs
from policies.routing import RouterConfig
from policies.vocabulary import Choice, ClusterView

TINY = SlimResNetConfig(1, 8, 10, 8, 1, 4, widths=(0.5, 1.0), strides=(1, 2, 1))


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
        last = model.segment_weights(TINY.segments)
        means = _mean_features(model)  # (tuples, channels)
        last["head"] -= last["head"] @ torch.linalg.pinv(means) @ means
        last["head_bias"].zero_()
    return model


def _mean_features(model: SlimResNet) -> torch.Tensor:
    """(tuples, channels) what reaches the head, by width tuple that ends at full width, over some images."""
    last = model.segment_weights(TINY.segments)
    channels = last["head"].shape[1]
    bare = {**last, "head": torch.eye(channels), "head_bias": torch.zeros(channels)}
    rows = []
    for first, second, _ in (widths for widths in TINY.tuples() if widths[-1] == 1.0):
        x = model.forward_segment(torch.randn(64, 1, 8, 8), 1, first, 0.0)
        x = model.forward_segment(x, 2, second, first)
        shapes = {**tensor_shapes(TINY, 3, 1.0, second), "head": (channels, channels), "head_bias": (channels,)}
        rows.append(run_segment(TINY, 3, slice_weights(bare, shapes), x).mean(0))
    return torch.stack(rows)


def device(number: int = 0) -> DeviceSpec:
    """A CPU device on one core; odd ones do without oneDNN."""
    cores = usable_cores()
    return DeviceSpec(cores=(cores[number % len(cores)],), onednn=number % 2 == 0, channels_last=False)


def knobs(preload: bool = True) -> GreedyKnobs:
    """Room for everything."""
    sizes = {(s, w): instance_bytes(TINY, s, w) for s in range(1, TINY.segments + 1) for w in TINY.widths}
    loaded = tuple((segment, 1.0) for segment in range(1, TINY.segments + 1)) if preload else ()
    return GreedyKnobs(TINY.widths, sizes, 0, 8, 1 << 24, preload=loaded)


def router(servers: int) -> RouterConfig:
    """Every server holds everything."""
    held = tuple(tuple(tuple(True for _ in TINY.widths) for _ in range(TINY.segments)) for _ in range(servers))
    return RouterConfig(TINY.segments, TINY.widths, held, groups=(1, 2, 4, 8))


class Wanderer:
    """Moves work about: the server that holds the activations is taken last; fixed widths by segment."""

    def __init__(self, widths: tuple[float, ...] = (1.0, 0.5, 1.0)) -> None:
        self.widths = widths

    def choose(self, view: ClusterView, rng: np.random.Generator) -> Choice:
        valid = [index for index, server in enumerate(view.servers) if server.valid]
        elsewhere = [index for index in valid if index != view.head.location]
        return Choice(int(rng.choice(elsewhere or valid)), self.widths[view.head.segment - 1], 4)
