"""The observation (Eq. 1), action masks and batching delays of a learned router, independent of the learning method.

The observation (`ObservationSpec`) has fixed scales, never running ones: it means the same at the start of training, at
its end and on the hardware, and a stored router needs no statistics except its weights.

Batching delays (`Waits`): a policy chooses a wait by its index. Index 0 is no hold. Index k holds the candidates until
the next larger group is full, for the k-th wait at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, log1p

import numpy as np
import numpy.typing as npt

from kit.errors import InputError
from policies.interfaces import RouterConfig
from policies.vocabulary import NS_PER_S, ClusterView, Hold

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


def problem_with(holds_s: Sequence[float], limit_s: float) -> str | None:
    """Return what is wrong with waits under this limit of the router, with the remedy; None for nothing."""
    if list(holds_s) != sorted(set(holds_s)) or not all(
        isfinite(seconds * NS_PER_S) and seconds * NS_PER_S >= 1 for seconds in holds_s
    ):
        return f"{list(holds_s)} must ascend, each a nanosecond or longer; or leave it empty, to hold nobody"
    if not holds_s or holds_s[-1] <= limit_s:
        return None
    if limit_s == 0:
        return f"{list(holds_s)}: nobody may be held; set router.max_batching_delay_s above 0, or leave holds_s empty"
    allowed = f"at most router.max_batching_delay_s ({limit_s:g})"
    return f"{holds_s[-1]:g} is longer than anybody may be held, {allowed}; raise that limit, or choose shorter waits"


@dataclass(frozen=True, slots=True)
class Waits:
    """The waits of one policy, in nanoseconds, and the group sizes, ascending. Without waits it never holds."""

    waits_ns: tuple[int, ...]
    groups: tuple[int, ...]

    @classmethod
    def of(cls, holds_s: Sequence[float], groups: Sequence[int]) -> Waits:
        """Convert waits from seconds."""
        return cls(tuple(round(each * NS_PER_S) for each in holds_s), tuple(groups))

    @classmethod
    def within(cls, holds_s: Sequence[float], config: RouterConfig) -> Waits:
        """Return the waits for a router's core; `InputError` if it does not hold requests that long."""
        problem = problem_with(holds_s, config.max_batching_delay_ns / NS_PER_S)
        if problem:
            raise InputError("environment", "holds_s", problem)
        return cls.of(holds_s, config.groups)

    @property
    def choices(self) -> int:
        """1 + the number of waits; 0 if there are none."""
        return 1 + len(self.waits_ns) if self.waits_ns else 0

    def may(self, view: ClusterView) -> bool:
        """Return whether an index above 0 may be chosen."""
        return view.hold_left_ns > 0 and view.candidates < self.groups[-1]

    def mask(self, view: ClusterView) -> Bools:
        """Return (`choices`,) which indices may be chosen."""
        mask = np.full(self.choices, self.may(view))
        mask[:1] = True
        return mask

    def hold(self, index: int, view: ClusterView) -> Hold:
        """Return the meaning of an index above 0 for a view in which it may be chosen."""
        requests = next(size for size in self.groups if size > view.candidates)
        return Hold(requests, min(self.waits_ns[index - 1], view.hold_left_ns))
