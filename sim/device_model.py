"""The interpolation between measured batch sizes, and the device model of one device as pure equations.

Interpolation: solo latency by a monotone curve (`interpolate_latency_s`), all other numbers linearly
(`interpolate_linear`). Both the fit and the simulator's tables call these functions, so the tested curves are the
replayed ones. Beyond the largest measured batch these functions refuse.

The equations have no clock, queue or server. `calibrate` fits their parameters by calling these very functions, and
`sim.device_tables` compiles them for the simulator: one formula. For the batches j that run on a device:

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

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def interpolate_latency_s(batches: Sequence[int], latency_s: Sequence[float], batch: int) -> float:
    """Return the solo latency of a batch: monotone PCHIP inside the measured batches, `fit_affine`'s shape below the
    first.

    Exact at the measured points if they ascend; points that fall (noise) are first pooled with their neighbours.

    Raises:
        ValueError: the batch is below 1 or beyond the largest measured one.
    """
    if batch < 1:
        raise ValueError(f"a batch holds at least one image, not {batch}")
    return float(latency_table_s(batches, latency_s, batch)[batch])


def latency_table_s(batches: Sequence[int], latency_s: Sequence[float], batch_limit: int) -> Floats:
    """Return `interpolate_latency_s` for every batch up to the limit: (batch_limit + 1,) seconds, index = batch, [0] =
    0.0.

    Non-decreasing.

    Raises:
        ValueError: the limit is beyond the largest measured batch.
    """
    _refuse_beyond(batches, batch_limit)
    nodes = np.asarray(batches, dtype=np.float64)
    values = ascending(latency_s)
    sizes = np.arange(batch_limit + 1, dtype=np.float64)
    table = np.full(len(sizes), values[0])
    if len(nodes) > 1:
        table = _pchip(nodes, values, np.maximum(sizes, nodes[0]))
    below = sizes < batches[0]
    if below[1:].any():
        model = fit_affine(batches, list(values))
        table[below] = values[0] * affine_s(model, sizes[below]) / affine_s(model, batches[0])
    table[0] = 0.0
    # PCHIP is monotone up to rounding; the engines compare times exactly.
    return np.maximum.accumulate(table)


def interpolate_linear(batches: Sequence[int], values: Sequence[float], batch: int) -> float:
    """Return a linear interpolation between the measured batches; the first value below them.

    Raises:
        ValueError: the batch is beyond the largest measured one.
    """
    _refuse_beyond(batches, batch)
    return float(np.interp(batch, np.asarray(batches, dtype=np.float64), np.asarray(values, dtype=np.float64)))


def ascending(values: Sequence[float]) -> Floats:
    """Return the non-decreasing sequence nearest to `values` in least squares: adjacent violators are pooled."""
    pools: list[tuple[float, int]] = []  # (mean, members)
    for value in values:
        mean, members = float(value), 1
        while pools and pools[-1][0] > mean:
            before, count = pools.pop()
            mean, members = (before * count + mean * members) / (count + members), count + members
        pools.append((mean, members))
    return np.concatenate([np.full(members, mean) for mean, members in pools])


def fit_affine(batches: Sequence[int], latency_s: Sequence[float]) -> tuple[float, float, float]:
    """Return (t0, c0, c1) of L(b) = max(t0, c0 + c1 b), least squares in the relative error; four points are enough.

    t0 and c1 are never negative, and L is positive from b = 1 on.
    """
    sizes = np.asarray(batches, dtype=np.float64)
    values = np.asarray(latency_s, dtype=np.float64)
    candidates = [_flat_then_line(sizes, values, flat) for flat in range(len(sizes) + 1)]
    errors = [float(np.sum((affine_s(candidate, sizes) / values - 1.0) ** 2)) for candidate in candidates]
    enough = min(errors) + 1e-12  # among equals the one with the shortest flat part: a line needs no floor
    return next(candidate for candidate, error in zip(candidates, errors, strict=True) if error <= enough)


def affine_s(parameters: tuple[float, float, float], batch: float | Floats) -> Floats:
    """Return L(b) = max(t0, c0 + c1 b)."""
    t0, c0, c1 = parameters
    return np.maximum(t0, c0 + c1 * np.asarray(batch, dtype=np.float64))


def _flat_then_line(sizes: Floats, values: Floats, flat: int) -> tuple[float, float, float]:
    """Return the best model whose first `flat` points are at t0 and whose others are on the line."""
    t0 = _relative_mean(values[:flat]) if flat else 0.0
    start = min(flat, len(sizes) - 2)  # a line needs two points
    if flat == len(sizes) or start < 0:
        return _relative_mean(values), _relative_mean(values), 0.0
    c0, c1 = _relative_line(sizes[start:], values[start:])
    if c1 < 0 or (flat == 0 and c0 + c1 <= 0):
        return _relative_mean(values), _relative_mean(values), 0.0
    return t0, c0, c1


def _relative_line(sizes: Floats, values: Floats) -> tuple[float, float]:
    design = np.stack([1.0 / values, sizes / values], axis=1)  # (points, 2)
    (c0, c1), *_ = np.linalg.lstsq(design, np.ones(len(values)), rcond=None)
    return float(c0), float(c1)


def _relative_mean(values: Floats) -> float:
    """Return the constant that is nearest in relative error."""
    return float(np.sum(1.0 / values) / np.sum(1.0 / values**2))


def _pchip(x: Floats, y: Floats, at: Floats) -> Floats:
    """Return monotone PCHIP through points that never fall, within their range (Fritsch and Butland 1984).

    Equal to `scipy.interpolate.PchipInterpolator` to the last bit (tested): its import takes as long as a short run.
    """
    h = np.diff(x)
    secants = np.diff(y) / h
    slopes = _slopes(h, secants)
    t = (slopes[:-1] + slopes[1:] - 2 * secants) / h
    piece = np.minimum(np.searchsorted(x, at, side="right") - 1, len(h) - 1)
    s = at - x[piece]
    cubic, square = (t / h)[piece], ((secants - slopes[:-1]) / h - t)[piece]
    return np.asarray(y[piece] + slopes[piece] * s + square * (s * s) + cubic * (s * s * s))


def _slopes(h: Floats, secants: Floats) -> Floats:
    """Return each point's slope: the weighted harmonic mean of the adjacent secants; at the ends by three points, from
    0 up."""
    if len(h) == 1:
        return np.repeat(secants, 2)
    before, after = 2 * h[1:] + h[:-1], h[1:] + 2 * h[:-1]
    with np.errstate(divide="ignore"):  # 1 / inf: flat next to a flat piece
        inner = 1.0 / ((before / secants[:-1] + after / secants[1:]) / (before + after))
    first, last = (
        ((2 * h[near] + h[far]) * secants[near] - h[near] * secants[far]) / (h[near] + h[far])
        for near, far in ((0, 1), (-1, -2))
    )
    return np.concatenate([[max(first, 0.0)], inner, [max(last, 0.0)]])


def _refuse_beyond(batches: Sequence[int], batch: int) -> None:
    if batch > batches[-1]:
        raise ValueError(f"batch {batch} lies beyond the largest measured one ({batches[-1]}); it would be a guess")


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
    micro_batch_sizes = [
        [index for index, process in enumerate(processes) if process == own] for own in sorted(present)
    ]
    host = max(sum(hosts[index] for index in members) for members in micro_batch_sizes)
    turns = sum(min(whole, sum(busy[index] for index in members)) for members in micro_batch_sizes)
    return max(sum(demands), host, turns), True


def slow_downs(batches: Sequence[BatchLoad], sharing: Sharing) -> list[float]:
    """Return S0 of each batch of a running set."""
    load, is_across = total_load(
        [batch.demand for batch in batches],
        [batch.host for batch in batches],
        [batch.busy for batch in batches],
        [batch.process for batch in batches],
        sharing.hosted,
    )
    common = crowding(load, sharing.across_beta if is_across else sharing.beta)
    total = sum(batch.bandwidth for batch in batches)
    return [common * contention(sharing.alpha, total - batch.bandwidth) for batch in batches]


def clock_ratio(uncapped_w: float, cap_w: float, throttle: float, phi_min: float) -> float:
    """Return phi: 1 up to the power cap, falling linearly above it, never below `phi_min`."""
    return min(1.0, max(phi_min, 1.0 - throttle * (uncapped_w / cap_w - 1.0)))
