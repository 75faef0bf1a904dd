"""The physics of one device, as pure equations: how batches that run together slow down, draw power and keep it busy.

It knows no clock, no queue and no server. `calibrate` fits its parameters by calling these very functions, and
`sim.tables` compiles them into what the simulator reads: one formula. For the batches j that run on a device:

    d_j   demand: the batch's solo image rate over the key's best solo image rate
    h_j   host share: how long the launching thread is busy
    m_j   bandwidth share: bytes moved per second over the device's bandwidth
    S0_j  = crowding(max(sum d, sum h)) * (1 + alpha * sum over i != j of m_i)       crowding(x) = max(1, x) ** beta
    P_u   = P_ctx + sum of p_j / S0_j                                                p_j: solo power above context idle
    phi   = clip(1 - a (P_u / P_cap - 1), phi_min, 1)                                clocks fall only above the cap
    S_j   = S0_j / phi,   P = min(P_cap, P_u),   U = min(1, sum u_j)
"""

from __future__ import annotations

from collections.abc import Sequence


def demand(batch: int, latency_s: float, peak_rate_img_s: float) -> float:
    """d of a batch: its share of the peak image rate of its key, in [0, 1]."""
    return min(1.0, batch / latency_s / peak_rate_img_s)


def crowding(load: float, beta: float) -> float:
    """What sharing the device costs at a total demand (or host share) of `load`; 1 up to saturation."""
    return float(max(1.0, load) ** beta)


def contention(alpha: float, others_bandwidth_share: float) -> float:
    """What sharing the memory bandwidth costs a batch beside others that move that share of it."""
    return 1.0 + alpha * others_bandwidth_share


def slow_downs(
    demands: Sequence[float],
    host_shares: Sequence[float],
    bandwidth_shares: Sequence[float],
    alpha: float,
    beta: float,
) -> list[float]:
    """S0 of each batch of a running set; the three sequences hold one value a batch."""
    common = crowding(max(sum(demands), sum(host_shares)), beta)
    total = sum(bandwidth_shares)
    return [common * contention(alpha, total - own) for own in bandwidth_shares]


def clock_ratio(uncapped_w: float, cap_w: float, throttle: float, phi_min: float) -> float:
    """phi: 1 up to the power cap, falling linearly above it, never below `phi_min`."""
    return min(1.0, max(phi_min, 1.0 - throttle * (uncapped_w / cap_w - 1.0)))
