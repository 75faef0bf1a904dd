"""The job: one scenario in one run folder, and what every stage asks of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from hw.networks import ModelFile, Network
from scenarios.files.documents import inputs_hash
from scenarios.files.named_files import named_files
from scenarios.files.reading import check_faults
from scenarios.files.router_names import code_of, needs_training
from scenarios.files.spec import Scenario
from scenarios.runs.folder import RunFolder
from scenarios.terminal.output import Say
from scenarios.world.materials import ACCURACY_FILE, ROUTER_FILE, make_world, model_file, network_of, with_named_servers
from scenarios.world.world import World

OF_A_WORLD = (
    "cluster", "router", "workload", "faults", "supervision", "deadline_s", "shed", "reward", "seed", "jitter", "end",
)  # fmt: skip


class Job:
    """One scenario in one run folder.

    Args:
        path: of the run folder.
        say: takes lines for the user (stages as they begin; tables at the end are the caller's).
        quiet: no progress bars.
    """

    def __init__(self, scenario: Scenario, path: Path, *, say: Say, quiet: bool = False) -> None:
        self.scenario = with_named_servers(scenario)
        check_faults(self.scenario, scenario.name)  # now that `auto` has names
        self.folder = RunFolder(path, say)
        self.say = say
        self.quiet = quiet
        self._warned: set[str] = set()

    def warn(self, text: str) -> None:
        """Say it once, however many stages find it."""
        if text not in self._warned:
            self._warned.add(text)
            self.say(text)

    def stage(
        self,
        name: str,
        fingerprint: str,
        work: Callable[[], Sequence[Path]],
        accepts: Callable[[Path], bool] = lambda _: False,
    ) -> None:
        """Do a stage's work, unless its outputs are there and were made from the same.

        Args:
            accepts: whether an output that was changed since is a user's, to be taken as it is.
        """
        self.folder.run_stage(name, fingerprint, work, self.say, accepts)

    def world(self) -> World:
        """What a simulation needs, from the scenario and from what is in the folder by now."""
        return make_world(self.scenario, self.folder.path)

    @property
    def model(self) -> ModelFile:
        """Where the network is, and which it is."""
        return model_file(self.scenario, self.folder.path)

    @cached_property
    def network(self) -> Network | None:
        """Which network the scenario names, if it names one."""
        return network_of(self.scenario)

    @property
    def code_hash(self) -> str:
        """Of the network's source."""
        return self.network.code_hash() if self.network is not None else ""

    @property
    def trained(self) -> Path:
        """The router that this job trains."""
        return self.folder / ROUTER_FILE

    @property
    def routers(self) -> tuple[str, ...]:
        """Every router that the scenario names."""
        return (*self.scenario.compare.routers, *self.scenario.validate_.routers)

    @property
    def needs_training(self) -> bool:
        """Whether one of those that will run is yet to be trained."""
        validated = self.scenario.validate_.routers if self.can_validate else ()
        return needs_training((*self.scenario.compare.routers, *validated))

    @property
    def can_validate(self) -> bool:
        """Whether there is a network, and a real device for every server."""
        owners = [server for server in self.scenario.cluster.named_servers if server.shares_device_with is None]
        return self.scenario.model.is_runnable and all(server.device is not None for server in owners)

    def trained_files(self, routers: Sequence[str]) -> list[Path]:
        """The trained router's, where it is one of these."""
        return [self.trained] if needs_training(routers) else []

    def world_hash(self, *more: Any) -> str:
        """Of everything that a simulation depends on."""
        folder = self.folder.path
        given = self.scenario.model.accuracy
        files = sorted((folder / "profiles").glob("*.yaml"))
        files += [Path(given) if given else folder / ACCURACY_FILE]
        files += [file.path for file in named_files(self.scenario) if not file.key.startswith("model.")]
        code = [found for name in self.routers if (found := code_of(name, self.scenario.name))]
        dumped = self.scenario.model_dump(mode="json")
        parts = {part: dumped[part] for part in OF_A_WORLD}
        return inputs_hash(parts, *(path for path in files if path.is_file()), *code, *more)
