"""Plan of measurements within a budget: from a budget and a guess of each point's cost to an ordered list of steps.

Pure: it touches no device and no clock. A small budget costs rounds, then batch sizes, then repeats, never a key;
omissions are described. Held-out points are drawn here and no fit may use them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from calibrate.costs import Key
from hw.transport.messages import Point
from sim.interpolation import interpolate_latency_s

T = TypeVar("T")

MIN_BATCHES = 4  # enough for max(t0, c0 + c1 b)
NOTABLE = 0.05  # a scouted error that justifies a further batch size
USABLE_SHARE = 0.85  # share of the budget; the rest is for underestimates
STEP_OVERHEAD_S = 0.004  # a command to the agent and its answer
SHORTEST_PASS_S = 5e-5
WARM_S = 0.005  # the first passes of an instance have cold caches and take up to 1.4 times as long
# Guesses: loading and unloading one instance a few times, and creating and warming instances before processes begin
# together. On a GPU an instance then chooses its kernels for each shape, and captures its passes (an H200 took 0.08
# to 0.5 s for one).
HOLD_S, GPU_LOAD_S = 0.01, 0.3
LEAD_S = 0.05
QUIET_S = 0.3  # before an instance is loaded next to passes
HELD_OUT_SETS = 4  # one concurrency set in this number is held out
RISE_SHARE = 2 / 3  # largest part of a short steady load to drop as its rise
DRAWS = 20  # attempts to draw a new set; a small model has few
AT_ONCE = (2, 4, 8)  # numbers of simultaneous batches; eight only if there are enough sets
FEW_SETS = 16
REPEATED = 12  # solo points that are measured twice if there is only one round


ForwardGuess = Callable[[Point], float]  # seconds of one forward pass
ScoutedCurve = Mapping[int, float]  # scouted seconds by batch size, of one key


@dataclass(frozen=True, slots=True)
class Solo:
    """Time a point alone."""

    point: Point
    held_out: bool = False


@dataclass(frozen=True, slots=True)
class Together:
    """Time points that run at once, each in a separate instance, against each alone just before.

    `across`: in two processes on the device, in turn; otherwise in one.
    """

    points: tuple[Point, ...]
    held_out: bool = False
    across: bool = False


@dataclass(frozen=True, slots=True)
class Watch:
    """Run a point without pauses, to observe how the device's own speed varies."""

    point: Point


@dataclass(frozen=True, slots=True)
class LoadCycle:
    """Load and unload an instance, three times."""

    segment: int
    width: float


@dataclass(frozen=True, slots=True)
class InstancePoints:
    """Load an instance of a GPU, time points alone in it, and unload it."""

    segment: int
    width: float
    points: tuple[Point, ...]
    from_disk: bool


@dataclass(frozen=True, slots=True)
class Paths:
    """Time blocks through all segments; each path has a point a segment."""

    paths: tuple[tuple[Point, ...], ...]


@dataclass(frozen=True, slots=True)
class BesideLoad:
    """Time a point while an instance of a GPU is loaded next to it."""

    point: Point
    segment: int
    width: float


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Time the way of a command to the forward pass and of its result back."""

    point: Point


@dataclass(frozen=True, slots=True)
class Transfer:
    """Move activations from one server process to another."""

    size_bytes: int


@dataclass(frozen=True, slots=True)
class Steady:
    """Run a point in a loop for seconds, under a power sensor; with pauses at a `duty` below 1."""

    point: Point
    held_out: bool = False
    duty: float = 1.0


Step = Solo | Together | Watch | LoadCycle | InstancePoints | Paths | BesideLoad | Dispatch | Transfer | Steady


@dataclass(frozen=True, slots=True)
class StepEffort:
    """Effort per point; a plan takes the first that fits, from lavish to least.

    Attributes:
        rounds: number of visits of every solo and concurrency point, in a new random order each time.
        batches: number of fitted batch sizes; None for all.
        warmup, repeats, min_s: warm-up passes, least repeats and least time of a solo point in a round.
        sets, together_s: number of concurrency sets, and duration of each.
        points, steady_s: number of power points, and duration of each.
        tries: immediate attempts of a step that others disturb.
    """

    rounds: int
    batches: int | None
    warmup: int
    repeats: int
    min_s: float
    sets: int
    together_s: float
    points: int
    steady_s: float
    tries: int = 5


LAVISH = StepEffort(3, None, 20, 50, 0.3, 48, 1.0, 60, 5.0)
LEAST = StepEffort(1, MIN_BATCHES, 1, 3, 0.0, FEW_SETS, 0.1, 6, 1.5, tries=2)
WINDOW_S = 2.0  # of a power point: a sensor with ten readings a second has an error of 5 % over half a second
TRANSFER_BYTES = (256, 4096, 65536, 1048576)


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """A step in a round; a required one is always done.

    A spare step has a batch size that a small budget gave up.
    """

    step: Step
    round: int
    required: bool
    estimated_s: float
    is_spare: bool = False

    @property
    def id(self) -> str:
        """Its name in the log."""
        return f"{describe(self.step)} round {self.round}"


# An order of spare steps, drawn one by one; it may use the steps finished by then
# (`calibrate.measure.Measurement`).
Order = Callable[[Sequence[PlannedStep], Callable[[], Sequence[tuple[Step, Any]]]], Iterator[PlannedStep]]


def in_turn(spare: Sequence[PlannedStep], finished: Callable[[], Sequence[tuple[Step, Any]]]) -> Iterator[PlannedStep]:
    """Yield the steps in planned order."""
    return iter(spare)


@dataclass(frozen=True, slots=True)
class CalibrationPlan:
    """Steps in the order of execution.

    Attributes:
        late_effort: effort of steps that are late.
        batches: the batch sizes at which every key is measured.
        grid: the batch sizes with sufficient time, the most informative first.
        omitted: descriptions of what the budget left out.
        order: order of the spare steps.
    """

    effort: StepEffort
    late_effort: StepEffort
    batches: tuple[int, ...]
    grid: tuple[int, ...]
    steps: tuple[PlannedStep, ...]
    omitted: tuple[str, ...]
    order: Order = in_turn

    @property
    def estimated_s(self) -> float:
        """The estimated time of all steps."""
        return sum(planned.estimated_s for planned in self.steps)


@dataclass(frozen=True, slots=True)
class Extras:
    """Optional measurements that are possible here.

    Attributes:
        power: whether to measure steady points under the power sensor.
        peer: moving activations to a second server.
        sibling: concurrency sets across two processes of the device.
        rise_s: time after a step of the load in which the power sensor still reflects the state before.
        largest_bytes: largest transfer of a block.
        awake: a GPU's power at small duties, when its clocks stay up.
    """

    power: bool
    peer: bool
    sibling: bool = False
    rise_s: float = 0.0
    largest_bytes: int = 0
    awake: bool = False

    @property
    def transfers(self) -> tuple[int, ...]:
        """Sizes to move, up to the largest, beyond which times would be extrapolated."""
        more = (self.largest_bytes,) if self.largest_bytes > TRANSFER_BYTES[-1] else ()
        return (*TRANSFER_BYTES, *more) if self.peer else ()


def make_plan(
    keys: Sequence[Key],
    batch_limit: int,
    budget_s: float,
    guess: ForwardGuess,
    extras: Extras,
    rng: np.random.Generator,
    curves: Sequence[ScoutedCurve] = (),
) -> CalibrationPlan:
    """Return the most lavish plan that the budget allows; the least one if none fits.

    Args:
        keys: every legal (segment, width, previous width); all are covered, at 1 and `batch_limit` among others.
        rng: draws the held-out points, the mixed sets and the order.
        curves: see `rank_batches`.
    """
    seed = int(rng.integers(1 << 62))
    ranked = rank_batches(curves, batch_limit)
    for effort in efforts(len(ranked)):
        plan = _plan(keys, ranked, effort, guess, extras, np.random.default_rng(seed))
        if plan.estimated_s <= USABLE_SHARE * budget_s:
            more = [*_batches_given_up(keys, plan, guess, rng), *_more_rounds(plan, budget_s, rng)]
            steps = (*plan.steps, *more)
            return replace(plan, steps=steps, omitted=_omitted(effort, extras, _whole_rounds(steps)))
    short = f"nothing more could be left out: about {plan.estimated_s:.0f} s are needed, the budget is {budget_s:.0f} s"
    return replace(plan, omitted=(*plan.omitted, short))


def efforts(grid: int) -> Iterator[StepEffort]:
    """Yield efforts from lavish to least: fewer rounds, then fewer batch sizes, then fewer repeats."""
    yield LAVISH
    yield StepEffort(3, None, 10, 50, 0.1, 32, 0.5, 40, 4.0)
    yield StepEffort(2, None, 5, 30, 0.1, 24, 0.5, 30, 3.0)
    yield StepEffort(1, None, 5, 30, 0.1, 16, 0.4, 20, 2.5)
    for batches in range(grid - 1, MIN_BATCHES - 1, -1):
        yield StepEffort(1, batches, 5, 30, 0.1, 16, 0.3, 16, 2.0)
    yield StepEffort(1, MIN_BATCHES, 3, 15, 0.05, 16, 0.2, 12, 2.0)
    yield StepEffort(1, MIN_BATCHES, 2, 8, 0.02, 16, 0.15, 8, 1.5)
    yield LEAST


def full_grid(batch_limit: int) -> tuple[int, ...]:
    """Return powers of two and the limit itself; at least four batch sizes if the limit allows."""
    grid = {1 << i for i in range(batch_limit.bit_length())} | {batch_limit}
    for batch in range(1, batch_limit + 1):
        if len(grid) >= MIN_BATCHES:
            break
        grid.add(batch)
    return tuple(sorted(grid))


def scouted_batches(batch_limit: int) -> tuple[int, ...]:
    """Return batch sizes at which kernels may change: powers of two and their neighbours, and half-way between."""
    powers = [1 << i for i in range(batch_limit.bit_length())]
    near = {power + offset for power in powers for offset in (-1, 0, 1, power // 2)} | {batch_limit}
    return tuple(sorted(batch for batch in near if 1 <= batch <= batch_limit))


def rank_batches(curves: Sequence[ScoutedCurve], batch_limit: int) -> tuple[int, ...]:
    """Order the full grid by information: the ends, a pair, then wherever the rest is worst predicted.

    A library that changes its kernel at some batch size leaves a step there, which no smooth curve through powers of
    two can follow; so the grid also holds the sizes on both sides of it.

    Args:
        curves: scouted seconds by batch size, of a few keys; without any, the gaps between the sizes decide the order.
    """
    grid = set(full_grid(batch_limit))
    ranked = list(dict.fromkeys((1, batch_limit, min(2, batch_limit))))
    candidates = grid | {batch for curve in curves for batch in curve}
    while left := sorted(candidates - set(ranked)):
        errors = {batch: _scouted_error(curves, sorted(ranked), batch) for batch in left}
        if max(errors.values()) < NOTABLE and not grid - set(ranked):
            break
        gaps = {batch: min(abs(np.log(batch / other)) for other in ranked) for batch in left}
        kept = [batch for batch in left if errors[batch] >= NOTABLE or batch in grid]
        ranked.append(max(kept, key=lambda batch: (errors[batch] if errors[batch] >= NOTABLE else 0.0, gaps[batch])))
    return tuple(ranked)


def _scouted_error(curves: Sequence[ScoutedCurve], known: Sequence[int], batch: int) -> float:
    """Return the mean relative error at a batch size of the curve through the known ones."""
    errors = [
        abs(interpolate_latency_s(known, [curve[size] for size in known], batch) / curve[batch] - 1)
        for curve in curves
        if batch in curve and all(size in curve for size in known)
    ]
    return float(np.mean(errors)) if errors else 0.0


def describe(step: Step) -> str:
    """Return a step's name, unique among steps."""
    held_out = "held out " if getattr(step, "held_out", False) else ""
    match step:
        case Steady(point, duty=duty) if duty < 1.0:
            return f"steady {point} at a duty of {duty:g}"
        case Solo(point) | Watch(point) | Dispatch(point) | Steady(point):
            return f"{held_out}{type(step).__name__.lower()} {point}"
        case Together(points, across=across):
            return f"{held_out}together{' across' if across else ''} {' + '.join(map(str, points))}"
        case LoadCycle(segment, width):
            return f"hold {segment}/{width:g}"
        case InstancePoints(segment, width, points, from_disk):
            return f"{len(points)} points of {segment}/{width:g}{' from disk' if from_disk else ''}"
        case Paths(paths):
            return f"held out {len(paths)} paths"
        case BesideLoad(point, segment, width):
            return f"{point} beside a load of {segment}/{width:g}"
        case Transfer(size_bytes):
            return f"transfer {size_bytes} bytes"


def estimate_s(step: Step, effort: StepEffort, guess: ForwardGuess) -> float:
    """Estimate the time of a step."""
    match step:
        case Solo(point):
            forward_s = guess(point)
            warm_s = warmup_passes(effort, forward_s) * forward_s
            return STEP_OVERHEAD_S + warm_s + max(effort.min_s, effort.repeats * forward_s)
        case Together(points, across=across):
            alone_s = sum(alone_duration_s(point, effort, guess) for point in set(points))
            lead_s = LEAD_S if across else 0.0
            return len(points) * STEP_OVERHEAD_S + lead_s + alone_s + together_duration_s(points, effort, guess)
        case Watch():
            return STEP_OVERHEAD_S + effort.min_s
        case LoadCycle():
            return HOLD_S
        case InstancePoints(points=points):
            return GPU_LOAD_S + sum((effort.warmup + effort.repeats) * guess(point) for point in points)
        case Paths(paths):
            return GPU_LOAD_S * len(paths) / 4 + effort.repeats * sum(guess(point) for path in paths for point in path)
        case BesideLoad():
            return 2 * GPU_LOAD_S + QUIET_S
        case Dispatch(point):
            return STEP_OVERHEAD_S + effort.repeats * (guess(point) + 0.0005)
        case Transfer(size_bytes):
            return STEP_OVERHEAD_S + effort.repeats * (0.0005 + size_bytes / 2e8)
        case Steady():
            return STEP_OVERHEAD_S + effort.steady_s


def warmup_passes(effort: StepEffort, forward_s: float) -> int:
    """Return the number of passes before a solo point is timed; fast passes need more."""
    return max(effort.warmup, math.ceil(WARM_S / max(forward_s, SHORTEST_PASS_S)) if forward_s else 0)


def alone_duration_s(point: Point, effort: StepEffort, guess: ForwardGuess) -> float:
    """Return the time that a member of a concurrency set runs alone, for its own speed at that moment."""
    return max(effort.together_s / 3, 3 * guess(point))


def together_duration_s(points: Sequence[Point], effort: StepEffort, guess: ForwardGuess) -> float:
    """Return a concurrency set's duration: the slowest member finishes several batches, so time shares even out."""
    return max(effort.together_s * len(points) / 2, 3 * len(points) * max(guess(point) for point in points))


# ------------------------------------------------------------------------------------------------------ parts of a plan


def _plan(
    keys: Sequence[Key],
    ranked: Sequence[int],
    effort: StepEffort,
    guess: ForwardGuess,
    extras: Extras,
    rng: np.random.Generator,
) -> CalibrationPlan:
    batches = tuple(sorted(ranked[: effort.batches]))
    once: list[Step] = [LoadCycle(segment, width) for segment, width in sorted({key[:2] for key in keys})]
    once += [Dispatch(Point(*key, batches[0])) for key in _some(keys, 3, rng)]
    once += [Transfer(size_bytes) for size_bytes in extras.transfers]
    solos: list[Step] = [Solo(Point(*key, batch)) for key in keys for batch in batches]
    solos += _held_out(keys, batches, effort, rng)
    sets = _sets(keys, batches, effort.sets, extras.sibling, rng)
    steady = _steady(keys, batches, effort.points, rng) if extras.power else []
    rounds = [shuffled([*solos, *sets], rng) for _ in range(effort.rounds)]
    if effort.rounds == 1:  # the difference of two equal measurements is known at any budget
        rounds.append(_some([step for step in solos if isinstance(step, Solo) and not step.held_out], REPEATED, rng))
    order = [(step, 1) for step in once] + [(step, 1) for step in rounds[0]] + [(step, 1) for step in steady]
    order += [(step, number) for number, steps in enumerate(rounds[1:], start=2) for step in steps]
    # An interrupted or late calibration must still give a complete profile: the first round is required.
    planned = tuple(PlannedStep(step, number, number == 1, estimate_s(step, effort, guess)) for step, number in order)
    omitted = _omitted(effort, extras, effort.rounds)
    return CalibrationPlan(effort, LEAST, batches, tuple(ranked), planned, omitted)


def _batches_given_up(
    keys: Sequence[Key], plan: CalibrationPlan, guess: ForwardGuess, rng: np.random.Generator
) -> Iterator[PlannedStep]:
    """Yield the batch sizes that a small budget gave up, the most informative first, in case time is left.

    Held-out points stay held out.
    """
    held_out = {p.step.point for p in plan.steps if isinstance(p.step, Solo) and p.step.held_out}
    for batch in plan.grid[len(plan.batches) :]:
        for key in shuffled(keys, rng):
            step = Solo(Point(*key, batch))
            if step.point in held_out:
                continue
            yield PlannedStep(step, 1, False, estimate_s(step, plan.effort, guess), is_spare=True)


def _more_rounds(plan: CalibrationPlan, budget_s: float, rng: np.random.Generator) -> Iterator[PlannedStep]:
    """Yield further rounds as far as the budget allows; given-up batch sizes go first, if there are any."""
    if len(plan.batches) < len(plan.grid):
        return
    left_s = USABLE_SHARE * budget_s - plan.estimated_s
    again = [p for p in plan.steps if p.round == 1 and isinstance(p.step, Solo | Together)]
    first = 1 + max(planned.round for planned in plan.steps)
    for number in range(first, first + LAVISH.rounds - plan.effort.rounds):
        for planned in shuffled(again, rng):
            left_s -= planned.estimated_s
            if left_s < 0:
                return
            yield replace(planned, round=number, required=False)


def _whole_rounds(steps: Sequence[PlannedStep]) -> int:
    """Return the number of rounds that visit every solo and concurrency point of the first one."""
    rounds: dict[int, set[Step]] = {}
    for planned in steps:
        if isinstance(planned.step, Solo | Together):
            rounds.setdefault(planned.round, set()).add(planned.step)
    return sum(visited >= rounds[1] for visited in rounds.values())


def _held_out(keys: Sequence[Key], batches: Sequence[int], effort: StepEffort, rng: np.random.Generator) -> list[Step]:
    """Draw batch sizes that are not fitted (tile steps are between fitted ones), spread over the sizes and the keys.

    If every batch size is fitted, a second, separate measurement of some of them, which shows only repeatability.
    """
    between = [batch for batch in range(1, max(batches) + 1) if batch not in batches] or sorted(batches)
    some = _some(keys, len(keys) if effort.batches is None else max(6, len(keys) // 3), rng)
    low, high = np.log(between[0]), np.log(between[-1])
    targets = np.exp(low + (high - low) * (np.arange(len(some)) + 0.5) / len(some))
    nearest = [min(between, key=lambda batch: abs(batch - target)) for target in targets]
    return [Solo(Point(*key, batch), held_out=True) for key, batch in zip(some, nearest, strict=True)]


def _sets(
    keys: Sequence[Key], batches: Sequence[int], number: int, has_sibling: bool, rng: np.random.Generator
) -> list[Step]:
    """Draw distinct sets: half of them n times the same point, half mixed; half of each kind across two processes.

    With one process, none is across. A quarter of each kind is held out, of every size.
    """

    def draw() -> Point:
        return Point(*keys[int(rng.integers(len(keys)))], batches[int(rng.integers(len(batches)))])

    sizes = AT_ONCE if number > FEW_SETS else AT_ONCE[:-1]
    kinds = list(itertools.product((True, False), (False, True) if has_sibling else (False,)))
    counts: dict[Together, int] = {}
    for index in range(number):
        kind, turn = index % len(kinds), index // len(kinds)
        identical, across = kinds[kind]
        size = sizes[turn % len(sizes)] if identical else int(rng.integers(2, sizes[-1] + 1))
        for _ in range(DRAWS):
            points = (draw(),) * size if identical else tuple(sorted(draw() for _ in range(size)))
            drawn = Together(points, across=across)
            if drawn not in counts and identical == (len(set(points)) == 1):
                counts[drawn] = kind
                break
    first = int(rng.integers(HELD_OUT_SETS))
    held_out: set[Together] = set()
    for kind in range(len(kinds)):
        # half a period apart in neighbouring kinds, so that even few sets hold out different sizes
        held_out |= _spread([each for each in counts if counts[each] == kind], first + kind * HELD_OUT_SETS // 2)
    return [replace(each, held_out=each in held_out) for each in counts]


def _spread(sets: Sequence[Together], first: int) -> set[Together]:
    """Return one set in `HELD_OUT_SETS`, evenly over their sizes; none if nothing would be left."""
    by_size = sorted(sets, key=lambda each: len(each.points))
    return set(by_size[first % min(HELD_OUT_SETS, len(sets)) :: HELD_OUT_SETS]) if len(sets) > 1 else set()


def _steady(keys: Sequence[Key], batches: Sequence[int], number: int, rng: np.random.Generator) -> list[Step]:
    """Return power points, w = w_prev first (Figure 2 is drawn from these), a quarter held out."""
    uniform = [key for key in keys if key[0] == 1 or key[1] == key[2]]
    points = [Point(*key, batch) for batch in (batches[0], batches[len(batches) // 2], batches[-1]) for key in uniform]
    chosen = _some(points, number, rng)
    return [Steady(point, index % 4 == 3) for index, point in enumerate(chosen)]


def rise_dropped_s(steady_s: float, rise_s: float) -> float:
    """Return the time to drop of a steady load: the sensor's rise, or as much of it as leaves something."""
    return min(rise_s, RISE_SHARE * steady_s)


def _some(items: Sequence[T], number: int, rng: np.random.Generator) -> list[T]:
    return [items[i] for i in rng.permutation(len(items))[:number]]


def shuffled(items: Sequence[T], rng: np.random.Generator) -> list[T]:
    """Return the items in a random order."""
    return _some(items, len(items), rng)


def _omitted(effort: StepEffort, extras: Extras, rounds: int) -> tuple[str, ...]:
    """Describe what the budget left out; `rounds`: whole ones, including further ones in the remaining time."""
    words = []
    if rounds < LAVISH.rounds:
        words.append(f"rounds over the grid: {rounds} of {LAVISH.rounds} whole ones")
    if effort.repeats < LAVISH.repeats or effort.min_s < LAVISH.min_s:
        lasting = f", {effort.min_s:g} s at least," if effort.min_s else ""
        wanted = f"{LAVISH.repeats}, {LAVISH.min_s:g} s at least"
        words.append(f"repeats: {effort.repeats} a point and round{lasting} instead of {wanted}")
    if effort.sets < LAVISH.sets:
        words.append(f"concurrency sets: {effort.sets} instead of {LAVISH.sets}")
    if extras.power and effort.points < LAVISH.points:
        words.append(f"power points: {effort.points} instead of {LAVISH.points}")
    return (*words, *power_omitted(effort, extras))


def power_omitted(effort: StepEffort, extras: Extras) -> Iterator[str]:
    """Describe what power points are too short for."""
    if extras.power and (dropped_s := rise_dropped_s(effort.steady_s, extras.rise_s)) < extras.rise_s:
        problem = f"{dropped_s:.1f} of {extras.rise_s:.1f} s are dropped at each power point"
        yield f"the power sensor's rise: {problem}, the rest pulls powers towards idle"
    window_s = effort.steady_s - rise_dropped_s(effort.steady_s, extras.rise_s)
    if extras.power and window_s < WINDOW_S:
        yield f"power points: {window_s:.1f} s of each are looked at, instead of {WINDOW_S:g} s and more"
