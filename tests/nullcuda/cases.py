"""What runs on the null CUDA: each case is called by `harness.run_case`, and returns plain data."""

from __future__ import annotations

import os
import time  # noqa: TID251 - lanes run on a real clock
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from typing import Any, TypeVar, cast

import numpy as np
import torch

from calibrate import session
from calibrate.calibration_log import CalibrationRequest
from calibrate.device_identity import Probe
from calibrate.device_opening import Opened, WorkerBench
from calibrate.power_meter import Meter
from hw.device_settings import DeviceSpec
from hw.networks.accuracy_table import Evaluation, save_accuracy
from hw.networks.architectures import SlimResNet
from hw.networks.network_files import ModelFile, Network, save_model
from hw.router.local_cluster import HardwareCluster
from hw.router.local_workers import WorkerProcess, start_workers
from hw.router.router_loop import Routing
from hw.router.server_port import HardwareServer
from hw.router.worker_handles import transfer_round
from hw.telemetry import Sensor
from hw.transport.messages import Benchmark, BenchmarkLoad, BenchmarkResult, FromWorker, Input, Measurement
from hw.transport.shared_memory import Arena
from hw.worker.cuda import GraphedInstance, own_stream
from hw.worker.instances import Instances, open_device, serve
from hw.worker.lanes import BatchEnded, LaneEvent, LoadEnded
from hw.worker.torch_outfit import TorchOutfit, torch_workers
from policies.interfaces import AccuracyPrior, RewardWeights
from policies.vocabulary import Choice, ClusterView, RunBatch
from scenarios.executors.executor_runs import hardware_servers
from scenarios.experiment.scenario_building import load_experiment
from tests.calibrate.fake import facts
from tests.hw.test_capturable import READING, Reading
from tests.hw.tiny import TINY, Wanderer, params, router, tiny_model, true_run
from tests.nullcuda.harness import counts, since, trace

Answer = TypeVar("Answer")
SIZES = (1, 2, 4, 8)
SCENARIO = f"""
schema: slimsched.scenario/1
name: tiny
model: {{accuracy: accuracy.json}}
cluster:
  greedy: {{batch_limit: {SIZES[-1]}}}
  servers: [{{name: gpu, profile: gpu.yaml, link: loopback, device: {{kind: cuda}}}}]
workload: {{kind: poisson, rate_img_s: 100}}
duration_s: 1
warmup_s: 0
"""
ALL = tuple((segment, width) for segment in range(1, TINY.segments + 1) for width in TINY.widths)
PASSES = len(SIZES) * sum(len(TINY.spec.served_keys(*spec)) for spec in ALL)
GPU = DeviceSpec("cuda", graphs=True, channels_last=False, vram_bytes=8 << 30, warm_sizes=SIZES)


@contextmanager
def _file(model: SlimResNet, name: str = "tiny") -> Iterator[ModelFile]:
    with TemporaryDirectory() as folder:
        path = Path(folder, "model.safetensors")
        save_model(path, model, name, {})
        yield ModelFile(path)


class _Desk:
    """A worker's lanes, without a worker around them; every call waits for its end."""

    def __init__(self, model: SlimResNet, file: ModelFile, device: DeviceSpec, arena: Arena) -> None:
        self._told = SimpleQueue[LaneEvent]()
        self._lanes = TorchOutfit(device, file, (arena,), 0).fit(self._told.put, time.monotonic_ns).lanes
        self._model, self._arena = model, arena
        self._loaded = dict[tuple[int, float], int]()

    def load(self, segment: int, width: float) -> None:
        number = self._loaded[segment, width] = len(self._loaded)
        self._lanes.load(number, segment, width, False)
        self._expect(LoadEnded)

    def pass_trace(self, segment: int, width: float, requests: Sequence[int]) -> str:
        """Calls of a batch of these of 0, 1 ... n - 1, which are in one micro-batch in this order, labels included."""
        previous, size = self._model.spec.widest_input(segment, width), len(requests)
        shape = self._model.activation_shape(segment - 1, previous)
        self._lanes.take([Input(tuple(range(size)), 0, shape, "float32", False)])
        before = counts()["traced"]
        number = self._loaded[segment, width]
        self._lanes.run(RunBatch(1, before, number, tuple(requests), segment, previous, width, size))
        self._expect(BatchEnded)
        return trace(before)

    def _expect(self, kind: type[LaneEvent]) -> None:
        until_s = time.monotonic() + 60.0
        while self._told.empty() and time.monotonic() < until_s:
            self._lanes.ring(time.monotonic_ns())
        event = self._told.get_nowait()
        assert isinstance(event, kind), event


@contextmanager
def _desk(model: SlimResNet, device: DeviceSpec, name: str = "tiny") -> Iterator[_Desk]:
    with _file(model, name) as file, closing(Arena(1 << 26)) as arena:
        yield _Desk(model, file, device, arena)


def pass_traces() -> dict[str, str]:
    """What captured passes ask for (see `harness.trace`), by segment and by how their rows lie: in order or apart."""
    found, orders = dict[str, str](), {"in order": range(8), "apart": range(7, -1, -1)}
    with _desk(tiny_model(), GPU) as desk:
        for segment in range(1, TINY.segments + 1):
            desk.load(segment, 1.0)
            for name, order in orders.items():
                for _ in range(3):  # what is made at first use is made
                    found[f"{segment} {name}"] = desk.pass_trace(segment, 1.0, order)
    return found


def eager_launches(name: str, size: int, channels_last: bool) -> list[int]:
    """The kernels that an uncaptured pass of a shipped network launches at full width, by segment."""
    model, found = _shipped(name), list[int]()
    with _desk(model, replace(GPU, graphs=False, warm_sizes=(), channels_last=channels_last), name) as desk:
        for segment in range(1, model.spec.segments + 1):
            desk.load(segment, 1.0)
            traces = [desk.pass_trace(segment, 1.0, range(size)) for _ in range(2)]
            found.append(traces[-1].count("k"))
    return found


def loaded(name: str, sizes: Sequence[int], channels_last: bool) -> dict[str, int]:
    """What loading every instance of a shipped network adds to the counts, warm and captured at these sizes."""
    model = _shipped(name)
    with _desk(
        model, replace(GPU, warm_sizes=tuple(sizes), channels_last=channels_last, vram_bytes=100 << 30), name
    ) as desk:
        before = counts()
        for segment in range(1, model.spec.segments + 1):
            for width in model.spec.widths:
                desk.load(segment, width)
        return since(before)


def _shipped(name: str) -> SlimResNet:
    model = Network(name).build()
    assert isinstance(model, SlimResNet)
    return model.eval()


def captured_ways() -> dict[str, bool]:
    """By what its second segment does, whether a network's pass was captured."""
    found = dict[str, bool]()
    place = open_device(GPU)
    for how in READING.keys() - {"foreign"}:  # which fails on a GPU in any case
        instances = Instances(Reading(how).eval(), Path(), GPU, place)
        with torch.inference_mode(), own_stream(place):
            instance = instances.make(2, 1.0)
            assert isinstance(instance, GraphedInstance)
            rows = instances.inputs(2, 1.0, 4)
            for _ in range(2):
                serve(instance, rows, (1.0, 1.0, 4), GPU.memory_format)
        found[how] = instance.captured == 1
    return found


class _Noting(Wanderer):
    """Notes what workers have asked for when the first request is routed: all that was preloaded is there by then."""

    def __init__(self, read: Callable[[], dict[str, int]]) -> None:
        super().__init__()
        self._read = read
        self.ready: dict[str, int] = {}

    def choose(self, view: ClusterView, rng: np.random.Generator) -> Choice:
        self.ready = self.ready or self._read()
        return super().choose(view, rng)


def served_runs(runs: int, cap_bytes: int, rate_img_s: float = 400.0) -> list[dict[str, Any]]:
    """Runs of one cluster, one after another, whose only server preloads every instance.

    Returns:
        For each run the worker's counts before it, when the preload has ended, and after it; how many instances the
        server loaded; and what became of requests.
    """
    device = replace(GPU, vram_bytes=cap_bytes)
    room = replace(params(), preload=ALL, padded_sizes=SIZES, idle_unload_ns=None, vram_cap_bytes=cap_bytes)
    server, found = HardwareServer("gpu", device, room, 1.0, 2.0), list[dict[str, Any]]()
    with _file(tiny_model()) as file, HardwareCluster(file, [server]) as cluster:

        def read() -> dict[str, int]:
            return counts(cluster.slots[0].worker.pid)

        for _ in range(runs):
            before, policy = read(), _Noting(read)
            routing = Routing(policy, np.random.default_rng(1), RewardWeights(), AccuracyPrior({(1.0,) * 3: 0.9}))
            record = cluster.run(true_run(tiny_model(), policy.widths, 1.0, rate_img_s), router(1), routing)
            status, loads = {request.status for request in record.requests}, record.servers[0].loads
            found.append(
                {"before": before, "ready": policy.ready, "after": read(), "loads": loads, "status": [*status]}
            )
    return found


def measured_moves(count: int) -> list[float]:
    """Seconds of moves from one worker to another one of the same GPU, as calibration asks for them."""
    devices = [("from", GPU), ("to", GPU)]
    with _file(tiny_model()) as file, torch_workers(devices, file) as specs, start_workers(specs) as workers:
        source, receiver = workers
        for worker in workers:
            worker.wait_until_ready()
        return list(transfer_round(source, 1, 1 << 16, count, receiver=receiver))


class _Bench:
    """A worker to be measured, without a process: what it is asked is carried out in a thread, and noted."""

    pid = os.getpid()

    def __init__(self, measure: Callable[[Measurement], FromWorker]) -> None:
        self._measure = measure
        self._hands = ThreadPoolExecutor(1)
        self._answers = deque[Future[Any]]()
        self.sizes = set[int]()  # captures of a load, for each previous width
        self.first_s = defaultdict[str, list[float]](list)  # the longer one of the first two repeats, by what was asked

    def send(self, message: Measurement) -> None:
        self._answers.append(self._hands.submit(self._carry_out, message))

    def expect(self, kind: type[Answer]) -> Answer:
        answer = self._answers.popleft().result()
        assert isinstance(answer, kind), answer
        return answer

    def ask(self, message: Measurement, kind: type[Answer]) -> Answer:
        self.send(message)
        return self.expect(kind)

    def _carry_out(self, message: Measurement) -> Any:
        before = counts()
        answer = self._measure(message)
        if isinstance(message, BenchmarkLoad):
            keys = TINY.spec.served_keys(message.segment, message.width)
            self.sizes.add(since(before)["captures"] // len(keys))
        if isinstance(answer, BenchmarkResult) and isinstance(message, Benchmark):
            how = f"{message.warmup} passes of warm-up, {'paused' if message.pause_s else 'without a pause'}"
            self.first_s[how].append(max(answer.samples_s[:2]))
        return answer


def calibrated() -> dict[str, Any]:
    """A calibration, all but the opening of the device, and the server that its profile makes.

    Returns:
        How many sizes each load captured; the sizes with samples at every key; those that the server pads to, and those
        that it warms; and what the first two repeats of a loop took at least, in seconds, by what was asked.
    """
    benches = list[_Bench]()

    @contextmanager
    def opened(wanted: CalibrationRequest, *_: Any) -> Iterator[Opened]:
        assert isinstance(wanted.device, DeviceSpec)
        assert wanted.file is not None
        outfit = TorchOutfit(wanted.device, wanted.file, (arena,), 0)
        benches.extend(_Bench(outfit.fit(print, time.monotonic_ns).measure) for _ in range(2))
        known = facts("cuda", wanted.device.warm_sizes)
        workers = [cast(WorkerProcess, bench) for bench in benches]
        bench = WorkerBench(workers[0], None, Meter("null", Sensor()), sibling=workers[1])
        yield Opened(bench, Probe(known.info, metered=False), known)

    setattr(session, "opened", opened)  # noqa: B010 - it stands for the real one
    with _file(tiny_model()) as file, closing(Arena(1 << 20)) as arena, TemporaryDirectory() as made:
        folder, device = Path(made), replace(GPU, warm_sizes=())
        profile = session.calibrate(CalibrationRequest(file, device, 1.0, SIZES[-1], folder / "log"))
        (folder / "gpu.yaml").write_text(profile.to_yaml())
        tuples = tuple(TINY.spec.tuples())
        right = np.ones((100, len(tuples)), bool)
        save_accuracy(folder / "accuracy.json", Evaluation(tuples, right, profile.model.hash, "tiny"))
        (folder / "gpu-scenario.yaml").write_text(SCENARIO)
        (server,) = hardware_servers(load_experiment(folder / "gpu-scenario.yaml"))
    assert isinstance(server.device, DeviceSpec)
    every = [{size for size, n in zip(curve.batches, curve.samples, strict=True) if n} for curve in profile.latency]
    return {
        "loaded": sorted(set.union(*(bench.sizes for bench in benches))),
        "measured": sorted(set.intersection(*every)),
        "padded": server.params.padded_sizes,
        "warmed": server.device.warm_sizes,
        "first_s": {how: min(first_s) for bench in benches for how, first_s in bench.first_s.items()},
    }
