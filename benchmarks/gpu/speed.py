"""Checks of the time of passes and copies, by several clocks."""

from __future__ import annotations

import time  # noqa: TID251 - it measures
from collections.abc import Callable
from dataclasses import replace
from queue import SimpleQueue
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from benchmarks.gpu.stand import Stand
from hw.networks.servable import gather_into
from hw.transport.messages import Benchmark, BenchmarkTogether, Input, Point
from hw.transport.shared_memory import Arena
from hw.worker.activations import Activations, tensor_in
from hw.worker.cuda import STREAMS, finish, pin
from hw.worker.instances import Instances, Lane, raced, serve
from hw.worker.torch_outfit import alone, together

FIRST: Final = 3.0  # host caches cost up to 1.9 times; a newly selected kernel costs tens
TOLERANCE: Final = 0.05
TIMES: Final = 3  # the median counts
MEGABYTES: Final = (0.4, 2.1, 4.2, 8.4)
COPIES: Final = 20
PASSES: Final = 20
WAIT_S: Final = 20.0


def _points(stand: Stand) -> list[Point]:
    """Return the narrowest and the widest of every segment, for one image and for many."""
    spec = stand.model.spec
    ends = [(s, w, 0.0 if s == 1 else w) for s in range(1, spec.segments + 1) for w in (spec.widths[0], 1.0)]
    return [Point(*end, batch) for end in ends for batch in (1, 32)]


def first_passes(stand: Stand) -> str:
    """Measure the first pass and the median one of an instance in the lane that has loaded and so warmed it.

    Of three such instances the middle one counts.
    """
    instances, ratios = stand.instances(warm_sizes=(1, 32)), list[float]()
    for point in _points(stand):
        sorted_ratios = sorted(_first_ratio(instances, point) for _ in range(TIMES))
        ratios.append(sorted_ratios[TIMES // 2])
        stand.tell({f"{point.segment}/{point.width:g}/{point.batch}": sorted_ratios})
    worst = max(ratios)
    stand.tell({"worst_ratio": worst, "median_ratio": float(np.median(ratios))})
    return f"a first pass takes {worst:.1f} times as long" if stand.is_gpu and worst > FIRST else ""


def _first_ratio(instances: Instances, point: Point) -> float:
    lane, replies = Lane(instances.device, instances.torch_device), SimpleQueue[list[float]]()
    lane.submit(lambda: replies.put(_passes_ms(instances, point)))
    took_ms = replies.get(timeout=WAIT_S)
    lane.stop()
    return took_ms[0] / float(np.median(took_ms))


def _passes_ms(instances: Instances, point: Point) -> list[float]:
    """Return the times of the first passes after a load."""
    instance = instances.load(point.segment, point.width)
    rows = instances.inputs(point.segment, point.previous_width, point.batch)
    took_ms = list[float]()
    for _ in range(PASSES):
        began_ns = time.monotonic_ns()
        serve(instance, rows, (point.width, point.previous_width, point.batch), instances.device.memory_format)
        took_ms.append((time.monotonic_ns() - began_ns) / 1e6)
    instances.free(instance)
    return took_ms


def ways(stand: Stand) -> str:
    """Measure a micro-batch through the whole network in each order of memory, precision and way, in turns."""
    formats = [{"channels_last": last, "dtype": dtype} for dtype in ("float32", "bfloat16") for last in (True, False)]
    settings: list[dict[str, Any]] = formats if stand.is_gpu else formats[:2]
    if stand.is_gpu:
        settings += [{**each, "graphs": True} for each in formats[:2]]
    for batch in (32, 128) if stand.is_gpu else (8,):
        for setting, result in zip(
            settings, raced(stand.file, [replace(stand.device, **each) for each in settings], [batch]), strict=True
        ):
            stand.tell({" ".join([str(batch), *(f"{key}={value}" for key, value in setting.items())]): str(result)})
    return ""


def clocks(stand: Stand) -> str:
    """Measure each point by the host's clock, a GPU's events, and the launching thread's CPU time.

    Points are captured if serving captures them.
    """
    instances, wrong = stand.instances(graphs=stand.is_gpu), list[str]()
    for point in _points(stand):
        name = f"{point.segment}/{point.width:g}/{point.batch}"
        result = alone(instances, Benchmark(point, 5, 30, 0.0))
        alone_ms = 1000 * float(np.median(result.samples_s))
        stand.tell({f"{name}_alone_ms": alone_ms, f"{name}_cpu_ms": 1000 * result.cpu_s / len(result.samples_s)})
        if stand.is_gpu:
            host_ms, events_ms = _host_and_events_ms(stand, point)
            stand.tell({f"{name}_host_ms": host_ms, f"{name}_events_ms": events_ms})
            wrong += [name] if events_ms > (1 + TOLERANCE) * host_ms else []
    return f"events say more than the host: {', '.join(wrong)}" if wrong else ""


def _host_and_events_ms(stand: Stand, point: Point) -> tuple[float, float]:
    """Time the same passes by both clocks: a host's speed changes between two loops."""
    instances = stand.instances(graphs=True)
    instance = instances.make(point.segment, point.width)
    rows = instances.inputs(point.segment, point.previous_width, point.batch)
    took_ms = list[tuple[float, float]]()
    with torch.inference_mode():
        for _ in range(30):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            began_ns = time.monotonic_ns()
            begin.record()
            key = (point.width, point.previous_width, point.batch)
            serve(instance, rows, key, instances.device.memory_format, launched=end.record)
            took_ms.append(((time.monotonic_ns() - began_ns) / 1e6, begin.elapsed_time(end)))
    host_ms, events_ms = np.median(took_ms[5:], axis=0)
    return float(host_ms), float(events_ms)


def at_once(stand: Stand) -> str:
    """Measure images a second of several instances of the last segment but one, and the number of streams.

    Instances are captured if serving captures them.
    """
    instances, rates = stand.instances(graphs=stand.is_gpu), list[float]()
    segment = stand.model.spec.segments - 1
    for count in (1, 2, 4, 8, 16) if stand.is_gpu else (1, 2):
        point = Point(segment, 1.0, 1.0, 32)
        sets = [together(instances, BenchmarkTogether((point,) * count, 0.4)).results for _ in range(TIMES)]
        rates_img_s = sorted(sum(32 * result.completed / result.elapsed_s for result in results) for results in sets)
        rates.append(rates_img_s[TIMES // 2])
        stand.tell({f"{count}_img_s": rates_img_s})
    wrong = ["throughput falls"] if stand.is_gpu and min(rates) < (1 - TOLERANCE) * rates[0] else []
    if stand.is_gpu:
        taken = [STREAMS.take(stand.torch_device) for _ in range(32)]
        distinct = len({stream.cuda_stream for stream in taken})
        stand.tell({"distinct_streams_of_32": distinct})
        for stream in taken:
            STREAMS.give_back(stand.torch_device, stream)
        wrong += ["streams are shared"] if distinct < 32 else []
    return "; ".join(wrong)


def copies(stand: Stand) -> str:
    """Measure the time from arrival in an arena to a pass's inputs."""
    arena = Arena(1 << 25)
    if stand.is_gpu and (problem := pin(arena.buffer)):
        return f"the arena can't be pinned: {problem}"
    store = Activations((arena,), 0, stand.torch_device)
    for megabytes in MEGABYTES:
        count = round(megabytes * 1e6 / 4)
        tensor_in(arena, 0, (1, count), torch.float32).normal_()
        room = torch.empty(1, count, device=stand.torch_device)

        def take(count: int = count, room: Tensor = room) -> None:
            store.take(Input((1,), 0, (count,), "float32", False))
            gather_into([store.row(1)], room)
            finish(stand.torch_device)

        stand.tell({f"{megabytes:g}_MB_ms": _median_ms(take)})
    return ""


def _median_ms(act: Callable[[], object]) -> float:
    took_ms = list[float]()
    for _ in range(COPIES):
        began_ns = time.monotonic_ns()
        act()
        took_ms.append((time.monotonic_ns() - began_ns) / 1e6)
    return float(np.median(took_ms))
