"""The fixed plan of a calibration, and the operations and bytes of segments. It touches no device and no clock.

Costs of segments (`costs_of`) follow from shapes alone and are independent of devices.

The plan (`make_plan`): a budget decides only on the number of rounds (`calibrate.plan_execution`). Only the plan's
batch sizes are timed: a GPU receives no others, and a CPU's others are interpolated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from typing import Final, Literal, TypeVar

import numpy as np

from hw.networks.servable import Servable
from hw.transport.messages import Point
from sim.device_profile import ModelInfo

Key = tuple[int, float, float]  # (segment, width, previous width)
ELEMENT_BYTES = 4


# ---------------------------------------------------------------------------------------------------- costs of segments


@dataclass(frozen=True, slots=True)
class KeyCost:
    """Cost of one (segment, width, previous width).

    Attributes:
        macs: multiply-accumulates of one image.
        weight_bytes: read once a batch.
        moved_bytes: feature maps read and written, of one image.
        kernels: launches of one forward pass.
    """

    macs: int
    weight_bytes: int
    moved_bytes: int
    kernels: int

    def batch_bytes(self, batch: int) -> int:
        """Return the bytes that a batch moves to and from device memory."""
        return self.weight_bytes + batch * self.moved_bytes


@dataclass(frozen=True, slots=True)
class ModelCosts:
    """A model's costs for calibration and the datasheet profiles.

    Attributes:
        keys: the cost of every legal key.
        instance_bytes: the weights of every (segment, width).
    """

    info: ModelInfo
    keys: Mapping[Key, KeyCost]
    instance_bytes: Mapping[tuple[int, float], int]


def costs_of(model: Servable, name: str, model_hash: str) -> ModelCosts:
    """Return the costs of a network in float32."""
    spec = model.spec
    costs = {key: model.cost(*key) for key in spec.work_keys()}
    return ModelCosts(
        info=_model_info(model, name, model_hash),
        keys={
            key: KeyCost(cost.macs, cost.params * ELEMENT_BYTES, cost.moved_bytes, cost.kernels)
            for key, cost in costs.items()
        },
        instance_bytes={
            (segment, width): model.instance_bytes(segment, width)
            for segment in range(1, spec.segments + 1)
            for width in spec.widths
        },
    )


def _model_info(model: Servable, name: str, model_hash: str) -> ModelInfo:
    spec = model.spec
    rows = [
        tuple(ELEMENT_BYTES * prod(model.activation_shape(segment, width)) for width in spec.widths)
        for segment in range(1, spec.segments + 1)
    ]
    return ModelInfo(
        name=name,
        hash=model_hash,
        segments=spec.segments,
        widths=spec.widths,
        input_bytes=ELEMENT_BYTES * prod(spec.input_shape),
        activation_bytes=tuple(rows),
        labels=spec.labels,
        nests=spec.nests,
        models=spec.models,
    )


# ---------------------------------------------------------------------------------------------------------------- steps


T = TypeVar("T")

MIN_BATCHES: Final = 4  # enough for max(t0, c0 + c1 b)
DISPATCHES: Final = 3
PATHS: Final = 20
DUTIES: Final = (0.01, 0.05, 0.2, 0.5)
TRANSFER_BYTES: Final = (256, 4096, 65536, 1048576)
WATCH_S: Final = 1.5
POWER_S: Final = 1.0  # under load, after the sensor's rise: a sensor with ten readings a second is then 2.5 % off
LEAD_S: Final = 0.05  # creating and warming instances before processes begin together
QUIET_S: Final = 0.3  # before an instance is loaded next to passes
ALONE_SHARE: Final = 1 / 3  # of a concurrency set's time, for which each member runs alone just before
STEP_OVERHEAD_S: Final = 0.004  # a command to the worker and its answer
WARM_S: Final = 0.005  # of passes before a point is timed on a CPU (`hw.worker.torch_outfit`)
PAUSE_S: Final = 500e-6  # before a pass on a CPU (`calibrate.device_opening`), with the reference next to it
GPU_PASS_S: Final = 5e-4

ForwardGuess = Callable[[Point], float]  # seconds of one forward pass


@dataclass(frozen=True, slots=True)
class Effort:
    """Effort of the steps on a kind of device.

    Attributes:
        warmup, repeats, min_s: passes before a point is timed, and its least repeats and least time in a round.
        together_s: duration of a concurrency set of two.
        rounds, most_rounds: rounds that are required, and rounds that a large budget has.
        load_s: guess of the time to make one instance; a GPU's then chooses its kernels, and captures its passes.
    """

    warmup: int
    repeats: int
    min_s: float
    together_s: float
    rounds: int
    most_rounds: int
    load_s: float


EFFORTS: Final[Mapping[Literal["cpu", "cuda"], Effort]] = {
    "cpu": Effort(warmup=1, repeats=3, min_s=0.01, together_s=0.1, rounds=1, most_rounds=20, load_s=0.01),
    "cuda": Effort(warmup=5, repeats=40, min_s=0.0, together_s=0.2, rounds=2, most_rounds=5, load_s=0.3),
}


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
class InstancePoints:
    """Load an instance, time points alone in it, and unload it."""

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
    duration_s: float
    held_out: bool = False
    duty: float = 1.0


Step = Together | Watch | InstancePoints | Paths | BesideLoad | Dispatch | Transfer | Steady


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """A step in a round; a required one is always done."""

    step: Step
    round: int
    required: bool
    estimated_s: float

    @property
    def id(self) -> str:
        """The measurement's name in the log."""
        return f"{describe(self.step)} round {self.round}"


@dataclass(frozen=True, slots=True)
class CalibrationPlan:
    """Steps in the order of execution; `batches`: the batch sizes at which every key is measured."""

    effort: Effort
    batches: tuple[int, ...]
    steps: tuple[PlannedStep, ...]

    @property
    def round_s(self) -> float:
        """The estimated time of one round over all points."""
        first = [step for step in self.steps if step.round == 1]
        return sum(each.estimated_s for each in first if isinstance(each.step, InstancePoints) and each.step.from_disk)


@dataclass(frozen=True, slots=True)
class Extras:
    """Optional measurements that are possible here.

    Attributes:
        power: whether to measure steady points under the power sensor.
        peer: moving activations to a second server.
        rise_s: time after a step of the load in which the power sensor still reflects the state before.
        largest_bytes: largest transfer of a micro-batch.
        awake: a GPU's power at small duties, when its clocks stay up.
    """

    power: bool
    peer: bool
    rise_s: float = 0.0
    largest_bytes: int = 0
    awake: bool = False

    @property
    def transfers(self) -> tuple[int, ...]:
        """Sizes to move, up to the largest, beyond which times would be extrapolated."""
        largest = (self.largest_bytes,) if self.largest_bytes > TRANSFER_BYTES[-1] else ()
        return (*TRANSFER_BYTES, *largest) if self.peer else ()


# -------------------------------------------------------------------------------------------------------- batch sizes


def powers_of_two(batch_limit: int) -> tuple[int, ...]:
    """Return the powers of two up to the limit, and the limit."""
    return tuple(sorted({1 << exponent for exponent in range(batch_limit.bit_length())} | {batch_limit}))


def full_grid(batch_limit: int) -> tuple[int, ...]:
    """Return powers of two and the limit itself; at least four batch sizes if the limit allows."""
    grid = set(powers_of_two(batch_limit))
    for batch in range(1, batch_limit + 1):
        if len(grid) >= MIN_BATCHES:
            break
        grid.add(batch)
    return tuple(sorted(grid))


def padded_sizes(batch_limit: int, micro_batch_s: Mapping[int, float]) -> tuple[int, ...]:
    """Return a GPU's batch sizes: powers of two, the limit, 12 and 24 if padding costs more than a pass.

    A batch half-way between two powers is padded to the larger. That costs half of the difference of their times, and
    saves a further pass, of which the fixed part is what one image takes. If it costs more, the size is worth its
    captures.

    Args:
        micro_batch_s: times of micro-batches of 1 image and of the powers of two.
    """
    sizes = powers_of_two(batch_limit)
    pairs = [(low, high) for low, high in pairwise(sizes) if low in (8, 16) and high == 2 * low]
    halfway = {3 * low // 2 for low, high in pairs if (micro_batch_s[high] - micro_batch_s[low]) / 2 > micro_batch_s[1]}
    return tuple(sorted({*sizes, *halfway}))


# ------------------------------------------------------------------------------------------------------------ the plan


def make_plan(
    kind: Literal["cpu", "cuda"],
    keys: Sequence[Key],
    sizes: Sequence[int],
    extras: Extras,
    guess: ForwardGuess,
    rng: np.random.Generator,
) -> CalibrationPlan:
    """Plan all batch sizes at all keys in rounds, and everything else between the first two.

    Args:
        kind: of the device.
        keys: every legal (segment, width, previous width), ascending.
        sizes: `padded_sizes` of a GPU, `full_grid` of a CPU.
        guess: of a pass, for the steps' estimated times.
        rng: draws the paths and the order.
    """
    # On a CPU batches beyond the middle size crowd others no more, and take long.
    sets = list(dict.fromkeys(_sets(keys, sizes if kind == "cuda" else sizes[: len(sizes) // 2 + 1])))
    effort = EFFORTS[kind]
    if len(sizes) < 3:  # with no size between two others, only a second round states an error
        effort = replace(effort, rounds=max(2, effort.rounds))
    between: list[Step] = [*sets, *(_of_a_gpu(keys, sizes, rng) if kind == "cuda" else _of_a_cpu(keys))]
    between += [Dispatch(Point(*key, sizes[0])) for key in shuffled(keys, rng)[:DISPATCHES]]
    between += [Transfer(size_bytes) for size_bytes in extras.transfers]
    between += dict.fromkeys(_steady(keys, sizes, extras)) if extras.power else ()
    rounds: list[list[Step]] = [[*_round(keys, sizes, rng, from_disk=True), *between]]
    for number in range(2, effort.most_rounds + 1):
        repeats = _round(keys, sizes, rng, from_disk=False)
        rounds.append([*repeats, *(shuffled(sets, rng) if number > effort.rounds else ())])
    planned = (
        PlannedStep(step, number, number <= effort.rounds, estimate_s(step, effort, guess))
        for number, steps in enumerate(rounds, start=1)
        for step in steps
    )
    return CalibrationPlan(effort, tuple(sizes), tuple(planned))


def _round(keys: Sequence[Key], sizes: Sequence[int], rng: np.random.Generator, *, from_disk: bool) -> Iterator[Step]:
    """Yield a round: each instance is loaded once, with all its points."""
    for segment, width in shuffled(sorted({key[:2] for key in keys}), rng):
        points = [Point(*key, size) for key in keys if key[:2] == (segment, width) for size in sizes]
        yield InstancePoints(segment, width, tuple(shuffled(points, rng)), from_disk)


def _of_a_cpu(keys: Sequence[Key]) -> Iterator[Step]:
    """Yield the device's own speed, and loads from the host's memory."""
    yield Watch(Point(*min(keys), 1))
    yield from (InstancePoints(segment, width, (), False) for segment, width in sorted({key[:2] for key in keys}))


def _of_a_gpu(keys: Sequence[Key], sizes: Sequence[int], rng: np.random.Generator) -> Iterator[Step]:
    """Yield a short and a long pass next to the loading of the narrowest and the widest instance; and random paths."""
    short, _, long = _ends(keys, sizes)
    for point in (short, long):
        for segment, width, _ in (min(keys), max(keys)):
            yield BesideLoad(point, segment, width)
    drawn = (sizes[int(rng.integers(len(sizes)))] for _ in range(PATHS))
    yield Paths(tuple(path_of(keys, size, lambda widths: widths[int(rng.integers(len(widths)))]) for size in drawn))


def path_of(keys: Sequence[Key], size: int, choose: Callable[[Sequence[float]], float]) -> tuple[Point, ...]:
    """Return a path of one batch size, each segment's width chosen of those that can follow the one before."""
    path: list[Point] = []
    previous = 0.0
    for segment in sorted({key[0] for key in keys}):
        width = choose([width for number, width, before in keys if (number, before) == (segment, previous)])
        path.append(Point(segment, width, previous, size))
        previous = width
    return tuple(path)


def _ends(keys: Sequence[Key], sizes: Sequence[int]) -> tuple[Point, Point, Point]:
    """Return three points of the middle segment: the shortest pass, one in the middle, and the longest."""
    of_segment = sorted(key for key in keys if key[0] == sorted(keys)[len(keys) // 2][0])
    middle = Point(*of_segment[len(of_segment) // 2], sizes[len(sizes) // 2])
    return Point(*of_segment[0], sizes[0]), middle, Point(*of_segment[-1], sizes[-1])


def _sets(keys: Sequence[Key], sizes: Sequence[int]) -> Iterator[Together]:
    """Yield sets of short and long passes, two and four at once, in one process and across two; a third is held out."""
    short, middle, long = _ends(keys, sizes)
    fitted = [(short,) * 2, (short, long), (long,) * 2, (long,) * 4]
    held_out = [(middle,) * 2, (short, short, long, long)]
    for across in (False, True):
        yield from (Together(points, False, across) for points in fitted)
        yield from (Together(points, True, across) for points in held_out)


def _steady(keys: Sequence[Key], sizes: Sequence[int], extras: Extras) -> Iterator[Steady]:
    """Yield the narrowest and the widest at both ends under the power sensor, and two held out in the middle.

    If clocks stay up, also a point at small duties.
    """
    short, middle, long = _ends(keys, sizes)
    duration_s = extras.rise_s + POWER_S
    for key in (short.key, long.key):
        yield from (Steady(Point(*key, size), duration_s) for size in (sizes[0], sizes[-1]))
    yield from (Steady(Point(*middle.key, size), duration_s, held_out=True) for size in (middle.batch, sizes[-1]))
    yield from (Steady(middle, duration_s, duty=duty) for duty in (DUTIES if extras.awake else ()))


def shuffled(items: Sequence[T], rng: np.random.Generator) -> list[T]:
    """Return the items in a random order."""
    return [items[i] for i in rng.permutation(len(items))]


# --------------------------------------------------------------------------------------------------- names and guesses


def describe(step: Step) -> str:
    """Return a step's name, unique among steps."""
    held_out = "held out " if getattr(step, "held_out", False) else ""
    match step:
        case Steady(point, duty=duty) if duty < 1.0:
            return f"steady {point} at a duty of {duty:g}"
        case Watch(point) | Dispatch(point) | Steady(point):
            return f"{held_out}{type(step).__name__.lower()} {point}"
        case Together(points, across=across):
            return f"{held_out}together{' across' if across else ''} {' + '.join(map(str, points))}"
        case InstancePoints(segment, width, points, from_disk):
            return f"{len(points)} points of {segment}/{width:g}{' from disk' if from_disk else ''}"
        case Paths(paths):
            return f"{len(paths)} paths"
        case BesideLoad(point, segment, width):
            return f"{point} next to a load of {segment}/{width:g}"
        case Transfer(size_bytes):
            return f"transfer {size_bytes} bytes"


def guess_from(
    costs: Mapping[Key, KeyCost], paths: Sequence[tuple[Point, ...]], micro_batches_s: Sequence[float]
) -> ForwardGuess:
    """Guess passes from the times of two micro-batches on one path: a floor a segment, and a price of a MAC.

    Args:
        paths: of the two, the smaller batch first.
    """
    small, large = paths
    macs, difference = sum(costs[point.key].macs for point in small), large[0].batch - small[0].batch
    price_s = (
        max(0.0, micro_batches_s[1] - micro_batches_s[0]) / (macs * difference)
        if difference
        else micro_batches_s[0] / macs
    )
    floor_s = max(0.0, micro_batches_s[0] - price_s * macs * small[0].batch) / len(small)
    return lambda point: floor_s + price_s * costs[point.key].macs * point.batch


def estimate_s(step: Step, effort: Effort, guess: ForwardGuess) -> float:
    """Estimate the time of a step."""
    match step:
        case InstancePoints(points=points):
            return effort.load_s + STEP_OVERHEAD_S + sum(alone_s(effort, guess(point)) for point in points)
        case Together(points, across=across):
            loads_s = effort.load_s / 3 * (len(points) + len(set(points))) + (LEAD_S if across else 0.0)
            members_s = sum(max(ALONE_SHARE * effort.together_s, 3 * guess(point)) for point in set(points))
            return loads_s + members_s + together_s(effort, list(map(guess, points)))
        case Watch():
            return STEP_OVERHEAD_S + WATCH_S
        case Paths(paths):
            return effort.load_s * len(paths) / 4 + effort.repeats * sum(
                guess(point) for path in paths for point in path
            )
        case BesideLoad():
            return 2 * effort.load_s + QUIET_S
        case Dispatch(point):
            return effort.load_s / 3 + effort.repeats * (guess(point) + PAUSE_S)
        case Transfer(size_bytes):
            return STEP_OVERHEAD_S + effort.repeats * (PAUSE_S + size_bytes / 2e8)
        case Steady(duration_s=duration_s):
            return effort.load_s / 3 + duration_s


def alone_s(effort: Effort, forward_s: float) -> float:
    """Estimate the time of a point alone, with its warm-up."""
    if not effort.min_s:
        return (effort.warmup + effort.repeats) * forward_s
    return max(WARM_S, effort.warmup * forward_s) + max(effort.min_s, effort.repeats * (forward_s + PAUSE_S))


def together_s(effort: Effort, members_s: Sequence[float]) -> float:
    """Return a concurrency set's duration: the slowest member finishes several batches, so time shares even out."""
    return max(effort.together_s * len(members_s) / 2, 3 * len(members_s) * max(members_s))
