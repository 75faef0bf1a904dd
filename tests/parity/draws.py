"""Where drawn scenarios take their chances from: a seed, hypothesis, or a list that is being shrunk."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeVar

from hypothesis import strategies as st

from kit.random_streams import hashed

Option = TypeVar("Option")


class Draws(ABC):
    """A source of small numbers; 0 is always the simplest one, so that smaller numbers make simpler scenarios."""

    @abstractmethod
    def below(self, limit: int) -> int:
        """A number of 0 .. limit - 1."""

    def integer(self, low: int, high: int) -> int:
        """A number of low .. high; `low` is the simplest."""
        return low + self.below(high - low + 1)

    def pick(self, options: Sequence[Option]) -> Option:
        """One of these; the first is the simplest."""
        return options[self.below(len(options))]

    def chance(self, percent: int) -> bool:
        """True so often; False is simpler."""
        return self.below(100) >= 100 - percent


class SeededDraws(Draws):
    """Numbers by hash from a seed."""

    def __init__(self, seed: int) -> None:
        self.drawn: list[int] = []
        self._seed = seed

    def below(self, limit: int) -> int:
        self.drawn.append(hashed(self._seed, len(self.drawn), 0) % limit)
        return self.drawn[-1]


class GivenDraws(Draws):
    """Numbers from a list, the simplest ones after its end; `drawn` is what they came to."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self.drawn: list[int] = []
        self._numbers = numbers

    def below(self, limit: int) -> int:
        position = len(self.drawn)
        number = self._numbers[position] if position < len(self._numbers) else 0
        self.drawn.append(min(number, limit - 1))
        return self.drawn[-1]


class HypothesisDraws(Draws):
    def __init__(self, draw: Callable[[st.SearchStrategy[int]], int]) -> None:
        self._draw = draw

    def below(self, limit: int) -> int:
        return self._draw(st.integers(0, limit - 1)) if limit > 1 else 0


def shrink(numbers: Sequence[int], is_bad: Callable[[list[int]], bool], attempts: int = 2000) -> list[int]:
    """A simpler list that is still bad: greedily cuts pieces out, and makes each number as small as it can."""
    best = list(numbers)

    def tries(candidate: list[int]) -> bool:
        nonlocal best, attempts
        if attempts <= 0 or candidate == best:
            return False
        attempts -= 1
        if not is_bad(candidate):
            return False
        best = candidate
        return True

    improved = True
    while improved and attempts > 0:
        before = list(best)
        length = len(best)
        while length >= 1:
            start = 0
            while start < len(best):
                piece = len(best[start : start + length])
                without = best[:start] + best[start + length :]
                zeroed = best[:start] + [0] * piece + best[start + length :]
                if not tries(without):
                    tries(zeroed)
                    start += length
            length //= 2
        for position in range(len(best)):
            for smaller in (0, 1, best[position] // 2, best[position] - 1) if position < len(best) else ():
                if smaller < best[position] and tries([*best[:position], smaller, *best[position + 1 :]]):
                    break
        improved = best != before
    return best
