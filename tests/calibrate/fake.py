"""A device of known physics for the tests of calibration: no process, no real time, chosen alpha, beta and jitter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from calibrate.bench import Loop, Shared, SteadyLoad
from calibrate.costs import Key, KeyCost, ModelCosts
from calibrate.fit import DeviceFacts
from calibrate.plan import Point
from policies.vocabulary import NS_PER_S, Provenance
from sim.device import demand, slow_downs
from sim.profile import DeviceInfo, ModelInfo, Power, Sensor

WIDTHS = (0.5, 1.0)
SEGMENTS = 2
BANDWIDTH_BYTES_S = 1e9
LIMIT = 32


def model_costs() -> ModelCosts:
    """Two segments, two widths: six keys."""
    info = ModelInfo(
        name="fake", hash="0", segments=SEGMENTS, widths=WIDTHS, input_bytes=100, activation_bytes=((50, 100), (4, 4))
    )
    keys = {(s, w, p): KeyCost(int(1e6 * w * (p or 1)), 1000, int(4e5 * w), 10) for s, w, p in all_keys()}
    return ModelCosts(info, keys, {(s, w): int(1000 * w) for s in (1, 2) for w in WIDTHS})


def all_keys() -> list[Key]:
    """Every legal key of the model above."""
    return [(1, w, 0.0) for w in WIDTHS] + [(2, w, p) for w in WIDTHS for p in WIDTHS]


@dataclass
class FakeBench:
    """Solo time max(t0, c0 + c1 b) by key, times jitter; sets slow down as `sim.device` says; its clock is `now_ns`."""

    alpha: float = 0.5
    beta: float = 1.2
    jitter: float = 0.0
    slowness: float = 1.0  # of everything, for budgets that were guessed too low
    seed: int = 0
    now_ns: int = 0
    asked: list[Point] = field(default_factory=list)
    dies_after: int | None = None
    held: dict[int, tuple[int, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._rng = np.random.default_rng(self.seed)

    def clock(self) -> int:
        """Monotonic nanoseconds of the fake world."""
        return self.now_ns

    def truth_s(self, point: Point) -> float:
        """The solo latency without jitter."""
        speed = 1e-3 * point.segment * point.width * (1 + point.previous_width)
        return max(6 * speed, 2 * speed + speed * point.batch)

    def loads(self, point: Point) -> tuple[float, float, float]:
        """d, h, m."""
        peak = max(b / self.truth_s(Point(*point.key, b)) for b in range(1, LIMIT + 1))
        moved = model_costs().keys[point.key].batch_bytes(point.batch) / self.truth_s(point) / BANDWIDTH_BYTES_S
        return demand(point.batch, self.truth_s(point), peak), self.host_share(point), min(1.0, moved)

    def host_share(self, point: Point) -> float:
        """Falls with the batch."""
        return 1.0 / (1.0 + point.batch / 8)

    def load(self, instance: int, segment: int, width: float, from_disk: bool) -> tuple[float, int]:
        """From disk it is slower."""
        self._pass(0.002)
        assert instance not in self.held
        self.held[instance] = (segment, width)
        return (0.02 if from_disk else 0.005), int(1000 * width)

    def unload(self, instance: int) -> float:
        """Frees it."""
        self._pass(0.001)
        del self.held[instance]
        return 0.001

    def solo(self, point: Point, warmup: int, repeats: int, min_s: float) -> Loop:
        """Repeats with multiplicative log-normal jitter."""
        self._ask(point)
        truth_s = self.truth_s(point)
        number = max(repeats, int(np.ceil(min_s / truth_s)))
        repeats_s = truth_s * np.exp(self.jitter * self._rng.standard_normal(number))
        wall_s = float(repeats_s.sum())
        self._pass((wall_s + warmup * truth_s) * self.slowness)
        return Loop(repeats_s.tolist(), wall_s, self.host_share(point) * wall_s)

    def together(self, points: Sequence[Point], duration_s: float) -> Sequence[Shared]:
        """Each member at its slowed-down pace."""
        self._ask(*points)
        self._pass(duration_s * self.slowness)
        loads = [self.loads(point) for point in points]
        demands, hosts, bandwidths = zip(*loads, strict=True)
        factors = slow_downs(demands, hosts, bandwidths, self.alpha, self.beta)
        return [Shared(7, 7 * self.truth_s(p) * f) for p, f in zip(points, factors, strict=True)]

    def dispatch(self, point: Point, number: int) -> Sequence[float]:
        """100 us."""
        self._pass(number * 1e-3)
        return [1e-4] * number

    def transfer(self, size_bytes: int, number: int) -> Sequence[float]:
        """50 us and 1 GB/s."""
        self._pass(number * 1e-3)
        return [5e-5 + size_bytes / 1e9] * number

    def joules(self, point: Point) -> float:
        """Above idle, of one image."""
        return 1e-9 * model_costs().keys[point.key].macs

    def steady(self, point: Point, duration_s: float) -> SteadyLoad:
        """Idle 20 W and so many joules an image."""
        self._ask(point)
        self._pass(duration_s)
        images = int(duration_s / self.truth_s(point)) * point.batch
        power_w = 20.0 + self.joules(point) * images / duration_s
        return SteadyLoad(images, duration_s, power_w, 0.5, Provenance.POLLED)

    def _ask(self, *points: Point) -> None:
        self.asked += points
        if self.dies_after is not None and len(self.asked) > self.dies_after:
            raise KeyboardInterrupt

    def _pass(self, elapsed_s: float) -> None:
        self.now_ns += int(elapsed_s * NS_PER_S)


def facts(kind: str = "cpu") -> DeviceFacts:
    """Of the fake device."""
    return DeviceFacts(
        info=DeviceInfo(kind="cuda" if kind == "cuda" else "cpu", name="fake", vram_bytes=10**9),
        execution={"dtype": "float32"},
        cores=1,
        bandwidth_bytes_s=BANDWIDTH_BYTES_S,
        power=Power(bare_idle_w=10.0, context_idle_w=20.0, cap_w=100.0, provenance=Provenance.MODELLED),
        sensor=Sensor(period_s=0.1, lag_s=0.0, power_window_s=0.1, utilization_window_s=0.1),
        context_bytes=0,
    )
