"""The default engine of simulated runs, and whether this machine has the memory for them.

Both engines give the same (docs/engines.md). The reference is available at once; the compiled one takes half a second
to open, and half a minute to compile on a machine without its cached code, and is then 50 times as fast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, Literal

from hw.host.limits import machine_bytes
from kit.errors import InputError
from kit.jit_cache import IS_ON, is_kept
from scenarios.files.spec import ChaosFault
from scenarios.metrics.result import Simulator
from scenarios.world.world import World
from sim.cluster import RunSpec

EngineChoice = Simulator | Literal["auto"]
SHORT_IMAGES: Final = 4_000  # in all runs: half a second of the reference
SHORT_IMAGES_UNKEPT: Final = 200_000  # if the compiled engine has to be compiled first
_IMAGE_BYTES = {"simpy": 1400, "compiled": 700}
_DRAWN_BYTES = 16  # of an arrival that is drawn, whether kept or thinned out


def engine_of(world: World, choice: EngineChoice, runs: int, *, duration_s: float | None = None) -> Simulator:
    """Return the engine that was asked for; by default the reference for short work, the compiled one for the rest."""
    if choice != "auto":
        return choice
    images = runs * _images(world, duration_s or world.scenario.duration_s)[0]
    if not IS_ON or images <= SHORT_IMAGES:
        return "simpy"
    short = SHORT_IMAGES if is_kept("sim.compiled.decide", "run_cluster") else SHORT_IMAGES_UNKEPT
    return "compiled" if images > short else "simpy"


def able_to_run(world: World, engine: Simulator, run: Callable[[], RunSpec], say: Callable[[str], None]) -> Simulator:
    """Return a default engine, or simpy with a message if the default can't do such a run."""
    if engine == "compiled":
        from sim.compiled import UnsupportedScenario  # it opens Numba

        try:
            world.simulation(run(), engine)
        except UnsupportedScenario as error:
            say(f"the compiled engine can't do {error.feature}: simpy does it, and takes many times as long")
            return "simpy"
    return engine


def require_memory(world: World, engine: Simulator, *, duration_s: float | None = None, processes: int = 1) -> None:
    """Check the memory before anything is drawn.

    Raises:
        InputError: this many runs in parallel need more memory than there is.
    """
    length_s = duration_s or world.scenario.duration_s
    images, drawn = _images(world, length_s)
    of_what = {"images": images * _IMAGE_BYTES[engine] + drawn * _DRAWN_BYTES, **dict(_events_bytes(world, length_s))}
    needed_bytes, here_bytes = max(1, processes) * sum(of_what.values()), machine_bytes()
    if needed_bytes > here_bytes:
        most = max(of_what, key=lambda name: of_what[name])
        problem = f"about {needed_bytes / 1e9:,.0f} GB of memory, most of it for {most}"
        remedy = "Shorten duration_s, or lower what there is so much of"
        raise InputError(world.scenario.name, "", f"{problem}; this machine has {here_bytes / 1e9:.0f} GB. {remedy}")


def _images(world: World, length_s: float) -> tuple[float, float]:
    """Return the images that arrive in a run, and those that are drawn for it."""
    workload, rate_img_s = world.scenario.workload, world.rate_img_s
    if rate_img_s is None:  # a trace, which is no longer than its file
        images = float(len(world.arrivals_ns(world.scenario.seed, length_s)))
        return images, images
    return rate_img_s * workload.mean_factor(length_s) * length_s, rate_img_s * workload.peak_factor() * length_s


def _events_bytes(world: World, length_s: float) -> Iterator[tuple[str, float]]:
    yield "changes of the load", 250 * world.scenario.workload.mean_changes(length_s)
    chaos = (fault for fault in world.scenario.faults if isinstance(fault, ChaosFault))
    yield "deaths of workers", 250 * sum(length_s / fault.mean_gap_s for fault in chaos)
    sensors = (tables.profile.sensor for tables in world.cluster.devices)
    yield "readings of sensors", 60 * sum(length_s / sensor.period_s for sensor in sensors)
