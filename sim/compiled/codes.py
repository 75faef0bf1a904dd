"""Numeric codes of words in a cluster's row."""

from __future__ import annotations

from typing import Final

from policies.admission import REFUSED
from policies.compiled.layout import NONE
from policies.faults import NO_LABEL, OUT_OF_MEMORY, PLANNED, WORKER_DIED, WORKER_HUNG

__all__ = ["NONE"]

NEVER: Final = 1 << 62
ALONE: Final = -1  # the line of a request that shares no block
FIRST_DRAW: Final = 1 << 32  # `sim.physics._FIRST`: the hash's numbers of a device's first state
LOGS_TABULATED: Final = 1 << 15

# Why `advance` returned.
ASKED, ENDED, REQUESTS_FULL, INSTANCES_FULL, BLOCKS_FULL, RECORDS_FULL, NO_CURVE, NO_TUPLE, MESSAGES_FULL = range(1, 10)

# An instance's state.
LOADING, FREE, BUSY, UNLOADING = range(4)

# A request's fate.
COMPLETED, IN_FLIGHT, FAILED = range(3)

# Why a request was tried again or given up, and its name in records.
NO_REASON, DEADLINE, TOO_LARGE, SERVER_LOST, UNLABELLED, MEMORY, NO_ROOM = range(7)
REASONS = {DEADLINE: "deadline", TOO_LARGE: "instance_too_large", SERVER_LOST: "server_down", UNLABELLED: NO_LABEL,
           MEMORY: OUT_OF_MEMORY, NO_ROOM: REFUSED, NO_REASON: ""}  # fmt: skip

# Why a server is down, and the reason's name in records.
OUT, DIED, HUNG = range(3)
DOWN_REASONS = {OUT: PLANNED, DIED: WORKER_DIED, HUNG: WORKER_HUNG}

# Whether labels are drawn from a table, or replayed from a matrix.
DRAWN, REPLAYED = range(2)
