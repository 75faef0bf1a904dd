"""Clusters drawn at random, as a file specifies, and Compass trained over them: one set of numbers that serves unseen
clusters. The search is the separable CMA-ES (Ros and Hansen 2008)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise, product
from math import log
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import numpy as np
from cmaes import SepCMA
from pydantic import AfterValidator, Field

from hw.host_resources import core_count
from hw.networks.accuracy_table import load_accuracy
from kit import strict
from kit.documents import Memo, read_text, with_remedy
from kit.errors import InputError
from kit.random_streams import derived_seed, stream
from kit.strict import Plain, StrictModel
from policies.interfaces import AccuracyPrior
from policies.rules.compass import SPREAD, CompassRule, Numbers, mean_path_ns
from policies.rules.rule_context import middle_widths, path_ns
from policies.rules.rule_params import POINT, Reals
from policies.vocabulary import NS_PER_S
from scenarios.experiment.resolved_scenario import Experiment, NetworkAccuracy
from scenarios.experiment.router_scores import SampledRun, Scorer
from scenarios.experiment.scenario_building import build_experiment
from scenarios.files.bundled_files import accuracy_file, clusters_file
from scenarios.files.scenario_keys import GB, LinkName, LinkSection, ProfileName, Scenario
from scenarios.files.scenario_reading import read_profile
from scenarios.learn.evaluator import MAX_THREADS, TAIL, Remembered
from sim.compiled.run_figures import RunScore
from sim.device_profile import Count, Positive, Profile, Share
from sim.emulated_device import emulated

SCHEMA: Final = "slimsched.clusters/1"
WARMUP: Final = 0.1  # of a run: what arrives then is not scored
MIN_RUN_S: Final = 1.0
MIN_BURST: Final = 1.1
PART: Final = 8  # images of a micro-batch by which batching delays and the router's host are judged


def _ascending(span: tuple[float, float]) -> tuple[float, float]:
    if span[0] > span[1]:
        raise ValueError(f"from {span[0]:g} to {span[1]:g}: must ascend")
    return span


Span = Annotated[tuple[Positive, Positive], AfterValidator(_ascending)]
"""From and to: drawn evenly in the logarithm."""


class Clusters(StrictModel):
    """Distributions of clusters, loads and faults."""

    schema_: Literal["slimsched.clusters/1"] = Field(alias="schema", description="version of this format")
    name: str = Field(description="name of the run folder")
    seed: Annotated[int, Field(ge=0, lt=2**53)] = Field(0, description="seed of all draws")
    clusters: Count = Field(96, description="clusters to train over")
    images: Count = Field(8_000, description="arrivals in a run, about")
    accuracy: str = Field("slimresnet18-paper", description="accuracy table; profiles must be of its network")
    steps: Span = Field((0.5, 2.0), description="factor on the table's distances from the best tuple")
    profiles: Annotated[tuple[ProfileName, ...], Field(min_length=1)] = Field(description="profiles of devices")
    kinds: Annotated[tuple[Count, ...], Field(min_length=1)] = Field(description="different devices in a cluster")
    servers: Annotated[tuple[Count, ...], Field(min_length=1)] = Field(description="servers in a cluster")
    slowdown: Span = Field((1.0, 20.0), description="of all devices")
    links: Annotated[tuple[tuple[LinkName | LinkSection, ...], ...], Field(min_length=1)] = Field(
        description="lists of links: a cluster's servers draw from one list"
    )
    host: Span = Field((0.1, 3.5), description="factor on the profiles' cost of decisions on the router's host")
    batching_delay: Span = Field(
        (0.3, 2.2), description="`router.max_batching_delay_s`, in paths of a full-width batch of 8"
    )
    outstanding_micro_batches: Annotated[tuple[Count, ...], Field(min_length=1)] = Field(
        (2, 4), description="`router.outstanding_micro_batches`"
    )
    load: Span = Field((0.2, 0.95), description="mean rate over the capacity of devices and router")
    busiest: Positive = Field(1.4, description="limit of the peak rate over that capacity")
    workloads: Annotated[tuple[Literal["poisson", "mmpp", "diurnal", "flash"], ...], Field(min_length=1)] = Field(
        ("poisson", "mmpp", "diurnal", "flash"), description="kinds of workload"
    )
    burst: Span = Field((1.5, 3.5), description="peak rate over the mean, of varying loads")
    short_of_memory: Share = Field(0.25, description="share of the clusters with too little memory")
    memory: Span = Field((0.25, 0.8), description="share of all instances that fits there")
    straggling: Share = Field(0.15, description="share of the clusters with a server that is slow for a while")
    slower: Span = Field((2.0, 6.0), description="its slowdown")
    dying: Share = Field(0.15, description="share of the clusters with a server that is down for a while")
    start: Plain = Field(
        default_factory=dict,
        description="Compass' numbers at the start of the search; others as bundled",
    )
    rounds: Count = Field(1, description="rounds of the search; each compares with the result of the last")
    generations: Count = Field(40, description="generations in a round")
    population: Count = Field(16, description="candidates in a generation")
    at_once: Count = Field(28, description="clusters per generation")
    held_back: Count = Field(40, description="other clusters, for the final evaluation")


def read_clusters(path: Path, changes: Mapping[str, Any]) -> Clusters:
    """Read the distribution; raises `InputError` if anything in its file is wrong."""
    path = clusters_file(path)
    raw = strict.mapping(read_text(path), str(path))
    for key, value in changes.items():
        strict.change(raw, key.split("."), value, str(path))
    return strict.validate(Clusters, raw, str(path))


def _even(span: tuple[float, float], rng: np.random.Generator) -> float:
    low, high = np.log(span)
    return float(np.exp(rng.uniform(low, high)))


def _one(items: tuple[Any, ...], rng: np.random.Generator) -> Any:
    return items[int(rng.integers(len(items)))]


def drawn_experiment(spec: Clusters, name: str) -> Experiment:
    """Draw a cluster with its load; its name gives its seed.

    Raises:
        InputError: it can't run: the distribution allows what no cluster can be.
    """
    rng = stream(spec.seed, f"cluster:{name}")
    count = int(_one(spec.servers, rng))
    kinds = rng.choice(
        len(spec.profiles), size=min(count, int(_one(spec.kinds, rng)), len(spec.profiles)), replace=False
    )
    devices = [spec.profiles[int(rng.choice(kinds))] for _ in range(count)]
    slowdown, host = _even(spec.slowdown, rng), _even(spec.host, rng)
    links = _one(spec.links, rng)
    profiles = {f"s{index}": _profile(device, slowdown, host) for index, device in enumerate(devices)}
    servers = [
        {"name": f"s{index}", "profile": device, "link": _link(_one(links, rng))}
        for index, device in enumerate(devices)
    ]
    accuracy = _accuracy(spec, rng)
    document: dict[str, Any] = {
        "schema": "slimsched.scenario/1",
        "name": f"{spec.name}-{name}",
        "model": {"accuracy": spec.accuracy},
        "cluster": {"servers": servers, "greedy": {"preload": "all", "idle_unload_s": None}},
        "router": {"outstanding_micro_batches": _one(spec.outstanding_micro_batches, rng)},
        "workload": {"kind": "poisson", "rate_img_s": 1.0},
    }

    def built() -> Experiment:
        with with_remedy(f"{spec.name} draws such a cluster ({name}): narrow what it draws from"):
            return build_experiment(strict.validate(Scenario, document, f"{spec.name}:{name}"), profiles, accuracy)

    experiment = built()
    batch_s = mean_path_ns(experiment.context, PART) / NS_PER_S
    document["router"]["max_batching_delay_s"] = min(1.0, _even(spec.batching_delay, rng) * batch_s)
    duration_s, document["workload"] = _workload(spec, _sustained_img_s(experiment), rng)
    document |= {"duration_s": duration_s, "warmup_s": WARMUP * duration_s}
    if rng.random() < spec.short_of_memory:
        share = _even(spec.memory, rng)
        params = [server.params for server in experiment.cluster.servers]
        cap_bytes = max(param.context_bytes + share * (param.all_bytes - param.context_bytes) for param in params)
        document["cluster"]["greedy"] = {"vram_cap_gb": cap_bytes / GB}
    document["faults"] = _faults(spec, count, duration_s, rng)
    return built()


def _link(link: LinkName | LinkSection) -> str | dict[str, Any]:
    return link.model_dump() if isinstance(link, LinkSection) else link


def _profile(device: str, slowdown: float, host: float) -> Profile:
    profile = emulated(read_profile(Path(device)), slowdown)
    host_costs = profile.router_host
    if host_costs is None:
        return profile
    costs = {
        key: cost.model_copy(update={"micro_batch_s": host * cost.micro_batch_s, "image_s": host * cost.image_s})
        for key, cost in (("decision", host_costs.decision), ("returned", host_costs.returned))
    }
    return profile.model_copy(update={"router_host": host_costs.model_copy(update=costs)})


def _accuracy(spec: Clusters, rng: np.random.Generator) -> NetworkAccuracy:
    """Draw the table, with larger or smaller steps."""
    accuracy = NetworkAccuracy.of(load_accuracy(Path(accuracy_file(spec.accuracy))))
    best, steps = max(accuracy.prior.accuracies.values()), _even(spec.steps, rng)
    table = {widths: best - steps * (best - accuracies) for widths, accuracies in accuracy.prior.accuracies.items()}
    return replace(accuracy, prior=AccuracyPrior(table))


def _sustained_img_s(experiment: Experiment) -> float:
    """Return the rate of the devices at middle widths, or of the router's host in small micro-batches, whichever is
    less."""
    config, host = experiment.cluster.router, experiment.cluster.host
    middle = middle_widths(config)
    devices_img_s = sum(NS_PER_S / path_ns(experiment.costs, server, middle) for server in range(config.servers))
    image_ns = experiment.cluster.micro_batch_ns / PART + (0 if host is None else host.decision[1] + host.returned[1])
    host_img_s = NS_PER_S / (config.segments * image_ns) if image_ns else devices_img_s
    return min(devices_img_s, host_img_s)


def _workload(spec: Clusters, sustained_img_s: float, rng: np.random.Generator) -> tuple[float, dict[str, Any]]:
    """Draw how long a run is, and when images arrive."""
    load, kind = float(rng.uniform(*spec.load)), _one(spec.workloads, rng)
    burst = max(MIN_BURST, min(_even(spec.burst, rng), spec.busiest / load))
    rate_img_s = load * sustained_img_s
    duration_s = max(MIN_RUN_S, spec.images / rate_img_s)
    changes: dict[str, Any] = {}
    if kind == "mmpp":
        share = float(rng.uniform(0.1, 0.8)) / burst
        changes = {
            "burst_factor": burst,
            "burst_share": share,
            "dwell_s": duration_s * share / float(rng.uniform(2, 5)),
        }
    elif kind == "diurnal":
        changes = {"amplitude": min(1.0, burst - 1.0), "period_s": duration_s * float(rng.uniform(0.4, 1.0))}
    elif kind == "flash":
        at_s, rise_s, peak_s, fall_s = (part * duration_s for part in (0.3, 0.03, 0.27, 0.1))
        changes = {
            "factor": burst,
            "at_s": at_s,
            "rise_s": rise_s,
            "peak_s": peak_s,
            "fall_s": fall_s,
        }
        rate_img_s /= 1.0 + (burst - 1.0) / 3.0  # so that it has about the load
    return duration_s, {"kind": kind, "rate_img_s": rate_img_s, **changes}


def _faults(spec: Clusters, servers: int, duration_s: float, rng: np.random.Generator) -> list[dict[str, Any]]:
    span = {"start_s": 0.35 * duration_s, "end_s": 0.6 * duration_s}
    faults: list[dict[str, Any]] = []
    if rng.random() < spec.straggling:
        faults.append(
            {"kind": "straggler", "server": f"s{rng.integers(servers)}", "factor": _even(spec.slower, rng), **span}
        )
    if rng.random() < spec.dying and servers > 1:
        faults.append({"kind": "server_down", "server": f"s{rng.integers(servers)}", **span})
    return faults


# ------------------------------------------------------------------------------------------------ training over them
# A candidate is judged by whole runs. On each cluster it is compared with a reference, the numbers that the last round
# found, at a dial of the accuracy that is drawn, too; its extra accuracy there counts by what accuracy costs there. All
# candidates of a generation see the same runs.


STEP: Final = 0.25  # of the price's logarithm, either way of a cluster's dial: every candidate runs at both
DIALS: Final = tuple(2 * STEP * n for n in range(-6, 9))  # of the price's logarithm, of which each cluster has one
PRICES: Final = (0.1, 1.0)  # what a point of accuracy costs there, in the logarithm of the latency
SLOPES: Final = (0.02, 2.0)  # a point of accuracy, in the logarithm of the latency
NEAR: Final = 0.1  # points: up to this far beyond its two runs a candidate's price is still believed
BEYOND: Final = 0.4  # what a point further off costs
MOST: Final = 0.4  # weight of one cluster for or against a candidate
FAILED: Final = 20.0  # what the share of images that failed costs
MIN_POINTS: Final = 0.05  # between the reference's two runs: otherwise a dial moves nothing there
DROWNED: Final = 0.05  # of the images are left when a run ends
RUNS: Final = 2  # of a cluster, in turn
SIGMA: Final = 0.5  # of the first deviations (`SPREAD`)


Try = tuple[Scorer, CompassRule, SampledRun]
Pair = tuple[RunScore, RunScore]
"""The scores of one run, at the more accurate dial and at the faster one."""


def cost_of(score: RunScore) -> float:
    """Return what is minimised."""
    return log(score.mean_s) + TAIL * log(score.p99_s) + FAILED * score.failed / max(1, score.images)


def points_between(pair: Pair) -> float:
    """Return the points of accuracy between the two."""
    return (pair[0].accuracy - pair[1].accuracy) / POINT


def slope_of(pair: Pair) -> float:
    """Return what a point of accuracy costs."""
    points = points_between(pair)
    return float(np.clip((cost_of(pair[0]) - cost_of(pair[1])) / points, *SLOPES)) if points > 0 else SLOPES[1]


def cost_at(pair: Pair, accuracy: float, slope: float) -> float:
    """Return what a router costs at an accuracy: between its two runs, or beyond them at this slope."""
    accurate, fast = pair
    above, below = (accuracy - accurate.accuracy) / POINT, (fast.accuracy - accuracy) / POINT
    if max(above, below) <= 0.0:
        slope = slope_of(pair)
    if above > below:
        return cost_of(accurate) + slope * above + BEYOND * max(0.0, above - NEAR)
    return cost_of(fast) - slope * below + BEYOND * max(0.0, below - NEAR)


@dataclass(frozen=True)
class Case:
    """A drawn cluster, and how the reference does on its runs.

    Attributes:
        dial: what every candidate's price has more, in its logarithm.
        references: for each run.
    """

    scorer: Scorer
    runs: tuple[SampledRun, ...]
    dial: float
    references: tuple[Pair, ...]

    def cost(self, pair: Pair, run: int) -> float:
        """Return a candidate's cost on one run, at the accuracy of the reference: below 0 if it does better."""
        reference = self.references[run]
        accuracy, slope = (reference[0].accuracy + reference[1].accuracy) / 2, slope_of(reference)
        return float(np.clip(cost_at(pair, accuracy, slope) - cost_at(reference, accuracy, slope), -MOST, MOST))

    def tries(self, numbers: Reals, run: int) -> list[Try]:
        """Return a candidate's two tries."""
        return [(self.scorer, rule_of(numbers, self.dial + step), self.runs[run]) for step in (-STEP, STEP)]


def rule_of(numbers: Reals, dial: float) -> CompassRule:
    """Return Compass with these numbers, at a dial, and no goal to keep."""
    shifted = Numbers.of_vector(numbers)
    return CompassRule(numbers=shifted.model_copy(update={"level": shifted.level + dial}), control=None)


@dataclass(frozen=True)
class Generation:
    """What is reported of one: its number, the decisions simulated until its end, and the median candidate's cost."""

    number: int
    decisions: int
    median: float
    best: float


@dataclass(frozen=True)
class TrainedNumbers:
    """What a training found.

    Attributes:
        decisions: simulated for it.
        costs: (clusters,) what the numbers cost on clusters that no training sees, at the accuracy of those that it
            began with: below 0 if they do better (`Case.cost`).
    """

    numbers: Numbers
    decisions: int
    costs: Reals


def _shows_price(pairs: Sequence[Pair]) -> bool:
    """Check whether they show what accuracy costs: a dial moves it, and the cluster is not overloaded."""
    return all(points_between(pair) > MIN_POINTS and pair[1].unfinished < DROWNED * pair[1].images for pair in pairs)


class ClusterTraining:
    """One training. What it finds follows from the distribution alone.

    Args:
        on_generation: called after each.
        memo: what was measured before it was interrupted.
    """

    def __init__(self, spec: Clusters, on_generation: Callable[[Generation], None], memo: Memo | None = None) -> None:
        self.spec, self.decisions = spec, 0
        self._remembered, self._tell = Remembered(memo), on_generation

    def run(self) -> TrainedNumbers:
        """Train, starting from the bundled numbers."""
        spec = self.spec
        start = strict.validate(Numbers, spec.start, f"{spec.name}: start").to_vector()
        self._spread = SPREAD
        scorers = [Scorer(drawn_experiment(spec, str(number))) for number in range(spec.clusters)]
        search = SepCMA(
            mean=np.zeros(len(start)),
            sigma=SIGMA,
            seed=derived_seed(spec.seed, "over") % 2**31,
            population_size=spec.population,
        )
        with ThreadPoolExecutor(min(core_count(), MAX_THREADS)) as workers:
            for number in range(spec.rounds * spec.generations):
                if number % spec.generations == 0:
                    cases = self._cases(scorers, start + self._spread * search.mean, workers)
                    if not cases:
                        problem = "in none of the drawn clusters has accuracy a price, or all are overloaded"
                        raise InputError(spec.name, "clusters", f"{problem}; draw more of them, or others")
                self._generation(search, start, cases, number, workers)
            numbers = start + self._spread * search.mean
            others = [Scorer(drawn_experiment(spec, f"held-back-{number}")) for number in range(spec.held_back)]
            held_back = self._cases(others, start, workers)
            on_runs = list(product(held_back, range(RUNS)))
            pairs = self._pairs([each for case, run in on_runs for each in case.tries(numbers, run)], workers)
        costs = [case.cost(pair, run) for (case, run), pair in zip(on_runs, pairs, strict=True)]
        return TrainedNumbers(Numbers.of_vector(numbers), self.decisions, np.reshape(costs, (-1, RUNS)).mean(axis=1))

    def _cases(self, scorers: Sequence[Scorer], reference: Reals, workers: ThreadPoolExecutor) -> list[Case]:
        """Return each cluster at the dial where accuracy costs about what is drawn, as an operator would choose it.

        Clusters for which the reference has no such dial are left out.
        """
        runs = tuple(SampledRun(derived_seed(self.spec.seed, f"over:run:{number}")) for number in range(RUNS))
        rules = [rule_of(reference, dial - STEP) for dial in (*DIALS, DIALS[-1] + 2 * STEP)]
        tries = [(scorer, rule, run) for scorer, run, rule in product(scorers, runs, rules)]
        scores = iter(self._measure(tries, workers))
        rng, cases = stream(self.spec.seed, "over:prices"), list[Case]()
        for scorer in scorers:
            log_price = float(rng.uniform(*np.log(PRICES)))
            on_runs = [list(pairwise([next(scores) for _ in rules])) for _ in runs]
            options = [
                (abs(log(float(np.mean([slope_of(pair) for pair in pairs]))) - log_price), dial, pairs)
                for dial, pairs in zip(DIALS, zip(*on_runs, strict=True), strict=True)
                if _shows_price(pairs)
            ]
            if options:
                cases.append(Case(scorer, runs, *min(options, key=itemgetter(0))[1:]))
        return cases

    def _generation(
        self, search: SepCMA, start: Reals, cases: Sequence[Case], number: int, workers: ThreadPoolExecutor
    ) -> None:
        candidates = [search.ask() for _ in range(self.spec.population)]
        rng, run = stream(self.spec.seed, f"over:generation:{number}"), number % RUNS
        picked = [cases[i] for i in rng.choice(len(cases), size=min(self.spec.at_once, len(cases)), replace=False)]
        vectors = [start + self._spread * candidate for candidate in candidates]
        tries = [each for vector in vectors for case in picked for each in case.tries(vector, run)]
        pairs = iter(self._pairs(tries, workers))
        costs = [float(np.mean([case.cost(next(pairs), run) for case in picked])) for _ in candidates]
        search.tell(list(zip(candidates, costs, strict=True)))
        self._tell(Generation(number, self.decisions, float(np.median(costs)), min(costs)))

    def _pairs(self, tries: Sequence[Try], workers: ThreadPoolExecutor) -> list[Pair]:
        scores = self._measure(tries, workers)
        return list(zip(scores[::2], scores[1::2], strict=True))

    def _measure(self, tries: Sequence[Try], workers: ThreadPoolExecutor) -> list[RunScore]:
        scores = self._remembered.scores(lambda: workers.map(lambda each: each[0].score(each[1], each[2]), tries))
        self.decisions += sum(score.decisions for score in scores)
        return scores
