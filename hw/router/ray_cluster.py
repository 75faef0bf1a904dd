"""A Ray cluster: admission at its head, whether the head still answers, the processes that join it, and its hosts.

Admission: Ray requires a token if its nodes were started with `RAY_AUTH_MODE=token`; otherwise, any client that reaches
one of its ports can run anything there. On Linux these ports are open on every address of a machine, whatever
`--node-ip-address` is (docs/cluster.md).

The head's end: Ray itself ends a process whose head has been gone for a minute, whatever the process is doing, with a
message in Ray's terms. `while_head_lives` interrupts the main thread's work before that.

Joining: Ray is an optional extra, so it is imported when a cluster is joined, and nowhere else.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import os
import re
import signal
import socket
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil

from kit.errors import InputError, WorkError, in_a_line
from kit.plugins import code_here, own_version

if TYPE_CHECKING:
    from types import ModuleType


START: Final = "`ray start` starts one, docs/cluster.md shows how"
LOCAL: Final = "auto"
_PATIENCE_S: Final = 3.0
_MODE: Final = "RAY_AUTH_MODE"
_ALIVE: Final = "/ray.rpc.NodeInfoGcsService/CheckAlive"
_SETTING: Final = "set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN_PATH to the file with the cluster's token"


def use_own_token() -> None:
    """Show this user's token, if there is one, as Ray does for `auto`; to be called before Ray is imported."""
    has_token = os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH")
    if has_token or (Path.home() / ".ray" / "auth_token").is_file():
        os.environ.setdefault(_MODE, "token")


def require_entry(ray: ModuleType, address: str, source: str, key: str) -> str:
    """Return the head's address, if this process is admitted.

    Args:
        ray: the module.
        address: `HOST:PORT`, or `auto`.
        source, key: of the address, for messages.

    Raises:
        InputError: it is not a valid address, no cluster listens, Ray is missing, or has another version, or this
            process lacks the cluster's token.
    """
    entry = _local_entry(source, key) if address == LOCAL else address
    _require_listener(entry, source, key)
    token = _own_token(source, key)
    try:
        version = version_at(entry, token)
    except PermissionError:
        problem = f"the Ray cluster at {entry} requires a token, and this process shows "
        problem += "none" if token is None else "another one"
        raise InputError(source, key, f"{problem}; {_SETTING}") from None
    except OSError as error:
        raise InputError(source, key, f"no Ray cluster answers at {entry} ({error}); {START}") from None
    if version and version != ray.__version__:
        problem = f"the cluster at {entry} runs Ray {version}, this process {ray.__version__}"
        raise InputError(source, key, f"{problem}; install the same on all hosts")
    return entry


def require_closed(address: str, source: str, key: str) -> None:
    """Raise `InputError` if others can reach this cluster's head, and are admitted without any token."""
    host, _, port = address.rpartition(":")
    reachable = [f"{own}:{port}" for own in _addresses()] if is_loopback(host) else [address]
    if entry := next(filter(_is_open, reachable), ""):
        problem = f"whoever reaches {entry} can run programs there: this Ray cluster requires no token"
        remedy = "start every node with RAY_AUTH_MODE=token, and set it here, too (docs/cluster.md)"
        raise InputError(source, key, f"{problem}; {remedy}")


def _is_open(address: str) -> bool:
    try:
        version_at(address, None)
    except OSError:
        return False
    return True


def is_loopback(address: str) -> bool:
    """Return whether only this machine reaches it."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def _addresses() -> list[str]:
    """Return this machine's addresses that others may reach."""
    own = [entry for entries in psutil.net_if_addrs().values() for entry in entries if entry.family == socket.AF_INET]
    return [entry.address for entry in own if not is_loopback(entry.address)]


def version_at(address: str, token: str | None) -> str:
    """Return the version of the Ray at that address, from its own health check; empty if it does not report one.

    Args:
        token: to be shown; None for none.

    Raises:
        PermissionError: it does not admit clients with that token.
        OSError: no Ray answers there.
    """
    import grpc

    metadata = () if token is None else (("authorization", f"Bearer {token}"),)
    options = (("grpc.enable_http_proxy", 0),)  # as Ray's own
    with _secured(grpc, address, options) as channel:
        try:
            answer: bytes = channel.unary_unary(_ALIVE)(b"", timeout=_PATIENCE_S, metadata=metadata)
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.UNAUTHENTICATED:
                raise PermissionError(address) from None
            raise OSError(in_a_line(f"{error.code().name.lower()}: {error.details()}")) from None
    match = re.search(rb"\d+\.\d+[\w.]*", answer)
    return match[0].decode() if match else ""


def _secured(grpc: ModuleType, address: str, options: tuple[tuple[str, int], ...]) -> Any:
    """Return a channel; encrypted if Ray's nodes are configured to encrypt, by its own variables."""
    if os.environ.get("RAY_USE_TLS", "0").lower() not in ("1", "true"):
        return grpc.insecure_channel(address, options)
    names = ("RAY_TLS_CA_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_SERVER_CERT")
    credentials = grpc.ssl_channel_credentials(*(Path(os.environ[name]).read_bytes() for name in names))
    return grpc.secure_channel(address, credentials, options)


def _own_token(source: str, key: str) -> str | None:
    """Return the token as Ray finds it: in a variable, in the file that another one names, or in the home directory."""
    if os.environ.get(_MODE, "").lower() != "token":
        return None
    path = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")
    try:
        token = (os.environ.get("RAY_AUTH_TOKEN") or path.read_text(encoding="utf-8")).strip()
    except OSError as error:
        raise InputError(
            source, key, f"no token to show to the Ray cluster ({path}: {error.strerror}); {_SETTING}"
        ) from None
    if not token:
        raise InputError(source, key, f"no token to show to the Ray cluster ({path} is empty); {_SETTING}")
    return token


def _local_entry(source: str, key: str) -> str:
    from ray._private.services import canonicalize_bootstrap_address

    try:
        entry = canonicalize_bootstrap_address(LOCAL)
    except (ConnectionError, ValueError) as error:
        raise InputError(source, key, f"no one Ray cluster is found by `auto` ({in_a_line(str(error))})") from None
    if not entry:
        raise InputError(source, key, f"no Ray cluster runs on this machine; {START}")
    return str(entry)


def _require_listener(address: str, source: str, key: str) -> None:
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise InputError(source, key, f"{address!r} is not an address; give HOST:PORT of the cluster's head, or `auto`")
    if not 1 <= int(port) < 1 << 16:
        raise InputError(source, key, f"{address!r} has no port from 1 to 65535")
    try:
        socket.create_connection((host, int(port)), timeout=_PATIENCE_S).close()
    except OSError as error:
        problem = f"no process answers at {address} ({error.strerror or error})"
        raise InputError(source, key, f"{problem}; {START}") from None


# ------------------------------------------------------------------------------------------------------- the head's end


_LOOK_S: Final = 2.0

_SILENT: Final = 3  # polls in a row
_CALL: Final = signal.SIGUSR1


@contextlib.contextmanager
def while_head_lives(address: str) -> Iterator[threading.Event]:
    """Interrupt the main thread's work some seconds after the head's end; yield an event that is set then.

    Other threads are not watched.

    Raises:
        WorkError: the head is gone.
    """
    is_over, is_gone = threading.Event(), threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield is_gone
        return

    before = signal.signal(_CALL, signal.default_int_handler)  # while Ray waits, it passes on this exception alone
    watch = threading.Thread(target=_watch, args=(address, is_over, is_gone), name="ray-head", daemon=True)
    watch.start()
    try:
        yield is_gone
    except KeyboardInterrupt:
        if not is_gone.is_set():
            raise
        remedy = "start its nodes again, then the same command"
        raise WorkError(f"the Ray cluster at {address} is gone; what is finished is kept; {remedy}") from None
    finally:
        is_over.set()
        watch.join()
        signal.signal(_CALL, before)


def _watch(address: str, is_over: threading.Event, is_gone: threading.Event) -> None:
    silent = 0
    while silent < _SILENT:
        if is_over.wait(_LOOK_S):
            return
        silent = 0 if _listens(address) else silent + 1
    is_gone.set()
    ident = threading.main_thread().ident
    if ident is not None and not is_over.is_set():
        signal.pthread_kill(ident, _CALL)


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_PATIENCE_S).close()
    except OSError:
        return False
    return True


# --------------------------------------------------------------------------------------------------- joining, and hosts


HOST_LABEL: Final = "host"
"""The label of a node that names its host: `ray start --labels=host=NAME`."""

REMEDY: Final = "install it: pip install 'slim-scheduler[ray]'"


def ray_here(source: str, key: str) -> ModuleType:
    """Return the module; raises `InputError` if it is not installed."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    use_own_token()
    try:
        import grpc  # noqa: F401 - Ray checks tokens through it
        import ray
    except ImportError as error:
        raise InputError(source, key, f"Ray is not installed here ({error}); {REMEDY}") from None
    return ray


@dataclass(frozen=True, slots=True)
class Node:
    """One of Ray's nodes that is alive.

    Attributes:
        number: Ray's own name of it.
        host: its name in scenarios: its label, or the system's name of it.
        address: at which others reach it.
    """

    number: str
    host: str
    address: str

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Node:
        """Build it from Ray's description."""
        labels, system = record.get("Labels") or {}, str(record.get("NodeManagerHostname", ""))
        return cls(str(record["NodeID"]), str(labels.get(HOST_LABEL) or system), str(record["NodeManagerAddress"]))


class RayCluster:
    """A Ray cluster that this process has joined. `joined` makes one.

    Attributes:
        address: of its head.
        here: the node that this process is on.
        is_gone: set once its head is: no further request is possible.
    """

    def __init__(self, ray: ModuleType, address: str, is_gone: threading.Event | None = None) -> None:
        self.ray = ray
        self.is_gone = is_gone or threading.Event()
        self.address = address
        self._order: dict[str, int] = {}  # nodes, and the order in which they were seen first
        number = str(ray.get_runtime_context().get_node_id())
        self.here = next(node for node in self.nodes() if node.number == number)

    def nodes(self) -> list[Node]:
        """Return the nodes that are alive, by name."""
        alive = [Node.of(node) for node in self.ray.nodes() if node["Alive"]]
        for node in alive:
            self._order.setdefault(node.number, len(self._order))
        return sorted(alive, key=lambda node: (node.host, node.number))

    def node_of(self, host: str) -> Node | None:
        """Return the node of that name; None if none is alive.

        Ray takes a node for alive for up to half a minute after its death. So of two with one name the right one is the
        one that joined last.
        """
        matches = [node for node in self.nodes() if node.host == host]
        return max(matches, key=lambda node: self._order[node.number], default=None)

    def on(self, node: Node) -> Any:
        """Return Ray's strategy that runs something on that node, and nowhere else."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        return NodeAffinitySchedulingStrategy(node.number, soft=False)


_joined: list[RayCluster] = []  # the one that this process is in


@contextlib.contextmanager
def joined(address: str, source: str, key: str, *, beyond_loopback: bool = False) -> Iterator[RayCluster]:
    """Join a running cluster, and leave it at the end.

    Args:
        address: `HOST:PORT` of its head, or `auto` for the one that runs on this machine.
        source, key: of the address, for messages.
        beyond_loopback: whether its hosts may be reached from other machines.

    Raises:
        InputError: Ray is not installed, nothing is at that address, this process lacks the cluster's token, or others
            can reach its hosts without the option for that, or without a token.
        WorkError: its head is gone, meanwhile.
    """
    ray = ray_here(source, key)
    if ray.is_initialized():  # by a caller with a larger piece of work in this process
        yield _joined[-1] if _joined else RayCluster(ray, address)
        return
    entry = require_entry(ray, address, source, key)
    require_closed(entry, source, key)
    try:
        ray.init(address=entry, namespace="slimsched", log_to_driver=False, logging_level=logging.ERROR, **_own(entry))
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        problem = f"no Ray cluster answers at {address!r} ({in_a_line(str(error))})"
        raise InputError(source, key, f"{problem}; {START}") from None
    with while_head_lives(entry) as is_gone:
        try:
            cluster = RayCluster(ray, entry, is_gone)
            _require_option(cluster, source, beyond_loopback=beyond_loopback)
            _joined.append(cluster)
            yield cluster
        finally:
            _joined.clear()
            ray.shutdown()


def _own(address: str) -> dict[str, str]:
    """Return this node's address, which Ray guesses wrong if the head is on loopback."""
    host = address.rpartition(":")[0]
    return {"_node_ip_address": host} if is_loopback(host) else {}


def _require_option(cluster: RayCluster, source: str, *, beyond_loopback: bool) -> None:
    """Refuse addresses beyond loopback without the option for that: nothing of ours listens there otherwise."""
    elsewhere = [node for node in cluster.nodes() if not is_loopback(node.address)]
    if elsewhere and not beyond_loopback:
        problem = f"host {elsewhere[0].host} is at {elsewhere[0].address}, where others can reach it; allow it with "
        problem += "`beyond_loopback: true`, or start every node on this machine with --node-ip-address=127.0.0.2"
        raise InputError(source, "cluster.beyond_loopback", problem)


@dataclass(frozen=True, slots=True)
class HostFacts:
    """A host's description of itself.

    Attributes:
        machine: the same for two hosts that are one machine.
        niceness: of its future workers: Ray lowers its workers' priority unless it is configured not to.
        code: see `kit.plugins.code_here`.
    """

    host: str
    machine: str
    python: str
    version: str
    code: str
    torch: str
    cores: int
    memory_bytes: int
    free_bytes: int
    disk_free_bytes: int
    devices: tuple[str, ...]
    niceness: int = 0


def require_same_code(host: str, version: str, code: str) -> None:
    """Raise `WorkError` if another host has another version of this project, or other code of the same one."""
    if version != own_version():
        problem = f"host {host} has slim-scheduler {version}, this one {own_version()}"
    elif code != code_here():
        problem = f"host {host} has other code of slim-scheduler {version} ({code} there, {code_here()} here)"
    else:
        return
    raise WorkError(f"{problem}; install the same on both")
