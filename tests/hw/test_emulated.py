"""Emulated lanes: what the simulator says of passes, loads and sensors, in whoever's time; and nothing of torch."""

from __future__ import annotations

import subprocess
import sys
import threading
import time  # noqa: TID251 - a thread tells in real time
from typing import Any

import numpy as np
import pytest

from hw.transport.messages import Input, Move, MoveBroken, Moved
from hw.transport.shared_memory import Arena, LinkLostError
from hw.worker.emulated_lanes import EmulatedLanes, EmulatedSensor
from hw.worker.lanes import BatchBroken, BatchEnded, LaneEvent, LoadBroken, LoadEnded, MoveEnded, UnloadEnded
from kit.errors import InputError
from policies.faults import Impairment, Slowness, Squeeze
from policies.vocabulary import (
    BatchFailed,
    BatchFinished,
    InstanceLoaded,
    InstanceUnloaded,
    LoadInstance,
    Provenance,
    RunBatch,
    UnloadInstance,
)
from sim.device_profile import JITTER_QUANTILES, Profile
from sim.device_tables import compile_tables
from sim.emulated_device import Emulation, device_model, emulated, to_bytes
from sim.simulated_device import RunningBatch, SimulatedDevice, WindowedSensor
from tests import tiny

MS = 1_000_000
SPELLS = {"slow_factor": 1.5, "slow_share": 0.4, "mean_slow_s": 0.1, "provenance": "measured"}


class Clock:
    def __init__(self, now_ns: int = 0) -> None:
        self.now_ns = now_ns

    def __call__(self) -> int:
        return self.now_ns


class Worker:
    """Lanes with a clock of their own, and all that they told, with the time."""

    def __init__(
        self, profile: Profile, began_ns: int = 0, arenas: tuple[Arena, ...] = (), own: int = 0, **changes: Any
    ) -> None:
        self.clock = Clock(began_ns)
        self.told: list[tuple[int, LaneEvent]] = []
        model = device_model(to_bytes(Emulation(emulated(profile).to_yaml(), **{"batch_limit": 32, **changes})))
        self.lanes = EmulatedLanes(model, arenas or (Arena(1 << 20),), own, self._hear, self.clock)
        self.sensor = EmulatedSensor(self.lanes, self.clock)

    def _hear(self, event: LaneEvent) -> None:
        self.told.append((self.clock.now_ns, event))

    @property
    def ended(self) -> list[BatchEnded]:
        return [event for _, event in self.told if isinstance(event, BatchEnded)]

    def until(self, now_ns: int) -> None:
        while (due_ns := self.lanes.next_ns) is not None and due_ns <= now_ns:
            self.clock.now_ns = max(self.clock.now_ns, due_ns)
            self.lanes.ring(self.clock.now_ns)
        self.clock.now_ns = max(self.clock.now_ns, now_ns)

    def give(self, requests: tuple[int, ...], size_bytes: int = 3072) -> None:
        self.lanes.take([Input(requests, 0, (size_bytes,), "uint8", False)])

    def load(self, instance: int, segment: int, width: float) -> None:
        self.lanes.load(instance, segment, width, True)
        self.until(self.clock.now_ns + 1000 * MS)
        self.told.clear()


def command(batch: int, requests: tuple[int, ...], segment: int = 1, previous: float = 0.0, instance: int = 1) -> Any:
    return RunBatch(1, batch, instance, requests, segment, previous, 1.0, len(requests))


# ----------------------------------------------------------------------------------------------- as in simulation


def test_passes_and_loads_end_when_the_simulation_says() -> None:
    """A whole simulated run's commands, given to lanes at their times: every end is the same, to the nanosecond.

    With jitter, dispatch, slow spells, contention, loads that come and go, a straggler and a lack of memory.
    """
    jitter = np.linspace(0.8, 1.6, JITTER_QUANTILES).tolist()
    spread = {"dispatch_s": 1e-4, "jitter": jitter, "slowdown": SPELLS}
    profile = tiny.profile(alpha=0.3, load_s=0.02, host_share=0.6, **spread)
    greedy = {"idle_unload_ns": 20 * MS, "scale_trigger": 4}
    spec = tiny.cluster([profile, profile], greedy=greedy)
    faults = (
        Slowness(0, 300 * MS + 1, 600 * MS + 1, 2.5),
        Squeeze(0, 700 * MS + 1, 900 * MS + 1, 3),
        Squeeze(0, 1000 * MS + 1, 1050 * MS + 1, 0),
    )
    run = tiny.run(spec, tiny.poisson_s(600, 1.5), 1.5, faults=faults, keep_log=True, seed=3)
    _, record = tiny.simulate(spec, run)
    changes = [(300, 2.5, None), (600, 1.0, None), (700, 1.0, 3), (900, 1.0, None), (1000, 1.0, 0), (1050, 1.0, None)]
    worker = Worker(profile, seed=3)
    expected: list[tuple[int, str, int]] = []
    loaded: set[tuple[int, float]] = set()
    specs: dict[int, tuple[int, float]] = {}
    for step in (step for step in record.log if step.core == "server:0"):
        while changes and changes[0][0] * MS + 1 <= step.now_ns:
            at_ms, factor, room = changes.pop(0)
            worker.until(at_ms * MS + 1)
            worker.lanes.impair(Impairment(factor, room))
        worker.until(step.now_ns)
        match step.event:
            case BatchFinished(batch=batch):
                expected.append((step.now_ns, "BatchEnded", batch))
            case BatchFailed(batch=batch):
                expected.append((step.now_ns, "BatchBroken", batch))
            case InstanceLoaded(instance=instance):
                loaded.add(specs[instance])
                expected.append((step.now_ns, "LoadEnded", instance))
            case InstanceUnloaded(instance=instance):
                expected.append((step.now_ns, "UnloadEnded", instance))
        for told in step.commands:
            match told:
                case RunBatch():
                    worker.give(told.requests)
                    worker.lanes.run(told)
                case LoadInstance(instance=instance, segment=segment, width=width):
                    specs[instance] = (segment, width)
                    worker.lanes.load(instance, segment, width, (segment, width) not in loaded)
                case UnloadInstance(instance=instance):
                    worker.lanes.unload(instance)
    worker.until(record.ended_ns)
    found = [(now_ns, type(event).__name__, _number(event)) for now_ns, event in worker.told]
    kinds = {kind for _, kind, _ in expected}
    assert kinds == {"BatchEnded", "BatchBroken", "LoadEnded", "UnloadEnded"}
    assert len(expected) > 500
    assert sorted(found) == sorted(expected)
    assert all(event.late_ns == 0 for event in worker.ended)
    started = {(batch.batch, batch.started_ns) for batch in record.batches if batch.server == 0}
    assert {(event.batch, event.began_ns) for event in worker.ended} == started


def _number(event: LaneEvent) -> int:
    assert not isinstance(event, MoveEnded)
    return event.batch if isinstance(event, BatchEnded | BatchBroken) else event.instance


def test_repeats_draw_anew_and_the_first_run_draws_as_a_simulation_does() -> None:
    """The same batches in three runs of one device, and in the first run of another."""
    profile = tiny.profile(jitter=np.linspace(0.5, 1.5, 33).tolist())
    once, again = (device_model(to_bytes(Emulation(profile.to_yaml(), 32, seed=5))) for _ in range(2))
    ends: list[list[int]] = []
    for model in (once, once, once, again):
        model.reset(0)
        now_ns, found = 0, []
        for batch in range(8):
            model.start(batch, (1, 1.0, 0.0), 4, 4, now_ns)
            while not (ended := model.advance(now_ns)):
                next_ns = model.next_ns
                assert next_ns is not None
                now_ns = next_ns
            found.append(ended[0][2])
        ends.append(found)
    first, second, third, other = ends
    assert first == other
    assert len({tuple(run) for run in (first, second, third)}) == 3


SENSOR = {"period_s": 0.05, "lag_s": 0.02, "power_window_s": 0.1, "utilization_window_s": 0.15}


def test_the_sensor_shows_what_a_simulated_one_would() -> None:
    """Asked every period, it shows the simulated sensor's averages, as old as its lag; and the same joules."""
    profile = tiny.profile(alpha=0.2, sensor=SENSOR)
    simulated_device = SimulatedDevice(compile_tables(profile, 32))
    simulated = WindowedSensor(simulated_device)
    model = device_model(to_bytes(Emulation(profile.to_yaml(), 32)))
    origin_ns, period_ns, lag_ns = 12_345, 50 * MS, 20 * MS
    model.reset(origin_ns)
    rng, batch = np.random.default_rng(0), 0
    shown = []
    for tick in range(1, 60):
        starts = [tick * period_ns + int(offset) for offset in sorted(rng.integers(lag_ns, period_ns, 3))]
        for now_ns in starts:
            batch, size = batch + 1, int(rng.integers(1, 32))
            model.advance(origin_ns + now_ns)
            model.start(batch, (1, 1.0, 0.0), size, size, origin_ns + now_ns)
            model.advance(origin_ns + now_ns)
            _run_to(simulated_device, now_ns)
            simulated_device.start(_running(simulated_device, batch, size), now_ns)
        _run_to(simulated_device, (tick + 1) * period_ns)
        power_w, utilization = simulated.read((tick + 1) * period_ns)
        asked_ns = origin_ns + (tick + 1) * period_ns + lag_ns
        model.advance(asked_ns)
        shown.append((model.sample(asked_ns), (power_w, utilization)))
        assert model.energy_j(asked_ns) >= simulated_device.energy_mj((tick + 1) * period_ns) / 1000
    for found, expected in shown[4:]:
        assert found == pytest.approx(expected)
    assert len({round(power_w) for (power_w, _), _ in shown}) > 5


def _running(simulated_device: SimulatedDevice, batch: int, size: int) -> RunningBatch:
    table = simulated_device.tables.keys[1, 1.0, 0.0]
    return RunningBatch(0, batch, table, size, table.latency_ns[size])


def _run_to(simulated_device: SimulatedDevice, now_ns: int) -> None:
    while (ends := simulated_device.next_end()) is not None and ends.end_ns <= now_ns:
        simulated_device.finish(0, ends.batch, ends.end_ns)


# --------------------------------------------------------------------------------------------- what only lanes know


def test_pass_end_noticed_late_is_reported_late_and_delays_no_other_pass() -> None:
    """The second pass runs alone from the actual end of the first one, and both ends are reported as late."""
    worker, in_time = Worker(tiny.profile()), Worker(tiny.profile())
    for each in (worker, in_time):
        each.load(1, 1, 1.0)
        each.load(2, 1, 1.0)
        each.give((1, 2, 3))
        each.lanes.run(command(1, (1,)))
        each.lanes.run(command(2, (2, 3), instance=2))
    began_ns = worker.clock.now_ns
    in_time.until(began_ns + 1000 * MS)
    expected = in_time.ended
    worker.clock.now_ns = began_ns + 100 * MS
    worker.lanes.ring(worker.clock.now_ns)
    found = worker.ended
    assert [(e.batch, e.began_ns, e.ended_ns) for e in found] == [(e.batch, e.began_ns, e.ended_ns) for e in expected]
    assert [e.late_ns for e in found] == [worker.clock.now_ns - e.ended_ns for e in expected]
    assert all(e.late_ns > 0 and e.predictions == () for e in found)


def test_an_instance_beyond_the_devices_memory_is_refused() -> None:
    profile = tiny.profile(device={"kind": "cuda", "name": "small", "vram_bytes": 180_000_000})
    worker = Worker(profile)
    worker.lanes.load(1, 1, 1.0, True)  # 50 MB beside a context of 100 MB
    worker.lanes.load(2, 1, 1.0, True)
    worker.until(1000 * MS)
    by_instance = {_number(event): event for _, event in worker.told}
    assert by_instance[1] == LoadEnded(1, 50_000_000)
    assert isinstance(by_instance[2], LoadBroken)
    assert by_instance[2].reason == "out_of_memory"
    worker.lanes.unload(1)
    worker.until(2000 * MS)
    assert UnloadEnded(1) in [event for _, event in worker.told]
    worker.lanes.load(3, 1, 1.0, False)
    worker.until(3000 * MS)
    assert LoadEnded(3, 50_000_000) in [event for _, event in worker.told]


def test_a_batch_that_cannot_run_says_why() -> None:
    worker = Worker(tiny.profile())
    worker.load(1, 1, 1.0)
    worker.give((1,))
    worker.lanes.run(command(1, (1,), instance=9))
    worker.lanes.run(command(2, (1,), segment=2, previous=1.0))
    worker.lanes.run(command(3, (7, 8)))
    worker.lanes.run(command(4, (1, 9)))
    worker.until(worker.clock.now_ns + 100 * MS)
    told = {_number(event): event for _, event in worker.told}
    reasons = {number: event.reason for number, event in told.items() if isinstance(event, BatchBroken | BatchEnded)}
    assert reasons == {1: "unknown_instance", 2: "bad_input", 3: "bad_input", 4: "bad_input"}
    last = told[4]
    assert isinstance(last, BatchEnded)
    assert last.failed == (9,)


def test_activations_are_sizes_and_a_move_writes_as_many_bytes() -> None:
    arenas = (Arena(1 << 20), Arena(1 << 20))
    with arenas[1].view(0, 1 << 20) as place:
        place[:] = b"\xff" * (1 << 20)
    worker = Worker(tiny.profile(), arenas=arenas)
    worker.load(1, 1, 1.0)
    worker.give((1, 2), 3072)
    worker.lanes.run(command(1, (1, 2)))
    worker.until(worker.clock.now_ns + 100 * MS)
    moved = worker.lanes.move(Move(5, 1, 4096, (1, 2)))
    assert moved is not None
    assert (moved.transfer, moved.shape, moved.dtype) == (5, (65536,), "uint8")  # of segment 1 at full width
    with arenas[1].view(0, 1 << 20) as place:
        written = [index for index, byte in enumerate(place) if byte != 0xFF]
    assert written == list(range(4096, 4096 + 2 * 65536))
    with pytest.raises(ValueError, match="not within"):
        worker.lanes.move(Move(6, 1, 1 << 20, (1, 2)))
    worker.lanes.forget((2,))
    with pytest.raises(KeyError):
        worker.lanes.move(Move(7, 1, 0, (1, 2)))
    worker.give((3,), 100)
    with pytest.raises(ValueError, match="in one move"):
        worker.lanes.move(Move(8, 1, 0, (1, 3)))


class SlowArena(Arena):
    """Another host's: what is committed is there when the test lets it, or never."""

    waits = True

    def __init__(self, size_bytes: int) -> None:
        super().__init__(size_bytes)
        self.asked: list[tuple[int, int, str]] = []
        self.goes_on = threading.Event()
        self.is_lost = False

    def commit(self, offset: int, size_bytes: int, address: str = "") -> None:
        self.asked.append((offset, size_bytes, address))
        assert self.goes_on.wait(10.0)
        if self.is_lost:
            raise LinkLostError("nobody takes it")


@pytest.mark.parametrize("is_lost", [False, True])
def test_move_to_another_host_does_not_block_the_worker(is_lost: bool) -> None:
    """The worker's thread continues at once; the answer comes when the bytes have arrived, or cannot arrive."""
    far = SlowArena(1 << 20)
    worker, far.is_lost = Worker(tiny.profile(), arenas=(Arena(1 << 20), far)), is_lost
    worker.give((1,), 100)
    assert worker.lanes.move(Move(5, 1, 64, (1,), "there:1")) is None
    assert not [event for _, event in worker.told if isinstance(event, MoveEnded)]
    far.goes_on.set()
    until_s = time.monotonic() + 10.0
    while not (told := [event for _, event in worker.told if isinstance(event, MoveEnded)]):
        assert time.monotonic() < until_s
    assert far.asked == [(64, 100, "there:1")]
    (ended,) = told
    if is_lost:
        assert isinstance(ended.answer, MoveBroken)
        assert (ended.answer.transfer, ended.answer.reason) == (5, "link_lost")
    else:
        assert ended.answer == Moved(5, (100,), "uint8", False)


def test_an_image_without_numbers_gets_no_label_wherever_it_goes() -> None:
    """It moves as others do, and is found out where labels are read, as in a network."""
    arenas = (Arena(1 << 20), Arena(1 << 20))
    first, second = Worker(tiny.profile(), arenas=arenas), Worker(tiny.profile(), arenas=arenas, own=1)
    images = np.zeros((3, 768), np.float32)
    images[1] = np.nan
    with arenas[0].view(0, images.nbytes) as place:
        place[:] = images.tobytes()
    first.load(1, 1, 1.0)
    first.lanes.take([Input((5, 6, 7), 0, (768,), "float32", False)])
    first.lanes.run(command(1, (5, 6, 7)))
    first.until(first.clock.now_ns + 100 * MS)
    assert first.ended[0].failed == ()
    moved = first.lanes.move(Move(1, 1, 64, (5, 6, 7)))
    assert moved is not None
    second.load(1, 4, 1.0)
    second.lanes.take([Input((5, 6, 7), 64, moved.shape, moved.dtype, moved.channels_last)])
    second.lanes.run(command(1, (5, 6), segment=4, previous=1.0))
    second.until(second.clock.now_ns + 100 * MS)
    (ended,) = second.ended
    assert (ended.failed, ended.reason) == ((6,), "no_prediction")
    second.lanes.run(command(2, (6,), segment=4, previous=1.0))
    second.until(second.clock.now_ns + 100 * MS)
    assert isinstance(broken := second.told[-1][1], BatchBroken)
    assert broken.reason == "no_prediction"
    second.lanes.forget((6,))
    second.give((6,))  # it comes again, whole
    second.lanes.run(command(3, (6,), segment=4, previous=1.0))
    second.until(second.clock.now_ns + 100 * MS)
    assert second.ended[-1].failed == ()
    second.give((6,))
    assert second.lanes.reset() == 2  # 6 and 7


def test_after_the_last_segment_nothing_is_kept_and_a_reset_forgets_the_rest() -> None:
    worker = Worker(tiny.profile())
    worker.load(1, 4, 1.0)
    worker.give((1, 2, 3))
    worker.lanes.run(command(1, (1, 2), segment=4, previous=1.0))
    worker.until(worker.clock.now_ns + 100 * MS)
    worker.give((4,))
    worker.lanes.run(command(2, (3,), segment=4, previous=1.0))
    assert worker.lanes.reset() == 2  # 3, which runs, and 4
    assert worker.lanes.next_ns is None
    assert worker.lanes.used_bytes == 0


# ------------------------------------------------------------------------------------------------------ the model


def test_slowed_down_everything_takes_so_many_times_as_long_at_the_same_power() -> None:
    jitter = np.linspace(0.8, 1.6, JITTER_QUANTILES).tolist()
    ranges = [{"metric": "x", "quantity": "batches at once", "low": 1.0, "high": 2.0}]
    profile = tiny.profile(jitter=jitter, dispatch_s=1e-4, served_extra_s=2e-4, ranges=ranges)
    slow = Profile.from_yaml(emulated(profile, 20.0).to_yaml(), "slow.yaml")
    before, after = compile_tables(profile, 32), compile_tables(slow, 32)
    for key, table in after.keys.items():
        usual = before.keys[key]
        assert table.latency_ns[1:] == pytest.approx([20 * t for t in usual.latency_ns[1:]], abs=20)
        assert table.typical_ns[1:] == pytest.approx([20 * t for t in usual.typical_ns[1:]], abs=20)
        assert table.power_mw == pytest.approx(usual.power_mw)
        same = ("demand_permille", "host_permille", "busy_permille", "bandwidth", "jitter")
        assert [getattr(table, name) for name in same] == [getattr(usual, name) for name in same]
    for spec, cost in after.instances.items():
        usual_cost = before.instances[spec]
        for name in ("load_ns", "reload_ns", "unload_ns"):
            assert getattr(cost, name) == pytest.approx(20 * getattr(usual_cost, name), abs=20)
        assert cost.vram_bytes == usual_cost.vram_bytes
    assert (after.period_ns, after.lag_ns, after.cap_mw) == (before.period_ns, before.lag_ns, before.cap_mw)
    assert after.dispatch_ns == before.dispatch_ns  # the host's, not the device's
    assert (slow.device.emulated_slowdown, slow.ranges, slow.errors) == (20.0, (), ())
    assert emulated(slow, 1.0).device.emulated_slowdown == 20.0  # of who was emulated itself: as slow as it is in all
    assert emulated(slow, 2.0).device.emulated_slowdown == 40.0
    assert after.most_at_once == after.most_processes == float("inf")  # nothing of it is extrapolated
    assert {slow.provenance, slow.power.provenance, slow.concurrency.provenance} == {Provenance.EMULATED}


def test_a_device_runs_for_long_without_keeping_all_of_its_past() -> None:
    model = device_model(to_bytes(Emulation(tiny.profile(base_s=1e-5, per_image_s=1e-6).to_yaml(), 32)))
    now_ns = 0
    for batch in range(20_000):
        model.start(batch, (1, 1.0, 0.0), 1, 1, now_ns)
        now_ns = model.next_ns or now_ns
        now_ns = max(now_ns, model.next_ns or 0)
        model.advance(now_ns)
        now_ns = model.next_ns or now_ns
        model.advance(now_ns)
    assert model.sample(now_ns)[1] > 0.25
    assert len(model._past) < 25_000  # 100 ms of passes of 11 us, and what has gathered since


def test_invalid_profile_of_an_emulated_device_is_refused() -> None:
    with pytest.raises(InputError, match="emulated device"):
        device_model(to_bytes(Emulation("schema: nonsense\n", 32)))


def test_a_process_that_emulates_a_device_opens_no_torch() -> None:
    """It would cost each of them seconds, hundreds of megabytes, and threads."""
    code = (
        "import sys, hw.router.worker_handles, hw.worker.emulated_lanes, hw.telemetry, sim.emulated_device\n"
        "from hw.worker.emulated_lanes import EmulatedDevice\n"
        "EmulatedDevice(sim.emulated_device.FACTORY, bytes.fromhex(sys.argv[1]), 'toy').model()\n"
        "print([name for name in ('torch', 'numba') if name in sys.modules])"
    )
    data = to_bytes(Emulation(tiny.profile().to_yaml(), 32)).hex()
    done = subprocess.run([sys.executable, "-c", code, data], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
