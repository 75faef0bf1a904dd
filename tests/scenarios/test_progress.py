"""Progress: a bar on a terminal, plain lines elsewhere, nothing when quiet; never on standard output."""

from __future__ import annotations

import io
import sys

import pytest

from scenarios.terminal import progress
from scenarios.terminal.progress import Progress


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that the test moves."""
    now = [0.0]
    monkeypatch.setattr(progress, "_now_s", lambda: now[0])
    return now


def test_a_plain_line_every_few_seconds(clock: list[float]) -> None:
    """Elsewhere than on a terminal: a line at most every five seconds, with what is left, and one at the end."""
    stream = io.StringIO()
    with Progress("train", 100, unit="decision", stream=stream) as bar:
        for second in range(1, 12):
            clock[0] = float(second)
            bar.update(5)
    assert stream.getvalue().splitlines() == [
        "train: 25 of 100 decisions, 15 s left",
        "train: 50 of 100 decisions, 10 s left",
        "train: 55 of 100 decisions in 11.0 s",
    ]


def test_remaining_time_falls_steadily_while_a_step_runs(clock: list[float]) -> None:
    """With runs of 10 s and updates every 5 s the remaining time falls with the clock and never rises."""
    stream = io.StringIO()
    with Progress("executors", 4, unit="run", stream=stream) as bar:
        bar.set(0)
        for second in range(5, 45, 5):
            clock[0] = float(second)
            bar.update(second % 10 == 0)
    assert stream.getvalue().splitlines()[:-1] == [
        "executors: 0 of 4 runs",
        *(f"executors: {second // 10} of 4 runs, {40 - second} s left" for second in range(10, 45, 5)),
    ]


def test_quiet_says_nothing(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    for stream in (io.StringIO(), Terminal()):
        with Progress("x", 2, quiet=True, stream=stream) as bar:
            clock[0] += 100
            bar.update(2)
        assert stream.getvalue() == ""
    assert capsys.readouterr().out == ""


def test_a_terminal_has_a_bar(clock: list[float]) -> None:
    stream = Terminal()
    with Progress("measure", 4, unit="point", stream=stream) as bar:
        bar.set(2)
    assert "measure" in stream.getvalue()
    assert "\r" in stream.getvalue()
    assert stream.getvalue().splitlines()[-1].endswith("in 0.0 s")


def test_an_error_ends_without_a_summary() -> None:
    stream = io.StringIO()
    with pytest.raises(ValueError, match="broken"), Progress("x", 1, stream=stream):
        raise ValueError("broken")
    assert stream.getvalue() == ""


def test_steps_of_unequal_length_tell_the_time_left_themselves(clock: list[float]) -> None:
    """On both kinds of stream; the pace, which would say 10 s, does not."""
    plain, terminal = io.StringIO(), Terminal()
    for stream in (plain, terminal):
        clock[0] = 0.0
        with Progress("calibrate", stream=stream) as bar:
            bar.set(0, 20, 300.0)
            clock[0] = 10.0
            bar.set(10, 20, 290.0)
    assert plain.getvalue().splitlines()[0] == "calibrate: 10 of 20 steps, 290 s left"
    assert "290 s left" in terminal.getvalue()


def test_a_remark_does_not_go_on_in_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with Progress("compare", 2, unit="run"):
        progress.say("compiling")
    before, after = terminal.getvalue().split("compiling\n")
    assert before.endswith("\r\x1b[2K"), "the bar is wiped out"
    assert "compare: 0 of 2 runs" in after
