"""The layout of a *sheet* (a router's view) and of a *plan* (a router's rule, and its memory).

Both are rows of 8-byte numbers that begin with the record of that name. A name that ends in `_at` is an offset in the
plan itself, except for `uniforms_at`, an address.
"""

from __future__ import annotations

from functools import cache
from typing import Final

import numpy as np

from kit.jit import Ints
from policies.compiled.record import INT, REAL, Record

NONE: Final = -1
HOLD: Final = -2  # instead of a server: wait; the width is the number that ends it, the group its time in ns
ANYWHERE: Final = -2  # `policies.vocabulary.ANYWHERE`
OUTSIDE: Final = 0  # the width rule of a plan whose caller decides


class Sheet(Record):
    """A router's view for one decision; its view of each server follows.

    `outstanding` counts the requests at all servers, of which `up` are up. A decision examines `samples` servers, whose
    numbers begin at `samples_at`; 0: all.
    """

    now_ns = segment = previous_width = location = candidates = entered_ns = fifo_length = completed = INT
    hold_left_ns = INT
    accuracy_sum = goal_floor = REAL
    late = goal_limit_ns = INT
    goal_energy_weight = REAL
    service_class = others_completed = INT
    outstanding = up = samples = samples_at = INT


class SeenServer(Record):
    """A router's view of a server. In a set of widths, bit w is width w."""

    code = holds = requests = blocks = work_ns = INT
    utilization = power_w = REAL


def blank_sheet(servers: int) -> Ints:
    """Return an empty sheet for this number of servers, and for the numbers of those that are examined."""
    row = np.zeros(Sheet.size + servers * (SeenServer.size + 1), np.int64)
    Sheet(row).samples_at = Sheet.size + servers * SeenServer.size
    return row


@cache
def bits(widths: tuple[bool, ...]) -> int:
    """Return a set of widths as a number: bit w is whether width w is in it."""
    return sum(1 << w for w, is_in in enumerate(widths) if is_in)


class WidthRule(Record):
    """A rule of widths: its code, one of those below, and its parameters."""

    rule = tuple_at = rungs_at = thresholds_at = rung_at = variants_at = control_at = INT


class Plan(Record):
    """A router's rule, and its memory."""

    servers = segments = widths = keys = most = groups_at = group_count = placement = stays = group_rule = INT
    turn = draw = draws = most_draws = uniforms_at = speeds_at = image_ns_at = batch_ns_at = INT
    transfer_ns_at = masks_at = devices_at = links_at = racks_at = links = INT
    share_ns = scratch_at = shares_at = placed_at = memory_at = server = width = group = INT
    wake_ns = delay_at = coming_at = packed_at = sees_all = INT
    width_rule = WidthRule.blank()
