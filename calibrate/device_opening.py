"""Opening of a device for calibration: the bench of its workers, and the fastest way to compute there.

`WorkerBench` only translates; the plan decides what to measure.

`opened` composes the probe, the detection of other programs, the meter and the bench, which are independent of each
other.

`settled` chooses the fastest of the ways in which a GPU may compute.
"""

from __future__ import annotations

import os
import time  # noqa: TID251 - what others use of the cores is a share of real time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

import psutil

from calibrate.calibration_log import PADDED_SIZES, CalibrationRequest, logged_stamp
from calibrate.device_identity import (
    Interference,
    Probe,
    assumed_power,
    meter_of,
    on_cores,
    on_gpu,
    open_nvml,
    open_sensor,
    power_model,
    probe,
    require_quiet,
    sensor_model,
)
from calibrate.measurement_bench import Loop, SharedLoop, SteadyLoad, bandwidth_bytes_s
from calibrate.measurement_plan import LEAD_S, PAUSE_S, QUIET_S, padded_sizes, powers_of_two
from calibrate.power_meter import (
    Meter,
    Watch,
    Watched,
    fall_s,
    past_rise,
    sampled,
    wait_until_flat,
    watch,
)
from calibrate.profile_fit import DeviceFacts
from hw.device_settings import DeviceSpec, formats_of
from hw.networks.network_files import ModelFile
from hw.router.local_workers import WorkerProcess, start_workers
from hw.router.worker_handles import transfer_round
from hw.telemetry import Sensor, process_cpu_s
from hw.telemetry.nvml import other_processes
from hw.transport.messages import (
    Benchmark,
    BenchmarkBesideLoad,
    BenchmarkDispatch,
    BenchmarkInstance,
    BenchmarkLoad,
    BenchmarkPaths,
    BenchmarkResult,
    BenchmarkTogether,
    BenchmarkUnload,
    BesideLoadResult,
    InstanceResult,
    Point,
    Timed,
    TogetherResult,
)
from hw.worker.instances import ComputeMode, fastest, race
from hw.worker.torch_outfit import torch_workers
from kit.errors import WorkError
from policies.vocabulary import NS_PER_S, Provenance

GPU_LEAD_S: Final = 0.4  # before processes begin together: instances choose kernels and capture passes first
LEAD_TIMES: Final = (1, 4, 16)  # the usual lead, before processes begin together
MAX_APART: Final = 0.05  # share of a set's time in which not all processes ran; above it, repeat with more lead


# ------------------------------------------------------------------------------------------------------------ the bench


def apart_share(results: Sequence[TogetherResult]) -> float:
    """Return the share of the time from the first begin to the last end in which not all processes ran."""
    whole_ns = max(result.ended_ns for result in results) - min(result.began_ns for result in results)
    all_ns = min(result.ended_ns for result in results) - max(result.began_ns for result in results)
    return 1.0 - max(0, all_ns) / whole_ns if whole_ns > 0 else 0.0


@dataclass(frozen=True, slots=True)
class WorkerBench:
    """`calibrate.measurement_bench.Bench` on a worker.

    Attributes:
        peer: index of the arena of another server's worker, to move activations to; None if no link is measured.
        sibling: a second process on the same device, for sets across processes; None without such sets.
        cores: cores of a CPU device.
        receiver: that other server's worker, if it copies received activations onto a GPU.
    """

    worker: WorkerProcess
    peer: int | None
    meter: Meter
    sibling: WorkerProcess | None = None
    cores: tuple[int, ...] = ()
    receiver: WorkerProcess | None = None

    def load(self, instance: int, segment: int, width: float, from_disk: bool) -> tuple[float, int]:
        """See `Bench`."""
        timed = self.worker.ask(BenchmarkLoad(instance, segment, width, from_disk), Timed)
        return timed.samples_s[0], timed.vram_bytes

    def unload(self, instance: int) -> float:
        """See `Bench`."""
        return self.worker.ask(BenchmarkUnload(instance), Timed).samples_s[0]

    def solo(self, point: Point, warmup: int, repeats: int, min_s: float, *, paused: bool = True) -> Loop:
        """See `Bench`."""
        return self._loop(self.timed(point, warmup, repeats, min_s, self._pause_s if paused else 0.0))

    @property
    def _pause_s(self) -> float:
        """The pause between passes: when serving, threads sleep and caches go cold; a GPU's host costs are of that."""
        return PAUSE_S if self.cores else 0.0

    def _loop(self, result: BenchmarkResult) -> Loop:
        """Convert a result for storage, with a GPU's clocks before they fall."""
        clock_mhz = self.meter.sensor.details().sm_clock_mhz
        return Loop(result.samples_s, result.wall_s, result.cpu_s, result.waited_s, result.references_s, clock_mhz)

    def points(
        self, instance: int, points: Sequence[Point], warmup: int, repeats: int, min_s: float
    ) -> tuple[list[Loop], int]:
        """See `Bench`."""
        message = BenchmarkInstance(instance, tuple(points), warmup, repeats, min_s, self._pause_s)
        result = self.worker.ask(message, InstanceResult)
        return [self._loop(loop) for loop in result.loops], result.captured

    def paths(self, paths: Sequence[tuple[Point, ...]], repeats: int) -> Sequence[float]:
        """See `Bench`."""
        return self.worker.ask(BenchmarkPaths(tuple(paths), repeats), Timed).samples_s

    def beside_load(self, point: Point, segment: int, width: float) -> tuple[float, float]:
        """See `Bench`."""
        result = self.worker.ask(BenchmarkBesideLoad(point, segment, width, QUIET_S), BesideLoadResult)
        return result.quiet_s, result.beside_s

    def timed(self, point: Point, warmup: int, repeats: int, min_s: float, pause_s: float = 0.0) -> BenchmarkResult:
        """Time forward passes of a point alone in the worker's process."""
        return self.worker.ask(Benchmark(point, warmup, repeats, min_s, pause_s), BenchmarkResult)

    def together(self, points: Sequence[Point], duration_s: float, *, across: bool = False) -> SharedLoop:
        """See `Bench`."""
        workers = [self.worker]
        if across:
            assert self.sibling is not None, "a plan without a second process has no set across processes"
            workers.append(self.sibling)
        first_s = LEAD_S if self.cores else GPU_LEAD_S
        for times in LEAD_TIMES if across else (0,):
            before, begin_ns = _CoreUse.of(self.cores, workers), time.monotonic_ns() + round(times * first_s * NS_PER_S)
            for index, worker in enumerate(workers):
                part = tuple(points[index :: len(workers)])
                worker.send(BenchmarkTogether(part, duration_s, begin_ns if across else 0))
            results = [worker.expect(TogetherResult) for worker in workers]
            if (apart := apart_share(results)) <= MAX_APART:
                break
        background_share = max(_CoreUse.of(self.cores, workers).background_share(before), apart if across else 0.0)
        members = [results[index % len(workers)].results[index // len(workers)] for index in range(len(points))]
        return SharedLoop(members, background_share)

    def dispatch(self, point: Point, number: int) -> Sequence[float]:
        """See `Bench`."""
        return self.worker.ask(BenchmarkDispatch(point, number, PAUSE_S), Timed).samples_s

    def transfer(self, size_bytes: int, number: int) -> Sequence[float]:
        """See `Bench`."""
        assert self.peer is not None, "a plan without a peer has no transfer"
        return transfer_round(self.worker, self.peer, size_bytes, number, PAUSE_S, receiver=self.receiver)

    def steady(self, point: Point, duration_s: float, duty: float = 1.0) -> SteadyLoad:
        """See `Bench`."""
        pause_s = self.pause_s(point, duty)
        with sampled(self.meter.sensor) as take:
            result = self.timed(point, 5, 2, duration_s, pause_s)
            watched = take()
        power = self.meter.mean(watched, self.meter.rise_s)
        return SteadyLoad(
            images=len(result.samples_s) * point.batch,
            elapsed_s=result.wall_s,
            power_w=power.power_w,
            utilization=power.utilization,
            provenance=power.provenance,
            sm_utilization=power.sm_utilization,
            busy_s=sum(result.samples_s),
            sm_clock_mhz=power.sm_clock_mhz,
        )

    def pause_s(self, point: Point, duty: float) -> float:
        """Return the pause after each pass for which passes take `duty` of the time."""
        if duty >= 1.0:
            return 0.0
        timed = self.timed(point, 5, 5, 0.0)
        return (1 / duty - 1) * sorted(timed.samples_s)[len(timed.samples_s) // 2]


@dataclass(frozen=True, slots=True)
class _CoreUse:
    """CPU time of a CPU device's cores at one moment, used by all and by our workers."""

    cores: int
    at_s: float
    busy_s: float
    own_s: float

    @classmethod
    def of(cls, cores: Sequence[int], workers: Sequence[WorkerProcess]) -> _CoreUse:
        everywhere = psutil.cpu_times(percpu=True)
        times = [everywhere[core] for core in cores]
        idle_s = sum(used.idle + getattr(used, "iowait", 0.0) for used in times)
        own_s = sum(process_cpu_s(worker.pid) for worker in workers)
        return cls(len(cores), time.monotonic_ns() / NS_PER_S, sum(map(sum, times)) - idle_s, own_s)

    def background_share(self, before: _CoreUse) -> float:
        """Return the share of the cores that other programs have used since `before`; 0 if the device has none."""
        foreign_s = self.busy_s - before.busy_s - (self.own_s - before.own_s)
        return max(0.0, foreign_s) / (self.cores * (self.at_s - before.at_s)) if self.cores else 0.0


# -------------------------------------------------------------------------------------------------------------- opening


FALL_LOAD_S: Final = 3.0  # of load before a GPU's clocks fall
IDLE_DROPPED = 0.25  # of an idle measurement: it may still reflect earlier load


@dataclass(frozen=True, slots=True)
class Opened:
    """An open bench, with the known facts of its device.

    Attributes:
        warnings: warnings about measurements on this device, one sentence each.
    """

    bench: WorkerBench
    probed: Probe
    facts: DeviceFacts
    warnings: tuple[str, ...] = ()


@contextmanager
def opened(request: CalibrationRequest, idle_s: float, load: Point, fall_look_s: float = 0.0) -> Iterator[Opened]:
    """Open a device for measurement, with a second process on it.

    Args:
        idle_s: time for which each idle power is sampled.
        load: the point that keeps the device busy before its clocks fall.
        fall_look_s: time for which it is sampled after that, to see how long its clocks stay up; 0 omits this.

    Raises:
        InputError: the device does not exist, or others use it.
        WorkError: the device or a process failed.
    """
    device, file = request.device, request.file
    sensor = open_sensor(device, ())
    probed = probe(device, sensor)
    meter = meter_of(device, probed, sensor)
    use = interference(device, sensor)
    require_quiet(meter.device, use, request.allow_busy)
    _settle(device, meter, probed)
    bare = _idle_looks(meter, probed, idle_s)
    bandwidth = bandwidth_bytes_s(device)  # its process has ended, so memory of contexts is the workers' alone
    with bench_of(file, device, request.peer, sibling=True) as bench:
        _settle(device, bench.meter, probed)
        context = _idle_looks(bench.meter, probed, idle_s, settle_s=bench.meter.rise_s)
        after: list[Watched] = []
        if probed.metered and fall_look_s:
            bench.solo(load, 1, 2, FALL_LOAD_S)
            after = watch(bench.meter.sensor, lambda: time.sleep(fall_look_s))
        stamps = {**probed.info.stamps, "interference": str(use)}
        probed = replace(probed, info=probed.info.model_copy(update={"stamps": stamps}))
        facts = DeviceFacts(
            info=probed.info,
            execution=device.execution(),
            cores=len(device.physical[1]) if device.kind == "cpu" else 1,
            bandwidth_bytes_s=bandwidth,
            power=power_model(
                device, probed, _idle_w(device, meter, probed, bare), _idle_w(device, bench.meter, probed, context)
            ),
            sensor=sensor_model(device, request.sensor_period_s, sensor),
            context_bytes=bench.worker.wait_until_ready().context_bytes,
            fall_s=fall_s(after, bench.meter.rise_s),
            padded_sizes=device.warm_sizes,
        )
        warnings = (f"{use}: what is measured may be theirs, too",) if use.notable else ()
        with naming_a_lost_device(meter):
            yield Opened(bench, probed, facts, warnings)


@contextmanager
def bench_of(
    file: ModelFile, device: DeviceSpec, peer: DeviceSpec | None, sibling: bool = False
) -> Iterator[WorkerBench]:
    """Start workers on a device; yields the bench with its meter."""
    devices = [("calibrated", device)]
    devices += [("sibling", device)] if sibling else []
    has_own_peer = peer is not None and not (sibling and peer == device)
    devices += [("peer", peer or device)] if has_own_peer else []
    with torch_workers(devices, file) as specs, start_workers(specs) as workers:
        on_device = workers[: 2 if sibling else 1]
        sensor = open_sensor(device, tuple(worker.pid for worker in on_device))
        yield WorkerBench(
            worker=workers[0],
            peer=len(workers) - 1 if peer else None,
            meter=meter_of(device, probe(device, sensor), sensor),
            sibling=on_device[-1] if sibling else None,
            cores=device.physical[1] if device.kind == "cpu" else (),
            receiver=workers[-1] if peer and peer.kind == "cuda" else None,
        )


@contextmanager
def naming_a_lost_device(meter: Meter) -> Iterator[None]:
    """Convert errors of a lost device: a worker only detects that its own call failed."""
    try:
        yield
    except WorkError as error:
        if not meter.sensor.sample().lost or str(error).startswith(meter.device):
            raise
        raise WorkError(f"{meter.device} is lost; reset or reboot it ({error})") from error


def interference(device: DeviceSpec, sensor: Sensor) -> Interference:
    """Return others' use of a device that this process has not opened yet."""
    if device.kind == "cpu":
        return on_cores(device.physical[1])
    pids = [os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))]
    return on_gpu(sensor, other_processes(*open_nvml(device), pids))


def _settle(device: DeviceSpec, meter: Meter, probed: Probe) -> None:
    """Wait until effects of earlier load have ended: a GPU's clocks take seconds to fall."""
    if device.kind == "cuda" and probed.metered:
        wait_until_flat(meter.sensor)


def _idle_looks(meter: Meter, probed: Probe, idle_s: float, settle_s: float = 0.0) -> list[Watched]:
    return idle_looks(meter, idle_s, settle_s) if probed.metered else []


def idle_looks(
    meter: Meter,
    idle_s: float,
    settle_s: float,
    pause: Callable[[float], object] = time.sleep,
    look: Watch = watch,
) -> list[Watched]:
    """Sample an idle device.

    Args:
        settle_s: time in which readings may still reflect earlier load; these are dropped.
        pause: waits for a number of seconds.
        look: runs an action while sampling the sensor.
    """
    return past_rise(look(meter.sensor, lambda: pause(settle_s + idle_s)), settle_s)


def _idle_w(device: DeviceSpec, meter: Meter, probed: Probe, looks: Sequence[Watched]) -> tuple[float, Provenance]:
    """Return the mean power over these looks; the assumed one without a power sensor."""
    if not probed.metered:
        assumed = assumed_power(device, probed.info.name)
        return assumed.idle_w, assumed.provenance
    lasted_s = looks[-1].at_s - looks[0].at_s if looks else 0.0
    mean = meter.mean(looks, IDLE_DROPPED * lasted_s)
    return mean.power_w, mean.provenance


# ------------------------------------------------------------------------------------------- the fastest way to compute


Race = Callable[[ModelFile, Sequence[DeviceSpec], Sequence[int]], Sequence[ComputeMode]]


def settled(request: CalibrationRequest, timed: Race = race) -> tuple[CalibrationRequest, str]:
    """Return the calibration with the fastest way at the padded sizes, and the times in words (empty for one way).

    A resumed log determines both: the rest is measured as its begin was.

    Raises:
        InputError: the file is not a model.
        WorkError: the device failed.
    """
    device, text = request.device, ""
    if device.kind != "cuda":
        return request, text
    begun, candidates = _begun(request), request.candidates or (device,)
    if begun is None:
        raced = timed(request.file, candidates, powers_of_two(request.batch_limit))
        best = fastest(raced)
        begun = replace(best.device, warm_sizes=padded_sizes(request.batch_limit, best.micro_batch_s))
        text = "; ".join(map(str, raced)) if len(raced) > 1 else ""
    return replace(request, device=begun, peer=begun if request.peer == request.device else request.peer), text


def _begun(request: CalibrationRequest) -> DeviceSpec | None:
    """Return a log's candidate, with its sizes; None if it matches none (and is refused), or without a log."""
    stamp = logged_stamp(request.log_path)
    execution = {name.removeprefix("execution."): value for name, value in stamp.items()}
    formats, candidates = formats_of(execution), request.candidates or (request.device,)
    sizes = tuple(int(size) for size in stamp.get(PADDED_SIZES, "").split(",") if size.isdigit())
    sized = (replace(candidate, warm_sizes=sizes) for candidate in candidates if formats and sizes)
    return next((candidate for candidate in sized if replace(candidate, **formats) == candidate), None)
