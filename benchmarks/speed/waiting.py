"""How late a process wakes up for a deadline on this host, by how it waits for it.

    python -m benchmarks.speed.waiting                # 1 and 3 processes that wait beside each other
    python -m benchmarks.speed.waiting --repeats 5

`asleep`: a sleep until the deadline, with the timer's usual slack. `no slack`: with a slack of 1 ns. `early`: as
emulated devices wait (`hw.host.waiting.Waker`): asleep until the p90 of what sleeps overrun, then looking out and
yielding. Each once as the host is, and once with a process on every core that never sleeps, so that no core halts
(SCHED_IDLE: it runs where nobody else wants to).
"""

from __future__ import annotations

import argparse
import ctypes
import multiprocessing
import os
import select
import signal
import time  # noqa: TID251 - it measures
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from hw.host.waiting import Waker, no_timer_slack

WAITS, SHORTEST_NS, LONGEST_NS = 1500, 300_000, 3_000_000
_PR_SET_PDEATHSIG = 1
WAYS = ("asleep", "no slack", "early")


def _sleep(timeout_s: float) -> bool:
    select.select((), (), (), timeout_s)
    return False


def lateness_us(seed: int) -> dict[str, list[float]]:
    """For each way, by how much its deadlines were missed."""
    rng, found = np.random.default_rng(seed), dict[str, list[float]]()
    for way in WAYS:
        if way == "no slack":
            no_timer_slack()
        waker = Waker() if way == "early" else None
        found[way] = []
        for left_ns in rng.integers(SHORTEST_NS, LONGEST_NS, WAITS).tolist():
            deadline_ns = time.monotonic_ns() + left_ns
            if waker is None:
                _sleep(left_ns / 1e9)
            else:
                waker.wait(_sleep, deadline_ns)
            found[way].append((time.monotonic_ns() - deadline_ns) / 1e3)
    return found


def _never_sleep(core: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.sched_setaffinity(0, {core})
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    while True:
        pass


@contextmanager
def awake_cores(wanted: bool) -> Iterator[None]:
    """No core halts meanwhile, if that is wanted."""
    cores = sorted(os.sched_getaffinity(0)) if wanted else []
    processes = [multiprocessing.Process(target=_never_sleep, args=(core,), daemon=True) for core in cores]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.join()


def main() -> None:
    """Microseconds: p50, p90, p99 over all processes and repeats."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args().repeats
    print(f"{'processes':>9}  {'cores':<12}  " + "  ".join(f"{way + ' p50/p90/p99':>24}" for way in WAYS))
    for processes in (1, 3):
        for awake in (False, True):
            with awake_cores(awake), multiprocessing.Pool(processes, maxtasksperchild=1) as pool:
                runs = [
                    run
                    for repeat in range(repeats)
                    for run in pool.map(lateness_us, range(repeat, repeat + processes), 1)
                ]
            cells = []
            for way in WAYS:
                p50, p90, p99 = np.percentile([value for run in runs for value in run[way]], [50, 90, 99])
                cells.append(f"{f'{p50:.0f}/{p90:.0f}/{p99:.0f}':>24}")
            print(f"{processes:>9}  {'never halt' if awake else 'as they are':<12}  " + "  ".join(cells))
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
