"""Who is let in at the head of a Ray cluster: asked before Ray tries, which takes 20 s and does not say why not.

Ray asks for a token where its nodes were started with `RAY_AUTH_MODE=token`; without that, whoever reaches one of its
ports runs what they like there. On Linux these ports are open on every address of a machine, whatever
`--node-ip-address` says (docs/cluster.md).
"""

from __future__ import annotations

import ipaddress
import os
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
_SETTING: Final = "set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN_PATH to the file with the cluster's token"


def use_own_token() -> None:
    """Where this user has a token it is shown, as Ray does for `auto`; to be called before Ray is imported."""
    has_one = os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH")
    if has_one or (Path.home() / ".ray" / "auth_token").is_file():
        os.environ.setdefault(_MODE, "token")


def shows_token() -> bool:
    """Whether Ray shows a token in this process."""
    return os.environ.get(_MODE, "").lower() == "token"


def require_entry(ray: ModuleType, address: str, source: str, key: str) -> str:
    """The head's address, where this process is let in.

    Args:
        ray: the module.
        address: `HOST:PORT`, or `auto`.
        source, key: where it stands, for messages.

    Raises:
        InputError: it is no address, nobody is there, no Ray is there, or another version of it, or this process has
            not the cluster's token.
    """
    found = _found_here(source, key) if address == LOCAL else address
    _require_listener(found, source, key)
    token = _own_token(ray, source, key)
    try:
        version = version_at(found, token)
    except PermissionError:
        problem = f"the Ray cluster at {found} asks for a token, and this process shows "
        problem += "none" if token is None else "another one"
        raise InputError(source, key, f"{problem}; {_SETTING}") from None
    except OSError as error:
        raise InputError(source, key, f"no Ray cluster answers at {found} ({error}); {START}") from None
    if version != ray.__version__:
        problem = f"the cluster at {found} runs Ray {version}, this process {ray.__version__}"
        raise InputError(source, key, f"{problem}; install the same on all hosts")
    return found


def require_closed(address: str, source: str, key: str) -> None:
    """Raises `InputError` where others can reach this cluster's head, and are let in without any token."""
    if where := _open_address(address):
        problem = f"whoever reaches {where} can run programs there: this Ray cluster asks nobody for a token"
        remedy = "start every node with RAY_AUTH_MODE=token, and set it here, too (docs/cluster.md)"
        raise InputError(source, key, f"{problem}; {remedy}")


def _open_address(address: str) -> str:
    host, _, port = address.rpartition(":")
    others = [f"{other}:{port}" for other in _addresses()] if is_loopback(host) else [address]
    return next((other for other in others if _is_open(other)), "")


def _is_open(address: str) -> bool:
    try:
        version_at(address, None)
    except OSError:
        return False
    return True


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches it."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def _addresses() -> list[str]:
    """Of this machine, that others may reach."""
    every = [each for found in psutil.net_if_addrs().values() for each in found if each.family == socket.AF_INET]
    return [each.address for each in every if not is_loopback(each.address)]


def version_at(address: str, token: str | None) -> str:
    """Of the Ray at that address, from its own check whether it is alive.

    Args:
        token: to be shown; None for none.

    Raises:
        PermissionError: it does not let in whoever shows that.
        OSError: no Ray answers there.
    """
    import grpc
    from ray.core.generated.gcs_service_pb2 import CheckAliveRequest  # type: ignore[attr-defined]
    from ray.core.generated.gcs_service_pb2_grpc import NodeInfoGcsServiceStub

    shown = () if token is None else (("authorization", f"Bearer {token}"),)
    with _channel(grpc, address) as channel:
        try:
            answer = NodeInfoGcsServiceStub(channel).CheckAlive(  # type: ignore[no-untyped-call]
                CheckAliveRequest(), timeout=_PATIENCE_S, metadata=shown
            )
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.UNAUTHENTICATED:
                raise PermissionError(address) from None
            raise OSError(in_a_line(f"{error.code().name.lower()}: {error.details()}")) from None
    return str(answer.ray_version)


def _channel(grpc: ModuleType, address: str) -> Any:
    options = (("grpc.enable_http_proxy", 0),)  # as Ray's own
    if os.environ.get("RAY_USE_TLS", "0").lower() not in ("1", "true"):
        return grpc.insecure_channel(address, options)
    from ray._common.tls_utils import load_certs_from_env

    chain, private, root = load_certs_from_env()  # type: ignore[no-untyped-call]
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(root, private, chain), options)


def _own_token(ray: ModuleType, source: str, key: str) -> str | None:
    if not shows_token():
        return None
    from ray._raylet import AuthenticationTokenLoader  # type: ignore[attr-defined]

    try:
        token = str(AuthenticationTokenLoader.instance().get_raw_token(ignore_auth_mode=True))
        reason = "RAY_AUTH_MODE=token, and none is in ~/.ray/auth_token"
    except ray.exceptions.AuthenticationError as error:
        token, reason = "", in_a_line(str(error)).partition(". ")[0]
    if not token:
        raise InputError(source, key, f"no token to show to the Ray cluster ({reason}); {_SETTING}")
    return token


def _found_here(source: str, key: str) -> str:
    from ray._private.services import canonicalize_bootstrap_address

    try:
        found = canonicalize_bootstrap_address(LOCAL)
    except (ConnectionError, ValueError) as error:
        raise InputError(source, key, f"no one Ray cluster is found by `auto` ({in_a_line(str(error))})") from None
    if not found:
        raise InputError(source, key, f"no Ray cluster runs on this machine; {START}")
    return str(found)


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
