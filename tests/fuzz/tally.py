"""Counts by family and kind, shown as they come."""

from __future__ import annotations

import sys
import time  # noqa: TID251 - progress is told in seconds
from collections import Counter

from tests.fuzz.trial import BAD, GOOD, Outcome


class Tally:
    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self.signatures: Counter[str] = Counter()
        self.slowest: tuple[float, float] = (0.0, 0.0)
        self._began_s = time.monotonic()

    def add(self, family: str, outcome: Outcome) -> None:
        """One more; a mistake that is new is told at once."""
        self.counts[family, outcome.kind] += 1
        if outcome.ended is not None:
            now = (outcome.ended.cpu_s, outcome.ended.peak_bytes / 1e9)
            self.slowest = (max(self.slowest[0], now[0]), max(self.slowest[1], now[1]))
        if outcome.kind in GOOD:
            return
        signature = f"{family}: {outcome.signature}"
        self.signatures[signature] += 1
        if self.signatures[signature] == 1:
            said = outcome.ended.err[-3000:] if outcome.ended is not None else ""
            say(f"{self.done} {family}: {outcome.kind}: {outcome.note[:240]}\n{said}")

    @property
    def done(self) -> int:
        return sum(self.counts.values())

    @property
    def bad(self) -> int:
        return sum(count for (_, kind), count in self.counts.items() if kind in BAD)

    def progress(self) -> str:
        return f"{self.done}: {self.bad} bad ({self.done / max(1e-9, time.monotonic() - self._began_s):.1f} a second)"

    def table(self) -> str:
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
        return "\n".join([text, most, *found])


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
