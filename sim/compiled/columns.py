"""The compiled engine's list of requests as `policies.records.RequestColumns`: no object for each request."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from policies.records import NOT_PASSED, RequestColumns


def request_columns(
    found: NDArray[Any], widths: tuple[float, ...], reasons: tuple[str, ...], is_detailed: bool
) -> RequestColumns:
    """From requests as they are recorded (`run.request_row`), in their order.

    Args:
        reasons: why a request failed, by the engine's numbers.
    """
    head, ran, width = found["head"], found["servers"], found["widths"]
    is_passed = np.arange(ran.shape[1]) < head["length"][:, np.newaxis]
    return RequestColumns(
        request=head["id"],
        arrived_ns=head["arrived_ns"],
        finished_ns=head["finished_ns"],
        status=head["fate"].astype(np.int8),  # the layout numbers them in the order of `STATUSES`
        reason=head["reason"].astype(np.int8),
        correct=head["correct"] != 0,
        energy_j=head["energy_j"],
        width=np.where(is_passed, width, NOT_PASSED).astype(np.int8),
        moves=np.count_nonzero((ran[:, 1:] != ran[:, :-1]) & is_passed[:, 1:], axis=1),
        stages_ns=found["stages_ns"] if is_detailed else None,
        reasons=reasons,
        widths=widths,
    )
