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
    SEEN_NOW, SEEN_SEGMENT, SEEN_PREVIOUS, SEEN_LOCATION, SEEN_CANDIDATES, SEEN_ENTERED, SEEN_FIFO, SEEN_COMPLETED,  # segments from 0
    SEEN_SERVERS,                                                                  # N records follow
) = range(9)
(
    ITS_CODE, ITS_HOLDS, ITS_REQUESTS, ITS_BLOCKS, ITS_WORK_NS, ITS_UTILIZATION, ITS_POWER,  # bits of widths; + the last two
    ITS_SIZE,
) = range(8)

# -------------------------------------------------------------------------------------------- a plan: what to do with it
(
    PLAN_SERVERS, PLAN_SEGMENTS, PLAN_WIDTHS, PLAN_KEYS, PLAN_MOST,                            # MOST: the largest group
    PLAN_GROUPS_AT, PLAN_GROUP_COUNT,
    PLAN_PLACEMENT, PLAN_STAYS, PLAN_WIDTH_RULE, PLAN_GROUP_RULE, PLAN_GROUP_CAP,
    PLAN_TURN, PLAN_DRAW, PLAN_DRAWS, PLAN_UNIFORMS_AT,                                     # an address
    PLAN_TUPLE_AT, PLAN_RUNGS_AT, PLAN_RUNG_COUNT, PLAN_THRESHOLDS_AT, PLAN_SPEEDS_AT,         # + thresholds, + speeds
    PLAN_IMAGE_NS_AT, PLAN_BATCH_NS_AT, PLAN_TRANSFER_NS_AT,
    PLAN_KNOBS_AT, PLAN_MEMORY_AT,                                                    # + both
    PLAN_SERVER, PLAN_WIDTH, PLAN_GROUP,                                                 # the choice
    PLAN_WAKE_NS,                                                                  # Python is needed at this time
    PLAN_SIZE,
) = range(31)

(
    AT_RANDOM, WEIGHTED, ROUND_ROBIN, SHORTEST, SHORTEST_BY_SPEED, TWO, TWO_BY_SPEED, IDLE, LEAST_WORK, SHORTEST_DELAY,
    DEFICIT,
) = range(11)
RANDOM_WIDTH, FIXED, LADDER, SLACKFIT, INFAAS, BY_SERVER, TIDE = range(7)
LARGEST, RANDOM_GROUP, CAPPED = range(3)
MOST_DRAWS: Final = 4  # of one decision
# fmt: on
