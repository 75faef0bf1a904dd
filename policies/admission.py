"""Who is let in: requests that come while too many are inside are refused, so that those inside keep the p99 latency.

By Little's law so many fit as servers complete within the limit; by the cost model at first, then by what is measured:
a late image takes room away and one in time gives some back, so that the share of late images comes to `AIM` under
overload (a stochastic approximation of a quantile, Robbins and Monro 1951). Of several classes the one with the least
accuracy to keep is refused first.
"""

from __future__ import annotations

from typing import Final, Protocol

REFUSED: Final = "refused"
AIM: Final = 0.005  # share of late images
STEP: Final = 0.5  # of the logarithm of the room, where all of as many images as have room are late
LEAST: Final = 0.1  # of what the cost model says: what is late at that is not late because of others
MOST: Final = 4.0
RESERVED: Final = 0.2  # of the room, that only the class with the most accuracy to keep may use


class Room(Protocol):
    """How many images fit within the limit by the cost model, 0 for no bound, and what was measured of that."""

    images: float
    scale: float


def has_room(room: Room, inside: int, rank: float) -> bool:
    """Whether one more may come in; `rank` is 0 for the class that is refused last, 1 for the first."""
    return room.images <= 0.0 or inside < room.images * room.scale * (1.0 - RESERVED * rank)


def note_end(room: Room, inside: int, is_late: bool) -> None:
    """An image has ended, of so many that were inside."""
    if room.images > 0.0:
        step = STEP / max(1.0, room.images)
        if is_late:
            room.scale = max(LEAST, room.scale * (1.0 - step))
        elif 2.0 * inside >= room.images * room.scale:
            room.scale = min(MOST, room.scale * (1.0 + step * AIM))
