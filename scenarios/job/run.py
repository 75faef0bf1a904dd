"""The main job, end to end: model, calibration, router, comparison, validation, report; each stage resumes.

A stage is skipped when its outputs are there and what it was made from is unchanged, so an interrupted run goes on from
the last finished stage (and, inside calibration, training and comparison, from the last finished piece).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hw.accuracy import SCHEMA as ACCURACY_SCHEMA
from hw.accuracy import PaperTable, load_accuracy
from hw.conformance import require_conformance
from hw.datasets import dataset_label, load_dataset
from hw.device import DeviceSpec
from hw.networks import ModelFile
from hw.telemetry import available_devices
from policies.errors import InputError, nearest
from scenarios.executors.calibrate import calibrate_device
from scenarios.executors.campaign import Plan
from scenarios.executors.devices import device_of
from scenarios.executors.preflight import require_caps, require_devices, require_possible, require_ready, stamp_warnings
from scenarios.executors.serving import measure_serving, with_overheads
from scenarios.files.documents import inputs_hash, read_json, write_json, write_text
from scenarios.files.named_files import named_files
from scenarios.files.reading import check_faults, read_profile, relative_paths
from scenarios.files.router_names import code_of, display_name, is_router_file, needs_training, require_distinct_names
from scenarios.files.shipped import profile_file
from scenarios.files.spec import Scenario, ServerSection
from scenarios.job.network import blamed_on, evaluate_model, own_code, train_model, training_knobs
from scenarios.job.router import train_router
from scenarios.job.validation import load_measured, validate_world
from scenarios.learn.train import require_compiled, score_router
from scenarios.metrics.comparison import Bounds, Comparison, compare_results
from scenarios.metrics.fidelity import Validation
from scenarios.metrics.result import Result, Score, Simulator
from scenarios.runs.folder import RunFolder, environment
from scenarios.runs.records import CORES_FILE, write_cores, write_run
from scenarios.runs.simulate import run_simulation, simulate_all
from scenarios.show.page import build_report
from scenarios.show.words import format_score
from scenarios.terminal.output import Say
from scenarios.terminal.progress import Progress
from scenarios.world.materials import (
    ACCURACY_FILE,
    ROUTER_FILE,
    SCENARIO_FILE,
    calibrated_path,
    make_world,
    model_file,
    named,
    network_of,
    profile_path,
)
from scenarios.world.routers import require_routers
from scenarios.world.world import World
from sim.compiled import UnsupportedScenario

RESULTS = "results.json"
KEPT_IMAGES = 200_000  # of a run whose record the report shows: beyond, it is gigabytes
_ENGINE_WORDS: dict[Simulator, str] = {
    "compiled": "the compiled engine (`slimsched train --engine simpy` trains on the reference)",
    "simpy": "the reference, SimPy and torch",
}


@dataclass(frozen=True)
class Outcome:
    """What a run ends with: the tables' documents, and where the report is."""

    comparison: Comparison
    validation: Validation | None
    report: Path


class ScenarioRun:
    """One scenario in one run folder; `carry_out` does the stages in their order.

    Args:
        say: takes lines for the user (stages as they begin; tables at the end are the caller's).
        quiet: no progress bars.
    """

    def __init__(self, scenario: Scenario, path: Path, *, say: Say, quiet: bool = False) -> None:
        self.scenario = named(scenario)
        check_faults(self.scenario, scenario.name)  # now that `auto` has names
        self.folder = RunFolder(path)
        self._say = say
        self._quiet = quiet
        self._is_warned = False

    def carry_out(self) -> Outcome:
        """Everything; raises `InputError` or `WorkError`, and leaves what is finished for the next time."""
        self.require_possible()
        self.describe()
        if self.scenario.model.is_runnable:
            self.require_accuracy()
            self.make_model()
            self.make_accuracy()
        self.make_profiles()
        world = make_world(self.scenario, self.folder.path)
        require_routers(self.scenario, world.cluster.router.segments, world.cluster.router.widths)
        if self._can_validate():
            require_ready(world, self.model, self.scenario.validate_.routers, None)
            self.warn_of_another_stack(world)
            self.measure_serving()
            world = make_world(self.scenario, self.folder.path)
        if self._needs_training():
            self.make_router(world, None)
        comparison = self.compare(world)
        validation = self.validate(world) if self._can_validate() else None
        report = build_report(self.folder.path)
        return Outcome(comparison, validation, report)

    def require_possible(self) -> None:
        """What can be known now to be wrong is said now, and not after hours; it needs no profile.

        Raises:
            InputError: something does not fit this machine, or together.
        """
        network = network_of(self.scenario)
        if self.scenario.model.is_runnable:
            require_devices(self.scenario)
            if self._has_router_files() or self._has_caps():
                with own_code(network):
                    given = self.scenario.model.checkpoint
                    model = network.build() if network and given is None else self.model.load()[0]
                require_routers(self.scenario, model.spec.segments, model.spec.widths)
                require_caps(self.scenario, model)
        if self._can_validate():
            require_possible(self.scenario)

    def describe(self) -> None:
        """The scenario as run (its files named from the run folder) and what it runs on."""
        write_text(self.folder / SCENARIO_FILE, relative_paths(self.scenario, self.folder.path).to_yaml())
        devices = [vars_of(device) for device in available_devices()]
        write_json(self.folder / "environment.json", environment(devices, {"scenario": self.scenario.seed}))

    # ----------------------------------------------------------------------------------------------------- the model

    @property
    def model(self) -> ModelFile:
        """Where the network is, and which it is."""
        return model_file(self.scenario, self.folder.path)

    def require_accuracy(self) -> None:
        """An accuracy table that the scenario brings must be of the network that it runs; before anything is measured.

        Raises:
            InputError: it is not, or the images that it was measured on can't be opened.
        """
        given = self.scenario.model
        if given.accuracy is None:
            return
        table, key = load_accuracy(Path(given.accuracy)), "model.accuracy"
        if isinstance(table, PaperTable):
            problem = "is no measurement of the network that this scenario runs; leave one of the two out"
            raise InputError(self.scenario.name, key, f"{given.accuracy} {problem}")
        if given.checkpoint is None:
            problem = f"{given.accuracy} can't be of a network that is yet to be trained; leave it out"
            raise InputError(self.scenario.name, key, problem)
        _, metadata = self.model.load()
        if table.hash != metadata["hash"]:
            problem = f"{given.accuracy} is of the network {table.hash}, the checkpoint is {metadata['hash']}"
            raise InputError(self.scenario.name, key, f"{problem}; leave it out, or name the one that belongs to it")
        load_measured(self.scenario, table)  # a missing folder shows now, not after the calibration

    def make_model(self) -> None:
        """Train the network, unless the scenario brings one."""
        given, network = self.scenario.model, network_of(self.scenario)
        if given.checkpoint is not None or network is None:
            self.model.load()  # refuses what is no model, before anything else runs
            return
        if network.is_own:
            require_conformance(network)  # a broken rule shows now, not after hours
        knobs = training_knobs(self.scenario)
        fingerprint = inputs_hash(network.label, network.code_hash(), self._dataset_label(), knobs.of_the_result())

        def work() -> Sequence[Path]:
            with blamed_on(self.scenario):
                return train_model(self.scenario, self.folder.path, fingerprint, quiet=self._quiet)

        self.folder.run_stage("model", fingerprint, work, self._say)

    def _code_hash(self) -> str:
        network = network_of(self.scenario)
        return network.code_hash() if network is not None else ""

    def _dataset_label(self) -> str:
        with blamed_on(self.scenario):
            return dataset_label(self.scenario.model.dataset)

    def make_accuracy(self) -> None:
        """Every width tuple on every test image."""

        def work() -> Sequence[Path]:
            given = self.scenario.model
            device = given.training.device
            with blamed_on(self.scenario):
                return [evaluate_model(self.model, given.dataset, self.folder.path, device=device, quiet=self._quiet)]

        network = network_of(self.scenario)
        if network is not None and network.is_own:
            require_conformance(network)
        fingerprint = inputs_hash(ACCURACY_SCHEMA, self._dataset_label(), self.model.path, self._code_hash())
        if self.scenario.model.accuracy is None:
            self.folder.run_stage("accuracy", fingerprint, work, self._say)

    # ------------------------------------------------------------------------------------------------- calibration

    def make_profiles(self) -> None:
        """Calibrate every device whose server names no profile."""
        servers = self.scenario.cluster.named_servers
        for server in servers:
            if server.shares_device_with is not None:
                continue
            target = profile_path(self.folder.path, server.name)
            if server.profile is not None:
                given = profile_file(server.profile)
                write_text(target, given.read_text(encoding="utf-8"))  # the folder tells the whole run
                continue
            self._calibrate(server, target)

    def _calibrate(self, server: ServerSection, target: Path) -> None:
        scenario = self.scenario
        device = device_of(server, scenario.cluster.named_servers)
        peer = self._peer_of(server)
        limit = max(
            scenario.cluster.greedy_of(s).batch_limit
            for s in scenario.cluster.named_servers
            if server.name in (s.name, s.shares_device_with)
        )
        budget_s = scenario.calibration.budget
        fingerprint = inputs_hash(repr(device), repr(peer), limit, budget_s, self.model.path, self._code_hash())

        def work() -> Sequence[Path]:
            log = self.folder / "calibration" / f"{server.name}-{fingerprint[:12]}.jsonl"
            profile = calibrate_device(
                self.model,
                device,
                peer=peer,
                budget_s=budget_s,
                batch_limit=limit,
                log_path=log,
                seed=scenario.seed,
                name=server.name,
                quiet=self._quiet,
                say=self._say,
                budget_key=(scenario.name, "calibration.budget"),
                allow_busy=scenario.calibration.allow_busy,
            )
            write_text(target, profile.to_yaml())
            write_text(calibrated_path(self.folder.path, server.name), profile.to_yaml())
            return [target, calibrated_path(self.folder.path, server.name)]

        self.folder.run_stage(f"calibrate-{server.name}", fingerprint, work, self._say)

    def _peer_of(self, server: ServerSection) -> DeviceSpec | None:
        """Another real server to measure the link to, on a machine that has one."""
        servers = self.scenario.cluster.named_servers
        others = [s for s in servers if s.name != server.name and s.device is not None]
        return device_of(others[0], servers) if others else device_of(server, servers)

    def measure_serving(self) -> None:
        """What serving costs on this host, into the profiles that were made here (the calibrated ones are kept)."""
        servers = [s for s in self.scenario.cluster.named_servers if s.shares_device_with is None]
        if not self._can_validate() or any(server.profile is not None for server in servers):
            return
        paths = [profile_path(self.folder.path, server.name) for server in servers]
        sources = [calibrated_path(self.folder.path, server.name) for server in servers]

        def work() -> Sequence[Path]:
            for source, path in zip(sources, paths, strict=True):
                write_text(path, source.read_text(encoding="utf-8"))
            world = make_world(self.scenario, self.folder.path)
            with blamed_on(self.scenario):
                images = load_dataset(self.scenario.model.dataset)
            overheads = measure_serving(world, self.model, images, self.scenario.seed)
            names = [server.name for server in self.scenario.cluster.named_servers]
            for server, path in zip(servers, paths, strict=True):
                profile = with_overheads(read_profile(path), overheads, names.index(server.name))
                write_text(path, profile.to_yaml())
            return paths

        self.folder.run_stage("serving", inputs_hash(self.model.path, *sources, *self._rate_parts()), work, self._say)

    def _rate_parts(self) -> list[Any]:
        dumped = self.scenario.model_dump(mode="json")
        return [dumped["workload"], dumped["router"], dumped["cluster"]]

    # ------------------------------------------------------------------------------------------------------- routers

    def _needs_training(self) -> bool:
        validated = self.scenario.validate_.routers if self._can_validate() else ()
        return needs_training((*self.scenario.compare.routers, *validated))

    def _routers(self) -> tuple[str, ...]:
        return (*self.scenario.compare.routers, *self.scenario.validate_.routers)

    def _has_router_files(self) -> bool:
        return any(is_router_file(name) for name in self._routers())

    def _has_caps(self) -> bool:
        cluster = self.scenario.cluster
        return any(cluster.greedy_of(server).vram_cap_gb is not None for server in cluster.named_servers)

    @property
    def trained(self) -> Path:
        """The router that this run trains."""
        return self.folder / ROUTER_FILE

    def _world_hash(self, *more: Any) -> str:
        """Of everything that a simulation depends on."""
        folder = self.folder.path
        profiles = sorted((folder / "profiles").glob("*.yaml"))
        given = self.scenario.model.accuracy
        accuracy = [Path(given)] if given else [folder / ACCURACY_FILE]
        named = [file.path for file in named_files(self.scenario) if not file.key.startswith("model.")]
        code = [found for name in self._routers() if (found := code_of(name, self.scenario.name))]
        given_parts = ("cluster", "router", "workload", "faults", "supervision", "deadline_s", "shed", "reward")
        parts = (*given_parts, "seed", "jitter", "end")
        dumped = {part: self.scenario.model_dump(mode="json")[part] for part in parts}
        return inputs_hash(dumped, *(p for p in (*profiles, *accuracy, *named) if p.is_file()), *code, *more)

    def make_router(self, world: World, engine: Simulator | None) -> Score:
        """Train PPO in simulation, and score it on the reference.

        Args:
            engine: None takes a router that is there already, or trains on the compiled engine; where that can't, on
                the reference, and says so.

        Raises:
            UnsupportedScenario: the engine was asked for, and can't.
        """
        seed, target = self.scenario.seed, self.folder / "score.json"
        if engine == "compiled":
            require_compiled(world)
        if engine is None and self.folder.stage("train", self._training_hash("simpy")).is_done:
            chosen: Simulator = "simpy"
        else:
            chosen = engine or self._able_engine(world)
        fingerprint = self._training_hash(chosen)

        def work() -> Sequence[Path]:
            self._say(f"train: on {_ENGINE_WORDS[chosen]}")
            folder = self.folder / "training" / fingerprint[:12]
            router, scalars = train_router(world, folder, seed=seed, quiet=self._quiet, engine=chosen)
            score = score_router(world, router, seed, chosen)
            router.save(self.trained)
            write_json(self.folder / "training.json", scalars)
            write_json(target, score)
            if engine is None:  # who asked for one tells the score as the result
                self._say(f"train: {format_score(score)}")
            return [self.trained, self.folder / "training.json", target]

        self.folder.run_stage("train", fingerprint, work, self._say)
        document: Score = read_json(target)
        return document

    def _training_hash(self, engine: Simulator) -> str:
        return self._world_hash(self.scenario.training.model_dump(mode="json"), engine)

    def _able_engine(self, world: World) -> Simulator:
        try:
            require_compiled(world)
        except UnsupportedScenario as error:
            self._say(f"train: the compiled engine can't do {error.feature}")
            return "simpy"
        return "compiled"

    # ------------------------------------------------------------------------------------------------ both tables

    def compare(
        self,
        world: World,
        engine: Simulator = "simpy",
        *,
        jobs: int = 1,
        against: str | None = None,
        bounds: Callable[[Comparison], Bounds] | None = None,
    ) -> Comparison:
        """Every router with every seed, in simulation.

        Args:
            jobs: processes beside each other.
            against: the router of the paired differences; see `compare_results`.
            bounds: makes the points of the bounds, once it is known how accurate the routers are.

        Raises:
            InputError: `against` is not compared.
        """
        names = [display_name(router) for router in self.scenario.compare.routers]
        if against is not None and against not in names:
            raise InputError("--against", "", f"{against!r} is not compared here; {nearest(against, names)}")
        results = self._compared(world, engine, jobs)
        document = compare_results(results, against=against)
        if bounds is not None:
            document = compare_results(results, against=against, bounds=bounds(document))
        write_json(self.folder / "comparison.json", document)
        return document

    def _compared(self, world: World, engine: Simulator, jobs: int) -> list[Result]:
        """The stage: all results, of which those of an interrupted comparison are not made again."""
        given = self.scenario.compare
        shape = (self.scenario.duration_s, self.scenario.warmup_s, self.scenario.training.deterministic, engine)
        fingerprint = self._world_hash(given.routers, given.seeds, shape, *self._router_file(given.routers), RESULTS)
        target = self.folder / RESULTS
        partial = self.folder / ".stages" / f"compare-{fingerprint[:12]}.json"

        def work() -> Sequence[Path]:
            finished: list[Result] = read_json(partial) if partial.is_file() else []
            known = list(finished)
            runs = len(given.routers) * len(given.seeds)
            with Progress("compare", runs, unit="run", quiet=self._quiet) as progress:

                def keep(result: Result) -> None:
                    if result not in finished:
                        finished.append(result)
                        write_json(partial, finished)
                    progress.update(1)

                results = simulate_all(
                    world, given.routers, given.seeds, trained=self.trained, finished=known, on_result=keep,
                    engine=engine, jobs=jobs,
                )  # fmt: skip
            write_json(target, results)
            self._keep_records(world, engine)
            return [target]

        self.folder.run_stage("compare", fingerprint, work, self._say)
        partial.unlink(missing_ok=True)
        results: list[Result] = read_json(target)
        return results

    def _router_file(self, routers: Sequence[str]) -> list[Path]:
        return [self.trained] if needs_training(routers) else []

    def _keep_records(self, world: World, engine: Simulator) -> None:
        """Whole records, for the report, of the routers that no validation will keep."""
        for stale in (self.folder / "simulation").glob("*"):
            if not any((self.folder / "hardware").glob(f"{stale.name}*")):  # those of a validation have real twins
                shutil.rmtree(stale)
        validated = self.scenario.validate_.routers if self._can_validate() else ()
        seed = self.scenario.compare.seeds[0]
        images = len(world.arrivals_ns(seed, self.scenario.duration_s))
        if images > KEPT_IMAGES:
            remedy = "`slimsched simulate --out` keeps one run's"
            self._say(f"compare: {images} images a run are too many for the report: no records of them; {remedy}")
            return
        for router in self.scenario.compare.routers:
            if router not in validated:
                policy = world.router(router, self.trained)
                write_run(self.folder, *run_simulation(world, policy, display_name(router), seed, engine=engine))

    def _can_validate(self) -> bool:
        """Whether there is a network, and a real device for every server."""
        servers = self.scenario.cluster.named_servers
        owners = [server for server in servers if server.shares_device_with is None]
        has_devices = all(server.device is not None for server in owners)
        return self.scenario.model.is_runnable and has_devices

    def warn_of_another_stack(self, world: World) -> None:
        """A profile that was measured elsewhere may be good enough; the user should know before hardware is run."""
        servers = self.scenario.cluster.named_servers
        for server, profile in zip(servers, world.profiles, strict=True):
            if server.shares_device_with is None and not self._is_warned:
                for text in stamp_warnings(profile, device_of(server, servers)):
                    self._say(text)
        self._is_warned = True

    def validate(self, world: World) -> Validation:
        """The same arrivals in simulation and on real executors; goes on from the last finished run.

        Raises:
            InputError: the scenario has no network or a server without a real device; or something of it does not fit
                this machine or what was made for it.
        """
        if not self._can_validate():
            problem = "real executors need a network (model.network or model.checkpoint) and a device for each server"
            raise InputError(self.scenario.name, "validate", problem)
        given = self.scenario.validate_
        require_distinct_names(given.routers)
        plan = Plan.of(world, [display_name(router) for router in given.routers], given)
        require_devices(self.scenario)
        require_ready(world, self.model, given.routers, self.trained)
        self.warn_of_another_stack(world)
        own = given.model_dump(mode="json")
        shape = (own, self.scenario.duration_s, self.scenario.warmup_s, self.scenario.training.deterministic)
        fingerprint = self._world_hash(shape, self.model.path, *self._router_file(given.routers))
        target = self.folder / "validation.json"
        partial = self.folder / ".stages" / f"validate-{fingerprint[:12]}.json"

        def work() -> Sequence[Path]:
            if not partial.is_file():  # nothing of another plan stays
                shutil.rmtree(self.folder / "hardware", ignore_errors=True)
            write_cores(self.folder, world.cluster.router, [server.knobs for server in world.cluster.servers])
            validation = validate_world(
                world, self.folder, self.model, plan, given.routers, trained=self.trained, partial=partial,
                quiet=self._quiet,
            )  # fmt: skip
            write_json(target, validation)
            return [target, self.folder / CORES_FILE, *sorted(self.folder.path.glob("hardware/*/result.json"))]

        self.folder.run_stage("validate", fingerprint, work, self._say)
        partial.unlink(missing_ok=True)
        document: Validation = read_json(target)
        return document


# ------------------------------------------------------------------------------------- the stages' work, each by itself


def vars_of(description: Any) -> dict[str, Any]:
    """A description's fields as plain data."""
    plain: dict[str, Any] = json.loads(json.dumps(asdict(description), default=str))
    return plain
