"""Routers that learn in simulation: trained here, or brought from another library."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from kit.errors import InputError, nearest
from policies.registry import COMPASS
from slimsched.arguments import Changes, File, Out, Scenario, ScenarioLike, changes_of
from slimsched.results import TrainedRouter, Training
from slimsched.working import announcing_compilation, begin, load, observer, tell_overload, verb

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from torch import nn


@verb
def train(
    scenario: ScenarioLike | None = None,
    /,
    routers: Annotated[Sequence[str], Parameter(name="--router", alias="-r")] = (),
    *,
    over: File | None = None,
    out: Out = None,
    changes: Changes | None = None,
) -> Training:
    """Train routers in simulation.

    PPO learns by gradients, rules by direct search over whole runs. Compass learns for one scenario, or over clusters
    that are drawn at random.

    Interrupted, the same call goes on from its last checkpoint.

    Args:
        scenario: a scenario's file (YAML), or a shipped one by name; or what `load` returned.
        routers: which kinds, such as compass, ppo or ladder (docs/routers.md); may be given several times. By default
            those that the scenario's own run makes, `compass` where it names none.
        over: in place of a scenario: a file of what clusters are drawn from, or `clusters`, which ships; the router is
            `compass`.
        out: the run folder, which keeps the routers' files; `runs/NAME` by default.
        changes: other values than the scenario's, by dotted keys: seed, training.decisions, tuning.floor,
            tuning.decisions, tuning.searches, tuning.objective, tuning.control ...

    Raises:
        InputError: no such kind, too few decisions, something that it needs is missing, or the compiled engine can't do
            what the scenario asks for.
        WorkError: no setting of a rule keeps the accuracy that is asked for.

    Example:
        ```python
        learning = slimsched.load("paper", {"duration_s": 2, "warmup_s": 0.5, "training.decisions": 20_000})
        made = slimsched.train(learning, out="runs/learning")
        result = slimsched.simulate(learning, made.routers[0].path)
        ```
    """
    from scenarios.files.made_routers import MADE_KINDS, PPO, made_kind, made_kinds

    if over is not None:
        return _train_over(scenario, routers, Path(over), out, changes)
    if scenario is None:
        raise InputError("SCENARIO", "", "missing; name one (`slimsched list` shows them), or --over clusters")
    run = begin(scenario, changes, out)
    given = run.scenario
    kinds = tuple(made_kind(name) or name for name in routers)
    kinds = tuple(dict.fromkeys(kinds)) or made_kinds((*given.compare.routers, *given.validate_.routers)) or (COMPASS,)
    for kind in kinds:
        if kind not in MADE_KINDS:
            raise InputError("--router", "", f"{kind!r} can't be trained; {nearest(kind, MADE_KINDS)}")
    from scenarios.job.router import make_routers
    from scenarios.runs.engines import require_memory

    with run.opened(), announcing_compilation((PPO,), "compiled"):
        world = run.world()
        run.describe()
        require_memory(world, "compiled")  # of the runs that score them
        tell_overload(world)
        scores = make_routers(run, world, kinds)
    trained = tuple(TrainedRouter(run.made(kind), score) for kind, score in scores.items())
    return Training(routers=trained, folder=run.folder.path)


def _train_over(
    scenario: ScenarioLike | None, routers: Sequence[str], over: Path, out: Out, changes: Changes | None
) -> Training:
    from kit.files import writable_folder
    from scenarios.job.over import make_compass
    from scenarios.learn.clusters import read_clusters
    from scenarios.runs.folder import RunFolder

    if scenario is not None:
        raise InputError("--over", "", "takes the place of a scenario; name one of both")
    if any(kind != COMPASS for kind in routers):
        raise InputError("--router", "", f"over drawn clusters {COMPASS} alone is trained; leave --router out")
    given = read_clusters(over, changes_of(changes))
    folder = RunFolder(writable_folder(Path("runs") / given.name if out is None else Path(out)), observer().remark)
    with folder.opened(), announcing_compilation((), "compiled"):
        path, score = make_compass(given, folder, quiet=observer().quiet)
    return Training(routers=(TrainedRouter(path, score),), folder=folder.path)


def save_router(
    scenario: Scenario | str | Path,
    layers: Sequence[tuple[ArrayLike, ArrayLike]] | nn.Sequential,
    out: str | Path,
    *,
    deterministic: bool = False,
) -> Path:
    """Write what another library has learned on `SlimCluster-v0` as a router's file.

    The network takes an observation of the environment and has a tanh, or a ReLU, after each layer but the last. The
    last one gives the logits of server, width and group, side by side (and of the hold, where `training.holds_s` names
    waits). The router chooses each part by its logits, among what is not masked: of widths, those that the chosen
    server holds.

    Between two activations of a `torch.nn.Sequential` may be any affine modules, such as a scaling of inputs. The file
    is only written if it gives the module's own logits on 256 observations.

    Args:
        scenario: the one that was learned on; what `load` returned, or takes.
        layers: a `torch.nn.Sequential`; or from the input on, with a tanh between them, each layer's weights
            (outputs, inputs) and biases (outputs,), as `torch.nn.Linear` has them.
        out: the file, `NAME.safetensors`. A router that is there is replaced, another file is not.
        deterministic: the router takes the most probable of each part; by default it draws, as libraries do in
            training.

    Returns:
        The file, which is a router's name wherever one is expected.

    Raises:
        InputError: the network does not fit the scenario, computes what no router's file can hold, or the file can't
            be written.

    Example:
        ```python
        from torch import nn

        seen, chosen = 2 + 3 * 3, 3 + 4 + 6  # by 3 servers; of servers, 4 widths and 6 groups
        network = nn.Sequential(nn.Linear(seen, 64), nn.Tanh(), nn.Linear(64, chosen))
        path = slimsched.save_router(short, network, "untrained.safetensors")
        print(slimsched.simulate(short, path).router)
        ```
    """
    from scenarios.learn.imported import write_router
    from scenarios.world.materials import default_folder, make_world

    keys, path = load(scenario).keys, Path(out)
    write_router(make_world(keys, default_folder(keys)), layers, path, deterministic)
    return path
