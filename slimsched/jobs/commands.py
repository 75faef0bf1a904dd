"""Commands for training jobs of a cluster: its log as a trace, what a trace holds, and policies on it."""

from __future__ import annotations

import shlex
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kit.documents import write_json, write_text
from kit.errors import InputError
from scenarios.terminal.output import Output
from scenarios.terminal.places import writable_file, writable_folder
from scenarios.terminal.progress import Progress

if TYPE_CHECKING:
    from jobs.case import JobsCase
    from jobs.comparing import CaseBound

ENDING = ".jobtrace.parquet"
MOST_AT_ONCE = 200_000  # jobs that are looked at in a moment


def jobs_import(arguments: Namespace) -> int:
    """A cluster's log as a trace; what was left out and why."""
    from jobs.logs.importing import import_log
    from jobs.logs.rows import UNITS_S, Options
    from jobs.trace import is_imported
    from slimsched.jobs.texts import imported_text

    output = Output(arguments)
    out = writable_file(arguments.out or Path(f"{arguments.log.name.partition('.')[0] or 'log'}{ENDING}"))
    if out.is_file() and not is_imported(out):
        raise InputError(str(out), "", "is there, and no trace that `jobs import` made; name another file with --out")
    options = Options(
        gpus_per_node=arguments.gpus_per_node,
        vc=arguments.vc,
        timezone=_timezone(arguments.timezone),
        columns=arguments.columns,
        unit_s=UNITS_S[arguments.unit],
        tasks=arguments.tasks,
    )
    with Progress(f"reading {arguments.log.name}", unit="row", quiet=output.quiet) as progress:
        found = import_log(
            arguments.log, out, arguments.format, options, sums=arguments.lives == "sum", told=progress.set
        )
    return output.result(imported_text(found, arguments.log, out), {**found.document(), "trace": str(out)})


def jobs_inspect(arguments: Namespace) -> int:
    """What a trace holds."""
    from jobs.summary import summarize
    from jobs.trace import read_trace
    from slimsched.jobs.texts import summary_text

    output = Output(arguments)
    trace = read_trace(arguments.trace)
    is_quiet = output.quiet or len(trace) < MOST_AT_ONCE
    with Progress("looking at jobs", len(trace), unit="job", quiet=is_quiet) as progress:
        found = summarize(trace, arguments.gpus, progress.set)
    return output.result(summary_text(found, arguments.trace.name), found)


def jobs_generate(arguments: Namespace) -> int:
    """Draws a trace, and says what came out."""
    from jobs.generate import ARRIVALS, DURATIONS, Drawing, draw, law, sizes
    from jobs.summary import summarize
    from jobs.trace import write_trace
    from slimsched.jobs.texts import summary_text

    output = Output(arguments)
    out = writable_file(arguments.out)
    drawing = Drawing(
        jobs=arguments.jobs,
        gpus=arguments.gpus,
        load=arguments.load,
        durations=law(arguments.durations, DURATIONS, "--durations"),
        arrivals=law(arguments.arrivals, ARRIVALS, "--arrivals"),
        sizes=sizes(arguments.sizes, "--sizes"),
        users=arguments.users,
        vcs=arguments.vcs,
        alike=arguments.alike,
        seed=arguments.seed,
    )
    trace = draw(drawing)
    write_trace(out, trace)
    found = summarize(trace, drawing.gpus)
    return output.result(f"trace: {out}\n\n{summary_text(found, out.name)}", {**found, "trace": str(out)})


def jobs_init(arguments: Namespace) -> int:
    """A first scenario for a trace, with a comment at each choice."""
    from jobs.starter import nodes_of, starter, typed
    from jobs.trace import read_trace

    output = Output(arguments)
    out = writable_file(arguments.out or Path(f"{arguments.trace.name.partition('.')[0] or 'jobs'}.yaml"))
    if out.exists():
        raise InputError(str(out), "", "is there already; name another file with --out, or remove it")
    nodes = tuple(nodes_of(text) for text in arguments.nodes)
    trace = read_trace(arguments.trace)
    text = starter(trace, arguments.trace.absolute(), typed(nodes, trace))
    write_text(out, text)
    return output.result(
        f"scenario: {out}; next: slimsched jobs compare {shlex.quote(str(out))}", {"scenario": str(out)}
    )


def jobs_simulate(arguments: Namespace) -> int:
    """One policy on a scenario's jobs."""
    from jobs.comparing import PolicyRun, fingerprint, result_document, run_policy, write_run
    from slimsched.jobs.texts import result_text

    output = Output(arguments)
    out = None if arguments.out is None else writable_file(arguments.out)
    case = _case(arguments, output, (arguments.policy,))
    named = case.policies[0]
    with Progress(f"{named.name} on {len(case.jobs):,} jobs", 1, unit="run", quiet=output.quiet) as progress:
        record = run_policy(case, named)
        progress.update()
    if out is not None:
        write_run(out, record, case.jobs.job_id, fingerprint(case, named))
    is_preemptive = named.policy.is_preemptive
    bounds = [] if arguments.no_bound else _bounds(case, output, (is_preemptive,))
    found = result_document(case, PolicyRun(named.name, is_preemptive, record), bounds)
    return output.result(result_text(found), found)


def jobs_compare(arguments: Namespace) -> int:
    """All policies of a scenario, set against one of them and against the bound."""
    from hw.host.limits import core_count
    from jobs.comparing import comparison_document, run_all
    from scenarios.show.charts import save
    from slimsched.jobs.prices_chart import prices_chart
    from slimsched.jobs.texts import comparison_text

    output = Output(arguments)
    folder = None if arguments.out is None else writable_folder(arguments.out)
    case = _case(arguments, output, tuple(arguments.policy or ()))
    processes = arguments.jobs or min(core_count(), len(case.policies))
    with Progress("policies", len(case.policies), unit="run", quiet=output.quiet) as progress:

        def told(name: str, was_there: bool) -> None:
            progress.tell(f"{name}: {'skipped, its run is there' if was_there else 'done'}")
            progress.update()

        runs = run_all(case, processes, folder, told)
    bounds = [] if arguments.no_bound else _bounds(case, output)
    found = comparison_document(case, runs, bounds)
    if folder is not None:
        write_json(folder / "comparison.json", found)
        if bounds:
            save(prices_chart(bounds), folder / "prices.svg")
    return output.result(comparison_text(found), found)


def jobs_bound(arguments: Namespace) -> int:
    """What no policy can beat, and when GPU time is dear."""
    from scenarios.show.charts import save
    from slimsched.jobs.prices_chart import prices_chart
    from slimsched.jobs.texts import bound_text

    output = Output(arguments)
    case = _case(arguments, output, ())
    bounds = _bounds(case, output)
    if arguments.plot is not None:
        save(prices_chart(bounds), arguments.plot)
    found = {
        "schema": "slimsched.jobsbound/1",
        "scenario": case.scenario.name,
        "jobs": bounds[0].jobs,
        "gpus": case.scenario.cluster.gpus,
        "load": case.load,
        "bounds": [_bound_document(bound) for bound in bounds],
    }
    return output.result(bound_text(found), found)


def _case(arguments: Namespace, output: Output, policies: tuple[str, ...]) -> JobsCase:
    """The scenario with what the flags say instead of its own; what is odd about it is told."""
    from jobs.case import doubts, read_case, read_scenario, require_a_fit, with_flags
    from slimsched.jobs.profiles import profile_images_s

    scenario = with_flags(read_scenario(arguments.scenario), policies, arguments.load)
    case = read_case(scenario, str(arguments.scenario), profile_images_s)
    require_a_fit(case)
    for doubt in doubts(case):
        output.remark(f"warning: {doubt}")
    return case


def _bounds(case: JobsCase, output: Output, kinds: tuple[bool, ...] = (False, True)) -> list[CaseBound]:
    """Without preemption (False) and with."""
    from jobs.comparing import bounds_of
    from scenarios.terminal.compiling import telling

    with telling(output.remark), Progress("bounds", len(kinds), unit="bound", quiet=output.quiet) as progress:
        return bounds_of(case, kinds, progress.update)


def _bound_document(bound: CaseBound) -> dict[str, Any]:
    """Its prices are hours of completion time that a GPU-hour is worth: by pool, over time."""
    prices = bound.bound.prices
    return {
        "is_preemptive": bound.is_preemptive,
        "jct_mean_s": bound.jct_mean_s,
        "wait_mean_s": bound.wait_mean_s,
        "price_mean": float(prices.mean()),
        "price_max": float(prices.max()),
        "free_share": float((prices == 0).mean()),
        "cell_s": bound.bound.cell_s,
        "begins_s": bound.bound.begins_s,
        "prices": dict(zip(bound.pools, prices.tolist(), strict=True)),
    }


def _timezone(name: str | None) -> str | None:
    """Raises `InputError` for one that this machine does not know."""
    if name is None:
        return None
    from zoneinfo import ZoneInfo

    try:
        ZoneInfo(name)
    except (LookupError, ValueError, OSError):
        problem = f"unknown {name!r:.80}; allowed are names such as UTC, Europe/Berlin, America/New_York"
        raise InputError("--timezone", "", problem) from None
    return name
