"""A router tuned into its file."""

from __future__ import annotations

import time  # noqa: TID251 - how long tuning took
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scenarios.files.documents import write_text
from scenarios.learn.tune import FloorError, Tuned, tune_world
from scenarios.learn.tuned_files import failure_path, knobs_of, read_start, save_tuned, tuned_path
from scenarios.terminal.places import writable_file
from scenarios.terminal.progress import Progress
from scenarios.world.materials import load_world


@dataclass(frozen=True)
class Tuning:
    """What is to be tuned, as the flags of `slimsched tune` say it; None where the scenario decides.

    Attributes:
        router: the kind.
        out: the file; by default named by its kind, in the current folder.
        start: a file to begin with.
        without: switches.
    """

    scenario: Path
    router: str
    out: Path | None = None
    floor: float | None = None
    decisions: int | None = None
    seed: int = 0
    start: Path | None = None
    without: tuple[str, ...] = ()

    @property
    def path(self) -> Path:
        """Where it goes; raises `InputError` where nothing can."""
        return writable_file(tuned_path(self.out, self.router))


def tune_router(wanted: Tuning, *, quiet: bool = False) -> tuple[Tuned, dict[str, Any]]:
    """Tune, and write the router's file, or beside it why there is none; returns what was found and is reported.

    Raises:
        InputError: something wanted is wrong.
        FloorError: no setting keeps the accuracy.
    """
    path = wanted.path
    world = load_world(wanted.scenario)
    start = None if wanted.start is None else read_start(wanted.start, world, wanted.router)
    knobs = knobs_of(world, wanted)
    began_s = time.monotonic()
    with Progress("tune", knobs.decisions, unit="decision", quiet=quiet) as bar:

        def tell(decisions: int, cost: float) -> None:
            bar.set(min(decisions, knobs.decisions))

        try:
            found = tune_world(world, wanted.router, knobs, start=start, on_progress=tell)
        except FloorError as error:
            asked = f"scenarios/{world.scenario.name}.yaml --router {wanted.router} --floor {knobs.floor:g}"
            told = f"slimsched tune {asked} --decisions {knobs.decisions} --seed {knobs.seed}"
            write_text(failure_path(path), f"{error} ({told})\n")
            raise
    seconds = time.monotonic() - began_s
    begun_with = None if wanted.start is None else str(wanted.start)
    return found, save_tuned(found, world, knobs, path, wanted.scenario, start=begun_with, seconds=seconds)


def tuned_text(found: Tuned) -> str:
    """What was found, in a line or two."""
    return (
        f"{found.kind}: {1000 * found.mean_s:.2f} ms (p99 {1000 * found.p99_s:.1f}) at {100 * found.accuracy:.3f} % "
        f"on runs of tuning, {found.decisions + found.level_decisions:,} decisions"
    )
