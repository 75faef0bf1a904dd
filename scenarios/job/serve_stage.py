"""Clients are served by a scenario's executors, and get a new model for what serves, all of them or a canary's part."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from types import FrameType

from msgspec import to_builtins

from hw.clock import RunClock
from hw.frontend.admission import ClientTerms
from hw.frontend.client_requests import Clients, ServingStats
from hw.frontend.connections import Journal, notify
from hw.frontend.inference_protocol import Canary, RequestClass, Served
from hw.frontend.ingress import Ingress, IngressSpec, WaitingRoom, ingress
from hw.frontend.log_segments import LogBounds, SegmentLog
from hw.frontend.router_link import SlotImages, slots_of
from hw.frontend.transforms import tried
from hw.host_resources import CollectionMeter
from hw.networks.accuracy_table import Evaluation, load_accuracy
from hw.networks.network_files import ModelFile
from hw.router.interventions import NewModel, Operator, Order
from hw.router.local_cluster import HardwareCluster
from hw.router.router_loop import Routing, RunProgress
from kit.checkpoint import header
from kit.errors import InputError, WorkError
from kit.random_streams import stream
from kit.units import nanoseconds
from policies.goal_control import GoalControl
from policies.interfaces import RouterConfig, RoutingPolicy
from policies.ppo.ppo_router import EndlessRouter, PPORouter
from policies.router_core import RouterCore
from policies.router_plans import by_plan
from policies.rules.rule_context import path as keys_of
from policies.vocabulary import GoalSet, ModelChanged
from scenarios.executors.device_choice import served_of
from scenarios.executors.executor_runs import real_cluster, without_faults
from scenarios.executors.preflight import require_devices, require_ready
from scenarios.experiment.resolved_scenario import Experiment, NetworkAccuracy
from scenarios.experiment.scenario_building import ACCURACY_FILE, build_experiment, estimated_capacity_img_s
from scenarios.experiment.scenario_routers import routers_ignoring
from scenarios.files.bundled_files import made_kind
from scenarios.files.router_files import display_name
from scenarios.files.scenario_keys import GB
from scenarios.job.job_stages import Run
from scenarios.job.network_stages import load_measured
from scenarios.job.validation_stage import warn_of_another_stack
from scenarios.runs.folder import CONTROL, SERVED
from scenarios.runs.operator_control import OperatorRequests, Steering, accept_operator_requests


@dataclass(frozen=True, slots=True)
class Candidate:
    """One that was read, and may serve.

    Attributes:
        experiment: the scenario with its accuracies.
    """

    file: ModelFile
    version: str
    experiment: Experiment
    policy: RoutingPolicy


@dataclass(frozen=True, slots=True)
class Trial:
    """A canary: its model, its servers, what clients get of it, and which part of the requests that is, in words."""

    candidate: Candidate
    servers: tuple[int, ...]
    canary: Canary
    part: str


@dataclass(frozen=True, slots=True)
class _Serving:
    """What serves: the stable model, and the canary if one is on."""

    file: ModelFile | None
    experiment: Experiment
    trial: Trial | None = None

    @property
    def version(self) -> str:
        """The hash of the stable model's weights."""
        assert self.experiment.accuracy.evaluation is not None, "it has weights"
        return self.experiment.accuracy.evaluation.hash


class ModelOrders:
    """At most one new model at a time: it is read in a thread next to the router's loop, then it is an order.

    Args:
        experiment: with the accuracies of what serves at first.
        journal: receives the outcome.
    """

    def __init__(self, run: Run, experiment: Experiment, journal: Journal) -> None:
        self._first = experiment
        self._now = _Serving(run.model_to_serve, experiment)
        self._run, self._journal = run, journal
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="new-model")
        self._read: Future[tuple[Candidate, Trial | None]] | None = None
        self._verdict: Steering | None = None
        self._rolls = False

    @property
    def experiment(self) -> Experiment:
        """The scenario with the stable model's accuracies."""
        return self._now.experiment

    @property
    def trial(self) -> Trial | None:
        """The canary, if one is on."""
        return self._now.trial

    @property
    def is_busy(self) -> bool:
        """Whether one is on its way."""
        return self._read is not None or self._verdict is not None or self._rolls

    def require_no_trial(self, steering: Steering) -> None:
        """Raise `InputError` if a canary is on, and the operator request would change what it is compared with."""
        if self.trial is not None and (steering.router or steering.model or steering.canary):
            key = "router" if steering.router else "model" if steering.model else "canary"
            problem = f"a canary is on ({self.trial.candidate.version}); first `--promote` it, or `--take-back`"
            raise InputError("cluster steer", f"--{key}", problem)

    def ask(self, steering: Steering, router: str, floor: float) -> None:
        """Have its model serve from some moment on, with this router and at present this floor; or end the canary.

        Raises:
            InputError: no canary is on that could end.
        """
        if path := steering.model or steering.canary:
            self._run.say(f"serve: reads {path}")
            self._read = self._reader.submit(self._models_of, steering, Path(path), router, floor)
        elif steering.promote or steering.take_back:
            if self.trial is None:
                problem = "no canary is on; `--canary FILE` begins one"
                raise InputError("cluster steer", "--promote" if steering.promote else "--take-back", problem)
            self._verdict = steering

    def orders(self, cluster: HardwareCluster, frontend: Ingress, router: str) -> Iterator[NewModel]:
        """Yield the model that was read, for a cluster, and notify clients; report and ignore one that can't serve."""
        try:
            if self._read is not None and self._read.done():
                read, self._read = self._read, None
                yield self._begun(cluster, frontend, *read.result())
            elif self._verdict is not None:
                verdict, self._verdict = self._verdict, None
                yield self._ended(cluster, frontend, router, is_promoted=bool(verdict.promote))
        except (InputError, WorkError, OSError) as error:
            self._failed(str(error))

    def _begun(
        self, cluster: HardwareCluster, frontend: Ingress, candidate: Candidate, trial: Trial | None
    ) -> NewModel:
        """Return the order for a new model, or for a canary."""
        self._run.say(f"serve: the model {candidate.version} comes; each of its servers in turn gets a second worker")
        if trial is None:
            after, everywhere = _Serving(candidate.file, candidate.experiment), range(len(cluster.servers))
            return self._order(cluster, frontend, after, everywhere, "model", candidate.policy)
        return self._order(cluster, frontend, replace(self._now, trial=trial), trial.servers, "canary")

    def _ended(self, cluster: HardwareCluster, frontend: Ingress, router: str, *, is_promoted: bool) -> NewModel:
        """Return the order that ends the canary."""
        assert self.trial is not None, "it was required"
        candidate, servers = self.trial.candidate, self.trial.servers
        if not is_promoted:
            return self._order(cluster, frontend, replace(self._now, trial=None), servers, "canary_taken_back")
        others = [index for index in range(len(cluster.servers)) if index not in servers]
        config, folder = self.experiment.cluster.router, self._run.folder.path
        policy = endless_policy(candidate.experiment, self._as_it_is(router), folder, config, takes_over=True)
        return self._order(cluster, frontend, _Serving(candidate.file, candidate.experiment), others, "model", policy)

    def _order(
        self,
        cluster: HardwareCluster,
        frontend: Ingress,
        after: _Serving,
        servers: Sequence[int],
        event: str,
        policy: RoutingPolicy | None = None,
    ) -> NewModel:
        """Return the order for new workers of some servers, after which `after` serves."""
        accuracies, trial = after.experiment.cluster.router.accuracies, after.trial
        changed, canary, file, decides = ModelChanged(accuracies), None, after.file, None
        if trial is not None:
            canary, file, decides = trial.canary, trial.candidate.file, trial.candidate.policy
            changed = ModelChanged(accuracies, trial.servers, canary.accuracies)

        def on_taken_over() -> None:
            self._rolls, self._now = False, after
            frontend.serve_model(after.version, accuracies, canary)
            version = canary.version if canary else after.version
            text = f"serve: the model {version} serves {trial.part if trial else 'all requests'} from now on"
            self._journal.note(event, text, version=version)

        self._rolls = True
        assert file is not None, "emulated devices take no new model"
        starts = cluster.starts_of(file)
        return NewModel(
            {index: starts[index] for index in servers}, changed, on_taken_over, self._failed, policy, decides
        )

    def _models_of(self, steering: Steering, path: Path, router: str, floor: float) -> tuple[Candidate, Trial | None]:
        """Return the model that an operator request names, and how it is tried if it is a canary."""
        if steering.canary is None:
            return self._candidate(path, router, floor), None
        names = [section.name for section in self._run.scenario.classes]
        number, share, part, of = None, steering.share or CANARY_SHARE, 1.0, "the requests"
        if steering.service_class is not None:
            if steering.service_class not in names:
                expected = " or ".join(names) or "none, as the scenario has no `classes`"
                raise InputError(
                    "cluster steer", "--class", f"found {steering.service_class!r:.40}, expected {expected}"
                )
            number, share = names.index(steering.service_class), steering.share or 1.0
            part, of = self._run.scenario.classes[number].share, f"class {steering.service_class}"
        candidate = self._candidate(path, router, floor)
        canary = Canary(candidate.version, candidate.experiment.cluster.router.accuracies, share, number)
        servers = canary_servers(self.experiment, share * part)
        on = ", ".join(self.experiment.cluster.servers[index].name for index in servers)
        return candidate, Trial(candidate, servers, canary, f"{100 * share:.3g} % of {of}, on {on},")

    def _failed(self, reason: str) -> None:
        self._rolls = False
        self._run.say(f"serve: {reason}; the model stays as it was")

    def _candidate(self, path: Path, router: str, floor: float) -> Candidate:
        experiment_now, folder = self.experiment, self._run.folder.path
        version, table = read_new_model(path, self._now.file, experiment_now)
        profiles = dict(
            zip((spec.name for spec in experiment_now.cluster.servers), experiment_now.profiles, strict=True)
        )
        experiment = build_experiment(experiment_now.scenario, profiles, NetworkAccuracy.of(table))
        best = max(experiment.held_accuracies.values())
        if best < floor:
            problem = f"is at best {best:.2%} accurate, asked for are {floor:.2%}; ask for less before (--floor)"
            raise InputError(str(path), "", problem)
        policy = endless_policy(
            experiment, self._as_it_is(router), folder, experiment_now.cluster.router, takes_over=True
        )
        assert self._now.file is not None, "it was read beside it"
        file = replace(self._now.file, path=folder / CONTROL / f"{version}.safetensors")
        shutil.copyfile(path, file.path)  # a restarted server finds what was read now
        if file.load()[1]["hash"] != version:
            raise InputError(str(path), "", "has changed while it was read; give it again")
        return Candidate(file, version, experiment, policy)

    def policy(self, router: str, config: RouterConfig, *, takes_over: bool) -> RoutingPolicy:
        """Return a router; see `endless_policy`."""
        name = router if self.experiment is self._first else self._as_it_is(router)
        return endless_policy(self.experiment, name, self._run.folder.path, config, takes_over=takes_over)

    def _as_it_is(self, router: str) -> str:
        """Return a router made with the first model's accuracies as it is, because it is not to be made again."""
        kind = made_kind(router)
        return str(self._run.made(kind)) if kind else router


CANARY_SHARE = 0.1  # of the requests, unless the operator gives another


def canary_servers(experiment: Experiment, share: float) -> tuple[int, ...]:
    """Return the servers for a canary: whole devices, with about this share of the capacity.

    Each can hold all segments, so that any of them can serve the canary's requests alone; so can the others together.

    Raises:
        InputError: no device is like that.
    """
    config, chosen = experiment.cluster.router, list[int]()
    masks, key_path = config.masks(), keys_of((config.widths[0],) * config.segments)
    devices: dict[int, list[int]] = {}
    for index, spec in enumerate(experiment.cluster.servers):
        devices.setdefault(spec.device, []).append(index)
    rates = {
        device: 1 / sum(experiment.costs.image_s(own[0], key) for key in key_path) for device, own in devices.items()
    }

    def may_go(device: int) -> bool:
        own = [all(map(any, masks[index])) for index in devices[device]]
        rest = [masks[index] for other in devices if other not in (device, *chosen) for index in devices[other]]
        is_left = bool(rest) and all(any(map(any, place)) for place in zip(*rest, strict=True))
        return device not in chosen and all(own) and is_left

    missing = share * sum(rates.values())
    while missing > 0 and (free := [device for device in devices if may_go(device)]):
        sufficient = [device for device in free if rates[device] >= missing]
        chosen.append(min(sufficient, key=rates.__getitem__) if sufficient else max(free, key=rates.__getitem__))
        missing -= rates[chosen[-1]]
    if not chosen:
        problem = "needs a device that can hold the whole network, and others that together can"
        raise InputError("cluster steer", "--canary", f"{problem}; `--model` changes all at once")
    return tuple(sorted(index for device in chosen for index in devices[device]))


def endless_policy(
    experiment: Experiment, name: str, folder: Path, config: RouterConfig, *, takes_over: bool
) -> RoutingPolicy:
    """Return a router by name or file, for a run without an end; raises `InputError` if it can't be made."""
    policy = experiment.router(name, folder)
    if isinstance(policy, PPORouter):
        return EndlessRouter(policy, nanoseconds(experiment.scenario.training.horizon_s))
    control = getattr(policy, "control", None)
    for goal in control.all if isinstance(control, GoalControl) else ():
        goal.takes_over = takes_over
    return by_plan(policy, config)


def read_new_model(path: Path, serving: ModelFile | None, experiment: Experiment) -> tuple[str, Evaluation]:
    """Return the hash of a new model's weights, and its accuracy table, which is in the same folder.

    Raises:
        InputError: it is not a model, or of another network; or the table is not there, or of other weights, images or
            widths.
    """
    if serving is None or experiment.accuracy.evaluation is None:
        raise InputError(str(path), "", "emulated devices serve no network")
    if experiment.scenario.cluster.backend == "ray":
        raise InputError(str(path), "", "a cluster of several hosts takes no new model while it serves")
    _, metadata = replace(serving, path=path).load()
    serving_metadata = header(serving.path)
    for key in ("network", "config", "structure"):
        if metadata.get(key) != serving_metadata.get(key):
            raise InputError(str(path), key, f"is of another network than what serves ({serving.path})")
    version, current = metadata["hash"], experiment.accuracy.evaluation
    if version == current.hash:
        raise InputError(str(path), "hash", f"these weights serve already ({version})")
    table_path = path.with_name(ACCURACY_FILE)
    table = load_accuracy(table_path)
    if not isinstance(table, Evaluation) or table.hash != version:
        remedy = "`slimsched model train` with model.checkpoint makes it"
        raise InputError(str(table_path), "model", f"is not of {path} ({version}); {remedy}")
    if (table.dataset, set(table.tuples)) != (current.dataset, set(current.tuples)):
        raise InputError(str(table_path), "dataset", f"must be {current.dataset}, with the widths that serve")
    return version, table


SLOTS = 4  # times what the servers can have outstanding: the limit of images inside


def serve(
    run: Run, experiment: Experiment, router: str, room: WaitingRoom, terms: ClientTerms, journal: Journal
) -> RunProgress:
    """Serve until SIGTERM or Ctrl-C, then answer what was accepted.

    Args:
        room: where clients wait; it is closed when they are served.
        journal: receives each change of state.

    Raises:
        InputError: the scenario does not fit this machine.
        WorkError: executors or the ingress failed.
    """
    scenario, model = run.scenario, run.model_to_serve
    require_devices(scenario)
    require_ready(experiment, model, (router,), run.folder.path)
    warn_of_another_stack(run, experiment)
    if scenario.faults or scenario.slo.schedule:
        run.warn("serve: faults and changes of `slo` in mid-run are of simulations and `validate`; none is played here")
    config = replace(experiment.cluster.router, shed_expired=True)
    orders = _OperatorOrders(run, ModelOrders(run, experiment, journal), router, config, journal)
    orders.warn_of_floor()
    routing = Routing(
        orders.policy(router),
        stream(scenario.seed, f"router:{display_name(router)}"),
        experiment.cluster.weights,
        experiment.cluster.prior,
    )
    slots = SLOTS * config.servers * config.outstanding_micro_batches * config.micro_batch_sizes[-1]
    with (
        real_cluster(without_faults(experiment), model, is_urgent=True) as cluster,
        accept_operator_requests(
            run.folder, [(server.name, server.host) for server in cluster.servers], may_be_steered=True
        ) as operator_requests,
        CollectionMeter() as garbage,
        ExitStack() as stack,
    ):
        served = _served(run, experiment, slots)  # while the servers start
        if terms.transform:
            served = tried(replace(served, transform=terms.transform))
        sustained_img_s = estimated_capacity_img_s(experiment.cluster, experiment.costs, 0)
        spec = IngressSpec(
            served, terms.limits, terms.tokens, sustained_img_s, terms.certificate, logs_json=journal.as_json
        )
        open_frontend = stack.enter_context(ingress(spec, room.listening, slots, journal))
        log = None
        if scenario.serve.log_gb:
            bounds = LogBounds(scenario.serve.log_gb * GB, scenario.serve.log_age_s)
            log = SegmentLog(run.folder / SERVED, bounds, lambda text: run.say(f"serve: {text}"))
            stack.callback(log.close)
        stats = ServingStats([server.name for server in cluster.servers], config, journal, garbage, log)
        tell = _Teller(open_frontend, stats, journal, operator_requests)
        images = SlotImages(slots_of(open_frontend.arena, served.shape), served.shape)

        def traffic(_: object, core: RouterCore, clock: RunClock) -> Clients:
            room.close()
            if log is not None:
                log.watch(core)
            return Clients(open_frontend, images, stack.enter_context(_stopping(journal)), clock)

        operator = Operator(operator_requests, lambda: orders.orders(operator_requests, cluster, open_frontend))
        return cluster.serve(traffic, config, routing, orders.goals, stats, tell, run.say, operator)


def _served(run: Run, experiment: Experiment, slots: int) -> Served:
    """Return what clients receive of it."""
    name, model = run.scenario.name, run.model_to_serve
    config = experiment.cluster.router
    accuracies = dict(zip(config.width_tuples(), config.accuracies, strict=False))
    classes = tuple(
        RequestClass(
            section.name if section else "",
            inf if deadline_s is None else deadline_s,
            inf if section is None or section.p99_limit_s is None else section.p99_limit_s,
        )
        for section, deadline_s in zip(run.scenario.classes or [None], run.scenario.deadlines_s, strict=True)
    )
    if model is None:
        network = served_of(experiment)
        return Served(name, network.input_shape, network.segments, 0, (), (), slots, "1", classes, accuracies)
    if (evaluation := experiment.accuracy.evaluation) is None:
        raise InputError(name, "model.accuracy", "real executors need the network's own evaluation")
    dataset, spec = load_measured(run.scenario, evaluation), model.build().spec
    of_network, pixels = (spec.input_shape, spec.segments, spec.classes), (dataset.mean, dataset.deviation)
    return Served(name, *of_network, *pixels, slots, evaluation.hash, classes, accuracies)


class _Teller:
    """Reports the router's state: to the ingress, some times a second; to the journal, on changes; to systemd; and to
    the operator the versions that serve."""

    def __init__(
        self, frontend: Ingress, stats: ServingStats, journal: Journal, operator_requests: OperatorRequests
    ) -> None:
        self._frontend = frontend
        self._operator_requests = operator_requests
        self._stats = stats
        self._journal = journal
        self._is_ready = self._was_ready = False

    def __call__(self, progress: RunProgress) -> None:
        """Report how far the loop is."""
        if self._is_ready != self._was_ready:  # the ingress has received it by now
            self._was_ready = self._is_ready
            if self._is_ready:
                self._journal.note("ready", "serve: ready")
            else:
                self._journal.note("not_ready", "serve: not ready, for no server is up that can serve it all")
        self._is_ready = self._stats.is_ready
        self._frontend.report(self._stats.status(progress))
        self._operator_requests.show([to_builtins(version) for version in self._frontend.versions])
        notify("WATCHDOG=1")


class _OperatorOrders:
    """What is asked for, at the start by the scenario, then by the operator; and the router that decides."""

    def __init__(self, run: Run, models: ModelOrders, router: str, config: RouterConfig, journal: Journal) -> None:
        self._run = run
        self._models = models
        self.router = router
        self._config = config
        self._journal = journal
        self._current = run.scenario.slo.goals(run.scenario.tuning.floor)[0]

    def policy(self, name: str, *, takes_over: bool = False) -> RoutingPolicy:
        """Return a router by name or file, for a run without an end; raises `InputError` if it can't be made."""
        return self._models.policy(name, self._config, takes_over=takes_over)

    @property
    def goals(self) -> tuple[GoalSet, ...]:
        """As the router's core takes them: of each class its own."""
        if self._run.scenario.classes:
            return self._models.experiment.class_goals
        current = self._current
        return (GoalSet(current.floor, nanoseconds(current.p99_limit_s), current.energy_weight),)

    def orders(
        self, operator_requests: OperatorRequests, cluster: HardwareCluster, frontend: Ingress
    ) -> Iterator[Order]:
        """Yield what the operator has changed since the last call; an unreadable request is reported, and ignored."""
        yield from self._models.orders(cluster, frontend, self.router)
        try:
            while not self._models.is_busy and (steering := next(operator_requests.steering(), None)) is not None:
                self._models.require_no_trial(steering)
                if steering.router is not None:
                    yield from self._router_orders(steering.router)
                if goals := steering.model_dump(exclude_none=True, include={"floor", "p99_limit_s", "energy_weight"}):
                    yield from self._goal_orders(goals)
                # what is asked for later waits until it serves
                self._models.ask(steering, self.router, max(goal.floor for goal in self.goals))
        except InputError as error:
            self._run.say(f"serve: {error}")

    def _router_orders(self, name: str) -> Iterator[Order]:
        """Yield the order for a router; one that can't be made is reported, and changes nothing."""
        try:
            policy = self.policy(name, takes_over=True)
        except InputError as error:
            self._run.say(f"serve: {error}; the router stays as it was")
            return
        yield policy
        self.router = name
        self._journal.note("router", f"serve: {display_name(name)} decides from now on", router=display_name(name))
        self.warn_of_floor()

    def _goal_orders(self, goals: Mapping[str, float]) -> Iterator[Order]:
        if self._run.scenario.classes:
            self._run.say(
                "serve: each class keeps what `classes` promises it; no other goals are taken while it serves"
            )
            return
        self._current = current = self._current._replace(**goals)
        yield from self.goals
        limit = (
            f"p99 latency of {1000 * current.p99_limit_s:g} ms" if current.p99_limit_s else "no limit of p99 latency"
        )
        energy = f", {current.energy_weight:g} points a joule" if current.energy_weight else ""
        text = f"serve: asked for from now on: accuracy {current.floor:.2%}, {limit}{energy}"
        self._journal.note("goals", text, **goals)
        self._warn_of([*goals])

    def warn_of_floor(self) -> None:
        """Warn if a floor is promised that the router can't follow."""
        if any(goal.floor for goal in self.goals):
            self._warn_of(["floor"])

    def _warn_of(self, goals: Sequence[str]) -> None:
        for warning in routers_ignoring(goals, [self.router], self._run.folder.path):
            self._run.say(f"serve: {warning}")


@contextmanager
def _stopping(journal: Journal) -> Iterator[Callable[[], bool]]:
    """Make SIGTERM and Ctrl-C a request to stop, which it yields; the second one ends the work at once."""
    is_requested = is_noted = False

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal is_requested
        if is_requested:
            raise KeyboardInterrupt
        is_requested = True

    def wants_stop() -> bool:
        nonlocal is_noted
        if is_requested and not is_noted:  # not in the signal's handler: a line may be half written at that moment
            is_noted = True
            journal.note("stopping")
        return is_requested

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield wants_stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
