"""Admission at the head of a Ray cluster, checked before Ray tries, which takes 20 s and gives no reason for refusals.

Ray requires a token if its nodes were started with `RAY_AUTH_MODE=token`; otherwise, any client that reaches one of its
ports can run anything there. On Linux these ports are open on every address of a machine, whatever `--node-ip-address`
is (docs/cluster.md).
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil

from kit.errors import InputError, in_a_line

if TYPE_CHECKING:
    from types import ModuleType

START: Final = "`ray start` starts one, docs/cluster.md says how"
LOCAL: Final = "auto"
_PATIENCE_S: Final = 3.0
_MODE: Final = "RAY_AUTH_MODE"
_ALIVE: Final = "/ray.rpc.NodeInfoGcsService/CheckAlive"
_SETTING: Final = "set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN_PATH to the file with the cluster's token"


def use_own_token() -> None:
    """Show this user's token, if there is one, as Ray does for `auto`; to be called before Ray is imported."""
    has_one = os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH")
    if has_one or (Path.home() / ".ray" / "auth_token").is_file():
        os.environ.setdefault(_MODE, "token")


def require_entry(ray: ModuleType, address: str, source: str, key: str) -> str:
    """Return the head's address, if this process is admitted.

    Args:
        ray: the module.
        address: `HOST:PORT`, or `auto`.
        source, key: of the address, for messages.

    Raises:
        InputError: it is not a valid address, nothing is there, Ray is not there, or in another version, or this
            process lacks the cluster's token.
    """
    entry = _found_here(source, key) if address == LOCAL else address
    _require_listener(entry, source, key)
    token = _own_token(source, key)
    try:
        version = version_at(entry, token)
    except PermissionError:
        problem = f"the Ray cluster at {entry} asks for a token, and this process shows "
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
    others = [f"{other}:{port}" for other in _addresses()] if is_loopback(host) else [address]
    if where := next((other for other in others if _is_open(other)), ""):
        problem = f"whoever reaches {where} can run programs there: this Ray cluster asks nobody for a token"
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
    every = [
        each for addresses in psutil.net_if_addrs().values() for each in addresses if each.family == socket.AF_INET
    ]
    return [each.address for each in every if not is_loopback(each.address)]


def version_at(address: str, token: str | None) -> str:
    """Return the version of the Ray at that address, from its own health check; empty if it does not report one.

    Args:
        token: to be shown; None for none.

    Raises:
        PermissionError: it does not admit clients with that token.
        OSError: no Ray answers there.
    """
    import grpc

    shown = () if token is None else (("authorization", f"Bearer {token}"),)
    options = (("grpc.enable_http_proxy", 0),)  # as Ray's own
    with _secured(grpc, address, options) as channel:
        try:
            answer: bytes = channel.unary_unary(_ALIVE)(b"", timeout=_PATIENCE_S, metadata=shown)
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


def _found_here(source: str, key: str) -> str:
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
        raise InputError(source, key, f"{address!r} is no address; give HOST:PORT of the cluster's head, or `auto`")
    if not 1 <= int(port) < 1 << 16:
        raise InputError(source, key, f"{address!r} has no port from 1 to 65535")
    try:
        socket.create_connection((host, int(port)), timeout=_PATIENCE_S).close()
    except OSError as error:
        problem = f"nobody answers at {address} ({error.strerror or error})"
        raise InputError(source, key, f"{problem}; {START}") from None
