"""Admission: requests that arrive while too many are inside are refused, so that those inside keep the p99 latency.

By Little's law the number that fits is that of completions within the limit; first from the cost model, then from
measurements: a late image reduces the room and an image in time increases it, so that the share of late images
converges to `AIM` under overload (a stochastic approximation of a quantile, Robbins and Monro 1951). Of several classes
the one with the lowest accuracy to keep is refused first.
"""

from __future__ import annotations

from typing import Final, Protocol

REFUSED: Final = "refused"
AIM: Final = 0.005  # share of late images
STEP: Final = 0.5  # of the logarithm of the room, if a full room of images is late
LEAST: Final = 0.1  # of the cost model's number: images late at that are not late because of others
MOST: Final = 4.0
RESERVED: Final = 0.2  # of the room, reserved for the class with the highest accuracy to keep


class Room(Protocol):
    """The number of images that fit within the limit by the cost model, 0 for no bound, and its measured scale."""

    images: float
    scale: float


def has_room(room: Room, inside: int, rank: float) -> bool:
    """Return whether one more may enter; `rank` is 0 for the class that is refused last, 1 for the first."""
    return room.images <= 0.0 or inside < room.images * room.scale * (1.0 - RESERVED * rank)


def note_end(room: Room, inside: int, is_late: bool) -> None:
    """Note that an image has ended, with `inside` images inside before."""
    if room.images > 0.0:
        step = STEP / max(1.0, room.images)
        if is_late:
            room.scale = max(LEAST, room.scale * (1.0 - step))
        elif 2.0 * inside >= room.images * room.scale:
            room.scale = min(MOST, room.scale * (1.0 + step * AIM))
