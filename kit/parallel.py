"""The same work on many things, in processes beside each other. It knows nothing of what the work is.

Processes begin afresh, have one thread for arithmetic, and end with this one, however that ends. Within a
`joblib.parallel_config` with a backend of its own, such as Ray's, that backend does the work.
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
    """(place of the task, what the work made of it), as they end; with one process, or another backend, in order.

    Args:
        work: is given what all tasks have in common, which is sent to each process once.
        jobs: so many processes at most; what a `parallel_config` says of its backend goes before it.
        prepare: what is to be done once on a machine before processes do it beside each other: compiling, say.

    Raises:
        WorkError: a process was killed. What the work raises comes through as it is.
    """
    processes = min(jobs, len(tasks))
    if processes <= 1:
        for place, task in enumerate(tasks):
            yield place, work(common, task)
        return
    if prepare is not None:
        prepare(common)
    from joblib.externals.loky.process_executor import ProcessPoolExecutor  # it is slow to open, and seldom needed
    from joblib.parallel import LokyBackend, Parallel, delayed, get_active_backend

    backend, wanted = get_active_backend()
    if not isinstance(backend, LokyBackend):  # Ray's gives all results at once, so no backend is asked for more
        yield from enumerate(Parallel(wanted or processes)(delayed(work)(common, task) for task in tasks))
        return
    given = os.getpid(), work, common
    pool = ProcessPoolExecutor(processes, initializer=_begin, initargs=given, env=ONE_THREAD)
    left, running = iter(enumerate(tasks)), dict[Any, int]()
    try:
        while True:
            for place, task in islice(left, 2 * processes - len(running)):
                running[pool.submit(_do, task)] = place
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                yield running.pop(future), future.result()
    except BrokenProcessPool:
        problem = f"one of {processes} processes was killed, most often because memory ran out"
        raise WorkError(f"{problem}; fewer --jobs need less of it") from None
    finally:
        pool.shutdown(kill_workers=True)  # an interruption ends them now, and not when they are done


def results(work: Callable[[Common, Task], Made], common: Common, tasks: Sequence[Task], jobs: int) -> list[Made]:
    """What the work made of each task, in their order; raises as `each` does."""
    by_task = dict(each(work, common, tasks, jobs))
    return [by_task[place] for place in range(len(tasks))]


# ------------------------------------------------------------------------------------------------------ in the process

_GIVEN: list[Any] = []


def _begin(parent: int, work: Any, common: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who interrupts from a terminal interrupts all; the parent ends us
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    _GIVEN[:] = work, common


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def _do(task: Any) -> Any:
    work, common = _GIVEN
    return work(common, task)
