"""What encryption costs a move between hosts: activations that land over TLS, beside the same bytes over plain TCP.

    python -m benchmarks.speed.landings
    python -m benchmarks.speed.landings --count 500 --json landings.json

Two processes of this machine, the loopback network: from the writer's call until it knows that the bytes stand in the
other's arena (`hw.transport.landing`). Both ways in turns; the plain one sends the same frames and is answered alike.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import socket
import time  # noqa: TID251 - it measures
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from benchmarks.speed.harness import show
from hw.transport.arena import Arena
from hw.transport.landing import Landing, Routes
from hw.transport.tls import fresh_certificate

HERE = "127.0.0.1"
SIZES = (4 << 10, 64 << 10, 256 << 10, 1 << 20, 8 << 20)


def receive(line: Connection, certificate: bytes) -> None:
    """The other process: an arena that lands over TLS, and a plain socket that answers each piece."""
    arena = Arena(max(SIZES))
    landing = Landing(HERE, certificate, arena)
    with socket.create_server((HERE, 0)) as listener:
        line.send((landing.address, listener.getsockname()))
        end, _ = listener.accept()
    with end, arena.view(0, max(SIZES)) as target:
        while head := end.recv(8, socket.MSG_WAITALL):
            left = target[: int.from_bytes(head, "little")]
            while left:
                left = left[end.recv_into(left) :]
            end.sendall(b"\x01")
    landing.close()


def plain(address: tuple[str, int]) -> Callable[[memoryview], None]:
    """Writes over TCP as it is."""
    end = socket.create_connection(address)
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def write(data: memoryview) -> None:
        end.sendall(len(data).to_bytes(8, "little"))
        end.sendall(data)
        assert end.recv(1)

    return write


def seconds(write: Callable[[memoryview], None], data: memoryview) -> tuple[float, float]:
    """Of one move: wall, and this process' CPU."""
    wall, cpu = time.perf_counter(), time.process_time()
    write(data)
    return time.perf_counter() - wall, time.process_time() - cpu


def main() -> None:
    """See above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=300, help="moves of each size and way")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    certificate = fresh_certificate()
    ours, theirs = multiprocessing.Pipe()
    multiprocessing.get_context("spawn").Process(target=receive, args=(theirs, certificate), daemon=True).start()
    encrypted, bare = ours.recv()
    routes = Routes(1, certificate)
    ways: dict[str, Callable[[memoryview], None]]
    ways = {"plain TCP": plain(bare), "TLS": lambda data: routes.write(encrypted, 0, data)}
    rows = []
    for size in SIZES:
        data = memoryview(np.random.default_rng(0).bytes(size))
        for write in ways.values():  # the first one connects
            write(data)
        turns = np.array([[seconds(write, data) for write in ways.values()] for _ in range(options.count)])
        for way, values in zip(ways, np.moveaxis(turns, 1, 0) * 1e3, strict=True):
            least, p50, p90 = np.percentile(values[:, 0], (0, 50, 90))
            rows.append((size >> 10, way, least, p50, p90, np.median(values[:, 1])))
    title = f"A move, ms; {options.count} of each, in turns"
    show(title, ("KiB", "way", "least", "p50", "p90", "CPU of the writer, p50"), rows)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
