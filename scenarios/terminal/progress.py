"""Progress of long work: a bar on a terminal, a plain line every few seconds elsewhere, or nothing.

It always writes to standard error, so that standard output holds results alone. A Python program may receive it instead
(`observed_by`).
"""

from __future__ import annotations

import sys
import time  # noqa: TID251 - progress is reported in real time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

from scenarios.terminal.screen import visible_text

if TYPE_CHECKING:  # slow to open, and needed on a terminal alone
    from rich.console import Console
    from rich.progress import Progress as Bar

LINE_EVERY_S, DRAWN_EVERY_S = 5.0, 0.1


@dataclass(frozen=True, slots=True)
class Step:
    """The progress of some work, or a remark about it.

    Attributes:
        title: what is being done; empty for a remark about all of it.
        done: how many steps are done.
        total: of how many; None if unknown.
        unit: what a step is, in the singular: `run`, `decision`, `point`.
        text: the remark; empty if steps were done.
    """

    title: str = ""
    done: int = 0
    total: int | None = None
    unit: str = ""
    text: str = ""


OnStep = Callable[[Step], None]
Say = Callable[[str], None]
_hearing: ContextVar[OnStep | None] = ContextVar("hearing", default=None)


@contextmanager
def observed_by(hear: OnStep) -> Iterator[None]:
    """Pass progress to `hear` within it, and write nothing. What `hear` raises ends the work."""
    before = _hearing.set(hear)
    try:
        yield
    finally:
        _hearing.reset(before)


def current_observer() -> OnStep | None:
    """Return the current observer; None if progress is written."""
    return _hearing.get()


class Progress:
    """Progress of `total` steps, as a context manager.

    Args:
        title: what is being done.
        total: how many steps there are; None if unknown.
        unit: what a step is, in the singular.
        quiet: write nothing at all.
        stream: where to write; standard error by default.

    Attributes:
        note: a text about the number of steps, right behind it.
    """

    def __init__(
        self, title: str, total: int | None = None, *, unit: str = "step", quiet: bool = False, stream: Any = None
    ) -> None:
        self._hear = _hearing.get()
        self._title = title
        self._total = total
        self._unit = unit
        self._quiet = quiet or self._hear is not None
        self._stream: TextIO = stream or sys.stderr
        self.note = ""
        self._bar: Bar | None = None
        self._done = 0
        self._pace_from: tuple[int, float] | None = None  # what was done when; before that an earlier start did it
        self._left_s: float | None = None  # the work's own estimate; None: from the pace so far
        self._started_s = self._told_s = self._stepped_s = 0.0

    def __enter__(self) -> Progress:
        self._started_s = self._told_s = _now_s()
        self._is_heard()
        if not self._quiet and self._stream.isatty():
            self._bar = _bar(self._stream)
            self._bar.add_task(self._amount(), total=self._total)
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        if kind is None and not self._quiet:
            write_line(f"{self._amount()} in {_now_s() - self._started_s:.1f} s", self._stream)

    def update(self, steps: int = 1) -> None:
        """Count `steps` more as done; with none, show that the one in progress continues."""
        self._done += steps
        self._stepped_s = _now_s() if steps else self._stepped_s
        self._is_heard()
        if self._quiet or _now_s() - self._told_s < (DRAWN_EVERY_S if self._bar else LINE_EVERY_S):
            return
        self._told_s = _now_s()
        text = f"{self._amount()}{self._left()}"
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], description=text, total=self._total, completed=self._done)
            self._bar.refresh()
        else:
            write_line(text, self._stream)

    def set(self, done: int, total: int | None = None, left_s: float | None = None) -> None:
        """Set how many steps are done (and of how many, if only now known); the first call marks where work began.

        Steps of unequal times give a better estimate of the time left (`left_s`) than their pace does.
        """
        self._left_s = left_s
        self._total = self._total if total is None else total
        self._pace_from = self._pace_from or (done, _now_s())
        self.update(done - self._done)

    def tell(self, text: str) -> None:
        """Print a separate line, above the bar if there is one."""
        self._is_heard(text)
        if not self._quiet:
            write_line(text, self._stream)

    def _is_heard(self, text: str = "") -> None:
        if self._hear is not None:
            self._hear(Step(self._title, self._done, self._total, self._unit, text))

    def _amount(self) -> str:
        of = f" of {self._total}" if self._total is not None else ""
        return f"{self._title}: {self._done}{of} {_many(self._unit, self._total or self._done)}{self.note}"

    def _left(self) -> str:
        left_s = self._left_s
        if left_s is None:
            begun, since_s = self._pace_from or (0, self._started_s)
            if not self._total or self._done <= begun:
                return ""
            pace_s = (self._stepped_s - since_s) / (self._done - begun)
            left_s = pace_s * (self._total - self._done) - (_now_s() - self._stepped_s)
        return f", {max(0.0, left_s):.0f} s left"


def _many(unit: str, count: int) -> str:
    """Format `1 try`, `2 tries`."""
    return unit if count == 1 else f"{unit[:-1]}ies" if unit.endswith("ry") else f"{unit}s"


def write_line(text: str, stream: TextIO) -> None:
    """Write a line above the current bars, which would otherwise continue in it."""
    if stream.isatty():
        _console(stream).print(visible_text(text), markup=False, highlight=False, emoji=False, soft_wrap=True)
    else:
        stream.write(f"{visible_text(text)}\n")
        stream.flush()


def say(text: str) -> None:
    """Print a line on standard error."""
    write_line(text, sys.stderr)


@lru_cache(maxsize=1)
def _console(stream: TextIO) -> Console:
    """Return the console of a stream: one draws all its bars, and has their positions."""
    from rich.console import Console

    return Console(file=stream)


def _bar(stream: TextIO) -> Bar:
    """Return a bar that is removed when the work is done; it leaves standard output alone."""
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = TextColumn("{task.description}", markup=False), BarColumn()
    return Bar(
        *columns, console=_console(stream), transient=True, auto_refresh=False,
        redirect_stdout=False, redirect_stderr=False,
    )  # fmt: skip


def _now_s() -> float:
    return time.monotonic_ns() / 1e9
