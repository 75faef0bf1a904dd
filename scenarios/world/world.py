"""A scenario as objects that simulation and executors are built from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hw.accuracy import MEASURED, PAPER, AccuracyProvenance, AccuracyTable, Evaluation
from policies.chance import derived_seed, stream
from policies.errors import InputError
from policies.faults import Fault, Poison, Supervision
from policies.interfaces import RoutingPolicy
from policies.reward import AccuracyPrior
from policies.rules.context import RouterContext
from policies.vocabulary import Provenance
from scenarios.files.reading import check_fault_server
from scenarios.files.series import read_rates, read_trace
from scenarios.files.spec import (
    ChaosFault,
    DiurnalWorkload,
    FlashWorkload,
    GammaWorkload,
    MmppWorkload,
    PoisonedFault,
    RatesWorkload,
    Scenario,
    TraceWorkload,
)
from scenarios.metrics.result import Simulator
from scenarios.metrics.signatures import SignatureContext, context_of
from scenarios.world.faults import chaos_of, planned, since
from scenarios.world.routers import make_named
from sim import workload
from sim.accuracy import BernoulliCorrectness, Correctness, MatrixCorrectness
from sim.cluster import ClusterSpec, RunSpec, Simulation
from sim.costs import ProfileCosts
from sim.network import FREE, LINKS, Network
from sim.profile import Profile
from sim.tables import nanoseconds

if TYPE_CHECKING:
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
                    faults.extend(chaos_of(fault, len(names), nanoseconds(horizon_s), chaos))
                case _:
                    check_fault_server(fault.server, names, self.scenario.name, index)
                    if (met := since(fault, start_s)) is not None:
                        faults.append(planned(met, names.index(fault.server)))
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
        """A fresh router by name; `ppo` is the file `trained`; see `scenarios.files.router_names` for the rest.

        Raises:
            InputError: unknown, not trained yet, or trained for another cluster.
        """
        return make_named(name, self.scenario, self.context, self.device_names, trained, key)
