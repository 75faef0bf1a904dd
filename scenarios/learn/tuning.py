"""A router tuned into its file."""

from __future__ import annotations

import shlex
import time  # noqa: TID251 - how long tuning took
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kit.errors import InputError
from kit.parallel import Jobs
from policies.registry import CONTROLLED
from scenarios.learn.course import MOST_THREADS
from scenarios.learn.expected import announced
from scenarios.learn.knobs import Objective, TuningKnobs
from scenarios.learn.tune import FloorError, Tuned, natural_floor, tune_world
from scenarios.learn.tuned_files import note_failure, require_tuned, save_tuned, tuned_path, with_control
from scenarios.metrics.served import LIMIT
from scenarios.terminal.places import writable_file
from scenarios.terminal.progress import Say
from scenarios.world.materials import load_world
from scenarios.world.world import World


@dataclass(frozen=True)
class Tuning:
    """What is to be tuned into a file of its own; None where the scenario decides.

    Attributes:
        router: the kind.
        out: the file; by default named by its kind, in the current folder.
        objective, p99_limit_s: what is made small, at most which p99.
        control: the router is to keep the goals that the operator asks for (`policies.goal_control`).
    """

    scenario: Path
    router: str
    out: Path | None = None
    floor: float | None = None
    decisions: int | None = None
    searches: int | None = None
    seed: int = 0
    objective: Objective | None = None
    p99_limit_s: float | None = None
    control: bool = False

    @property
    def path(self) -> Path:
        """Where it goes; raises `InputError` where nothing can, or a hand-made file is there."""
        return require_tuned(writable_file(tuned_path(self.out, self.router)))

    def knobs(self, world: World) -> TuningKnobs:
        """The scenario's tuning settings, or what the flags say; raises `InputError` where nothing could control."""
        if self.control and self.router not in CONTROLLED:
            problem = f"{self.router!r} has nothing that goals could move; allowed with {' or '.join(CONTROLLED)}"
            raise InputError("--control", "", problem)
        return knobs_of(
            world,
            seed=self.seed,
            floor=self.floor,
            decisions=self.decisions,
            searches=self.searches,
            objective=self.objective,
            p99_limit_s=self.p99_limit_s,
        )

    def command(self, knobs: TuningKnobs) -> str:
        """What tunes the same again, with the numbers that the scenario decided."""
        return train_command(str(self.scenario), self.router, knobs, control=self.control)


def train_command(scenario: str, kind: str, knobs: TuningKnobs, *, control: bool) -> str:
    """What tunes the same again."""
    settings = {"tuning.floor": f"{knobs.floor:g}", "tuning.decisions": knobs.decisions}
    settings |= {"tuning.searches": knobs.searches, "seed": knobs.seed}
    if knobs.objective != "latency":
        settings |= {"tuning.objective": knobs.objective, "service.p99_limit_s": f"{knobs.p99_limit_s:g}"}
    words = ["slimsched", "train", scenario, "--router", kind]
    words += [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    return shlex.join([*words, *(["--control"] if control else [])])


def knobs_of(
    world: World,
    *,
    seed: int,
    floor: float | None = None,
    decisions: int | None = None,
    searches: int | None = None,
    objective: Objective | None = None,
    p99_limit_s: float | None = None,
) -> TuningKnobs:
    """The scenario's tuning settings, or what is given instead.

    Raises:
        InputError: energy without a limit of the p99 latency: whoever waits longest would have the least.
    """
    given = world.scenario.tuning
    objective, limit_s = objective or given.objective, p99_limit_s or world.scenario.service.p99_limit_s
    if p99_limit_s is not None and objective != "energy":
        raise InputError("--p99", "", "limits the search for energy alone; add --objective energy, or leave it out")
    if objective == "energy" and limit_s is None:
        problem = "energy needs a limit of the p99 latency: --p99 TIME, or service.p99_limit_s in the scenario"
        raise InputError(world.scenario.name, "tuning.objective", problem)
    floor = given.floor if floor is None else floor
    knobs = TuningKnobs(
        floor=0.0 if floor is None else floor,
        decisions=decisions or given.decisions,
        searches=searches or given.searches,
        seed=seed,
        episodes=given.episodes,
        episode_s=given.episode_s,
        levels=given.levels,
        objective=objective,
        p99_limit_s=limit_s,
    )
    return knobs if floor is not None else replace(knobs, floor=natural_floor(world, knobs))


def tune_router(
    wanted: Tuning,
    world: World | None = None,
    *,
    quiet: bool = False,
    say: Say = lambda _: None,
    jobs: Jobs = MOST_THREADS,
) -> tuple[Tuned, dict[str, Any]]:
    """Tune, and write the router's file, or beside it why there is none; returns what was found and is reported.

    How many decisions it will about take is said first, and those that it took at the end.

    Args:
        world: of the scenario that is wanted, where it is read already.

    Raises:
        InputError: something wanted is wrong.
        FloorError: no setting keeps the accuracy.
    """
    path = wanted.path
    world = world or load_world(wanted.scenario)
    knobs = wanted.knobs(world)
    command = wanted.command(knobs)
    began_s = time.monotonic()
    with announced(world, wanted.router, knobs, say=say, quiet=quiet) as tell:
        try:
            found = tune_world(world, wanted.router, knobs, on_progress=tell, jobs=jobs)
        except FloorError as error:
            note_failure(path, f"{error} ({command})")
            raise
    say(f"tune: {found.spent.text}")
    if wanted.control:
        found = replace(found, winner=replace(found.winner, spec=with_control(found.winner.spec)))
    seconds = time.monotonic() - began_s
    return found, save_tuned(found, world, knobs, path, command, seconds=seconds)


def tuned_text(found: Tuned, limit_s: float | None = None) -> str:
    """What was found, in a line or two; `limit_s`: of the p99, where energy was made small."""
    figures, beware = found.figures, ""
    if figures.unserved > LIMIT:
        beware = f"\nbeware: it leaves {100 * figures.unserved:.2f} % of their images unserved"
    if limit_s is not None and figures.p99_s > limit_s:
        beware += (
            f"\nbeware: its p99 is above the limit of {1000 * limit_s:g} ms; allow more with --p99, or lower the load"
        )
    return (
        f"{found.kind}: {1000 * figures.mean_s:.2f} ms (p99 {1000 * figures.p99_s:.1f}), {figures.image_j:.3g} J an "
        f"image at {100 * figures.accuracy:.3f} % on runs of tuning, {found.spent.in_all:,} decisions{beware}"
    )
