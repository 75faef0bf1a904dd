"""Counts by family and kind, shown as they come; failing inputs kept, the same mistake a few times only."""

from __future__ import annotations

import sys
import time  # noqa: TID251 - progress is told in seconds
from collections import Counter
from pathlib import Path

from tests.fuzz.cases import Case
from tests.fuzz.trial import BAD, GOOD, Outcome

KEPT_OF_EACH = 3


class Tally:
    """What came of many trials.

    Args:
        keep: the folder for failing inputs.
    """

    def __init__(self, keep: Path) -> None:
        self.keep = keep
        self.counts: Counter[tuple[str, str]] = Counter()
        self.signatures: Counter[str] = Counter()
        self.slowest: tuple[float, float] = (0.0, 0.0)
        self._began_s = time.monotonic()

    def add(self, case: Case, outcome: Outcome, name: str) -> None:
        """One more; a mistake that is new is told at once."""
        self.counts[case.family, outcome.kind] += 1
        if outcome.ended is not None:
            now = (outcome.ended.cpu_s, outcome.ended.peak_bytes / 1e9)
            self.slowest = (max(self.slowest[0], now[0]), max(self.slowest[1], now[1]))
        if outcome.kind in GOOD:
            return
        signature = f"{case.family}: {outcome.signature}"
        self.signatures[signature] += 1
        if self.signatures[signature] <= KEPT_OF_EACH:
            case.save(self.keep / name, f"{outcome.kind}: {outcome.note}")
        if self.signatures[signature] == 1:
            say(f"{name}: {outcome.kind}: {outcome.note[:240]}")

    @property
    def done(self) -> int:
        """Trials so far."""
        return sum(self.counts.values())

    @property
    def bad(self) -> int:
        """Those that ended as nothing may."""
        return sum(count for (_, kind), count in self.counts.items() if kind in BAD)

    def progress(self, wanted: int | None) -> str:
        """In a line."""
        rate = self.done / max(1e-9, time.monotonic() - self._began_s)
        return f"{self.done}{f'/{wanted}' if wanted else ''}: {self.bad} bad ({rate:.1f} a second)"

    def table(self) -> str:
        """Rows are families, columns kinds."""
        kinds = [*GOOD, *BAD]
        families = sorted({family for family, _ in self.counts})
        width = max(map(len, [*families, "all"]))
        rows = [[f"{self.counts[family, kind]}" for kind in kinds] for family in families]
        rows.append([str(sum(self.counts[family, kind] for family in families)) for kind in kinds])
        sizes = [max(len(kind), *(len(row[place]) for row in rows)) for place, kind in enumerate(kinds)]
        lines = [["", *kinds], *([name, *row] for name, row in zip([*families, "all"], rows, strict=True))]
        text = "\n".join(
            f"{name:{width}}  " + "  ".join(f"{cell:>{size}}" for cell, size in zip(cells, sizes, strict=True))
            for name, *cells in lines
        )
        most = f"at most {self.slowest[0]:.1f} s of CPU and {self.slowest[1]:.2f} GB"
        found = [f"{count:6}  {signature}" for signature, count in self.signatures.most_common()]
        return "\n".join([text, most, *found, *([f"kept in {self.keep}"] if found else [])])


def say(text: str) -> None:
    """A line now."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
