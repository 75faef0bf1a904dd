"""What a learned router sees and may choose (`policies.observation`), written from a cluster's row."""

from __future__ import annotations

from math import log1p

import numpy as np

from policies.jit import Ints, Reals, Singles, kernel
from sim.compiled.layout import *
from sim.compiled.rows import request_at, server_at


@kernel
def _log1p(p: Ints, q: Reals, count: int) -> float:
    return q[p[P_LOGS] + count] if count < LOGS_TABULATED else log1p(count)


@kernel
def write_observation(k: Ints, r: Reals, p: Ints, q: Reals, out: Singles, at: int) -> None:
    """Eq. 1, scaled as in `ObservationSpec`: 2 + 3N numbers from `at` on."""
    out[at] = np.float32(_log1p(p, q, k[C_FIFO_LENGTH]))
    out[at + 1] = np.float32(_log1p(p, q, k[C_COMPLETED]))
    for index in range(p[P_SERVERS]):
        s, place = server_at(p, index), at + 2 + 3 * index
        out[place] = np.float32(_log1p(p, q, k[s + S_REQUESTS]))
        out[place + 1] = np.float32(r[s + S_SEEN_POWER] / q[k[s + S_PARAMETERS] + X_POWER_LIMIT])
        out[place + 2] = np.float32(r[s + S_SEEN_UTILIZATION])


@kernel
def write_codes(k: Ints, p: Ints, out: Ints, at: int) -> None:
    """For each server, bit w says whether it may be chosen with width w: 0 where it can't take the block."""
    segment = k[request_at(p, k[C_SLOT]) + R_SEGMENT]
    for index in range(p[P_SERVERS]):
        out[at + index] = code_of(k, p, index, segment)


@kernel
def code_of(k: Ints, p: Ints, index: int, segment: int) -> int:
    """One server's code for a segment."""
    s = server_at(p, index)
    is_free = k[s + S_UP] == 1 and k[s + S_BLOCKS] < p[P_CAP]
    return p[p[k[s + S_PARAMETERS] + X_CODES] + segment] if is_free else 0
