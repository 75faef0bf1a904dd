"""Simulated runs: one router with one seed, or many routers with many seeds on the same arrivals."""

from __future__ import annotations

import time  # noqa: TID251 - wall time of a run
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from policies.chance import stream
from policies.errors import InputError
from policies.records import RunRecord
from policies.routing import RoutingPolicy
from scenarios.comparison import Comparison, compare_results
from scenarios.compose import World
from scenarios.result import Result, Simulator, summarise


def run_simulation(
    world: World,
    policy: RoutingPolicy,
    router: str,
    seed: int,
    *,
    duration_s: float | None = None,
    warmup_s: float | None = None,
    scale: float = 1.0,
    end: str | None = None,
    detail: bool = True,
    keep_log: bool = False,
    paces: Mapping[int, tuple[tuple[int, float], ...]] | None = None,
    engine: Simulator = "simpy",
) -> tuple[Result, RunRecord]:
    """One run, summarised, with its record. `router` names the policy in the result and its random stream.

    `scale` multiplies the workload's rate; `end` is the scenario's unless it is given; without `detail` only requests
    are recorded; `paces` are those of the devices where they are known (`RunSpec.paces`). Both engines give the same
    result but for `wall_s` and `engine`, and the same record; a log is kept by the reference alone.
    """
    scenario = world.scenario
    run = world.run_spec(
        seed, duration_s=duration_s, scale=scale, end=end, detail=detail, keep_log=keep_log, paces=paces
    )
    if engine == "compiled":
        world.simulation(run, engine).advance()  # compiled or loaded now: that is no part of the run's wall time
    began_ns = time.monotonic_ns()
    record = world.simulation(run, engine).run(policy, stream(seed, f"router:{router}"))
    result = summarise(
        record,
        scenario=scenario.name,
        router=router,
        seed=seed,
        mode="simulation",
        engine=engine,
        provenance=world.provenance,
        accuracy_provenance=world.accuracy.provenance,
        warmup_s=scenario.warmup_s if warmup_s is None else warmup_s,
        horizon_s=duration_s or scenario.duration_s,
        deadline_s=scenario.deadline_s,
        wall_s=(time.monotonic_ns() - began_ns) / 1e9,
    )
    return result, record


def simulate_world(
    world: World, router: str, seed: int, trained: Path | None = None, engine: Simulator = "simpy"
) -> Result:
    """One run of the scenario with one router."""
    return run_simulation(world, world.router(router, trained), display_name(router), seed, engine=engine)[0]


def compare_world(
    world: World,
    routers: Sequence[str],
    seeds: Sequence[int],
    *,
    trained: Path | None = None,
    finished: Sequence[Result] = (),
    on_result: Callable[[Result], None] | None = None,
    engine: Simulator = "simpy",
) -> Comparison:
    """Every router with every seed; runs that are among `finished` are not run again."""
    require_distinct_names(routers)
    known = {(result["router"], result["seed"]): result for result in finished}
    results = []
    for router in routers:
        for seed in seeds:
            result = known.get((display_name(router), seed)) or simulate_world(world, router, seed, trained, engine)
            results.append(result)
            if on_result is not None:
                on_result(result)
    return compare_results(results)


def require_distinct_names(routers: Sequence[str]) -> None:
    """Raises `InputError` where two routers would be one row of a table."""
    names: dict[str, str] = {}
    for router in routers:
        other = names.setdefault(display_name(router), router)
        if other != router:
            raise InputError(
                "routers", "", f"{other} and {router} would both be called {display_name(router)!r}; rename one file"
            )


def display_name(router: str) -> str:
    """A router's name in results: a file's is its stem, so that no path of a machine is in a result."""
    return Path(router).stem if router.endswith(".safetensors") else router
