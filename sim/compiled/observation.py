"""A router's view and its possible choices, written from a cluster's row: for learned (`policies.observation`) and
others."""

from __future__ import annotations

from math import log1p

import numpy as np

from kit.jit import Ints, Singles, entry, ints, kernel, reals
from sim.compiled.codes import LOGS_TABULATED
from sim.compiled.layout import Cluster, HeadSeen, Observed, Parameters, Server, ServerSeen, WorkSeen
from sim.compiled.rows import key_at, knobs_of, observed_at, place_of, request_at, server_at, tally_at

_HEAD_SEEN, _SERVER_SEEN, _WORK_SEEN, _OBSERVED = HeadSeen.size, ServerSeen.size, WorkSeen.size, Observed.size


@kernel
def _log1p(p: Parameters, count: int) -> float:
    return reals(p)[p.logs_at + count] if count < LOGS_TABULATED else log1p(count)


@kernel
def write_observation(c: Cluster, p: Parameters, out: Singles, at: int) -> None:
    """Write Eq. 1, scaled as in `ObservationSpec`: 2 + 3N numbers from `at` on."""
    out[at] = np.float32(_log1p(p, c.fifo_length))
    out[at + 1] = np.float32(_log1p(p, c.completed))
    for n in range(_OBSERVED * p.servers):
        out[at + 2 + n] = np.float32(reals(c)[p.observed_at + n])


@kernel
def count_requests(c: Cluster, p: Parameters, server: Server, change: int) -> None:
    """Add to the outstanding requests at a server, or subtract."""
    server.requests += change
    observed_at(c, p, server.index).requests = _log1p(p, server.requests)


@kernel
def write_codes(c: Cluster, p: Parameters, out: Ints, at: int) -> None:
    """Write, for each server, the code in which bit w is whether it may be chosen with width w: 0 if it can't take the
    block."""
    place = place_of(p, request_at(c, p, c.slot))
    for index in range(p.servers):
        out[at + index] = code_of(c, p, index, place)


@kernel
def code_of(c: Cluster, p: Parameters, index: int, place: int) -> int:
    """Return one server's code for a segment of a model (`place_of`)."""
    server = server_at(c, p, index)
    is_free = server.is_up == 1 and server.blocks < p.cap
    return ints(p)[knobs_of(p, server).codes_at + place] if is_free else 0


@kernel
def resident_widths(p: Parameters, server: Server, segment: int) -> tuple[int, int]:
    """Return a segment's widths that the router assumes loaded at a server, and loading (`ServerView`), as bits."""
    first, every, asked_for = min(segment * p.widths, 63), (1 << p.widths) - 1, 0
    for width in range(p.widths):
        for previous in range(p.widths + 1):
            key = (segment * p.widths + width) * (p.widths + 1) + previous
            asked_for |= (key_at(p, server, key).outstanding > 0) << width
    return server.seen_loaded_bits >> first & every, (server.seen_loading_bits >> first | asked_for) & every


@entry
def read_view(row: Ints, parameters: Ints, out: Ints) -> int:
    """Write a router's view in one list: `HeadSeen`, then for each server `ServerSeen` and its work, oldest first.

    Returns its length.
    """
    c, p, head = Cluster(row), Parameters(parameters), HeadSeen(out)
    request = request_at(c, p, c.slot)
    head.segment, head.previous_width, head.location = request.segment, request.previous_width, request.location
    head.candidates, head.entered_ns = c.candidates, request.entered_ns
    head.fifo_length, head.completed, head.hold_left_ns = c.fifo_length, c.completed, c.hold_left_ns
    tally = tally_at(c, p, request.service_class)
    head.accuracy_sum, head.late = tally.accuracy_sum, tally.late
    head.goal_floor, head.goal_limit_ns, head.goal_energy_weight = tally.floor, tally.limit_ns, tally.energy_weight
    head.service_class, head.others_completed = request.service_class, c.completed - tally.completed
    at = _HEAD_SEEN
    for index in range(p.servers):
        server, seen = server_at(c, p, index), ServerSeen(out, at)
        seen.is_valid = code_of(c, p, index, place_of(p, request)) != 0
        seen.requests, seen.blocks, seen.vram_bytes = server.requests, server.blocks, server.seen_vram_bytes
        seen.utilization, seen.power_w = observed_at(c, p, index).utilization, reals(c)[p.powers_at + index]
        seen.loaded_bits, seen.loading_bits = resident_widths(p, server, request.segment)
        seen.keys = 0
        for key in range(p.keys):
            queue = key_at(p, server, key)
            if queue.outstanding > 0:
                place = seen.keys
                while place > 0 and WorkSeen(seen, _SERVER_SEEN, place - 1).since > queue.since:
                    before, work = WorkSeen(seen, _SERVER_SEEN, place - 1), WorkSeen(seen, _SERVER_SEEN, place)
                    work.since, work.key, work.requests = before.since, before.key, before.requests
                    place -= 1
                work = WorkSeen(seen, _SERVER_SEEN, place)
                work.since, work.key, work.requests = queue.since, key, queue.outstanding
                seen.keys += 1
        at += _SERVER_SEEN + seen.keys * _WORK_SEEN
    return at
