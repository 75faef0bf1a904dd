"""All checks, from `checks.csv` next to this file: what each inspects, its criterion, and its deadline."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final


@dataclass(frozen=True)
class Check:
    """One check; it imports torch only when it runs.

    Attributes:
        expected_s: its time on a large GPU, guessed until it was observed there.
        deadline_s: deadline of its process.
        on_cpu: whether it is worth its time without a GPU; requested by name, it always runs.
        function: `MODULE.NAME` of this package, which takes a `stand.Stand` and describes what is wrong, if anything
            is.
        what: what it inspects.
        passes: its criterion.
    """

    id: str
    expected_s: float
    deadline_s: float
    on_cpu: bool
    function: str
    what: str
    passes: str

    def look(self) -> Callable[[Any], str]:
        """Return the check's function."""
        module, _, name = self.function.partition(".")
        look: Callable[[Any], str] = getattr(import_module(f"benchmarks.gpu.{module}"), name)
        return look


def _checks() -> tuple[Check, ...]:
    with (Path(__file__).parent / "checks.csv").open(encoding="utf-8", newline="") as file:
        return tuple(
            Check(id, float(expected_s), float(deadline_s), on_cpu == "yes", look, what, passes)
            for id, expected_s, deadline_s, on_cpu, look, what, passes in list(csv.reader(file))[1:]
        )


CHECKS: Final = _checks()
