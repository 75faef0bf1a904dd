"""A scenario as objects that simulation and executors are built from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hw.networks.accuracy_table import MEASURED, PAPER, AccuracyProvenance, AccuracyTable, Evaluation
from kit.errors import InputError
from kit.random_streams import derived_seed, stream
from policies.faults import Crash, Fault, Hang, Poison
from policies.interfaces import AccuracyPrior, RoutingPolicy, nests_of
from policies.router_kinds import COMPASS
from policies.rules.compass import CompassRule
from policies.rules.rule_context import RouterContext, held_accuracies, working_sets
from policies.vocabulary import GoalSet, Provenance, nanoseconds
from scenarios.experiment.scenario_routers import MADE_WITH, RouterMaker, maker_of, of_router, require_same
from scenarios.experiment.workloads import Play, Series, TraceSlice, arrivals_ns, series_of, warnings_of
from scenarios.files.bundled_files import made_kind
from scenarios.files.router_files import code_of, display_name, made_by
from scenarios.files.scenario_keys import ChaosFault, MomentFault, PoisonedFault, Scenario, SpanFault
from scenarios.files.scenario_reading import check_fault_server
from scenarios.metrics.failure_signs import SignatureContext, context_of
from scenarios.metrics.run_result import Simulator
from sim.device_profile import Profile, emulated_slowdowns
from sim.device_tables import ProfileCosts
from sim.host_and_network import FREE, LINKS, Interconnect
from sim.simulated_cluster import BernoulliCorrectness, ClusterSpec, Correctness, MatrixCorrectness, RunSpec, Simulation

if TYPE_CHECKING:
    from sim.compiled.compiled_simulation import CompiledSimulation

ASSUMED_DECISION_S = 100e-6  # if no profile has measured it
DRAIN_LIMIT_S = 60.0
MAX_IMAGES = 1e8


@dataclass(frozen=True)
class NetworkAccuracy:
    """What is known of the network's accuracy: the prior, and the images it got right if it was evaluated.

    Without an evaluation the prior is the paper's table, and predictions are drawn from it.
    """

    prior: AccuracyPrior
    evaluation: Evaluation | None = None

    @classmethod
    def of(cls, table: AccuracyTable) -> NetworkAccuracy:
        """Read what a table's file holds."""
        return cls(AccuracyPrior(table.top1()), table if isinstance(table, Evaluation) else None)

    @property
    def provenance(self) -> AccuracyProvenance:
        """Whether predictions are those of a network, or drawn from the paper's table."""
        return PAPER if self.evaluation is None else MEASURED

    @property
    def image_count(self) -> int:
        """Test images that requests are drawn from."""
        return len(self.evaluation.correct) if self.evaluation is not None else 1


@dataclass(frozen=True)
class Experiment:
    """A scenario with its numbers: ready to simulate, or to run on the devices it was calibrated on.

    Attributes:
        profiles: one a server, in the cluster's order.
        capacity_img_s: the cluster's estimated capacity, in which `load` is given.
        decision_times_s: by router, as tables name it, what its own decisions take beyond what the cluster charges
            for each.
        dials: by router, as tables name it, where its dial is set (`RouterSpec.dialled`); the others are as they are.
        series: what the workload's files hold, if they were read (`with_series`); runs read the others.
    """

    scenario: Scenario
    profiles: tuple[Profile, ...]
    accuracy: NetworkAccuracy
    cluster: ClusterSpec
    costs: ProfileCosts
    capacity_img_s: float
    decision_times_s: Mapping[str, float] = field(default_factory=dict)
    series: Series = field(default_factory=dict)
    dials: Mapping[str, float] = field(default_factory=dict)

    def with_series(self) -> Experiment:
        """Return the same experiment with what its workload's files hold: it can be simulated where those are not."""
        return self if self.series else replace(self, series=series_of(self.scenario.workload))

    def with_dials(self, dials: Mapping[str, float]) -> Experiment:
        """Return the same experiment with these; see `dials`."""
        return replace(self, dials=dict(dials))

    def with_decision_times(self, times_s: Mapping[str, float]) -> Experiment:
        """Return the same experiment with these; see `decision_times_s`."""
        return replace(self, decision_times_s=dict(times_s))

    def decided_by(self, router: str) -> Experiment:
        """Return the experiment with that router's own decision time charged in simulation."""
        own_ns = nanoseconds(self.decision_times_s.get(router, 0.0))
        if not own_ns:
            return self
        return replace(self, cluster=replace(self.cluster, decision_ns=self.cluster.decision_ns + own_ns))

    def decision_parts(self, routers: Sequence[str]) -> list[Any]:
        """Return what of it runs with these routers (named as in tables) read; nothing if nothing is charged."""
        return sorted((name, self.decision_times_s[name]) for name in routers if name in self.decision_times_s)

    @property
    def rate_img_s(self) -> float | None:
        """The workload's mean rate (of a flash crowd: the rate outside it); None for a trace."""
        return self.scenario.workload.base_img_s(self.capacity_img_s)

    @property
    def mean_rate_img_s(self) -> float | None:
        """Images expected to arrive over the scenario's length, a second; None for a trace."""
        rate_img_s = self.rate_img_s
        return None if rate_img_s is None else rate_img_s * self.scenario.workload.mean_factor(self.scenario.duration_s)

    @property
    def provenance(self) -> Provenance:
        """The weakest provenance of any part of the profiles: all that rests on them has it."""
        parts = [
            (profile.provenance, profile.power.provenance, profile.concurrency.provenance) for profile in self.profiles
        ]
        return Provenance.weakest(*(provenance for part in parts for provenance in part))

    def profile_of(self, server: str) -> Profile:
        """Return the profile of the server with that name."""
        names = [each.name for each in self.scenario.cluster.named_servers]
        return self.profiles[names.index(server)]

    @property
    def device_names(self) -> tuple[str, ...]:
        """The device name of each server; a slowed device has another name."""
        slowdowns = [profile.device.emulated_slowdown or 1.0 for profile in self.profiles]
        names = [profile.device.name for profile in self.profiles]
        return tuple(
            f"{name} x{slowdown:g}" if slowdown > 1 else name for name, slowdown in zip(names, slowdowns, strict=True)
        )

    @property
    def emulated_slowdowns(self) -> tuple[float, ...]:
        """The slowdowns of the devices that are emulated, ascending, each once."""
        return emulated_slowdowns(self.profiles)

    @property
    def signature_context(self) -> SignatureContext:
        """The context by which failures of a run are detected."""
        return context_of(self.cluster, self.costs)

    @property
    def power_provenance(self) -> Provenance:
        """The origin of the watts."""
        return Provenance.weakest(*(profile.power.provenance for profile in self.profiles))

    def arrivals_ns(
        self, seed: int, horizon_s: float, scale: float = 1.0, trace_slice: TraceSlice | None = None
    ) -> NDArray[np.int64]:
        """Return arrival times of one run, `scale` times the workload's rate; `trace_slice`: see `run_spec`."""
        rate_img_s, start_s = (self.rate_img_s or 0.0) * scale, self._start_s(seed, horizon_s, trace_slice)
        play = Play(
            rate_img_s, scale, horizon_s, start_s, trace_slice is not None, stream(seed, "arrivals"), self.series
        )
        return arrivals_ns(self.scenario.workload, play)

    def trace_doubts(self, duration_s: float | None = None) -> list[str]:
        """Return what is odd about a trace in a run of `duration_s` (by default the scenario's), with what to write."""
        return warnings_of(self.scenario.workload, duration_s or self.scenario.duration_s, self.series)

    def _start_s(self, seed: int, horizon_s: float, trace_slice: TraceSlice | None) -> float:
        return 0.0 if trace_slice is None else trace_slice.start_s(seed, self.scenario.duration_s, horizon_s)

    def class_of(self, seed: int, count: int) -> NDArray[np.int64] | None:
        """Return the class of each of `count` requests of one run; None if all are of one."""
        if not self.scenario.classes:
            return None
        edges = np.cumsum([each.share for each in self.scenario.classes[:-1]])
        return np.searchsorted(edges, stream(seed, "classes").random(count), side="right")

    def images(self, seed: int, count: int) -> NDArray[np.int64]:
        """Return which test image each request is."""
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
        slowdowns: Mapping[int, tuple[tuple[int, float], ...]] | None = None,
        trace_slice: TraceSlice | None = None,
    ) -> RunSpec:
        """Return one run of the scenario's workload; `slowdowns`: see `RunSpec`.

        With a `trace_slice` it is one for training or tuning a router on: a `rates` workload plays its `tuning_file`,
        and a run shorter than the scenario begins at a random time of that part of it, so that curves, crowds and
        faults late in the scenario are met as well.
        """
        scenario = self.scenario
        horizon_s = duration_s or scenario.duration_s
        if (self.mean_rate_img_s or 0.0) * scale * horizon_s > MAX_IMAGES:
            expected = (self.mean_rate_img_s or 0.0) * scale * horizon_s
            problem = f"{expected:.3g} images in one run; expected at most {MAX_IMAGES:.0e}"
            raise InputError(scenario.name, "workload", f"{problem}: shorten duration_s or lower the rate")
        arrived_ns = self.arrivals_ns(seed, horizon_s, scale, trace_slice)
        if len(arrived_ns) == 0:
            raise InputError(scenario.name, "workload", f"no image arrives within {horizon_s:g} s; raise the rate")
        names, start_s = [server.name for server in self.cluster.servers], self._start_s(seed, horizon_s, trace_slice)
        return RunSpec(
            arrivals_ns=arrived_ns,
            horizon_ns=nanoseconds(horizon_s),
            correctness=self._correctness(seed, len(arrived_ns)),
            end="cut" if (end or scenario.end) == "cut" else "drain",
            drain_limit_ns=nanoseconds(DRAIN_LIMIT_S),
            classes=self.class_of(seed, len(arrived_ns)),
            deadlines_ns=tuple(None if each is None else nanoseconds(each) for each in scenario.deadlines_s),
            faults=faults_of(scenario, names, seed, start_s, horizon_s, len(arrived_ns)),
            slowdowns=slowdowns or {},
            goals=self._goals(start_s, horizon_s),
            seed=seed,
            detail=detail,
            keep_log=keep_log,
        )

    def _goals(self, start_s: float, horizon_s: float) -> tuple[tuple[int, GoalSet], ...]:
        """Return what the operator asks for and when, in a run that begins at `start_s` of the scenario."""
        if self.scenario.classes:
            return tuple((0, goal) for goal in self.class_goals)
        goals: list[tuple[int, GoalSet]] = [(0, GoalSet())]
        for change in self.scenario.slo.goals(self.scenario.tuning.floor):
            goal = GoalSet(change.floor, nanoseconds(change.p99_limit_s), change.energy_weight)
            if change.at_s <= start_s:
                goals = [(0, goal)]
            elif change.at_s < start_s + horizon_s:
                goals.append((nanoseconds(change.at_s - start_s), goal))
        return tuple(goals[1:] if goals[0][1] == GoalSet() else goals)

    @property
    def class_goals(self) -> tuple[GoalSet, ...]:
        """The operator's goals for each class, which hold all the time."""
        weight = self.scenario.slo.energy_weight
        return tuple(
            GoalSet(each.floor or 0.0, nanoseconds(each.p99_limit_s or 0.0), weight, number)
            for number, each in enumerate(self.scenario.classes)
        )

    def _correctness(self, seed: int, count: int) -> Correctness:
        evaluation = self.accuracy.evaluation
        if evaluation is None:
            return BernoulliCorrectness(self.accuracy.prior, derived_seed(seed, "correct"))
        return MatrixCorrectness(evaluation.tuples, evaluation.correct, self.images(seed, count))

    def emulated_links(self, seed: int) -> Interconnect | None:
        """Return a network for real executors closer together than the scenario's; None if none is needed.

        What a server's own link was `measured` to take, its transfers take anyway: there it costs nothing.
        """
        links = [server.link for server in self.scenario.cluster.named_servers]
        if all(link == "measured" for link in links):
            return None
        attachments = tuple(
            replace(server.attachment, link=FREE) if link == "measured" else server.attachment
            for server, link in zip(self.cluster.servers, links, strict=True)
        )
        return Interconnect(attachments, derived_seed(seed, LINKS))

    def simulation(self, run: RunSpec, engine: Simulator = "simpy") -> Simulation | CompiledSimulation:
        """Return a simulation that is ready to start; on either engine it is the same one, bit for bit.

        Raises:
            UnsupportedScenario: the compiled engine can't do what the run asks for; the reference can.
        """
        if engine == "simpy":
            return Simulation(self.cluster, run)
        from sim.compiled.compiled_simulation import CompiledSimulation  # imported late: numba is slow to import

        return CompiledSimulation(self.cluster, run)

    @cached_property
    def held_accuracies(self) -> Mapping[tuple[float, ...], float]:
        """The accuracy of each width tuple that servers can hold (`policies.rules.rule_context.held_accuracies`)."""
        return held_accuracies(self.context)

    @cached_property
    def context(self) -> RouterContext:
        """The inputs that a router may be built from."""
        context = RouterContext(
            config=self.cluster.router,
            costs=self.costs,
            prior=self.accuracy.prior,
            power_limits_w=tuple(profile.power.cap_w for profile in self.profiles),
            deadline_s=self.scenario.deadline_s,
            micro_batch_ns=self.cluster.micro_batch_ns,
        )
        floors = [goals.floor for goals in self.scenario.slo.goals(self.scenario.tuning.floor)]
        floor = max([*floors, *(each.floor or 0.0 for each in self.scenario.classes)])
        params = [server.params for server in self.cluster.servers]
        return replace(context, working_sets=working_sets(context, params, floor))

    def working_set(self, server: int) -> tuple[tuple[float, ...], ...]:
        """Return, for each segment, the widths of the instances a server is to hold: the widest of each nest.

        Empty if its memory holds all of those.
        """
        widths, sets = self.cluster.router.widths, self.context.working_sets
        nests = nests_of(widths, self.cluster.servers[server].params.nests)
        if not sets or all(mask[widths.index(nest[-1])] for mask in sets[server] for nest in nests):
            return ()
        held_widths = [[width for width, is_in in zip(widths, mask, strict=True) if is_in] for mask in sets[server]]
        return tuple(tuple(max(common) for nest in nests if (common := set(nest) & set(each))) for each in held_widths)

    def router(self, name: str, made_in: Path | None = None, key: str = "router") -> RoutingPolicy:
        """Make a fresh router by name (`scenarios.files.router_files`).

        Args:
            made_in: the folder of the run that makes the scenario's own routers.

        Raises:
            InputError: unknown, not made yet, made for another cluster, or by this scenario's run for another
                experiment.
        """
        return self._maker_of(name, made_in, key).make(self.context)

    def router_maker(self, name: str, made_in: Path | None = None) -> RouterMaker:
        """Return a maker of such routers on any machine; the arguments and errors are those of `router`."""
        return replace(self._maker_of(name, made_in, "router"), code=code_of(name, self.scenario.name))

    def _maker_of(self, name: str, made_in: Path | None, key: str) -> RouterMaker:
        maker = maker_of(name, self.scenario, self.device_names, made_in, key)
        if made_kind(name) is not None:
            path = Path(maker.source)
            remedy = f"`slimsched train` makes it again, or take it as it is: --router {path}"
            require_same(path, made_by(path).get(MADE_WITH), self.made_with, remedy)
        by = self.dials.get(display_name(name))
        if by is None:
            return replace(maker, spec=self.compass) if name == COMPASS else maker
        dialled = maker.dialled(by, self.context)
        assert dialled is not None, "a router without a dial has none to be set"
        return dialled

    def has_dial(self, name: str, made_in: Path | None = None) -> bool:
        """Return whether a router can be made more accurate (`RouterSpec.dialled`); arguments and errors: `router`."""
        maker = maker_of(name, self.scenario, self.device_names, made_in, "router")
        return maker.dialled(0.0, self.context) is not None

    @cached_property
    def compass(self) -> CompassRule:
        """Compass by its name: the bundled numbers, started at this experiment's level (`dials.levelled`)."""
        # a caller that does not ask for it need not wait for numba
        from scenarios.experiment.router_scores import levelled

        return levelled(self, CompassRule())

    @cached_property
    def made_with(self) -> Mapping[str, str]:
        """The inputs that the file of a router records, if this scenario's run makes it."""
        return of_router(self.scenario, self.profiles, self.accuracy.prior.accuracies)


# ------------------------------------------------------------------------------------------------------------- faults


def faults_of(
    scenario: Scenario, servers: Sequence[str], seed: int, start_s: float, horizon_s: float, requests: int
) -> tuple[Fault, ...]:
    """Return what the scenario plans, and what it leaves to chance, for one run.

    Args:
        servers: their names.
        start_s: where in the scenario the run begins.
        requests: how many arrive.

    Raises:
        InputError: a fault is of a server that there is not.
    """
    poison, chaos = stream(seed, "poison"), stream(seed, "chaos")
    faults: list[Fault] = []
    for index, fault in enumerate(scenario.faults):
        match fault:
            case PoisonedFault(share=share):
                drawn = np.flatnonzero(poison.random(requests) < share)
                faults.append(Poison(frozenset(drawn.tolist())))
            case ChaosFault():
                faults.extend(chaos_of(fault, len(servers), nanoseconds(horizon_s), chaos))
            case _:
                check_fault_server(fault.server, servers, scenario.name, index)
                if (shifted_fault := shifted(fault, start_s)) is not None:
                    faults.append(shifted_fault.planned(servers.index(fault.server)))
    return tuple(faults)


def shifted(fault: SpanFault | MomentFault, start_s: float) -> SpanFault | MomentFault | None:
    """Return a fault relative to the start of a run that begins at `start_s`; None if it is over by then."""
    if isinstance(fault, MomentFault):
        return fault.model_copy(update={"at_s": fault.at_s - start_s}) if fault.at_s >= start_s else None
    end_s = None if fault.end_s is None else fault.end_s - start_s
    if end_s is not None and end_s <= 0:
        return None
    return fault.model_copy(update={"start_s": max(0.0, fault.start_s - start_s), "end_s": end_s})


def chaos_of(fault: ChaosFault, servers: int, horizon_ns: int, rng: np.random.Generator) -> Iterator[Fault]:
    """Yield deaths and hangs with exponential gaps until the horizon."""
    at_ns = 0
    while (at_ns := at_ns + nanoseconds(rng.exponential(fault.mean_gap_s))) < horizon_ns:
        server = int(rng.integers(servers))
        kind = fault.kinds[int(rng.integers(len(fault.kinds)))]
        yield Crash(server, at_ns) if kind == "worker_killed" else Hang(server, at_ns)
