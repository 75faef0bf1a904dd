"""The same work on many things, over the hosts of a Ray cluster: what `parallel.each` does with processes here.

What travels are values (Ray pickles them): no path of this machine means anything on another. Work is pure, so what a
dead host had begun Ray does again elsewhere, with the same outcome: hosts that would compute otherwise are refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import platform
import secrets
import signal
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np

from hw.ray.cluster import HOST_LABEL, Node, RayCluster, joined
from hw.version import code_here
from kit.chance import stream
from kit.errors import InputError, WorkError, in_a_line
from kit.parallel import ONE_THREAD
from kit.plugins import REFUSING
from scenarios.runs.provenance import PRODUCT, version_of

FLAG: Final = "--ray"
PROBE_S: Final = 60.0  # a host under load starts a process, and imports for some seconds
COMPILE_S: Final = 600.0
IN_FLIGHT: Final = 1000  # tasks: enough for any cluster, and quick to look through
RETRIES: Final = 3  # of a task whose process or host died: beyond, it is the task that kills them
ALIKE: Final = (PRODUCT, "ray", "numpy", "numba", "scipy", "simpy", "pydantic")  # what computes, and what travels

Common = TypeVar("Common")
Task = TypeVar("Task")
Made = TypeVar("Made")
Facts = Mapping[str, str]


@contextlib.contextmanager
def ray_pool(address: str) -> Iterator[RayPool]:
    """A running cluster to spread work over, all hosts of which compute alike; what is printed within is dropped.

    Args:
        address: `HOST:PORT` of its head; `auto`: what RAY_ADDRESS says, or the one that runs on this machine.

    Raises:
        InputError: Ray is not installed, nobody answers there, or a host has other versions.
        WorkError: a host does not answer, or the cluster is gone.
    """
    os.environ.setdefault("RAY_task_oom_retries", str(RETRIES))
    ended = signal.getsignal(signal.SIGTERM)
    with (
        Path(os.devnull).open("w", encoding="utf-8") as nowhere,
        contextlib.redirect_stdout(nowhere),  # Ray writes there of hosts that die: that would stand amid a result
        joined(address or "auto", FLAG, "", beyond_loopback=True) as cluster,
    ):
        signal.signal(signal.SIGTERM, ended)  # Ray has set its own
        pool = RayPool(cluster)
        pool.require_alike()
        yield pool


class RayPool:
    """Does tasks on the cores of a cluster, for one who asks at a time. `ray_pool` makes one."""

    def __init__(self, cluster: RayCluster) -> None:
        self._cluster, self._ray = cluster, cluster.ray
        environment = {**ONE_THREAD, REFUSING: os.environ.get(REFUSING, "0")}
        self._options = {"runtime_env": {"env_vars": environment}}
        spread = {"num_cpus": 1, "max_retries": RETRIES, "scheduling_strategy": "SPREAD"}
        self._do = self._ray.remote(**spread, **self._options)(_do)
        self._last: tuple[object, object, str, list[Any]] | None = None

    def require_alike(self) -> None:
        """Raises `InputError` where a host has other versions, or where no host lends a core."""
        for node, facts in self._everywhere(_facts, PROBE_S):
            if (problem := difference(facts)) is not None:
                raise InputError(FLAG, "", f"host {node.host} ({node.address}) {problem}; install the same on both")
        if self._ray.cluster_resources().get("CPU", 0) < 1:
            address = self._cluster.address
            raise InputError(FLAG, "", f"no host of the cluster at {address} lends a core (ray start --num-cpus)")

    def each(
        self,
        work: Callable[[Common, Task], Made],
        common: Common,
        tasks: Sequence[Task],
        prepare: Callable[[Common], object] | None = None,
    ) -> Generator[tuple[int, Made], None, None]:
        """(place of the task, what the work made of it), as they end; see `parallel.each`.

        Whoever stops asking leaves tasks behind, until the pool is left: Ray ends them then. To cancel them would end
        this process now and then (Ray 2.60: "Tried to complete task that was not pending").

        Raises:
            InputError: a host lacks something that is here; it is named.
            WorkError: a task's process was killed time and again; what the work raises.
        """
        given = self._given(work, common, prepare)
        left = iter(enumerate(tasks))
        running: dict[Any, int] = {}
        while True:
            for place, task in islice(left, IN_FLIGHT - len(running)):
                running[self._do.remote(*given, task)] = place
            if not running:
                return
            for end in self._ray.wait(list(running))[0]:
                yield running.pop(end), self._result(end)

    def _given(self, work: Any, common: Any, prepare: Callable[[Any], object] | None) -> tuple[str, list[Any], Facts]:
        """What all tasks have in common: sent once, and hosts prepared, for as long as it is the same."""
        if self._last is None or self._last[0] is not work or self._last[1] is not common:
            key, at = secrets.token_hex(8), [self._ray.put((work, common))]  # in a list: it is not fetched every time
            if prepare is not None:
                list(self._everywhere(_prepare, COMPILE_S, key, at, facts_here(), prepare))
            self._last = work, common, key, at
        return *self._last[2:], facts_here()

    def _everywhere(self, work: Callable[..., Any], within_s: float, *arguments: Any) -> Iterator[tuple[Node, Any]]:
        """What some work makes on each host; it waits for no core there. A host that dies has none."""
        remote = self._ray.remote(num_cpus=0, max_retries=0, **self._options)(work)
        ends = [
            (node, remote.options(scheduling_strategy=self._cluster.on(node)).remote(*arguments))
            for node in self._cluster.nodes()
        ]
        for node, end in ends:
            try:
                yield node, self._result(end, within_s)
            except self._ray.exceptions.GetTimeoutError:
                raise WorkError(f"host {node.host} ({node.address}) has not answered for {within_s:g} s") from None
            except _DeadError:
                continue

    def _result(self, end: Any, within_s: float | None = None) -> Any:
        """What a task made; raises what it raised."""
        errors = self._ray.exceptions
        try:
            return self._ray.get(end, timeout=within_s)
        except errors.RayTaskError as error:
            if isinstance(error.cause, ImportError):
                problem = f"a host can't run this project ({in_a_line(str(error.cause))})"
                raise InputError(FLAG, "", f"{problem}; install the same as here") from None
            raise error.cause from None
        except errors.GetTimeoutError:
            raise
        except errors.RayError as error:
            problem = f"a task's process was killed {RETRIES + 1} times, most often because memory ran out"
            remedy = "lend fewer cores of a host (ray start --num-cpus)"
            raise _DeadError(f"{problem}; {remedy} ({in_a_line(str(error))})") from None


class _DeadError(WorkError):
    """A host, or a process on it, died: told by Ray."""


# ---------------------------------------------------------------------------------------------------------- on a host


@cache
def facts_here() -> Facts:
    """What must be the same on all hosts, so that they compute the same to the last bit.

    How elementary functions round is up to the processor and the C library.
    """
    numbers = stream(0, "arithmetic").uniform(0.01, 20.0, 2000)
    values = [function(numbers) for function in (np.sin, np.exp, np.log, np.log10, np.tanh, np.sqrt)]
    functions: tuple[Callable[[float], float], ...] = (math.sin, math.exp, math.log, math.lgamma, math.expm1)
    values += [np.array([function(number) for number in numbers.tolist()]) for function in functions]
    digits = hashlib.sha256(b"".join(each.tobytes() for each in values)).hexdigest()[:16]
    versions = {name: str(version_of(name)) for name in ALIKE}
    facts = {"Python": platform.python_version(), **versions, "code": code_here()}
    return {**facts, "the last digits of sin, exp and so on": digits}


def _facts() -> Facts:
    """Of the host on which it is called: Ray takes no cached function."""
    return facts_here()


def difference(theirs: Facts, ours: Facts | None = None) -> str | None:
    """What a host has otherwise than this one, in words; None where it is as this one."""
    ours = ours or facts_here()
    names = [name for name in ours if theirs.get(name) != ours[name]]
    if len(names) > 1 and PRODUCT in names:  # then of course
        names = [name for name in names if name != "code"]
    there, here = (", ".join(f"{name} {facts.get(name, 'none')}" for name in names) for facts in (theirs, ours))
    return f"has {there}; here: {here}" if names else None


_KEPT: dict[str, tuple[Any, Any]] = {}


def _do(key: str, at: list[Any], wanted: Facts, task: Any) -> Any:
    """One task; what is wrong with its input here is told with where that is."""
    with _on_this_host():
        work, common = _kept(key, at, wanted)
        return work(common, task)


def _prepare(key: str, at: list[Any], wanted: Facts, preparing: Callable[[Any], object]) -> None:
    """What has to be done once on a host."""
    with _on_this_host():
        preparing(_kept(key, at, wanted)[1])


def _kept(key: str, at: list[Any], wanted: Facts) -> tuple[Any, Any]:
    """Work and content; raises `WorkError` on a host that has come later, and has other versions."""
    if key not in _KEPT:
        if (problem := difference(facts_here(), wanted)) is not None:
            raise WorkError(f"host {platform.node()}, which joined meanwhile, {problem}; install the same on both")
        import ray  # it is running

        _KEPT.clear()
        _KEPT[key] = ray.get(at[0])
    return _KEPT[key]


@contextlib.contextmanager
def _on_this_host() -> Iterator[None]:
    try:
        yield
    except InputError as error:
        import ray

        host = ray.get_runtime_context().get_node_labels().get(HOST_LABEL) or platform.node()
        raise InputError(error.source, error.key, f"{error.problem} (on host {host})") from None
