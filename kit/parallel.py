"""The same work on many things, in processes beside each other. It knows nothing of what the work is.

Processes are spawned: each begins afresh, has one thread for arithmetic, and ends with this one, however that ends.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.context import SpawnContext
from multiprocessing.queues import Queue
from multiprocessing.reduction import ForkingPickler
from typing import Any, Protocol, TypeVar

from kit.errors import WorkError

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
Common = TypeVar("Common")
Task = TypeVar("Task")
Made = TypeVar("Made")


class Elsewhere(Protocol):
    """Who does tasks on other machines (`ray_pool`)."""

    def each(
        self,
        work: Callable[[Common, Task], Made],
        common: Common,
        tasks: Sequence[Task],
        prepare: Callable[[Common], object] | None = None,
    ) -> Generator[tuple[int, Made], None, None]:
        """As the function `each`."""


Jobs = int | Elsewhere
"""Where tasks are done: in so many processes of this machine, or elsewhere."""


def each(
    work: Callable[[Common, Task], Made],
    common: Common,
    tasks: Sequence[Task],
    jobs: Jobs,
    prepare: Callable[[Common], object] | None = None,
) -> Generator[tuple[int, Made], None, None]:
    """(place of the task, what the work made of it), as they end; with one process here, in order.

    Args:
        work: a module's function, for a process finds it by its name; it is given what all tasks have in common.
        prepare: what is to be done once on a machine before processes do it beside each other: compiling, say.

    Raises:
        WorkError: a process was killed. What the work raises comes through as it is.
    """
    if not isinstance(jobs, int):
        yield from jobs.each(work, common, tasks, prepare)
        return
    processes = min(jobs, len(tasks))
    if processes <= 1:
        for place, task in enumerate(tasks):
            yield place, work(common, task)
        return
    if prepare is not None:
        prepare(common)
    before = set(multiprocessing.active_children())
    context = multiprocessing.get_context("spawn")
    given = _given(context, (work, common), processes)
    with _one_thread_each():
        pool = ProcessPoolExecutor(processes, mp_context=context, initializer=_begin, initargs=(given,))
        try:
            with _deaf_to_interrupts():  # so are the processes, from their start on: this one ends them
                places = {pool.submit(_do, task): place for place, task in enumerate(tasks)}
                # Python's pool looks at which processes to watch before it starts the newest: this makes it look again.
                pool.submit(_nothing)
            for future in as_completed(places):
                yield places[future], _made(future, processes)
        except BaseException:  # an interruption, too, ends them now and not when they are done
            for process in set(multiprocessing.active_children()) - before:
                process.terminate()
            raise
        finally:
            pool.shutdown(cancel_futures=True)
            given.close()


def _given(context: SpawnContext, content: Any, processes: int) -> Queue[bytes]:
    """A queue that holds the content once for each process.

    Its own thread writes it. What a new process begins with Python writes before it looks whether that one lives: where
    it dies at once, and this is more than a pipe holds, Python would wait for ever.
    """
    given: Queue[bytes] = context.Queue()
    given.cancel_join_thread()
    packed = bytes(ForkingPickler.dumps(content))  # what can't be sent shows here
    for _ in range(processes):
        given.put(packed)
    return given


def _made(future: Future[Any], processes: int) -> Any:
    try:
        return future.result()
    except BrokenProcessPool:
        problem = f"one of {processes} processes was killed, most often because memory ran out"
        raise WorkError(f"{problem}; fewer --jobs need less of it") from None


@contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """What interrupts meanwhile comes afterwards; who is started within it never hears it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """What is started within it has these variables from its first import on."""
    before = {name: os.environ.get(name) for name in ONE_THREAD}
    os.environ.update(ONE_THREAD)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


# ------------------------------------------------------------------------------------------------------ in the process

_GIVEN: list[Any] = []


def _begin(given: Queue[bytes]) -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None, "a process of its own"
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    _GIVEN[:] = ForkingPickler.loads(given.get())


def _end_with(parent: Any) -> None:
    parent.join()
    os._exit(1)


def _do(task: Any) -> Any:
    work, common = _GIVEN
    return work(common, task)


def _nothing() -> None: ...
