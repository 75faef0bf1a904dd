"""GPUs of one type that are not equally fast, drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from jobs.policies.cluster import NodeGroup
from jobs.policies.variability import Variability
from kit.chance import stream
from kit.errors import InputError


def drawn_variability(groups: Sequence[NodeGroup], spreads: Mapping[str, float], seed: int) -> Variability:
    """A GPU that is slow for one class is slow for all, by as much as each is sensitive.

    Each GPU draws a normal number z. Its factor for a class of spread s is exp(-s z), over that of the fastest GPU.

    Args:
        spreads: by job class: how much the logarithm of the speed varies (standard deviation).

    Raises:
        InputError: for a spread below 0, or above 2.
    """
    for job_class, spread in spreads.items():
        if not 0 <= spread <= 2:
            raise InputError("variability", job_class, f"a spread of {spread}: allowed are 0 to 2")
    rng = stream(seed, "GPU variability")
    z = [rng.standard_normal(group.gpus) for group in groups for _ in range(group.nodes)]
    fastest = min(float(row.min()) for row in z)
    return Variability(
        {
            job_class: tuple(tuple(np.exp(-spread * (row - fastest)).tolist()) for row in z)
            for job_class, spread in spreads.items()
        }
    )
