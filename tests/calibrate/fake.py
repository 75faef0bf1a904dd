"""A device whose model is known, for tests of calibration: no process, no real time, chosen alpha, beta and jitter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from calibrate.measurement_bench import Loop, SharedLoop, SteadyLoad
from calibrate.measurement_plan import Key, KeyCost, ModelCosts
from calibrate.profile_fit import DeviceFacts
from hw.transport.messages import ConcurrentResult, Point
from policies.vocabulary import NS_PER_S, Provenance
from sim.device_model import BatchLoad, Sharing, demand, slow_downs
from sim.device_profile import DeviceInfo, ModelInfo, Power, SensorModel

WIDTHS = (0.5, 1.0)
SEGMENTS = 2
BANDWIDTH_BYTES_S = 1e9
LIMIT = 32
AWAKE_W = 15.0  # between passes that leave the clocks up
REFERENCE_S, SLOW_FACTOR, SLOW_REFERENCE, SLOW_S = 3e-5, 1.5, 1.4, 0.1


def model_costs() -> ModelCosts:
    """Two segments, two widths: six keys."""
    info = ModelInfo(
        name="fake", hash="0", segments=SEGMENTS, widths=WIDTHS, input_bytes=100, activation_bytes=((50, 100), (4, 4))
    )
    keys = {(s, w, p): KeyCost(int(1e6 * w * (p or 1)), 1000, int(4e5 * w), 10) for s, w, p in all_keys()}
    return ModelCosts(info, keys, {(s, w): int(1000 * w) for s in (1, 2) for w in WIDTHS})


def all_keys() -> list[Key]:
    return [(1, w, 0.0) for w in WIDTHS] + [(2, w, p) for w in WIDTHS for p in WIDTHS]


@dataclass
class FakeBench:
    """Solo time max(t0, c0 + c1 b) by key, times jitter; sets slow down as `sim.device_model` says; its clock is
    `now_ns`."""

    alpha: float = 0.5
    beta: float = 1.2
    jitter: float = 0.0
    slowness: float = 1.0  # of everything, for budgets that were guessed too low
    seed: int = 0
    now_ns: int = 0
    asked: list[Point] = field(default_factory=list)
    dies_after: int | None = None
    across_beta: float | None = None
    slow_share: float = 0.0  # of the time that the device is SLOW_FACTOR times slower
    background_share: float = 0.0  # of the device, taken by others
    sm_share: float | None = None  # of the multiprocessors, at full demand; None: nothing tells
    held: dict[int, tuple[int, float]] = field(default_factory=dict)
    loads: int = 0
    refused: int = 0  # passes of each instance that a GPU does not capture
    path_extra: float = 0.0  # of a path's time, beyond its hops
    load_factor: float = 1.5  # how much longer passes take beside a load

    def __post_init__(self) -> None:
        self._rng = np.random.default_rng(self.seed)

    def clock(self) -> int:
        """Monotonic nanoseconds of the fake world."""
        return self.now_ns

    def truth_s(self, point: Point) -> float:
        speed = 1e-3 * point.segment * point.width * (1 + point.previous_width)
        return max(6 * speed, 2 * speed + speed * point.batch)

    def load_of(self, point: Point, process: int = 0) -> BatchLoad:
        """d, h, u, m."""
        peak = max(b / self.truth_s(Point(*point.key, b)) for b in range(1, LIMIT + 1))
        moved = model_costs().keys[point.key].batch_bytes(point.batch) / self.truth_s(point) / BANDWIDTH_BYTES_S
        host = self.host_share(point)
        return BatchLoad(demand(point.batch, self.truth_s(point), peak), host, host, min(1.0, moved), process)

    def host_share(self, point: Point) -> float:
        return 1.0 / (1.0 + point.batch / 8)

    def load(self, instance: int, segment: int, width: float, from_disk: bool) -> tuple[float, int]:
        self._pass(0.002)
        assert instance not in self.held
        self.loads += 1
        self.held[instance] = (segment, width)
        return (0.02 if from_disk else 0.005), int(1000 * width)

    def unload(self, instance: int) -> float:
        self._pass(0.001)
        del self.held[instance]
        return 0.001

    def solo(self, point: Point, warmup: int, repeats: int, min_s: float, *, paused: bool = True) -> Loop:
        """Repeats with multiplicative log-normal jitter, and slow spells where there are any."""
        self._ask(point)
        truth_s = self.truth_s(point)
        number = max(repeats, int(np.ceil(min_s / truth_s)))
        repeats_s = truth_s * np.exp(self.jitter * self._rng.standard_normal(number))
        references_s: list[float] = []
        if self.slow_share:
            is_slow = self._spells(number, truth_s)
            repeats_s *= np.where(is_slow, SLOW_FACTOR, 1.0)
            references_s = (REFERENCE_S * np.where(is_slow, SLOW_REFERENCE, 1.0)).tolist()
        wall_s = float(repeats_s.sum())
        self._pass((wall_s + warmup * truth_s) * self.slowness)
        waited_s = self.background_share * wall_s
        cpu_s = self.host_share(point) * (wall_s - waited_s)
        return Loop(tuple(repeats_s.tolist()), wall_s, cpu_s, waited_s, tuple(references_s))

    def points(
        self, instance: int, points: Sequence[Point], warmup: int, repeats: int, min_s: float
    ) -> tuple[list[Loop], int]:
        assert {point.key[:2] for point in points} <= {self.held[instance]}
        return [self.solo(point, warmup, repeats, min_s) for point in points], len(points) - self.refused

    def paths(self, paths: Sequence[tuple[Point, ...]], repeats: int) -> Sequence[float]:
        """The sum of the hops, and what comes on top."""
        medians_s = [(1 + self.path_extra) * sum(map(self.truth_s, path)) for path in paths]
        self._pass(repeats * sum(medians_s))
        return medians_s

    def beside_load(self, point: Point, segment: int, width: float) -> tuple[float, float]:
        self._pass(0.5)
        return self.truth_s(point), self.load_factor * self.truth_s(point)

    def _spells(self, number: int, truth_s: float) -> npt.NDArray[np.bool_]:
        """A two-state chain that is slow for so much of the time, for a tenth of a second on average."""
        leave = min(1.0, truth_s / SLOW_S)
        enter = min(1.0, leave * self.slow_share / (1 - self.slow_share))
        state, found = self._rng.random() < self.slow_share, []
        for draw in self._rng.random(number):
            state = draw >= leave if state else draw < enter
            found.append(state)
        return np.asarray(found)

    def together(self, points: Sequence[Point], duration_s: float, *, across: bool = False) -> SharedLoop:
        """Each member at its slowed-down speed, the whole set in slow spells for a share of the time."""
        self._ask(*points)
        self._pass(duration_s * self.slowness)
        loads = [self.load_of(point, index % 2 if across else 0) for index, point in enumerate(points)]
        across_beta = self.beta if self.across_beta is None else self.across_beta
        factors = slow_downs(loads, Sharing(self.alpha, self.beta, across_beta, hosted=True))
        share = float(np.clip(self.slow_share + 0.2 * self._rng.standard_normal(), 0, 1)) if self.slow_share else 0.0
        slow, reference = 1 + share * (SLOW_FACTOR - 1), REFERENCE_S * (1 + share * (SLOW_REFERENCE - 1))
        members = [
            ConcurrentResult(7, 7 * self.truth_s(p) * f * slow, reference if self.slow_share else 0.0)
            for p, f in zip(points, factors, strict=True)
        ]
        return SharedLoop(members, self.background_share)

    def dispatch(self, point: Point, number: int) -> Sequence[float]:
        """100 us."""
        self._pass(number * 1e-3)
        return [1e-4] * number

    def transfer(self, size_bytes: int, number: int) -> Sequence[float]:
        """50 us and 1 GB/s."""
        self._pass(number * 1e-3)
        return [5e-5 + size_bytes / 1e9] * number

    def joules(self, point: Point) -> float:
        return 1e-9 * model_costs().keys[point.key].macs

    def steady(self, point: Point, duration_s: float, duty: float = 1.0) -> SteadyLoad:
        """Idle 20 W and so many joules an image; clocks that stay up between passes draw more."""
        self._ask(point)
        self._pass(duration_s)
        passes = int(duty * duration_s / self.truth_s(point))
        images, busy_s = passes * point.batch, passes * self.truth_s(point)
        power_w = 20.0 + self.joules(point) * images / duration_s
        if duty < 1.0:
            power_w += AWAKE_W * (1 - busy_s / duration_s)
        sm_utilization = None if self.sm_share is None else self.sm_share * self.load_of(point).demand
        return SteadyLoad(images, duration_s, power_w, 0.5, Provenance.POLLED, busy_s, sm_utilization)

    def _ask(self, *points: Point) -> None:
        self.asked += points
        if self.dies_after is not None and len(self.asked) > self.dies_after:
            raise KeyboardInterrupt

    def _pass(self, elapsed_s: float) -> None:
        self.now_ns += int(elapsed_s * NS_PER_S)


def facts(kind: str = "cpu", padded_sizes: tuple[int, ...] = ()) -> DeviceFacts:
    return DeviceFacts(
        info=DeviceInfo(kind="cuda" if kind == "cuda" else "cpu", name="fake", vram_bytes=10**9),
        execution={"dtype": "float32"},
        cores=1,
        bandwidth_bytes_s=BANDWIDTH_BYTES_S,
        power=Power(bare_idle_w=10.0, context_idle_w=20.0, cap_w=100.0, provenance=Provenance.MODELLED),
        sensor=SensorModel(period_s=0.1, lag_s=0.0, power_window_s=0.1, utilization_window_s=0.1),
        context_bytes=0,
        padded_sizes=padded_sizes,
    )
