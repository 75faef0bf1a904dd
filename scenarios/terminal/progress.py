"""How long work tells that it goes on: a bar on a terminal, a plain line every few seconds elsewhere, or nothing.

It always writes to standard error, so that standard output holds results alone. A Python program may hear of it
instead (`heard_by`).
"""

from __future__ import annotations

import sys
import time  # noqa: TID251 - progress is told in real time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

from scenarios.terminal.visible import visible_text

if TYPE_CHECKING:
    from tqdm import tqdm

LINE_EVERY_S = 5.0


@dataclass(frozen=True, slots=True)
class Step:
    """How far some work is, or something that there is to say of it.

    Attributes:
        title: what is being done; empty for a remark about all of it.
        done: how many steps are done.
        total: of how many; None where nobody knows.
        unit: what a step is, in the singular: `run`, `decision`, `point`.
        text: the remark; empty where steps were done.
    """

    title: str = ""
    done: int = 0
    total: int | None = None
    unit: str = ""
    text: str = ""


Hear = Callable[[Step], None]
_hearing: ContextVar[Hear | None] = ContextVar("hearing", default=None)


@contextmanager
def heard_by(hear: Hear) -> Iterator[None]:
    """Within it, progress is told to `hear`, and nothing is written. What `hear` raises ends the work."""
    before = _hearing.set(hear)
    try:
        yield
    finally:
        _hearing.reset(before)


class Progress:
    """Progress of `total` steps, as a context manager.

    Args:
        title: what is being done.
        total: how many steps there are; None where nobody knows.
        unit: what a step is, in the singular.
        quiet: write nothing at all.
        stream: where to write; standard error by default.

    Attributes:
        note: what is to be said of the number of steps, right behind it.
    """

    def __init__(
        self, title: str, total: int | None = None, *, unit: str = "step", quiet: bool = False, stream: Any = None
    ) -> None:
        self._hear = _hearing.get()
        self._title, self._total, self._unit = title, total, unit
        self._quiet = quiet or self._hear is not None
        self._stream: TextIO = stream or sys.stderr
        self.note = ""
        self._bar: tqdm[Any] | None = None
        self._done = 0
        self._pace_from: tuple[int, float] | None = None  # what was done when; before that an earlier start did it
        self._left_s: float | None = None  # what the work itself says; None: from the pace so far
        self._started_s = self._told_s = 0.0

    def __enter__(self) -> Progress:
        self._started_s = self._told_s = _now_s()
        self._is_heard()
        if not self._quiet and self._stream.isatty():
            from tqdm import tqdm

            self._bar = tqdm(desc=self._title, total=self._total, unit=f" {self._unit}", file=self._stream, leave=False)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()
        if kind is None:
            self._say(f"{self._amount()} in {_now_s() - self._started_s:.1f} s")

    def update(self, steps: int = 1) -> None:
        """So many more steps are done."""
        self._done += steps
        self._is_heard()
        if self._bar is not None:
            self._bar.update(steps)
        elif _now_s() - self._told_s >= LINE_EVERY_S:
            self._told_s = _now_s()
            self._say(f"{self._amount()}{self._left()}")

    def set(self, done: int, total: int | None = None, left_s: float | None = None) -> None:
        """This many steps are done (of so many, where that is known only now); the first call says where work began.

        Steps that take unequal times say better themselves how much time is left (`left_s`) than their pace does.
        """
        self._left_s = left_s
        if self._bar is not None and left_s is not None:
            self._bar.bar_format = f"{{l_bar}}{{bar}}| {{n_fmt}}/{{total_fmt}} [{{elapsed}}, {left_s:.0f} s left]"
        if total is not None and total != self._total:
            self._total = total
            if self._bar is not None:
                self._bar.total = total
                self._bar.refresh()
        if self._pace_from is None:
            self._pace_from = (done, _now_s())
            if self._bar is not None:
                self._bar.initial = done
        self.update(done - self._done)

    def tell(self, text: str) -> None:
        """A line of its own, above the bar where there is one."""
        self._is_heard(text)
        if self._bar is not None:
            self._bar.write(visible_text(text), file=self._stream)
        elif not self._quiet:
            self._stream.write(f"{visible_text(text)}\n")
            self._stream.flush()

    def _is_heard(self, text: str = "") -> None:
        if self._hear is not None:
            self._hear(Step(self._title, self._done, self._total, self._unit, text))

    def _say(self, text: str) -> None:
        if not self._quiet:
            self._stream.write(f"{self._title}: {text}\n")
            self._stream.flush()

    def _amount(self) -> str:
        of = f" of {self._total}" if self._total is not None else ""
        return f"{self._done}{of} {_many(self._unit, self._total or self._done)}{self.note}"

    def _left(self) -> str:
        if self._left_s is not None:
            return f", {self._left_s:.0f} s left"
        begun, since_s = self._pace_from or (0, self._started_s)
        if not self._total or self._done <= begun:
            return ""
        left_s = (_now_s() - since_s) * (self._total - self._done) / (self._done - begun)
        return f", {max(0.0, left_s):.0f} s left"


def _many(unit: str, count: int) -> str:
    """`1 try`, `2 tries`."""
    return unit if count == 1 else f"{unit[:-1]}ies" if unit.endswith("ry") else f"{unit}s"


def say(text: str) -> None:
    """A line on standard error; above the bars that are there, which would else go on in it."""
    tqdm = getattr(sys.modules.get("tqdm"), "tqdm", None)
    if tqdm is None or not sys.stderr.isatty():
        sys.stderr.write(f"{visible_text(text)}\n")
    else:
        tqdm.write(visible_text(text), file=sys.stderr)


def _now_s() -> float:
    return time.monotonic_ns() / 1e9
