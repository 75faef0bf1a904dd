"""Around the work of every function: its observer, the scenario and run folder, and what is reported beforehand."""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar

from kit.errors import InputError
from kit.plugins import telling
from scenarios.terminal.progress import Step, current_observer, observed_by
from slimsched.arguments import LONGEST, Scenario, changes_of, flag_of, require_unique, require_within

if TYPE_CHECKING:
    from kit.documents import Document
    from scenarios.experiment.resolved_scenario import Experiment
    from scenarios.job.job_stages import Run
    from scenarios.metrics.run_result import Simulator
    from scenarios.runs.simulated_runs import EngineChoice
    from scenarios.terminal.progress import Progress

P = ParamSpec("P")
R = TypeVar("R", bound="Document")

# ------------------------------------------------------------------------------------------------------------ observers


class Observer(Protocol):
    """The observer of the work.

    Attributes:
        quiet: whether progress is not wanted.
        written: the files that are to be written in addition to the run folder's.
    """

    quiet: bool
    written: Sequence[Path]

    def remark(self, text: str) -> None:
        """Receive a remark about the work."""


@dataclass
class Remarks:
    """Keeps the remarks, for the result, and passes them to the observer of progress."""

    hear: Callable[[Step], None]
    texts: list[str] = field(default_factory=list)
    quiet: bool = False  # what there is to remark is found out
    written: Sequence[Path] = ()

    def remark(self, text: str) -> None:
        """Keep a remark, and pass it on at once."""
        self.texts.append(text)
        self.hear(Step(text=text))


_observer: ContextVar[Observer | None] = ContextVar("listener", default=None)


@contextlib.contextmanager
def observing(observer: Observer) -> Iterator[None]:
    """Make this the observer of functions' work within it."""
    before = _observer.set(observer)
    try:
        yield
    finally:
        _observer.reset(before)


def observer() -> Observer:
    """Return the observer of the function that works now."""
    listener = _observer.get()
    assert listener is not None, "it is a verb"
    return listener


def verb(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function that is a command, too: from Python it prints nothing, and names its own arguments in errors."""

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        if _observer.get() is not None:
            return function(*args, **kwargs)
        hear = current_observer() or (lambda _: None)
        remarks = Remarks(hear)
        with observing(remarks), telling(remarks.remark), observed_by(hear), _naming(function):
            return function(*args, **kwargs).with_remarks(remarks.texts)

    return called


@contextlib.contextmanager
def _naming(function: Callable[..., Any]) -> Iterator[None]:
    """Report what is wrong with a flag under the name of that function's argument."""
    try:
        yield
    except InputError as error:
        names = {flag_of(name): name for name in inspect.signature(function).parameters}
        plural = {f"{flag}s": flag for flag in (error.source,)}
        flag_name = names.get(error.source) or next((names[each] for each in plural if each in names), None)
        if flag_name is None:
            raise
        error.source = flag_name
        error.args = (str(InputError(flag_name, error.key, error.problem)),)
        raise


# ------------------------------------------------------------------------------------------------- scenario and folder


def load(scenario: Scenario | str | Path, changes: Mapping[str, Any] | None = None) -> Scenario:
    """Read a scenario, and check it whole.

    Args:
        scenario: a file, or the name of a shipped one: `paper`, `live/bursts` (docs/scenarios.md).
        changes: other values than the file's, by dotted keys. `cluster.servers.0` is the first of a list, and the
            number after the last adds one. They are checked as the file is.

    Raises:
        InputError: there is none, or anything in it, or in a file that it names, is wrong.

    Example:
        ```python
        short = slimsched.load("paper", {"duration_s": 2, "warmup_s": 0.5, "workload.rate_img_s": 300})
        print(short.name, short.keys.duration_s, [server.name for server in short.keys.cluster.named_servers])
        ```
    """
    from scenarios.experiment.scenario_building import SCENARIO_FILE
    from scenarios.files.bundled_files import scenario_file
    from scenarios.files.scenario_reading import load_scenario

    settings = changes_of(changes)
    if isinstance(scenario, Scenario):
        if not settings:
            return scenario
        raise InputError("changes", "", "this scenario was read before; name its file, and all changes at once")
    path = scenario_file(Path(scenario))
    if (path / SCENARIO_FILE).is_file():
        raise InputError(str(path), "", f"this is a run folder; name its scenario: {path / SCENARIO_FILE}")
    return Scenario(path, load_scenario(path, settings), json.dumps(settings, default=str) if settings else "")


def begin(
    scenario: Scenario | str | Path, changes: Mapping[str, Any] | None = None, out: str | Path | None = None
) -> Run:
    """Read a scenario, and name its run folder: `out`, or its own, which must not be that of another file.

    That is the folder in which a run has kept its scenario, wherever it is now, and `runs/NAME` of any other.

    Raises:
        InputError: something is wrong with the one or the other, or a result would replace a file that is read.
    """
    from kit.files import writable_folder
    from kit.strict import named_files
    from scenarios.experiment.scenario_building import SCENARIO_FILE, default_folder
    from scenarios.job.job_stages import Run
    from scenarios.runs.folder import RunFolder, require_apart

    read = load(scenario, changes)
    is_kept = read.path.name == SCENARIO_FILE and RunFolder(read.path.parent).is_flagged
    run_folder = read.path.parent if is_kept else default_folder(read.keys)
    folder = writable_folder(run_folder if out is None else Path(out))
    if out is None and not is_kept:
        RunFolder(folder).require_scenario(read.path)
    if observer().written:
        require_apart(observer().written, (file.path for file in named_files(read.keys)), folder)
    return Run(read.keys, folder, say=observer().remark, quiet=observer().quiet, source=read.path)


def with_routers(run: Run, section: str, routers: Sequence[str | Path], seeds: Sequence[int] = ()) -> Run:
    """Return the run with these routers and seeds in a section (`compare`, `validate_`), if some are named.

    Raises:
        InputError: one is not known, or named twice.
    """
    from scenarios.files.router_files import with_file
    from scenarios.files.scenario_reading import require_router

    update: dict[str, Any] = {}
    names = list(map(str, routers))
    for name in names:
        require_router(name, run.scenario)
    if names:
        paths = [with_file(name, lambda path: str(path.absolute())) for name in names]
        update["routers"] = require_unique("--router", paths)
    for seed in seeds:
        require_within("--seed", seed, 0, LONGEST)
    if seeds:
        update["seeds"] = require_unique("--seed", seeds)
    return run.with_section(section, **update) if update else run


# ------------------------------------------------------------------------------------------ reported before the work


def ready_engine(
    experiment: Experiment, choice: EngineChoice, runs: int, seed: int, *, duration_s: float | None = None
) -> Simulator:
    """Return the engine of runs that are not begun yet, of which this is one's seed.

    Raises:
        InputError: the runs take more memory than this machine has.
    """
    from scenarios.runs.simulated_runs import able_to_run, engine_of, require_memory

    engine = engine_of(experiment, choice, runs, duration_s=duration_s)
    require_memory(experiment, engine, duration_s=duration_s)
    if choice != "auto":
        return engine
    return able_to_run(experiment, engine, lambda: experiment.run_spec(seed, duration_s=duration_s), observer().remark)


def warn_of_routers(experiment: Experiment, routers: Sequence[str], made_in: Path) -> None:
    """Warn of routers that were tuned for another cluster, and of those that can't follow what `slo` asks for."""
    from scenarios.experiment.scenario_routers import routers_ignoring_goals, routers_tuned_elsewhere

    foreign = routers_tuned_elsewhere(routers, experiment.device_names, experiment.cluster)
    for warning in (*foreign, *routers_ignoring_goals(routers, experiment.scenario, made_in)):
        observer().remark(warning)


def tell_overload(experiment: Experiment) -> None:
    """Warn of an odd trace, and of a rate beyond any router's capacity: the work continues, as it may be intended."""
    from scenarios.runs.fluid_bound import busy_router_of, overload_of

    if observer().quiet:
        return
    for problem in filter(None, (*experiment.trace_doubts(), busy_router_of(experiment), overload_of(experiment))):
        observer().remark(f"warning: {problem}")


def announcing_compilation(
    routers: Sequence[str], engine: Simulator = "simpy"
) -> contextlib.AbstractContextManager[None]:
    """Report what must be compiled, within it; numba is opened only if the engine or a trained router needs it."""
    from scenarios.files.router_files import is_compiled

    if engine == "simpy" and not any(map(is_compiled, routers)):
        return contextlib.nullcontext()
    from scenarios.terminal.compiling import telling as telling_compilation

    return telling_compilation(observer().remark)


def solving(programs: int) -> Progress:
    """Return a bar over the programs of a bound."""
    from scenarios.terminal.progress import Progress

    return Progress("bound", programs, unit="program", quiet=observer().quiet)


def require_made(run: Run, section: str) -> None:
    """Raise `InputError` if a section's routers include missing ones that the scenario's run makes."""
    from scenarios.files.bundled_files import made_kinds, made_name

    keys = getattr(run.scenario, section)
    unmade = [kind for kind in made_kinds(keys.routers) if not run.made(kind).is_file()]
    if unmade:
        default = ", ".join(type(keys).model_fields["routers"].default)
        problem = f"not made yet for this scenario: {', '.join(map(made_name, unmade))}"
        remedy = f"`{_making(run, unmade)}` does it, or name others in {section.strip('_')}.routers"
        raise InputError(str(run.folder.path), "", f"{problem}; {remedy} (left out, it is: {default})")


def _making(run: Run, kinds: Sequence[str]) -> str:
    """Return the command that makes routers: before devices are calibrated and the network evaluated, the whole run."""
    from scenarios.experiment.scenario_building import default_folder
    from scenarios.files.bundled_files import SHIPPED_SCENARIOS

    is_shipped = run.source is None or run.source.is_relative_to(SHIPPED_SCENARIOS)
    out = [] if run.folder.path == default_folder(run.scenario) else ["--out", str(run.folder.path)]
    arguments = [run.scenario.name if is_shipped else str(run.source), *out]
    try:
        run.experiment()
    except InputError:
        return shlex.join(["slimsched", "run", *arguments])
    flags = [text for kind in kinds for text in ("--router", kind)]
    return shlex.join(["slimsched", "train", *arguments, *flags])
