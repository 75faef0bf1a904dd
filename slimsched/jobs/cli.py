"""`slimsched jobs`: what may be asked for. What a command does is in `commands` and `operator_commands`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Final

from scenarios.terminal.output import Output
from slimsched.jobs.flags import (
    Parser,
    duration_s,
    json_file,
    load,
    new_folder,
    one_of,
    pairs,
    path,
    picture,
    positive,
    precision,
    share,
    up_to,
    whole,
)
from slimsched.outputs import require_apart

JOB_REWARDS = ("bounded-slowdown", "wait", "turnaround", "utilisation", "slowdown")
TIME_UNITS = ("s", "ms", "us", "ns", "min", "h")
LOG_FORMATS = ("sacct", "jobcomp", "swf", "philly", "helios", "alibaba-pai", "openb", "rltune", "csv")
_AT_ONCE: Final = ("import", "inspect", "generate", "init")  # they answer within a second
_READ: Final = ("scenario", "log", "trace", "tasks")
_OUT_IS_A_FOLDER: Final = ("compare",)


def _jobs_import(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("log", type=path, metavar="LOG", help="a cluster's log, plain or compressed with gzip")
    text = f"{', '.join(LOG_FORMATS)}; by default the file tells it"
    parser.add_argument("--format", type=one_of("auto", *LOG_FORMATS), metavar="NAME", default="auto", help=text)
    text = "the trace; LOG's name with .jobtrace.parquet, here, by default"
    parser.add_argument("--out", type=path, metavar="FILE", help=text)
    text = "of a CSV file of your own: its column for each of a trace, such as submit_s=submitted,run_s=seconds,gpus=n"
    parser.add_argument("--columns", type=pairs, metavar="PAIRS", default={}, help=text)
    text = "what plain numbers of a CSV file's times and run times are: s (by default), ms, us, ns, min or h"
    parser.add_argument("--unit", type=one_of(*TIME_UNITS), metavar="UNIT", default="s", help=text)
    text = "GPUs of a node, where a Slurm log does not name GPUs and jobs have whole nodes"
    parser.add_argument("--gpus-per-node", type=up_to(1024), metavar="N", help=text)
    text = "what a Slurm log's virtual cluster is: partition (by default), account or qos"
    parser.add_argument(
        "--vc", type=one_of("partition", "account", "qos"), metavar="WORD", default="partition", help=text
    )
    text = "of dates without one, such as Europe/Berlin; UTC by default"
    parser.add_argument("--timezone", metavar="ZONE", help=text)
    text = "a requeued job's run time: that of all its lives together (sum, by default), or of the last one"
    parser.add_argument("--lives", type=one_of("sum", "last"), metavar="WORD", default="sum", help=text)
    text = "alibaba-pai: pai_task_table.csv, which says what jobs ask for"
    parser.add_argument("--tasks", type=path, metavar="TABLE", help=text)


def _jobs_inspect(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("trace", type=path, metavar="TRACE", help="a trace that `jobs import` or `generate` made")
    parser.add_argument("--gpus", type=positive, metavar="N", help="also tell the load on a cluster of so many GPUs")


def _jobs_generate(parser: argparse.ArgumentParser) -> None:
    text = "the trace; drawn.jobtrace.parquet, here, by default"
    parser.add_argument("--out", type=path, default="drawn.jobtrace.parquet", metavar="FILE", help=text)
    parser.add_argument("--jobs", type=up_to(20_000_000), default=2000, metavar="N", help="how many (2000)")
    parser.add_argument("--gpus", type=up_to(1_000_000), default=64, metavar="N", help="of the cluster (64)")
    text = "the share of these GPUs that the jobs keep busy on average (0.7); the rate of arrivals follows from it"
    parser.add_argument("--load", type=load, default=0.7, metavar="SHARE", help=text)
    text = "poisson, or mmpp:burst_factor=4,burst_share=0.1,burst_s=7200 (poisson)"
    parser.add_argument("--arrivals", default="poisson", metavar="LAW", help=text)
    text = "exponential:mean_s=3600, weibull:mean_s=3600,shape=0.5, lognormal:mean_s=3600,cv2=10 (by default) or "
    text += "hyperexponential:mean_s=3600,cv2=10; cv2 is the variance over the squared mean"
    parser.add_argument("--durations", default="lognormal", metavar="LAW", help=text)
    text = "weights of jobs by their GPUs (1:0.7,2:0.1,4:0.1,8:0.08,16:0.02)"
    parser.add_argument("--sizes", default="1:0.7,2:0.1,4:0.1,8:0.08,16:0.02", metavar="WEIGHTS", help=text)
    parser.add_argument(
        "--users", type=up_to(100_000), default=20, metavar="N", help="the k-th has a share like 1/k (20)"
    )
    parser.add_argument("--vcs", type=up_to(10_000), default=4, metavar="N", help="virtual clusters, the same way (4)")
    text = "of the jobs that run as long as their user's last one of that size (0.5)"
    parser.add_argument("--alike", type=share, default=0.5, metavar="SHARE", help=text)
    parser.add_argument("--seed", type=whole, default=0, metavar="N", help="the same seed, the same trace (0)")


def _jobs_init(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("trace", type=path, metavar="TRACE", help="a trace that `jobs import` or `generate` made")
    text = "equal nodes, such as 64x8, 64x8:v100 or 16x4:a100=VC; may be given several times"
    parser.add_argument("--nodes", action="append", required=True, metavar="NODES", help=text)
    parser.add_argument("--out", type=path, metavar="FILE", help="the scenario; TRACE's name with .yaml by default")


def _jobs_scenario(parser: argparse.ArgumentParser) -> None:
    text = "a scenario of training jobs (YAML); `jobs init` writes a first one"
    parser.add_argument("scenario", type=path, metavar="SCENARIO", help=text)
    text = "move arrivals closer together or apart, so that this is the load; the scenario's by default"
    parser.add_argument("--load", type=load, metavar="SHARE", help=text)


def _jobs_policy(parser: argparse.ArgumentParser) -> None:
    text = "by name (docs/jobs.md), or a file ending in .jobpolicy.yaml"
    parser.add_argument("--policy", required=True, metavar="NAME_OR_FILE", help=text)
    parser.add_argument("--out", type=path, metavar="FILE", help="also keep what became of each job (Parquet)")
    _jobs_no_bound(parser)


def _jobs_compare(parser: argparse.ArgumentParser) -> None:
    text = "instead of the scenario's; may be given several times, the first is the baseline"
    parser.add_argument("--policy", action="append", metavar="NAME_OR_FILE", help=text)
    text = "runs beside each other, each in a process of its own; by default one a core"
    parser.add_argument("--jobs", type=up_to(1024), metavar="N", help=text)
    text = "keep every run there, so that none is made twice, with comparison.json and prices.svg"
    parser.add_argument("--out", type=new_folder, metavar="DIR", help=text)
    _jobs_no_bound(parser)


def _jobs_no_bound(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--no-bound", action="store_true", help="leave the bound out, which takes some seconds")


def _jobs_bound(parser: argparse.ArgumentParser) -> None:
    text = "draw the price of a GPU-hour over time there (.png or .svg)"
    parser.add_argument("--plot", type=picture, metavar="FILE", help=text)


def _jobs_beside(parser: argparse.ArgumentParser) -> None:
    text = "runs beside each other, each in a process of its own; by default one a core"
    parser.add_argument("--jobs", type=up_to(1024), metavar="N", help=text)


def _jobs_whatif(parser: argparse.ArgumentParser) -> None:
    text = "must be given: KEY=VALUE, such as cluster.nodes.0.count=74 or cluster.restart_s=300; "
    text += "may be given several times"
    parser.add_argument("--change", action="append", default=[], metavar="CHANGE", help=text)
    text = "by name, or a file; the scenario's by default; may be given several times"
    parser.add_argument("--policy", action="append", metavar="NAME_OR_FILE", help=text)


def _jobs_one_policy(parser: argparse.ArgumentParser) -> None:
    text = "by name (docs/jobs.md), or a file; the scenario's first by default"
    parser.add_argument("--policy", metavar="NAME_OR_FILE", help=text)


def _jobs_capacity(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--wait", type=duration_s, required=True, metavar="TIME", help="the limit, such as 10m")
    text = "of all waits what must keep it: mean (by default), p50, p90, p99"
    parser.add_argument("--of", type=one_of("mean", "p50", "p90", "p99"), default="mean", metavar="WORD", help=text)
    text = "what is sought: the largest load (by default), or the fewest nodes of the first group"
    parser.add_argument("--by", type=one_of("load", "nodes"), default="load", metavar="WORD", help=text)
    parser.add_argument("--precision", type=precision, default=0.02, metavar="SHARE", help="of a load (0.02)")


def _jobs_tune(parser: argparse.ArgumentParser) -> None:
    text = "where it goes; ends in .jobpolicy.yaml"
    parser.add_argument("--out", type=path, default="tuned.jobpolicy.yaml", metavar="FILE", help=text)
    parser.add_argument("--tries", type=up_to(10_000), default=30, metavar="N", help="of numbers (30)")
    text = "the share of the time that is searched on; the rest judges (0.5)"
    parser.add_argument("--split", type=share, default=0.5, metavar="SHARE", help=text)
    text = "whose mean is made small: wait (by default), jct, slowdown"
    parser.add_argument(
        "--objective", type=one_of("wait", "jct", "slowdown"), default="wait", metavar="WORD", help=text
    )


def _jobs_train(parser: argparse.ArgumentParser) -> None:
    kinds = ("rltune-fixed", "rltune-faithful")
    text = "rltune-fixed (by default), on the first 60 %% of the time; or rltune-faithful, on the first 10,000 jobs "
    text += "(docs/jobs-learning.md)"
    parser.add_argument("--kind", type=one_of(*kinds), default=kinds[0], metavar="KIND", help=text)
    parser.add_argument("--base", default="fifo", metavar="ORDER", help="the order that it sees jobs in (fifo)")
    text = f"what rltune-faithful is rewarded for: {', '.join(JOB_REWARDS)}; the first by default, as its authors do"
    parser.add_argument("--reward", type=one_of(*JOB_REWARDS), metavar="WORD", help=text)
    text = "where it goes; goes on from there where it was interrupted"
    parser.add_argument("--out", type=path, default="rltune.safetensors", metavar="FILE", help=text)
    parser.add_argument("--epochs", type=up_to(100_000), default=20, metavar="N", help="updates (20)")
    parser.add_argument("--episodes", type=up_to(100_000), default=100, metavar="N", help="windows an epoch (100)")
    parser.add_argument("--window", type=up_to(1_000_000), default=256, metavar="N", help="jobs of a window (256)")
    parser.add_argument("--judged", type=up_to(100_000), default=50, metavar="N", help="windows that judge it (50)")


# --------------------------------------------------------------------------------------------------------- the commands


@dataclass(frozen=True)
class Command:
    """One command: the module with its function, its help, and its flags."""

    module: str
    help: str
    flags: tuple[Callable[[argparse.ArgumentParser], None], ...]


COMMANDS: Final[Mapping[str, Command]] = {
    "import": Command("commands", "make a trace of a cluster's log; tells what is left out, and why", (_jobs_import,)),
    "inspect": Command(
        "commands",
        "tell what a trace holds: load, sizes, run times, users, waits, predictability",
        (_jobs_inspect,),
    ),
    "generate": Command("commands", "draw a trace with a load, sizes and run times that you choose", (_jobs_generate,)),
    "init": Command("commands", "write a first scenario for a trace and a cluster", (_jobs_init,)),
    "simulate": Command("commands", "simulate one policy on a trace", (_jobs_scenario, _jobs_policy)),
    "compare": Command(
        "commands",
        "compare policies on the same trace: waits, fairness, who wins, how far from the bound",
        (_jobs_scenario, _jobs_compare),
    ),
    "whatif": Command(
        "operator_commands",
        "compare the same jobs before and after a change of the scenario",
        (_jobs_scenario, _jobs_whatif, _jobs_beside),
    ),
    "capacity": Command(
        "operator_commands",
        "find the largest load, or the fewest nodes, at which waits stay below a limit",
        (_jobs_scenario, _jobs_one_policy, _jobs_capacity),
    ),
    "validate-log": Command(
        "operator_commands",
        "tell how far simulated waits are from those in the log",
        (_jobs_scenario, _jobs_one_policy),
    ),
    "tune": Command(
        "operator_commands",
        "seek a policy's numbers on earlier weeks, and judge them on later ones",
        (_jobs_scenario, _jobs_one_policy, _jobs_tune, _jobs_beside),
    ),
    "train": Command(
        "operator_commands",
        "train RLTune on windows of a trace, and judge it on later ones beside rivals",
        (_jobs_scenario, _jobs_train, _jobs_beside),
    ),
    "bound": Command(
        "commands",
        "compute a bound that no policy can beat, and the price of a GPU-hour over time",
        (_jobs_scenario, _jobs_bound),
    ),
}


def build_parser() -> Parser:
    """The whole command line of training jobs."""
    text = "training jobs: read a cluster's log, look at a trace, compare policies"
    parser = Parser(prog="slimsched jobs", description=text)
    actions = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=Parser)
    for name, known in COMMANDS.items():
        command = actions.add_parser(name, help=known.help, description=known.help)
        for add in (*known.flags, _common):
            add(command)
        command.set_defaults(parser=command)
    return parser


def _common(parser: argparse.ArgumentParser) -> None:
    text = "write the result as JSON there; - for standard output"
    parser.add_argument("--json", type=json_file, metavar="FILE", help=text)
    parser.add_argument("--quiet", action="store_true", help="no progress, no remarks: results and errors only")


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The arguments; raises `InputError`, which names the nearest command or flag for one that is not known."""
    parser = build_parser()
    if argv and not argv[0].startswith("-"):
        parser.require_word("COMMAND", argv[0], COMMANDS)
    arguments, unknown = parser.parse_known_args(argv)
    arguments.parser.require_none(unknown)
    return arguments


def run(argv: Sequence[str]) -> int:
    """One command; returns the exit code."""
    arguments = parse(argv)
    named = [arguments.json, getattr(arguments, "plot", None)]
    named += [] if arguments.command in _OUT_IS_A_FOLDER else [getattr(arguments, "out", None)]
    written = [Path(place) for place in named if place is not None and str(place) != "-"]
    require_apart(written, [place for name in _READ if (place := getattr(arguments, name, None)) is not None])
    if arguments.command not in _AT_ONCE and sys.stderr.isatty():
        Output(arguments).remark(f"jobs {arguments.command}: opening what it needs ...")  # numba takes seconds
    module = import_module(f"slimsched.jobs.{COMMANDS[arguments.command].module}")
    handler: Callable[[argparse.Namespace], int] = getattr(module, f"jobs_{arguments.command.replace('-', '_')}")
    return handler(arguments)
