"""Interpolation between measured batch sizes: solo latency by a monotone shape-preserving curve, all else linearly.

Both the fit and the simulator's tables call these functions, so the tested curves are the replayed ones. Beyond the
largest measured batch they refuse.
"""

from __future__ import annotations

from collections.abc import Sequence

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
