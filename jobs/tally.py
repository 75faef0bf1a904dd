"""What was read, left out and changed on the way: a count and the first line of each reason."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(slots=True)
class Count:
    """How many rows, and the line on which the first of them stands."""

    rows: int
    first_line: int


@dataclass(slots=True)
class Tally:
    """Counts by reason, in the order in which reasons came up.

    Attributes:
        rows: all that were read, whatever became of them.
        left_out: rows that made no job; noted: rows that were kept, and of which something is to be said.
        told: sentences about the file as a whole.
    """

    rows: int = 0
    left_out: dict[str, Count] = field(default_factory=dict)
    noted: dict[str, Count] = field(default_factory=dict)
    told: list[str] = field(default_factory=list)

    def leave_out(self, reason: str, lines: NDArray[np.int64]) -> None:
        """These rows make no job."""
        _add(self.left_out, reason, lines)

    def note(self, what: str, lines: NDArray[np.int64]) -> None:
        """These rows are kept, but something of them was changed or is doubtful."""
        _add(self.noted, what, lines)

    def tell(self, text: str) -> None:
        """A sentence, once."""
        if text not in self.told:
            self.told.append(text)

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "rows": self.rows,
            "left_out": [_entry(reason, count) for reason, count in self.left_out.items()],
            "noted": [_entry(reason, count) for reason, count in self.noted.items()],
            "told": self.told,
        }


def _add(counts: dict[str, Count], reason: str, lines: NDArray[np.int64]) -> None:
    if not len(lines):
        return
    first = int(lines.min())
    count = counts.setdefault(reason, Count(0, first))
    count.rows, count.first_line = count.rows + len(lines), min(count.first_line, first)


def _entry(reason: str, count: Count) -> dict[str, Any]:
    return {"reason": reason, "rows": count.rows, "first_line": count.first_line}
