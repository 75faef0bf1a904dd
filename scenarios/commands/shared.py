"""What several commands need: the scenario and folder that the flags name, its world, and remarks before the work."""

from __future__ import annotations

import contextlib
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from policies.errors import InputError
from scenarios.commands.outputs import require_apart, require_beside
from scenarios.files.made_routers import made_file, made_kinds
from scenarios.files.named_files import named_files
from scenarios.files.reading import load_scenario
from scenarios.files.router_names import check_router, is_compiled, is_router_file
from scenarios.files.spec import Scenario, unique
from scenarios.runs.folder import RunFolder
from scenarios.terminal.output import Output
from scenarios.terminal.places import writable_folder

if TYPE_CHECKING:
    from scenarios.job.job import Job
    from scenarios.metrics.result import Simulator
    from scenarios.runs.parallel import Jobs
    from scenarios.world.world import World


def read_scenario(arguments: Namespace) -> Scenario:
    """The scenario; raises `InputError` also where a result would replace a file that it names."""
    scenario = load_scenario(arguments.scenario)
    require_apart(arguments, (file.path for file in named_files(scenario)))
    return scenario


def scenario_and_folder(arguments: Namespace) -> tuple[Scenario, Path]:
    """The scenario, and its run folder; the one by default must not be another scenario's.

    Raises:
        InputError: something is wrong with the one or the other.
    """
    from scenarios.world.materials import default_folder

    scenario = read_scenario(arguments)
    folder = writable_folder(arguments.out or default_folder(scenario))
    require_beside(arguments, folder)
    if arguments.out is None:
        RunFolder(folder).require_scenario(arguments.scenario)
    return scenario, folder


def load_world_of(scenario: Scenario, folder: Path) -> World:
    """The world that a scenario and its run folder make."""
    from scenarios.world.materials import make_world

    return make_world(scenario, folder)


def make_job(scenario: Scenario, folder: Path, output: Output) -> Job:
    """The job of a scenario in its run folder."""
    from scenarios.job.job import Job

    return Job(scenario, folder, say=output.remark, quiet=output.quiet)


def begin_job(job: Job) -> World:
    """The world of a job whose stages a command does singly; the job is written into its folder, which is open."""
    from scenarios.job.run import describe

    world = job.world()
    describe(job)
    return world


def tell_effort(
    output: Output,
    world: World,
    runs: int,
    engine: str = "simpy",
    *,
    duration_s: float | None = None,
    jobs: int = 1,
) -> None:
    """Tell of hours and gigabytes before they are spent.

    Raises:
        InputError: the runs take more memory than this machine has.
    """
    from scenarios.runs.effort import effort_of, require_effort

    simulator: Simulator = "compiled" if engine == "compiled" else "simpy"
    effort = effort_of(world, runs, simulator, duration_s=duration_s, processes=jobs)
    if (warning := require_effort(effort, world.scenario.name)) is not None:
        output.remark(warning)


def tell_foreign(output: Output, world: World, routers: Sequence[str]) -> None:
    """Warn of routers that were tuned for another cluster, and of those that can't follow what `service` asks for."""
    from scenarios.world.routers import deaf_routers, foreign_routers

    for warning in (
        *foreign_routers(routers, world.device_names, world.cluster),
        *deaf_routers(routers, world.scenario),
    ):
        output.remark(warning)


def tell_overload(output: Output, world: World) -> None:
    """Warn of a rate beyond any router's capacity; the work goes on, as overload may be what is looked at."""
    from scenarios.runs.bound import busy_router_of, overload_of

    if output.quiet:
        return
    for problem in filter(None, (busy_router_of(world), overload_of(world))):
        output.remark(f"warning: {problem}")


def announcing_compilation(
    output: Output, routers: Sequence[str], engine: str = "simpy"
) -> AbstractContextManager[None]:
    """Within it, what must be compiled is told; numba is opened only where the engine or a trained router needs it."""
    if engine == "simpy" and not any(map(is_compiled, routers)):
        return contextlib.nullcontext()
    from scenarios.terminal.compiling import telling

    return telling(output.remark)


@contextlib.contextmanager
def spread(arguments: Namespace, jobs: Callable[[], Jobs]) -> Iterator[Jobs]:
    """Where a command's runs are made: on the cluster that `--ray` names, or on this machine.

    Raises:
        InputError: there is no such cluster, or `--jobs` is given, too.
    """
    if arguments.ray is None:
        yield jobs()
        return
    if getattr(arguments, "jobs", None) is not None:
        raise InputError("--jobs", "", "says how many processes run here, and --ray that they run elsewhere; give one")
    from scenarios.runs.ray_pool import ray_pool

    with ray_pool(arguments.ray) as pool:
        yield pool


def with_routers(scenario: Scenario, section: str, arguments: Namespace) -> Scenario:
    """The scenario with the routers and seeds that the flags name instead of its own."""
    update: dict[str, Any] = {}
    if arguments.router:
        for name in arguments.router:
            check_router(name, "--router")
        named = tuple(str(Path(n).absolute()) if is_router_file(n) else n for n in arguments.router)
        update["routers"] = require_unique("--router", named)
    if arguments.seed:
        update["seeds"] = require_unique("--seed", tuple(arguments.seed))
    return scenario.model_copy(update={section: getattr(scenario, section).model_copy(update=update)})


def require_unique(flag: str, values: tuple[Any, ...]) -> tuple[Any, ...]:
    """The values; raises `InputError` where one is given twice."""
    try:
        return unique(values)
    except ValueError as error:
        raise InputError(flag, "", str(error)) from None


def require_made(routers: Sequence[str], folder: Path) -> None:
    """Raises `InputError` where one is named that the scenario's run makes, and it is not there."""
    for kind in made_kinds(routers):
        if not (folder / made_file(kind)).is_file():
            raise InputError(str(folder), "", f"no {kind} was made yet for this scenario; run `slimsched train` first")
