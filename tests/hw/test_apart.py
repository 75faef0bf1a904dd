"""Work in a process of its own: what it tells, gives and raises arrives, and nothing of it stays."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

import pytest

from hw.subprocesses import Tell, apart, here
from kit.errors import InputError, WorkError


class OddError(Exception):
    """One that no other process can make again."""

    def __init__(self, left: int, right: int) -> None:
        super().__init__(f"{left} and {right}")


def _count(upto: int, tell: Tell) -> tuple[int, int]:
    for number in range(upto):
        tell(number + 1, upto)
    return os.getpid(), sum(range(upto + 1))


def _fail(error: Exception, tell: Tell) -> None:
    raise error


def _fail_oddly(tell: Tell) -> None:
    raise OddError(1, 2)


def _die(tell: Tell) -> None:
    os._exit(70)


def test_child_process_reports_its_progress_and_returns_its_result() -> None:
    heard: list[tuple[int, int]] = []
    for runner, is_here in ((apart, False), (here, True)):
        pid, total = runner(partial(_count, 4), lambda done, of: heard.append((done, of)))
        assert (total, pid == os.getpid()) == (10, is_here)
    assert heard == 2 * [(1, 4), (2, 4), (3, 4), (4, 4)]


@pytest.mark.parametrize("error", [InputError("file", "key", "what is wrong"), WorkError("too bad")])
def test_error_of_the_child_process_is_raised_with_its_type_and_text(error: Exception) -> None:
    with pytest.raises(type(error)) as found:
        apart(partial(_fail, error), lambda *_: None)
    assert str(found.value) == str(error)


@pytest.mark.parametrize("work, said", [(_fail_oddly, "OddError: 1 and 2"), (_die, "exit code 70")])
def test_unpicklable_error_or_death_of_the_child_process_is_described_in_words(
    work: Callable[[Tell], None], said: str
) -> None:
    with pytest.raises(WorkError, match=said):
        apart(work, lambda *_: None)


def test_child_process_stops_if_the_progress_callback_raises() -> None:
    def enough(done: int, of: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        apart(partial(_count, 1_000_000), enough)
