"""All checks, as `checks.csv` beside this file lists them: what each looks at, when it passes, how long it may take."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

Found = tuple[str, Mapping[str, Any]]
"""(what is wrong, empty where nothing is; numbers)."""


@dataclass(frozen=True)
class Check:
    """One check; it opens torch only when it looks.

    Attributes:
        deadline_s: of its process.
        on_cpu: whether it is worth its time where there is no GPU; by name it is done there, too.
        function: `MODULE.NAME` of this package, which takes a `stand.Stand`.
        what: it looks at.
        passes: when it does.
    """

    id: str
    deadline_s: float
    on_cpu: bool
    function: str
    what: str
    passes: str

    def look(self) -> Callable[[Any], Found]:
        """The function itself."""
        module, _, name = self.function.partition(".")
        look: Callable[[Any], Found] = getattr(import_module(f"benchmarks.gpu.{module}"), name)
        return look


def _checks() -> tuple[Check, ...]:
    with (Path(__file__).parent / "checks.csv").open(encoding="utf-8", newline="") as file:
        return tuple(
            Check(row["id"], float(row["deadline_s"]), row["on_cpu"] == "yes", row["look"], row["what"], row["passes"])
            for row in csv.DictReader(file)
        )


CHECKS: Final = _checks()
