"""The bandwidth of a device's memory, by large copies: bytes read and written a second."""

from __future__ import annotations

import multiprocessing
import time  # noqa: TID251 - bandwidth is bytes over real time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager

import numpy as np
import torch

from hw.device import DeviceSpec
from hw.devices.gpu import finish
from kit.errors import WorkError, in_a_line
from policies.vocabulary import NS_PER_S

COPY_BYTES = 64 << 20  # beyond any cache
COPIES = 4
IN_A_ROW = 16  # on a GPU, where a copy takes 0.1 ms


@contextmanager
def bandwidth_beside(spec: DeviceSpec) -> Iterator[Callable[[], float]]:
    """Measure now or, on a GPU, in a process of its own that is gone once the function given back has returned.

    This process must never hold a context on the GPU: it would draw power for ever after.

    Raises:
        WorkError: by the function given back; the GPU failed.
    """
    if spec.kind == "cpu":
        found = cpu_bandwidth_bytes_s(spec.threads)
        yield lambda: found
        return
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        future = pool.submit(cuda_bandwidth_bytes_s, spec.index)

        def wait() -> float:
            try:
                return future.result()
            except (BrokenProcessPool, RuntimeError) as error:
                problem = f"no bandwidth could be measured ({in_a_line(str(error))})"
                raise WorkError(f"cuda:{spec.index}: {problem}") from None
            finally:
                pool.shutdown()

        yield wait


def cpu_bandwidth_bytes_s(threads: int) -> float:
    """The best of a few large copies by as many threads as the device has."""
    sources = [np.ones(COPY_BYTES // threads, dtype=np.uint8) for _ in range(threads)]
    targets = [np.zeros_like(source) for source in sources]
    seconds = []
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(COPIES):
            begin_ns = time.monotonic_ns()
            list(pool.map(np.copyto, targets, sources))
            seconds.append((time.monotonic_ns() - begin_ns) / NS_PER_S)
    return 2 * sum(source.nbytes for source in sources) / min(seconds)


def cuda_bandwidth_bytes_s(index: int) -> float:
    """The best of a few rows of large copies inside the GPU's memory."""
    place = torch.device("cuda", index)
    return row_bandwidth_bytes_s(torch.ones(4 * COPY_BYTES, dtype=torch.uint8, device=place), finish)


def row_bandwidth_bytes_s(source: torch.Tensor, wait: Callable[[torch.device], object]) -> float:
    """Copies of what lies on a device, many in a row: beside a single one, asking and waiting for it would count.

    Args:
        wait: until all is done that was asked of the device.
    """
    target = torch.zeros_like(source)
    seconds = []
    for _ in range(COPIES + 1):
        wait(source.device)
        begin_ns = time.monotonic_ns()
        for _ in range(IN_A_ROW):
            target.copy_(source)
        wait(source.device)
        seconds.append((time.monotonic_ns() - begin_ns) / NS_PER_S)
    return 2 * IN_A_ROW * source.nbytes / min(seconds)
