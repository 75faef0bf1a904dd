"""What stands where in a *sheet* (what a router sees) and in a *plan* (what it does, and what it remembers).

Both are rows of 8-byte numbers that begin with the record of that name. A name on `_at` is where something begins in
the plan itself, but for `uniforms_at`, an address.
"""

from __future__ import annotations

from functools import cache
from typing import Final

import numpy as np

from kit.jit import Ints
from policies.compiled.record import INT, REAL, Record

NONE: Final = -1
HOLD: Final = -2  # in place of a server: wait; the width is until how many, the group for how long, in ns
ANYWHERE: Final = -2  # `policies.vocabulary.ANYWHERE`
OUTSIDE: Final = 0  # the rule of widths of a plan whose decisions are made by whoever runs it


class Sheet(Record):
    """What a router sees, for one decision; what it sees of each server follows.

    `outstanding` are the requests at all servers, of which `up` are up. `samples` servers are looked at, whose numbers
    stand at `samples_at`; 0: all are.
    """

    now_ns = segment = previous_width = location = candidates = entered_ns = fifo_length = completed = INT
    hold_left_ns = INT
    accuracy_sum = goal_floor = REAL
    late = goal_limit_ns = INT
    goal_energy_weight = REAL
    service_class = others_completed = INT
    outstanding = up = samples = samples_at = INT


class SeenServer(Record):
    """What a router sees of a server. Of a set of widths, bit w stands for width w."""

    code = holds = requests = blocks = work_ns = INT
    utilization = power_w = REAL


def blank_sheet(servers: int) -> Ints:
    """A sheet for so many servers, and for the numbers of those that are looked at."""
    row = np.zeros(Sheet.size + servers * (SeenServer.size + 1), np.int64)
    Sheet(row).samples_at = Sheet.size + servers * SeenServer.size
    return row


@cache
def bits(widths: tuple[bool, ...]) -> int:
    """A set of widths as a number: bit w says whether width w is in it."""
    return sum(1 << w for w, is_in in enumerate(widths) if is_in)


class WidthRule(Record):
    """Which width to choose: one of the rules below, and what it needs."""

    rule = tuple_at = rungs_at = thresholds_at = rung_at = variants_at = control_at = INT


class Plan(Record):
    """What a router does, and what it remembers."""

    servers = segments = widths = keys = most = groups_at = group_count = placement = stays = group_rule = INT
    turn = draw = draws = most_draws = uniforms_at = speeds_at = image_ns_at = batch_ns_at = INT
    transfer_ns_at = masks_at = devices_at = links_at = racks_at = links = INT
    share_ns = scratch_at = shares_at = placed_at = memory_at = server = width = group = INT
    wake_ns = delay_at = coming_at = packed_at = sees_all = INT
    width_rule = WidthRule.blank()
