"""What each command does: a few lines of the public Python each, and its result as text or JSON.

Heavy rooms (torch, matplotlib) are opened by the command that needs them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import time  # noqa: TID251 - how long tuning took
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from policies.errors import InputError
from scenarios.files.reading import ROUTER_SUFFIX, TRAINED_ROUTER, check_router, is_router_file, load_scenario
from scenarios.files.spec import Scenario, unique
from scenarios.runs.folder import (
    LOG_FILE,
    RunFolder,
    json_text,
    read_cores,
    read_log,
    write_json,
    write_run,
    write_text,
)
from scenarios.show.words import format_comparison, format_result, format_score, format_validation, number, table
from scenarios.world.materials import ACCURACY_FILE, read_accuracy

if TYPE_CHECKING:
    from hw.device import DeviceSpec
    from policies.replay import Divergence
    from scenarios.job.run import ScenarioRun
    from scenarios.metrics.comparison import Bounds, Comparison
    from scenarios.world.build import World


SHOWN = 400  # characters of an event or of a step's commands


class Output:
    """Where words go: results to standard output (unless that is kept for JSON), remarks to standard error."""

    def __init__(self, arguments: Namespace) -> None:
        self.quiet: bool = arguments.quiet
        self._json: str | None = arguments.json
        if self._json and self._json != "-" and (Path(self._json).is_dir() or not Path(self._json).parent.is_dir()):
            raise InputError(
                "--json", "", f"{self._json}: no file can be written there; name one in a folder that exists"
            )

    def remark(self, text: str) -> None:
        """Something about the work."""
        if not self.quiet:
            sys.stderr.write(text + "\n")

    def result(self, text: str, document: Any) -> int:
        """The result for people, and as a document where one was asked for; returns exit code 0."""
        if self._json == "-":
            sys.stdout.write(json_text(document))
            self.remark(text)
            return 0
        if self._json:
            write_json(Path(self._json), document)
        sys.stdout.write(text + "\n")
        return 0


# ------------------------------------------------------------------------------------------------------- the main job


def run(arguments: Namespace) -> int:
    """Everything, end to end."""
    from scenarios.job.run import ScenarioRun

    output = Output(arguments)
    scenario, folder = _opened(arguments)
    job = ScenarioRun(scenario, folder, say=output.remark, quiet=output.quiet)
    with _compiling(output, (*scenario.compare.routers, *scenario.validate_.routers)):
        outcome = job.carry_out()
    texts = [format_comparison(outcome.comparison)]
    if outcome.validation is not None:
        texts.append(format_validation(outcome.validation))
    document = {"comparison": outcome.comparison, "validation": outcome.validation, "report": str(outcome.report)}
    return output.result("\n\n".join([*texts, f"report: {outcome.report}"]), document)


def train(arguments: Namespace) -> int:
    """Train the PPO router."""
    output = Output(arguments)
    scenario, folder = _opened(arguments)
    if arguments.decisions is not None:
        if arguments.decisions < scenario.training.batch:
            problem = f"{arguments.decisions} is less than training.batch ({scenario.training.batch}): not one update"
            raise InputError("--decisions", "", problem)
        training = scenario.training.model_copy(update={"decisions": arguments.decisions})
        scenario = scenario.model_copy(update={"training": training})
    if arguments.seed is not None:
        scenario = scenario.model_copy(update={"seed": arguments.seed})
    job, world = _job(scenario, folder, output)
    _tell_overload(output, world)
    with _compiling(output, (TRAINED_ROUTER,), arguments.engine):
        score = job.make_router(world, arguments.engine)
    text = f"{format_score(score)}\nrouter: {job.trained}"
    return output.result(text, {"router": str(job.trained), "engine": arguments.engine, "score": score})


def tune(arguments: Namespace) -> int:
    """Tune a rule, or Tide, and write its file."""
    from scenarios.learn.tune import FloorError, failure_path, knobs_of, read_start, save_tuned, tune_world, tuned_path
    from scenarios.terminal.progress import Progress
    from scenarios.world.materials import default_folder

    output = Output(arguments)
    path = output_file("--out", tuned_path(arguments.out, arguments.router))
    scenario = load_scenario(arguments.scenario)
    world = _world(scenario, default_folder(scenario))
    start = None if arguments.start is None else read_start(arguments.start, world, arguments.router)
    knobs = knobs_of(world, arguments)
    began_s = time.monotonic()
    with (
        _compiling(output, (), "compiled"),
        Progress("tune", knobs.decisions, unit="decision", quiet=output.quiet) as bar,
    ):
        done = 0

        def tell(decisions: int, cost: float) -> None:
            nonlocal done
            bar.update(min(decisions, knobs.decisions) - done)
            done = min(decisions, knobs.decisions)

        try:
            found = tune_world(world, arguments.router, knobs, start=start, on_progress=tell)
        except FloorError as error:
            asked = f"scenarios/{scenario.name}.yaml --router {arguments.router} --floor {knobs.floor:g}"
            told = f"slimsched tune {asked} --decisions {knobs.decisions} --seed {knobs.seed}"
            write_text(failure_path(path), f"{error} ({told})\n")
            raise
    document = save_tuned(
        found,
        world,
        knobs,
        path,
        arguments.scenario,
        start=None if arguments.start is None else str(arguments.start),
        seconds=time.monotonic() - began_s,
    )
    text = (
        f"{found.kind}: {1000 * found.mean_s:.2f} ms (p99 {1000 * found.p99_s:.1f}) at {100 * found.accuracy:.3f} % "
        f"on runs of tuning, {found.decisions + found.level_decisions:,} decisions\nrouter: {path}"
    )
    return output.result(text, document)


def simulate(arguments: Namespace) -> int:
    """One simulated run; its record is kept where `--out` says."""
    from scenarios.runs.simulate import display_name, run_simulation, simulate_figures

    output = Output(arguments)
    check_router(arguments.router, "--router")
    scenario, folder = _opened(arguments)
    world = _world(scenario, folder)
    _tell_overload(output, world)
    seed = scenario.seed if arguments.seed is None else arguments.seed
    router = world.router(arguments.router, _trained(folder))
    name = display_name(arguments.router)
    with _compiling(output, (arguments.router,), arguments.engine):
        if arguments.out is None:
            result = simulate_figures(world, router, name, seed, engine=arguments.engine)
        else:
            result, record = run_simulation(world, router, name, seed, engine=arguments.engine)
            write_run(RunFolder(arguments.out), result, record)
    return output.result(format_result(result), result)


def compare(arguments: Namespace) -> int:
    """Routers x seeds in simulation."""
    from scenarios.runs.simulate import default_jobs, display_name
    from scenarios.show.comparison import format_all

    output = Output(arguments)
    picture = _picture_file(arguments)
    scenario, folder = _opened(arguments)
    scenario = _with_routers(scenario, "compare", arguments)
    _require_trained(scenario.compare.routers, folder)
    job, world = _job(scenario, folder, output)
    _tell_overload(output, world)
    given = scenario.compare
    runs = len(given.routers) * len(given.seeds)
    jobs = arguments.jobs or default_jobs(world, runs, given.seeds[0], arguments.engine)
    with _compiling(output, given.routers, arguments.engine):
        comparison = job.compare(
            world,
            arguments.engine,
            jobs=jobs,
            against=None if arguments.against is None else display_name(arguments.against),
            bounds=(lambda found: _bounds(world, found, output)) if arguments.bound else None,
        )
    if picture is not None:
        from scenarios.show.trade_offs import save_trade_offs

        save_trade_offs(comparison, picture)
    return output.result(format_all(comparison), comparison)


def _bounds(world: World, comparison: Comparison, output: Output) -> Bounds:
    """The fluid bound at each router's accuracy and between, as points (accuracy, least cost)."""
    from scenarios.metrics.comparison import bound_accuracies
    from scenarios.runs.bound import bound as find_bound
    from scenarios.terminal.progress import Progress

    accuracies = bound_accuracies(comparison)
    curves: dict[str, list[tuple[float, float]]] = {"latency_mean_s": [], "energy_dynamic_j": []}
    with Progress("bound", len(accuracies), unit="point", quiet=output.quiet) as progress:
        for accuracy in accuracies:
            found = find_bound(world, accuracy)
            curves["latency_mean_s"].append((accuracy, found.latency_s))
            if found.energy_per_image_j is not None:
                curves["energy_dynamic_j"].append((accuracy, found.energy_per_image_j))
            progress.update()
    return curves


def validate(arguments: Namespace) -> int:
    """Simulation against real executors."""
    output = Output(arguments)
    scenario, folder = _opened(arguments)
    scenario = _with_routers(scenario, "validate_", arguments)
    _require_trained(scenario.validate_.routers, folder)
    job, world = _job(scenario, folder, output)
    with _compiling(output, scenario.validate_.routers):
        validation = job.validate(world)
    return output.result(format_validation(validation), validation)


def capacity(arguments: Namespace) -> int:
    """The largest stable rate."""
    from scenarios.runs.capacity import capacity as find_capacity
    from scenarios.runs.simulate import display_name

    output = Output(arguments)
    check_router(arguments.router, "--router")
    scenario, folder = _opened(arguments)
    world = _world(scenario, folder)
    with _compiling(output, (arguments.router,), arguments.engine):
        found = find_capacity(
            world,
            lambda: world.router(arguments.router, _trained(folder)),
            router=display_name(arguments.router),
            seeds=_unique("--seed", tuple(arguments.seed or (scenario.seed,))),
            duration_s=arguments.duration,
            precision=arguments.precision,
            own_workload=arguments.workload == "own",
            on_progress=lambda rate, stable: output.remark(
                f"{rate:.1f} images/s: {'stable' if stable else 'not stable'}"
            ),
            engine=arguments.engine,
        )
    text = f"{found.router}: stable at {found.stable_img_s:.1f} images/s, not at {found.unstable_img_s:.1f}"
    seeds = f"seed{'s' if len(found.seeds) > 1 else ''} {', '.join(map(str, found.seeds))}"
    text += f" ({found.workload} arrivals, {arguments.duration:g} s, {seeds})"
    document = {"schema": "slimsched.capacity/1", "engine": arguments.engine, **dataclasses.asdict(found)}
    return output.result(text, document)


def bound(arguments: Namespace) -> int:
    """What the fluid model allows; with a load that moves also what an oracle could make of it."""
    from scenarios.runs.bound import FluidModel, oracle_of

    output = Output(arguments)
    world = _world(*_opened(arguments))
    accuracy = min(world.accuracy.prior.top1.values()) if arguments.accuracy is None else arguments.accuracy
    model = FluidModel(world)
    found = model.bound(accuracy, world.mean_rate_img_s)
    oracle = oracle_of(model, arguments.window)
    rate = f"at {number(found.rate_img_s, 1)} images/s" if found.rate_img_s else "at the trace's own rate"
    lines = [
        f"at a mean accuracy of at least {100 * found.accuracy:.2f} %, no router can",
        f"  serve more than {found.capacity_img_s:.1f} images/s",
        f"  have a mean latency below {found.latency_s * 1000:.2f} ms",
    ]
    if found.energy_per_image_j is not None and found.total_energy_per_image_j is not None:
        joules = f"{found.energy_per_image_j:.4f} J/image above idle, or {found.total_energy_per_image_j:.4f} with it,"
        lines.append(f"  spend less than {joules} {rate}")
    if oracle is not None:
        lines += [
            f"the load moves, to {oracle.peak_img_s:.0f} images/s in {oracle.window_s:g} s: a router that knew it,",
            f"and carried each window's images within it, would have {100 * oracle.accuracy:.2f} % (an estimate)",
        ]
    document = {
        "schema": "slimsched.bound/1",
        **dataclasses.asdict(found),
        "oracle": None if oracle is None else dataclasses.asdict(oracle),
    }
    return output.result("\n".join(lines), document)


# -------------------------------------------------------------------------------------------------- devices, profiles


def devices(arguments: Namespace) -> int:
    """What is here, and which telemetry works."""
    from hw.telemetry import available_devices

    output = Output(arguments)
    found = available_devices()
    parts = []
    for device in found:
        parts.append(f"{device.kind}:{device.index}  {device.name}, {device.vram_bytes / 1e9:.1f} GB")
        parts += [f"  {field:<17} {state}" for field, state in (*device.telemetry.items(), *device.facts.items())]
    documents = [dataclasses.asdict(device) for device in found]
    return output.result("\n".join(parts), {"schema": "slimsched.devices/1", "devices": documents})


def calibrate(arguments: Namespace) -> int:
    """Measure local devices; each gets a profile."""
    from calibrate import model_costs
    from hw.networks import ModelFile, Network
    from scenarios.executors.checking import SERVING_S, with_serving
    from scenarios.job.run import calibrate_device
    from scenarios.show.profile import spoilt

    output = Output(arguments)
    named = arguments.network
    network = Network(named, arguments.options, "--network", "") if named is not None else None
    file = ModelFile(arguments.model, network)
    chosen = [(asked, asked.replace(":", ""), device) for asked, device in chosen_devices(arguments.device)]
    model_costs(file)  # what is no model, or an --out that can't be written, shows before anything is measured
    written = [output_file("--out", writable_folder("--out", arguments.out) / f"{name}.yaml") for _, name, _ in chosen]
    measuring_s = max(arguments.budget - SERVING_S, 0.75 * arguments.budget)
    warnings = []
    for (asked, name, device), path in zip(chosen, written, strict=True):
        with _naming(asked):
            profile = calibrate_device(
                file,
                device,
                peer=device,
                budget_s=measuring_s,
                reserved_s=arguments.budget - measuring_s,
                batch_limit=arguments.batch_limit,
                log_path=arguments.out / f"{name}.jsonl",
                seed=arguments.seed,
                name=name,
                quiet=output.quiet,
                say=output.remark,
                allow_busy=arguments.allow_busy,
            )
        write_text(path, profile.to_yaml())
        output.remark(f"{name}: what serving costs on this host, about {SERVING_S:.0f} s, part of --budget")
        write_text(path, with_serving(profile, file, device, arguments.seed).to_yaml())
        if problem := spoilt(profile):
            warnings.append(f"{name}: {problem}")
    for warning in warnings:
        output.remark(f"warning: {warning}")
    lines = "\n".join(f"profile: {path}" for path in written)
    return output.result(lines, {"profiles": [str(path) for path in written], "warnings": warnings})


@contextlib.contextmanager
def _naming(device: str) -> Iterator[None]:
    """What is wrong with a device is told of the one that was asked for, by that name."""
    try:
        yield
    except InputError as error:
        if error.source != "calibrate":
            raise
        raise InputError(f"calibrate {device}", error.key, error.problem) from None


def chosen_devices(wanted: str | None) -> list[tuple[str, DeviceSpec]]:
    """Local devices by name: `cuda:0`, or `cpu:0` (`cpu` means all of that kind)."""
    from hw.device import DeviceSpec, local_devices

    found = local_devices()
    cpus = [device for device in found if device.kind == "cpu"] or [DeviceSpec()]
    named = {f"cuda:{device.index}": device for device in found if device.kind == "cuda"}
    named |= {f"cpu:{number}": device for number, device in enumerate(cpus)}
    if wanted is None:
        return [(name, device) for name, device in named.items() if device in found]
    chosen = [(name, device) for name, device in named.items() if wanted in (name, name.partition(":")[0])]
    if not chosen:
        raise InputError("--device", "", f"no device {wanted!r} here; allowed are {', '.join(named)}")
    return chosen


def profile_show(arguments: Namespace) -> int:
    """A profile in words and figures."""
    from scenarios.show.profile import profile_show as show

    return show(arguments)


def profile_synth(arguments: Namespace) -> int:
    """A profile from published figures, or all of them."""
    from scenarios.show.profile import profile_synth as synth

    return synth(arguments)


def profile_check(arguments: Namespace) -> int:
    """Whether a profile still holds; exit code 1 where it does not."""
    from scenarios.executors.checking import profile_check as check

    return check(arguments)


def profile_schema(arguments: Namespace) -> int:
    """The form of profiles, as JSON Schema."""
    from scenarios.show.profile import profile_schema as schema

    return schema(arguments)


# ---------------------------------------------------------------------------------------------------------- the network


def model_train(arguments: Namespace) -> int:
    """Train the scenario's network and evaluate it."""
    from scenarios.job.run import ScenarioRun

    output = Output(arguments)
    scenario, folder = _opened(arguments)
    scenario = _without_table(scenario)
    given = scenario.model
    if given.network is None or given.checkpoint is not None:
        found = "missing; it names the network to train" if given.network is None else "a checkpoint is named as well"
        raise InputError(str(arguments.scenario), "model.network", f"{found}; give network and no checkpoint")
    job = ScenarioRun(scenario, folder, say=output.remark, quiet=output.quiet)
    job.make_model()
    job.make_accuracy()
    path = job.model.path
    uniform = {w: v for w, v in read_accuracy(scenario, folder).prior.top1.items() if len(set(w)) == 1}
    rows = [[f"{widths[0]:g}", f"{100 * value:.2f}"] for widths, value in uniform.items()]
    text = f"{table(['uniform width', 'top-1 %'], rows)}\nmodel: {path}\naccuracy: {folder / ACCURACY_FILE}"
    document = [{"widths": list(widths), "top1": value} for widths, value in uniform.items()]
    return output.result(text, {"model": str(path), "accuracy": str(folder / ACCURACY_FILE), "uniform": document})


def _without_table(scenario: Scenario) -> Scenario:
    """The network is to be looked at itself, whatever table the scenario brings."""
    return scenario.model_copy(update={"model": scenario.model.model_copy(update={"accuracy": None})})


def model_evaluate(arguments: Namespace) -> int:
    """Every width tuple on every test image."""
    from scenarios.job.run import ScenarioRun

    output = Output(arguments)
    scenario, folder = _opened(arguments)
    scenario = _without_table(scenario)
    job = ScenarioRun(scenario, folder, say=output.remark, quiet=output.quiet)
    if not job.model.path.is_file():
        remedy = "name the file that you mean" if scenario.model.checkpoint else "`slimsched model train` makes it"
        raise InputError(str(arguments.scenario), "model", f"no {job.model.path} yet; {remedy}")
    job.make_accuracy()
    top1 = read_accuracy(scenario, folder).prior.top1
    rows = [[", ".join(f"{width:g}" for width in widths), f"{100 * value:.2f}"] for widths, value in top1.items()]
    document = [{"widths": list(widths), "top1": value} for widths, value in top1.items()]
    text = f"{table(['widths', 'top-1 %'], rows)}\naccuracy: {folder / ACCURACY_FILE}"
    return output.result(text, {"schema": "slimsched.top1/1", "tuples": document})


def model_check(arguments: Namespace) -> int:
    """The rules of segmented slimmable networks; exit code 1 where one is broken."""
    from hw.conformance import RULES, broken_rules, unchecked_rules
    from hw.networks import Network

    output = Output(arguments)
    network = Network(arguments.network, arguments.options, "NETWORK", "")
    broken = broken_rules(network)
    unchecked = unchecked_rules(broken)
    words = {**dict.fromkeys(RULES, "kept"), **dict.fromkeys(unchecked, "unchecked"), **dict.fromkeys(broken, "broken")}
    lines = [f"{words[name]:<9}  {rule}" for name, rule in RULES.items()]
    lines += [f"{name}: {problem}" for name, problem in broken.items()]
    output.result(
        "\n".join(lines),
        {"schema": "slimsched.conformance/1", "network": network.label, "rules": words, "broken": broken},
    )
    return 1 if broken else 0


def model_bench(arguments: Namespace) -> int:
    """Every segment and the whole network at every uniform width, on one device."""
    from calibrate.slimming import BATCHES, measure_slimming
    from hw.conformance import require_conformance
    from hw.networks import Network
    from scenarios.show.slimming import format_slimming
    from scenarios.terminal.progress import Progress

    output = Output(arguments)
    network = Network(arguments.network, arguments.options, "NETWORK", "")
    batches = _unique("--batch", tuple(arguments.batch or BATCHES))
    name, device = chosen_devices(arguments.device)[0]
    if network.is_own:
        require_conformance(network)
    with Progress(f"time {network.label} on {name}", unit="round", quiet=output.quiet) as progress:
        found = measure_slimming(
            network.build(),
            network.label,
            device,
            batches=batches,
            compiled=arguments.compile,
            on_progress=progress.set,
        )
    return output.result(format_slimming(found), found.document())


# ------------------------------------------------------------------------------------------------------- finished runs


def replay(arguments: Namespace) -> int:
    """Every event log of a run folder through fresh cores; exit code 1 where they part."""
    from policies.replay import replay as replay_log

    output = Output(arguments)
    folder: Path = arguments.run
    logs = sorted(folder.glob(f"*/*/{LOG_FILE}"))
    if not logs:
        raise InputError(str(folder), "", f"holds no event log ({LOG_FILE}); `slimsched validate` keeps them")
    router, knobs = read_cores(RunFolder(folder))
    answers = {}
    for log in logs:
        name = str(log.parent.relative_to(folder))
        divergence = replay_log(read_log(log), router, knobs)
        answers[name] = None if divergence is None else _divergence_text(divergence)
    text = "\n".join(f"{name}: {answer or 'identical commands'}" for name, answer in answers.items())
    output.result(text, {"schema": "slimsched.replay/1", "runs": answers})
    return 1 if any(answers.values()) else 0


def _divergence_text(found: Divergence) -> str:
    """Where the cores part, and what each said there, each part on a line."""
    step = found.logged
    return "\n".join(
        [
            f"step {found.step} at {step.now_ns / 1e9:.6f} s, {step.core}, differs",
            f"  event     {_shortened(step.event)}",
            f"  logged    {_shortened(list(step.commands))}",
            f"  replayed  {_shortened(list(found.replayed))}",
        ]
    )


def _shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}... ({len(text)} characters)"


def report(arguments: Namespace) -> int:
    """The page again."""
    from scenarios.show.page import build_report, save_picture

    path = build_report(arguments.run)
    if (picture := _picture_file(arguments)) is not None:
        save_picture(arguments.run, picture)
    return Output(arguments).result(f"report: {path}", {"report": str(path)})


# -------------------------------------------------------------------------------------------------------------- shared


def _opened(arguments: Namespace) -> tuple[Scenario, Path]:
    """The scenario, and its run folder."""
    from scenarios.world.materials import default_folder

    scenario = load_scenario(arguments.scenario)
    folder: Path = arguments.out or default_folder(scenario)
    if folder.exists() and not folder.is_dir():
        raise InputError("--out", "", f"{folder}: this is a file; name a run folder")
    return scenario, folder


def _world(scenario: Scenario, folder: Path) -> World:
    from scenarios.world.materials import make_world

    return make_world(scenario, folder)


def _job(scenario: Scenario, folder: Path, output: Output) -> tuple[ScenarioRun, World]:
    """The run whose stages a command does singly, and its world."""
    from scenarios.job.run import ScenarioRun

    world = _world(scenario, folder)
    job = ScenarioRun(scenario, folder, say=output.remark, quiet=output.quiet)
    job.describe()
    return job, world


def _tell_overload(output: Output, world: World) -> None:
    """Warn of a rate beyond any router's capacity; the work goes on, as overload may be what is looked at."""
    from scenarios.runs.bound import overload_of

    if not output.quiet and (problem := overload_of(world)) is not None:
        output.remark(f"warning: {problem}")


def _compiling(output: Output, routers: Sequence[str], engine: str = "simpy") -> AbstractContextManager[None]:
    """Within it, what must be compiled is told; numba is opened only where the engine or a trained router needs it."""
    is_trained = any(name == TRAINED_ROUTER or name.endswith(ROUTER_SUFFIX) for name in routers)
    if engine == "simpy" and not is_trained:
        return contextlib.nullcontext()
    from scenarios.terminal.compiling import telling

    return telling(output.remark)


def _with_routers(scenario: Scenario, section: str, arguments: Namespace) -> Scenario:
    """The scenario with the routers and seeds that the flags name instead of its own."""
    update: dict[str, Any] = {}
    if arguments.router:
        for name in arguments.router:
            check_router(name, "--router")
        named = tuple(str(Path(n).absolute()) if is_router_file(n) else n for n in arguments.router)
        update["routers"] = _unique("--router", named)
    if arguments.seed:
        update["seeds"] = _unique("--seed", tuple(arguments.seed))
    return scenario.model_copy(update={section: getattr(scenario, section).model_copy(update=update)})


def _unique(flag: str, values: tuple[Any, ...]) -> tuple[Any, ...]:
    try:
        return unique(values)
    except ValueError as error:
        raise InputError(flag, "", str(error)) from None


def output_file(flag: str, path: Path) -> Path:
    """A file to write, named by a flag; raises `InputError` for a folder."""
    if path.is_dir():
        raise InputError(flag, "", f"{path}: this is a folder; name a file")
    return path


def _picture_file(arguments: Namespace) -> Path | None:
    """Where a picture is to be written, if one is asked for; raises `InputError` for a form that is not drawn."""
    path: Path | None = arguments.picture
    if path is not None and path.suffix not in (".png", ".svg"):
        raise InputError("--picture", "", f"{path}: name a .png or .svg file")
    return None if path is None else output_file("--picture", path)


def writable_folder(flag: str, path: Path) -> Path:
    """A folder to write into, made where there is none; raises `InputError` where that can't be."""
    import tempfile

    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise InputError(flag, "", f"{path}: can't be written to ({error.strerror}); name another folder") from None
    return path


def _trained(folder: Path) -> Path:
    from scenarios.world.materials import ROUTER_FILE

    return folder / ROUTER_FILE


def _require_trained(routers: Sequence[str], folder: Path) -> None:
    if TRAINED_ROUTER in routers and not _trained(folder).is_file():
        raise InputError(
            str(folder), "", f"no router is trained yet for {TRAINED_ROUTER!r}; run `slimsched train` first"
        )
