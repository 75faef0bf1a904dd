"""The bandwidth of a device's memory, from large copies: bytes read and written a second."""

from __future__ import annotations

import time  # noqa: TID251 - bandwidth is bytes over real time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import torch

from hw.device import DeviceSpec
from hw.devices.gpu import finish
from hw.host.apart import Tell, apart
from kit.errors import WorkError, in_a_line
from policies.vocabulary import NS_PER_S

COPY_BYTES = 64 << 20  # beyond any cache
COPIES = 4
IN_A_ROW = 16  # on a GPU, on which a copy takes 0.1 ms


def bandwidth_bytes_s(spec: DeviceSpec) -> float:
    """Measure a device's memory bandwidth; a GPU's in a separate process, which has ended on return.

    This process must never hold a context on the GPU: it would draw power until this process exits.

    Raises:
        WorkError: the GPU failed.
    """
    if spec.kind == "cpu":
        return cpu_bandwidth_bytes_s(spec.threads)
    try:
        return apart(partial(cuda_bandwidth_bytes_s, spec.index), lambda *_: None)
    except WorkError as error:
        raise WorkError(f"cuda:{spec.index}: no bandwidth could be measured ({in_a_line(str(error))})") from None


def cpu_bandwidth_bytes_s(threads: int) -> float:
    """Return the best of a few large copies by the device's number of threads."""
    sources = [np.ones(COPY_BYTES // threads, dtype=np.uint8) for _ in range(threads)]
    targets = [np.zeros_like(source) for source in sources]
    seconds = []
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(COPIES):
            begin_ns = time.monotonic_ns()
            list(pool.map(np.copyto, targets, sources))
            seconds.append((time.monotonic_ns() - begin_ns) / NS_PER_S)
    return 2 * sum(source.nbytes for source in sources) / min(seconds)


def cuda_bandwidth_bytes_s(index: int, _: Tell) -> float:
    """Return the best of a few series of large copies inside the GPU's memory."""
    place = torch.device("cuda", index)
    return row_bandwidth_bytes_s(torch.ones(4 * COPY_BYTES, dtype=torch.uint8, device=place), finish)


def row_bandwidth_bytes_s(source: torch.Tensor, wait: Callable[[torch.device], object]) -> float:
    """Time copies within a device's memory, many in a row: in a single one, launching and waiting would dominate.

    Args:
        wait: waits until the device has completed all work.
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
