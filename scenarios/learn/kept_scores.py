"""What a search has measured so far, in a file: one that was interrupted asks for the same again, and goes on."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from sim.compiled.scoring import RunScore


class KeptScores:
    """One line for each group of runs, in the order in which the search asks for them.

    A search is the same whenever it is of the same scenario, knobs and seed: who keeps the file sees to that.

    Args:
        path: read where it exists. What is no line of it, and all that follows, is dropped.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        self._taken = 0

    def take(self, number: int) -> list[RunScore] | None:
        """The scores of the next group, of so many runs; None where it was not measured."""
        if self._taken < len(self._lines):
            scores = _scores_in(self._lines[self._taken])
            if scores is not None and len(scores) == number:
                self._taken += 1
                return scores
            del self._lines[self._taken :]
            os.truncate(self._path, sum(map(len, self._lines)))
        return None

    def put(self, scores: Sequence[RunScore]) -> None:
        """The next group was measured."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab") as file:
            file.write(json.dumps([asdict(score) for score in scores]).encode() + b"\n")


def _scores_in(line: bytes) -> list[RunScore] | None:
    """None for what is torn or was not written here."""
    if not line.endswith(b"\n"):
        return None
    try:
        return [RunScore(**score) for score in json.loads(line)]
    except (ValueError, TypeError):
        return None
