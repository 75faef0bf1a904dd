"""Compass and its baselines tuned on every main scenario, into `data/routers/` (`make routers`).

Tuned is what has no file yet, or whose file (or note that there can be none) was made by another command than would be
used now, for other devices or another way of deciding; it is said why. An interrupted remake goes on with what is left.
"""

from __future__ import annotations

import sys
import time  # noqa: TID251 - how long tuning took
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from benchmarks.study.candidates import ROUTERS, SCENARIOS, scenario_files, tuned_file
from benchmarks.study.paper import is_replica
from benchmarks.study.tuned_files import failure_path, note_failure, why_tune
from kit.errors import InputError, nearest
from kit.parallel import each
from policies.registry import BASELINES, COMPASS
from scenarios.learn.evaluator import MAX_THREADS
from scenarios.learn.expected import announced
from scenarios.learn.tune import FloorError, knobs_of, tune_world
from scenarios.learn.tuned_files import save_tuned, train_command, tuned_text
from scenarios.terminal.compiling import telling
from scenarios.world.materials import load_world

KINDS = (*BASELINES, COMPASS)


@dataclass(frozen=True)
class Wanted:
    """What is to be tuned, and why: a kind on a scenario, into a file."""

    scenario: Path
    router: str
    out: Path
    why: str

    @property
    def command(self) -> str:
        """That does about the same for a user: the file goes into the run folder."""
        return f"slimsched train {self.scenario} --router {self.router}"


Tune = Callable[[Wanted, bool], str]


def tunings(
    scenarios: Path = SCENARIOS, only: Sequence[str] = (), router: Sequence[str] = KINDS, *, force: bool = False
) -> list[Wanted]:
    """What is to be tuned: each router that has no file yet or a stale one, or with `force` each.

    Raises:
        InputError: there is no such scenario or kind.
    """
    for kind in router:
        if kind not in KINDS:
            raise InputError("--router", "", f"{kind!r} is not tuned; {nearest(kind, KINDS)}")
    wanted = []
    for path in scenario_files(scenarios, only):
        if is_replica(path.stem):
            continue
        world = load_world(path)
        knobs = knobs_of(world)
        for kind in router:
            file = tuned_file(scenarios / ROUTERS / path.stem, kind)
            why = "forced" if force else why_tune(file, train_command(str(path), kind, knobs), world)
            if why:
                wanted.append(Wanted(_near(path), kind, _near(file), why))
    return wanted


def _near(path: Path) -> Path:
    """From where the user is, if it lies below."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def tune(wanted: Wanted, is_alone: bool) -> str:
    """Tune one, alone with threads and a bar, or beside others with neither; returns what was found, in words.

    Raises:
        FloorError: no setting keeps the floor, which is noted where the router would lie.
    """

    def say(text: str) -> None:
        print(f"{wanted.scenario.stem}: {text}", file=sys.stderr)

    world, threads = load_world(wanted.scenario), MAX_THREADS if is_alone else 1
    knobs, scenario = knobs_of(world), str(wanted.scenario)
    began_s = time.monotonic()
    with telling(say), announced(world, wanted.router, knobs, say=say, quiet=not is_alone) as tell:
        try:
            tuned = tune_world(world, wanted.router, knobs, on_progress=tell, jobs=threads)
        except FloorError as error:
            note_failure(wanted.out, str(error), train_command(scenario, wanted.router, knobs))
            raise
    say(f"tune: {tuned.spent.text}")
    save_tuned(wanted.out, tuned, world, knobs, scenario, wall_s=time.monotonic() - began_s)
    failure_path(wanted.out).unlink(missing_ok=True)
    return tuned_text(tuned)


def tune_all(wanted: Sequence[Wanted], jobs: int, tune: Tune = tune) -> None:
    """Tune them, so many beside each other, each then in a process of one thread, and with the same outcome.

    The first error ends it, but for a floor that can't be kept: that is a result.
    """
    for number, one in enumerate(wanted, start=1):
        print(f"[{number}/{len(wanted)}] {one.command} ({one.why})", flush=True)
    with closing(each(_tune, (tune, min(jobs, len(wanted)) <= 1), wanted, jobs)) as results:
        for place, text in results:
            print(f"[{place + 1}/{len(wanted)}] {wanted[place].scenario.stem}: {text}", flush=True)


def _tune(common: tuple[Tune, bool], wanted: Wanted) -> str:
    """One, in whatever process."""
    tune, is_alone = common
    try:
        return tune(wanted, is_alone)
    except FloorError as error:
        return str(error)
