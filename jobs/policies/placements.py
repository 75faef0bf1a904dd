"""Which GPUs a job gets: a word in a policy file.

A placement searches the job's pools one after another, by fewest nodes or by speed, and within a pool for nodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from jobs.policies.cluster import Pool, Search
from jobs.policies.speeds import Speeds


@dataclass(frozen=True, slots=True)
class Placement:
    """How GPUs are searched.

    Attributes:
        search: of nodes within a pool.
        may_spread: whether a job may lie on more nodes than it must.
        is_speed_aware: whether the pool where a job runs fastest comes first; else that where it lies on the fewest
            nodes does.
        is_variability_aware: whether jobs get GPUs by how fast these are for their class, where GPUs of one type differ
            (`jobs.policies.variability`). Under reservations and rounds, and for those for whom others make room, it is
            the GPUs of nodes that `search` has found.
        is_by_number: pools come as the cluster's file names them.
        programme: which of RLTune's programmes lays whoever is chosen and fits by `search` (`jobs.policies.mapping`):
            `written`, `meant`, or none.
    """

    search: Search
    may_spread: bool = False
    is_speed_aware: bool = False
    is_variability_aware: bool = False
    is_by_number: bool = False
    programme: Literal["", "written", "meant"] = ""

    def largest(self, pool: Pool) -> int:
        """The largest gang for which the search would find something; it does for all that are smaller."""
        return pool.free_gpus if self.may_spread else pool.largest_gang

    def sorted_pools(self, gpus: int, job_class: str, pools: Sequence[Pool], speeds: Speeds) -> tuple[Pool, ...]:
        """In the order in which they are searched; equal ones as the cluster's file names them."""

        def merit(pool: Pool) -> tuple[float, int, int]:
            speed = speeds.of(job_class, pool.gpu_type) if self.is_speed_aware else 0.0
            return -speed, 0 if self.is_by_number else pool.fewest_nodes(gpus), pool.index

        return tuple(sorted(pools, key=merit))


PLACEMENTS: Final[Mapping[str, Placement]] = {
    "best-fit": Placement(Pool.best_fit),
    "worst-fit": Placement(Pool.worst_fit),
    "consolidate": Placement(Pool.consolidated, may_spread=True),
    "speed-aware": Placement(Pool.best_fit, is_speed_aware=True),
    "variability-aware": Placement(Pool.best_fit, is_variability_aware=True),
    "lowest": Placement(Pool.lowest_fit, is_by_number=True),
    "programme-as-written": Placement(Pool.lowest_fit, is_by_number=True, programme="written"),
    "programme": Placement(Pool.lowest_fit, is_by_number=True, programme="meant"),
}
