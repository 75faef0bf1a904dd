"""The physics of one device, as pure equations: how batches that run together slow down, draw power and keep it busy.

It has no clock, queue or server. `calibrate` fits its parameters by calling these very functions, and `sim.tables`
compiles them for the simulator: one formula. For the batches j that run on a device:

    d_j   demand: the batch's solo image rate over the key's best solo image rate
    h_j   host share: share of time in which the launching thread is busy
    m_j   bandwidth share: bytes moved per second over the device's bandwidth
    u_j   busy share: share of time in which any of the device's units works for the batch
    x     = max(sum d, host, turns)                                                  their total demand on the device
    S0_j  = crowding(x) * (1 + alpha * sum over i != j of m_i)                       crowding(x) = max(1, x) ** beta
    P_u   = P_ctx + sum of p_j / S0_j                                                p_j: solo power above context idle
    phi   = clip(1 - a (P_u / P_cap - 1), phi_min, 1)                                clocks fall only above the cap
    S_j   = S0_j / phi,   P = min(P_cap, P_u),   U = min(1, sum u_j)

On a CPU the launching threads run on the device itself: host = sum h. On a GPU each process launches separately: host
is the largest sum of h of one process; and without MPS a GPU runs the kernels of one process at a time: with several of
them turns = sum over processes of min(1, sum u), and across_beta replaces beta.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BatchLoad:
    """One running batch's demand on the device: d, h, u, m, and its process."""

    demand: float
    host: float
    busy: float
    bandwidth: float
    process: int = 0


@dataclass(frozen=True, slots=True)
class Sharing:
    """The parameters of a device's sharing; `hosted` if the launching threads run on the device itself (a CPU)."""

    alpha: float
    beta: float
    across_beta: float
    hosted: bool


def demand(batch: int, latency_s: float, peak_rate_img_s: float) -> float:
    """Return d of a batch: its share of the peak image rate of its key, in [0, 1]."""
    return min(1.0, batch / latency_s / peak_rate_img_s)


def crowding(load: float, beta: float) -> float:
    """Return the slow-down from sharing the device at a total demand (or host share) of `load`; 1 up to saturation."""
    return float(max(1.0, load) ** beta)


def contention(alpha: float, others_bandwidth_share: float) -> float:
    """Return a batch's slow-down from other batches that use this share of the memory bandwidth."""
    return 1.0 + alpha * others_bandwidth_share


def total_load(
    demands: Sequence[float],
    hosts: Sequence[float],
    busy: Sequence[float],
    processes: Sequence[int],
    hosted: bool,
    whole: float = 1,
) -> tuple[float, bool]:
    """Return x of a running set, one value for each batch in each sequence, and whether it is of several processes.

    Args:
        whole: the value of a share of 1, in the unit of the values (1000 for permille).
    """
    present = set(processes)
    if hosted or len(present) < 2:
        return max(sum(demands), sum(hosts)), len(present) > 1
    of = [[i for i, process in enumerate(processes) if process == one] for one in sorted(present)]
    host = max(sum(hosts[i] for i in members) for members in of)
    turns = sum(min(whole, sum(busy[i] for i in members)) for members in of)
    return max(sum(demands), host, turns), True


def slow_downs(batches: Sequence[BatchLoad], sharing: Sharing) -> list[float]:
    """Return S0 of each batch of a running set."""
    load, is_across = total_load(
        [b.demand for b in batches],
        [b.host for b in batches],
        [b.busy for b in batches],
        [b.process for b in batches],
        sharing.hosted,
    )
    common = crowding(load, sharing.across_beta if is_across else sharing.beta)
    total = sum(b.bandwidth for b in batches)
    return [common * contention(sharing.alpha, total - b.bandwidth) for b in batches]


def clock_ratio(uncapped_w: float, cap_w: float, throttle: float, phi_min: float) -> float:
    """Return phi: 1 up to the power cap, falling linearly above it, never below `phi_min`."""
    return min(1.0, max(phi_min, 1.0 - throttle * (uncapped_w / cap_w - 1.0)))
