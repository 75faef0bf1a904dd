"""Descriptions of what is served, and of one run on real executors. Types only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hw.networks.datasets import Images
from hw.networks.registry import ModelFile
from hw.router.transfers import ELEMENT_BYTES, LinkModel
from policies.faults import Fault
from policies.vocabulary import IMAGE, NS_PER_S, GoalSet


@dataclass(frozen=True, slots=True)
class ServedNetwork:
    """The part of a network's description that its router needs.

    Attributes:
        input_shape: of an image.
        shape_after: (segment, width) -> of one activation after it; segment 0 is the image.
    """

    segments: int
    widths: tuple[float, ...]
    input_shape: tuple[int, ...]
    shape_after: Callable[[int, float], tuple[int, ...]]

    @property
    def largest_input_bytes(self) -> int:
        """The most that an image takes before a segment; of several models the last width need not be the largest."""
        shapes = [self.shape_after(segment, width) for segment in range(1, self.segments) for width in self.widths]
        return ELEMENT_BYTES * max(prod(shape) for shape in (self.input_shape, *shapes))

    @classmethod
    def of(cls, file: ModelFile) -> ServedNetwork:
        """Return the description of a network in a file; raises `InputError` if it cannot be read."""
        model, _ = file.load()
        return cls(model.spec.segments, model.spec.widths, model.spec.input_shape, model.activation_shape)

    @classmethod
    def of_sizes(
        cls, widths: tuple[float, ...], input_bytes: int, activation_bytes: Sequence[Sequence[int]]
    ) -> ServedNetwork:
        """Return the description of a network with known sizes only: of an image, and after (segment, width)."""

        def shape_after(segment: int, width: float) -> tuple[int, ...]:
            size_bytes = activation_bytes[segment - 1][widths.index(width)] if segment else input_bytes
            return (-(-size_bytes // ELEMENT_BYTES),)

        return cls(len(activation_bytes), widths, shape_after(0, IMAGE), shape_after)


@dataclass(frozen=True)
class HardwareRun:
    """The events of a run of the cluster.

    Attributes:
        arrivals_ns: (n,) ascending; request i arrives at arrivals_ns[i].
        images: (n, C, H, W), and labels (n,).
        horizon_ns: arrivals end here; so does the run under `end: cut`.
        end: `drain` continues until nothing is in flight, `drain_limit_ns` at most.
        deadlines_ns: after its arrival, for every request of each class; None for no deadline.
        classes: (n,) the class of each request; None if all are of one.
        keep_log: keep every event and command for replay.
        faults: planned for the agents, with their times.
        goals: the operator's targets with their times, ascending.
        shown: (m,) request i shows image `shown[i modulo m]`; None for all images in turn.
        links: an emulated network between the servers; None for this machine's own. Of this run alone.
        is_correct: (request, its widths) -> whether it is right, if agents return no labels; None compares their labels
            with `labels`.
        measures_costs: whether to measure the costs of the router's process and the port.
    """

    arrivals_ns: NDArray[np.int64]
    images: Images
    labels: NDArray[np.int64]
    horizon_ns: int
    end: Literal["drain", "cut"] = "drain"
    deadlines_ns: tuple[int | None, ...] = (None,)
    classes: NDArray[np.int64] | None = None
    drain_limit_ns: int = 60 * NS_PER_S
    keep_log: bool = False
    faults: tuple[Fault, ...] = ()
    goals: tuple[tuple[int, GoalSet], ...] = ()
    links: LinkModel | None = None
    is_correct: Callable[[int, tuple[float, ...]], bool] | None = None
    measures_costs: bool = False
    shown: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        if len(self.labels) != len(self.images) or not len(self.images):
            raise ValueError(f"{len(self.images)} images with {len(self.labels)} labels")
        if np.any(np.diff(self.arrivals_ns) < 0):
            raise ValueError("arrivals must ascend")

    @property
    def images_shown(self) -> NDArray[np.int64]:
        """(m,); see `shown`."""
        return np.arange(len(self.images)) if self.shown is None else self.shown
