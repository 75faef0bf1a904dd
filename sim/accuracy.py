"""The correctness of an image's label after its last segment: replayed from a recorded matrix, or drawn from a
table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kit.chance import hashed_share
from policies.reward import AccuracyPrior


class Correctness(Protocol):
    """The source of whether a request's label is right."""

    def is_correct(self, request: int, widths: tuple[float, ...]) -> bool:
        """Return it for the request's complete width tuple; the same answer each time."""
        ...


class MatrixCorrectness:
    """A replay of the evaluated network's results on test images (so correlations between widths are real).

    Args:
        tuples: T width tuples.
        correct: (images, T) bool.
        images: for each request, its test image.
    """

    def __init__(
        self, tuples: Sequence[tuple[float, ...]], correct: NDArray[np.bool_], images: NDArray[np.int64]
    ) -> None:
        self.column = {widths: column for column, widths in enumerate(tuples)}
        self.correct = correct
        self.images = images

    def is_correct(self, request: int, widths: tuple[float, ...]) -> bool:
        """Look it up; KeyError for a tuple that was not evaluated."""
        return bool(self.correct[self.images[request], self.column[widths]])


class BernoulliCorrectness:
    """A draw with the tuple's accuracy, by a hash of the request: stateless, with the same draw for wider tuples."""

    def __init__(self, prior: AccuracyPrior, salt: int) -> None:
        self.prior = prior
        self.salt = salt

    def is_correct(self, request: int, widths: tuple[float, ...]) -> bool:
        """Draw once for each request; a wider tuple is right whenever a narrower, less accurate one is."""
        return hashed_share(self.salt, request, 0) < self.prior(widths)
