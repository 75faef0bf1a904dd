"""Workers: their processes serve, move, refuse, and always end; they speak with routers of their own version only."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import select
import signal
import subprocess
import sys
import threading
import time  # noqa: TID251 - the start of a run is a reading of the real clock
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import replace
from functools import partial
from importlib.metadata import PackageNotFoundError
from itertools import count
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest

from benchmarks.speed.hollow import HollowLanes, HollowOutfit
from hw.clock import Host, Waker
from hw.device_settings import DeviceSpec
from hw.networks.network_files import ModelFile, Network, save_model
from hw.router.local_workers import Member, OneHost, SharedProcess, WorkerProcess, start_workers
from hw.router.worker_handles import WorkerDiedError, WorkerHandle, transfer_round
from hw.telemetry import Reading, Sensor
from hw.transport.messages import (
    Benchmark,
    BenchmarkDispatch,
    BenchmarkLoad,
    BenchmarkResult,
    BenchmarkTogether,
    BenchmarkUnload,
    Captures,
    Close,
    ComeUp,
    Deliver,
    Finish,
    Finished,
    FromWorker,
    Input,
    Keep,
    Move,
    Moved,
    Ping,
    Point,
    Pong,
    Preloaded,
    Prepare,
    Release,
    Report,
    Returned,
    Sample,
    Sampled,
    Sense,
    Start,
    Timed,
    TogetherResult,
    ToWorker,
)
from hw.transport.shared_memory import IncarnationLog
from hw.transport.worker_port import RouterEnd, WorkerEnd, socket_pair
from hw.worker.lanes import Fitting, LoadEnded, MoveEnded, Outfit, SchedulerSpec, Tell, WorkerSpec
from hw.worker.torch_outfit import TorchOutfit, torch_workers
from hw.worker.worker_process import Worker, work
from kit.errors import WorkError
from kit.plugins import own_version
from policies.faults import Supervision
from policies.greedy_scheduler import GreedyParams
from policies.vocabulary import IMAGE, NS_PER_S, MicroBatch, WorkKey
from tests.hw.tiny import TINY, device, params

pytestmark = pytest.mark.workers

WAIT_S = 60.0
ARENA_BYTES = 1 << 20


@pytest.fixture(scope="module")
def specs(path: Path) -> Iterator[list[WorkerSpec]]:
    """Of two that are there to be measured."""
    with torch_workers([(f"server{i}", device(i)) for i in range(2)], ModelFile(path)) as found:
        yield found


@pytest.fixture(scope="module")
def measured(specs: list[WorkerSpec]) -> Iterator[list[WorkerProcess]]:
    with start_workers(specs) as workers:
        yield workers


def _spec(outfit: Outfit, params: GreedyParams, *, has_core: bool = False) -> WorkerSpec:
    return WorkerSpec("one", outfit, SchedulerSpec(params, TINY.segments, Supervision(), has_core))


# ------------------------------------------------------------------------------------------------------ it is measured


def test_benchmarks_measure_what_they_are_asked_for(measured: list[WorkerProcess], specs: list[WorkerSpec]) -> None:
    """As many samples as asked, CPU time within the wall time, every concurrent point served."""
    worker = measured[0]
    result = worker.ask(Benchmark(Point(2, 1.0, 0.5, 4), warmup=2, repeats=7, min_s=0.0), BenchmarkResult)
    assert len(result.samples_s) == 7
    assert 0 < sum(result.samples_s) <= result.wall_s
    assert result.cpu_s > 0
    points = (Point(1, 0.5, 0.0, 2), Point(3, 1.0, 1.0, 1))
    together = worker.ask(BenchmarkTogether(points, 0.05), TogetherResult)
    assert all(part.completed > 0 and part.elapsed_s >= 0.05 for part in together.results)
    dispatches_s = worker.ask(BenchmarkDispatch(Point(3, 0.5, 1.0, 4), 5, 0.0), Timed).samples_s
    assert len(dispatches_s) == 5
    assert max(dispatches_s) > 0
    worker.begin_warming((1, 2))
    worker.end_warming()
    outfit = specs[0].outfit
    assert isinstance(outfit, TorchOutfit)
    outfit.arenas[1].view(0, 8192)[:] = b"x" * 8192
    assert len(transfer_round(worker, 1, 4096, 3, receiver=measured[1])) == 3
    assert bytes(outfit.arenas[1].view(0, 8192)) == bytes(4096) + b"x" * 4096  # so many bytes really move


def test_a_transfer_lasts_until_it_stands_on_the_receivers_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where that is a GPU; the way of a word there and back is none of it."""
    now_ns, move_ns, word_ns, copy_ns = [0], 700, 300, 50
    heard: list[ToWorker] = []

    class Peer:
        def send(self, message: ToWorker) -> None:
            heard.append(message)
            now_ns[0] += copy_ns if isinstance(message, Keep) and message.inputs else 0

        def ask(self, message: ToWorker, kind: type[FromWorker]) -> FromWorker:
            now_ns[0] += move_ns if isinstance(message, Move) else word_ns
            return Moved(0, (5,), "float32", False)

    monkeypatch.setattr(
        "hw.router.worker_handles.time", SimpleNamespace(monotonic_ns=lambda: now_ns[0], sleep=lambda _: None)
    )
    source, receiver = cast(Any, Peer()), cast(Any, Peer())
    for peer, expected_ns in ((None, move_ns), (receiver, move_ns + copy_ns)):
        found_s = transfer_round(source, 1, 20, 2, receiver=peer)
        assert found_s == pytest.approx([expected_ns / 1e9] * 2)
    assert heard[-3:-1] == [Keep((Input((0,), 0, (5,), "float32", False),)), Release((0,))]


def test_a_measurement_that_fails_says_why(measured: list[WorkerProcess]) -> None:
    worker = measured[0]
    wrong = Point(3, 0.1, 1.0, 1)
    for message in (
        Benchmark(wrong, 1, 1, 0.0),
        BenchmarkTogether((Point(1, 0.5, 0.0, 2), wrong), 0.05),
        BenchmarkDispatch(wrong, 1, 0.0),
    ):
        with pytest.raises(WorkError, match="server0: bad_input"):
            worker.ask(message, Timed)
    assert loaded(worker).vram_bytes > 0
    worker.ask(BenchmarkUnload(0), Timed)


def loaded(worker: WorkerHandle, *where: Any) -> Timed:
    return worker.ask(BenchmarkLoad(*(where or (0, 1, 1.0))), Timed)


def _measured(path: Path, name: str, where: DeviceSpec | None = None) -> Any:
    """One that is there to be measured, on a device."""

    @contextlib.contextmanager
    def started() -> Iterator[WorkerProcess]:
        with torch_workers([(name, where or device())], ModelFile(path)) as (spec,), WorkerProcess(spec) as worker:
            yield worker

    return started()


def test_loading_takes_real_memory_and_unloading_frees_it(tmp_path: Path) -> None:
    """Private pages of the process: a large instance's bytes come with its load and go with its unload.

    The allocator may keep some of them for the next load (glibc trims the end of its main arena alone), so once in a
    while an unload frees less; but never does anything heap up.
    """
    network = Network("slimresnet18")
    model = network.build()
    file = tmp_path / "large.safetensors"
    save_model(file, model, network.label, {})
    needed = model.instance_bytes(4, 1.0)
    assert needed > 30e6
    with _measured(file, "large") as worker:
        process = psutil.Process(worker.pid)
        loaded(worker, 0, 4, 1.0)
        worker.ask(BenchmarkUnload(0), Timed)  # the first one leaves something for good: code, threads
        for from_disk in (True, False):
            empty, full = [process.memory_full_info().uss], []
            for _ in range(5):
                loaded(worker, 1, 4, 1.0, from_disk)
                full.append(process.memory_full_info().uss)
                worker.ask(BenchmarkUnload(1), Timed)
                empty.append(process.memory_full_info().uss)
            assert max(full) - min(empty) > 0.9 * needed
            assert max(before - after for before, after in zip(full, empty[1:], strict=True)) > 0.9 * needed
            assert empty[-1] - empty[0] < needed, "five loads left less than one"


# ------------------------------------------------------------------------------------------------------ how it ends


def _gone(pid: int) -> bool:
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    return True


class FullPort:
    def post(self, message: Any) -> None: ...

    def flush(self) -> bool:
        return False


def test_an_worker_that_takes_nothing_is_not_asked_for_ever() -> None:
    """It was stopped with a full port: the next run would wait for it for good."""
    now_ns = count(0, NS_PER_S)
    host = Host(lambda: next(now_ns), wait=lambda descriptors, wait_s: [])
    deaf = cast(WorkerHandle, SimpleNamespace(port=FullPort(), spec=SimpleNamespace(name="deaf"), _host=host))
    with pytest.raises(WorkError, match="deaf took nothing within 30 s"):
        WorkerHandle.send(deaf, Ping(1), 30.0)


class Later(Executor):
    """A thread that has not come to it yet."""

    def __init__(self) -> None:
        self.tasks: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, task: Callable[..., Any], /, *args: Any, **_: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.tasks.append((future, partial(task, *args)))
        return future

    def come_to_it(self) -> None:
        for future, task in self.tasks:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(task())
                except Exception as error:
                    future.set_exception(error)


def test_a_router_waits_for_no_spawn(specs: list[WorkerSpec], monkeypatch: pytest.MonkeyPatch) -> None:
    """A start takes the time of other hands; who is killed before it never begins, and a start that fails is told."""
    hands = Later()
    workers = [WorkerProcess(specs[0], hands, wait=False) for _ in range(2)]
    assert [worker.pid for worker in workers] == [0, 0]
    workers[0].kill()

    def refuse(process: Any) -> None:
        raise OSError("no more processes")

    monkeypatch.setattr(BaseProcess, "start", refuse)
    hands.come_to_it()
    assert [worker.pid for worker in workers] == [0, 0]
    with pytest.raises(WorkerDiedError, match="before it began"):
        workers[0].wait_until_ready(WAIT_S)
    with pytest.raises(WorkerDiedError, match="no more processes"):
        workers[1].wait_until_ready(WAIT_S)


@pytest.fixture
def host() -> Iterator[OneHost]:
    made = OneHost()
    made.arenas(1, 4096)
    yield made
    made.close()


def _together(host: OneHost, count: int = 2) -> list[WorkerHandle]:
    """Workers of one process, ready and at work."""
    service = SchedulerSpec(params(), TINY.segments, Supervision())
    specs = [WorkerSpec(f"s{number}", HollowOutfit(()), service, "gpu", count) for number in range(count)]
    workers = [host.start(number, spec) for number, spec in enumerate(specs)]
    for number, worker in enumerate(workers):
        worker.wait_until_ready(WAIT_S)
        worker.prepare(number, keep_log=False)
    return workers


def test_workers_of_one_worker_share_a_process(host: OneHost) -> None:
    """Each has its port and its scheduler; one that leaves takes nobody with it, and the last one ends the process."""
    workers = _together(host)
    (pid,) = {worker.pid for worker in workers}
    alone = host.start(2, replace(workers[0].spec, name="late"))  # too late
    alone.wait_until_ready(WAIT_S)
    assert alone.pid != pid
    alone.close()
    for worker in workers:
        worker.send(ComeUp(1))
        assert isinstance(worker.receive(WAIT_S), Preloaded)
    workers[0].close()
    workers[0].close()
    assert workers[1].ask(Ping(7), Pong).number == 7
    assert psutil.pid_exists(pid)
    workers[1].close()
    assert _gone(pid)


def test_workers_of_one_worker_die_together(host: OneHost) -> None:
    workers = _together(host)
    workers[0].kill()
    with pytest.raises(WorkerDiedError, match="exit code -9"):
        workers[1].receive(WAIT_S)
    again = _together(host)
    (pid,) = {worker.pid for worker in again}
    assert pid != workers[0].pid
    for worker in (*workers, *again):
        worker.close()
    assert _gone(pid)


def test_workers_that_never_begin_are_told_all(specs: list[WorkerSpec]) -> None:
    """Whoever ends one before its process begins ends those that would share it."""
    hands, processes = Later(), list[SharedProcess]()

    def join(member: Member) -> SharedProcess:
        if not processes or not processes[0].join(member):
            processes.append(SharedProcess(member, hands))
        return processes[-1]

    workers = [WorkerProcess(specs[0], join=join, wait=False) for _ in range(2)]
    assert len(processes) == 1
    workers[0].kill()
    with pytest.raises(WorkerDiedError, match="before it began"):
        workers[1].wait_until_ready(WAIT_S)
    third = WorkerProcess(specs[0], join=join, wait=False)
    assert len(processes) == 2
    third.kill()


def test_an_worker_whose_router_is_gone_leaves_the_others_at_work() -> None:
    pairs = [_ends() for _ in range(2)]
    workers = [(port, _spec(HollowOutfit(()), params())) for _, port in pairs]
    thread = threading.Thread(
        target=lambda: work([Worker(port, spec, IncarnationLog()) for port, spec in workers]), daemon=True
    )
    thread.start()
    (first, _), (second, _) = pairs
    assert select.select([second.fileno()], [], [], WAIT_S)[0]
    first.close()
    for number in range(3):
        second.post(Ping(number))
        second.flush()
        pongs: list[FromWorker] = []
        while Pong not in map(type, pongs):
            assert select.select([second.fileno()], [], [], WAIT_S)[0]
            pongs += second.receive()
    second.post(Close())
    second.flush()
    thread.join(WAIT_S)
    assert not thread.is_alive()


def test_no_process_is_left_behind(specs: list[WorkerSpec]) -> None:
    with WorkerProcess(specs[0]) as worker:
        pid = worker.pid
        assert psutil.pid_exists(pid)
    assert _gone(pid)

    def fail() -> None:
        with start_workers(specs) as workers:
            pids.extend(worker.pid for worker in workers)
            raise KeyboardInterrupt

    pids: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        fail()
    assert len(pids) == 2
    assert all(_gone(pid) for pid in pids)


def test_ctrl_c_is_the_routers_business(specs: list[WorkerSpec]) -> None:
    worker = WorkerProcess(specs[0])
    os.kill(worker.pid, signal.SIGINT)
    assert loaded(worker).vram_bytes > 0
    process = psutil.Process(worker.pid)
    worker.port.close()
    process.wait(WAIT_S)
    worker.close()


def test_a_dead_worker_is_noticed(specs: list[WorkerSpec]) -> None:
    """A killed one raises when it is heard and when it is spoken to, and how it ended is told."""
    with WorkerProcess(specs[0]) as worker:
        worker.send_signal(signal.SIGKILL)
        with pytest.raises(WorkerDiedError, match=r"worker server0 died \(exit code -9\)"):
            worker.receive(WAIT_S)
        with pytest.raises(WorkerDiedError, match="died"):
            worker.send(Release(()))


def test_bytes_that_are_not_a_message_end_the_worker_with_one_line(
    specs: list[WorkerSpec], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker guesses nothing about a faulty router and prints one line to standard error."""
    monkeypatch.setattr("hw.router.local_workers.multiprocessing", multiprocessing)  # its standard error is this one's
    with WorkerProcess(specs[0]) as worker:
        worker.port._write(b"\x01\0\0\0\xc1")
        with pytest.raises(WorkerDiedError, match="exit code 1"):
            worker.receive(WAIT_S)
    said = capfd.readouterr().err
    assert said.startswith("worker server0: 1 bytes are not a message")
    assert said.count("\n") == 1


# -------------------------------------------------------------------------------------------------------- how it starts


def test_an_worker_that_cannot_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(WorkError, match="nowhere"), _measured(tmp_path / "nowhere.safetensors", "lost"):
        pass


def test_the_first_worker_hears_no_interrupt_while_it_opens() -> None:
    """In a process that has started nothing yet; else Ctrl-C ends in a worker's traceback."""
    code = """
import signal
from multiprocessing import resource_tracker
from hw.router.local_workers import _no_interrupts
with _no_interrupts():
    resource_tracker.ensure_running()  # as the start of a process does
    assert signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_nudged_worker_is_woken_only_once() -> None:
    """A nudge that stays would keep an idle worker from ever sleeping again."""
    _, end = socket_pair()
    port = WorkerEnd(ToWorker, end)
    worker = Worker(port, _spec(HollowOutfit(()), params(), has_core=True), IncarnationLog())
    worker._obey(Prepare(1, 0, False))
    os.write(worker._nudge, b"!")
    worker.sleep(time.monotonic_ns() + 10**9)
    assert not select.select([worker._woken], (), (), 0)[0]
    port.close()


class ToldLanes(HollowLanes):
    """They note which activations they take and forget."""

    def __init__(self, tell: Tell) -> None:
        super().__init__(tell)
        self.told: list[tuple[str, tuple[int, ...]]] = []
        self.from_disk: list[bool] = []

    def load(self, instance: int, segment: int, width: float, from_disk: bool) -> None:
        self.from_disk.append(from_disk)
        super().load(instance, segment, width, from_disk)

    def take(self, inputs: Sequence[Input]) -> None:
        self.told += [("take", each.requests) for each in inputs]

    def forget(self, requests: Iterable[int]) -> None:
        self.told.append(("forget", tuple(requests)))


ACTIVATION_BYTES = 9


class OnCores:
    """An outfit whose lanes take the worker's own cores."""

    def fit(self, tell: Tell, clock_ns: Callable[[], int]) -> Fitting:
        fitting = HollowOutfit(()).fit(tell)
        return replace(fitting, lanes=ToldLanes(tell), computes_here=True, activation_bytes=lambda: ACTIVATION_BYTES)


class Timely:
    """An outfit that needs its lanes' ends to the microsecond; `looks` are the deadlines that were looked out for."""

    def __init__(self) -> None:
        self.looks: list[int] = []

    def fit(self, tell: Tell, clock_ns: Callable[[], int]) -> Fitting:
        waker = SimpleNamespace(overrun_ns=5_000, looked_ns=0, wait=lambda _, until_ns: self.looks.append(until_ns))
        return replace(HollowOutfit(()).fit(tell), lanes=TimelyLanes(tell), waker=cast(Waker, waker))


class TimelyLanes(HollowLanes):
    end_ns: int | None = None

    @property
    def next_ns(self) -> int | None:
        return self.end_ns


def test_an_worker_looks_out_for_its_device_alone() -> None:
    """To be in time for each reading of a sensor took a worker at rest 3 % of a core; 64 filled two."""
    _, end = socket_pair()
    outfit = Timely()
    worker = Worker(WorkerEnd(ToWorker, end), _spec(outfit, params()), IncarnationLog())
    soon_ns = time.monotonic_ns() + 1_000_000
    worker.sleep(soon_ns)
    worker._obey(Prepare(1, 0, False))
    worker.sleep(soon_ns)
    lanes = worker._fitting.lanes
    assert isinstance(lanes, TimelyLanes)
    for lanes.end_ns in (soon_ns + 10_000, soon_ns + 1_000, soon_ns):
        worker.sleep(soon_ns)
    assert len(outfit.looks) == 2
    end.close()


def _ends() -> tuple[RouterEnd, WorkerEnd]:
    end, remote = socket_pair()
    return RouterEnd(FromWorker, end), WorkerEnd(ToWorker, remote)


@pytest.fixture
def on_cores() -> Iterator[tuple[Worker, RouterEnd]]:
    """A worker that has begun to load, and the router's end."""
    router, port = _ends()
    worker = Worker(port, _spec(OnCores(), params(), has_core=True), IncarnationLog())
    worker._obey(Prepare(1, 0, False))
    worker._obey(ComeUp(1))
    yield worker, router
    for each in (port, router):
        each.close()


def test_report_with_each_sample_gives_the_memory_of_instances_and_activations(
    on_cores: tuple[Worker, RouterEnd],
) -> None:
    worker, router = on_cores
    for loaded_bytes in (0, TINY.segments):
        worker._obey(Sampled(Sample(0, 1.0, 0.5, None)))
        worker._send()
        (report,) = (message for message in router.receive() if isinstance(message, Report))
        assert report.vram_used_bytes == worker._fitting.context_bytes + loaded_bytes
        assert report.activation_bytes == ACTIVATION_BYTES
        _ring_in_a_lane(worker)


class GreedyLanes(ToldLanes):
    """Their loads take more than the parameters say; every third pass can't be captured."""

    taken_bytes = 0

    def load(self, instance: int, segment: int, width: float, from_disk: bool) -> None:
        self._due.append(LoadEnded(instance, self.taken_bytes, Captures(2, 3, "it reads a number")))


class OnGpu:
    """An outfit whose device has memory of its own, of which its context takes 7 bytes."""

    def fit(self, tell: Tell, clock_ns: Callable[[], int]) -> Fitting:
        fitting = HollowOutfit(()).fit(tell)
        return replace(fitting, lanes=GreedyLanes(tell), has_own_memory=True, context_bytes=7)


def test_gpu_memory_taken_by_a_load_is_booked_within_the_cap() -> None:
    """The scheduler hears the bytes; a load beyond the cap is undone, and fails for want of memory once it is gone."""
    router, port = _ends()
    room = 100 + sum(params().instance_bytes[spec] for spec in params().preload)
    tight = replace(params(), vram_cap_bytes=room, load_retries=1)
    worker = Worker(port, _spec(OnGpu(), tight), IncarnationLog())
    worker._obey(Prepare(1, 0, True))
    lanes, serving = worker._fitting.lanes, worker._serving
    assert isinstance(lanes, GreedyLanes)
    assert serving is not None
    lanes.taken_bytes = (room - 7) // 2
    worker._obey(ComeUp(1))
    for _ in range(3):
        worker.act()
    scheduler = serving._scheduler
    assert [instance.vram_bytes for instance in scheduler.instances] == [lanes.taken_bytes] * 2
    assert scheduler.vram_used_bytes == 2 * lanes.taken_bytes
    preloaded = [message for message in router.receive() if isinstance(message, Preloaded)]
    assert preloaded == [Preloaded(1, Captures(4, 6, "it reads a number"))]
    for each in (port, router):
        each.close()


def test_lanes_go_on_while_the_sensor_is_read(
    on_cores: tuple[Worker, RouterEnd], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU's takes its time, and lanes need the lock to tell of what has ended."""
    worker, router = on_cores
    is_held: list[bool] = []

    class SlowSensor(Sensor):
        def sample(self) -> Reading:
            is_held.append(worker._lock.locked())
            return Reading(7.0, None, None, {})

    monkeypatch.setattr(worker._serving, "_fitting", replace(worker._fitting, sensor=lambda pids: SlowSensor()))
    for message in (Sense(1, ()), Start(time.monotonic_ns())):
        worker._obey(message)
    is_held.clear()
    worker.act()
    assert is_held == [False]
    (report,) = (message for message in router.receive() if isinstance(message, Report))
    assert (report.sample.power_w, report.is_read) == (7.0, True)


def test_blocks_do_not_wait_for_a_slow_sensor(
    on_cores: tuple[Worker, RouterEnd], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read in a thread, once at a time; at the run's end that is waited for, before the last reading."""
    worker, router = on_cores
    is_read, looks = threading.Event(), list[int]()

    class SlowSensor(Sensor):
        def energy_j(self) -> float | None:
            looks.append(threading.get_ident())
            assert is_read.wait(WAIT_S)
            return 7.0

    fitting = replace(worker._fitting, sensor=lambda pids: SlowSensor(), reads_apart=True)
    for who in (worker, worker._serving):
        monkeypatch.setattr(who, "_fitting", fitting)
    for message in (Sense(1, ()), Start(time.monotonic_ns())):
        worker._obey(message)
    for number in (1, 2):
        worker.act()
        worker._obey(Ping(number))
    worker._send()
    assert [type(message) for message in router.receive() if isinstance(message, Pong | Report)] == [Pong, Pong]
    is_read.set()
    worker._obey(Finish(3))
    worker._send()
    assert [type(message) for message in router.receive()][-3:] == [Report, Report, Finished]
    assert [ident == worker._main for ident in looks] == [False, True]


def test_worker_cpu_time_counts_from_the_first_start(on_cores: tuple[Worker, RouterEnd]) -> None:
    """A start that is repeated because the clock offset is known better does not reset the count."""
    worker, router = on_cores
    worker._obey(Start(time.monotonic_ns()))
    until_s = time.process_time() + 0.1
    while time.process_time() < until_s:
        pass
    worker._obey(Start(time.monotonic_ns()))
    worker._obey(Finish(1))
    worker._send()
    (finished,) = (message for message in router.receive() if isinstance(message, Finished))
    assert finished.cpu_ns >= 0.1e9


def _ring_in_a_lane(worker: Worker) -> None:
    """The loads end, as a lane's thread tells."""
    thread = threading.Thread(target=worker._fitting.lanes.ring, args=(0,))
    thread.start()
    thread.join(WAIT_S)


def test_only_an_instances_first_load_opens_the_file() -> None:
    """Idle ones are unloaded at once here."""
    _, end = socket_pair()
    restless = replace(params(preload=False), idle_unload_ns=1)
    worker = Worker(WorkerEnd(ToWorker, end), _spec(OnCores(), restless), IncarnationLog())
    for message in (Prepare(1, 0, False), ComeUp(1), Start(time.monotonic_ns())):
        worker._obey(message)
    for number in range(3):
        worker._obey(Deliver(MicroBatch(number, 0, 1, WorkKey(1, 1.0, IMAGE), (number,))))
        for _ in range(10):
            worker._serving.ring(time.monotonic_ns()) if worker._serving else None
    lanes = worker._fitting.lanes
    assert isinstance(lanes, ToldLanes)
    assert lanes.from_disk == [True, False, False]
    end.close()


def test_preloads_come_from_memory_while_the_clock_stands_and_from_the_file_after_a_death() -> None:
    """Nobody times them before the run; who comes back in mid-run pays for the file."""
    for is_running, from_disk in ((False, False), (True, True)):
        _, end = socket_pair()
        worker = Worker(WorkerEnd(ToWorker, end), _spec(OnCores(), params()), IncarnationLog())
        worker._obey(Prepare(1, 0, False))
        if is_running:
            worker._obey(Start(time.monotonic_ns()))
        worker._obey(ComeUp(1))
        lanes = worker._fitting.lanes
        assert isinstance(lanes, ToldLanes)
        assert set(lanes.from_disk) == {from_disk}
        end.close()


def _is_nudged(worker: Worker) -> bool:
    return bool(select.select([worker._woken], (), (), 0)[0])


def _kept(request: int) -> Keep:
    return Keep((Input((request,), 0, (1,), "float32", False),))


def test_a_lane_takes_what_came_of_blocks_and_leaves_the_rest_in_order(on_cores: tuple[Worker, RouterEnd]) -> None:
    """What came after a message that is the main thread's waits for that one."""
    worker, router = on_cores
    lanes = worker._fitting.lanes
    assert isinstance(lanes, ToldLanes)
    for message in (_kept(1), Release((1,)), Ping(5), _kept(2)):
        router.post(message)
    router.flush()
    _ring_in_a_lane(worker)
    assert lanes.told == [("take", (1,)), ("forget", (1,))]
    assert _is_nudged(worker)
    router.post(_kept(3))
    router.flush()
    worker._take_what_came()  # at the end of another batch: too early still
    assert len(lanes.told) == 2
    worker.act()
    assert worker.listen()
    assert lanes.told[2:] == [("take", (2,)), ("take", (3,))]
    worker._send()
    assert [message.number for message in router.receive() if isinstance(message, Pong)] == [5]


@pytest.mark.parametrize("reads", [False, True])
def test_a_worker_reads_its_cores_speed_only_for_a_record(on_cores: tuple[Worker, RouterEnd], reads: bool) -> None:
    """A reading takes CPU time, and a server of clients keeps no record; each is reported with the next batch."""
    worker, router = on_cores
    worker._obey(Prepare(2, 0, False))
    worker._obey(ComeUp(1, reads))
    _ring_in_a_lane(worker)
    for number in (1, 2):
        worker._obey(Deliver(MicroBatch(number, 0, 1, WorkKey(1, 1.0, IMAGE), (number,))))
        _ring_in_a_lane(worker)
    returned = [message for message in router.receive() if isinstance(message, Returned)]
    assert [message.reference_s > 0 for message in returned] == [False, reads]


def test_message_that_a_lane_could_not_send_is_left_to_the_main_thread(
    on_cores: tuple[Worker, RouterEnd], monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, _ = on_cores
    worker._post(Pong(1, 0))
    monkeypatch.setattr(worker._port, "flush", lambda: False)
    worker._send_from_lane()
    assert _is_nudged(worker)


def test_transfer_that_ends_outside_a_run_is_still_reported() -> None:
    """The destination stays reserved until the report; no run has begun here."""
    router, port = _ends()
    worker = Worker(port, WorkerSpec("one", OnCores(), None), IncarnationLog())
    thread = threading.Thread(target=worker._hear_lane, args=(MoveEnded(Moved(7, (1,), "float32", False)),))
    thread.start()
    thread.join(WAIT_S)
    assert [message.transfer for message in router.receive() if isinstance(message, Moved)] == [7]


def test_a_folder_that_nobody_installed_has_a_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """An image with torch and nothing else runs it from there."""
    assert own_version() not in ("", "unknown")
    monkeypatch.setattr("kit.plugins.version", _not_installed)
    assert own_version() == "unknown"


def _not_installed(name: str) -> str:
    raise PackageNotFoundError(name)
