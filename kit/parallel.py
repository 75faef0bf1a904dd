"""Parallel work: the same function on many tasks, in several processes.

Processes start fresh, have one thread for arithmetic, and end with this one, however it ends. Within a
`joblib.parallel_config` with another backend, such as Ray's, that backend runs the work.
"""

from __future__ import annotations

import os
import signal
import threading
import time  # noqa: TID251 - between looks at whether the parent is still there
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from typing import Any, TypeVar

from kit.errors import WorkError

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
Common = TypeVar("Common")
Task = TypeVar("Task")
Made = TypeVar("Made")


def each(
    work: Callable[[Common, Task], Made],
    common: Common,
    tasks: Sequence[Task],
    jobs: int,
    prepare: Callable[[Common], object] | None = None,
) -> Generator[tuple[int, Made], None, None]:
    """Yield (index of the task, its result) as tasks finish; in order with one process or another backend.

    Args:
        work: its first argument is common to all tasks, and is sent to each process once.
        jobs: the largest number of processes; a `parallel_config`'s number for its backend has precedence.
        prepare: what to run once on a machine before processes run it in parallel, such as compiling.

    Raises:
        WorkError: a process was killed. Exceptions of the work are raised unchanged.
    """
    processes = min(jobs, len(tasks))
    if processes <= 1:
        for index, task in enumerate(tasks):
            yield index, work(common, task)
        return
    if prepare is not None:
        prepare(common)
    from joblib.externals.loky.process_executor import ProcessPoolExecutor  # slow to import, and seldom needed
    from joblib.parallel import LokyBackend, Parallel, delayed, get_active_backend

    backend, backend_jobs = get_active_backend()
    if not isinstance(backend, LokyBackend):  # Ray's returns all results at once, so no backend is asked for more
        yield from enumerate(Parallel(backend_jobs or processes)(delayed(work)(common, task) for task in tasks))
        return
    arguments = os.getpid(), work, common
    pool = ProcessPoolExecutor(processes, initializer=_begin, initargs=arguments, env=ONE_THREAD)
    pending, running = iter(enumerate(tasks)), dict[Any, int]()
    try:
        while True:
            for index, task in islice(pending, 2 * processes - len(running)):
                running[pool.submit(_do, task)] = index
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                yield running.pop(future), future.result()
    except BrokenProcessPool:
        problem = f"one of {processes} processes was killed, most often because memory ran out"
        raise WorkError(f"{problem}; fewer --jobs need less of it") from None
    finally:
        pool.shutdown(kill_workers=True)  # an interruption ends the processes now, not when their tasks finish


def results(work: Callable[[Common, Task], Made], common: Common, tasks: Sequence[Task], jobs: int) -> list[Made]:
    """Return the result of each task, in the tasks' order; raises as `each` does."""
    by_task = dict(each(work, common, tasks, jobs))
    return [by_task[index] for index in range(len(tasks))]


# ------------------------------------------------------------------------------------------------------ in the process

_WORK: list[Any] = []


def _begin(parent: int, work: Any, common: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the parent ends us
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    _WORK[:] = work, common


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def _do(task: Any) -> Any:
    work, common = _WORK
    return work(common, task)
