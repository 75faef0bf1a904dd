"""Simulation beside real executors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scenarios.tasks.asked import Asked, announcing_compilation, begin_job, job_of, require_made

if TYPE_CHECKING:
    from scenarios.metrics.fidelity import Validation


def validate(asked: Asked, *, goes_on: bool = False) -> Validation:
    """The same arrivals in both worlds, kept in the run folder.

    Args:
        goes_on: also where the first two hardware runs are far from their simulation; else the scenario says.

    Raises:
        InputError: a router was not made yet, or something does not fit this machine.
    """
    require_made(asked.scenario.validate_, asked.folder)
    from scenarios.job import validation as stage  # opens torch, which takes long: after what is checked at once
    from scenarios.job.deciding import with_decision_times

    if goes_on:
        asked = asked.with_section("validate_", go_on=True)
    routers = asked.scenario.validate_.routers
    job = job_of(asked)
    with job.folder.opened(asked.path), announcing_compilation(asked.output, routers):
        world = with_decision_times(job, begin_job(job), routers)
        return stage.validate(job, world)
