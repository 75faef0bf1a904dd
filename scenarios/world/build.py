"""Builds what a scenario describes: the cluster both worlds run, the workload, and routers by name.

It is where spec, profiles and accuracy meet; it opens no file and measures nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hw.accuracy import MEASURED, PAPER, AccuracyProvenance, AccuracyTable, Evaluation
from policies.chance import derived_seed, stream
from policies.errors import InputError
from policies.faults import Crash, Fault, Hang, Outage, Poison, Slowness, Squeeze, Supervision
from policies.greedy import GreedyKnobs
from policies.interfaces import RouterConfig, RoutingPolicy
from policies.names import make_router
from policies.reward import AccuracyPrior, RewardWeights
from policies.rules.context import RouterContext
from policies.tide.knobs import KIND as TIDE
from policies.vocabulary import IMAGE, Provenance, WorkKey
from scenarios.files.reading import (
    ROUTER_SUFFIX,
    RULE_SUFFIX,
    TRAINED_ROUTER,
    check_fault_server,
    read_rates,
    read_rule,
    read_trace,
)
from scenarios.files.spec import (
    GB,
    ChaosFault,
    DeviceSection,
    DiurnalWorkload,
    FlashWorkload,
    GammaWorkload,
    GreedySection,
    LinkSection,
    MmppWorkload,
    MomentFault,
    OutOfMemoryFault,
    PoisonedFault,
    RatesWorkload,
    Scenario,
    ServerDownFault,
    ServerSection,
    SpanFault,
    StragglerFault,
    TraceWorkload,
    WorkerHungFault,
    WorkerKilledFault,
)
from scenarios.metrics.result import Simulator
from scenarios.metrics.signatures import SignatureContext, context_of
from sim import workload
from sim.accuracy import BernoulliCorrectness, Correctness, MatrixCorrectness
from sim.cluster import ClusterSpec, RunSpec, Simulation
from sim.costs import ProfileCosts
from sim.network import FREE, LINKS, PRESETS, SHARED_PRESETS, Attachment, Network
from sim.profile import Link, Profile
from sim.server import ServerSpec
from sim.tables import DeviceTables, compile_tables, nanoseconds

if TYPE_CHECKING:
    from hw.device import DeviceSpec
    from sim.compiled.simulation import CompiledSimulation

ASSUMED_DECISION_S = 100e-6  # where no profile has measured it
DRAIN_LIMIT_S = 60.0
MOST_IMAGES = 1e8


@dataclass(frozen=True)
class Accuracy:
    """What is known of the network's accuracy: the prior, and the images it got right where it was evaluated.

    Without an evaluation the prior is the paper's table, and labels are drawn from it.
    """

    prior: AccuracyPrior
    evaluation: Evaluation | None = None

    @classmethod
    def of(cls, table: AccuracyTable) -> Accuracy:
        """From a table's file."""
        return cls(AccuracyPrior(table.top1()), table if isinstance(table, Evaluation) else None)

    @property
    def provenance(self) -> AccuracyProvenance:
        """Whether labels are those of a network, or drawn from the paper's table."""
        return PAPER if self.evaluation is None else MEASURED

    @property
    def image_count(self) -> int:
        """Test images that requests are drawn from."""
        return len(self.evaluation.correct) if self.evaluation is not None else 1


@dataclass(frozen=True)
class World:
    """A scenario with its numbers: ready to simulate, or to run on the hardware it was calibrated on.

    Attributes:
        profiles: one a server, in the cluster's order.
        capacity_img_s: the cluster's estimated capacity, in which `load` is given.
    """

    scenario: Scenario
    profiles: tuple[Profile, ...]
    accuracy: Accuracy
    cluster: ClusterSpec
    costs: ProfileCosts
    capacity_img_s: float

    @property
    def rate_img_s(self) -> float | None:
        """The workload's mean rate (of a flash crowd: the rate outside it); None for a trace."""
        given = self.scenario.workload
        if isinstance(given, TraceWorkload):
            return None
        if given.rate_img_s is not None:
            return given.rate_img_s
        assert given.load is not None, "checked on reading"
        return given.load * self.capacity_img_s

    @property
    def mean_rate_img_s(self) -> float | None:
        """Images expected to arrive over the scenario's length, a second; None for a trace."""
        given, rate = self.scenario.workload, self.rate_img_s
        if rate is not None and isinstance(given, FlashWorkload):
            return rate * given.mean_factor(self.scenario.duration_s)
        return rate

    @property
    def provenance(self) -> Provenance:
        """Of what rests on all the profiles: the weakest of any of their parts."""
        parts = [(p.provenance, p.power.provenance, p.concurrency.provenance) for p in self.profiles]
        return Provenance.weakest(*(provenance for part in parts for provenance in part))

    @property
    def device_names(self) -> tuple[str, ...]:
        """Each server's."""
        return tuple(profile.device.name for profile in self.profiles)

    @property
    def signature_context(self) -> SignatureContext:
        """What failures of a run are told by."""
        return context_of(self.cluster, self.costs)

    @property
    def power_provenance(self) -> Provenance:
        """Where the watts come from."""
        return Provenance.weakest(*(profile.power.provenance for profile in self.profiles))

    def arrivals_ns(
        self,
        seed: int,
        horizon_s: float,
        scale: float = 1.0,
        *,
        tuning: bool = False,
        part: tuple[int, int] = (0, 1),
    ) -> NDArray[np.int64]:
        """Arrival times of one run, `scale` times the workload's rate; `tuning`, `part`: see `run_spec`."""
        rng = stream(seed, "arrivals")
        given = self.scenario.workload
        if isinstance(given, TraceWorkload):
            times_s = read_trace(Path(given.file), given.time_column)
            return workload.trace(times_s.tolist(), given.factor * scale, horizon_s)
        assert self.rate_img_s is not None, "only a trace has no rate"
        rate = self.rate_img_s * scale
        start_s = self._excerpt_s(seed, horizon_s, part) if tuning else 0.0
        match given:
            case MmppWorkload():
                return workload.mmpp(rate, given.burst_factor, given.burst_share, given.dwell_s, horizon_s, rng)
            case GammaWorkload():
                return workload.gamma(rate, given.cv, horizon_s, rng)
            case DiurnalWorkload():
                return workload.diurnal(rate, given.amplitude, given.period_s, horizon_s, rng, start_s=start_s)
            case RatesWorkload():
                file = (given.tuning_file if tuning else None) or given.file
                levels = read_rates(Path(file), given.column)
                return workload.rates(levels, rate, given.period_s, horizon_s, rng, start_s=start_s)
            case FlashWorkload():
                shape = (given.factor, given.at_s - start_s, given.rise_s, given.hold_s, given.fall_s)
                return workload.flash(rate, *shape, horizon_s, rng)
            case _:
                return workload.poisson(rate, horizon_s, rng)

    def _excerpt_s(self, seed: int, horizon_s: float, part: tuple[int, int]) -> float:
        """Where in the scenario a run for tuning begins: anywhere from which it does not reach beyond the end."""
        number, parts = part
        longest_s = max(0.0, self.scenario.duration_s - horizon_s)
        return longest_s * (number + float(stream(seed, "excerpt").uniform())) / parts

    def images(self, seed: int, count: int) -> NDArray[np.int64]:
        """Which test image each request is."""
        return stream(seed, "images").integers(self.accuracy.image_count, size=count)

    def run_spec(
        self,
        seed: int,
        *,
        duration_s: float | None = None,
        scale: float = 1.0,
        detail: bool = True,
        keep_log: bool = False,
        end: str | None = None,
        paces: Mapping[int, tuple[tuple[int, float], ...]] | None = None,
        tuning: bool = False,
        part: tuple[int, int] = (0, 1),
    ) -> RunSpec:
        """One run of the scenario's workload; `paces`: see `RunSpec`.

        With `tuning` it is one for training or tuning a router on: a `rates` workload plays its `tuning_file`, and a
        run shorter than the scenario is an excerpt that begins at a random time of it, so that curves, crowds and
        faults late in the scenario are met as well: at any time, or in one part (number, of how many) of all times.
        """
        scenario = self.scenario
        horizon_s = duration_s or scenario.duration_s
        if (self.mean_rate_img_s or 0.0) * scale * horizon_s > MOST_IMAGES:
            expected = (self.mean_rate_img_s or 0.0) * scale * horizon_s
            problem = f"{expected:.3g} images in one run; allowed are {MOST_IMAGES:.0e}"
            raise InputError(scenario.name, "workload", f"{problem}: shorten duration_s or lower the rate")
        arrivals_ns = self.arrivals_ns(seed, horizon_s, scale, tuning=tuning, part=part)
        if len(arrivals_ns) == 0:
            raise InputError(scenario.name, "workload", f"no image arrives within {horizon_s:g} s; raise the rate")
        return RunSpec(
            arrivals_ns=arrivals_ns,
            horizon_ns=nanoseconds(horizon_s),
            correctness=self._correctness(seed, len(arrivals_ns)),
            end="cut" if (end or scenario.end) == "cut" else "drain",
            drain_limit_ns=nanoseconds(DRAIN_LIMIT_S),
            deadline_ns=None if scenario.deadline_s is None else nanoseconds(scenario.deadline_s),
            faults=self._faults(seed, horizon_s, len(arrivals_ns), tuning, part),
            paces=paces or {},
            seed=seed,
            detail=detail,
            keep_log=keep_log,
        )

    def _correctness(self, seed: int, count: int) -> Correctness:
        evaluation = self.accuracy.evaluation
        if evaluation is None:
            return BernoulliCorrectness(self.accuracy.prior, derived_seed(seed, "correct"))
        return MatrixCorrectness(evaluation.tuples, evaluation.correct, self.images(seed, count))

    def _faults(
        self, seed: int, horizon_s: float, requests: int, tuning: bool, part: tuple[int, int]
    ) -> tuple[Fault, ...]:
        """What the scenario plans, and what it leaves to chance, for one run."""
        names = [server.name for server in self.cluster.servers]
        start_s = self._excerpt_s(seed, horizon_s, part) if tuning else 0.0
        poison, chaos = stream(seed, "poison"), stream(seed, "chaos")
        faults: list[Fault] = []
        for index, fault in enumerate(self.scenario.faults):
            match fault:
                case PoisonedFault(share=share):
                    drawn = np.flatnonzero(poison.random(requests) < share)
                    faults.append(Poison(frozenset(drawn.tolist())))
                case ChaosFault():
                    faults.extend(_chaos(fault, len(names), nanoseconds(horizon_s), chaos))
                case _:
                    check_fault_server(fault.server, names, self.scenario.name, index)
                    if (met := _from(fault, start_s)) is not None:
                        faults.append(_planned(met, names.index(fault.server)))
        return tuple(faults)

    def emulated_links(self, seed: int) -> Network | None:
        """A network for real executors that stand closer together than the scenario says; None where none is needed.

        What a server's own link was `measured` to take, its transfers take anyway: there it costs nothing.
        """
        links = [server.link for server in self.scenario.cluster.named_servers]
        if all(link == "measured" for link in links):
            return None
        attachments = tuple(
            replace(server.attachment, link=FREE) if link == "measured" else server.attachment
            for server, link in zip(self.cluster.servers, links, strict=True)
        )
        return Network(attachments, derived_seed(seed, LINKS))

    @property
    def supervision(self) -> Supervision:
        """How workers are watched and brought back, in both worlds."""
        return self.cluster.supervision

    def simulation(self, run: RunSpec, engine: Simulator = "simpy") -> Simulation | CompiledSimulation:
        """A simulation that is ready to start; on either engine it is the same one, bit for bit.

        Raises:
            UnsupportedScenario: the compiled engine can't do what the run asks for; the reference can.
        """
        if engine == "simpy":
            return Simulation(self.cluster, run)
        from sim.compiled.simulation import CompiledSimulation  # who does not ask for it need not wait for numba

        return CompiledSimulation(self.cluster, run)

    @property
    def context(self) -> RouterContext:
        """What a router may be built from."""
        return RouterContext(
            config=self.cluster.router,
            costs=self.costs,
            prior=self.accuracy.prior,
            power_limits_w=tuple(profile.power.cap_w for profile in self.profiles),
            deadline_s=self.scenario.deadline_s,
        )

    def router(self, name: str, trained: Path | None = None, key: str = "router") -> RoutingPolicy:
        """A fresh router by name; `ppo` is the file `trained`, and names with a router's or rule's ending are files.

        Raises:
            InputError: unknown, not trained yet, or trained for another cluster.
        """
        source = self.scenario.name
        if name.endswith(RULE_SUFFIX):
            return read_rule(Path(name), source, key).make(self.context, name)
        if name != TRAINED_ROUTER and not name.endswith(ROUTER_SUFFIX):
            return make_router(name, self.context, source, key)
        path = trained if name == TRAINED_ROUTER else Path(name)
        if path is None or not path.is_file():
            raise InputError(source, key, f"{name}: no trained router at hand; run `slimsched train` first")
        from policies.ppo import checkpoint  # rules must not wait for what reads files of weights
        from policies.ppo.router import PPORouter

        if checkpoint.kind_of(path) == TIDE:
            from policies.tide.router import TideRouter  # it needs numba

            return TideRouter.load(path, self.context)
        mode = self.scenario.training.deterministic if name == TRAINED_ROUTER else None  # other files have their own
        return PPORouter.load(path, self.cluster.router, deterministic=mode, devices=self.device_names)


def build_world(scenario: Scenario, profiles: Mapping[str, Profile], accuracy: Accuracy) -> World:
    """Join a scenario (with its servers named, not `auto`) with a profile for each server and the accuracy.

    Raises:
        InputError: a profile is of another network, does not cover the batch limit, or its device is too small.
    """
    servers = scenario.cluster.named_servers
    owners = {server.name: server.shares_device_with or server.name for server in servers}
    devices = [name for name, owner in owners.items() if name == owner]
    of_server = tuple(profiles[owners[server.name]] for server in servers)
    _require_one_network(scenario, servers, of_server)
    tables = {name: _tables(scenario, name, profiles[name], owners) for name in devices}
    specs = tuple(
        ServerSpec(
            name=server.name,
            device=devices.index(owners[server.name]),
            knobs=_knobs(scenario, server, tables[owners[server.name]], list(owners.values())),
            attachment=_attachment(server, profiles[owners[server.name]]),
        )
        for server in servers
    )
    cluster = ClusterSpec(
        devices=tuple(tables[name] for name in devices),
        servers=specs,
        router=_router_config(scenario, specs, of_server[0]),
        decision_ns=nanoseconds(_decision_s(scenario, of_server)),
        decision_busy_ns=nanoseconds(_decision_busy_s(scenario, of_server)),
        weights=RewardWeights(**scenario.reward.model_dump()),
        prior=accuracy.prior,
        supervision=_supervision(scenario),
    )
    costs = ProfileCosts(
        [tables[owners[server.name]] for server in servers],
        [spec.knobs.batch_limit for spec in specs],
        [spec.attachment for spec in specs],
    )
    return World(scenario, of_server, accuracy, cluster, costs, estimated_capacity_img_s(cluster, costs))


def estimated_capacity_img_s(cluster: ClusterSpec, costs: ProfileCosts) -> float:
    """The rate at which every device would be busy all the time with full batches at full width.

    An upper estimate, from the profiles alone: no queue, no link and no load time is in it. `slimsched capacity`
    finds the largest rate that is really stable with a given router.
    """
    full = cluster.router.widths[-1]
    keys = [WorkKey(s, full, IMAGE if s == 1 else full) for s in range(1, cluster.router.segments + 1)]
    first_on_device = {spec.device: index for index, spec in reversed(list(enumerate(cluster.servers)))}
    return sum(1.0 / sum(costs.image_s(server, key) for key in keys) for server in first_on_device.values())


def device_section(device: DeviceSpec) -> DeviceSection:
    """A device as a scenario would name it."""
    return DeviceSection(
        kind=device.kind,
        cores=device.cores,
        threads=device.threads,
        onednn=device.onednn,
        index=device.index,
        idle_w=device.idle_w,
        tdp_w=device.tdp_w,
        vram_gb=device.vram_bytes / GB,
    )


def with_local_servers(scenario: Scenario, devices: list[DeviceSpec]) -> Scenario:
    """`cluster.servers: auto` spelled out: a server for each device of this machine."""
    if scenario.cluster.servers != "auto":
        return scenario
    sections = tuple(
        ServerSection(
            name=f"gpu{device.index}" if device.kind == "cuda" else f"cpu{number}",
            device=device_section(device),
        )
        for number, device in enumerate(devices)
    )
    return scenario.model_copy(update={"cluster": scenario.cluster.model_copy(update={"servers": sections})})


def _from(fault: SpanFault | MomentFault, start_s: float) -> SpanFault | MomentFault | None:
    """A fault as a run that begins at `start_s` meets it; None where it is over by then."""
    if isinstance(fault, MomentFault):
        return fault.model_copy(update={"at_s": fault.at_s - start_s}) if fault.at_s >= start_s else None
    end_s = None if fault.end_s is None else fault.end_s - start_s
    if end_s is not None and end_s <= 0:
        return None
    return fault.model_copy(update={"start_s": max(0.0, fault.start_s - start_s), "end_s": end_s})


def _planned(fault: SpanFault | MomentFault, server: int) -> Fault:
    match fault:
        case WorkerKilledFault(at_s=at_s):
            return Crash(server, nanoseconds(at_s))
        case WorkerHungFault(at_s=at_s):
            return Hang(server, nanoseconds(at_s))
        case ServerDownFault(start_s=start_s, end_s=end_s):
            return Outage(server, nanoseconds(start_s), None if end_s is None else nanoseconds(end_s))
        case StragglerFault(start_s=start_s, end_s=end_s, factor=factor):
            return Slowness(server, nanoseconds(start_s), nanoseconds(end_s), factor)
        case OutOfMemoryFault(start_s=start_s, end_s=end_s, batch=batch):
            return Squeeze(server, nanoseconds(start_s), nanoseconds(end_s), batch)


def _chaos(fault: ChaosFault, servers: int, horizon_ns: int, rng: np.random.Generator) -> Iterator[Fault]:
    """Deaths and hangs with exponential gaps until the horizon."""
    at_ns = 0
    while (at_ns := at_ns + nanoseconds(rng.exponential(fault.mean_gap_s))) < horizon_ns:
        server = int(rng.integers(servers))
        kind = fault.kinds[int(rng.integers(len(fault.kinds)))]
        yield Crash(server, at_ns) if kind == "worker_killed" else Hang(server, at_ns)


def _supervision(scenario: Scenario) -> Supervision:
    given = scenario.supervision
    return Supervision(
        hang_ns=nanoseconds(given.hang_s),
        stuck_ns=nanoseconds(given.stuck_s),
        backoff_ns=nanoseconds(given.backoff_s),
        backoff_limit_ns=nanoseconds(given.backoff_limit_s),
        stable_ns=nanoseconds(given.stable_s),
        start_ns=nanoseconds(given.start_s),
    )


def _require_one_network(scenario: Scenario, servers: tuple[ServerSection, ...], profiles: tuple[Profile, ...]) -> None:
    first = profiles[0].model
    for server, profile in zip(servers, profiles, strict=True):
        if profile.model.hash != first.hash:
            problem = (
                f"the profile of {server.name!r} is of model {profile.model.name} ({profile.model.hash[:12]}), "
                f"that of {servers[0].name!r} of {first.name} ({first.hash[:12]}); calibrate both with one model"
            )
            raise InputError(scenario.name, "cluster.servers", problem)


def _tables(scenario: Scenario, name: str, profile: Profile, owners: Mapping[str, str]) -> DeviceTables:
    sharing = [server for server in scenario.cluster.named_servers if owners[server.name] == name]
    knobs = [scenario.cluster.greedy_of(server) for server in sharing]
    limit = max(knob.batch_limit for knob in knobs)
    return compile_tables(profile, limit, jitter=scenario.jitter, util_metric=knobs[0].util_metric)


def _knobs(scenario: Scenario, server: ServerSection, tables: DeviceTables, owners: list[str]) -> GreedyKnobs:
    given = scenario.cluster.greedy_of(server)
    profile = tables.profile
    shares = owners.count(server.shares_device_with or server.name)
    cap_gb = given.vram_cap_gb
    cap_bytes = profile.device.vram_bytes // shares if cap_gb is None else int(cap_gb * GB)
    knobs = GreedyKnobs(
        widths=profile.model.widths,
        instance_bytes={spec: cost.vram_bytes for spec, cost in tables.instances.items()},
        context_bytes=profile.memory.context_bytes,
        batch_limit=given.batch_limit,
        vram_cap_bytes=cap_bytes,
        utilization_block=given.utilization_block,
        idle_unload_ns=None if given.idle_unload_s is None else nanoseconds(given.idle_unload_s),
        scale_trigger=given.scale_trigger,
        scale_cap=given.scale_cap,
        head_of_line=given.head_of_line,
        skip_limit_ns=nanoseconds(given.skip_limit_s),
        served_width=given.served_width,
        padded_sizes=tables.padded_sizes,
    )
    everything = knobs.context_bytes + sum(knobs.instance_bytes.values())
    if knobs.head_of_line == "block" and knobs.idle_unload_ns is None and everything > cap_bytes:
        problem = "with `head_of_line: block` nothing is evicted, so without idle unloads full memory is a deadlock"
        remedy = f"give idle_unload_s, or {everything / GB:.2f} GB to {server.name!r}"
        raise InputError(scenario.name, "cluster.greedy.idle_unload_s", f"{problem}; {remedy}")
    return replace(knobs, preload=_preload(scenario, server, given, knobs))


def _preload(
    scenario: Scenario, server: ServerSection, given: GreedySection, knobs: GreedyKnobs
) -> tuple[tuple[int, float], ...]:
    if isinstance(given.preload, str):
        wanted = tuple(sorted(knobs.instance_bytes)) if given.preload == "all" else ()
    else:
        wanted = given.preload
    needed = knobs.context_bytes + sum(knobs.instance_bytes[spec] for spec in wanted)
    if needed > knobs.vram_cap_bytes:
        problem = f"needs {needed / GB:.2f} GB, the cap of {server.name!r} is {knobs.vram_cap_bytes / GB:.2f} GB"
        raise InputError(scenario.name, "cluster.greedy.preload", f"{problem}; preload less or raise vram_cap_gb")
    return wanted


def _attachment(server: ServerSection, profile: Profile) -> Attachment:
    own = f"link:{server.name}"
    given = server.link
    if isinstance(given, LinkSection):
        link = Link(latency_s=given.latency_s, bandwidth_bytes_s=given.bandwidth_bytes_s, loss=given.loss)
        return Attachment(given.medium or own, link)
    if given == "measured":
        assert profile.link is not None, "checked on reading, and calibration measures it"
        return Attachment(own, profile.link)
    return Attachment(given if given in SHARED_PRESETS else own, PRESETS[given])


def _router_config(scenario: Scenario, servers: tuple[ServerSpec, ...], profile: Profile) -> RouterConfig:
    model, given = profile.model, scenario.router
    holds = tuple(
        tuple(tuple(server.knobs.can_hold((s, w)) for w in model.widths) for s in range(1, model.segments + 1))
        for server in servers
    )
    for segment in range(1, model.segments + 1):
        if not any(any(server[segment - 1]) for server in holds):
            caps = ", ".join(f"{server.name} {server.knobs.vram_cap_bytes / GB:g} GB" for server in servers)
            problem = f"no server can hold segment {segment} at any width (caps: {caps}); raise vram_cap_gb"
            raise InputError(scenario.name, "cluster.greedy.vram_cap_gb", problem)
    return RouterConfig(
        segments=model.segments,
        widths=model.widths,
        holds=holds,
        groups=given.groups,
        outstanding_blocks=given.outstanding_blocks,
        block_key=given.block_key,
        max_retries=given.max_retries,
        shed_expired=scenario.shed,
    )


def _decision_busy_s(scenario: Scenario, profiles: tuple[Profile, ...]) -> float:
    """Nothing beyond the decision itself where the scenario says how long that is, or no profile has measured it."""
    if not isinstance(scenario.router.decision_s, str):
        return 0.0
    return max((profile.decision_busy_s or 0.0 for profile in profiles), default=0.0)


def _decision_s(scenario: Scenario, profiles: tuple[Profile, ...]) -> float:
    if not isinstance(scenario.router.decision_s, str):
        return scenario.router.decision_s
    measured = [profile.decision_s for profile in profiles if profile.decision_s is not None]
    return max(measured, default=ASSUMED_DECISION_S)
