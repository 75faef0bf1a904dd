"""How fast a CPU's core runs at this moment, told by a fixed piece of arithmetic."""

from __future__ import annotations

import time  # noqa: TID251 - it is a clock of sorts

import torch

_SIZE, _WARMUP, _TIMES = 48, 3, 8
_PERIOD_NS = 20_000_000  # while it serves, a worker spends 0.2 % of its time on it


class Reference:
    """A fixed piece of arithmetic whose data fit the first cache: its CPU time tells how fast the core runs now.

    A core that is lent by a virtual machine's host may be half of a physical one: while another tenant computes on the
    other half, everything takes half as long again, and no counter of the guest shows it.
    """

    def __init__(self) -> None:
        self._factor = torch.full((_SIZE, _SIZE), 1 / _SIZE)
        self._product = torch.empty_like(self._factor)

    def cpu_ns(self) -> int:
        """Do it: a few times to fill the caches again, then timed."""
        for _ in range(_WARMUP):
            torch.mm(self._factor, self._factor, out=self._product)
        begin_ns = time.thread_time_ns()
        for _ in range(_TIMES):
            torch.mm(self._factor, self._factor, out=self._product)
        return time.thread_time_ns() - begin_ns


class Pacemeter:
    """Now and then a reading of the reference, between the batches that a worker serves."""

    def __init__(self) -> None:
        self._reference = Reference()
        self._due_ns = 0
        self._read_s = 0.0

    def look(self) -> None:
        """Read, if it is time to."""
        now_ns = time.monotonic_ns()
        if now_ns >= self._due_ns:
            self._due_ns = now_ns + _PERIOD_NS
            self._read_s = min(self._reference.cpu_ns() for _ in range(2)) / 1e9  # one may be interrupted

    def take(self) -> float:
        """The last reading in seconds, once; 0 where there is none."""
        read_s, self._read_s = self._read_s, 0.0
        return read_s
