"""Worker processes: they serve, move, refuse, and always end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from hw.device import DeviceSpec, local_devices
from hw.instances import context_bytes
from hw.messages import (
    BenchmarkPoint,
    Broken,
    Finished,
    Load,
    LoadBroken,
    Move,
    MoveBroken,
    Moved,
    Ping,
    Pong,
    Release,
    Run,
    Take,
)
from hw.networks import ModelFile, Network, save_model
from hw.slimresnet import SlimResNet
from hw.worker import Worker, WorkerDiedError, WorkerSpec, start_workers, transfer_round
from policies.errors import WorkError
from tests.hw.worlds import TINY, device, tiny_model

pytestmark = pytest.mark.workers

WAIT_S = 60.0


@pytest.fixture(scope="module")
def model() -> SlimResNet:
    return tiny_model()


@pytest.fixture(scope="module")
def path(model: SlimResNet, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("model") / "tiny.safetensors"
    save_model(file, model, "tiny", {})
    return file


@pytest.fixture(scope="module")
def pair(path: Path) -> Iterator[list[Worker]]:
    with start_workers([WorkerSpec(f"server{i}", device(i), ModelFile(path)) for i in range(2)]) as workers:
        yield workers


@pytest.fixture(autouse=True)
def _empty(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "pair" in request.fixturenames:
        for worker in request.getfixturevalue("pair"):
            worker.reset()


def _images(count: int) -> torch.Tensor:
    return torch.randn(count, 1, 8, 8, generator=torch.Generator().manual_seed(1))


def _move(source: Worker, destination: Worker, transfer: int, requests: tuple[int, ...], offset: int = 0) -> None:
    """What a driver does: the source writes into the other's arena, the other takes it."""
    source.send(Move(transfer, destination.own, offset, requests))
    moved = source.receive(WAIT_S)
    assert isinstance(moved, Moved), moved
    assert moved.transfer == transfer
    destination.send(Take(requests, offset, moved.shape, moved.dtype, moved.channels_last))


def _run(worker: Worker, message: Run) -> Finished:
    worker.send(message)
    answer = worker.receive(WAIT_S)
    assert isinstance(answer, Finished), answer
    return answer


def test_a_request_travels_and_is_labelled_as_in_this_process(model: SlimResNet, pair: list[Worker]) -> None:
    """Segments on alternating workers, activations moved between them, padded: the labels are those of `forward`."""
    first, second = pair
    requests, images, widths = (5, 9, 2), _images(3), (1.0, 0.5, 1.0)
    first.put(requests, images)
    for worker in pair:
        for segment in (1, 2, 3):
            worker.load(segment, segment, 1.0)
    _run(first, Run(0, 1, requests, 1, 0.0, widths[0], 4))
    _move(first, second, 7, requests)
    _run(second, Run(1, 2, requests, 2, widths[0], widths[1], 3))
    _move(second, first, 8, (9, 5, 2))
    answer = _run(first, Run(2, 3, requests, 3, widths[1], widths[2], 8))
    with torch.inference_mode():
        wanted = tuple(model(images, widths).argmax(1).tolist())
    assert len(set(wanted)) == len(wanted)
    assert answer.labels == wanted
    assert answer.forward_s > 0


def test_activations_move_intact_and_stay_until_released(pair: list[Worker]) -> None:
    """Moved away twice: they are still at the first until `Release`; then they are not. The bytes are the same."""
    first, second = pair
    images = _images(1)
    first.put((1,), images)
    for transfer in (1, 2):
        _move(first, second, transfer, (1,), offset=512 * transfer)
    first.send(Release((1,)))
    first.send(Move(3, 1, 0, (1,)))
    broken = first.receive(WAIT_S)
    assert isinstance(broken, MoveBroken)
    assert (broken.transfer, broken.reason) == (3, "bad_input")
    assert torch.equal(second.arenas[1].tensor(1024, (1, 1, 8, 8), torch.float32), images)


def test_what_is_wrong_is_answered_and_kills_nothing(pair: list[Worker]) -> None:
    """Missing inputs, instances and links, and inputs of a wrong shape: a reason each, and the worker serves on."""
    worker = pair[0]
    worker.load(1, 1, 0.5)
    worker.load(2, 2, 1.0)
    worker.put((1,), _images(1))
    wrong = {
        "unknown_instance": Run(0, 99, (1,), 1, 0.0, 0.5, 1),
        "bad_input": Run(1, 1, (2,), 1, 0.0, 0.5, 1),
    }
    for reason, message in wrong.items():
        worker.send(message)
        broken = worker.receive(WAIT_S)
        assert isinstance(broken, Broken)
        assert (broken.batch, broken.reason) == (message.batch, reason)
    for message in (Run(2, 2, (1,), 2, 1.0, 1.0, 1), Run(3, 1, (1,), 1, 0.0, 1.0, 1), Run(4, 1, (1,), 2, 0.5, 0.5, 1)):
        worker.send(message)
        assert isinstance(worker.receive(WAIT_S), Broken)
    worker.send(Move(5, 42, 0, (1,)))
    broken_move = worker.receive(WAIT_S)
    assert isinstance(broken_move, MoveBroken)
    assert broken_move.reason == "bad_input"
    with pytest.raises(WorkError, match="bad_input"):
        worker.benchmark(BenchmarkPoint(1, 0.3, 0.0, 1), 1, 1, 0.0)
    assert _run(worker, Run(6, 1, (1,), 1, 0.0, 0.5, 1)).labels == ()


def test_memory_is_counted_in_real_bytes(model: SlimResNet, path: Path) -> None:
    """Loads take the bytes of their weights; one beyond the budget fails, and unloading makes room."""
    sizes = {width: model.instance_bytes(3, width) for width in TINY.widths}
    spec = WorkerSpec("small", DeviceSpec(vram_bytes=sizes[1.0] + sizes[0.5] - 1), ModelFile(path))
    with Worker(spec) as worker:
        assert worker.load(0, 3, 1.0).vram_bytes == sizes[1.0]
        worker.send(Load(1, 3, 0.5))
        broken = worker.receive(WAIT_S)
        assert isinstance(broken, LoadBroken)
        assert broken.reason == "out_of_memory"
        assert worker.unload(0) >= 0
        assert worker.load(2, 3, 0.5, from_disk=True).vram_bytes == sizes[0.5]


def test_instances_from_disk_and_from_memory_are_the_same(model: SlimResNet, pair: list[Worker]) -> None:
    """A batch gives the same labels whichever way its instance was loaded."""
    worker, images = pair[0], _images(4)
    found = []
    for from_disk in (False, True):
        for segment in (1, 2, 3):
            worker.load(segment, segment, 1.0, from_disk=from_disk)
        worker.put((0, 1, 2, 3), images)
        for segment in (1, 2, 3):
            answer = _run(worker, Run(segment, segment, (0, 1, 2, 3), segment, 1.0 if segment > 1 else 0.0, 1.0, 4))
        found.append(answer.labels)
        for segment in (1, 2, 3):
            worker.unload(segment)
    assert found[0] == found[1] == tuple(model(images, (1.0,) * 3).argmax(1).tolist())


def test_instances_work_at_the_same_time(pair: list[Worker]) -> None:
    """Two instances' batches overlap: each has begun before the other has ended, however long they take."""
    worker = pair[0]
    for instance in (1, 2):
        worker.load(instance, 2, 1.0)
    count = 4096
    shape = (TINY.channels(1, 1.0), 8, 8)
    for instance in (1, 2):
        requests = tuple(range(instance * count, (instance + 1) * count))
        worker.put(requests, torch.zeros(count, *shape))
    for instance in (1, 2):
        requests = tuple(range(instance * count, (instance + 1) * count))
        worker.send(Run(instance, instance, requests, 2, 1.0, 1.0, count))
    one, other = (worker.receive(WAIT_S) for _ in range(2))
    assert isinstance(one, Finished)
    assert isinstance(other, Finished)
    assert one.began_ns < other.began_ns + other.forward_s * 1e9
    assert other.began_ns < one.began_ns + one.forward_s * 1e9


def test_benchmarks_measure_what_they_are_asked_for(pair: list[Worker]) -> None:
    """As many samples as asked, CPU time within the wall time, every concurrent point served."""
    worker = pair[0]
    result = worker.benchmark(BenchmarkPoint(2, 1.0, 0.5, 4), warmup=2, repeats=7, min_s=0.0)
    assert len(result.samples_s) == 7
    assert 0 < sum(result.samples_s) <= result.wall_s
    assert result.cpu_s > 0
    together = worker.benchmark_together([BenchmarkPoint(1, 0.5, 0.0, 2), BenchmarkPoint(3, 1.0, 1.0, 1)], 0.05)
    assert all(part.completed > 0 and part.elapsed_s >= 0.05 for part in together.results)
    with pytest.raises(WorkError, match="bad_input"):
        worker.benchmark_together([BenchmarkPoint(1, 0.5, 0.0, 2), BenchmarkPoint(3, 0.1, 1.0, 1)], 0.05)
    trips = worker.dispatch_round_trips(BenchmarkPoint(3, 0.5, 1.0, 4), 5)
    assert len(trips) == 5
    assert min(trips) > 0
    assert len(transfer_round(pair[0], pair[1], 4096, 3)) == 3
    worker.warm((1, 2))


def _gone(pid: int) -> bool:
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    return True


def test_no_process_is_left_behind(path: Path) -> None:
    """After a normal end, after an error inside the context, and when the worker is stuck in a long job."""
    with Worker(WorkerSpec("normal", device(), ModelFile(path))) as worker:
        pid = worker.pid
        assert worker.alive
    assert _gone(pid)

    def fail() -> None:
        with start_workers(
            [WorkerSpec("one", device(0), ModelFile(path)), WorkerSpec("two", device(1), ModelFile(path))]
        ) as workers:
            pids.extend(worker.pid for worker in workers)
            raise KeyboardInterrupt

    pids: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        fail()
    assert len(pids) == 2
    assert all(_gone(pid) for pid in pids)


def test_ctrl_c_is_the_drivers_business(path: Path) -> None:
    """SIGINT does not end a worker; the end of its pipe does."""
    worker = Worker(WorkerSpec("steady", device(), ModelFile(path)))
    os.kill(worker.pid, signal.SIGINT)
    assert worker.load(0, 1, 1.0).vram_bytes > 0
    process = psutil.Process(worker.pid)
    worker.connection.close()
    process.wait(WAIT_S)
    worker.close()


def test_a_dead_worker_is_noticed(path: Path) -> None:
    """A killed worker raises when it is heard and when it is spoken to."""
    with Worker(WorkerSpec("mortal", device(), ModelFile(path))) as worker:
        os.kill(worker.pid, signal.SIGKILL)
        with pytest.raises(WorkerDiedError, match="died"):
            worker.receive(WAIT_S)
        with pytest.raises(WorkerDiedError, match="gone"):
            worker.send(Release(()))


def test_who_does_not_read_holds_up_nobody(path: Path) -> None:
    """A stopped worker is sent thousands of messages without waiting; when it goes on it gets them all, in order."""
    with Worker(WorkerSpec("stopped", device(), ModelFile(path))) as worker:
        os.kill(worker.pid, signal.SIGSTOP)
        pings = 20_000
        for number in range(pings):
            worker.send(Ping(number))
        assert not worker.flush()
        os.kill(worker.pid, signal.SIGCONT)
        for number in range(pings):
            while not worker.connection.poll(0.001):
                worker.flush()
            assert worker.receive(WAIT_S) == Pong(number)


def test_what_is_not_urgent_travels_with_what_is(path: Path) -> None:
    """Alone it waits, and it keeps its place in the order."""
    with Worker(WorkerSpec("patient", device(), ModelFile(path))) as worker:
        worker.post(Ping(1), urgent=False)
        assert worker.flush()
        assert not worker.connection.poll(0.2)
        worker.send(Ping(2))
        assert [worker.receive(WAIT_S) for _ in range(2)] == [Pong(1), Pong(2)]


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
    with Worker(WorkerSpec("large", device(), ModelFile(file))) as worker:
        process = psutil.Process(worker.pid)
        worker.load(0, 4, 1.0)
        worker.unload(0)  # the first one leaves something for good: code, threads
        for from_disk in (True, False):
            empty, loaded = [process.memory_full_info().uss], []
            for _ in range(5):
                worker.load(1, 4, 1.0, from_disk=from_disk)
                loaded.append(process.memory_full_info().uss)
                worker.unload(1)
                empty.append(process.memory_full_info().uss)
            assert max(loaded) - min(empty) > 0.9 * needed
            assert max(full - after for full, after in zip(loaded, empty[1:], strict=True)) > 0.9 * needed
            assert empty[-1] - empty[0] < needed, "five loads left less than one"


def test_a_worker_that_cannot_start_says_why(tmp_path: Path) -> None:
    """No model, no worker: the error names the file."""
    with pytest.raises(WorkError, match="nowhere"):
        Worker(WorkerSpec("lost", device(), ModelFile(tmp_path / "nowhere.safetensors")))


def test_local_devices_are_unequal_on_a_cpu() -> None:
    """Without GPUs there are two devices that differ in threads or kernels, on cores of this machine."""
    if torch.cuda.is_available():
        pytest.skip("this machine has GPUs")
    first, second = local_devices()
    assert (first.threads, first.onednn) != (second.threads, second.onednn)
    assert first.modelled_tdp_w > first.modelled_idle_w
    assert first.execution() != second.execution()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_serves_what_the_cpu_computes(model: SlimResNet, path: Path) -> None:
    """On a GPU: labels as on the CPU, memory counted, instances concurrent, benchmarks timed."""
    gpu = local_devices()[0]
    requests, images = tuple(range(16)), _images(16)
    with Worker(WorkerSpec("gpu", gpu, ModelFile(path))) as worker:
        ready = worker.wait_until_ready()
        assert ready.execution["device"] == "cuda:0"
        assert ready.context_bytes > 50_000_000  # every driver's
        assert context_bytes(gpu) == pytest.approx(ready.context_bytes, rel=0.5)
        for segment in (1, 2, 3):
            timing = worker.load(segment, segment, 1.0, probe_batch=16)
            assert timing.vram_bytes >= model.instance_bytes(segment, 1.0)
        worker.put(requests, images)
        for segment in (1, 2, 3):
            answer = _run(worker, Run(segment, segment, requests, segment, 1.0 if segment > 1 else 0.0, 1.0, 16))
        wanted = model(images, (1.0,) * 3).argmax(1).tolist()
        assert np.mean(np.asarray(answer.labels) == wanted) > 0.9  # TF32 may turn a near-tie
        assert len(worker.benchmark(BenchmarkPoint(2, 1.0, 1.0, 64), 5, 20, 0.0).samples_s) == 20
        assert all(
            part.completed for part in worker.benchmark_together([BenchmarkPoint(2, 1.0, 1.0, 64)] * 3, 0.1).results
        )


def test_the_first_worker_hears_no_interrupt_while_it_opens() -> None:
    """In a process that has started nothing yet; else Ctrl-C ends in a worker's traceback."""
    code = """
import signal
from multiprocessing import resource_tracker
from hw.worker import _no_interrupts
with _no_interrupts():
    resource_tracker.ensure_running()  # as the start of a process does
    assert signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())
"""
    subprocess.run([sys.executable, "-c", code], check=True)
