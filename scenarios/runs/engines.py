"""Which engine makes simulated runs where nobody names one: the quicker, as both give the same (docs/engines.md).

What the compiled engine takes before its first run stands here in the seconds of `scenarios.runs.effort`. CPU time of
`slimsched simulate FILE --router jsq --engine ENGINE`, with the scenario paper cut to 1, 4 and 8 s (`duration_s`,
`warmup_s: 0.5`), best of five, on one core of an AMD EPYC virtual machine that other programs shared: 1.36, 2.03 and
3.16 s on simpy, 1.75, 1.83 and 1.95 s on the compiled engine. So it is repaid from 3.1 s of that scenario on, which is
estimated at 0.4 s. By the same measure of other routers and scenarios it is repaid from estimates of 0.3 to 0.65 s on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

from kit.jit_cache import IS_ON, is_kept
from scenarios.metrics.result import Simulator
from scenarios.runs.effort import effort_of
from scenarios.world.world import World
from sim.cluster import RunSpec

EngineChoice = Simulator | Literal["auto"]
OPENING_S: Final = 0.5  # the compiled engine's, where its code is kept
COMPILING_S: Final = 25.0  # where it is not: the first such command took 22 to 27 s


def quicker_engine(simpy_s: float, *, can_compile: bool, is_kept: bool) -> Simulator:
    """The compiled engine where it repays its beginning: there, a run takes a small part of what it takes on simpy.

    Args:
        simpy_s: what the runs take on simpy.
        can_compile: false with `SLIMSCHED_JIT=0`, where the compiled engine is no faster.
        is_kept: whether its compiled code is on this machine.
    """
    return "compiled" if can_compile and simpy_s > (OPENING_S if is_kept else COMPILING_S) else "simpy"


def engine_of(
    world: World,
    asked: EngineChoice,
    runs: int,
    *,
    duration_s: float | None = None,
    jobs: int = 1,
    is_here: bool = True,
) -> Simulator:
    """The engine that was asked for, or the quicker one for so many runs; it opens neither.

    Args:
        jobs: processes beside each other, each of which opens the engine.
        is_here: whether runs are made on this machine; of others it is not known what they keep.
    """
    if asked != "auto":
        return asked
    simpy_s = effort_of(world, runs, "simpy", duration_s=duration_s, processes=jobs).seconds
    can_be_kept = is_here and simpy_s > OPENING_S  # to look takes 10 to 20 ms
    return quicker_engine(
        simpy_s, can_compile=IS_ON, is_kept=can_be_kept and is_kept("sim.compiled.decide", "run_cluster")
    )


def able_to_run(world: World, engine: Simulator, run: Callable[[], RunSpec], say: Callable[[str], None]) -> Simulator:
    """An engine that nobody asked for by name, or simpy where that can't do such a run, which is said."""
    if engine == "compiled":
        from sim.compiled import UnsupportedScenario  # it opens Numba

        try:
            world.simulation(run(), engine)
        except UnsupportedScenario as error:
            say(f"the compiled engine can't do {error.feature}: simpy does it, and takes many times as long")
            return "simpy"
    return engine
