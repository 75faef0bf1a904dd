"""The paper's Tables I and II, completed to all 256 width tuples: a stand-in if no network was measured.

Eight of the 256 accuracies are published: the four uniform tuples, and four with every width once. The others are the
smoothest function on the 4 x 4 x 4 x 4 grid that has exactly these eight values and gains at least `STEP` whenever one
segment gets one width wider. Smoothest means the least sum of squares of all its second differences: along a segment
(curvature), and across each pair of segments (interaction). So between known values it is as linear and as additive as
the eight points allow. `TIE` of the squares of its first differences makes the minimum unique: w1 - w2 - w3 + w4 is 0
at all eight tuples and has no second difference.

Why nothing simpler:

- A linear fit misses the published values by up to half a point, and the shortest least-squares solution gives segment
1 a negative slope: a wider first segment would lose accuracy. Table II only shows that late segments matter most, not
that early ones do harm.
- No additive model (a base, and a gain for every segment and width) can be exact. Each table has every segment at every
  width once, so the two would have the same mean; they have 73.66 % and 73.39 %.

`python -m benchmarks paper-table` prints the file in `scenarios/data/models/`.
"""

from __future__ import annotations

from itertools import combinations, product
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from hw.networks.accuracy_table import PaperTable, Widths, accuracy_text
from scenarios.files.bundled_files import SHIPPED

WIDTHS: Final = (0.25, 0.50, 0.75, 1.00)
SEGMENTS: Final = 4
PUBLISHED_PCT: Final[dict[Widths, float]] = {
    (0.25, 0.25, 0.25, 0.25): 70.30,  # Table I
    (0.50, 0.50, 0.50, 0.50): 72.99,
    (0.75, 0.75, 0.75, 0.75): 74.93,
    (1.00, 1.00, 1.00, 1.00): 76.43,
    (1.00, 0.75, 0.50, 0.25): 71.35,  # Table II
    (0.75, 1.00, 0.25, 0.50): 72.33,
    (0.50, 0.25, 1.00, 0.75): 74.53,
    (0.25, 0.50, 0.75, 1.00): 75.33,
}
STEP: Final = 5e-4  # 0.05 points: a width that cost nothing would be found by every router
TIE: Final = 1e-3
DIGITS: Final = 6  # of a share in the file: finer than STEP, and the published values are exact in it
FILE: Final = SHIPPED / "models" / "slimresnet18-paper.accuracy.json"

Matrix = NDArray[np.float64]


def grid() -> tuple[Widths, ...]:
    """Return all 256 tuples, ascending."""
    return tuple(product(WIDTHS, repeat=SEGMENTS))


def paper_table() -> PaperTable:
    """Return the completed table, rounded as in the file."""
    return PaperTable(grid(), tuple(np.round(completed(), DIGITS).tolist()), "cifar100")


def completed() -> Matrix:
    """Return top-1 shares (256,) of `grid()`: a quadratic program, solved as a least-distance problem."""
    tuples, steps = grid(), first_differences()
    rough = np.vstack([second_differences(), np.sqrt(TIE) * steps])
    is_published = np.array([widths in PUBLISHED_PCT for widths in tuples])
    shares = np.array([PUBLISHED_PCT.get(widths, 0.0) / 100 for widths in tuples])
    # Minimise |rough x| over the unknown x, then substitute u = R x + Q' rough_known x_known (rough_unknown = Q R), so
    # that |u| is minimized and the rows `steps x >= STEP` become rows in u.
    q, r = np.linalg.qr(rough[:, ~is_published])
    offset = q.T @ (rough[:, is_published] @ shares[is_published])
    rows = np.linalg.solve(r.T, steps[:, ~is_published].T).T
    bounds = STEP - steps[:, is_published] @ shares[is_published] + rows @ offset
    shares[~is_published] = np.linalg.solve(r, _least_distance(rows, bounds) - offset)
    return shares


def _least_distance(rows: Matrix, bounds: Matrix) -> Matrix:
    """Return the shortest u with rows u >= wanted (Lawson and Hanson, Solving Least Squares Problems, ch. 23.4)."""
    stacked = np.vstack([rows.T, bounds])  # (unknowns + 1, constraints)
    target = np.zeros(len(stacked))
    target[-1] = 1.0
    weights, distance = nnls(stacked, target)
    assert distance > 0, "no table fits the published values"
    residual = stacked @ weights - target
    return np.asarray(-residual[:-1] / residual[-1], np.float64)


def first_differences() -> Matrix:
    """Return rows (768, 256): a tuple's gain when one segment gets one width wider; 192 rows a segment."""
    return np.vstack([_product({segment: _differences(1)}) for segment in range(SEGMENTS)])


def second_differences() -> Matrix:
    """Return rows (1376, 256): along every segment, and across every pair of segments (twice: both orders count)."""
    along = [_product({segment: _differences(2)}) for segment in range(SEGMENTS)]
    pairs = combinations(range(SEGMENTS), 2)
    across = [_product({one: _differences(1), other: _differences(1)}) for one, other in pairs]
    return np.vstack([*along, *(np.sqrt(2.0) * rows for rows in across)])


def _differences(order: int) -> Matrix:
    return np.diff(np.eye(len(WIDTHS)), n=order, axis=0)


def _product(at: dict[int, Matrix]) -> Matrix:
    """Return the operators of some segments applied to the whole grid, with the other segments unchanged."""
    operator: Matrix = np.ones((1, 1))
    for segment in range(SEGMENTS):
        operator = np.asarray(np.kron(operator, at.get(segment, np.eye(len(WIDTHS)))), np.float64)
    return operator


def text() -> str:
    """Return the printed file."""
    return accuracy_text(paper_table())
