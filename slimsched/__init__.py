"""Slim Scheduler from Python: scheduling of slimmable networks over unequal GPUs, simulated and for real.

Each function does what the command of its name does (`slimsched --help`), by the same code; `save_router` has no
command, for it takes what another library has learned. Nothing prints: results
are dataclasses, remarks stand in them, and long work tells a `progress` callback how far it is. What is wrong in what
was given is an `InputError`, a `ValueError` whose text names the file or argument, the key and the remedy.

Importing it registers `SlimCluster-v0` and `JobCluster-v0` with Gymnasium.
"""

from __future__ import annotations

from typing import Any

import hw  # noqa: F401 - sets the environment before torch is opened
import scenarios.gym  # noqa: F401 - registers SlimCluster-v0
import slimsched.jobs.gym  # noqa: F401 - registers JobCluster-v0
from kit.errors import InputError, WorkError
from scenarios.terminal.progress import Step
from slimsched.functions import (
    CalibrateOptions,
    Scenario,
    TuneOptions,
    bound,
    calibrate,
    compare,
    load,
    save_router,
    simulate,
    train,
    tune,
    validate,
)
from slimsched.results import (
    Bound,
    Calibration,
    Comparison,
    Document,
    Estimate,
    Pair,
    RouterSummary,
    RunResult,
    ServerResult,
    TrainedRouter,
    Training,
    TunedRouter,
    Validation,
)

__all__ = [
    "Bound",
    "CalibrateOptions",
    "Calibration",
    "Comparison",
    "Document",
    "Estimate",
    "InputError",
    "Pair",
    "RouterSummary",
    "RunResult",
    "Scenario",
    "ServerResult",
    "Step",
    "TrainedRouter",
    "Training",
    "TuneOptions",
    "TunedRouter",
    "Validation",
    "WorkError",
    "bound",
    "calibrate",
    "compare",
    "load",
    "save_router",
    "simulate",
    "train",
    "tune",
    "validate",
]


def __getattr__(name: str) -> Any:
    """`__version__`, looked up only where it is asked for."""
    if name == "__version__":
        from hw.version import own_version

        return own_version()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
