"""Solo latency as one surface over all keys and batch sizes, so that keys inform each other.

The logarithm of a pass's latency is physics plus a residual:

    log L = log max(floor, launches + MACs / rate + bytes / bandwidth), of a segment
            + residual(segment, width, previous width, log batch)

The residual is a Gaussian process whose covariance is a sum of parts: smooth within a segment; smooth over the widths
of one batch size, for a library's kernel choice at that size; one offset a key; rough along the batch within a
(segment, width), and within a key. The variances and length scales of the parts maximize the likelihood of the measured
points. A point far from the others' prediction has less weight. It is independent of devices and curves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import least_squares, minimize, nnls

from calibrate.costs import Key, KeyCost
from hw.transport.messages import Point

MIN_POINTS = 12  # least number of points for a surface
OUTLIER = 2.0  # standard deviations from the others' prediction, above which a point has less weight
ROBUST_ROUNDS = 2
MAX_STEPS = 30  # of the search for the covariance
FARTHEST = 4.0  # largest distance from the start, in units of the prior's deviation
SEARCHED = 240  # points used by the search
TYPICAL_OFF = 0.1  # of the physics of a key, and threshold of outliers
SHARP = 8.0  # sharpness of the bend at the floor
DOUBTED_OFF = 0.3  # common error of doubted points, of the logarithm
MIN_NOISE = 1e-3  # least noise of a measured median, whatever its repeats

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Seen:
    """A measured latency: each round, and the variance of its logarithm beyond the other rounds'.

    A doubted one was always disturbed: it may be too long, like all doubted ones.
    """

    rounds_s: tuple[float, ...]
    variance: float = 0.0
    is_doubted: bool = False

    @property
    def log_s(self) -> float:
        """The mean logarithm of the rounds."""
        return float(np.mean(np.log(self.rounds_s)))

    @property
    def scatter(self) -> float:
        """The squared distances of the rounds' logarithms from their mean."""
        return float(np.sum((np.log(self.rounds_s) - self.log_s) ** 2))


@dataclass(frozen=True, slots=True)
class _Part:
    """Of the covariance: within equal columns `same`, falling with the distance in the columns `along`."""

    same: tuple[int, ...]
    along: tuple[int, ...]
    rough: bool


SEGMENT, WIDTH, PREVIOUS, BATCH = range(4)  # columns of a point; all but the first are logarithms
_PARTS = (
    _Part((SEGMENT,), (WIDTH, PREVIOUS, BATCH), rough=False),
    _Part((SEGMENT, BATCH), (WIDTH, PREVIOUS), rough=False),
    _Part((SEGMENT, WIDTH, PREVIOUS), (), rough=False),
    _Part((SEGMENT, WIDTH), (BATCH,), rough=True),
    _Part((SEGMENT, WIDTH, PREVIOUS), (BATCH,), rough=True),
)
# The search's start, as deviations and as distances in units of a logarithm, and the prior's deviation.
_START = np.log([0.10, 0.7, 0.7, 1.0, 0.03, 0.7, 0.7, 0.03, 0.03, 0.7, 0.01, 0.7, 0.03])
_WIDE = np.asarray([1.0, 0.5, 0.5, 0.5, 1.5, 0.5, 0.5, 0.7, 0.7, 0.5, 0.5, 0.3, 1.0])


def _columns(points: Sequence[Point]) -> Floats:
    """Return (points, 4) columns; segment 1 has no previous width."""
    rows = [(p.segment, np.log(p.width), np.log(p.previous_width or 1.0), np.log(p.batch)) for p in points]
    return np.asarray(rows, dtype=np.float64).reshape(len(points), 4)


class _Covariance:
    """Covariance between two lists of points, for any parameters; distances are computed once."""

    def __init__(self, one: Floats, other: Floats) -> None:
        self._apart = [np.abs(one[:, None, column] - other[None, :, column]) for column in range(4)]
        self._same = [np.all([self._apart[c] == 0 for c in part.same], axis=0) for part in _PARTS]

    def terms(self, theta: Floats) -> Iterator[tuple[Floats, list[Floats]]]:
        """Yield each part's covariance, and the derivatives by the logarithms of its parameters."""
        place = 0
        for part, same in zip(_PARTS, self._same, strict=True):
            power = 1 if part.rough else 2
            scaled = [
                (self._apart[c] / np.exp(theta[place + 1 + i])) ** power / (1 if part.rough else 2)
                for i, c in enumerate(part.along)
            ]
            whole = np.exp(2 * theta[place]) * same * np.exp(-sum(scaled, np.zeros(same.shape)))
            yield whole, [2 * whole, *(power * each * whole for each in scaled)]
            place += 1 + len(part.along)

    def whole(self, theta: Floats) -> Floats:
        """Return the sum of the parts."""
        return np.asarray(np.sum([term for term, _ in self.terms(theta)], axis=0))


class Physics:
    """Physics of each segment: max(floor, priced work), slightly smoothed; robust least squares in the logarithm."""

    def __init__(self, seen: Mapping[Point, Seen], costs: Mapping[Key, KeyCost]) -> None:
        self._costs = costs
        segments = sorted({point.segment for point in seen})
        self._prices = {s: self._fit({p: v for p, v in seen.items() if p.segment == s}) for s in segments}

    def log_s(self, points: Sequence[Point]) -> Floats:
        """Return the logarithm of each point's latency."""
        work = self._work(points)
        prices = np.stack([self._prices[point.segment] for point in points])
        return _log_of(work, prices)

    def _work(self, points: Sequence[Point]) -> Floats:
        """Return work: launching; collating several images; arithmetic; weights and feature maps to and from memory."""
        rows = []
        for point in points:
            cost, batch = self._costs[point.key], point.batch
            rows.append([1.0, float(batch > 1), cost.macs * batch, cost.weight_bytes, cost.moved_bytes * batch])
        return np.asarray(rows, dtype=np.float64)

    def _fit(self, seen: Mapping[Point, Seen]) -> Floats:
        """Fit the floor, and the price of each kind of work; none is below 0."""
        work, values = self._work(list(seen)), np.exp([each.log_s for each in seen.values()])
        trust = 1 / np.hypot(1.0, [np.sqrt(each.variance) / TYPICAL_OFF for each in seen.values()])
        unit = values.mean() / np.maximum(work.mean(axis=0), 1e-9)  # so that each price is near 1
        rough = nnls(work * unit / values[:, None], np.ones(len(values)))[0]
        start = np.concatenate([[0.5 * values.min() / values.mean()], np.maximum(rough, 1e-3)])
        units = np.concatenate([[values.mean()], unit])

        def off(prices: Floats) -> Floats:
            return np.asarray(trust * (_log_of(work, prices * units) - np.log(values)))

        fit = least_squares(off, start, bounds=(0.0, np.inf), loss="soft_l1", f_scale=TYPICAL_OFF)
        return np.asarray(np.maximum(fit.x, [1e-6, *[0.0] * len(unit)]) * units)


def _log_of(work: Floats, prices: Floats) -> Floats:
    """Return log max(floor, work priced), smoothed if both are nearly equal."""
    floor, priced = prices[..., 0], np.sum(work * prices[..., 1:], axis=-1)
    return np.asarray(np.logaddexp(SHARP * np.log(floor), SHARP * np.log(np.maximum(priced, 1e-300))) / SHARP)


class Surface:
    """Solo latency of any point of the measured segments.

    Args:
        seen: measurements by point; at least `MIN_POINTS`, some of each segment.
        costs: costs of every key.
        like: a surface whose covariance is reused; None searches for the most likely one.
    """

    def __init__(self, seen: Mapping[Point, Seen], costs: Mapping[Key, KeyCost], like: Surface | None = None) -> None:
        self.points = list(seen)
        self._physics = Physics(seen, costs)
        self._at = _columns(self.points)
        self._left = np.asarray([each.log_s for each in seen.values()]) - self._physics.log_s(self.points)
        self._rounds = np.asarray([len(each.rounds_s) for each in seen.values()])
        self._scatter = sum(each.scatter for each in seen.values())
        self._known = np.asarray([each.variance for each in seen.values()]) + MIN_NOISE**2
        self._doubted = DOUBTED_OFF * np.asarray([float(each.is_doubted) for each in seen.values()])
        self._weight = np.ones(len(self.points))
        self.theta: Floats = _START if like is None else like.theta
        for _ in range(ROBUST_ROUNDS):
            if like is None:
                self.theta = self._most_likely()
            self._solve()
            self._weight = np.minimum(1.0, self._weight * (OUTLIER / np.maximum(1e-9, np.abs(self._left_out_z()))) ** 2)
        self._solve()

    @property
    def noise(self) -> float:
        """Standard deviation of one more round, of the logarithm."""
        return float(np.hypot(np.exp(self.theta[-1]), MIN_NOISE))

    def predict(self, points: Sequence[Point]) -> tuple[Floats, Floats]:
        """Predict seconds, and the standard deviation of their logarithm."""
        log_s, covariance = self._posterior(points)
        return np.exp(log_s), np.sqrt(np.maximum(0.0, np.diag(covariance)))

    def covariance(self, points: Sequence[Point]) -> Floats:
        """Return the uncertainty of these points: (points, points) covariance of the logarithm."""
        return self._posterior(points)[1]

    def _posterior(self, points: Sequence[Point]) -> tuple[Floats, Floats]:
        at = _columns(points)
        across = _Covariance(at, self._at).whole(self.theta)
        log_s = self._physics.log_s(points) + across @ self._weights
        return log_s, _Covariance(at, at).whole(self.theta) - across @ cho_solve(self._factor, across.T)

    def _noises(self, theta: Floats) -> Floats:
        return np.asarray((self._known + np.exp(2 * theta[-1]) / self._rounds) / self._weight)

    def _solve(self) -> None:
        noisy = _Covariance(self._at, self._at).whole(self.theta) + np.diag(self._noises(self.theta))
        noisy += np.outer(self._doubted, self._doubted)
        self._factor = cho_factor(noisy, lower=True)
        self._weights = cho_solve(self._factor, self._left)

    def _left_out_z(self) -> Floats:
        """Return each point's distance from the others' prediction, in standard deviations."""
        inverse = cho_solve(self._factor, np.eye(len(self.points)))
        return np.asarray(self._weights / np.sqrt(np.diag(inverse)))

    def _most_likely(self) -> Floats:
        """Search for the most likely parameters, on a subset of points that is small enough, evenly among all."""
        some = np.unique(np.linspace(0, len(self.points) - 1, SEARCHED).astype(int))
        between = _Covariance(self._at[some], self._at[some])
        bounds = np.stack([_START - FARTHEST * _WIDE, _START + FARTHEST * _WIDE], axis=1)
        options = {"maxiter": MAX_STEPS}
        search = minimize(
            self._surprise, self.theta, (some, between), "L-BFGS-B", jac=True, bounds=bounds, options=options
        )
        return np.asarray(search.x, dtype=np.float64)

    def _surprise(self, theta: Floats, some: npt.NDArray[np.int_], between: _Covariance) -> tuple[float, Floats]:
        """Return the negative log-likelihood of points, of rounds' scatter and of parameters; and its gradient."""
        terms = list(between.terms(theta))
        white = np.exp(2 * theta[-1])
        noisy = np.sum([term for term, _ in terms], axis=0) + np.diag(self._noises(theta)[some])
        noisy += np.outer(self._doubted[some], self._doubted[some])
        factor = cho_factor(noisy, lower=True)
        weights = cho_solve(factor, self._left[some])
        pull = np.outer(weights, weights) - cho_solve(factor, np.eye(len(some)))
        slopes = [-0.5 * float(np.sum(pull * slope)) for _, each in terms for slope in each]
        again, apart = int(np.sum(self._rounds - 1)), (theta - _START) / _WIDE
        slopes.append(
            -float(np.diag(pull) @ (white / self._rounds / self._weight)[some]) + again - self._scatter / white
        )
        fit = 0.5 * float(self._left[some] @ weights) + float(np.sum(np.log(np.diag(factor[0]))))
        fit += again * theta[-1] + 0.5 * self._scatter / white
        return fit + 0.5 * float(apart @ apart), np.asarray(slopes) + apart / _WIDE


def least_sure(surface: Surface, targets: Sequence[Point], cost_s: Mapping[Point, float], number: int) -> list[Point]:
    """Choose the points whose measurement reduces all targets' uncertainty most for its time, the best first.

    Each is chosen as if the previous ones were measured: a surface's uncertainty does not depend on the values.

    Args:
        cost_s: time of each candidate; a candidate is a target.
    """
    covariance, places = surface.covariance(targets), {point: place for place, point in enumerate(targets)}
    left = [places[point] for point in cost_s]
    costs_s = [cost_s[targets[place]] for place in left]
    chosen = []
    for _ in range(min(number, len(left))):
        noisy = np.diag(covariance)[left] + surface.noise**2
        best = int(np.argmax(np.sum(covariance[:, left] ** 2, axis=0) / noisy / costs_s))
        column = covariance[:, left[best]]
        covariance = covariance - np.outer(column, column) / noisy[best]
        chosen.append(targets[left.pop(best)])
        costs_s.pop(best)
    return chosen
