"""The port of one host: a pair of sockets, as it is, beside a ring in shared memory that an eventfd wakes.

    python -m benchmarks.speed.port

A message there and one back between two processes on a core each: at once after the last, and after a pause in which
both sleep. Both carry the same messages in the same codec. The ring has room for one of them and no notion of full: it
is the least that any ring could cost. The end of a socket also tells of the other side's death, however that came; a
ring needs another way for it.
"""

from __future__ import annotations

import argparse
import mmap
import multiprocessing
import os
import select
import socket
import time  # noqa: TID251 - it measures
from collections.abc import Callable, Sequence
from multiprocessing.reduction import DupFd
from typing import Any

import numpy as np

from benchmarks.speed.tables import show
from hw.host.anonymous import anonymous_file
from hw.telemetry import usable_cores
from hw.transport.messages import FromAgent, Ping, Pong, ToAgent
from hw.transport.port import AgentEnd, Codec, PortClosedError, RouterEnd, encode, socket_pair

HALF = mmap.PAGESIZE // 2  # of the ring's memory for each direction
LENGTH = 4
PAUSES_S = {"at once": 0.0, "after 1 ms": 1e-3, "after 5 ms": 5e-3}


def main() -> None:
    """See above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    cores = usable_cores()
    os.sched_setaffinity(0, cores[-1:])
    rows = []
    for name, pause_s in PAUSES_S.items():
        of: dict[str, list[tuple[float, ...]]] = {"sockets": [], "ring and eventfd": []}
        for _ in range(asked.rounds):
            of["sockets"].append(sockets(asked.count, pause_s, cores[0]))
            of["ring and eventfd"].append(ring(asked.count, pause_s, cores[0]))
        for way, found in of.items():
            rows.append((way, name, *np.median(found, axis=0).tolist()))
    head = ("carried by", "sent", "p50, us", "p90, us", "p99, us", "CPU of one side, us")
    show(f"There and back; medians over {asked.rounds} rounds of {asked.count} each, in turns", head, rows)


def _timed(trip: Callable[[], None], count: int, pause_s: float) -> tuple[float, ...]:
    found, cpu_ns = [], 0
    for _ in range(count):
        if pause_s:
            time.sleep(pause_s)
        begun_cpu_ns, begun_ns = time.process_time_ns(), time.monotonic_ns()
        trip()
        found.append(time.monotonic_ns() - begun_ns)
        cpu_ns += time.process_time_ns() - begun_cpu_ns
    return (*np.percentile(found, (50, 90, 99)) / 1e3, cpu_ns / count / 1e3)


def _beside(target: Callable[..., None], *given: object) -> multiprocessing.process.BaseProcess:
    process = multiprocessing.get_context("spawn").Process(target=target, args=given, daemon=True)
    process.start()
    return process


def sockets(count: int, pause_s: float, core: int) -> tuple[float, ...]:
    """The product's own port, messages and codec."""
    end, remote = socket_pair()
    other = _beside(_answer_sockets, remote, core)
    remote.close()
    port = RouterEnd(FromAgent, end)

    def trip() -> None:
        port.post(Ping(1))
        port.flush()
        select.select((port,), (), ())
        port.receive()

    trip()
    found = _timed(trip, count, pause_s)
    port.close()
    other.join()
    return found


def _answer_sockets(end: socket.socket, core: int) -> None:
    os.sched_setaffinity(0, (core,))
    port = AgentEnd(ToAgent, end)
    try:
        while True:
            select.select((port,), (), ())
            for message in port.receive():
                assert isinstance(message, Ping)
                port.post(Pong(message.number, 1))
            port.flush()
    except PortClosedError:
        return


def ring(count: int, pause_s: float, core: int) -> tuple[float, ...]:
    """Frames copied in and out of shared memory, and two eventfds."""
    fd, there, back = anonymous_file(), os.eventfd(0), os.eventfd(0)
    os.ftruncate(fd, mmap.PAGESIZE)
    memory = mmap.mmap(fd, mmap.PAGESIZE)
    other = _beside(_answer_ring, *[_Passed(each) for each in (fd, there, back)], core)
    codec: Codec[Any] = Codec(FromAgent)

    def trip() -> None:
        _put(memory, 0, [Ping(1)])
        os.eventfd_write(there, 1)
        select.select((back,), (), ())
        os.eventfd_read(back)
        _take(memory, HALF, codec)

    trip()
    found = _timed(trip, count, pause_s)
    other.kill()
    other.join()
    for each in (fd, there, back):
        os.close(each)
    return found


class _Passed:
    """A descriptor on its way to a process that is spawned."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __getstate__(self) -> Any:
        return DupFd(self._fd)

    def __setstate__(self, state: Any) -> None:
        self._fd = state.detach()

    def fileno(self) -> int:
        return self._fd


def _answer_ring(shared: _Passed, there: _Passed, back: _Passed, core: int) -> None:
    os.sched_setaffinity(0, (core,))
    memory = mmap.mmap(shared.fileno(), mmap.PAGESIZE)
    codec: Codec[Any] = Codec(ToAgent)
    while True:
        select.select((there,), (), ())
        os.eventfd_read(there.fileno())
        _put(memory, HALF, [Pong(message.number, 1) for message in _take(memory, 0, codec)])
        os.eventfd_write(back.fileno(), 1)


def _put(memory: mmap.mmap, at: int, messages: Sequence[Any]) -> None:
    body = encode(messages)
    memory[at : at + LENGTH + len(body)] = len(body).to_bytes(LENGTH, "little") + body


def _take(memory: mmap.mmap, at: int, codec: Codec[Any]) -> list[Any]:
    end = at + LENGTH + int.from_bytes(memory[at : at + LENGTH], "little")
    return codec.decode(memory[at + LENGTH : end])


if __name__ == "__main__":
    main()
