"""Commands that need the simulator alone: simulate, compare, capacity, bound."""

from __future__ import annotations

import dataclasses
from argparse import Namespace
from pathlib import Path

from scenarios.commands.shared import asked_of
from scenarios.files.reading import require_router
from scenarios.files.router_names import check_router
from scenarios.metrics.comparison import Comparison
from scenarios.show.numbers import number
from scenarios.show.result import format_result
from scenarios.show.words import require_completed
from scenarios.tasks import simulating
from scenarios.tasks.asked import (
    announcing_compilation,
    ready_engine,
    require_unique,
    tell_foreign,
    world_of,
)
from scenarios.terminal.output import Output

CAPACITY_RUNS = 8  # that a search takes, about


def simulate(arguments: Namespace) -> int:
    """One simulated run; its record is kept where `--out` says."""
    output = Output(arguments)
    check_router(arguments.router, "--router")
    asked, keeps = asked_of(arguments, output), arguments.out is not None
    result = simulating.simulate(asked, arguments.router, arguments.seed, arguments.engine, keeps=keeps)
    output.result(format_result(result), result)
    require_completed([result])
    return 0


def compare(arguments: Namespace) -> int:
    """Routers x seeds in simulation."""
    from scenarios.show.answers import format_answers
    from scenarios.show.comparison import format_all

    output = Output(arguments)
    asked = asked_of(arguments, output).with_routers("compare", arguments.router or (), arguments.seed or ())
    comparison, results = simulating.compare(
        asked,
        arguments.engine,
        jobs=arguments.jobs,
        ray=arguments.ray,
        baseline=arguments.baseline,
        with_bound=arguments.bound,
    )
    texts = filter(None, [format_answers(comparison, None), format_all(comparison)])
    output.result("\n\n".join(texts), comparison)
    if arguments.plot is not None:
        _draw(comparison, arguments.plot, output)
    require_completed(results)
    return 0


def _draw(comparison: Comparison, picture: Path, output: Output) -> None:
    from scenarios.show import charts

    if any(comparison["pareto"]["fronts"].values()):
        charts.save(charts.trade_off_chart(comparison), picture)
    else:
        output.remark(f"--plot: {picture} was not written: no router completed an image in each run")


def capacity(arguments: Namespace) -> int:
    """The largest rate that is stable, and keeps what the flags ask."""
    from scenarios.files.router_names import display_name
    from scenarios.metrics.service import Promise
    from scenarios.runs.capacity import Search, under_poisson
    from scenarios.runs.capacity import capacity as find_capacity
    from scenarios.show.capacity import capacity_text, tried_text

    output = Output(arguments)
    check_router(arguments.router, "--router")
    asked = asked_of(arguments, output)
    scenario, folder = asked.scenario, asked.folder
    require_router(arguments.router, scenario)
    world = world_of(scenario, folder)
    seeds = require_unique("--seed", tuple(arguments.seed or (scenario.seed,)))
    searched, length = under_poisson(world), arguments.duration
    runs = CAPACITY_RUNS * (len(seeds) // 2 + 1)  # most of the seeds say whether a rate is carried
    engine = ready_engine(output, searched, arguments.engine, runs, seeds[0], duration_s=length)
    tell_foreign(output, world, (arguments.router,))
    search = Search(
        display_name(arguments.router),
        seeds,
        length,
        arguments.precision,
        arguments.workload == "own",
        engine,
        Promise(arguments.floor, arguments.p99),
    )
    with announcing_compilation(output, (arguments.router,), engine):
        found = find_capacity(
            world,
            lambda: world.router(arguments.router, folder),
            search,
            on_progress=lambda tried: output.remark(tried_text(tried, search.promise)),
        )
    document = {"schema": "slimsched.capacity/1", "engine": engine, **dataclasses.asdict(found)}
    return output.result(capacity_text(found, search), document)


def bound(arguments: Namespace) -> int:
    """What the fluid model allows; with a load that moves also what an oracle could make of it."""
    output = Output(arguments)
    found = simulating.bound(asked_of(arguments, output), arguments.accuracy, arguments.window)
    rate = f"at {number(found['rate_img_s'], 1)} images/s" if found["rate_img_s"] else "at the trace's own rate"
    least = ", the least there is (`--accuracy` asks for more)" if arguments.accuracy is None else ""
    lines = [
        f"at a mean accuracy of at least {100 * found['accuracy']:.2f} %{least}, no router can",
        f"  serve more than {found['capacity_img_s']:.1f} images/s",
        f"  have a mean latency below {found['latency_mean_s'] * 1000:.2f} ms",
    ]
    if found["energy_dynamic_j"] is not None:
        above, whole = (number(found[key], None) for key in ("energy_dynamic_j", "energy_per_image_j"))
        joules = f"{above} J/image above idle, or {whole} with it,"
        lines.append(f"  spend less than {joules} {rate}")
    if (oracle := found["oracle"]) is not None:
        peak = f"{oracle['peak_img_s']:.0f} images/s in {oracle['window_s']:g} s"
        lines += [
            f"the load moves, to {peak}: a router that knew it,",
            f"and carried each window's images within it, would have {100 * oracle['accuracy']:.2f} % (an estimate)",
        ]
    return output.result("\n".join(lines), found)
