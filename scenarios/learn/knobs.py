"""How a router is tuned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Objective = Literal["latency", "energy"]
TAIL: Final = 0.2


@dataclass(frozen=True, slots=True)
class TuningKnobs:
    """How a router is tuned.

    Attributes:
        floor: mean accuracy, a share, that must be kept; of classes of requests the strictest.
        class_floors: if requests have classes, of each the floor that must be kept; 0 for none.
        decisions: how many simulated decisions a search may take; accuracy matching comes on top, the same for all.
        searches: independent ones; a final evaluation picks from what they found.
        seed: of the first search, and of the runs it sees; those of the others are derived from it.
        episodes: runs that every candidate is measured on in a generation.
        episode_s: their length; slices of the scenario.
        matching_runs: full-length runs that the floor is set on.
        tail: weight of log p99 relative to the log mean: the tail constraint.
        pid: the price of a point of accuracy is controlled (a Lagrangian multiplier); otherwise the floor is a steep
            wall.
        rates: each run's rate is drawn from this range, in times of the workload's.
        as_they_are: settings that are not picked from lists (`scenarios.learn.settings.options_of`).
        population, elite: of a generation.
        objective: what is made small: `latency`, or `energy` an image at a p99 latency of at most `p99_limit_s`.
        control: the router keeps the goals that the operator asks for in mid-run (`policies.goal_control`).
    """

    floor: float
    decisions: int = 40_000_000
    searches: int = 1
    seed: int = 0
    episodes: int = 3
    episode_s: float = 10.0
    matching_runs: int = 3
    tail: float = TAIL
    pid: bool = True
    rates: tuple[float, float] = (1.0, 1.0)
    as_they_are: tuple[str, ...] = ()
    population: int = 16
    elite: int = 4
    objective: Objective = "latency"
    p99_limit_s: float | None = None
    control: bool = False
    class_floors: tuple[float, ...] = ()
