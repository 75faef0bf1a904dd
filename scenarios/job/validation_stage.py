"""The stage `validate`: every run of the plan on real executors and in simulation, kept, and set side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from operator import itemgetter
from pathlib import Path
from typing import Any

from hw.host_resources import core_count
from hw.networks.datasets import Dataset
from kit.documents import Memo, write_json
from kit.errors import InputError
from scenarios.executors.device_choice import as_calibrated, device_of, section_of, share_warning
from scenarios.executors.executor_runs import RunObserver, validate_runs
from scenarios.executors.preflight import other_programs, require_devices, require_ready, stamp_warnings
from scenarios.executors.validation_plan import FinishedRun, PlannedPair, ValidationPlan
from scenarios.experiment.resolved_scenario import Experiment
from scenarios.experiment.scenario_routers import routers_tuned_elsewhere
from scenarios.files.router_files import display_name, require_distinct_names
from scenarios.job.job_stages import Run
from scenarios.job.network_stages import load_measured
from scenarios.metrics.failure_signs import completed_nothing
from scenarios.metrics.fidelity import (
    FarApart,
    Place,
    Predictions,
    ValidationDocument,
    ValidationRun,
    far_runs,
    is_hopeless,
    validate_results,
    was_stopped,
)
from scenarios.metrics.router_comparison import P99
from scenarios.metrics.statistics import GOAL_PCT, Ranges, half_width_pct, images_needed
from scenarios.runs.folder import RunFolder
from scenarios.runs.operator_control import accept_operator_requests
from scenarios.runs.run_store import CORES_FILE, load_point, write_cores, write_run
from scenarios.runs.simulated_runs import PredictedRun, RunOptions, able_to_run, predict
from scenarios.show.validation_table import first_far_text
from scenarios.terminal.progress import Progress

STAGE, PREDICT = "validate", "predict"


def validate(run: Run, experiment: Experiment) -> ValidationDocument:
    """Run the same arrivals in simulation and on real executors; resumes after the last finished run.

    Raises:
        InputError: the scenario has a server without a device, or no network that real ones need; or something of it
            does not fit this machine or what was made for it.
    """
    require_executors(run)
    section = run.scenario.validate_
    require_distinct_names(section.routers)
    plan = ValidationPlan.of(experiment, [display_name(router) for router in section.routers], section)
    require_devices(run.scenario)
    require_ready(experiment, run.model_to_serve, section.routers, run.folder.path)
    warn_of_another_stack(run, experiment)
    settings = section.model_dump(mode="json", exclude={"routers", "go_on"})  # resuming keeps what is finished
    shape = (settings, run.scenario.duration_s, run.scenario.warmup_s, run.scenario.training.deterministic)
    slo = run.scenario.slo.model_dump(mode="json")
    decision_parts = experiment.decision_parts([display_name(router) for router in section.routers])
    parts = (
        *run.experiment_parts(),
        *run.router_parts(section.routers),
        shape,
        *run.served_parts,
        *decision_parts,
        slo,
    )
    fingerprint = run.fingerprint(*parts)
    target = run.folder / "validation.json"

    def work() -> Sequence[Path]:
        warn_of_other_programs(run)
        for warning in routers_tuned_elsewhere(section.routers, experiment.device_names, experiment.cluster):
            run.warn(warning)
        for doubt in experiment.trace_doubts(plan.duration_s):
            run.warn(f"warning: {doubt}")
        validation = validate_experiment(run, experiment, plan, fingerprint)
        write_json(target, validation)
        if any(completed_nothing(pair["executors"]) for pair in validation["pairs"]) or was_stopped(validation):
            raise _UnfinishedError
        rows = run.folder.memo(STAGE, fingerprint).rows
        records = {run.folder / name for row in rows for name in row["outputs"]}
        return [target, run.folder / CORES_FILE, *sorted(records)]

    with suppress(_UnfinishedError):  # the results show it; the next try resumes after all the others
        run.stage(STAGE, fingerprint, work)
    document: ValidationDocument = run.folder.read_json(target.name)
    return document


def require_executors(run: Run, key: str = "validate") -> None:
    """Raise `InputError` if a server has no device, or real devices lack a network."""
    if not run.can_validate:
        simulated = [server.name for server in run.scenario.cluster.owners if server.device is None]
        problem = "real executors need a network (model.network or model.checkpoint)"
        if simulated:
            problem = f"executors need a device for each server; give one to {', '.join(map(repr, simulated))}"
        problem += "; emulated ones (device: {emulated: PROFILE}) need no network"
        raise InputError(run.scenario.name, key, problem)


class _UnfinishedError(Exception):
    """A executor run completed nothing, or the first ones were hopeless: what is missing is made when the stage is."""


def warn_of_another_stack(run: Run, experiment: Experiment) -> None:
    """Warn of a profile measured elsewhere, before executors run: it may be good enough."""
    servers = run.scenario.cluster.named_servers
    for server, profile in zip(servers, experiment.profiles, strict=True):
        if server.shares_device_with is None and server.emulated is None:
            device = as_calibrated(device_of(server, servers), section_of(server, servers), profile)
            for text in (*stamp_warnings(profile, device), *filter(None, [share_warning(server.name, device)])):
                run.warn(text)


def warn_of_other_programs(run: Run) -> None:
    """Warn of other programs here: they are in the executors' latencies and not in the simulator's."""
    servers = run.scenario.cluster.named_servers
    real = [server for server in servers if server.emulated is None]
    devices = {(device := device_of(server, servers)).physical: device for server in real}
    for device in devices.values():
        for text in other_programs(device):
            run.warn(text)


def validate_experiment(run: Run, experiment: Experiment, plan: ValidationPlan, fingerprint: str) -> ValidationDocument:
    """Make every run of the plan, keep its records in the folder, and set the results side by side.

    What an earlier try with this fingerprint has kept, and is whole, is not made again. If the finished runs show that
    the rest is hopeless it is not made, unless `validate.go_on` is set.
    """
    folder, model = run.folder, run.model_to_serve
    memo, predicted = folder.memo(STAGE, fingerprint), folder.memo(PREDICT, fingerprint)
    data = None if model is None else _images_of(experiment)
    runs = whole_runs(folder, memo.rows, plan.section.repeats)
    finished = tuple(runs)
    if not runs:
        folder.remove_outputs(STAGE)  # nothing of another plan stays
    write_cores(folder, experiment.cluster.router, [server.params for server in experiment.cluster.servers])
    if not predicted.rows:
        folder.remove_outputs(PREDICT)
    predictions = {} if plan.section.loads else predictions_of(run, experiment, plan, plan.pairs(), predicted)
    if advice := length_advice(plan, predictions):
        run.say(f"{STAGE}: {advice}")
    with Progress("executors", plan.hardware_runs, unit="run", quiet=run.quiet) as progress:
        progress.set(len(runs))

        def tell(_: Any) -> None:
            progress.update(0)  # a run takes longer than its arrivals do: only whole runs show what is left

        observer = RunObserver(
            tell,
            lambda text: progress.tell(f"validate: {text}"),
            lambda servers: accept_operator_requests(folder, servers),
        )
        with closing(
            validate_runs(experiment, model, data, plan, made_in=folder.path, finished=finished, observer=observer)
        ) as campaign:
            _add_runs(runs, campaign, plan, folder, memo, progress)
    if plan.section.loads:  # shares of the executors' capacity, which is known only now
        pairs = [run for run in runs if run["kind"] == "pair"]
        keys = (PlannedPair(run["router"], run["load"], run["seed"], run["rate_img_s"]) for run in pairs)
        predictions = predictions_of(run, experiment, plan, [*dict.fromkeys(keys)], predicted)
    validation = validate_results(plan.in_order(runs), experiment.power_provenance, predictions)
    if apart := far_runs(plan.in_order(runs)):
        path = str(memo.path.relative_to(folder.path))
        validation["far_apart"] = FarApart(made=len(runs), planned=plan.hardware_runs, runs=apart, kept=path)
    return validation


def _images_of(experiment: Experiment) -> Dataset:
    if experiment.accuracy.evaluation is None:
        raise InputError(experiment.scenario.name, "model.accuracy", "real executors need the network's own evaluation")
    return load_measured(experiment.scenario, experiment.accuracy.evaluation)


def _add_runs(
    runs: list[ValidationRun],
    campaign: Iterator[FinishedRun],
    plan: ValidationPlan,
    folder: RunFolder,
    memo: Memo,
    progress: Progress,
) -> None:
    """Add the campaign's runs, and keep each, until they are all there or show that the rest is hopeless."""
    while (plan.section.go_on or not is_hopeless(runs)) and (latest := next(campaign, None)) is not None:
        outputs = folder.contents(keep_runs(folder, latest, plan.section.repeats))
        runs.append(latest.run)
        progress.set(len(runs))
        if not completed_nothing(latest.run["executors"]):
            memo.add({"run": latest.run, "outputs": outputs})
        if len(far_runs(runs)) == 1 and len(runs) < plan.hardware_runs and not plan.section.go_on:
            progress.tell(f"validate: {first_far_text(far_runs(runs)[0])}")


def predictions_of(
    run: Run, experiment: Experiment, plan: ValidationPlan, pairs: Sequence[PlannedPair], memo: Memo
) -> Predictions:
    """Predict what executors will show: ranges for each router, load and seed; those in `memo` are not made again."""
    routers = run.scenario.validate_.routers
    makers = {display_name(router): experiment.router_maker(router, run.folder.path) for router in routers}
    predictions: dict[Place, Ranges] = {tuple(row["place"]): row["ranges"] for row in memo.rows}
    missing = [pair for pair in pairs if pair[:3] not in predictions]
    if not missing:
        return predictions
    runs = [PredictedRun(makers[pair.router], pair.seed, plan.scale_of(pair.rate_img_s)) for pair in missing]
    engine = able_to_run(experiment, "compiled", lambda: experiment.run_spec(plan.section.seeds[0]), run.say)
    options: RunOptions = {"duration_s": plan.duration_s, "warmup_s": plan.warmup_s, "engine": engine}
    with Progress("predict", len(runs), unit="run", quiet=run.quiet) as progress:
        for index, ranges in predict(experiment, runs, options, core_count()):
            key: Place = missing[index][:3]
            predictions[key] = ranges
            memo.add({"place": key, "ranges": ranges})
            progress.update()
    return predictions


def length_advice(plan: ValidationPlan, predictions: Predictions) -> str:
    """Return how long runs must be for a p99 known to a tenth; empty if they are, or if it is unknown."""
    p99s = [(router, p99) for (router, _, _), ranges in predictions.items() if (p99 := ranges.get(P99.stem))]
    widths = [(half_width_pct(p99) or 0.0, router, p99) for router, p99 in p99s]
    if plan.base_img_s is None or not widths or (widest := max(widths, key=itemgetter(0)))[0] <= GOAL_PCT:
        return ""
    width_pct, router, p99 = widest
    images = round(plan.base_img_s * (plan.duration_s - plan.warmup_s))
    needed = images_needed(p99, images) or images
    seconds = plan.warmup_s + needed / plan.base_img_s
    return (
        f"in runs of {images:,} images chance moves the p99 of {router} by +-{width_pct:.0f} %; for +-{GOAL_PCT:.0f} % "
        f"about {needed:,} images are needed (validate.duration_s: {seconds:.0f})"
    )


def keep_runs(folder: RunFolder, finished: FinishedRun, repeats: int) -> list[Path]:
    """Write the records of a executor run and, if it is new, of its paired simulation; returns the files."""
    point, repeat = _point_and_repeat(finished.run, repeats)
    files = write_run(folder, finished.run["executors"], finished.executors, point=point, repeat=repeat)
    if finished.simulated is not None:
        files += write_run(folder, finished.run["simulated"], finished.simulated, point=point)
    return files


def _point_and_repeat(run: ValidationRun, repeats: int) -> tuple[str, int | None]:
    """Return what distinguishes a run's place from those of others."""
    point = load_point(run["load"]) if run["kind"] == "pair" else run["kind"]
    return point, run["repeat"] if repeats > 1 and run["kind"] != "saturated" else None


def whole_runs(folder: RunFolder, rows: Sequence[Mapping[str, Any]], repeats: int) -> list[ValidationRun]:
    """Return the runs of an earlier try whose files are as they were written; the rest are made again.

    A saturated run sets the rates of others, so that without it all are made again.
    """
    latest = {(row["run"]["router"], row["run"]["seed"], *_point_and_repeat(row["run"], repeats)): row for row in rows}
    runs: list[ValidationRun] = [row["run"] for row in latest.values()]
    gone = [row["run"] for row in latest.values() if not folder.is_whole(row["outputs"])]
    if any(run["kind"] == "saturated" for run in gone):
        gone = runs
    if gone:
        problem = (
            f"{len(gone)} of {len(runs)} runs on executors are made again: no real run repeats another to the digit"
        )
        folder.say(f"{STAGE}: {problem}")
    return [run for run in runs if run not in gone]
