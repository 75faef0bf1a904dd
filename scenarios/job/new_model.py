"""A new model for what serves: other weights of the same network, and a router that decides by their accuracies."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from hw.door.ingress import Ingress
from hw.door.journal import Journal
from hw.networks.accuracy import Evaluation, load_accuracy
from hw.networks.registry import ModelFile
from hw.router.cluster import HardwareCluster
from hw.router.rolling import NewModel
from kit.checkpoint import header
from kit.errors import InputError, WorkError
from kit.units import nanoseconds
from policies.goal_control import GoalControl
from policies.interfaces import RouterConfig, RoutingPolicy
from policies.planned_router import by_plan
from policies.ppo.router import EndlessRouter, PPORouter
from scenarios.files.made_routers import made_kind
from scenarios.job.context import Run
from scenarios.runs.folder import CONTROL
from scenarios.world.build import build_world
from scenarios.world.materials import ACCURACY_FILE
from scenarios.world.world import NetworkAccuracy, World


@dataclass(frozen=True, slots=True)
class Candidate:
    """One that was read, and may serve.

    Attributes:
        world: the scenario with its accuracies.
    """

    file: ModelFile
    version: str
    world: World
    policy: RoutingPolicy


class ModelOrders:
    """At most one new model at a time: it is read in a thread next to the router's loop, then it is an order.

    Args:
        world: with the accuracies of what serves at first.
        journal: receives the outcome.

    Attributes:
        world: with the accuracies of what serves.
    """

    def __init__(self, run: Run, world: World, journal: Journal) -> None:
        self.world = self._first = world
        self._run, self._journal = run, journal
        self._serving = run.model_to_serve
        self._hands = ThreadPoolExecutor(1, thread_name_prefix="new-model")
        self._read: Future[Candidate] | None = None
        self._rolls = False

    @property
    def is_busy(self) -> bool:
        """Whether one is on its way."""
        return self._read is not None or self._rolls

    def ask(self, path: Path, router: str, floor: float) -> None:
        """Have it serve from some moment on, with this router; `floor` is asked for at present."""
        self._run.say(f"serve: reads {path}")
        self._read = self._hands.submit(self._candidate, path, router, floor)

    def orders(self, cluster: HardwareCluster, door: Ingress) -> Iterator[NewModel]:
        """Yield the model that was read, for a cluster, and notify clients; report and ignore one that can't serve."""
        if self._read is None or not self._read.done():
            return
        read, self._read = self._read, None
        try:
            candidate = read.result()
        except (InputError, WorkError, OSError) as error:
            self._failed(str(error))
            return

        def took_over() -> None:
            self._rolls = False
            self._serving, self.world = candidate.file, candidate.world
            door.serve_model(candidate.version, top1)
            text = f"serve: the model {candidate.version} serves from now on"
            self._journal.note("model", text, version=candidate.version)

        self._rolls = True
        self._run.say(f"serve: the model {candidate.version} comes; each server in turn gets a second worker")
        starts, top1 = cluster.starts_of(candidate.file), candidate.world.cluster.router.top1
        yield NewModel(starts, candidate.policy, top1, took_over, self._failed)

    def _failed(self, reason: str) -> None:
        self._rolls = False
        self._run.say(f"serve: {reason}; the model stays as it was")

    def _candidate(self, path: Path, router: str, floor: float) -> Candidate:
        now, folder = self.world, self._run.folder.path
        version, table = read_new_model(path, self._serving, now)
        profiles = dict(zip((spec.name for spec in now.cluster.servers), now.profiles, strict=True))
        world = build_world(now.scenario, profiles, NetworkAccuracy.of(table))
        best = max(world.held_top1.values())
        if best < floor:
            problem = f"is at best {best:.2%} accurate, asked for are {floor:.2%}; ask for less before (--floor)"
            raise InputError(str(path), "", problem)
        policy = endless_policy(world, self._as_it_is(router), folder, now.cluster.router, takes_over=True)
        assert self._serving is not None, "it was read beside it"
        file = replace(self._serving, path=folder / CONTROL / f"{version}.safetensors")
        shutil.copyfile(path, file.path)  # a restarted server finds what was read now
        if file.load()[1]["hash"] != version:
            raise InputError(str(path), "", "has changed while it was read; give it again")
        return Candidate(file, version, world, policy)

    def policy(self, router: str, config: RouterConfig, *, takes_over: bool) -> RoutingPolicy:
        """Return a router; see `endless_policy`."""
        name = router if self.world is self._first else self._as_it_is(router)
        return endless_policy(self.world, name, self._run.folder.path, config, takes_over=takes_over)

    def _as_it_is(self, router: str) -> str:
        """Return a router made with the first model's accuracies as it is, because it is not to be made again."""
        kind = made_kind(router)
        return str(self._run.made(kind)) if kind else router


def endless_policy(world: World, name: str, folder: Path, config: RouterConfig, *, takes_over: bool) -> RoutingPolicy:
    """Return a router by name or file, for a run without an end; raises `InputError` if it can't be made."""
    policy = world.router(name, folder)
    if isinstance(policy, PPORouter):
        return EndlessRouter(policy, nanoseconds(world.scenario.training.horizon_s))
    control = getattr(policy, "control", None)
    for each in control.all if isinstance(control, GoalControl) else ():
        each.takes_over = takes_over
    return by_plan(policy, config)


def read_new_model(path: Path, serving: ModelFile | None, world: World) -> tuple[str, Evaluation]:
    """Return the hash of a new model's weights, and its accuracy table, which is in the same folder.

    Raises:
        InputError: it is not a model, or of another network; or the table is not there, or of other weights, images or
            widths.
    """
    if serving is None or world.accuracy.evaluation is None:
        raise InputError(str(path), "", "emulated devices serve no network")
    if world.scenario.cluster.backend == "ray":
        raise InputError(str(path), "", "a cluster of several hosts takes no new model while it serves")
    _, found = replace(serving, path=path).load()
    known = header(serving.path)
    for key in ("network", "config", "structure"):
        if found.get(key) != known.get(key):
            raise InputError(str(path), key, f"is of another network than what serves ({serving.path})")
    version, now = found["hash"], world.accuracy.evaluation
    if version == now.hash:
        raise InputError(str(path), "hash", f"these weights serve already ({version})")
    beside = path.with_name(ACCURACY_FILE)
    table = load_accuracy(beside)
    if not isinstance(table, Evaluation) or table.hash != version:
        remedy = "`slimsched model train` with model.checkpoint makes it"
        raise InputError(str(beside), "model", f"is not of {path} ({version}); {remedy}")
    if (table.dataset, set(table.tuples)) != (now.dataset, set(now.tuples)):
        raise InputError(str(beside), "dataset", f"must be {now.dataset}, with the widths that serve")
    return version, table
