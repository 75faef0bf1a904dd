"""`slimsched calibrate`."""

from __future__ import annotations

from argparse import Namespace

from scenarios.tasks.calibrating import Calibrating
from scenarios.tasks.calibrating import calibrate as measure
from scenarios.terminal.output import Output


def calibrate(arguments: Namespace) -> int:
    """Measure devices: local ones, one that is emulated, or those of every host of a cluster; each gets a profile."""
    wanted = Calibrating(
        model=arguments.model,
        network=arguments.network,
        options=arguments.options,
        device=arguments.device,
        budget_s=arguments.budget,
        batch_limit=arguments.batch_limit,
        seed=arguments.seed,
        out=arguments.out,
        allow_busy=arguments.allow_busy,
        cluster=arguments.cluster,
        beyond_loopback=arguments.beyond_loopback,
    )
    output = Output(arguments)
    paths, warnings = measure(wanted, output)
    lines = "\n".join(f"profile: {path}" for path in paths)
    return output.result(lines, {"profiles": [str(path) for path in paths], "warnings": warnings})
