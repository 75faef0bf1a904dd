"""The context of every stage: one scenario in one run folder (`Run`); and descriptions of its sizes and devices.

A stage is identified by a fingerprint of all that it reads: parts of the scenario, files by their content (and not by
their path), a user's classes by their code, and this project's version. `Run` names the parts that several stages read;
each stage's own fingerprint is next to its work.

Sizes below their defaults (`cuts_text`) are reported, so that a fast trial is not mistaken for a measurement.
"""

from __future__ import annotations

import json
import time  # noqa: TID251 - how long stages took
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hw.telemetry import usable_cores
from kit.documents import inputs_hash, write_text
from kit.errors import InputError
from kit.strict import named_files, with_paths
from scenarios.experiment.resolved_scenario import Experiment
from scenarios.experiment.scenario_building import (
    ACCURACY_FILE,
    SCENARIO_FILE,
    estimated_capacity_img_s,
    make_experiment,
    model_file,
    network_of,
    profile_source,
    with_named_servers,
)
from scenarios.experiment.scenario_routers import OF_AN_EXPERIMENT, of_network
from scenarios.files.bundled_files import made_file, made_kind, made_kinds
from scenarios.files.router_files import decided_by, display_name
from scenarios.files.scenario_keys import Scenario, ServerSection
from scenarios.files.scenario_reading import check_faults, relative_paths
from scenarios.runs.folder import PRODUCT, RunFolder, environment, version_of
from scenarios.show.tables import plural
from scenarios.terminal.progress import Say

if TYPE_CHECKING:
    from hw.networks.network_files import ModelFile, Network


OF_SERVING = ("cluster", "router")
MIN_TOLD_S, LONGEST = 0.5, 3  # of a stage's wall time; of the stages that are listed
TUNING_FILE = "tuning_file"  # of a workload: what a router is trained on, and no comparison uses


# -------------------------------------------------------------------------------------------------------------- the run


class Run:
    """One scenario in one run folder.

    Args:
        path: of the run folder, which may not be there yet.
        say: takes lines for the user (stages as they begin; tables at the end are the caller's).
        quiet: no progress bars.
        source: the scenario's file, which the folder then names.
    """

    def __init__(
        self, scenario: Scenario, path: Path, *, say: Say, quiet: bool = False, source: Path | None = None
    ) -> None:
        self.scenario = with_named_servers(scenario)
        if self.scenario is not scenario:
            check_faults(self.scenario, scenario.name)  # now that `auto` has names
        self.folder = RunFolder(path, say)
        self.say = say
        self.quiet = quiet
        self.source = source
        self._warned: set[str] = set()
        self._began_s, self._stages_s = time.monotonic(), dict[str, float]()

    def with_section(self, section: str, **update: Any) -> Run:
        """Return the run with other values in a section of the scenario."""
        changed = getattr(self.scenario, section).model_copy(update=update)
        scenario = self.scenario.model_copy(update={section: changed})
        return Run(scenario, self.folder.path, say=self.say, quiet=self.quiet, source=self.source)

    def opened(self) -> AbstractContextManager[None]:
        """Make this process the only one that writes into the folder; see `RunFolder.opened`."""
        return self.folder.opened(self.source)

    def warn(self, text: str) -> None:
        """Print it once, however many stages find it."""
        if text not in self._warned:
            self._warned.add(text)
            self.say(text)

    def stage(self, name: str, fingerprint: str, work: Callable[[], Sequence[Path]]) -> None:
        """Do a stage's work, unless its outputs exist and were made from the same; note what made them."""
        began_s = time.monotonic()
        if self.folder.run_stage(name, fingerprint, work, lambda: self.environment):
            self._stages_s[name] = time.monotonic() - began_s

    @property
    def wall_text(self) -> str:
        """The wall time until now, and that of the longest stages that were not skipped."""
        longest = sorted(self._stages_s.items(), key=lambda each: -each[1])[:LONGEST]
        stages = [f"{name} {seconds:.0f} s" for name, seconds in longest if seconds >= MIN_TOLD_S]
        whole = f"wall time {time.monotonic() - self._began_s:.0f} s"
        return f"{whole}: {', '.join(stages)}" if stages else whole

    @cached_property
    def environment(self) -> dict[str, Any]:
        """The versions and devices that outputs of this run are made with."""
        from hw.telemetry import available_devices, unusable_devices  # if something is made

        available = available_devices()
        for warning in unusable_devices(available):
            self.warn(warning)
        devices = json.loads(json.dumps([asdict(device) for device in available], default=str))
        return environment(devices, {"scenario": self.scenario.seed})

    def describe(self) -> None:
        """Write the scenario as it is run (its files named from the run folder)."""
        write_text(self.folder / SCENARIO_FILE, relative_paths(self.scenario, self.folder.path).to_yaml())

    def experiment(self) -> Experiment:
        """Return what a simulation needs, from the scenario and from what is in the folder by now."""
        return make_experiment(self.scenario, self.folder.path)

    @property
    def model(self) -> ModelFile:
        """The network's file and identity."""
        return model_file(self.scenario, self.folder.path)

    @cached_property
    def network(self) -> Network | None:
        """The network that the scenario names; None without one."""
        return network_of(self.scenario)

    def made(self, kind: str) -> Path:
        """Return the file of the router of a kind that this run makes, or will make."""
        return self.folder / made_file(kind)

    @property
    def routers(self) -> tuple[str, ...]:
        """Every router that the scenario names."""
        return (*self.scenario.compare.routers, *self.scenario.validate_.routers)

    @property
    def routers_that_run(self) -> tuple[str, ...]:
        """The routers of the comparison, and of the validation if one is possible."""
        return (*self.scenario.compare.routers, *(self.scenario.validate_.routers if self.can_validate else ()))

    @property
    def kinds_to_make(self) -> tuple[str, ...]:
        """The kinds of the routers that run which this run makes itself."""
        return made_kinds(self.routers_that_run)

    @property
    def can_validate(self) -> bool:
        """Whether there is a device for every server, and a network, which emulated ones can do without."""
        cluster = self.scenario.cluster
        has_network = self.scenario.model.is_runnable or cluster.is_emulated
        return has_network and all(server.device is not None for server in cluster.owners)

    # ----------------------------------------------------------------------------------------- what stages depend on

    def fingerprint(self, *parts: Any) -> str:
        """Return the hash of what a stage reads, as `inputs_hash` takes it, and of its reader's version."""
        return inputs_hash(version_of(PRODUCT), *parts)

    @property
    def network_parts(self) -> dict[str, str]:
        """The network's name and options, and a user's code."""
        return of_network(self.scenario)

    @cached_property
    def images(self) -> str:
        """The label of the scenario's data set, which changes if its images do."""
        from hw.networks.datasets import dataset_label  # opens torch, which a simulation does not need

        with blamed_on(self.scenario):
            return dataset_label(self.scenario.model.dataset)

    @property
    def model_to_serve(self) -> ModelFile | None:
        """The network's file that executors need; None for emulated ones."""
        return None if self.scenario.cluster.is_emulated else self.model

    @property
    def served_parts(self) -> list[Any]:
        """The parts of the network and its images that a run on executors reads."""
        model = self.model_to_serve
        return [] if model is None else [model.path, self.network_parts, self.images]

    @property
    def accuracy_path(self) -> Path:
        """The path of the scenario's accuracy table, or of the run's own, made or not."""
        path = self.scenario.model.accuracy
        return Path(path) if path else self.folder / ACCURACY_FILE

    def router_parts(self, routers: Sequence[str]) -> list[Any]:
        """Return routers' names in tables, and what they decide by: files, or a user's code.

        Raises:
            InputError: a user's class is not there, or own code is refused.
        """
        parts: list[Any] = []
        for name in routers:
            kind = made_kind(name)
            parts += [display_name(name), decided_by(name, self.scenario.name) if kind is None else self.made(kind)]
        return parts

    def scenario_parts(self, names: Sequence[str], *, is_training: bool = False) -> list[Any]:
        """Return some parts of the scenario, and its workload's files; that of tuning only if something is trained."""
        dumped = with_paths(self.scenario, lambda path: "").model_dump(mode="json", include=set(names))
        files = []
        if "workload" in dumped:
            dumped["workload"].pop(TUNING_FILE, None)
            files = [file for file in named_files(self.scenario.workload) if is_training or file.key != TUNING_FILE]
        return [dumped, *(part for file in files for part in (file.key, file.path))]

    def experiment_parts(self, *, is_training: bool = False) -> list[Any]:
        """Return all that a simulation reads but its seed, its length and its router."""
        profiles = [profile_source(server, self.folder.path) for server in self.scenario.cluster.owners]
        return [*self.scenario_parts(OF_AN_EXPERIMENT, is_training=is_training), self.accuracy_path, *profiles]


@contextmanager
def blamed_on(scenario: Scenario) -> Iterator[None]:
    """Report what is wrong with the `model` that the work was given under the scenario's key `model`."""
    try:
        yield
    except InputError as error:
        if error.source != "model":
            raise
        raise InputError(scenario.name, f"model.{error.key}", error.problem) from None


# ---------------------------------------------------------------------------------------------------- sizes and devices


_SIZES: Final = (  # section, key: what costs time, and gives surer numbers or better routers if there is more of it
    ("calibration", "budget"),
    ("training", "decisions"),
    ("tuning", "decisions"),
    ("tuning", "episodes"),
    ("tuning", "episode_s"),
    ("tuning", "matching_runs"),
    ("", "duration_s"),
)


def cuts_text(scenario: Scenario) -> str:
    """Return the sizes that are below their defaults, in a line; empty if there are none."""
    cuts = []
    for section, key in _SIZES:
        part = getattr(scenario, section) if section else scenario
        value, default = getattr(part, key), type(part).model_fields[key].default
        if value < default:
            cuts.append(f"{section}.{key}".lstrip(".") + f" {_size(value)} of {_size(default)}")
    return f"cut for time, of the defaults: {', '.join(cuts)}" if cuts else ""


def _size(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def devices_text(servers: Sequence[ServerSection]) -> str:
    """Describe each real or emulated device, in a line, and where the router's process runs; empty if there is none.

    Two unequal CPU devices are real, but the second may have been made slower: the line states that.
    """
    with_device = [server for server in servers if server.device is not None]
    if not with_device:
        return ""
    devices = ", ".join(f"{server.name}: {_device_text(server)}" for server in with_device)
    pinned = [server.device.cores for server in with_device if server.device is not None]
    usable = usable_cores()
    free = [core for core in usable if not any(core in cores for cores in pinned)]
    if free and all(pinned):  # see `hw.router.router_loop`
        return f"devices: {devices}; the router's process has core {', '.join(map(str, free))} to itself"
    return f"devices: {devices}; the router's process and theirs share {plural(len(usable), 'core')}"


def _device_text(server: ServerSection) -> str:
    device = server.device
    assert device is not None, "asked before"
    if device.emulated is not None:
        return f"emulated ({device.emulated}, {device.slowdown:g} times as slow)"
    if device.kind == "cuda":
        return f"GPU {device.index}"
    cores = f"core {', '.join(map(str, device.cores))}" if device.cores else "all cores"
    slower = "" if device.onednn else " without oneDNN, which makes it slower"
    return f"{cores}, {plural(device.threads, 'thread')}{slower}"


def pressure_text(experiment: Experiment) -> str:
    """Compare peak arrivals with the capacity of the widest and the narrowest network, and state whether widths matter.

    Empty for a trace.
    """
    rate_img_s = experiment.rate_img_s
    if rate_img_s is None:
        return ""
    narrow_img_s = estimated_capacity_img_s(experiment.cluster, experiment.costs, 0)
    wide_img_s, busy_img_s = experiment.capacity_img_s, rate_img_s * experiment.scenario.workload.busiest_factor()
    text = (
        f"{experiment.scenario.name}: {experiment.mean_rate_img_s:.4g} images/s arrive on average, "
        f"at most {busy_img_s:.4g} for a while; the devices sustain about {wide_img_s:.4g} at full width "
        f"and {narrow_img_s:.4g} at the narrowest"
    )
    if busy_img_s > narrow_img_s:
        return f"{text}: not even the narrowest always keeps up, and queues grow under every router"
    if busy_img_s < wide_img_s:
        return f"{text}: full width always keeps up, and routers will hardly differ; raise the load to see them do"
    return f"{text}: at times full width can't keep up, and a router must choose"
