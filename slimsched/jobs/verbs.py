"""What is done with training jobs: a cluster's log as a trace, what a trace holds, and policies on it.

`slimsched jobs NAME` does the first nine; `train` is for Python alone.
"""

from __future__ import annotations

import os
import shlex
import time  # noqa: TID251 - waits in a running Slurm are measured by a clock
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from cyclopts import Parameter

from hw.host_resources import core_count
from kit.documents import read_text, write_json, write_text
from kit.errors import InputError
from kit.files import writable_file
from kit.units import NS_PER_S
from scenarios.files.scenario_reading import read_profile
from scenarios.terminal.progress import Progress
from scenarios.terminal.screen import terminated_as_interrupted
from sim.device_profile import Profile
from slimsched.arguments import (
    LONGEST,
    Duration,
    File,
    NewFolder,
    changes_of,
    path,
    read_by,
    require_unique,
    require_within,
)
from slimsched.arguments import Changes as Settings
from slimsched.results import CommandResult
from slimsched.working import observer, verb

if TYPE_CHECKING:
    from jobs.job_scenario import JobExperiment
    from jobs.learning.scoring_network import NamedPolicy
    from jobs.learning.training import Windows
    from jobs.policy_comparison import Bound

    NewFile = str | Path
    Policies = Sequence[str | Path]
    Pairs = Mapping[str, str] | None
    Nodes = Sequence[str]
else:

    def _pairs(text: str) -> dict[str, str]:
        """Read `a=b,c=d`: words by other words."""
        pairs: dict[str, str] = {}
        for part in text.split(","):
            key, equals, value = (cell.strip() for cell in part.partition("="))
            if not (key and equals and value) or key in pairs:
                raise ValueError(f"{part!r:.80}: must be pairs such as a=b,c=d, each word once")
            pairs[key] = value
        return pairs

    NewFile = Annotated[Path, read_by(path)]
    Policies = Annotated[list[str], Parameter(name="--policy", show_default=False)]
    Pairs = Annotated[dict | None, read_by(_pairs, show_default=False)]
    Nodes = Annotated[list[str], Parameter(name="--nodes", show_default=False)]

Changes = Annotated[Sequence[str], Parameter(name="--change", show_default=False)]
FormatName = Literal["auto", "sacct", "jobcomp", "swf", "philly", "helios", "alibaba-pai", "openb", "rltune", "csv"]
_ENDING: Final = ".jobtrace.parquet"
Document = dict[str, Any]
_DAY_NS: Final = 86_400 * NS_PER_S
_PATIENT: Final = 10  # passes that fail one after another
_FEW: Final = 300  # jobs that are simulated sooner than a process starts
_MAX_AT_ONCE: Final = 200_000  # jobs that are handled in a moment
_COMPARE: Final = "`slimsched jobs compare SCENARIO --policy A --policy B` sets policies in parallel"


# --------------------------------------------------------------------------------------------------------------- traces


@verb
def import_log(
    log: File,
    /,
    *,
    format: FormatName = "auto",
    out: NewFile | None = None,
    columns: Pairs = None,
    unit: Literal["s", "ms", "us", "ns", "min", "h"] = "s",
    gpus_per_node: int | None = None,
    vc: Literal["partition", "account", "qos"] = "partition",
    timezone: str | None = None,
    attempts: Literal["sum", "last"] = "sum",
) -> CommandResult:
    """Make a trace of a cluster's log, and report what is left out.

    Args:
        log: a cluster's log, plain or compressed with gzip. pai_job_table.csv needs pai_task_table.csv next to it, for
            the jobs' requests.
        format: the log's format (detected).
        out: the trace (LOG's name with .jobtrace.parquet, here).
        columns: columns of a custom CSV file for those of a trace, such as submit_s=submitted,run_s=seconds,gpus=n. A
            unit may follow: requested_s=limit:min.
        unit: the unit of plain numbers in a CSV file's times and run times.
        gpus_per_node: GPUs of a node, if a Slurm log does not name GPUs and jobs have whole nodes.
        vc: what a Slurm log's virtual cluster is.
        timezone: the zone of dates without one, such as Europe/Berlin (UTC).
        attempts: a requeued job's run time: of all attempts together, or of the last one.

    Raises:
        InputError: the file can't be read as such a log, or no row of it makes a job.
    """
    from jobs.job_traces import is_imported
    from jobs.logs.log_import import import_log as read_log
    from jobs.logs.log_rows import UNITS_S, Options
    from slimsched.jobs.texts import imported_text

    log = Path(log)
    require_within("--gpus-per-node", gpus_per_node, 1, 1024)
    file = writable_file(Path(out or f"{log.name.partition('.')[0] or 'log'}{_ENDING}"))
    if file.is_file() and not is_imported(file):
        raise InputError(str(file), "", "exists, and is not a trace of `jobs import`; name another file with --out")
    names, units_s = dict(columns or {}), dict[str, float]()
    for name, column in names.items():
        before, _, own = column.rpartition(":")
        if before and own in UNITS_S:
            names[name], units_s[name] = before, UNITS_S[own]
    options = Options(
        gpus_per_node=gpus_per_node,
        vc=vc,
        timezone=_timezone(timezone),
        columns=names,
        unit_s=UNITS_S[unit],
        units_s=units_s,
        tasks=log.with_name("pai_task_table.csv"),
    )
    with _progress(f"reading {log.name}", unit="row") as progress:
        imported = read_log(log, file, format, options, sums=attempts == "sum", on_progress=progress.set)
    return CommandResult({**imported.document(), "trace": str(file)}, imported_text(imported, log, file))


@verb
def inspect(trace: File, /, *, gpus: int | None = None) -> CommandResult:
    """Show a trace's load, sizes, run times, users, waits, predictability.

    Args:
        trace: a trace of `jobs import` or `jobs generate`.
        gpus: also show the load on a cluster of this many GPUs.

    Raises:
        InputError: it is not a trace.
    """
    from jobs.job_traces import read_trace, summarize
    from slimsched.jobs.texts import summary_text

    require_within("--gpus", gpus, 1, LONGEST)
    jobs = read_trace(Path(trace))
    with _progress("looking at jobs", len(jobs), unit="job", is_quiet=len(jobs) < _MAX_AT_ONCE) as progress:
        document = summarize(jobs, gpus, progress.set)
    return CommandResult(document, summary_text(document, Path(trace).name))


@verb
def generate(
    *,
    out: NewFile = Path(f"drawn{_ENDING}"),
    jobs: int = 2000,
    gpus: int = 64,
    load: float = 0.7,
    arrivals: str = "poisson",
    durations: str = "lognormal",
    sizes: str = "1:0.7,2:0.1,4:0.1,8:0.08,16:0.02",
    seed: int = 0,
) -> CommandResult:
    """Draw a random trace with given load, sizes and run times.

    Args:
        out: the trace to write.
        jobs: the number of jobs.
        gpus: GPUs of the cluster.
        load: the share of these GPUs that is busy on average; it sets the rate of arrivals.
        arrivals: the law of arrivals: poisson, or mmpp:burst_factor=4,burst_share=0.1,burst_s=7200.
        durations: the law of run times: exponential:mean_s=3600, weibull:mean_s=3600,shape=0.5,
            lognormal:mean_s=3600,cv2=10 or hyperexponential:mean_s=3600,cv2=10; cv2 is the variance over the squared
            mean.
        sizes: weights of jobs by their GPUs.
        seed: the same seed, the same trace.

    Raises:
        InputError: no such law, or one of no such trace.
    """
    from jobs import generated_traces as drawing
    from jobs.job_traces import summarize, write_trace
    from slimsched.jobs.texts import summary_text

    require_within("--jobs", jobs, 1, 20_000_000)
    require_within("--gpus", gpus, 1, 1_000_000)
    require_within("--seed", seed, 0, LONGEST)
    _require_load(load)
    file = writable_file(Path(out))
    trace = drawing.draw(
        drawing.Drawing(
            jobs=jobs,
            gpus=gpus,
            load=load,
            durations=drawing.law(durations, drawing.DURATIONS, "--durations"),
            arrivals=drawing.law(arrivals, drawing.ARRIVALS, "--arrivals"),
            sizes=drawing.sizes(sizes, "--sizes"),
            seed=seed,
        )
    )
    write_trace(file, trace)
    document = summarize(trace, gpus)
    return CommandResult({**document, "trace": str(file)}, f"trace: {file}\n\n{summary_text(document, file.name)}")


@verb
def init(
    trace: File, /, *, nodes: Nodes = (), slurm_conf: File | None = None, out: NewFile | None = None
) -> CommandResult:
    """Write a first scenario for a trace and a cluster, with a comment at each choice.

    Its baseline is the site's policy by the log: Slurm's policy whose simulated waits are nearest to the recorded ones.

    Args:
        trace: a trace of `jobs import` or `jobs generate`.
        nodes: equal nodes, such as 64x8, 64x8:v100 or 16x4:a100=VC; may be given several times.
        slurm_conf: the site's slurm.conf, with nodes, priorities and backfilling.
        out: the scenario (TRACE's name with .yaml).

    Raises:
        InputError: no such nodes, or they do not fit the trace.
    """
    from jobs.job_traces import read_trace
    from jobs.slurm_conf import read_slurm_conf
    from jobs.what_if import nodes_of, site_of, starter, typed
    from slimsched.jobs.texts import say

    file = writable_file(Path(out or f"{Path(trace).name.partition('.')[0] or 'jobs'}.yaml"))
    if file.exists():
        raise InputError(str(file), "", "exists already; name another file with --out, or remove it")
    if not nodes and slurm_conf is None:
        raise InputError("--nodes", "", "is missing: equal nodes, such as 64x8; or --slurm-conf FILE, which names them")
    conf = None if slurm_conf is None else read_slurm_conf(Path(slurm_conf))
    groups, jobs = tuple(nodes_of(text) for text in nodes) or (conf.nodes if conf else ()), read_trace(Path(trace))
    trace_path, groups = Path(trace).absolute(), typed(groups, jobs)
    with _progress("what the site runs", unit="policy") as progress:
        site = site_of(jobs, trace_path, groups, core_count() if len(jobs) > _FEW else 1, conf, progress.set)
    write_text(file, starter(jobs, Path(os.path.relpath(trace_path, file.absolute().parent)), groups, site))
    text = f"scenario: {file}; next: slimsched jobs compare {shlex.quote(str(file))}"
    document = {"scenario": str(file), "baseline": site.policy, **asdict(site)}
    return CommandResult(document, f"{say('site', site, sum(group.nodes * group.gpus for group in groups))}\n{text}")


# ------------------------------------------------------------------------------------------------------------- policies


@verb
def compare(
    scenario: File,
    /,
    policies: Policies = (),
    *,
    out: NewFolder | None = None,
    against_log: bool = False,
    changes: Settings | None = None,
) -> CommandResult:
    """Compare policies on the same trace: waits, fairness, the winner, distance from the bound.

    It runs one policy a core at a time. A single policy is simulated, and its figures shown.

    Args:
        scenario: a scenario of training jobs (YAML), such as one of `jobs init`.
        policies: a policy, by name (docs/jobs.md), or a file ending in .jobpolicy.yaml, instead of the scenario's; may
            be given several times, the first is the baseline.
        out: a folder for every run, which is not repeated, with comparison.json, report.html and prices.svg.
        against_log: compare the first policy's waits with those in the log instead.
        changes: values that replace the scenario's, by dotted keys, such as load=0.9; bound.passes=0 omits the bound.

    Raises:
        InputError: anything in the scenario, or in a file that it names, is wrong.
    """
    from jobs.policy_comparison import comparison_document, guarded, jitter_document, result_document, run_all
    from jobs.what_if import validation_document
    from scenarios.show.charts import save
    from slimsched.jobs.comparison_page import build_report, prices_chart
    from slimsched.jobs.texts import comparison_text, result_text, validation_text

    experiment = _experiment(scenario, policies, changes=changes_of(changes))
    if against_log:
        with _progress("replaying the log", 1) as progress:
            document = validation_document(experiment, experiment.policies[0], core_count())
            progress.update()
        return CommandResult(document, validation_text(document))
    folder = None if out is None else Path(out)
    with _progress("policies", len(experiment.policies), unit="run") as progress:

        def on_run(name: str, was_there: bool) -> None:
            progress.tell(f"{name}: {'skipped, its run exists' if was_there else 'done'}")
            progress.update()

        runs = run_all(experiment, min(core_count(), len(experiment.policies)), folder, on_run)
    first = experiment.policies[0]
    kinds = (False, True) if len(runs) > 1 else (first.policy.is_preemptive,)
    bounds = _bounds(experiment, kinds) if experiment.scenario.bound.passes else []
    if len(runs) > 1:
        document = comparison_document(experiment, runs, bounds)
        if (more := guarded(experiment, document)) is not None:
            with _progress(f"{more.name}, as the longest wait grows", 1) as progress:
                runs |= run_all(replace(experiment, policies=(more,)), 1, folder)
                progress.update()
            experiment = replace(experiment, policies=(*experiment.policies, more))
            document = comparison_document(experiment, runs, bounds) | {"guarded": more.name}
        if experiment.scenario.jitter_s:
            document["jitter"] = jitter_document(experiment, core_count())
    else:
        document = result_document(experiment, first, runs[first.name], bounds)
    if folder is not None:
        write_json(folder / "comparison.json", document)
        if len(runs) > 1:
            build_report(folder)
        if bounds:
            save(prices_chart(bounds), folder / "prices.svg")
    return CommandResult(document, comparison_text(document) if len(runs) > 1 else result_text(document))


@verb
def bound(scenario: File, /) -> CommandResult:
    """Compute a bound that no policy can beat, and the price of a GPU-hour over time.

    Args:
        scenario: a scenario of training jobs (YAML).

    Raises:
        InputError: anything in the scenario is wrong, or no job of it fits into the cluster.
    """
    from jobs.policy_comparison import bound_document
    from slimsched.jobs.texts import bound_text

    experiment = _experiment(scenario)
    if not experiment.scenario.bound.passes:
        raise InputError(experiment.source, "bound.passes", "0 leaves the bound out; expected 1 or more")
    bounds = _bounds(experiment)
    document = bound_document(experiment, bounds)
    return CommandResult(document, bound_text(document))


# ------------------------------------------------------------------------------------------------------------ operators


@verb
def whatif(scenario: File, /, changes: Changes = (), policies: Policies = ()) -> CommandResult:
    """Compare the same jobs before and after a change of the scenario.

    Args:
        scenario: a scenario of training jobs (YAML).
        changes: a change, KEY=VALUE, such as cluster.nodes.0.count=74 or cluster.restart_s=300; required, may be given
            several times.
        policies: a policy, by name or file; the scenario's by default; may be given several times.

    Raises:
        InputError: a change that does not fit, or one of the jobs.
    """
    from jobs.what_if import whatif_document
    from slimsched.jobs.texts import whatif_text

    if not changes:
        raise InputError("--change", "", f"is missing: KEY=VALUE, such as cluster.nodes.0.count=74; {_COMPARE}")
    changed = _changed(changes)
    now, then = _experiment(scenario, policies), _experiment(scenario, policies, changes=changed)
    runs = 2 * len(now.policies)
    with _progress("what if", runs) as progress:
        document = whatif_document(now, then, min(core_count(), runs))
        progress.update(runs)
    return CommandResult({**document, "changes": changed}, whatif_text(document, changes))


@verb
def capacity(
    scenario: File,
    /,
    *,
    wait_s: Duration,
    of: Literal["mean", "p50", "p90", "p99"] = "mean",
    by: Literal["load", "nodes"] = "load",
    policy: str | None = None,
) -> CommandResult:
    """Find the largest load, or the fewest nodes, at which waits stay below a limit.

    Args:
        scenario: a scenario of training jobs (YAML).
        wait_s: the limit, such as 10m.
        of: the statistic of waits that must keep it.
        by: what to search: the largest load, or the fewest nodes of the first group.
        policy: the policy, by name or file; the scenario's first by default.

    Raises:
        InputError: the scenario begins with what a log found, or no number of nodes is enough.
    """
    from jobs.what_if import capacity_document
    from slimsched.jobs.texts import capacity_text, say

    experiment = _experiment(scenario, () if policy is None else (policy,))
    if experiment.snapshot is not None:
        raise InputError(
            experiment.source, "begin", "what the log found does not fit another load or cluster; begin empty"
        )

    def on_trial(value: float, measured_s: float) -> None:
        observer().remark(say("tried", value, measured_s, by))

    document = capacity_document(experiment, wait_s, of, by, on_trial)
    return CommandResult(document, capacity_text(document))


@verb
def advise(
    scenario: File,
    /,
    *,
    policy: str = "saf-requested",
    age_guard_s: Duration | None = None,
    apply: bool = False,
    every_s: Duration | None = None,
    journal: NewFile | None = None,
    undo: File | None = None,
) -> CommandResult:
    """Advise a running Slurm: another order of waiting jobs, and its effect.

    Without --apply nothing is changed.

    Args:
        scenario: a scenario of training jobs (YAML) of this cluster; its baseline is the site's policy.
        policy: the policy of the advised order, by name or file: one that stops no job and needs no true run times.
        age_guard_s: the wait after which a job goes first (the policy file's, otherwise 24h).
        apply: write the SiteFactors of this order into Slurm; needs an operator's rights.
        every_s: the interval of repeats, until interrupted; with --apply. The scenario is read once.
        journal: the file that records each change before it is made (next to the scenario, ending in .advice.jsonl).
        undo: only revert the changes in such a journal.

    Raises:
        InputError: no Slurm answers here, or is understood; a priority may not be changed; or the scenario's baseline
            is not near its log.
    """
    from jobs import advice
    from jobs.job_scenario import named_policy
    from slimsched.jobs.slurm_commands import Slurm, carry_out, opened_journal, queue_of
    from slimsched.jobs.texts import advice_text

    if every_s is not None and not apply:
        raise InputError("--every", "", "repeats what --apply writes; give that, too")
    require_within("--age-guard", age_guard_s, 1.0, LONGEST)
    slurm = Slurm()
    doubts = advice.doubts_of(slurm.ask(*advice.CONFIG_COMMAND))
    if undo is not None:
        return _undone(Path(undo))
    journal_path = writable_file(Path(journal or Path(scenario).with_suffix(".advice.jsonl")))
    experiment = _experiment(scenario)
    candidate = named_policy(policy, experiment.scenario, "--policy")
    advice.require_order(candidate, "--policy")
    guard_ns = _DAY_NS if age_guard_s is None else round(age_guard_s * NS_PER_S)
    if age_guard_s is not None or not candidate.policy.age_guard_ns:
        candidate = replace(candidate, policy=replace(candidate.policy, age_guard_ns=guard_ns))
    with _progress("judging what the site runs", 1) as progress:
        error = advice.require_near(experiment)
        progress.update()
    past = advice.read_journal(read_text(journal_path), str(journal_path)) if journal_path.is_file() else []
    with opened_journal(journal_path) if apply else nullcontext((past, None)) as (lines, write):

        def one_pass() -> Document:
            jobs = queue_of(slurm)
            processes = core_count() if len(jobs) > _FEW else 1
            document = advice.advice_document(experiment, candidate, jobs, lines, time.time(), processes)
            document |= {"log_error": error, "journal": str(journal_path), "doubts": doubts}
            if write is not None:
                document |= carry_out(slurm, [advice.Change(**change) for change in document["changes"]], write)
            return document

        document = one_pass()
        if every_s is not None:
            document = _repeated(document, one_pass, every_s)
    return CommandResult(document, advice_text(document))


def _repeated(document: Document, one_pass: Callable[[], Document], every_s: float) -> Document:
    """Return the last of many passes, each reported in a line; SIGTERM or Ctrl-C ends them.

    Raises:
        InputError: what is wrong stays so for `_PATIENT` passes.
    """
    from slimsched.jobs.texts import say

    failures, text = 0, say("advice_pass", document)
    with suppress(KeyboardInterrupt), terminated_as_interrupted():
        while True:
            observer().remark(text)
            time.sleep(every_s)
            try:
                document, failures = one_pass(), 0
                text = say("advice_pass", document)
            except InputError as error:  # the controller may be away for a moment
                failures, text = failures + 1, str(error)
                if failures == _PATIENT:
                    raise
    return document


def _undone(journal: Path) -> CommandResult:
    """Put back what was changed according to a journal."""
    from jobs.advice import undoing
    from slimsched.jobs.slurm_commands import Slurm, carry_out, opened_journal, queue_of
    from slimsched.jobs.texts import say

    if not journal.is_file():
        raise InputError("--undo", "", f"{journal}: no such file; name the journal that --apply printed")
    slurm = Slurm()
    with opened_journal(journal) as (lines, write):
        changes, left = undoing(lines, queue_of(slurm))
        document = {"schema": "slimsched.jobsundo/1", "left": left, **carry_out(slurm, changes, write)}
    return CommandResult(document, say("undone", document))


# ------------------------------------------------------------------------------------------------------------- learning


@verb
def train(
    scenario: File,
    /,
    *,
    base: str = "qssf",
    seed: int = 0,
    out: NewFile = Path("rltune.safetensors"),
    epochs: int = 20,
    episodes: int = 100,
    window: int = 256,
    judged: int = 50,
    load: float | None = None,
    jobs: int | None = None,
) -> CommandResult:
    """Train RLTune on windows of the first 60 % of a scenario's time, and judge it on later ones.

    Args:
        scenario: a scenario of training jobs (YAML).
        base: the policy whose order it sees jobs in, and whose predicted run times it is shown; it is rewarded for
            being ahead of first-fit in that order.
        seed: of what is drawn in training.
        out: the trained file; an interrupted command resumes there.
        epochs: updates.
        episodes: windows an epoch.
        window: jobs of a window.
        judged: windows that judge it, whatever the seed is.
        load: as a scenario has it.
        jobs: processes; by default one a core.

    Raises:
        InputError: the trace is too short, the base is not an order that is known without run times, or the file is of
            another training.
    """
    from jobs.job_scenario_keys import LEARNED_SUFFIX
    from jobs.learning.scoring_network import RLTUNE, LearnedSpec, NamedPolicy
    from jobs.learning.training import TrainingConfig, Windows
    from jobs.learning.training import train as learn
    from jobs.policies.named_policies import policy_of

    for flag, number in (("epochs", epochs), ("episodes", episodes), ("window", window), ("judged", judged)):
        require_within(flag, number, 1, LONGEST)
    if not Path(out).name.endswith(LEARNED_SUFFIX):
        raise InputError("out", "", f"{Path(out).name!r}: what is learned goes into a file {LEARNED_SUFFIX}")
    file = writable_file(Path(out))
    order = policy_of(base)
    experiment = _experiment(scenario, (), load)
    earlier, later = Windows.split(experiment.jobs, experiment.cluster_model, length=window, warm=window)
    spec = LearnedSpec(order.order, order.estimate, experiment.scenario.name)
    config = TrainingConfig(spec, earlier, epochs=epochs, episodes=episodes, seed=seed)
    processes = jobs or core_count()
    with _progress("epochs", epochs, unit="epoch") as progress:
        learned = learn(config, file, processes, on_epoch=lambda epoch, *_: progress.set(epoch + 1, epochs))
    starts = later.drawn(judged, 0, "judging").tolist()
    return _judged(NamedPolicy(RLTUNE, learned.spec.policy, learned), file, later, starts, processes)


def _judged(candidate: NamedPolicy, file: Path, later: Windows, starts: Sequence[int], processes: int) -> CommandResult:
    """Judge what was learned against the baselines, on later windows."""
    from jobs.learning.training import BASELINES, judge, table_of

    waits = {policy.name: waits_s for policy, waits_s in judge([*BASELINES, candidate], later, starts, jobs=processes)}
    document = {
        "schema": "slimsched.jobstraining/1",
        "file": str(file),
        "base": f"{candidate.policy.order}-{candidate.policy.estimate}",
        "windows": len(starts),
        "mean_wait_s": {name: float(waits_s.mean()) for name, waits_s in waits.items()},
    }
    header = f"written: {file}\n{len(starts)} later windows of {later.length} jobs, above it: than {candidate.name}"
    return CommandResult(document, f"{header}\n\n{table_of(waits, candidate.name)}")


# ------------------------------------------------------------------------------------------------------------ scenarios


def _progress(title: str, total: int | None = None, unit: str = "run", is_quiet: bool = False) -> Progress:
    return Progress(title, total, unit=unit, quiet=is_quiet or observer().quiet)


def _experiment(
    scenario: str | Path,
    policies: Sequence[str | Path] = (),
    load: float | None = None,
    changes: Mapping[str, Any] | None = None,
) -> JobExperiment:
    """Return the scenario, changed, with the given policies and load instead of those of its file."""
    from jobs.job_scenario import read_case, read_scenario, require_a_fit, warnings_of

    if load is not None:
        _require_load(load)
        changes = {**(changes or {}), "load": load}
    names = require_unique("--policy", [*map(str, policies)])
    parsed = read_scenario(Path(scenario), changes, names)
    experiment = read_case(parsed, str(scenario), profile_images_s, "--policy" if names else "")
    require_a_fit(experiment)
    for doubt in warnings_of(experiment):
        observer().remark(f"warning: {doubt}")
    return experiment


def _require_load(load: float) -> None:
    """Check a share of a cluster; one above 10 is meant in percent."""
    if 10 < load <= 1000:
        raise InputError("--load", "", f"{load:g} is a share of the cluster; {load:g} % is {load / 100:g}")
    require_within("--load", load, 1e-6, 10.0)


def _bounds(experiment: JobExperiment, kinds: tuple[bool, ...] = (False, True)) -> list[Bound]:
    """Compute bounds without preemption (False) and with."""
    from jobs.policy_comparison import bounds_of
    from scenarios.terminal.compiling import telling

    with telling(observer().remark), _progress("bounds", len(kinds), unit="bound") as progress:
        return bounds_of(experiment, kinds, progress.update)


def _changed(texts: Sequence[str]) -> dict[str, Any]:
    """Read `cluster.nodes.0.count=74`: values as a scenario's file would have them."""
    from kit import strict

    changes: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not (key.strip() and equals):
            raise InputError("--change", "", f"{text!r:.80}: must be KEY=VALUE, such as cluster.nodes.0.count=74")
        if key.strip() in ("nodes", "cluster.nodes", "cluster.nodes.count"):
            raise InputError("--change", key.strip(), "the first group's nodes are cluster.nodes.0.count")
        if key.strip().partition(".")[0] in ("policy", "policies"):
            raise InputError("--change", key.strip(), f"a cluster is changed here; {_COMPARE}")
        if value.strip().startswith("+"):
            problem = f"{value.strip()!r:.80} is taken for the new number, not for what is added"
            raise InputError("--change", key.strip(), f"{problem}: write the new number, without +")
        changes[key.strip()] = strict.mapping(f"value: {value}", "--change")["value"]
    return changes


def _timezone(name: str | None) -> str | None:
    """Raise `InputError` for one that is unknown on this machine."""
    if name is None:
        return None
    from zoneinfo import ZoneInfo

    try:
        ZoneInfo(name)
    except (LookupError, ValueError, OSError):
        problem = f"unknown {name!r:.80}; expected names such as UTC, Europe/Berlin, America/New_York"
        raise InputError("--timezone", "", problem) from None
    return name


def profile_images_s(name: Path, source: str, key: str) -> float:
    """Return images a second by a profile: its file, or a bundled one's name; raises `InputError` otherwise."""
    return images_s(read_profile(name, source, key))


def images_s(profile: Profile) -> float:
    """Return images a second of the whole network at full width, at the best batch size."""
    widest = max(profile.model.widths)
    curves = [
        curve
        for curve in profile.latency
        if curve.width == widest and curve.previous_width == max(profile.model.previous_widths(curve.segment, widest))
    ]
    common = set.intersection(*(set(curve.batches) for curve in curves))
    return max(
        batch / sum(dict(zip(curve.batches, curve.mean_s, strict=True))[batch] for curve in curves) for batch in common
    )
