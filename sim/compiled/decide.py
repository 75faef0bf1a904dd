"""A cluster's run in compiled code, its router included where that is a plan (`policies.compiled`)."""

from __future__ import annotations

from policies.compiled.layout import *
from policies.compiled.rules import choose
from policies.jit import Ints, Reals, entry, ints, kernel, reals
from sim.compiled.agenda import advance, decide
from sim.compiled.layout import *
from sim.compiled.observation import code_of
from sim.compiled.program import Numbers
from sim.compiled.rows import block_at, request_at, server_at

NEEDS_DRAWS, NEEDS_PLAN = range(100, 102)


@kernel
def write_sheet(k: Ints, r: Reals, p: Ints, g: Ints, v: Ints, u: Reals) -> None:
    """What a router may know, for the decision that is asked for."""
    a = request_at(p, k[C_SLOT])
    segment = k[a + R_SEGMENT]
    v[SEEN_NOW], v[SEEN_SEGMENT], v[SEEN_PREVIOUS], v[SEEN_CANDIDATES] = (
        k[C_NOW],
        segment,
        k[a + R_PREVIOUS],
        k[C_CANDIDATES],
    )
    v[SEEN_LOCATION] = ANYWHERE if p[P_ANYWHERE] else k[a + R_LOCATION]
    v[SEEN_ENTERED], v[SEEN_FIFO], v[SEEN_COMPLETED] = k[a + R_ENTERED], k[C_FIFO_LENGTH], k[C_COMPLETED]
    for index in range(p[P_SERVERS]):
        s, n = server_at(p, index), SEEN_SERVERS + index * ITS_SIZE
        v[n + ITS_CODE] = code_of(k, p, index, segment)
        v[n + ITS_HOLDS] = p[p[k[s + S_PARAMETERS] + X_CODES] + segment]
        v[n + ITS_REQUESTS], v[n + ITS_BLOCKS] = k[s + S_REQUESTS], k[s + S_BLOCKS]
        u[n + ITS_UTILIZATION], u[n + ITS_POWER] = r[s + S_SEEN_UTILIZATION], r[s + S_SEEN_POWER]
        v[n + ITS_WORK_NS] = work_ns(k, p, g, index, k[s + S_BLOCKS]) if g[PLAN_IMAGE_NS_AT] else 0


@kernel
def work_ns(k: Ints, p: Ints, g: Ints, index: int, blocks: int) -> int:
    """The expected time of what is outstanding at a server: of what its blocks have left, as they are few."""
    work, costs, number = 0, g[PLAN_IMAGE_NS_AT] + index * g[PLAN_KEYS], index * p[P_CAP]
    while blocks > 0:
        b = block_at(p, number)
        if k[b + B_DECISION] != NONE:
            work += (k[b + B_COUNT] - k[b + B_ENDED]) * g[costs + k[b + B_KEY]]
            blocks -= 1
        number += 1
    return work


@entry
def run_cluster(
    row: Numbers, parameters: Numbers, plan: Numbers, sheet: Numbers, server: int, width: int, group: int
) -> int:
    """Run a cluster to its end, to a decision that is not the plan's, or until something must grow or be made.

    It begins with its first instant, with the decision that is asked for, or with the answer to it (`server` is NONE
    for none).
    """
    k, r, p, q = ints(row), reals(row), ints(parameters), reals(parameters)
    g, h, v, u = ints(plan), reals(plan), ints(sheet), reals(sheet)
    if server != NONE:
        decide(k, p, server, width, group)
    while True:
        if k[C_ASKED] == 0:
            status = advance(k, r, p, q)
            if status != ASKED:
                return status
        if g[PLAN_WIDTH_RULE] == OUTSIDE:
            return ASKED
        k[C_CREDITS] = 0
        if g[PLAN_DRAW] + g[PLAN_MOST_DRAWS] > g[PLAN_DRAWS]:
            return NEEDS_DRAWS
        write_sheet(k, r, p, g, v, u)
        if k[C_NOW] >= g[PLAN_WAKE_NS]:
            return NEEDS_PLAN
        choose(g, h, v, u)
        decide(k, p, g[PLAN_SERVER], g[PLAN_WIDTH], g[PLAN_GROUP])
