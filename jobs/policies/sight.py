"""What RLTune's network sees of each waiting job: seven numbers (Dongare et al., arXiv 2512.10271; the authors' code).

Age and GPUs alone differ between the jobs of one field at one instant, and what follows from the GPUs: no duration
enters, and the score is a function of the two, given the cluster.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from jobs.policies.choices import VISIBLE, View

VERSION: Final = "rltune/1"
NAMES: Final = ("age", "gpus", "demand over free", "free after all", "partly used nodes", "ways", "fits")
LONGEST_S: Final = 43_200.0
_EPS: Final = 1e-5
_MOST: Final = 1.0 - _EPS
PADDING: Final = (0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0)  # of the slots that nobody has
Seen = NDArray[np.float32]


def seen(view: View) -> Seen:
    """(n, 7) Of each job of a view."""
    field, gpus = view.field, view.gpus
    free, capacity = view.field_free[field], view.field_gpus[field]
    after = (free - view.field_demand[field] + capacity) / (2 * capacity + _EPS)
    rows = np.empty((len(view), len(NAMES)), np.float32)
    rows[:, 0] = np.minimum(view.age_s / LONGEST_S, _MOST)
    rows[:, 1] = np.minimum(gpus / view.largest_node, _MOST)
    rows[:, 2] = np.minimum(gpus / np.maximum(free, _EPS) / capacity, _MOST)
    rows[:, 3] = np.clip(after, 0.0, _MOST)
    rows[:, 4] = view.field_partly_used[field] / view.field_nodes[field]
    rows[:, 5] = np.clip(view.ways / 3, _EPS, _MOST)
    rows[:, 6] = np.where(view.fits, np.where(view.ways >= 2, 1.5 * _MOST, _MOST), _EPS)
    return rows


def padded(rows: Seen) -> Seen:
    """(128, 7) With the slots that nobody has."""
    slots = np.empty((VISIBLE, len(NAMES)), np.float32)
    slots[:] = PADDING
    slots[: len(rows)] = rows[:VISIBLE]
    return slots
