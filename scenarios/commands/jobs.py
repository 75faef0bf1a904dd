"""Commands for training jobs of a cluster: its log as a trace, what a trace holds, traces that are drawn."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from policies.errors import InputError
from scenarios.terminal.output import Output
from scenarios.terminal.places import writable_file
from scenarios.terminal.progress import Progress

ENDING = ".jobtrace.parquet"
MOST_AT_ONCE = 200_000  # jobs that are looked at in a moment


def jobs_import(arguments: Namespace) -> int:
    """A cluster's log as a trace; what was left out and why."""
    from scenarios.training_jobs.importing import import_log
    from scenarios.training_jobs.rows import Options
    from scenarios.training_jobs.tables import imported_text

    output = Output(arguments)
    out = writable_file(arguments.out or Path(f"{arguments.log.name.partition('.')[0] or 'log'}{ENDING}"))
    options = Options(
        gpus_per_node=arguments.gpus_per_node,
        vc=arguments.vc,
        timezone=_timezone(arguments.timezone),
        columns=arguments.columns,
        tasks=arguments.tasks,
    )
    with Progress(f"reading {arguments.log.name}", unit="row", quiet=output.quiet) as progress:
        found = import_log(
            arguments.log, out, arguments.format, options, sums=arguments.lives == "sum", told=progress.set
        )
    return output.result(imported_text(found, arguments.log, out), {**found.document(), "trace": str(out)})


def jobs_inspect(arguments: Namespace) -> int:
    """What a trace holds."""
    from scenarios.training_jobs.summary import summarize
    from scenarios.training_jobs.tables import summary_text
    from scenarios.training_jobs.trace import read_trace

    output = Output(arguments)
    trace = read_trace(arguments.trace)
    is_quiet = output.quiet or len(trace) < MOST_AT_ONCE
    with Progress("looking at jobs", len(trace), unit="job", quiet=is_quiet) as progress:
        found = summarize(trace, arguments.gpus, progress.set)
    return output.result(summary_text(found, arguments.trace.name), found)


def jobs_generate(arguments: Namespace) -> int:
    """Draws a trace, and says what came out."""
    from scenarios.training_jobs.generate import ARRIVALS, DURATIONS, Drawing, draw, law, sizes
    from scenarios.training_jobs.summary import summarize
    from scenarios.training_jobs.tables import summary_text
    from scenarios.training_jobs.trace import write_trace

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
