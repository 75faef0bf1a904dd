"""The images inside: each in a slot of an arena, which the ingress writes and the router reads."""

from __future__ import annotations

from math import prod

import numpy as np
from numpy.typing import NDArray

from hw.transport.arena import Arena


def slots_of(arena: Arena, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Return (slots, values of an image), the arena's slots."""
    image = prod(shape)
    count = arena.size_bytes // (4 * image)
    return np.frombuffer(arena.buffer, np.float32, count * image).reshape(count, image)


class SlotImages:
    """See `hw.router.transfers.Images`: each request's image is in its slot.

    Attributes:
        slot_of: of each request in flight.
    """

    def __init__(self, slots: NDArray[np.float32], shape: tuple[int, ...]) -> None:
        self.shape = shape
        self.slot_of: dict[int, int] = {}
        self._slots = slots

    def write(self, requests: tuple[int, ...], target: NDArray[np.float32], channels_last: bool) -> None:
        """See `hw.router.transfers.Images`."""
        places = [self.slot_of.get(request, 0) for request in requests]  # without a slot, its answer is unwanted
        images = self._slots[places].reshape(-1, *self.shape)
        if channels_last and images.ndim == 4:
            images = images.transpose(0, 2, 3, 1)
        target.reshape(images.shape)[...] = images
