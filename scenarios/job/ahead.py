"""The engine, compiled while a job waits for executors, by a separate process of the lowest priority."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from kit.jit_cache import IS_ON, cache_folder, cache_problem, is_kept
from scenarios.files.reading import load_scenario
from scenarios.files.shipped import scenario_file
from scenarios.terminal.progress import Say
from scenarios.world.materials import default_folder, make_world

SHIPPED = "paper"
LOWEST_PRIORITY = 19


@contextmanager
def compiling_ahead(say: Say) -> Iterator[Callable[[], None]]:
    """Begin to compile the engine if its code is not cached yet; yields a function that waits until that is done."""
    if not IS_ON or cache_problem() is not None or is_kept("sim.compiled.decide", "run_cluster"):
        yield lambda: None
        return
    say(f"compile: the engine, in the background; only once, it is kept in {cache_folder()}")
    quiet = subprocess.DEVNULL
    process = subprocess.Popen([sys.executable, "-m", __name__], stdin=quiet, stdout=quiet, stderr=quiet)  # noqa: S603 - this module

    def wait() -> None:
        if process.poll() is None:
            say("compile: still running; the job waits for it")
            process.wait()  # if it failed, the first simulation compiles, and shows why

    try:
        yield wait
    finally:
        process.kill()
        process.wait()


def main() -> None:
    """Compile it by a simulation's first steps."""
    os.nice(LOWEST_PRIORITY)
    scenario = load_scenario(scenario_file(Path(SHIPPED)))
    world = make_world(scenario, default_folder(scenario))
    world.simulation(world.run_spec(scenario.seed), "compiled").advance()


if __name__ == "__main__":
    main()
