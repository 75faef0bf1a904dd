"""Slim Scheduler from Python: scheduling of slimmable networks over unequal GPUs, simulated and for real.

Each function is the command of its name (`slimsched --help`); `save_router` has no command, because it takes what
another library has learned. Nothing prints: results hold numbers and remarks, and within `observed_by(callback)` long
work reports its progress. An invalid argument or file raises an `InputError`, a `ValueError` whose text names the file
or argument, the key and the remedy.

`import slimsched.gym` registers `SlimCluster-v0` with Gymnasium.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import hw  # noqa: F401 - sets the environment before torch is opened

if TYPE_CHECKING:
    from kit.documents import Document
    from kit.errors import InputError, WorkError
    from scenarios.metrics.result_documents import Bound, Capacity, Plan, SuiteScore
    from scenarios.terminal.progress import Step, observed_by
    from slimsched.arguments import Scenario
    from slimsched.models import add_models, check_model, join_models, slim_model, train_model
    from slimsched.profiles import calibrate, check_profile, show_profile, synthesize_profile
    from slimsched.results import (
        Calibration,
        CommandResult,
        Comparison,
        Estimate,
        Job,
        Pair,
        RouterSummary,
        RunResult,
        ServerResult,
        TrainedRouter,
        Training,
        Validation,
    )
    from slimsched.running import replay, report, run, save_router, train, validate
    from slimsched.serving import check_cluster, generate_load, serve, steer
    from slimsched.simulating import bound, capacity, compare, plan, simulate, suite
    from slimsched.starting import init, names
    from slimsched.working import load

__all__ = [
    "Bound",
    "Calibration",
    "Capacity",
    "CommandResult",
    "Comparison",
    "Document",
    "Estimate",
    "InputError",
    "Job",
    "Pair",
    "Plan",
    "RouterSummary",
    "RunResult",
    "Scenario",
    "ServerResult",
    "Step",
    "SuiteScore",
    "TrainedRouter",
    "Training",
    "Validation",
    "WorkError",
    "add_models",
    "bound",
    "calibrate",
    "capacity",
    "check_cluster",
    "check_model",
    "check_profile",
    "compare",
    "generate_load",
    "init",
    "join_models",
    "load",
    "names",
    "observed_by",
    "plan",
    "replay",
    "report",
    "run",
    "save_router",
    "serve",
    "show_profile",
    "simulate",
    "slim_model",
    "steer",
    "suite",
    "synthesize_profile",
    "train",
    "train_model",
    "validate",
]


_MODULES: Final = (
    "working", "arguments", "results", "simulating", "running", "serving", "profiles", "models", "starting",
)  # fmt: skip


def __getattr__(name: str) -> Any:
    """Open a public module on first access: the command line opens this package, too."""
    if name == "__version__":
        from kit.plugins import own_version

        return own_version()
    if name in __all__:
        modules = (import_module(f"slimsched.{module}") for module in _MODULES)
        return next(getattr(module, name) for module in modules if hasattr(module, name))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
