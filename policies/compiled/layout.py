"""What stands where in a *sheet* (what a router sees) and in a *plan* (what it does, and what it remembers).

Both are rows of 8-byte numbers that kernels see twice, as integers and as reals (`policies.jit`).
"""

from __future__ import annotations

from typing import Final

NONE: Final = -1
ANYWHERE: Final = -2  # `policies.vocabulary.ANYWHERE`

# fmt: off
# ---------------------------------------------------------------------------------------------- a sheet: what is seen
(
    SEEN_NOW, SEEN_SEGMENT, SEEN_PREVIOUS, SEEN_LOCATION, SEEN_CANDIDATES, SEEN_ENTERED, SEEN_FIFO, SEEN_COMPLETED,
    SEEN_SERVERS,                                                             # N records follow; segments from 0
) = range(9)
(
    ITS_CODE, ITS_HOLDS, ITS_REQUESTS, ITS_BLOCKS, ITS_WORK_NS, ITS_UTILIZATION, ITS_POWER,
    ITS_SIZE,                                                                 # bits of widths; + the last two
) = range(8)

# ------------------------------------------------------------------------------------------- a plan: what to do with it
# A name on `_AT` is where something begins in the plan itself, but for PLAN_UNIFORMS_AT, an address.
(
    PLAN_SERVERS, PLAN_SEGMENTS, PLAN_WIDTHS, PLAN_KEYS, PLAN_MOST,           # MOST: the largest group there is
    PLAN_GROUPS_AT, PLAN_GROUP_COUNT,                                         # those that the router may choose
    PLAN_PLACEMENT, PLAN_STAYS, PLAN_GROUP_RULE,
    PLAN_TURN, PLAN_DRAW, PLAN_DRAWS, PLAN_MOST_DRAWS, PLAN_UNIFORMS_AT,      # MOST_DRAWS: of one decision
    PLAN_SPEEDS_AT,                                                           # + speeds
    PLAN_IMAGE_NS_AT, PLAN_BATCH_NS_AT, PLAN_TRANSFER_NS_AT,                  # 0 where no rule asks for them
    PLAN_SHARE_NS, PLAN_SCRATCH_AT,                                           # of SLACKFIT
    PLAN_SHARES_AT, PLAN_PLACED_AT,                                           # of DEFICIT: + shares; counts
    PLAN_KNOBS_AT, PLAN_MEMORY_AT,                                            # of TIDE: + both
    PLAN_SERVER, PLAN_WIDTH, PLAN_GROUP,                                      # the choice
    PLAN_WAKE_NS,                                                             # Python is needed at this time
    PLAN_DELAY_AT,                                                            # the widths SHORTEST_DELAY expects
    PLAN_WIDTH_RULE, PLAN_TUPLE_AT, PLAN_RUNGS_AT, PLAN_RUNG_COUNT, PLAN_THRESHOLDS_AT, PLAN_VARIANTS_AT,
    PLAN_SIZE,
) = range(37)

# A record of widths: the router's is at PLAN_WIDTH_RULE; where PLAN_DELAY_AT points to another, it has the same form.
(
    WIDTHS_RULE, WIDTHS_TUPLE_AT, WIDTHS_RUNGS_AT, WIDTHS_RUNG_COUNT, WIDTHS_THRESHOLDS_AT, WIDTHS_VARIANTS_AT,
    WIDTHS_SIZE,
) = range(7)
(
    VARIANTS_WAITING_NS, VARIANTS_UP_NS, VARIANTS_DOWN_NS, VARIANTS_HOLD_NS,
    VARIANTS_SERVERS,                                                         # N records follow
) = range(5)
VARIANT_COUNT, VARIANT_LEVEL, VARIANT_SINCE_NS, VARIANT_TUPLES_AT, VARIANT_SIZE = range(5)

(
    AT_RANDOM, WEIGHTED, ROUND_ROBIN, SHORTEST, SHORTEST_BY_SPEED, TWO, TWO_BY_SPEED, IDLE, LEAST_WORK, SHORTEST_DELAY,
    DEFICIT,
) = range(11)
OUTSIDE, RANDOM_WIDTH, FIXED, LADDER, SLACKFIT, INFAAS, BY_SERVER, TIDE = range(8)  # OUTSIDE: who runs it decides
LARGEST, RANDOM_GROUP = range(2)
# fmt: on
