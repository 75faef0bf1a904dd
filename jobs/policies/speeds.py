"""How fast a job runs where: its class's row of speeds by GPU type, and what spreading over more nodes costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil, inf

from kit.errors import InputError


@dataclass(frozen=True, slots=True)
class Speeds:
    """Speeds relative to the reference type, on which the trace's run times count.

    Attributes:
        by_class: job class -> GPU type -> speed, above 0. What has no row, or no entry in it, runs at speed 1.
        spread_slowdown: so many times as long takes a job that lies on more nodes than it must; at least 1.

    Raises:
        InputError: for a speed that is not a finite number above 0, or a slowdown below 1.
    """

    by_class: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    spread_slowdown: float = 1.0

    def __post_init__(self) -> None:
        for job_class, row in self.by_class.items():
            for gpu_type, speed in row.items():
                if not 0 < speed < inf:
                    key = f"{job_class}.{gpu_type}"
                    raise InputError("speeds", key, f"{speed} is no speed: give a finite number above 0")
        if not 1 <= self.spread_slowdown < inf:
            problem = f"{self.spread_slowdown} would not slow a job down: give a finite number of at least 1"
            raise InputError("speeds", "spread_slowdown", problem)

    def of(self, job_class: str, gpu_type: str, is_spread: bool = False) -> float:
        """The speed of a job of this class on GPUs of this type."""
        speed = self.by_class.get(job_class, {}).get(gpu_type, 1.0)
        return speed / self.spread_slowdown if is_spread else speed


def length_ns(work_ns: int, speed: float) -> int:
    """How long work takes at a speed, rounded up to a whole nanosecond."""
    return work_ns if speed == 1.0 else ceil(work_ns / speed)
