"""The functions: each does what the command of its name does, by the same code, and prints nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict, Unpack

from kit.errors import InputError
from kit.plugins import telling
from scenarios.terminal.progress import Step, heard_by
from slimsched.results import (
    Bound,
    Calibration,
    Comparison,
    RunResult,
    TrainedRouter,
    Training,
    TunedRouter,
    Validation,
)

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from scenarios.files.spec import Scenario as Keys
    from scenarios.tasks.asked import Asked

Engine = Literal["auto", "simpy", "compiled"]
Progress = Callable[[Step], None]


@dataclass(frozen=True)
class Scenario:
    """A scenario that was read and checked whole.

    Attributes:
        path: its file.
        keys: what it says, key by key (docs/scenario-keys.md): `scenario.keys.duration_s`. Paths are absolute.
        changed: what is otherwise than in the file, as JSON; empty where nothing is.
    """

    path: Path
    keys: Keys = field(repr=False)
    changed: str = ""

    @property
    def name(self) -> str:
        """As the file says it; its run folder is `runs/NAME` where nobody names another."""
        return self.keys.name


# ----------------------------------------------------------------------------------------------------- around the work

_ARGUMENTS: Final = {  # of a function, where it is not called as the flag is
    "--p99": "p99_limit_s",
    "--budget": "budget_s",
    "--window": "window_s",
}


class _Remarks:
    """Hears of the work in the place of a command's output."""

    quiet = False  # what there is to remark is found out

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self.said: list[str] = []

    def remark(self, text: str) -> None:
        """Kept for the result, and told at once to who wants to know."""
        self.said.append(text)
        if self._progress is not None:
            self._progress(Step(text=text))


def _hear_nothing(step: Step) -> None:
    """Nobody asked."""


@contextmanager
def _working(progress: Progress | None, **named: str) -> Iterator[_Remarks]:
    """Within it nothing is written to the terminal, and what is wrong is told of the function's arguments.

    Args:
        named: what this function calls a flag: `router="routers"`.
    """
    remarks = _Remarks(progress)
    try:
        with telling(remarks.remark), heard_by(progress or _hear_nothing):
            yield remarks
    except InputError as error:
        if not error.source.startswith("--"):
            raise
        flag = error.source[2:].replace("-", "_")
        error.source = named.get(flag) or _ARGUMENTS.get(error.source, flag)
        error.args = (str(InputError(error.source, error.key, error.problem)),)
        raise


def _asked(scenario: Scenario | str | Path, out: str | Path | None, remarks: _Remarks) -> Asked:
    from scenarios.tasks.asked import Asked, run_folder_of

    given = load(scenario)
    folder = run_folder_of(given.keys, given.path, None if out is None else Path(out))
    return Asked(given.path, given.keys, folder, remarks)


def _router(named: str | Path) -> str:
    """A router's name, or its file; what ships may be named as it lay before `scenarios/data`."""
    from scenarios.files.shipped import moved

    now = moved(Path(named))
    return str(named) if now == Path(named) else str(now)


# ------------------------------------------------------------------------------------------------------- the functions


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
    from scenarios.files.reading import load_scenario, scenario_path

    if isinstance(scenario, Scenario):
        if not changes:
            return scenario
        raise InputError("changes", "", "this scenario was read before; name its file, and all changes at once")
    path = scenario_path(scenario)
    keys = load_scenario(path, changes)
    return Scenario(path, keys, json.dumps(changes, default=str) if changes else "")


def simulate(
    scenario: Scenario | str | Path,
    router: str | Path = "random",
    *,
    seed: int | None = None,
    engine: Engine = "auto",
    out: str | Path | None = None,
    progress: Progress | None = None,
) -> RunResult:
    """One simulated run with one router.

    Args:
        scenario: what `load` returned, or takes.
        router: by name (docs/routers.md), a rule file, a learned router's file, or `module:Class` of your own.
        seed: the scenario's by default.
        engine: `simpy`, the reference, or `compiled`: the same to the last bit, many times as fast once it is compiled
            (10 to 20 s, once on a machine). `auto` takes the quicker for this run alone: of many short runs in a loop
            `compiled` is the quicker. What `engine` says in the result is what ran.
        out: a run folder that keeps the run's record; without one nothing is written.
        progress: told of remarks as they come.

    Returns:
        The run's numbers. One that completed nothing has latencies of None.

    Raises:
        InputError: no such scenario or router, or something that it needs is missing.

    Example:
        ```python
        result = slimsched.simulate(short, "jsq", seed=1)
        print(f"{1000 * result.latency_p99_s:.1f} ms at {result.accuracy:.1%}, {result.energy_per_image_j:.3f} J")
        print([(server.name, round(server.utilization, 2)) for server in result.servers])
        ```
    """
    from scenarios.tasks import simulating

    with _working(progress) as remarks:
        asked = _asked(scenario, out, remarks)
        found = simulating.simulate(asked, _router(router), seed, engine, keeps=out is not None)
        return RunResult.of(found, remarks.said)


def compare(
    scenario: Scenario | str | Path,
    routers: Sequence[str | Path] | None = None,
    seeds: Sequence[int] | None = None,
    *,
    engine: Engine = "auto",
    jobs: int = 1,
    baseline: str | None = None,
    out: str | Path | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Routers on the same arrivals, each with every seed. Interrupted, the same call goes on from what is finished.

    Args:
        scenario: what `load` returned, or takes.
        routers: by name or file; the scenario's by default (`compare.routers`).
        seeds: the scenario's by default (`compare.seeds`).
        engine: as for `simulate`.
        jobs: runs beside each other, each in a process of its own. With more than one, a script must keep what it does
            under `if __name__ == "__main__":`, as Python's multiprocessing asks.
        baseline: the router that changes and differences are to, seed by seed; `random` by default, where it is
            compared.
        out: the run folder; `runs/NAME` by default. It keeps the results.
        progress: told of every run as it is done, and of remarks.

    Raises:
        InputError: a router is not known or not made yet, or something that it needs is missing.

    Example:
        ```python
        table = slimsched.compare(short, ["random", "jsq", "ladder"], seeds=[0, 1], out="runs/short")
        for summary in table.routers:
            print(summary.router, f"{summary.estimates['latency_mean_s']:.4f} s")
        rows = table.rows()  # a row a router and seed; table.to_frame() is the same for pandas
        ```
    """
    from scenarios.tasks import simulating

    with _working(progress, router="routers", seed="seeds") as remarks:
        asked = _asked(scenario, out, remarks).with_routers("compare", [*map(_router, routers or ())], seeds or ())
        document, runs = simulating.compare(asked, engine, jobs=jobs, baseline=baseline)
        return Comparison.of(document, runs, asked.folder, remarks.said)


def bound(
    scenario: Scenario | str | Path,
    accuracy: float | None = None,
    *,
    window_s: float = 1.0,
    out: str | Path | None = None,
    progress: Progress | None = None,
) -> Bound:
    """What no router can beat on a scenario's cluster, by a linear programme; nothing is simulated.

    Args:
        scenario: what `load` returned, or takes.
        accuracy: at least this mean accuracy, 0 to 1; any by default.
        window_s: length of the windows for the oracle's estimate under a load that moves.
        out: the run folder whose network and profiles are taken where the scenario names none; `runs/NAME` by default.
        progress: told of programmes as they are solved, and of remarks.

    Raises:
        InputError: no width tuple is so accurate, the windows don't fit, or something that it needs is missing.

    Example:
        ```python
        limit = slimsched.bound(short, accuracy=0.75)
        print(f"at most {limit.capacity_img_s:.0f} images/s; at 300, {1000 * limit.latency_mean_s:.1f} ms or more")
        ```
    """
    from scenarios.tasks import simulating

    with _working(progress) as remarks:
        document = simulating.bound(_asked(scenario, out, remarks), accuracy, window_s)
        return Bound.of(document, remarks.said)


def train(
    scenario: Scenario | str | Path,
    *,
    decisions: int | None = None,
    seed: int | None = None,
    engine: Literal["simpy", "compiled"] = "compiled",
    out: str | Path | None = None,
    progress: Progress | None = None,
) -> Training:
    """Train the routers that the scenario's own run makes (`ppo`, `tide`, `tuned:KIND`); PPO where it names none.

    Interrupted, the same call goes on from its last checkpoint.

    Args:
        scenario: what `load` returned, or takes.
        decisions: how many each is trained for; the scenario's by default.
        seed: the scenario's by default.
        engine: `compiled`, or `simpy` for training PPO in torch on the reference.
        out: the run folder; `runs/NAME` by default. It keeps the routers.
        progress: told of decisions as they are simulated, and of remarks.

    Raises:
        InputError: too few decisions, or something that it needs is missing.
        WorkError: no setting of a rule keeps the accuracy that is asked for.

    Example:
        ```python
        learning = slimsched.load("paper", {"duration_s": 2, "warmup_s": 0.5, "training.decisions": 20_000})
        made = slimsched.train(learning, out="runs/learning")
        result = slimsched.simulate(learning, made.routers[0].path)
        ```
    """
    from scenarios.tasks import making

    with _working(progress) as remarks:
        asked = _asked(scenario, out, remarks)
        found = making.train(asked, decisions, seed, engine)
        routers = tuple(_trained(*each) for each in found)
        documents = [{"router": str(each.path), "score": each.score} for each in found]
        return Training(
            engine=engine,
            routers=routers,
            folder=asked.folder,
            document={"engine": engine, "routers": documents},
            remarks=tuple(remarks.said),
        )


def _trained(kind: str, path: Path, score: Mapping[str, Any]) -> TrainedRouter:
    return TrainedRouter(
        kind=kind,
        path=path,
        reward=score["reward"],
        accuracy=score["accuracy"],
        latency_mean_s=score["latency_s"],
        completed_share=score.get("shares", {}).get("completed"),
        decisions=score["decisions"],
    )


def save_router(
    scenario: Scenario | str | Path,
    layers: Sequence[tuple[ArrayLike, ArrayLike]],
    out: str | Path,
    *,
    deterministic: bool = False,
) -> Path:
    """Write what another library has learned on `SlimCluster-v0` as a router's file.

    The network takes an observation of the environment and has a tanh after each layer but the last. The last one gives
    the logits of server, width and group, side by side (and of the hold, where `training.holds_s` names waits). The
    router chooses each part by its logits, among what is not masked: of widths, those that the chosen server holds.

    Args:
        scenario: the one that was learned on; what `load` returned, or takes.
        layers: from the input on, each its weights (outputs, inputs) and its biases (outputs,), as `torch.nn.Linear`
            has them.
        out: the file, `NAME.safetensors`. A router that is there is replaced, another file is not.
        deterministic: the router takes the most probable of each part; else it draws, as libraries do in training.

    Returns:
        The file, which is a router's name wherever one is expected.

    Raises:
        InputError: the network does not fit the scenario, or the file can't be written.

    Example:
        ```python
        from torch import nn

        seen, chosen = 2 + 3 * 3, 3 + 4 + 6  # by 3 servers; of servers, 4 widths and 6 groups
        network = nn.Sequential(nn.Linear(seen, 64), nn.Tanh(), nn.Linear(64, chosen))
        layers = [(each.weight.detach(), each.bias.detach()) for each in network if isinstance(each, nn.Linear)]
        path = slimsched.save_router(short, layers, "untrained.safetensors")
        print(slimsched.simulate(short, path).router)
        ```
    """
    from scenarios.learn.brought import write_router
    from scenarios.tasks.asked import world_of
    from scenarios.world.materials import default_folder

    with _working(None):
        keys, path = load(scenario).keys, Path(out)
        write_router(world_of(keys, default_folder(keys)), layers, path, deterministic)
        return path


class TuneOptions(TypedDict, total=False):
    """What else `tune` may be told; the scenario decides what is left out.

    Attributes:
        floor: the mean accuracy to keep, 0 to 1.
        decisions: of a search.
        searches: independent ones, and a race of what they found.
        objective: what is made small: `latency`, or `energy` an image at a p99 latency of at most `p99_limit_s`.
        p99_limit_s: that limit, in seconds.
        control: the rule is to keep the goals that an operator asks for in mid-run (docs/routers.md).
    """

    floor: float
    decisions: int
    searches: int
    objective: Literal["latency", "energy"]
    p99_limit_s: float
    control: bool


def tune(
    scenario: Scenario | str | Path,
    router: str,
    *,
    out: str | Path | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    **options: Unpack[TuneOptions],
) -> TunedRouter:
    """Tune a rule to be quick at an accuracy, by direct search over whole simulated runs, and write its file.

    Args:
        scenario: what `load` returned, or takes.
        router: the kind: `fixed`, `ladder`, `tide` ... (docs/routers.md).
        out: the file; `KIND.rule.yaml` in the current folder by default. One made by hand is not replaced.
        seed: of the first search and its runs.
        progress: told of decisions as they are simulated, and of remarks.
        options: see `TuneOptions`.

    Raises:
        InputError: no such kind, or something wanted is wrong.
        WorkError: no setting keeps the accuracy.

    Example:
        ```python
        changes = {"duration_s": 4, "warmup_s": 1, "tuning.episode_s": 2, "tuning.levels": 1}
        quick = slimsched.load("main-poisson70-10g", changes)
        rule = slimsched.tune(quick, "ladder", floor=0.72, decisions=20_000, searches=1, out="ladder.rule.yaml")
        print(f"{1000 * rule.latency_mean_s:.1f} ms at {rule.accuracy:.2%}")
        result = slimsched.simulate(quick, rule.path)
        ```
    """
    from scenarios.learn.tuning import Tuning
    from scenarios.tasks import making
    from scenarios.tasks.asked import world_of
    from scenarios.world.materials import default_folder

    with _working(progress) as remarks:
        given = load(scenario)
        place = None if out is None else Path(out)
        wanted = Tuning(given.path, router, place, seed=seed, changed=given.changed, **options)
        path = wanted.path
        world = world_of(given.keys, default_folder(given.keys))
        _, document = making.tune(wanted, world, remarks)
        return TunedRouter.of(document, path, remarks.said)


def validate(
    scenario: Scenario | str | Path,
    routers: Sequence[str | Path] | None = None,
    seeds: Sequence[int] | None = None,
    *,
    go_on: bool = False,
    out: str | Path | None = None,
    progress: Progress | None = None,
) -> Validation:
    """The same arrivals in simulation and on real executors, in real time; goes on from what is finished.

    Every server needs a device, real or emulated (docs/emulated.md), and its profile: `slimsched run` or `calibrate`
    makes that of a real one. Agents are processes: a script must keep what it does under
    `if __name__ == "__main__":`, as Python's multiprocessing asks.

    Args:
        scenario: what `load` returned, or takes.
        routers: by name or file; the scenario's by default (`validate.routers`).
        seeds: the scenario's by default (`validate.seeds`).
        go_on: also where the first two hardware runs are more than 50 % from their simulation.
        out: the run folder; `runs/NAME` by default. It keeps every run's record.
        progress: told of seconds as they pass, and of remarks.

    Raises:
        InputError: a router is not known or not made yet, or something does not fit this machine.
        WorkError: executors failed.

    Example:
        ```python
        live = slimsched.load("paper-live", {"validate": {"routers": ["jsq"], "duration_s": 3, "warmup_s": 1}})
        checked = slimsched.validate(live, out="runs/live")
        print({name: error for name, error in checked.pairs[0].error_pct.items() if error is not None})
        ```
    """
    from scenarios.tasks import validating

    with _working(progress, router="routers", seed="seeds") as remarks:
        asked = _asked(scenario, out, remarks).with_routers("validate_", [*map(_router, routers or ())], seeds or ())
        document = validating.validate(asked, goes_on=go_on)
        return Validation.of(document, asked.folder, remarks.said)


class CalibrateOptions(TypedDict, total=False):
    """What else `calibrate` may be told.

    Attributes:
        network: which network the file is of, where it does not say: by name, or `module:Class`.
        options: what the class of a network of your own is called with.
        batch_limit: the largest batch that is measured; 32 by default.
        seed: of the order and the held-out points; 0 by default.
        allow_busy: measure although other programs use the device.
    """

    network: str
    options: dict[str, Any]
    batch_limit: int
    seed: int
    allow_busy: bool


def calibrate(
    model: str | Path | None = None,
    *,
    device: str | None = None,
    budget_s: float = 300.0,
    out: str | Path = "profiles",
    progress: Progress | None = None,
    **options: Unpack[CalibrateOptions],
) -> Calibration:
    """Measure devices of this machine for a network, and write a profile of each; goes on from a log it left.

    Args:
        model: a trained network's file (safetensors); None for an emulated device, which runs none.
        device: `cuda:0`, `cpu:1`, or `cpu` for all of that kind; all local ones by default. Or
            `emulated:PROFILE[:SLOWDOWN]`: a device that plays a profile (docs/emulated.md).
        budget_s: seconds for each device.
        out: the folder for profiles and logs.
        progress: told of points as they are measured, and of remarks.
        options: see `CalibrateOptions`.

    Raises:
        InputError: something wanted is wrong, the budget is too small, or a device is busy or can't be used.

    Example:
        ```python
        found = slimsched.calibrate(device="emulated:rtx-2080-ti:4", budget_s=20, batch_limit=8)
        print(found.profiles, found.warnings)
        ```
    """
    from scenarios.tasks import calibrating

    with _working(progress) as remarks:
        wanted = calibrating.Calibrating(
            model=None if model is None else Path(model), device=device, budget_s=budget_s, out=Path(out), **options
        )
        paths, warnings = calibrating.calibrate(wanted, remarks)
        document = {"profiles": [str(path) for path in paths], "warnings": warnings}
        return Calibration(
            profiles=tuple(paths), warnings=tuple(warnings), document=document, remarks=tuple(remarks.said)
        )
