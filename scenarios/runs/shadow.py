"""Another router on what was served: asked about every view that was logged, and simulated on the arrivals.

A view is what the obeyed router brought about. So how often the other one would have decided alike describes it, and
forecasts nothing. The forecast is a simulation on the recorded arrivals. How far it can be trusted shows the same
simulation of the obeyed router beside what was measured: no order is claimed where that is off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, TypedDict

import numpy as np
from numpy.typing import NDArray

from hw.door.segments import Segment, segments_in
from kit.documents import write_text
from kit.errors import InputError
from policies.interfaces import RoutingPolicy
from policies.records import LoggedStep
from policies.vocabulary import (
    NS_PER_S,
    Choice,
    ClusterView,
    Decide,
    Decided,
    Held,
    RequestArrived,
    RequestCompleted,
    RequestFailed,
)
from scenarios.files.spec import TraceWorkload
from scenarios.metrics.result import Result, percentile
from scenarios.runs.folder import SERVED, RunFolder
from scenarios.world.world import World

TOLERANCE: Final = 0.10  # of a latency: where the simulation of the obeyed router is farther off, nothing is claimed
ACCURACY_TOLERANCE: Final = 0.005
WARMUP: Final = 0.1  # of the time: who arrives in it is left out of the figures, for a simulation begins empty
ACCURACY: Final = "expected_accuracy"
LATENCIES: Final = ("mean", "p50", "p99")


class Figures(TypedDict):
    """Of the images that came after the warm-up and were answered; latencies in seconds, None where there is none."""

    images: int
    mean: float | None
    p50: float | None
    p99: float | None
    expected_accuracy: float | None


class Alike(TypedDict):
    """Of how many recorded decisions the other router would have chosen the same."""

    decisions: int
    server: int
    width: int
    both: int


class Shadow(TypedDict):
    """`slimsched.shadow/1`; `claims`: of each measure `lower`, `higher`, or why nothing is claimed of the other router.

    Attributes:
        obeyed, other: the routers.
        began: the segment with the first of the arrivals did (UTC).
        arrivals, failed: images, and how many of them got no answer.
    """

    schema: str
    obeyed: str
    other: str
    began: str
    duration_s: float
    arrivals: int
    failed: int
    measured: Figures
    simulated: Figures
    shadow: Figures
    alike: Alike
    claims: dict[str, str]


@dataclass(frozen=True, slots=True)
class Stretch:
    """Segments without a gap, in which one router was obeyed; the times are of the run's clock."""

    segments: tuple[Segment, ...]
    from_ns: int
    until_ns: int

    def steps(self) -> Iterator[LoggedStep]:
        """Of all of it, and of nothing that was served since."""
        for segment in self.segments:
            yield from (step for step in segment.steps() if self.from_ns <= step.now_ns <= self.until_ns)


def last_stretch(folder: RunFolder, duration_s: float) -> Stretch:
    """The last time in which something was served, of so many seconds at most.

    Raises:
        InputError: nothing was logged, or it is damaged.
    """
    paths = segments_in(folder / SERVED)
    if not paths:
        problem = "holds no log of what was served; `slimsched serve` keeps it, where `serve.log_gb` is above 0"
        raise InputError(str(folder / SERVED), "", problem)
    segments = [Segment(paths.pop())]
    until_ns = max((step.now_ns for step in segments[0].steps()), default=segments[0].head.from_ns)
    from_ns = until_ns - round(duration_s * NS_PER_S)
    while paths and segments[0].head.from_ns > from_ns and segments[0].follows(before := Segment(paths.pop())):
        segments.insert(0, before)
    return Stretch(tuple(segments), max(from_ns, segments[0].head.from_ns), until_ns)


@dataclass
class Recorded:
    """What a stretch has of its images.

    Attributes:
        arrivals_ns: since its start, ascending.
        ended: (arrival since its start, latency) in ns and widths of those that were answered.
    """

    arrivals_ns: list[int] = field(default_factory=list)
    ended: list[tuple[int, int, tuple[float, ...]]] = field(default_factory=list)
    failed: int = 0

    @classmethod
    def of(cls, stretch: Stretch, watch: Callable[[LoggedStep], None] = lambda _: None) -> Recorded:
        """Read it once; `watch` is told of every step."""
        found, inside = cls(), dict[int, int]()
        for step in stretch.steps():
            watch(step)
            at_ns = step.now_ns - stretch.from_ns
            if isinstance(step.event, RequestArrived):
                found.arrivals_ns.append(at_ns)
                inside[step.event.request] = at_ns
            for command in step.commands:
                if isinstance(command, RequestCompleted) and (came_ns := inside.pop(command.request, -1)) >= 0:
                    found.ended.append((came_ns, at_ns - came_ns, command.widths))
                elif isinstance(command, RequestFailed):
                    found.failed += inside.pop(command.request, -1) >= 0
        return found

    def figures(self, world: World, warmup_s: float) -> Figures:
        """Of those that came after the warm-up."""
        ended = [each for each in self.ended if each[0] >= warmup_s * NS_PER_S]
        if not ended:
            return Figures(images=0, mean=None, p50=None, p99=None, expected_accuracy=None)
        latencies_s = np.sort([latency_ns for _, latency_ns, _ in ended]) / NS_PER_S
        prior = world.accuracy.prior
        top1 = {widths: prior(widths) for widths in {widths for *_, widths in ended}}
        accuracy = float(np.mean([top1[widths] for *_, widths in ended]))
        return Figures(
            images=len(ended),
            mean=float(latencies_s.mean()),
            p50=percentile(latencies_s, 0.5),
            p99=percentile(latencies_s, 0.99),
            expected_accuracy=accuracy,
        )


class Asked:
    """Another router that is asked about every view, as a watcher of steps; `alike` counts."""

    def __init__(self, policy: RoutingPolicy, rng: np.random.Generator) -> None:
        self.alike = Alike(decisions=0, server=0, width=0, both=0)
        self._policy, self._rng = policy, rng
        self._decision, self._answer = 0, Choice(-1, 0.0, 0)

    def __call__(self, step: LoggedStep) -> None:
        """A step of the router's core."""
        match step.event:
            case Decided(decision, choice) if decision == self._decision:
                self._count(choice.server, choice.width)
            case Held(decision) if decision == self._decision:
                self._count(-1, 0.0)
        for command in step.commands:
            if isinstance(command, Decide):
                self._decision, self._answer = command.decision, self._ask(command.view)

    def _ask(self, view: ClusterView) -> Choice:
        answer = self._policy.choose(view, self._rng)
        return answer if isinstance(answer, Choice) else Choice(-1, 0.0, 0)  # it would hold them

    def _count(self, server: int, width: float) -> None:
        alike, answer = self.alike, self._answer
        is_server, is_width = server == answer.server, width == answer.width
        alike["decisions"] += 1
        alike["server"] += is_server
        alike["width"] += is_width
        alike["both"] += is_server and is_width


def world_of(world: World, arrivals_ns: Sequence[int], duration_s: float) -> World:
    """The world with these arrivals, where nothing goes wrong; none is given up, for clients have their own limits."""
    times_s: NDArray[np.float64] = np.array(arrivals_ns) / NS_PER_S
    workload = TraceWorkload.model_construct(kind="trace", file=SERVED)
    update = {
        "workload": workload, "duration_s": duration_s, "warmup_s": WARMUP * duration_s, "end": "drain",
        "deadline_s": None, "shed": False, "faults": (), "slo": world.scenario.slo.model_copy(update={"schedule": ()}),
    }  # fmt: skip
    series: Mapping[tuple[str, str], NDArray[np.float64]] = {(SERVED, workload.time_column): times_s}
    return replace(world, scenario=world.scenario.model_copy(update=update), series=series)


def write_trace(path: Path, arrivals_ns: Sequence[int]) -> None:
    """The arrivals as CSV, as `TraceWorkload` reads it."""
    write_text(path, "\n".join(["time_s", *(f"{at_ns / NS_PER_S:.9f}" for at_ns in arrivals_ns), ""]))


def figures_of(result: Result) -> Figures:
    """Of a simulated run."""
    latency_s = result["latency_s"]
    return Figures(
        images=result["images"]["completed"], mean=latency_s["mean"], p50=latency_s["p50"], p99=latency_s["p99"],
        expected_accuracy=result["expected_accuracy"],
    )  # fmt: skip


def claims_of(measured: Figures, simulated: Figures, shadow: Figures) -> dict[str, str]:
    """What can be said of the other router beside the obeyed one; see `Shadow`."""
    triples = {name: (measured[name], simulated[name], shadow[name]) for name in (*LATENCIES, ACCURACY)}
    return {name: _claim(*triple, is_latency=name != ACCURACY) for name, triple in triples.items()}


def _claim(measured: float | None, simulated: float | None, other: float | None, *, is_latency: bool) -> str:
    if measured is None or simulated is None or other is None:
        return "none: no image was answered"
    error = abs(simulated - measured)
    if error > (TOLERANCE * measured if is_latency else ACCURACY_TOLERANCE):
        off = f"{100 * error / measured:.0f} %" if is_latency else f"{100 * error:.1f} points"
        return f"none: the simulation is {off} off"
    if abs(other - simulated) <= error:
        return "none: they are nearer to each other than to what was measured"
    return "lower" if other < simulated else "higher"
