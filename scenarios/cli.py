"""The command line: what may be asked for. What a command does is in `scenarios.commands`, its end in `exits`."""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Final

import hw  # noqa: F401 - sets the environment before torch is opened
from kit.plugins import REFUSING, telling
from policies.registry import CONTROLLED, TUNED
from scenarios.commands.outputs import require_apart
from scenarios.terminal.exits import BEGINS_ANEW, RESUMES, exit_code
from scenarios.terminal.flags import (
    Parser,
    Version,
    add_ray,
    duration_or_none_s,
    duration_s,
    file_here,
    json_file,
    load,
    new_file_here,
    new_folder,
    new_folder_here,
    one_of,
    options,
    pairs,
    path,
    picture,
    positive,
    precision,
    router,
    scenario,
    share,
    up_to,
    whole,
)
from scenarios.terminal.output import Output

JOB_REWARDS = ("bounded-slowdown", "wait", "turnaround", "utilisation", "slowdown")
ENGINES = ("auto", "simpy", "compiled")
TIME_UNITS = ("s", "ms", "us", "ns", "min", "h")
LOG_FORMATS = ("sacct", "jobcomp", "swf", "philly", "helios", "alibaba-pai", "openb", "rltune", "csv")
_RESUMING = ("run", "train", "compare", "validate", "calibrate", "model train")  # they keep what is finished
_AT_ONCE = (
    "init", "list", "profile show", "profile schema", "cluster logs", "cluster drain", "cluster return", "jobs import",
    "jobs inspect", "jobs generate", "jobs init",
)  # fmt: skip  # they answer within a second


# ----------------------------------------------------------------------------------------------------------- the flags


_A_SCENARIO = "a scenario file (YAML), or a shipped one by name, such as quickstart"


def _common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--json", type=json_file, metavar="FILE", help="write the result as JSON there; - for standard output"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress, no remarks: results and errors only")


def _own_code(parser: argparse.ArgumentParser) -> None:
    text = f"refuse to run a module:Class that a scenario or a flag names; so does {REFUSING}=1 in the environment"
    parser.add_argument("--no-own-code", action="store_true", help=text)


def _scenario(parser: argparse.ArgumentParser) -> None:
    _own_code(parser)
    parser.add_argument("scenario", type=scenario, metavar="SCENARIO", help=_A_SCENARIO)
    parser.add_argument("--out", type=new_folder, metavar="DIR", help="the run folder; runs/NAME by default")


def _scenario_alone(parser: argparse.ArgumentParser) -> None:
    _own_code(parser)
    parser.add_argument("scenario", type=scenario, metavar="SCENARIO", help=_A_SCENARIO)


def _logs_folder(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=new_folder, default="host-logs", metavar="DIR", help="where to (host-logs)")


def _engine(parser: argparse.ArgumentParser) -> None:
    text = "auto, the quicker of both, by default; simpy, the reference; compiled. They give the same, bit for bit"
    parser.add_argument("--engine", type=one_of(*ENGINES), metavar="ENGINE", default="auto", help=text)


def _router(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--router",
        type=router,
        default="random",
        metavar="NAME_OR_FILE",
        help="by name (docs/routers.md), a rule file, or a trained router's file",
    )
    parser.add_argument("--seed", type=whole, metavar="N", help="the scenario's by default")


def _routers(parser: argparse.ArgumentParser) -> None:
    text = "instead of the scenario's; may be given several times"
    parser.add_argument("--router", type=router, action="append", metavar="NAME_OR_FILE", help=text)
    parser.add_argument("--seed", type=whole, action="append", metavar="N", help=text)


def _go_on(parser: argparse.ArgumentParser) -> None:
    text = "validate also where the first two hardware runs are more than 50 %% from their simulation"
    parser.add_argument("--go-on", action="store_true", help=text)


def _compare(parser: argparse.ArgumentParser) -> None:
    text = "runs beside each other, each in a process of its own; by default one a core, or one where work is little"
    parser.add_argument("-j", "--jobs", type=up_to(1024), metavar="N", help=text)
    text = "changes and differences are to this router, seed by seed; to random by default, where it is compared"
    parser.add_argument("--baseline", type=router, metavar="ROUTER", help=text)
    text = "also draw accuracy against latency, its p99 and energy there (.png or .svg)"
    parser.add_argument("--plot", type=picture, metavar="FILE", help=text)
    text = "also show the bound that no router can beat; takes some seconds"
    parser.add_argument("--bound", action="store_true", help=text)
    add_ray(parser)


def _train(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--decisions", type=positive, metavar="N", help="how many to train for; the scenario's by default"
    )
    parser.add_argument("--seed", type=whole, metavar="N", help="the scenario's by default")
    text = "the compiled engine by default; simpy: the reference, and training in torch"
    parser.add_argument("--engine", type=one_of("simpy", "compiled"), metavar="ENGINE", default="compiled", help=text)


_OF_A_SEARCH = "of one search's first stage, the scenario's by default; later stages and searches come on top"


def _tune(parser: argparse.ArgumentParser) -> None:
    _own_code(parser)
    parser.add_argument("scenario", type=scenario, metavar="SCENARIO", help=_A_SCENARIO)
    parser.add_argument("--router", required=True, metavar="KIND", help=f"which kind: {', '.join(TUNED)}")
    parser.add_argument("--out", type=path, metavar="FILE", help="where it goes: KIND.safetensors or KIND.rule.yaml")
    parser.add_argument("--floor", type=share, metavar="SHARE", help="mean accuracy to keep; the scenario's by default")
    parser.add_argument("--decisions", type=positive, metavar="N", help=_OF_A_SEARCH)
    text = "independent ones, and a race of what they found; the scenario's by default"
    parser.add_argument("--searches", type=positive, metavar="N", help=text)
    parser.add_argument("--seed", type=whole, default=0, metavar="N", help="of the first search and its runs (0)")
    text = f"keep the goals that the operator asks for in mid-run (`service`); for {', '.join(CONTROLLED)}"
    parser.add_argument("--control", action="store_true", help=text)
    text_of = "make this small: latency, or energy an image at a p99 latency of at most --p99"
    parser.add_argument("--objective", choices=("latency", "energy"), help=text_of)
    parser.add_argument("--p99", type=duration_s, metavar="TIME", help="the limit for energy, such as 200ms")
    add_ray(parser)


def _network(parser: argparse.ArgumentParser, default: str | None) -> None:
    _own_code(parser)
    told = f" ({default})" if default else "; needed for a file of a class of your own"
    parser.add_argument("--network", default=default, metavar="NAME", help=f"by name, or module:Class{told}")
    text = "what the class of a network of your own is called with"
    parser.add_argument("--options", type=options, default={}, metavar="JSON", help=text)


def _named_network(parser: argparse.ArgumentParser) -> None:
    _own_code(parser)
    parser.add_argument("network", metavar="NETWORK", help="by name, or module:Class")
    text = "what the class of a network of your own is called with"
    parser.add_argument("--options", type=options, default={}, metavar="JSON", help=text)


def _calibrate(parser: argparse.ArgumentParser) -> None:
    text = "a trained network (safetensors); an emulated device runs none"
    parser.add_argument("--model", type=file_here, metavar="FILE", help=text)
    _network(parser, None)
    text = (
        "cuda:0, cpu:1, or cpu for all of that kind; all local ones by default. Without a GPU cpu:0 and cpu:1 are two "
    )
    text += (
        "unequal devices: with four cores and more, two thirds of them and the rest; with fewer, the first core, and "
    )
    emulated = "Or emulated:PROFILE[:SLOWDOWN]: a device that plays a profile (docs/emulated.md)"
    parser.add_argument("--device", metavar="NAME", help=f"{text}the last core without oneDNN. {emulated}")
    text = "for each device, 5m by default: the start and all measuring, those of an interrupted calibration counted; "
    text += "12 s of it (at most a quarter) are for what serving costs. What is required is measured in any case"
    parser.add_argument("--budget", type=duration_s, default=300.0, metavar="TIME", help=text)
    parser.add_argument("--batch-limit", type=up_to(4096), default=32, metavar="N", help="largest batch measured (32)")
    parser.add_argument("--seed", type=whole, default=0, metavar="N", help="of the order and the held-out points")
    parser.add_argument("--out", type=new_folder, default="profiles", metavar="DIR", help="for the profiles (profiles)")
    parser.add_argument("--allow-busy", action="store_true", help="measure although other programs use the device")
    text = "every host of a Ray cluster (docs/cluster.md) and their links; by its head, or the one that runs here"
    parser.add_argument("--cluster", nargs="?", const="auto", metavar="HOST:PORT", help=text)
    text = "with --cluster: hosts that others can reach may be used; needs Ray's token"
    parser.add_argument("--beyond-loopback", action="store_true", help=text)


def _profile_check(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("profile", type=path, metavar="PROFILE", help="a measured profile's file (YAML)")
    parser.add_argument("--model", type=file_here, required=True, metavar="FILE", help="the network that it is of")
    _network(parser, None)
    parser.add_argument("--device", metavar="NAME", help="cuda:0, cpu ...; by default what the profile was measured on")
    parser.add_argument("--points", type=up_to(10_000), default=24, metavar="N", help="batches measured alone (24)")
    text = "for the open-loop runs together; 20s by default, 0 for none"
    parser.add_argument("--seconds", type=duration_or_none_s, default=20.0, metavar="TIME", help=text)
    parser.add_argument("--seed", type=whole, default=0, metavar="N", help="of the points, sets and arrivals")


def _bound(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--accuracy", type=share, metavar="SHARE", help="at least this mean accuracy, 0 to 1; any by default"
    )

    text = "length of the windows for the oracle's estimate under a changing load; 1s by default"
    parser.add_argument("--window", type=duration_s, default=1.0, metavar="TIME", help=text)


def _capacity(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--router", type=router, default="random", metavar="NAME_OR_FILE", help="by name, or a trained router's file"
    )
    text = "the scenario's by default; may be given several times: then most of them must be stable"
    parser.add_argument("--seed", type=whole, action="append", metavar="N", help=text)
    text = "also ask for a p99 latency of at most that, such as 10ms"
    parser.add_argument("--p99", type=duration_s, metavar="TIME", help=text)
    text = "also ask for at least this mean accuracy, 0 to 1, by the table, of the widths that ran"
    parser.add_argument("--floor", type=share, metavar="SHARE", help=text)
    text = "of each run, 20s by default; near its limit a router may take long to show that it fails"
    parser.add_argument("--duration", type=duration_s, default=20.0, metavar="TIME", help=text)
    text = "of the rate, as a share of it; 0.05 by default"
    parser.add_argument("--precision", type=precision, default=0.05, metavar="SHARE", help=text)
    text = "poisson, without faults, by default: a rate that can last; own: the scenario's arrivals and faults"
    parser.add_argument("--workload", type=one_of("poisson", "own"), metavar="KIND", default="poisson", help=text)


def _init(parser: argparse.ArgumentParser) -> None:
    text = "the file to write (scenario.yaml); what no flag says is asked on a terminal, and has a default elsewhere"
    parser.add_argument("file", nargs="?", type=path, default="scenario.yaml", metavar="FILE", help=text)
    text = "a server's GPU: a shipped profile's name, or a profile's file; may be given several times"
    parser.add_argument("--gpu", action="append", metavar="PROFILE", help=text)
    parser.add_argument("--link", metavar="NAME", help="to every server: wifi5, 1gbe, 10gbe ... (1gbe)")
    parser.add_argument("--rate", metavar="N", help="images a second (1000)")
    text = "whom `compare` compares; may be given several times (random, jsq, sticky, ladder)"
    parser.add_argument("--router", action="append", metavar="NAME_OR_FILE", help=text)
    parser.add_argument("--duration", metavar="TIME", help="of a run (10s)")
    text = "a table of accuracies by width tuple, of the profiles' network; the paper's by default"
    parser.add_argument("--accuracy", type=file_here, metavar="FILE", help=text)


def _list(parser: argparse.ArgumentParser) -> None:
    kinds = ("scenarios", "routers", "profiles", "runs")
    text = f"{', '.join(kinds)}; all by default"
    parser.add_argument("kind", nargs="?", type=one_of(*kinds), metavar="KIND", help=text)


def _drained(parser: argparse.ArgumentParser) -> None:
    text = "a server's name, or a host's: all servers there"
    parser.add_argument("name", metavar="NAME", help=text)
    text = "the folder of the `run` or `validate` that serves now"
    parser.add_argument("--out", type=path, required=True, metavar="RUN", help=text)


def _run_folder(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=path, metavar="RUN", help="a run folder")


def _plot(parser: argparse.ArgumentParser) -> None:
    text = "also write the latency distributions of both worlds there (.png or .svg)"
    parser.add_argument("--plot", type=picture, metavar="FILE", help=text)


def _profile_show(parser: argparse.ArgumentParser) -> None:
    text = "a profile's file (YAML), or a shipped one by name, such as rtx-2080-ti"
    parser.add_argument("profile", type=path, metavar="PROFILE", help=text)
    parser.add_argument(
        "--plot", type=new_file_here, metavar="FILE.html", help="write its curves and Figures 1-3 there"
    )
    parser.add_argument("--figures", type=new_folder_here, metavar="DIR", help="write the same there, as PNG files")


def _profile_synth(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("gpu", nargs="?", metavar="GPU", help="such as rtx-2080-ti")
    text = "of a GPU of your own: its published figures (docs/profiles.md)"
    parser.add_argument("--from", dest="sheet", type=path, metavar="SHEET.yaml", help=text)
    parser.add_argument("--all", action="store_true", help="one of every GPU that is known, into the folder --out")
    _network(parser, "slimresnet18")
    parser.add_argument("--batch-limit", type=up_to(4096), default=128, metavar="N", help="largest batch (128)")
    parser.add_argument("--out", type=path, metavar="PATH", help="where to write; standard output by default")


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
    """One command: the module (of `scenarios.commands`, or whole) with its function, its help, and its flags."""

    module: str
    help: str
    flags: tuple[Callable[[argparse.ArgumentParser], None], ...]


COMMANDS: Final[Mapping[str, Command]] = {
    "init": Command("starting", "write a first scenario of your own, with a comment at each choice", (_init,)),
    "list": Command(
        "listing", "list what commands can name: scenarios, routers, profiles, and the runs here", (_list,)
    ),
    "run": Command(
        "job", "do the whole job: network, calibration, routers, comparison, validation, report", (_scenario, _go_on)
    ),
    "devices": Command("profile", "list the devices here, and which of their sensors work", ()),
    "calibrate": Command(
        "calibrate", "measure how the devices here run a network; writes a profile of each", (_calibrate,)
    ),
    "profile show": Command("profile", "print, check and plot a profile", (_profile_show,)),
    "profile synth": Command("profile", "make a profile of a GPU from its data sheet", (_profile_synth,)),
    "profile check": Command("checking", "measure a device again: does its profile still hold?", (_profile_check,)),
    "profile schema": Command("profile", "print the JSON Schema of profiles", ()),
    "model train": Command("model", "train the scenario's network, and fill its accuracy table", (_scenario,)),
    "model evaluate": Command("model", "fill the accuracy table of the scenario's network", (_scenario,)),
    "model check": Command(
        "model", "check that a network keeps the rules of segmented slimmable networks", (_named_network,)
    ),
    "cluster check": Command(
        "cluster",
        "look at every host of a scenario before a run: what it has, and what does not fit",
        (_scenario_alone,),
    ),
    "cluster logs": Command(
        "cluster", "gather what agents have printed on every host of a scenario", (_scenario_alone, _logs_folder)
    ),
    "train": Command("job", "train the scenario's own routers in simulation: PPO, rules", (_scenario, _train)),
    "tune": Command("job", "search for the numbers that make a rule quick at an accuracy", (_tune,)),
    "simulate": Command("simulate", "simulate one run with one router", (_scenario, _router, _engine)),
    "compare": Command(
        "simulate",
        "simulate several routers with several seeds, and compare them",
        (_scenario, _routers, _engine, _compare),
    ),
    "validate": Command(
        "job", "run the same arrivals in simulation and on real processes, and compare", (_scenario, _routers, _go_on)
    ),
    "capacity": Command(
        "simulate",
        "find the largest rate that a router carries, with limits of p99 and accuracy",
        (_scenario, _capacity, _engine),
    ),
    "bound": Command("simulate", "compute a bound that no router can beat", (_scenario, _bound)),
    "jobs import": Command(
        "slimsched.jobs.commands", "make a trace of a cluster's log; tells what is left out, and why", (_jobs_import,)
    ),
    "jobs inspect": Command(
        "slimsched.jobs.commands",
        "tell what a trace holds: load, sizes, run times, users, waits, predictability",
        (_jobs_inspect,),
    ),
    "jobs generate": Command(
        "slimsched.jobs.commands", "draw a trace with a load, sizes and run times that you choose", (_jobs_generate,)
    ),
    "jobs init": Command("slimsched.jobs.commands", "write a first scenario for a trace and a cluster", (_jobs_init,)),
    "jobs simulate": Command(
        "slimsched.jobs.commands", "simulate one policy on a trace", (_jobs_scenario, _jobs_policy)
    ),
    "jobs compare": Command(
        "slimsched.jobs.commands",
        "compare policies on the same trace: waits, fairness, who wins, how far from the bound",
        (_jobs_scenario, _jobs_compare),
    ),
    "jobs whatif": Command(
        "slimsched.jobs.operator_commands",
        "compare the same jobs before and after a change of the scenario",
        (_jobs_scenario, _jobs_whatif, _jobs_beside),
    ),
    "jobs capacity": Command(
        "slimsched.jobs.operator_commands",
        "find the largest load, or the fewest nodes, at which waits stay below a limit",
        (_jobs_scenario, _jobs_one_policy, _jobs_capacity),
    ),
    "jobs validate-log": Command(
        "slimsched.jobs.operator_commands",
        "tell how far simulated waits are from those in the log",
        (_jobs_scenario, _jobs_one_policy),
    ),
    "jobs tune": Command(
        "slimsched.jobs.operator_commands",
        "seek a policy's numbers on earlier weeks, and judge them on later ones",
        (_jobs_scenario, _jobs_one_policy, _jobs_tune, _jobs_beside),
    ),
    "jobs train": Command(
        "slimsched.jobs.operator_commands",
        "train RLTune on windows of a trace, and judge it on later ones beside rivals",
        (_jobs_scenario, _jobs_train, _jobs_beside),
    ),
    "jobs bound": Command(
        "slimsched.jobs.commands",
        "compute a bound that no policy can beat, and the price of a GPU-hour over time",
        (_jobs_scenario, _jobs_bound),
    ),
    "cluster drain": Command(
        "draining", "send no new block to a server, or a host's servers, while a run goes on", (_drained,)
    ),
    "cluster return": Command("draining", "send blocks there again", (_drained,)),
    "replay": Command("job", "feed a run's event logs to fresh cores: do they decide the same?", (_run_folder,)),
    "report": Command("job", "write a run folder's report.html again", (_run_folder, _plot)),
}
_GROUPS = {
    "profile": "show profiles, check them, synthesize them, print their schema",
    "model": "train, evaluate, check or time a slimmable network",
    "cluster": "look after hosts: check them, gather what they printed, drain them",
    "jobs": "training jobs: read a cluster's log, look at a trace, compare policies",
}


def build_parser() -> Parser:
    """The whole command line."""
    parser = Parser(
        prog="slimsched",
        description="Compares and runs schedulers of slimmable networks on unequal devices, and of training jobs.",
    )
    parser.add_argument("-V", "--version", action=Version, nargs=0, help="tell the version, and end")
    top = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=Parser)
    groups = {}
    for name, text in _GROUPS.items():
        parent = top.add_parser(name, help=text, description=text)
        groups[name] = parent.add_subparsers(dest="action", required=True, metavar="ACTION", parser_class=Parser)
    for name, known in COMMANDS.items():
        group_name, _, action = name.rpartition(" ")
        command = (groups[group_name] if group_name else top).add_parser(
            action, help=known.help, description=known.help
        )
        for add in (*known.flags, _common):
            add(command)
        command.set_defaults(parser=command, command=name)
    return parser


def _commands_with(flag: str) -> list[str]:
    """Those that take it."""
    found = []
    for name, command in COMMANDS.items():
        parser = Parser()
        for add in command.flags:
            add(parser)
        found += [f"slimsched {name}"] if flag in parser.flags else []
    return found


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The arguments; raises `InputError`, which names the nearest command or flag for one that is not known."""
    parser = build_parser()
    words = [*itertools.takewhile(lambda word: not word.startswith("-"), argv)]
    if words:
        parser.require_word("COMMAND", words[0], {name.partition(" ")[0] for name in COMMANDS})
    if words[1:] and words[0] in _GROUPS:
        actions = [name.partition(" ")[2] for name in COMMANDS if name.startswith(f"{words[0]} ")]
        parser.require_word("ACTION", words[1], actions)
    arguments, unknown = parser.parse_known_args(argv)
    arguments.parser.require_none(unknown, _commands_with)
    return arguments


def handler_of(command: str) -> Callable[[argparse.Namespace], int]:
    """The function that does a command; its module, and all that it imports, is opened only now."""
    name = COMMANDS[command].module
    module = import_module(name if name.startswith("slimsched.") else f"scenarios.commands.{name}")
    found: Callable[[argparse.Namespace], int] = getattr(module, command.replace(" ", "_").replace("-", "_"))
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    command = ""

    def work() -> int:
        nonlocal command
        arguments = parse(sys.argv[1:] if argv is None else argv)
        command = arguments.command
        require_apart(arguments)
        is_refused: bool = getattr(arguments, "no_own_code", False)
        output = Output(arguments)
        if command not in _AT_ONCE and sys.stderr.isatty():
            output.remark(f"{command}: opening what it needs ...")  # torch and numba take seconds
        with telling(output.remark, is_refused=is_refused):
            return handler_of(command)(arguments)

    return exit_code("slimsched", work, lambda: RESUMES if command in _RESUMING else BEGINS_ANEW)


if __name__ == "__main__":
    sys.exit(main())
