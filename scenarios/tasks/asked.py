"""What several tasks need: a scenario with its file and run folder, its world, and remarks before the work.

What is wrong is told of the flag that says it on the command line; `slimsched` names its arguments instead.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from kit.errors import InputError
from scenarios.files.made_routers import made_file, made_kinds
from scenarios.files.reading import require_router
from scenarios.files.router_names import is_compiled, is_router_file
from scenarios.files.spec import CompareSection, Scenario, ValidateSection, unique
from scenarios.runs.folder import RunFolder
from scenarios.terminal.places import writable_folder

if TYPE_CHECKING:
    from kit.parallel import Jobs
    from scenarios.job.job import Job
    from scenarios.metrics.result import Simulator
    from scenarios.runs.engines import EngineChoice
    from scenarios.world.world import World


class Listener(Protocol):
    """Who hears of the work (`scenarios.terminal.output.Output` is one)."""

    quiet: bool

    def remark(self, text: str) -> None:
        """Something about the work."""


class Silent:
    """Hears nothing, and lets no bar be drawn."""

    quiet = True

    def remark(self, text: str) -> None:
        """Nobody is told."""


@dataclass(frozen=True)
class Asked:
    """A scenario that something is to be done with.

    Attributes:
        path: its file.
        folder: its run folder, which may not be there yet.
        output: who hears of the work.
    """

    path: Path
    scenario: Scenario
    folder: Path
    output: Listener

    def with_routers(self, section: str, routers: Sequence[str], seeds: Sequence[int]) -> Asked:
        """With these routers and seeds in a section (`compare`, `validate_`), where some are named.

        Raises:
            InputError: one is not known, or named twice.
        """
        update: dict[str, Any] = {}
        if routers:
            for name in routers:
                require_router(name, self.scenario)
            named = tuple(str(Path(n).absolute()) if is_router_file(n) else n for n in routers)
            update["routers"] = require_unique("--router", named)
        if seeds:
            update["seeds"] = require_unique("--seed", tuple(seeds))
        return self.with_section(section, **update)

    def with_section(self, section: str, **update: Any) -> Asked:
        """With other values in a section of the scenario."""
        changed = getattr(self.scenario, section).model_copy(update=update)
        return replace(self, scenario=self.scenario.model_copy(update={section: changed}))


def run_folder_of(scenario: Scenario, path: Path, out: Path | None) -> Path:
    """The run folder `out`, or else the scenario's own, which must not be that of another file.

    Raises:
        InputError: it is, or nothing can be written there.
    """
    from scenarios.world.materials import default_folder

    folder = writable_folder(out or default_folder(scenario))
    if out is None:
        RunFolder(folder).require_scenario(path)
    return folder


def world_of(scenario: Scenario, folder: Path) -> World:
    """The world that a scenario and its run folder make."""
    from scenarios.world.materials import make_world

    return make_world(scenario, folder)


def job_of(asked: Asked) -> Job:
    """The job of a scenario in its run folder."""
    from scenarios.job.job import Job

    return Job(asked.scenario, asked.folder, say=asked.output.remark, quiet=asked.output.quiet)


def begin_job(job: Job) -> World:
    """The world of a job whose stages are done singly; the job is written into its folder, which is open."""
    world = job.world()
    job.describe()
    return world


def ready_engine(
    output: Listener,
    world: World,
    choice: EngineChoice,
    runs: int,
    seed: int,
    *,
    duration_s: float | None = None,
) -> Simulator:
    """The engine of runs that nobody has begun yet, of which this is one's seed.

    Raises:
        InputError: the runs take more memory than this machine has.
    """
    from scenarios.runs.engines import able_to_run, engine_of, require_memory

    engine = engine_of(world, choice, runs, duration_s=duration_s)
    require_memory(world, engine, duration_s=duration_s)
    if choice != "auto":
        return engine
    return able_to_run(world, engine, lambda: world.run_spec(seed, duration_s=duration_s), output.remark)


def tell_foreign(output: Listener, world: World, routers: Sequence[str]) -> None:
    """Warn of routers that were tuned for another cluster, and of those that can't follow what `service` asks for."""
    from scenarios.world.routers import deaf_routers, foreign_routers

    for warning in (
        *foreign_routers(routers, world.device_names, world.cluster),
        *deaf_routers(routers, world.scenario),
    ):
        output.remark(warning)


def tell_overload(output: Listener, world: World) -> None:
    """Warn of an odd trace, and of a rate beyond any router's capacity: the work goes on, for it may be looked at."""
    from scenarios.runs.bound import busy_router_of, overload_of

    if output.quiet:
        return
    for problem in filter(None, (*world.trace_doubts(), busy_router_of(world), overload_of(world))):
        output.remark(f"warning: {problem}")


def announcing_compilation(
    output: Listener, routers: Sequence[str], engine: Simulator = "simpy"
) -> AbstractContextManager[None]:
    """Within it, what must be compiled is told; numba is opened only where the engine or a trained router needs it."""
    if engine == "simpy" and not any(map(is_compiled, routers)):
        return contextlib.nullcontext()
    from scenarios.terminal.compiling import telling

    return telling(output.remark)


@contextlib.contextmanager
def spread(ray: str | None, jobs: int | None, own: Callable[[], Jobs]) -> Iterator[Jobs]:
    """Where runs are made: on the Ray cluster at an address, or on this machine.

    Args:
        jobs: how many processes were asked for here.
        own: how many there are where nobody asked.

    Raises:
        InputError: there is no such cluster, or processes are asked for, too.
    """
    if ray is None:
        yield jobs or own()
        return
    if jobs is not None:
        raise InputError("--jobs", "", "says how many processes run here, and --ray that they run elsewhere; give one")
    from scenarios.runs.ray_pool import ray_pool

    with ray_pool(ray) as pool:
        yield pool


def require_unique(flag: str, values: tuple[Any, ...]) -> tuple[Any, ...]:
    """The values; raises `InputError` where one is given twice."""
    try:
        return unique(values)
    except ValueError as error:
        raise InputError(flag, "", str(error)) from None


def require_made(section: CompareSection | ValidateSection, folder: Path) -> None:
    """Raises `InputError` where a router of the section is one that the scenario's run makes, and it is not there."""
    for kind in made_kinds(section.routers):
        if not (folder / made_file(kind)).is_file():
            key = "compare.routers" if isinstance(section, CompareSection) else "validate.routers"
            default = ", ".join(type(section).model_fields["routers"].default)
            remedy = f"add {kind} to compare.routers, then `slimsched train`"
            remedy += f", or name others in {key} (left out, it is: {default})"
            raise InputError(str(folder), "", f"no {kind} was made yet for this scenario; {remedy}")
