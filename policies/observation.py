"""The observation (Eq. 1) and the action masks of a learned router, as arrays, independent of the learning method.

Scales are fixed, never running ones: an observation means the same at the start of training, at its end and on the
hardware, and a stored router needs no statistics except its weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log1p

import numpy as np
import numpy.typing as npt

from policies.vocabulary import ClusterView

Floats = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class ObservationSpec:
    """Eq. 1 as a float32 vector of 2 + 3 N numbers, for N servers.

    ======  =========================  ==================================================================
    index   of the paper               value
    ======  =========================  ==================================================================
    0       q_fifo                     log1p(requests in the global FIFO, the candidate block's included)
    1       c_done                     log1p(requests completed since the start of the run)
    2+3i    q_i                        log1p(requests sent to server i and not returned)
    3+3i    P_i                        server i's last reported power / its device's power limit
    4+3i    U_i                        server i's last reported utilization, a share in [0, 1]
    ======  =========================  ==================================================================

    A server that has not reported yet has power and utilization 0. The head's segment, its previous width and the
    location of its activations are not in Eq. 1 and are not here.

    Attributes:
        power_limits_w: (N,) each server's device power limit, all positive.
    """

    power_limits_w: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.power_limits_w or min(self.power_limits_w) <= 0:
            raise ValueError(f"every server needs a positive power limit: {self.power_limits_w}")

    @property
    def size(self) -> int:
        """2 + 3 N."""
        return 2 + 3 * len(self.power_limits_w)

    def observe(self, view: ClusterView) -> Floats:
        """Return (2 + 3 N,) float32; raises `ValueError` if the view has another number of servers."""
        values = [log1p(view.fifo_length), log1p(view.completed)]
        for server, limit_w in zip(view.servers, self.power_limits_w, strict=True):
            values += (log1p(server.outstanding_requests), server.power_w / limit_w, server.utilization)
        return np.array(values, dtype=np.float32)


def masks(view: ClusterView) -> tuple[Bools, Bools]:
    """Return the action masks: (N,) servers that can take the block, and (N, W) widths that each can hold."""
    servers = [server.valid for server in view.servers]
    widths = [server.widths for server in view.servers]
    return np.array(servers, dtype=np.bool_), np.array(widths, dtype=np.bool_)
