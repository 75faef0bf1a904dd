"""The fluid bound: what no router can beat on a cluster, at a mean accuracy and a rate. A linear program.

Long-run averages of any run are a flow of images over width tuples, servers, batch sizes and links, and such a flow
must satisfy its linear constraints. The program contains these constraints, and no others:

- every image runs one width tuple, each segment once; its output is on the server that ran it, or moves over a link;
- each class of requests has its share of the images, and is as accurate as it is promised;
- images that run together take no more than the device: each running batch takes d and h of it (`sim.device_model`),
and
  all slow down by max(1, total) ** beta, so that d and h served a second are at most 1 (of `_spare` where beta < 1);
- a medium transfers at most its bandwidth, and the router decides on at most its largest micro-batch at a time; its
  host does one thing at a time, decisions as well as batches that come back;
- an image takes a decision until its micro-batch is sent, and a handover; in each segment a dispatch and its batch's
  solo time; and the way back to the router, which processes the result; for each move its latency and its bytes.

Left out, because a run could be lucky: decisions and ways between segments (a path has none), queues, batching delays,
loads, memory, micro-batches that split. So every real run is worse. If chance plays a part (predictions, arrivals), the
bound holds for the run's realised values: its own rate and its tuples' accuracy.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from kit.errors import InputError, WorkError
from policies.interfaces import tuples_within
from policies.vocabulary import IMAGE, NS_PER_S, ROUTER
from scenarios.experiment.resolved_scenario import Experiment
from scenarios.files.scenario_keys import ClassSection, GammaWorkload, PoissonWorkload, Scenario
from scenarios.metrics.result_documents import Bound, Oracle
from sim.device_tables import DeviceTables, KeyTable

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Edge = tuple[int, float, float]  # (segment, width, previous width)
Vector = NDArray[np.float64]
MAX_UNKNOWNS = 2e6
WINDOW_S = 1.0  # within which the oracle serves all arrivals
HARDLY = 0.9  # of the router's core: chance alone then makes long queues
NEARLY = 1e-9  # of accuracy, which a mean over tuples misses by rounding
OF_A_BOUND: Final = 3  # programs: the rate, the energy, the latency
ORACLE_POINTS: Final = 24  # rates at which an oracle's program is solved, after that of the capacity


@dataclass(frozen=True)
class _Kind:
    """Servers that the program need not distinguish: a flow over them may be spread evenly at no extra cost.

    Attributes:
        servers: if there are several, each has a separate device and medium.
    """

    servers: tuple[int, ...]

    @property
    def first(self) -> int:
        """It stands for all."""
        return self.servers[0]


@dataclass(frozen=True)
class _Run:
    """One way to run an edge on servers of a kind, in a batch of a certain size; seconds and joules are an image's.

    `host_s` is of the thread that launches, `returned_s` of the router's host, which takes the batch back.
    """

    kind: int
    edge: Edge
    demand_s: float
    host_s: float
    returned_s: float
    latency_s: float
    joules: float


@dataclass(frozen=True)
class _Move:
    """One way to move a segment's output at a width from one kind of server to the kind where the next segment runs.

    `stays`: to the very same server.
    """

    segment: int
    width: float
    source: int
    kind: int
    stays: bool
    latency_s: float
    busy_s: float
    uplink_s: float


class FluidModel:
    """The linear program of one cluster, solvable at any accuracy and rate.

    Variables, in images a second: of each width tuple, of each `_Run`, and of each `_Move`. If requests have classes,
    each class has separate width tuples, and is as accurate as it is promised; batches and moves are of all. With
    several models each class has its model's tuples, also if no class is promised anything.

    Args:
        widths: those that may run; all of the network's by default.
        classes: of the requests; all are of one by default.
        on_solved: called after each solved program, because with many servers one takes many seconds.
    """

    def __init__(
        self,
        experiment: Experiment,
        widths: Sequence[float] = (),
        on_solved: Callable[[], None] = lambda: None,
        classes: Sequence[ClassSection] = (),
    ) -> None:
        self.experiment, config = experiment, experiment.cluster.router
        self._class_floors = {each.name: each.floor or 0.0 for each in classes}
        self._on_solved = on_solved
        self.idle_w = sum(tables.context_idle_mw for tables in experiment.cluster.devices) / 1000
        allowed = tuple(widths) or config.widths
        groups = [tuple(width for width in model if width in allowed) for model in config.model_widths]
        shares = [each.share for each in classes or (experiment.scenario.classes if config.models else ())]
        require_solvable(experiment, len(allowed), max(1, len(shares)))
        models = config.class_models[: len(shares) or 1]
        of_class = [tuples_within([groups[model]], config.segments) for model in models]
        tuples = [each for of_one in of_class for each in of_one]
        class_of = np.repeat(np.arange(len(of_class)), [len(of_one) for of_one in of_class])
        self.accuracies = np.array([experiment.accuracy.prior(each) for each in tuples])
        kinds = kinds_of(experiment)
        served = [groups[model] for model in sorted(set(models))]
        runs = list(_runs(experiment, kinds, served))
        moves = list(_moves(experiment, kinds, tuple(width for group in served for width in group)))
        self.best = max(
            (experiment.held_accuracies[each] for each in tuples if each in experiment.held_accuracies), default=0.0
        )
        self._count, self._tuples = len(tuples) + len(runs) + len(moves), len(tuples)
        self._latency_s = np.concatenate([
            np.zeros(len(tuples)), [run.latency_s for run in runs], [move.latency_s for move in moves]
        ])  # fmt: skip
        self._joules = np.concatenate([np.zeros(len(tuples)), [run.joules for run in runs], np.zeros(len(moves))])
        self._balances = self._matrix([*_balances(tuples, runs, moves), *_shares(shares, class_of.tolist())])
        self._limits = self._matrix(_limits(experiment, kinds, tuples, runs, moves))
        self._floors = np.zeros((0, self._count))
        if classes:
            self._floors = np.zeros((len(classes), self._count))
            for number, floor in enumerate(self._class_floors.values()):
                of_one = np.flatnonzero(class_of == number)
                self._floors[number, of_one] = floor - NEARLY - self.accuracies[of_one]

    def capacity_img_s(self, accuracy: float = 0.0) -> float:
        """Return the largest rate at which a mean accuracy can be had."""
        return -self._solve(-self._all_tuples(), accuracy, None)

    def energy_j(self, accuracy: float, rate_img_s: float) -> float:
        """Return the least dynamic energy per image."""
        return self._solve(self._joules, accuracy, rate_img_s) / rate_img_s

    def latency_s(self, accuracy: float, rate_img_s: float | None) -> float:
        """Return the least mean latency; without a rate, that of an image in an empty system."""
        if rate_img_s is None:
            return self._solve(self._latency_s, accuracy, 1.0, limited=False)
        return self._solve(self._latency_s, accuracy, rate_img_s) / rate_img_s

    def best_accuracy(self, rate_img_s: float) -> float:
        """Return the highest mean accuracy at which a rate can be sustained; raises `WorkError` beyond the capacity."""
        gain = np.concatenate([self.accuracies, np.zeros(self._count - self._tuples)])
        return -self._solve(-gain, 0.0, rate_img_s) / rate_img_s

    def bound(self, accuracy: float, rate_img_s: float | None) -> Bound:
        """Return all bounds at once.

        Raises:
            InputError: no width tuple is so accurate.
        """
        if accuracy > self.best + NEARLY:
            problem = f"{accuracy:g} is beyond the most accurate width tuple that the servers can hold"
            raise InputError("slo.floor", "", f"{problem}; expected up to {self.best:.4f}")
        accuracy = min(accuracy, self.best)
        capacity_img_s = self.capacity_img_s(accuracy)
        if rate_img_s is None or rate_img_s > capacity_img_s:
            self._on_solved()  # of the energy there is nothing to solve
            latency_s = self.latency_s(accuracy, None)
            return Bound(
                accuracy=accuracy,
                rate_img_s=rate_img_s,
                capacity_img_s=capacity_img_s,
                latency_mean_s=latency_s,
                classes=self._class_floors,
            )
        energy_j = self.energy_j(accuracy, rate_img_s)
        return Bound(
            accuracy=accuracy,
            rate_img_s=rate_img_s,
            capacity_img_s=capacity_img_s,
            energy_dynamic_j=energy_j,
            energy_per_image_j=energy_j + self.idle_w / rate_img_s,
            latency_mean_s=self.latency_s(accuracy, rate_img_s),
            classes=self._class_floors,
        )

    def _all_tuples(self) -> Vector:
        return np.concatenate([np.ones(self._tuples), np.zeros(self._count - self._tuples)])

    def _matrix(self, rows: Sequence[dict[int, float]]) -> csr_array:
        from scipy.sparse import coo_array  # slow to open, and every simulation asks whether it is overloaded

        entries = [(row, column, value) for row, cells in enumerate(rows) for column, value in cells.items()]
        indices, columns, values = zip(*entries, strict=True)
        return coo_array((values, (indices, columns)), shape=(len(rows), self._count)).tocsr()

    def _solve(self, cost: Vector, accuracy: float, rate_img_s: float | None, *, limited: bool = True) -> float:
        """Return the least cost of a flow; the missing accuracy is weighed, so that the rate need not be known."""
        from scipy.optimize import linprog
        from scipy.sparse import csr_array, vstack

        missing = np.concatenate([accuracy - NEARLY - self.accuracies, np.zeros(self._count - self._tuples)])
        below, levels = csr_array(np.vstack([missing, self._floors])), np.zeros(1 + len(self._floors))
        if limited:
            below, levels = vstack([below, self._limits]), np.append(levels, np.ones(self._limits.shape[0]))
        equal, sums = self._balances, np.zeros(self._balances.shape[0])
        if rate_img_s is not None:
            equal, sums = vstack([equal, csr_array(self._all_tuples()[None, :])]), np.append(sums, rate_img_s)
        solution = _beside(lambda: linprog(cost, A_ub=below, b_ub=levels, A_eq=equal, b_eq=sums, method="highs"))
        if not solution.success:
            raise WorkError(f"the fluid model has no solution: {solution.message}")
        self._on_solved()
        return float(solution.fun)


def _beside(work: Callable[[], Any]) -> Any:
    """Return the work's result from a separate thread: the solver ignores interrupts, the waiting thread does not."""
    future: Future[Any] = Future()

    def do() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=do, daemon=True).start()
    return future.result()


def require_solvable(experiment: Experiment, widths: int | None = None, classes: int = 1) -> None:
    """Raise `InputError` for a program that would take hours and many gigabytes; `widths`: how many may run."""
    config = experiment.cluster.router
    if (unknowns := unknowns_of(experiment, widths or len(config.widths), classes)) > MAX_UNKNOWNS:
        problem = f"the bound on {config.servers:,} servers is a program of {unknowns:.1e} unknowns"
        raise InputError(experiment.scenario.name, "cluster.servers", f"{problem}; expected at most {MAX_UNKNOWNS:.0e}")


def unknowns_of(experiment: Experiment, widths: int, classes: int = 1) -> float:
    """Return the size of the program: tuples of each class, runs and moves; each takes a kilobyte and some 10 us."""
    config, kinds = experiment.cluster.router, kinds_of(experiment)
    batches = sum(experiment.cluster.servers[kind.first].params.batch_limit for kind in kinds)
    moves = (1 + (config.segments - 1) * widths) * 2.0 * len(kinds) ** 2
    runs = (1 + (config.segments - 1) * widths) * widths * batches
    return classes * float(widths) ** config.segments + runs + moves


def overload_of(experiment: Experiment) -> str | None:
    """Describe an overload, if more images arrive on average than any router can serve.

    Returns None if all is well, or if the question is too large to be answered in passing.
    """
    rate_img_s = experiment.mean_rate_img_s
    config = experiment.cluster.router
    if unknowns_of(experiment, len(config.widths)) > MAX_UNKNOWNS / 10:
        return None
    narrowest = tuple(widths[0] for widths in config.model_widths)
    if rate_img_s is None or (not config.models and rate_img_s <= whole_img_s(experiment, narrowest)):
        return None
    if rate_img_s <= FluidModel(experiment, narrowest).capacity_img_s():  # a small program
        return None
    capacity_img_s = FluidModel(experiment).capacity_img_s()  # if narrower is not faster
    if rate_img_s <= capacity_img_s:
        return None
    return (
        f"{experiment.scenario.name}: {rate_img_s:.4g} images/s arrive on average, and no router can sustain more than "
        f"{capacity_img_s:.4g} here, at any widths: queues grow to the end, and latencies depend on the run's length; "
        "lower the rate, or add servers or bandwidth (`slimsched bound`, `slimsched capacity`)"
    )


def whole_img_s(experiment: Experiment, narrowest: tuple[float, ...]) -> float:
    """Return a rate that the fluid model certainly sustains, found without solving it: one of its flows.

    Each server runs whole images at the narrowest width, in its largest batches, in the proportions in which it could
    alone. The rate is 0 if no server holds all segments at that width.
    """
    tuples = [narrowest * experiment.cluster.router.segments]
    kinds = kinds_of(experiment)
    runs, moves = list(_runs(experiment, kinds, [narrowest])), list(_moves(experiment, kinds, narrowest))
    limits = _limits(experiment, kinds, tuples, runs, moves)
    uses = []
    for kind in range(len(kinds)):
        of_edge = {run.edge: at for at, run in enumerate(runs, start=1) if run.kind == kind}  # its largest batch
        if len(of_edge) == len(tuples[0]):
            rates = {0, *of_edge.values()}
            for at, move in enumerate(moves, start=1 + len(runs)):
                if move.kind == kind and (move.source == ROUTER or move.stays):
                    rates.add(at)
            uses.append([sum(row[column] for column in rates & row.keys()) for row in limits])
    if not uses:
        return 0.0
    used = np.array(uses)  # (kinds, limits), of each limit by one image a second
    alone_img_s = 1 / used.max(axis=1)
    return float(alone_img_s.sum() / (alone_img_s @ used).max())


@dataclass(frozen=True)
class RouterLoad:
    """The load of the router's process at the mean rate, if all micro-batches are as large as they may be.

    Attributes:
        largest: images of such a micro-batch.
        messages: the least number of messages in which it comes back, as a server's batches have a limit.
        decided_s: a decision, the policy's own time, and the sending of the micro-batch.
        returned_s: taking it back.
    """

    rate_img_s: float
    segments: int
    largest: int
    messages: int
    decided_s: float
    returned_s: float

    @property
    def micro_batches_s(self) -> float:
        """Every image passes the router before each of its segments, unless it follows a path."""
        return self.rate_img_s * self.segments / self.largest

    @property
    def share(self) -> float:
        """The busy share of the router's only core."""
        return self.micro_batches_s * (self.decided_s + self.returned_s)


def router_load_of(experiment: Experiment) -> RouterLoad | None:
    """Return the load at the scenario's mean rate; None if it has none."""
    cluster, rate_img_s = experiment.cluster, experiment.mean_rate_img_s
    if rate_img_s is None:
        return None
    largest = cluster.router.micro_batch_sizes[-1]
    messages = -(-largest // max(server.params.batch_limit for server in cluster.servers))
    decided_s, returned_s = cluster.decision_ns / NS_PER_S, 0.0
    if (host := cluster.host) is not None:
        decided_s += _host_s(host.decision, largest)
        returned_s = _host_s(host.returned, largest) + (messages - 1) * _host_s(host.returned, 0)
    return RouterLoad(rate_img_s, cluster.router.segments, largest, messages, decided_s, returned_s)


def busy_router_of(experiment: Experiment) -> str | None:
    """Describe the problem if the router's process can't, or hardly, keep up, even with its largest micro-batches; or
    None."""
    load = router_load_of(experiment)
    if load is None or load.share < HARDLY:
        return None
    keeps = "can't keep up" if load.share >= 1 else "hardly keeps up"
    back = "1 message" if load.messages == 1 else f"at least {load.messages} messages"
    return (
        f"{experiment.scenario.name}: the router's process {keeps}, if it decides at each segment: "
        f"{load.rate_img_s:.4g} images/s in {load.segments} segments are {load.micro_batches_s:.4g} micro-batches/s, "
        f"if all are as large as router.micro_batch_sizes allows ({load.largest} images); each takes "
        f"{1e6 * load.decided_s:.4g} us to decide and send, and {1e6 * load.returned_s:.4g} us to take back "
        f"(in {back}): {100 * load.share:.0f} % of its one core, and more where micro-batches are smaller; take a "
        "router that names paths (compass, or rules with `paths: true`), lower "
        "the rate, or allow larger micro-batches (router.micro_batch_sizes, cluster.greedy.batch_limit)"
    )


# ------------------------------------------------------------------------------------------------------- a moving load


def oracle_accuracy(
    model: FluidModel, rates_img_s: Sequence[float], window_s: float = 1.0, points: int = ORACLE_POINTS
) -> Oracle:
    """Return the highest mean accuracy if each window's images had to be served within it, at the fluid model's best.

    It is an **estimate** of what foresight is worth, not a bound: a queue may move images to a quieter window, for the
    price of their latency, and then accuracy can be higher (the whole run as one window bounds it). On the other hand
    no run reaches the fluid model's capacity. The excess over the capacity of a window moves to the next.

    Args:
        rates_img_s: arrivals a second in each window.
        points: rates at which the program is solved; between them images are mixed.
    """
    capacity_img_s = model.capacity_img_s()
    grid_img_s = np.linspace(0.0, capacity_img_s, points + 1)[1:] * (1 - 1e-9)
    correct_img_s = np.array([rate * model.best_accuracy(rate) for rate in grid_img_s])
    waiting = right = images = 0.0
    overloaded = 0
    for rate_img_s in rates_img_s:
        offered_img_s = rate_img_s + waiting / window_s
        served_img_s = min(offered_img_s, capacity_img_s)
        if offered_img_s > capacity_img_s:
            overloaded += 1
        waiting = (offered_img_s - served_img_s) * window_s
        right += float(np.interp(served_img_s, [0.0, *grid_img_s], [0.0, *correct_img_s]))
        images += served_img_s
    if not images:
        raise WorkError("no image arrives")
    return Oracle(window_s, right / images, max(rates_img_s), overloaded / len(rates_img_s))


def programmes_of_an_oracle(scenario: Scenario) -> int:
    """Return the number of programs solved for it: the capacity's, and one a rate; 0 if the load is constant."""
    return 0 if isinstance(scenario.workload, PoissonWorkload | GammaWorkload) else 1 + ORACLE_POINTS


def oracle_of(model: FluidModel) -> Oracle | None:
    """Return the oracle for the scenario's own arrivals (with its seed); None if the load is constant."""
    scenario = model.experiment.scenario
    if not programmes_of_an_oracle(scenario):
        return None
    window_s = min(WINDOW_S, scenario.duration_s)
    return oracle_accuracy(model, list(window_rates_img_s(model.experiment, scenario.seed, window_s)), window_s)


def window_rates_img_s(experiment: Experiment, seed: int, window_s: float = 1.0) -> Vector:
    """Return the arrivals a second in each window of one run of the scenario."""
    horizon_s = experiment.scenario.duration_s
    edges_s = np.append(np.arange(0.0, horizon_s - window_s / 2, window_s), horizon_s)  # the last one may be longer
    counts, _ = np.histogram(experiment.arrivals_ns(seed, horizon_s) / NS_PER_S, edges_s)
    return np.asarray(counts / np.diff(edges_s), np.float64)


# -------------------------------------------------------------------------------------------------------- the program


def _edges(segments: int, groups: Sequence[tuple[float, ...]]) -> list[Edge]:
    """Return the edges of widths in nests, of which a request stays in one."""
    return [
        (segment, width, previous)
        for segment in range(1, segments + 1)
        for widths in groups
        for width in widths
        for previous in (widths if segment > 1 else (IMAGE,))
    ]


def kinds_of(experiment: Experiment) -> list[_Kind]:
    """Group servers into kinds: identical in all that the program contains, and sharing nothing with another kind.

    A rack counts together with its contents.
    """
    cluster, alike = experiment.cluster, experiment.costs.alike
    on_device = Counter(server.device for server in cluster.servers)
    on_medium = Counter(server.attachment.medium for server in cluster.servers)

    def own(index: int) -> tuple[object, ...]:
        server = cluster.servers[index]
        is_alone = on_device[server.device] == on_medium[server.attachment.medium] == 1
        identity = -1 if is_alone else index
        return identity, alike.devices[index], alike.links[index], cluster.router.fits[index]

    of_rack: dict[int, Counter[tuple[object, ...]]] = {}
    for index, rack in enumerate(alike.racks):
        of_rack.setdefault(rack, Counter())[own(index)] += 1
    racks = {rack: frozenset(of_rack[rack].items()) for rack in of_rack}
    members: dict[tuple[object, ...], list[int]] = {}
    for index, rack in enumerate(alike.racks):
        members.setdefault((*own(index), racks[rack]), []).append(index)
    return [_Kind(tuple(member)) for member in members.values()]


def _runs(experiment: Experiment, kinds: Sequence[_Kind], groups: Sequence[tuple[float, ...]]) -> Iterator[_Run]:
    """Yield every edge on every kind of server that can hold it, with every batch size."""
    config, host = experiment.cluster.router, experiment.cluster.host
    sent_s = experiment.cluster.decision_ns / NS_PER_S
    if host is not None:
        sent_s += _host_s(host.decision, 1) * host.sent_permille / 1000
    for number, index in enumerate(kind.first for kind in kinds):
        server = experiment.cluster.servers[index]
        tables = experiment.cluster.devices[server.device]
        there_s, dispatch_s, back_s = _least_ways_s(tables)
        for edge in _edges(config.segments, groups):
            if not config.fits[index][edge[0] - 1][config.widths.index(edge[1])]:
                continue
            table = tables.keys[edge]
            for batch in range(1, server.params.batch_limit + 1):
                padded = next((size for size in tables.padded_sizes if size >= batch), batch)
                solo_s = _solo_s(table, padded)
                image_s = solo_s / batch
                returned_s, latency_s = 0.0, dispatch_s + solo_s
                if edge[0] == 1:
                    latency_s += sent_s + there_s
                if edge[0] == config.segments:
                    latency_s += back_s
                    if host is not None:
                        returned_s = _host_s(host.returned, batch)
                        latency_s += returned_s * host.received_permille / 1000
                yield _Run(
                    kind=number,
                    edge=edge,
                    demand_s=table.demand_permille[padded] / 1000 * image_s,
                    host_s=table.host_permille[padded] / 1000 * image_s,
                    returned_s=returned_s / batch,
                    latency_s=latency_s,
                    joules=_joules(tables, table.power_mw[padded], table.demand_permille[padded], image_s),
                )


def _least_ways_s(tables: DeviceTables) -> tuple[float, float, float]:
    """Return the shortest handover, dispatch and way back; each on an idle or a busy device, whichever is faster."""
    return (
        min(tables.there_ns, tables.busy_there_ns) / NS_PER_S,
        min(tables.dispatch_ns, tables.busy_dispatch_ns) / NS_PER_S,
        min(tables.back_ns, tables.busy_back_ns) / NS_PER_S,
    )


def _host_s(cost: tuple[int, int], images: int) -> float:
    """Return the mean time the router's host takes for a micro-batch, or a message, of `images` images."""
    micro_batch_ns, image_ns = cost
    return (micro_batch_ns + image_ns * images) / NS_PER_S


def _solo_s(table: KeyTable, batch: int) -> float:
    if not table.jitter:
        return table.latency_ns[batch] / NS_PER_S
    return table.typical_ns[batch] * float(np.mean(table.jitter[batch])) / NS_PER_S


def _joules(tables: DeviceTables, power_mw: float, demand_permille: int, image_s: float) -> float:
    """Return the least dynamic energy an image, from its batch's solo power: at the power cap clocks fall, and save.

    Let D be the dynamic power of a device full of such batches, p / d. Batches that ask for shares w of the device, at
    most 1 together, have D = sum of w D_j, progress at phi w and draw min(P_cap, P_u) - P_ctx = phi e(D), with e(D) = D
    up to the cap and (P_cap - P_ctx) / phi above. With a concave function g below e and g(0) = 0 that is at least phi
    times the sum of w g(D_j): g(D_j) / D_j of the joules. Here g is the least of D, of e's tangent at the cap, and of e
    at phi_min.
    """
    cap, idle = tables.cap_mw, tables.context_idle_mw
    throttle = tables.throttle
    full_mw = power_mw / max(demand_permille, 1) * 1000 * _spare(tables)
    slope = (cap - idle) * throttle / cap
    slowest_mw = (cap - idle) / tables.phi_min if tables.phi_min else inf
    least_mw = min(full_mw, cap - idle + slope * max(0.0, full_mw - (cap - idle)), slowest_mw)
    return least_mw / full_mw * power_mw / 1000 * image_s if full_mw else 0.0


def _spare(tables: DeviceTables) -> float:
    """Return the work a second that crowding leaves if beta < 1, x ** (1 - beta), x up to 1 per fitting instance."""
    sharing = tables.profile.concurrency
    beta = min(sharing.beta, sharing.beta if sharing.across_beta is None else sharing.across_beta)
    if beta >= 1:
        return 1.0
    smallest = min(instance.vram_bytes for instance in tables.instances.values())
    return float(max(1.0, tables.profile.device.vram_bytes / smallest) ** (1 - beta))


def _moves(experiment: Experiment, kinds: Sequence[_Kind], widths: tuple[float, ...]) -> Iterator[_Move]:
    """Yield moves from the router to every kind, and after each segment but the last from every kind to every kind."""
    config, costs = experiment.cluster.router, experiment.costs
    numbers = {server: number for number, kind in enumerate(kinds) for server in kind.servers}
    of_kind = tuple(numbers[server] for server in range(config.servers))
    routes = replace(costs.alike, links=of_kind).ways()
    for segment in range(config.segments):
        for width in widths if segment else (IMAGE,):
            for (source, kind, _), pair in routes.items():
                if (segment > 0) == (source > 0):
                    one_s, two_s = (costs.transfer_s(*pair, segment + 1, width, images) for images in (1, 2))
                    uplink_s, stays = costs.uplink_s(*pair, segment + 1, width), pair[0] == pair[1]
                    yield _Move(segment, width, source - 1, kind, stays, one_s, two_s - one_s - uplink_s, uplink_s)


def _balances(
    tuples: Sequence[tuple[float, ...]], runs: Sequence[_Run], moves: Sequence[_Move]
) -> list[dict[int, float]]:
    """Return rows whose sum is zero: an edge runs as often as tuples have it; a server runs its input, which leaves."""
    rows: dict[tuple[object, ...], dict[int, float]] = {}
    for column, widths in enumerate(tuples):
        for segment, edge in enumerate(zip(widths, (IMAGE, *widths), strict=False), start=1):
            rows.setdefault(("edge", segment, *edge), {})[column] = -1.0
    last = max(run.edge[0] for run in runs)
    for column, run in enumerate(runs, start=len(tuples)):
        segment, width, previous = run.edge
        rows["edge", segment, width, previous][column] = 1.0
        rows.setdefault(("comes", segment, previous, run.kind), {})[column] = 1.0
        if segment < last:
            rows.setdefault(("leaves", segment, width, run.kind), {})[column] = 1.0
    for column, move in enumerate(moves, start=len(tuples) + len(runs)):
        rows.setdefault(("comes", move.segment + 1, move.width, move.kind), {})[column] = -1.0
        if move.source != ROUTER:
            rows.setdefault(("leaves", move.segment, move.width, move.source), {})[column] = -1.0
    return list(rows.values())


def _shares(shares: Sequence[float], class_of: Sequence[int]) -> list[dict[int, float]]:
    """Return rows whose sum is zero: each class has its share of the images; the last one's is the remainder."""
    return [
        {column: (1.0 if of == number else 0.0) - share for column, of in enumerate(class_of)}
        for number, share in enumerate(shares[:-1])
    ]


def _limits(
    experiment: Experiment,
    kinds: Sequence[_Kind],
    tuples: Sequence[tuple[float, ...]],
    runs: Sequence[_Run],
    moves: Sequence[_Move],
) -> list[dict[int, float]]:
    """Return rows whose sum is at most 1: every device, every process that launches, every medium, and the router."""
    servers, devices = experiment.cluster.servers, experiment.cluster.devices
    rows: dict[tuple[object, ...], dict[int, float]] = {}
    for column, run in enumerate(runs, start=len(tuples)):
        kind = kinds[run.kind]
        device, count = servers[kind.first].device, len(kind.servers)
        spare = _spare(devices[device]) * count
        is_hosted = devices[device].hosted
        rows.setdefault(("device", device), {})[column] = run.demand_s / spare
        rows.setdefault(("host", device if is_hosted else -1 - kind.first), {})[column] = run.host_s / spare
    for column, move in enumerate(moves, start=len(tuples) + len(runs)):
        kind = kinds[move.kind]
        medium = servers[kind.first].attachment.medium
        rows.setdefault(("medium", medium), {})[column] = move.busy_s / len(kind.servers)
        racks = frozenset(experiment.costs.alike.racks[server] for server in kind.servers)  # with the same in each
        rows.setdefault(("uplink", racks), {})[column] = move.uplink_s / len(racks)
    cluster, largest = experiment.cluster, experiment.cluster.router.micro_batch_sizes[-1]
    decision_s = cluster.decision_ns / NS_PER_S
    if cluster.host is not None:
        decision_s += _host_s(cluster.host.decision, largest)
    rows["router",] = dict.fromkeys(range(len(tuples)), decision_s / largest)
    if cluster.host is not None:
        rows["router",] |= {column: run.returned_s for column, run in enumerate(runs, start=len(tuples))}
    return list(rows.values())
