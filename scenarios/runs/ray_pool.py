"""The same work on many things, over the hosts of a Ray cluster: what `parallel.each` does with processes here.

What travels are values (Ray pickles them): no path of this machine means anything on another. Work is pure, so what a
dead host had begun is done again elsewhere, with the same outcome.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import time  # noqa: TID251 - how long a cluster has not answered
from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import islice
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, Final, TypeVar

from hw.ray.cluster import Node, RayCluster, joined, ray_here
from kit.errors import InputError, WorkError, in_a_line
from kit.parallel import ONE_THREAD
from kit.plugins import REFUSING
from scenarios.runs import ray_task
from scenarios.runs.ray_task import Given, Refused, difference, facts_here

FLAG: Final = "--ray"
AUTO: Final = "auto"
ANSWER_S: Final = 3.0
PROBE_S: Final = 60.0  # a host under load starts a process, and imports for some seconds
COMPILE_S: Final = 600.0
PATIENCE_S: Final = 2.0  # without the end of anything, until the cluster is asked whether it is still there
IN_FLIGHT: Final = 1000  # tasks: enough for any cluster, and quick to look through
RETRIES: Final = 3  # of a task whose process or host died: beyond, it is the task that kills them
SETTINGS: Final = {
    "RAY_DISABLE_IMPORT_WARNING": "1",
    "RAY_NUM_REDIS_GET_RETRIES": "5",  # seconds in which whoever has no token, or another one, is refused
    "RAY_task_oom_retries": str(RETRIES),
}

Common = TypeVar("Common")
Task = TypeVar("Task")
Made = TypeVar("Made")


# ------------------------------------------------------------------------------------------------------------ the door


@contextlib.contextmanager
def ray_pool(address: str) -> Iterator[RayPool]:
    """A running cluster to spread work over, all hosts of which compute alike; what is printed within is dropped.

    Args:
        address: `HOST:PORT` of its head; `auto`: what RAY_ADDRESS says, or the one that runs on this machine.

    Raises:
        InputError: Ray is not installed, nobody answers there, or a host has other versions.
        WorkError: a host does not answer.
    """
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    ray_here(FLAG, "")
    address = _found(address)
    if (problem := silence(address)) is not None:
        raise InputError(FLAG, "", f"no Ray cluster answers at {address} ({problem}); `ray start` starts one")
    ended = signal.getsignal(signal.SIGTERM)
    with (
        Path(os.devnull).open("w", encoding="utf-8") as nowhere,
        contextlib.redirect_stdout(nowhere),  # Ray writes there of hosts that die: that would stand amid a result
        joined(address, FLAG, "", beyond_loopback=True) as cluster,
    ):
        signal.signal(signal.SIGTERM, ended)  # Ray has set its own
        pool = RayPool(cluster, address)
        pool.require_alike()
        yield pool


def _found(address: str) -> str:
    """`HOST:PORT`, where Ray itself would look for it."""
    from ray._private.services import canonicalize_bootstrap_address_or_die

    if address not in (AUTO, ""):
        return address
    try:
        return str(canonicalize_bootstrap_address_or_die(AUTO))
    except (ConnectionError, ValueError) as error:
        problem = f"no Ray cluster runs here ({in_a_line(str(error))}); `ray start` starts one"
        raise InputError(FLAG, "", problem) from None


_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))  # with empty settings
_SETTINGS_FRAME: Final = 4


def silence(address: str) -> str | None:
    """Why nobody speaks Ray's protocol at an address, as far as its first words tell; None where somebody does.

    Ray itself tries for a minute and more, and then ends the process. (RFC 9113, 3.4: a server begins with its
    settings. With TLS it would not begin so.)
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        return f"an address is HOST:PORT of the cluster's head, or `{AUTO}`"
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_S) as connection:
            if os.environ.get("RAY_USE_TLS", "0") not in ("", "0"):
                return None
            connection.sendall(_PREFACE)
            answer = connection.recv(9)
    except (OSError, OverflowError) as error:
        return str(getattr(error, "strerror", None) or error)
    return None if len(answer) > 3 and answer[3] == _SETTINGS_FRAME else "who answers there is no Ray"


# ------------------------------------------------------------------------------------------------------------ the pool


class _DeadError(Exception):
    """A host, or a process on it, died: told by Ray."""


class RayPool:
    """Does tasks on the cores of a cluster, for one who asks at a time. `ray_pool` makes one.

    Args:
        address: of the head.
    """

    def __init__(self, cluster: RayCluster, address: str) -> None:
        self._cluster, self._ray, self._address = cluster, cluster.ray, address
        self._facts = facts_here()
        environment = {**ONE_THREAD, REFUSING: os.environ.get(REFUSING, "0")}
        self._options = {"runtime_env": {"env_vars": environment}}
        spread = {"num_cpus": 1, "max_retries": RETRIES, "scheduling_strategy": "SPREAD"}
        self._do = self._ray.remote(**spread, **self._options)(ray_task.do)
        self._last: tuple[object, object, Given] | None = None

    def require_alike(self) -> None:
        """Raises `InputError` where a host has other versions, or where no host lends a core."""
        for node, facts in self._everywhere(ray_task.facts, PROBE_S):
            if (problem := difference(facts, self._facts)) is not None:
                raise InputError(FLAG, "", f"host {node.host} ({node.address}) {problem}; install the same on both")
        if self._ray.cluster_resources().get("CPU", 0) < 1:
            raise InputError(FLAG, "", f"no host of the cluster at {self._address} lends a core (ray start --num-cpus)")

    def each(
        self,
        work: Callable[[Common, Task], Made],
        common: Common,
        tasks: Sequence[Task],
        prepare: Callable[[Common], object] | None = None,
    ) -> Generator[tuple[int, Made], None, None]:
        """(place of the task, what the work made of it), as they end; see `parallel.each`.

        Raises:
            InputError: a host lacks something that is here; it is named.
            WorkError: the cluster is gone, or a task's process was killed time and again; what the work raises.
        """
        given = self._given(work, common, prepare)
        left = iter(enumerate(tasks))
        running: dict[Any, int] = {}
        try:
            while True:
                for place, task in islice(left, IN_FLIGHT - len(running)):
                    running[self._do.remote(given, self._facts, task)] = place
                if not running:
                    return
                for end in self._ended(list(running)):
                    yield running.pop(end), self._made(end)
        finally:
            if running and silence(self._address) is None:
                for end in running:
                    self._ray.cancel(end, force=True)

    def _given(self, work: Any, common: Any, prepare: Callable[[Any], object] | None) -> Given:
        """What all tasks have in common: sent once, and hosts prepared, for as long as it is the same."""
        if self._last is None or self._last[0] is not work or self._last[1] is not common:
            packed = bytes(ForkingPickler.dumps((work, common)))  # what can't be sent shows here
            given = Given(secrets.token_hex(8), [self._ray.put(packed)])
            if prepare is not None:
                list(self._everywhere(ray_task.prepare, COMPILE_S, given, self._facts, prepare))
            self._last = work, common, given
        return self._last[2]

    def _everywhere(self, work: Callable[..., Any], within_s: float, *arguments: Any) -> Iterator[tuple[Node, Any]]:
        """What some work makes on each host; it waits for no core there. A host that dies has none."""
        remote = self._ray.remote(num_cpus=0, max_retries=0, **self._options)(work)
        asked = {
            remote.options(scheduling_strategy=self._cluster.on(node)).remote(*arguments): node
            for node in self._cluster.nodes()
        }
        for end, node in asked.items():
            with contextlib.suppress(_DeadError):
                if not self._ended([end], within_s):
                    raise WorkError(f"host {node.host} ({node.address}) has not answered for {within_s:g} s")
                yield node, self._result(end, f"host {node.host} ({node.address})")

    def _ended(self, running: Sequence[Any], within_s: float = float("inf")) -> list[Any]:
        """Those that have ended, once one has; none where none has in that time.

        Raises:
            WorkError: the cluster is gone; Ray would tell after a minute, and end this process.
        """
        until_s, silent = time.monotonic() + within_s, 0
        while time.monotonic() < until_s:
            ended, _ = self._ray.wait(running, num_returns=1, timeout=PATIENCE_S)
            if ended:
                return list(self._ray.wait(running, num_returns=len(running), timeout=0)[0])
            silent = silent + 1 if silence(self._address) is not None else 0
            if silent > 1:
                raise WorkError(f"the Ray cluster at {self._address} is gone; what is finished is kept")
        return []

    def _made(self, end: Any) -> Any:
        try:
            return self._result(end, "a host")
        except _DeadError as error:
            problem = f"a task's process was killed {RETRIES + 1} times, most often because memory ran out"
            remedy = "lend fewer cores of a host (ray start --num-cpus)"
            raise WorkError(f"{problem}; {remedy} ({error})") from None

    def _result(self, end: Any, where: str) -> Any:
        """What a task made; what it raised."""
        errors = self._ray.exceptions
        try:
            made = self._ray.get(end)
        except errors.RayTaskError as error:
            if isinstance(error.cause, ImportError):
                problem = f"{where} can't run this project ({in_a_line(str(error.cause))})"
                raise InputError(FLAG, "", f"{problem}; install the same as here") from None
            raise error.cause from None
        except errors.RayError as error:
            raise _DeadError(in_a_line(str(error))) from None
        if isinstance(made, Refused):
            host = next((node.host for node in self._cluster.nodes() if node.number == made.node), made.node)
            raise InputError(made.error.source, made.error.key, f"{made.error.problem} (on host {host})")
        return made
