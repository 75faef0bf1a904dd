"""Whole scenarios for two engines to agree on: a cluster, a run, and a policy that knows nothing but its views.

Times are multiples of one step, so that many events share an instant; sizes are tiny, so that a run is a few hundred
events and one difference is found in seconds. The devices' tables are written down rather than compiled from curves:
only so do durations meet on the grid.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import product
from math import inf
from typing import Any

import msgspec
import numpy as np

from policies.faults import Crash, Fault, Hang, Outage, Poison, Slowness, Squeeze, Supervision
from policies.greedy_scheduler import GreedyParams, Spec
from policies.interfaces import AccuracyPrior, RewardWeights, RouterConfig, RoutingPolicy, accuracies_of
from policies.router_names import make_router
from policies.rules.compass import CompassRule, Numbers
from policies.rules.rule_context import RouterContext, working_sets
from policies.rules.rule_parts import ControlSpec
from policies.vocabulary import FOLLOW_NS, NS_PER_S, BatchingDelay, BatchingDelayRule, Choice, ClusterView, GoalSet
from sim.device_model import crowding
from sim.device_profile import JITTER_QUANTILES, Link, Profile
from sim.device_tables import (
    BatchKey,
    CpuWorkTable,
    DeviceTables,
    InstanceTable,
    KeyTable,
    ProfileCosts,
    SlowdownTable,
    compile_tables,
)
from sim.host_and_network import FREE, Attachment, HostTable
from sim.simulated_cluster import BernoulliCorrectness, ClusterSpec, Correctness, MatrixCorrectness, RunSpec
from sim.simulated_server import ServerSpec
from tests import tiny
from tests.parity.draws import Draws, SeededDraws

IMAGE_BYTES = 3000
CONTEXT_BYTES = 100
STEPS_NS = (1_000_000, 1000, 7, 1)
WIDTH_SETS: tuple[tuple[float, ...], ...] = ((1.0,), (0.5, 1.0), (0.25, 0.5, 1.0), (0.25, 0.5, 0.75, 1.0))
POLICIES = (
    "first",
    "random",
    "one",
    "random",
    "sticky",
    "least-work",
    "shortest-delay",
    "jsq",
    "power-of-two",
    "round-robin",
    "ladder:1,2,4@least-work",
    "slackfit",
    "slackfit@jsq",
)


@dataclass(frozen=True)
class Scenario:
    """What both engines run; `choices` are a script's (by decision number) before the named policy takes over."""

    name: str
    cluster: ClusterSpec
    run: RunSpec
    policy_name: str = "first"
    choices: Mapping[int, Choice] = field(default_factory=dict)
    holds_percent: int = 0
    batching_delay_rule: BatchingDelayRule | None = None
    own_limit_ns: int = FOLLOW_NS
    wanders: bool = False

    def policy(self) -> RoutingPolicy:
        """A fresh one: routers may have memory. In some of a hundred decisions it holds, where it may."""
        chooser = self._chooser()
        return (
            Holder(chooser, self.cluster.router.micro_batch_sizes[-1], self.holds_percent)
            if self.holds_percent
            else chooser
        )

    def _chooser(self) -> RoutingPolicy:
        chooser = self._plain_chooser()
        return Wanderer(chooser, self.cluster.router) if self.wanders else chooser

    def _plain_chooser(self) -> RoutingPolicy:
        config = self.cluster.router
        if self.policy_name == "first":
            return Script(config, self.choices)
        if self.policy_name == "one":
            return OneServer(config)
        if self.policy_name == "compass":
            return drawn_compass(SeededDraws(self.run.seed)).chooser(self.context())
        return make_router(self.policy_name, self.context())

    def context(self) -> RouterContext:
        cluster = self.cluster
        costs = ProfileCosts(
            [cluster.devices[server.device] for server in cluster.servers],
            [server.params.batch_limit for server in cluster.servers],
            [server.attachment for server in cluster.servers],
        )
        deadline_ns = self.run.deadlines_ns[0]
        deadline_s = None if deadline_ns is None else deadline_ns / NS_PER_S
        limits_w = tuple(cluster.devices[server.device].cap_mw / 1000 for server in cluster.servers)
        context = RouterContext(cluster.router, costs, cluster.prior, limits_w, deadline_s, cluster.micro_batch_ns)
        params = [server.params for server in cluster.servers]
        return replace(context, working_sets=working_sets(context, params, cluster.prior.mean_accuracy))


@dataclass
class Holder:
    """Holds some of the candidates, for some of what is left; else another router chooses."""

    router: RoutingPolicy
    most: int
    percent: int

    def choose(self, view: ClusterView, rng: np.random.Generator) -> Choice | BatchingDelay:
        if view.batching_delay_left_ns > 0 and rng.random() * 100 < self.percent:
            more = int(rng.integers(view.candidates + 1, self.most + 1))
            return BatchingDelay(more, int(rng.integers(1, 2 * view.batching_delay_left_ns + 1)))
        return self.router.choose(view, rng)


@dataclass
class Wanderer:
    """Lets the micro-batches of another router pass some more segments at their server, at any widths."""

    router: RoutingPolicy
    config: RouterConfig

    def choose(self, view: ClusterView, rng: np.random.Generator) -> Choice | BatchingDelay:
        choice, head = self.router.choose(view, rng), view.head
        if isinstance(choice, BatchingDelay):
            return choice
        masks, then = self.config.masks()[choice.server], list[float]()
        for segment in range(head.segment + 1, 1 + int(rng.integers(head.segment, self.config.segments + 1))):
            mask = masks[self.config.place_of(segment, head.service_class)]
            widths = [width for width, can in zip(self.config.widths, mask, strict=True) if can]
            if not widths:
                break
            then.append(widths[int(rng.integers(len(widths)))])
        return msgspec.structs.replace(choice, then=tuple(then))


def held(config: RouterConfig, view: ClusterView, server: int) -> list[float]:
    """The widths that a server can hold of the head's segment."""
    return [width for width, can in zip(config.widths, view.servers[server].widths, strict=True) if can]


@dataclass
class Script:
    """Given choices by decision number, where they are valid; else the first valid server, narrow, all candidates."""

    config: RouterConfig
    choices: Mapping[int, Choice]
    decision: int = 0

    def choose(self, view: ClusterView, rng: np.random.Generator) -> Choice:
        self.decision += 1
        given = self.choices.get(self.decision)
        if given is not None and view.servers[given.server].valid:
            return given
        first = next(index for index, server in enumerate(view.servers) if server.valid)
        return Choice(first, held(self.config, view, first)[0], self.config.micro_batch_sizes[-1])


@dataclass
class OneServer:
    """Mostly the busiest valid server, so that queues, scaling up and evictions happen; width and group at random."""

    config: RouterConfig

    def choose(self, view: ClusterView, rng: np.random.Generator) -> Choice:
        valid = [index for index, server in enumerate(view.servers) if server.valid]
        busiest = max(valid, key=lambda index: view.servers[index].outstanding_requests)
        server = busiest if rng.random() < 0.8 else valid[rng.integers(len(valid))]
        widths = held(self.config, view, server)
        return Choice(
            server,
            widths[rng.integers(len(widths))],
            self.config.micro_batch_sizes[rng.integers(3) % len(self.config.micro_batch_sizes)],
        )


# ------------------------------------------------------------------------------------------------------------- tables


@lru_cache(maxsize=256)
def shape(segments: int, widths: tuple[float, ...], kind: str) -> Profile:
    """A profile for what tables take from it: the model's shape, the bare idle power, the kind of device."""
    found = tiny.profile("grid", segments=segments, widths=widths, batches=(1, 8), power=POWER)
    device = found.device.model_copy(update={"kind": kind})
    activation_bytes = tuple(tuple(int(1000 * s + 2000 * w) for w in widths) for s in range(1, segments + 1))
    model = found.model.model_copy(update={"input_bytes": IMAGE_BYTES, "activation_bytes": activation_bytes})
    return found.model_copy(update={"device": device, "model": model})


POWER = {"bare_idle_w": 10.0, "context_idle_w": 30.0, "cap_w": 250.0, "provenance": "datasheet"}


@lru_cache(maxsize=16)
def crowding_table(beta: float) -> tuple[float, ...]:
    return tuple(crowding(x / 1000, beta) for x in range(64_001))


def batch_keys(segments: int, widths: Sequence[float]) -> list[BatchKey]:
    """Every (segment, width, previous width)."""
    return [(s, w, p) for s in range(1, segments + 1) for w in widths for p in ((0.0,) if s == 1 else widths)]


@dataclass(frozen=True)
class Device:
    """One device's tables in a few numbers; times in nanoseconds."""

    segments: int
    widths: tuple[float, ...]
    limit: int = 8
    kind: str = "cuda"
    base_ns: int = 2000
    image_ns: int = 1000
    width_ns: int = 0
    demand: tuple[int, int] = (100, 0)
    host: tuple[int, int] = (50, 0)
    busy: tuple[int, int] = (100, 0)
    bandwidth: tuple[float, float] = (0.1, 0.0)
    power_mw: tuple[float, float] = (20_000.0, 0.0)
    alpha: float = 0.0
    beta: float = 1.0
    across_beta: float = 1.0
    most_at_once: float = inf
    most_processes: float = inf
    jitter: tuple[float, ...] = ()
    slowdown: SlowdownTable | None = None
    mean_slowdown: float = 1.0
    load_ns: int = 3000
    reload_ns: int = 2000
    unload_ns: int = 1000
    dispatch_ns: int = 0
    there_ns: int = 0
    back_ns: int = 0
    busy_dispatch_ns: int | None = None  # the same as on an idle device
    busy_there_ns: int | None = None
    busy_back_ns: int | None = None
    extra_ns: tuple[int, ...] = (0,) * 4
    fetch_ns: int = 0
    cpu_work: CpuWorkTable | None = None
    cpu_work_mw: float = 0.0
    cpu_work_permille: int = 0
    beside_load: float = 1.0
    cap_mw: float = 250_000.0
    throttle: float = 0.0
    phi_min: float = 1.0
    period_ns: int = 10_000
    lag_ns: int = 0
    windows: tuple[int, int] = (1, 1)
    padded_sizes: tuple[int, ...] = ()
    name: str = "grid"

    def tables(self) -> DeviceTables:
        return DeviceTables(
            name=self.name,
            profile=shape(self.segments, self.widths, self.kind),
            batch_limit=self.limit,
            keys={key: self._key_table(*key) for key in batch_keys(self.segments, self.widths)},
            instances={
                (s, w): InstanceTable(self.vram(s, w), self.load_ns, self.reload_ns, self.unload_ns)
                for s, w in product(range(1, self.segments + 1), self.widths)
            },
            slowdown=self.slowdown,
            mean_slowdown=self.mean_slowdown,
            alpha=self.alpha,
            crowding=crowding_table(self.beta),
            crowding_across=crowding_table(self.across_beta),
            hosted=self.kind == "cpu",
            most_at_once=self.most_at_once,
            most_processes=self.most_processes,
            dispatch_ns=self.dispatch_ns,
            context_idle_mw=30_000.0,
            awake_mw=0.0 if self.kind == "cpu" else 8_000.0,
            awake_ns=0 if self.kind == "cpu" else 5_000,
            cap_mw=self.cap_mw,
            throttle=self.throttle,
            phi_min=self.phi_min,
            period_ns=self.period_ns,
            lag_ns=self.lag_ns,
            power_window=self.windows[0],
            utilization_window=self.windows[1],
            padded_sizes=self.padded_sizes,
            there_ns=self.there_ns,
            back_ns=self.back_ns,
            busy_dispatch_ns=self.dispatch_ns if self.busy_dispatch_ns is None else self.busy_dispatch_ns,
            busy_there_ns=self.there_ns if self.busy_there_ns is None else self.busy_there_ns,
            busy_back_ns=self.back_ns if self.busy_back_ns is None else self.busy_back_ns,
            extra_ns=self.extra_ns,
            fetch_ns=self.fetch_ns,
            cpu_work=self.cpu_work,
            cpu_work_mw=self.cpu_work_mw,
            cpu_work_permille=self.cpu_work_permille,
            beside_load=self.beside_load,
        )

    def vram(self, segment: int, width: float) -> int:
        """Bytes of an instance: wider and later ones are larger."""
        return int(40 * width) + 2 * segment

    def _key_table(self, segment: int, width: float, previous: float) -> KeyTable:
        sizes = range(1, self.limit + 1)
        rank = self.widths.index(width)
        latency_ns = [self.base_ns + self.image_ns * b + self.width_ns * (rank + segment % 2) for b in sizes]

        def line(numbers: tuple[int, int]) -> tuple[int, ...]:
            return (0, *(min(1000, numbers[0] + numbers[1] * b) for b in sizes))

        scale = 0.3 + 0.7 * width + 0.1 * previous
        return KeyTable(
            latency_ns=(0, *latency_ns),
            typical_ns=(0, *latency_ns),
            demand_permille=line(self.demand),
            host_permille=line(self.host),
            busy_permille=line(self.busy),
            bandwidth=(0.0, *(min(1.0, self.bandwidth[0] * scale + self.bandwidth[1] * b) for b in sizes)),
            power_mw=(0.0, *(self.power_mw[0] * scale + self.power_mw[1] * b for b in sizes)),
            jitter=(self.jitter,) * (self.limit + 1) if self.jitter else (),
        )


JITTERS: tuple[tuple[float, ...], ...] = (
    (0.5,) * 8 + (1.0,) * 16 + (2.0,) * 9,  # on the grid, more or less
    tuple(float(x) for x in np.linspace(0.7, 1.9, JITTER_QUANTILES)),
)


@lru_cache(maxsize=32)
def compiled_device(segments: int, widths: tuple[float, ...], jitter: bool, metric: str, kind: str) -> DeviceTables:
    """Tables that were compiled from a profile's curves, with everything that a profile can have."""
    found = tiny.profile(
        "curves",
        segments=segments,
        widths=widths,
        batches=(1, 3, 8),
        base_s=3e-6,
        per_image_s=1e-6,
        alpha=0.4,
        beta=1.3,
        load_s=4e-6,
        dispatch_s=5e-7,
        jitter=JITTERS[1] if jitter else (),
        served_extra_s=3e-7,
        padded_sizes=(1, 3, 8),
        device={"kind": kind, "name": "toy", "vram_bytes": 8_000_000_000},
        power={**POWER, "cap_w": 60.0, "throttle": 0.8, "phi_min": 0.4},
        sensor={"period_s": 9e-6, "lag_s": 4e-6, "power_window_s": 3e-5, "utilization_window_s": 1.7e-5},
        slowdown={"slow_factor": 1.7, "slow_share": 0.3, "mean_slow_s": 2e-5, "provenance": "measured"},
    )
    model = found.model.model_copy(update={"input_bytes": IMAGE_BYTES})
    instances = tuple(
        cost.model_copy(update={"vram_bytes": int(40 * cost.width) + 2 * cost.segment})
        for cost in found.memory.instances
    )
    memory = found.memory.model_copy(update={"instances": instances, "context_bytes": CONTEXT_BYTES})
    latency = tuple(
        curve.model_copy(
            update={"sm_utilization": tuple(0.3 * u for u in curve.utilization), "energy_j_per_image": (1e-4,) * 3}
        )
        for curve in found.latency
    )
    whole = found.model_copy(update={"model": model, "memory": memory, "latency": latency})
    return compile_tables(whole, 8, jitter=jitter, util_metric="sm" if metric == "sm" else "nvml")


def grid_cluster(
    devices: Sequence[Device | DeviceTables],
    on: Sequence[int] = (),
    *,
    params: Sequence[Mapping[str, object]] = ({},),
    media: Sequence[str] = (),
    links: Sequence[Link] = (FREE,),
    router: Mapping[str, object] | None = None,
    can_always: bool = False,
    **changes: object,
) -> ClusterSpec:
    """A cluster of servers on `on` (a device index each; one server a device by default).

    Args:
        parameters, links: for each server in turn, again from the first where there are more servers.
        media: each server's medium; its own where none is named.
        can_always: the router is told that every server can hold everything, whatever its memory.
    """
    tables = [device.tables() if isinstance(device, Device) else device for device in devices]
    on = on or range(len(tables))
    model = tables[0].profile.model
    servers = tuple(
        ServerSpec(
            f"s{index}",
            device,
            make_params(tables[device], params[index % len(params)]),
            Attachment(media[index] if media else f"m{index}", links[index % len(links)]),
        )
        for index, device in enumerate(on)
    )
    fits = tuple(
        tuple(
            tuple(can_always or server.params.can_hold((s, w)) for w in model.widths)
            for s in range(1, model.segments + 1)
        )
        for server in servers
    )
    config = RouterConfig(segments=model.segments, widths=model.widths, fits=fits, **(router or {}))  # type: ignore[arg-type]
    defaults: dict[str, object] = {
        "decision_ns": 0,
        "weights": RewardWeights(1.3, 700.0, 0.3, 0.7, 0.11, True),
        "prior": full_prior(model.segments, model.widths),
    }
    merged = {**defaults, **changes}
    config = replace(config, accuracies=accuracies_of(config, merged["prior"]))  # type: ignore[arg-type]
    return ClusterSpec(tuple(tables), servers, config, **merged)  # type: ignore[arg-type]


def make_params(tables: DeviceTables, changes: Mapping[str, object]) -> GreedyParams:
    """Algorithm 1's parameters for tables of tiny instances; what is to be preloaded is cut to what fits."""
    instance_bytes = {spec: cost.vram_bytes for spec, cost in tables.instances.items()}
    merged: dict[str, object] = {
        "widths": tables.profile.model.widths,
        "instance_bytes": instance_bytes,
        "context_bytes": CONTEXT_BYTES,
        "batch_limit": tables.batch_limit,
        "vram_cap_bytes": 10_000,
        "idle_unload_ns": None,
        "utilization_block": 2.0,
        **changes,
    }
    preload: list[Spec] = []
    free = int(str(merged["vram_cap_bytes"])) - CONTEXT_BYTES
    wanted: Sequence[Spec] = merged.pop("preload", ())  # type: ignore[assignment]
    for spec in wanted:
        if instance_bytes[spec] <= free:
            preload.append(spec)
            free -= instance_bytes[spec]
    return GreedyParams(**merged, preload=tuple(preload))  # type: ignore[arg-type]


@lru_cache(maxsize=64)
def full_prior(segments: int, widths: tuple[float, ...]) -> AccuracyPrior:
    """A number for every tuple, wide ones better."""
    return AccuracyPrior({t: 0.4 + 0.53 * sum(t) / segments + 0.01 * t[0] for t in product(widths, repeat=segments)})


@lru_cache(maxsize=64)
def sparse_prior(segments: int, widths: tuple[float, ...]) -> AccuracyPrior:
    """A few tuples: the others take their nearest neighbour's."""
    tuples = list(product(widths, repeat=segments))
    return AccuracyPrior({t: 0.3 + 0.6 * sum(t) / segments for t in tuples[:: max(1, len(tuples) // 3)]})


# ------------------------------------------------------------------------------------------------------------ drawing


def draw_scenario(draws: Draws, name: str) -> Scenario:
    step_ns = draws.pick(STEPS_NS)
    segments = draws.pick((1, 2, 3, 4))
    widths = draws.pick(WIDTH_SETS)
    servers = draws.pick((1, 2, 3, 3, 4, 2, 5, 8, 16))
    kinds = [_draw_device(draws, step_ns, segments, widths, servers) for _ in range(draws.pick((1, 2, 3)))]
    devices = [draws.pick(kinds) for _ in range(draws.integer(1, servers))]
    on = [draws.below(len(devices)) for _ in range(servers)]
    devices = [device for index, device in enumerate(devices) if index in on]
    on = [sorted(set(on)).index(device) for device in on]
    params = [_draw_params(draws, step_ns, segments, widths) for _ in range(draws.pick((1, 2)))]
    media, links = _draw_network(draws, step_ns, servers)
    params = [_fit_limit(param, devices) for param in params]
    cluster = grid_cluster(
        devices,
        on,
        params=params,
        media=media,
        links=links,
        router={
            "micro_batch_sizes": draws.pick(((1, 2, 4, 8, 16, 32), (1,), (1, 2), (3,), (2, 8))),
            "outstanding_micro_batches": draws.pick((2, 1, 3, 4)),
            "micro_batch_key": draws.pick(("location", "any")),
            "max_retries": draws.pick((3, 2, 1, 0)),
            "shed_expired": draws.chance(40),
        },
        can_always=draws.chance(10),
        decision_ns=step_ns * draws.pick((0, 1, 2, 5)),
        host=_draw_host(draws, step_ns, len(devices)) if draws.chance(50) else None,
        weights=draws.pick((RewardWeights(1.3, 700.0, 0.3, 0.7, 0.11, True), RewardWeights(0.9, 2.0, 1e3, 3.0, -0.2))),
        prior=(sparse_prior if draws.chance(25) else full_prior)(segments, widths),
        supervision=Supervision(
            hang_ns=step_ns * draws.pick((3, 0, 8, 15)),
            backoff_ns=step_ns * draws.pick((1, 0, 2)),
            backoff_limit_ns=step_ns * draws.pick((4, 1)),
            stable_ns=step_ns * draws.pick((20, 5)),
            start_ns=step_ns * draws.pick((2, 0, 6)),
        ),
    )
    run = _draw_run(draws, step_ns, cluster)
    found = Scenario(name, cluster, run, draws.pick(POLICIES))
    found = _with_holds(draws, step_ns, found) if draws.chance(50) else found
    return _with_goals(draws, step_ns, found) if draws.chance(40) else found


def draw_with_compass(draws: Draws, name: str) -> Scenario:
    """One in which, at times, Compass decides, or requests have classes; what is drawn last changes nothing else."""
    found = draw_scenario(draws, name)
    found = replace(found, policy_name="compass") if draws.chance(10) else found
    found = with_classes(draws, found) if draws.chance(30) else found
    found = as_a_family(found) if draws.chance(25) else found
    found = sampled(found, draws.pick((1, 2, 3))) if draws.chance(30) else found
    found = in_racks(found) if draws.chance(25) else found
    found = of_two_models(draws, found) if draws.chance(30) else found
    is_wandering = draws.chance(40) and found.policy_name != "compass"
    return replace(found, name=f"{found.name}, wandering", wanders=True) if is_wandering else found


def as_a_family(scenario: Scenario) -> Scenario:
    """One in which an instance serves its own width alone."""
    cluster = scenario.cluster
    return replace(scenario, cluster=replace(cluster, servers=_nested(cluster, (1,) * len(cluster.router.widths))))


def _nested(cluster: ClusterSpec, nests: tuple[int, ...]) -> tuple[ServerSpec, ...]:
    return tuple(replace(server, params=replace(server.params, nests=nests)) for server in cluster.servers)


def of_two_models(draws: Draws, scenario: Scenario) -> Scenario:
    """One of two models, to which the first widths and the others belong, and classes of either; each has tuples."""
    found = scenario if scenario.cluster.router.classes else with_classes(draws, scenario)
    cluster, router = found.cluster, found.cluster.router
    if len(router.widths) == 1:
        return found
    first = draws.integer(1, len(router.widths) - 1)
    models = (router.widths[:first], router.widths[first:])
    router = replace(router, models=models, model_of=tuple(draws.below(2) for _ in router.classes))
    prior = full_prior(router.segments, router.widths)
    router = replace(router, accuracies=accuracies_of(router, prior))
    cluster = replace(cluster, prior=prior, router=router, servers=_nested(cluster, tuple(map(len, models))))
    return replace(found, name=f"{found.name}, of two models", cluster=cluster)


def sampled(scenario: Scenario, samples: int) -> Scenario:
    """One in which a decision looks at so many servers."""
    cluster = scenario.cluster
    router = replace(cluster.router, samples=samples)
    return replace(scenario, name=f"{scenario.name}, sampled", cluster=replace(cluster, router=router))


def in_racks(scenario: Scenario) -> Scenario:
    """One whose servers stand in two racks, one behind the other; an uplink is as the first server's link."""
    cluster = scenario.cluster
    uplink = cluster.servers[0].attachment.link.model_copy(update={"loss": 0.0})
    servers = tuple(
        replace(server, attachment=replace(server.attachment, rack="xy"[index % 2], uplink=uplink))
        for index, server in enumerate(cluster.servers)
    )
    return replace(scenario, name=f"{scenario.name}, in racks", cluster=replace(cluster, servers=servers))


def with_classes(draws: Draws, scenario: Scenario) -> Scenario:
    """Two or three classes, each with a deadline of its own; every goal is one's, and there are some more."""
    run, router, step_ns = scenario.run, scenario.cluster.router, scenario.run.horizon_ns // 7 + 1
    count = draws.pick((2, 3))
    first = run.deadlines_ns[0]
    goals = [(at_ns, msgspec.structs.replace(goal, service_class=draws.below(count))) for at_ns, goal in run.goals]
    goals += [
        (0, msgspec.structs.replace(_draw_goal(draws, max(1, step_ns // 20)), service_class=number))
        for number in range(count)
        if draws.chance(60)
    ]
    changed = replace(
        run,
        classes=np.array([draws.below(count) for _ in run.arrivals_ns], np.int64),
        deadlines_ns=tuple(draws.pick((first, None, step_ns)) for _ in range(count)),
        goals=tuple(sorted(goals, key=lambda goal: goal[0])),
    )
    names = ("gold", "silver", "bronze")[:count]
    cluster = replace(scenario.cluster, router=replace(router, classes=names))
    return replace(scenario, cluster=cluster, run=changed)


def _with_goals(draws: Draws, step_ns: int, scenario: Scenario) -> Scenario:
    """What the operator asks for changes at some instants, two of which may be one."""
    last = min(40, scenario.run.horizon_ns // step_ns)
    when = sorted(draws.below(last + 1) for _ in range(draws.integer(1, 4)))
    goals = tuple((step_ns * at, _draw_goal(draws, step_ns)) for at in when)
    own_ns = step_ns * draws.pick((0, 4, 12)) if draws.chance(25) else FOLLOW_NS
    sustained_img_s = draws.pick((0.0, 0.0, 0.2, 1.0)) * 1e9 / step_ns  # within the limit: from one image to sixty
    cluster = replace(scenario.cluster, router=replace(scenario.cluster.router, sustained_img_s=sustained_img_s))
    return replace(scenario, cluster=cluster, run=replace(scenario.run, goals=goals), own_limit_ns=own_ns)


def drawn_compass(draws: Draws) -> CompassRule:
    """Any numbers, with which widths differ; goals are the operator's, or nearly none of them its own."""
    control = None
    if draws.chance(70):
        floor, weight = draws.pick((None, 0.35, 0.0)), draws.pick((None, 1e-3, 1e3, 1e6))
        control = ControlSpec(floor=floor, energy_weight=weight)
    level, rise = draws.pick((-1.0, -1.7, -0.5, -3.0)), draws.pick((0.7, 0.0, 0.3, 2.0))
    numbers = Numbers(level=level, rise=rise)
    return CompassRule(numbers=numbers, control=control)


def _draw_goal(draws: Draws, step_ns: int) -> GoalSet:
    floor, weight = draws.pick((0.0, 0.6, 0.75, 0.9)), draws.pick((0.0, 0.5, 20.0))
    return GoalSet(floor, step_ns * draws.pick((0, 3, 8, 20, 60)), weight)


def _with_holds(draws: Draws, step_ns: int, scenario: Scenario) -> Scenario:
    cluster, segments = scenario.cluster, scenario.cluster.router.segments
    limit_ns = step_ns * draws.pick((10, 3, 40, 1))
    rule = BatchingDelayRule(
        tuple(draws.pick((2, 1, 4, 8)) for _ in range(segments)),
        tuple(step_ns * draws.pick((2, 5, 0, 9)) for _ in range(segments)),
    )
    percent, has_rule = draws.pick((0, 20, 60)), draws.chance(60)
    if percent == 20:  # nothing is drawn for this, so that what follows stays what it was
        rule = msgspec.structs.replace(rule, arrivals_ns=tuple(count * limit_ns // 2 for count in rule.requests))
    return replace(
        scenario,
        cluster=replace(cluster, router=replace(cluster.router, max_batching_delay_ns=limit_ns)),
        holds_percent=percent,
        batching_delay_rule=rule if has_rule else None,
    )


def _fit_limit(params: dict[str, object], devices: Sequence[Device | DeviceTables]) -> dict[str, object]:
    """A batch limit that every device's tables cover, and sizes to pad to that reach it and are covered, too."""
    smallest = min(device.limit if isinstance(device, Device) else device.batch_limit for device in devices)
    limit = min(int(str(params["batch_limit"])), smallest)
    padded: tuple[int, ...] = (limit,) if params["padded_sizes"] == (0,) else ()
    if params["padded_sizes"] == (0, 0):
        padded = tuple(sorted({min(2, limit), limit, smallest}))
    return {**params, "batch_limit": limit, "padded_sizes": padded}


def _draw_device(
    draws: Draws, step_ns: int, segments: int, widths: tuple[float, ...], servers: int
) -> Device | DeviceTables:
    if draws.chance(15) and step_ns == 1000:  # the step that its curves are of
        kind = draws.pick(("cuda", "cpu"))
        return compiled_device(segments, widths, draws.chance(60), draws.pick(("nvml", "sm")), kind)
    has_power_cap = draws.chance(40)
    period = draws.pick((5, 2, 3, 8, 20, 1)) * (1 + servers // 5)
    device = Device(
        segments,
        widths,
        limit=draws.pick((4, 1, 2, 3, 8)),
        kind=draws.pick(("cuda", "cpu")),
        base_ns=step_ns * draws.pick((1, 2, 0, 4)) + (step_ns // 3 + 1 if draws.chance(20) else 0),
        image_ns=step_ns * draws.pick((1, 2)),
        width_ns=step_ns * draws.pick((0, 1)),
        demand=draws.pick(((200, 0), (1000, 0), (300, 150), (0, 70), (990, 7))),
        host=draws.pick(((100, 0), (0, 0), (600, 50), (1000, 0))),
        busy=draws.pick(((300, 0), (1000, 0), (100, 33), (0, 0))),
        bandwidth=draws.pick(((0.1, 0.0), (0.0, 0.0), (0.31, 0.07), (0.7, 0.1))),
        power_mw=draws.pick(((20_000.0, 0.0), (33_333.3, 1234.5), (90_000.1, 0.7), (0.0, 0.0))),
        alpha=draws.pick((0.0, 0.3, 1.7)),
        beta=draws.pick((1.0, 0.0, 0.73, 1.5)),
        across_beta=draws.pick((1.0, 1.21)),
        most_at_once=draws.pick((inf, 1, 2)),
        most_processes=draws.pick((inf, 1)),
        jitter=draws.pick(JITTERS) if draws.chance(35) else (),
        slowdown=_draw_slowdown(draws, step_ns) if draws.chance(25) else None,
        mean_slowdown=draws.pick((1.0, 1.0, 1.37)),
        load_ns=step_ns * draws.pick((2, 0, 1, 7)),
        reload_ns=step_ns * draws.pick((1, 0, 3)),
        unload_ns=step_ns * draws.pick((1, 0, 4)),
        dispatch_ns=step_ns * draws.pick((0, 1, 2)),
        cap_mw=draws.pick((41_000.0, 60_000.0, 75_000.3)) if has_power_cap else 250_000.0,
        throttle=draws.pick((0.7, 3.0)) if has_power_cap else 0.0,
        phi_min=draws.pick((0.3, 0.8)) if has_power_cap else 1.0,
        period_ns=step_ns * period,
        lag_ns=step_ns * draws.pick((0, 1, period, 2 * period, 3 * period, period + 1)),
        windows=(draws.pick((1, 2, 5)), draws.pick((1, 3))),
        there_ns=step_ns * draws.pick((0, 0, 1, 2, 5)),
        back_ns=step_ns * draws.pick((0, 0, 1, 3, 9)),
        **(_draw_serving(draws, step_ns) if draws.chance(35) else {}),
    )
    beside_load = {7: 3.3, 1: 1.31}.get(device.load_ns // step_ns, 1.0)  # drawn with the load's time
    return replace(device, beside_load=beside_load)


def _draw_serving(draws: Draws, step_ns: int) -> dict[str, Any]:
    """What serving takes while passes run, and what else a server's process does."""
    taken, moved, begun, ended = ((step_ns * draws.pick((1, 0, 2)), step_ns * draws.pick((0, 0, 1))) for _ in range(4))
    taken_after = tuple((taken[0] * times, taken[1] * times) for times in (1, 1, 2, 3))
    return {
        "busy_dispatch_ns": step_ns * draws.pick((0, 1, 2, 9)),
        "busy_there_ns": step_ns * draws.pick((0, 1, 3, 9)),
        "busy_back_ns": step_ns * draws.pick((0, 1, 2, 5)),
        "cpu_work": CpuWorkTable(taken_after, moved, begun, ended, step_ns * draws.pick((0, 1, 3)))
        if draws.chance(70)
        else None,
        "extra_ns": draws.pick(((0,) * 4, (0, step_ns, 2 * step_ns, 7 * step_ns))),
        "fetch_ns": step_ns * draws.pick((0, 0, 2, 9)),
        "cpu_work_mw": draws.pick((0.0, 44_000.5)),
        "cpu_work_permille": draws.pick((0, 500, 1000)),
    }


def _draw_host(draws: Draws, step_ns: int, devices: int) -> HostTable:
    """A router's process; the last spread puts its costs off the grid."""
    costs = [(step_ns * draws.pick((1, 0, 2)), step_ns * draws.pick((0, 1))) for _ in range(2)]
    spread = draws.pick(((), (0.0, 1.0, 2.0), (0.5, 1.5), (0.37, 0.81, 1.82)))
    place = (costs[0][0] + costs[1][0]) // step_ns  # drawn with the costs
    sent_permille, received_permille = (1000, 0, 400, 333)[place % 4], (1000, 250, 0, 600, 77)[place % 5]
    after_pause = draws.pick(((1.0,) * 4, (1.0, 1.5, 2.0, 3.1)))
    shared = tuple(range(draws.integer(1, devices))) if draws.chance(30) else ()
    return HostTable(costs[0], costs[1], spread, sent_permille, received_permille, after_pause, shared)


def _draw_slowdown(draws: Draws, step_ns: int) -> SlowdownTable:
    factor = draws.pick((2.0, 1.0, 1.31, 3.0))
    full = tuple(step_ns * (1 + (7 * i) % 11) for i in range(draws.pick((1, 4, 8))))
    slow = tuple(step_ns * (1 + (5 * i) % 7) for i in range(draws.pick((1, 4, 8))))
    return SlowdownTable(factor, full, slow)


def _draw_params(draws: Draws, step_ns: int, segments: int, widths: tuple[float, ...]) -> dict[str, object]:
    specs = list(product(range(1, segments + 1), widths))
    largest = int(40 * widths[-1]) + 2 * segments
    vram_cap_bytes = CONTEXT_BYTES + draws.pick(
        (5000, largest + 20, largest, 2 * largest, 3 * largest, 2 * largest + 7, largest - 3)
    )
    wanted: Sequence[Spec] = ()
    if draws.chance(40):
        wanted = specs if draws.chance(50) else [draws.pick(specs) for _ in range(2)]
    return {
        "batch_limit": draws.pick((8, 1, 2, 4)),
        "padded_sizes": draws.pick(((), (), (0,), (0, 0))),
        "vram_cap_bytes": vram_cap_bytes,
        "utilization_block": draws.pick((2.0, 0.95, 0.3, 0.0)),
        "idle_unload_ns": draws.pick((None, 0, 2 * step_ns, 6 * step_ns, 15 * step_ns)),
        "scale_trigger": draws.pick((64, 0, 1, 3)),
        "scale_cap": draws.pick((2, 0, 1, 3)),
        "head_of_line": draws.pick(("skip", "wait")),
        "skip_limit_ns": step_ns * draws.pick((500, 0, 3, 10)),
        "served_width": draws.pick(("requested", "instance")),
        "preload": tuple(wanted),
        "load_retries": draws.pick((3, 1, 2)),
        "load_backoff_ns": step_ns * draws.pick((2, 0, 1)),
    }


def _draw_network(draws: Draws, step_ns: int, servers: int) -> tuple[list[str], list[Link]]:
    step_s = step_ns / NS_PER_S
    shared = draws.pick((servers, 1, 2, 3))
    media = [f"m{index % shared}" for index in range(servers)]
    links: list[Link] = []
    for _ in range(draws.pick((1, 2, 3))):
        loss = draws.pick((0.0, 0.0, 0.05, 0.4))
        latency_s = draws.pick((0.0, 1.0, 2.0, 5.0)) * step_s
        bandwidth = draws.pick((inf, 1000.0, 6000.0, 700.0)) / step_s
        links.append(Link.model_construct(latency_s=latency_s, bandwidth_bytes_s=bandwidth, loss=loss))
    return media, links


def _draw_run(draws: Draws, step_ns: int, cluster: ClusterSpec) -> RunSpec:
    now, times = 0, []
    for _ in range(draws.integer(1, draws.pick((6, 12, 30)))):
        now += draws.pick((0, 1, 2, 3, 5, 10, 20, 40))
        times += [now] * draws.pick((1, 2, 1, 3, 1, 5, 8, 16))
    times = times[:150]
    horizon = max(times) + draws.pick((0, 1, 20, 60))
    config = cluster.router
    tuples = list(product(config.widths, repeat=config.segments))
    correctness: Correctness = BernoulliCorrectness(cluster.prior, draws.below(1000))
    if draws.chance(40):
        matrix = np.arange(7 * len(tuples)).reshape(7, len(tuples)) * 37 % 11 < 6
        correctness = MatrixCorrectness(tuples, matrix, np.arange(len(times)) * 3 % 7)
    faults = tuple(
        _draw_fault(draws, step_ns, cluster, horizon, len(times)) for _ in range(draws.pick((0, 0, 0, 1, 2, 4, 6)))
    )
    slowdowns: dict[int, tuple[tuple[int, float], ...]] = {}
    if draws.chance(20):
        when = sorted(draws.below(horizon + 1) for _ in range(draws.integer(1, 5)))
        slowdowns[draws.below(len(cluster.devices))] = tuple(
            (step_ns * at, draws.pick((2.0, 1.0, 1.43))) for at in when
        )
    return RunSpec(
        arrivals_ns=np.array(times, dtype=np.int64) * step_ns,
        horizon_ns=horizon * step_ns,
        correctness=correctness,
        end=draws.pick(("drain", "drain", "drain", "cut")),
        drain_limit_ns=step_ns * draws.pick((1000, 1000, 1000, 1000, 60, 0)),
        deadlines_ns=(_draw_deadline(draws, step_ns),),
        faults=faults,
        slowdowns=slowdowns,
        seed=draws.below(1000),
        detail=not draws.chance(15),
    )


def _draw_deadline(draws: Draws, step_ns: int) -> int | None:
    return step_ns * draws.pick((100, 30, 0, 3, 10)) if draws.chance(35) else None


def _draw_fault(draws: Draws, step_ns: int, cluster: ClusterSpec, horizon: int, requests: int) -> Fault:
    server = draws.below(len(cluster.servers))
    start = draws.below(min(horizon, 40) + 1)
    at_ns, end_ns = start * step_ns, (start + draws.pick((3, 1, 10, 25, 60))) * step_ns
    kind = draws.pick((Crash, Outage, Slowness, Hang, Squeeze, Poison))
    if kind is Outage:
        return Outage(server, at_ns, None if draws.chance(15) else end_ns)
    if kind is Slowness:
        return Slowness(server, at_ns, end_ns, draws.pick((2.0, 3.7, 1.0)))
    if kind is Squeeze:
        return Squeeze(server, start // 2 * step_ns, end_ns, draws.pick((1, 0, 2, 3)))
    if kind is Poison:
        return Poison(frozenset(draws.below(requests) for _ in range(draws.integer(1, 6))))
    return Hang(server, at_ns) if kind is Hang else Crash(server, at_ns)
