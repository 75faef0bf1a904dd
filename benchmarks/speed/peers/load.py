"""The load on a peer: many requests at a time, or one, from an event loop of its own. Latency counts from the send."""

from __future__ import annotations

import asyncio
import time  # noqa: TID251 - a benchmark reads the clock
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from benchmarks.speed.peers.forwards import IMAGES, LOW_LOAD, SATURATION, Job

IN_FLIGHT = 64
WARM_UP_S = 3.0  # at saturation; frameworks go on starting processes for a while
Answer = tuple[int, int]  # label, size of the batch that it was in
Call = Callable[[int], Awaitable[Answer]]  # for the index of an image


async def measure(call: Call, truth: Sequence[int], job: Job) -> dict[str, Any]:
    """The parts that the job names, after a warm-up; see `saturate` and `one_by_one`."""
    await saturate(call, truth, WARM_UP_S, IN_FLIGHT)
    found: dict[str, Any] = {}
    if SATURATION in job.parts:
        found |= await saturate(call, truth, job.seconds, IN_FLIGHT)
    if LOW_LOAD in job.parts:
        found |= await one_by_one(call, truth, job.requests, job.interval_s)
    return found


async def saturate(call: Call, truth: Sequence[int], seconds: float, in_flight: int) -> dict[str, float]:
    """A closed loop: `in_flight` requests at every moment; completions in the window over its length."""
    sizes: list[int] = []
    wrong = 0
    end_s = time.monotonic() + seconds

    async def client(first: int) -> None:
        nonlocal wrong
        index = first
        while time.monotonic() < end_s:
            label, size = await call(index % IMAGES)
            if time.monotonic() < end_s:
                sizes.append(size)
                wrong += label != truth[index % IMAGES]
            index += in_flight

    await asyncio.gather(*(client(first) for first in range(in_flight)))
    return {"images_per_s": len(sizes) / seconds, "mean_batch": mean_batch(sizes), "wrong": wrong / len(sizes)}


async def one_by_one(call: Call, truth: Sequence[int], count: int, interval_s: float) -> dict[str, Any]:
    """One request at a time, a pause before each; seconds of each from send to answer."""
    found: list[float] = []
    wrong = 0
    for index in range(count):
        await asyncio.sleep(interval_s)
        begin_ns = time.monotonic_ns()
        label, _ = await call(index % IMAGES)
        found.append((time.monotonic_ns() - begin_ns) / 1e9)
        wrong += label != truth[index % IMAGES]
    return {"latencies_s": found, "wrong_single": wrong / len(found)}


def mean_batch(sizes: Sequence[int]) -> float:
    """Of batches, from the size that every request's batch had: a batch of n is seen n times."""
    return len(sizes) / sum(1 / size for size in sizes)
