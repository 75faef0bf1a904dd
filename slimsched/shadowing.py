"""What another router would have done with what `serve` has logged."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kit.errors import InputError
from kit.units import NS_PER_S
from slimsched.arguments import Changes, Duration, File, NewFile, Router
from slimsched.results import CommandResult
from slimsched.working import Session, begin, ready_engine, router_name, verb

if TYPE_CHECKING:
    from policies.interfaces import RoutingPolicy
    from scenarios.runs.folder import RunFolder
    from scenarios.runs.shadow import Figures
    from scenarios.world.world import World


@verb
def shadow(
    run: File,
    /,
    router: Router,
    *,
    duration_s: Duration = 600.0,
    trace: NewFile | None = None,
    changes: Changes | None = None,
) -> CommandResult:
    """Tell what another router would have done with what was served.

    It is asked about every view that `serve` has logged, and simulated on the recorded arrivals. So is the router that
    was obeyed: an order is claimed only where that simulation agrees with what was measured.

    Args:
        run: the run folder that was served from.
        router: by name (docs/routers.md), a rule file, a trained router's file, or `module:Class` of your own.
        duration_s: the last so long of what was served (10m), as far as one router was obeyed in it.
        trace: also write the arrivals there, as CSV: a workload of any scenario (`workload: {kind: trace, file: ...}`).
        changes: the values that `serve` had otherwise than the scenario, by dotted keys.

    Raises:
        InputError: nothing was logged there, or there is no such router.
    """
    from kit.chance import stream
    from scenarios.files.router_names import check_router, display_name
    from scenarios.runs.folder import RunFolder
    from scenarios.runs.shadow import Asked, Recorded, Shadow, claims_of, last_stretch, world_of, write_trace
    from scenarios.show.shadow import format_shadow

    named, folder = router_name(router), RunFolder(Path(run))
    check_router(named, "--router")
    stretch, session = last_stretch(folder, duration_s), _session_of(folder, named, changes)
    world, obeyed = session.world(), stretch.segments[-1].head.decides
    asked = Asked(world.router(named, session.folder), stream(session.scenario.seed, f"router:{display_name(named)}"))
    recorded = Recorded.of(stretch, asked)
    if not recorded.ended:
        raise InputError(str(folder.path), "", "no image was answered in that time; name a longer one with --duration")
    if trace is not None:
        write_trace(Path(trace), recorded.arrivals_ns)
    length_s = (stretch.until_ns - stretch.from_ns) / NS_PER_S
    replayed = world_of(world, recorded.arrivals_ns, length_s)
    measured = recorded.figures(world, replayed.scenario.warmup_s)
    policies = [(display_name(name), world.router(name, session.folder)) for name in (obeyed, named)]
    two = _simulated(replayed, policies)
    found = Shadow(
        schema="slimsched.shadow/1",
        obeyed=display_name(obeyed),
        other=display_name(named),
        began=stretch.segments[0].head.began,
        duration_s=length_s,
        arrivals=len(recorded.arrivals_ns),
        failed=recorded.failed,
        measured=measured,
        simulated=two[0],
        shadow=two[1],
        alike=asked.alike,
        claims=claims_of(measured, *two),
    )
    return CommandResult(dict(found), format_shadow(found))


def _session_of(folder: RunFolder, router: str, changes: Changes | None) -> Session:
    """Of the scenario that was served, if another router can be simulated on it."""
    from scenarios.files.reading import require_router

    if folder.scenario is None:
        raise InputError(str(folder.path), "", "names no scenario; name the run folder of a `slimsched serve`")
    session = begin(folder.scenario, changes, folder.path)
    require_router(router, session.scenario)
    if session.scenario.classes:  # it would draw them anew, whatever clients asked for
        problem = "a shadow knows no classes of requests; `slimsched compare` sets routers beside each other, by class"
        raise InputError(session.scenario.name, "classes", problem)
    return session


def _simulated(replayed: World, policies: Sequence[tuple[str, RoutingPolicy]]) -> list[Figures]:
    """Of each router, on the recorded arrivals."""
    from scenarios.runs.shadow import figures_of
    from scenarios.runs.simulate import run_simulation

    seed = replayed.scenario.seed
    engine = ready_engine(replayed, "auto", len(policies), seed)
    return [figures_of(run_simulation(replayed, policy, name, seed, engine=engine)[0]) for name, policy in policies]
