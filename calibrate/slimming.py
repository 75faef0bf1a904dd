"""Does slimming pay on a device? Times every segment and the whole network at every uniform width, beside their rivals.

What is timed is what serves: instances as `hw.devices.instances.Instances` makes them, and `hw.devices.instances.serve`
from single activations on. Whatever is compared runs in turns (A B C A B C ...), so that a device that drifts slows all
of it, and ratios are taken within a round. It judges no figure and prints none.
"""

from __future__ import annotations

import time  # noqa: TID251 - real passes are timed with a real clock
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock

from hw.device import DeviceSpec
from hw.devices.activations import in_format
from hw.devices.instances import Instances, open_device, serve
from hw.networks.rows import Row, gather, rows_of
from hw.networks.slimmable import SegmentInstance, SlimmableModel, slice_weights
from hw.networks.slimresnet import SlimResNet, SlimResNetConfig
from hw.telemetry import cpu_name
from kit.errors import InputError, WorkError
from policies.vocabulary import IMAGE, NS_PER_S

SCHEMA = "slimsched.slimming/1"
BATCHES = (1, 8, 32, 128)
LARGEST_BATCH = 1 << 16  # a mistyped one must not take all the machine's memory
FULL = 1.0

# Ways to run a width. The first is what the executor does once it has an instance of that width.
SERVED = "served"  # an instance of that very width
VIEWS = "views"  # an instance of full width, running narrower
PACKED = "packed"  # weights copied for that very (width, previous width): an instance that serves nothing else

# Rivals of the full width, from the same list of single images.
PLAIN = "plain stack"  # torchvision's blocks with BatchNorm
ONE_PIECE = "one piece"  # all segments in one call: no single activations between them
COMPILED = "torch.compile"  # the one piece, compiled
GRAPH = "CUDA graph"  # the one piece, captured

Entry = tuple[str, float]  # (way to run or rival, width)
Pass = Callable[[], object]
Clock = Callable[[], int]  # monotonic nanoseconds

# --------------------------------------------------------------------------------------------------------- the timing


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to measure.

    Attributes:
        rounds: turns of each contender.
        turn_s: least seconds of a turn; a turn has at least one pass.
        slow_s: where one pass of every contender takes longer than this, `few_rounds` must do.
    """

    rounds: int = 5
    turn_s: float = 0.06  # 0.3 s in five rounds
    slow_s: float = 10.0
    few_rounds: int = 3


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and quartiles."""

    median: float
    q1: float
    q3: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of at least one value."""
        q1, middle, q3 = np.quantile(values, (0.25, 0.5, 0.75)).tolist()
        return cls(middle, q1, q3)


@dataclass(frozen=True, slots=True)
class Race:
    """Contenders that ran in turns: for each the seconds of a pass, by round."""

    turns_s: Mapping[Entry, tuple[float, ...]]

    @property
    def rounds(self) -> int:
        """Turns of each."""
        return len(next(iter(self.turns_s.values())))

    def latency_s(self, entry: Entry) -> float:
        """The median turn."""
        return median(self.turns_s[entry])

    def ratio(self, entry: Entry, to: Entry) -> Spread:
        """Of the seconds of two contenders, each round by itself."""
        return Spread.of([a / b for a, b in zip(self.turns_s[entry], self.turns_s[to], strict=True)])


def race(
    contenders: Mapping[Entry, Pass],
    effort: Effort,
    clock: Clock = time.monotonic_ns,
    on_round: Callable[[], None] = lambda: None,
) -> Race:
    """Let all run in turns: one sweep to warm up, then the rounds. A turn counts as its median pass."""
    turns_s: dict[Entry, list[float]] = {entry: [] for entry in contenders}
    for number in range(effort.rounds + 1):
        if number > effort.few_rounds and sum(map(median, turns_s.values())) > effort.slow_s:
            break
        for entry, run in contenders.items():
            turn_s = _turn_s(run, effort.turn_s, clock)
            if number > 0:
                turns_s[entry].append(turn_s)
        on_round()
    return Race({entry: tuple(values) for entry, values in turns_s.items()})


def _turn_s(run: Pass, least_s: float, clock: Clock) -> float:
    passes_ns: list[int] = []
    while not passes_ns or sum(passes_ns) < least_s * NS_PER_S:
        begin_ns = clock()
        run()
        passes_ns.append(clock() - begin_ns)
    return median(passes_ns) / NS_PER_S


# --------------------------------------------------------------------------------------------------------- the result


@dataclass(frozen=True, slots=True)
class Timing:
    """One way to run a width.

    Attributes:
        latency_s: of a batch.
        ratio: to the served full width.
        saved_share: of the saving that the operations promise; None at full width, and where they promise none.
    """

    latency_s: float
    ratio: Spread
    saved_share: float | None


@dataclass(frozen=True, slots=True)
class Point:
    """A segment, or the whole network (`segment` None), at a uniform width and a batch size.

    Attributes:
        macs: multiply-accumulates of one image.
        ideal_ratio: `macs` to the full width's; None where that has none.
        rounds: that the medians are of.
        timings: by way to run; a way that does not differ from `SERVED` here is left out.
    """

    segment: int | None
    width: float
    batch: int
    macs: int
    ideal_ratio: float | None
    rounds: int
    timings: Mapping[str, Timing]


@dataclass(frozen=True, slots=True)
class Rival:
    """Another way to compute the full width; `served_ratio` is the served network's seconds to its."""

    latency_s: float
    served_ratio: Spread


@dataclass(frozen=True, slots=True)
class FullWidth:
    """The served network at full width against its rivals, by name."""

    batch: int
    latency_s: float
    rounds: int
    rivals: Mapping[str, Rival]


@dataclass(frozen=True, slots=True)
class Slimming:
    """What slimming gains on a device.

    Attributes:
        network, device: names.
        execution: see `DeviceSpec.execution`.
        effort: how long was measured.
        points: the whole network, then the segments; by batch size, by width.
        full_width: by batch size.
        absent: what was not measured -> why.
    """

    network: str
    device: str
    execution: Mapping[str, str]
    effort: Effort
    points: tuple[Point, ...]
    full_width: tuple[FullWidth, ...]
    absent: Mapping[str, str]

    def document(self) -> dict[str, Any]:
        """As JSON, of `SCHEMA`."""
        return {"schema": SCHEMA, **asdict(self)}


def saved_share(ratio: float, ideal_ratio: float | None) -> float | None:
    """The share of the ideal saving that was reached: below 0 where slimming made it slower."""
    return None if ideal_ratio is None or ideal_ratio >= 1 else (1 - ratio) / (1 - ideal_ratio)


# -------------------------------------------------------------------------------------------------------- what is timed


class PlainStack(nn.Sequential):
    """A residual network of the same shapes at full width, as torchvision would build it: BatchNorm, nothing slimmable.

    Its children are the segments. It lacks a projection where a block changes neither channels nor size (in segment 1
    of stride 1), for torchvision has none there.
    """

    def __init__(self, config: SlimResNetConfig) -> None:
        segments = []
        channels = config.base_channels
        for segment, stride in enumerate(config.strides, start=1):
            layers: list[nn.Module] = []
            if segment == 1:
                stem = nn.Conv2d(config.in_channels, channels, 3, padding=1, bias=False)
                layers += [stem, nn.BatchNorm2d(channels), nn.ReLU(inplace=True)]
            for block in range(config.blocks_per_segment):
                width = config.channels(segment, FULL)
                layers.append(_block(channels, width, stride if block == 0 else 1))
                channels = width
            if segment == config.segments:
                layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, config.classes)]
            segments.append(nn.Sequential(*layers))
        super().__init__(*segments)


def _block(channels: int, width: int, stride: int) -> nn.Module:
    projection = None
    if stride != 1 or channels != width:
        projection = nn.Sequential(nn.Conv2d(channels, width, 1, stride, bias=False), nn.BatchNorm2d(width))
    block: nn.Module = BasicBlock(channels, width, stride, projection)
    return block


@dataclass(frozen=True, slots=True)
class ServedPass:
    """One pass over instances that follow one another, as the executor runs them: rows in, rows between, labels out.

    Attributes:
        rows: single images or activations.
        previous: the width that `rows` come at.
        labels: whether the outputs are logits, whose labels are then read.
    """

    instances: tuple[SegmentInstance, ...]
    rows: tuple[Row, ...]
    width: float
    previous: float
    memory_format: torch.memory_format
    labels: bool

    def __call__(self) -> None:
        """Run it; the device is idle afterwards."""
        rows, previous, y = self.rows, self.previous, None
        for instance in self.instances:
            rows = rows if y is None else tuple(rows_of(y))
            y = serve(instance, rows, self.width, previous, len(rows), self.memory_format)
            previous = self.width
        if self.labels and y is not None:
            y.argmax(dim=1).tolist()


@dataclass(frozen=True, slots=True)
class OnePiece:
    """One pass over the full width in a single call, from single images to labels.

    Attributes:
        compute: (B, C, H, W) images to (B, classes) logits.
    """

    compute: Callable[[Tensor], Tensor]
    rows: tuple[Row, ...]
    memory_format: torch.memory_format

    def __call__(self) -> None:
        """Run it; reading the labels waits for the device."""
        self.compute(in_format(gather(self.rows), self.memory_format)).argmax(dim=1).tolist()


class Stand:
    """A network on an opened device, with all the instances that are timed."""

    def __init__(self, model: SlimmableModel, device: DeviceSpec, place: torch.device) -> None:
        self.model, self.device, self.place = model, device, place
        self.segments = range(1, model.spec.segments + 1)
        self.widths = model.spec.widths
        self.plain = PlainStack(model.config) if type(model) is SlimResNet else None  # a subclass may differ
        if self.plain is not None:
            self.plain.eval().to(place, device.torch_dtype).to(memory_format=device.memory_format)
        weights = Instances(model, Path(), device, place)
        self._instances = {(s, w): weights.make(s, w) for s in self.segments for w in self.widths}

    @property
    def other_format(self) -> torch.memory_format:
        """The order of feature maps in memory that this device does not serve in."""
        return torch.contiguous_format if self.device.channels_last else torch.channels_last

    def rows(self, segment: int, previous: float, batch: int) -> tuple[Row, ...]:
        """What comes before a segment: images as they arrive, activations as a segment leaves them (none below 0)."""
        shape = self.model.activation_shape(segment - 1, previous)
        values = torch.randn(batch, *shape, generator=torch.Generator().manual_seed(0)).relu_()
        placed = values.to(self.place, self.device.torch_dtype)
        return tuple(rows_of(placed if segment == 1 else in_format(placed, self.device.memory_format)))

    def segment_passes(self, segment: int, batch: int) -> dict[Entry, Pass]:
        """One segment at every width, in the two ways that an executor has."""
        passes: dict[Entry, Pass] = {}
        for width in self.widths:
            previous = self._previous(segment, width)
            rows = self.rows(segment, previous, batch)
            for way, held in ((SERVED, width), (VIEWS, FULL)):
                if way == SERVED or held != width:
                    passes[way, width] = self._served((self._instances[segment, held],), rows, width, previous)
        return passes

    def network_passes(self, batch: int) -> dict[Entry, Pass]:
        """All segments one after another, at every width and in every way."""
        rows = self.rows(1, IMAGE, batch)
        full = self._at(FULL)
        passes: dict[Entry, Pass] = {}
        for width in self.widths:
            own = self._at(width)
            passes[SERVED, width] = self._served(own, rows, width, IMAGE)
            if width != FULL:
                passes[VIEWS, width] = self._served(full, rows, width, IMAGE)
                packed = tuple(self._packed(segment, width) for segment in self.segments)
                passes[PACKED, width] = self._served(packed, rows, width, IMAGE)
            other = tuple(self._formed(instance, self.other_format) for instance in own)
            passes[format_name(self.other_format), width] = ServedPass(
                other, rows, width, IMAGE, self.other_format, labels=True
            )
        return passes

    def one_piece(self, batch: int, compute: Callable[[Tensor], Tensor] | None = None) -> OnePiece:
        """The full width in one call: `compute`, or else the instances that serve."""
        return OnePiece(compute or self.compute, self.rows(1, IMAGE, batch), self.device.memory_format)

    def compute(self, x: Tensor) -> Tensor:
        """(B, C, H, W) images to (B, classes) logits at full width, on the instances that serve."""
        for segment in self.segments:
            x = self._instances[segment, FULL].run(x, FULL, self._previous(segment, FULL))
        return x

    def compiled(self, batch: int) -> Pass:
        """`compute`, compiled for this batch size; raises what the compiler raises."""
        torch.compiler.reset()  # torch gives up compiling after some shapes, and would run uncompiled without a word
        run = self.one_piece(batch, torch.compile(self.compute, fullgraph=True, dynamic=False))
        run()
        return run

    def graph(self, batch: int) -> Pass:
        """`compute`, captured as a CUDA graph for this batch size; raises what the capture raises."""
        x = in_format(gather(self.rows(1, IMAGE, batch)), self.device.memory_format)
        aside = torch.cuda.Stream(self.place)  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream(self.place))
        with torch.cuda.stream(aside):  # libraries choose and allocate before anything is captured
            for _ in range(3):
                self.compute(x)
        aside.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = self.compute(x)

        def replay(images: Tensor) -> Tensor:
            x.copy_(images)
            graph.replay()
            return y

        return self.one_piece(batch, replay)

    def _previous(self, segment: int, width: float) -> float:
        return IMAGE if segment == 1 else width

    def _at(self, width: float) -> tuple[SegmentInstance, ...]:
        return tuple(self._instances[segment, width] for segment in self.segments)

    def _served(
        self, instances: tuple[SegmentInstance, ...], rows: tuple[Row, ...], width: float, previous: float
    ) -> ServedPass:
        labels = instances[-1].segment == self.segments[-1]
        return ServedPass(instances, rows, width, previous, self.device.memory_format, labels)

    def _packed(self, segment: int, width: float) -> SegmentInstance:
        """Nothing of it is sliced when it runs, as something is of an instance, which must take any previous width."""
        shapes = self.model.weight_shapes(segment, width, self._previous(segment, width))
        weights = slice_weights(self._instances[segment, width].weights, shapes)
        return self._formed(SegmentInstance(self.model, segment, width, weights), self.device.memory_format)

    def _formed(self, instance: SegmentInstance, memory_format: torch.memory_format) -> SegmentInstance:
        return instance.to(self.place, self.device.torch_dtype, memory_format)


# ---------------------------------------------------------------------------------------------------- the measurement


def measure_slimming(
    model: SlimmableModel,
    network: str,
    device: DeviceSpec,
    *,
    batches: Sequence[int] = BATCHES,
    compiled: bool = False,
    effort: Effort | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Slimming:
    """Time a network on a device. It opens the device in this process: pins it, and sets torch's threads for good.

    Args:
        network: its name, for the result.
        batches: batch sizes, each from 1 to `LARGEST_BATCH`.
        compiled: also time what `torch.compile` makes of it; compiling may take a minute a batch size.
        on_progress: called with how many rounds are done, and of how many.

    Raises:
        InputError: a batch size is out of range, or there is none.
        WorkError: a batch does not fit into the device's memory.
    """
    if not batches or min(batches) < 1 or max(batches) > LARGEST_BATCH:
        raise InputError("batch", "", f"found {list(batches)}; give one or more sizes, each from 1 to {LARGEST_BATCH}")
    place = open_device(device)
    with _memory_told(max(batches)):
        stand = Stand(model, device, place)
    session = _Session(stand, effort or Effort(), compiled, on_progress, len(batches))
    with torch.inference_mode():
        for batch in batches:
            with _memory_told(batch):
                session.measure(batch)
    points = sorted(session.points, key=lambda point: point.segment or 0)  # the network first, else as measured
    name = torch.cuda.get_device_name(place) if place.type == "cuda" else cpu_name()
    return Slimming(
        network=network,
        device=name,
        execution=device.execution(),
        effort=session.effort,
        points=tuple(points),
        full_width=tuple(session.full_width),
        absent=session.absent,
    )


@dataclass(slots=True)
class _Session:
    """What has been measured so far."""

    stand: Stand
    effort: Effort
    compiled: bool
    on_progress: Callable[[int, int], None]
    batches: int
    points: list[Point] = field(default_factory=list)
    full_width: list[FullWidth] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)
    races: int = 0

    def measure(self, batch: int) -> None:
        """Everything at one batch size."""
        rivals = self._rivals(batch)
        found = self._race({**self.stand.network_passes(batch), **{(name, FULL): run for name, run in rivals.items()}})
        self.points += points_of(self.stand.model, None, batch, found, rivals)
        self.full_width.append(full_width_of(batch, found, rivals))
        for segment in self.stand.segments:
            found = self._race(self.stand.segment_passes(segment, batch))
            self.points += points_of(self.stand.model, segment, batch, found)

    def _race(self, contenders: Mapping[Entry, Pass]) -> Race:
        each = self.effort.rounds + 1  # with the one that warms up
        total = each * self.batches * (len(self.stand.segments) + 1)
        done = each * self.races

        def on_round() -> None:
            nonlocal done
            done += 1
            self.on_progress(done, total)

        found = race(contenders, self.effort, on_round=on_round)
        self.races += 1
        self.on_progress(each * self.races, total)  # a slow one has fewer rounds
        return found

    def _rivals(self, batch: int) -> dict[str, Pass]:
        """Those that can run here; `absent` tells why the others can't."""
        stand = self.stand
        rivals: dict[str, Pass] = {ONE_PIECE: stand.one_piece(batch)}
        if stand.plain is not None:
            rivals[PLAIN] = stand.one_piece(batch, stand.plain)
        else:
            self.absent[PLAIN] = "only a slimmable ResNet has a plain stack of the same shapes"
        if self.compiled:
            self._add(rivals, COMPILED, lambda: stand.compiled(batch))
        else:
            self.absent[COMPILED] = "not asked for (--compile; it takes a minute a batch size)"
        if stand.place.type == "cuda":
            self._add(rivals, GRAPH, lambda: stand.graph(batch))
        else:
            self.absent[GRAPH] = "not on a CPU"
        return rivals

    def _add(self, rivals: dict[str, Pass], name: str, make: Callable[[], Pass]) -> None:
        try:
            rivals[name] = make()
        except Exception as error:  # a compiler that is missing or fails takes nothing from the rest
            first_line = str(error).strip().partition("\n")[0][:200]
            self.absent[name] = f"failed: {type(error).__name__}: {first_line}"


def points_of(
    model: SlimmableModel, segment: int | None, batch: int, found: Race, rivals: Iterable[str] = ()
) -> list[Point]:
    """A race's contenders by width, but for the rivals."""
    widths = sorted({width for _, width in found.turns_s})
    full_macs = _macs(model, segment, FULL)
    points = []
    for width in widths:
        macs = _macs(model, segment, width)
        ideal = macs / full_macs if full_macs else None
        ways = [way for way, at in found.turns_s if at == width and way not in rivals]
        timings = {way: _timing(found, (way, width), None if width == FULL else ideal) for way in ways}
        points.append(Point(segment, width, batch, macs, ideal, found.rounds, timings))
    return points


def full_width_of(batch: int, found: Race, rivals: Iterable[str]) -> FullWidth:
    """The served full width beside each of its rivals."""
    served = (SERVED, FULL)
    beside = {name: Rival(found.latency_s((name, FULL)), found.ratio(served, (name, FULL))) for name in rivals}
    return FullWidth(batch, found.latency_s(served), found.rounds, beside)


def _timing(found: Race, entry: Entry, ideal_ratio: float | None) -> Timing:
    ratio = found.ratio(entry, (SERVED, FULL))
    return Timing(found.latency_s(entry), ratio, saved_share(ratio.median, ideal_ratio))


def _macs(model: SlimmableModel, segment: int | None, width: float) -> int:
    """Of one image at a uniform width."""
    segments = range(1, model.spec.segments + 1) if segment is None else (segment,)
    return sum(model.cost(s, width, IMAGE if s == 1 else width).macs for s in segments)


def format_name(memory_format: torch.memory_format) -> str:
    """As `DeviceSpec.execution` says it."""
    return "channels_last" if memory_format == torch.channels_last else "contiguous"


@contextmanager
def _memory_told(batch: int) -> Iterator[None]:
    """A batch too large is no defect of the program."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        words = ("not enough memory", "can't allocate memory")  # of torch's allocators for host memory
        if not isinstance(error, MemoryError | torch.OutOfMemoryError) and not any(w in str(error) for w in words):
            raise
        raise WorkError(f"batch {batch} does not fit into the device's memory; give a smaller --batch") from error
