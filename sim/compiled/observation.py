"""What a learned router sees and may choose (`policies.observation`), written from a cluster's row."""

from __future__ import annotations

from math import log1p

import numpy as np

from policies.jit import Ints, Singles, ints, kernel, reals
from sim.compiled.layout import LOGS_TABULATED, Cluster, Parameters
from sim.compiled.rows import knobs_of, request_at, server_at


@kernel
def _log1p(p: Parameters, count: int) -> float:
    return reals(p)[p.logs_at + count] if count < LOGS_TABULATED else log1p(count)


@kernel
def write_observation(c: Cluster, p: Parameters, out: Singles, at: int) -> None:
    """Eq. 1, scaled as in `ObservationSpec`: 2 + 3N numbers from `at` on."""
    out[at] = np.float32(_log1p(p, c.fifo_length))
    out[at + 1] = np.float32(_log1p(p, c.completed))
    for index in range(p.servers):
        server, place = server_at(c, p, index), at + 2 + 3 * index
        out[place] = np.float32(_log1p(p, server.requests))
        out[place + 1] = np.float32(server.seen_power_w / knobs_of(p, server).power_limit_w)
        out[place + 2] = np.float32(server.seen_utilization)


@kernel
def write_codes(c: Cluster, p: Parameters, out: Ints, at: int) -> None:
    """For each server, bit w says whether it may be chosen with width w: 0 where it can't take the block."""
    segment = request_at(c, p, c.slot).segment
    for index in range(p.servers):
        out[at + index] = code_of(c, p, index, segment)


@kernel
def code_of(c: Cluster, p: Parameters, index: int, segment: int) -> int:
    """One server's code for a segment."""
    server = server_at(c, p, index)
    is_free = server.is_up == 1 and server.blocks < p.cap
    return ints(p)[knobs_of(p, server).codes_at + segment] if is_free else 0
