"""The observation (Eq. 1), action masks and batching delays of a learned router, independent of the learning method.

The observation (`ObservationSpec`) has fixed scales, never running ones: it means the same at the start of training, at
its end and on executors, and a stored router needs no statistics except its weights.

Batching delays (`Waits`): a policy chooses a wait by its index. Index 0 means no batching delay. Index k delays the
candidates until the next larger micro-batch is full, for the k-th wait at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, log1p

import numpy as np
import numpy.typing as npt

from kit.errors import InputError
from policies.interfaces import RouterConfig
from policies.vocabulary import NS_PER_S, BatchingDelay, ClusterView

Floats = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class ObservationSpec:
    """Eq. 1 as a float32 vector of 2 + 3 N numbers, for N servers.

    ======  =========================  ==================================================================
    index   of the paper               value
    ======  =========================  ==================================================================
    0       q_fifo                     log1p(requests in the global FIFO, the candidate micro-batch's included)
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
    """Return the action masks: (N,) servers that can take the micro-batch, and (N, W) widths that each can hold."""
    servers = [server.valid for server in view.servers]
    widths = [server.widths for server in view.servers]
    return np.array(servers, dtype=np.bool_), np.array(widths, dtype=np.bool_)


def problem_with(batching_delays_s: Sequence[float], limit_s: float) -> str | None:
    """Return what is wrong with waits under this limit of the router, with the remedy; None for nothing."""
    if list(batching_delays_s) != sorted(set(batching_delays_s)) or not all(
        isfinite(seconds * NS_PER_S) and seconds * NS_PER_S >= 1 for seconds in batching_delays_s
    ):
        return f"{list(batching_delays_s)} must ascend, each a nanosecond or longer; or leave it empty, for no delay"
    if not batching_delays_s or batching_delays_s[-1] <= limit_s:
        return None
    if limit_s == 0:
        remedy = "set router.max_batching_delay_s above 0, or leave batching_delays_s empty"
        return f"{list(batching_delays_s)}: no request may be delayed; {remedy}"
    allowed = f"at most router.max_batching_delay_s ({limit_s:g})"
    longest = f"{batching_delays_s[-1]:g} is longer than the limit"
    return f"{longest}, {allowed}; raise that limit, or choose shorter waits"


@dataclass(frozen=True, slots=True)
class Waits:
    """The waits of one policy, in nanoseconds, and the micro-batch sizes, ascending. Without waits it never delays."""

    waits_ns: tuple[int, ...]
    micro_batch_sizes: tuple[int, ...]

    @classmethod
    def of(cls, batching_delays_s: Sequence[float], micro_batch_sizes: Sequence[int]) -> Waits:
        """Convert waits from seconds."""
        return cls(tuple(round(each * NS_PER_S) for each in batching_delays_s), tuple(micro_batch_sizes))

    @classmethod
    def within(cls, batching_delays_s: Sequence[float], config: RouterConfig) -> Waits:
        """Return the waits for a router's core; `InputError` if it does not delay requests that long."""
        problem = problem_with(batching_delays_s, config.max_batching_delay_ns / NS_PER_S)
        if problem:
            raise InputError("environment", "batching_delays_s", problem)
        return cls.of(batching_delays_s, config.micro_batch_sizes)

    @property
    def choices(self) -> int:
        """1 + the number of waits; 0 if there are none."""
        return 1 + len(self.waits_ns) if self.waits_ns else 0

    def may(self, view: ClusterView) -> bool:
        """Return whether an index above 0 may be chosen."""
        return view.batching_delay_left_ns > 0 and view.candidates < self.micro_batch_sizes[-1]

    def mask(self, view: ClusterView) -> Bools:
        """Return (`choices`,) which indices may be chosen."""
        mask = np.full(self.choices, self.may(view))
        mask[:1] = True
        return mask

    def batching_delay(self, index: int, view: ClusterView) -> BatchingDelay:
        """Return the meaning of an index above 0 for a view in which it may be chosen."""
        requests = next(size for size in self.micro_batch_sizes if size > view.candidates)
        return BatchingDelay(requests, min(self.waits_ns[index - 1], view.batching_delay_left_ns))
