"""What each way of moving an activation between two hosts costs where Ray runs the cluster, and who hears of a death.

    python -m benchmarks.speed.ray_transfers                    # four minutes at most
    python -m benchmarks.speed.ray_transfers --only moves       # or deaths, or limits: what does not work
    python -m benchmarks.speed.ray_transfers --only moves --inline-bytes 16777216    # within a call; Ray's own is 100
    KiB python -m benchmarks.speed.ray_transfers --json FILE

Three Ray nodes on this machine; the driver is on the first. A move ends when the data stand at the receiver, and the
driver knows it. It begins in the driver: with the data there, or at an actor that has them as an array and is told to
move them. Moves follow each other at once. CPU time is of whole processes. Both ends: `benchmarks.speed.ray_peers`.

Deaths: the receiver is stopped, a move is begun, 0.3 s later the receiver is killed. Then nodes: one whose raylet is
killed, and one that falls silent as a host without power does (its raylet and its actor are stopped).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import signal
import sys
import tempfile
import threading
import time  # noqa: TID251 - it measures
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np
import ray
from ray.cluster_utils import Cluster
from ray.dag import DAGContext, InputNode
from ray.experimental.collective import create_collective_group, destroy_collective_group, get_collective_groups

from benchmarks.speed.ray_peers import ORDER, Line, Peer
from benchmarks.speed.tables import show

SIZES: Final = (4 << 10, 64 << 10, 256 << 10, 1 << 20, 8 << 20)
USUAL: Final = 1 << 20
STORE_BYTES: Final = 200 << 20
SPARE_BYTES: Final = 64 << 10  # of a channel, beside the data
WARM, LEAST, MOST, SPAN_S = 5, 15, 100, 0.3  # moves of one figure, and how long to go on
STOPPED_S, BEGINS_S, TOLD_WITHIN_S = 0.3, 1.0, 20.0
LOST: Final = {False: ("a node's raylet is killed", 20.0), True: ("a node falls silent", 75.0)}
COMPUTES_S, ASKED_S = 1.5, 60.0
NEVER_S: Final = 600  # a compiled graph gives up after 10 s by itself, whatever has happened
POLL_S, LEAVES_S = 0.05, 10.0
NODES: Final = ("n0", "n1", "n2")

Move = Callable[[], object]
Way = Callable[["Rig", Any, Any, int], AbstractContextManager[Move]]


@dataclass(frozen=True, slots=True)
class Moved:
    """Of one way, path and size. CPU time is in us a move; `ray_us` is of Ray's own processes, all nodes together."""

    way: str
    path: str
    bytes: int
    is_computing: bool
    count: int
    p50_ms: float
    p90_ms: float
    driver_us: float
    source_us: float
    destination_us: float
    ray_us: float


@dataclass(frozen=True, slots=True)
class Told:
    """After what time somebody heard of an end; `after_s` is None where nobody did within `within_s`."""

    end: str
    hears: str
    after_s: float | None
    within_s: float
    said: str
    source: str


# ---------------------------------------------------------------------------------------------------------- the cluster


class Rig:
    """Three nodes and actors: `near` on the driver's node, `source` and `beside` on the second, `far` on the third."""

    def __init__(self, folder: str) -> None:
        os.environ |= {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
        os.environ |= {"RAY_TMPDIR": folder}  # where Ray notes which cluster the last one was, too
        DAGContext.get_current().get_timeout = NEVER_S
        self.cluster = Cluster()
        for node in NODES:
            self.add_node(node)
        ray.init(address=self.cluster.address, log_to_driver=False, logging_level=logging.ERROR)
        options: dict[str, Any] = {"num_cpus": 0, "concurrency_groups": {"io": 1}}
        remote: Any = ray.remote(**options)(Peer)
        self._started: Callable[[str], Any] = lambda node: remote.options(resources={node: 0.01}).remote()
        self.near, self.source, self.beside, self.far = peers = self.started("n0", "n1", "n1", "n2")
        self.pid_of = dict(zip(peers, ray.get([each.ready.remote() for each in peers]), strict=True))

    def add_node(self, name: str) -> Any:
        """With a resource of its name, to place actors by."""
        resources, head = {name: 1}, {"include_dashboard": False} if name == NODES[0] else {}
        return self.cluster.add_node(num_cpus=2, resources=resources, object_store_memory=STORE_BYTES, **head)

    def started(self, *nodes: str) -> list[Any]:
        """One actor on each."""
        return [self._started(node) for node in nodes]

    def ray_pids(self) -> list[int]:
        """Ray's own processes."""
        infos = [each for node in self.cluster.list_all_nodes() for each in node.all_processes.values()]
        return [info.process.pid for each in infos for info in each if info.process.poll() is None]

    def close(self) -> None:
        """No process of it is left. Where a graph has lost its actor, `ray.shutdown` waits for that in vain."""
        leaving = threading.Thread(target=ray.shutdown, daemon=True)
        leaving.start()
        leaving.join(LEAVES_S)
        for node in self.cluster.list_all_nodes():
            node.kill_all_processes(check_alive=False, allow_graceful=False, wait=True)


@contextmanager
def rig() -> Iterator[Rig]:
    """To be entered."""
    with tempfile.TemporaryDirectory(prefix="bench-ray-", ignore_cleanup_errors=True) as folder:
        found = Rig(folder)
        try:
            yield found
        finally:
            found.close()


# ------------------------------------------------------------------------------------------------------------- the ways


@contextmanager
def by_argument(_: Rig, source: Any, destination: Any, size_bytes: int) -> Iterator[Move]:
    """From the driver only. Ray puts what is larger than 100 KB into the store by itself."""
    data = np.ones(size_bytes, np.uint8)
    yield lambda: ray.get(destination.take.remote(data))


@contextmanager
def by_return(_: Rig, source: Any, destination: Any, size_bytes: int) -> Iterator[Move]:
    """What one call returns is another's argument; up to 100 KB that goes by way of the driver."""
    yield lambda: ray.get(destination.take.remote(source.make.remote(size_bytes)))


@contextmanager
def by_store(_: Rig, source: Any, destination: Any, size_bytes: int) -> Iterator[Move]:
    """`ray.put`, the reference to the driver and on, `ray.get`."""
    yield lambda: ray.get(destination.take_from.remote(ray.get(source.put.remote(size_bytes))))


@contextmanager
def _compiled(make: Callable[[Any], Any], actors: Sequence[Any], given: object, size_bytes: int) -> Iterator[Move]:
    """A graph's channels are as wide as what moves: one that has to grow is never torn down, and none is ever freed."""
    channel_bytes = size_bytes + SPARE_BYTES
    DAGContext.get_current().buffer_size_bytes = channel_bytes
    ray.get([each.widen.remote(channel_bytes) for each in actors if each])
    with InputNode() as node:
        output = make(node)
    graph = output.experimental_compile()
    try:
        yield lambda: ray.get(graph.execute(given))
    finally:
        graph.teardown()


@contextmanager
def by_graph(_: Rig, source: Any, destination: Any, size_bytes: int) -> Iterator[Move]:
    """Arrays, from the driver where there is no source."""

    def make(given: Any) -> Any:
        return destination.take.bind(source.make.bind(given) if source else given)

    data = size_bytes if source else np.ones(size_bytes, np.uint8)
    with _compiled(make, (source, destination), data, size_bytes) as move:
        yield move


@contextmanager
def by_tensor_graph(_: Rig, source: Any, destination: Any, size_bytes: int) -> Iterator[Move]:
    """Tensors. Without GPUs "auto" is shared memory, too (ray/experimental/channel/auto_transport_type.py)."""

    def make(given: Any) -> Any:
        return destination.take.bind(source.make_tensor.bind(given).with_tensor_transport("auto"))

    with _compiled(make, (source, destination), size_bytes, size_bytes) as move:
        yield move


@contextmanager
def by_gloo(of: Rig, source: Any, destination: Any, size_bytes: int) -> Iterator[Move]:
    """Ray Direct Transport.

    One group for all of the actors: a process can't be in a second one later, even when the first was destroyed.
    Torch's own group stays, so the newcomer waits for an address that nobody tells it, and gives up after 30 s
    (ray/util/collective/collective_group/torch_gloo_collective_group.py, `TorchGLOOGroup`).
    """
    if not get_collective_groups([source, destination], "gloo"):
        create_collective_group([source, destination, *([of.far] if destination is of.beside else [])], "gloo")
    yield lambda: ray.get(destination.take.remote(source.make_gloo.remote(size_bytes)))


@contextmanager
def by_nixl(_: Rig, source: Any, destination: Any, size_bytes: int) -> Iterator[Move]:
    """Ray Direct Transport; one-sided."""
    yield lambda: ray.get(destination.take.remote(source.make_nixl.remote(size_bytes)))


@contextmanager
def by_socket(_: Rig, source: Any, destination: Any, size_bytes: int) -> Iterator[Move]:
    """The driver has a line to every actor, and actors to each other."""
    address = ray.get(destination.listen.remote())
    order = ORDER.pack(size_bytes, address[1])
    body = memoryview(order if source else np.ones(size_bytes, np.uint8).data)
    with contextlib.closing(Line(ray.get(source.listen.remote()) if source else address)) as line:
        yield lambda: line.move(body)


FROM_DRIVER: Final = (("driver, same node", "", "near"), ("driver, other node", "", "far"))
OF_ACTORS: Final = (("actors, same node", "source", "beside"), ("actors, other node", "source", "far"))
WAYS: Final[dict[str, tuple[Way, tuple[tuple[str, str, str], ...]]]] = {
    "socket": (by_socket, FROM_DRIVER + OF_ACTORS),
    "argument of a call": (by_argument, FROM_DRIVER),
    "store, returned": (by_return, OF_ACTORS),
    "store, put and get": (by_store, OF_ACTORS),
    "compiled graph, arrays": (by_graph, FROM_DRIVER[1:] + OF_ACTORS),
    "compiled graph, tensors": (by_tensor_graph, OF_ACTORS),
    "direct transport, gloo": (by_gloo, OF_ACTORS),
}
if find_spec("nixl"):
    WAYS["direct transport, nixl"] = (by_nixl, OF_ACTORS)


# ---------------------------------------------------------------------------------------------------------------- moves


def cpu_ns(pids: Sequence[int]) -> int:
    """Of whole processes, to the nanosecond: their own clocks (clock_getcpuclockid(3))."""
    return sum(time.clock_gettime_ns((~pid << 3) | 2) for pid in pids)


def _measured(move: Move, pids: dict[str, list[int]]) -> tuple[list[float], dict[str, float]]:
    for _ in range(WARM):
        move()
    took_ms: list[float] = []
    before = {each: cpu_ns(of) for each, of in pids.items()}
    begun_s = time.perf_counter()
    while len(took_ms) < LEAST or (len(took_ms) < MOST and time.perf_counter() - begun_s < SPAN_S):
        at_s = time.perf_counter()
        move()
        took_ms.append(1e3 * (time.perf_counter() - at_s))
    return took_ms, {each: (cpu_ns(of) - before[each]) / 1e3 / len(took_ms) for each, of in pids.items()}


def moved(of: Rig, way: str, path: tuple[str, str, str], size_bytes: int, is_computing: bool = False) -> Moved:
    """One figure.

    Args:
        is_computing: the receiver does, in its main thread.
    """
    name, *ends = path
    source, destination = (getattr(of, end) if end else None for end in ends)
    pids = {"driver": [os.getpid()], "ray": of.ray_pids()}
    pids |= {"source": [of.pid_of[source]] if source else [], "destination": [of.pid_of[destination]]}
    with WAYS[way][0](of, source, destination, size_bytes) as move:
        arrived = move()
        assert arrived in (None, min(1, size_bytes)), arrived
        computed = destination.compute.remote(COMPUTES_S) if is_computing and destination is not None else None
        took_ms, us = _measured(move, pids)
        if computed is not None:
            ray.get(computed)
    p50_ms, p90_ms = np.percentile(took_ms, [50, 90])
    found = Moved(way, name, size_bytes, is_computing, len(took_ms), float(p50_ms), float(p90_ms),
                  us["driver"], us["source"], us["destination"], us["ray"])  # fmt: skip
    print(f"  {way}, {name}, {size_bytes}: {p50_ms:.2f} ms", flush=True)
    return found


def moves(of: Rig, ways: Sequence[str]) -> list[Moved]:
    """All of them, and an empty call for comparison."""
    found = [moved(of, "argument of a call", path, 0) for path in FROM_DRIVER]
    for way in ways:
        paths = WAYS[way][1]
        found += [moved(of, way, path, size_bytes) for path in paths for size_bytes in SIZES]
        found.append(moved(of, way, paths[-1], USUAL, is_computing=True))
    return found


# --------------------------------------------------------------------------------------------------------------- deaths


class Ear(threading.Thread):
    """Waits for an end in a thread of its own."""

    def __init__(self, hears: str, wait: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self.hears, self._wait = hears, wait
        self.at_s, self.said = 0.0, ""
        self.start()

    def run(self) -> None:
        """Until it is told."""
        try:
            self.said = f"no error: {self._wait()!r}"
        except Exception as error:
            self.said = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
        self.at_s = time.perf_counter()

    def told(self, end: str, since_s: float, within_s: float, source: str = "") -> Told:
        """As it was heard; after `within_s` nobody waits any longer."""
        self.join(max(0.0, since_s + within_s - time.perf_counter()))
        after_s = None if self.is_alive() else self.at_s - since_s
        return Told(end, self.hears, after_s, within_s, self.said, source)


def _is_usable(actor: Any) -> str:
    if actor is None:
        return ""
    try:
        ray.get(actor.ready.remote(), timeout=5.0)
    except ray.exceptions.GetTimeoutError:
        return "hangs"
    except ray.exceptions.RayActorError:
        return "dead, too"
    return "lives"


def killed_receivers(of: Rig) -> list[Told]:
    """One for each way that is of interest."""
    found = []
    for way in ("socket", "argument of a call", "store, returned", "compiled graph, arrays", "direct transport, gloo"):
        move_by, paths = WAYS[way]
        victim, source = of.started("n2", "n1") if paths[-1][1] else (*of.started("n2"), None)
        pid = ray.get(victim.ready.remote())
        with ExitStack() as stack:
            move = stack.enter_context(move_by(of, source, victim, USUAL))
            move()
            os.kill(pid, signal.SIGSTOP)
            ear = Ear(f"{way}: the driver, which waits for a move", move)
            time.sleep(STOPPED_S)
            since_s = time.perf_counter()
            os.kill(pid, signal.SIGKILL)
            ear.join(TOLD_WITHIN_S)
            told = ear.told("the receiver's process is killed", since_s, TOLD_WITHIN_S)
            time.sleep(
                2.0 if source else 0.0
            )  # what Ray does about a failed transfer, it does from a thread of its own
            found.append(Told(**asdict(told) | {"source": _is_usable(source)}))
            print(f"  {found[-1]}", flush=True)
            if move_by is by_graph:
                stack.pop_all()  # its own monitor tears it down
    return found


def _until_dead(node_id: str) -> Callable[[], str]:
    def wait() -> str:
        while any(node["NodeID"] == node_id and node["Alive"] for node in ray.nodes()):
            time.sleep(POLL_S)
        return "Alive is false"

    return wait


def _until_closed(line: Line) -> Callable[[], object]:
    line.end.setblocking(True)
    return lambda: line.end.recv(1) or "end of file"


class LostNode:
    """A node of its own, with an actor that has a call and a graph to do and a line to the driver; then it is lost.

    Args:
        is_silent: its processes are stopped, not killed: so nothing closes a connection.
        has_graph: with a compiled graph to do, too. That may end the driver's own raylet.
    """

    def __init__(self, of: Rig, name: str, is_silent: bool, has_graph: bool = False) -> None:
        self._end, self._within_s = LOST[is_silent]
        node = of.add_node(name)
        (actor,) = of.started(name)
        self._pids = node.all_processes["raylet"][0].process.pid, ray.get(actor.ready.remote())
        self._line = Line(ray.get(actor.listen.remote()))
        long_s = 2 * self._within_s
        if has_graph:  # made first: it takes the actor's main thread
            with InputNode() as given:
                graph = actor.compute.bind(given).experimental_compile()
        self._ears = [
            Ear("a call that is being done", lambda: ray.get(actor.compute.remote(long_s))),
            Ear("a socket", _until_closed(self._line)),
            Ear("ray.nodes()", _until_dead(node.node_id)),
        ]
        if has_graph:
            head: Any = of.cluster.head_node
            own = head.all_processes["raylet"][0].process
            self._ears.append(Ear("a compiled graph that is being done", lambda: ray.get(graph.execute(long_s))))
            self._ears.append(Ear("the driver's own raylet", lambda: f"ended with {own.wait()}"))
        time.sleep(BEGINS_S)
        self._since_s = time.perf_counter()
        for pid in self._pids if is_silent else self._pids[:1]:
            os.kill(pid, signal.SIGSTOP if is_silent else signal.SIGKILL)

    def told(self) -> list[Told]:
        """When all have heard of it, or the time is over. Then it is killed: an actor may outlive its raylet."""
        found = [ear.told(self._end, self._since_s, self._within_s) for ear in self._ears]
        for pid in self._pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._line.close()
        return found


def deaths(of: Rig) -> list[Told]:
    """All of them, nodes beside the rest."""
    nodes = [LostNode(of, "n3", is_silent=False), LostNode(of, "n4", is_silent=True)]
    return killed_receivers(of) + [told for node in nodes for told in node.told()]


# --------------------------------------------------------------------------------------------------------------- limits


def _graph_of(source: Any, destination: Any, transport: str | None = None) -> Any:
    with InputNode() as given:
        made = source.make_tensor.bind(given) if transport else source.make.bind(given)
        output = destination.take.bind(made.with_tensor_transport(transport) if transport else made)
    return output.experimental_compile()


def _second_graph(source: Any, destination: Any) -> object:
    first, second = (_graph_of(*ends) for ends in ((source, destination), (destination, source)))
    ray.get(first.execute(SIZES[0]))
    return ray.get(second.execute(SIZES[0]), timeout=10.0)


def _grown_graph(source: Any, destination: Any) -> object:
    graph = _graph_of(source, destination)
    ray.get(graph.execute(2 * USUAL))
    begun_s = time.perf_counter()
    graph.teardown()
    return f"torn down after {time.perf_counter() - begun_s:.1f} s"


def _second_group(pair: list[Any], third: Any) -> object:
    destroy_collective_group(create_collective_group(pair, "gloo"))
    return create_collective_group([pair[0], third], "gloo").name


def limits(of: Rig) -> list[Told]:
    """What does not work, beside each other on fresh actors; and a node that is lost under a graph."""
    pairs = [of.started("n1", "n2") for _ in range(5)]
    ray.get([actor.ready.remote() for pair in pairs for actor in pair])
    begun_s = time.perf_counter()
    ears = [
        Ear("a second compiled graph over the same actors", lambda: _second_graph(*pairs[0])),
        Ear("the end of a graph whose channels have grown", lambda: _grown_graph(*pairs[1])),
        Ear("a second gloo group for an actor", lambda: _second_group(pairs[2], of.near)),
        Ear("a graph with transport nccl", lambda: _graph_of(pairs[3][0], pairs[3][1], "nccl")),
        Ear("direct transport with nixl", lambda: pairs[4][0].make_nixl.remote(SIZES[0])),
    ]
    found = [ear.told("asked for", begun_s, ASKED_S) for ear in ears]
    return found + LostNode(of, "n3", is_silent=False, has_graph=True).told()


# --------------------------------------------------------------------------------------------------------- command line

MOVES_HEAD = ("way", "path", "bytes", "p50, ms", "p90, ms", "driver, us", "source, us", "receiver, us", "Ray's own, us")
TOLD_HEAD = ("what ends", "who hears", "after, s", "what it hears", "the source then")


def main() -> None:
    """See above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["moves", "deaths", "limits"], help="limits: what does not work; only so")
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS), help="of moves")
    parser.add_argument("--inline-bytes", type=int, help="what Ray sends within a call instead of 100 KiB")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    found: list[Moved] = []
    told: list[Told] = []
    if asked.inline_bytes:
        os.environ["RAY_max_direct_call_object_size"] = str(asked.inline_bytes)  # noqa: SIM112 - its name
    with rig() as of:
        if asked.only in (None, "moves"):
            found = moves(of, asked.ways)
        if asked.only in (None, "deaths"):
            told = deaths(of)
        if asked.only == "limits":
            told = limits(of)
        title = f"Ray {version('ray')}, three nodes on this machine"
        if found:
            show(f"{title}: moves", MOVES_HEAD, [_moved_row(each) for each in found])
        if told:
            show(f"{title}: ends", TOLD_HEAD, [_told_row(each) for each in told])
        if asked.json:
            rows = {"moves": [asdict(each) for each in found], "ends": [asdict(each) for each in told]}
            asked.json.write_text(json.dumps({"ray": version("ray")} | rows, indent=1))
    sys.stdout.flush()
    os._exit(0)  # Ray's own threads would wait a minute for a cluster that is gone


def _moved_row(of: Moved) -> tuple[object, ...]:
    path = f"{of.path}, which computes" if of.is_computing else of.path
    return (of.way, path, of.bytes, of.p50_ms, of.p90_ms, of.driver_us, of.source_us, of.destination_us, of.ray_us)


def _told_row(of: Told) -> tuple[object, ...]:
    after = f"not within {of.within_s:.0f}" if of.after_s is None else of.after_s
    return (of.end, of.hears, after, of.said[:120], of.source)


if __name__ == "__main__":
    main()
