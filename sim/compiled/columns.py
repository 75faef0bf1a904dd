"""The compiled engine's list of requests as `policies.records.RequestColumns`: no object for each request."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from policies.records import NOT_PASSED, RequestColumns
from sim.compiled.layout import *


def request_columns(
    found: NDArray[np.int64], segments: int, widths: tuple[float, ...], reasons: tuple[str, ...], is_detailed: bool
) -> RequestColumns:
    """From the lines of `C_REQUESTS_AT` (see `A_ID` in the layout), in their order.

    Args:
        reasons: why a request failed, by the engine's numbers.
    """
    servers_at = A_STAGES + STAGE_COUNT + 1
    widths_at = servers_at + segments
    ran, width = found[:, servers_at:widths_at], found[:, widths_at : widths_at + segments]
    is_passed = np.arange(segments) < found[:, A_LENGTH, np.newaxis]
    return RequestColumns(
        request=found[:, A_ID],
        arrived_ns=found[:, A_ARRIVED],
        finished_ns=found[:, A_FINISHED],
        status=found[:, A_FATE].astype(np.int8),  # the layout numbers them in the order of `STATUSES`
        reason=found[:, A_REASON].astype(np.int8),
        correct=found[:, A_CORRECT] != 0,
        energy_j=found[:, A_ENERGY].view(np.float64),
        width=np.where(is_passed, width, NOT_PASSED).astype(np.int8),
        moves=np.count_nonzero((ran[:, 1:] != ran[:, :-1]) & is_passed[:, 1:], axis=1),
        stages_ns=found[:, A_STAGES:servers_at] if is_detailed else None,
        reasons=reasons,
        widths=widths,
    )
