"""All checks, as `checks.csv` beside this file lists them: what each looks at, when it passes, how long it may take."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final


@dataclass(frozen=True)
class Check:
    """One check; it opens torch only when it looks.

    Attributes:
        expected_s: what it takes on a large GPU, guessed until it was seen there.
        deadline_s: of its process.
        on_cpu: whether it is worth its time where there is no GPU; by name it is done there, too.
        function: `MODULE.NAME` of this package, which takes a `stand.Stand` and says what is wrong, if anything is.
        what: it looks at.
        passes: when it does.
    """

    id: str
    expected_s: float
    deadline_s: float
    on_cpu: bool
    function: str
    what: str
    passes: str

    def look(self) -> Callable[[Any], str]:
        """The function itself."""
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
