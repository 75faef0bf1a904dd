"""The log of a worker's incarnation: what was written is read, whatever happened to who wrote it."""

from __future__ import annotations

import itertools
import multiprocessing
import os
from collections.abc import Iterator
from multiprocessing.connection import Connection

import pytest

from hw.transport.shared_memory import IncarnationLog, steps_of
from kit.errors import WorkError
from policies.vocabulary import ServerEvent, ServerUp, TelemetrySampled, TimerFired
from tests import tiny

ENOUGH = 100


@pytest.fixture
def log() -> Iterator[IncarnationLog]:
    made = IncarnationLog()
    yield made
    made.close()


def test_every_step_of_a_run_comes_back(log: IncarnationLog) -> None:
    """Every kind of event and command of a simulated server, with all their numbers as they were."""
    spec = tiny.cluster()
    _, record = tiny.simulate(spec, tiny.run(spec, tiny.poisson_s(200, 0.5), 0.5, keep_log=True))
    steps = [step for step in record.log if step.core == "server:1"]
    assert len(steps) > ENOUGH
    for number, step in enumerate(steps):
        log.append(step.now_ns, step.event, list(step.commands))
        if number % 7 == 0:
            log.write()
    log.write()
    assert steps_of(log.read(), 1) == tuple(steps)


def test_a_torn_tail_is_left_out(log: IncarnationLog) -> None:
    """Wherever a kill has cut the last frame off: all frames before it are whole."""
    event = TelemetrySampled(1, 2, 3, 0.5, 6.25, 7, 8)
    log.append(5, ServerUp(0, 1), [])
    log.write()
    whole = _size(log)
    for now_ns in (6, 7):
        log.append(now_ns, event, [])
    log.write()
    assert [step.now_ns for step in steps_of(log.read(), 0)] == [5, 6, 7]
    for size in reversed(range(whole, _size(log))):
        os.ftruncate(log._fd, size)
        assert [step.now_ns for step in steps_of(log.read(), 0)] == [5]


def _size(log: IncarnationLog) -> int:
    return os.fstat(log._fd).st_size


@pytest.mark.parametrize("junk", [b"\0\0\0\0", b"\3\0\0\0\x91\x91\x01", b"\2\0\0\0\x91\xc1"])
def test_damaged_worker_log_is_refused_with_the_byte(log: IncarnationLog, junk: bytes) -> None:
    os.write(log._fd, junk)
    with pytest.raises(WorkError, match="the log of a worker is damaged at byte 4"):
        steps_of(log.read(), 0)


def test_the_next_run_begins_with_an_empty_one(log: IncarnationLog) -> None:
    """Nothing of the run before is in it, written or not, whichever end has emptied it."""
    router = IncarnationLog()
    router.close()
    router._open(os.dup(log._fd))
    for end in (log, router):
        log.append(1, TimerFired(), [])
        log.write()
        if end is log:
            log.append(2, TimerFired(), [])
        end.clear()
        log.append(3, TimerFired(), [])
        log.write()
        assert [step.now_ns for step in steps_of(router.read(), 0)] == [3]
    router.close()
    router.close()


def _write_for_ever(log: IncarnationLog, heard: Connection) -> None:
    event: ServerEvent = ServerUp(0, 1)
    for number in itertools.count(1):
        log.append(number, event, [])
        if number % 3 == 0:
            log.write()
            heard.send(number)


def test_a_kill_leaves_all_that_was_heard_of(log: IncarnationLog) -> None:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_write_for_ever, args=(log, theirs))
    process.start()
    theirs.close()
    heard = 0
    while heard < ENOUGH:
        heard = ours.recv()
    process.kill()
    process.join()
    found = [step.now_ns for step in steps_of(log.read(), 0)]
    assert len(found) >= heard
    assert found == list(range(1, len(found) + 1))
