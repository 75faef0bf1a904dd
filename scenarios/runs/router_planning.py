"""A plan of what to run where, and routers that are set to equal accuracy on the very runs that are compared.

A plan (`plan`) is entirely simulated: each router runs with each seed on the scenario's own arrivals; then a search
(`scenarios.runs.capacity_search`), separate for each seed, finds the largest rate at which the router keeps the
accuracy floor and the latency limit. Routers that choose are compared with two that do not: full width, and the one
width tuple that keeps the floor and has the largest expected capacity. With both, each image stays on one server from
the first segment to the last.

Equal accuracy (`EqualRuns`): the dial of each router is set so that its mean accuracy on these runs is the floor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from hw.host_resources import core_count
from kit.errors import WorkError
from policies.interfaces import RoutingPolicy
from policies.router_kinds import CONTROLLED, KINDS, RANDOM
from policies.router_plans import plan_of
from policies.rules.rule_context import path_ns, speeds_img_s
from policies.rules.rule_params import RuleSpec
from policies.rules.rule_parts import ControlSpec
from policies.run_records import BatchRecord
from policies.vocabulary import Provenance
from scenarios.experiment.resolved_scenario import Experiment
from scenarios.experiment.router_scores import Judged, SampledRun, Scorer, find_dial, unserved
from scenarios.files.bundled_files import KEEPING, made_file, made_kind
from scenarios.files.router_files import display_name
from scenarios.metrics.failure_signs import LIMIT, leaves_many, served
from scenarios.metrics.result_documents import (
    Change,
    Equal,
    Outcome,
    Plan,
    PlannedRouter,
    PlannedServer,
    Role,
    Run,
    Sustained,
)
from scenarios.metrics.run_result import Result, Simulator
from scenarios.metrics.slo import Slo, has_floor
from scenarios.metrics.statistics import NEW_RUNS, MeanInterval, Range, estimate, range_of_new_runs
from scenarios.runs.capacity_search import Search, capacity, without
from scenarios.runs.simulated_runs import run_simulation, simulate_metrics

MORE_LOAD: Final = 1.1
FULL: Final = "sticky"  # full width, and each image stays on its server
PRECISION: Final = 0.02  # of a sustained rate
CHANCE: Final = 0.05  # the p-value below which two members differ
DETAILED_IMAGES: Final = 100_000  # of the run that shows what each server does: beyond, it is gigabytes


# ------------------------------------------------------------------------------------------------------------- the plan


@dataclass(frozen=True)
class Candidate:
    """A router that is tried; `rule`: of one that has neither a name nor a file."""

    name: str
    make: Callable[[], RoutingPolicy]
    role: Role = "candidate"
    rule: RuleSpec | None = None


@dataclass(frozen=True)
class Trial:
    """How routers are tried.

    Attributes:
        slo: the floor and the limit that are to be kept.
        search_s: length of each run of a search.
        on_step: called after each run or search.
    """

    experiment: Experiment
    slo: Slo
    seeds: tuple[int, ...]
    engine: Simulator
    search_s: float
    on_step: Callable[[], None] = lambda: None

    def outcome(self, router: Candidate, *, scale: float = 1.0, lost: Sequence[str] = ()) -> Outcome:
        """Return what it reaches under the scenario's load times `scale`, or with servers lost."""
        experiment = without(self.experiment, lost)
        results = [self._run(experiment, router, seed, scale) for seed in self.seeds]
        p99 = estimate([result["latency_s"]["p99"] for result in results])
        accuracy = estimate([result["expected_accuracy"] for result in results])
        energy_j = estimate([result["energy_per_image_j"]["total"] for result in results])
        shares = served(results)
        keeps = not leaves_many(shares) and None not in (p99["mean"], accuracy["mean"])
        keeps = keeps and has_floor(accuracy["mean"], self.slo.floor)
        keeps = keeps and (self.slo.p99_limit_s is None or (p99["mean"] or 0.0) <= self.slo.p99_limit_s)
        return Outcome(p99, accuracy, energy_j, shares["unserved"] or 0.0, keeps)

    def p99_range_s(self, router: Candidate) -> Range | None:
        """Return the range of its p99 under the scenario's load (`Plan.p99_range_s`)."""
        seeds = range(max(self.seeds) + 1, max(self.seeds) + 1 + NEW_RUNS)
        return range_of_new_runs([self._run(self.experiment, router, seed)["latency_s"]["p99"] for seed in seeds])

    def _run(self, experiment: Experiment, router: Candidate, seed: int, scale: float = 1.0) -> Result:
        result = simulate_metrics(
            experiment, router.make(), router.name, seed, scale=scale, engine=self.engine, detail=False
        )  # fmt: skip
        self.on_step()
        return result

    def sustained(self, router: Candidate, lost: tuple[str, ...] = ()) -> Sustained | None:
        """Return the rate it sustains; None if there is none with some seed."""
        sustained = []
        for seed in self.seeds:
            search = Search(router.name, (seed,), self.search_s, PRECISION, self.engine, self.slo, lost)
            try:
                sustained.append(capacity(self.experiment, router.make, search))
            except WorkError:
                for _ in self.seeds[len(sustained) :]:
                    self.on_step()
                return None
            self.on_step()
        return Sustained(
            low_img_s=min(each.stable_img_s for each in sustained),
            mean_img_s=float(np.mean([each.stable_img_s for each in sustained])),
            high_img_s=max(each.unstable_img_s for each in sustained),
            accuracy=float(np.mean([each.accuracy for each in sustained])),
            energy_per_image_j=float(np.mean([each.energy_per_image_j for each in sustained])),
        )

    def planned(self, router: Candidate) -> PlannedRouter:
        """Return one row of the plan."""
        rule = None if router.rule is None else router.rule.to_dict()
        return PlannedRouter(router.name, router.role, rule, self.outcome(router), self.sustained(router))


def plan(trial: Trial, routers: Sequence[Candidate], unmade: Sequence[str] = ()) -> Plan:
    """Try all of these; `Plan` describes the choice."""
    experiment, scenario = trial.experiment, trial.experiment.scenario
    rows = tuple(map(trial.planned, routers))
    choice, tied = choice_of(rows, scenario.tuning.objective == "energy")
    nearest = nearest_of(rows, trial.slo.floor) if choice is None else None
    by_name = {each.name: each for each in routers}
    router = None if choice is None else by_name[choice.router]
    able = [row for row in rows if row.outcome.keeps]
    fastest = min(able, key=lambda each: each.outcome.latency_p99_s["mean"] or 0.0, default=None)
    return Plan(
        scenario=scenario.name,
        engine=trial.engine,
        seeds=trial.seeds,
        duration_s=trial.search_s,
        floor=trial.slo.floor,
        is_floor_named=Slo.of(scenario).floor is not None,
        p99_limit_s=trial.slo.p99_limit_s,
        rate_img_s=experiment.mean_rate_img_s,
        provenance=str(experiment.provenance),
        accuracy_provenance=experiment.accuracy.provenance,
        assumed=_assumed(experiment),
        choice=None if choice is None else choice.router,
        tied=tuple(each.router for each in tied),
        nearest=nearest,
        fastest=None if fastest is None else fastest.router,
        p99_range_s=trial.p99_range_s(router or by_name[nearest or ""]),
        routers=rows,
        servers=() if router is None else _servers(trial, router),
        changes=() if router is None else tuple(_changes(trial, router)),
        unmade=tuple(unmade),
    )


def _assumed(experiment: Experiment) -> dict[str, str]:
    """Return the weakest origin of each part of the profiles, if that is not a measurement."""
    parts = {
        "run times": [profile.provenance for profile in experiment.profiles],
        "power": [profile.power.provenance for profile in experiment.profiles],
        "how servers share a device": [profile.concurrency.provenance for profile in experiment.profiles],
    }
    weakest = {part: Provenance.weakest(*provenances) for part, provenances in parts.items()}
    return {part: str(of) for part, of in weakest.items() if of not in (Provenance.MEASURED, Provenance.POLLED)}


def choice_of(rows: Sequence[PlannedRouter], saves_energy: bool) -> tuple[PlannedRouter | None, list[PlannedRouter]]:
    """Return the router to run (`Plan.choice`), and those that tie with it (`Plan.tied`)."""
    able = [row for row in rows if row.sustained and row.outcome.keeps and row.router != RANDOM]
    if not able:
        return None, []
    if saves_energy:
        choice = min(able, key=lambda each: each.outcome.energy_per_image_j["mean"] or np.inf)
        ties = [each for each in able if _overlap(each.outcome.energy_per_image_j, choice.outcome.energy_per_image_j)]
    else:
        most = max(able, key=lambda each: each.sustained.mean_img_s if each.sustained else 0.0)
        ties = [each for each in able if each.sustained and each.sustained.meets(most.sustained)]
        choice = min(ties, key=lambda each: each.outcome.latency_p99_s["mean"] or np.inf)
    return choice, [tie for tie in ties if tie is not choice]


def nearest_of(rows: Sequence[PlannedRouter], floor: float | None) -> str | None:
    """Return the router that keeps the floor, then serves most, then has the lowest p99 (`Plan.nearest`)."""

    def distance(outcome: Outcome) -> tuple[bool, float, float]:
        unserved = max(0.0, outcome.unserved - LIMIT)
        return not has_floor(outcome.accuracy["mean"], floor), unserved, outcome.latency_p99_s["mean"] or np.inf

    return min([row for row in rows if row.router != RANDOM], key=lambda each: distance(each.outcome)).router


def _overlap(first: MeanInterval, second: MeanInterval) -> bool:
    return abs((first["mean"] or 0.0) - (second["mean"] or 0.0)) < (first["ci95"] or 0.0) + (second["ci95"] or 0.0)


# --------------------------------------------------------------------------------------------------------- candidates


def candidates(
    experiment: Experiment, slo: Slo, requested: Sequence[str], made_in: Path
) -> tuple[list[Candidate], list[str]]:
    """Return those to try, and those among the named that the scenario's run has not made yet.

    Tried are the named ones; the kinds that keep goals, as they are before tuning; full width; the best single width.
    """
    by_name: dict[str, Candidate] = {}
    unmade = [name for name in requested if (kind := made_kind(name)) and not (made_in / made_file(kind)).is_file()]
    for name in (*(name for name in requested if name not in unmade), FULL):
        by_name[display_name(name)] = Candidate(display_name(name), lambda name=name: experiment.router(name, made_in))  # type: ignore[misc]
    by_name[FULL] = replace(by_name[FULL], role="full width")
    if experiment.cluster.router.accuracies:
        for kind in CONTROLLED:
            rule = KINDS[kind].load()(control=ControlSpec())
            by_name[f"{kind}{KEEPING}"] = _of_rule(f"{kind}{KEEPING}", experiment, rule)
    single = best_single(experiment, slo)
    if single is not None:
        name = f"fixed:{','.join(f'{width:g}' for width in single)}@{FULL}"
        by_name[name] = Candidate(name, lambda: experiment.router(name), "single width")
    return list(by_name.values()), unmade


def _of_rule(name: str, experiment: Experiment, rule: RuleSpec) -> Candidate:
    return Candidate(name, lambda: rule.make(experiment.context, name), rule=rule)


def best_single(experiment: Experiment, slo: Slo) -> tuple[float, ...] | None:
    """Return the width tuple that keeps the floor with the largest expected capacity; None if that is full width."""
    costs, servers = experiment.costs, range(experiment.cluster.router.servers)
    able = [widths for widths, accuracies in experiment.held_accuracies.items() if has_floor(accuracies, slo.floor)]
    best = max(able, key=lambda widths: sum(1 / path_ns(costs, server, widths) for server in servers))
    return None if set(best) == {experiment.cluster.router.widths[-1]} else best


def floor_doubt(experiment: Experiment, slo: Slo) -> str:
    """Warn of a floor between two members of a family whose accuracies do not differ significantly; otherwise empty.

    It is a sign test: of the images that only one of them gets right, either should have half.
    """
    from scipy.stats import binomtest  # slow to open

    evaluation, model = experiment.accuracy.evaluation, experiment.cluster.devices[0].profile.model
    if slo.floor is None or evaluation is None or not model.labels:
        return ""
    accuracies = {widths: share for widths, share in evaluation.top1().items() if len(set(widths)) == 1}
    above = min(
        (widths for widths in accuracies if has_floor(accuracies[widths], slo.floor)),
        key=accuracies.__getitem__,
        default=None,
    )
    below = max(
        (accuracy for accuracy in accuracies if not has_floor(accuracies[accuracy], slo.floor)),
        key=accuracies.__getitem__,
        default=None,
    )
    if above is None or below is None:
        return ""
    right, wrong = (evaluation.correct[:, evaluation.tuples.index(widths)] for widths in (above, below))
    alone = int((right & ~wrong).sum()), int((wrong & ~right).sum())
    if sum(alone) and binomtest(alone[0], sum(alone)).pvalue <= CHANCE:
        return ""
    (high, low), images = (model.name_of(widths[0]) for widths in (above, below)), len(evaluation.correct)
    both = f"{high} ({accuracies[above]:.1%}) and {low} ({accuracies[below]:.1%})"
    text = f"{both} do not differ significantly on {images} images"
    return f"slo.floor: {text}, and the floor of {slo.floor:.1%} is between them; evaluate them on more images"


# ------------------------------------------------------------------------------------------ what the choice does


def _servers(trial: Trial, router: Candidate) -> tuple[PlannedServer, ...]:
    """Return what each server does, from the batches of one run of the scenario's load."""
    experiment, scenario = trial.experiment, trial.experiment.scenario
    longest_s = DETAILED_IMAGES / (experiment.mean_rate_img_s or np.inf)
    duration_s = min(scenario.duration_s, max(longest_s, 2 * scenario.warmup_s))
    seed = trial.seeds[0]
    result, record = run_simulation(
        experiment, router.make(), router.name, seed, duration_s=duration_s, engine=trial.engine
    )  # fmt: skip
    trial.on_step()
    passes = max(1, sum(batch.size for batch in record.batches))
    segments, network = experiment.cluster.router.segments, experiment.cluster.devices[0].profile.model
    return tuple(
        PlannedServer(
            server=figures["name"],
            device=experiment.device_names[number],
            share=figures["images"] / passes,
            utilization=figures["utilization"],
            mean_power_w=figures["mean_power_w"],
            mean_batch=figures["mean_batch"],
            widths=_widths([batch for batch in record.batches if batch.server == number], segments),
            names=dict(zip(network.widths, network.labels, strict=False)),
            working_set=experiment.working_set(number),
        )
        for number, figures in enumerate(result["servers"])
    )


def _widths(batches: Sequence[BatchRecord], segments: int) -> tuple[dict[float, float], ...]:
    counts = [Counter[float]() for _ in range(segments)]
    for batch in batches:
        counts[batch.segment - 1][batch.width] += batch.size
    return tuple({width: count[width] / count.total() for width in sorted(count)} for count in counts)


def _changes(trial: Trial, router: Candidate) -> Iterator[Change]:
    """Yield more load, and the loss of the fastest device if another one is left."""
    yield Change("load", trial.outcome(router, scale=MORE_LOAD), None)
    names = fastest_device(trial.experiment)
    if len(names) < len(trial.experiment.cluster.servers):
        yield Change(names[0], trial.outcome(router, lost=names), trial.sustained(router, names))


def fastest_device(experiment: Experiment) -> tuple[str, ...]:
    """Return the servers on it, by full width in full batches."""
    speeds = speeds_img_s(experiment.context)
    servers = experiment.cluster.servers
    device = servers[speeds.index(max(speeds))].device
    return tuple(server.name for server in servers if server.device == device)


def steps_of(experiment: Experiment, routers: int, seeds: int) -> int:
    """Return how many runs and searches a plan takes."""
    after_changes = 3 if len(fastest_device(experiment)) < len(experiment.cluster.servers) else 1
    return (2 * routers + after_changes) * seeds + NEW_RUNS + 1


# ------------------------------------------------------------------------------------------------------- equal accuracy


MAX_THREADS: Final = 2


class EqualRuns:
    """The runs of one experiment, on which routers are brought to one accuracy.

    Args:
        made_in: the folder of the run that makes the scenario's own routers.
    """

    def __init__(self, experiment: Experiment, seeds: Sequence[int], made_in: Path | None = None) -> None:
        self._experiment, self._made_in = experiment, made_in
        self._runs = [SampledRun(seed, end=experiment.scenario.end) for seed in seeds]
        self._scorer = Scorer(experiment)

    def at_floor(self, router: str, floor: float) -> Equal:
        """Set a router's dial so that the mean accuracy of its runs is the floor.

        Raises:
            InputError: as `Experiment.router` does.
            WorkError: a router of the user's own fails.
        """
        if not self._experiment.has_dial(router, self._made_in):
            judged = self._judged(router, None)
            return Equal(None, is_kept=False, runs=judged.runs)
        dial = find_dial(lambda by: self._judged(router, by), floor)
        return Equal(dial.by, dial.is_kept, dial.judged.runs)

    def _judged(self, router: str, by: float | None) -> Judged[tuple[Run, ...]]:
        experiment = self._experiment if by is None else self._experiment.with_dials({display_name(router): by})
        runs = tuple(self._runs_of(experiment, router))
        means = {name: float(np.mean([getattr(run, name) for run in runs])) for name in ("accuracy", "unserved")}
        return Judged(**means, runs=runs)

    def _runs_of(self, experiment: Experiment, router: str) -> Iterator[Run]:
        maker = experiment.router_maker(router, self._made_in)
        plan = plan_of(maker.make(experiment.context), experiment.cluster.router)
        if plan is None or experiment.decision_times_s.get(display_name(router)):
            for sampled in self._runs:
                yield _simulated(experiment, router, sampled.seed, self._made_in)
            return
        self._scorer.keep(self._runs)
        with ThreadPoolExecutor(min(core_count(), MAX_THREADS)) as threads:
            scores = list(threads.map(lambda run: self._scorer.score(maker, run), self._runs))
        for run, score in zip(self._runs, scores, strict=True):
            yield Run(run.seed, score.accuracy, score.mean_s, score.p99_s, score.image_j, unserved([score]))


def _simulated(experiment: Experiment, router: str, seed: int, made_in: Path | None) -> Run:
    """Return a run of a router whose decisions are Python's, or take their own time, which a scorer does not charge."""
    result = simulate_metrics(
        experiment, experiment.router(router, made_in), display_name(router), seed, engine="compiled"
    )
    latency, energy = result["latency_s"], result["energy_per_image_j"]
    figures = (
        result["expected_accuracy"],
        latency["mean"],
        latency["p99"],
        energy["total"],
        result["shares"]["unserved"],
    )
    return Run(seed, *(float("nan") if figure is None else figure for figure in figures))
